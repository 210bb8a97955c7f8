//! Every encoder of the goldens against the reference's hidden states, and the real MiniLM.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use tallow_core::{Arithmetic, Backend, Memory, Tensor};
use tallow_cpu::{Cpu, Isa};
use tallow_models::encoder::{Encoder, EncoderModel, Input, Inputs, Texts, Truncation};
use tallow_models::spec::encoder::Pooling;
use tallow_support::{ENCODERS, Golden, golden, json, minilm, needed, tensors, with_tensors};
use tallow_wgpu::{Wgpu, devices};

use crate::devices::cuda;

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

/// Opens a model with all of its heads.
fn open(path: &Path) -> EncoderModel {
    let model = EncoderModel::open(path).unwrap_or_else(|e| panic!("{e}"));
    EncoderModel { extras: true, ..model }
}

/// An encoder's outputs for some texts.
struct Answer {
    /// Embedding output and each layer's output: [tokens, dim]
    hidden: Vec<Vec<f32>>,
    /// [texts, dim] each, by kind of pooling
    mean: Vec<f32>,
    first: Vec<f32>,
    last: Vec<f32>,
    /// [texts, labels], if there is a classification head
    scores: Option<Vec<f32>>,
    /// [tokens, vocabulary], if there is a masked-LM head
    words: Option<Vec<f32>>,
    /// [texts, dim], if there is a pooler layer
    pooler: Option<Vec<f32>>,
}

/// A batch, its hidden states, and those of each layer.
pub(crate) fn forward<B: Backend>(
    b: &B,
    encoder: &Encoder<B>,
    inputs: &[Input],
) -> (Texts<B>, Tensor<B>, Vec<Vec<f32>>) {
    let texts = encoder.upload(b, inputs).unwrap();
    let mut hidden = Vec::new();
    let see = |_: usize, x: &Tensor<B>| {
        hidden.push(b.download(x)?);
        Ok(())
    };
    let x = encoder.forward(b, &texts, see).unwrap();
    (texts, x, hidden)
}

fn run<B: Backend>(b: &B, encoder: &Encoder<B>, inputs: &[Input]) -> Answer {
    let (texts, x, hidden) = forward(b, encoder, inputs);
    let pool = |by| b.download(&encoder.pool(b, &texts, &x, by).unwrap()).unwrap();
    let (mean, first, last) = (pool(Pooling::Mean), pool(Pooling::First), pool(Pooling::Last));
    let scores = encoder.scores(b, &texts, &x).unwrap().map(|scores| b.download(&scores).unwrap());
    let words = encoder.mlm_logits(b, &x).unwrap().map(|words| b.download(&words).unwrap());
    let pooler = encoder.pooler_output(b, &texts, &x).unwrap().map(|pooler| b.download(&pooler).unwrap());
    Answer { hidden, mean, first, last, scores, words, pooler }
}

/// A golden case: two texts, the second padded; padding must not affect the result.
struct Case {
    facts: Value,
    tensors: std::collections::BTreeMap<String, Golden>,
    inputs: Vec<Input>,
    dim: usize,
}

impl Case {
    fn read(name: &str) -> Case {
        let dir = golden(name);
        let tensors = tensors(&dir.join("golden.safetensors"));
        let shape = &tensors["last_hidden_state"].shape;
        let (columns, dim) = (shape[1], shape[2]);
        let (ids, mask) = (tensors["input_ids"].ids(), tensors["attention_mask"].ids());
        let types = tensors.get("token_type_ids").map_or(vec![0; ids.len()], Golden::ids);
        let input = |row: usize| {
            let all = row * columns..(row + 1) * columns;
            let count = mask[all.clone()].iter().sum::<u32>() as usize;
            let some = all.start..all.start + count;
            Input { tokens: ids[some.clone()].to_vec(), types: types[some].to_vec() }
        };
        let inputs = (0..shape[0]).map(input).collect();
        Case { facts: json(&dir.join("golden.json")), tensors, inputs, dim }
    }

    fn tolerance(&self) -> f32 {
        self.facts["suggested_abs_tolerance_f32"].as_f64().unwrap() as f32
    }

