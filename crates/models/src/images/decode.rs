//! From a file's bytes to a [`Picture`].

use std::io::Cursor;

use image::metadata::Orientation;
use image::{DynamicImage, ImageDecoder, ImageError, ImageReader, Limits};

use super::resize::Picture;

/// The longest side that is taken.
const MOST_SIDE: u32 = 1 << 15;
/// The most pixels that are taken: those of good cameras.
pub(super) const MOST_PIXELS: u64 = 64 << 20;
/// The most memory that decoding may take.
const MOST_BYTES: u64 = 768 << 20;

/// Why a file is no picture for us.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PictureError {
    /// It is of a kind that is not read, or none at all.
    #[error("it is no PNG, JPEG, WebP, GIF or BMP file")]
    Unknown,
    /// It has too many pixels.
    #[error(
        "it has {width} x {height} pixels; {MOST_PIXELS} of them are taken at most, and {MOST_SIDE} a side"
    )]
    Large {
        /// Of a row.
        width: u32,
        /// Rows.
        height: u32,
    },
    /// It is so long and narrow that its narrow side would have to grow beyond all bounds.
    #[error("it is too long and narrow")]
    Narrow,
    /// It has not the size that the model takes, and nothing is to be done about that.
    #[error(
        "it has {width} x {height} pixels; the model takes {side} x {side}, and its settings do not resize"
    )]
    Size {
        /// Of a row.
        width: usize,
        /// Rows.
        height: usize,
        /// Of both, as the model takes it.
        side: usize,
    },
    /// It is damaged.
    #[error("it cannot be read: {0}")]
    Damaged(String),
}

impl From<ImageError> for PictureError {
    fn from(e: ImageError) -> PictureError {
        match e {
            ImageError::Unsupported(_) => PictureError::Unknown,
            other => PictureError::Damaged(other.to_string()),
        }
    }
}

/// Bytes that decoding a file takes at most, by what its head says.
pub(super) fn memory(bytes: &[u8]) -> Result<usize, PictureError> {
    // Decoders keep as much again of pictures that come in passes, and another layout is a copy.
    let pixels = decoder(bytes)?.total_bytes().saturating_mul(2);
    Ok(usize::try_from(pixels).unwrap_or(usize::MAX))
}

/// Reads a picture, upright, without what shines through. Of one that moves it is the first.
pub fn decode(bytes: &[u8]) -> Result<Picture, PictureError> {
    let mut decoder = decoder(bytes)?;
    let turned = decoder.orientation().unwrap_or(Orientation::NoTransforms);
    let mut image = DynamicImage::from_decoder(decoder)?;
    image.apply_orientation(turned);
    let rgb = image.into_rgb8();
    let (width, height) = (rgb.width() as usize, rgb.height() as usize);
    Ok(Picture { width, height, bytes: rgb.into_raw() })
}

/// Reads the head of a file that is not too large.
fn decoder(bytes: &[u8]) -> Result<impl ImageDecoder + '_, PictureError> {
    let mut reader = ImageReader::new(Cursor::new(bytes));
    let mut limits = Limits::default();
    limits.max_alloc = Some(MOST_BYTES);
    reader.limits(limits.clone());
    let reader = reader.with_guessed_format().map_err(|e| PictureError::Damaged(e.to_string()))?;
    if reader.format().is_none() {
        return Err(PictureError::Unknown);
    }
    let mut decoder = reader.into_decoder()?;
    let (width, height) = decoder.dimensions();
    let pixels = u64::from(width) * u64::from(height);
    if width > MOST_SIDE || height > MOST_SIDE || pixels > MOST_PIXELS {
        return Err(PictureError::Large { width, height });
    }
    if pixels == 0 {
        return Err(PictureError::Damaged("it has no pixels".into()));
    }
    decoder.set_limits(limits)?;
    Ok(decoder)
}
