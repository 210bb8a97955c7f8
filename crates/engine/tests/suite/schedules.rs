//! The scheduler and the block pool against a model of the KV cache, under random requests.

use std::collections::{HashMap, HashSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::ops::Range;

use proptest::prelude::*;
use tallow_engine::block_pool::{BlockPool, Chain, SlidingWindow};
use tallow_engine::encoder_input::{EncoderOutput, InputDigest};
use tallow_engine::failure::Unfit;
use tallow_engine::scheduler::{
    Batch, BatchPart, ClientId, DecodeBudget, DraftCosts, DraftModelCost, Guess, Limits, LogitsRows, NewSeq,
    Scheduler, SeqId, StepCost,
};

/// A request of a schedule.
#[derive(Clone, Debug)]
struct Asked {
    at_step: usize,
    prompt: Vec<u32>,
    max_new: usize,
    salt: Option<u64>,
    all_logits: bool,
    /// Cancelled by its client after this many tokens.
    leaves_after: Option<usize>,
    client: u64,
    /// Encoder input, which determines the number of its tokens.
    input: Option<u32>,
}

impl Asked {
    fn cross(&self) -> Option<EncoderOutput> {
        self.input.map(|input| output(input, 1 + 3 * input as usize))
    }

    /// Salt and encoder input: its tokens' K and V depend on these besides the tokens.
    fn salt(&self) -> Option<u64> {
        let input = self.input.map_or(0, |input| 10 * u64::from(input + 1));
        (self.salt.is_some() || input > 0).then(|| input + self.salt.map_or(0, |salt| salt + 1))
    }
}

pub(super) fn output(input: u32, tokens: usize) -> EncoderOutput {
    EncoderOutput { input: InputDigest([input; 4]), tokens }
}

fn asked() -> impl Strategy<Value = Asked> {
    // Few distinct tokens and a common beginning, so that prefixes coincide.
    let prompt = (0usize..30, prop::collection::vec(0u32..3, 1..12))
        .prop_map(|(common, own)| (0..common as u32).map(|i| i % 2).chain(own).collect::<Vec<u32>>());
    let salt = prop_oneof![4 => Just(None), 1 => (0u64..2).prop_map(Some)];
    let leaves = prop_oneof![3 => Just(None), 1 => (0usize..10).prop_map(Some)];
    let input = prop_oneof![2 => Just(None), 3 => (0u32..6).prop_map(Some)];
    (0usize..40, prompt, 0usize..20, salt, prop::bool::weighted(0.1), leaves, 0u64..4, input).prop_map(
        |(at_step, prompt, max_new, salt, all_logits, leaves_after, client, input)| Asked {
            at_step,
            prompt,
            max_new,
            salt,
            all_logits,
            leaves_after,
            client,
            input,
        },
    )
}

/// A sequence as the test knows it.
struct Known {
    tokens: Vec<u32>,
    most: usize,
    salt: Option<u64>,
    asked: Asked,
    generated: usize,
}

/// Next token after `tokens`, a function of all of them.
fn next_token(tokens: &[u32]) -> u32 {
    (digest(None, tokens) % 3) as u32
}

fn digest(salt: Option<u64>, tokens: &[u32]) -> u64 {
    let mut h = DefaultHasher::new();
    (salt, tokens).hash(&mut h);
    h.finish()
}

/// Model of the KV cache: per (page, offset), a digest of the tokens up to it, or of the encoder input and the place in
/// its output. The salt is part of it, since salted prefixes must never match.
type Cache = HashMap<(u32, usize), u64>;

/// K and V of a token of the encoder's output.
fn cross_digest(input: InputDigest, at: usize) -> u64 {
    let mut h = DefaultHasher::new();
    (input, at).hash(&mut h);
    h.finish()
}

/// Runs a batch on the model of the cache, and checks that its reads and writes are allowed.
fn run(batch: &Batch, page: usize, cache: &mut Cache, known: &HashMap<SeqId, Known>) -> Vec<Vec<u32>> {
    let mut sampled = Vec::new();
    let mut written: HashMap<(u32, usize), SeqId> = HashMap::new();
    for part in &batch.parts {
        let Some(cross) = part.cross.as_ref().filter(|cross| cross.encode) else { continue };
        let input = known[&part.id].asked.cross().unwrap().input;
        for at in 0..cross.tokens {
            let slot = (cross.blocks[at / page], at % page);
            assert_eq!(written.insert(slot, part.id), None, "{:?} encodes where another writes", part.id);
            cache.insert(slot, cross_digest(input, at));
        }
    }
    for part in &batch.parts {
        let seq = &known[&part.id];
        let want = seq.asked.cross();
        assert_eq!(part.cross.as_ref().map(|cross| cross.tokens), want.map(|output| output.tokens));
        for (cross, output) in part.cross.iter().zip(want) {
            assert_eq!(cross.blocks.len(), cross.tokens.div_ceil(page));
            for at in 0..cross.tokens {
                let holds = cache.get(&(cross.blocks[at / page], at % page)).copied();
                assert_eq!(
                    holds,
                    Some(cross_digest(output.input, at)),
                    "{:?} reads another's input",
                    part.id
                );
            }
        }
        let (end, drafted) = (part.start + part.tokens.len() - part.drafted, part.drafted);
        let (tokens, draft) = part.tokens.split_at(part.tokens.len() - drafted);
        // With a recurrent state, tokens before a wrong guess are computed again.
        let one = tokens.len() == 1 || part.state.is_some();
        assert!(drafted == 0 || (one && part.logits == LogitsRows::Last));
        assert_eq!(
            tokens,
            &seq.tokens[part.start..end],
            "{:?} computes tokens that are not its own",
            part.id
        );
        let slot = |p: usize| (part.blocks[p / page], p % page);
        for p in 0..part.start {
            let holds = cache.get(&slot(p)).copied();
            assert_eq!(
                holds,
                Some(digest(seq.salt, &seq.tokens[..=p])),
                "{:?} reads a wrong cache at {p}",
                part.id
            );
        }
        for p in part.start..end {
            let twice = written.insert(slot(p), part.id);
            assert_eq!(twice, None, "{:?} writes where another does", part.id);
            cache.insert(slot(p), digest(seq.salt, &seq.tokens[..=p]));
        }
        // What a draft writes is there for those of its tokens that are right, and for nobody else.
        let mut with_draft = seq.tokens.clone();
        for (p, token) in (end..).zip(draft) {
            with_draft.push(*token);
            let twice = written.insert(slot(p), part.id);
            assert_eq!(twice, None, "{:?} drafts where another writes", part.id);
            cache.insert(slot(p), digest(seq.salt, &with_draft));
        }
        let last = end == seq.tokens.len() && seq.tokens.len() < seq.most;
        assert_eq!(part.logits.samples(), last);
        let scored = matches!(part.logits, LogitsRows::All { .. });
        assert_eq!(scored, seq.asked.all_logits && part.start < seq.asked.prompt.len());
        let mut next = Vec::new();
        if last {
            let mut all = seq.tokens.clone();
            loop {
                let token = next_token(&all);
                let is_right = draft.get(next.len()) == Some(&token);
                all.push(token);
                next.push(token);
                if !is_right {
                    break;
                }
            }
            assert!(all.len() <= seq.most);
        }
        sampled.push(next);
    }
    sampled
}

/// Guess of the token after `all`: of four, three are right.
fn guess_after(all: &[u32]) -> u32 {
    let token = next_token(all);
    if digest(Some(1), all).is_multiple_of(4) { (token + 1) % 3 } else { token }
}

/// Has the MTP layer guess, and checks that it reads hidden states of the model's last step, `hidden`, or its own, and what it has
/// computed before in a cache of its own: K and V of a token depend on the next one, too. Where that is in another page, it may
/// have been another's.
fn guess_by_mtp(
    s: &mut Scheduler,
    page: usize,
    cache: &mut Cache,
    known: &HashMap<SeqId, Known>,
    finished: &HashMap<SeqId, Known>,
    hidden: &HashMap<SeqId, Range<usize>>,
) {
    let mut guessed: HashMap<SeqId, Vec<u32>> = HashMap::new();
    let mut next = s.draft_batch();
    for round in 0.. {
        let Some(batch) = next else { return };
        let mut guesses = Vec::new();
        for part in &batch.parts {
            // The last rows of those that have ended are computed for their next turn.
            let seq = known.get(&part.id).unwrap_or_else(|| &finished[&part.id]);
            let guess = guessed.entry(part.id).or_default();
            let all = [&seq.tokens[..], guess].concat();
            let end = part.start + part.tokens.len();
            assert_eq!(part.tokens, all[part.start + 1..end + 1], "{:?}", part.id);
            match round {
                0 => assert!(hidden[&part.id].start <= part.start && end <= hidden[&part.id].end),
                _ => assert_eq!((part.tokens.len(), end + 1), (1, all.len()), "{:?}", part.id),
            }
            let slot = |p: usize| (part.blocks[p / page], p % page);
            let kv = |p: usize| digest(seq.salt, &all[..=p + 1]);
            let own = |p: usize| digest(Some(99), &all[..=p + 1]);
            for p in (0..part.start).filter(|p| (p + 1) % page > 0) {
                let want = if p + 1 < seq.tokens.len() { kv(p) } else { own(p) };
                assert_eq!(
                    cache.get(&slot(p)),
                    Some(&want),
                    "{:?} guesses from a wrong cache at {p}",
                    part.id
                );
            }
            cache.extend((part.start..end).map(|p| (slot(p), if round == 0 { kv(p) } else { own(p) })));
            let samples = part.logits.samples();
            assert!(!samples || (end + 1 == all.len() && end + 1 < seq.most), "{:?}", part.id);
            guess.extend(samples.then(|| guess_after(&all)));
            guesses.push(if samples { Guess::Token(guess_after(&all)) } else { Guess::Computed });
        }
        next = s.guessed(&batch, &guesses);
    }
}

/// Has a draft model guess, and checks that it reads what it has computed of the same tokens, in a cache of its own.
fn guess(s: &mut Scheduler, page: usize, cache: &mut Cache, known: &HashMap<SeqId, Known>) {
    let mut guessed: HashMap<SeqId, Vec<u32>> = HashMap::new();
    let mut next = s.draft_batch();
    while let Some(batch) = next {
        let mut tokens = Vec::new();
        for part in &batch.parts {
            let (seq, guess) = (&known[&part.id], guessed.entry(part.id).or_default());
            let all = [&seq.tokens[..], guess].concat();
            let end = part.start + part.tokens.len();
            assert_eq!(part.tokens, all[part.start..end], "{:?}", part.id);
            let slot = |p: usize| (part.blocks[p / page], p % page);
            for p in 0..part.start {
                let holds = cache.get(&slot(p)).copied();
                assert_eq!(
                    holds,
                    Some(digest(seq.salt, &all[..=p])),
                    "{:?} drafts from a wrong cache",
                    part.id
                );
            }
            // Two sequences may fill the page that they share, with the same.
            cache.extend((part.start..end).map(|p| (slot(p), digest(seq.salt, &all[..=p]))));
            let token = part.logits.samples().then(|| guess_after(&all));
            assert!(token.is_none() || (end == all.len() && end < seq.most), "{:?}", part.id);
            guess.extend(token);
            tokens.push(token.map_or(Guess::Computed, Guess::Token));
        }
        next = s.guessed(&batch, &tokens);
    }
}

/// Model of the recurrent states: per row, a digest of the tokens that led to it, and the salt.
type States = HashMap<u32, u64>;

/// Runs a batch on the recurrent states: each part starts at 0 or reads the state after its first tokens, and nothing
/// reads or writes what another part writes. Snapshots on the way are of whole pages.
fn go_on(batch: &Batch, page: usize, rows: usize, states: &mut States, known: &HashMap<SeqId, Known>) {
    let before = states.clone();
    let mut written = HashSet::new();
    for part in &batch.parts {
        let (seq, rows_of) = (&known[&part.id], part.state.unwrap());
        assert!((rows_of.to as usize) < rows && written.insert(rows_of.to), "{rows_of:?}");
        if part.start > 0 {
            let want = digest(seq.salt, &seq.tokens[..part.start]);
            assert_eq!(before.get(&rows_of.from), Some(&want), "{:?} at {}", part.id, part.start);
        }
        let through = [&seq.tokens[..part.start], &part.tokens].concat();
        states.insert(rows_of.to, digest(seq.salt, &through));
        let ends: Vec<usize> = part.snapshots.iter().map(|(after, _)| *after).collect();
        assert!(
            ends.is_sorted_by(|a, b| a < b) && ends.iter().all(|end| (1..part.tokens.len()).contains(end))
        );
        for (after, row) in &part.snapshots {
            let at = part.start + after;
            assert!(at.is_multiple_of(page) && (row.0 as usize) < rows && written.insert(row.0), "{row:?}");
            states.insert(row.0, digest(seq.salt, &through[..at]));
        }
    }
    let read = batch.parts.iter().filter(|part| part.start > 0).filter_map(|part| part.state);
    assert!(read.into_iter().all(|rows| !written.contains(&rows.from)));
}

/// Runs a batch on the model of the sliding-window layers' cache: a token reads the tiles that its window reaches, and no more.
fn slide(
    batch: &Batch,
    page: usize,
    window: SlidingWindow,
    cache: &mut Cache,
    known: &HashMap<SeqId, Known>,
) {
    let mut written = HashSet::new();
    let slot = |pages: &[u32], at: usize| (pages[at / page], at % page);
    let tokens = |part: &BatchPart| [&known[&part.id].tokens[..part.start], &part.tokens].concat();
    for part in &batch.parts {
        let (pages, tokens) = (part.swa_blocks.as_ref().unwrap(), tokens(part));
        for at in part.start..tokens.len() {
            assert!(written.insert(slot(pages, at)), "{:?} writes where another does", part.id);
            cache.insert(slot(pages, at), digest(known[&part.id].salt, &tokens[..=at]));
        }
    }
    for part in &batch.parts {
        let (pages, tokens) = (part.swa_blocks.as_ref().unwrap(), tokens(part));
        let first = (part.start + 1).saturating_sub(window.tokens);
        for at in first - first % window.tile..tokens.len() {
            let want = digest(known[&part.id].salt, &tokens[..=at]);
            let holds = cache.get(&slot(pages, at)).copied();
            assert_eq!(holds, Some(want), "{:?} at {at} of {}", part.id, tokens.len());
        }
    }
}

/// Writes for nothing: of parts whose sequence has ended, or of a step that was launched after one that failed. What they write
/// may be read by nobody.
fn waste(parts: &[BatchPart], page: usize, cache: &mut Cache, swa: &mut Cache, states: &mut States) {
    for part in parts {
        let slot = |pages: &[u32], at: usize| (pages[at / page], at % page);
        for at in part.start..part.start + part.tokens.len() {
            cache.insert(slot(&part.blocks, at), 0);
            swa.extend(part.swa_blocks.iter().map(|pages| (slot(pages, at), 0)));
        }
        states.extend(part.state.iter().map(|rows| (rows.to, 0)));
        states.extend(part.snapshots.iter().map(|(_, row)| (row.0, 0)));
    }
}

/// The tokens that a step samples are those that the step launched ahead of them computes.
pub(super) fn follow(next: &mut Batch, sampled: &[Vec<u32>]) {
    for part in &mut next.parts {
        assert_eq!((part.tokens.len(), part.logits), (1, LogitsRows::Last));
        part.tokens = vec![sampled[part.follows.take().unwrap()][0]];
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn every_schedule_is_right_and_ends(
        requests in prop::collection::vec(asked(), 1..14),
        page in 1usize..6,
        pages in 6usize..40,
        slots in 1usize..6,
        budget in 1usize..40,
        (least, fixed) in (1usize..60, 0usize..20),
        context in 10usize..60,
        // Rows of recurrent states for snapshots, in a model that has any.
        snapshots in prop_oneof![1 => Just(None), 1 => (0usize..8).prop_map(Some)],
        // Sliding window of layers with their own pages, its tile, and how many more pages there are than all slots need.
        swa in prop::option::of((1usize..30, 1usize..7, 0usize..20)),
        costs in prop_oneof![Just(None), Just(Some(0.0)), Just(Some(0.3))],
        draft_model in proptest::option::of((prop_oneof![Just(0.0f32), Just(0.2)], 5usize..60, prop::bool::ANY)),
        // True if steps are launched ahead where they can be.
        ahead in prop::bool::ANY,
    ) {
        let model = draft_model.map(|(step, context, mtp)| {
            DraftModelCost { step: StepCost::Known { first: step, more: step / 8.0 }, context, mtp }
        });
        let drafts = costs.map(|token| DraftCosts::new(StepCost::Known { first: 1.0, more: token }, model));
        let decode_budget = DecodeBudget { least, fixed };
        let limits = Limits { context, slots, budget, decode_budget, all_logits: 3, drafts };
        let each = if ahead { 4 } else { 2 };
        let state_rows = snapshots.map_or(0, |snapshots| each * slots + snapshots);
        let pool = BlockPool::with_states(pages, page, state_rows);
        let pool = match swa {
            Some((tokens, tile, spare)) => {
                let window = SlidingWindow { tokens, tile };
                pool.with_swa(window.pages_needed(slots, budget.max(2 * slots), page) + spare, window)
            }
            None => pool,
        };
        let mut s = Scheduler::new(limits, pool);
        let (mut cache, mut draft_cache, mut known) = (Cache::new(), Cache::new(), HashMap::new());
        let (mut states, mut swa_cache, mut hidden) = (States::new(), Cache::new(), HashMap::new());
        let (mut finished, mut went_back) = (HashMap::new(), HashMap::new());
        let mut waiting: Vec<(SeqId, Asked)> =
            requests.into_iter().enumerate().map(|(i, a)| (SeqId(i as u64), a)).collect();
        let mut ended = 0;
        let total = waiting.len();
        let mut launched = None;
        for step in 0.. {
            prop_assert!(step < 20_000, "it does not end");
            for (id, asked) in waiting.extract_if(.., |(_, a)| a.at_step <= step) {
                let root = asked.salt().map_or(Chain::ROOT, Chain::salted);
                let (prompt, max_new) = (asked.prompt.len(), asked.max_new);
                let client = ClientId(asked.client);
                let (tokens, all_logits, cross) = (asked.prompt.clone(), asked.all_logits, asked.cross());
                let new = NewSeq { id, tokens, max_new, root, all_logits, lora: None, drafts: true, client, cross };
                // Pages for cross-attention are not there for the decoder's tokens.
                let read = cross.map_or(0, |cross| cross.tokens);
                let left = pages.saturating_sub(read.div_ceil(page));
                let context = s.context().min(left * page);
                match s.submit(new) {
                    Ok(()) => {
                        let most = (prompt + max_new).min(context);
                        let tokens = asked.prompt.clone();
                        known.insert(id, Known { tokens, most, salt: asked.salt(), asked, generated: 0 });
                    }
                    Err(Unfit::LongInput { tokens, room }) => {
                        prop_assert_eq!((tokens, room, left), (read, (pages - 1) * page, 0));
                        ended += 1;
                    }
                    Err(unfit) => {
                        prop_assert!(prompt + usize::from(max_new > 0) > context);
                        prop_assert_eq!(unfit, Unfit::TooLong { prompt, context });
                        ended += 1;
                    }
                }
            }
            match model {
                _ if launched.is_some() => {}
                Some(model) if model.mtp => guess_by_mtp(&mut s, page, &mut draft_cache, &known, &finished, &hidden),
                _ => guess(&mut s, page, &mut draft_cache, &known),
            }
            let Some(all) = launched.take().or_else(|| s.next_batch()) else {
                prop_assert!(s.is_idle(), "{} wait and nothing runs", s.waiting());
                prop_assert!(s.check().is_ok(), "{:?}", s.check());
                prop_assert_eq!(s.pool().in_use(), 0);
                if waiting.is_empty() {
                    break;
                }
                continue;
            };
            let (parts, gone): (Vec<_>, Vec<_>) =
                all.parts.iter().cloned().partition(|part| known.contains_key(&part.id));
            waste(&gone, page, &mut cache, &mut swa_cache, &mut states);
            let batch = Batch { parts };
            let rows: usize = all.parts.iter().map(|p| p.tokens.len()).sum();
            prop_assert!(rows <= budget.max(2 * slots) && rows > 0);
            let encodes = |p: &BatchPart| p.cross.as_ref().is_some_and(|cross| cross.encode);
            prop_assert!(batch.parts.iter().filter(|p| encodes(p)).count() <= 1);
            let decodes = |p: &BatchPart| {
                let end = p.start + p.tokens.len() - p.drafted;
                let newest = p.start + 1 == end || went_back.get(&p.id) == Some(&p.start);
                known[&p.id].generated > 0 && newest && end == known[&p.id].tokens.len() && !encodes(p)
            };
            prop_assert!(batch.parts.iter().all(|p| p.drafted == 0 || decodes(p)));
            let decoding: usize =
                batch.parts.iter().filter(|p| decodes(p)).map(|p| p.tokens.len() - p.drafted).sum();
            if decoding > 0 {
                prop_assert!(rows <= decode_budget.of(decoding));
            }
            let scored = batch.parts.iter().filter(|p| matches!(p.logits, LogitsRows::All { .. }));
            prop_assert!(scored.map(|p| p.tokens.len()).sum::<usize>() <= slots.max(3));
            prop_assert!(s.running() <= slots);
            let sampled = run(&batch, page, &mut cache, &known);
            if state_rows > 0 {
                go_on(&batch, page, state_rows, &mut states, &known);
            }
            if swa.is_some() {
                slide(&batch, page, s.pool().window(), &mut swa_cache, &known);
            }
            prop_assert!(batch.parts.iter().all(|p| p.swa_blocks.is_some() == swa.is_some()));
            let mut of_each = sampled.iter();
            let sampled: Vec<Vec<u32>> = all.parts.iter().map(|part| match known.contains_key(&part.id) {
                true => of_each.next().unwrap().clone(),
                false => Vec::new(),
            }).collect();
            if ahead {
                s.advance(&all);
                launched = s.next_ahead(&all);
                prop_assert!(s.check().is_ok(), "{:?}", s.check());
                // A step that fails is computed again, and what was launched after it never.
                if step % 7 == 3 && let Some(next) = launched.take() {
                    waste(&next.parts, page, &mut cache, &mut swa_cache, &mut states);
                    s.drop_ahead();
                }
            }
            // A recurrent state that has gone past a wrong token is of no use.
            went_back = all.parts.iter().zip(&sampled).filter(|(part, sampled)| {
                part.state.is_some() && sampled.len() < 1 + part.drafted
            }).map(|(part, _)| (part.id, part.start)).collect();
            // The hidden states of a draft are of use up to the first wrong token.
            hidden = all.parts.iter().zip(&sampled).map(|(part, sampled)| {
                let right = sampled.len().saturating_sub(1);
                (part.id, part.start..part.start + part.tokens.len() - part.drafted + right)
            }).collect();
            let full = s.commit(&all, &sampled);
            if let Some(next) = &mut launched {
                follow(next, &sampled);
                s.advance(next);
            }
            for ((part, next), full) in all.parts.iter().zip(&sampled).zip(full) {
                let Some(seq) = known.get_mut(&part.id) else { continue };
                seq.tokens.extend(next);
                seq.generated += next.len();
                // Without a token it is the end of a prompt whose log-probabilities are all that was asked for.
                let end = part.start + part.tokens.len();
                let is_last = !next.is_empty() || end == seq.tokens.len();
                prop_assert_eq!(full, is_last && seq.tokens.len() == seq.most);
                if full {
                    finished.extend(known.remove_entry(&part.id));
                    ended += 1;
                }
            }
            let leavers = known.iter().filter(|(_, k)| k.asked.leaves_after.is_some_and(|n| k.generated >= n));
            for id in leavers.map(|(id, _)| *id).collect::<Vec<_>>() {
                s.drop_seq(id);
                finished.extend(known.remove_entry(&id));
                ended += 1;
            }
            prop_assert!(s.check().is_ok(), "{:?}", s.check());
        }
        prop_assert_eq!(ended, total);
        prop_assert_eq!(s.pool().at_rest(), Ok(()));
    }
}
