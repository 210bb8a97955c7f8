//! Every decoder of the goldens, from both file formats, against the reference's logits.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use serde_json::Value;
use tallow_convert::Conversion;
use tallow_core::{Backend, DType, Span, StateRows, Step, StepPlan, Tensor};
use tallow_models::Model;
use tallow_models::blocks::cache::LayerCache;
use tallow_models::decoder::Decoder;
use tallow_models::spec::rope::Scaling;
use tallow_quant::Format;
use tallow_support::{DECODERS, Golden, golden, json, tensors, with_tensors};

use crate::devices::{cpu, cuda, gpu};

/// A decoder with a KV cache for one sequence.
struct Runner<'a, B: Backend> {
    b: &'a B,
    decoder: Decoder<B>,
    cache: Vec<LayerCache<B>>,
    len: usize,
    /// Recurrent state rows of the sequence, if the model has any: where it is read, where the next step writes it.
    state: StateRows,
}

const PAGE: usize = 16;
/// Tolerance of the GPU, as a multiple of the CPU's.
pub(crate) const GPU: f32 = 4.0;

impl<'a, B: Backend> Runner<'a, B> {
    fn new(b: &'a B, model: &Model, context: usize) -> Runner<'a, B> {
        let decoder = Decoder::load(b, model, context, &mut |_, _| ControlFlow::Continue(())).unwrap();
        let pages = [context.div_ceil(PAGE), PAGE];
        let layers = decoder.spec().layers.iter();
        let cache = layers.map(|l| LayerCache::new(b, l, DType::F32, pages, 2).unwrap()).collect();
        Runner { b, decoder, cache, len: 0, state: StateRows { from: 0, to: 1 } }
    }

    /// Logits of every token, and the hidden states of each layer.
    fn step(&mut self, tokens: &[u32]) -> (Vec<f32>, Vec<Vec<f32>>) {
        let rows = tokens.len();
        let pages = (0..(self.len + rows).div_ceil(PAGE) as u32).collect();
        let spans = vec![Span { rows, start: self.len, pages }];
        let states = if self.decoder.spec().is_recurrent() { vec![self.state] } else { Vec::new() };
        let outputs = (0..rows as u32).collect();
        let step =
            Step { tokens: tokens.to_vec(), spans, states, outputs, page_len: PAGE, ..Step::default() };
        let plan = StepPlan::new(self.b, step).unwrap();
        self.state = StateRows { from: self.state.to, to: self.state.from };
        let mut hidden = Vec::new();
        let layers = self.cache.len();
        let seen = |i: usize, x: &Tensor<B>| {
            let x = if i == layers { self.decoder.normed(self.b, x)? } else { x.clone() };
            hidden.push(self.b.download(&x)?);
            Ok(())
        };
        let x = self.decoder.forward(self.b, &plan, &self.cache, seen).unwrap();
        let logits = self.decoder.logits(self.b, &plan, &x).unwrap();
        self.len += rows;
        (self.b.download(&logits).unwrap(), hidden)
    }
}

/// A golden case: prompts and the reference's outputs.
pub(crate) struct Case {
    pub(crate) facts: Value,
    pub(crate) tensors: std::collections::BTreeMap<String, Golden>,
}

impl Case {
    pub(crate) fn read(name: &str) -> Case {
        let dir = golden(name);
        Case { facts: json(&dir.join("golden.json")), tensors: tensors(&dir.join("golden.safetensors")) }
    }

    pub(crate) fn prompts(&self) -> Vec<(String, Vec<u32>)> {
        let names = self.tensors.keys().filter_map(|k| k.strip_suffix(".input_ids"));
        names.map(|n| (n.to_owned(), self.tensors[&format!("{n}.input_ids")].ids())).collect()
    }

    pub(crate) fn tolerance(&self) -> f32 {
        self.facts["suggested_abs_tolerance_f32"].as_f64().unwrap() as f32
    }

