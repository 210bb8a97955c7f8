//! Audio from files as speech models expect it: mono, at a fixed sample rate, read incrementally.
//!
//! WAV is parsed here, and the metadata of FLAC and MP3 files is skipped here. Other containers are demuxed by
//! `symphonia`, whose readers allocate no more than a file holds; `packets` limits how many packets may pass without
//! audio. Opus is decoded by `opus-pure`, everything else by `symphonia`. `resample` converts the sample rate.

mod flac;
mod opus;
mod packets;
mod resample;
mod wav;

use std::collections::VecDeque;
use std::fs::File;
use std::io::{BufReader, Cursor, Read, Seek, SeekFrom};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use symphonia::core::io::{MediaSource, ReadOnlySource};

use packets::Packets;
use resample::Resampler;
use wav::Wav;

/// Sample rate of the output, in Hz.
pub const RATE: u32 = 16_000;
/// Accepted sample rates of files, in Hz.
const RATES: std::ops::RangeInclusive<u32> = 1000..=768_000;
/// Maximum number of channels of a file.
const MOST_CHANNELS: usize = 32;
/// Bytes that identify a file's format.
const HEAD: usize = 12;
/// Maximum bytes of an MP4 file read from a pipe, which is buffered whole: its index may be at the end.
const MOST_PIPED: u64 = 1 << 30;

/// Why a file could not be read as audio.
#[derive(Debug, thiserror::Error)]
pub enum AudioError {
    /// I/O error.
    #[error("{0}")]
    Io(#[from] std::io::Error),
    /// Unknown or unsupported format.
    #[error(
        "it is not a sound file that can be read: {0}. WAV, FLAC, MP3, M4A and MP4 (AAC), OGG (Opus, Vorbis) and WebM \
         can; `ffmpeg -i FILE sound.wav` makes a WAV file of almost any other"
    )]
    Unknown(String),
    /// The file is damaged, or has invalid values.
    #[error("{0}")]
    Bad(String),
}

impl AudioError {
    fn channels(count: usize) -> AudioError {
        AudioError::Bad(format!("it has {count} channels; 1 to {MOST_CHANNELS} are taken"))
    }
}

/// The bytes of a file, in order.
type Bytes = Box<dyn Read + Send + Sync>;

/// A file's format, by its first bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Wav,
    Flac,
    Mp3,
    Adts,
    Mp4,
    Ogg,
    Matroska,
}

impl std::fmt::Display for Kind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Kind::Wav => "WAV",
            Kind::Flac => "FLAC",
            Kind::Mp3 => "MP3",
            Kind::Adts => "AAC",
            Kind::Mp4 => "MP4",
            Kind::Ogg => "OGG",
            Kind::Matroska => "WebM or Matroska",
        })
    }
}

/// Interleaved samples of all channels.
struct Piece {
    samples: Vec<f32>,
    channels: usize,
    rate: u32,
}

/// A reader of interleaved samples.
enum Source {
    Wav(Box<Wav>),
    Packets(Box<Packets>),
}

/// An audio file that is being read.
pub struct Audio {
    source: Source,
    /// The file's sample rate and the resampler, once the first samples have been read.
    resampler: Option<(u32, Resampler)>,
    ready: VecDeque<f32>,
    ended: bool,
    /// Duration in seconds, if the file states it.
    pub seconds: Option<f64>,
}

impl std::fmt::Debug for Audio {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Audio({:?} s)", self.seconds)
    }
}

impl Audio {
    /// Opens a file.
    pub fn open(path: &Path) -> Result<Audio, AudioError> {
        let kind = std::fs::metadata(path)?.file_type();
        if kind.is_dir() {
            return Err(AudioError::Bad("it is a folder: name the files in it".into()));
        }
        if !kind.is_file() {
            return Err(AudioError::Bad("it is no file: send what it gives through a pipe".into()));
        }
        let file = File::open(path)?;
        contained(|| Audio::of(Box::new(file)))
    }

    /// Opens a file held in memory.
    pub fn bytes(bytes: Vec<u8>) -> Result<Audio, AudioError> {
        contained(|| Audio::of(Box::new(Cursor::new(bytes))))
    }

    /// Opens a pipe.
    pub fn piped(pipe: impl Read + Send + Sync + 'static) -> Result<Audio, AudioError> {
        contained(|| Audio::of(Box::new(ReadOnlySource::new(pipe))))
    }

    fn of(mut file: Box<dyn MediaSource>) -> Result<Audio, AudioError> {
        let head = start(&mut file)?;
        let kind = kind(&head)?;
        if matches!(kind, Kind::Mp4 | Kind::Ogg) && file.is_seekable() {
            file.seek(SeekFrom::Start(0))?;
            return Audio::packets(kind, file);
        }
        let whole: Bytes = Box::new(Cursor::new(head).chain(BufReader::new(file)));
        let whole: Bytes = match kind {
            Kind::Wav => {
                let wav = Wav::open(whole)?;
                taken(wav.rate)?;
                let seconds = wav.seconds();
                return Ok(Audio::new(Source::Wav(Box::new(wav)), seconds));
            }
            Kind::Mp4 => {
                let mut all = Vec::new();
                if whole.take(MOST_PIPED + 1).read_to_end(&mut all)? as u64 > MOST_PIPED {
                    let why =
                        format!("an MP4 file of more than {} MiB has to be read from disk", MOST_PIPED >> 20);
                    return Err(AudioError::Bad(why));
                }
                return Audio::packets(kind, Box::new(Cursor::new(all)));
            }
            Kind::Flac => Box::new(flac::without_tags(whole)?),
            Kind::Mp3 | Kind::Adts | Kind::Ogg | Kind::Matroska => whole,
        };
        Audio::packets(kind, Box::new(ReadOnlySource::new(whole)))
    }

