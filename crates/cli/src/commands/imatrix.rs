//! `tallow imatrix`: importance matrix (mean squares of the linear layers' inputs) over a text,
//! for `tallow convert --imatrix`.

use std::cell::RefCell;
use std::path::Path;
use std::rc::Rc;

use tallow_core::Observed;
use tallow_cpu::Arithmetic;
use tallow_engine::scheduler::Wanted;
use tallow_models::convert::{Conversion, Inputs, Measured};

use super::print;
use crate::Failed;
use crate::args::Imatrix;
use crate::chunks::Chunks;
use crate::device::Measured as Device;
use crate::load;
use crate::settings::{Sources, unreadable};
use crate::single_runner::{DeviceTask, Setup, Unloaded, run_on_device};
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
    let opened =
        load::open(&args.model, load::OpenOptions::new(sources, args.device.offline, args.device.quant)?)?;
    // Names that tensors have, or would have, in a GGUF file.
    let names = Conversion::new(&opened.model, out)?.names();
    let Chunks { mut goes, context, tokens } = Chunks::read(&args.file, &opened, args.context)?;
    // A short chunk says nothing about late positions.
    goes.retain(|go| go.len() == context || tokens < context);
    goes.truncate(args.chunks.unwrap_or(usize::MAX));
    if goes.is_empty() {
        return Err(Failed::new(format!("{}: has no tokens", args.file.display())));
    }
    let mut setup = Setup::new(sources, &args.device, Some("f32"), Arithmetic::Fast)?;
    (setup.context, setup.batch) = (context, STEP.min(context));
    let inputs = run_on_device(&opened.model, setup, &mut Capture { goes: &goes, step: setup.batch })?;
    let measured = Measured {
        text: args.file.file_name().unwrap_or_default().to_string_lossy().into_owned(),
        goes: goes.len(),
        context,
    };
    let (bytes, known) = inputs.file(out, &names, &measured)?;
    write(out, &bytes)?;
    let count: usize = goes.iter().map(Vec::len).sum();
    let missed = match inputs.unheard() {
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
    goes: &'a [Vec<u32>],
    step: usize,
}

impl DeviceTask for Capture<'_> {
    type Out = Inputs;

    fn run<B: Device>(&mut self, b: B, model: &Unloaded<'_>) -> Result<Inputs, Failed> {
        let mut solo = model.load(Observed::new(b))?;
        let bar = terminal::count_bar(self.goes.len() as u64, "measuring");
        let inputs = Rc::new(RefCell::new(Inputs::default()));
        let heard = inputs.clone();
        let ear = Box::new(move |origin: &_, rows: &[f32]| heard.borrow_mut().add(origin, rows));
        solo.backend().set_observer(Some(ear));
        for go in self.goes {
            solo.rewind(0);
            for tokens in go.chunks(self.step) {
                solo.step(tokens, Wanted::None, |_, _| Ok(()))?;
            }
            bar.inc(1);
        }
        bar.finish_and_clear();
        Ok(inputs.take())
    }
}
