//! Folders converted to GGUF, compared with what llama.cpp's converter made of the same folders.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use tallow_checkpoint::gguf::Value;
use tallow_checkpoint::{Kind, Settings, Stored};
use tallow_convert::{Conversion, Importance};
use tallow_models::Model;
use tallow_quant::Format;
use tallow_support::{DECODERS, golden, json, shared};
use tallow_text::tokenizer::Special;

fn open(path: &Path) -> Model {
    Model::open(path).unwrap_or_else(|e| panic!("{e}"))
}

fn out(tag: &str) -> PathBuf {
    let name = format!("tallow-converting-{}-{}.gguf", std::process::id(), tag.replace('/', "-"));
    std::env::temp_dir().join(name)
}

/// The converted file of a model, or the error.
fn converted(model: &Model, tag: &str) -> Result<PathBuf, String> {
    let out = out(tag);
    let conversion = Conversion::new(model, &out).map_err(|e| e.to_string())?;
    let mut bytes = Vec::new();
    let mut last = 0;
    let told = &mut |done: usize, total: usize| {
        assert!(done >= last && done <= total);
        last = done;
        ControlFlow::Continue(())
    };
    conversion.write(&mut bytes, told).unwrap();
    assert_eq!((bytes.len() as u64, last as u64), (conversion.size(), conversion.size()));
    std::fs::write(&out, bytes).unwrap();
    Ok(out)
}

fn numbers(stored: &Stored) -> Vec<f32> {
    let Kind::Weights(format) = stored.kind else { panic!("{:?}", stored.kind) };
    let mut data = vec![0.0; stored.shape.iter().product()];
    tallow_quant::unpack(format, stored.bytes(), &mut data).unwrap();
    data
}

/// A `head_dim` larger than the weights provide.
#[test]
fn heads_that_are_too_wide_are_refused() {
    let folder = out("wide").with_extension("");
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::copy(golden("llama").join("model.safetensors"), folder.join("model.safetensors")).unwrap();
    let mut config = json(&golden("llama").join("config.json"));
    for (size, fits) in [(12, true), (14, false), (64, false)] {
        config["head_dim"] = size.into();
        std::fs::write(folder.join("config.json"), config.to_string()).unwrap();
        match converted(&open(&folder), "wide") {
            Ok(file) => {
                std::fs::remove_file(file).unwrap();
                assert!(fits, "{size}");
            }
            Err(why) => assert!(!fits && why.contains("the settings ask for"), "{size}: {why}"),
        }
    }
    std::fs::remove_dir_all(folder).unwrap();
}

/// The cases in a folder of goldens.
fn within(folder: &'static str) -> impl Iterator<Item = String> {
    let all = std::fs::read_dir(golden(folder)).unwrap();
    all.map(move |e| format!("{folder}/{}", e.unwrap().file_name().to_str().unwrap()))
}

/// All cases of decoders.
fn decoders() -> impl Iterator<Item = String> {
    DECODERS.into_iter().map(str::to_owned).chain(within("more")).chain(within("mtp"))
}

/// Every case is either written or refused; the snapshot lists which.
#[test]
fn every_case_is_written_or_refused() {
    let mut names: Vec<String> = decoders().chain(within("quant")).collect();
    names.sort();
    let said = names.iter().map(|name| {
        let model = open(&golden(name));
        match converted(&model, name) {
            Ok(out) => {
                std::fs::remove_file(out).unwrap();
                format!("{name}: written\n")
            }
            Err(why) => {
                let why = why.replace(golden(name).to_str().unwrap(), "FOLDER");
                format!("{name}: {}\n", why.replace(out(name).to_str().unwrap(), "OUT"))
            }
        }
    });
    insta::assert_snapshot!(said.collect::<String>());
}

