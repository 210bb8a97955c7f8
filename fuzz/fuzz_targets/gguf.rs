//! A GGUF file: header, metadata, settings, weights.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    tallow_fuzz::open(&tallow_fuzz::write("model.gguf", bytes));
});
