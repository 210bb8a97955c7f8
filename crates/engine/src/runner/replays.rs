//! [`Replays`]: steps in which all sequences decode, captured once for each size and launched again.

use std::cell::RefCell;
use std::collections::HashMap;

use tallow_core::{Backend, DecodePlan, DecodeRoom, Error, Replay, Scratch, Step, StepPlan, Tensor};
use tallow_models::spec::DecoderSpec;

use crate::kv_cache::KvShape;
use crate::plan;
use crate::scheduler::Batch;

/// Most sequences of a step that is captured: a step of more takes a device longer than the host takes to launch it. A large GPU
/// decodes 256 of them about as fast as the host launches a small model's ops.
pub const MOST_REPLAYED_ROWS: usize = 256;
/// Fewest KV cache pages per sequence that a plan has room for.
const LEAST_PAGES: usize = 16;

/// Captured decode steps of a model, by the room of their plans.
#[derive(Debug)]
pub(super) struct Replays<B: Backend> {
    scratch: Scratch,
    page_len: usize,
    /// `None` for those that the device could not capture, or had no memory for.
    captured: RefCell<HashMap<DecodeRoom, Option<Captured<B>>>>,
}

#[derive(Debug)]
struct Captured<B: Backend> {
    plan: DecodePlan<B>,
    /// [rows, dim]: hidden states after the last layer.
    x: Tensor<B>,
    replay: Replay,
}

impl<B: Backend> Replays<B> {
    /// For a KV cache of this shape and [scratch room](KvShape::with_scratch); `None` if the device captures nothing.
    pub(super) fn new(b: &B, spec: &DecoderSpec, shape: KvShape) -> Result<Option<Replays<B>>, Error> {
        if b.capture(&mut || Ok(()))?.is_none() {
            return Ok(None);
        }
        let state = spec.is_recurrent().then_some(shape.state_rows as u32);
        let swa_page = (shape.swa_pages > 0).then_some(shape.swa_pages as u32);
        let scratch = Scratch { page: shape.pages as u32, swa_page, state };
        Ok(Some(Replays { scratch, page_len: shape.page_len, captured: RefCell::default() }))
    }

    /// Room for a batch of few sequences that have one token each and no LoRA adapter.
    fn room(batch: &Batch) -> Option<DecodeRoom> {
        let parts = &batch.parts;
        let decodes = parts.iter().all(|p| p.tokens.len() == 1 && p.lora.is_none() && p.cross.is_none());
        if parts.is_empty() || parts.len() > MOST_REPLAYED_ROWS || !decodes {
            return None;
        }
        let pages = parts.iter().map(|part| part.blocks.len()).max()?;
        Some(DecodeRoom { rows: rows(parts.len()), pages: pages.next_power_of_two().max(LEAST_PAGES) })
    }

    /// Computes the hidden states of a batch, which `forward` launches where they were not captured before, and gives them to
    /// `then` with their plan. `feed` fills in the tokens that the host does not know. `None` if the batch must be launched op
    /// by op.
    pub(super) fn run<T>(
        &self,
        b: &B,
        batch: &Batch,
        feed: impl Fn(&StepPlan<B>) -> Result<(), Error>,
        forward: impl Fn(&StepPlan<B>) -> Result<Tensor<B>, Error>,
        then: impl Fn(&StepPlan<B>, &Tensor<B>) -> Result<T, Error>,
    ) -> Result<Option<T>, Error> {
        let Some(room) = Self::room(batch) else { return Ok(None) };
        let step = || plan::build(batch, self.page_len);
        // Put back only if all goes well.
        let taken = self.captured.borrow_mut().remove(&room);
        let captured = match taken {
            Some(None) => None,
            Some(Some(captured)) => Some(captured.relaunch(b, step(), feed)?),
            None => self.capture(b, room, step(), feed, forward)?,
        };
        let result = captured.as_ref().map(|captured| then(captured.plan.plan(), &captured.x)).transpose()?;
        self.captured.borrow_mut().insert(room, captured);
        Ok(result)
    }

