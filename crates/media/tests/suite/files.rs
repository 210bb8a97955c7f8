//! Sound files of every kind that we can make, real speech, and files that are not sound.

use tallow_media::audio::{Audio, AudioError, RATE};
use tallow_support::shared;

/// A WAV file of format 1 (integers) or 3 (floats).
fn wav(kind: u16, bits: u16, channels: u16, rate: u32, data: &[u8]) -> Vec<u8> {
    let block = channels * bits / 8;
    let mut file = b"RIFF".to_vec();
    file.extend((36 + data.len() as u32).to_le_bytes());
    file.extend(b"WAVEfmt ");
    file.extend(16u32.to_le_bytes());
    file.extend([kind.to_le_bytes(), channels.to_le_bytes()].concat());
    file.extend([rate.to_le_bytes(), (rate * u32::from(block)).to_le_bytes()].concat());
    file.extend([block.to_le_bytes(), bits.to_le_bytes()].concat());
    file.extend(b"data");
    file.extend((data.len() as u32).to_le_bytes());
    [&file[..], data].concat()
}

fn all(file: Vec<u8>) -> Result<Vec<f32>, AudioError> {
    let mut audio = Audio::bytes(file)?;
    let mut samples = Vec::new();
    loop {
        let some = audio.read(1000)?;
        let ended = some.len() < 1000;
        samples.extend(some);
        if ended {
            return Ok(samples);
        }
    }
}

fn tone(n: usize) -> f32 {
    0.5 * (n as f32 * 0.05).sin()
}

#[test]
fn numbers_of_every_width_are_the_same_sound() {
    let want: Vec<f32> = (0..5000).map(tone).collect();
    let of = |f: &dyn Fn(f32) -> Vec<u8>| want.iter().flat_map(|x| f(*x)).collect::<Vec<u8>>();
    let whole = |x: f32, bits: u32| (f64::from(x) * f64::from(1u32 << (bits - 1))) as i32;
    for (kind, bits, data, near) in [
        (1, 8, of(&|x| vec![(whole(x, 8) + 128) as u8]), 0.01),
        (1, 16, of(&|x| whole(x, 16).to_le_bytes()[..2].to_vec()), 1e-4),
        (1, 24, of(&|x| whole(x, 24).to_le_bytes()[..3].to_vec()), 1e-6),
        (1, 32, of(&|x| ((f64::from(x) * 2f64.powi(31)) as i32).to_le_bytes().to_vec()), 1e-6),
        (3, 32, of(&|x| x.to_le_bytes().to_vec()), 0.0),
    ] {
        let got = all(wav(kind, bits, 1, RATE, &data)).unwrap();
        assert_eq!(got.len(), want.len(), "{bits} bits");
        assert!(got.iter().zip(&want).all(|(a, b)| (a - b).abs() <= near), "{bits} bits");
    }
}

#[test]
fn channels_become_one_and_rates_become_ours() {
    let data: Vec<u8> = (0..48000).flat_map(|n| [tone(n), 0.0]).flat_map(f32::to_le_bytes).collect();
    let got = all(wav(3, 32, 2, 48000, &data)).unwrap();
    assert_eq!(got.len(), 16000);
    let far = (500..15500).map(|n| (got[n] - 0.5 * tone(3 * n)).abs()).fold(0.0, f32::max);
    assert!(far < 1e-3, "{far}");
}

/// Two tones, in mono or in two channels with the second half as loud. Encoders add silence in front and more behind.
fn source(n: usize) -> f32 {
    0.4 * (n as f32 * 0.05).sin() + 0.2 * (n as f32 * 0.013).sin()
}

/// Deviation of the samples from the tones at the best-fitting lag, and that lag.
fn off(got: &[f32], len: usize, loud: f32) -> (f32, isize) {
    let inside = 500..len - 500;
    let far = |lag: isize| {
        let sample = |n: usize| got.get(n.checked_add_signed(lag)?).copied();
        let off =
            inside.clone().map(|n| sample(n).map_or(1.0, |x| (x - loud * source(n)).powi(2))).sum::<f32>();
        ((off / inside.len() as f32).sqrt(), lag)
    };
    (-400..=(got.len() + 400 - len) as isize).map(far).min_by(|a, b| a.0.total_cmp(&b.0)).unwrap()
}

