//! Reads of a step from the device: one per step, with only the values that are needed, and a row by itself where the
//! candidates turn out not to be enough.

use std::ops::ControlFlow;

use crate::common::{cuda, faulty, model, runner};
use tallow_core::DType;
use tallow_engine::kv_cache::KvShape;
use tallow_engine::runner::{Outcome, Runner, SampleInput};
use tallow_engine::sampler::{SampleError, Sampler, Sampling};
use tallow_engine::scheduler::{Batch, BatchPart, LogitsRows, SeqId};
use tallow_models::decoder::Decoder;
use tallow_ptx::mock;

const VOCAB: usize = 96;
/// Candidates of a row.
const CANDIDATES: usize = VOCAB / 8;
/// Most likely token on the faulty device.
const LIKELY: u32 = 30;

type Outcomes = Vec<Result<Outcome, SampleError>>;
/// Rows and columns of everything that one read returned.
type Shapes = Vec<(usize, usize)>;

/// Part of a prompt, from its beginning.
fn part(tokens: &[u32], logits: LogitsRows) -> BatchPart {
    BatchPart::new(SeqId(0), tokens.to_vec(), vec![0, 1].into(), logits)
}

fn decodes(tokens: &[u32], how: Sampling) -> (BatchPart, Sampling, Vec<u32>) {
    (part(tokens, LogitsRows::Last), how, tokens.to_vec())
}

/// Runs a step of parts, each with its sampling and its whole prompt. Returns the outcomes and the shapes of the reads.
fn step(parts: &[(BatchPart, Sampling, Vec<u32>)]) -> (Outcomes, Vec<Shapes>) {
    let model = model();
    assert_eq!(model.spec.vocab, VOCAB);
    let runner = runner(&model);
    runner.backend().reads.borrow_mut().clear();
    let samplers: Vec<Sampler> = parts.iter().map(|(_, how, p)| Sampler::new(how.clone(), p)).collect();
    let asked = samplers.iter().zip(parts).map(|(sampler, (_, _, prompt))| SampleInput {
        sampler,
        prompt,
        input: None,
    });
    let asked: Vec<SampleInput<'_>> = asked.collect();
    let batch = Batch { parts: parts.iter().map(|(part, _, _)| part.clone()).collect() };
    let outcomes = runner.run(&batch, &asked).unwrap();
    let reads = runner.backend().reads.take();
    (outcomes, reads)
}

fn top_k(top_k: usize) -> Sampling {
    Sampling { top_k, ..Sampling::default() }
}

fn tokens(outcomes: &[Result<Outcome, SampleError>]) -> Vec<Option<u32>> {
    outcomes.iter().map(|o| o.as_ref().unwrap().next.first().map(|c| c.token)).collect()
}

#[test]
fn greedy_steps_read_one_token_each() {
    let parts: Vec<_> = (20..23).map(|t| decodes(&[t], Sampling::greedy())).collect();
    let (outcomes, reads) = step(&parts);
    assert_eq!(tokens(&outcomes), [Some(LIKELY); 3]);
    assert_eq!(reads, [[(3, 1), (3, 1)]]);
}

#[test]
fn few_likely_tokens_are_read_alone() {
    let (_, reads) = step(&[decodes(&[20], top_k(64)), decodes(&[21; 3], top_k(5))]);
    assert_eq!(reads, [[(2, 64), (2, 64)]]);
}

/// Values and ids of the candidates of some rows, and the softmax mass outside of them.
fn candidates(rows: usize) -> Shapes {
    vec![(rows, CANDIDATES), (rows, CANDIDATES), (rows, 1)]
}

#[test]
fn usual_sampling_reads_no_row() {
    // All logits are equal. With this seed the third token is drawn from the first eighth of them.
    let read = |how: Sampling| step(&[decodes(&[20, 21], how)]).1;
    let edited = |count: usize| [candidates(1), vec![(count, 1)]].concat();
    let base = Sampling::default;
    for how in [base(), top_k(5), Sampling { top_p: 0.95, ..base() }, Sampling { min_p: 0.05, ..top_k(9) }] {
        let few = how.top_k_needed().map(|k| vec![(1, k); 2]);
        assert_eq!(read(how), [few.unwrap_or_else(|| candidates(1))]);
    }
    // The mass at temperature 1 as well.
    let scored = read(Sampling { logprobs: Some(0), ..base() });
    assert_eq!(scored[0], [vec![(1, CANDIDATES); 2], vec![(1, 2)]].concat());
    assert_eq!(read(Sampling { repetition_penalty: 1.1, ..base() }), [edited(2)], "the prompt's tokens");
    assert_eq!(read(Sampling { frequency_penalty: 0.1, ..top_k(5) }), [edited(2)]);
    assert_eq!(read(Sampling { bias: vec![(3, 1.0), (99, 1.0), (3, 2.0)], ..base() }), [edited(1)]);
}

