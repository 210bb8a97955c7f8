//! Decisions of the scheduler, one at a time: shares, fairness, prefixes, preemption, refusals.

use tallow_engine::block_pool::{BlockPool, Chain};
use tallow_engine::failure::Unfit;
use tallow_engine::scheduler::{
    Batch, BatchPart, ClientId, DecodeBudget, DraftCosts, Limits, LogitsRows, NewSeq, Scheduler, SeqId,
    StepCost,
};

use crate::schedules::{follow, output};

pub(super) fn scheduler(context: usize, slots: usize, budget: usize, pages: usize) -> Scheduler {
    Scheduler::new(
        Limits {
            context,
            slots,
            budget,
            decode_budget: DecodeBudget::of_tokens(budget),
            all_logits: 8,
            drafts: None,
        },
        BlockPool::new(pages, 4),
    )
}

pub(super) fn submit(s: &mut Scheduler, id: u64, tokens: Vec<u32>, max_new: usize) {
    submit_for(s, 0, id, tokens, max_new);
}

fn submit_for(s: &mut Scheduler, client: u64, id: u64, tokens: Vec<u32>, max_new: usize) {
    let new = NewSeq {
        id: SeqId(id),
        tokens,
        max_new,
        root: Chain::ROOT,
        all_logits: false,
        lora: None,
        drafts: false,
        cross: None,
        client: ClientId(client),
    };
    s.submit(new).unwrap();
}

/// A made-up token for each part that samples one.
fn sevens(batch: &Batch) -> Vec<Vec<u32>> {
    batch.parts.iter().map(|part| vec![7; usize::from(part.logits.samples())]).collect()
}

/// Runs a step with made-up tokens.
pub(super) fn step(s: &mut Scheduler) -> Option<Batch> {
    let batch = s.next_batch()?;
    s.commit(&batch, &sevens(&batch));
    s.check().unwrap();
    Some(batch)
}

/// A step is launched before the tokens that it computes are known, unless it depends on them.
#[test]
fn a_step_is_planned_ahead_where_it_can_be() {
    let mut s = scheduler(100, 2, 16, 40);
    submit(&mut s, 0, vec![1; 20], 5);
    // Not to the end of the prompt.
    let first = s.next_batch().unwrap();
    s.advance(&first);
    assert_eq!(s.next_ahead(&first), None);
    s.commit(&first, &[vec![]]);
    // Four tokens are computed ahead, one after the other: the last of five is not computed.
    let mut running = s.next_batch().unwrap();
    s.advance(&running);
    for at in 20..24 {
        let mut next = s.next_ahead(&running).unwrap();
        let part = &next.parts[0];
        let has = (part.start, part.tokens.len(), part.blocks.len(), part.follows);
        assert_eq!((has, part.logits), ((at, 1, at / 4 + 1, Some(0)), LogitsRows::Last));
        assert_eq!(s.commit(&running, &[vec![7]]), [false]);
        follow(&mut next, &[vec![7]]);
        s.advance(&next);
        running = next;
    }
    assert_eq!(s.next_ahead(&running), None);
    assert_eq!(s.commit(&running, &[vec![7]]), [true]);
    // One of two that run ends, and is left out. One that waits is admitted first if there is a slot.
    submit(&mut s, 1, vec![2; 3], 2);
    submit(&mut s, 2, vec![3; 3], 9);
    let running = s.next_batch().unwrap();
    s.advance(&running);
    let next = s.next_ahead(&running).unwrap();
    assert_eq!(
        next.parts.iter().map(|part| (part.id.0, part.follows)).collect::<Vec<_>>(),
        [(1, Some(0)), (2, Some(1))]
    );
    s.commit(&running, &sevens(&running));
    s.advance(&next);
    submit(&mut s, 3, vec![4; 3], 2);
    let after = s.next_ahead(&next).unwrap();
    assert_eq!(after.parts.iter().map(|part| (part.id.0, part.follows)).collect::<Vec<_>>(), [(2, Some(1))]);
    assert_eq!(s.commit(&next, &sevens(&next)), [true, false]);
    s.advance(&after);
    assert_eq!(s.next_ahead(&after), None);
    s.check().unwrap();
}

