//! A sound file. A panic in our own WAV reader ends the process, as it should; panics of the crates that demux and
//! decode other containers are converted to errors by us, and may happen here.
#![no_main]

use std::sync::Once;

use tallow_media::audio::Audio;

/// Leaves panics to those who catch them. libFuzzer's hook, set before, would end the process.
static CAUGHT: Once = Once::new();

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    static OWN: std::sync::Mutex<bool> = std::sync::Mutex::new(false);
    CAUGHT.call_once(|| {
        let ends = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            if OWN.lock().is_ok_and(|own| *own) {
                ends(info);
            }
        }));
    });
    if let Ok(mut own) = OWN.lock() {
        *own = bytes.starts_with(b"RIFF");
    }
    let Ok(mut sound) = Audio::bytes(bytes.to_vec()) else { return };
    // A second at a time, and no more than a minute: a file of a low sample rate is resampled to a long sound.
    for _ in 0..60 {
        match sound.read(tallow_media::audio::RATE as usize) {
            Ok(samples) if !samples.is_empty() => {}
            _ => return,
        }
    }
});
