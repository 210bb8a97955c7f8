//! [`Opus`]: Opus packets, the usual format of speech recorded by browsers and phones, decoded by `opus-pure`.

use opus_pure::{MAX_PACKET_SAMPLES, OpusMSDecoder};

use super::AudioError;

/// Sample rate of the output, in Hz. Opus always decodes to this rate, whatever the source had.
pub(super) const RATE: u32 = 48_000;
/// Bytes of the header that the decoder needs.
const HEAD: usize = 19;

/// A decoder for one track.
pub(super) struct Opus {
    decoder: OpusMSDecoder,
    pub(super) channels: usize,
    /// Linear output gain, from the header.
    gain: f32,
    /// Samples of each channel still to be skipped: the encoder's padding at the start (pre-skip).
    skip: usize,
    room: Vec<f32>,
}

impl Opus {
    /// A decoder for a track with this header: `OpusHead` as in Ogg and Matroska, or followed by MP4's big-endian
    /// fields.
    pub(super) fn new(head: Option<&[u8]>) -> Result<Opus, AudioError> {
        let damaged = |why: &str| AudioError::Bad(format!("it is damaged: {why}"));
        let head = head.filter(|head| head.len() >= HEAD && head.starts_with(b"OpusHead"));
        let head = head.ok_or_else(|| damaged("its Opus track has no header"))?;
        // MP4's version is 0, and its integers are big-endian.
        let two = |at: usize| match head[8] {
            0 => u16::from_be_bytes([head[at], head[at + 1]]),
            _ => u16::from_le_bytes([head[at], head[at + 1]]),
        };
        let channels = usize::from(head[9]);
        let decoder = OpusMSDecoder::new(RATE as i32, channels, head[18])
            .map_err(|e| damaged(&format!("its Opus track cannot be decoded ({e})")))?;
        let gain = 10f32.powf(f32::from(two(16) as i16) / (20.0 * 256.0));
        let room = vec![0.0; MAX_PACKET_SAMPLES * channels];
        Ok(Opus { decoder, channels, gain, skip: usize::from(two(10)), room })
    }

    /// The samples of a packet without the last `trim` of each channel; empty if it cannot be decoded.
    pub(super) fn decode(&mut self, packet: &[u8], trim: usize) -> Vec<f32> {
        // The decoder would treat an empty packet as lost, and conceal the loss.
        if packet.is_empty() {
            return Vec::new();
        }
        let Ok(count) = self.decoder.decode(packet, MAX_PACKET_SAMPLES, &mut self.room) else {
            return Vec::new();
        };
        let skip = self.skip.min(count);
        self.skip -= skip;
        let end = count.saturating_sub(trim).max(skip);
        self.room[skip * self.channels..end * self.channels].iter().map(|x| x * self.gain).collect()
    }
}
