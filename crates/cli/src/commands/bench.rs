//! `tallow bench`: speed of prefill and decode, in the format of llama-bench.

use std::collections::HashSet;
use std::io::IsTerminal;
use std::ops::Range;
use std::time::{Instant, SystemTime};

use tallow_checkpoint::Settings;
use tallow_core::{Backend, DType, Format};
use tallow_engine::handle::LoadLora;
use tallow_engine::scheduler::LogitsRows;
use tallow_models::Model;
use tallow_models::spec::{LayerSpec, MoeSpec};

use crate::args::{Bench, BenchCommand, PromptAndAnswer};
use crate::devices::{Arithmetic, DeviceChoice, MeasuredBackend, Speeds};
use crate::load;
use crate::lora::Lora;
use crate::model_name::DEMO;
use crate::settings::{DeviceArgs, Sources};
use crate::single_runner::{ModelTask, Setup, SingleRunner, run_single};
use crate::{Failed, terminal};

mod explain;
mod report;
mod self_check;
mod serve;

use report::{Report, Row};

pub(crate) fn bench(args: &Bench, sources: &Sources) -> Result<(), Failed> {
    if let Some(BenchCommand::Serve(args)) = &args.command {
        return serve::bench_serve(args);
    }
    let counts = [&args.n_batch, &args.n_ubatch, &args.threads, &args.sequences];
    if args.repetitions == 0 || counts.iter().any(|counts| counts.contains(&0)) {
        let what =
            "--repetitions, --batch-size, --ubatch-size, --threads and --sequences are counts from 1 on";
        return Err(Failed::new(what));
    }
    if args.flash_attn.as_deref().is_some_and(|switch| ["0", "off", "false"].contains(&switch)) {
        let what =
            "--flash-attn 0: attention is always fused here, and cannot be switched off; leave the flag out";
        return Err(Failed::new(what));
    }
    if args.self_check {
        return self_check::self_check(args, sources);
    }
    let tests = tests(args);
    if (!args.explain || args.time) && tests.is_empty() {
        return Err(Failed::new(
            "-p 0 and -n 0 leave nothing to measure: give a number of tokens to one of them",
        ));
    }
    let demo = [DEMO.to_owned()];
    let like = args.like.as_deref().map(|config| load::like(config, sources, args.quant)).transpose()?;
    let like_name = args.like.as_ref().map(|config| [config.display().to_string()]);
    let names = match &like_name {
        Some(name) => &name[..],
        None if args.model.is_empty() => &demo[..],
        None => &args.model,
    };
    let threads: Vec<Option<usize>> =
        if args.threads.is_empty() { vec![None] } else { args.threads.iter().copied().map(Some).collect() };
    let kvs: Vec<Option<&str>> =
        if args.kv.is_empty() { vec![None] } else { args.kv.iter().map(|kv| Some(kv.as_str())).collect() };
    let mut report = Report::new(args.output, tests.iter().map(|test| label(*test).chars().count()).max())?;
    for name in names {
        let model = match &like {
            Some(model) => model.clone(),
            None => load::model(name, load::OpenOptions::new(sources, args.offline, args.quant)?)?,
        };
        let device = requested_device(args, &model)?;
        for (threads, batch, kv) in settings(&threads, &batches(args), &kvs) {
            let device = DeviceArgs {
                device,
                threads,
                numa: args.numa,
                isa: args.isa.clone(),
                arithmetic: args.arithmetic,
                quant: args.quant,
                mmap: args.mmap,
                offline: args.offline,
            };
            let mut setup = Setup::new(sources, &device, kv, Arithmetic::Fast)?;
            setup.batch = batch;
            measure(args, name, &model, setup, &mut report)?;
        }
    }
    report.end()
}

/// All combinations; the last one varies fastest.
fn settings<'a>(
    threads: &[Option<usize>],
    batches: &[usize],
    kvs: &[Option<&'a str>],
) -> Vec<(Option<usize>, usize, Option<&'a str>)> {
    let of = |t: &Option<usize>| {
        let t = *t;
        batches.iter().flat_map(move |b| kvs.iter().map(move |kv| (t, *b, *kv)))
    };
    threads.iter().flat_map(of).collect()
}

