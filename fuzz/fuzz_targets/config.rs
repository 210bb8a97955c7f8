//! `config.json` beside valid weights.
#![no_main]

use std::sync::Once;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    static WEIGHTS: Once = Once::new();
    WEIGHTS.call_once(|| {
        tallow_fuzz::write("model.safetensors", include_bytes!("../seeds/safetensors/good.safetensors"));
    });
    tallow_fuzz::write("config.json", bytes);
    tallow_fuzz::open(tallow_fuzz::folder());
});