#[test]
fn rows_are_read_where_candidates_do_not_do() {
    let whole: Shapes = vec![(1, VOCAB)];
    let base = Sampling::default;
    // The second token is drawn from behind the candidates, and log-probabilities are not certain with so many others.
    for (tokens, how) in [(&[20][..], base()), (&[20, 21][..], Sampling { logprobs: Some(0), ..base() })] {
        let (outcomes, reads) = step(&[decodes(tokens, how.clone())]);
        assert_eq!(reads.len(), 2);
        assert_eq!(reads[1], whole);
        let want = Sampler::new(how, tokens).sample(&mut [0.0; VOCAB], tokens.len()).unwrap();
        assert_eq!(outcomes[0].as_ref().unwrap().next, [want]);
    }
    // Settings of which it is known before.
    let typical = Sampling { typical_p: 0.9, ..base() };
    let hot = Sampling { temperature: 1e6, ..base() };
    let many = Sampling { logprobs: Some(CANDIDATES), ..base() };
    let best = Sampling { repetition_penalty: 1.1, ..Sampling::greedy() };
    for how in [top_k(65), typical, hot, many, best] {
        assert_eq!(step(&[decodes(&[20], how)]).1, std::slice::from_ref(&whole));
    }
    // Most tokens have a penalty.
    let prompt: Vec<u32> = (20..40).collect();
    let penalty = Sampling { repetition_penalty: 1.1, ..base() };
    let part = part(&prompt[..2], LogitsRows::Last);
    assert_eq!(step(&[(part, penalty, prompt)]).1, [whole]);
}

#[test]
fn a_mixed_step_reads_once() {
    let whole = Sampling { typical_p: 0.9, ..Sampling::default() };
    let (outcomes, reads) = step(&[
        decodes(&[20], Sampling::greedy()),
        decodes(&[21], whole.clone()),
        decodes(&[22; 2], whole.clone()),
        (part(&[23; 5], LogitsRows::None), whole.clone(), vec![23; 6]),
        decodes(&[24], top_k(3)),
        decodes(&[25], whole),
        decodes(&[26; 2], Sampling::default()),
        decodes(&[27; 2], Sampling { bias: vec![(3, 1.0), (5, 1.0)], ..Sampling::default() }),
    ]);
    let given: Vec<bool> = tokens(&outcomes).iter().map(Option::is_some).collect();
    assert_eq!(given, [true, true, true, false, true, true, true, true]);
    // All logits of rows 1 and 2 and of row 4, the top 3 (ids and values) of rows 0 to 3, the candidates of rows 5 and 6,
    // and the logits of two tokens.
    let some = vec![(2, VOCAB), (1, VOCAB), (4, 3), (4, 3)];
    assert_eq!(reads, [[some, candidates(2), vec![(2, 1)]].concat()]);
}

#[test]
fn what_is_no_number_is_told_to_its_own_part() {
    let bad = [20, faulty::NOT_A_NUMBER, 21];
    // With this seed the fourth token is a candidate.
    let ways = [Sampling::greedy(), top_k(7), Sampling { seed: 5, ..Sampling::default() }];
    for ill in 0..ways.len() {
        let parts: Vec<_> = ways
            .iter()
            .enumerate()
            .map(|(i, how)| decodes(if i == ill { &bad } else { &[20, 21, 22] }, how.clone()))
            .collect();
        let (outcomes, reads) = step(&parts);
        let fails: Vec<bool> = outcomes.iter().map(Result::is_err).collect();
        assert_eq!(fails, (0..ways.len()).map(|i| i == ill).collect::<Vec<_>>());
        assert_eq!(reads.len(), 1);
    }
    // A prompt with NaN logits together with a good one.
    let scored =
        |tokens: &[u32]| (part(tokens, LogitsRows::All { last: true }), Sampling::greedy(), tokens.to_vec());
    let (outcomes, reads) = step(&[scored(&[20, faulty::NOT_A_NUMBER, 21, 22]), scored(&[20, 21, 22, 23])]);
    assert_eq!(outcomes[0], Err(SampleError::NotFinite));
    let fine = outcomes[1].as_ref().unwrap();
    assert_eq!((fine.prompt.len(), fine.next.first().map(|c| c.token)), (3, Some(LIKELY)));
    assert_eq!(reads, [[(3, VOCAB), (3, VOCAB), (5, 1), (5, 1)]]);
}