/// Beside a prompt nothing is drafted. How often guesses are right is learned meanwhile, so that drafts begin at once after it.
#[test]
fn guesses_beside_a_prompt_are_learned_from() {
    // A guess must be right more often than is believed at first.
    let drafts = Some(DraftCosts::new(StepCost::Known { first: 1.0, more: 0.5 }, None));
    let limits = Limits {
        context: 400,
        slots: 2,
        budget: 16,
        decode_budget: DecodeBudget::of_tokens(5),
        all_logits: 8,
        drafts,
    };
    let drafted_after = |steps: usize| {
        let mut s = Scheduler::new(limits, BlockPool::new(100, 4));
        let new = |id, tokens, drafts| NewSeq {
            id: SeqId(id),
            tokens,
            max_new: 60,
            root: Chain::ROOT,
            all_logits: false,
            lora: None,
            drafts,
            cross: None,
            client: ClientId(id),
        };
        s.submit(new(0, (0..40).chain(0..3).collect(), true)).unwrap();
        s.submit(new(1, (1000..1300).collect(), false)).unwrap();
        // The answer goes on as the prompt began.
        let (mut next, mut beside) = (3, 0);
        while beside < steps {
            let batch = s.next_batch().unwrap();
            let samples = batch.parts[0].logits.samples();
            assert!(batch.parts.iter().all(|part| part.drafted == 0));
            // The longer prompt is computed beside the answer.
            assert!(batch.parts.len() == 2 || beside == 0);
            let sampled = [Vec::from_iter(samples.then_some(next)), vec![]];
            s.commit(&batch, &sampled[..batch.parts.len()]);
            next += u32::from(samples);
            beside += usize::from(samples);
        }
        s.drop_seq(SeqId(1));
        s.next_batch().unwrap().parts[0].drafted
    };
    assert_eq!(drafted_after(1), 0);
    assert!(drafted_after(12) > 0);
}

#[test]
fn a_prefix_that_many_share_is_computed_once() {
    let mut s = scheduler(100, 8, 64, 100);
    let shared: Vec<u32> = (0..40).collect();
    for id in 0..8 {
        let tokens = shared.iter().copied().chain([100 + id as u32]).collect();
        submit(&mut s, id, tokens, 2);
    }
    let mut computed = 0;
    while let Some(batch) = step(&mut s) {
        computed += batch.parts.iter().map(|p| p.tokens.len()).sum::<usize>();
    }
    // The 40 shared tokens once, plus each sequence's own last prompt token and first answer token.
    assert_eq!(computed, 40 + 8 * 2);
    assert_eq!(s.counts().prefix_hits, 7 * 40);
}

#[test]
fn a_long_prompt_does_not_hold_up_others() {
    let mut s = scheduler(1000, 4, 32, 400);
    submit(&mut s, 0, vec![1; 5], 50);
    step(&mut s);
    submit(&mut s, 1, vec![2; 900], 5);
    submit(&mut s, 2, vec![3; 10], 5);
    let batch = step(&mut s).unwrap();
    let rows: Vec<(u64, usize)> = batch.parts.iter().map(|p| (p.id.0, p.tokens.len())).collect();
    // The running answer continues, the short prompt completes, the long one gets the rest of the budget.
    assert_eq!(rows, [(0, 1), (1, 21), (2, 10)]);
}

