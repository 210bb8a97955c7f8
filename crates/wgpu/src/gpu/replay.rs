//! Captured launches, which are recorded again as they are.

use std::rc::Rc;

use tallow_core::Result;

use super::record::Recorded;
use super::{Gpu, PARAMS};

/// Commands of one submission, and their parameters.
#[derive(Debug)]
pub(crate) struct Captured {
    recorded: Vec<Recorded>,
    params: Vec<u8>,
    work: u64,
    dispatches: usize,
}

/// Encoding the commands of a replay takes longer than recording them, so it is done ahead of time, while the device
/// works: the replay after this one is mostly the same.
#[derive(Debug, Default)]
pub(super) struct Ahead {
    /// The replay that came last, if its parameters are the first of their submission.
    last: Option<Rc<[Captured]>>,
    /// Encoded commands of a replay, as they are at the beginning of a submission.
    encoded: Option<(Rc<[Captured]>, wgpu::CommandBuffer)>,
    /// Encoded commands of the next submission, and the number of recorded ones that come before them.
    pub next: Option<(usize, wgpu::CommandBuffer)>,
}

/// A capture under way.
#[derive(Debug, Default)]
pub(super) struct Capture {
    all: Vec<Captured>,
    /// Something was done that a replay would not do.
    is_given_up: bool,
}

impl Capture {
    pub(super) fn add(&mut self, recorded: &[Recorded], params: &[u8], work: u64) {
        if !self.is_given_up && !recorded.is_empty() {
            let dispatches = recorded.iter().filter(|what| matches!(what, Recorded::Run { .. })).count();
            self.all.push(Captured {
                recorded: recorded.to_vec(),
                params: params.to_vec(),
                work,
                dispatches,
            });
        }
    }
}

/// Ends the capture, also if the work fails or panics.
struct UnderWay<'a>(&'a Gpu);

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        self.0.capture.take();
    }
}

impl Gpu {
    /// Does `work`, and returns what it recorded; `None` if that would not do the same again, or within another capture.
    ///
    /// Memory comes from a pool of its own. What `work` frees goes to later captures: everything runs in the order of
    /// recording, so one replay may overwrite what another has left.
    pub(crate) fn capture(&self, work: &mut dyn FnMut() -> Result<()>) -> Result<Option<Vec<Captured>>> {
        if self.capture.borrow().is_some() {
            self.give_up_capture();
            work()?;
            return Ok(None);
        }
        // What was recorded before is no part of it.
        self.submit()?;
        *self.capture.borrow_mut() = Some(Capture::default());
        let under_way = UnderWay(self);
        work()?;
        let captured = self.capture.borrow_mut().take().map(|mut capture| {
            capture.add(&self.recorded.borrow(), &self.params.borrow(), self.work.get());
            capture
        });
        drop(under_way);
        Ok(captured.filter(|capture| !capture.is_given_up).map(|capture| capture.all))
    }

    /// Nothing is returned of the capture under way, if there is one.
    pub(super) fn give_up_capture(&self) {
        if let Some(capture) = self.capture.borrow_mut().as_mut() {
            *capture = Capture { is_given_up: true, all: Vec::new() };
        }
    }

    /// Records again what was captured, or uses what was encoded ahead of time.
    pub(crate) fn replay(&self, captured: &Rc<[Captured]>) -> Result<()> {
        self.count(|c| c.replays += 1);
        // Parameters of encoded commands lie at fixed offsets. What is copied before needs none.
        let mut ahead = self.encoded_ahead.borrow_mut();
        let begins =
            self.params.borrow().is_empty() && self.capture.borrow().is_none() && ahead.next.is_none();
        let (true, [one]) = (begins, &captured[..]) else {
            drop(ahead);
            return self.record_again(captured);
        };
        ahead.last = Some(captured.clone());
        let Some((_, commands)) = ahead.encoded.take_if(|(of, _)| Rc::ptr_eq(of, captured)) else {
            drop(ahead);
            return self.record_again(captured);
        };
        ahead.next = Some((self.recorded.borrow().len(), commands));
        self.params.borrow_mut().extend_from_slice(&one.params);
        self.work.set(one.work);
        self.count(|c| {
            (c.dispatches, c.encoded_ahead) = (c.dispatches + one.dispatches, c.encoded_ahead + 1)
        });
        Ok(())
    }

    /// Encodes the commands of the replay that came last, in case it comes again.
    pub(super) fn encode_ahead(&self) {
        let mut ahead = self.encoded_ahead.borrow_mut();
        let Some(captured) = ahead.last.take() else { return };
        if ahead.encoded.as_ref().is_none_or(|(of, _)| !Rc::ptr_eq(of, &captured)) {
            let commands = self.encode(&captured[0].recorded);
            ahead.encoded = Some((captured, commands));
        }
    }

    fn record_again(&self, captured: &[Captured]) -> Result<()> {
        for Captured { recorded, params, work, dispatches } in captured {
            debug_assert!(params.len() <= PARAMS as usize);
            self.make_room(params.len(), *work)?;
            let mut all = self.params.borrow_mut();
            let at = all.len() as u32;
            all.extend_from_slice(params);
            let moved = recorded.iter().map(|command| match command {
                Recorded::Run { pipeline, group, params, grid } => Recorded::Run {
                    pipeline: pipeline.clone(),
                    group: group.clone(),
                    params: at + params,
                    grid: *grid,
                },
                other => other.clone(),
            });
            self.recorded.borrow_mut().extend(moved);
            self.count(|c| c.dispatches += dispatches);
        }
        Ok(())
    }
}
