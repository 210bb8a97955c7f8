//! `tallow imatrix`: importance matrix (mean squares of the linear layers' inputs) over a text,
//! for `tallow convert --imatrix`.

use std::cell::RefCell;
use std::path::Path;
use std::rc::Rc;

use tallow_convert::{Conversion, Inputs, Measured};
use tallow_core::Observed;
use tallow_engine::scheduler::LogitsRows;

use super::print;
use crate::Failed;
use crate::args::Imatrix;
use crate::chunks::Chunks;
use crate::devices::{Arithmetic, MeasuredBackend};
use crate::load;
use crate::settings::{Sources, unreadable};
use crate::single_runner::{DeviceTask, Setup, UnloadedModel, run_on_device};
use crate::terminal;

/// Tokens per step.
const STEP: usize = 256;

pub(crate) fn imatrix(args: &Imatrix, sources: &Sources) -> Result<(), Failed> {
    let (out, name) = (&args.output, args.output.display());
    if out.exists() && !args.force {
        return Err(Failed::new(format!(
            "{name} is there already; choose another name, or --force to replace it"
        )));
    }
    let loaded =
        load::open(&args.model, load::OpenOptions::new(sources, args.device.offline, args.device.quant)?)?;
    // Names that tensors have, or would have, in a GGUF file.
    let names = Conversion::new(&loaded.model, out)?.names();
    let Chunks { mut chunks, context, tokens } = Chunks::read(&args.file, &loaded, args.context)?;
    // A short chunk says nothing about late positions.
    chunks.retain(|chunk| chunk.len() == context || tokens < context);
    chunks.truncate(args.chunks.unwrap_or(usize::MAX));
    if chunks.is_empty() {
        return Err(Failed::new(format!("{}: has no tokens", args.file.display())));
    }
    let mut setup = Setup::new(sources, &args.device, Some("f32"), Arithmetic::Fast)?;
    (setup.context, setup.batch) = (context, STEP.min(context));
    let inputs = run_on_device(&loaded.model, setup, &mut Capture { chunks: &chunks, step: setup.batch })?;
    let measured = Measured {
        text: args.file.file_name().unwrap_or_default().to_string_lossy().into_owned(),
        chunks: chunks.len(),
        context,
    };
    let (bytes, known) = inputs.file(out, &names, &measured)?;
    write(out, &bytes)?;
    let count: usize = chunks.iter().map(Vec::len).sum();
    let missed = match inputs.unobserved() {
        0 => String::new(),
        n => format!("; {n} experts got no token, and count as if all their inputs were alike"),
    };
    print(&format!("{name}: inputs of {known} tensors, over {count} tokens{missed}\n"))
}

/// Writes a `.part` file and renames it, so that the file appears when it is complete.
fn write(out: &Path, bytes: &[u8]) -> Result<(), Failed> {
    let mut part = out.as_os_str().to_owned();
    part.push(".part");
    let written = std::fs::write(&part, bytes).and_then(|()| std::fs::rename(&part, out));
    written.map_err(|e| {
        // There may be no such file.
        let _ = std::fs::remove_file(&part);
        Failed::new(format!("{} cannot be written: {}", out.display(), unreadable(&e)))
    })
}

/// Runs chunks through the model and records the inputs of its linear layers.
struct Capture<'a> {
    chunks: &'a [Vec<u32>],
    step: usize,
}

impl DeviceTask for Capture<'_> {
    type Output = Inputs;

    fn run<B: MeasuredBackend>(&mut self, b: B, model: &UnloadedModel<'_>) -> Result<Inputs, Failed> {
        let mut runner = model.load(Observed::new(b))?;
        let bar = terminal::count_bar(self.chunks.len() as u64, "measuring");
        let inputs = Rc::new(RefCell::new(Inputs::default()));
        let sums = inputs.clone();
        let observer = Box::new(move |id: &_, rows: &[f32]| sums.borrow_mut().add(id, rows));
        runner.backend().set_observer(Some(observer));
        for chunk in self.chunks {
            runner.rewind(0);
            for tokens in chunk.chunks(self.step) {
                runner.step(tokens, LogitsRows::None, |_, _| Ok(()))?;
            }
            bar.inc(1);
        }
        bar.finish_and_clear();
        Ok(inputs.take())
    }
}
