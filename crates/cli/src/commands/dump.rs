//! `tallow dump`: what a model makes of given tokens, number by number, to compare with other programs.

use std::collections::BTreeMap;
use std::path::Path;

use safetensors::tensor::{Dtype, TensorView};
use safetensors::{SafeTensorError, SafeTensors, serialize_to_file};
use tallow_core::{Backend, Memory};
use tallow_cpu::Arithmetic;
use tallow_engine::handle::Adoption;
use tallow_engine::scheduler::Wanted;
use tallow_models::Model;

use super::print;
use crate::Failed;
use crate::args::Dump;
use crate::device::Measured;
use crate::load;
use crate::lora::Lora;
use crate::settings::Sources;
use crate::solo::{Setup, Solo, Task, alone};

/// A tensor to be written: its shape and its numbers.
type Written = (Vec<usize>, Vec<u8>);

/// A prompt: its name, and rows of tokens to be run, each alone.
type Prompt<'a> = (&'a str, &'a [Vec<u32>]);

/// Largest input file that is read.
const MOST_INPUT: u64 = 1 << 30;

pub(crate) fn dump(args: &Dump, sources: &Sources) -> Result<(), Failed> {
    let prompts = prompts(&args.input)?;
    let model = load::model(&args.model, load::How::new(sources, args.device.offline, args.device.quant)?)?;
    let mut setup = Setup::new(sources, &args.device, Some(&args.precision), Arithmetic::Exact)?;
    // One load for each length: some ropes depend on how long a sequence may become.
    let mut lengths: BTreeMap<usize, Vec<Prompt<'_>>> = BTreeMap::new();
    for (name, rows) in &prompts {
        check(&args.input, name, rows, &model)?;
        lengths.entry(rows.iter().map(Vec::len).max().unwrap_or(0)).or_default().push((name, rows));
    }
    let adapter = args.lora.as_ref().map(Lora::open).transpose()?;
    let mut written = BTreeMap::new();
    for (context, prompts) in lengths {
        (setup.context, setup.batch, setup.logits) = (context, context, context);
        let mut forward =
            Forward { context, prompts, only_logits: args.only_logits, adapter: adapter.as_ref() };
        written.extend(alone(&model, setup, &mut forward)?);
    }
    write(&args.output, &written)?;
    print(&written.iter().map(|(name, (shape, _))| format!("{name} {shape:?}\n")).collect::<String>())
}

/// Prompts of one length.
struct Forward<'a> {
    context: usize,
    prompts: Vec<Prompt<'a>>,
    only_logits: bool,
    adapter: Option<&'a Adoption>,
}

impl Task for Forward<'_> {
    type Out = BTreeMap<String, Written>;

    fn run<B: Measured>(&mut self, mut solo: Solo<B>) -> Result<Self::Out, Failed> {
        if let Some(adoption) = self.adapter {
            let worn = solo.adapt(0, adoption)?;
            solo.wear(&[worn]);
        }
        let mut written = BTreeMap::new();
        for (name, rows) in &self.prompts {
            let mut outputs: BTreeMap<String, Vec<f32>> = BTreeMap::new();
            for row in *rows {
                for (output, numbers) in forward(&mut solo, row, self.only_logits)? {
                    outputs.entry(output).or_default().extend(numbers);
                }
            }
            let tokens = rows.len() * self.context;
            let lead = if rows.len() == 1 { vec![self.context] } else { vec![rows.len(), self.context] };
            for (output, numbers) in outputs {
                let width = numbers.len() / tokens.max(1);
                let bytes = numbers.iter().flat_map(|x| x.to_le_bytes()).collect();
                written.insert(format!("{name}{output}"), ([&lead[..], &[width]].concat(), bytes));
            }
        }
        Ok(written)
    }
}

/// One forward pass: the logits of every token, and the hidden states, the last as the head sees them.
fn forward<B: Backend>(
    solo: &mut Solo<B>,
    tokens: &[u32],
    only_logits: bool,
) -> Result<Vec<(String, Vec<f32>)>, Failed> {
    solo.rewind(0);
    let mut seen = Vec::new();
    let logits = solo.step(tokens, Wanted::All { last: true }, |i, x| {
        if !only_logits {
            seen.push((i, x.clone()));
        }
        Ok(())
    })?;
    let (b, decoder) = (solo.backend(), solo.runner().decoder());
    let last = seen.len().saturating_sub(1);
    let mut outputs = vec![("logits".to_owned(), b.download(&logits)?)];
    for (i, x) in seen {
        let x = if i == last { decoder.normed(b, &x)? } else { x };
        outputs.push((format!("hidden{i}"), b.download(&x)?));
    }
    Ok(outputs)
}

