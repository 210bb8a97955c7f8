//! Launch tables: the ops of one step of each family on a device that composes everything, and the fused versions of each backend.
//! A missing kernel or an additional launch shows as a snapshot difference to be approved.

use std::fmt::Write;
use std::ops::ControlFlow;

use tallow_core::ops::TopK;
use tallow_core::{
    Arithmetic, Backend, DType, Launch, Null, Reading, Span, StateRows, Step, StepPlan, launch_table,
};
use tallow_cpu::{Cpu, Isa};
use tallow_cuda::Cuda;
use tallow_models::Model;
use tallow_models::blocks::cache::LayerCache;
use tallow_models::decoder::Decoder;
use tallow_models::encoder::{Encoder, EncoderModel, Input};
use tallow_models::spec::encoder::Pooling;
use tallow_models::spec::{AttentionSpec, ExpertsSpec, Ffn, LayerSpec, Mixer, Order, QkNormSpec};
use tallow_ptx::mock::Machine;
use tallow_support::{ENCODERS, golden, needed};
use tallow_wgpu::{Wgpu, devices};

use crate::act_order::mixture;
use crate::devices::cuda_of;

/// One model of each family and of each variant within a family.
const MODELS: [&str; 35] = [
    "cohere",
    "cohere2",
    "deepseek-v2",
    "deepseek-v3",
    "gemma",
    "gemma2",
    "gemma3-text",
    "gemma4-text",
    "glm4",
    "glm4-moe",
    "gpt-neox",
    "gpt-oss",
    "gpt2",
    "granite",
    "llama",
    "llama4-text",
    "ministral3",
    "mistral-swa",
    "mixtral",
    "olmo2",
    "olmo3",
    "phi",
    "phi3",
    "phimoe",
    "qwen2",
    "qwen2-moe",
    "qwen3",
    "qwen3-moe",
    "qwen3-next",
    "qwen3.5",
    "qwen3.5-moe",
    "smollm3",
    "stablelm",
    "starcoder2",
    "more/llama-biases",
];
const PAGE: usize = 16;

/// KV caches of the layers, for two sequences of one page each.
fn cache<B: Backend>(b: &B, decoder: &Decoder<B>, dtype: DType) -> Vec<LayerCache<B>> {
    decoder.spec().layers.iter().map(|l| LayerCache::new(b, l, dtype, [2, PAGE], 4).unwrap()).collect()
}

/// State rows of `sequences` sequences, if the model has recurrent layers.
fn states<B: Backend>(decoder: &Decoder<B>, sequences: u32) -> Vec<StateRows> {
    let sequences = if decoder.spec().is_recurrent() { sequences } else { 0 };
    (0..sequences).map(|i| StateRows { from: 2 * i, to: 2 * i + 1 }).collect()
}

/// The launches of one step: a prompt of three tokens together with a sequence at its fifth token.
fn launches<B: Backend>(b: &B, model: &Model) -> Vec<Launch> {
    let decoder = Decoder::load(b, model, 64, &mut |_, _| ControlFlow::Continue(())).unwrap();
    let cache = cache(b, &decoder, DType::F32);
    let spans = vec![
        Span { rows: 3, start: 0, pages: vec![0].into() },
        Span { rows: 1, start: 4, pages: vec![1].into() },
    ];
    let states = states(&decoder, 2);
    let step = Step {
        tokens: vec![1, 2, 3, 4],
        spans,
        states,
        outputs: vec![2, 3],
        page_len: PAGE,
        ..Step::default()
    };
    let plan = StepPlan::new(b, step).unwrap();
    b.trace().start();
    let x = decoder.forward(b, &plan, &cache, |_, _| Ok(())).unwrap();
    decoder.logits(b, &plan, &x).unwrap();
    b.trace().stop()
}

/// The launches in order; a composed op stands above the ops it is composed of.
fn outline(log: &[Launch]) -> String {
    log.iter().fold(String::new(), |mut text, launch| {
        let _ = writeln!(text, "{:indent$}{}", "", launch.op, indent = 2 * launch.depth);
        text
    })
}

