//! [`Charsmap`]: SentencePiece's character replacement table (`precompiled_charsmap`).
//!
//! The blob is a trie as a double array of `u32`, followed by the replacements, each ended by a zero byte. The trie's
//! values are offsets into the replacements. The contents are not trusted: with a broken table fewer characters are
//! replaced, but nothing outside the table is read.

/// Maximum bytes of an entry. Real ones are far shorter; a broken trie can have a cycle.
const LONGEST: usize = 256;

/// The trie of replaced prefixes, and the replacements.
#[derive(Debug)]
pub(super) struct Charsmap {
    trie: Vec<u32>,
    replacements: String,
}

impl Charsmap {
    /// Parses SentencePiece's `precompiled_charsmap`.
    pub(super) fn parse(bytes: &[u8]) -> Result<Charsmap, String> {
        let size = bytes.first_chunk().map(|size| u32::from_le_bytes(*size) as usize);
        let (Some(size), rest) = (size, bytes.get(4..).unwrap_or_default()) else {
            return Err(format!("has {} bytes, too few for a table's length", bytes.len()));
        };
        if size > rest.len() || size == 0 || size % 4 != 0 {
            return Err(format!("says that its trie has {size} bytes, where {} follow", rest.len()));
        }
        let trie = rest[..size].as_chunks().0.iter().map(|unit| u32::from_le_bytes(*unit)).collect();
        let replacements = String::from_utf8(rest[size..].to_vec());
        let replacements = replacements.map_err(|e| format!("has replacements that are not UTF-8: {e}"))?;
        Ok(Charsmap { trie, replacements })
    }

    /// For each prefix of `text` that is in the table, shortest first: its length and its replacement.
    pub(super) fn prefixes<'a>(&'a self, text: &'a str) -> impl Iterator<Item = (usize, &'a str)> {
        let offset = |unit: u32| ((unit >> 10) << ((unit & (1 << 9)) >> 6)) as usize;
        let unit = |at: usize| self.trie.get(at).copied().unwrap_or(0);
        let mut at = offset(unit(0));
        let mut bytes = text.bytes().take(LONGEST).enumerate();
        let next = move || {
            loop {
                let (i, byte) = bytes.next().filter(|(_, byte)| *byte != 0)?;
                at ^= byte as usize;
                let found = unit(at);
                // The label, and the bit that marks a value unit.
                if found & (1 << 31 | 0xFF) != u32::from(byte) {
                    return None;
                }
                at ^= offset(found);
                if found >> 8 & 1 == 1 {
                    return Some((i + 1, unit(at) & !(1 << 31)));
                }
            }
        };
        std::iter::from_fn(next).filter_map(|(len, at)| {
            let rest = self.replacements.get(at as usize..)?;
            Some((len, rest.split('\0').next().unwrap_or(rest)))
        })
    }
}