/// What to run: the rows of each tensor called `input_ids` or `NAME.input_ids`, by what stands before that.
fn prompts(path: &Path) -> Result<BTreeMap<String, Vec<Vec<u32>>>, Failed> {
    let wrong = |why: String| Failed::new(format!("{}: {why}", path.display()));
    let size = std::fs::metadata(path).map_err(|e| wrong(e.to_string()))?.len();
    if size > MOST_INPUT {
        return Err(wrong(format!("has {size} bytes; at most {MOST_INPUT} are read")));
    }
    let bytes = std::fs::read(path).map_err(|e| wrong(e.to_string()))?;
    let file = SafeTensors::deserialize(&bytes).map_err(|e| wrong(format!("is no safetensors file: {e}")))?;
    let mut prompts = BTreeMap::new();
    for (name, tensor) in file.tensors() {
        let Some(before) = name.strip_suffix("input_ids") else { continue };
        if !before.is_empty() && !before.ends_with('.') {
            continue;
        }
        let ids = ids(&tensor).map_err(|why| wrong(format!("tensor {name:?} {why}")))?;
        let width = tensor.shape().last().copied().unwrap_or(0);
        if width == 0 || tensor.shape().len() > 2 || ids.is_empty() {
            let shape = tensor.shape();
            return Err(wrong(format!(
                "tensor {name:?} has shape {shape:?}; it should be [tokens] or [rows, tokens]"
            )));
        }
        prompts.insert(before.to_owned(), ids.chunks(width).map(<[u32]>::to_vec).collect());
    }
    match prompts.is_empty() {
        true => Err(wrong("has no tensor called input_ids or NAME.input_ids".into())),
        false => Ok(prompts),
    }
}

fn ids(tensor: &TensorView<'_>) -> Result<Vec<u32>, String> {
    let width = match tensor.dtype() {
        Dtype::I64 | Dtype::U64 => 8,
        Dtype::I32 | Dtype::U32 => 4,
        other => return Err(format!("is {other:?}; token ids are I64, U64, I32 or U32")),
    };
    let id = |bytes: &[u8]| {
        let mut wide = [0; 8];
        wide[..width].copy_from_slice(bytes);
        // A negative number is far too large too, read like this.
        u32::try_from(u64::from_le_bytes(wide)).map_err(|_| "has a number that can be no token".to_owned())
    };
    tensor.data().chunks_exact(width).map(id).collect()
}

fn check(path: &Path, name: &str, rows: &[Vec<u32>], model: &Model) -> Result<(), Failed> {
    let wrong = |why: String| Err(Failed::new(format!("{}: {name}input_ids {why}", path.display())));
    let (vocab, context) = (model.spec.vocab, model.spec.context);
    if let Some(id) = rows.iter().flatten().find(|id| **id as usize >= vocab) {
        return wrong(format!("has token {id}, and the model knows those under {vocab}"));
    }
    match rows.iter().map(Vec::len).max() {
        Some(longest) if longest > context => {
            wrong(format!("has {longest} tokens, and the model's context is {context}"))
        }
        _ => Ok(()),
    }
}

/// Writes the file, which appears under its name only when it is whole.
fn write(path: &Path, tensors: &BTreeMap<String, Written>) -> Result<(), Failed> {
    let failed = |why: SafeTensorError| match why {
        // The system's words name a file that is not there yet.
        SafeTensorError::IoError(e) => {
            Failed::new(format!("{} cannot be written: {}", path.display(), e.kind()))
        }
        e => Failed::new(format!("{} cannot be written: {e}", path.display())),
    };
    let mut views = Vec::new();
    for (name, written) in tensors {
        views.push((name, TensorView::new(Dtype::F32, written.0.clone(), &written.1).map_err(failed)?));
    }
    serialize_to_file(views, None, path).map_err(failed)
}
