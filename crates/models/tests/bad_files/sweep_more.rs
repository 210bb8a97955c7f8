//! The same for GGUF files and for the files next to the weights: tokenizers, image preprocessing, pooling.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use tallow_cpu::{Cpu, Isa};
use tallow_media::image::resize::Picture;
use tallow_models::encoder::EncoderModel;
use tallow_models::encoder::PatchProcessor;
use tallow_models::seq2seq::Seq2SeqModel;
use tallow_models::speech::{Speech, SpeechTask};
use tallow_text::tokenizer::{Special, Tokenizer};

use crate::sweep::{complaint, fault, others, places};
use crate::{Dir, SPARE, memory};

fn files(folder: &str) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(tallow_support::root().join(folder)).unwrap();
    let mut files: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    files.sort();
    assert!(!files.is_empty());
    files
}

/// GGUF files of every family, truncated anywhere, and with eight bytes of their first kilobytes changed.
#[test]
fn gguf_files_of_every_golden() {
    let (b, dir) = (Cpu::new(Isa::best(), 1).unwrap(), Dir::new("sweep-gguf"));
    let (each, mut seed, mut faults) =
        (if tallow_support::sweeps_all() { 600 } else { 20 }, 1usize, Vec::new());
    for from in files("tests/goldens/gguf-models") {
        let (whole, name) =
            (std::fs::read(&from).unwrap(), from.file_name().unwrap().to_string_lossy().into_owned());
        let path = dir.write("model.gguf", &whole);
        faults.extend(fault(&b, &path, &[], false).map(|fault| format!("{name}: {fault}")));
        for i in 0..each {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let mut bytes = whole.clone();
            let (what, refused) = if i % 4 == 0 {
                bytes.truncate((seed >> 20) % whole.len());
                (format!("cut to {} bytes", bytes.len()), true)
            } else {
                let at = (seed >> 20) % whole.len().min(8192);
                let values =
                    [0, 1, 7, 1 << 31, 1 << 40, u64::MAX, 0x7ff8 << 48, u64::from_le_bytes(*b"architec")];
                let value = values[(seed >> 50) % values.len()];
                let some = (whole.len() - at).min(1 << ((seed >> 40) % 4));
                bytes[at..at + some].copy_from_slice(&value.to_le_bytes()[..some]);
                (format!("{some} bytes of {value:#x} at {at}"), false)
            };
            dir.write("model.gguf", &bytes);
            let fault = fault(&b, &path, &[""], refused);
            faults.extend(fault.map(|fault| format!("{name}: {what}: {fault}")));
        }
    }
    assert!(faults.is_empty(), "{} faults:\n{}", faults.len(), faults.join("\n"));
}

/// Each value of a JSON file in turn is replaced. `take` reads it.
fn settings(
    dir: &Dir,
    file: &str,
    good: &Value,
    take: impl Fn(&Path) -> Result<(), tallow_models::LoadError>,
) {
    let mut faults = Vec::new();
    let mut seen = 0;
    let folder = Path::new(file).parent().map(|folder| dir.0.join(folder));
    std::fs::create_dir_all(folder.unwrap()).unwrap();
    dir.write(file, good.to_string().as_bytes());
    take(&dir.0).unwrap();
    for place in places(good) {
        for value in others() {
            let mut json = good.clone();
            *json.pointer_mut(&place).unwrap() = value.clone();
            let text = json.to_string();
            dir.write(file, text.as_bytes());
            let taken = catch_unwind(AssertUnwindSafe(|| memory::peak_of(|| take(&dir.0))));
            let fault = match taken {
                Err(_) => Some("panics".to_owned()),
                // A tokenizer in memory is larger than its file.
                Ok((_, peak)) if peak > 64 * text.len() + 4 * SPARE => Some(format!("takes {peak} bytes")),
                Ok((Ok(()), _)) => None,
                Ok((Err(e), _)) => complaint(&dir.0, &e.to_string(), &[file, "tensor", "in_features"]),
            };
            faults.extend(fault.map(|fault| format!("{file}{place} = {value}: {fault}")));
            seen += 1;
        }
    }
    assert!(seen > 30 && faults.is_empty(), "{} faults of {seen}:\n{}", faults.len(), faults.join("\n"));
}