/// Batch sizes to measure. llama-bench tells the logical batch (`-b`) from the physical one (`-ub`); here the smaller
/// number is both.
fn batches(args: &Bench) -> Vec<usize> {
    let mut batches: Vec<usize> = match (&args.n_batch[..], &args.n_ubatch[..]) {
        ([], []) => vec![512],
        (all, []) | ([], all) => all.to_vec(),
        (all, each) => all.iter().flat_map(|b| each.iter().map(|u| *b.min(u))).collect(),
    };
    let mut seen = HashSet::new();
    batches.retain(|batch| seen.insert(*batch));
    batches
}

/// The requested device, also by a number of layers.
fn requested_device(args: &Bench, model: &Model) -> Result<Option<DeviceChoice>, Failed> {
    let layers = model.spec.layers.len();
    match args.gpu_layers {
        None => Ok(args.device),
        Some(0) => Ok(args.device.or(Some(DeviceChoice::Cpu))),
        Some(n) if n >= layers => Ok(args.device),
        Some(n) => Err(Failed::new(format!(
            "--n-gpu-layers {n}: there is no partial offload, and the model has {layers} layers: 0 is for the CPU, {layers} \
             or more for a GPU"
        ))),
    }
}

/// A test: tokens of a prompt (prefill), tokens generated (decode), or both, after `depth` other tokens.
#[derive(Clone, Copy, Debug)]
pub(super) struct Test {
    pub prompt: usize,
    pub generated: usize,
    pub depth: usize,
    /// Sequences computed side by side.
    pub sequences: usize,
    /// True if the test runs with LoRA adapters.
    pub adapted: bool,
}

impl Test {
    /// Tokens per sequence.
    fn each(&self) -> usize {
        self.prompt + self.generated
    }

    /// Steps that a run takes.
    fn steps(&self, batch: usize) -> usize {
        self.prompt.div_ceil(step_tokens(batch, self.sequences)) + self.generated
    }

    /// Tokens counted for the speed.
    fn tokens(&self) -> usize {
        self.each() * self.sequences
    }
}

fn tests(args: &Bench) -> Vec<Test> {
    let mut tests = Vec::new();
    for depth in args.n_depth.iter().copied() {
        for sequences in args.sequences.iter().copied() {
            let prompts = args.n_prompt.iter().map(|n| Test {
                prompt: *n,
                generated: 0,
                depth,
                sequences,
                adapted: false,
            });
            let answers = args.n_gen.iter().map(|n| Test {
                prompt: 0,
                generated: *n,
                depth,
                sequences,
                adapted: false,
            });
            let both = args.pg.iter().map(|PromptAndAnswer(prompt, generated)| Test {
                prompt: *prompt,
                generated: *generated,
                depth,
                sequences,
                adapted: false,
            });
            let plain = prompts.chain(answers).chain(both).filter(|t| t.tokens() > 0);
            let adapted = (!args.lora.is_empty()).then_some(true);
            tests.extend(
                plain.flat_map(|t| [Some(t), adapted.map(|adapted| Test { adapted, ..t })]).flatten(),
            );
        }
    }
    tests
}

/// Runs all tests with one setup.
fn measure(
    args: &Bench,
    name: &str,
    model: &Model,
    mut setup: Setup,
    report: &mut Report,
) -> Result<(), Failed> {
    let tests = tests(args);
    let context = model.spec.context;
    let longest = tests.iter().map(|t| t.depth + t.each()).max().unwrap_or(1);
    // Launches are shown without a test: of as many tokens as there are at most.
    let longest = if args.explain && !args.time { longest.min(context) } else { longest };
    if longest > context {
        return Err(Failed::new(format!(
            "{name}: {longest} tokens are asked for, and the model's context is {context}; lower -p, -n or -d"
        )));
    }
    // An adapter that cannot be opened should not cost the loading of a model.
    let adapters = Lora::open_all(&args.lora)?;
    setup.context = longest;
    setup.sequences = tests.iter().map(|t| t.sequences).max().unwrap_or(1);
    run_single(model, setup, &mut Measuring { args, name, model, setup, tests, adapters, report })
}

