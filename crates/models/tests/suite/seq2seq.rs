//! Every encoder-decoder of the goldens against the reference's hidden states and logits.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::path::Path;

use serde_json::Value;
use tallow_core::{Arithmetic, Backend, DType, Memory, PageTable, Span, Step, StepPlan};
use tallow_cpu::{Cpu, Isa};
use tallow_models::blocks::cache::LayerCache;
use tallow_models::blocks::cross_attention::{CrossSpan, looking};
use tallow_models::encoder::{Encoder, EncoderModel, Input};
use tallow_models::seq2seq::{Seq2Seq, Seq2SeqModel};
use tallow_support::{Golden, golden, json, needed, tensors};
use tallow_wgpu::{Wgpu, devices};

use crate::devices::cuda;

/// Tolerance of the GPU, as a multiple of the CPU's.
const GPU: f32 = 4.0;
const PAGE: usize = 16;
const CASES: [&str; 2] = ["t5", "whisper"];

fn cpu() -> Cpu {
    Cpu::new(Isa::best(), 2).unwrap().with(Arithmetic::Exact)
}

fn gpu() -> Option<Wgpu> {
    Some(Wgpu::open(needed("Vulkan or Metal device", devices().first())?).unwrap())
}

/// A `Seq2Seq` with cross-attention and self-attention caches for one or several sequences.
struct Session<'a, B: Backend> {
    b: &'a B,
    seq2seq: Seq2Seq<B>,
    own: Vec<LayerCache<B>>,
    given: Vec<LayerCache<B>>,
    read: Vec<usize>,
    fed: usize,
}

const ROOM: usize = 8;

fn pages(i: usize) -> PageTable {
    (0..ROOM as u32).map(|p| (i * ROOM) as u32 + p).collect()
}

impl<'a, B: Backend> Session<'a, B> {
    fn new(b: &'a B, model: &Seq2SeqModel) -> Session<'a, B> {
        let seq2seq =
            Seq2Seq::load(b, model, &mut |_, _| ControlFlow::Continue(())).unwrap_or_else(|e| panic!("{e}"));
        let layers = &model.spec.decoder.layers;
        let room = |layer| LayerCache::new(b, layer, DType::F32, [3 * ROOM, PAGE], 0).unwrap();
        let cache = || layers.iter().map(room).collect();
        Session { b, own: cache(), given: cache(), seq2seq, read: Vec::new(), fed: 0 }
    }

    /// Encodes texts or sounds, and returns the encoder's last hidden states.
    fn read(&mut self, texts: &[Vec<u32>], sounds: &[&[f32]]) -> Vec<f32> {
        let (b, encoder) = (self.b, &self.seq2seq.encoder);
        let input = |tokens: &Vec<u32>| Input { tokens: tokens.clone(), types: vec![0; tokens.len()] };
        let inputs: Vec<Input> = texts.iter().map(input).collect();
        let there = match sounds {
            [] => encoder.upload(b, &inputs).unwrap(),
            sounds => encoder.upload_sounds(b, sounds).unwrap(),
        };
        let x = encoder.forward(b, &there, |_, _| Ok(())).unwrap();
        self.read = match sounds {
            [] => texts.iter().map(Vec::len).collect(),
            sounds => vec![encoder.spec().context; sounds.len()],
        };
        let spans: Vec<Span> =
            self.read.iter().enumerate().map(|(i, n)| Span { rows: *n, start: 0, pages: pages(i) }).collect();
        let step = Step { tokens: vec![0; x.rows()], spans, page_len: PAGE, ..Step::default() };
        self.seq2seq.decoder.project_kv(b, &x, &StepPlan::new(b, step).unwrap(), &self.given).unwrap();
        b.download(&x).unwrap()
    }

    /// Feeds the same number of tokens to some sequences, and returns all logits.
    fn write(&mut self, of: &[(usize, &[u32])]) -> Vec<f32> {
        let (b, fed) = (self.b, self.fed);
        let spans = of.iter().map(|(i, t)| Span { rows: t.len(), start: fed, pages: pages(*i) }).collect();
        let tokens: Vec<u32> = of.iter().flat_map(|(_, t)| t.to_vec()).collect();
        let outputs = (0..tokens.len() as u32).collect();
        let plan =
            StepPlan::new(b, Step { tokens, spans, outputs, page_len: PAGE, ..Step::default() }).unwrap();
        let looks: Vec<CrossSpan> = of
            .iter()
            .map(|(i, t)| CrossSpan { rows: t.len(), read: self.read[*i], pages: pages(*i) })
            .collect();
        let look = StepPlan::new(b, looking(&looks, PAGE)).unwrap();
        let (decoder, given) = (&self.seq2seq.decoder, Some((&look, &self.given[..])));
        let x = decoder.forward_with_encoder(b, &plan, &self.own, given, |_, _| Ok(())).unwrap();
        let logits = decoder.logits(b, &plan, &x).unwrap();
        self.fed += of[0].1.len();
        b.download(&logits).unwrap()
    }
}

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