fn each(what: &str, text: impl Fn(&Model) -> String) {
    for name in MODELS {
        let model = Model::open(&golden(name)).unwrap();
        insta::with_settings!({ omit_expression => true }, {
            insta::assert_snapshot!(format!("{what}-{}", name.replace('/', "-")), text(&model));
        });
    }
}

#[test]
fn ops_of_a_step() {
    each("ops", |model| outline(&launches(&Null::default(), model)));
}

/// The launches of one encoder step: a text of three tokens and a text of one, with a pooled vector for each.
fn launches_of_encoder<B: Backend>(b: &B, model: &EncoderModel) -> Vec<Launch> {
    let encoder = Encoder::load(b, model, &mut |_, _| ControlFlow::Continue(())).unwrap();
    let input = |tokens: &[u32]| Input { tokens: tokens.to_vec(), types: vec![0; tokens.len()] };
    let texts = encoder.upload(b, &[input(&[1, 2, 3]), input(&[4])]).unwrap();
    b.trace().start();
    let x = encoder.forward(b, &texts, |_, _| Ok(())).unwrap();
    encoder.pool(b, &texts, &x, Pooling::Mean).unwrap();
    b.trace().stop()
}

#[test]
fn encoders() {
    for name in ENCODERS {
        let model = EncoderModel::open(&golden(name)).unwrap();
        let ops = outline(&launches_of_encoder(&Null::default(), &model));
        let cpu = launch_table(&launches_of_encoder(&Cpu::new(Isa::Scalar, 1).unwrap(), &model));
        insta::with_settings!({ omit_expression => true }, {
            insta::assert_snapshot!(format!("ops-{name}"), ops);
            insta::assert_snapshot!(format!("cpu-{name}"), cpu);
        });
    }
}

#[test]
fn launch_table_of_the_cpu() {
    each("cpu", |model| launch_table(&launches(&Cpu::new(Isa::Scalar, 1).unwrap(), model)));
}

/// The cost of a step on a GPU: dispatches, one submission, one readback.
#[test]
fn launch_table_of_a_gpu() {
    let found = devices();
    let Some(found) = needed("Vulkan or Metal device", found.first()) else { return };
    let b = Wgpu::open(found).unwrap();
    each("wgpu", |model| {
        let table = launch_table(&launches(&b, model));
        let layers = model.spec.layers.len();
        let mut text = format!("{table}\n{layers} layers\n");
        // Another step, of one token, run the way the engine does.
        let (before, after) = decode(&b, model, Wgpu::counts);
        let _ = writeln!(
            text,
            "a token: {} dispatches, {} submission, {} read-back",
            after.dispatches - before.dispatches,
            after.submits - before.submits,
            after.reads - before.reads
        );
        // Embedding, row gather, final norm, head and sampling (top-k) are outside of the layers.
        let allowed = 5
            + 2 * usize::from(model.spec.positions.is_some())
            + 4 * usize::from(model.spec.per_layer_dim.is_some())
            + model.spec.layers.iter().map(|l| dispatches(model, l)).sum::<usize>();
        let took = after.dispatches - before.dispatches;
        assert!(took <= allowed, "{took} dispatches, {allowed} are allowed");
        assert_eq!((after.submits - before.submits, after.reads - before.reads), (1, 1));
        text
    });
}

