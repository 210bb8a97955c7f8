//! Every golden folder with every kind of damage in turn: either it is refused with a message that names the file and
//! the place, or it loads; nothing panics or allocates memory that the file does not account for.
//!
//! `TALLOW_SWEEP=all` runs all cases; without it a sample is taken that differs from folder to folder.

use std::ops::ControlFlow;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

use serde_json::{Map, Value, json};
use tallow_checkpoint::Checkpoint;
use tallow_core::{DType, Memory, Span, StateRows, Step, StepPlan};
use tallow_cpu::{Cpu, Isa};
use tallow_models::blocks::cache::LayerCache;
use tallow_models::decoder::Decoder;
use tallow_models::encoder::{Encoder, EncoderModel, Input};
use tallow_models::seq2seq::Seq2Seq;
use tallow_models::spec::encoder::Pooling;
use tallow_models::{AnyModel, Model};

use crate::{Dir, SPARE, length, memory};

/// Bytes that loading a model and one step may take beyond its file: widened weights, RoPE tables.
const ROOM: usize = 64 << 20;

type Said = Result<(), Box<dyn std::error::Error>>;

/// Loads a model and runs a first step.
fn go(b: &Cpu, path: &Path) -> Said {
    let told = &mut |_, _| ControlFlow::Continue(());
    match AnyModel::new(Checkpoint::open(path)?)? {
        AnyModel::Decoder(model) => decode(b, &model)?,
        AnyModel::Encoder(mut model) => {
            // Load every tensor that a file can have.
            model.extras = true;
            for model in [model.of_texts(), model.of_images()].into_iter().flatten() {
                encode(b, model)?;
            }
        }
        AnyModel::Seq2Seq(model) => drop(Seq2Seq::load(b, &model, told)?),
    }
    Ok(())
}

fn decode(b: &Cpu, model: &Model) -> Said {
    let decoder = Decoder::load(b, model, 16, &mut |_, _| ControlFlow::Continue(()))?;
    let layers = decoder.spec().layers.iter();
    let cache =
        layers.map(|l| LayerCache::new(b, l, DType::F32, [1, 16], 2)).collect::<Result<Vec<_>, _>>()?;
    let spans = vec![Span { rows: 2, start: 0, pages: vec![0].into() }];
    let states = if decoder.spec().is_recurrent() { vec![StateRows { from: 0, to: 1 }] } else { Vec::new() };
    let step = Step { tokens: vec![0; 2], spans, states, outputs: vec![1], page_len: 16, ..Step::default() };
    let plan = StepPlan::new(b, step)?;
    let x = decoder.forward(b, &plan, &cache, |_, _| Ok(()))?;
    b.download::<f32>(&decoder.logits(b, &plan, &x)?)?;
    Ok(())
}

fn encode(b: &Cpu, model: &EncoderModel) -> Said {
    let encoder = Encoder::load(b, model, &mut |_, _| ControlFlow::Continue(()))?;
    if model.spec.patches.is_some() || model.context() < 2 {
        return Ok(());
    }
    let text = encoder.upload(b, &[Input { tokens: vec![0; 2], types: vec![0; 2] }])?;
    let x = encoder.forward(b, &text, |_, _| Ok(()))?;
    encoder.vectors(b, &text, &x, Pooling::Mean)?;
    encoder.scores(b, &text, &x)?;
    Ok(())
}

/// Defect in how a model's files are accepted or refused, if any.
pub(crate) fn fault(b: &Cpu, path: &Path, words: &[&str], refused: bool) -> Option<String> {
    let len = length(path);
    let open = || Checkpoint::open(path).is_ok_and(|checkpoint| AnyModel::new(checkpoint).is_ok());
    let (opened, peak) = memory::peak_of(|| catch_unwind(AssertUnwindSafe(open)));
    let gone = catch_unwind(AssertUnwindSafe(|| memory::peak_of(|| go(b, path))));
    match (opened, gone) {
        (Err(_), _) | (_, Err(_)) => Some("panics".to_owned()),
        _ if peak > len + SPARE => Some(format!("takes {peak} bytes to open")),
        (_, Ok((_, peak))) if peak > 8 * len + ROOM => Some(format!("takes {peak} bytes")),
        (_, Ok((Ok(()), _))) if refused => Some("is taken".to_owned()),
        (_, Ok((Ok(()), _))) => None,
        (_, Ok((Err(e), _))) => complaint(path, &e.to_string(), words),
    }
}

