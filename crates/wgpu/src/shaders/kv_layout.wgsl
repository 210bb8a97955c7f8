// A page of the KV cache. Keys are [head][element][token], values [head][token][element]; 16-bit elements are packed in
// pairs and 8-bit codes in fours along a head's elements. The scales of 8-bit codes, [head][token], follow all codes.
// Where the values are the keys (MLA), they lie as values do.

// Elements of a head.
override DIM: u32;
// Tokens per page.
override PAGE_LEN: u32;
// Elements per word.
override PACK: u32;
// Words per page, and where in it the scales begin.
override PAGE_WORDS: u32;
override SCALES: u32;
// Pages per block of memory, if there are several blocks.
override BLOCK_PAGES: u32;

// Word `word` of a head's key.
fn key_at(head: u32, word: u32, token: u32) -> u32 {
#if KEYS_AS_VALUES
  return (head * PAGE_LEN + token) * (DIM / PACK) + word;
#else
  return (head * (DIM / PACK) + word) * PAGE_LEN + token;
#endif
}