/// Upper bound of a layer's dispatches: a plain layer's plus those of its extras.
fn dispatches(model: &Model, layer: &LayerSpec) -> usize {
    let behind = 2 * usize::from(layer.order == Order::Sandwich);
    let activation = usize::from(!layer.ffn.expert().gated);
    // In place of two dispatches, the router's two, four for all experts, and a norm and a scale of its own.
    let of_experts = |experts: ExpertsSpec| {
        let own = usize::from(experts.router_norm) + usize::from(experts.expert_scale);
        4 + own + 5 * usize::from(experts.shared.is_some())
    };
    let experts = layer.ffn.moe().map_or(0, |moe| of_experts(moe.experts));
    // Per-layer embedding, layer scale.
    let more = 4 * usize::from(model.spec.per_layer_dim.is_some()) + usize::from(layer.layer_scale);
    let mixer = match &layer.mixer {
        // Value norm and copying it back, and attention gates, which are a fourth part next to queries, keys and values.
        Mixer::Attention(AttentionSpec { v_norm, gated, second_rope, .. }) => {
            9 + 2 * usize::from(*v_norm) + 2 * usize::from(*gated) + usize::from(second_rope.is_some())
        }
        Mixer::SharedKv(_) => 9,
        // An up-projection of queries and its norm, K and V of the heads, the latent row's norm and its place behind the
        // rotated part, and the rotation of queries and keys.
        Mixer::Mla(mla) => 9 + 6 + 2 * usize::from(mla.q_lora_rank.is_some()),
        // Norm, four projections fused in two, causal convolution in two, QK norm, the recurrence, gated norm, output.
        Mixer::GatedDelta(_) => 14,
    };
    mixer + behind + activation + experts + more
}

/// The ops that a device composed of others.
fn composed(log: &[Launch]) -> Vec<&'static str> {
    log.windows(2).filter(|pair| pair[1].depth > pair[0].depth).map(|pair| pair[0].op).collect()
}

/// The cost of a step on CUDA: launches, one read.
#[test]
fn launch_table_of_cuda() {
    // Sequences begin behind tokens that were never computed.
    let b = cuda_of(Machine { zeroes: true, ..Machine::default() }).with(Arithmetic::Fast);
    each("cuda", |model| {
        let log = launches(&b, model);
        assert_eq!(composed(&log), [""; 0], "ops without a kernel");
        let layers = model.spec.layers.len();
        let mut text = format!("{}\n{layers} layers\n", launch_table(&log));
        let (before, after) = decode(&b, model, Cuda::counts);
        let (took, reads) = (after.launches - before.launches, after.reads - before.reads);
        let _ = writeln!(text, "a token: {took} launches, {reads} read");
        // Embedding, head and sampling (top-k) are outside of the layers. Learned positions are embedded and added; per-layer
        // embeddings are looked up, projected, normalised and added.
        let allowed = 3
            + 2 * usize::from(model.spec.positions.is_some())
            + 4 * usize::from(model.spec.per_layer_dim.is_some())
            + model.spec.layers.iter().map(|l| launches_of(model, l)).sum::<usize>();
        assert!(took <= allowed, "{took} launches, {allowed} are allowed");
        assert_eq!(reads, 1);
        text
    });
}

/// Layers that name one order of inputs (act-order) share it, and take the launches of those in order. The golden's gates
/// and ups name two, and so two launches and one for the activation take the place of one.
#[test]
fn act_order_costs_no_launches_on_cuda() {
    let b = cuda_of(Machine { zeroes: true, ..Machine::default() }).with(Arithmetic::Fast);
    let took = |name| {
        let model = Model::open(&golden(name)).unwrap();
        let (before, after) = decode(&b, &model, Cuda::counts);
        (after.launches - before.launches, model.spec.layers.len())
    };
    let (in_order, layers) = took("quant/gptq-4bit-g32-sym");
    assert_eq!(took("quant/gptq-4bit-g32-actorder"), (in_order + 2 * layers, layers));
    // Experts' inputs are put in order by launches of their own.
    assert_eq!(composed(&launches(&b, &mixture())), [""; 0]);
}

