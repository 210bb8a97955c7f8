use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hasher};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use half::{bf16, f16};

use super::oracle::{self, Attention, Normed};
use super::{Bench, Bounded, Host, Outcome, Suite, text};
use crate::ops::{ATTEND_TILE, Attend, KvWrite, LatentWrite, QkvPrep};
use crate::{
    AttnSpec, Backend, DType, Heads, LayerKv, Norm, NormKind, QkNorm, Reading, RopePairs, RopeTable, Span,
    Step, StepPlan, Tensor, compose,
};

cases!(attend attend_alone attend_window attend_keys_as_values qkv_prep latent_write);

/// All types of KV cache.
const ALL: [DType; 5] = [DType::F32, DType::F16, DType::BF16, DType::I8, DType::F8];

/// Sequences with Q, K and V for all their positions, and the steps that compute parts of them.
struct Sequences {
    heads: Heads,
    page_len: usize,
    /// Sequence lengths.
    lens: Vec<usize>,
    /// True if the values are not the keys.
    has_values: bool,
    k: Vec<Host>,
    v: Vec<Host>,
    q: Vec<Host>,
}

impl Sequences {
    fn new(heads: Heads, page_len: usize, lens: &[usize]) -> Sequences {
        let make = |salt: usize, cols: usize| -> Vec<Host> {
            lens.iter().enumerate().map(|(i, n)| Host::random((31 * i + salt) as u64, *n, cols)).collect()
        };
        let (mut k, mut v, q) = (make(1, heads.kv_cols()), make(2, heads.kv_cols()), make(3, heads.q_cols()));
        for h in k.iter_mut().chain(&mut v) {
            h.data.chunks_exact_mut(heads.dim).for_each(away_from_ties);
        }
        Sequences { heads, page_len, lens: lens.to_vec(), has_values: true, k, v, q }
    }

    /// The same with keys as values.
    fn keys_as_values(self) -> Sequences {
        Sequences { has_values: false, v: self.k.clone(), ..self }
    }

    /// The pages of sequence `i`: not shared between sequences, and out of order.
    fn pages(&self, i: usize) -> Vec<u32> {
        let count = |n: usize| n.div_ceil(self.page_len);
        let before: usize = self.lens[..i].iter().map(|n| count(*n)).sum();
        (0..count(self.lens[i])).map(|p| (before + p) as u32).rev().collect()
    }

    fn page_count(&self) -> usize {
        self.lens.iter().map(|n| n.div_ceil(self.page_len)).sum()
    }

    /// A step that computes `rows` of sequence `i`, for each `(i, rows)`.
    fn step(&self, parts: &[(usize, std::ops::Range<usize>)]) -> Step {
        let span = |(i, rows): &(usize, std::ops::Range<usize>)| {
            let pages = self.pages(*i)[..rows.end.div_ceil(self.page_len)].iter().copied().collect();
            Span { rows: rows.len(), start: rows.start, pages }
        };
        let spans: Vec<Span> = parts.iter().map(span).collect();
        let tokens = vec![0; spans.iter().map(|s| s.rows).sum()];
        Step { tokens, spans, page_len: self.page_len, ..Step::default() }
    }

    fn gather(&self, from: &[Host], parts: &[(usize, std::ops::Range<usize>)]) -> Host {
        let cols = from.first().map_or(0, |h| h.cols);
        let data: Vec<f32> =
            parts.iter().flat_map(|(i, rows)| rows.clone().flat_map(|r| from[*i].row(r).to_vec())).collect();
        Host { rows: data.len() / cols.max(1), data, cols }
    }
}

/// KV cache of one layer; without `v` its values are its keys.
struct Cache<B: Backend> {
    k: Tensor<B>,
    v: Option<Tensor<B>>,
}

