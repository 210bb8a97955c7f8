//! A `tokenizer.json`.
#![no_main]

use std::path::Path;

use tallow_text::tokenizer::Tokenizer;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    if let Ok(tokenizer) = Tokenizer::from_json(Path::new("tokenizer.json"), bytes, None) {
        tallow_fuzz::tokenize(&tokenizer);
    }
});
