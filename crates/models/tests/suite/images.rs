//! Text-and-image models (CLIP, SigLIP) against the reference, and image preprocessing against the reference's
//! processor.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use image::{DynamicImage, ImageFormat, Rgb, RgbImage};
use serde_json::{Value, json};
use tallow_core::{Arithmetic, Backend, Tensor};
use tallow_cpu::{Cpu, Isa};
use tallow_media::image::decode::decode;
use tallow_models::encoder::PatchProcessor;
use tallow_models::encoder::{Encoder, EncoderModel, Image, Input, Inputs, Truncation, shortened};
use tallow_models::spec::encoder::{PatchSpec, Pooling};
use tallow_support::{Golden, golden, image_encoder, json, needed, only_tensors, tensors};
use tallow_wgpu::{Wgpu, devices};

use crate::devices::cuda;

const BOTH: [&str; 2] = ["clip", "siglip"];

/// Tolerance of the GPU, as a multiple of the CPU's.
const GPU: f32 = 4.0;

fn cpu() -> Cpu {
    Cpu::new(Isa::best(), 2).unwrap().with(Arithmetic::Exact)
}

/// The GPU that tests run on, possibly a software implementation.
fn gpu() -> Option<Wgpu> {
    Some(Wgpu::open(needed("Vulkan or Metal device", devices().first())?).unwrap())
}

fn load<B: Backend>(b: &B, model: &EncoderModel) -> Encoder<B> {
    Encoder::load(b, model, &mut |_, _| ControlFlow::Continue(())).unwrap_or_else(|e| panic!("{e}"))
}

fn open(path: &Path) -> EncoderModel {
    EncoderModel::open(path).unwrap_or_else(|e| panic!("{e}"))
}

/// The last hidden states of some texts or images, and their unit vectors.
struct Answer {
    hidden: Vec<f32>,
    vectors: Vec<Vec<f32>>,
}

fn texts<B: Backend>(b: &B, encoder: &Encoder<B>, inputs: &[Input]) -> Answer {
    let texts = encoder.upload(b, inputs).unwrap();
    let x = encoder.forward(b, &texts, |_, _| Ok(())).unwrap();
    answer(b, &x, &encoder.vectors(b, &texts, &x, Pooling::Mean).unwrap())
}

fn images<B: Backend>(b: &B, encoder: &Encoder<B>, images: &[Image]) -> Answer {
    let images = encoder.upload_images(b, images).unwrap();
    let x = encoder.forward(b, &images, |_, _| Ok(())).unwrap();
    answer(b, &x, &encoder.vectors(b, &images, &x, Pooling::Mean).unwrap())
}

fn answer<B: Backend>(b: &B, hidden: &Tensor<B>, vectors: &Tensor<B>) -> Answer {
    let all: Vec<f32> = b.download(vectors).unwrap();
    let vectors = all.chunks(vectors.cols()).map(|x| shortened(x.to_vec(), None)).collect();
    Answer { hidden: b.download(hidden).unwrap(), vectors }
}

fn distance(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    let far = |(a, b): (&f32, &f32)| if (a - b).is_nan() { f32::INFINITY } else { (a - b).abs() };
    a.iter().zip(b).map(far).fold(0.0, f32::max)
}

/// A golden case: three texts and two images.
struct Case {
    facts: Value,
    tensors: BTreeMap<String, Golden>,
}

impl Case {
    fn read(name: &str) -> Case {
        let dir = golden(name);
        Case { facts: json(&dir.join("golden.json")), tensors: tensors(&dir.join("golden.safetensors")) }
    }

    fn tolerance(&self) -> f32 {
        self.facts["suggested_abs_tolerance_f32"].as_f64().unwrap() as f32
    }

    fn texts(&self) -> Vec<Input> {
        let ids = &self.tensors["input_ids"];
        let row = |tokens: &[u32]| Input { tokens: tokens.to_vec(), types: vec![0; tokens.len()] };
        ids.ids().chunks(ids.shape[1]).map(row).collect()
    }

