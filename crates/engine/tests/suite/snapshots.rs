//! Prefix caching of models with recurrent state: what is reused, and what chats compute again.

use tallow_engine::block_pool::BlockPool;
use tallow_engine::scheduler::{Batch, SNAPSHOT_EVERY, Scheduler};

use crate::scheduler::{scheduler, step, submit};

/// A scheduler for a model with recurrent state, with so many rows for snapshots.
fn recurrent(slots: usize, budget: usize, snapshots: usize) -> Scheduler {
    let limits = scheduler(5000, slots, budget, 1).limits();
    Scheduler::new(limits, BlockPool::with_states(2000, 4, 2 * slots + snapshots))
}

/// Start and number of the tokens that each step computes, until the sequences end.
fn computed(s: &mut Scheduler) -> Vec<(u64, usize, usize)> {
    let steps = std::iter::from_fn(|| step(s));
    steps.flat_map(|b| b.parts.into_iter().map(|p| (p.id.0, p.start, p.tokens.len()))).collect()
}

/// Tokens computed besides those of the answers, which come one by one.
fn prefill(s: &mut Scheduler) -> Vec<(u64, usize, usize)> {
    computed(s).into_iter().filter(|(_, _, count)| *count > 1).collect()
}

/// The places where each step of a batch leaves snapshots on its way.
fn on_the_way(batch: &Batch) -> Vec<usize> {
    batch.parts.iter().flat_map(|p| p.snapshots.iter().map(|(after, _)| p.start + after)).collect()
}

/// With recurrent layers pages alone are not enough: a prompt is reused up to a snapshot. Its last token is always
/// computed, so the last snapshot is after the page before that. No step of its own is needed for it.
#[test]
fn a_prompt_is_reused_up_to_a_snapshot_of_the_state() {
    let mut s = recurrent(4, 512, 4);
    submit(&mut s, 0, (0..42).collect(), 1);
    assert_eq!(prefill(&mut s), [(0, 0, 42)]);
    submit(&mut s, 1, (0..42).collect(), 1);
    assert_eq!(prefill(&mut s), [(1, 40, 2)]);
    submit(&mut s, 2, (0..60).collect(), 1);
    assert_eq!(prefill(&mut s), [(2, 40, 20)]);
    assert_eq!(s.counts().prefix_hits, 80);
}

/// There is no snapshot yet where a prompt first differs from an earlier one, far from their ends. It makes one for the third.
#[test]
fn a_snapshot_is_made_where_prompts_part() {
    let mut s = recurrent(4, 512, 4);
    let prompt = |last: u32| (0..32).chain((0..24).map(|i| last + i)).collect::<Vec<u32>>();
    submit(&mut s, 0, prompt(100), 1);
    assert_eq!(prefill(&mut s), [(0, 0, 56)]);
    submit(&mut s, 1, prompt(200), 1);
    assert_eq!(prefill(&mut s), [(1, 0, 56)]);
    submit(&mut s, 2, prompt(300), 1);
    assert_eq!(prefill(&mut s), [(2, 32, 24)]);
}

/// Those that wait are asked for before the state is gone.
#[test]
fn a_snapshot_is_made_for_those_that_wait() {
    let mut s = recurrent(4, 512, 4);
    let prompt = |last: u32| (0..32).chain((0..12).map(|i| last + i)).collect::<Vec<u32>>();
    for id in 0..3 {
        submit(&mut s, id, prompt(100 * id as u32), 1);
    }
    let all = prefill(&mut s);
    let total: usize = all.iter().map(|(_, _, count)| count).sum();
    assert_eq!(total, 44 + 2 * 12, "{all:?}");
}

