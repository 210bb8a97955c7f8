//! Steps of a worker: a batch is launched and finished, and rerun item by item if it fails.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use tallow_core::Error;

use crate::counts::StepCounts;

/// The device is lost, and why.
#[derive(Debug)]
pub(crate) struct Lost(pub(super) String);

/// Why a step failed.
#[derive(Debug)]
pub(crate) enum StepError {
    /// The device is lost.
    Lost(Lost),
    /// One of the items is at fault, or the error may be transient.
    Failed(String),
}

impl From<Error> for StepError {
    fn from(e: Error) -> StepError {
        match e {
            Error::Lost { .. } => StepError::Lost(Lost(e.to_string())),
            e => StepError::Failed(e.to_string()),
        }
    }
}

/// Runs `work`; a panic is caught and returned as an error.
fn catch<T>(work: impl FnOnce() -> T) -> Result<T, String> {
    catch_unwind(AssertUnwindSafe(work)).map_err(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no message");
        format!("an internal error, please report it: {text}")
    })
}

/// Items computed in one step.
pub(crate) trait Batch: Sized {
    /// Name of the items in the log.
    const ITEMS: &'static str;
    /// Number of items.
    fn items(&self) -> usize;
    /// Number of tokens.
    fn tokens(&self) -> usize;
    /// One batch per item.
    fn split(self) -> Vec<Self>;
}

/// A worker whose steps compute batches.
pub(crate) trait BatchWorker {
    /// The items of a step.
    type Batch: Batch;
    /// A batch that was launched.
    type Launched;
    /// Result of an item.
    type Output;
    /// Counts of steps.
    fn steps(&self) -> &StepCounts;
    /// Launches a batch. Can be repeated if it or [`finish`](Self::finish) fails.
    fn launch(&self, batch: &Self::Batch) -> Result<Self::Launched, StepError>;
    /// Waits for a batch that was launched: one output per item.
    fn finish(&self, batch: &Self::Batch, launched: Self::Launched) -> Result<Vec<Self::Output>, StepError>;
    /// A batch has failed: one that was launched after it has computed nothing of use, and is dropped.
    fn drop_ahead(&mut self) {}
    /// Learns how long a batch took, from its launch, or from the end of the one before it, to its outputs.
    fn took(&mut self, _batch: &Self::Batch, _time: Duration) {}
    /// Handles the outputs of a batch.
    fn commit(&mut self, batch: Self::Batch, outputs: Vec<Self::Output>);
    /// Fails the requests of a batch.
    fn fail(&mut self, batch: Self::Batch, why: &str);
}

/// A batch that was launched, or why it could not be.
pub(crate) struct InFlight<W: BatchWorker> {
    batch: W::Batch,
    launched: Result<W::Launched, StepError>,
    began: Instant,
}

impl<W: BatchWorker> InFlight<W> {
    /// The batch.
    pub(crate) fn batch(&self) -> &W::Batch {
        &self.batch
    }

    /// The batch, of which the host has learned more.
    pub(crate) fn batch_mut(&mut self) -> &mut W::Batch {
        &mut self.batch
    }

    /// The device begins with it now, because it has finished the one before.
    pub(crate) fn begins(&mut self) {
        self.began = Instant::now();
    }

    /// The launched step, unless launching failed.
    pub(crate) fn launched(&self) -> Option<&W::Launched> {
        self.launched.as_ref().ok()
    }
}

/// Runs a batch. If that fails, each of its items is rerun alone, so that only the item at fault fails.
pub(crate) fn run_batch<W: BatchWorker>(worker: &mut W, batch: W::Batch) -> Result<(), Lost> {
    let step = launch_batch(worker, batch);
    finish_batch(worker, step)
}

/// Launches a batch. Whether that failed shows when it is finished.
pub(crate) fn launch_batch<W: BatchWorker>(worker: &W, batch: W::Batch) -> InFlight<W> {
    worker.steps().run.fetch_add(1, Ordering::Relaxed);
    let began = Instant::now();
    let launched = launch(worker, &batch);
    InFlight { batch, launched, began }
}

/// Finishes a batch. If it failed, each of its items is rerun alone, so that only the item at fault fails.
pub(crate) fn finish_batch<W: BatchWorker>(worker: &mut W, step: InFlight<W>) -> Result<(), Lost> {
    let InFlight { batch, launched, began } = step;
    let (count, items) = (batch.items(), W::Batch::ITEMS);
    let ran = finish(worker, &batch, launched);
    let time = began.elapsed();
    tracing::trace!("a step of {count} {items} and {} tokens took {time:?}", batch.tokens());
    if ran.is_ok() {
        worker.took(&batch, time);
    }
    if let Err(StepError::Failed(why)) = &ran {
        worker.steps().failed.fetch_add(1, Ordering::Relaxed);
        worker.drop_ahead();
        if count > 1 {
            tracing::error!("a step of {count} {items} failed: {why}; trying each alone");
            return batch.split().into_iter().try_for_each(|one| {
                let launched = launch(worker, &one);
                let ran = finish(worker, &one, launched);
                settle(worker, one, ran)
            });
        }
    }
    settle(worker, batch, ran)
}

fn launch<W: BatchWorker>(worker: &W, batch: &W::Batch) -> Result<W::Launched, StepError> {
    catch(|| worker.launch(batch)).map_err(StepError::Failed)?
}

/// Finishes a batch, with an output for each item: a request without one would never end.
fn finish<W: BatchWorker>(
    worker: &W,
    batch: &W::Batch,
    launched: Result<W::Launched, StepError>,
) -> Result<Vec<W::Output>, StepError> {
    let launched = launched?;
    let outputs = catch(|| worker.finish(batch, launched)).map_err(StepError::Failed)??;
    match (outputs.len(), batch.items()) {
        (given, count) if given == count => Ok(outputs),
        (given, count) => {
            let items = W::Batch::ITEMS;
            Err(StepError::Failed(format!(
                "a step of {count} {items} gave {given} results, please report it"
            )))
        }
    }
}

/// Handles the result of a batch.
fn settle<W: BatchWorker>(
    worker: &mut W,
    batch: W::Batch,
    ran: Result<Vec<W::Output>, StepError>,
) -> Result<(), Lost> {
    match ran {
        Ok(outputs) => worker.commit(batch, outputs),
        Err(StepError::Failed(why)) => worker.fail(batch, &why),
        Err(StepError::Lost(lost)) => return Err(lost),
    }
    Ok(())
}