    fn images(&self, patches: PatchSpec) -> Vec<Image> {
        let (pixels, side) = (self.tensors["pixel_values"].f32(), patches.image);
        pixels.chunks(3 * side * side).map(|numbers| patches.cut(numbers)).collect()
    }

    fn far(&self, name: &str, got: &[f32]) -> f32 {
        distance(got, &self.tensors[name].f32())
    }

    fn of_texts<B: Backend>(&self, b: &B, model: &EncoderModel) -> (f32, Answer) {
        let got = texts(b, &load(b, model.of_texts().unwrap()), &self.texts());
        (self.far("text_last_hidden", &got.hidden).max(self.far("text_embeds", &got.vectors.concat())), got)
    }

    fn of_images<B: Backend>(&self, b: &B, model: &EncoderModel) -> (f32, Answer) {
        let model = model.of_images().unwrap();
        let got = images(b, &load(b, model), &self.images(model.spec.patches.unwrap()));
        (
            self.far("vision_last_hidden", &got.hidden).max(self.far("image_embeds", &got.vectors.concat())),
            got,
        )
    }

    /// Largest deviation from the reference over all tensors of the golden.
    fn distance<B: Backend>(&self, b: &B, model: &EncoderModel) -> f32 {
        let ((texts_far, texts), (images_far, images)) = (self.of_texts(b, model), self.of_images(b, model));
        let logits = self.far("logits_per_image", &logits(model, &texts, &images));
        texts_far.max(images_far).max(logits)
    }
}

fn logits(model: &EncoderModel, texts: &Answer, images: &Answer) -> Vec<f32> {
    let matching = model.matching.unwrap();
    let of =
        |image: &Vec<f32>| texts.vectors.iter().map(|text| matching.logit(text, image)).collect::<Vec<_>>();
    images.vectors.iter().flat_map(of).collect()
}