    /// Captures a step; `None` if the device cannot, or has no memory for it, which may be enough for the step itself.
    fn capture(
        &self,
        b: &B,
        room: DecodeRoom,
        step: Step,
        feed: impl Fn(&StepPlan<B>) -> Result<(), Error>,
        forward: impl Fn(&StepPlan<B>) -> Result<Tensor<B>, Error>,
    ) -> Result<Option<Captured<B>>, Error> {
        let captured = DecodePlan::new(b, room, self.scratch, self.page_len).and_then(|mut plan| {
            feed(plan.refill(b, step)?)?;
            let mut x = None;
            let replay = b.capture(&mut || {
                x = Some(forward(plan.plan())?);
                Ok(())
            })?;
            Ok(replay.zip(x).map(|(replay, x)| Captured { plan, x, replay }))
        });
        let why = match captured {
            Ok(Some(captured)) => return Ok(Some(captured)),
            Ok(None) => "they cannot be captured".to_owned(),
            Err(full @ Error::OutOfMemory { .. }) => full.to_string(),
            Err(e) => return Err(e),
        };
        tracing::warn!("decode steps of {} sequences are launched op by op: {why}", room.rows);
        Ok(None)
    }
}

impl<B: Backend> Captured<B> {
    /// The same with the plan of another step, whose launches are under way.
    fn relaunch(
        mut self,
        b: &B,
        step: Step,
        feed: impl Fn(&StepPlan<B>) -> Result<(), Error>,
    ) -> Result<Captured<B>, Error> {
        feed(self.plan.refill(b, step)?)?;
        self.replay.launch()?;
        Ok(self)
    }
}

