//! Decodes an image file into a [`Picture`].

use std::io::Cursor;

use image::metadata::Orientation;
use image::{DynamicImage, ImageDecoder, ImageError, ImageReader, Limits};

use super::resize::Picture;

/// Longest accepted side.
const MOST_SIDE: u32 = 1 << 15;
/// Most accepted pixels: those of high-end cameras.
pub(super) const MOST_PIXELS: u64 = 64 << 20;
/// Memory limit for decoding.
const MOST_BYTES: u64 = 768 << 20;

/// Why an image was rejected.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PictureError {
    /// Unknown or unsupported file format.
    #[error("it is no PNG, JPEG, WebP, GIF or BMP file")]
    Unknown,
    /// Too many pixels.
    #[error(
        "it has {width} x {height} pixels; {MOST_PIXELS} of them are taken at most, and {MOST_SIDE} a side"
    )]
    Large {
        /// Pixels per row.
        width: u32,
        /// Rows.
        height: u32,
    },
    /// The aspect ratio is so extreme that resizing would make the image too large.
    #[error("it is too long and narrow")]
    Narrow,
    /// The size differs from the model's, and its settings do not resize.
    #[error(
        "it has {width} x {height} pixels; the model takes {side} x {side}, and its settings do not resize"
    )]
    Size {
        /// Pixels per row.
        width: usize,
        /// Rows.
        height: usize,
        /// Width and height that the model takes.
        side: usize,
    },
    /// Damaged file.
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

/// Upper bound of the bytes needed to decode a file, by its header.
pub(super) fn memory(bytes: &[u8]) -> Result<usize, PictureError> {
    // Decoders buffer progressive images a second time, and converting the pixel layout is a copy.
    let pixels = decoder(bytes)?.total_bytes().saturating_mul(2);
    Ok(usize::try_from(pixels).unwrap_or(usize::MAX))
}

/// Decodes an image, applies its EXIF orientation and drops alpha. Of an animation, the first frame.
pub fn decode(bytes: &[u8]) -> Result<Picture, PictureError> {
    let mut decoder = decoder(bytes)?;
    let orientation = decoder.orientation().unwrap_or(Orientation::NoTransforms);
    let mut image = DynamicImage::from_decoder(decoder)?;
    image.apply_orientation(orientation);
    let rgb = image.into_rgb8();
    let (width, height) = (rgb.width() as usize, rgb.height() as usize);
    Ok(Picture { width, height, bytes: rgb.into_raw() })
}

/// Reads the header of a file, with limits on its size.
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
