//! Sound from files, as models of speech hear it: one channel, a fixed number of samples a second, read piece by piece.
//!
//! WAV is read here, and what is beside the sound in FLAC and MP3 files is left out here. Other containers are taken apart
//! by `symphonia`, whose readers reserve no more than a file holds; `packets` bounds how long they may go without sound.
//! Opus is decoded by `opus-pure`, all else by `symphonia`. What makes one channel and another rate of it is `resample`.

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

/// Samples of a second.
pub const RATE: u32 = 16_000;
/// Rates of files that are taken.
const RATES: std::ops::RangeInclusive<u32> = 1000..=768_000;
/// Channels of a file at most.
const MOST_CHANNELS: usize = 32;
/// Bytes that tell what a file is.
const HEAD: usize = 12;
/// Bytes of an MP4 file that comes through a pipe: what says where its sound lies may stand at its end.
const MOST_PIPED: u64 = 1 << 30;

/// Why a file gives no sound.
#[derive(Debug, thiserror::Error)]
pub enum AudioError {
    /// It could not be read at all.
    #[error("{0}")]
    Io(#[from] std::io::Error),
    /// It is no sound that we know.
    #[error(
        "it is not a sound file that can be read: {0}. WAV, FLAC, MP3, M4A and MP4 (AAC), OGG (Opus, Vorbis) and WebM \
         can; `ffmpeg -i FILE sound.wav` makes a WAV file of almost any other"
    )]
    Unknown(String),
    /// It is damaged, or something in it is absurd.
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

/// What a file is, by its first bytes.
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

/// Samples of all channels, one after another.
struct Piece {
    samples: Vec<f32>,
    channels: usize,
    rate: u32,
}

/// What gives samples of all channels.
enum Source {
    Wav(Box<Wav>),
    Packets(Box<Packets>),
}

/// A sound that is being read.
pub struct Audio {
    source: Source,
    /// The file's rate, and what makes ours of it, once the first samples are there.
    resampler: Option<(u32, Resampler)>,
    ready: VecDeque<f32>,
    ended: bool,
    /// Seconds that the file says it has.
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

    /// The same for a file's bytes.
    pub fn bytes(bytes: Vec<u8>) -> Result<Audio, AudioError> {
        contained(|| Audio::of(Box::new(Cursor::new(bytes))))
    }

    /// The same for what comes through a pipe.
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

    /// The next so many samples; fewer where the sound ends.
    pub fn read(&mut self, count: usize) -> Result<Vec<f32>, AudioError> {
        while self.ready.len() < count && !self.ended {
            contained(|| self.more())?;
        }
        Ok(self.ready.drain(..count.min(self.ready.len())).collect())
    }

    /// Takes a piece of the file.
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

/// The first bytes of a file, behind the tags of titles and pictures that MP3 files have in front, and some others. There
/// are fewer of them where the file is as short.
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
        // Of a tag's header only its length matters, seven bits in a byte.
        let len = [a, b, c, d].iter().fold(0, |len, byte| len << 7 | u64::from(byte & 0x7f));
        let footer = if flags & 0x10 != 0 { 10 } else { 0 };
        let rest = head.split_off(10);
        let beyond = (len + footer).saturating_sub(rest.len() as u64);
        std::io::copy(&mut bytes.take(beyond), &mut std::io::sink())?;
        head = rest[((len + footer) as usize).min(rest.len())..].to_vec();
    }
}

/// What a file is that begins so.
fn kind(head: &[u8]) -> Result<Kind, AudioError> {
    let other = match head {
        [b'R', b'I', b'F', b'F', ..] => return Ok(Kind::Wav),
        [b'f', b'L', b'a', b'C', ..] => return Ok(Kind::Flac),
        [b'O', b'g', b'g', b'S', ..] => return Ok(Kind::Ogg),
        [0x1a, 0x45, 0xdf, 0xa3, ..] => return Ok(Kind::Matroska),
        // The layer is none, where MP3 has its own.
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

/// Does something with a file; a panic is an error like any other.
fn contained<T>(work: impl FnOnce() -> Result<T, AudioError>) -> Result<T, AudioError> {
    let panicked =
        |_| Err(AudioError::Bad("it is damaged in a way that its decoder cannot cope with".into()));
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(panicked)
}