    fn packets(kind: Kind, source: Box<dyn MediaSource>) -> Result<Audio, AudioError> {
        let packets = Packets::open(kind, source)?;
        let seconds = packets.seconds;
        Ok(Audio::new(Source::Packets(Box::new(packets)), seconds))
    }

    fn new(source: Source, seconds: Option<f64>) -> Audio {
        Audio { source, resampler: None, ready: VecDeque::new(), ended: false, seconds }
    }

    /// The next `count` samples; fewer at the end of the audio.
    pub fn read(&mut self, count: usize) -> Result<Vec<f32>, AudioError> {
        while self.ready.len() < count && !self.ended {
            contained(|| self.more())?;
        }
        Ok(self.ready.drain(..count.min(self.ready.len())).collect())
    }

    /// Decodes the next piece of the file and resamples it.
    fn more(&mut self) -> Result<(), AudioError> {
        let piece = match &mut self.source {
            Source::Wav(wav) => {
                let (channels, rate) = (wav.channels, wav.rate);
                wav.more()?.map(|samples| Piece { samples, channels, rate })
            }
            Source::Packets(packets) => packets.more()?,
        };
        let Some(Piece { samples, channels, rate }) = piece else {
            if let Some((_, resampler)) = &mut self.resampler {
                resampler.finish(&mut self.ready);
            }
            self.ended = true;
            return Ok(());
        };
        let resampler = match &mut self.resampler {
            Some((first, resampler)) if *first == rate => resampler,
            Some((first, _)) => {
                let why = format!("its rate changes on the way, from {first} to {rate} samples a second");
                return Err(AudioError::Bad(why));
            }
            none => {
                taken(rate)?;
                &mut none.insert((rate, Resampler::new(rate, RATE))).1
            }
        };
        if samples.iter().any(|x| !x.is_finite()) {
            let why = "it has samples that are no numbers (NaN or infinite): whatever wrote it went wrong";
            return Err(AudioError::Bad(why.into()));
        }
        let mean = |all: &[f32]| (all.iter().sum::<f32>() / channels as f32).clamp(-8.0, 8.0);
        resampler.push(samples.chunks_exact(channels).map(mean), &mut self.ready);
        Ok(())
    }
}

fn taken(rate: u32) -> Result<(), AudioError> {
    match RATES.contains(&rate) {
        true => Ok(()),
        false => Err(AudioError::Bad(format!("it has {rate} samples a second; {RATES:?} are taken"))),
    }
}

/// The first [`HEAD`] bytes of a file after any ID3 tags, which MP3 and some other files begin with; fewer if the file
/// is that short.
fn start(bytes: &mut dyn Read) -> Result<Vec<u8>, AudioError> {
    let mut head = Vec::new();
    loop {
        bytes.take((HEAD - head.len()) as u64).read_to_end(&mut head)?;
        if head.len() < 4 {
            return Err(AudioError::Unknown("it is too short".into()));
        }
        let (Some(b"ID3"), Some(&[_, _, flags, a, b, c, d])) = (head.get(..3), head.get(3..10)) else {
            return Ok(head);
        };
        // Only the length in the tag's header matters; it has seven bits per byte.
        let len = [a, b, c, d].iter().fold(0, |len, byte| len << 7 | u64::from(byte & 0x7f));
        let footer = if flags & 0x10 != 0 { 10 } else { 0 };
        let rest = head.split_off(10);
        let beyond = (len + footer).saturating_sub(rest.len() as u64);
        std::io::copy(&mut bytes.take(beyond), &mut std::io::sink())?;
        head = rest[((len + footer) as usize).min(rest.len())..].to_vec();
    }
}

/// The format of a file that begins with `head`.
fn kind(head: &[u8]) -> Result<Kind, AudioError> {
    let other = match head {
        [b'R', b'I', b'F', b'F', ..] => return Ok(Kind::Wav),
        [b'f', b'L', b'a', b'C', ..] => return Ok(Kind::Flac),
        [b'O', b'g', b'g', b'S', ..] => return Ok(Kind::Ogg),
        [0x1a, 0x45, 0xdf, 0xa3, ..] => return Ok(Kind::Matroska),
        // The layer bits are zero, which they never are in MP3.
        [0xff, second, ..] if second & 0xf6 == 0xf0 => return Ok(Kind::Adts),
        [_, _, _, _, name @ ..] if [&b"ftyp"[..], b"moov", b"wide"].iter().any(|is| name.starts_with(is)) => {
            return Ok(Kind::Mp4);
        }
        [b'R', b'F', b'6', b'4', ..] | [b'R', b'I', b'F', b'X', ..] => {
            "a WAV file of a rare kind (RF64 or RIFX)"
        }
        [b'c', b'a', b'f', b'f', ..] => "Apple's CAF",
        [b'F', b'O', b'R', b'M', ..] => "AIFF",
        [b'#', b'!', b'A', b'M', b'R', ..] => "AMR",
        [0x30, 0x26, 0xb2, 0x75, ..] => "WMA",
        _ => return Ok(Kind::Mp3),
    };
    Err(AudioError::Unknown(format!("it is {other}")))
}

/// Runs `work` and turns a panic into an error.
fn contained<T>(work: impl FnOnce() -> Result<T, AudioError>) -> Result<T, AudioError> {
    let panicked =
        |_| Err(AudioError::Bad("it is damaged in a way that its decoder cannot cope with".into()));
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(panicked)
}
