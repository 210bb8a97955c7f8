//! WAV files: integers of 8 to 32 bits, and floats.

use std::io::Read;

use super::{AudioError, Bytes, MOST_CHANNELS};

/// Bytes read at a time.
const AT_ONCE: usize = 1 << 16;
/// Maximum bytes of the format chunk.
const MOST_FORMAT: u32 = 1 << 10;

/// Sample format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Number {
    U8,
    I16,
    I24,
    I32,
    F32,
    F64,
}

impl Number {
    fn new(kind: u16, bits: u16) -> Result<Number, AudioError> {
        Ok(match (kind, bits) {
            (1, 8) => Number::U8,
            (1, 16) => Number::I16,
            (1, 24) => Number::I24,
            (1, 32) => Number::I32,
            (3, 32) => Number::F32,
            (3, 64) => Number::F64,
            _ => {
                let what = format!("numbers of kind {kind} with {bits} bits");
                return Err(AudioError::Unknown(format!("it has {what}")));
            }
        })
    }

    fn bytes(self) -> usize {
        match self {
            Number::U8 => 1,
            Number::I16 => 2,
            Number::I24 => 3,
            Number::I32 | Number::F32 => 4,
            Number::F64 => 8,
        }
    }

    fn read(self, b: &[u8]) -> f32 {
        match (self, b) {
            (Number::U8, [a]) => (f32::from(*a) - 128.0) / 128.0,
            (Number::I16, [a, b]) => f32::from(i16::from_le_bytes([*a, *b])) / 32768.0,
            (Number::I24, [a, b, c]) => (i32::from_le_bytes([0, *a, *b, *c]) >> 8) as f32 / 8_388_608.0,
            (Number::I32, [a, b, c, d]) => i32::from_le_bytes([*a, *b, *c, *d]) as f32 / 2_147_483_648.0,
            (Number::F32, [a, b, c, d]) => f32::from_le_bytes([*a, *b, *c, *d]),
            (Number::F64, b) => <[u8; 8]>::try_from(b).map_or(0.0, |b| f64::from_le_bytes(b) as f32),
            _ => 0.0,
        }
    }
}

/// A WAV file that is being read.
pub(super) struct Wav {
    bytes: Bytes,
    number: Number,
    pub(super) channels: usize,
    pub(super) rate: u32,
    /// Bytes left according to the file; unlimited if it states no usable length.
    left: u64,
    said: Option<u64>,
}

impl Wav {
    /// Reads up to the start of the samples.
    pub(super) fn open(mut bytes: Bytes) -> Result<Wav, AudioError> {
        let cut = |_| AudioError::Bad("it is damaged: its head is cut short".into());
        let mut head = [0; 12];
        bytes.read_exact(&mut head).map_err(cut)?;
        if &head[8..] != b"WAVE" {
            return Err(AudioError::Unknown("it is RIFF and no sound".into()));
        }
        let mut format = None;
        loop {
            let mut chunk = [0; 8];
            bytes.read_exact(&mut chunk).map_err(cut)?;
            let len = u32::from_le_bytes([chunk[4], chunk[5], chunk[6], chunk[7]]);
            match &chunk[..4] {
                b"fmt " if (16..=MOST_FORMAT).contains(&len) => {
                    let mut all = vec![0; len as usize + (len % 2) as usize];
                    bytes.read_exact(&mut all).map_err(cut)?;
                    format = Some(all);
                }
                b"data" => {
                    let format =
                        format.ok_or_else(|| AudioError::Bad("it does not say what it is like".into()))?;
                    // A writer that streams a recording does not know the final length.
                    let said = Some(u64::from(len)).filter(|n| *n > 0 && *n < u64::from(u32::MAX) - 8);
                    return Wav::new(bytes, &format, said);
                }
                _ => {
                    let skip = u64::from(len) + u64::from(len % 2);
                    std::io::copy(&mut bytes.by_ref().take(skip), &mut std::io::sink())?;
                }
            }
        }
    }

    fn new(bytes: Bytes, format: &[u8], said: Option<u64>) -> Result<Wav, AudioError> {
        let two = |at: usize| u16::from_le_bytes([format[at], format[at + 1]]);
        // WAVE_FORMAT_EXTENSIBLE: the actual format is stored further on.
        let kind = if two(0) == 0xfffe && format.len() >= 26 { two(24) } else { two(0) };
        let channels = usize::from(two(2));
        if !(1..=MOST_CHANNELS).contains(&channels) {
            return Err(AudioError::channels(channels));
        }
        let rate = u32::from_le_bytes([format[4], format[5], format[6], format[7]]);
        let number = Number::new(kind, two(14))?;
        Ok(Wav { bytes, number, channels, rate, left: said.unwrap_or(u64::MAX), said })
    }

    /// Duration in seconds, if the file states it.
    pub(super) fn seconds(&self) -> Option<f64> {
        let frame = (self.number.bytes() * self.channels) as f64;
        self.said.map(|bytes| bytes as f64 / frame / f64::from(self.rate.max(1)))
    }

    /// Some interleaved samples; `None` at the end.
    pub(super) fn more(&mut self) -> Result<Option<Vec<f32>>, AudioError> {
        let (width, frame) = (self.number.bytes(), self.number.bytes() * self.channels);
        let most = (AT_ONCE / frame * frame) as u64;
        let mut some = Vec::new();
        self.bytes.by_ref().take(self.left.min(most)).read_to_end(&mut some)?;
        self.left -= some.len() as u64;
        let whole = some.len() / frame * frame;
        let samples = some[..whole].chunks_exact(width).map(|b| self.number.read(b)).collect();
        Ok((whole > 0).then_some(samples))
    }
}
