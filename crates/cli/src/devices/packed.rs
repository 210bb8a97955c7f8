//! Packed weights on disk: `tallow pack`, and `--mmap`, which writes them where they are missing. They are mapped in place of
//! being loaded, on the CPU.

use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::SystemTime;

use tallow_checkpoint::digest;
use tallow_checkpoint::map::Mapping;
use tallow_cpu::{MappedFile, PackedFile};
use tallow_models::Model;

use crate::{Failed, build, env, terminal};

/// A device's place for a model's weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WeightsIn {
    /// In its memory.
    Memory,
    /// In its memory; with `--mmap` they would be mapped.
    MemoryOrDisk,
    /// Mapped from the disk: memory that is short is taken from them.
    Disk,
}

/// The file of a model's packed weights, whether it is there or not.
#[derive(Clone, Debug)]
pub(crate) struct PackedWeights {
    pub path: PathBuf,
    /// Digest of all that they depend on.
    identity: [u8; 32],
}

/// A mapped file of packed weights.
#[derive(Debug)]
struct Mapped(Mapping);

impl Deref for Mapped {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0
    }
}

impl MappedFile for Mapped {
    fn intact(&self) -> Result<(), String> {
        self.0.intact().map_err(|e| e.to_string())
    }
}

impl PackedWeights {
    /// The file for a model. An error says why it has none: weights that are quantized on load, or a model that is part of the
    /// program.
    pub(crate) fn of(model: &Model) -> Result<PackedWeights, Failed> {
        if let Some(recipe) = model.recipe {
            return Err(Failed::new(format!(
                "weights that are quantized on load (--quant {recipe}) are not kept packed: write them to a file first, by \
                 `tallow convert MODEL FILE --quant {recipe}`, and use that"
            )));
        }
        let folder = env::packed_weights().ok_or_else(|| {
            Failed::new("there is no folder for packed weights: set HOME, or XDG_CACHE_HOME to a folder")
        })?;
        let mut files: Vec<&Path> =
            model.checkpoint.tensors().map(|(_, stored)| stored.file.path()).collect();
        files.sort_unstable();
        files.dedup();
        let (mut paths, mut all) = (String::new(), format!("{}\n", build::VERSION));
        for file in files {
            let seen = file.canonicalize().and_then(|path| Ok((std::fs::metadata(&path)?, path)));
            let (meta, path) =
                seen.map_err(|_| Failed::new("a model that is part of the program is not kept packed"))?;
            let changed = meta.modified().ok().and_then(|t| t.duration_since(SystemTime::UNIX_EPOCH).ok());
            paths += &format!("{}\n", path.display());
            all += &format!("{} {} {changed:?}\n", path.display(), meta.len());
        }
        let name = model.checkpoint.path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let hex: String = digest::of_text(&paths)[..6].iter().map(|byte| format!("{byte:02x}")).collect();
        Ok(PackedWeights {
            path: folder.join(format!("{name}-{hex}.packed")),
            identity: digest::of_text(&all),
        })
    }

    /// Opens the file. None if there is none of this very model; it may have changed since.
    pub(crate) fn open(&self) -> Option<PackedFile> {
        if !self.path.exists() {
            return None;
        }
        let mapping = Mapping::open(&self.path).map_err(|e| e.to_string());
        let file = mapping.and_then(|mapping| {
            PackedFile::open(Arc::new(Mapped(mapping)), &self.identity)
                .map_err(|why| format!("{}: {why}", self.path.display()))
        });
        file.inspect_err(|why| tracing::info!("packed weights are not used: {why}")).ok()
    }

    /// The packed weights that a model is run with, if there are any; with `--mmap` they are written first.
    pub(super) fn for_use(model: &Model, mmap: bool, threads: usize) -> Result<Option<PackedFile>, Failed> {
        let weights = match PackedWeights::of(model) {
            Ok(weights) => weights,
            Err(why) => {
                if mmap {
                    terminal::tell(&format!("--mmap is ignored: {why}"));
                }
                return Ok(None);
            }
        };
        match weights.open() {
            None if mmap => {
                terminal::tell(&format!("packing the weights into {}", weights.path.display()));
                weights.write(model, threads, &AtomicBool::new(false))?;
                Ok(weights.open())
            }
            found => Ok(found),
        }
    }

    /// Writes the file: loads the model on the CPU, with its weights packed there. Returns its size. `stop` ends it.
    #[cfg(unix)]
    pub(crate) fn write(&self, model: &Model, threads: usize, stop: &AtomicBool) -> Result<u64, Failed> {
        use std::io::ErrorKind;
        use std::ops::ControlFlow;
        use std::sync::atomic::Ordering;

        use tallow_cpu::{Cpu, Isa, PackedFileWriter};
        use tallow_models::decoder::Decoder;

        use crate::partial_file::PartialFile;

        let failed = |why: std::io::Error| match why.kind() {
            ErrorKind::StorageFull | ErrorKind::QuotaExceeded => Failed::new(format!(
                "{}: the disk is full: packed weights take about as much as the model's file. Make room, or set \
                 XDG_CACHE_HOME to a folder on another disk",
                self.path.display()
            )),
            _ => Failed::new(format!("{}: {why}", self.path.display())),
        };
        if let Some(folder) = self.path.parent() {
            std::fs::create_dir_all(folder).map_err(failed)?;
        }
        let part = PartialFile::create(&self.path, model.weight_bytes() as u64).map_err(failed)?;
        let writer = PackedFileWriter::new(part.file.try_clone().map_err(failed)?, self.identity);
        let b = Cpu::new(Isa::best(), threads)?.packing_into(writer);
        let bar = terminal::bytes_bar(model.weight_bytes() as u64, "packing");
        // With all that any use of the model may load.
        let model = Model { mtp: model.has_mtp(), ..model.clone() };
        let loaded = Decoder::load(&b, &model, 1, &mut |done, _| {
            bar.set_position(done as u64);
            if stop.load(Ordering::Relaxed) { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        bar.finish_and_clear();
        // Why a weight could not be written is known to the file, and comes first.
        let bytes = b.finish_packing().map_err(failed)?;
        loaded?;
        part.finish(&self.path).map_err(failed)?;
        Ok(bytes)
    }

    #[cfg(not(unix))]
    pub(crate) fn write(&self, _: &Model, _: usize, _: &AtomicBool) -> Result<u64, Failed> {
        Err(Failed::new("packed weights are written on Unix systems only"))
    }
}
