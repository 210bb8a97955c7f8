//! Embedding models that are decoders, against the vectors of sentence-transformers (tools/goldens/embedders.py), and the
//! goldens of decoders read as such.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use tallow_checkpoint::tensor_names::Slot;
use tallow_core::{Arithmetic, Backend};
use tallow_cpu::{Cpu, Isa};
use tallow_models::encoder::{Encoder, EncoderModel, Input, Inputs, Truncation, shortened};
use tallow_models::families::EncoderArch;
use tallow_models::spec::encoder::Pooling;
use tallow_models::{AnyModel, Model};
use tallow_support::{Golden, golden, json, needed, tensors};
use tallow_wgpu::{Wgpu, devices};

use crate::devices::cuda;
use crate::encoders::forward;
use crate::gguf_encoders::{gguf_of, with_file};

/// Tolerance of the GPU, as a multiple of the CPU's.
const GPU: f32 = 4.0;

/// The cases, and their poolings.
const CASES: [(&str, Pooling); 5] = [
    ("qwen3", Pooling::Last),
    ("mistral", Pooling::Last),
    ("llama", Pooling::WeightedMean),
    ("qwen2-bidirectional", Pooling::Mean),
    ("gemma3", Pooling::Mean),
];

fn cpu() -> Cpu {
    Cpu::new(Isa::best(), 2).unwrap().with(Arithmetic::Exact)
}

fn folder(name: &str) -> PathBuf {
    golden("embedders").join(name)
}

fn open(path: &Path) -> EncoderModel {
    EncoderModel::open(path).unwrap_or_else(|e| panic!("{e}"))
}

fn load<B: Backend>(b: &B, model: &EncoderModel) -> Encoder<B> {
    Encoder::load(b, model, &mut |_, _| ControlFlow::Continue(())).unwrap_or_else(|e| panic!("{e}"))
}

/// Hidden states of each layer, and a vector of length 1 for each text.
struct Answer {
    hidden: Vec<Vec<f32>>,
    vectors: Vec<Vec<f32>>,
}

fn run<B: Backend>(b: &B, model: &EncoderModel, inputs: &[Input]) -> Answer {
    let encoder = load(b, model);
    let (texts, x, hidden) = forward(b, &encoder, inputs);
    let vectors = encoder.vectors(b, &texts, &x, model.sentence.pooling).unwrap();
    let vectors: Vec<f32> = b.download(&vectors).unwrap();
    let vectors = vectors.chunks(model.spec.width()).map(|x| shortened(x.to_vec(), None)).collect();
    Answer { hidden, vectors }
}

/// Expected values of sentence-transformers and transformers.
struct Reference {
    facts: Value,
    tokens: Vec<Vec<u32>>,
    hidden: Vec<f32>,
    vectors: Vec<f32>,
}

impl Reference {
    fn read(name: &str) -> Reference {
        let tensors = tensors(&folder(name).join("golden.safetensors"));
        let (ids, mask) = (tensors["input_ids"].ids(), tensors["attention_mask"].ids());
        let (states, columns) = (&tensors["last_hidden_state"], tensors["input_ids"].shape[1]);
        let (width, all) = (states.shape[2], states.f32());
        let (mut tokens, mut hidden) = (Vec::new(), Vec::new());
        for (row, mask) in mask.chunks(columns).enumerate() {
            let count = mask.iter().sum::<u32>() as usize;
            tokens.push(ids[row * columns..][..count].to_vec());
            hidden.extend(&all[row * columns * width..][..count * width]);
        }
        let (facts, vectors) = (json(&folder(name).join("golden.json")), tensors["vectors"].f32());
        Reference { facts, tokens, hidden, vectors }
    }

    fn tolerance(&self) -> f32 {
        self.facts["suggested_abs_tolerance_f32"].as_f64().unwrap() as f32
    }

    /// The texts as the model's tokenizer reads them, which have to be the reference's tokens.
    fn inputs(&self, model: &EncoderModel) -> Vec<Input> {
        let inputs = Inputs::new(model).unwrap();
        let texts = self.facts["texts"].as_array().unwrap().iter().map(|text| text.as_str().unwrap());
        let inputs: Vec<Input> = texts.map(|text| inputs.text(text, Truncation::No).unwrap()).collect();
        let tokens: Vec<&Vec<u32>> = inputs.iter().map(|input| &input.tokens).collect();
        assert_eq!(tokens, self.tokens.iter().collect::<Vec<_>>());
        inputs
    }

