//! The sampler: the effect of each setting; draws depend on seed and position only.

use proptest::prelude::*;
use tallow_core::ops::TopK;
use tallow_core::{Backend, Memory};
use tallow_cpu::{Cpu, Isa};
use tallow_engine::sampler::{
    Allowed, Choice, Constraint, LogitsNeeded, MaskThreads, SampleError, Sampler, Sampling, TokenMask,
};

use crate::candidates::uniform;

fn choose(how: Sampling, prompt: &[u32], logits: &[f32], place: usize) -> u32 {
    Sampler::new(how, prompt).sample(&mut logits.to_vec(), place).unwrap().token
}

/// Relative frequency of each token over many positions.
fn shares(how: &Sampling, logits: &[f32]) -> Vec<f64> {
    let draws = 20_000;
    let mut counts = vec![0.0; logits.len()];
    (0..draws)
        .for_each(|place| counts[choose(how.clone(), &[], logits, place) as usize] += 1.0 / draws as f64);
    counts
}

fn softmax(logits: &[f32], temperature: f64) -> Vec<f64> {
    let e: Vec<f64> = logits.iter().map(|x| (f64::from(*x) / temperature).exp()).collect();
    let sum: f64 = e.iter().sum();
    e.iter().map(|x| x / sum).collect()
}

fn near(got: &[f64], want: &[f64]) {
    for (g, w) in got.iter().zip(want) {
        assert!((g - w).abs() < 0.015, "{got:?} should be {want:?}");
    }
}

const LOGITS: [f32; 6] = [1.0, 3.0, 2.0, -1.0, 2.5, 0.0];

#[test]
fn draws_follow_the_softmax() {
    for temperature in [0.5, 1.0, 3.0] {
        let how = Sampling { temperature, ..Sampling::default() };
        near(&shares(&how, &LOGITS), &softmax(&LOGITS, f64::from(temperature)));
    }
}

#[test]
fn cuts_keep_what_they_should_in_proportion() {
    let all = softmax(&LOGITS, 1.0);
    let kept = |keep: &[usize]| -> Vec<f64> {
        let sum: f64 = keep.iter().map(|i| all[*i]).sum();
        (0..all.len()).map(|i| if keep.contains(&i) { all[i] / sum } else { 0.0 }).collect()
    };
    let base = Sampling::default();
    near(&shares(&Sampling { top_k: 2, ..base.clone() }, &LOGITS), &kept(&[1, 4]));
    // 0.46 + 0.28 is below 0.8; the next token exceeds it.
    near(&shares(&Sampling { top_p: 0.8, ..base.clone() }, &LOGITS), &kept(&[1, 4, 2]));
    // At least 0.3 of the largest probability: e^-1 is 0.37, e^-2 is 0.14.
    near(&shares(&Sampling { min_p: 0.3, ..base.clone() }, &LOGITS), &kept(&[1, 4, 2]));
    near(&shares(&Sampling { top_p: 1e-6, ..base }, &LOGITS), &kept(&[1]));
}

#[test]
fn typical_keeps_the_tokens_of_usual_surprise() {
    // Locally typical sampling: surprisals 0.51, 1.61, 2.30, 2.30 and entropy 1.20, so the second token is the most
    // typical, then the first.
    let p = [0.6f32, 0.2, 0.1, 0.1];
    let logits: Vec<f32> = p.iter().map(|p| p.ln()).collect();
    let base = Sampling::default();
    near(&shares(&Sampling { typical_p: 0.1, ..base.clone() }, &logits), &[0.0, 1.0, 0.0, 0.0]);
    near(&shares(&Sampling { typical_p: 0.5, ..base }, &logits), &[0.75, 0.25, 0.0, 0.0]);
}

