//! Steps that are captured once and launched again after their plan was refilled, against steps that are launched op by
//! op.

use super::{Bench, Host, Outcome, ensure, text};
use crate::ops::{Attend, CausalConv, Embed, Epilogue, GatedDelta, KvWrite, Linear};
use crate::{
    AttnSpec, Backend, DType, Decay, DecodePlan, DecodeRoom, DeltaHeads, Error, Format, Heads, LayerKv,
    LinearWeights, PageTable, Replay, Result as CoreResult, Scratch, Sharing, Span, StateRows, Step,
    StepPlan, Tensor, Weight,
};

cases!(replay);

const HEADS: Heads = Heads { q: 4, kv: 2, dim: 8 };
const DELTA: DeltaHeads =
    DeltaHeads { keys: 1, values: 2, key_dim: 6, value_dim: 8, sharing: Sharing::Grouped };
const PAGE: usize = 4;
/// Pages of a sequence.
const PAGES: usize = 5;
/// The steps in which each sequence decodes: one at a time in the first and the last steps, up to four between.
const SEQUENCES: [std::ops::Range<usize>; 4] = [0..18, 3..9, 5..14, 4..24];
const SCRATCH: Scratch = Scratch {
    page: (SEQUENCES.len() * PAGES) as u32,
    swa_page: Some(0),
    state: Some(2 * SEQUENCES.len() as u32),
};

/// Weights of a layer with attention, a recurrent state and a linear layer.
struct Layer<B: Backend> {
    /// Embeddings of queries, keys and values.
    tables: [Weight<B>; 3],
    conv: Tensor<B>,
    decay: Decay<B>,
    linear: LinearWeights<B>,
    spec: AttnSpec<B>,
}

/// A layer's KV cache, and recurrent states, which begin as garbage.
struct Caches<B: Backend> {
    /// True if the KV cache has the pages of sliding-window layers.
    swa: bool,
    k: Tensor<B>,
    v: Tensor<B>,
    window: Tensor<B>,
    states: Tensor<B>,
}

impl<B: Backend> Layer<B> {
    fn new(t: &Bench<'_, B>) -> Result<Layer<B>, String> {
        let table = |seed, cols| Ok::<_, String>(t.weight(seed, Format::F16, 64, cols)?.0);
        let tables = [table(1, HEADS.q_cols())?, table(2, HEADS.kv_cols())?, table(3, HEADS.kv_cols())?];
        let (rate, bias) =
            (t.up(&Host::random(4, 1, DELTA.values))?, t.up(&Host::random(5, 1, DELTA.values))?);
        Ok(Layer {
            tables,
            conv: t.up(&Host::random(6, 3, HEADS.q_cols()))?,
            decay: Decay { rate, bias },
            linear: LinearWeights::new(t.weight(7, Format::Q8_0, 40, HEADS.q_cols())?.0, None),
            spec: AttnSpec {
                scale: 0.3,
                window: Some(7),
                chunk: None,
                softcap: None,
                sinks: None,
                bias: None,
                causal: true,
            },
        })
    }

    /// Launches the ops of a step; returns what it leaves behind.
    fn forward(&self, b: &B, plan: &StepPlan<B>, caches: &Caches<B>) -> CoreResult<Vec<Tensor<B>>> {
        let embed = |table| b.run(Embed { table, ids: &plan.tokens, scale: 1.0 });
        let [q, k, v] = self.tables.each_ref().map(embed);
        let (q, k, v) = (q?, k?, v?);
        let kv = LayerKv { k: &caches.k, v: Some(&caches.v) };
        let pages = plan.of_cache(caches.swa)?;
        b.run(KvWrite { k: &k, v: Some(&v), heads: HEADS, kv, plan: pages })?;
        let x = b.run(Attend { q: &q, heads: HEADS, spec: &self.spec, kv, plan: pages })?; // [rows, 32]
        let y = b.run(CausalConv { x: &x, weight: &self.conv, window: &caches.window, plan })?;
        let qk = y.col_range(0..12);
        let (v, gates) = (y.col_range(12..28), y.col_range(28..32));
        let op = GatedDelta {
            qk: &qk,
            v: &v,
            gates: &gates,
            heads: DELTA,
            decay: &self.decay,
            states: &caches.states,
            plan,
        };
        let z = b.run(op)?; // [rows, 16]
        Ok(vec![b.run(Linear { x: &y, weights: &self.linear, epilogue: Epilogue::NONE })?, z])
    }
}