/// Rows of the plan for `sequences` sequences: at most half as many again, so that few sizes are captured.
fn rows(sequences: usize) -> usize {
    let next = sequences.next_power_of_two();
    if sequences <= next / 4 * 3 { next / 4 * 3 } else { next }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::rc::Rc;

    use tallow_core::ops::{Copy, Embed, Required, TailSum, TopK, TopKOut};
    use tallow_core::{DType, Memory, Trace, null_ops};

    use super::*;
    use crate::scheduler::{BatchPart, LogitsRows, SeqId};

    /// A device that computes nothing, with what it says to captures after the first, by which it is asked whether it
    /// captures at all.
    #[derive(Debug, Default)]
    struct Device {
        trace: Trace,
        asked: Cell<bool>,
        says: Says,
        launched: Rc<Cell<usize>>,
    }

    #[derive(Clone, Copy, Debug, Default)]
    enum Says {
        #[default]
        Yes,
        No,
        Full,
        Broken,
    }

    impl Memory for Device {
        type Buf = ();
        type Pending = ();

        fn alloc(&self, dtype: DType, rows: usize, cols: usize) -> Result<Tensor<Device>, Error> {
            Ok(Tensor::whole((), dtype, rows, cols))
        }

        fn write(&self, _to: &Tensor<Device>, _bytes: &[u8]) -> Result<(), Error> {
            Ok(())
        }

        fn fetch(&self, _from: &[&Tensor<Device>]) -> Result<(), Error> {
            Ok(())
        }

        fn wait(&self, _pending: (), _to: &mut [&mut [u8]]) -> Result<(), Error> {
            Ok(())
        }
    }

    impl Backend for Device {
        fn label(&self) -> String {
            "device".into()
        }

        fn trace(&self) -> &Trace {
            &self.trace
        }

        fn capture(&self, work: &mut dyn FnMut() -> Result<(), Error>) -> Result<Option<Replay>, Error> {
            work()?;
            let launched = self.launched.clone();
            let replay = Replay::new(move || {
                launched.set(launched.get() + 1);
                Ok(())
            });
            match (self.asked.replace(true), self.says) {
                (false, _) | (_, Says::Yes) => Ok(Some(replay)),
                (_, Says::No) => Ok(None),
                (_, Says::Full) => Err(Error::OutOfMemory { device: "device".into(), asked: 1 }),
                (_, Says::Broken) => Err(Error::Device { device: "device".into(), why: "broken".into() }),
            }
        }

        null_ops!();

        fn copy(&self, op: &Copy<'_, Self>) -> Result<(), Error> {
            op.out(self)
        }

        fn embed(&self, op: &Embed<'_, Self>) -> Result<Tensor<Self>, Error> {
            op.out(self)
        }

        fn topk(&self, op: &TopK<'_, Self>) -> Result<TopKOut<Self>, Error> {
            op.out(self)
        }

        fn tail_sum(&self, op: &TailSum<'_, Self>) -> Result<Tensor<Self>, Error> {
            op.out(self)
        }
    }

    /// A batch of `sequences` sequences of 40 tokens.
    fn batch(sequences: usize, tokens: usize) -> Batch {
        let part = |i: usize| {
            let (id, blocks) = (SeqId(i as u64), (0..4).collect());
            BatchPart { start: 40, ..BatchPart::new(id, vec![5; tokens], blocks, LogitsRows::Last) }
        };
        Batch { parts: (0..sequences).map(part).collect() }
    }

    #[test]
    fn a_step_is_captured_once_for_each_size_and_launched_op_by_op_where_it_cannot_be() {
        // Whether each batch is launched with a plan for that many rows, and how often the model launched its ops.
        let steps = [(1, 1), (1, 1), (5, 1), (6, 1), (6, 2), (300, 1), (1, 1)];
        let one = Some(1);
        let expected = [
            (Says::Yes, [one, one, Some(6), Some(6), None, None, one], 2, 3),
            (Says::No, [None; 7], 2, 0),
            (Says::Full, [None; 7], 2, 0),
        ];
        for (says, rows, forwards, launched) in expected {
            let b = Device { says, ..Device::default() };
            assert!(b.capture(&mut || Ok(())).unwrap().is_some());
            let scratch = Scratch { page: 99, swa_page: None, state: None };
            let replays = Replays { scratch, page_len: 16, captured: RefCell::default() };
            let calls = Cell::new(0);
            let forward = |plan: &StepPlan<Device>| {
                calls.set(calls.get() + 1);
                b.alloc(DType::F32, plan.host().tokens.len(), 8)
            };
            let run = |(sequences, tokens)| {
                let rows = |plan: &StepPlan<Device>, x: &Tensor<Device>| {
                    assert_eq!((plan.outputs.cols(), plan.tokens.cols()), (sequences, x.rows()));
                    Ok(x.rows())
                };
                replays.run(&b, &batch(sequences, tokens), |_| Ok(()), forward, rows).unwrap()
            };
            assert_eq!(steps.map(run), rows, "{says:?}");
            assert_eq!((calls.get(), b.launched.get()), (forwards, launched), "{says:?}");
        }
    }

    #[test]
    fn a_step_that_fails_is_captured_anew() {
        let mut b = Device { says: Says::Broken, asked: Cell::new(true), ..Device::default() };
        let scratch = Scratch { page: 99, swa_page: None, state: None };
        let replays = Replays { scratch, page_len: 16, captured: RefCell::default() };
        let run = |b: &Device| {
            let forward = |plan: &StepPlan<Device>| b.alloc(DType::F32, plan.host().tokens.len(), 8);
            replays.run(b, &batch(1, 1), |_| Ok(()), forward, |_, x| Ok(x.rows()))
        };
        assert!(matches!(run(&b), Err(Error::Device { .. })));
        b.says = Says::Yes;
        assert!(matches!((run(&b), run(&b)), (Ok(Some(1)), Ok(Some(1)))));
        assert_eq!(b.launched.get(), 1);
    }

    #[test]
    fn a_plan_has_at_most_half_as_many_rows_again() {
        let sizes: Vec<usize> = (1..=MOST_REPLAYED_ROWS).map(rows).collect();
        assert!(
            sizes.iter().zip(1usize..).all(|(rows, n)| (n..=(3 * n).div_ceil(2)).contains(rows)),
            "{sizes:?}"
        );
        let mut all = sizes;
        all.dedup();
        assert_eq!(all, [1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256]);
    }
}
