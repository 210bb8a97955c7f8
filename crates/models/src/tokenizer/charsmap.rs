//! [`Charsmap`]: the table by which SentencePiece replaces characters before it cuts text.
//!
//! The file has a trie as a double array of `u32`, and after it the replacements, each ended by a zero byte. The
//! trie's values are offsets of replacements. Nothing is believed: a broken table replaces less, but reads nothing
//! outside itself.

/// No entry is for more bytes than this. Real ones are far shorter; a broken trie can have a circle.
const LONGEST: usize = 256;

/// Replacements by what they replace.
#[derive(Debug)]
pub(super) struct Charsmap {
    trie: Vec<u32>,
    replacements: String,
}

impl Charsmap {
    /// Reads the table that SentencePiece calls `precompiled_charsmap`.
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

    /// What replaces a prefix of `text`, for each prefix that is in the table, shortest first: its length, and the
    /// replacement.
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
                // The label, and a mark that the unit is no value.
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
