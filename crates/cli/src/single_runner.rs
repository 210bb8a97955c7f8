//! [`SingleRunner`]: one sequence, or several of equal length, on a device without the engine; for commands that
//! inspect the model itself.

use tallow_core::{Backend, Error, Tensor};
use tallow_cpu::{Arithmetic, Cpu, Isa};
use tallow_engine::block_pool::BlockId;
use tallow_engine::handle::LoadLora;
use tallow_engine::kv_cache::KvShape;
use tallow_engine::lora::{LoraId, LoraRef};
use tallow_engine::runner::Runner;
use tallow_engine::scheduler::{Batch, BatchPart, SeqId, SlotId, Wanted};
use tallow_models::Model;

use crate::Failed;
use crate::args::DeviceArgs;
use crate::device::{Device, DeviceChoice, Measured};
use crate::load::{self, Loading, Notice};
use crate::memory::{PAGE, Plan, Step};
use crate::settings::{KvType, Sources, cores};

/// How a model is set up on a device.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Setup {
    pub device: DeviceChoice,
    pub isa: Isa,
    pub arithmetic: Arithmetic,
    pub threads: usize,
    pub kv: KvType,
    /// Maximum tokens per sequence.
    pub context: usize,
    /// Number of sequences.
    pub sequences: usize,
    /// Maximum tokens per step.
    pub batch: usize,
    /// Maximum tokens per step whose logits are returned.
    pub logits: usize,
}

impl Setup {
    /// From the flags of a command without an engine; `arithmetic` is the command's default. Without `kv` the KV cache
    /// has the best type for the device.
    pub(crate) fn new(
        sources: &Sources,
        device: &DeviceArgs,
        kv: Option<&str>,
        arithmetic: Arithmetic,
    ) -> Result<Setup, Failed> {
        let isa = device.isa.as_deref();
        let isa = isa.map(|name| name.parse().map_err(Failed::new)).transpose()?;
        let isa = sources.get("isa", isa, Isa::best())?.value;
        let arithmetic = sources.get("arithmetic", device.arithmetic, arithmetic)?.value;
        let threads = sources.get("threads", device.threads, cores())?.value;
        if !isa.is_available() {
            let best = Isa::best();
            return Err(Failed::new(format!("this CPU does not have {isa}; the best it has is {best}")));
        }
        let device = sources.get("device", device.device, DeviceChoice::Auto)?.value;
        let kv = kv.map_or(Ok(KvType::best(device, isa)), |kv| kv.parse().map_err(Failed::new))?;
        Ok(Setup { device, isa, arithmetic, threads, kv, context: 0, sequences: 1, batch: 256, logits: 1 })
    }
}

/// Work to do with a model on whichever device is chosen.
pub(crate) trait Task {
    type Out;
    fn run<B: Measured>(&mut self, solo: SingleRunner<B>) -> Result<Self::Out, Failed>;
}

/// Work to do on whichever device is chosen, which loads the model itself.
pub(crate) trait DeviceTask {
    type Out;
    fn run<B: Measured>(&mut self, b: B, model: &Unloaded<'_>) -> Result<Self::Out, Failed>;
}

/// A model that fits a device and is to be loaded.
pub(crate) struct Unloaded<'a> {
    loading: &'a Loading,
    /// Pages of the KV cache for each sequence.
    pages: usize,
    warm_up: bool,
}

impl Unloaded<'_> {
    pub(crate) fn load<B: Backend>(&self, b: B) -> Result<SingleRunner<B>, Failed> {
        let runner = if self.warm_up { self.loading.warm_runner(b)? } else { self.loading.runner(b)? };
        Ok(SingleRunner { runner, pages: self.pages, tokens: 0, worn: Vec::new() })
    }
}

/// A task that begins with loading the model.
struct Loaded<'a, T>(&'a mut T);

impl<T: Task> DeviceTask for Loaded<'_, T> {
    type Out = T::Out;

    fn run<B: Measured>(&mut self, b: B, model: &Unloaded<'_>) -> Result<T::Out, Failed> {
        self.0.run(model.load(b)?)
    }
}

/// Loads a model on the first device with room for it, and runs the task there.
pub(crate) fn run_alone<T: Task>(model: &Model, setup: Setup, task: &mut T) -> Result<T::Out, Failed> {
    run_on_device(model, setup, &mut Loaded(task))
}