/// Runs the tests on a device.
struct Measuring<'a> {
    args: &'a Bench,
    name: &'a str,
    model: &'a Model,
    setup: Setup,
    tests: Vec<Test>,
    adapters: Vec<LoadLora>,
    report: &'a mut Report,
}

impl ModelTask for Measuring<'_> {
    type Output = ();

    fn run<B: MeasuredBackend>(&mut self, mut runner: SingleRunner<B>) -> Result<(), Failed> {
        if self.args.explain {
            let longest = self.setup.batch.min(self.setup.context);
            return match self.args.time {
                true => explain::times(
                    &mut runner,
                    self.model,
                    self.setup.batch,
                    &self.tests,
                    self.args.repetitions,
                ),
                false => explain::launches(&mut runner, self.model, longest),
            };
        }
        let probe = runner.backend().probe()?;
        let loras = self.adapters.iter().enumerate().map(|(i, adapter)| runner.load_lora(i, adapter));
        let loras = loras.collect::<Result<Vec<_>, _>>()?;
        for test in std::mem::take(&mut self.tests) {
            runner.use_loras(if test.adapted { &loras } else { &[] });
            self.test(test, &mut runner, &probe)?;
        }
        Ok(())
    }
}

impl Measuring<'_> {
    fn test<B: MeasuredBackend>(
        &mut self,
        test: Test,
        runner: &mut SingleRunner<B>,
        probe: &B::Probe,
    ) -> Result<(), Failed> {
        let (model, setup) = (self.model, self.setup);
        let shown = self.report.is_shown() && std::io::stderr().is_terminal();
        let started = SystemTime::now();
        // Norms and the like are F32 in all files.
        let formats = || model.checkpoint.tensors().filter_map(|(name, t)| model.format(name, t));
        let is_wide = |format: &Format| matches!(format, Format::F16 | Format::BF16);
        let weights = formats().find(|format| !format.is_plain()).or_else(|| formats().find(is_wide));
        let weights = weights.unwrap_or(Format::F32);
        let (mut samples, mut speeds) = (Vec::new(), Speeds::default());
        fill(runner, model, test, setup.batch)?;
        // Warm-up, not counted: touches the memory, wakes the threads, compiles the kernels.
        once(runner, model, test, setup.batch)?;
        for i in 0..self.args.repetitions {
            if shown {
                terminal::tell_here(&format!("\r{} {}/{} ", label(test), i + 1, self.args.repetitions));
            }
            // The machine's current speed, measured each time: it changes where others use the machine, too.
            speeds = speeds.best(runner.backend().speeds(probe, weights)?);
            let begun = Instant::now();
            once(runner, model, test, setup.batch)?;
            samples.push(begun.elapsed().as_nanos() as u64);
        }
        if shown {
            terminal::tell_here("\r\u{1b}[K");
        }
        let bound = bound(model, setup, test, speeds);
        let device = runner.backend().label();
        self.report.row(&Row { name: self.name, model, setup, test, samples, started, speeds, bound, device })
    }
}

/// `pp512`, `tg128 @ d4096`, `tg64 x 8`
pub(super) fn label(test: Test) -> String {
    let what = match (test.prompt, test.generated) {
        (prompt, 0) => format!("pp{prompt}"),
        (0, generated) => format!("tg{generated}"),
        (prompt, generated) => format!("pp{prompt}+tg{generated}"),
    };
    let what = if test.depth > 0 { format!("{what} @ d{}", test.depth) } else { what };
    let what = if test.adapted { format!("{what} + lora") } else { what };
    if test.sequences > 1 { format!("{what} x {}", test.sequences) } else { what }
}

/// Computes the `depth` tokens before a test.
fn fill<B: Backend>(
    runner: &mut SingleRunner<B>,
    model: &Model,
    test: Test,
    batch: usize,
) -> Result<(), Failed> {
    runner.rewind(0);
    prompt(runner, model, Tokens { each: test.depth, sequences: test.sequences }, batch)
}

