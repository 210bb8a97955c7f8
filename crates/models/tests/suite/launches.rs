//! Launch tables: the ops of one step of each family on a device that composes everything, and the CPU's fused version.
//! A missing kernel or an additional launch shows as a snapshot difference to be approved.

use std::fmt::Write;
use std::ops::ControlFlow;

use tallow_core::ops::TopK;
use tallow_core::{
    Backend, DType, Launch, Memory, Null, Reading, Span, StateRows, Step, StepPlan, launch_table,
};
use tallow_cpu::{Cpu, Isa};
use tallow_models::Model;
use tallow_models::blocks::cache::LayerCache;
use tallow_models::decoder::Decoder;
use tallow_models::encoder::{Encoder, EncoderModel, Input};
use tallow_models::spec::encoder::Pooling;
use tallow_models::spec::{AttentionSpec, ExpertsSpec, LayerSpec, Mixer, Order};
use tallow_support::{ENCODERS, golden, needed};
use tallow_wgpu::{Counts, Wgpu, devices};

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
        let (before, after) = decode(&b, model);
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

/// The device's counters before and after a decode step of one token with sampling.
fn decode(b: &Wgpu, model: &Model) -> (Counts, Counts) {
    let decoder = Decoder::load(b, model, 64, &mut |_, _| ControlFlow::Continue(())).unwrap();
    let cache = cache(b, &decoder, DType::F16);
    b.sync().unwrap();
    let before = b.counts();
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
    (before, b.counts())
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