impl<B: Backend> Cache<B> {
    fn new(t: &Bench<'_, B>, s: &Sequences, dtype: DType) -> Result<Cache<B>, String> {
        let page = || t.b.alloc(dtype, s.page_count(), s.page_len * s.heads.cache_cols(dtype)).map_err(text);
        let v = s.has_values.then(page).transpose()?;
        Ok(Cache { k: page()?, v })
    }

    fn kv(&self) -> LayerKv<'_, B> {
        LayerKv { k: &self.k, v: self.v.as_ref() }
    }
}

/// Runs `kv_write` and `attend` for parts of some sequences.
fn attend_parts<B: Backend>(
    t: &Bench<'_, B>,
    s: &Sequences,
    cache: &Cache<B>,
    spec: &AttnSpec<B>,
    parts: &[(usize, std::ops::Range<usize>)],
) -> Result<Tensor<B>, String> {
    let plan = StepPlan::new(t.b, s.step(parts)).map_err(text)?;
    let k = t.strided(&s.gather(&s.k, parts))?;
    let v = s.has_values.then(|| t.up(&s.gather(&s.v, parts))).transpose()?;
    let q = t.strided(&s.gather(&s.q, parts))?;
    t.b.run(KvWrite { k: &k, v: v.as_ref(), heads: s.heads, kv: cache.kv(), plan: &plan }).map_err(text)?;
    t.b.run(Attend { q: &q, heads: s.heads, spec, kv: cache.kv(), plan: &plan }).map_err(text)
}

/// One head's keys or values, rounded as a KV cache of this type stores them.
fn rounded(mut h: Host, dtype: DType) -> Host {
    if let Some(reach) = dtype.max_abs() {
        for row in h.data.chunks_exact_mut(h.cols.max(1)) {
            let scale = most(row) / f64::from(reach);
            let nearest = |x: f64| if dtype == DType::I8 { x.round_ties_even() } else { nearest_f8(x) };
            row.iter_mut().for_each(|x| *x = (nearest(f64::from(*x) / scale) * scale) as f32);
        }
        return h;
    }
    h.map(|x| match dtype {
        DType::F16 => f16::from_f32(x).to_f32(),
        DType::BF16 => bf16::from_f32(x).to_f32(),
        _ => x,
    })
}

/// The largest magnitude.
fn most(x: &[f32]) -> f64 {
    f64::from(x.iter().fold(0f32, |most, x| most.max(x.abs())))
}

/// Spacing of e4m3 values near `x`: an eighth of the power of two at or below it, which is at least 2^-6 (subnormals).
fn step_of_f8(x: f64) -> f64 {
    2f64.powi(x.abs().log2().floor().max(-6.0) as i32 - 3)
}

/// The nearest e4m3 value, saturating.
fn nearest_f8(x: f64) -> f64 {
    let step = step_of_f8(x);
    ((x / step).round_ties_even() * step).clamp(-448.0, 448.0)
}

/// Moves elements that lie so close to halfway between two 8-bit codes that a device with a less exact division could
/// round to the other one.
fn away_from_ties(head: &mut [f32]) {
    let most = most(head);
    let is_tie = |x: f64| (x.abs().fract() - 0.5).abs() < 1e-3;
    let is_near_one = |x: f32| {
        let (whole, float) = (f64::from(x) / most * 127.0, f64::from(x) / most * 448.0);
        is_tie(whole) || is_tie(float / step_of_f8(float))
    };
    head.iter_mut().for_each(|x| {
        while is_near_one(*x) {
            *x *= 0.99;
        }
    });
}

fn plain<B: Backend>() -> AttnSpec<B> {
    AttnSpec { scale: 0.3, window: None, chunk: None, softcap: None, sinks: None, bias: None, causal: true }
}

