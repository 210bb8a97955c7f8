//! [`Vocabulary`]: a model's tokens as masks are computed from them.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use hashbrown::HashMap;
use llguidance::ParserFactory;
use llguidance::earley::SlicedBiasComputer;
use tallow_text::tokenizer::{Special, Tokenizer};
use toktrie::{INVALID_TOKEN, InferenceCapabilities, TokEnv, TokRxInfo, TokTrie, TokenId, TokenizerEnv};

use crate::refused::Refused;

/// A model's tokens, prepared for masks. It is built once for a model, in some tenths of a second, and shared.
pub struct Vocabulary {
    pub(crate) factory: ParserFactory,
    pub(crate) env: TokEnv,
    pub(crate) tokenizer: Tokenizer,
    pub(crate) ends: Vec<u32>,
    space_first: bool,
    special: Specials,
    /// Tokens that begin with a space, where a text has one in front.
    spaces: Vec<u32>,
}

impl std::fmt::Debug for Vocabulary {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (size, ends) = (self.size(), &self.ends);
        f.debug_struct("Vocabulary").field("size", &size).field("ends", ends).finish_non_exhaustive()
    }
}

impl Vocabulary {
    /// The tokens of a tokenizer.
    pub fn new(tokenizer: &Tokenizer) -> Result<Vocabulary, Refused> {
        // The engine checks its tables by assertions.
        catch_unwind(AssertUnwindSafe(|| Vocabulary::build(tokenizer))).unwrap_or_else(|_| {
            Err(Refused::whole(
                "this vocabulary cannot be used with grammars: its tokens do not fit into the tables",
            ))
        })
    }

    fn build(tokenizer: &Tokenizer) -> Result<Vocabulary, Refused> {
        let size = tokenizer.vocab_size() as u32;
        if size == 0 {
            return Err(Refused::whole("the vocabulary is empty"));
        }
        let ends: Vec<u32> = tokenizer.ends().filter(|end| *end < size).collect();
        let space_first = puts_space_first(tokenizer);
        let words = words(tokenizer, size);
        let spaced = |token: &u32| words[*token as usize].first() == Some(&b' ');
        let spaces = if space_first { (0..size).filter(spaced).collect() } else { Vec::new() };
        let info = TokRxInfo::new(size, ends.first().copied().unwrap_or(INVALID_TOKEN));
        let mut trie = TokTrie::from(&info, &words);
        if !ends.is_empty() {
            trie = trie.with_eos_tokens(&ends);
        }
        let env: TokEnv = Arc::new(Tokens { trie, tokenizer: tokenizer.clone(), canonical: !space_first });
        let slices = SlicedBiasComputer::general_slices();
        let mut factory = ParserFactory::new(&env, InferenceCapabilities::default(), &slices)
            .map_err(|e| Refused::whole(format!("this vocabulary cannot be used with grammars: {e}")))?;
        factory.quiet();
        let special = Specials::of(tokenizer, size);
        Ok(Vocabulary { factory, env, tokenizer: tokenizer.clone(), ends, space_first, special, spaces })
    }

    /// The number of tokens: bits of a mask.
    pub fn size(&self) -> usize {
        self.env.tok_trie().vocab_size()
    }

    /// True if the first token of a text has a space in front that is not in the text (SentencePiece).
    pub(crate) fn space_first(&self) -> bool {
        self.space_first
    }

    /// The token of a space alone, where a text has one in front.
    pub(crate) fn lead(&self) -> Option<u32> {
        self.env.tok_trie().token_id(b" ").filter(|_| self.space_first)
    }

    pub(crate) fn spaces(&self) -> &[u32] {
        &self.spaces
    }

    /// A text divided at the special tokens that are written out in it: the longest where there are several.
    pub(crate) fn pieces<'t>(&self, text: &'t str) -> Vec<Piece<'t>> {
        let (mut pieces, mut rest, mut at) = (Vec::new(), text, 0);
        while let Some(c) = rest[at..].chars().next() {
            let Some((id, length)) = self.special.at_start(&rest[at..], c) else {
                at += c.len_utf8();
                continue;
            };
            if at > 0 {
                pieces.push(Piece::Text(&rest[..at]));
            }
            pieces.push(Piece::Special(id));
            (rest, at) = (&rest[at + length..], 0);
        }
        if !rest.is_empty() {
            pieces.push(Piece::Text(rest));
        }
        pieces
    }

    /// The bytes that a token stands for under a grammar: none if it is special or ends generation.
    pub(crate) fn bytes(&self, token: u32) -> &[u8] {
        if (token as usize) < self.size() { self.env.tok_trie().token(token) } else { &[] }
    }
}

