//! The commands, one file each.

pub(crate) mod answer;
pub(crate) mod bench;
pub(crate) mod convert;
pub(crate) mod doctor;
pub(crate) mod dump;
pub(crate) mod embed;
pub(crate) mod hub;
pub(crate) mod imatrix;
pub(crate) mod pack;
pub(crate) mod parse;
pub(crate) mod perplexity;
pub(crate) mod prompt;
pub(crate) mod ps;
pub(crate) mod reference;
pub(crate) mod repl;
pub(crate) mod replay;
pub(crate) mod run;
pub(crate) mod schema;
pub(crate) mod serve;
pub(crate) mod show;
pub(crate) mod tokenize;
pub(crate) mod transcribe;

use std::path::Path;

use crate::Failed;
use crate::args::{self, Completions};
use crate::settings::unreadable;

/// `tallow completions`
pub(crate) fn completions(args: &Completions) -> Result<(), Failed> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut args::command(), "tallow", &mut script);
    print(&String::from_utf8_lossy(&script))
}

/// Writes to standard output. A broken pipe is a quiet error.
pub(crate) fn print(text: &str) -> Result<(), Failed> {
    use std::io::Write;
    let mut out = std::io::stdout();
    out.write_all(text.as_bytes())?;
    Ok(out.flush()?)
}

/// The text on the command line, else all of standard input.
pub(crate) fn text_or_stdin(words: &[String]) -> Result<String, Failed> {
    use std::io::Read;
    if !words.is_empty() && words != ["-"] {
        return Ok(words.join(" "));
    }
    let mut bytes = Vec::new();
    std::io::stdin().read_to_end(&mut bytes)?;
    utf8(bytes, "standard input")
}

/// The text of a file.
pub(crate) fn text_file(path: &Path) -> Result<String, Failed> {
    let name = path.display().to_string();
    let bytes = std::fs::read(path).map_err(|e| Failed::new(format!("{name}: {}", unreadable(&e))))?;
    utf8(bytes, &name)
}

/// Decodes UTF-8; `name` is the source, for the error.
pub(crate) fn utf8(bytes: Vec<u8>, name: &str) -> Result<String, Failed> {
    String::from_utf8(bytes).map_err(|e| {
        let at = e.utf8_error().valid_up_to();
        Failed::new(format!("{name} is not UTF-8 text: byte {at} cannot be read; convert it first (iconv)"))
    })
}