/// What was computed of such inputs in this process. Over long sequences the oracle takes longer than most devices do, and each
/// suite asks for the same.
fn once<'a>(
    asked: String,
    inputs: impl IntoIterator<Item = &'a Host>,
    compute: impl FnOnce() -> Bounded,
) -> Arc<Bounded> {
    type Answers = BTreeMap<(String, u64), Arc<OnceLock<Arc<Bounded>>>>;
    static ANSWERS: Mutex<Answers> = Mutex::new(BTreeMap::new());
    let mut digest = DefaultHasher::new();
    for host in inputs {
        digest.write_usize(host.rows);
        digest.write(bytemuck::cast_slice(&host.data));
    }
    let place = {
        let mut answers = ANSWERS.lock().unwrap_or_else(PoisonError::into_inner);
        answers.entry((asked, digest.finish())).or_default().clone()
    };
    place.get_or_init(|| Arc::new(compute())).clone()
}

/// The oracle's result for the same parts.
///
/// Where not every row of long sequences is compared, those that are lie an odd number apart, so that all places within a tile are
/// among them; any number will do for the others.
fn answer<B: Backend>(
    t: &Bench<'_, B>,
    s: &Sequences,
    dtype: DType,
    spec: &AttnSpec<B>,
    (sinks, bias): (Option<&Host>, Option<&Host>),
    parts: &[(usize, std::ops::Range<usize>)],
) -> Arc<Bounded> {
    let AttnSpec { scale, window, chunk, softcap, causal, .. } = *spec;
    let Suite { values, every_row, .. } = t.suite;
    let (heads, rounding) = (s.heads, (t.suite.attends)(dtype));
    let settings = (scale, window, chunk, softcap, causal, values, every_row, rounding);
    let asked = format!("{:?}", (heads, &s.lens, dtype, settings, parts));
    let inputs = s.q.iter().chain(&s.k).chain(&s.v).chain(sinks).chain(bias);
    once(asked, inputs, || {
        // One matrix per KV head of each sequence.
        let split = |from: &[Host]| -> Vec<Vec<Host>> {
            let head = |h: &Host, i: usize| {
                let data =
                    (0..h.rows).flat_map(|r| h.row(r)[i * heads.dim..][..heads.dim].to_vec()).collect();
                rounded(Host { data, rows: h.rows, cols: heads.dim }, dtype)
            };
            from.iter().map(|h| (0..heads.kv).map(|i| head(h, i)).collect()).collect()
        };
        let (k, v) = (split(&s.k), split(&s.v));
        let places: Vec<(usize, usize)> =
            parts.iter().flat_map(|(i, rows)| rows.clone().map(move |p| (*i, p))).collect();
        Bounded::by_rows(places.len(), heads.q_cols(), |r| {
            let (i, position) = places[r];
            let apart = if every_row { 1 } else { (s.lens[i] / 150) | 1 };
            let is_compared = position.is_multiple_of(apart) || position + 1 == s.lens[i];
            if !is_compared || !values {
                return vec![(0.0, f64::INFINITY); heads.q_cols()];
            }
            let of_head = |h: usize| {
                let (sink, bias) = (sinks.map(|x| x.data[h]), bias.map(|x| x.row(h)));
                let q = &s.q[i].row(position)[h * heads.dim..][..heads.dim];
                let kv = h / (heads.q / heads.kv);
                let (k, v) = (&k[i][kv], &v[i][kv]);
                Attention { k, v, scale, window, chunk, softcap, sink, bias, causal, rounding }
                    .get(q, position)
            };
            (0..heads.q).flat_map(of_head).collect()
        })
    })
}

