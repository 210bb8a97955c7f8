//! `tallow convert`: writes a model as a GGUF file.

use std::io::{BufWriter, ErrorKind};
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::atomic::Ordering;

use tallow_convert::{Conversion, Importance, WriteError};
use tallow_models::{AnyModel, LoadError, Model};

use super::print;
use crate::Failed;
use crate::args::Convert;
use crate::load;
use crate::memory::size;
use crate::partial_file::PartialFile;
use crate::settings::Sources;
use crate::signal::stopping;
use crate::terminal;

pub(crate) fn convert(args: &Convert, sources: &Sources) -> Result<(), Failed> {
    let (out, name) = (&args.output, args.output.display());
    if out.is_dir() {
        return Err(Failed::new(format!("{name} is a folder; name the file, such as {name}/model.gguf")));
    }
    if out.exists() && !args.force {
        return Err(Failed::new(format!(
            "{name} is there already; choose another name, or --force to replace it"
        )));
    }
    let folder = out.parent().filter(|folder| !folder.as_os_str().is_empty());
    if let Some(folder) = folder.filter(|folder| !folder.is_dir()) {
        return Err(Failed::new(format!("{name}: there is no folder {}; make it first", folder.display())));
    }
    if args.allow_requantize && args.quant.is_none() {
        return Err(Failed::new("--allow-requantize is about how to quantize; say to what with --quant"));
    }
    let mut model = decoder(args, sources)?;
    model.requantize = args.allow_requantize;
    if is_of(&model, out) {
        return Err(Failed::new(format!("{name} is what is to be read; choose another name")));
    }
    let importance = args.imatrix.as_deref().map(Importance::read).transpose()?;
    let conversion = match (&importance, &args.imatrix) {
        (Some(_), _) if model.recipe.is_none() => {
            return Err(Failed::new("--imatrix is about how to quantize; say to what with --quant"));
        }
        (Some(importance), Some(path)) => Conversion::new(&model, out)?.with_imatrix(importance, path)?,
        _ => Conversion::new(&model, out)?,
    };
    conversion.notes().iter().for_each(|note| terminal::tell(&terminal::sanitized(note)));
    let part =
        PartialFile::create(out, conversion.size()).map_err(|e| cannot_write(out, conversion.size(), &e))?;
    let stop = stopping();
    let bar = terminal::bytes_bar(conversion.size(), "converting");
    let mut file = BufWriter::with_capacity(1 << 20, &part.file);
    let written = conversion.write(&mut file, &mut |done, _| {
        bar.set_position(done as u64);
        if stop.load(Ordering::Relaxed) { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    bar.finish_and_clear();
    drop(file);
    match written {
        Ok(()) => part.finish(out).map_err(|e| cannot_write(out, conversion.size(), &e))?,
        Err(WriteError::Load(LoadError::Stopped)) => {
            drop(part);
            std::process::exit(130);
        }
        Err(WriteError::Load(e)) => return Err(e.into()),
        Err(WriteError::Io(e)) => return Err(cannot_write(out, conversion.size(), &e)),
    }
    let (weights, bytes) = conversion.weights();
    let each = bytes as f64 * 8.0 / weights.max(1) as f64;
    print(&format!("{name}: {}, {each:.2} bits a weight\n", size(conversion.size())))
}

/// Opens the model, which has to be a decoder: only those can be written as GGUF.
fn decoder(args: &Convert, sources: &Sources) -> Result<Model, Failed> {
    // Opened without `--quant`, which encoders do not take: here they are refused for another reason.
    let how = load::OpenOptions::to_write(sources, args.offline, None)?;
    let (kind, others) = match load::any(&args.model, how)? {
        AnyModel::Decoder(mut model) => {
            model.recipe = args.quant;
            return Ok(*model);
        }
        AnyModel::Encoder(model) if model.family.is_decoder() => {
            (format!("{}, an embedding model", model.family.name()), "`tallow embed` or `tallow serve`")
        }
        AnyModel::Encoder(model) => (
            format!("{}, an encoder", model.family.name()),
            "`tallow embed`, `tallow rerank`, `tallow classify` or `tallow serve`",
        ),
        AnyModel::Seq2Seq(model) if model.takes_audio() => {
            (format!("{}, a speech model", model.family.name), "`tallow transcribe` or `tallow serve`")
        }
        AnyModel::Seq2Seq(model) => {
            (format!("{}, an encoder with a decoder", model.family.name), "`tallow run`")
        }
    };
    Err(Failed::new(format!(
        "{}: GGUF files are written of models that generate text only, and this is {kind}: use it as it is stored, by \
         {others}",
        terminal::sanitized(&args.model)
    )))
}

/// True if `out` is one of the model's own files.
fn is_of(model: &Model, out: &Path) -> bool {
    let Ok(out) = out.canonicalize() else { return false };
    let mut files = model.checkpoint.tensors().map(|(_, stored)| stored.file.path());
    files.any(|file| file.canonicalize().is_ok_and(|file| file == out))
}

fn cannot_write(out: &Path, size_of_file: u64, e: &std::io::Error) -> Failed {
    let name = out.display();
    match e.kind() {
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => Failed::new(format!(
            "{name}: there is no room for a file of {}; choose a smaller --quant, or another place",
            size(size_of_file)
        )),
        ErrorKind::FileTooLarge => Failed::new(format!(
            "{name}: this file system takes no file of {}; choose a smaller --quant, or another place",
            size(size_of_file)
        )),
        _ => Failed::new(format!("{name}: {e}")),
    }
}