/// Steps use the smaller decode budget while answers are streaming, and the full budget otherwise.
#[test]
fn steps_are_smaller_beside_answers() {
    let limits = Limits {
        context: 1000,
        slots: 4,
        budget: 64,
        decode_budget: DecodeBudget::of_tokens(16),
        all_logits: 8,
        drafts: None,
    };
    let mut s = Scheduler::new(limits, BlockPool::new(400, 4));
    let rows = |batch: Batch| -> Vec<(u64, usize)> {
        batch.parts.iter().map(|p| (p.id.0, p.tokens.len())).collect()
    };
    submit(&mut s, 0, vec![1; 100], 3);
    assert_eq!(rows(step(&mut s).unwrap()), [(0, 64)]);
    assert_eq!(rows(step(&mut s).unwrap()), [(0, 36)]);
    submit(&mut s, 1, vec![2; 150], 2);
    submit(&mut s, 2, vec![3; 4], 1);
    // The first has two tokens left.
    assert_eq!(rows(step(&mut s).unwrap()), [(0, 1), (1, 11), (2, 4)]);
    assert_eq!(rows(step(&mut s).unwrap()), [(0, 1), (1, 15)]);
    assert_eq!(rows(step(&mut s).unwrap()), [(1, 64)]);
    // Without tokens that any step may have there is still some prefill, so that prompts always progress.
    let limits = Limits {
        context: 100,
        slots: 4,
        budget: 64,
        decode_budget: DecodeBudget::of_tokens(0),
        all_logits: 8,
        drafts: None,
    };
    let s = Scheduler::new(limits, BlockPool::new(400, 4));
    assert_eq!([1, 3, 40].map(|decoding| s.decode_budget(decoding)), [2, 5, 64]);
    // Three quarters of what a step costs without prefill: of 14, 16 and 22 tokens.
    let limits = Limits { decode_budget: DecodeBudget { least: 16, fixed: 13 }, ..limits };
    let s = Scheduler::new(limits, BlockPool::new(400, 4));
    assert_eq!([1, 3, 9, 40].map(|decoding| s.decode_budget(decoding)), [16, 16, 25, 64]);
}

/// Without known costs forced tokens make a step a sixth longer, and sequences take turns at them; one alone has the whole budget.
#[test]
fn forced_tokens_hardly_keep_others_waiting() {
    let limits = Limits {
        context: 1000,
        slots: 4,
        budget: 64,
        decode_budget: DecodeBudget { least: 40, fixed: 10 },
        all_logits: 8,
        drafts: None,
    };
    let drafted = |s: &mut Scheduler| -> Vec<(u64, usize)> {
        s.force(|id| if id.0 == 9 { Vec::new() } else { vec![7; 6] });
        let batch = s.next_batch().unwrap();
        // What is forced is drafted, so that no step is planned ahead; asking changes nobody's turn.
        s.advance(&batch);
        assert!(s.next_ahead(&batch).is_none());
        // All of them are right.
        let sampled: Vec<_> = batch.parts.iter().map(|part| vec![7; 1 + part.drafted]).collect();
        s.commit(&batch, &sampled);
        s.check().unwrap();
        batch.parts.iter().map(|part| (part.id.0, part.drafted)).collect()
    };
    let mut s = Scheduler::new(limits, BlockPool::new(400, 4));
    submit(&mut s, 0, vec![1; 5], 100);
    assert_eq!(step(&mut s).unwrap().parts.len(), 1);
    assert_eq!(drafted(&mut s), [(0, 6)]);
    for id in [1, 2, 9] {
        submit(&mut s, id, vec![1; 5], 100);
    }
    assert_eq!(step(&mut s).unwrap().parts.len(), 4);
    // A sixth of what four tokens and the weights cost.
    assert_eq!(drafted(&mut s), [(0, 0), (1, 1), (2, 1), (9, 0)]);
    assert_eq!(drafted(&mut s), [(0, 1), (1, 1), (2, 0), (9, 0)]);
    let all: Vec<_> = (0..12).flat_map(|_| drafted(&mut s)).collect();
    let of = |id| all.iter().filter(|(of, _)| *of == id).map(|(_, n)| n).sum::<usize>();
    assert_eq!([of(0), of(1), of(2), of(9)], [8, 8, 8, 0]);
}