    /// The rows of a golden that are not padding.
    fn rows(&self, name: &str) -> Vec<f32> {
        let (all, columns) = (self.tensors[name].f32(), self.tensors[name].shape[1]);
        let width = self.tensors[name].shape[2];
        let row =
            |(i, input): (usize, &Input)| all[i * columns * width..][..input.tokens.len() * width].to_vec();
        self.inputs.iter().enumerate().flat_map(row).collect()
    }

    /// Largest deviation from the reference over all tensors of the golden.
    fn distance<B: Backend>(&self, b: &B, model: &EncoderModel) -> f32 {
        let got = run(b, &load(b, model), &self.inputs);
        let last = got.hidden.last().unwrap();
        let mut most = distance(last, &self.rows("last_hidden_state"));
        for (i, x) in got.hidden.iter().enumerate() {
            let name = format!("hidden{i}");
            if self.tensors.contains_key(&name) {
                most = most.max(distance(x, &self.rows(&name)));
            }
        }
        let unit = |x: &[f32]| x.chunks(self.dim).flat_map(unit).collect::<Vec<_>>();
        for (pooled, name) in [(&got.mean, "mean_pooled_l2"), (&got.first, "cls_pooled_l2")] {
            if let Some(want) = self.tensors.get(name) {
                most = most.max(distance(&unit(pooled), &want.f32()));
            }
        }
        most = most.max(self.of_heads(&got));
        let mut end = 0;
        for (input, row) in self.inputs.iter().zip(got.last.chunks(self.dim)) {
            end += input.tokens.len() * self.dim;
            most = most.max(distance(row, &last[end - self.dim..end]));
        }
        most
    }

    /// Largest deviation of the heads' outputs from the reference.
    fn of_heads(&self, got: &Answer) -> f32 {
        let of_scores = self.tensors.get("logits").map(|want| match want.shape.len() {
            3 => distance(got.words.as_ref().expect("a head"), &self.rows("logits")),
            _ => distance(got.scores.as_ref().expect("a head"), &want.f32()),
        });
        let pooler = self.tensors.get("pooler_output");
        let of_pooler = pooler.map(|want| distance(got.pooler.as_ref().expect("a pooler"), &want.f32()));
        of_scores.unwrap_or(0.0).max(of_pooler.unwrap_or(0.0))
    }

    /// Deviation of the first text's last hidden states: what is recorded for mutants.
    fn last_distance<B: Backend>(&self, b: &B, model: &EncoderModel) -> f32 {
        let got = run(b, &load(b, model), &self.inputs[..1]);
        let got = got.hidden.last().unwrap();
        distance(got, &self.rows("last_hidden_state")[..got.len()])
    }
}

fn distance(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    let far = |(a, b): (&f32, &f32)| if (a - b).is_nan() { f32::INFINITY } else { (a - b).abs() };
    a.iter().zip(b).map(far).fold(0.0, f32::max)
}

/// `x` scaled to unit length.
fn unit(x: &[f32]) -> Vec<f32> {
    let length = x.iter().map(|x| f64::from(*x) * f64::from(*x)).sum::<f64>().sqrt();
    x.iter().map(|x| (f64::from(*x) / length) as f32).collect()
}

/// A folder with a case's weights, another config, and optionally more tensors.
fn folder(name: &str, config: &Value, more: &[(&str, &[usize], &[f32])], tag: &str) -> PathBuf {
    let dir = std::env::temp_dir().join(format!(
        "tallow-encoder-{}-{}-{tag}",
        std::process::id(),
        name.replace('/', "-")
    ));
    std::fs::create_dir_all(&dir).unwrap();
    let file = with_tensors(&std::fs::read(golden(name).join("model.safetensors")).unwrap(), more);
    std::fs::write(dir.join("model.safetensors"), file).unwrap();
    std::fs::write(dir.join("config.json"), serde_json::to_vec(config).unwrap()).unwrap();
    dir
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
    for name in ENCODERS {
        let (case, model) = (Case::read(name), open(&golden(name)));
        let far = case.distance(b, &model);
        println!("{name:<12} {far:.2e} of {:.0e}", case.tolerance());
        assert!(far <= slack * case.tolerance(), "{name}: off by {far}");
    }
}

