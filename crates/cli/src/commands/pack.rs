//! `tallow pack`: packs a model's weights once, into a file that the CPU maps in place of loading the model.

use std::io::ErrorKind;
use std::sync::atomic::Ordering;
use std::time::Instant;

use super::print;
use crate::Failed;
use crate::args::Pack;
use crate::devices::{PackedWeights, cores};
use crate::load;
use crate::memory::size;
use crate::settings::Sources;
use crate::signal::stopping;

pub(crate) fn pack(args: &Pack, sources: &Sources) -> Result<(), Failed> {
    let model = load::model(&args.model, load::OpenOptions::to_write(sources, args.offline, None)?)?;
    let weights = PackedWeights::of(&model)?;
    let path = weights.path.display();
    if args.remove {
        return match std::fs::remove_file(&weights.path) {
            Ok(()) => print(&format!("{path}: removed\n")),
            Err(e) if e.kind() == ErrorKind::NotFound => print(&format!("{path} is not there\n")),
            Err(e) => Err(Failed::new(format!("{path}: {e}"))),
        };
    }
    if let Some(file) = weights.open() {
        return print(&format!("{path}: {}, packed already\n", size(file.bytes() as u64)));
    }
    let threads = sources.get("threads", args.threads, cores())?.value;
    let (stop, began) = (stopping(), Instant::now());
    let packed = weights.write(&model, threads, &stop);
    if stop.load(Ordering::Relaxed) {
        std::process::exit(130);
    }
    print(&format!("{path}: {}, packed in {:.1} s\n", size(packed?), began.elapsed().as_secs_f64()))
}