#[test]
fn prompts_to_be_scored_share_a_budget_of_their_own() {
    let mut s = scheduler(1000, 4, 64, 400);
    for (id, len, all_logits) in [(0, 100, true), (1, 2, true), (2, 100, false), (3, 100, true)] {
        let tokens = vec![10 + id as u32; len];
        s.submit(NewSeq {
            id: SeqId(id),
            tokens,
            max_new: 1,
            root: Chain::ROOT,
            all_logits,
            lora: None,
            drafts: false,
            cross: None,
            client: ClientId(0),
        })
        .unwrap();
    }
    let batch = step(&mut s).unwrap();
    let rows: Vec<(u64, usize)> = batch.parts.iter().map(|p| (p.id.0, p.tokens.len())).collect();
    // At most eight rows with all logits per step; the rest of the budget goes to the others.
    assert_eq!(rows, [(0, 6), (1, 2), (2, 56)]);
}

/// Half of a step goes to the prompt that came first, the other half to the shortest.
#[test]
fn the_oldest_prompt_and_the_shortest_advance() {
    let mut s = scheduler(1000, 4, 64, 400);
    for (id, len) in [(0, 300), (1, 100), (2, 40), (3, 100)] {
        submit(&mut s, id, vec![10 + id as u32; len], 1);
    }
    let rows = |batch: Batch| -> Vec<(u64, usize)> {
        batch.parts.iter().map(|p| (p.id.0, p.tokens.len())).collect()
    };
    let steps: Vec<_> = std::iter::from_fn(|| step(&mut s)).map(rows).collect();
    let both = |short: u64| vec![(0, 32), (short, 32)];
    let expected = [
        both(2),
        vec![(0, 32), (1, 24), (2, 8)],
        both(1),
        both(1),
        vec![(0, 32), (1, 12), (3, 20)],
        both(3),
        both(3),
        vec![(0, 48), (3, 16)],
        vec![(0, 28)],
    ];
    assert_eq!(steps, expected);
}

#[test]
fn the_newest_gives_way_and_comes_back() {
    // 8 pages of 4 tokens; each of the two sequences starts with 3 pages and needs 6 in the end.
    let mut s = scheduler(24, 2, 32, 8);
    submit(&mut s, 0, vec![1; 8], 16);
    submit(&mut s, 1, vec![2; 8], 16);
    let mut done = Vec::new();
    while let Some(batch) = s.next_batch() {
        let full = s.commit(&batch, &sevens(&batch));
        done.extend(batch.parts.iter().zip(full).filter(|(_, full)| *full).map(|(part, _)| part.id.0));
    }
    assert_eq!(done, [0, 1]);
    assert!(s.counts().preemptions > 0);
    assert_eq!(s.pool().available(), 8);
}

#[test]
fn a_client_waits_a_step_for_a_slot_however_much_another_has_asked() {
    let mut s = scheduler(200, 4, 64, 400);
    let (greedy, other) = (1, 2);
    let runs = |batch: Batch| batch.parts.iter().map(|p| p.id.0).collect::<Vec<_>>();
    (0..10).for_each(|id| submit_for(&mut s, greedy, id, vec![10 + id as u32; 3], 100));
    for _ in 0..5 {
        assert_eq!(runs(step(&mut s).unwrap()), [0, 1, 2, 3]);
    }
    // The newest sequence of the greedy client is preempted, and gets its slot back before those submitted later.
    submit_for(&mut s, other, 100, vec![9; 3], 3);
    for _ in 0..3 {
        assert_eq!(runs(step(&mut s).unwrap()), [0, 1, 2, 100]);
    }
    assert_eq!(runs(step(&mut s).unwrap()), [0, 1, 2, 3]);
    assert_eq!(s.counts().preemptions, 1);
    // In the end both clients have the same number of slots; no further preemptions.
    (101..110).for_each(|id| submit_for(&mut s, other, id, vec![9; 3], 100));
    for _ in 0..5 {
        assert_eq!(runs(step(&mut s).unwrap()), [0, 1, 101, 102]);
    }
    assert_eq!(s.counts().preemptions, 3);
    let mut ended = 4;
    while let Some(batch) = s.next_batch() {
        ended += s.commit(&batch, &sevens(&batch)).iter().filter(|full| **full).count();
    }
    assert_eq!(ended, 4 + 10 + 9);
}

