//! Observation of linear layers' inputs (imatrix), for every family: every weight tensor of the layers is observed, and
//! the logits do not change.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::path::Path;
use std::rc::Rc;

use tallow_convert::{Conversion, Made};
use tallow_core::{
    Arithmetic, Backend, DType, LoraRows, Observed, Span, StateRows, Step, StepPlan, TensorId,
};
use tallow_cpu::{Cpu, Isa};
use tallow_models::Model;
use tallow_models::adapter::AdapterFile;
use tallow_models::blocks::cache::LayerCache;
use tallow_models::decoder::Decoder;
use tallow_support::{DECODERS, golden};

const PAGE: usize = 16;
const TOKENS: u32 = 12;

/// Per tensor and matrix in it: number of input rows, and the sum of their squares.
type Sums = BTreeMap<String, Vec<(usize, f64)>>;

fn add(sums: &mut Sums, origin: &TensorId, rows: &[f32]) {
    let matrices = sums.entry(origin.tensor.to_string()).or_insert_with(|| vec![(0, 0.0); origin.of]);
    assert_eq!(rows.len() % origin.cols, 0);
    matrices[origin.matrix].0 += rows.len() / origin.cols;
    matrices[origin.matrix].1 += rows.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>();
}

fn open(path: &Path) -> Model {
    Model::open(path).unwrap_or_else(|e| panic!("{e}"))
}

fn cpu() -> Cpu {
    Cpu::new(Isa::best(), 2).unwrap().with(Arithmetic::Exact)
}

/// The logits of a prompt, with a LoRA adapter if there is one. `computed` is called once the layers are.
fn logits<B: Backend>(b: &B, model: &Model, adapter: Option<&Path>, computed: impl FnOnce(&B)) -> Vec<f32> {
    let decoder = Decoder::load(b, model, 64, &mut |_, _| ControlFlow::Continue(())).unwrap();
    let layers = decoder.spec().layers.iter();
    let cache: Vec<_> = layers.map(|l| LayerCache::new(b, l, DType::F32, [4, PAGE], 2).unwrap()).collect();
    let keeps = decoder.spec().is_recurrent();
    let states = if keeps { vec![StateRows { from: 0, to: 1 }] } else { Vec::new() };
    let tokens: Vec<u32> = (1..=TOKENS).map(|i| i * 5 % 60).collect();
    let spans = vec![Span { rows: tokens.len(), start: 0, pages: vec![0].into() }];
    let adapted = adapter.map(|path| {
        let file = AdapterFile::open(path).unwrap_or_else(|e| panic!("{e}"));
        let adapter = Rc::new(decoder.adapter(b, &file).unwrap());
        LoraRows { rows: 0..tokens.len(), adapter, scale: 1.0 }
    });
    let step =
        Step { tokens, spans, states, outputs: vec![3, TOKENS - 1], page_len: PAGE, ..Step::default() };
    let plan = StepPlan::new(b, step).unwrap().adapted(adapted.into_iter().collect()).unwrap();
    let x = decoder.forward(b, &plan, &cache, |_, _| Ok(())).unwrap();
    computed(b);
    b.download(&decoder.logits(b, &plan, &x).unwrap()).unwrap()
}

/// The logits of a prompt, and the inputs of the layers.
fn run(model: &Model, adapter: Option<&Path>) -> (Vec<f32>, Sums) {
    let b = Observed::new(cpu());
    let sums = Rc::new(RefCell::new(Sums::new()));
    let shared = sums.clone();
    b.set_observer(Some(Box::new(move |origin, rows| add(&mut shared.borrow_mut(), origin, rows))));
    let logits = logits(&b, model, adapter, |b| b.set_observer(None));
    (logits, sums.take())
}

#[test]
fn every_matrix_is_heard() {
    let (mut seen, mut mixtures) = (0, 0);
    for name in DECODERS {
        let kinds = ["bf16", "f32"].map(|kind| golden("gguf-models").join(format!("{name}-{kind}.gguf")));
        let Some(path) = kinds.into_iter().find(|path| path.exists()) else { continue };
        let model = open(&path);
        let (plain, (logits, sums)) = (logits(&cpu(), &model, None, |_| ()), run(&model, None));
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
            let Some(found) = sums.get(tensor) else { panic!("{name}: {tensor} was not observed") };
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
                    let router = sums.get(&tensor.replace("ffn_up_exps", "ffn_gate_inp"));
                    let whole = model.spec.layers[layer.unwrap()].ffn.moe().unwrap().experts.weight_on
                        == tallow_core::RoutingWeightOn::Output;
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
        let model = open(&golden(name));
        let (_, sums) = run(&model, None);
        let mut orders = 0;
        for made in sources(&model) {
            let is_matrix = ["attn_q.", "attn_qkv.", "attn_gate.", "ssm_out.", "_exps.weight", "ffn_up."]
                .into_iter()
                .any(|kind| made.name.contains(kind) && made.name.ends_with(".weight"));
            for part in made.parts.iter().filter(|_| is_matrix) {
                assert!(sums.contains_key(part), "{name}: {part} of {} was not observed", made.name);
            }
            orders += usize::from(made.columns.is_some());
        }
        assert_eq!(orders > 0, name.starts_with("qwen3.5"), "{name}");
    }
}

/// The tensors of a GGUF file of the model, and what they are made of.
fn sources(model: &Model) -> Vec<Made> {
    Conversion::new(model, Path::new("out.gguf")).unwrap().names()
}

/// The heads' K and V in one tensor (`kv_b_proj`) are observed as the two tensors that a GGUF file has of them.
#[test]
fn fused_heads_are_heard_as_in_files() {
    for name in ["deepseek-v2", "deepseek-v3"] {
        let file = golden("gguf-models").join(format!("{name}-bf16.gguf"));
        let ((_, in_folder), (_, in_file)) = (run(&open(&golden(name)), None), run(&open(&file), None));
        let is_up = |made: &Made| made.name.contains("attn_k_b.") || made.name.contains("attn_v_b.");
        let ups: Vec<Made> = sources(&open(&golden(name))).into_iter().filter(is_up).collect();
        assert!(ups.len() >= 4, "{name}: {ups:?}");
        for Made { name: up, parts, matrices, .. } in ups {
            let (got, want) = (&in_folder[&parts[0]][matrices.unwrap()], &in_file[&up]);
            assert_eq!(got.len(), want.len(), "{name}: {up}");
            for ((rows, squares), (want_rows, want)) in got.iter().zip(want) {
                assert_eq!((*rows, *want_rows), (TOKENS as usize, TOKENS as usize), "{name}: {up}");
                assert!((squares / want - 1.0).abs() < 1e-3, "{name}: {up}: {squares}, not {want}");
            }
        }
    }
}

/// Layers that a LoRA adapter changes are observed as those without one.
#[test]
fn layers_with_adapters_are_heard() {
    for name in ["llama", "gpt2", "gemma4-text", "gpt-neox"] {
        let (model, adapter) = (open(&golden(name)), golden("adapters").join(name));
        let ((plain, without), (adapted, with)) = (run(&model, None), run(&model, Some(&adapter)));
        assert_ne!(plain, adapted, "{name}");
        assert!(without.keys().eq(with.keys()), "{name}: {without:?}, {with:?}");
        let rows = |sums: &Sums| sums.values().flatten().map(|(rows, _)| rows).sum::<usize>();
        assert_eq!(rows(&without), rows(&with), "{name}");
        assert_ne!(without, with, "{name}: no input changed");
    }
}