fn attend<B: Backend>(t: &Bench<'_, B>) -> Outcome {
    let heads = |q, kv, dim| Heads { q, kv, dim };
    for (heads, page_len, lens) in [
        (heads(1, 1, 2), 1, vec![3]),
        (heads(3, 3, 7), 4, vec![9, 21]),
        (heads(2, 1, 33), 16, vec![40]),
        (heads(4, 2, 12), 4, vec![9, 1, 17]),
        (heads(6, 1, 16), 16, vec![40, 5]),
        (heads(3, 3, 80), 16, vec![33]),
        (heads(4, 1, 128), 32, vec![70, 2]),
        (heads(2, 1, 64), 700, vec![650, 3]),
        (heads(8, 4, 8), 16, vec![1100]),
    ]
    .into_iter()
    .rev()
    .take(t.suite.sizes)
    {
        let s = Sequences::new(heads, page_len, &lens);
        let sinks = Host::random(5, 1, heads.q);
        let bias = Host::random(6, heads.q, 2 * 11 + 1).map(|x| 2.0 * x);
        let specs = [
            plain(),
            AttnSpec { causal: false, ..plain() },
            AttnSpec { window: Some(7), ..plain() },
            AttnSpec { window: Some(5), causal: false, ..plain() },
            AttnSpec { window: Some(1), softcap: Some(0.8), ..plain() },
            AttnSpec { chunk: Some(6), ..plain() },
            AttnSpec { chunk: Some(16), window: Some(9), ..plain() },
            AttnSpec { sinks: Some(t.up(&sinks)?), scale: 2.0, ..plain() },
            AttnSpec { bias: Some(t.strided(&bias)?), ..plain() },
            AttnSpec { bias: Some(t.up(&bias)?), causal: false, softcap: Some(3.0), ..plain() },
        ];
        // A device may pack four codes or two halves into a 32-bit word and require heads of whole words.
        let holds = |dtype: &DType| heads.dim.is_multiple_of((4 / dtype.size()).max(1));
        for dtype in t.caches(ALL).filter(holds) {
            for spec in &specs {
                let whole: Vec<_> = lens.iter().enumerate().map(|(i, n)| (i, 0..*n)).collect();
                let cache = Cache::new(t, &s, dtype)?;
                let y = attend_parts(t, &s, &cache, spec, &whole)?;
                let own = (spec.sinks.is_some().then_some(&sinks), spec.bias.is_some().then_some(&bias));
                t.near((heads, page_len, dtype, spec), &y, &answer(t, &s, dtype, spec, own, &whole))?;
                // Decode: recomputes the last token of each sequence over the filled cache.
                let decode: Vec<_> = lens.iter().enumerate().map(|(i, n)| (i, n - 1..*n)).collect();
                let y = attend_parts(t, &s, &cache, spec, &decode)?;
                t.near((heads, dtype, spec, "decode"), &y, &answer(t, &s, dtype, spec, own, &decode))?;
            }
        }
    }
    Ok(())
}

/// A token's attention is bit-identical whatever else is in the batch and however its sequence was cut into steps.
fn attend_alone<B: Backend>(t: &Bench<'_, B>) -> Outcome {
    for (heads, page_len, lens) in [
        (Heads { q: 4, kv: 2, dim: 12 }, 4, vec![23, 6, 90]),
        (Heads { q: 6, kv: 2, dim: 64 }, 16, vec![600, 31]),
    ]
    .into_iter()
    .take(t.suite.sizes / 2)
    {
        let s = Sequences::new(heads, page_len, &lens);
        for spec in [
            plain(),
            AttnSpec { window: Some(9), ..plain() },
            AttnSpec { chunk: Some(20), ..plain() },
            AttnSpec { causal: false, ..plain() },
            AttnSpec { window: Some(40), causal: false, ..plain() },
            AttnSpec { bias: Some(t.up(&Host::random(6, heads.q, 31))?), ..plain() },
            AttnSpec { bias: Some(t.up(&Host::random(6, heads.q, 31))?), causal: false, ..plain() },
        ] {
            for dtype in t.caches([DType::F32, DType::BF16, DType::I8, DType::F8]) {
                let whole: Vec<_> = lens.iter().enumerate().map(|(i, n)| (i, 0..*n)).collect();
                let all = attend_parts(t, &s, &Cache::new(t, &s, dtype)?, &spec, &whole)?;
                let mut first = 0;
                for (i, n) in lens.iter().enumerate() {
                    let cache = Cache::new(t, &s, dtype)?;
                    // Bidirectional attention needs the whole sequence in one step.
                    let cuts = match spec.causal {
                        true => vec![0, n / 3, n / 3 + 1, (n / 2).max(n / 3 + 1), *n],
                        false => vec![0, *n],
                    };
                    for cut in cuts.windows(2).filter(|c| c[0] < c[1]) {
                        let part = attend_parts(t, &s, &cache, &spec, &[(i, cut[0]..cut[1])])?;
                        let same = all.row_range(first + cut[0]..first + cut[1]);
                        t.same((heads, dtype, &spec, i, cut), &part, &same)?;
                    }
                    first += n;
                }
            }
        }
    }
    Ok(())
}