    /// Largest deviation of hidden states and vectors.
    fn distance<B: Backend>(&self, b: &B, model: &EncoderModel) -> f32 {
        let got = run(b, model, &self.inputs(model));
        let last = distance(got.hidden.last().unwrap(), &self.hidden);
        last.max(distance(&got.vectors.concat(), &self.vectors))
    }
}

fn distance(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    let far = |(a, b): (&f32, &f32)| if (a - b).is_nan() { f32::INFINITY } else { (a - b).abs() };
    a.iter().zip(b).map(far).fold(0.0, f32::max)
}

/// A copy of a folder, with other files in place of its own; a file that is null is left out.
fn copy(from: &Path, tag: &str, files: &[(&str, Value)]) -> PathBuf {
    let dir = std::env::temp_dir().join(format!("tallow-embedder-{}-{tag}", std::process::id()));
    let _ = std::fs::remove_dir_all(&dir);
    let mut folders = vec![PathBuf::new()];
    while let Some(inner) = folders.pop() {
        std::fs::create_dir_all(dir.join(&inner)).unwrap();
        for entry in std::fs::read_dir(from.join(&inner)).unwrap().map(Result::unwrap) {
            let name = inner.join(entry.file_name());
            match entry.file_type().unwrap().is_dir() {
                true => folders.push(name),
                false => std::fs::write(dir.join(&name), std::fs::read(entry.path()).unwrap()).unwrap(),
            }
        }
    }
    for (name, file) in files {
        let path = dir.join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        let _ = std::fs::remove_file(&path);
        if !file.is_null() {
            std::fs::write(path, file.to_string()).unwrap();
        }
    }
    dir
}

/// Calls `with` on a copy of a folder with other files.
fn with<T>(from: &Path, tag: &str, files: &[(&str, Value)], with: impl FnOnce(&Path) -> T) -> T {
    let dir = copy(from, tag, files);
    let given = with(&dir);
    std::fs::remove_dir_all(dir).unwrap();
    given
}

/// A case's `config.json` with other settings.
fn settings(name: &str, changes: &Value) -> Value {
    let mut config = json(&folder(name).join("config.json"));
    config.as_object_mut().unwrap().extend(changes.as_object().unwrap().clone());
    config
}

#[test]
fn vectors_are_the_references() {
    vectors_on(&cpu(), 1.0);
}

#[test]
fn vectors_are_the_references_on_a_gpu() {
    let gpu = needed("Vulkan or Metal device", devices().first()).map(|device| Wgpu::open(device).unwrap());
    gpu.iter().for_each(|b| vectors_on(b, GPU));
}

#[test]
fn vectors_are_the_references_on_cuda() {
    vectors_on(&cuda(), GPU);
}

fn vectors_on<B: Backend>(b: &B, slack: f32) {
    assert_eq!(std::fs::read_dir(golden("embedders")).unwrap().count(), CASES.len());
    for (name, pooling) in CASES {
        let (model, reference) = (open(&folder(name)), Reference::read(name));
        assert_eq!(model.sentence.pooling, pooling, "{name}");
        let far = reference.distance(b, &model);
        println!("{name:<20} {far:.2e} of {:.0e}", reference.tolerance());
        assert!(far <= slack * reference.tolerance(), "{name}: off by {far}");
    }
}

/// A text's hidden states and vector are the same bits in any batch.
#[test]
fn batched_is_alone() {
    for (name, _) in CASES {
        let (model, b) = (open(&folder(name)), cpu());
        let inputs = Reference::read(name).inputs(&model);
        let (all, mut first) = (run(&b, &model, &inputs), 0);
        for (input, vector) in inputs.iter().zip(&all.vectors) {
            let alone = run(&b, &model, std::slice::from_ref(input));
            let count = input.tokens.len() * model.spec.dim;
            assert_eq!(
                alone.hidden.last().unwrap(),
                &all.hidden.last().unwrap()[first..first + count],
                "{name}"
            );
            assert_eq!(&alone.vectors[0], vector, "{name}");
            first += count;
        }
    }
}

