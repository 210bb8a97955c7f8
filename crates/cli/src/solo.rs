//! [`Solo`]: one sequence alone on a device, for commands that look at the model itself.

use tallow_core::{Error, Tensor};
use tallow_cpu::{Cpu, Isa};
use tallow_engine::kv::KvShape;
use tallow_engine::pool::BlockId;
use tallow_engine::runner::Runner;
use tallow_engine::scheduler::{Batch, Part, SeqId, Wanted};
use tallow_models::Model;

use crate::Failed;
use crate::args::DeviceArgs;
use crate::load;
use crate::memory::{self, PAGE};
use crate::settings::{KvType, Sources, cores};

/// How a model is put on the device.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Setup {
    pub isa: Isa,
    pub threads: usize,
    pub kv: KvType,
    /// Tokens that the sequence may have.
    pub context: usize,
    /// Tokens of a step at most.
    pub batch: usize,
}

impl Setup {
    /// From flags of a command that has no engine.
    pub(crate) fn new(sources: &Sources, device: &DeviceArgs, kv: &str) -> Result<Setup, Failed> {
        let isa = device.isa.as_deref();
        let isa = isa.map(|name| name.parse().map_err(Failed::new)).transpose()?;
        let isa = sources.get("isa", isa, Isa::best())?.value;
        let threads = sources.get("threads", device.threads, cores())?.value;
        if !isa.is_available() {
            let best = Isa::best();
            return Err(Failed::new(format!("this CPU does not have {isa}; the best it has is {best}")));
        }
        Ok(Setup { isa, threads, kv: kv.parse().map_err(Failed::new)?, context: 0, batch: 256 })
    }
}

/// A model and one sequence of it.
pub(crate) struct Solo {
    runner: Runner<Cpu>,
    tokens: usize,
}

impl Solo {
    /// Loads a model, if it fits.
    pub(crate) fn new(model: &Model, setup: Setup) -> Result<Solo, Failed> {
        let shape = KvShape { dtype: setup.kv.0, page_len: PAGE, pages: setup.context.div_ceil(PAGE) };
        memory::Plan::alone(model, shape, setup.batch).check()?;
        let b = Cpu::new(setup.isa, setup.threads)?;
        Ok(Solo { runner: load::runner(b, model, setup.context, shape)?, tokens: 0 })
    }

    /// What it runs on.
    pub(crate) fn backend(&self) -> &Cpu {
        self.runner.backend()
    }

    /// The model on it.
    pub(crate) fn runner(&self) -> &Runner<Cpu> {
        &self.runner
    }

    /// Forgets all tokens after the first so many.
    pub(crate) fn rewind(&mut self, tokens: usize) {
        self.tokens = self.tokens.min(tokens);
    }

    /// Computes tokens, and shows the hidden states to `see`. The logits that are wanted are returned.
    pub(crate) fn step(
        &mut self,
        tokens: &[u32],
        logits: Wanted,
        see: impl FnMut(usize, &Tensor<Cpu>) -> Result<(), Error>,
    ) -> Result<Tensor<Cpu>, Error> {
        let start = self.tokens;
        self.tokens += tokens.len();
        let blocks = (0..self.tokens.div_ceil(PAGE) as u32).map(BlockId).collect();
        let part = Part { id: SeqId(0), tokens: tokens.to_vec(), start, blocks, logits };
        self.runner.logits_seen(&Batch { parts: vec![part] }, see)
    }
}
