//! A safetensors file beside valid settings.
#![no_main]

use std::sync::Once;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    static SETTINGS: Once = Once::new();
    SETTINGS.call_once(|| {
        tallow_fuzz::write("config.json", include_bytes!("../seeds/config/good.json"));
    });
    tallow_fuzz::write("model.safetensors", bytes);
    tallow_fuzz::open(tallow_fuzz::folder());
});