    /// The encoder's input: tokens, or frames of sound.
    fn input(&self) -> (Vec<Vec<u32>>, Vec<f32>) {
        match self.tensors.get("input_features") {
            None => (vec![self.tensors["input_ids"].ids()], vec![]),
            Some(x) => {
                let (bands, frames, all) = (x.shape[1], x.shape[2], x.f32());
                let frame = |t: usize| (0..bands).map(move |band| (band, t));
                let transposed = (0..frames).flat_map(frame).map(|(band, t)| all[band * frames + t]);
                (vec![], transposed.collect())
            }
        }
    }

    fn take_in<B: Backend>(&self, session: &mut Session<'_, B>, times: usize) -> Vec<f32> {
        let (texts, sound) = self.input();
        let sounds = if sound.is_empty() { vec![] } else { vec![&sound[..]; times] };
        let texts: Vec<Vec<u32>> = texts.into_iter().flat_map(|t| vec![t; times]).collect();
        session.read(&texts, &sounds)
    }

    /// Largest deviation of hidden states and logits from the reference.
    fn distance<B: Backend>(&self, b: &B, model: &Seq2SeqModel) -> (f32, f32) {
        let mut session = Session::new(b, model);
        let hidden = self.take_in(&mut session, 1);
        let logits = session.write(&[(0, &self.tensors["decoder_input_ids"].ids())]);
        let far = |x: &[f32], name: &str| distance(x, &self.tensors[name].f32());
        (far(&hidden, "encoder_last_hidden"), far(&logits, "logits"))
    }
}

fn distance(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    let far = |(a, b): (&f32, &f32)| if (a - b).is_nan() { f32::INFINITY } else { (a - b).abs() };
    a.iter().zip(b).map(far).fold(0.0, f32::max)
}

fn open(path: &Path) -> Seq2SeqModel {
    Seq2SeqModel::open(path).unwrap_or_else(|e| panic!("{e}"))
}

/// A folder with a case's weights and another config.
fn folder(name: &str, config: &Value) -> tempfile::TempDir {
    let to = tempfile::tempdir().unwrap();
    std::fs::copy(golden(name).join("model.safetensors"), to.path().join("model.safetensors")).unwrap();
    std::fs::write(to.path().join("config.json"), config.to_string()).unwrap();
    to
}

/// Settings that those above do not cover. Made by tools/goldens/seq2seq.py.
const MORE: [&str; 3] = ["seq2seq/mt5-untied", "seq2seq/t5-tied", "seq2seq/whisper-uneven"];

fn near<B: Backend>(b: &B, times: f32) {
    for name in CASES.into_iter().chain(MORE) {
        let case = Case::read(name);
        let (hidden, logits) = case.distance(b, &open(&golden(name)));
        let most = times * case.tolerance();
        assert!(hidden <= most && logits <= most, "{name}: {hidden} {logits}, {most} are allowed");
    }
}

#[test]
fn the_reference_is_met_on_the_cpu() {
    near(&cpu(), 1.0);
}

#[test]
fn the_reference_is_met_on_a_gpu() {
    let Some(gpu) = gpu() else { return };
    near(&gpu, GPU);
}

#[test]
fn the_reference_is_met_on_cuda() {
    near(&cuda(), GPU);
}

#[test]
fn newer_settings_say_the_same_and_other_settings_do_not() {
    let b = cpu();
    for name in CASES.into_iter().chain(MORE) {
        let case = Case::read(name);
        let newer = open(folder(name, &json(&golden(name).join("config.v5.json"))).path());
        assert!(case.distance(&b, &newer).1 <= case.tolerance(), "{name}");
        if MORE.contains(&name) {
            continue;
        }
        for (mutant, facts) in case.facts["mutants"].as_object().unwrap() {
            let mut config = json(&golden(name).join("config.json"));
            for (key, value) in facts["change"].as_object().unwrap() {
                config[key] = value.clone();
            }
            let far = case.distance(&b, &open(folder(name, &config).path())).1;
            let want = facts["max_abs_logit_change"].as_f64().unwrap() as f32;
            assert!(
                (far - want).abs() <= 2.0 * case.tolerance(),
                "{name}, {mutant}: {far}, {want} is recorded"
            );
        }
    }
}