/// The same tensors bit for bit, and no contradicting metadata.
#[test]
fn files_are_like_those_of_llama_cpp() {
    let mut seen = 0;
    // Experts that a folder keeps joint stay so here; llama.cpp takes them apart.
    for name in decoders().filter(|name| name != "mtp/qwen3.5-moe") {
        let file = name.trim_start_matches("more/");
        let kinds = ["bf16", "f32"].map(|kind| golden("gguf-models").join(format!("{file}-{kind}.gguf")));
        let beside = golden(&name).join("twin.gguf");
        let Some(path) = kinds.into_iter().chain([beside]).find(|path| path.exists()) else { continue };
        let (model, theirs) = (open(&golden(&name)), open(&path));
        let Ok(out) = converted(&model, &format!("twin-{file}")) else { continue };
        let ours = open(&out);
        let names = |model: &Model| -> Vec<String> {
            model.checkpoint.tensors().map(|(name, _)| name.to_owned()).collect()
        };
        assert_eq!(names(&ours), names(&theirs), "{name}");
        for (tensor, mine) in ours.checkpoint.tensors() {
            let other = theirs.checkpoint.get(tensor).unwrap();
            assert_eq!(mine.shape, other.shape, "{name}: {tensor}");
            // RoPE frequency factors are computed, and the programs round differently.
            let most = if tensor.starts_with("rope_") { 1e-6 } else { 0.0 };
            let off =
                numbers(mine).into_iter().zip(numbers(other)).map(|(a, b)| (a - b).abs() / b.abs().max(1.0));
            assert!(off.fold(0.0, f32::max) <= most, "{name}: {tensor} is another");
        }
        let (Settings::Gguf(mine), Settings::Gguf(other)) =
            (&ours.checkpoint.settings, &theirs.checkpoint.settings)
        else {
            panic!("no GGUF file");
        };
        for (key, value) in mine.entries() {
            let as_number = |value: &Value| match value {
                Value::U64(n) => Some(*n as f64),
                Value::I64(n) => Some(*n as f64),
                Value::F64(x) => Some(*x),
                _ => None,
            };
            // llama.cpp counts MTP layers that this folder lacks; ours counts none. It writes its own default for where
            // attention is.
            let counts = name == "glm4-moe"
                && (key.ends_with(".block_count") || key.ends_with(".nextn_predict_layers"));
            let counts = counts || (name.starts_with("mtp/") && key.ends_with(".full_attention_interval"));
            let theirs = other.get(key).filter(|_| !key.starts_with("general.") && !counts);
            let Some(other) = theirs else { continue };
            match (as_number(value), as_number(other)) {
                (Some(a), Some(b)) => {
                    assert!((a - b).abs() <= 1e-6 * b.abs(), "{name}: {key} is {a}, not {b}")
                }
                (None, None) => assert_eq!(value.to_string(), other.to_string(), "{name}: {key}"),
                _ => panic!("{name}: {key} is {value}, not {other}"),
            }
        }
        std::fs::remove_file(out).unwrap();
        seen += 1;
    }
    assert!(seen >= 36, "{seen}");
}