/// One run of a test.
fn once<B: Backend>(
    runner: &mut SingleRunner<B>,
    model: &Model,
    test: Test,
    batch: usize,
) -> Result<(), Failed> {
    runner.rewind(test.depth);
    let sequences = test.sequences;
    prompt(runner, model, Tokens { each: test.prompt, sequences }, batch)?;
    for i in 0..test.generated {
        runner.step_of_all(tokens(i..i + 1, sequences, model), LogitsRows::Last)?;
    }
    Ok(runner.backend().sync()?)
}

/// Prompts of equal length.
#[derive(Clone, Copy)]
struct Tokens {
    each: usize,
    sequences: usize,
}

/// Tokens of each sequence's prompt that a step computes.
fn step_tokens(batch: usize, sequences: usize) -> usize {
    (batch / sequences).max(1)
}

fn prompt<B: Backend>(
    runner: &mut SingleRunner<B>,
    model: &Model,
    prompts: Tokens,
    batch: usize,
) -> Result<(), Failed> {
    let Tokens { each, sequences } = prompts;
    let step = step_tokens(batch, sequences);
    for start in (0..each).step_by(step) {
        let end = each.min(start + step);
        let wanted = if end == each { LogitsRows::Last } else { LogitsRows::None };
        runner.step_of_all(tokens(start..end, sequences, model), wanted)?;
    }
    Ok(())
}

/// Token ids at these positions of each sequence.
fn tokens(positions: Range<usize>, sequences: usize, model: &Model) -> Vec<Vec<u32>> {
    // Offset so far that sequences differ.
    (0..sequences).map(|s| positions.clone().map(|i| token(i + (s << 20), model)).collect()).collect()
}

