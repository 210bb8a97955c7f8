//! Observation of linear layers' inputs (imatrix), for every family: every weight tensor of the layers is observed, and
//! the logits do not change.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::rc::Rc;

use tallow_convert::Conversion;
use tallow_core::{Backend, DType, Memory, Span, StateRows, Step, StepPlan, TensorId};
use tallow_cpu::{Arithmetic, Cpu, Isa};
use tallow_models::Model;
use tallow_models::blocks::cache::LayerCache;
use tallow_models::decoder::Decoder;
use tallow_support::{DECODERS, golden};

const PAGE: usize = 16;
const TOKENS: u32 = 12;

/// Per tensor and matrix in it: number of input rows, and the sum of their squares.
type Heard = BTreeMap<String, Vec<(usize, f64)>>;

fn add(heard: &mut Heard, origin: &TensorId, rows: &[f32]) {
    let matrices = heard.entry(origin.tensor.to_string()).or_insert_with(|| vec![(0, 0.0); origin.of]);
    assert_eq!(rows.len() % origin.cols, 0);
    matrices[origin.matrix].0 += rows.len() / origin.cols;
    matrices[origin.matrix].1 += rows.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>();
}

/// The logits of a prompt, and the observed inputs if `listen` is set.
fn run(model: &Model, listen: bool) -> (Vec<f32>, Heard) {
    let b = &Cpu::new(Isa::best(), 2).unwrap().with(Arithmetic::Exact);
    let decoder = Decoder::load(b, model, 64, &mut |_, _| ControlFlow::Continue(())).unwrap();
    let layers = decoder.spec().layers.iter();
    let cache: Vec<_> = layers.map(|l| LayerCache::new(b, l, DType::F32, [4, PAGE], 1).unwrap()).collect();
    let keeps = decoder.spec().is_recurrent();
    let states = if keeps { vec![StateRows { from: 0, to: 1 }] } else { Vec::new() };
    let tokens: Vec<u32> = (1..=TOKENS).map(|i| i * 5 % 60).collect();
    let spans = vec![Span { rows: tokens.len(), start: 0, pages: vec![0] }];
    let step = Step { tokens, spans, states, outputs: vec![3, TOKENS - 1], page_len: PAGE };
    let plan = StepPlan::new(b, step).unwrap();
    let heard = Rc::new(RefCell::new(Heard::new()));
    if listen {
        let heard = heard.clone();
        b.trace()
            .set_observer(Some(Box::new(move |origin, rows| add(&mut heard.borrow_mut(), origin, rows))));
    }
    let x = decoder.forward(b, &plan, &cache, |_, _| Ok(())).unwrap();
    b.trace().set_observer(None);
    let logits = decoder.logits(b, &plan, &x).unwrap();
    (b.download(&logits).unwrap(), heard.take())
}

#[test]
fn every_matrix_is_heard() {
    let (mut seen, mut mixtures) = (0, 0);
    for name in DECODERS {
        let kinds = ["bf16", "f32"].map(|kind| golden("gguf-models").join(format!("{name}-{kind}.gguf")));
        let Some(path) = kinds.into_iter().find(|path| path.exists()) else { continue };
        let model = Model::open(&path).unwrap_or_else(|e| panic!("{e}"));
        let ((plain, nothing), (logits, heard)) = (run(&model, false), run(&model, true));
        assert!(nothing.is_empty());
        let most = plain.iter().fold(0.0, |most: f32, x| most.max(x.abs()));
        let far = plain.iter().zip(&logits).fold(0.0, |far: f32, (a, b)| far.max((a - b).abs()));
        assert!(far <= 1e-4 * most.max(1.0), "{name}: off by {far} while somebody listens");
        let layers = model.spec.layers.len();
        for (tensor, stored) in model.checkpoint.tensors() {
            let layer =
                tensor.strip_prefix("blk.").and_then(|rest| rest.split('.').next()?.parse::<usize>().ok());
            // Embeddings, convolutions and layers that are left out (MTP) have no observed input.
            let is_matrix =
                stored.shape.len() > 1 && tensor.ends_with(".weight") && !tensor.contains("conv1d");
            if !is_matrix || layer.is_none_or(|layer| layer >= layers) {
                continue;
            }
            let Some(found) = heard.get(tensor) else { panic!("{name}: {tensor} is not heard") };
            match tensor.contains("_exps.") {
                false => assert!(
                    found.iter().all(|(rows, _)| *rows == TOKENS as usize),
                    "{name}: {tensor}: {found:?}"
                ),
                true => {
                    let used = model.spec.layers[layer.unwrap()].ffn.moe().unwrap().experts.top_k;
                    let (rows, squares) = found.iter().fold((0, 0.0), |(n, s), (rows, x)| (n + rows, s + x));
                    assert_eq!(rows, used * TOKENS as usize, "{name}: {tensor}");
                    // Each token's row goes to `top_k` experts.
                    let router = heard.get(&tensor.replace("ffn_up_exps", "ffn_gate_inp"));
                    let whole = model.spec.layers[layer.unwrap()].ffn.moe().unwrap().experts.share_of
                        == tallow_core::ShareOf::Result;
                    if let Some(router) = router.filter(|_| tensor.contains("ffn_up_exps") && whole) {
                        let want = used as f64 * router[0].1;
                        assert!(
                            (squares / want - 1.0).abs() < 1e-4,
                            "{name}: {tensor}: {squares}, not {want}"
                        );
                        mixtures += 1;
                    }
                }
            }
        }
        seen += 1;
    }
    assert!(seen >= 27 && mixtures >= 5, "{seen} {mixtures}");
}

/// The parts of every matrix in a converted file are observed in its folder, also where conversion splits or permutes
/// them.
#[test]
fn matrices_of_files_are_heard_in_folders() {
    for name in ["gpt-oss", "quant/gpt-oss-mxfp4", "qwen3-next", "qwen3.5", "qwen3.5-moe", "mixtral"] {
        let model = Model::open(&golden(name)).unwrap_or_else(|e| panic!("{e}"));
        let (_, heard) = run(&model, true);
        let mut orders = 0;
        for made in Conversion::new(&model, std::path::Path::new("out.gguf")).unwrap().names() {
            let is_matrix = ["attn_q.", "attn_qkv.", "attn_gate.", "ssm_out.", "_exps.weight", "ffn_up."]
                .into_iter()
                .any(|kind| made.name.contains(kind) && made.name.ends_with(".weight"));
            for part in made.parts.iter().filter(|_| is_matrix) {
                assert!(heard.contains_key(part), "{name}: {part} of {} is not heard", made.name);
            }
            orders += usize::from(made.columns.is_some());
        }
        assert_eq!(orders > 0, name.starts_with("qwen3.5"), "{name}");
    }
}
