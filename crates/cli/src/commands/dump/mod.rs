//! `tallow dump`: a model's outputs for given inputs, to compare with other programs.

mod decoder;
mod encoder;
mod inputs;
mod seq2seq;

use std::collections::BTreeMap;
use std::path::Path;

use safetensors::tensor::{Dtype, TensorView};
use safetensors::{SafeTensorError, serialize_to_file};
use tallow_models::AnyModel;

use super::print;
use crate::Failed;
use crate::args::Dump;
use crate::devices::Arithmetic;
use crate::load;
use crate::settings::Sources;
use crate::single_runner::Setup;
use inputs::Inputs;

/// A tensor to be written: shape and values.
type Written = (Vec<usize>, Vec<f32>);

/// Tensors to be written, by name.
type Tensors = BTreeMap<String, Written>;

pub(crate) fn dump(args: &Dump, sources: &Sources) -> Result<(), Failed> {
    let inputs = Inputs::read(&args.input)?;
    if args.output.exists() && !args.force {
        let name = args.output.display();
        return Err(Failed::new(format!(
            "{name} is there already; choose another name, or --force to replace it"
        )));
    }
    let mut model =
        load::any(&args.model, load::OpenOptions::new(sources, args.device.offline, args.device.quant)?)?;
    let setup = Setup::new(sources, &args.device, Some(&args.precision), Arithmetic::Exact)?;
    if let AnyModel::Encoder(model) = &mut model {
        // Also load heads that only `dump` uses.
        model.extras = true;
    }
    let mut written = match &model {
        AnyModel::Decoder(model) => {
            load::quantized(model).for_each(|note| note.show());
            decoder::dump(model, setup, &inputs, args.only_logits, args.lora.as_ref())?
        }
        _ if args.lora.is_some() => {
            return Err(Failed::new("--lora: the model has an encoder, and takes no adapters"));
        }
        AnyModel::Encoder(model) => encoder::dump(model, setup, &inputs)?,
        AnyModel::Seq2Seq(model) => seq2seq::dump(model, setup, &inputs)?,
    };
    if args.only_logits {
        written.retain(|name, _| !name.contains("hidden"));
    }
    write(&args.output, &written)?;
    print(&written.iter().map(|(name, (shape, _))| format!("{name} {shape:?}\n")).collect::<String>())
}

/// Writes the file, which appears under its name only when it is complete.
fn write(path: &Path, tensors: &Tensors) -> Result<(), Failed> {
    let failed = |why: SafeTensorError| match why {
        // The system's message names a file that does not exist yet.
        SafeTensorError::IoError(e) => {
            Failed::new(format!("{} cannot be written: {}", path.display(), e.kind()))
        }
        e => Failed::new(format!("{} cannot be written: {e}", path.display())),
    };
    let bytes = |numbers: &[f32]| numbers.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<u8>>();
    let stored: Vec<_> = tensors.iter().map(|(name, (shape, x))| (name, shape, bytes(x))).collect();
    let mut views = Vec::new();
    for (name, shape, bytes) in &stored {
        views.push((name, TensorView::new(Dtype::F32, shape.to_vec(), bytes).map_err(failed)?));
    }
    serialize_to_file(views, None, path).map_err(failed)
}