/// One changed setting moves the vectors as far as it moves the reference's, which shows that the tests above can fail.
#[test]
fn changed_settings_are_told_apart() {
    let mut seen = 0;
    for (name, _) in CASES {
        let reference = Reference::read(name);
        for change in reference.facts["changed"].as_array().unwrap() {
            let config = settings(name, &change["change"]);
            let far = with(&folder(name), "changed", &[("config.json", config)], |dir| {
                let model = open(dir);
                distance(&run(&cpu(), &model, &reference.inputs(&model)).vectors.concat(), &reference.vectors)
            });
            let want = change["max_abs_change"].as_f64().unwrap() as f32;
            println!("{name:<20} {} {far:.4}, the reference {want:.4}", change["change"]);
            assert!((far - want).abs() < 0.01 * want, "{name}: moved by {far}, the reference by {want}");
            seen += 1;
        }
    }
    assert_eq!(seen, 7);
}

/// The goldens of decoders, with sentence-transformers' files next to them: hidden states by the reference's, and its
/// logits by their product with the LM head.
#[test]
fn decoders_that_are_pooled() {
    let module = |kind: &str, path: &str| json!({ "type": format!("sentence_transformers.models.{kind}"), "path": path });
    let modules = json!([
        module("Transformer", ""),
        module("Pooling", "1_Pooling"),
        module("Normalize", "2_Normalize")
    ]);
    let pooling = json!({ "pooling_mode_lasttoken": true, "pooling_mode_mean_tokens": false });
    for name in ["qwen3", "qwen2", "mistral-swa", "llama-f32", "gemma3-text", "phi", "gpt2"] {
        let files = [("modules.json", modules.clone()), ("1_Pooling/config.json", pooling.clone())];
        with(&golden(name), "pooled", &files, |dir| {
            let (model, want) = (open(dir), tensors(&dir.join("golden.safetensors")));
            let weights = tensors(&dir.join("model.safetensors"));
            let name_of = |slot| model.family.names().weight(slot, 0).unwrap();
            let head =
                weights.get(&name_of(Slot::Output)).unwrap_or_else(|| &weights[&name_of(Slot::TokenEmbd)]);
            let bias = weights.get(&name_of(Slot::Output).replace(".weight", ".bias")).map(Golden::f32);
            let tokens: Vec<Vec<u32>> = (0..3).map(|i| want[&format!("prompt{i}.input_ids")].ids()).collect();
            let input = |tokens: &Vec<u32>| Input { types: vec![0; tokens.len()], tokens: tokens.clone() };
            let got = run(&cpu(), &model, &tokens.iter().map(input).collect::<Vec<_>>());
            let (dim, last) = (model.spec.dim, got.hidden.last().unwrap());
            let logits = |row: &[f32]| -> Vec<f32> {
                let dot = |head: &[f32]| {
                    row.iter().zip(head).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum::<f64>() as f32
                };
                let all = head.f32().chunks(dim).map(dot).collect::<Vec<_>>();
                all.iter().enumerate().map(|(i, x)| x + bias.as_ref().map_or(0.0, |bias| bias[i])).collect()
            };
            let tolerance =
                json(&dir.join("golden.json"))["suggested_abs_tolerance_f32"].as_f64().unwrap() as f32;
            let (mut first, mut most) = (0, 0.0f32);
            for (i, tokens) in tokens.iter().enumerate() {
                let rows = &last[first * dim..(first + tokens.len()) * dim];
                let got_logits: Vec<f32> = rows.chunks(dim).flat_map(logits).collect();
                most = most.max(distance(&got_logits, &want[&format!("prompt{i}.logits")].f32()));
                for (layer, x) in got.hidden.iter().enumerate() {
                    if let Some(want) = want.get(&format!("prompt{i}.hidden{layer}")) {
                        most = most.max(distance(&x[first * dim..(first + tokens.len()) * dim], &want.f32()));
                    }
                }
                assert_eq!(got.vectors[i], shortened(rows[rows.len() - dim..].to_vec(), None), "{name}");
                first += tokens.len();
            }
            println!("{name:<20} {most:.2e} of {tolerance:.0e}");
            assert!(most <= tolerance, "{name}: off by {most}");
            let why = Model::open(dir).unwrap_err().to_string();
            assert!(why.contains("it is an embedding model, for modules.json has a Pooling module"), "{why}");
            assert!(matches!(AnyModel::new(model.checkpoint), Ok(AnyModel::Encoder(_))));
        });
        assert!(matches!(
            AnyModel::new(tallow_checkpoint::Checkpoint::open(&golden(name)).unwrap()),
            Ok(AnyModel::Decoder(_))
        ));
    }
}