    /// Largest deviation from the reference over all prompts.
    pub(crate) fn distance<B: Backend>(&self, b: &B, model: &Model) -> f32 {
        let far = self.prompts().into_iter().map(|(name, ids)| {
            let (logits, hidden) = Runner::new(b, model, ids.len()).step(&ids);
            let mut most = distance(&logits, &self.tensors[&format!("{name}.logits")].f32());
            for (i, x) in hidden.iter().enumerate() {
                if let Some(want) = self.tensors.get(&format!("{name}.hidden{i}")) {
                    most = most.max(distance(x, &want.f32()));
                }
            }
            most
        });
        far.fold(0.0, f32::max)
    }

    /// Deviation of the longest prompt's logits: what is recorded for mutants.
    fn logit_distance<B: Backend>(&self, b: &B, model: &Model) -> f32 {
        let (name, ids) = self.prompts().into_iter().max_by_key(|(_, ids)| ids.len()).unwrap();
        let (logits, _) = Runner::new(b, model, ids.len()).step(&ids);
        distance(&logits, &self.tensors[&format!("{name}.logits")].f32())
    }

    /// Greedy decoding, one token at a time.
    fn check_greedy<B: Backend>(&self, b: &B, model: &Model) {
        let greedy = &self.facts["greedy"];
        let prompt = format!("prompt{}", greedy["prompt"]);
        let ids = self.tensors[&format!("{prompt}.input_ids")].ids();
        let want: Vec<u32> =
            greedy["tokens"].as_array().unwrap().iter().map(|t| t.as_u64().unwrap() as u32).collect();
        let mut runner = Runner::new(b, model, ids.len() + want.len());
        let vocab = model.spec.vocab;
        let mut next = ids;
        let mut got = Vec::new();
        for _ in &want {
            let (logits, _) = runner.step(&next);
            let last = &logits[logits.len() - vocab..];
            let best = (0..vocab).max_by(|a, b| last[*a].total_cmp(&last[*b])).unwrap() as u32;
            got.push(best);
            next = vec![best];
        }
        assert_eq!(got, want);
    }
}

pub(crate) fn distance(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    a.iter()
        .zip(b)
        .map(|(a, b)| if (a - b).is_nan() { f32::INFINITY } else { (a - b).abs() })
        .fold(0.0, f32::max)
}

/// A copy of a case's folder with another config.
fn with_config(name: &str, config: &Value, tag: &str) -> PathBuf {
    let name_tag = format!("{}-{tag}", name.replace('/', "-"));
    let dir = std::env::temp_dir().join(format!("tallow-golden-{}-{name_tag}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    for entry in std::fs::read_dir(golden(name)).unwrap() {
        let path = entry.unwrap().path();
        let file = path.file_name().unwrap().to_str().unwrap().to_owned();
        if file.starts_with("model") {
            std::fs::copy(&path, dir.join(file)).unwrap();
        }
    }
    std::fs::write(dir.join("config.json"), serde_json::to_vec(config).unwrap()).unwrap();
    dir
}

/// With another config the case still matches the reference.
fn says_the_same(name: &str, config: &Value, tag: &str) {
    let dir = with_config(name, config, tag);
    let case = Case::read(name);
    let far = case.distance(&cpu(), &open(&dir));
    assert!(far <= case.tolerance(), "{name}, {tag}: off by {far}");
    std::fs::remove_dir_all(dir).unwrap();
}

fn open(path: &Path) -> Model {
    Model::open(path).unwrap_or_else(|e| panic!("{e}"))
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
    for name in DECODERS {
        let (case, model) = (Case::read(name), open(&golden(name)));
        let far = case.distance(b, &model);
        println!("{name:<18} safetensors  {far:.2e} of {:.0e}", case.tolerance());
        assert!(far <= slack * case.tolerance(), "{name}: off by {far}");
        case.check_greedy(b, &model);
    }
}

/// Tensor and setting names of other families are ignored.
#[test]
fn names_of_other_families_are_ignored() {
    for (name, stray) in [
        ("gpt2", &[("num_key_value_heads", 1), ("head_dim", 6)] as &[_]),
        ("gpt-neox", &[("num_key_value_heads", 1), ("head_dim", 6)]),
        ("deepseek-v3", &[("num_experts", 3)]),
        ("glm4-moe", &[("num_experts", 3), ("num_local_experts", 5)]),
        ("mixtral", &[("num_experts", 3), ("n_routed_experts", 5)]),
        ("qwen3-moe", &[("n_routed_experts", 5)]),
    ] {
        let mut config = json(&golden(name).join("config.json"));
        stray.iter().for_each(|(key, value)| config[*key] = (*value).into());
        says_the_same(name, &config, "stray");
    }
}

/// A Mistral config with `layer_types` is a Ministral.
#[test]
fn a_mistral_with_layer_types_is_a_ministral() {
    let name = "more/ministral";
    let mut config = json(&golden(name).join("config.json"));
    config["architectures"] = vec!["MistralForCausalLM"].into();
    says_the_same(name, &config, "mistral");
}

#[test]
fn newer_configs() {
    let mut seen = 0;
    for name in DECODERS {
        let newer = golden(name).join("config.v5.json");
        if newer.exists() {
            says_the_same(name, &json(&newer), "v5");
            seen += 1;
        }
    }
    assert_eq!(seen, 34);
}

#[test]
fn gguf_twins() {
    gguf_twins_on(&cpu(), 1.0);
}

#[test]
fn gguf_twins_on_a_gpu() {
    gpu().iter().for_each(|b| gguf_twins_on(b, GPU));
}

#[test]
fn gguf_twins_on_cuda() {
    gguf_twins_on(&cuda(), GPU);
}

fn gguf_twins_on<B: Backend>(b: &B, slack: f32) {
    let mut seen = 0;
    for name in DECODERS.into_iter().map(str::to_owned).chain(more()) {
        let file = name.trim_start_matches("more/");
        let kinds = ["bf16", "f32"].map(|k| golden("gguf-models").join(format!("{file}-{k}.gguf")));
        for path in kinds.iter().filter(|p| p.exists()) {
            let (case, model) = (Case::read(&name), open(path));
            let far = case.distance(b, &model);
            println!("{name:<18} gguf         {far:.2e} of {:.0e}", case.tolerance());
            assert!(far <= slack * case.tolerance(), "{}: off by {far}", path.display());
            if case.facts["greedy"].is_object() {
                case.check_greedy(b, &model);
            }
            seen += 1;
        }
    }
    assert!(seen >= 34, "{seen}");
}

/// One changed setting moves the logits as far as it moves the reference's, which shows that the tests above can fail.
#[test]
fn mutants_are_told_apart() {
    let mut seen = 0;
    for name in DECODERS.into_iter().map(str::to_owned).chain(more()) {
        let (case, name) = (Case::read(&name), name.as_str());
        for (mutant, facts) in case.facts["mutants"].as_object().into_iter().flatten() {
            let mut config = json(&golden(name).join("config.json"));
            for (key, value) in facts["change"].as_object().unwrap() {
                let at = key.split('.').fold(&mut config, |at, part| &mut at[part]);
                *at = value.clone();
            }
            let dir = with_config(name, &config, mutant);
            let far = case.logit_distance(&cpu(), &open(&dir));
            let want = facts["max_abs_logit_change"].as_f64().unwrap() as f32;
            println!("{name:<18} {mutant:<12} {far:.4}, the reference {want:.4}");
            assert!(far > 5.0 * case.tolerance(), "{name}, {mutant}: moved by {far} only");
            assert!(
                (far - want).abs() < 0.01 * want,
                "{name}, {mutant}: moved by {far}, the reference by {want}"
            );
            std::fs::remove_dir_all(dir).unwrap();
            seen += 1;
        }
    }
    assert!(seen >= 70, "{seen}");
}

/// GPT-2's published files omit the base prefix of tensor names and contain unused causal mask tensors.
#[test]
fn names_may_lack_their_base() {
    let dir = with_config("gpt2", &json(&golden("gpt2").join("config.json")), "bare");
    let file = dir.join("model.safetensors");
    let mut bytes = std::fs::read(&file).unwrap();
    let data = bytes.split_off(8 + u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize);
    let header: Value = serde_json::from_slice(&bytes[8..]).unwrap();
    let bare = |(name, t): (&String, &Value)| (name.replace("transformer.", ""), t.clone());
    let mut header: serde_json::Map<String, Value> = header.as_object().unwrap().iter().map(bare).collect();
    let at = [data.len(), data.len() + 4];
    let mask = serde_json::json!({ "dtype": "F32", "shape": [1, 1, 1, 1], "data_offsets": at });
    header.insert("h.0.attn.bias".into(), mask);
    let header = serde_json::to_vec(&header).unwrap();
    let parts = [&header.len().to_le_bytes()[..], &header, &data, &[0; 4]];
    std::fs::write(&file, parts.concat()).unwrap();
    let case = Case::read("gpt2");
    let far = case.distance(&cpu(), &open(&dir));
    assert!(far <= case.tolerance(), "off by {far}");
    std::fs::remove_dir_all(dir).unwrap();
}

/// Multimodal models nest the text model's settings in an object of their own and give its tensors another prefix.
/// Tensors of the other parts are ignored and never loaded.
#[test]
fn a_text_model_within_another() {
    for name in ["qwen3.5", "qwen3.5-moe"] {
        let text = json(&golden(name).join("config.json"));
        let arch =
            text["architectures"][0].as_str().unwrap().replace("ForCausalLM", "ForConditionalGeneration");
        let sees = serde_json::json!({ "depth": 2, "hidden_size": 8, "num_hidden_layers": 3 });
        let config =
            serde_json::json!({ "architectures": [arch], "text_config": text, "vision_config": sees });
        let dir = with_config(name, &config, "within");
        let file = dir.join("model.safetensors");
        let bytes = std::fs::read(&file).unwrap();
        let (header, data) = bytes.split_at(8 + u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize);
        let header: Value = serde_json::from_slice(&header[8..]).unwrap();
        let named = |(name, t): (&String, &Value)| {
            let name = name.strip_prefix("model.").map(|rest| format!("model.language_model.{rest}"));
            name.map(|name| (name, t.clone()))
        };
        let mut renamed: serde_json::Map<String, Value> =
            header.as_object().unwrap().iter().filter_map(named).collect();
        renamed.insert("lm_head.weight".into(), header["lm_head.weight"].clone());
        let header = serde_json::to_vec(&renamed).unwrap();
        let text_alone = [&header.len().to_le_bytes()[..], &header, data].concat();
        let more = |name| {
            with_tensors(&text_alone, &[("mtp.fc.weight", &[1, 2], &[0.5; 2]), (name, &[3], &[0.5; 3])])
        };
        std::fs::write(&file, more("model.visual.merger.norm.weight")).unwrap();
        let (case, model) = (Case::read(name), open(&dir));
        let far = case.distance(&cpu(), &model);
        assert!(far <= case.tolerance(), "{name}: off by {far}");
        assert_eq!(model.weight_bytes(), open(&golden(name)).weight_bytes());
        std::fs::write(&file, more("model.audio.norm.weight")).unwrap();
        let b = cpu();
        let loaded = Decoder::load(&b, &open(&dir), 16, &mut |_, _| ControlFlow::Continue(()));
        let why = loaded.unwrap_err().to_string();
        assert!(why.contains("model.audio.norm.weight"), "{why}");
        std::fs::remove_dir_all(dir).unwrap();
    }
}

/// The cases of `tests/goldens/more`.
fn more() -> impl Iterator<Item = String> {
    let entries = std::fs::read_dir(golden("more")).unwrap();
    entries.map(|entry| format!("more/{}", entry.unwrap().file_name().to_str().unwrap()))
}

/// Settings that the cases above do not cover: every RoPE scaling, biases, sliding windows, tied embeddings. Made by
/// tools/goldens/make.py.
#[test]
fn more_settings() {
    more_settings_on(&cpu(), 1.0);
}

#[test]
fn more_settings_on_a_gpu() {
    gpu().iter().for_each(|b| more_settings_on(b, GPU));
}

#[test]
fn more_settings_on_cuda() {
    more_settings_on(&cuda(), GPU);
}

fn more_settings_on<B: Backend>(b: &B, slack: f32) {
    let mut seen = 0;
    for name in more() {
        let (case, model) = (Case::read(&name), open(&golden(&name)));
        let far = case.distance(b, &model);
        println!("{name:<26} {far:.2e} of {:.0e}", case.tolerance());
        assert!(far <= slack * case.tolerance(), "{name}: off by {far}");
        seen += 1;
    }
    assert!(seen >= 76, "{seen}");
}

/// MXFP4 codes and exponents of the experts are bytes in two tensors, which must match each other and the settings.
#[test]
fn quantized_experts_that_do_not_fit_are_refused() {
    let name = "quant/gpt-oss-mxfp4";
    let config = json(&golden(name).join("config.json"));
    let refused = |tag: &str, config: &Value, from: &str, to: &str| {
        let dir = with_config(name, config, tag);
        let file = dir.join("model.safetensors");
        let bytes = std::fs::read(&file).unwrap();
        let (header, data) = bytes.split_at(8 + u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize);
        let header = String::from_utf8(header[8..].to_vec()).unwrap();
        assert!(from.len() == to.len() && header.contains(from));
        let header = header.replace(from, to);
        std::fs::write(&file, [&bytes[..8], header.as_bytes(), data].concat()).unwrap();
        let b = cpu();
        let model = open(&dir);
        let loaded = Decoder::load(&b, &model, 16, &mut |_, _| ControlFlow::Continue(()));
        let said = loaded.expect_err(tag).to_string();
        assert_eq!(Conversion::new(&model, &dir.join("out.gguf")).expect_err(tag).to_string(), said);
        std::fs::remove_dir_all(&dir).unwrap();
        said
    };
    let mut narrow = config.clone();
    narrow["intermediate_size"] = 31.into();
    let said = refused("narrow", &narrow, "U8", "U8");
    assert!(said.contains("gate_up_proj_blocks") && said.contains("[4, 62, 2, 16]"), "{said}");
    let said = refused("alone", &config, "down_proj_scales", "down_proj_scalez");
    assert!(said.contains("down_proj_scales") && said.contains("is missing"), "{said}");
    let said = refused("signed", &config, "U8", "I8");
    assert!(said.contains("gate_up_proj_blocks") && said.contains("bytes are expected"), "{said}");
}

/// Quantized folders, and the block format that their grouped layers are repacked to.
const QUANTIZED: [(&str, Option<Format>); 8] = [
    ("awq-4bit-g32", Some(Format::U4G32)),
    ("ct-w4a16-g32", Some(Format::Q4_0)),
    ("fp8-block32", Some(Format::F8)),
    ("fp8-tensor", Some(Format::F8)),
    ("gpt-oss-mxfp4", None),
    ("gptq-4bit-g32-actorder", Some(Format::U4G32)),
    ("gptq-4bit-g32-sym", Some(Format::Q4_0)),
    ("gptq-8bit-g64", Some(Format::Q8_0)),
];

#[test]
fn quantized_folders() {
    quantized_folders_on(&cpu(), 1.0);
}

#[test]
fn quantized_folders_on_a_gpu() {
    gpu().iter().for_each(|b| quantized_folders_on(b, GPU));
}

#[test]
fn quantized_folders_on_cuda() {
    quantized_folders_on(&cuda(), GPU);
}

fn quantized_folders_on<B: Backend>(b: &B, slack: f32) {
    for (name, format) in QUANTIZED {
        let name = format!("quant/{name}");
        let (case, model) = (Case::read(&name), open(&golden(&name)));
        let down = model.checkpoint.get("model.layers.0.mlp.down_proj.weight");
        assert_eq!(down.and_then(|down| down.format()), format, "{name}");
        let far = case.distance(b, &model);
        println!("{name:<30} {far:.2e} of {:.0e}", case.tolerance());
        assert!(far <= slack * case.tolerance(), "{name}: off by {far}");
    }
}

/// Every block format in one file.
#[test]
fn mixed_blocks() {
    mixed_blocks_on(&cpu(), 1.0);
}

#[test]
fn mixed_blocks_on_a_gpu() {
    gpu().iter().for_each(|b| mixed_blocks_on(b, GPU));
}

#[test]
fn mixed_blocks_on_cuda() {
    mixed_blocks_on(&cuda(), GPU);
}

fn mixed_blocks_on<B: Backend>(b: &B, slack: f32) {
    let dir = golden("gguf-mix");
    let facts = json(&dir.join("golden.json"));
    for (name, facts) in facts.as_object().unwrap() {
        let model = open(&dir.join(format!("{name}.gguf")));
        let want = tensors(&dir.join(format!("{name}.golden.safetensors")));
        for (i, ids) in facts["prompts"].as_array().unwrap().iter().enumerate() {
            let ids: Vec<u32> = ids.as_array().unwrap().iter().map(|t| t.as_u64().unwrap() as u32).collect();
            let (logits, _) = Runner::new(b, &model, ids.len()).step(&ids);
            let want = want[&format!("prompt{i}.logits")].f32();
            let size = want.iter().fold(0f32, |m, x| m.max(x.abs()));
            let far = distance(&logits, &want);
            println!("{name} prompt {i}: {far:.2e} of logits up to {size:.2}");
            assert!(far <= slack * 1e-4 * size.max(1.0), "{name}, prompt {i}: off by {far}");
        }
    }
}

/// Folders converted to GGUF still match the reference.
#[test]
fn converted_folders() {
    let mut seen = 0;
    let exact = QUANTIZED.iter().filter(|(_, format)| *format != Some(Format::F8));
    let quantized = exact.map(|(name, _)| format!("quant/{name}"));
    for name in DECODERS.into_iter().map(str::to_owned).chain(more()).chain(quantized) {
        let model = open(&golden(&name));
        let file = format!("tallow-converted-{}-{}.gguf", std::process::id(), name.replace('/', "-"));
        let out = std::env::temp_dir().join(file);
        let Ok(conversion) = Conversion::new(&model, &out) else { continue };
        let mut file = std::fs::File::create(&out).unwrap();
        conversion.write(&mut file, &mut |_, _| ControlFlow::Continue(())).unwrap();
        let (case, model) = (Case::read(&name), open(&out));
        let far = case.distance(&cpu(), &model);
        println!("{name:<26} converted    {far:.2e} of {:.0e}", case.tolerance());
        assert!(far <= case.tolerance(), "{name}: off by {far}");
        if case.facts["greedy"].is_object() {
            case.check_greedy(&cpu(), &model);
        }
        std::fs::remove_file(out).unwrap();
        seen += 1;
    }
    assert!(seen >= 45, "{seen}");
}

/// Dynamic NTK RoPE: prompts shorter than, as long as and longer than the training context match the reference if the
/// RoPE table is built for a context of the prompt's length; and any chunking of a prompt gives bitwise the same
/// logits.
#[test]
fn dynamic_rotations_at_all_lengths() {
    let folder = golden("more/llama-dynamic");
    let (model, cases) = (open(&folder), tensors(&folder.join("lengths.safetensors")));
    assert_eq!((model.spec.trained_context(), model.spec.context), (12, 24));
    let mut plain = open(&folder);
    plain.spec.ropes[0].scaling = Scaling::None;
    let b = cpu();
    for (name, len, is_stretched) in
        [("below", 8, false), ("trained", 12, false), ("beyond", 17, true), ("longest", 24, true)]
    {
        let (ids, want) = (cases[&format!("{name}.input_ids")].ids(), cases[&format!("{name}.logits")].f32());
        assert_eq!(ids.len(), len);
        let far = |model: &Model, context: usize| {
            let got = Runner::new(&b, model, context).step(&ids).0;
            got.iter().zip(&want).map(|(a, b)| (a - b).abs()).fold(0.0f32, f32::max)
        };
        let off = far(&model, len);
        println!("{name}: {len} tokens, off by {off:.1e}");
        assert!(off <= 1e-4, "{name}: off by {off}");
        // A table for a longer context differs: it applies the same frequencies to the whole context.
        assert_eq!(far(&model, 24) <= 1e-4, len == 24, "{name}");
        assert_eq!(far(&plain, len) <= 1e-4, !is_stretched, "{name}: an unscaled rotation");
        let whole = Runner::new(&b, &model, 24).step(&ids).0;
        for cut in [1, 5, len - 1] {
            let mut runner = Runner::new(&b, &model, 24);
            let parts = [runner.step(&ids[..cut]).0, runner.step(&ids[cut..]).0].concat();
            assert_eq!(parts, whole, "{name}, cut at {cut}");
        }
    }
}

/// True if the converted file of a model, with a recipe if one is given, gives bitwise the model's logits.
fn is_same_in_a_file(name: &str, recipe: Option<&str>) -> bool {
    let mut model = open(&golden(name));
    model.recipe = recipe.map(|recipe| recipe.parse().unwrap());
    let out = converted(&model, &format!("same-{}-{}", name.replace('/', "-"), recipe.unwrap_or("bits")));
    let (_, ids) = Case::read(name).prompts().swap_remove(0);
    let answers = [&model, &open(&out)].map(|model| Runner::new(&cpu(), model, ids.len()).step(&ids).0);
    std::fs::remove_file(out).unwrap();
    answers[0] == answers[1]
}

/// A recipe quantizes a folder the same way on conversion as on load.
#[test]
fn recipes_make_the_same_of_files_as_of_weights() {
    for (name, recipe) in [
        ("stablelm", "q4_k_m"),
        ("qwen2-moe", "q8_0"),
        ("gpt2", "q5_k_m"),
        ("gpt-oss", "q4_0"),
        ("qwen3-next", "q8_0"),
    ] {
        assert!(is_same_in_a_file(name, Some(recipe)), "{name}");
    }
}

/// Conversion is lossless for models whose tensors are only rearranged.
#[test]
fn converted_folders_give_the_same_bits() {
    for name in ["gpt-oss", "more/gpt-oss-odd", "quant/gpt-oss-mxfp4", "qwen3-next", "more/qwen3.5-defaults"]
    {
        assert!(is_same_in_a_file(name, None), "{name}");
    }
}

/// GPTQ act-order: inputs that share a scale are not adjacent. Requantizing puts the columns back in their own order.
#[test]
fn act_order_ends_in_a_file() {
    let name = "quant/gptq-4bit-g32-actorder";
    let (case, mut model) = (Case::read(name), open(&golden(name)));
    for (recipe, most) in [("f16", 5e-3), ("q8_0", 0.1)] {
        model.recipe = Some(recipe.parse().unwrap());
        let out = converted(&model, &format!("act-order-{recipe}"));
        let far = case.distance(&cpu(), &open(&out));
        println!("{name} as {recipe}: {far:.2e}");
        assert!(far <= most, "{recipe}: off by {far}");
        std::fs::remove_file(out).unwrap();
    }
}

/// The converted file of a model.
fn converted(model: &Model, tag: &str) -> PathBuf {
    let out = std::env::temp_dir().join(format!("tallow-golden-{}-{tag}.gguf", std::process::id()));
    let mut file = std::fs::File::create(&out).unwrap();
    let conversion = Conversion::new(model, &out).unwrap();
    conversion.write(&mut file, &mut |_, _| ControlFlow::Continue(())).unwrap();
    out
}