/// Pages before the tile in which the window of a step's first token begins are not read: they may have been freed, and hold
/// anything.
fn attend_window<B: Backend>(t: &Bench<'_, B>) -> Outcome {
    for (heads, page_len, len) in
        [(Heads { q: 4, kv: 2, dim: 12 }, 4, 201), (Heads { q: 6, kv: 2, dim: 64 }, 16, 790)]
            .into_iter()
            .take(t.suite.sizes / 2)
    {
        let s = Sequences::new(heads, page_len, &[len]);
        for (spec, reach) in [
            (AttnSpec { window: Some(9), ..plain() }, 9),
            (AttnSpec { window: Some(40), ..plain() }, 40),
            (AttnSpec { chunk: Some(20), ..plain() }, 20),
        ] {
            for dtype in t.caches(ALL) {
                let cache = Cache::new(t, &s, dtype)?;
                attend_parts(t, &s, &cache, &spec, &[(0, 0..len)])?;
                // One page more, all NaN.
                let freed = s.page_count();
                let with_freed = |from: &Tensor<B>| {
                    let all = t.b.alloc(dtype, freed + 1, from.cols()).map_err(text)?;
                    let mut bytes = vec![0xff; all.bytes()];
                    let (to, from) = (&mut bytes[..from.bytes()], from);
                    t.b.read(&mut [Reading { from, to }]).map_err(text)?;
                    t.b.write(&all, &bytes).map_err(text)?;
                    Ok::<_, String>(all)
                };
                let v = cache.v.as_ref().map(with_freed).transpose()?;
                let other = Cache { k: with_freed(&cache.k)?, v };
                for rows in [len - 1..len, len / 2..len / 2 + 7, len - 60..len] {
                    let q = t.up(&s.gather(&s.q, &[(0, rows.clone())]))?;
                    let mut step = s.step(&[(0, rows.clone())]);
                    let run = |cache: &Cache<B>, step: &Step| {
                        let plan = StepPlan::new(t.b, step.clone()).map_err(text)?;
                        let op = Attend { q: &q, heads, spec: &spec, kv: cache.kv(), plan: &plan };
                        t.b.run(op).map_err(text)
                    };
                    let want = run(&cache, &step)?;
                    let first = (rows.start + 1).saturating_sub(reach);
                    let gone = first / ATTEND_TILE * ATTEND_TILE / page_len;
                    let pages = step.spans[0].pages.iter().skip(gone).copied();
                    step.spans[0].pages = std::iter::repeat_n(freed as u32, gone).chain(pages).collect();
                    t.same((heads, dtype, &spec, rows), &run(&other, &step)?, &want)?;
                }
            }
        }
    }
    Ok(())
}