/// Arbitrary token ids, as long as they differ.
fn token(i: usize, model: &Model) -> u32 {
    ((i as u64 + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 33) as u32 % model.spec.vocab as u32
}

/// Roofline in tokens per second: a prompt takes at least its FLOPs over the compute rate, an answer at least its bytes
/// over the read bandwidth.
fn bound(model: &Model, setup: Setup, test: Test, speeds: Speeds) -> f64 {
    let prompt = Test { generated: 0, ..test };
    let answer = Test { prompt: 0, depth: test.depth + test.prompt, ..test };
    let mut seconds = 0.0;
    if prompt.tokens() > 0 {
        seconds += prompt.tokens() as f64 * prompt_flops(model, prompt) / speeds.flops;
    }
    if answer.tokens() > 0 {
        seconds += answer.generated as f64 * answer_bytes(model, setup, answer) / speeds.read;
    }
    test.tokens() as f64 / seconds
}

/// Bytes read to decode one token of each sequence: the weights in use, once for all sequences, and the KV cache or
/// recurrent states of each.
fn answer_bytes(model: &Model, setup: Setup, test: Test) -> f64 {
    let spec = &model.spec;
    // One row of the embedding table is read, unless it is also the head (tied embeddings).
    let table = if spec.tied_embeddings { 0 } else { embedding(model) };
    let depth = test.depth as f64 + test.generated as f64 / 2.0;
    let cache: f64 = spec
        .layers
        .iter()
        .map(|l| {
            let seen = l.mixer.sees().map_or(depth, |w| depth.min(w as f64));
            let kept = l.mixer.kv_source().map_or(l, |i| &spec.layers[i]).kv_cache_cols(setup.kv.0);
            kept as f64 * seen
        })
        .sum();
    let states = spec.layers.iter().map(LayerSpec::state_len).sum::<usize>() * DType::F32.size();
    let cache = (cache * setup.kv.0.size() as f64 + states as f64) * test.sequences as f64;
    (model.weight_bytes() - table) as f64 - idle_expert_bytes(model, test.sequences) + cache
}

/// Expected bytes of experts that no sequence is routed to, if routing is uniformly random.
fn idle_expert_bytes(model: &Model, sequences: usize) -> f64 {
    let layers = model.spec.layers.iter().enumerate();
    let of = |(i, l): (usize, &LayerSpec)| {
        let missed = l
            .ffn
            .moe()
            .map(|MoeSpec { experts: e, .. }| (1.0 - e.top_k as f64 / e.count as f64).powi(sequences as i32));
        missed.map_or(0.0, |missed| missed * model.expert_bytes(i) as f64)
    };
    layers.map(of).sum()
}

/// Bytes of the embedding table: the largest tensor of shape [vocab, dim].
fn embedding(model: &Model) -> usize {
    let (vocab, dim) = (model.spec.vocab, model.spec.dim);
    let tables = model.checkpoint.tensors().filter(|(_, t)| t.shape == [vocab, dim]);
    tables.map(|(name, t)| model.size(name, t)).max().unwrap_or(0)
}

/// FLOPs (multiplications and additions) per token of a prompt, on average.
fn prompt_flops(model: &Model, test: Test) -> f64 {
    let spec = &model.spec;
    let depth = test.depth as f64 + test.prompt as f64 / 2.0;
    let layers: f64 = spec
        .layers
        .iter()
        .map(|l| {
            let ffn = (2 + usize::from(l.ffn.expert().gated)) * l.active_ffn_width();
            let linear = l.mixer_params(spec.dim) + spec.dim * ffn;
            let seen = l.mixer.sees().map_or(depth, |w| depth.min(w as f64));
            // The state of the gated delta rule is read twice and written once for each token.
            let states = l.mixer.gated_delta().map_or(0, |delta| delta.heads.state_len());
            let scores = l.mixer.heads().map_or(0.0, |heads| 4.0 * heads.q_cols() as f64 * seen);
            let mixing = 6.0 * states as f64 + scores;
            2.0 * linear as f64 + mixing
        })
        .sum();
    // The head runs for the last token only.
    layers + 2.0 * (spec.dim * spec.vocab) as f64 / test.prompt as f64
}

/// `qwen3 0.6B Q4_K - Medium`: architecture, size and file type, as llama-bench has them.
pub(super) fn model_type(model: &Model) -> String {
    let arch = match &model.checkpoint.settings {
        Settings::Gguf(meta) => meta.text("general.architecture").ok().flatten(),
        Settings::Hf(_) => model.family.gguf.first().copied(),
    };
    let label = match &model.checkpoint.settings {
        Settings::Gguf(meta) => meta.text("general.size_label").ok().flatten(),
        Settings::Hf(_) => None,
    };
    let size = label.map_or_else(|| size_label(parameters(model)), str::to_owned);
    let kind = model.file_type().unwrap_or("of mixed types".into());
    format!("{} {size} {kind}", arch.unwrap_or(model.family.name))
}

/// `0.6B`, `7B`, `135M`: parameters as in names of models.
fn size_label(parameters: usize) -> String {
    let n = parameters as f64;
    let short = |x: f64| format!("{x:.1}").trim_end_matches(".0").to_owned();
    match n {
        n if n >= 9.95e9 => format!("{:.0}B", n / 1e9),
        n if n >= 0.45e9 => format!("{}B", short(n / 1e9)),
        n if n >= 9.95e6 => format!("{:.0}M", n / 1e6),
        n if n >= 0.95e6 => format!("{}M", short(n / 1e6)),
        n => format!("{:.0}K", n / 1e3),
    }
}

pub(super) fn parameters(model: &Model) -> usize {
    model.checkpoint.tensors().map(|(_, t)| t.len()).sum()
}

/// `604.15 MiB`, `4.21 GiB`
pub(super) fn weights(model: &Model) -> String {
    let mib = model.weight_bytes() as f64 / (1 << 20) as f64;
    if mib < 1024.0 { format!("{mib:.2} MiB") } else { format!("{:.2} GiB", mib / 1024.0) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_called_as_models_are() {
        let parameters =
            [260_000, 7_812_096, 134_515_008, 596_049_920, 1_720_574_976, 7_241_732_096, 30_532_122_624];
        assert_eq!(parameters.map(size_label), ["260K", "7.8M", "135M", "0.6B", "1.7B", "7.2B", "31B"]);
    }
}