#[test]
fn penalties_and_bias_change_logits() {
    let base = Sampling::greedy();
    assert_eq!(choose(base.clone(), &[], &LOGITS, 0), 1);
    let penalty = Sampling { repetition_penalty: 2.0, ..base.clone() };
    assert_eq!(choose(penalty.clone(), &[1], &LOGITS, 0), 4, "3.0 / 2 is less than 2.5");
    // A repetition penalty multiplies negative logits.
    let low = [-1.0, -1.5];
    assert_eq!(choose(penalty, &[0], &low, 0), 1);
    let mut s = Sampler::new(Sampling { presence_penalty: 0.6, ..base.clone() }, &[1]);
    assert_eq!(s.sample(&mut LOGITS.to_vec(), 0).unwrap().token, 1, "the prompt does not count");
    s.accept(1);
    assert_eq!(s.sample(&mut LOGITS.to_vec(), 0).unwrap().token, 4);
    let mut s = Sampler::new(Sampling { frequency_penalty: 0.3, ..base.clone() }, &[]);
    s.accept(1);
    assert_eq!(s.sample(&mut LOGITS.to_vec(), 0).unwrap().token, 1);
    s.accept(1);
    assert_eq!(s.sample(&mut LOGITS.to_vec(), 0).unwrap().token, 4);
    assert_eq!(choose(Sampling { bias: vec![(3, 9.0), (99, 5.0)], ..base.clone() }, &[], &LOGITS, 0), 3);
    let never = Sampling { bias: vec![(1, f32::NEG_INFINITY)], ..base };
    assert_eq!(choose(never, &[], &LOGITS, 0), 4);
}

#[test]
fn logprobs_are_the_models_own() {
    let how = Sampling { temperature: 0.0, logprobs: Some(3), bias: vec![(0, 100.0)], ..Sampling::default() };
    let choice = Sampler::new(how, &[]).sample(&mut LOGITS.to_vec(), 0).unwrap();
    let want: Vec<f64> = softmax(&LOGITS, 1.0).iter().map(|p| p.ln()).collect();
    assert_eq!(choice.token, 0);
    assert!((f64::from(choice.logprob.unwrap()) - want[0]).abs() < 1e-5);
    let top: Vec<u32> = choice.top.iter().map(|t| t.token).collect();
    assert_eq!(top, [1, 4, 2]);
    assert!(choice.top.iter().all(|t| (f64::from(t.logprob) - want[t.token as usize]).abs() < 1e-5));
}

#[test]
fn what_is_no_number_is_an_error() {
    for bad in [f32::NAN, f32::INFINITY] {
        for how in [Sampling::default(), Sampling::greedy()] {
            let got = Sampler::new(how, &[]).sample(&mut [1.0, bad, 2.0], 0);
            assert_eq!(got, Err(SampleError::NotFinite));
        }
    }
    let never = Sampler::new(Sampling::default(), &[]).sample(&mut [f32::NEG_INFINITY; 3], 0);
    assert_eq!(never, Err(SampleError::NotFinite));
    assert_eq!(choose(Sampling::default(), &[], &[f32::NEG_INFINITY, 1.0], 0), 1);
}

proptest! {
    #[test]
    fn the_same_seed_and_place_give_the_same_token(
        logits in prop::collection::vec(-20.0f32..20.0, 1..200),
        seed: u64,
        place in 0usize..10_000,
        temperature in 0.01f32..5.0,
        top_k in 0usize..50,
        top_p in 0.01f32..=1.0,
        min_p in 0.0f32..1.0,
        typical_p in 0.01f32..=1.0,
    ) {
        let how = Sampling { temperature, top_k, top_p, min_p, typical_p, seed, ..Sampling::default() };
        let token = choose(how.clone(), &[], &logits, place);
        prop_assert!((token as usize) < logits.len());
        prop_assert_eq!(choose(how, &[], &logits, place), token);
    }
}

