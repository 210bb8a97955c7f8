//! Sliding-window layers with pages of their own: what a sequence holds, what is reused, and what chats compute again.

use tallow_core::{Backend, DType};
use tallow_cpu::{Cpu, Isa};
use tallow_engine::block_pool::{BlockPool, Chain, SlidingWindow};
use tallow_engine::cache_tier::TierError;
use tallow_engine::kv_cache::KvShape;
use tallow_engine::scheduler::{Batch, ClientId, NewSeq, Scheduler, SeqId};
use tallow_models::Model;
use tallow_support::{golden, needed};
use tallow_wgpu::{Wgpu, devices};
use tempfile::TempDir;

use crate::common::{SLOTS, comes_to_rest, cuda, limits};
use crate::disk_cache::{ask, prompt, said, settings, start_model};
use crate::scheduler::{scheduler, step, submit};

const PAGE: usize = 4;
const WINDOW: SlidingWindow = SlidingWindow { tokens: 16, tile: PAGE };

/// A scheduler for a model with sliding-window layers, with so many pages for them besides those that all slots need.
fn sliding(slots: usize, budget: usize, spare: usize) -> Scheduler {
    let limits = scheduler(50_000, slots, budget, 1).limits();
    let needed = WINDOW.pages_needed(slots, budget, PAGE);
    Scheduler::new(limits, BlockPool::new(20_000, PAGE).with_swa(needed + spare, WINDOW))
}

/// Runs until the sequences end; returns the steps.
fn run(s: &mut Scheduler) -> Vec<Batch> {
    std::iter::from_fn(|| step(s)).collect()
}

/// Start and number of the tokens of the prompts that were computed, one after the other.
fn prefill(s: &mut Scheduler) -> Vec<(u64, usize, usize)> {
    let mut all: Vec<(u64, usize, usize)> = Vec::new();
    for part in run(s).iter().flat_map(|batch| &batch.parts).filter(|part| part.tokens.len() > 1) {
        match all.last_mut().filter(|(id, start, count)| (*id, start + count) == (part.id.0, part.start)) {
            Some((.., count)) => *count += part.tokens.len(),
            None => all.push((part.id.0, part.start, part.tokens.len())),
        }
    }
    all
}

fn numbers(salt: u32, count: usize) -> Vec<u32> {
    (0..count as u32).map(|i| 1000 * salt + i).collect()
}

/// Pages that are of no use any more are used again, so that a sequence of any length holds few.
#[test]
fn a_sequence_holds_what_its_window_reaches() {
    let mut s = sliding(1, 8, 0);
    submit(&mut s, 0, numbers(1, 1000), 300);
    let mut used: Vec<u32> = Vec::new();
    for batch in run(&mut s) {
        let part = &batch.parts[0];
        let pages = part.swa_blocks.as_ref().unwrap();
        assert_eq!(pages.len(), part.blocks.len());
        used.extend(&pages[part.start / PAGE..]);
    }
    used.sort_unstable();
    used.dedup();
    assert_eq!(used.len(), s.pool().swa_pages());
    assert!(used.len() <= (WINDOW.tokens + WINDOW.tile + 2 * 8) / PAGE + 3, "{}", used.len());
    assert_eq!(s.pool().at_rest(), Ok(()));
}

/// A prompt is computed from the last place before the first difference where its window was kept.
#[test]
fn a_prompt_is_reused_where_all_that_a_window_reaches_is_there() {
    let mut s = sliding(2, 64, 200);
    submit(&mut s, 0, numbers(1, 402), 1);
    assert_eq!(prefill(&mut s), [(0, 0, 402)]);
    // With room for all of them it is reused up to the first difference.
    submit(&mut s, 1, [&numbers(1, 200)[..], &numbers(2, 9)].concat(), 1);
    assert_eq!(prefill(&mut s), [(1, 200, 9)]);

    let mut s = sliding(2, 64, 8);
    submit(&mut s, 0, numbers(1, 802), 1);
    assert_eq!(prefill(&mut s), [(0, 0, 802)]);
    submit(&mut s, 1, numbers(1, 802), 1);
    assert_eq!(prefill(&mut s), [(1, 800, 2)]);
    submit(&mut s, 2, [&numbers(1, 200)[..], &numbers(2, 9)].concat(), 1);
    assert_eq!(prefill(&mut s), [(2, 0, 209)]);
    // Where prompts parted is kept.
    submit(&mut s, 3, [&numbers(1, 200)[..], &numbers(3, 9)].concat(), 1);
    assert_eq!(prefill(&mut s), [(3, 200, 9)]);
}

