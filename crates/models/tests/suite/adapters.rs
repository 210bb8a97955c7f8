//! LoRA adapters of the goldens, from both file formats and on models of both formats, against PEFT's logits.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use serde_json::Value;
use tallow_checkpoint::tensor_names::Layout;
use tallow_core::{Adapter, Arithmetic, Backend, DType, LoraRows, Span, StateRows, Step, StepPlan};
use tallow_cpu::{Cpu, Isa};
use tallow_models::Model;
use tallow_models::adapter::AdapterFile;
use tallow_models::blocks::cache::LayerCache;
use tallow_models::decoder::Decoder;
use tallow_support::{DECODERS, Golden, golden, json, needed, tensors};
use tallow_wgpu::{Wgpu, devices};

use crate::devices::cuda;

const PAGE: usize = 16;
/// Tolerance of the GPU, as a multiple of the CPU's.
const GPU: f32 = 4.0;

fn cpu() -> Cpu {
    Cpu::new(Isa::best(), 2).unwrap().with(Arithmetic::Exact)
}

/// The GPU that tests run on, possibly a software implementation.
fn gpu() -> Option<Wgpu> {
    Some(Wgpu::open(needed("Vulkan or Metal device", devices().first())?).unwrap())
}

fn open(path: &Path) -> Model {
    Model::open(path).unwrap_or_else(|e| panic!("{e}"))
}

fn decoder<B: Backend>(b: &B, model: &Model) -> Decoder<B> {
    Decoder::load(b, model, 64, &mut |_, _| ControlFlow::Continue(())).unwrap()
}

type ActiveLora<B> = Option<(Rc<Adapter<B>>, f32)>;

/// Logits of all tokens of some prompts in one step, each with or without an adapter.
fn logits<B: Backend>(b: &B, decoder: &Decoder<B>, prompts: &[(Vec<u32>, ActiveLora<B>)]) -> Vec<Vec<f32>> {
    let most = prompts.iter().map(|(ids, _)| ids.len().div_ceil(PAGE)).max().unwrap();
    let shape = [most * prompts.len(), PAGE];
    let layers = decoder.spec().layers.iter();
    let cache: Vec<_> =
        layers.map(|l| LayerCache::new(b, l, DType::F32, shape, 2 * prompts.len()).unwrap()).collect();
    let mut step = Step { page_len: PAGE, ..Step::default() };
    let mut adapted = Vec::new();
    for (i, (ids, lora)) in prompts.iter().enumerate() {
        let rows = step.tokens.len()..step.tokens.len() + ids.len();
        step.tokens.extend(ids);
        step.outputs.extend(rows.start as u32..rows.end as u32);
        let pages = (i * most..(i + 1) * most).map(|page| page as u32).collect();
        step.spans.push(Span { rows: ids.len(), start: 0, pages });
        if decoder.spec().is_recurrent() {
            step.states.push(StateRows { from: 2 * i as u32, to: 2 * i as u32 + 1 });
        }
        adapted.extend(lora.clone().map(|(adapter, scale)| LoraRows { rows, adapter, scale }));
    }
    let plan = StepPlan::new(b, step).unwrap().adapted(adapted).unwrap();
    let x = decoder.forward(b, &plan, &cache, |_, _| Ok(())).unwrap();
    let all: Vec<f32> = b.download(&decoder.logits(b, &plan, &x).unwrap()).unwrap();
    let mut all = all.chunks_exact(decoder.spec().vocab);
    prompts.iter().map(|(ids, _)| all.by_ref().take(ids.len()).flatten().copied().collect()).collect()
}

/// A golden case: an adapter and the reference's logits with it.
struct Case {
    name: String,
    facts: Value,
    tensors: BTreeMap<String, Golden>,
}

impl Case {
    fn all() -> Vec<Case> {
        let mut names: Vec<String> = std::fs::read_dir(golden("adapters"))
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        assert_eq!(names.len(), 12);
        names.into_iter().map(|name| Case::read(&name)).collect()
    }