#[test]
fn on_every_instruction_set() {
    let names = ENCODERS.into_iter().chain(["encoders/modernbert-biases", "encoders/nomic-bert"]);
    for (name, isa) in names.flat_map(|name| Isa::ALL.map(|isa| (name, isa))) {
        if isa.is_available() {
            let (case, b) = (Case::read(name), Cpu::new(isa, 1).unwrap().with(Arithmetic::Exact));
            let far = case.distance(&b, &open(&golden(name)));
            assert!(far <= case.tolerance(), "{name} by {isa}: off by {far}");
        }
    }
}

#[test]
fn newer_configs() {
    for name in ENCODERS.into_iter().chain(["encoders/nomic-bert"]) {
        let case = Case::read(name);
        let dir = folder(name, &json(&golden(name).join("config.v5.json")), &[], "v5");
        let far = case.distance(&cpu(), &open(&dir));
        assert!(far <= case.tolerance(), "{name}: off by {far}");
        std::fs::remove_dir_all(dir).unwrap();
    }
}

/// One changed setting moves the hidden states as far as it moves the reference's, which shows that the tests above can
/// fail.
#[test]
fn mutants_are_told_apart() {
    let mut seen = 0;
    for name in ENCODERS {
        let case = Case::read(name);
        for (mutant, facts) in case.facts["mutants"].as_object().unwrap() {
            let mut config = json(&golden(name).join("config.json"));
            for (key, value) in facts["change"].as_object().unwrap() {
                config[key] = value.clone();
            }
            let dir = folder(name, &config, &[], mutant);
            let far = case.last_distance(&cpu(), &open(&dir));
            let want = facts["max_abs_logit_change"].as_f64().unwrap() as f32;
            println!("{name:<12} {mutant:<14} {far:.4}, the reference {want:.4}");
            assert!(far > 5.0 * case.tolerance(), "{name}, {mutant}: moved by {far} only");
            assert!(
                (far - want).abs() < 0.01 * want,
                "{name}, {mutant}: moved by {far}, the reference by {want}"
            );
            std::fs::remove_dir_all(dir).unwrap();
            seen += 1;
        }
    }
    assert_eq!(seen, 6);
}

/// A text's hidden states are bitwise identical in any batch and on any number of threads.
#[test]
fn batched_is_alone() {
    for name in ENCODERS {
        let (case, model) = (Case::read(name), open(&golden(name)));
        alone_on(&cpu(), &model, &case);
    }
}

#[test]
fn batched_is_alone_on_a_gpu() {
    for (b, name) in gpu().iter().flat_map(|b| ENCODERS.map(|name| (b, name))) {
        alone_on(b, &open(&golden(name)), &Case::read(name));
    }
}

#[test]
fn batched_is_alone_on_cuda() {
    let b = cuda();
    ENCODERS.iter().for_each(|name| alone_on(&b, &open(&golden(name)), &Case::read(name)));
}

fn alone_on<B: Backend>(b: &B, model: &EncoderModel, case: &Case) {
    let encoder = load(b, model);
    let count =
        |n: usize| Input { tokens: (0..n as u32).map(|i| 3 + i * 7 % 60).collect(), types: vec![0; n] };
    let inputs = [case.inputs.clone(), vec![count(37), count(1), count(20)]].concat();
    let all = run(b, &encoder, &inputs);
    let mut first = 0;
    for (i, input) in inputs.iter().enumerate() {
        let alone = run(b, &encoder, std::slice::from_ref(input));
        let n = input.tokens.len() * case.dim;
        assert_eq!(alone.hidden.last().unwrap(), &all.hidden.last().unwrap()[first..first + n]);
        for (alone, all) in [(&alone.mean, &all.mean), (&alone.first, &all.first), (&alone.last, &all.last)] {
            assert_eq!(alone, &all[i * case.dim..(i + 1) * case.dim]);
        }
        first += n;
    }
}