/// A folder with a case's weights, or only those that `keep` selects by name, and another config.
fn folder(name: &str, config: &Value, keep: impl Fn(&str) -> bool, tag: &str) -> PathBuf {
    let dir = std::env::temp_dir().join(format!("tallow-images-{}-{name}-{tag}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    let file = only_tensors(&std::fs::read(golden(name).join("model.safetensors")).unwrap(), keep);
    std::fs::write(dir.join("model.safetensors"), file).unwrap();
    std::fs::write(dir.join("config.json"), config.to_string()).unwrap();
    dir
}

fn config(name: &str) -> Value {
    json(&golden(name).join("config.json"))
}

#[test]
fn folders() {
    folders_on(&cpu(), 1.0);
}

#[test]
fn folders_on_a_gpu() {
    gpu().iter().for_each(|b| folders_on(b, GPU));
}

#[test]
fn folders_on_cuda() {
    folders_on(&cuda(), GPU);
}

fn folders_on<B: Backend>(b: &B, slack: f32) {
    for name in BOTH {
        let (case, model) = (Case::read(name), open(&golden(name)));
        let far = case.distance(b, &model);
        println!("{name:<8} {far:.2e} of {:.0e}", case.tolerance());
        assert!(far <= slack * case.tolerance(), "{name}: off by {far}");
    }
}

#[test]
fn on_every_instruction_set() {
    for (name, isa) in BOTH.into_iter().flat_map(|name| Isa::ALL.map(|isa| (name, isa))) {
        if isa.is_available() {
            let (case, b) = (Case::read(name), Cpu::new(isa, 1).unwrap().with(Arithmetic::Exact));
            let far = case.distance(&b, &open(&golden(name)));
            assert!(far <= case.tolerance(), "{name} by {isa}: off by {far}");
        }
    }
}

#[test]
fn newer_configs() {
    for name in BOTH {
        let dir = folder(name, &json(&golden(name).join("config.v5.json")), |_| true, "v5");
        let (case, model) = (Case::read(name), open(&dir));
        let far = case.distance(&cpu(), &model);
        assert!(far <= case.tolerance(), "{name}: off by {far}");
        std::fs::remove_dir_all(dir).unwrap();
    }
}

/// The first checkpoints name a wrong end-of-text token (the real one is the largest id), and older files have a second
/// object of settings, which takes precedence.
#[test]
fn older_configs() {
    let case = Case::read("clip");
    let mut config = config("clip");
    config["text_config"]["eos_token_id"] = json!(2);
    config["text_config_dict"] = config["text_config"].clone();
    config["text_config"]["hidden_act"] = json!("gelu");
    let dir = folder("clip", &config, |_| true, "older");
    let model = open(&dir);
    assert!(matches!(
        model.spec.pooling_head.unwrap().pool,
        tallow_models::spec::encoder::PoolKind::By(Pooling::Largest)
    ));
    let far = case.distance(&cpu(), &model);
    assert!(far <= case.tolerance(), "off by {far}");
    std::fs::remove_dir_all(dir).unwrap();
}

/// Folders with only one of the two encoders, whose settings are not nested.
#[test]
fn alone() {
    let kinds = [
        ("clip", "CLIPTextModelWithProjection", "text"),
        ("clip", "CLIPVisionModelWithProjection", "vision"),
        ("siglip", "SiglipTextModel", "text"),
        ("siglip", "SiglipVisionModel", "vision"),
    ];
    for (name, arch, part) in kinds {
        let both = config(name);
        let mut config = both[format!("{part}_config")].clone();
        config["architectures"] = json!([arch]);
        if name == "clip" {
            config["projection_dim"] = both["projection_dim"].clone();
        }
        let (encoder, projection) =
            (format!("{part}_model."), if part == "text" { "text_proj" } else { "visual_proj" });
        let dir = folder(name, &config, |t| t.starts_with(&encoder) || t.starts_with(projection), arch);
        let (case, model) = (Case::read(name), open(&dir));
        assert_eq!(
            (model.of_texts().is_some(), model.of_images().is_some()),
            (part == "text", part == "vision")
        );
        assert!(model.matching.is_none());
        let far =
            if part == "text" { case.of_texts(&cpu(), &model).0 } else { case.of_images(&cpu(), &model).0 };
        assert!(far <= case.tolerance(), "{arch}: off by {far}");
        std::fs::remove_dir_all(dir).unwrap();
    }
    // A single encoder may have the config of a pair: its own nested settings apply.
    let mut nested = config("clip");
    nested["architectures"] = json!(["CLIPTextModelWithProjection"]);
    (nested["text_config"]["projection_dim"], nested["projection_dim"]) = (json!(24), json!(512));
    let dir = folder("clip", &nested, |t| t.starts_with("text_"), "nested");
    let (case, model) = (Case::read("clip"), open(&dir));
    assert!(case.of_texts(&cpu(), &model).0 <= case.tolerance() && model.of_images().is_none());
    std::fs::remove_dir_all(dir).unwrap();
    // Without a projection the vectors have the hidden size.
    let mut config = config("clip")["vision_config"].clone();
    config["architectures"] = json!(["CLIPVisionModel"]);
    let dir = folder("clip", &config, |t| t.starts_with("vision_model."), "plain");
    let (case, model) = (Case::read("clip"), open(&dir));
    let got = images(&cpu(), &load(&cpu(), &model), &case.images(model.spec.patches.unwrap()));
    assert_eq!(got.vectors[0].len(), 32);
    assert!(case.far("vision_last_hidden", &got.hidden) <= case.tolerance());
    std::fs::remove_dir_all(dir).unwrap();
}

/// One changed setting moves the outputs as far as it moves the reference's, which shows that the tests above can fail.
/// SigLIP's golden records no mutants; some of ours must move the outputs by far more than the tolerance.
#[test]
fn mutants_are_told_apart() {
    let ours = json!({
        "text_act": { "change": { "text_config.hidden_act": "quick_gelu" } },
        "text_heads": { "change": { "text_config.num_attention_heads": 2 } },
        "vision_act": { "change": { "vision_config.hidden_act": "quick_gelu" } },
        "vision_heads": { "change": { "vision_config.num_attention_heads": 2 } },
        "vision_eps": { "change": { "vision_config.layer_norm_eps": 0.1 } },
    });
    for name in BOTH {
        let case = Case::read(name);
        let mutants = if name == "clip" { &case.facts["mutants"] } else { &ours };
        for (mutant, facts) in mutants.as_object().unwrap() {
            let mut config = config(name);
            for (key, value) in facts["change"].as_object().unwrap() {
                let (object, key) = key.split_once('.').unwrap();
                config[object][key] = value.clone();
            }
            let dir = folder(name, &config, |_| true, mutant);
            let model = open(&dir);
            let ((_, texts), (_, images)) = (case.of_texts(&cpu(), &model), case.of_images(&cpu(), &model));
            let far = case.far("logits_per_image", &logits(&model, &texts, &images));
            println!("{name:<8} {mutant:<14} {far:.4}");
            assert!(far > 5.0 * case.tolerance(), "{name}, {mutant}: moved by {far} only");
            if let Some(want) = facts["max_abs_logit_change"].as_f64() {
                println!("the reference {want:.4}");
                assert!(
                    (f64::from(far) - want).abs() < 0.01 * want,
                    "{name}, {mutant}: {far}, the reference {want}"
                );
            }
            std::fs::remove_dir_all(dir).unwrap();
        }
    }
}

/// Texts and images give bitwise the same vectors in any batch.
#[test]
fn batched_is_alone() {
    BOTH.iter().for_each(|name| alone_on(&cpu(), name));
}

#[test]
fn batched_is_alone_on_a_gpu() {
    gpu().iter().for_each(|b| BOTH.iter().for_each(|name| alone_on(b, name)));
}

#[test]
fn batched_is_alone_on_cuda() {
    let b = cuda();
    BOTH.iter().for_each(|name| alone_on(&b, name));
}

fn alone_on<B: Backend>(b: &B, name: &str) {
    let (case, model) = (Case::read(name), open(&golden(name)));
    let (encoder, mut inputs) = (load(b, model.of_texts().unwrap()), case.texts());
    inputs.push(Input { tokens: vec![97, 5, 98], types: vec![0; 3] });
    let all = texts(b, &encoder, &inputs);
    for (input, vector) in inputs.iter().zip(&all.vectors) {
        assert_eq!(&texts(b, &encoder, std::slice::from_ref(input)).vectors[0], vector, "{name}");
    }
    let of_images = model.of_images().unwrap();
    let (encoder, mut inputs) = (load(b, of_images), case.images(of_images.spec.patches.unwrap()));
    inputs.extend(inputs.clone().into_iter().rev());
    let all = images(b, &encoder, &inputs);
    for (input, vector) in inputs.iter().zip(&all.vectors) {
        assert_eq!(&images(b, &encoder, std::slice::from_ref(input)).vectors[0], vector, "{name}");
    }
}

fn refused(name: &str, change: impl Fn(&mut Value), processing: Option<Value>) -> String {
    let mut config = config(name);
    change(&mut config);
    let dir = folder(name, &config, |_| true, "refused");
    if let Some(json) = processing {
        std::fs::write(dir.join("preprocessor_config.json"), json.to_string()).unwrap();
    }
    let why = EncoderModel::open(&dir).and_then(|model| {
        let images = model.of_images().unwrap();
        Encoder::load(&cpu(), &model, &mut |_, _| ControlFlow::Continue(()))?;
        Encoder::load(&cpu(), images, &mut |_, _| ControlFlow::Continue(()))?;
        Ok(PatchProcessor::new(&images.checkpoint, images.spec.patches.unwrap())?)
    });
    let why = why.unwrap_err().to_string().replace(&dir.display().to_string(), "DIR");
    std::fs::remove_dir_all(dir).unwrap();
    why
}

#[test]
fn refusals() {
    let with = |name: &str, object: &'static str, key: &'static str, value: Value| {
        refused(name, |c| c[object][key] = value.clone(), None)
    };
    let said = [
        with("clip", "text_config", "hidden_act", json!("mish")),
        with("clip", "vision_config", "num_channels", json!(4)),
        with("clip", "vision_config", "patch_size", json!(17)),
        with("clip", "vision_config", "image_size", json!(40)),
        with("clip", "vision_config", "image_size", json!(1 << 20)),
        with("clip", "vision_config", "num_hidden_layers", json!(1)),
        with("clip", "vision_config", "num_attention_heads", json!(5)),
        with("clip", "vision_config", "layer_norm_eps", json!(2.0)),
        refused("clip", |c| c["projection_dim"] = json!(23), None),
        with("siglip", "vision_config", "vision_use_head", json!(false)),
        with("siglip", "text_config", "pad_token_id", json!(99)),
        with("siglip", "text_config", "projection_size", json!(30)),
    ];
    insta::assert_snapshot!(said.join("\n"));
}

#[test]
fn what_cannot_be_done_to_pictures_is_refused() {
    let said = [
        json!({ "size": { "shortest_edge": 16, "longest_edge": 32 } }),
        json!({ "size": { "height": 16 } }),
        json!({ "size": 0 }),
        json!({ "size": 1e9 }),
        json!({ "crop_size": { "height": 20, "width": 16 } }),
        json!({ "do_center_crop": false, "size": { "height": 8, "width": 8 } }),
        json!({ "crop_size": "large" }),
        json!({ "resample": 0 }),
        json!({ "resample": 9 }),
        json!({ "do_resize": "yes" }),
        json!({ "do_pad": true }),
        json!({ "image_mean": [0.5, 0.5] }),
        json!({ "image_std": [0.5, 0.0, 0.5] }),
        json!({ "rescale_factor": "1/255" }),
    ];
    insta::assert_snapshot!(said.map(|processing| refused("clip", |_| {}, Some(processing))).join("\n"));
}

/// SigLIP pads its texts; the pad token and the normalization are in the tokenizer's settings.
#[test]
fn texts_are_filled_up() {
    let dir = folder("siglip", &config("siglip"), |_| true, "filled");
    let weights = std::fs::read(dir.join("model.safetensors")).unwrap();
    image_encoder(&dir);
    std::fs::write(dir.join("model.safetensors"), weights).unwrap();
    std::fs::write(dir.join("config.json"), config("siglip").to_string()).unwrap();
    let text = |settings: Value, text: &str, cut: Truncation| {
        std::fs::write(dir.join("tokenizer_config.json"), settings.to_string()).unwrap();
        let inputs = Inputs::new(&open(&dir)).unwrap();
        inputs.text(text, cut).map(|input| {
            assert_eq!(input.tokens.len(), input.types.len());
            input.tokens
        })
    };
    let (cat, mat) = (56, 59);
    assert_eq!(text(json!({}), "cat", Truncation::No).unwrap(), [97, cat, 98, 1, 1, 1, 1, 1, 1]);
    let settings = json!({ "tokenizer_class": "SiglipTokenizer", "pad_token": { "content": "[PAD]" } });
    assert_eq!(
        text(settings.clone(), "A cat, mat!", Truncation::No).unwrap()[2..],
        [cat, mat, 98, 0, 0, 0, 0]
    );
    let long = "cat ".repeat(9);
    assert_eq!(
        text(settings.clone(), &long, Truncation::End).unwrap(),
        [vec![97], vec![cat; 7], vec![98]].concat()
    );
    let why = text(settings, &long, Truncation::No).unwrap_err().to_string();
    assert!(why.contains("11 tokens, and the model takes 9"), "{why}");
    std::fs::remove_dir_all(dir).unwrap();
}

/// Preprocessing with the given settings, for a model that takes `side` × `side` pixels.
fn pictures(side: usize, processing: Value) -> PatchProcessor {
    let mut config = config("clip");
    config["vision_config"]["image_size"] = json!(side);
    let dir = folder("clip", &config, |_| true, &format!("pictures-{side}"));
    std::fs::write(dir.join("preprocessor_config.json"), processing.to_string()).unwrap();
    let model = open(&dir);
    let images = model.of_images().unwrap();
    let made = PatchProcessor::new(&images.checkpoint, images.spec.patches.unwrap()).unwrap();
    std::fs::remove_dir_all(dir).unwrap();
    made
}

fn processing(side: usize) -> Value {
    json!({
        "crop_size": { "height": side, "width": side },
        "do_center_crop": true, "do_convert_rgb": true, "do_normalize": true, "do_rescale": true, "do_resize": true,
        "image_mean": [0.48145466, 0.4578275, 0.40821073],
        "image_std": [0.26862954, 0.26130258, 0.27577711],
        "resample": 3, "rescale_factor": 0.00392156862745098,
        "size": { "shortest_edge": side },
    })
}

/// The preprocessed image equals the reference processor's, up to the rounding of the stored golden.
#[test]
fn pictures_are_those_of_the_reference() {
    let facts = json(&golden("frontends/golden.json"));
    let file = std::fs::read(golden("frontends/pattern.png")).unwrap();
    for side in [224, 336] {
        let pictures = pictures(side, processing(side));
        let numbers = pictures.pixels(decode(&file).unwrap()).unwrap();
        let facts = &facts[format!("clip{side}")];
        let row: Vec<f32> =
            facts["first_row_red"].as_array().unwrap().iter().map(|x| x.as_f64().unwrap() as f32).collect();
        assert!(distance(&numbers[..row.len()], &row) < 1e-5, "{:?}", &numbers[..8]);
        let mean = numbers.iter().map(|x| f64::from(*x)).sum::<f64>() / numbers.len() as f64;
        assert!((mean - facts["mean"].as_f64().unwrap()).abs() < 1e-6, "{side}: {mean}");
        if side == 224 {
            let want = &tensors(&golden("frontends/clip-pixels.safetensors"))["clip224"];
            let far = distance(&numbers, &want.f32());
            println!("pixels off by {far:.2e}");
            // One byte more or less would be 0.014.
            assert!(far < 1.1e-3, "off by {far}");
        }
    }
}

/// Settings in their older forms, in the file of newer folders, and missing ones give the same preprocessing.
#[test]
fn settings_have_several_forms() {
    let plain = json!({ "size": 24, "crop_size": 24, "resample": 3 });
    let picture = || decode(&std::fs::read(golden("frontends/pattern.png")).unwrap()).unwrap();
    let want = pictures(24, processing(24)).pixels(picture()).unwrap();
    assert_eq!(pictures(24, plain).pixels(picture()).unwrap(), want);
    assert_eq!(pictures(24, json!({})).pixels(picture()).unwrap(), want);
    let other = |key: &str, value: Value| {
        let mut json = processing(24);
        json[key] = value;
        pictures(24, json).pixels(picture()).unwrap()
    };
    for (key, value) in [
        ("resample", json!(2)),
        ("rescale_factor", json!(0.01)),
        ("image_std", json!(0.5)),
        ("size", json!({ "shortest_edge": 30 })),
        ("size", json!({ "height": 24, "width": 24 })),
        ("do_normalize", json!(false)),
        ("do_rescale", json!(false)),
        ("do_resize", json!(false)),
    ] {
        assert_ne!(other(key, value.clone()), want, "{key} = {value}");
    }
    let bytes = {
        let mut json = processing(24);
        (json["do_normalize"], json["do_rescale"]) = (json!(false), json!(false));
        pictures(24, json).pixels(picture()).unwrap()
    };
    assert!(bytes.iter().all(|x| x.fract() == 0.0 && (0.0..=255.0).contains(x)));
}

/// An image smaller than the crop is centred on black.
#[test]
fn small_pictures_stand_in_black() {
    let processing = json!({ "do_resize": false, "do_normalize": false, "do_rescale": false });
    let picture = tallow_media::image::resize::Picture { width: 1, height: 2, bytes: vec![9; 6] };
    let numbers = pictures(8, processing).pixels(picture).unwrap();
    let lit: Vec<usize> = (0..64).filter(|i| numbers[*i] == 9.0).collect();
    // (2 - 8) / 2 rows above it, and (1 - 8) / 2, rounded down, columns to its left.
    assert_eq!(lit, [3 * 8 + 4, 4 * 8 + 4]);
}

fn written(image: &DynamicImage, format: ImageFormat) -> Vec<u8> {
    let mut bytes = std::io::Cursor::new(Vec::new());
    image.write_to(&mut bytes, format).unwrap();
    bytes.into_inner()
}

/// Red, green and blue stripes.
fn striped(width: u32, height: u32) -> RgbImage {
    RgbImage::from_fn(width, height, |x, y| match (x + y / 8) / 8 % 3 {
        0 => Rgb([250, 10, 10]),
        1 => Rgb([10, 250, 10]),
        _ => Rgb([10, 10, 250]),
    })
}

#[test]
fn every_kind_of_file_is_read() {
    let image = striped(40, 24);
    for format in [ImageFormat::Png, ImageFormat::Bmp, ImageFormat::WebP, ImageFormat::Gif, ImageFormat::Jpeg]
    {
        let got = decode(&written(&image.clone().into(), format)).unwrap();
        assert_eq!((got.width, got.height), (40, 24), "{format:?}");
        let most = got.bytes.iter().zip(image.as_raw()).map(|(a, b)| a.abs_diff(*b)).max().unwrap();
        match format {
            // JPEG colours bleed at the edges of stripes.
            ImageFormat::Jpeg => assert!(got.bytes[0].abs_diff(250) < 30),
            _ => assert!(most == 0, "{format:?}: off by {most}"),
        }
    }
    // RGBA, 16 bits per channel, and greyscale with and without alpha.
    let image = DynamicImage::from(image);
    for (other, off) in [
        (DynamicImage::from(image.to_rgba8()), 0),
        (DynamicImage::from(image.to_rgb16()), 0),
        (DynamicImage::from(image.to_luma8()), 255),
        (DynamicImage::from(image.to_luma_alpha8()), 255),
    ] {
        let got = decode(&written(&other, ImageFormat::Png)).unwrap();
        let most = got.bytes.iter().zip(image.as_bytes()).map(|(a, b)| a.abs_diff(*b)).max().unwrap();
        assert!(most <= off, "off by {most}");
    }
}

/// Damaged files, and files that would decode to too much, are refused without allocating it.
#[test]
fn bad_files_are_refused() {
    let png = written(&striped(40, 24).into(), ImageFormat::Png);
    // The header claims 65500 x 65500 pixels, which would be 12 gigabytes.
    let mut bomb = png.clone();
    for at in [16, 20] {
        bomb[at..at + 4].copy_from_slice(&65_500u32.to_be_bytes());
    }
    let crc = crc32(&bomb[12..29]);
    bomb[29..33].copy_from_slice(&crc.to_be_bytes());
    let files: [&[u8]; 5] = [b"", b"no picture at all", &png[..png.len() / 2], &png[..20], &bomb];
    for file in files {
        assert!(decode(file).is_err());
    }
    let said: Vec<String> = [files[1], files[4]].map(|file| decode(file).unwrap_err().to_string()).into();
    insta::assert_snapshot!(said.join("\n"));
    let picture = |width: usize, height: usize| tallow_media::image::resize::Picture {
        width,
        height,
        bytes: vec![0; 3 * width * height],
    };
    // Resized it would have 1.5 billion pixels, of which the crop leaves a few.
    assert!(pictures(224, processing(224)).picture(picture(30_000, 1)).is_ok());
    let square = json!({ "size": { "height": 224, "width": 224 }, "do_center_crop": false });
    let long = pictures(224, square).picture(picture(1, 300_000));
    assert_eq!(long.err().unwrap().to_string(), "it is too long and narrow");
    let as_is = pictures(8, json!({ "do_resize": false, "do_center_crop": false }));
    assert_eq!(
        as_is.picture(picture(9, 8)).err().unwrap().to_string(),
        "it has 9 x 8 pixels; the model takes 8 x 8, and its settings do not resize"
    );
}

fn crc32(bytes: &[u8]) -> u32 {
    let step = |crc: u32, _: u32| if crc & 1 == 1 { crc >> 1 ^ 0xEDB8_8320 } else { crc >> 1 };
    !bytes.iter().fold(!0, |crc, byte| (0..8).fold(crc ^ u32::from(*byte), step))
}