    fn read(name: &str) -> Case {
        let dir = golden("adapters").join(name);
        let facts = json(&dir.join("golden.json"));
        Case { name: name.into(), facts, tensors: tensors(&dir.join("golden.safetensors")) }
    }

    fn folder(&self) -> PathBuf {
        golden("adapters").join(&self.name)
    }

    fn base(&self) -> &str {
        self.facts["base"].as_str().unwrap()
    }

    fn tolerance(&self) -> f32 {
        self.facts["suggested_abs_tolerance_f32"].as_f64().unwrap() as f32
    }

    fn moved(&self, mutant: &str) -> f32 {
        self.facts["mutants"][mutant].as_f64().unwrap() as f32
    }

    /// The adapter in every file format there is.
    fn files(&self) -> Vec<PathBuf> {
        let gguf = self.folder().join("adapter.gguf");
        [Some(self.folder()), gguf.exists().then_some(gguf)].into_iter().flatten().collect()
    }

    /// The base model in every file format there is.
    fn models(&self) -> Vec<PathBuf> {
        let gguf = golden("gguf-models").join(format!("{}-bf16.gguf", self.base()));
        [Some(golden(self.base())), gguf.exists().then_some(gguf)].into_iter().flatten().collect()
    }

    fn prompts(&self) -> Vec<Vec<u32>> {
        (0..3).map(|i| self.tensors[&format!("prompt{i}.input_ids")].ids()).collect()
    }

    /// Largest deviation of the logits from the reference's.
    fn distance<B: Backend>(&self, b: &B, decoder: &Decoder<B>, lora: &ActiveLora<B>) -> f32 {
        let far = self.prompts().into_iter().enumerate().map(|(i, ids)| {
            let got = logits(b, decoder, &[(ids, lora.clone())]).remove(0);
            distance(&got, &self.tensors[&format!("prompt{i}.logits")].f32())
        });
        far.fold(0.0, f32::max)
    }
}

fn distance(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    let far = a.iter().zip(b).map(|(a, b)| if (a - b).is_nan() { f32::INFINITY } else { (a - b).abs() });
    far.fold(0.0, f32::max)
}

fn active_lora<B: Backend>(b: &B, decoder: &Decoder<B>, path: &Path, scale: f32) -> ActiveLora<B> {
    let file = AdapterFile::open(path).unwrap_or_else(|e| panic!("{e}"));
    let adapter = decoder.adapter(b, &file).unwrap_or_else(|e| panic!("{e}"));
    assert!(adapter.bytes() <= file.bytes(), "{} {}", adapter.bytes(), file.bytes());
    Some((Rc::new(adapter), scale))
}

#[test]
fn every_case() {
    every_case_on(&cpu(), 1.0);
}

#[test]
fn every_case_on_a_gpu() {
    gpu().iter().for_each(|b| every_case_on(b, GPU));
}

#[test]
fn every_case_on_cuda() {
    every_case_on(&cuda(), GPU);
}

fn every_case_on<B: Backend>(b: &B, slack: f32) {
    let mut seen = 0;
    for case in Case::all() {
        for model in case.models() {
            let decoder = decoder(b, &open(&model));
            for path in case.files() {
                // In GGUF this family's layers are laid out differently.
                if case.name == "qwen3-next" && model.extension().is_some() {
                    let why = decoder.adapter(b, &AdapterFile::open(&path).unwrap()).unwrap_err().to_string();
                    assert!(why.contains("in_proj_ba"), "{why}");
                    continue;
                }
                let far = case.distance(b, &decoder, &active_lora(b, &decoder, &path, 1.0));
                println!("{:<16} {far:.2e} of {:.0e}, {}", case.name, case.tolerance(), path.display());
                assert!(far <= slack * case.tolerance(), "{}, {}: off by {far}", case.name, model.display());
                seen += 1;
            }
        }
    }
    assert_eq!(seen, 36);
}