/// Special tokens by their texts: a vocabulary may have thousands.
struct Specials {
    ids: HashMap<String, u32>,
    first: Vec<char>,
    /// Lengths of the texts, the longest first.
    lengths: Vec<usize>,
}

impl Specials {
    fn of(tokenizer: &Tokenizer, size: u32) -> Specials {
        let named =
            |id: u32| Some((tokenizer.token_text(id).filter(|text| !text.is_empty())?.to_owned(), id));
        // Of several with the same text, the first.
        let ids: HashMap<String, u32> =
            (0..size).rev().filter(|id| tokenizer.is_special(*id)).filter_map(named).collect();
        let mut first: Vec<char> = ids.keys().filter_map(|text| text.chars().next()).collect();
        first.sort_unstable();
        first.dedup();
        let mut lengths: Vec<usize> = ids.keys().map(String::len).collect();
        lengths.sort_unstable_by(|a, b| b.cmp(a));
        lengths.dedup();
        Specials { ids, first, lengths }
    }

    /// The longest token that a text begins with, whose first character this is, and its length.
    fn at_start(&self, text: &str, first: char) -> Option<(u32, usize)> {
        self.first.binary_search(&first).ok()?;
        let known = |length: &usize| Some((*self.ids.get(text.get(..*length)?)?, *length));
        self.lengths.iter().find_map(known)
    }
}

/// A part of a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Piece<'t> {
    Text(&'t str),
    Special(u32),
}

/// True if the tokenizer puts a space in front of a text.
fn puts_space_first(tokenizer: &Tokenizer) -> bool {
    let tokens = tokenizer.encode("{", Special::BARE).unwrap_or_default();
    let bytes = tokens.first().and_then(|token| tokenizer.token_bytes(*token)).unwrap_or_default();
    bytes.first() == Some(&b' ')
}

/// The bytes of each token. Special tokens have none, so that no text of a grammar can be one.
fn words(tokenizer: &Tokenizer, size: u32) -> Vec<Vec<u8>> {
    let mut words: Vec<Vec<u8>> = Vec::with_capacity(size as usize);
    let mut owners: HashMap<Vec<u8>, u32> = HashMap::with_capacity(size as usize);
    for token in 0..size {
        let text = !tokenizer.is_special(token) && !tokenizer.ends_generation(token);
        let mut bytes = if text { tokenizer.token_bytes(token).unwrap_or_default() } else { Vec::new() };
        // Where a byte token and another have the same bytes, the byte token is never what the tokenizer would take.
        if let Some(owner) = owners.get(&bytes).copied().filter(|_| !bytes.is_empty()) {
            let is_byte = |t: u32| {
                tokenizer
                    .token_text(t)
                    .is_some_and(|t| t.len() == 6 && t.starts_with("<0x") && t.ends_with('>'))
            };
            if is_byte(token) {
                bytes.clear();
            } else if is_byte(owner) {
                words[owner as usize].clear();
            }
        }
        if !bytes.is_empty() {
            owners.insert(bytes.clone(), token);
        }
        words.push(bytes);
    }
    words
}

/// The tokens as `llguidance` sees them.
struct Tokens {
    trie: TokTrie,
    tokenizer: Tokenizer,
    canonical: bool,
}

impl TokenizerEnv for Tokens {
    fn tok_trie(&self) -> &TokTrie {
        &self.trie
    }

    fn tokenize_bytes(&self, bytes: &[u8]) -> Vec<TokenId> {
        self.trie.tokenize_with_greedy_fallback(bytes, |text| {
            let tokens = self.tokenizer.encode(text, Special::BARE).unwrap_or_default();
            // A tokenizer that normalises has no tokens of just this text.
            if self.trie.decode_raw(&tokens) == text.as_bytes() {
                tokens
            } else {
                self.trie.greedy_tokenize(text.as_bytes())
            }
        })
    }

    fn tokenize_is_canonical(&self) -> bool {
        self.canonical
    }
}