#[test]
fn scored_prompts_read_the_rows_that_are_scored() {
    let prompt: Vec<u32> = (20..28).collect();
    let all = |tokens: &[u32], last: bool, how: Sampling| {
        step(&[(part(tokens, LogitsRows::All { last }), how, prompt.clone())])
    };
    let scores = |outcomes: &[Result<Outcome, SampleError>]| {
        let prompt = &outcomes[0].as_ref().unwrap().prompt;
        prompt.iter().map(|c| c.token).collect::<Vec<_>>()
    };
    // A chunk of the prompt, with more to come.
    let (outcomes, reads) = all(&prompt[..5], false, Sampling::greedy());
    assert_eq!(scores(&outcomes), prompt[1..6]);
    assert_eq!(reads, [[(5, VOCAB)]]);
    // The whole prompt, without sampling.
    let (outcomes, reads) = all(&prompt, false, Sampling::greedy());
    assert_eq!((scores(&outcomes), tokens(&outcomes)), (prompt[1..].to_vec(), vec![None]));
    assert_eq!(reads, [[(7, VOCAB)]]);
    // The whole prompt and the first sampled token.
    let (outcomes, reads) = all(&prompt, true, Sampling::greedy());
    assert_eq!((scores(&outcomes), tokens(&outcomes)), (prompt[1..].to_vec(), vec![Some(LIKELY)]));
    assert_eq!(reads, [[(7, VOCAB), (1, 1), (1, 1)]]);
    let (_, reads) = all(&prompt, true, Sampling::default());
    let rest: Shapes = vec![(1, VOCAB)];
    assert_eq!(reads, [[vec![(7, VOCAB)], candidates(1)].concat(), rest.clone()]);
    // A preempted sequence that is recomputed, with a token of its answer.
    let again: Vec<u32> = (20..29).map(|t| if t == 28 { LIKELY } else { t }).collect();
    let blocks = vec![0, 1, 2].into();
    let again = BatchPart { blocks, ..part(&again, LogitsRows::All { last: true }) };
    let (outcomes, reads) = step(&[(again, Sampling::default(), prompt.clone())]);
    assert_eq!(scores(&outcomes), prompt[1..]);
    assert_eq!(reads, [[vec![(7, VOCAB)], candidates(1)].concat(), rest]);
}

#[test]
fn a_step_without_outputs_reads_nothing() {
    let (outcomes, reads) = step(&[
        (part(&[20; 5], LogitsRows::None), Sampling::greedy(), vec![20; 9]),
        (part(&[21; 3], LogitsRows::None), Sampling::default(), vec![21; 9]),
        (part(&[22], LogitsRows::All { last: false }), Sampling::greedy(), vec![22]),
    ]);
    assert_eq!(tokens(&outcomes), [None; 3]);
    assert!(reads.is_empty(), "{reads:?}");
}

/// Steps of many sequences, each sampled as the server does by default, on a device whose copies to the host are counted.
/// Returns for each step the reads and the copies.
fn usual_steps_on_cuda(logit_scale: f32) -> [(usize, u64); 3] {
    const SEQUENCES: u32 = 256;
    let (b, mut model) = (cuda(), model());
    model.spec.logit_scale = logit_scale;
    let decoder = Decoder::load(&b, &model, 128, &mut |_, _| ControlFlow::Continue(())).unwrap();
    let pages = SEQUENCES as usize;
    let shape = KvShape { dtype: DType::F16, page_len: 4, pages, swa_pages: 0, state_rows: 0 };
    let runner = Runner::new(b, decoder, shape).unwrap();
    let sampling = |seed| Sampling { seed, ..Sampling::default() };
    let samplers: Vec<_> = (0..u64::from(SEQUENCES)).map(|seed| Sampler::new(sampling(seed), &[])).collect();
    let asked = |sampler| SampleInput { sampler, prompt: &[], input: None };
    let asked: Vec<SampleInput<'_>> = samplers.iter().map(asked).collect();
    [0, 1, 2].map(|start| {
        let part = |i: u32| {
            let tokens = vec![20 + (7 * i + start as u32) % 70];
            let id = SeqId(u64::from(i));
            BatchPart { start, ..BatchPart::new(id, tokens, vec![i].into(), LogitsRows::Last) }
        };
        let batch = Batch { parts: (0..SEQUENCES).map(part).collect() };
        let counted = || (runner.backend().counts().reads, mock::calls("cuMemcpyDtoHAsync_v2"));
        let before = counted();
        let outcomes = runner.run(&batch, &asked).unwrap();
        assert!(tokens(&outcomes).iter().all(Option::is_some));
        let after = counted();
        (after.0 - before.0, after.1 - before.1)
    })
}

#[test]
fn usual_sampling_of_many_on_cuda_reads_no_row() {
    // Logits far apart, as a trained model has them. The values, the tokens and the mass of the others are all that is read.
    assert_eq!(usual_steps_on_cuda(64.0), [(1, 3); 3]);
    // Of random weights they are close to each other, and some tokens are drawn from behind the candidates.
    assert!(usual_steps_on_cuda(1.0).iter().all(|(reads, _)| *reads > 1));
}