/// A cache whose values are its keys (MLA): against the oracle, and a token alone as in any batch.
fn attend_keys_as_values<B: Backend>(t: &Bench<'_, B>) -> Outcome {
    let heads = |q, dim| Heads { q, kv: 1, dim };
    for (heads, page_len, lens) in [
        (Heads { q: 4, kv: 2, dim: 12 }, 4, vec![9, 17]),
        (heads(3, 20), 24, vec![31]),
        (heads(2, 576), 16, vec![21]),
        (heads(16, 72), 16, vec![290, 1]),
        (heads(40, 36), 32, vec![70, 5]),
    ]
    .into_iter()
    .rev()
    .take(t.suite.sizes)
    {
        let s = Sequences::new(heads, page_len, &lens).keys_as_values();
        let specs = [plain(), AttnSpec { window: Some(7), softcap: Some(0.8), ..plain() }];
        let specs = &specs;
        for (dtype, spec) in t.caches(ALL).flat_map(|dtype| specs.iter().map(move |spec| (dtype, spec))) {
            let whole: Vec<_> = lens.iter().enumerate().map(|(i, n)| (i, 0..*n)).collect();
            let all = attend_parts(t, &s, &Cache::new(t, &s, dtype)?, spec, &whole)?;
            t.near((heads, page_len, dtype, spec), &all, &answer(t, &s, dtype, spec, (None, None), &whole))?;
            let mut end = 0;
            for (i, n) in lens.iter().enumerate() {
                end += n;
                // The prompt in one step, then its last token again.
                let cache = Cache::new(t, &s, dtype)?;
                attend_parts(t, &s, &cache, spec, &[(i, 0..*n)])?;
                let last = attend_parts(t, &s, &cache, spec, &[(i, n - 1..*n)])?;
                t.same((heads, dtype, spec, i), &last, &all.row_range(end - 1..end))?;
            }
        }
    }
    Ok(())
}

fn qkv_prep<B: Backend>(t: &Bench<'_, B>) -> Outcome {
    let heads = Heads { q: 4, kv: 2, dim: 10 };
    let s = Sequences::new(heads, 4, &[7, 2]);
    let parts = [(0, 0..7), (1, 0..2)];
    let table = Host::random(8, 9, 6);
    for (norm_width, pairs) in
        [(None, RopePairs::Halves), (Some(10), RopePairs::Interleaved), (Some(20), RopePairs::Halves)]
    {
        let weight = norm_width.map(|w| Host::random(11, 1, w));
        let norm = |weight: &Host| -> Result<Norm<B>, String> {
            Ok(Norm { kind: NormKind::Rms, weight: t.up(weight)?, bias: None, eps: 1e-4 })
        };
        let qk_norm =
            weight.as_ref().map(|w| Ok::<_, String>(QkNorm { q: norm(w)?, k: norm(w)? })).transpose()?;
        let rope = RopeTable { table: t.up(&table)?, pairs };
        let plan = StepPlan::new(t.b, s.step(&parts)).map_err(text)?;
        let mut joint = Host { data: Vec::new(), rows: 9, cols: heads.qkv_cols() };
        let (q, k, v) = (s.gather(&s.q, &parts), s.gather(&s.k, &parts), s.gather(&s.v, &parts));
        for r in 0..9 {
            joint.data.extend(q.row(r).iter().chain(k.row(r)).chain(v.row(r)));
        }
        let qkv = t.up(&joint)?;
        let (one, two) = (Cache::new(t, &s, DType::F32)?, Cache::new(t, &s, DType::F32)?);
        let op =
            |kv| QkvPrep { qkv: &qkv, heads, qk_norm: qk_norm.as_ref(), rope: Some(&rope), kv, plan: &plan };
        let got = t.b.run(op(one.kv())).map_err(text)?;
        let places = oracle::row_places(&plan.host().spans);
        let want = Bounded::by_rows(9, heads.q_cols(), |r| {
            let row: Vec<f64> = q.row(r).iter().map(|x| f64::from(*x)).collect();
            let row = weight.as_ref().map_or(row.clone(), |w| {
                Normed { kind: NormKind::Rms, weight: w, bias: None, eps: 1e-4 }.row(&row)
            });
            let angles = table.row(places[r].1);
            row.chunks(10).flat_map(|h| oracle::rotate(h, angles, pairs)).map(|y| (y, 8e-6)).collect()
        });
        t.near((norm_width, pairs), &got, &want)?;
        t.like_default((norm_width, pairs), &got, compose::qkv_prep(t.b, &op(two.kv())))?;
        // The cache's contents can be compared only through attention.
        let attend = |cache: &Cache<B>| {
            t.b.run(Attend { q: &got, heads, spec: &plain(), kv: cache.kv(), plan: &plan }).map_err(text)
        };
        t.like_default((norm_width, "cache"), &attend(&one)?, Ok(attend(&two)?))?;
    }
    Ok(())
}

