//! [`Packets`]: compressed audio, demuxed from its container and decoded packet by packet.

use std::io::ErrorKind;

use symphonia::core::codecs::CodecParameters;
use symphonia::core::codecs::audio::well_known as codecs;
use symphonia::core::codecs::audio::{AudioCodecId, AudioCodecParameters, AudioDecoder, AudioDecoderOptions};
use symphonia::core::errors::{Error, Result as Opened};
use symphonia::core::formats::{FormatOptions, FormatReader, Track, TrackType};
use symphonia::core::io::{MediaSource, MediaSourceStream};
use symphonia::default::formats::{AdtsReader, FlacReader, IsoMp4Reader, MkvReader, MpaReader, OggReader};

use super::opus::{self, Opus};
use super::{AudioError, Kind, MOST_CHANNELS, Piece};

/// Maximum packets in a row without audio, of which a damaged file could have billions. Those of pictures count too.
const MOST_FRUITLESS: usize = 1 << 20;

/// An audio track in a container.
pub(super) struct Packets {
    format: Box<dyn FormatReader>,
    track: u32,
    decoder: Decoder,
    /// Duration in seconds, if the file states it.
    pub(super) seconds: Option<f64>,
    /// True if any packet has been decoded.
    any: bool,
}

enum Decoder {
    Opus(Box<Opus>),
    Other(Box<dyn AudioDecoder>),
}

impl Packets {
    pub(super) fn open(kind: Kind, source: Box<dyn MediaSource>) -> Result<Packets, AudioError> {
        let stream = MediaSourceStream::new(source, Default::default());
        let format = reader(kind, stream).map_err(|e| unread(kind, &e))?;
        let none = || AudioError::Unknown("it has no track of sound".into());
        let track = format.first_track_known_codec(TrackType::Audio);
        let track = track.or_else(|| format.first_track(TrackType::Audio)).ok_or_else(none)?;
        let Some(CodecParameters::Audio(params)) = &track.codec_params else { return Err(none()) };
        let (seconds, id) = (seconds(track, params), track.id);
        let decoder = decoder(params)?;
        Ok(Packets { format, track: id, decoder, seconds, any: false })
    }

    /// The next samples; `None` at the end of the file.
    pub(super) fn more(&mut self) -> Result<Option<Piece>, AudioError> {
        for _ in 0..MOST_FRUITLESS {
            let packet = match self.format.next_packet() {
                Ok(Some(packet)) => packet,
                // A truncated file ends where it is cut off.
                Ok(None) | Err(Error::ResetRequired) => return self.ended(),
                Err(Error::IoError(e)) if e.kind() == ErrorKind::UnexpectedEof => return self.ended(),
                Err(Error::IoError(e)) => return Err(e.into()),
                Err(e) => return Err(damaged(&e)),
            };
            if packet.track_id != self.track {
                continue;
            }
            let piece = match &mut self.decoder {
                Decoder::Opus(opus) => {
                    let samples = opus.decode(&packet.data, packet.trim_end.get() as usize);
                    Piece { samples, channels: opus.channels, rate: opus::RATE }
                }
                Decoder::Other(decoder) => match decoder.decode(&packet) {
                    Ok(sound) => {
                        let (channels, rate) = (sound.spec().channels().count(), sound.spec().rate());
                        if !(1..=MOST_CHANNELS).contains(&channels) {
                            return Err(AudioError::channels(channels));
                        }
                        let mut samples = Vec::new();
                        sound.copy_to_vec_interleaved(&mut samples);
                        Piece { samples, channels, rate }
                    }
                    // Packets that cannot be decoded are skipped.
                    Err(Error::DecodeError(_) | Error::IoError(_)) => continue,
                    Err(e) => return Err(damaged(&e)),
                },
            };
            if !piece.samples.is_empty() {
                self.any = true;
                return Ok(Some(piece));
            }
        }
        Err(AudioError::Bad(format!("it is damaged: {MOST_FRUITLESS} packets in a row hold no sound")))
    }

    fn ended(&self) -> Result<Option<Piece>, AudioError> {
        match self.any {
            true => Ok(None),
            false => Err(AudioError::Bad("it is damaged or empty: nothing in it could be decoded".into())),
        }
    }
}

fn reader(kind: Kind, stream: MediaSourceStream<'static>) -> Opened<Box<dyn FormatReader>> {
    let options = FormatOptions::default();
    Ok(match kind {
        Kind::Flac => Box::new(FlacReader::try_new(stream, options)?),
        Kind::Adts => Box::new(AdtsReader::try_new(stream, options)?),
        Kind::Mp4 => Box::new(IsoMp4Reader::try_new(stream, options)?),
        Kind::Ogg => Box::new(OggReader::try_new(stream, options)?),
        Kind::Matroska => Box::new(MkvReader::try_new(stream, options)?),
        Kind::Mp3 | Kind::Wav => Box::new(MpaReader::try_new(stream, options)?),
    })
}

fn decoder(params: &AudioCodecParameters) -> Result<Decoder, AudioError> {
    if params.codec == codecs::CODEC_ID_OPUS {
        return Ok(Decoder::Opus(Box::new(Opus::new(params.extra_data.as_deref())?)));
    }
    let made = symphonia::default::get_codecs().make_audio_decoder(params, &AudioDecoderOptions::default());
    made.map(Decoder::Other).map_err(|e| {
        let what = match named(params.codec) {
            "AAC" => "its sound is in a kind of AAC that cannot be decoded (HE-AAC, most likely)".to_owned(),
            name => format!("its sound is coded as {name}, which cannot be decoded"),
        };
        match e {
            Error::Unsupported(_) => AudioError::Unknown(what),
            e => damaged(&e),
        }
    })
}

/// The name of a codec, for those that occur in users' files.
fn named(codec: AudioCodecId) -> &'static str {
    match codec {
        codecs::CODEC_ID_AAC => "AAC",
        codecs::CODEC_ID_ALAC => "ALAC",
        codecs::CODEC_ID_AC3 => "AC-3",
        codecs::CODEC_ID_EAC3 => "E-AC-3",
        codecs::CODEC_ID_DCA => "DTS",
        codecs::CODEC_ID_SPEEX => "Speex",
        codecs::CODEC_ID_WAVPACK => "WavPack",
        codecs::CODEC_ID_TRUEHD => "TrueHD",
        _ => "something else than FLAC, MP3, AAC, Vorbis and Opus",
    }
}

fn seconds(track: &Track, params: &AudioCodecParameters) -> Option<f64> {
    let of_frames = || Some(track.num_frames? as f64 / f64::from(params.sample_rate?));
    let of_time = || {
        let base = track.time_base?;
        Some(track.duration?.get() as f64 * f64::from(base.numer.get()) / f64::from(base.denom.get()))
    };
    of_frames().or_else(of_time).filter(|seconds| seconds.is_finite() && *seconds > 0.0)
}

fn damaged(e: &Error) -> AudioError {
    AudioError::Bad(format!("it is damaged: {e}"))
}

/// The error for a container that cannot be opened.
fn unread(kind: Kind, e: &Error) -> AudioError {
    let ended = matches!(e, Error::IoError(e) if e.kind() == ErrorKind::UnexpectedEof);
    match kind {
        // Files of no known format were tried as MP3.
        Kind::Mp3 | Kind::Wav => AudioError::Unknown("it does not begin like one".into()),
        _ if ended => AudioError::Bad(format!("it is damaged: it looks like {kind}, but ends too early")),
        _ => AudioError::Bad(format!("it is damaged: it looks like {kind}, but {e}")),
    }
}
