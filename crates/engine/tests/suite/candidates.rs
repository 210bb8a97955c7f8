//! Candidates: what they give is what the whole row gives, to the last bit; and they are enough for most rows.

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use std::sync::OnceLock;

use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use tallow_core::ops::{TailSum, TopK};
use tallow_core::{Backend, Memory};
use tallow_cpu::{Cpu, Isa};
use tallow_engine::sampler::{
    Allowed, Candidates, Choice, Constraint, LogitsNeeded, MaskThreads, SampleError, Sampler, Sampling, Tail,
    TokenMask, candidates_of, score,
};

/// A request's sampling and its tokens.
#[derive(Clone, Debug)]
struct Case {
    how: Sampling,
    prompt: Vec<u32>,
    answer: Vec<u32>,
    place: usize,
    /// The share of tokens that may come next, if not all may.
    allowed: Option<f64>,
}

impl Case {
    fn sampler(&self) -> Sampler {
        static THREADS: OnceLock<MaskThreads> = OnceLock::new();
        let sampler = Sampler::new(self.how.clone(), &self.prompt);
        let mut sampler = match self.allowed {
            Some(share) => {
                let threads = THREADS.get_or_init(|| MaskThreads::start().unwrap()).clone();
                sampler.with_constraint(Box::new(Share(share)), threads)
            }
            None => sampler,
        };
        self.answer.iter().for_each(|token| sampler.accept(*token));
        sampler
    }

    fn allows(&self, token: usize) -> bool {
        self.allowed.is_none_or(|share| is_in(share, token))
    }
}

/// A constraint that allows a share of the tokens, whatever came before.
#[derive(Clone, Copy, Debug)]
struct Share(f64);

fn is_in(share: f64, token: usize) -> bool {
    uniform(11, token) < share
}

impl Constraint for Share {
    fn accept(&mut self, _: u32) -> Result<(), String> {
        Ok(())
    }

    fn allowed(&mut self) -> Result<Allowed, String> {
        let word = |at: usize| (0..32).map(|bit| u32::from(is_in(self.0, 32 * at + bit)) << bit).sum();
        Ok(Allowed::Any(TokenMask::of_words((0..12_000 / 32 + 1).map(word).collect())))
    }

    fn fork(&self) -> Box<dyn Constraint> {
        Box::new(*self)
    }
}

/// Uniform in [0, 1) (SplitMix64).
pub(crate) fn uniform(seed: u64, place: usize) -> f64 {
    let mut z = seed.wrapping_add((place as u64 + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15));
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    ((z ^ (z >> 31)) >> 11) as f64 / (1u64 << 53) as f64
}

/// The definition: everything sorted, every sum in that order.
fn plain(case: &Case, row: &[f32]) -> Result<Choice, SampleError> {
    if row.iter().any(|x| x.is_nan() || *x == f32::INFINITY) || !row.iter().any(|x| x.is_finite()) {
        return Err(SampleError::NotFinite);
    }
    let how = &case.how;
    let mut logits = row.to_vec();
    for (token, bias) in &how.bias {
        logits.get_mut(*token as usize).into_iter().for_each(|x| *x += bias);
    }
    if (how.repetition_penalty, how.presence_penalty, how.frequency_penalty) != (1.0, 0.0, 0.0) {
        let mut seen: HashMap<u32, u32> = case.prompt.iter().map(|token| (*token, 0)).collect();
        case.answer.iter().for_each(|token| *seen.entry(*token).or_default() += 1);
        for (token, count) in seen {
            let Some(x) = logits.get_mut(token as usize) else { continue };
            *x = if *x > 0.0 { *x / how.repetition_penalty } else { *x * how.repetition_penalty };
            if count > 0 {
                *x -= how.presence_penalty + how.frequency_penalty * count as f32;
            }
        }
    }
    (0..)
        .zip(&mut logits)
        .filter(|(token, _)| !case.allows(*token))
        .for_each(|(_, x)| *x = f32::NEG_INFINITY);
    if case.allowed.is_some() && !logits.iter().any(|x| *x > f32::NEG_INFINITY) {
        return Err(SampleError::Constraint(String::new()));
    }
    let token = if how.temperature <= 0.0 { most_likely(&logits) } else { drawn(how, &logits, case.place) };
    match how.logprobs {
        Some(top) => score(row, token, top),
        None => Ok(Choice { token, logprob: None, top: Vec::new() }),
    }
}