/// Those that come while a step runs do not wait for a snapshot that it does not make.
#[test]
fn no_snapshot_is_planned_within_a_step_that_is_under_way() {
    let mut s = recurrent(4, 512, 4);
    let prompt = |last: u32| (0..32).chain((0..24).map(|i| last + i)).collect::<Vec<u32>>();
    submit(&mut s, 0, prompt(100), 1);
    let batch = s.next_batch().unwrap();
    assert_eq!((batch.parts[0].start, batch.parts[0].tokens.len()), (0, 56));
    assert_eq!(on_the_way(&batch), [44, 52]);
    s.advance(&batch);
    submit(&mut s, 1, prompt(200), 1);
    s.commit(&batch, &[vec![7]]);
    assert_eq!(prefill(&mut s), [(1, 0, 56)]);
}

/// The next turn of a chat has the answer in its prompt; of the snapshots within an answer only the newest is there.
#[test]
fn the_next_turn_reuses_the_answer() {
    let mut s = recurrent(1, 512, 4);
    submit(&mut s, 0, (0..10).collect(), 30);
    computed(&mut s);
    let spare = s.pool().spare_states();
    assert_eq!(spare, 6 - 2, "of the prompt and of the answer");
    // The step's made-up tokens are all 7; the last one is sampled, and not computed.
    let turn: Vec<u32> = (0..10).chain([7; 30]).chain(50..60).collect();
    submit(&mut s, 1, turn, 1);
    assert_eq!(prefill(&mut s), [(1, 36, 14)]);
}

/// A long prompt has snapshots on its way, as long as there are rows that hold nothing.
#[test]
fn long_prompts_have_snapshots_on_their_way() {
    for (snapshots, reused) in [(8, 3 * SNAPSHOT_EVERY), (0, 0)] {
        let mut s = recurrent(1, 512, snapshots);
        submit(&mut s, 0, (0..4000).collect(), 1);
        computed(&mut s);
        submit(&mut s, 1, (0..3500).chain([9; 100]).collect(), 1);
        assert_eq!(prefill(&mut s)[0].1, reused);
    }
}

/// A prompt whose end is edited goes on close before the edit: what is computed again is about a fifth of what is new, or
/// less than two pages.
#[test]
fn an_edited_message_computes_little_again() {
    for behind in [12, 40, 100, 250, 600, 900] {
        let mut s = recurrent(1, 128, 110);
        submit(&mut s, 0, (0..2000).collect(), 1);
        computed(&mut s);
        let edit = 2000 - behind;
        submit(&mut s, 1, (0..edit).chain(vec![9999; behind as usize]).collect(), 1);
        let again = edit as usize - prefill(&mut s)[0].1;
        assert!(again <= 8.max(behind as usize * 22 / 100), "{again} again, {behind} new");
    }
}

/// Where there is no row for a snapshot that is due, a step ends there: it writes a state in any case.
#[test]
fn a_step_ends_at_a_snapshot_that_has_no_row() {
    let mut s = recurrent(1, 24, 0);
    submit(&mut s, 0, (0..42).collect(), 1);
    assert_eq!(prefill(&mut s), [(0, 0, 24), (0, 24, 16), (0, 40, 2)]);
}

/// Snapshots near the ends of prompts take no row of one that is kept, but for a quarter of all.
#[test]
fn snapshots_of_other_chats_are_kept() {
    let mut s = recurrent(1, 8, 14);
    let prompt = |id: u32| (0..30).map(|i| i + 100 * id).collect::<Vec<u32>>();
    let chats = 0..8;
    for id in chats.clone() {
        submit(&mut s, u64::from(id), prompt(id), 1);
        computed(&mut s);
    }
    for id in chats {
        submit(&mut s, 100 + u64::from(id), prompt(id), 1);
        assert_eq!(prefill(&mut s)[0].1, 28, "chat {id}");
    }
    // Of the newest prompts there are others, too.
    submit(&mut s, 200, (0..4900).map(|i| i + 10_000).collect(), 1);
    computed(&mut s);
    submit(&mut s, 201, (0..4870).chain(0..30).map(|i| i + 10_000).collect(), 1);
    let reused = prefill(&mut s)[0].1;
    assert!((4800..4870).contains(&reused), "{reused}");
}

