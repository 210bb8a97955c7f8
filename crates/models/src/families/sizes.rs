//! Sizes in settings: which are plausible.

use tallow_checkpoint::Result;
use tallow_checkpoint::config::{Config, Key, key};

/// Longest sequence that the model supports.
pub(super) const CONTEXT: Key = key("max_position_embeddings", "context_length");

/// Upper limit of any size read from a file; a larger value means the file is damaged or malicious.
pub(super) const SANE: usize = 1 << 24;

/// Checks that `n` is a plausible size.
pub(super) fn sane(c: &Config<'_>, key: Key, n: usize) -> Result<usize> {
    match (1..=SANE).contains(&n) {
        true => Ok(n),
        false => Err(c.bad(key, format_args!("is {n}; 1 to {SANE} make sense"))),
    }
}