fn most_likely(logits: &[f32]) -> u32 {
    // A NaN of a penalty or a bias is less than all.
    let greater = |i: usize, best: usize| logits[i] > logits[best] || logits[best].is_nan();
    (0..logits.len()).reduce(|best, i| if greater(i, best) { i } else { best }).unwrap() as u32
}

fn drawn(how: &Sampling, logits: &[f32], place: usize) -> u32 {
    let top = logits.iter().fold(f32::NEG_INFINITY, |m, x| m.max(*x));
    let weight = |x: f32| f64::from((x - top) / how.temperature).exp();
    let mut left: Vec<(u32, f32, f64)> =
        (0..).zip(logits).map(|(token, x)| (token, *x, weight(*x))).filter(|c| c.2 > 1e-12).collect();
    let order = |a: &(u32, f32, f64), b: &(u32, f32, f64)| b.1.partial_cmp(&a.1).unwrap().then(a.0.cmp(&b.0));
    left.sort_by(order);
    left.truncate(if how.top_k == 0 { usize::MAX } else { how.top_k });
    let total = |left: &[(u32, f32, f64)]| left.iter().map(|c| c.2).sum::<f64>();
    let keep = |left: &mut Vec<(u32, f32, f64)>, p: f32| {
        let (enough, mut sum, mut count) = (f64::from(p) * total(left), 0.0, 0);
        while count < left.len() && sum < enough {
            sum += left[count].2;
            count += 1;
        }
        left.truncate(count.max(1));
    };
    if how.typical_p < 1.0 {
        let all = total(&left);
        let surprise = |c: &(u32, f32, f64)| -(c.2 / all).ln();
        let entropy: f64 = left.iter().map(|c| c.2 / all * surprise(c)).sum();
        let far = |c: &(u32, f32, f64)| (surprise(c) - entropy).abs();
        left.sort_by(|a, b| far(a).total_cmp(&far(b)).then(a.0.cmp(&b.0)));
        keep(&mut left, how.typical_p);
        left.sort_by(order);
    }
    if how.top_p < 1.0 {
        keep(&mut left, how.top_p);
    }
    if how.min_p > 0.0 {
        let least = left.iter().fold(0.0f64, |m, c| m.max(c.2)) * f64::from(how.min_p);
        left.retain(|c| c.2 >= least);
    }
    let mut at = uniform(how.seed, place) * total(&left);
    for c in &left {
        at -= c.2;
        if at < 0.0 {
            return c.0;
        }
    }
    left.last().map_or(0, |c| c.0)
}

/// Samples from the candidates that the device returns.
fn by_candidates(b: &Cpu, case: &Case, row: &[f32]) -> Result<Option<Choice>, SampleError> {
    let (sampler, k) = (case.sampler(), candidates_of(row.len()));
    let x = b.upload_row(row).unwrap();
    let top = b.run(TopK { x: &x, k }).unwrap();
    let temperature = if case.how.temperature > 0.0 { case.how.temperature } else { 1.0 };
    let temperatures = b.upload_row(&[temperature, 1.0]).unwrap();
    let tails = b.run(TailSum { x: &x, top: &top, temperatures: &temperatures }).unwrap();
    let tails: Vec<f32> = b.download(&tails).unwrap();
    let edited = sampler.edited(&[], row.len());
    let edited_logits: Vec<f32> = edited.iter().map(|token| row[*token as usize]).collect();
    let (tokens, logits): (Vec<u32>, Vec<f32>) =
        (b.download(&top.ids).unwrap(), b.download(&top.values).unwrap());
    let candidates = Candidates {
        tokens: &tokens,
        logits: &logits,
        tail: Tail { count: row.len() - k, at_temperature: tails[0], at_one: tails[1] },
        edited: &edited,
        edited_logits: &edited_logits,
    };
    sampler.sample_candidates(&candidates, case.place)
}