/// Runs the task on the first device with room for a model.
pub(crate) fn run_on_device<T: DeviceTask>(
    model: &Model,
    setup: Setup,
    task: &mut T,
) -> Result<T::Out, Failed> {
    let each = setup.context.div_ceil(PAGE);
    let (pages, sequences) = (each * setup.sequences, setup.sequences);
    let shape = KvShape { dtype: setup.kv.0, page_len: PAGE, pages, sequences };
    // However small a step is, each sequence has a token in it.
    let step = Step { tokens: setup.batch.max(setup.sequences), logits: setup.logits.max(setup.sequences) };
    let plan = |device: &Device| Plan::alone(model, shape, step, device);
    // The chosen device is part of these commands' output; only a device that was passed over needs a notice.
    let say = |note: &Notice| {
        if let Notice::PassedOver(_) = note {
            note.show()
        }
    };
    let loading = &Loading::new(model, setup.context, shape);
    let unloaded = |warm_up| Unloaded { loading, pages: each, warm_up };
    load::on_some_device(setup.device, plan, &say, |device, _| match device {
        Device::Cpu => task.run(Cpu::new(setup.isa, setup.threads)?.with(setup.arithmetic), &unloaded(false)),
        #[cfg(feature = "wgpu")]
        Device::Gpu(found) => task.run(tallow_wgpu::Wgpu::open(found)?, &unloaded(true)),
    })
}

/// A model with one sequence, or several of equal length.
pub(crate) struct SingleRunner<B: Backend> {
    runner: Runner<B>,
    /// Pages of the KV cache reserved for each sequence.
    pages: usize,
    tokens: usize,
    /// LoRA adapters, assigned to the sequences round-robin.
    worn: Vec<LoraRef>,
}

impl<B: Backend> SingleRunner<B> {
    pub(crate) fn backend(&self) -> &B {
        self.runner.backend()
    }

    pub(crate) fn runner(&self) -> &Runner<B> {
        &self.runner
    }

    /// Loads a LoRA adapter; sequences do not use it yet.
    pub(crate) fn load_lora(&mut self, i: usize, adoption: &LoadLora) -> Result<LoraRef, Failed> {
        let id = LoraId(i as u64);
        self.runner.load_lora(id, &adoption.file).map_err(Failed::new)?;
        Ok(LoraRef { id, scale: adoption.scale })
    }

    /// From here on the sequences use these adapters, round-robin.
    pub(crate) fn use_lora(&mut self, worn: &[LoraRef]) {
        self.worn = worn.to_vec();
    }

    /// Truncates all sequences to their first `tokens` tokens.
    pub(crate) fn rewind(&mut self, tokens: usize) {
        self.tokens = self.tokens.min(tokens);
    }

    /// Forward pass over tokens of the first sequence. `see` is called with each hidden state; the requested logits are
    /// returned.
    pub(crate) fn step(
        &mut self,
        tokens: &[u32],
        logits: Wanted,
        see: impl FnMut(usize, &Tensor<B>) -> Result<(), Error>,
    ) -> Result<Tensor<B>, Error> {
        let parts = vec![self.part(0, tokens.to_vec(), logits)];
        self.tokens += tokens.len();
        self.runner.logits_seen(&Batch { parts }, see)
    }

    /// Forward pass over equally many tokens of each sequence. The requested logits are returned.
    pub(crate) fn step_of_all(&mut self, all: Vec<Vec<u32>>, logits: Wanted) -> Result<Tensor<B>, Error> {
        let tokens = all.first().map_or(0, Vec::len);
        let parts = all.into_iter().enumerate().map(|(i, tokens)| self.part(i, tokens, logits)).collect();
        self.tokens += tokens;
        self.runner.logits(&Batch { parts })
    }

    fn part(&self, sequence: usize, tokens: Vec<u32>, logits: Wanted) -> BatchPart {
        let (first, end) = (sequence * self.pages, self.tokens + tokens.len());
        let blocks = (first..first + end.div_ceil(PAGE)).map(|block| BlockId(block as u32)).collect();
        let (id, slot) = (SeqId(sequence as u64), SlotId(sequence as u32));
        let lora = self.worn.get(sequence % self.worn.len().max(1)).copied();
        BatchPart { id, tokens, start: self.tokens, blocks, slot, logits, lora }
    }
}