/// Another request with as long an end does not take the snapshots of a message that is edited.
#[test]
fn two_chats_can_edit_their_last_messages() {
    let mut s = recurrent(2, 256, 92);
    let prompt = |fresh: u32| (0..2000).chain((0..1200).map(|i| i + 5000 * fresh)).collect::<Vec<u32>>();
    for (id, fresh) in [(0, 1), (1, 2)] {
        submit(&mut s, id, prompt(fresh), 1);
        computed(&mut s);
    }
    for (id, fresh) in [(2, 1), (3, 2)] {
        let edited = prompt(fresh)[..2600].iter().copied().chain(vec![9; 600]).collect();
        submit(&mut s, id, edited, 1);
        let reused = prefill(&mut s)[0].1;
        assert!((2600 - 180..=2600).contains(&reused), "chat {fresh}: {reused}");
    }
}

/// However few rows there are, every sequence is computed; snapshots that are evicted are found no more.
#[test]
fn rows_for_two_states_a_slot_are_enough() {
    let mut s = recurrent(3, 24, 0);
    for id in 0..9 {
        submit(&mut s, id, (0..30).map(|i| i + 40 * id as u32).collect(), 20);
    }
    computed(&mut s);
    assert!(s.is_idle());
    assert_eq!(s.pool().at_rest(), Ok(()));
    submit(&mut s, 9, (0..30).collect(), 1);
    assert_eq!(prefill(&mut s)[0].1, 0);
}

/// Length of the common beginning.
fn common(a: &[u32], b: &[u32]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}

/// Twenty turns of an agent: a long system prompt with tools, results of tools, answers whose thinking the template
/// strips, and results that are edited later. Returns the share of prompt tokens that were computed although an earlier
/// turn had computed them, with the same tokens before them.
fn computed_again(mut s: Scheduler) -> f64 {
    let mut fresh = 0u32;
    let mut text = |count: usize| -> Vec<u32> {
        fresh += count as u32;
        (fresh - count as u32..fresh).map(|i| 1000 + i).collect()
    };
    let mut chat = vec![text(6000)];
    let (mut seen, mut again, mut total): (Vec<Vec<u32>>, usize, usize) = (Vec::new(), 0, 0);
    let mut ask = |prompt: Vec<u32>| {
        let known = seen.iter().map(|seen| common(seen, &prompt)).max().unwrap_or(0);
        total += prompt.len();
        submit(&mut s, seen.len() as u64, prompt.clone(), 180);
        again += known.saturating_sub(prefill(&mut s)[0].1);
        // The step's made-up tokens are all 7. The next prompt has the answer without the thinking.
        seen.push([&prompt[..], &[7; 179]].concat());
    };
    for turn in 0..20 {
        chat.push(text(1100));
        if turn % 7 == 6 {
            // A result of the turn before is replaced.
            let edited = chat.len() - 3;
            chat[edited] = text(900);
        }
        let prompt = chat.concat();
        ask(prompt);
        if turn % 5 == 4 {
            // The turn is asked again, with another end of its result.
            let result = chat.len() - 1;
            chat[result].truncate(700);
            chat[result].extend(text(400));
            ask(chat.concat());
        }
        chat.push(vec![7; 60].into_iter().chain(text(1)).collect());
    }
    assert!(total > 300_000, "{total}");
    again as f64 / total as f64
}

#[test]
fn an_agent_of_twenty_turns_computes_little_again() {
    let limits = scheduler(40_000, 2, 256, 1).limits();
    let pages = || BlockPool::new(4000, 16);
    let plain = computed_again(Scheduler::new(limits, pages()));
    let hybrid = computed_again(Scheduler::new(limits, BlockPool::with_states(4000, 16, 2 * 2 + 24)));
    println!("computed again: {:.2} %, with recurrent state {:.2} %", 100.0 * plain, 100.0 * hybrid);
    assert!(plain < 0.005 && hybrid < 0.02, "{plain} {hybrid}");
}