/// An adapter that is omitted or scaled differently moves the logits as far as it moves the reference's.
#[test]
fn mutants_are_told_apart() {
    let b = cpu();
    for case in Case::all() {
        let decoder = decoder(&b, &open(&golden(case.base())));
        let stronger = active_lora(&b, &decoder, &case.folder(), 1.5);
        for (mutant, lora) in [("without", None), ("half_as_much_again", stronger)] {
            let (far, want) = (case.distance(&b, &decoder, &lora), case.moved(mutant));
            assert!(far > 100.0 * case.tolerance(), "{}, {mutant}: {far}", case.name);
            assert!((far - want).abs() < 0.01 * want, "{}, {mutant}: {far}, the reference {want}", case.name);
        }
    }
}

/// Prompts with several adapters and with none in one step give bitwise the same logits as each alone; so do prompts
/// without an adapter on a model that has none loaded.
#[test]
fn together_is_alone() {
    for arithmetic in [Arithmetic::Exact, Arithmetic::Fast] {
        let b = Cpu::new(Isa::best(), 2).unwrap().with(arithmetic);
        for (base, names) in [("llama", ["llama", "llama-some"]), ("qwen3", ["qwen3", "qwen3-patterns"])] {
            together_is_alone_on(&b, &open(&golden(base)), names);
        }
    }
}

#[test]
fn together_is_alone_on_a_gpu() {
    gpu().iter().for_each(|b| together_is_alone_on(b, &open(&golden("llama")), ["llama", "llama-some"]));
}

#[test]
fn together_is_alone_on_cuda() {
    together_is_alone_on(&cuda(), &open(&golden("llama")), ["llama", "llama-some"]);
}

fn together_is_alone_on<B: Backend>(b: &B, model: &Model, names: [&str; 2]) {
    let decoder = decoder(b, model);
    let adapters = names.map(|name| active_lora(b, &decoder, &golden("adapters").join(name), 1.0));
    let prompts = Case::read(names[0]).prompts();
    let weaker = adapters[0].as_ref().map(|(by, _)| (by.clone(), 0.25));
    let kinds = [None, adapters[0].clone(), adapters[1].clone(), weaker, None, adapters[0].clone()];
    let all: Vec<(Vec<u32>, ActiveLora<B>)> =
        kinds.into_iter().enumerate().map(|(i, lora)| (prompts[i % 3].clone(), lora)).collect();
    let together = logits(b, &decoder, &all);
    for (i, (one, got)) in all.iter().zip(&together).enumerate() {
        let alone = logits(b, &decoder, std::slice::from_ref(one)).remove(0);
        assert!(alone == *got, "prompt {i} of {names:?}");
    }
}

/// An adapter of a single weight of the model changes the output, or is refused with that weight's name.
#[test]
fn each_layer_alone_counts() {
    let (b, copied) = (cpu(), Copied::new("alone"));
    copied.set(&serde_json::json!({ "target_modules": "all-linear", "r": RANK, "lora_alpha": RANK }));
    let more = std::fs::read_dir(golden("more")).unwrap().map(|entry| entry.unwrap().file_name());
    let more = more.map(|name| format!("more/{}", name.to_str().unwrap()));
    let mut refused = BTreeSet::new();
    for name in DECODERS.into_iter().map(str::to_owned).chain(more) {
        let model = open(&golden(&name));
        let decoder = decoder(&b, &model);
        let prompt: Vec<u32> = (1..13).collect();
        let (mut layers, mut prompts) = (Vec::new(), vec![(prompt.clone(), None)]);
        for (tensor, stored) in model.checkpoint.tensors() {
            let (Some(layer), &[rows, cols]) = (tensor.strip_suffix(".weight"), &stored.shape[..]) else {
                continue;
            };
            let transposed = model.family.hf_names.layout == Layout::Columns;
            copied.pair(layer, if transposed { [cols, rows] } else { [rows, cols] });
            match decoder.adapter(&b, &AdapterFile::open(&copied.0).unwrap()) {
                Ok(adapter) => {
                    layers.push(layer);
                    prompts.push((prompt.clone(), Some((Rc::new(adapter), 1.0))));
                }
                Err(e) => {
                    assert!(e.to_string().contains(layer), "{name}, {layer}: {e}");
                    let parts =
                        layer.split('.').map(|part| if part.parse::<u32>().is_ok() { "N" } else { part });
                    refused.insert(parts.collect::<Vec<_>>().join("."));
                }
            }
        }
        let all = logits(&b, &decoder, &prompts);
        let size = all[0].iter().fold(0f32, |most, x| most.max(x.abs()));
        for (layer, with) in layers.iter().zip(&all[1..]) {
            let far = distance(with, &all[0]) / size;
            assert!(far.is_finite() && far > 1e-3, "{name}, {layer}: {far}");
        }
        assert!(layers.len() >= 4 * decoder.spec().layers.len(), "{name} takes only {layers:?}");
    }
    let refused = refused.into_iter().collect::<Vec<_>>().join("\n");
    insta::assert_snapshot!(refused);
}