/// GGUF metadata of a case, as llama.cpp's converter writes it.
fn metadata(arch: &str, name: &str, more: Value) -> Value {
    let config = json(&folder(name).join("config.json"));
    let mut meta = json!({ "general.architecture": arch });
    let mut set = |key: &str, value: Value| meta[format!("{arch}.{key}")] = value;
    set("block_count", config["num_hidden_layers"].clone());
    set("context_length", config["max_position_embeddings"].clone());
    set("embedding_length", config["hidden_size"].clone());
    set("feed_forward_length", config["intermediate_size"].clone());
    set("attention.head_count", config["num_attention_heads"].clone());
    set("attention.head_count_kv", config["num_key_value_heads"].clone());
    set("attention.layer_norm_rms_epsilon", json!(1e-6));
    if let Some(dim) = config.get("head_dim") {
        set("attention.key_length", dim.clone());
        set("attention.value_length", dim.clone());
    }
    let tokenizer = json(&folder(name).join("tokenizer.json"));
    let vocab = tokenizer["model"]["vocab"].as_object().unwrap();
    let mut tokens = vec![Value::Null; vocab.len()];
    vocab.iter().for_each(|(token, id)| tokens[id.as_u64().unwrap() as usize] = json!(token));
    let single = tokenizer["post_processor"]["processors"][1]["single"].as_array().unwrap();
    let adds = |token: &str| single.iter().any(|piece| piece["SpecialToken"]["id"] == token);
    let words = json!({
        "tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "qwen2", "tokenizer.ggml.tokens": tokens, "tokenizer.ggml.merges": [],
        "tokenizer.ggml.token_type": (0..tokens.len()).map(|id| if id < 256 { 1 } else { 3 }).collect::<Vec<_>>(),
        "tokenizer.ggml.bos_token_id": 256, "tokenizer.ggml.eos_token_id": 257, "tokenizer.ggml.padding_token_id": 258,
        "tokenizer.ggml.add_bos_token": adds("<bos>"), "tokenizer.ggml.add_eos_token": adds("<eos>"),
    });
    let meta_of = meta.as_object_mut().unwrap();
    meta_of.extend(words.as_object().unwrap().clone());
    meta_of.extend(
        more.as_object().unwrap().iter().map(|(key, value)| (format!("{arch}.{key}"), value.clone())),
    );
    meta
}

/// GGUF tensors of a case, named by its family; Gemma's norms get their 1.
fn gguf_tensors(name: &str) -> Vec<(String, Vec<usize>, Vec<f32>)> {
    let model = open(&folder(name));
    let EncoderArch::Decoder { family, names } = model.family else { panic!("{name}") };
    let one = if name == "gemma3" { 1.0 } else { 0.0 };
    let mut made = Vec::new();
    for (tensor, t) in tensors(&folder(name).join("model.safetensors")) {
        let (stem, end) = tensor.rsplit_once('.').unwrap();
        let (slot, at) = names.find(&format!("{stem}.weight")).next().unwrap_or_else(|| panic!("{tensor}"));
        let offset = if t.shape.len() == 1 && end == "weight" { one } else { 0.0 };
        let renamed = format!("{}.{end}", family.gguf_names.name(slot, at).unwrap());
        made.push((renamed, t.shape.clone(), t.f32().iter().map(|x| x + offset).collect()));
    }
    for dense in ["2", "3"] {
        let file = folder(name).join(format!("{dense}_Dense/model.safetensors"));
        if file.exists() {
            let t = &tensors(&file)["linear.weight"];
            made.push((format!("dense_{dense}.weight"), t.shape.clone(), t.f32()));
        }
    }
    made
}