macro_rules! sounds {
    ($($name:literal),*) => {
        [$(($name, &include_bytes!(concat!("../../../../tests/goldens/sound/", $name))[..])),*]
    };
}

/// Encoded by LAME and by FFmpeg's encoders (`tools/goldens/sounds.py`).
#[test]
fn compressed_files_are_the_sound_that_they_were_made_of() {
    let files = sounds!(
        "tone.mp3",
        "stereo.mp3",
        "tone.m4a",
        "stereo.m4a",
        "fragments.mp4",
        "video.mp4",
        "tone.aac",
        "vorbis.ogg",
        "voice.opus",
        "stereo.webm",
        "live.webm",
        "opus.mp4"
    );
    // Number of samples, and amplitude of the mean of all channels.
    let of = [(8000, 1.0), (4800, 0.75), (8000, 1.0), (4800, 0.75), (6400, 1.0), (4800, 1.0), (6400, 1.0)]
        .into_iter()
        .chain([(4800, 0.75), (8000, 1.0), (4800, 0.75), (6400, 1.0), (4800, 1.0)]);
    for ((name, file), (len, loud)) in files.into_iter().zip(of) {
        let got = all(file.to_vec()).unwrap_or_else(|e| panic!("{name}: {e}"));
        assert!((len - 700..len + 3500).contains(&got.len()), "{name}: {} samples of {len}", got.len());
        let (far, late) = off(&got, len, loud);
        // A tenth of the amplitude; for another sound the deviation would be the amplitude. FFmpeg's own decoder
        // deviates as much: at low bit rates Opus loses some of the lower tone, and in speech mode it drops what is as
        // low.
        let most = if name == "voice.opus" { 0.12 } else { 0.04 };
        assert!(far < most, "{name}: off by {far}, {late} samples late");
        // The same through a pipe: decoding never has to seek back.
        let mut piped = Audio::piped(std::io::Cursor::new(file)).unwrap();
        assert_eq!(piped.read(usize::MAX / 2).unwrap(), got, "{name}");
        for end in (0..file.len()).step_by(61) {
            if let Ok(samples) = all(file[..end].to_vec()) {
                assert!(samples.len() <= got.len() + 1024, "{name}: {end}: {}", samples.len());
            }
        }
        for at in (0..file.len()).step_by(17) {
            let mut bad = file.to_vec();
            bad[at] ^= 0xff;
            if let Ok(samples) = all(bad) {
                assert!(samples.len() <= 64 * got.len(), "{name}: {at}: {}", samples.len());
            }
        }
    }
}

#[test]
fn what_cannot_be_decoded_is_named_with_what_to_do() {
    let said = |file: &[u8]| all(file.to_vec()).unwrap_err().to_string();
    let lossless = include_bytes!("../../../../tests/goldens/sound/lossless.m4a");
    insta::assert_snapshot!(said(lossless), @"it is not a sound file that can be read: its sound is coded as ALAC, which cannot be decoded. WAV, FLAC, MP3, M4A and MP4 (AAC), OGG (Opus, Vorbis) and WebM can; `ffmpeg -i FILE sound.wav` makes a WAV file of almost any other");
    insta::assert_snapshot!(said(b"caff\0\x01\0\0desc and more"), @"it is not a sound file that can be read: it is Apple's CAF. WAV, FLAC, MP3, M4A and MP4 (AAC), OGG (Opus, Vorbis) and WebM can; `ffmpeg -i FILE sound.wav` makes a WAV file of almost any other");
    insta::assert_snapshot!(said(b"hello, world, this is a text and no sound at all"), @"it is not a sound file that can be read: it does not begin like one. WAV, FLAC, MP3, M4A and MP4 (AAC), OGG (Opus, Vorbis) and WebM can; `ffmpeg -i FILE sound.wav` makes a WAV file of almost any other");
    insta::assert_snapshot!(said(b"abc"), @"it is not a sound file that can be read: it is too short. WAV, FLAC, MP3, M4A and MP4 (AAC), OGG (Opus, Vorbis) and WebM can; `ffmpeg -i FILE sound.wav` makes a WAV file of almost any other");
    let ogg = include_bytes!("../../../../tests/goldens/sound/vorbis.ogg");
    insta::assert_snapshot!(said(&ogg[..40]), @"it is damaged: it looks like OGG, but ends too early");
    let m4a = include_bytes!("../../../../tests/goldens/sound/tone.m4a");
    insta::assert_snapshot!(said(&m4a[..100]), @"it is damaged: it looks like MP4, but unsupported feature: isomp4: missing moov atom");
    // A header without anything after it.
    let webm = include_bytes!("../../../../tests/goldens/sound/live.webm");
    let head = webm.windows(4).position(|four| four == [0x1f, 0x43, 0xb6, 0x75]).unwrap();
    insta::assert_snapshot!(said(&webm[..head]), @"it is damaged: it looks like WebM or Matroska, but malformed stream: mkv (ebml): no current element");
}

