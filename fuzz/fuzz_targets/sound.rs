//! A WAV file. Other sounds are decoded by a crate whose panics are caught, which libFuzzer would not have.
#![no_main]

use tallow_audio::Audio;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    if !bytes.starts_with(b"RIFF") {
        return;
    }
    let Ok(mut sound) = Audio::bytes(bytes.to_vec()) else { return };
    // A second at a time, and no more than a minute: a file of a low rate becomes a long sound.
    for _ in 0..60 {
        match sound.read(tallow_audio::RATE as usize) {
            Ok(samples) if !samples.is_empty() => {}
            _ => return,
        }
    }
});
