//! [`ImageProcessor`]: image preprocessing as a model's config says: decode, resize, crop, normalise.

pub mod decode;
pub mod resize;
mod settings;

use tallow_checkpoint::Checkpoint;
use tallow_checkpoint::Result;

use decode::{PictureError, decode};
use resize::Picture;
use settings::Settings;

/// Red, green, blue.
pub const CHANNELS: usize = 3;

/// Image preprocessing where a model's folder does not say.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ImageDefaults {
    /// True if images are resized by their shorter side and center-cropped. Otherwise they are resized to a square.
    pub crops: bool,
    /// Mean of each channel.
    pub mean: [f32; CHANNELS],
    /// Standard deviation of each channel.
    pub deviation: [f32; CHANNELS],
}

/// Preprocesses images. Cheap to copy.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ImageProcessor {
    settings: Settings,
}

impl ImageProcessor {
    /// For a model that takes images of `side` x `side` pixels.
    pub fn new(checkpoint: &Checkpoint, side: usize, defaults: &ImageDefaults) -> Result<ImageProcessor> {
        Ok(ImageProcessor { settings: Settings::read(checkpoint, side, defaults)? })
    }

    /// Upper bound of the bytes needed to decode an image file.
    pub fn memory(&self, bytes: &[u8]) -> std::result::Result<usize, PictureError> {
        decode::memory(bytes)
    }

    /// Pixels of an image file as planes: [channels, height, width].
    pub fn file(&self, bytes: &[u8]) -> std::result::Result<Vec<f32>, PictureError> {
        self.picture(decode(bytes)?)
    }

    /// Pixels of a decoded image as planes: [channels, height, width].
    pub fn picture(&self, picture: Picture) -> std::result::Result<Vec<f32>, PictureError> {
        self.settings.apply(picture)
    }
}