#[test]
fn places_and_seeds_differ() {
    let how = Sampling::default();
    let flat = [0.0f32; 1000];
    let run = |seed: u64| -> Vec<u32> {
        (0..50).map(|place| choose(Sampling { seed, ..how.clone() }, &[], &flat, place)).collect()
    };
    assert_eq!(run(1), run(1));
    assert_ne!(run(1), run(2));
    let mut distinct = run(1);
    distinct.sort_unstable();
    distinct.dedup();
    assert!(distinct.len() > 40);
}

/// Adversarial logits: equal ones, ones equal after subtracting the maximum, zeros of both signs, denormals,
/// infinities, and occasionally NaN.
fn treacherous() -> impl Strategy<Value = Vec<f32>> {
    let near = prop_oneof![Just(1e-8f32), Just(2e-8), Just(-1e-8), Just(0.0), Just(-0.0), Just(1e-40)];
    let one = prop_oneof![
        30 => (-6i32..7).prop_map(|x| x as f32 / 2.0),
        30 => near,
        20 => -30.0f32..30.0,
        5 => Just(f32::NEG_INFINITY),
    ];
    let flat = (1usize..200, -1.0f32..1.0).prop_map(|(n, x)| vec![x; n]);
    let some = prop_oneof![2 => prop::collection::vec(one, 1..300), 1 => flat];
    let odd = prop_oneof![8 => Just(f32::NAN), 1 => Just(f32::INFINITY), 4 => Just(f32::MAX), 4 => Just(f32::NEG_INFINITY)];
    let odds = prop::collection::vec((any::<prop::sample::Index>(), odd), 1..400);
    let odds = prop_oneof![3 => Just(Vec::new()), 1 => odds];
    (some, odds, 0usize..400).prop_map(|(mut logits, odds, most)| {
        let count = logits.len();
        odds.iter().take(most).for_each(|(at, x)| logits[at.index(count)] = *x);
        logits
    })
}

/// Settings for which the top-k logits suffice.
fn few() -> impl Strategy<Value = Sampling> {
    let cut = || prop_oneof![Just(1.0f32), 0.01f32..1.0];
    let min_p = prop_oneof![Just(0.0f32), 0.0f32..0.5];
    let top_k = prop_oneof![Just(1usize), Just(2), Just(64), 1usize..=64];
    let temperature = prop_oneof![1 => Just(0.0f32), 4 => 0.01f32..5.0];
    (temperature, top_k, cut(), min_p, cut(), any::<u64>()).prop_map(
        |(temperature, top_k, top_p, min_p, typical_p, seed)| Sampling {
            temperature,
            top_k,
            top_p,
            min_p,
            typical_p,
            seed,
            ..Sampling::default()
        },
    )
}

/// Samples from the top-k tokens that the device returns.
fn choose_by_device(b: &Cpu, sampler: &Sampler, logits: &[f32], place: usize) -> Result<Choice, SampleError> {
    sample_by_device(b, sampler, logits, place).map(|choice| choice.expect("no constraint"))
}

/// The same; `None` if that takes the whole row.
fn sample_by_device(
    b: &Cpu,
    sampler: &Sampler,
    logits: &[f32],
    place: usize,
) -> Result<Option<Choice>, SampleError> {
    let LogitsNeeded::TopK(k) = sampler.needs(logits.len()) else { panic!("{sampler:?}") };
    let top = b.run(TopK { x: &b.upload_row(logits).unwrap(), k }).unwrap();
    let (tokens, logits) = (b.download::<u32>(&top.ids).unwrap(), b.download::<f32>(&top.values).unwrap());
    sampler.sample_topk(&tokens, &logits, place)
}

/// A mask that is always the same.
#[derive(Clone, Debug)]
struct Always(Allowed);

impl Constraint for Always {
    fn accept(&mut self, _: u32) -> Result<(), String> {
        Ok(())
    }

    fn allowed(&mut self) -> Result<Allowed, String> {
        Ok(self.0.clone())
    }

    fn fork(&self) -> Box<dyn Constraint> {
        Box::new(self.clone())
    }
}