/// Rows as models give them and as they do not: peaked, flat, with many ties, masked, extreme, and no numbers.
fn rows() -> impl Strategy<Value = Vec<f32>> {
    let size = prop_oneof![8 => 16usize..400, 2 => 400usize..3000, 1 => 8000usize..12_000];
    let kind = (0usize..7, any::<u64>(), prop_oneof![Just(0.0f32), 0.0f32..4.0, 0.0f32..40.0]);
    (size, kind).prop_map(|(size, (kind, seed, spread))| {
        let at = |i: usize| uniform(seed, i) as f32;
        let mut row: Vec<f32> = match kind {
            // As in text: the logarithms of a power law.
            0 | 1 => (0..size).map(|i| -(1.0 + size as f32 * at(i)).ln() * (1.0 + spread / 4.0)).collect(),
            2 => (0..size).map(|i| spread * (at(i) - 0.5)).collect(),
            3 => (0..size).map(|i| (8.0 * at(i)).floor() / 4.0 * spread).collect(),
            4 => (0..size).map(|i| if at(i) < 0.5 { 0.0 } else { -0.0 }).collect(),
            5 => (0..size).map(|i| (at(i) - 0.5) * 10f32.powf(38.0 * at(i + size))).collect(),
            _ => (0..size).map(|i| (1.0 / (1e-9 + at(i))).ln() * spread).collect(),
        };
        let odd = [f32::NEG_INFINITY, 30.0, 60.0, f32::MIN, f32::MAX, f32::NAN, f32::INFINITY, -0.0];
        match seed % 5 {
            0 => (0..size).filter(|i| at(i + 2 * size) < 0.6).for_each(|i| row[i] = f32::NEG_INFINITY),
            1 => row[(seed / 5) as usize % size] = odd[(seed / 100) as usize % odd.len()],
            _ => (),
        }
        row
    })
}

fn cases() -> impl Strategy<Value = Case> {
    let temperature = prop_oneof![2 => Just(0.0f32), 6 => Just(1.0), 6 => 0.05f32..3.0, 1 => 0.001f32..100.0];
    let top_p = prop_oneof![4 => Just(1.0f32), 3 => 0.5f32..1.0, 1 => 0.0f32..=1.0, 1 => Just(0.999_999)];
    let min_p = prop_oneof![4 => Just(0.0f32), 1 => 0.0f32..0.2, 1 => 0.0f32..=1.0];
    let typical_p = prop_oneof![6 => Just(1.0f32), 1 => 0.1f32..1.0];
    let top_k = prop_oneof![4 => Just(0usize), 1 => 1usize..60, 1 => 60usize..2000];
    let logprobs = prop_oneof![2 => Just(None), 1 => (0usize..21).prop_map(Some)];
    let penalty = || prop_oneof![3 => Just(0.0f32), 1 => -2.0f32..2.0];
    let repeated = prop_oneof![3 => Just(1.0f32), 2 => 0.8f32..1.5, 1 => Just(0.0)];
    let bias = prop_oneof![
        8 => -100.0f32..100.0,
        8 => -5.0f32..5.0,
        2 => Just(f32::NEG_INFINITY),
        1 => Just(f32::INFINITY),
        1 => Just(f32::NAN),
    ];
    let bias = prop_oneof![3 => Just(Vec::new()), 1 => prop::collection::vec((0u32..500, bias), 1..6)];
    let tokens = || prop::collection::vec(0u32..300, 0..12);
    let cuts = (temperature, top_k, top_p, min_p, typical_p);
    let allowed =
        prop_oneof![3 => Just(None), 1 => (0.0f64..1.0).prop_map(Some), 1 => (0.0f64..0.01).prop_map(Some)];
    let draw = (any::<u64>(), 0usize..5000, allowed);
    (cuts, repeated, penalty(), penalty(), bias, logprobs, draw, tokens(), tokens()).prop_map(
        |(
            cuts,
            repetition_penalty,
            presence_penalty,
            frequency_penalty,
            bias,
            logprobs,
            (seed, place, allowed),
            prompt,
            answer,
        )| {
            let (temperature, top_k, top_p, min_p, typical_p) = cuts;
            let how = Sampling {
                temperature,
                top_k,
                top_p,
                min_p,
                typical_p,
                repetition_penalty,
                presence_penalty,
                frequency_penalty,
                bias,
                seed,
                logprobs,
            };
            Case { how, prompt, answer, place, allowed }
        },
    )
}

