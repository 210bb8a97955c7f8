//! Constraints: answers keep to them, and one that fails ends its own request.

use tallow_engine::handle::{Event, Failure, Request};
use tallow_engine::sampler::{Allowed, Constraint, Sampling, TokenMask};

use crate::common::{Thirds, choices, comes_to_rest, events, request, start};

#[test]
fn answers_have_the_tokens_that_are_allowed_and_the_models_own_log_probabilities() {
    let handle = start(64);
    for i in 0..24u32 {
        let sampling = match i % 4 {
            0 => Sampling::greedy(),
            1 => Sampling { temperature: 0.8, top_k: 5, ..Sampling::default() },
            2 => Sampling { temperature: 1.2, top_p: 0.9, repetition_penalty: 1.2, ..Sampling::default() },
            _ => Sampling { logprobs: Some(96), seed: i.into(), ..Sampling::default() },
        };
        let constraint = Some(Thirds::boxed());
        let asked = Request { sampling, constraint, ignore_end: true, ..request(&[4 + i, 9, 30], 20) };
        let mut follows = Thirds::default();
        let answer = choices(&events(&handle, asked));
        assert_eq!(answer.len(), 20);
        for choice in answer {
            follows.accept(choice.token).unwrap();
            // Of the model: they do not know of the constraint, whose tokens would have all of it.
            let all: f32 = choice.top.iter().map(|scored| scored.logprob.exp()).sum();
            assert!(choice.top.is_empty() || (all - 1.0).abs() < 1e-4, "{all}");
            let own = choice.top.iter().find(|scored| scored.token == choice.token);
            assert_eq!(own.map(|scored| scored.logprob), choice.logprob);
        }
    }
}

/// A constraint that fails after some tokens, in some way.
#[derive(Clone, Copy, Debug)]
struct Fails {
    left: usize,
    how: &'static str,
}

impl Constraint for Fails {
    fn accept(&mut self, _: u32) -> Result<(), String> {
        self.left = self.left.saturating_sub(1);
        if self.left == 0 && self.how == "accept" { Err("it takes no more tokens".into()) } else { Ok(()) }
    }

    fn allowed(&mut self) -> Result<Allowed, String> {
        let all = TokenMask::of_words(vec![u32::MAX; 3]);
        match (self.left, self.how) {
            (0, "mask") => Err("it is too complex".into()),
            (0, "panics") => panic!("a constraint that panics"),
            (0, "nothing") => Ok(Allowed::Any(TokenMask::default())),
            _ => Ok(Allowed::Any(all)),
        }
    }

    fn fork(&self) -> Box<dyn Constraint> {
        Box::new(*self)
    }
}

#[test]
fn a_constraint_that_fails_ends_its_own_request() {
    let handle = start(64);
    let beside = || Request { ignore_end: true, ..request(&[7, 8, 9], 60) };
    let want = choices(&events(&handle, beside()));
    for (how, what) in [
        ("accept", "it takes no more tokens"),
        ("mask", "it is too complex"),
        ("panics", "the answer's constraint failed: this is a bug, please report it"),
        ("nothing", "the model gives none of the tokens that the answer's constraint allows a chance"),
    ] {
        for left in [0, 1, 5] {
            let mut healthy = handle.submit(beside()).unwrap();
            let constraint: Option<Box<dyn Constraint>> = Some(Box::new(Fails { left, how }));
            let got = events(&handle, Request { constraint, ignore_end: true, ..request(&[7, 8], 20) });
            let Some(Event::Failed(Failure::Broken(why))) = got.last() else { panic!("{how}: {got:?}") };
            assert!(why.contains(what), "{how}: {why}");
            // A constraint that takes no token fails at the one that it is told, which is the first.
            let told = if how == "accept" { left.max(1) } else { left };
            assert_eq!(choices(&got).len(), told, "{how} after {left}");
            let events: Vec<Event> = std::iter::from_fn(|| healthy.blocking_recv()).collect();
            assert_eq!(choices(&events), want, "beside {how}");
        }
    }
    comes_to_rest(&handle);
}