/// Classification heads, settings that the cases above do not cover, and Nomic BERT. Made by tools/goldens/encoders.py.
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
    for entry in std::fs::read_dir(golden("encoders")).unwrap() {
        let name = format!("encoders/{}", entry.unwrap().file_name().to_str().unwrap());
        let (case, model) = (Case::read(&name), open(&golden(&name)));
        let far = case.distance(b, &model);
        println!("{name:<28} {far:.2e} of {:.0e}", case.tolerance());
        assert!(far <= slack * case.tolerance(), "{name}: off by {far}");
        assert_eq!(model.ranks().is_ok(), name.contains("rank") || name.contains("biases"));
        let classifies = case.tensors.get("logits").is_some_and(|logits| logits.shape.len() == 2);
        assert_eq!((model.embeds().is_ok(), model.classifies().is_ok()), (!classifies, classifies));
        alone_on(b, &model, &case);
        seen += 1;
    }
    assert_eq!(seen, 18);
}

/// A changed setting moves the heads' outputs as far as it moves the reference's.
#[test]
fn changed_settings_of_heads_are_told_apart() {
    let mut seen = 0;
    for entry in std::fs::read_dir(golden("encoders")).unwrap() {
        let name = format!("encoders/{}", entry.unwrap().file_name().to_str().unwrap());
        let case = Case::read(&name);
        let Some(facts) = case.facts.get("changed") else { continue };
        let mut config = json(&golden(&name).join("config.json"));
        for (key, value) in facts["change"].as_object().unwrap() {
            config[key] = value.clone();
        }
        let dir = folder(&name, &config, &[], "changed");
        let b = cpu();
        let far = case.of_heads(&run(&b, &load(&b, &open(&dir)), &case.inputs));
        std::fs::remove_dir_all(dir).unwrap();
        let want = facts["max_abs_change"].as_f64().unwrap() as f32;
        println!("{name:<28} {far:.4}, the reference {want:.4}");
        assert!((far - want).abs() < 0.01 * want, "{name}: moved by {far}, the reference by {want}");
        seen += 1;
    }
    assert_eq!(seen, 5);
}

/// Heads that only `dump` uses are not loaded otherwise.
#[test]
fn extra_heads_are_loaded_when_they_are_asked_for() {
    for name in ["encoders/bert-mask", "encoders/bert-odd-heads"] {
        let (case, model) = (Case::read(name), EncoderModel::open(&golden(name)).unwrap());
        let b = cpu();
        let got = run(&b, &load(&b, &model), &case.inputs);
        assert!(got.words.is_none() && got.pooler.is_none(), "{name}");
    }
}

/// Labels and the activation for probabilities, as transformers reads them from a config.
#[test]
fn classes_are_read_from_the_config() {
    let name = "encoders/bert-sort";
    let read = |changes: &[(&str, Value)]| {
        let mut config = json(&golden(name).join("config.json"));
        changes.iter().for_each(|(key, value)| config[*key] = value.clone());
        let dir = folder(name, &config, &[], "classes");
        let classes =
            open(&dir).classifies().map_err(|e| e.to_string().replace(&dir.display().to_string(), "DIR"));
        std::fs::remove_dir_all(dir).unwrap();
        classes
    };
    let logits = [2.0, 1.0, 0.1];
    let near = |got: Vec<f32>, want: [f32; 3]| {
        assert!(got.iter().zip(want).all(|(a, b)| (a - b).abs() < 1e-4), "{got:?}, not {want:?}");
    };
    let classes = read(&[]).unwrap();
    assert_eq!(classes.labels(), ["LABEL_0", "LABEL_1", "LABEL_2"]);
    near(classes.probabilities(&logits), [0.6590, 0.2424, 0.0986]);
    let named = json!({ "0": "joy", "2": "anger", "7": "none" });
    let classes =
        read(&[("id2label", named), ("problem_type", json!("multi_label_classification"))]).unwrap();
    assert_eq!(classes.labels(), ["joy", "LABEL_1", "anger"]);
    near(classes.probabilities(&logits), [0.8808, 0.7311, 0.5250]);
    near(read(&[("problem_type", json!("regression"))]).unwrap().probabilities(&logits), logits);
    insta::assert_snapshot!(read(&[("problem_type", json!("guessing"))]).unwrap_err(), @"DIR/config.json: problem_type = guessing is not supported: regression, single_label_classification and multi_label_classification are");
    insta::assert_snapshot!(open(&golden("bert")).classifies().unwrap_err().to_string().replace(golden("bert").to_str().unwrap(), "DIR"), @"DIR: classifying by a model without a classification head is not supported: it computes embeddings, for `tallow embed`; take a model whose architecture ends in ForSequenceClassification");
}