#[test]
fn greedy_tokens_are_the_reference_s() {
    let (b, case) = (cpu(), Case::read("whisper"));
    let list = |of: &str| -> Vec<u32> {
        let list = case.facts["greedy"][of].as_array().unwrap();
        list.iter().map(|t| t.as_u64().unwrap() as u32).collect()
    };
    let mut session = Session::new(&b, &open(&golden("whisper")));
    case.take_in(&mut session, 1);
    let mut next = list("start");
    for want in list("tokens") {
        let logits = session.write(&[(0, &next)]);
        let last = &logits[logits.len() - session.seq2seq.decoder.spec().vocab..];
        let best = (0..last.len()).max_by(|a, b| last[*a].total_cmp(&last[*b])).unwrap() as u32;
        assert_eq!(best, want);
        next = vec![best];
    }
}

#[test]
fn company_and_cuts_change_no_bit() {
    let b = cpu();
    for name in CASES {
        let (case, model) = (Case::read(name), open(&golden(name)));
        let ids = case.tensors["decoder_input_ids"].ids();
        let mut alone = Session::new(&b, &model);
        case.take_in(&mut alone, 1);
        let whole = alone.write(&[(0, &ids)]);
        let mut three = Session::new(&b, &model);
        case.take_in(&mut three, 3);
        let all = three.write(&[(2, &ids), (0, &ids), (1, &ids)]);
        assert!(all.chunks(whole.len()).all(|x| x == whole), "{name}");
        let mut cut = Session::new(&b, &model);
        case.take_in(&mut cut, 1);
        let parts: Vec<f32> = ids.chunks(1).flat_map(|id| cut.write(&[(0, id)])).collect();
        assert_eq!(parts, whole, "{name}");
    }
}

#[test]
fn a_text_shorter_than_what_is_written_of_it_is_looked_at_whole() {
    let (b, case) = (cpu(), Case::read("t5"));
    let model = open(&golden("t5"));
    let ids = case.tensors["decoder_input_ids"].ids();
    let mut session = Session::new(&b, &model);
    session.read(&[vec![5, 1]], &[]);
    let whole = session.write(&[(0, &ids)]);
    let mut cut = Session::new(&b, &model);
    cut.read(&[vec![5, 1]], &[]);
    let parts: Vec<f32> = ids.chunks(1).flat_map(|id| cut.write(&[(0, id)])).collect();
    assert_eq!(parts, whole);
}

#[test]
fn an_encoder_alone_is_the_same_encoder() {
    let (b, case) = (cpu(), Case::read("t5"));
    let mut config = json(&golden("t5").join("config.json"));
    config["architectures"][0] = "T5EncoderModel".into();
    let dir = folder("t5", &config);
    let model = EncoderModel::open(dir.path()).unwrap_or_else(|e| panic!("{e}"));
    let encoder = Encoder::load(&b, &model, &mut |_, _| ControlFlow::Continue(())).unwrap();
    let tokens = case.tensors["input_ids"].ids();
    let texts = encoder.upload(&b, &[Input { types: vec![0; tokens.len()], tokens }]).unwrap();
    let x = b.download::<f32>(&encoder.forward(&b, &texts, |_, _| Ok(())).unwrap()).unwrap();
    assert!(distance(&x, &case.tensors["encoder_last_hidden"].f32()) <= case.tolerance());
}

#[test]
fn settings_that_are_not_implemented_are_refused() {
    let refused = |name: &str, key: &str, value: Value, words: &str| {
        let mut config = json(&golden(name).join("config.json"));
        config[key] = value;
        let why = Seq2SeqModel::open(folder(name, &config).path()).unwrap_err().to_string();
        assert!(why.contains(key) && why.contains(words), "{why}");
    };
    refused("t5", "feed_forward_proj", "gated-swiglu".into(), "not supported");
    refused("t5", "feed_forward_proj", "gated".into(), "not supported");
    refused("t5", "relative_attention_num_buckets", 3.into(), "not supported");
    refused("t5", "relative_attention_max_distance", 2.into(), "make sense");
    refused("t5", "relative_attention_max_distance", 100_000_000.into(), "make sense");
    refused("t5", "d_kv", 7.into(), "even");
    refused("t5", "decoder_start_token_id", 96.into(), "of 96 tokens");
    refused("whisper", "num_mel_bins", 0.into(), "make sense");
    refused("whisper", "activation_function", "mish".into(), "not supported");
}