/// Defect of an error message, if any.
pub(crate) fn complaint(path: &Path, message: &str, words: &[&str]) -> Option<String> {
    let says = words.iter().any(|word| message.contains(word));
    let named = message.starts_with(path.to_str().unwrap());
    (!says || !named).then(|| format!("says: {message}"))
}

/// Replacement values for a setting.
pub(crate) fn others() -> [Value; 15] {
    [
        json!(0),
        json!(-1),
        json!(1),
        json!(3),
        json!(1u64 << 31),
        json!(u64::MAX),
        json!(0.3),
        json!(1e300),
        json!("x"),
        json!(true),
        json!(false),
        json!([]),
        json!([[]]),
        json!({}),
        Value::Null,
    ]
}

/// All golden folders with a single weight file.
fn goldens() -> Vec<PathBuf> {
    let root = tallow_support::root().join("tests/goldens");
    let within =
        |group: &str| std::fs::read_dir(root.join(group)).unwrap().map(|entry| entry.unwrap().path());
    let mut all: Vec<PathBuf> = ["", "quant", "encoders", "seq2seq"].into_iter().flat_map(within).collect();
    all.retain(|dir| dir.join("config.json").exists() && dir.join("model.safetensors").exists());
    all.sort();
    assert!(all.len() > 55, "{}", all.len());
    all
}

/// A golden folder's parts, and where damaged copies are written.
struct Patient<'a> {
    b: &'a Cpu,
    dir: &'a Dir,
    name: String,
    config: Value,
    header: Map<String, Value>,
    data: Vec<u8>,
    faults: &'a mut Vec<String>,
    /// Every `each`-th case of damage is run.
    each: usize,
    count: usize,
}

fn file(header: &str, data: &[u8]) -> Vec<u8> {
    [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), data].concat()
}

impl Patient<'_> {
    fn weights(&self, header: &Map<String, Value>) {
        let header = serde_json::to_string(header).unwrap();
        self.dir.write("model.safetensors", &file(&header, &self.data));
    }

    fn whole(&self) {
        self.weights(&self.header);
        self.dir.write("config.json", self.config.to_string().as_bytes());
    }

    fn is_next(&mut self) -> bool {
        self.count += 1;
        self.count.is_multiple_of(self.each)
    }

    /// Loads what was written. An error must contain one of `words`; if `refused`, there must be an error.
    fn examine(&mut self, what: &str, words: &[&str], refused: bool) {
        let fault = fault(self.b, &self.dir.0, words, refused);
        self.faults.extend(fault.map(|fault| format!("{}: {what}: {fault}", self.name)));
    }

    /// Each tensor in turn is missing, renamed, duplicated, of another dtype or of another shape.
    fn tensors(&mut self) {
        let names: Vec<String> = self.header.keys().cloned().collect();
        for name in names {
            let entry = self.header[&name].clone();
            let last = name.rsplit('.').take(3).collect::<Vec<_>>();
            let last = last.into_iter().rev().collect::<Vec<_>>().join(".");
            let layer = [name.as_str(), &last, "config.json"];
            // Some tensors are for training only and are never read.
            let is_read = !name.starts_with("pooler.") && name != "logit_scale" && name != "logit_bias";
            if self.is_next() {
                // Bytes that no tensor owns would be an error, so a tensor of another name takes their place.
                let mut header = self.header.clone();
                header.remove(&name);
                header.insert(format!("{name}.other"), entry.clone());
                self.weights(&header);
                self.examine(&format!("{name} has another name"), &["tensor", "config.json"], is_read);
            }
            if self.is_next() {
                let mut header = self.header.clone();
                header.remove(&name);
                self.weights(&header);
                // Its bytes now belong to no tensor; if it was the last, they look like trailing bytes.
                self.examine(&format!("{name} is gone"), &["bytes", "tensor"], true);
            }
            if self.is_next() {
                let text = serde_json::to_string(&self.header).unwrap();
                let twice = format!("{{{:?}:{},{}", name, entry, &text[1..]);
                self.dir.write("model.safetensors", &file(&twice, &self.data));
                self.examine(&format!("{name} is there twice"), &layer, true);
            }
            let kind = match entry["dtype"].as_str().unwrap() {
                "F32" => "I32",
                "F16" | "BF16" => "I16",
                "I32" => "F32",
                "U8" => "I8",
                "I64" => "F64",
                _ => "U8",
            };
            self.changed((&name, is_read), "dtype", json!(kind), &layer);
            let shape: Vec<u64> = serde_json::from_value(entry["shape"].clone()).unwrap();
            let transposed: Vec<u64> = shape.iter().rev().copied().collect();
            let flat = vec![flat_len(&shape)];
            let (deeper, huge) = ([&[1], &shape[..]].concat(), [&[1 << 40], &shape[..]].concat());
            for other in [transposed, flat, deeper, huge, vec![0], vec![u64::MAX; 3]] {
                // A single element may have any shape, and the weight of a layer with one output may be a vector.
                let is_alike = flat_len(&other) == flat_len(&shape)
                    && (flat_len(&shape) == 1 || name.ends_with("shared_expert_gate.weight"));
                if other != shape && !is_alike {
                    self.changed((&name, is_read), "shape", json!(other), &layer);
                }
            }
            self.changed((&name, true), "data_offsets", json!([0, 1u64 << 60]), &["tensor"]);
        }
        self.whole();
    }

    fn changed(&mut self, (name, is_read): (&str, bool), key: &str, value: Value, words: &[&str]) {
        if self.is_next() {
            let mut header = self.header.clone();
            header[name][key] = value.clone();
            self.weights(&header);
            self.examine(&format!("{name}: {key} = {value}"), words, is_read);
        }
    }

    /// The file is truncated.
    fn cut(&mut self) {
        let whole = file(&serde_json::to_string(&self.header).unwrap(), &self.data);
        let mut seed = whole.len();
        for _ in 0..20 {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let len = (seed >> 20) % whole.len();
            if self.is_next() {
                self.dir.write("model.safetensors", &whole[..len]);
                self.examine(&format!("cut to {len} bytes"), &["model.safetensors"], true);
            }
        }
        self.whole();
    }

    /// Each setting in turn gets another value.
    fn settings(&mut self) {
        let values = others();
        for place in places(&self.config) {
            for value in &values {
                if self.is_next() {
                    let mut config = self.config.clone();
                    *config.pointer_mut(&place).unwrap() = value.clone();
                    self.dir.write("config.json", config.to_string().as_bytes());
                    let last = place.rsplit('/').next().unwrap();
                    let words = ["config.json", "tensor", "architecture", "vectors", last];
                    self.examine(&format!("{place} = {value}"), &words, false);
                }
            }
        }
        self.whole();
    }
}