/// A system prompt that is used now and then is reused beside a conversation of any length.
#[test]
fn where_prompts_part_is_kept_when_what_is_between_is_not() {
    // Room for ten windows, and a turn keeps two.
    let mut s = sliding(4, 64, 40);
    let system = numbers(1, 120);
    for id in 0..2 {
        submit(&mut s, id, [&system[..], &numbers(2 + id as u32, 30)].concat(), 1);
    }
    run(&mut s);
    let mut chat = [&system[..], &numbers(9, 30)].concat();
    for turn in 0..20 {
        submit(&mut s, 10 + turn, chat.clone(), 40);
        let computed = prefill(&mut s);
        let at = if turn == 0 { 120 } else { chat.len() - 30 };
        assert!(computed.iter().all(|(_, start, _)| *start + PAGE >= at), "turn {turn}: {computed:?}");
        chat.extend(std::iter::repeat_n(7, 40));
        chat.extend(numbers(20 + turn as u32, 30));
        if turn % 3 == 2 {
            submit(&mut s, 100 + turn, [&system[..], &numbers(50 + turn as u32, 30)].concat(), 1);
            assert_eq!(prefill(&mut s), [(100 + turn, 120, 30)]);
        }
    }
}

/// Answers are rendered without their reasoning in the next turn, and an older message is edited once.
#[test]
fn turns_that_are_rendered_anew_go_on_from_the_prompt_before() {
    let mut s = sliding(2, 64, 64);
    let mut chat = numbers(1, 400);
    let (mut again, mut new) = (0, 0);
    for turn in 0..20u32 {
        chat.extend(numbers(2 + turn, 50));
        submit(&mut s, u64::from(turn), chat.clone(), 60);
        let computed: usize = prefill(&mut s).iter().map(|(.., count)| count).sum();
        let added = if turn == 0 { 450 } else { 50 + 20 };
        again += computed.saturating_sub(added);
        new += added;
        // A third of the answer stays, as other tokens.
        chat.extend(numbers(500 + turn, 20));
    }
    assert!(100 * again <= 5 * new, "{again} tokens again, {new} new");
}

/// A pool that is too small for all slots has fewer of them.
#[test]
fn slots_are_as_many_as_there_are_pages_for() {
    let limits = scheduler(500, 8, 32, 1).limits();
    let needed = WINDOW.pages_needed(3, 32, PAGE);
    let s = Scheduler::new(limits, BlockPool::new(100, PAGE).with_swa(needed, WINDOW));
    assert_eq!((s.limits().slots, s.limits().budget), (3, 32));
    // Too few for one: whatever comes is refused.
    let needed = WINDOW.pages_needed(1, 32, PAGE);
    let s = Scheduler::new(limits, BlockPool::new(100, PAGE).with_swa(needed - 1, WINDOW));
    assert_eq!((s.limits().slots, s.context()), (1, 0));
}

/// An evicted page ends the prefix before it, and kept pages are evicted last.
#[test]
fn pages_that_are_not_kept_are_evicted_first() {
    let mut pool = BlockPool::new(8, PAGE).with_swa(3, SlidingWindow { tokens: 2 * PAGE, tile: PAGE });
    let tokens = numbers(1, 3 * PAGE);
    let mut after = Chain::ROOT;
    for (i, page) in tokens.chunks(PAGE).enumerate() {
        let (block, swa) = (pool.take().unwrap(), pool.take_swa().unwrap());
        after = pool.publish(block, after, page).chain;
        pool.publish_swa(block, swa);
        if i < 2 {
            pool.keep_swa(swa);
        }
        pool.give_back(&[block]);
        pool.give_back_swa(swa);
    }
    let found = |pool: &BlockPool| {
        let prefix = pool.find(Chain::ROOT, &tokens);
        (prefix.blocks.len(), prefix.swa.len(), prefix.published)
    };
    assert_eq!(found(&pool), (3, 2, 3));
    let other = pool.take_swa().unwrap();
    assert_eq!(found(&pool), (2, 2, 3));
    pool.give_back_swa(other);
    // It is free now, and taken before those that are attached.
    assert_eq!(pool.take_swa(), Some(other));
    assert_eq!(found(&pool), (2, 2, 3));
    assert!(pool.take_swa().is_some_and(|page| page != other));
    assert_eq!(found(&pool), (0, 0, 3));
}