impl<B: Backend> Caches<B> {
    fn new(t: &Bench<'_, B>, swa: bool) -> Result<Caches<B>, String> {
        let count = SEQUENCES.len() * PAGES + 1;
        let pages = || t.b.zeros(DType::F16, count, PAGE * HEADS.kv_cols()).map_err(text);
        let states = |cols| t.up(&Host::random(77, 2 * SEQUENCES.len() + 1, cols).map(|x| 1e3 * x));
        let (window, states) = (states(2 * HEADS.q_cols())?, states(DELTA.state_len())?);
        Ok(Caches { swa, k: pages()?, v: pages()?, window, states })
    }
}

/// The step number `at`: a token of each sequence that decodes then.
fn step(at: usize) -> Step {
    let decoding = SEQUENCES.iter().enumerate().filter(|(_, steps)| steps.contains(&at));
    let parts: Vec<(usize, usize)> = decoding.map(|(i, steps)| (i, at - steps.start)).collect();
    let span = |&(i, start): &(usize, usize)| {
        let pages: PageTable = (0..=start / PAGE).map(|page| (i * PAGES + PAGES - 1 - page) as u32).collect();
        Span { rows: 1, start, pages }
    };
    let swa = |&(i, start): &(usize, usize)| {
        (0..=start / PAGE).map(|page| (1 + page * SEQUENCES.len() + i) as u32).collect()
    };
    let states = |&(i, start): &(usize, usize)| {
        let row = |n: usize| (2 * i + n % 2) as u32;
        StateRows { from: row(start), to: row(start + 1) }
    };
    Step {
        tokens: parts.iter().map(|(i, start)| ((13 * i + 7 * start) % 64) as u32).collect(),
        spans: parts.iter().map(span).collect(),
        swa_pages: parts.iter().map(swa).collect(),
        states: parts.iter().map(states).collect(),
        outputs: (0..parts.len() as u32).collect(),
        page_len: PAGE,
    }
}

/// A step that was captured.
struct Captured<B: Backend> {
    plan: DecodePlan<B>,
    out: Vec<Tensor<B>>,
    replay: Option<Replay>,
}

/// Captures steps of two sizes, which are launched in turns, twice each, which changes nothing; other work is done between
/// them. The layer has pages of its own, and those of all layers in the steps that it is compared with.
fn replay<B: Backend>(t: &Bench<'_, B>) -> Outcome {
    let (layer, plain, ours) = (Layer::new(t)?, Caches::new(t, false)?, Caches::new(t, true)?);
    let mut captured: [Option<Captured<B>>; 2] = [None, None];
    for at in 0..SEQUENCES.iter().map(|steps| steps.end).max().unwrap_or(0) {
        let (step, n) = (step(at), step(at).spans.len());
        let fresh = StepPlan::new(t.b, step.clone()).map_err(text)?;
        let want = layer.forward(t.b, &fresh, &plain).map_err(text)?;
        let size = usize::from(n > 2);
        let run = match &mut captured[size] {
            Some(run) => {
                run.plan.refill(t.b, step).map_err(text)?;
                match &run.replay {
                    Some(replay) => replay.launch().map_err(text)?,
                    None => run.out = layer.forward(t.b, run.plan.plan(), &ours).map_err(text)?,
                }
                run
            }
            none => {
                let room = DecodeRoom { rows: [2, 4][size], pages: PAGES };
                let mut plan = DecodePlan::new(t.b, room, SCRATCH, PAGE).map_err(text)?;
                plan.refill(t.b, step).map_err(text)?;
                let mut out = Vec::new();
                let mut work = || {
                    out = layer.forward(t.b, plan.plan(), &ours)?;
                    Ok(())
                };
                let replay = t.b.capture(&mut work).map_err(text)?;
                none.insert(Captured { plan, out, replay })
            }
        };
        for (got, want) in run.out.iter().zip(&want) {
            t.same((at, n), &got.row_range(0..n), want)?;
        }
        // What is freed may be given to this, and must not be what the next replay writes to.
        let other = t.up(&Host::random(at as u64, 4, HEADS.q_cols()))?;
        let linear = |x| t.b.run(Linear { x, weights: &layer.linear, epilogue: Epilogue::NONE });
        let kept = linear(&other).map_err(text)?;
        let replay = captured[size].as_ref().and_then(|run| run.replay.as_ref());
        replay.map(Replay::launch).transpose().map_err(text)?;
        t.same((at, "other work"), &kept, &linear(&other).map_err(text)?)?;
    }
    let fails = || Err(Error::Shape { op: "work", what: "it", want: "better".into(), got: "this".into() });
    let failed = t.b.capture(&mut || fails());
    ensure(failed.is_err(), || format!("work that fails gave {failed:?}"))
}