#[test]
fn a_client_has_its_share_of_the_pages_too() {
    // Two long sequences have all pages but one; a slot is free, but no pages.
    let mut s = scheduler(60, 4, 64, 21);
    (0..2).for_each(|id| submit_for(&mut s, 1, id, vec![10 + id as u32; 38], 10));
    step(&mut s).unwrap();
    submit_for(&mut s, 2, 100, vec![9; 10], 2);
    let batch = step(&mut s).unwrap();
    assert_eq!(batch.parts.iter().map(|p| p.id.0).collect::<Vec<_>>(), [0, 100]);
    while step(&mut s).is_some() {}
    assert!(s.is_idle());
}

fn submit_input(s: &mut Scheduler, client: u64, id: u64, input: u32, max_new: usize) {
    let new = NewSeq {
        id: SeqId(id),
        tokens: vec![1],
        max_new,
        root: Chain::salted(u64::from(input)),
        all_logits: false,
        lora: None,
        drafts: false,
        client: ClientId(client),
        cross: Some(output(input, 10)),
    };
    s.submit(new).unwrap();
}

/// Sequences of a step, and the one whose input it encodes.
fn steps_and_encodes(batch: &Batch) -> (Vec<u64>, Vec<u64>) {
    let encodes = |p: &&BatchPart| p.cross.as_ref().is_some_and(|cross| cross.encode);
    let ids = |parts: Vec<&BatchPart>| parts.iter().map(|p| p.id.0).collect();
    (ids(batch.parts.iter().collect()), ids(batch.parts.iter().filter(encodes).collect()))
}

#[test]
fn an_input_that_many_share_is_encoded_once() {
    let mut s = scheduler(100, 4, 64, 40);
    (0..3).for_each(|id| submit_input(&mut s, id, id, 7, 5));
    assert_eq!(steps_and_encodes(&step(&mut s).unwrap()), (vec![0], vec![0]));
    // The input's three pages are shared; each of the sequences has one page of its own.
    assert_eq!(steps_and_encodes(&step(&mut s).unwrap()), (vec![0, 1, 2], vec![]));
    assert_eq!(s.pool().in_use(), 3 + 3);
    while step(&mut s).is_some() {}
    // Another draft of the same input finds it, also after all others have ended.
    submit_input(&mut s, 0, 3, 7, 5);
    assert_eq!(steps_and_encodes(&step(&mut s).unwrap()), (vec![3], vec![]));
    // Once a page of it is evicted it is encoded again.
    while step(&mut s).is_some() {}
    submit(&mut s, 4, vec![1; 99], 1);
    submit(&mut s, 5, vec![2; 60], 1);
    while step(&mut s).is_some() {}
    submit_input(&mut s, 0, 6, 7, 5);
    assert_eq!(steps_and_encodes(&step(&mut s).unwrap()), (vec![6], vec![6]));
}

#[test]
fn a_step_encodes_one_input_beside_those_that_decode() {
    let mut s = scheduler(100, 4, 64, 40);
    (0..3).for_each(|id| submit_input(&mut s, 0, id, id as u32, 9));
    assert_eq!(steps_and_encodes(&step(&mut s).unwrap()), (vec![0], vec![0]));
    assert_eq!(steps_and_encodes(&step(&mut s).unwrap()), (vec![0, 1], vec![1]));
    assert_eq!(steps_and_encodes(&step(&mut s).unwrap()), (vec![0, 1, 2], vec![2]));
    assert_eq!(steps_and_encodes(&step(&mut s).unwrap()), (vec![0, 1, 2], vec![]));
}

#[test]
fn a_client_with_many_recordings_does_not_delay_another() {
    let mut s = scheduler(100, 2, 64, 60);
    (0..10).for_each(|id| submit_input(&mut s, 1, id, id as u32, 50));
    (0..3).for_each(|_| drop(step(&mut s)));
    submit_input(&mut s, 2, 100, 100, 3);
    assert_eq!(steps_and_encodes(&step(&mut s).unwrap()), (vec![0, 100], vec![100]));
    (0..2).for_each(|_| assert_eq!(steps_and_encodes(&step(&mut s).unwrap()), (vec![0, 100], vec![])));
    // The preempted one goes on where it was: its input is still there.
    assert_eq!(steps_and_encodes(&step(&mut s).unwrap()), (vec![0, 1], vec![]));
}