/// Metadata of cases by name, and a mutant of each.
fn gguf_cases() -> [(&'static str, Value, (&'static str, Value)); 3] {
    let gemma = json!({
        "rope.freq_base": 20000.0, "rope.freq_base_swa": 300.0, "attention.sliding_window": 7,
        "attention.sliding_window_pattern": [1, 1, 0, 1], "pooling_type": 1, "dense_2_feat_in": 32, "dense_2_feat_out": 48,
        "dense_3_feat_in": 48, "dense_3_feat_out": 24,
    });
    let qwen2 = json!({ "rope.freq_base": 10000.0, "attention.causal": false, "pooling_type": 1 });
    [
        (
            "qwen3",
            metadata("qwen3", "qwen3", json!({ "rope.freq_base": 10000.0, "pooling_type": 3 })),
            ("qwen3.pooling_type", json!(1)),
        ),
        (
            "qwen2-bidirectional",
            metadata("qwen2", "qwen2-bidirectional", qwen2),
            ("qwen2.attention.causal", json!(true)),
        ),
        (
            "gemma3",
            metadata("gemma-embedding", "gemma3", gemma),
            ("gemma-embedding.attention.sliding_window", json!(9)),
        ),
    ]
}

/// GGUF files give what folders give, from text to vectors.
#[test]
fn gguf_files_say_what_folders_say() {
    for (name, meta, (key, value)) in gguf_cases() {
        let (reference, all) = (Reference::read(name), gguf_tensors(name));
        let far = with_file(&format!("embedder-{name}"), &gguf_of(&all, &meta), |file| {
            let model = open(file);
            assert_eq!(model.sentence.pooling, open(&folder(name)).sentence.pooling);
            let why = Model::open(file).unwrap_err().to_string();
            assert!(why.contains("it is an embedding model"), "{why}");
            reference.distance(&cpu(), &model)
        });
        println!("{name}: {far:.2e}");
        assert!(far <= reference.tolerance(), "{name}: off by {far}");
        let mut other = meta;
        other[key] = value;
        let far = with_file("embedder-mutant", &gguf_of(&all, &other), |file| {
            reference.distance(&cpu(), &open(file))
        });
        assert!(far > 50.0 * reference.tolerance(), "{name}: moved by {far} only");
    }
}

/// Pooling where the files do not say, and checkpoints that stay decoders.
#[test]
fn pooling_that_files_leave_out() {
    let bare = |name: &str, changes: Value| {
        let files = [("modules.json", Value::Null), ("config.json", settings(name, &changes))];
        with(&folder(name), "bare", &files, |dir| {
            EncoderModel::open(dir).map(|model| model.sentence.pooling).ok()
        })
    };
    assert_eq!(bare("mistral", json!({})), Some(Pooling::Last));
    assert_eq!(bare("gemma3", json!({})), Some(Pooling::Mean));
    assert_eq!(bare("gemma3", json!({ "use_bidirectional_attention": false })), Some(Pooling::Last));
    assert_eq!(bare("qwen2-bidirectional", json!({})), Some(Pooling::Mean));
    assert_eq!(bare("qwen3", json!({ "architectures": ["Qwen3Model"] })), Some(Pooling::Last));
    assert_eq!(bare("qwen3", json!({})), None);
    let [(name, meta, _), _, (gemma, of_gemma, _)] = gguf_cases();
    let without = |name: &str, meta: &Value, key: &str, value: Value| {
        let mut meta = meta.clone();
        match value {
            Value::Null => drop(meta.as_object_mut().unwrap().shift_remove(key)),
            value => meta[key] = value,
        }
        with_file("embedder-without", &gguf_of(&gguf_tensors(name), &meta), |file| {
            EncoderModel::open(file).map(|model| model.sentence.pooling).ok()
        })
    };
    assert_eq!(without(name, &meta, "qwen3.pooling_type", Value::Null), None);
    assert_eq!(without(name, &meta, "qwen3.pooling_type", json!(0)), None);
    assert_eq!(without(name, &meta, "qwen3.pooling_type", json!(2)), Some(Pooling::First));
    assert_eq!(without(gemma, &of_gemma, "gemma-embedding.pooling_type", Value::Null), Some(Pooling::Mean));
}