/// The cache's contents can be compared only through attention: against the oracle's of rows put together in `f64`, and
/// against the default's.
fn latent_write<B: Backend>(t: &Bench<'_, B>) -> Outcome {
    for (latent, others, rotated, pairs) in [
        (512, 64, Some(64), RopePairs::Interleaved),
        (24, 12, Some(8), RopePairs::Halves),
        (20, 4, None, RopePairs::Halves),
    ] {
        let heads = Heads { q: 3, kv: 1, dim: latent + others };
        let s = Sequences::new(heads, 16, &[19, 2]).keys_as_values();
        let parts = [(0, 0..19), (1, 0..2)];
        let plan = StepPlan::new(t.b, s.step(&parts)).map_err(text)?;
        let (given, weight) = (s.gather(&s.k, &parts), Host::random(11, 1, latent));
        let norm = Norm { kind: NormKind::Rms, weight: t.up(&weight)?, bias: None, eps: 1e-4 };
        let table = rotated.map(|width| Host::random(8, 19, width));
        let rope = table
            .as_ref()
            .map(|table| Ok::<_, String>(RopeTable { table: t.up(table)?, pairs }))
            .transpose()?;
        let places = oracle::row_places(&plan.host().spans);
        let row = |r: usize| -> Vec<f32> {
            let x: Vec<f64> = given.row(r).iter().map(|x| f64::from(*x)).collect();
            let norm = Normed { kind: NormKind::Rms, weight: &weight, bias: None, eps: 1e-4 };
            let front = match &table {
                Some(table) => oracle::rotate(&x[latent..], table.row(places[r].1), pairs),
                None => x[latent..].to_vec(),
            };
            front.into_iter().chain(norm.row(&x[..latent])).map(|x| x as f32).collect()
        };
        let rows = |r: std::ops::Range<usize>| Host {
            rows: r.len(),
            data: r.flat_map(row).collect(),
            cols: heads.dim,
        };
        let keys = vec![rows(0..19), rows(19..21)];
        let (x, q) = (t.strided(&given)?, t.up(&s.gather(&s.q, &parts))?);
        let spec = AttnSpec { scale: 0.05, ..plain() };
        let want = Sequences { v: keys.clone(), k: keys, ..s };
        // Where elements are rounded, the last bit of a norm may decide which way.
        for dtype in t.caches([DType::F32, DType::F16, DType::I8]) {
            let (one, two) = (Cache::new(t, &want, dtype)?, Cache::new(t, &want, dtype)?);
            let op = |kv| LatentWrite { x: &x, norm: &norm, rope: rope.as_ref(), heads, kv, plan: &plan };
            t.b.run(op(one.kv())).map_err(text)?;
            compose::latent_write(t.b, &op(two.kv())).map_err(text)?;
            let attend = |cache: &Cache<B>| {
                t.b.run(Attend { q: &q, heads, spec: &spec, kv: cache.kv(), plan: &plan }).map_err(text)
            };
            let got = attend(&one)?;
            if dtype == DType::F32 {
                t.near((latent, others, dtype), &got, &answer(t, &want, dtype, &spec, (None, None), &parts))?;
                t.like_default((latent, others, dtype), &got, Ok(attend(&two)?))?;
                continue;
            }
            let default: Vec<f32> = t.down(&attend(&two)?)?;
            let data = default.iter().map(|x| (f64::from(*x), 2e-2)).collect();
            t.near((latent, others, dtype), &got, &Bounded { data, rows: got.rows(), cols: got.cols() })?;
        }
    }
    Ok(())
}
