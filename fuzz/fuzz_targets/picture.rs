//! An image file.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let _ = tallow_media::image::decode::decode(bytes);
});
