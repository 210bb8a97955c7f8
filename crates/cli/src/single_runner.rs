//! [`SingleRunner`]: one sequence, or several of equal length, on a device without the engine; for commands that
//! inspect the model itself.

use tallow_core::{Backend, Error, Tensor};
use tallow_engine::handle::LoadLora;
use tallow_engine::kv_cache::KvShape;
use tallow_engine::lora::{LoraId, LoraRef};
use tallow_engine::runner::Runner;
use tallow_engine::scheduler::{Batch, BatchPart, LogitsRows, SeqId};
use tallow_models::Model;
use tallow_models::decoder::Decoder;

use crate::Failed;
use crate::decoder::Loading;
use crate::devices::{
    Arithmetic, CpuOptions, Device, DeviceChoice, Hardware, Isa, MeasuredBackend, Numa, Task, Traits, cores,
};
use crate::fit::on_some_device;
use crate::memory::{PAGE, Plan, Step};
use crate::notice::Notice;
use crate::settings::{DeviceArgs, KvType, Sources, Switch};

/// Settings of a model on a device.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Setup {
    pub device: DeviceChoice,
    pub cpu: CpuOptions,
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
        let chosen = sources.get("device", device.device, DeviceChoice::Auto)?.value;
        let kv =
            kv.map_or(Ok(KvType::best(chosen, isa, arithmetic)), |kv| kv.parse().map_err(Failed::new))?;
        let mmap = sources.get("mmap", device.mmap.then_some(Switch(true)), Switch(false))?.value.0;
        let numa = sources.get("numa", device.numa, Numa::Auto)?.value;
        let cpu = CpuOptions { isa, arithmetic, threads, numa, mmap };
        Ok(Setup { device: chosen, cpu, kv, context: 0, sequences: 1, batch: 256, logits: 1 })
    }
}

/// Work to do with a model on a device of any kind.
pub(crate) trait ModelTask {
    type Output;
    fn run<B: MeasuredBackend>(&mut self, runner: SingleRunner<B>) -> Result<Self::Output, Failed>;
}

/// Work to do on an open device of any kind that has room for a model, which the task loads itself.
pub(crate) trait DeviceTask {
    type Output;
    fn run<B: MeasuredBackend>(&mut self, b: B, model: &UnloadedModel<'_>) -> Result<Self::Output, Failed>;
}

/// A model that fits the device and is yet to be loaded.
pub(crate) struct UnloadedModel<'a> {
    loading: &'a Loading,
    traits: Traits,
    /// Pages of the KV cache for each sequence.
    pages: usize,
}

impl UnloadedModel<'_> {
    /// Loads it on the open device, or on a backend around that.
    pub(crate) fn load<B: Backend>(&self, b: B) -> Result<SingleRunner<B>, Failed> {
        let runner = self.loading.runner(b, self.traits)?;
        Ok(SingleRunner { runner, pages: self.pages, tokens: 0, steps: 0, loras: Vec::new() })
    }
}

/// A task that begins with loading the model.
struct LoadFirst<'a, T>(&'a mut T);

impl<T: ModelTask> DeviceTask for LoadFirst<'_, T> {
    type Output = T::Output;

    fn run<B: MeasuredBackend>(&mut self, b: B, model: &UnloadedModel<'_>) -> Result<T::Output, Failed> {
        self.0.run(model.load(b)?)
    }
}

/// Loads a model on the first device with room for it, and runs the task there.
pub(crate) fn run_single<T: ModelTask>(
    model: &Model,
    setup: Setup,
    task: &mut T,
) -> Result<T::Output, Failed> {
    run_on_device(model, setup, &mut LoadFirst(task))
}