#[test]
fn numbers_that_are_none_are_refused() {
    for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        let mut data: Vec<u8> = (0..4000).flat_map(|n| tone(n).to_le_bytes()).collect();
        data[8000..8004].copy_from_slice(&bad.to_le_bytes());
        let why = all(wav(3, 32, 1, RATE, &data)).unwrap_err().to_string();
        assert!(why.starts_with("it has samples that are no numbers (NaN or infinite)"), "{why}");
    }
}

#[test]
fn real_speech_is_read() {
    let Some(assets) = shared("whisper-assets") else { return };
    let file = std::fs::read(assets.join("1272-141231-0002.wav")).unwrap();
    let got = all(file.clone()).unwrap();
    assert_eq!(got.len(), 213_360);
    let data = file.windows(4).position(|four| four == b"data").unwrap() + 8;
    let want = file[data..].chunks_exact(2).map(|c| f32::from(i16::from_le_bytes([c[0], c[1]])) / 32768.0);
    assert!(got.iter().zip(want).all(|(a, b)| *a == b));
    // Eleven seconds of FLAC at another sample rate.
    let got = all(std::fs::read(assets.join("jfk.flac")).unwrap()).unwrap();
    assert!((got.len() as f32 / 16000.0 - 11.0).abs() < 0.01, "{}", got.len());
    let loud = (got.iter().map(|x| x * x).sum::<f32>() / got.len() as f32).sqrt();
    assert!((0.01..0.5).contains(&loud), "{loud}");
    assert!(got.iter().all(|x| x.is_finite() && x.abs() <= 1.1));
    // Its beginning, damaged at various bytes.
    let good = &std::fs::read(assets.join("jfk.flac")).unwrap()[..1 << 16];
    let whole = all(good.to_vec()).unwrap();
    for (i, at) in (0..64).chain((64..good.len()).step_by(997)).enumerate() {
        let mut bad = good.to_vec();
        bad[at] = [0, 0xff, !bad[at], bad[at] ^ 0x10][i % 4];
        if let Ok(samples) = all(bad) {
            assert!(samples.len() <= 64 * whole.len(), "{at}: {}", samples.len());
        }
    }
}

#[test]
fn damage_is_an_error_or_less_sound_and_never_more() {
    let data: Vec<u8> = (0..4000).flat_map(|n| tone(n).to_le_bytes()).collect();
    let good = wav(3, 32, 1, RATE, &data);
    for end in (0..good.len()).step_by(97) {
        if let Ok(samples) = all(good[..end].to_vec()) {
            assert!(samples.len() <= 4000, "{end}");
        }
    }
    for at in 0..44 {
        for byte in [0, 1, 0x7f, 0xff] {
            let mut bad = good.clone();
            bad[at] = byte;
            if let Ok(samples) = all(bad) {
                assert!(samples.len() <= 16 * 4000 + 64, "{at} {byte}");
            }
        }
    }
    for none in [&b""[..], b"RIFF", b"hello, world", &[0xff; 4096]] {
        assert!(all(none.to_vec()).is_err());
    }
}