#[test]
fn who_leaves_before_the_input_is_encoded_leaves_no_page_behind() {
    let mut s = scheduler(100, 2, 64, 40);
    submit_input(&mut s, 0, 0, 7, 5);
    let batch = s.next_batch().unwrap();
    assert_eq!(s.pool().in_use(), 4);
    // While the step is computed.
    s.drop_seq(SeqId(0));
    assert_eq!(s.commit(&batch, &[vec![7]]), [false]);
    assert_eq!((s.pool().in_use(), s.pool().at_rest(), s.check()), (0, Ok(()), Ok(())));
    // What it encoded may be overwritten by now: nobody finds it.
    submit_input(&mut s, 0, 1, 7, 5);
    assert_eq!(steps_and_encodes(&step(&mut s).unwrap()), (vec![1], vec![1]));
}

#[test]
fn salts_do_not_meet() {
    let mut s = scheduler(100, 8, 64, 100);
    for (id, root) in [(0, Chain::ROOT), (1, Chain::salted(5)), (2, Chain::salted(6)), (3, Chain::salted(5))]
    {
        let new = NewSeq {
            id: SeqId(id),
            tokens: vec![1; 20],
            max_new: 1,
            root,
            all_logits: false,
            lora: None,
            drafts: false,
            cross: None,
            client: ClientId(0),
        };
        s.submit(new).unwrap();
    }
    while step(&mut s).is_some() {}
    assert_eq!(s.counts().prefix_hits, 16);
}

#[test]
fn what_cannot_fit_is_refused_with_both_numbers() {
    let mut s = scheduler(50, 2, 32, 10);
    let new = |n: usize| NewSeq {
        id: SeqId(n as u64),
        tokens: vec![1; n],
        max_new: 5,
        root: Chain::ROOT,
        all_logits: false,
        lora: None,
        drafts: false,
        cross: None,
        client: ClientId(0),
    };
    assert_eq!(s.submit(new(0)), Err(Unfit::Empty));
    assert_eq!(s.submit(new(40)), Err(Unfit::TooLong { prompt: 40, context: 40 }));
    assert!(s.submit(new(39)).is_ok());
    let reads = |tokens, prompt| NewSeq { cross: Some(output(1, tokens)), ..new(prompt) };
    assert_eq!(s.submit(reads(0, 1)), Err(Unfit::Empty));
    assert_eq!(s.submit(reads(37, 1)), Err(Unfit::LongInput { tokens: 37, room: 36 }));
    assert_eq!(s.submit(reads(33, 4)), Err(Unfit::TooLong { prompt: 4, context: 4 }));
    assert!(s.submit(reads(33, 3)).is_ok());
}

#[test]
fn pages_that_are_not_in_order_are_noticed() {
    let pool = || BlockPool::new(10, 4);
    let told = |p: &BlockPool| (p.at_rest().err(), p.check([], [], []).is_err());
    assert_eq!(told(&pool()), (None, false));
    // A leaked page.
    let mut p = pool();
    let leaked = p.take().unwrap();
    assert_eq!(told(&p), (Some("nobody uses any page, and 9 of 10 can be had".into()), true));
    // A page freed twice: it makes up for the leak in number, but a full check finds it.
    let twice = p.take().unwrap();
    p.give_back(&[twice]);
    p.give_back(&[twice]);
    assert_eq!(told(&p), (None, true));
    p.give_back(&[leaked]);
    assert_eq!(told(&p), (Some("nobody uses any page, and 11 of 10 can be had".into()), true));
    // A page that is still indexed under its previous contents.
    let mut p = pool();
    let id = p.take().unwrap();
    p.publish(id, Chain::ROOT, &[1; 4]);
    p.publish(id, Chain::ROOT, &[2; 4]);
    p.give_back(&[id]);
    assert_eq!(told(&p), (Some("1 pages hold something, and 2 are indexed".into()), true));
}