/// Runs the task on the first device with room for a model.
pub(crate) fn run_on_device<T: DeviceTask>(
    model: &Model,
    setup: Setup,
    task: &mut T,
) -> Result<T::Output, Failed> {
    let pages = setup.context.div_ceil(PAGE);
    let sequences = setup.sequences;
    let shape = KvShape {
        dtype: setup.kv.0,
        page_len: PAGE,
        pages: pages * sequences,
        swa_pages: 0,
        state_rows: 2 * sequences,
    };
    // However small a step is, each sequence has a token in it.
    let step = Step { tokens: setup.batch.max(sequences), logits: setup.logits.max(sequences) };
    let plan = |device: &Device| Plan::alone(model, shape, step, (device, setup.cpu));
    let loading = Loading::new(model, setup.context, shape);
    // The chosen device is part of these commands' output; only a device that was passed over needs a notice.
    on_some_device(setup.device, plan, &Notice::show_passed_over, |device, _| {
        device.run(OnOpenDevice { loading: &loading, cpu: setup.cpu, pages, task: &mut *task })
    })
}

/// Opens a device and runs a task on it.
struct OnOpenDevice<'a, T> {
    loading: &'a Loading,
    cpu: CpuOptions,
    /// Pages of the KV cache for each sequence.
    pages: usize,
    task: &'a mut T,
}

impl<T: DeviceTask> Task for OnOpenDevice<'_, T> {
    type Output = T::Output;

    fn run<H: Hardware>(self, device: H) -> Result<T::Output, Failed> {
        let model = UnloadedModel { loading: self.loading, traits: device.traits(), pages: self.pages };
        self.task.run(self.loading.open(&device, self.cpu)?, &model)
    }
}

/// A model with one sequence, or several of equal length.
pub(crate) struct SingleRunner<B: Backend> {
    runner: Runner<B>,
    /// Pages of the KV cache reserved for each sequence.
    pages: usize,
    tokens: usize,
    /// Steps so far: which row of its recurrent state a sequence reads next.
    steps: usize,
    /// LoRA adapters, assigned to the sequences round-robin.
    loras: Vec<LoraRef>,
}

impl<B: Backend> SingleRunner<B> {
    pub(crate) fn backend(&self) -> &B {
        self.runner.backend()
    }

    pub(crate) fn decoder(&self) -> &Decoder<B> {
        self.runner.decoder()
    }

    /// Loads a LoRA adapter; sequences do not use it yet.
    pub(crate) fn load_lora(&mut self, i: usize, load: &LoadLora) -> Result<LoraRef, Failed> {
        let id = LoraId(i as u64);
        self.runner.load_lora(id, &load.file).map_err(Failed::new)?;
        Ok(LoraRef { id, scale: load.scale })
    }

    /// From here on the sequences use these adapters, round-robin.
    pub(crate) fn use_loras(&mut self, loras: &[LoraRef]) {
        self.loras = loras.to_vec();
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
        logits: LogitsRows,
        see: impl FnMut(usize, &Tensor<B>) -> Result<(), Error>,
    ) -> Result<Tensor<B>, Error> {
        let parts = vec![self.part(0, tokens.to_vec(), logits)];
        self.tokens += tokens.len();
        self.steps += 1;
        self.runner.logits_seen(&Batch { parts }, see)
    }

    /// Forward pass over equally many tokens of each sequence. The requested logits are returned.
    pub(crate) fn step_of_all(&mut self, all: Vec<Vec<u32>>, logits: LogitsRows) -> Result<Tensor<B>, Error> {
        let tokens = all.first().map_or(0, Vec::len);
        let parts = all.into_iter().enumerate().map(|(i, tokens)| self.part(i, tokens, logits)).collect();
        self.tokens += tokens;
        self.steps += 1;
        self.runner.logits(&Batch { parts })
    }

    fn part(&self, sequence: usize, tokens: Vec<u32>, logits: LogitsRows) -> BatchPart {
        let (first, end) = (sequence * self.pages, self.tokens + tokens.len());
        let blocks = (first..first + end.div_ceil(PAGE)).map(|block| block as u32).collect();
        let (id, state) = (SeqId(sequence as u64), self.runner.states_of(sequence, self.steps));
        let lora = self.loras.get(sequence % self.loras.len().max(1)).copied();
        BatchPart { start: self.tokens, state, lora, ..BatchPart::new(id, tokens, blocks, logits) }
    }
}
