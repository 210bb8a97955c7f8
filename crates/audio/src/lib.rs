//! Sound from files, as models of speech hear it: one channel, a fixed number of samples a second, read piece by piece.
//!
//! Containers are taken apart here, where whatever a header says is bounded; FLAC and MP3 are decoded by `symphonia`. What
//! makes one channel and another rate of it is `resample`.

mod flac;
mod resample;
mod wav;

use std::collections::VecDeque;
use std::fs::File;
use std::io::{BufReader, Cursor, Read};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use symphonia::core::audio::SampleBuffer;
use symphonia::core::codecs::{Decoder, DecoderOptions};
use symphonia::core::errors::Error;
use symphonia::core::formats::{FormatOptions, FormatReader};
use symphonia::core::io::{MediaSourceStream, ReadOnlySource};
use symphonia::default::formats::{FlacReader, MpaReader};

use resample::Resampler;
use wav::Wav;

/// Samples of a second.
pub const RATE: u32 = 16_000;
/// Rates of files that are taken.
const RATES: std::ops::RangeInclusive<u32> = 1000..=768_000;
/// Channels of a file at most.
const MOST_CHANNELS: usize = 32;

/// Why a file gives no sound.
#[derive(Debug, thiserror::Error)]
pub enum AudioError {
    /// It could not be read at all.
    #[error("{0}")]
    Io(#[from] std::io::Error),
    /// It is no sound that we know.
    #[error("it is not a sound file that is known: WAV, FLAC and MP3 are ({0})")]
    Unknown(String),
    /// It is damaged, or something in it is absurd.
    #[error("{0}")]
    Bad(String),
}

/// The bytes of a file, in order.
type Bytes = Box<dyn Read + Send + Sync>;

/// What gives samples of all channels.
enum Source {
    Wav(Box<Wav>),
    Packets(Box<dyn FormatReader>, Box<dyn Decoder>),
}

/// A sound that is being read.
pub struct Audio {
    source: Source,
    rate: u32,
    resampler: Resampler,
    ready: VecDeque<f32>,
    ended: bool,
    /// Seconds that the file says it has.
    pub seconds: Option<f64>,
}

impl std::fmt::Debug for Audio {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Audio({} Hz)", self.rate)
    }
}

impl Audio {
    /// Opens a file.
    pub fn open(path: &Path) -> Result<Audio, AudioError> {
        if !std::fs::metadata(path)?.is_file() {
            return Err(AudioError::Bad("it is no file".into()));
        }
        let file = BufReader::new(File::open(path)?);
        contained(|| Audio::of(Box::new(file)))
    }

    /// The same for a file's bytes.
    pub fn bytes(bytes: Vec<u8>) -> Result<Audio, AudioError> {
        contained(|| Audio::of(Box::new(Cursor::new(bytes))))
    }

    fn of(mut bytes: Bytes) -> Result<Audio, AudioError> {
        let head = start(&mut bytes)?;
        let whole: Bytes = Box::new(Cursor::new(head).chain(bytes));
        match &head {
            b"RIFF" => {
                let wav = Wav::open(whole)?;
                let (rate, seconds) = (wav.rate, wav.seconds());
                Audio::new(Source::Wav(Box::new(wav)), rate, seconds)
            }
            b"fLaC" => {
                let plain: Bytes = Box::new(flac::without_tags(whole)?);
                let reader = FlacReader::try_new(stream(plain), &FormatOptions::default());
                Audio::packets(reader.map(|reader| Box::new(reader) as Box<dyn FormatReader>))
            }
            _ => {
                let gapless = FormatOptions { enable_gapless: true, ..FormatOptions::default() };
                let reader = MpaReader::try_new(stream(whole), &gapless);
                Audio::packets(reader.map(|reader| Box::new(reader) as Box<dyn FormatReader>))
            }
        }
    }

    fn packets(format: Result<Box<dyn FormatReader>, Error>) -> Result<Audio, AudioError> {
        let unknown = |e: Error| AudioError::Unknown(e.to_string());
        let format = format.map_err(unknown)?;
        let track = format.tracks().first().ok_or_else(|| AudioError::Unknown("it has no sound".into()))?;
        let params = &track.codec_params;
        let rate = params.sample_rate.ok_or_else(|| AudioError::Bad("it does not say its rate".into()))?;
        let seconds = params.n_frames.map(|n| n as f64 / f64::from(rate));
        let decoder = symphonia::default::get_codecs().make(params, &DecoderOptions::default());
        let decoder = decoder.map_err(unknown)?;
        Audio::new(Source::Packets(format, decoder), rate, seconds)
    }

