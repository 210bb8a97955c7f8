//! Sound files and spectrograms against references.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

mod files;
mod mel;