/// The real MiniLM, from text to vectors.
#[test]
fn minilm_says_what_the_reference_says() {
    let Some(path) = minilm() else { return };
    let facts = json(&golden("minilm/golden.json"));
    let want = tensors(&golden("minilm/golden.safetensors"));
    let model = open(&path);
    assert_eq!((model.context(), model.sentence.pooling), (256, Pooling::Mean));
    let inputs = Inputs::new(&model).unwrap();
    let sentences = facts["sentences"].as_array().unwrap().iter().map(|s| s.as_str().unwrap());
    let sentences: Vec<Input> = sentences.map(|s| inputs.text(s, Truncation::End).unwrap()).collect();
    for (input, ids) in sentences.iter().zip(facts["token_ids"].as_array().unwrap()) {
        let ids: Vec<u32> = ids.as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect();
        assert_eq!(input.tokens, ids);
    }
    let (first, vectors) = (want["last_hidden_first_sentence"].f32(), want["embeddings"].f32());
    for how in [Arithmetic::Exact, Arithmetic::Fast] {
        let b = cpu().with(how);
        let got = run(&b, &load(&b, &model), &sentences);
        let far = distance(&got.hidden.last().unwrap()[..first.len()], &first);
        println!("MiniLM, {how:?}: hidden states off by {far:.2e}");
        assert!(how == Arithmetic::Fast || far < 1e-4, "off by {far}");
        for (i, (got, want)) in got.mean.chunks(384).zip(vectors.chunks(384)).enumerate() {
            let cosine: f32 = unit(got).iter().zip(want).map(|(a, b)| a * b).sum();
            println!("MiniLM, {how:?}: sentence {i}: cosine {cosine:.7}");
            assert!(cosine >= 0.9999, "{how:?}: sentence {i}: cosine {cosine}");
        }
    }
}

