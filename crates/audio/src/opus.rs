//! [`Opus`]: packets of Opus, as browsers and phones record speech, decoded by `opus-pure`.

use opus_pure::{MAX_PACKET_SAMPLES, OpusMSDecoder};

use crate::AudioError;

/// Samples of a second. Opus decodes to this whatever it was made of.
pub(crate) const RATE: u32 = 48_000;
/// Bytes of the header that say what the decoder has to know.
const HEAD: usize = 19;

/// A decoder for one track.
pub(crate) struct Opus {
    decoder: OpusMSDecoder,
    pub(crate) channels: usize,
    /// What samples are multiplied by, from the header.
    gain: f32,
    /// Samples of each channel that are still to be left out: the encoder put them in front.
    skip: usize,
    room: Vec<f32>,
}

impl Opus {
    /// For a track with this header: `OpusHead` as Ogg and Matroska have it, or with MP4's big-endian fields behind it.
    pub(crate) fn new(head: Option<&[u8]>) -> Result<Opus, AudioError> {
        let damaged = |why: &str| AudioError::Bad(format!("it is damaged: {why}"));
        let head = head.filter(|head| head.len() >= HEAD && head.starts_with(b"OpusHead"));
        let head = head.ok_or_else(|| damaged("its Opus track has no header"))?;
        // MP4's version is 0, and its numbers stand the other way round.
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

    /// The samples of a packet, but for `trim` at its end; none where it cannot be decoded.
    pub(crate) fn decode(&mut self, packet: &[u8], trim: usize) -> Vec<f32> {
        // An empty packet would be taken for one that was lost, and made up for.
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