/// DeepSeek V3's MTP layer, which llama.cpp's converter leaves out, is written as it writes others, and read again.
#[test]
fn an_mtp_layer_goes_with_its_model() {
    let (from, folder) = (golden("mtp/deepseek-v3"), out("mtp").with_extension(""));
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::copy(from.join("model.safetensors"), folder.join("model.safetensors")).unwrap();
    let mut config = json(&from.join("config.json"));
    // Files have one epsilon for all norms.
    config["rms_norm_eps"] = 1e-6.into();
    std::fs::write(folder.join("config.json"), config.to_string()).unwrap();
    let model = open(&folder);
    let path = converted(&model, "mtp").unwrap();
    let file = open(&path);
    assert!(model.has_mtp() && file.has_mtp());
    assert_eq!((file.spec.layers.len(), file.spec.mtp_layers), (model.spec.layers.len(), 1));
    for (mine, theirs) in [
        ("model.layers.2.eh_proj.weight", "blk.2.nextn.eh_proj.weight"),
        ("model.layers.2.shared_head.head.weight", "blk.2.nextn.shared_head_head.weight"),
        ("model.layers.2.hnorm.weight", "blk.2.nextn.hnorm.weight"),
        ("model.layers.2.self_attn.o_proj.weight", "blk.2.attn_output.weight"),
    ] {
        let of = |model: &Model, name: &str| numbers(model.checkpoint.get(name).unwrap());
        assert_eq!(of(&model, mine), of(&file, theirs), "{mine}");
    }
    std::fs::remove_file(path).unwrap();
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn recipes_leave_no_matrix_as_it_was() {
    for (name, recipe) in [("stablelm", "q4_k_m"), ("smollm3", "q8_0")] {
        let mut model = open(&golden(name));
        model.recipe = Some(recipe.parse().unwrap());
        let out = converted(&model, &format!("recipe-{name}")).unwrap();
        let mut plain = 0;
        for (tensor, stored) in open(&out).checkpoint.tensors() {
            let Kind::Weights(format) = stored.kind else { panic!() };
            plain += usize::from(format.is_plain() && stored.shape.len() > 1 && !tensor.contains("gate_inp"));
        }
        assert_eq!(plain, 0, "{name}");
        std::fs::remove_file(out).unwrap();
    }
}

/// A GGUF file is converted to the same file, or to a smaller one with the same tokenizer and settings.
#[test]
fn files_become_files() {
    let from = golden("gguf-models").join("stablelm-bf16.gguf");
    let mut model = open(&from);
    let same = converted(&model, "same").unwrap();
    let (first, second) = (open(&from), open(&same));
    assert_eq!(first.spec, second.spec);
    for (name, stored) in first.checkpoint.tensors() {
        assert_eq!(numbers(stored), numbers(second.checkpoint.get(name).unwrap()), "{name}");
    }
    model.recipe = Some("q8_0".parse().unwrap());
    let small = converted(&model, "small").unwrap();
    let smaller = open(&small);
    assert_eq!(first.spec, smaller.spec);
    let of = |model: &Model| model.checkpoint.get("blk.0.attn_q.weight").unwrap().kind.clone();
    assert!(matches!(of(&smaller), Kind::Weights(Format::Q8_0)));
    [same, small].iter().for_each(|path| std::fs::remove_file(path).unwrap());
}

/// A trained model with its tokenizer: the file tokenizes text as the folder does.
#[test]
fn words_go_with_the_model() {
    let Some(folder) = shared("stories260K-hf") else { return };
    let model = open(&folder);
    let out = converted(&model, "stories").unwrap();
    let file = open(&out);
    let (mine, theirs) = (model.tokenizer().unwrap(), file.tokenizer().unwrap());
    let text = std::fs::read_to_string(golden("../../README.md")).unwrap();
    let tokens = mine.encode(&text, Special::PROMPT).unwrap();
    assert_eq!(tokens, theirs.encode(&text, Special::PROMPT).unwrap());
    assert_eq!(mine.ends().collect::<Vec<_>>(), theirs.ends().collect::<Vec<_>>());
    std::fs::remove_file(out).unwrap();
}

/// With an imatrix, weights of large inputs get a smaller error; an imatrix of another model is refused.
#[test]
fn importance_is_heeded_or_refused() {
    let mut model = open(&golden("stablelm"));
    model.recipe = Some("q4_0".parse().unwrap());
    let path = out("importance.dat");
    let file = |entries: &[(&str, usize)]| {
        let mut bytes = (entries.len() as i32).to_le_bytes().to_vec();
        for (name, len) in entries {
            let (calls, name_len, len) = (1i32, name.len() as i32, *len as i32);
            bytes.extend(
                [&name_len.to_le_bytes()[..], name.as_bytes(), &calls.to_le_bytes(), &len.to_le_bytes()]
                    .concat(),
            );
            (0..len).for_each(|i| bytes.extend(if i % 8 == 0 { 100f32 } else { 1.0 }.to_le_bytes()));
        }
        std::fs::write(&path, bytes).unwrap();
        Importance::read(&path).unwrap()
    };
    let (weight, out) = ("blk.0.attn_q.weight", out("cared.gguf"));
    let importance = file(&[(weight, 64)]);
    let conversion = Conversion::new(&model, &out).unwrap().with_imatrix(&importance, &path).unwrap();
    conversion
        .write(&mut std::fs::File::create(&out).unwrap(), &mut |_, _| ControlFlow::Continue(()))
        .unwrap();
    let plain = converted(&model, "uncared").unwrap();
    let (cared, uncared, exact) = (open(&out), open(&plain), open(&golden("stablelm")));
    let exact = numbers(exact.checkpoint.get("model.layers.0.self_attn.q_proj.weight").unwrap());
    let error = |model: &Model| -> f32 {
        let squares = numbers(model.checkpoint.get(weight).unwrap())
            .into_iter()
            .zip(&exact)
            .map(|(a, b)| (a - b).powi(2));
        squares.step_by(8).sum()
    };
    assert!(error(&cared) < 0.9 * error(&uncared), "{} {}", error(&cared), error(&uncared));
    for (name, stored) in cared.checkpoint.tensors().filter(|(name, _)| *name != weight) {
        assert_eq!(stored.bytes(), uncared.checkpoint.get(name).unwrap().bytes(), "{name}");
    }
    let refused = |entries: &[(&str, usize)]| {
        let why = Conversion::new(&model, &out)
            .unwrap()
            .with_imatrix(&file(entries), &path)
            .unwrap_err()
            .to_string();
        why.replace(path.to_str().unwrap(), "FILE")
    };
    insta::assert_snapshot!(refused(&[(weight, 63)]), @"FILE: blk.0.attn_q.weight: has 63 numbers; expected 64 for each of 1 matrices");
    insta::assert_snapshot!(refused(&[("blk.9.attn_q.weight", 64)]), @"FILE: its names: none of them is a tensor of this model: the file is of another one");
    [out.clone(), plain, path.clone()].iter().for_each(|path| std::fs::remove_file(path).unwrap());
}

/// DeepSeek with YaRN: the file preserves the attention scale (`mscale`), and what GGUF cannot express is refused.
#[test]
fn attention_is_as_sharp_in_a_file() {
    for (name, one, all, is_written) in [
        ("deepseek-v2", 0.707, 0.707, true),
        ("deepseek-v3", 1.0, 1.0, true),
        ("deepseek-v3", 1.0, 0.8, false),
    ] {
        let mut config = json(&golden(name).join("config.json"));
        config["rope_scaling"] = serde_json::json!({
            "type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32, "beta_fast": 32, "beta_slow": 1,
            "mscale": one, "mscale_all_dim": all,
        });
        let folder =
            std::env::temp_dir().join(format!("tallow-converting-{}-{name}-{all}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::copy(golden(name).join("model.safetensors"), folder.join("model.safetensors")).unwrap();
        std::fs::write(folder.join("config.json"), serde_json::to_vec(&config).unwrap()).unwrap();
        let model = open(&folder);
        let written = converted(&model, &format!("yarn-{name}-{all}"));
        std::fs::remove_dir_all(&folder).unwrap();
        let Some(out) = written.as_ref().ok().filter(|_| is_written) else {
            let why = written.unwrap_err();
            assert!(why.contains("converting the rotary embeddings is not supported"), "{why}");
            continue;
        };
        let file = open(out);
        let sharp = |layer: &tallow_models::spec::LayerSpec| {
            let latent = layer.mixer.mla().unwrap();
            f64::from(latent.scale) * ((latent.qk_nope_dim + latent.qk_rope_dim) as f64).sqrt()
        };
        let want = (0.1 * all * 4f64.ln() + 1.0).powi(2);
        for layer in model.spec.layers.iter().chain(&file.spec.layers) {
            assert!((sharp(layer) / want - 1.0).abs() < 1e-6, "{name}: {}, not {want}", sharp(layer));
        }
        let [mine, read] = [&model, &file].map(|model| model.spec.ropes[0].frequencies(128));
        assert!((mine.1 - 1.0).abs() < 1e-6 && (read.1 - 1.0).abs() < 1e-6, "{name}: {} {}", mine.1, read.1);
        assert!(mine.0.iter().zip(&read.0).all(|(a, b)| (a / b - 1.0).abs() < 1e-5), "{name}");
        let Settings::Gguf(meta) = &file.checkpoint.settings else { panic!() };
        let said =
            meta.entries().find(|(key, _)| *key == "deepseek2.rope.scaling.yarn_log_multiplier").unwrap().1;
        assert!(matches!(said, Value::F64(x) if (x / (0.1 * all) - 1.0).abs() < 1e-6), "{name}: {said}");
        std::fs::remove_file(out).unwrap();
    }
}

/// GGUF files have no type of 4 bits with zero points: the narrowest one that they have takes its place, with the same
/// values. The model is described by the type it has on a device.
#[test]
fn zero_points_are_written_as_q5_0() {
    let model = open(&golden("quant/awq-4bit-g32"));
    let out = converted(&model, "zero-points").unwrap();
    let file = open(&out);
    assert_eq!([&model, &file].map(|model| model.file_type().unwrap()), ["U4_G32", "Q5_0"]);
    for (theirs, ours) in [("mlp.down_proj", "ffn_down"), ("self_attn.o_proj", "attn_output")] {
        let stored = model.checkpoint.get(&format!("model.layers.1.{theirs}.weight")).unwrap();
        let Kind::Grouped(matrix) = &stored.kind else { panic!("{:?}", stored.kind) };
        let mut plain = vec![0; 4 * stored.len()];
        matrix.write_plain(&mut plain);
        let plain: Vec<f32> = plain.as_chunks().0.iter().map(|x| f32::from_le_bytes(*x)).collect();
        let written = file.checkpoint.get(&format!("blk.1.{ours}.weight")).unwrap();
        assert_eq!(written.format(), Some(Format::Q5_0));
        assert!(numbers(written) == plain, "{ours}");
    }
    std::fs::remove_file(out).unwrap();
}

/// Tensors of a folder that are already quantized keep their type next to newly quantized ones, with a note; on request
/// all are requantized.
#[test]
fn what_is_quantized_in_a_folder_stays_so_unless_it_is_asked_for() {
    let mut model = open(&golden("quant/gpt-oss-mxfp4"));
    model.recipe = Some("q8_0".parse().unwrap());
    let formats = |model: &Model, tag: &str| {
        let out = converted(model, tag).unwrap();
        let file = open(&out);
        std::fs::remove_file(out).unwrap();
        let experts = |name: &str| name.contains("_exps.weight");
        let format = |stored: &Stored| stored.format().unwrap().to_string();
        let some = file.checkpoint.tensors().filter(|(name, t)| experts(name) && t.shape.len() > 2);
        let mut formats: Vec<String> = some.map(|(_, stored)| format(stored)).collect();
        formats.dedup();
        (formats.join(" "), file.file_type().unwrap())
    };
    // The first note is that there is no tokenizer.
    let notes = |model: &Model| Conversion::new(model, &out("notes")).unwrap().notes()[1..].join("\n");
    assert_eq!(formats(&model, "kept").0, "MXFP4");
    insta::assert_snapshot!(notes(&model), @"6 of 16 matrices are quantized already and stay MXFP4; `tallow convert --allow-requantize` would quantize again, and lose more");
    model.requantize = true;
    assert_eq!(formats(&model, "again"), ("Q8_0".into(), "Q8_0".into()));
    assert!(!notes(&model).contains("already"), "{}", notes(&model));
}