/// Models that are not encoders, or are unknown, are refused with a helpful message.
#[test]
fn refusals() {
    let said =
        |e: tallow_models::LoadError, dir: &Path| e.to_string().replace(&dir.display().to_string(), "DIR");
    let dir = golden("bert");
    insta::assert_snapshot!(said(tallow_models::Model::open(&dir).unwrap_err(), &dir), @r#"DIR: text generation with the architecture "BertModel" is not supported: it is an encoder: use `tallow embed`, `tallow rerank` or `tallow classify`, or serve it"#);
    let dir = golden("llama");
    insta::assert_snapshot!(said(EncoderModel::open(&dir).unwrap_err(), &dir), @r#"DIR: embedding with the architecture "LlamaForCausalLM" is not supported: it generates text: use `tallow run` or `tallow serve`"#);
    let refused = |name: &str, key: &str, value: Value| {
        let mut config = json(&golden(name).join("config.json"));
        config[key] = value;
        let dir = folder(name, &config, &[], "refused");
        let why = EncoderModel::open(&dir)
            .and_then(|m| Encoder::load(&cpu(), &m, &mut |_, _| ControlFlow::Continue(())))
            .unwrap_err();
        let why = said(why, &dir);
        std::fs::remove_dir_all(dir).unwrap();
        why
    };
    insta::assert_snapshot!(refused("bert", "position_embedding_type", json!("relative_key")), @"DIR/config.json: position_embedding_type = relative_key is not supported: absolute is");
    insta::assert_snapshot!(refused("bert", "is_decoder", json!(true)), @"DIR/config.json: is_decoder = true is not supported: false is");
    insta::assert_snapshot!(refused("bert", "architectures", json!(["BertForSequenceClassification"])), @r#"DIR: tensor "classifier.weight": is missing"#);
    insta::assert_snapshot!(refused("bert", "num_hidden_layers", json!(1)), @r#"DIR: tensor "encoder.layer.1.attention.output.LayerNorm.bias" (and 15 more) is not supported: a BERT model has no such tensor, so this is something else"#);
    insta::assert_snapshot!(refused("roberta", "pad_token_id", json!(39)), @"DIR/config.json: pad_token_id: is 39, and there are 40 positions");
    insta::assert_snapshot!(refused("modernbert", "global_attn_every_n_layers", json!(0)), @"DIR/config.json: global_attn_every_n_layers: is 0");
}

/// Files next to a model set the pooling (sentence-transformers modules); unsupported settings are refused.
#[test]
fn sentence_settings() {
    let module = |kind: &str, path: &str| json!({ "type": format!("sentence_transformers.models.{kind}"), "path": path });
    let with = |modules: Value, pooling: Value, transformer: Value| {
        let dir = folder("bert", &json(&golden("bert").join("config.json")), &[], "sentence");
        std::fs::create_dir_all(dir.join("1_Pooling")).unwrap();
        std::fs::write(dir.join("modules.json"), modules.to_string()).unwrap();
        std::fs::write(dir.join("1_Pooling/config.json"), pooling.to_string()).unwrap();
        std::fs::write(dir.join("sentence_bert_config.json"), transformer.to_string()).unwrap();
        let read = EncoderModel::open(&dir).map(|m| (m.sentence.pooling, m.context()));
        let read = read.map_err(|e| e.to_string().replace(&dir.display().to_string(), "DIR"));
        std::fs::remove_dir_all(dir).unwrap();
        read
    };
    let usual = || {
        json!([module("Transformer", ""), module("Pooling", "1_Pooling"), module("Normalize", "2_Normalize")])
    };
    let by = |switch: &str| json!({ switch: true });
    let plain = || json!({});
    assert_eq!(with(usual(), by("pooling_mode_mean_tokens"), plain()), Ok((Pooling::Mean, 40)));
    assert_eq!(with(usual(), by("pooling_mode_cls_token"), plain()), Ok((Pooling::First, 40)));
    assert_eq!(
        with(usual(), by("pooling_mode_lasttoken"), json!({ "max_seq_length": 16 })),
        Ok((Pooling::Last, 16))
    );
    assert_eq!(
        with(usual(), json!({ "pooling_mode": "cls" }), json!({ "max_seq_length": 99 })),
        Ok((Pooling::First, 40))
    );
    let refused = |modules, pooling, transformer| with(modules, pooling, transformer).unwrap_err();
    assert_eq!(with(usual(), by("pooling_mode_max_tokens"), plain()), Ok((Pooling::Max, 40)));
    insta::assert_snapshot!(refused(usual(), json!({ "pooling_mode_cls_token": true, "pooling_mode_mean_tokens": true }), plain()), @"DIR/1_Pooling/config.json: pooling by mean and cls is not supported: one of mean, cls, lasttoken, max, mean_sqrt_len_tokens and weightedmean is");
    insta::assert_snapshot!(refused(usual(), plain(), plain()), @"DIR/1_Pooling/config.json: pooling_mode: is missing");
    insta::assert_snapshot!(refused(usual(), json!({ "pooling_mode": "attention" }), plain()), @"DIR/1_Pooling/config.json: pooling by attention is not supported: one of mean, cls, lasttoken, max, mean_sqrt_len_tokens and weightedmean is");
    insta::assert_snapshot!(refused(usual(), by("pooling_mode_cls_token"), json!({ "max_seq_length": 0 })), @"DIR/sentence_bert_config.json: max_seq_length: is 0; a count is expected");
    insta::assert_snapshot!(refused(json!([module("Dense", "2_Dense")]), plain(), plain()), @"DIR/2_Dense/config.json: the file: is missing");
    insta::assert_snapshot!(refused(json!([module("LSTM", "2_LSTM")]), plain(), plain()), @"DIR/modules.json: the module LSTM is not supported: Transformer, Pooling, Dense and Normalize are");
    insta::assert_snapshot!(refused(usual(), by("pooling_mode_cls_token"), json!({ "do_lower_case": 1 })), @"DIR/sentence_bert_config.json: do_lower_case: is 1, not true or false");
    insta::assert_snapshot!(refused(json!([module("Pooling", "../x")]), plain(), plain()), @r#"DIR/modules.json: path "../x": leads out of the model's folder"#);
    insta::assert_snapshot!(refused(json!({}), plain(), plain()), @"DIR/modules.json: the file: is not a list of modules");
}

/// Every pooling, and the dense layers after it, against their definitions.
#[test]
fn vectors_are_pooled_and_go_through_layers() {
    let b = cpu();
    let module = |kind: &str, path: &str| json!({ "type": format!("sentence_transformers.models.{kind}"), "path": path });
    let dir = folder("bert", &json(&golden("bert").join("config.json")), &[], "dense");
    for (i, act) in [(2, "activation.Tanh"), (3, "linear.Identity")] {
        let of = dir.join(format!("{i}_Dense"));
        std::fs::create_dir_all(&of).unwrap();
        let (inputs, width) = if i == 2 { (48, 10) } else { (10, 6) };
        let numbers: Vec<f32> = (0..inputs * width).map(|n| ((n * 37 % 101) as f32 - 50.0) / 200.0).collect();
        let mut tensors = vec![("linear.weight", vec![width, inputs], &numbers[..])];
        if i == 2 {
            tensors.push(("linear.bias", vec![width], &numbers[..width]));
        }
        let tensors: Vec<_> = tensors.iter().map(|(name, shape, x)| (*name, &shape[..], *x)).collect();
        std::fs::write(of.join("model.safetensors"), with_tensors(b"\x02\0\0\0\0\0\0\0{}", &tensors))
            .unwrap();
        let settings = json!({ "in_features": inputs, "out_features": width, "bias": i == 2, "activation_function": format!("torch.nn.modules.{act}") });
        std::fs::write(of.join("config.json"), settings.to_string()).unwrap();
    }
    let modules = [module("Transformer", ""), module("Dense", "2_Dense"), module("Dense", "3_Dense")];
    std::fs::write(dir.join("modules.json"), json!(modules).to_string()).unwrap();
    let (case, model) = (Case::read("bert"), open(&dir));
    assert_eq!(model.spec.width(), 6);
    let encoder = load(&b, &model);
    let texts = encoder.upload(&b, &case.inputs).unwrap();
    let x = encoder.forward(&b, &texts, |_, _| Ok(())).unwrap();
    let hidden: Vec<f32> = b.download(&x).unwrap();
    let kinds = [
        Pooling::Mean,
        Pooling::RootMean,
        Pooling::WeightedMean,
        Pooling::Max,
        Pooling::First,
        Pooling::Last,
    ];
    for by in kinds {
        let got: Vec<f32> = b.download(&encoder.vectors(&b, &texts, &x, by).unwrap()).unwrap();
        let mut rows = hidden.chunks(case.dim);
        for (input, got) in case.inputs.iter().zip(got.chunks(6)) {
            let rows: Vec<&[f32]> = rows.by_ref().take(input.tokens.len()).collect();
            let pooled: Vec<f64> = (0..case.dim).map(|i| pooled(&rows, i, by)).collect();
            let weight = |n: usize| ((n * 37 % 101) as f64 - 50.0) / 200.0;
            let dot = |x: &[f64], r: usize| -> f64 {
                x.iter().enumerate().map(|(c, x)| x * weight(r * case.dim + c)).sum()
            };
            let first: Vec<f64> = (0..10).map(|r| (dot(&pooled, r) + weight(r)).tanh()).collect();
            let second =
                |r: usize| -> f64 { first.iter().enumerate().map(|(c, x)| x * weight(r * 10 + c)).sum() };
            for (r, got) in got.iter().enumerate() {
                assert!((f64::from(*got) - second(r)).abs() < 1e-5, "{by:?}: {got} {}", second(r));
            }
        }
    }
    std::fs::remove_dir_all(dir).unwrap();
}

/// One element of a text's pooled vector.
fn pooled(rows: &[&[f32]], i: usize, by: Pooling) -> f64 {
    let all = || rows.iter().map(|row| f64::from(row[i]));
    let n = rows.len() as f64;
    match by {
        Pooling::Mean => all().sum::<f64>() / n,
        Pooling::RootMean => all().sum::<f64>() / n.sqrt(),
        Pooling::WeightedMean => {
            all().zip(1..).map(|(x, k)| x * f64::from(k)).sum::<f64>() / (n * (n + 1.0) / 2.0)
        }
        Pooling::Max => all().fold(f64::NEG_INFINITY, f64::max),
        Pooling::First => all().next().unwrap(),
        _ => all().next_back().unwrap(),
    }
}
