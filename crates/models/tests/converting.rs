//! Folders become GGUF files: what another program made of the same folders is what ours must be.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use tallow_models::Model;
use tallow_models::convert::{Conversion, Importance};
use tallow_models::formats::gguf::Value;
use tallow_models::formats::{Kind, Settings, Stored};
use tallow_models::tokenizer::Special;
use tallow_quant::Format;
use tallow_support::{DECODERS, golden, shared};

fn open(path: &Path) -> Model {
    Model::open(path).unwrap_or_else(|e| panic!("{e}"))
}

fn out(tag: &str) -> PathBuf {
    let name = format!("tallow-converting-{}-{}.gguf", std::process::id(), tag.replace('/', "-"));
    std::env::temp_dir().join(name)
}

/// The file that a model becomes, or why it does not.
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

/// Every case is written or refused, and this says which.
#[test]
fn every_case_is_written_or_refused() {
    let more = std::fs::read_dir(golden("more")).unwrap();
    let more = more.map(|e| format!("more/{}", e.unwrap().file_name().to_str().unwrap()));
    let mut names: Vec<String> = DECODERS.iter().map(|name| (*name).to_owned()).chain(more).collect();
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

/// The same tensors, to the last bit, and no setting that says something else.
#[test]
fn files_are_like_those_of_llama_cpp() {
    let mut seen = 0;
    for name in DECODERS {
        let kinds = ["bf16", "f32"].map(|kind| golden("gguf-models").join(format!("{name}-{kind}.gguf")));
        let Some(path) = kinds.into_iter().find(|path| path.exists()) else { continue };
        let (model, theirs) = (open(&golden(name)), open(&path));
        let Ok(out) = converted(&model, &format!("twin-{name}")) else { continue };
        let ours = open(&out);
        let names = |model: &Model| -> Vec<String> {
            model.checkpoint.tensors().map(|(name, _)| name.to_owned()).collect()
        };
        assert_eq!(names(&ours), names(&theirs), "{name}");
        for (tensor, mine) in ours.checkpoint.tensors() {
            let other = theirs.checkpoint.get(tensor).unwrap();
            assert_eq!(mine.shape, other.shape, "{name}: {tensor}");
            // Divisors of frequencies are computed, and each program rounds on the way as it likes.
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
            // Theirs counts layers that guess, which this folder lacks; ours has none.
            let counts = key == "glm4moe.block_count" || key == "glm4moe.nextn_predict_layers";
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
    assert_eq!(seen, 28);
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

/// A file becomes the same file, or a smaller one of the same words and settings.
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

/// A trained model with its words: the file cuts text as the folder does.
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

/// What multiplies large inputs is kept more exactly, and a file of another model is refused.
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
    let conversion = Conversion::new(&model, &out).unwrap().caring(&importance, &path).unwrap();
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
        let why =
            Conversion::new(&model, &out).unwrap().caring(&file(entries), &path).unwrap_err().to_string();
        why.replace(path.to_str().unwrap(), "FILE")
    };
    insta::assert_snapshot!(refused(&[(weight, 63)]), @"FILE: blk.0.attn_q.weight: has 63 numbers; 64 for each of 1 matrices are due");
    insta::assert_snapshot!(refused(&[("blk.9.attn_q.weight", 64)]), @"FILE: its names: none of them is a tensor of this model: the file is of another one");
    [out.clone(), plain, path.clone()].iter().for_each(|path| std::fs::remove_file(path).unwrap());
}
