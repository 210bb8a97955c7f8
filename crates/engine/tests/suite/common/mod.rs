//! A small model on an engine, and helpers to drive it.

pub(crate) mod faulty;

use std::ops::ControlFlow;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use faulty::Faulty;
use tallow_checkpoint::Settings;
use tallow_core::{Backend, DType};
use tallow_cpu::{Cpu, Isa};
use tallow_cuda::{Cuda, devices_through};
use tallow_engine::engine::spawn;
use tallow_engine::handle::{EngineHandle, Event, Finish, Info, Request, RunningEngine};
use tallow_engine::kv_cache::KvShape;
use tallow_engine::runner::Runner;
use tallow_engine::sampler::{Allowed, Choice, Constraint, Sampling, TokenMask};
use tallow_engine::scheduler::{DecodeBudget, Limits};
use tallow_models::decoder::Decoder;
use tallow_models::{LoadError, Model};
use tallow_ptx::mock;
use tallow_support::{PATIENCE, golden, json};
use tallow_text::tokenizer::Tokenizer;

pub(crate) const SLOTS: usize = 4;

/// A constraint that depends on all tokens before: it allows a third of the vocabulary after each.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Thirds(u32);

impl Thirds {
    pub(crate) fn boxed() -> Box<dyn Constraint> {
        Box::new(Thirds::default())
    }

    pub(crate) fn allows(self, token: u32) -> bool {
        (token + self.0).is_multiple_of(3)
    }
}

impl Constraint for Thirds {
    fn accept(&mut self, token: u32) -> Result<(), String> {
        if !self.allows(token) {
            return Err(format!("{token} after {self:?}"));
        }
        self.0 = (5 * self.0 + token) % 1009;
        Ok(())
    }

    fn allowed(&mut self) -> Result<Allowed, String> {
        let word = |at: u32| (0..32).map(|bit| u32::from(self.allows(32 * at + bit)) << bit).sum();
        Ok(Allowed::Any(TokenMask::of_words((0..8).map(word).collect())))
    }

    fn fork(&self) -> Box<dyn Constraint> {
        Box::new(*self)
    }
}

/// A constraint that forces five tokens after each three: together, one by one, or as masks of one token.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Phrases {
    pub(crate) how: Forces,
    tokens: u32,
    free: Thirds,
}

/// Three ways to say the same.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Forces {
    Together,
    OneByOne,
    ByMasks,
}

impl Phrases {
    pub(crate) fn boxed(how: Forces) -> Box<dyn Constraint> {
        Box::new(Phrases { how, tokens: 0, free: Thirds::default() })
    }

    /// The tokens that must come.
    fn forced(self) -> Vec<u32> {
        let free = (5..8).contains(&(self.tokens % 8));
        let word = |at: u32| 4 + (at * 37 + at / 8 * self.free.0) % 60;
        if free { Vec::new() } else { (self.tokens..).take_while(|at| at % 8 < 5).map(word).collect() }
    }
}

impl Constraint for Phrases {
    fn accept(&mut self, token: u32) -> Result<(), String> {
        match self.forced().first() {
            Some(forced) if *forced != token => return Err(format!("{token} for {forced}")),
            Some(_) => {}
            None => self.free.accept(token)?,
        }
        self.tokens += 1;
        Ok(())
    }

    fn allowed(&mut self) -> Result<Allowed, String> {
        let forced = self.forced();
        match (forced.first(), self.how) {
            (None, _) => self.free.allowed(),
            (Some(token), Forces::ByMasks) => Ok(Allowed::Any(TokenMask::of_tokens(&[*token], 256))),
            (Some(token), Forces::OneByOne) => Ok(Allowed::Forced { token: *token, then: Vec::new() }),
            (Some(token), Forces::Together) => {
                Ok(Allowed::Forced { token: *token, then: forced[1..].to_vec() })
            }
        }
    }

    fn fork(&self) -> Box<dyn Constraint> {
        Box::new(*self)
    }
}

/// Small model with random weights; its GGUF file has the vocabulary `t4`, `t5`, …
pub(crate) fn model() -> Model {
    Model::open(&golden("gguf-models/llama-bf16.gguf")).unwrap()
}