/// Copy of a golden's adapter in its own folder, removed on drop.
struct Copied(PathBuf);

impl Copied {
    fn new(tag: &str) -> Copied {
        let dir = std::env::temp_dir().join(format!("tallow-adapter-{}-{tag}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let copied = Copied(dir);
        for file in [CONFIG, TENSORS, "adapter.gguf"] {
            std::fs::copy(golden("adapters/llama").join(file), copied.0.join(file)).unwrap();
        }
        copied
    }

    /// Sets some settings, or removes those that are null.
    fn set(&self, more: &Value) {
        let path = self.0.join(CONFIG);
        let mut config = json(&path);
        config.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        std::fs::write(path, config.to_string()).unwrap();
    }

    /// Rewrites the tensors; `change` maps each name and shape to new ones.
    fn tensors(&self, change: impl Fn(&str, Vec<usize>) -> Vec<(String, Vec<usize>, f32)>) {
        let all = tensors(&golden("adapters/llama").join(TENSORS));
        let changed = all.iter().flat_map(|(name, tensor)| change(name, tensor.shape.clone()));
        self.write(changed.map(|(name, shape, x)| (name, vec![x; shape.iter().product()], shape)));
    }

    /// Writes exactly these tensors.
    fn write(&self, tensors: impl IntoIterator<Item = (String, Vec<f32>, Vec<usize>)>) {
        let (mut header, mut data) = (serde_json::Map::new(), Vec::new());
        for (name, numbers, shape) in tensors {
            let start = data.len();
            data.extend(numbers.into_iter().flat_map(f32::to_le_bytes));
            let entry =
                serde_json::json!({ "dtype": "F32", "shape": shape, "data_offsets": [start, data.len()] });
            header.insert(name, entry);
        }
        let header = serde_json::to_vec(&header).unwrap();
        let parts = [&header.len().to_le_bytes()[..], &header, &data];
        std::fs::write(self.0.join(TENSORS), parts.concat()).unwrap();
    }

    /// Writes `lora_a` and `lora_b` of one layer, with elements between -1 and 1.
    fn pair(&self, layer: &str, [outputs, inputs]: [usize; 2]) {
        let mut at = 1u32;
        let mut random = |n: usize| -> Vec<f32> {
            let next = || {
                at = at.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                at as f32 / 2f32.powi(31) - 1.0
            };
            std::iter::repeat_with(next).take(n).collect()
        };
        let halves = [("A", [RANK, inputs]), ("B", [outputs, RANK])].map(|(half, shape)| {
            let name = format!("base_model.model.{layer}.lora_{half}.weight");
            (name, random(shape[0] * shape[1]), shape.to_vec())
        });
        self.write(halves);
    }

    /// Replaces some bytes of the GGUF file by the same number of other bytes.
    fn gguf(&self, from: &str, to: &str) {
        let path = self.0.join("adapter.gguf");
        let mut bytes = std::fs::read(&path).unwrap();
        let at = bytes.windows(from.len()).position(|w| w == from.as_bytes()).unwrap();
        assert_eq!(from.len(), to.len());
        bytes[at..at + to.len()].copy_from_slice(to.as_bytes());
        std::fs::write(path, bytes).unwrap();
    }

    /// The error message for it.
    fn said(&self, path: &Path) -> String {
        let b = cpu();
        let decoder = decoder(&b, &open(&golden("llama")));
        let loaded = AdapterFile::open(path).and_then(|file| decoder.adapter(&b, &file));
        let why = loaded.map(|_| "is taken".to_owned()).unwrap_or_else(|e| e.to_string());
        let model = golden("llama");
        why.replace(self.0.to_str().unwrap(), "ADAPTER").replace(model.to_str().unwrap(), "MODEL")
    }
}

impl Drop for Copied {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

const CONFIG: &str = "adapter_config.json";
const TENSORS: &str = "adapter_model.safetensors";
/// Rank of the pairs that are made here.
const RANK: usize = 4;

#[test]
fn settings_that_are_not_honoured_are_refused() {
    let mut said = String::new();
    for (i, more) in [
        serde_json::json!({}),
        serde_json::json!({ "frobnicate": 1, "lora_dropout": 0.5, "inference_mode": false, "use_dora": false }),
        serde_json::json!({ "peft_type": "IA3" }),
        serde_json::json!({ "peft_type": null }),
        serde_json::json!({ "task_type": "SEQ_CLS" }),
        serde_json::json!({ "bias": "all" }),
        serde_json::json!({ "use_dora": true }),
        serde_json::json!({ "lora_bias": true }),
        serde_json::json!({ "modules_to_save": ["lm_head"] }),
        serde_json::json!({ "trainable_token_indices": [1, 2] }),
        serde_json::json!({ "layer_replication": [[0, 2], [1, 2]] }),
        serde_json::json!({ "target_parameters": ["mlp.experts.gate_up_proj"] }),
        serde_json::json!({ "alora_invocation_tokens": [1] }),
        serde_json::json!({ "init_lora_weights": "pissa_niter_4" }),
        serde_json::json!({ "init_lora_weights": "gaussian" }),
        serde_json::json!({ "r": 8 }),
        serde_json::json!({ "r": "four" }),
        serde_json::json!({ "rank_pattern": { "q_proj": 5 } }),
        serde_json::json!({ "rank_pattern": { "(": 5 } }),
        serde_json::json!({ "rank_pattern": 5 }),
        serde_json::json!({ "lora_alpha": 1e300 }),
        serde_json::json!({ "use_rslora": "yes" }),
        serde_json::json!({ "target_modules": null }),
        serde_json::json!({ "target_modules": ["q_proj", "k_proj"] }),
        serde_json::json!({ "target_modules": ".*q_proj" }),
        serde_json::json!({ "target_modules": "(((" }),
        serde_json::json!({ "target_modules": "all-linear" }),
        serde_json::json!({ "exclude_modules": "model\\.layers\\.1\\..*" }),
        serde_json::json!({ "layers_to_transform": [0] }),
        serde_json::json!({ "layers_to_transform": "all" }),
    ]
    .into_iter()
    .enumerate()
    {
        let copied = Copied::new(&format!("settings-{i}"));
        copied.set(&more);
        said += &format!("{more}:\n    {}\n", copied.said(&copied.0));
    }
    insta::assert_snapshot!(said);
}

#[test]
fn tensors_that_do_not_fit_are_refused() {
    type Change = fn(&str, Vec<usize>) -> Vec<(String, Vec<usize>, f32)>;
    let cases: [(&str, Change); 9] = [
        ("as they are", |name, shape| vec![(name.into(), shape, 0.5)]),
        ("none", |_, _| Vec::new()),
        ("one without its other half", |name, shape| {
            let gone = name == "base_model.model.model.layers.1.self_attn.q_proj.lora_B.weight";
            if gone { Vec::new() } else { vec![(name.into(), shape, 0.5)] }
        }),
        ("more inputs than the layer", |name, mut shape| {
            shape[1] += usize::from(name == "base_model.model.model.layers.1.self_attn.q_proj.lora_A.weight");
            vec![(name.into(), shape, 0.5)]
        }),
        ("more outputs than the layer", |name, mut shape| {
            shape[0] += usize::from(name == "base_model.model.model.layers.1.mlp.up_proj.lora_B.weight");
            vec![(name.into(), shape, 0.5)]
        }),
        ("ranks that differ", |name, mut shape| {
            shape[1] += usize::from(name == "base_model.model.model.layers.1.mlp.up_proj.lora_B.weight");
            vec![(name.into(), shape, 0.5)]
        }),
        ("a vector", |name, shape| {
            let flat = name == "base_model.model.model.layers.0.mlp.up_proj.lora_B.weight";
            vec![(name.into(), if flat { vec![shape[0] * shape[1]] } else { shape }, 0.5)]
        }),
        ("a number that is none", |name, shape| {
            let bad = name == "base_model.model.model.layers.0.mlp.down_proj.lora_A.weight";
            vec![(name.into(), shape, if bad { f32::NAN } else { 0.5 })]
        }),
        ("sizes of DoRA", |name, shape| {
            let more = name.ends_with("layers.0.mlp.down_proj.lora_A.weight");
            let size = more.then(|| (name.replace("lora_A.weight", "lora_magnitude_vector"), vec![4], 0.5));
            [Some((name.into(), shape, 0.5)), size].into_iter().flatten().collect()
        }),
    ];
    let mut said = String::new();
    for (i, (what, change)) in cases.into_iter().enumerate() {
        let copied = Copied::new(&format!("tensors-{i}"));
        copied.tensors(change);
        said += &format!("{what}:\n    {}\n", copied.said(&copied.0));
    }
    let targets = serde_json::json!({ "target_modules": ["lm_head", "embed_tokens", "up_proj", "gate"] });
    for (i, layer) in [
        "lm_head",
        "model.embed_tokens",
        "model.layers.0.mlp.experts.3.up_proj",
        "model.layers.7.mlp.up_proj",
        "vision_tower.layers.0.up_proj",
    ]
    .into_iter()
    .enumerate()
    {
        let copied = Copied::new(&format!("layers-{i}"));
        copied.set(&targets);
        copied.pair(layer, [96, 48]);
        said += &format!("an adapter of {layer}:\n    {}\n", copied.said(&copied.0));
    }
    insta::assert_snapshot!(said);
}

#[test]
fn files_that_are_no_adapters_are_refused() {
    let mut said = String::new();
    let mut note = |what: &str, why: String| said += &format!("{what}:\n    {why}\n");
    let copied = Copied::new("files");
    let gguf = copied.0.join("adapter.gguf");
    note("as it is", copied.said(&gguf));
    for (from, to) in [
        ("adapter.type", "adapter.typo"),
        ("lora_a", "lora_x"),
        ("llama", "qwen3"),
        ("general.type", "general.typo"),
    ] {
        let copied = Copied::new("gguf");
        copied.gguf(from, to);
        note(&format!("{from} is {to}"), copied.said(&copied.0.join("adapter.gguf")));
    }
    note(
        "a model",
        copied
            .said(&golden("gguf-models/llama-bf16.gguf"))
            .replace(golden("gguf-models").to_str().unwrap(), "MODELS"),
    );
    note("a model's folder", copied.said(&golden("llama")));
    note("nothing", copied.said(&copied.0.join("nothing")));
    let cut = std::fs::read(&gguf).unwrap();
    std::fs::write(&gguf, &cut[..cut.len() - 100]).unwrap();
    note("a file cut short", copied.said(&gguf));
    std::fs::write(copied.0.join(CONFIG), "[]").unwrap();
    note("settings that are a list", copied.said(&copied.0));
    std::fs::write(copied.0.join(CONFIG), "{").unwrap();
    note("settings that are no JSON", copied.said(&copied.0));
    std::fs::remove_file(copied.0.join(TENSORS)).unwrap();
    std::fs::copy(golden("adapters/llama").join(CONFIG), copied.0.join(CONFIG)).unwrap();
    note("no tensors", copied.said(&copied.0));
    std::fs::write(copied.0.join("adapter_model.bin"), "").unwrap();
    note("a pickle", copied.said(&copied.0));
    insta::assert_snapshot!(said);
}
