//! Image preprocessing: the settings up to the first zero byte, and the image file after it.
#![no_main]

use std::sync::OnceLock;

use tallow_media::image::decode::decode;
use tallow_models::encoder::EncoderModel;
use tallow_models::encoder::PatchProcessor;

/// Most pixels of an image that is resized: more would be slow and exercise nothing new.
const MOST: usize = 1 << 20;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    static MODEL: OnceLock<EncoderModel> = OnceLock::new();
    let model = MODEL.get_or_init(|| {
        tallow_fuzz::write("config.json", include_bytes!("../../tests/goldens/clip/config.json"));
        let weights = include_bytes!("../../tests/goldens/clip/model.safetensors");
        tallow_fuzz::write("model.safetensors", weights);
        EncoderModel::open(tallow_fuzz::folder()).expect("a good model")
    });
    let Some(end) = bytes.iter().position(|byte| *byte == 0) else { return };
    tallow_fuzz::write("preprocessor_config.json", &bytes[..end]);
    let images = model.of_images().expect("what sees images");
    let patches = images.spec.patches.expect("images are cut up");
    let Ok(pictures) = PatchProcessor::new(&images.checkpoint, patches) else { return };
    match decode(&bytes[end + 1..]) {
        Ok(picture) if picture.width * picture.height <= MOST => drop(pictures.picture(picture)),
        _ => {}
    }
});