/// Greedy answers under a constraint: from the likeliest tokens if one of them is allowed, and then the same token.
#[test]
fn the_likeliest_that_is_allowed_is_found_among_the_likeliest() {
    let b = Cpu::new(Isa::best(), 1).unwrap();
    let threads = MaskThreads::start().unwrap();
    let (mut found, mut not_found) = (0, 0);
    for seed in 0..600u64 {
        let vocab = 1 + seed as usize * 7 % 500;
        let share = [0.0, 0.01, 0.2, 1.0][seed as usize % 4];
        // Few different logits, and none for some tokens.
        let logits: Vec<f32> = (0..vocab)
            .map(|at| {
                if uniform(seed, at) < 0.2 {
                    f32::NEG_INFINITY
                } else {
                    (uniform(seed + 9, at) * 40.0).floor() as f32
                }
            })
            .collect();
        if logits.iter().all(|x| x.is_infinite()) {
            continue;
        }
        let allowed: Vec<u32> =
            (0..vocab).filter(|at| uniform(seed + 99, *at) < share).map(|at| at as u32).collect();
        let constraint = Always(Allowed::Any(TokenMask::of_tokens(&allowed, vocab)));
        let sampler =
            Sampler::new(Sampling::greedy(), &[]).with_constraint(Box::new(constraint), threads.clone());
        let whole = sampler.sample(&mut logits.clone(), 3);
        match sample_by_device(&b, &sampler, &logits, 3).unwrap() {
            Some(choice) => assert_eq!(Ok(choice), whole, "{seed}"),
            None => assert!(vocab > 64 || whole.is_err(), "{seed}: {whole:?}"),
        }
        let is_found = sample_by_device(&b, &sampler, &logits, 3).unwrap().is_some();
        (found, not_found) = (found + u32::from(is_found), not_found + u32::from(!is_found));
    }
    assert!(found > 200 && not_found > 100, "{found} {not_found}");
    let forced = Always(Allowed::Forced { token: 2, then: vec![] });
    let sampler = Sampler::new(Sampling::greedy(), &[]).with_constraint(Box::new(forced), threads);
    assert_eq!(sample_by_device(&b, &sampler, &LOGITS, 0).unwrap().map(|choice| choice.token), Some(2));
}

#[test]
fn the_most_likely_tokens_alone_give_the_same_token() {
    let b = Cpu::new(Isa::best(), 1).unwrap();
    let config = ProptestConfig { cases: 20_000, failure_persistence: None, ..ProptestConfig::default() };
    let seen = std::cell::RefCell::new(std::collections::BTreeMap::new());
    let cases = (treacherous(), few(), 0usize..10_000);
    let outcome = proptest::test_runner::TestRunner::new(config).run(&cases, |(logits, how, place)| {
        let sampler = Sampler::new(how, &[]);
        let got = choose_by_device(&b, &sampler, &logits, place);
        let mut want = sampler.sample(&mut logits.clone(), place);
        let k = sampler.how().top_k_needed().unwrap().min(logits.len());
        let sound = logits.iter().filter(|x| !x.is_nan()).count();
        let unnoticed = k <= sound && sound < logits.len();
        if unnoticed {
            // Top-k never returns NaN: equivalent to a logit of -inf.
            let never = |x: &f32| if x.is_nan() { f32::NEG_INFINITY } else { *x };
            want = sampler.sample(&mut logits.iter().map(never).collect::<Vec<_>>(), place);
        }
        *seen.borrow_mut().entry((unnoticed, want.is_ok(), k == logits.len())).or_insert(0) += 1;
        prop_assert_eq!(got, want);
        Ok(())
    });
    outcome.unwrap();
    // Every case has been covered.
    let seen = seen.into_inner();
    for case in [(false, true, false), (false, true, true), (false, false, false), (true, true, false)] {
        assert!(seen.get(&case).is_some_and(|n| *n > 50), "{case:?} of {seen:?}");
    }
}