/// The end token that a tokenizer leaves to `add_eos_token` (e5-mistral).
#[test]
fn end_tokens_by_the_flag() {
    let mut tokenizer = json(&folder("mistral").join("tokenizer.json"));
    tokenizer["post_processor"] = json(&folder("llama").join("tokenizer.json"))["post_processor"].clone();
    let config = |adds: bool| json!({ "eos_token": "<eos>", "bos_token": "<bos>", "add_eos_token": adds });
    let tokens = |adds| {
        let files = [("tokenizer.json", tokenizer.clone()), ("tokenizer_config.json", config(adds))];
        with(&folder("mistral"), "ends", &files, |dir| {
            Inputs::new(&open(dir)).unwrap().text("a", Truncation::No).unwrap().tokens
        })
    };
    assert_eq!((tokens(true), tokens(false)), (vec![256, 64, 257], vec![256, 64]));
}

/// The longest texts where RoPE depends on the length.
#[test]
fn texts_end_where_rope_would_change() {
    let context = |rope: Value| {
        let config = settings("qwen3", &json!({ "rope_scaling": rope }));
        with(&folder("qwen3"), "rope", &[("config.json", config)], |dir| open(dir).context())
    };
    assert_eq!(context(Value::Null), 64);
    assert_eq!(context(json!({ "rope_type": "dynamic", "factor": 4.0 })), 64);
    let long = json!({
        "rope_type": "longrope", "factor": 4.0, "original_max_position_embeddings": 10, "short_factor": vec![1.0; 6],
        "long_factor": vec![2.0; 6],
    });
    assert_eq!(context(long), 10);
    assert_eq!(context(json!({ "rope_type": "linear", "factor": 4.0 })), 64);
}

#[test]
fn refusals() {
    let refused = |name: &str, changes: Value| {
        let files = [("config.json", settings(name, &changes))];
        with(&folder(name), "refused", &files, |dir| {
            let why = |e: tallow_models::LoadError| e.to_string().replace(&dir.display().to_string(), "DIR");
            EncoderModel::open(dir).map_err(why).unwrap_err()
        })
    };
    let experts = json!({ "architectures": ["Qwen3MoeModel"], "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 8 });
    let code = json!({ "auto_map": { "AutoModel": "modeling_qwen.Qwen2Model" } });
    let mut said = vec![
        refused("qwen3", experts),
        refused("mistral", code.clone()),
        refused("mistral", json!({ "is_causal": false })),
        refused("mistral", json!({ "is_causal": 1 })),
        refused("gemma3", json!({ "architectures": ["GemmaModel"] })),
        refused("gemma3", json!({ "architectures": ["GhostModel"] })),
    ];
    // Where the settings say how it attends, code does not matter.
    let config = settings("qwen2-bidirectional", &code);
    assert!(with(&folder("qwen2-bidirectional"), "code", &[("config.json", config)], |dir| {
        EncoderModel::open(dir).is_ok()
    }));
    let text = |name: &str, files: &[(&str, Value)]| {
        with(&folder(name), "text", files, |dir| {
            Model::open(dir).unwrap_err().to_string().replace(&dir.display().to_string(), "DIR")
        })
    };
    let bidirectional = settings("gemma3", &json!({ "architectures": ["Gemma3ForCausalLM"] }));
    said.extend([
        text("qwen3", &[]),
        text("mistral", &[]),
        text(
            "qwen2-bidirectional",
            &[
                (
                    "config.json",
                    settings("qwen2-bidirectional", &json!({ "architectures": ["Qwen2ForCausalLM"] })),
                ),
                ("modules.json", Value::Null),
            ],
        ),
        text("gemma3", &[("config.json", bidirectional), ("modules.json", Value::Null)]),
    ]);
    let [(name, meta, _), ..] = gguf_cases();
    for (kind, tensors) in [
        (4, gguf_tensors(name)),
        (3, [gguf_tensors(name), vec![("dense_2.weight".into(), vec![32], vec![0.0; 32])]].concat()),
    ] {
        let mut meta = meta.clone();
        meta["qwen3.pooling_type"] = json!(kind);
        said.push(with_file("embedder-refused", &gguf_of(&tensors, &meta), |file| {
            EncoderModel::open(file).unwrap_err().to_string().replace(&file.display().to_string(), "FILE")
        }));
    }
    insta::assert_snapshot!(said.join("\n"));
}