    fn new(source: Source, rate: u32, seconds: Option<f64>) -> Result<Audio, AudioError> {
        if !RATES.contains(&rate) {
            return Err(AudioError::Bad(format!("it has {rate} samples a second; {RATES:?} are taken")));
        }
        let resampler = Resampler::new(rate, RATE);
        Ok(Audio { source, rate, resampler, ready: VecDeque::new(), ended: false, seconds })
    }

    /// The next so many samples; fewer where the sound ends.
    pub fn read(&mut self, count: usize) -> Result<Vec<f32>, AudioError> {
        while self.ready.len() < count && !self.ended {
            contained(|| self.more())?;
        }
        Ok(self.ready.drain(..count.min(self.ready.len())).collect())
    }

    /// Takes a piece of the file.
    fn more(&mut self) -> Result<(), AudioError> {
        let (samples, channels) = match &mut self.source {
            Source::Wav(wav) => (wav.more()?, wav.channels),
            Source::Packets(format, decoder) => decoded(format.as_mut(), decoder.as_mut(), self.rate)?,
        };
        let Some(samples) = samples else {
            self.resampler.finish(&mut self.ready);
            self.ended = true;
            return Ok(());
        };
        if !(1..=MOST_CHANNELS).contains(&channels) {
            return Err(AudioError::Bad(format!(
                "it has {channels} channels; 1 to {MOST_CHANNELS} are taken"
            )));
        }
        let mean = |all: &[f32]| all.iter().sum::<f32>() / channels as f32;
        // Numbers that are none are silence.
        let sane = |x: f32| if x.is_finite() { x.clamp(-8.0, 8.0) } else { 0.0 };
        let mono = samples.chunks_exact(channels).map(|all| sane(mean(all)));
        self.resampler.push(mono, &mut self.ready);
        Ok(())
    }
}

/// The next packet's samples and their channels; no samples where the file ends.
fn decoded(
    format: &mut dyn FormatReader,
    decoder: &mut dyn Decoder,
    rate: u32,
) -> Result<(Option<Vec<f32>>, usize), AudioError> {
    let damaged = |e: Error| AudioError::Bad(format!("it is damaged: {e}"));
    let packet = match format.next_packet() {
        Ok(packet) => packet,
        // A file that is cut short ends where it ends.
        Err(Error::IoError(e)) if e.kind() == std::io::ErrorKind::UnexpectedEof => return Ok((None, 1)),
        Err(Error::ResetRequired) => return Ok((None, 1)),
        Err(Error::IoError(e)) => return Err(e.into()),
        Err(e) => return Err(damaged(e)),
    };
    let sound = match decoder.decode(&packet) {
        Ok(sound) => sound,
        // What cannot be decoded is left out.
        Err(Error::DecodeError(_)) => return Ok((Some(Vec::new()), 1)),
        Err(e) => return Err(damaged(e)),
    };
    let spec = *sound.spec();
    if spec.rate != rate {
        return Err(AudioError::Bad("its rate changes on the way".into()));
    }
    let mut samples = SampleBuffer::<f32>::new(sound.capacity() as u64, spec);
    samples.copy_interleaved_ref(sound);
    Ok((Some(samples.samples().to_vec()), spec.channels.count()))
}

fn stream(bytes: Bytes) -> MediaSourceStream {
    MediaSourceStream::new(Box::new(ReadOnlySource::new(bytes)), Default::default())
}

/// The first bytes of a file, behind the tags of titles and pictures that MP3 files have in front, and some others.
fn start(bytes: &mut Bytes) -> Result<[u8; 4], AudioError> {
    let short = |_| AudioError::Unknown("it is too short".into());
    loop {
        let mut head = [0; 4];
        bytes.read_exact(&mut head).map_err(short)?;
        if &head[..3] != b"ID3" {
            return Ok(head);
        }
        // Of the rest of a tag's header only its length matters, seven bits in a byte.
        let mut rest = [0; 6];
        bytes.read_exact(&mut rest).map_err(short)?;
        let len = rest[2..].iter().fold(0, |len, byte| len << 7 | u64::from(byte & 0x7f));
        let footer = if rest[1] & 0x10 != 0 { 10 } else { 0 };
        std::io::copy(&mut bytes.by_ref().take(len + footer), &mut std::io::sink())?;
    }
}

/// Does something with a file; a panic is an error like any other.
fn contained<T>(work: impl FnOnce() -> Result<T, AudioError>) -> Result<T, AudioError> {
    let panicked =
        |_| Err(AudioError::Bad("it is damaged in a way that its decoder cannot cope with".into()));
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(panicked)
}
