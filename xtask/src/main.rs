//! Commands for people and CI besides cargo's own: `cargo xtask COMMAND`.

mod attack;
mod browser;
mod clients;
mod fuzz;
mod kernels;
mod parity;
mod program;
mod quants;
mod server;
mod spills;
mod tidy;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

const USAGE: &str = "usage: cargo xtask COMMAND
  attack [--program PROGRAM] [--slow FACTOR] [NAME...]
          attacks a server, with a healthy stream during each attack, and says what became of both
  browser [PROGRAM [PICTURE]]
          drives the server's own page, and OpenAI's JavaScript client from other pages, in Chromium (skipped where there
          is none), and photographs the page into PICTURE
  clients [PROGRAM]
          drives the server with the Python clients of OpenAI, Anthropic, Ollama and LiteLLM, and holds its answers
          against the schemas of their protocols with llm-comply (needs Python 3 and PyPI)
  tidy    holds the repository to its layout rules (see CONTRIBUTING.md)
  fuzz [SECONDS [TARGET]]
          runs each target of fuzz/ for so many seconds (30), or that one
  kernels [--check | --cubins FOLDER]
          compiles the CUDA kernels to the PTX in the repository, checks that it is what would be made, or assembles it
          for releases (Linux on x86-64, Python 3 and PyPI)
  parity [FOLDER]
          compares golden models with their references and writes the table in docs/parity.md, or those of a folder, and
          tells which are off
  quants --python PROGRAM
          compares models in every type of weights with llama.cpp and writes the table in docs/parity.md (--help)
  spills [PROGRAM]
          looks for kernels' inner loops that put registers aside, in the release build or that program (needs objdump)
PROGRAM is a tallow that is there already; without it this checkout's is built";

/// The root of the repository.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn main() -> ExitCode {
    let command: Vec<String> = std::env::args().skip(1).collect();
    match command.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        ["attack", args @ ..] => attack::run(&root(), args),
        ["browser"] => browser::run(&root(), None, None),
        ["browser", program] => browser::run(&root(), Some(Path::new(program)), None),
        ["browser", program, picture] => {
            browser::run(&root(), Some(Path::new(program)), Some(Path::new(picture)))
        }
        ["tidy"] => tidy::run(&root()),
        ["fuzz"] => fuzz::run(&root(), "30", None),
        ["fuzz", seconds] => fuzz::run(&root(), seconds, None),
        ["fuzz", seconds, target] => fuzz::run(&root(), seconds, Some(target)),
        ["kernels", args @ ..] => kernels::run(&root(), args),
        ["spills"] => spills::run(&root(), None),
        ["spills", program] => spills::run(&root(), Some(Path::new(program))),
        ["quants", args @ ..] => quants::run(&root(), args),
        ["parity"] => parity::run(&root()),
        ["parity", folder] => parity::run_on(&root(), Path::new(folder)),
        ["clients"] => clients::run(&root(), None),
        ["clients", program] => clients::run(&root(), Some(Path::new(program))),
        _ => {
            eprintln!("{USAGE}");
            ExitCode::from(2)
        }
    }
}