#[test]
fn vocabularies() {
    let mut files = files("fuzz/seeds/tokenizer_json");
    // It contains something that is refused.
    files.retain(|file| !file.ends_with("words.json"));
    assert_eq!(files.len(), 4);
    for from in files {
        let dir = Dir::new(&format!("sweep-{}", from.file_stem().unwrap().to_string_lossy()));
        settings(&dir, "tokenizer.json", &tallow_support::json(&from), |path| {
            let tokenizer = Tokenizer::from_folder(path)?;
            let _ = tokenizer.encode(" The quick\u{e9} <end> brown\u{1F468} fox", Special::PROMPT);
            Ok(())
        });
    }
}

/// A folder with the text-and-image model, or with the text model.
fn folder(name: &str, tag: &str) -> Dir {
    let dir = Dir::new(tag);
    for file in ["config.json", "model.safetensors"] {
        dir.write(file, &std::fs::read(tallow_support::golden(name).join(file)).unwrap());
    }
    dir
}

#[test]
fn how_pictures_are_prepared() {
    let good = json!({
        "do_resize": true, "size": { "shortest_edge": 16 }, "resample": 3, "do_center_crop": true,
        "crop_size": { "height": 16, "width": 16 }, "do_rescale": true, "rescale_factor": 0.004,
        "do_normalize": true, "image_mean": [0.5, 0.4, 0.3], "image_std": [0.2, 0.3, 0.4], "do_pad": false,
    });
    let see = |path: &Path| {
        let model = EncoderModel::open(path)?;
        let images = model.of_images().unwrap();
        let pictures = PatchProcessor::new(&images.checkpoint, images.spec.patches.unwrap())?;
        for (width, height) in [(20, 17), (1, 40), (40, 1)] {
            let _ = pictures.picture(Picture { width, height, bytes: vec![100; 3 * width * height] });
        }
        Ok(())
    };
    settings(&folder("clip", "sweep-pictures"), "preprocessor_config.json", &good, see);
    let good = json!({
        "do_resize": true, "size": { "height": 16, "width": 16 }, "resample": 2, "do_center_crop": null,
        "do_convert_rgb": null, "rescale_factor": 0.00392156862745098, "image_mean": 0.5, "image_std": [0.5, 0.5, 0.5],
    });
    settings(&folder("siglip", "sweep-square"), "preprocessor_config.json", &good, see);
    let newer = json!({ "image_processor": good });
    settings(&folder("siglip", "sweep-newer"), "processor_config.json", &newer, see);
}

#[test]
fn how_speech_is_written() {
    let dir = Dir::new("sweep-speech");
    tallow_support::listener(&dir.0);
    let good = tallow_support::json(&dir.0.join("generation_config.json"));
    settings(&dir, "generation_config.json", &good, |path| {
        let model = Seq2SeqModel::open(path)?;
        let speech = Speech::read(&model, &Tokenizer::from_folder(path)?)?;
        let _ = speech.setting(speech.language("en").flatten(), SpeechTask::Transcribe);
        Ok(())
    });
}

#[test]
fn how_vectors_are_made() {
    let module = |kind: &str, path: &str| json!({ "type": format!("sentence_transformers.models.{kind}"), "path": path });
    let modules = json!([
        module("Transformer", ""),
        module("Pooling", "1_Pooling"),
        module("Normalize", "2_Normalize")
    ]);
    let dir = folder("bert", "sweep-vectors");
    let open = |path: &Path| EncoderModel::open(path).map(drop);
    settings(&dir, "modules.json", &modules, open);
    dir.write("modules.json", modules.to_string().as_bytes());
    let pooling = json!({ "pooling_mode_mean_tokens": true, "pooling_mode_cls_token": false, "pooling_mode_max_tokens": false });
    settings(&dir, "1_Pooling/config.json", &pooling, open);
    dir.write("1_Pooling/config.json", pooling.to_string().as_bytes());
    let texts = json!({ "max_seq_length": 12, "do_lower_case": false, "x": 0 });
    settings(&dir, "sentence_bert_config.json", &texts, open);
    dir.write("sentence_bert_config.json", texts.to_string().as_bytes());
    let modules = json!([module("Dense", "3_Dense")]);
    dir.write("modules.json", modules.to_string().as_bytes());
    std::fs::create_dir_all(dir.0.join("3_Dense")).unwrap();
    dir.write(
        "3_Dense/model.safetensors",
        &std::fs::read(tallow_support::golden("bert").join("model.safetensors")).unwrap(),
    );
    let dense = json!({ "in_features": 48, "out_features": 8, "bias": true, "activation_function": "torch.nn.modules.linear.Identity" });
    settings(&dir, "3_Dense/config.json", &dense, open);
}
