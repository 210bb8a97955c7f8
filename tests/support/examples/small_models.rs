//! Writes small models of each kind but text generation to a folder: an embedder, a reranker, a model of texts and images, and
//! a speech model. `cargo run -p tallow-support --example small_models -- FOLDER`

use std::path::Path;
use std::process::ExitCode;

use tallow_support::{image_encoder, listener, text_encoder};

fn main() -> ExitCode {
    let Some(folder) = std::env::args().nth(1) else {
        eprintln!("a folder is expected");
        return ExitCode::FAILURE;
    };
    let folder = Path::new(&folder);
    text_encoder(&folder.join("embedder"), None);
    text_encoder(&folder.join("reranker"), Some(1));
    image_encoder(&folder.join("clip"));
    listener(&folder.join("whisper"));
    ExitCode::SUCCESS
}
