//! Image preprocessing for encoders: decode, resize, crop and normalize as the model's config says.

pub mod decode;
pub mod resize;
mod settings;

use crate::encoder::Image;
use crate::encoder::spec::PatchSpec;
use crate::error::Result;
use crate::formats::Checkpoint;
use decode::{PictureError, decode};
use resize::Picture;
use settings::Settings;

/// Preprocesses images. Cheap to copy.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Pictures {
    settings: Settings,
    patches: PatchSpec,
}

impl Pictures {
    /// For an encoder with these patches.
    pub fn new(checkpoint: &Checkpoint, patches: PatchSpec) -> Result<Pictures> {
        Ok(Pictures { settings: Settings::read(checkpoint, &patches)?, patches })
    }

    /// Upper bound of the bytes needed to decode an image file.
    pub fn memory(&self, bytes: &[u8]) -> std::result::Result<usize, PictureError> {
        decode::memory(bytes)
    }

    /// Preprocesses an image file.
    pub fn file(&self, bytes: &[u8]) -> std::result::Result<Image, PictureError> {
        self.picture(decode(bytes)?)
    }

    /// Preprocesses a decoded image.
    pub fn picture(&self, picture: Picture) -> std::result::Result<Image, PictureError> {
        Ok(self.patches.cut_up(&self.numbers(picture)?))
    }

    /// Preprocessed pixels as planes: [channels, height, width].
    pub fn numbers(&self, picture: Picture) -> std::result::Result<Vec<f32>, PictureError> {
        self.settings.apply(picture)
    }
}

impl PatchSpec {
    /// Patches of an image [channels, height, width].
    pub fn cut_up(&self, numbers: &[f32]) -> Image {
        let PatchSpec { image, side, .. } = *self;
        let mut patches = Vec::with_capacity(self.count() * self.width());
        let grid = image / side;
        for (down, across) in (0..grid).flat_map(|down| (0..grid).map(move |across| (down, across))) {
            for channel in numbers.chunks_exact(image * image) {
                for row in 0..side {
                    let at = (down * side + row) * image + across * side;
                    patches.extend(&channel[at..at + side]);
                }
            }
        }
        Image { patches, rows: self.rows() }
    }
}