fn flat_len(shape: &[u64]) -> u64 {
    shape.iter().fold(1, |n, d| n.saturating_mul(*d))
}

/// JSON pointers of all settings.
pub(crate) fn places(json: &Value) -> Vec<String> {
    let entries: Vec<(String, &Value)> = match json {
        Value::Object(map) => {
            map.iter().map(|(key, value)| (key.replace('~', "~0").replace('/', "~1"), value)).collect()
        }
        Value::Array(list) => list.iter().enumerate().map(|(i, value)| (i.to_string(), value)).collect(),
        _ => Vec::new(),
    };
    let within = |(key, value): (String, &Value)| {
        let deeper: Vec<String> = places(value).iter().map(|rest| format!("/{key}{rest}")).collect();
        [vec![format!("/{key}")], deeper].concat()
    };
    entries.into_iter().flat_map(within).collect()
}

fn sweep(name: &str, damage: impl Fn(&mut Patient<'_>), each: usize) {
    let (b, dir) = (Cpu::new(Isa::best(), 1).unwrap(), Dir::new(name));
    let each = if tallow_support::sweeps_all() { 1 } else { each };
    let mut faults = Vec::new();
    // The sample starts at a different case in each folder.
    for (count, folder) in goldens().into_iter().enumerate() {
        let bytes = std::fs::read(folder.join("model.safetensors")).unwrap();
        let at = 8 + u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
        let mut header: Map<String, Value> = serde_json::from_slice(&bytes[8..at]).unwrap();
        header.remove("__metadata__");
        let config = tallow_support::json(&folder.join("config.json"));
        let name = folder.file_name().unwrap().to_string_lossy().into_owned();
        let data = bytes[at..].to_vec();
        let mut patient =
            Patient { b: &b, dir: &dir, name, config, header, data, faults: &mut faults, each, count };
        patient.whole();
        patient.examine("whole", &[], false);
        damage(&mut patient);
    }
    assert!(faults.is_empty(), "{} faults:\n{}", faults.len(), faults.join("\n"));
}

#[test]
fn tensors_of_every_golden() {
    sweep("sweep-tensors", |patient| patient.tensors(), 29);
}

#[test]
fn ends_of_every_golden() {
    sweep("sweep-ends", |patient| patient.cut(), 7);
}

#[test]
fn settings_of_every_golden() {
    sweep("sweep-settings", |patient| patient.settings(), 13);
}