/// A prompt whose beginning another computes waits only while it gets more of it.
#[test]
fn those_that_share_a_beginning_begin_when_it_is_there() {
    let mut s = sliding(4, 64, 0);
    let system = numbers(1, 80);
    let new = |id: u64, tokens: Vec<u32>| NewSeq {
        id: SeqId(id),
        tokens,
        max_new: 1,
        root: Chain::ROOT,
        all_logits: false,
        lora: None,
        drafts: false,
        cross: None,
        client: ClientId(id),
    };
    s.submit(new(0, [&system[..], &numbers(2, 2000)].concat())).unwrap();
    s.submit(new(1, [&system[..], &numbers(3, 9)].concat())).unwrap();
    let steps = run(&mut s);
    let first = steps.iter().position(|batch| batch.parts.iter().any(|part| part.id.0 == 1)).unwrap();
    assert!(first <= 3, "it waits {first} of {} steps", steps.len());
    let parts = steps.iter().flat_map(|batch| &batch.parts).filter(|part| part.id.0 == 1);
    assert_eq!(parts.map(|part| part.tokens.len()).sum::<usize>(), 9);
}

/// Families with sliding windows or chunks, in all layers or in some.
const SLIDING: [&str; 5] = ["gpt-oss", "gemma3-text", "gemma4-text", "olmo3", "cohere2"];

fn open(family: &str) -> Model {
    Model::open(&golden(&format!("gguf-models/{family}-bf16.gguf"))).unwrap()
}

/// The shape with as few pages for the windows of a model as can be.
fn shape(model: &Model) -> KvShape {
    let window = model.spec.swa_window().expect("a window");
    let swa_pages = SlidingWindow::new(window).pages_needed(SLOTS, limits().budget, 4);
    KvShape { dtype: DType::F16, page_len: 4, pages: 200, swa_pages, state_rows: 0 }
}

/// Requests one after the other, with prefixes of each other, get the answers of an engine that keeps all.
fn compare<B: Backend>(device: fn() -> B, family: &str) {
    let small = shape(&open(family));
    let full = KvShape { swa_pages: 0, ..small };
    assert!(small.bytes(&open(family).spec) < full.bytes(&open(family).spec), "{family}");
    let [mut got, want] = [small, full].map(|shape| {
        let engine = start_model(device, open(family), shape);
        let mut text = prompt(1);
        let mut all = Vec::new();
        for turn in 0..5 {
            let (cached, answer) = said(&engine, ask(&text));
            text.extend(answer.iter().map(|choice| choice.token));
            all.push((cached, answer));
            if turn == 2 {
                // Back to an earlier place.
                text.truncate(37);
            }
            text.extend(&prompt(40 + turn)[..6]);
        }
        all.push(said(&engine, ask(&prompt(1))));
        comes_to_rest(&engine);
        all
    });
    // Less may be found, as far as a window reaches, but turns go on.
    for (at, ((cached, _), (most, _))) in got.iter().zip(&want).enumerate() {
        assert!(
            cached <= most && (at == 0 || at == 3 || cached == most),
            "{family}, {at}: {cached} of {most}"
        );
    }
    got.iter_mut().zip(&want).for_each(|(got, want)| got.0 = want.0);
    assert_eq!(got, want, "{family}");
}

#[test]
fn answers_are_those_of_an_engine_that_keeps_all() {
    SLIDING.iter().for_each(|family| compare(|| Cpu::new(Isa::best(), 2).unwrap(), family));
}

#[test]
fn so_they_are_on_a_gpu() {
    if needed("Vulkan or Metal device", devices().first()).is_some() {
        compare(|| Wgpu::open(&devices()[0]).unwrap(), "gpt-oss");
    }
}

#[test]
fn so_they_are_on_cuda() {
    compare(cuda, "gpt-oss");
}

/// Records of a cache tier are pages of all layers.
#[test]
fn a_cache_tier_is_refused() {
    let model = open("gpt-oss");
    let shape = shape(&model);
    let engine = start_model(|| Cpu::new(Isa::best(), 1).unwrap(), model, shape);
    let folder = TempDir::new().unwrap();
    let refused = engine.cache_on_disk(settings(folder.path(), "test"));
    assert!(
        matches!(refused, Err(TierError::Unsupported(why)) if why.contains("sliding-window")),
        "{refused:?}"
    );
}