/// Upper bound of a layer's launches on CUDA in a step of up to 8 tokens: 6 for a dense layer, 9 with the gated delta rule, 12 for a
/// mixture and 16 with a shared expert that has a gate, at most 10 with latent attention and a dense block; and what its extras
/// need.
fn launches_of(model: &Model, layer: &LayerSpec) -> usize {
    let mixer = match &layer.mixer {
        // Norm and projections; QK norm, RoPE and cache write; attention; output.
        Mixer::Attention(attention) => 4 + extras(attention),
        // The same without K and V, but QK norm and RoPE are ops of their own.
        Mixer::SharedKv(_) => 5,
        // Down-projections, queries into the latent space, their RoPE, the cache write, attention, values, output; queries with a
        // latent row of their own have a norm and an up-projection.
        Mixer::Mla(mla) => 7 + usize::from(mla.q_lora_rank.is_some()),
        // Norm and projections, causal convolution, norm of keys and queries, the recurrence, a norm, the gate, output.
        Mixer::GatedDelta(_) => 7,
    };
    // Norm, gate and up, activation; down.
    let dense = 2;
    // Norm, router, routing, and five for all experts: who has which rows, up, down, the sum, and one to spare. A norm of the
    // router's and a scale of each expert are ops of their own. A shared expert is a dense block whose gate is a projection, a
    // product and a sum: five, of which one is what is to spare.
    let mixture = |experts: ExpertsSpec| {
        let own = usize::from(experts.router_norm) + usize::from(experts.expert_scale);
        8 + own + experts.shared.map_or(0, |shared| if shared.gated { 4 } else { 2 })
    };
    let ffn = match &layer.ffn {
        Ffn::Dense(_) => dense,
        Ffn::Moe(moe) => mixture(moe.experts),
        // Each has a norm behind it, the second of which adds the first.
        Ffn::Parallel { moe, .. } => dense + mixture(moe.experts) + 2,
    };
    // Norms behind blocks are launches, which those in front of them are not.
    let behind = matches!(layer.order, Order::Post | Order::PostNorm | Order::Sandwich);
    // A per-layer embedding is a gate, its activation, a projection and a norm.
    let per_layer = 4 * usize::from(model.spec.per_layer_dim.is_some());
    mixer + ffn + 2 * usize::from(behind) + per_layer + usize::from(layer.layer_scale)
}

/// Launches of an attention block's extras: ops that no device fuses.
fn extras(attention: &AttentionSpec) -> usize {
    // A norm of values is copied back in place.
    let values = 2 * usize::from(attention.v_norm);
    // Norms with weights for each head: of queries and of keys a norm, a product, a copy.
    let heads = if attention.qk_norm == QkNormSpec::HeadWeights { 6 } else { 0 };
    values + heads + usize::from(attention.gated) + usize::from(attention.second_rope.is_some())
}

/// A device's counters before and after a decode step of one token with sampling.
fn decode<B: Backend, C>(b: &B, model: &Model, counts: impl Fn(&B) -> C) -> (C, C) {
    let decoder = Decoder::load(b, model, 64, &mut |_, _| ControlFlow::Continue(())).unwrap();
    let cache = cache(b, &decoder, DType::F16);
    b.sync().unwrap();
    let before = counts(b);
    let spans = vec![Span { rows: 1, start: 0, pages: vec![0].into() }];
    let states = states(&decoder, 1);
    let step = Step { tokens: vec![1], spans, states, outputs: vec![0], page_len: PAGE, ..Step::default() };
    let plan = StepPlan::new(b, step).unwrap();
    let x = decoder.forward(b, &plan, &cache, |_, _| Ok(())).unwrap();
    let logits = decoder.logits(b, &plan, &x).unwrap();
    let top = b.run(TopK { x: &logits, k: 1 }).unwrap();
    let (mut ids, mut values) = ([0; 4], [0; 4]);
    let ids = Reading { from: &top.ids, to: &mut ids };
    b.read(&mut [ids, Reading { from: &top.values, to: &mut values }]).unwrap();
    (before, counts(b))
}

/// The table depends on the model only, not on the machine.
#[test]
fn every_instruction_set_launches_the_same() {
    let model = Model::open(&golden("qwen3")).unwrap();
    let tables = Isa::ALL.into_iter().filter(|isa| isa.is_available());
    let tables: Vec<String> =
        tables.map(|isa| launch_table(&launches(&Cpu::new(isa, 2).unwrap(), &model))).collect();
    assert!(tables.windows(2).all(|pair| pair[0] == pair[1]));
}
