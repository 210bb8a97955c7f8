//! [`PatchProcessor`]: from image files to the patches that an encoder takes (ViT).

use tallow_checkpoint::Checkpoint;
use tallow_media::image::ImageProcessor;
use tallow_media::image::decode::PictureError;
use tallow_media::image::resize::Picture;

use super::Image;
use crate::spec::encoder::PatchSpec;

/// Preprocesses images and cuts them into patches. Cheap to copy.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PatchProcessor {
    processor: ImageProcessor,
    patches: PatchSpec,
}

impl PatchProcessor {
    /// Makes one for an encoder with these patches.
    pub fn new(checkpoint: &Checkpoint, patches: PatchSpec) -> tallow_checkpoint::Result<PatchProcessor> {
        let processor = ImageProcessor::new(checkpoint, patches.image, &patches.usual)?;
        Ok(PatchProcessor { processor, patches })
    }

    /// Upper bound of the bytes needed to decode an image file.
    pub fn memory(&self, bytes: &[u8]) -> Result<usize, PictureError> {
        self.processor.memory(bytes)
    }

    /// Patches of an image file.
    pub fn file(&self, bytes: &[u8]) -> Result<Image, PictureError> {
        Ok(self.patches.cut(&self.processor.file(bytes)?))
    }

    /// Patches of a decoded image.
    pub fn picture(&self, picture: Picture) -> Result<Image, PictureError> {
        Ok(self.patches.cut(&self.pixels(picture)?))
    }

    /// Preprocessed pixels as planes: [channels, height, width].
    pub fn pixels(&self, picture: Picture) -> Result<Vec<f32>, PictureError> {
        self.processor.picture(picture)
    }
}

impl PatchSpec {
    /// Patches of an image [channels, height, width].
    pub fn cut(&self, pixels: &[f32]) -> Image {
        let PatchSpec { image, side, .. } = *self;
        let mut patches = Vec::with_capacity(self.count() * self.width());
        let grid = image / side;
        for (down, right) in (0..grid).flat_map(|down| (0..grid).map(move |right| (down, right))) {
            for channel in pixels.chunks_exact(image * image) {
                for row in 0..side {
                    let at = (down * side + row) * image + right * side;
                    patches.extend(&channel[at..at + side]);
                }
            }
        }
        Image { patches, rows: self.rows() }
    }
}