/// A GPU whose driver is an interpreter of the kernels. It is the thread's own.
pub(crate) fn cuda() -> Cuda {
    // Reads of memory that nobody wrote are faults there.
    mock::set(mock::Machine::default());
    // SAFETY: its functions have the types of the driver's, and do the same.
    let found = unsafe { devices_through(&mock::symbol) }.unwrap();
    Cuda::open(&found[0]).unwrap()
}

pub(crate) fn info(model: &Model, pages: usize) -> Info {
    let Settings::Gguf(meta) = &model.checkpoint.settings else { panic!("a GGUF file") };
    Info {
        names: vec!["test".into()],
        tokenizer: Tokenizer::from_gguf(meta).unwrap(),
        vocab: model.spec.vocab,
        context: 128,
        slots: SLOTS,
        queue: 20,
        queue_timeout: None,
        page_len: 4,
        pages,
        swa_pages: 0,
        state_rows: 0,
        sampling: Sampling::default(),
        adapter_room: 1 << 20,
    }
}

#[derive(Debug)]
pub(crate) enum Wrong {
    Load(#[allow(dead_code, reason = "shown when a test fails")] LoadError),
    Device(#[allow(dead_code, reason = "shown when a test fails")] tallow_core::Error),
    Io(#[allow(dead_code, reason = "shown when a test fails")] std::io::Error),
}

impl From<std::io::Error> for Wrong {
    fn from(e: std::io::Error) -> Wrong {
        Wrong::Io(e)
    }
}

pub(crate) fn limits() -> Limits {
    Limits {
        context: 128,
        slots: SLOTS,
        budget: 32,
        decode_budget: DecodeBudget::of_tokens(32),
        all_logits: 8,
        drafts: None,
    }
}

pub(crate) fn start(pages: usize) -> RunningEngine {
    start_with(pages, limits())
}

pub(crate) fn start_with(pages: usize, limits: Limits) -> RunningEngine {
    start_with_draft_model(pages, limits, None)
}

pub(crate) fn start_with_draft_model(pages: usize, limits: Limits, draft: Option<Model>) -> RunningEngine {
    let shape = KvShape { dtype: DType::F32, page_len: 4, pages, swa_pages: 0, state_rows: 0 };
    start_drafting(model(), shape, limits, draft)
}

/// An engine of a model which drafts with another, or with its own MTP layer if that is to be loaded.
pub(crate) fn start_drafting(
    model: Model,
    shape: KvShape,
    limits: Limits,
    draft: Option<Model>,
) -> RunningEngine {
    start_drafting_on(|| Cpu::new(Isa::best(), 2).unwrap(), model, shape, limits, draft)
}

/// The same on a device.
pub(crate) fn start_drafting_on<B: Backend + 'static>(
    device: impl FnOnce() -> B + Send + 'static,
    model: Model,
    shape: KvShape,
    limits: Limits,
    draft: Option<Model>,
) -> RunningEngine {
    let KvShape { pages, state_rows, .. } = shape;
    // Folders of goldens have no vocabulary.
    let vocab = model.spec.vocab;
    let named = if matches!(model.checkpoint.settings, Settings::Gguf(_)) { &model } else { &self::model() };
    let info = Info { state_rows, vocab, ..info(named, pages) };
    let runner = move || {
        let b = device();
        let load = |b: &B, model: &Model| {
            Decoder::load(b, model, 128, &mut |_, _| ControlFlow::Continue(())).map_err(Wrong::Load)
        };
        let decoder = load(&b, &model)?;
        let runner = Runner::new(b, decoder, shape).map_err(Wrong::Device)?;
        let mut runner = runner.with_mtp(shape).map_err(Wrong::Device)?;
        if let Some(draft) = draft {
            let decoder = load(runner.backend(), &draft)?;
            runner = runner.with_draft_model(decoder, 128, shape).map_err(Wrong::Device)?;
        }
        Ok::<_, Wrong>((runner, limits))
    };
    spawn(|| Ok(info), runner).unwrap()
}

/// The golden's prompt and its greedy continuation.
pub(crate) fn greedy() -> (Vec<u32>, Vec<u32>) {
    let facts = json(&golden("llama/golden.json"));
    let ids = |v: &serde_json::Value| -> Vec<u32> {
        v.as_array().unwrap().iter().map(|t| t.as_u64().unwrap() as u32).collect()
    };
    let at = facts["greedy"]["prompt"].as_u64().unwrap() as usize;
    (ids(&facts["prompts"][at]), ids(&facts["greedy"]["tokens"]))
}

pub(crate) fn request(prompt: &[u32], max_new: usize) -> Request {
    Request { prompt: prompt.to_vec(), max_new, sampling: Sampling::greedy(), ..Request::default() }
}

/// All events of a request until it ends.
pub(crate) fn events(handle: &EngineHandle, request: Request) -> Vec<Event> {
    let mut receiver = handle.submit(request).unwrap();
    std::iter::from_fn(|| receiver.blocking_recv()).collect()
}

pub(crate) fn tokens(events: &[Event]) -> Vec<u32> {
    let token = |e: &Event| if let Event::Piece { choice, .. } = e { Some(choice.token) } else { None };
    events.iter().filter_map(token).collect()
}

/// Scored prompt tokens and sampled tokens.
pub(crate) fn choices(events: &[Event]) -> Vec<Choice> {
    let choices = |e: &Event| match e {
        Event::Prompt(scored) => scored.clone(),
        Event::Piece { choice, .. } => vec![choice.clone()],
        _ => Vec::new(),
    };
    events.iter().flat_map(choices).collect()
}

pub(crate) fn text(events: &[Event]) -> String {
    let text = |e: &Event| match e {
        Event::Piece { text, .. } => text.clone(),
        Event::Done(done) => done.text.clone(),
        _ => String::new(),
    };
    events.iter().map(text).collect()
}

pub(crate) fn reason(events: &[Event]) -> Finish {
    match events.last() {
        Some(Event::Done(done)) => done.reason.clone(),
        other => panic!("the last event is {other:?}"),
    }
}

pub(crate) fn ends(events: &[Event]) -> usize {
    events.iter().filter(|e| matches!(e, Event::Done(_) | Event::Failed(_))).count()
}

/// Waits until no page is in use, then checks that the block pool is consistent.
pub(crate) fn comes_to_rest(handle: &EngineHandle) {
    let begun = Instant::now();
    while handle.taken() > 0 || handle.stats().pages_in_use.load(Ordering::Relaxed) > 0 {
        assert!(begun.elapsed() < PATIENCE, "{:?}", handle.stats());
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(handle.stats().page_faults.load(Ordering::Relaxed), 0);
}

/// Engine on the faulty device.
pub(crate) fn start_faulty() -> RunningEngine {
    start_held(Arc::default())
}

/// The same; no step runs while the caller holds `held`.
pub(crate) fn start_held(held: Arc<Mutex<()>>) -> RunningEngine {
    start_held_with(held, |_| {})
}

/// The same, with a modified `Info`.
pub(crate) fn start_held_with(held: Arc<Mutex<()>>, change: impl FnOnce(&mut Info)) -> RunningEngine {
    let model = model();
    let mut info = info(&model, 64);
    change(&mut info);
    let runner = move || runner_on(Faulty::held(held), &model);
    spawn(|| Ok(info), move || Ok::<_, Wrong>((runner(), limits()))).unwrap()
}

pub(crate) fn runner(model: &Model) -> Runner<Faulty> {
    runner_on(Faulty::default(), model)
}

/// Engine on a device that the engine's thread makes.
pub(crate) fn start_on(make: impl FnOnce() -> Faulty + Send + 'static) -> RunningEngine {
    let model = model();
    let info = info(&model, 64);
    spawn(|| Ok(info), move || Ok::<_, Wrong>((runner_on(make(), &model), limits()))).unwrap()
}

fn runner_on(b: Faulty, model: &Model) -> Runner<Faulty> {
    let decoder = Decoder::load(&b, model, 128, &mut |_, _| ControlFlow::Continue(())).unwrap();
    Runner::new(
        b,
        decoder,
        KvShape { dtype: DType::F32, page_len: 4, pages: 64, swa_pages: 0, state_rows: 0 },
    )
    .unwrap()
}
