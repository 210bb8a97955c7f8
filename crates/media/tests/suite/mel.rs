//! Log-mel spectrograms against the reference's filters and frames.

use tallow_media::mel::{LogMel, filters};
use tallow_support::{golden, shared, tensors};

#[test]
fn filters_are_those_of_the_reference() {
    let all = tensors(&golden("frontends/mel-filters.safetensors"));
    for bands in [80, 128] {
        let (want, got) = (all[&format!("mel_{bands}")].f32(), filters(bands).concat());
        assert_eq!(want.len(), got.len());
        let far = want.iter().zip(&got).map(|(a, b)| (f64::from(*a) - b).abs()).fold(0.0, f64::max);
        assert!(far < 1e-7, "{bands} bands: {far}");
    }
}

#[test]
fn frames_of_real_speech_are_those_of_the_reference() {
    let Some(assets) = shared("whisper-assets") else { return };
    let file = std::fs::read(assets.join("1272-141231-0002.wav")).unwrap();
    let data = file.windows(4).position(|four| four == b"data").unwrap() + 8;
    let samples: Vec<f32> =
        file[data..].chunks_exact(2).map(|c| f32::from(i16::from_le_bytes([c[0], c[1]])) / 32768.0).collect();
    let all = tensors(&golden("frontends/whisper-mel.safetensors"));
    for bands in [80, 128] {
        let want = &all[&format!("wav.mel{bands}.head")];
        let (columns, numbers) = (want.shape[1], want.f32());
        let got = LogMel::new(bands).frames(&samples, 3000);
        assert_eq!(got.len(), 3000 * bands);
        for band in 0..bands {
            for t in 0..columns {
                let (a, b) = (numbers[band * columns + t], got[t * bands + band]);
                assert!((a - b).abs() < 1e-4, "{bands} bands, frame {t}, band {band}: {a} {b}");
            }
        }
    }
}