/// A token that is masked and penalized by nothing at all is NaN, and is not chosen.
#[test]
fn a_penalty_of_nothing_chooses_no_token() {
    let how = Sampling { repetition_penalty: 0.0, ..Sampling::greedy() };
    let row = [f32::NEG_INFINITY, -1.5, -3.0, -0.5];
    for allowed in [None, Some(1.0)] {
        let case = Case { how: how.clone(), prompt: vec![0], answer: Vec::new(), place: 0, allowed };
        assert_eq!(case.sampler().sample(&mut row.to_vec(), 0).unwrap().token, 3, "{allowed:?}");
        assert_eq!(plain(&case, &row).unwrap().token, 3);
    }
}

#[test]
fn candidates_and_rows_give_what_the_definition_gives() {
    let b = Cpu::new(Isa::best(), 1).unwrap();
    let config = ProptestConfig { cases: 40_000, failure_persistence: None, ..ProptestConfig::default() };
    let seen = RefCell::new(BTreeMap::new());
    let outcome = TestRunner::new(config).run(&(rows(), cases()), |(row, case)| {
        let want = plain(&case, &row);
        let sampler = case.sampler();
        let of_row = sampler.sample(&mut row.clone(), case.place);
        // What it says is for people.
        let is_refused =
            |outcome: &Result<Choice, SampleError>| matches!(outcome, Err(SampleError::Constraint(_)));
        prop_assert!(of_row == want || is_refused(&of_row) && is_refused(&want), "{of_row:?}, not {want:?}");
        if sampler.needs(row.len()) != LogitsNeeded::Candidates {
            return Ok(());
        }
        let got = by_candidates(&b, &case, &row);
        let kind = match (&want, &got) {
            (Err(_), _) => "error",
            (_, Ok(None)) => "row",
            _ if case.allowed.is_some() => "constraint",
            _ if case.how.logprobs.is_some() => "log-probabilities",
            _ if !sampler.edited(&[], row.len()).is_empty() => "edited",
            _ if case.how.temperature == 0.0 => "greedy",
            _ => "draw",
        };
        *seen.borrow_mut().entry(kind).or_insert(0) += 1;
        if got != Ok(None) {
            prop_assert_eq!(got, want.map(Some));
        } else {
            prop_assert!(want != Err(SampleError::NotFinite));
        }
        Ok(())
    });
    outcome.unwrap();
    // Every kind of outcome is there, except greedy ones without edits and log-probabilities, which take no candidates.
    let seen = seen.into_inner();
    for kind in ["error", "row", "constraint", "log-probabilities", "edited", "draw"] {
        assert!(seen.get(kind).is_some_and(|n| *n > 300), "{kind} in {seen:?}");
    }
}

/// Rows like those of a language model: of 1000 draws at the server's default, few need the row.
#[test]
fn few_rows_of_text_need_all_logits() {
    let b = Cpu::new(Isa::best(), 1).unwrap();
    let vocab = 50_000;
    let share = |how: &Sampling, power: f32| {
        let draws = 200;
        let whole = (0..draws).filter(|place| {
            let noise = |i: usize| uniform(7 + *place as u64, i) as f32;
            let row: Vec<f32> =
                (0..vocab).map(|i| 20.0 - power * (1.0 + vocab as f32 * noise(i)).ln()).collect();
            let case =
                Case { how: how.clone(), prompt: vec![1, 2], answer: vec![3], place: *place, allowed: None };
            let got = by_candidates(&b, &case, &row).unwrap();
            got.is_some_and(|got| got == plain(&case, &row).unwrap())
        });
        1.0 - whole.count() as f64 / draws as f64
    };
    let base = Sampling::default();
    let logprobs = Sampling { logprobs: Some(20), ..base.clone() };
    let penalties = Sampling { repetition_penalty: 1.1, frequency_penalty: 0.2, ..base.clone() };
    let shares = [
        share(&base, 1.5),
        share(&Sampling { top_p: 0.95, ..base.clone() }, 1.5),
        share(&Sampling { min_p: 0.05, ..base }, 1.5),
        share(&penalties, 1.5),
        share(&logprobs, 2.0),
        share(&Sampling { temperature: 0.0, ..logprobs }, 2.0),
    ];
    println!("rows read: default, top-p, min-p, penalties, log-probabilities, greedy ones: {shares:?}");
    let most = [0.06, 0.04, 0.01, 0.06, 0.1, 0.1];
    assert!(shares.iter().zip(most).all(|(share, most)| *share <= most), "{shares:?}");
}
