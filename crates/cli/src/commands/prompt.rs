//! The prompt of `tallow run`: from standard input, a file and the command line, in this order.

use std::io::{IsTerminal, Read};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use super::{text_file, utf8};
use crate::args::Run;
use crate::{Failed, terminal};

/// Separator between texts of different sources.
const SEPARATOR: &str = "\n\n";
/// After this long without input the user is told that standard input is being read.
const STDIN_NOTICE: Duration = Duration::from_secs(3);

/// A prompt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Prompt {
    pub text: String,
    /// True if all of it was typed on the command line.
    pub typed: bool,
}

/// The prompt; `None` starts a chat.
pub(crate) fn prompt(args: &Run) -> Result<Option<Prompt>, Failed> {
    let words = Some(args.prompt.join(" ")).filter(|_| !args.prompt.is_empty());
    let asks_for_stdin = words.as_deref() == Some("-");
    let words = words.filter(|_| !asks_for_stdin);
    let terminal = std::io::stdin().is_terminal();
    if words.is_none() && args.file.is_none() && terminal && !asks_for_stdin {
        return Ok(None);
    }
    let piped = if !terminal || asks_for_stdin { Some(piped()?).filter(|t| !t.is_empty()) } else { None };
    let file = args.file.as_deref().map(text_file).transpose()?.map(without_end);
    let typed = piped.is_none() && file.is_none();
    // An empty prompt on the command line has the model begin by itself.
    let given = words.is_some();
    let texts = [piped, file, words].into_iter().flatten().filter(|text| !text.is_empty());
    let text = texts.collect::<Vec<_>>().join(SEPARATOR);
    if text.is_empty() && !given {
        let why =
            "the prompt is empty: give one behind the model, in a file (-f FILE) or through standard input";
        return Err(Failed::new(why));
    }
    Ok(Some(Prompt { text, typed }))
}

/// Reads all of standard input, with a notice if the program that feeds it keeps it open without sending anything.
fn piped() -> Result<String, Failed> {
    let (sender, received) = channel();
    std::thread::Builder::new().name("tallow-input".into()).spawn(move || {
        let mut bytes = Vec::new();
        let read = std::io::stdin().read_to_end(&mut bytes);
        // The receiver waits for this.
        let _ = sender.send(read.map(|_| bytes));
    })?;
    let gone = || Failed::new("standard input cannot be read");
    let bytes = match received.recv_timeout(STDIN_NOTICE) {
        Err(RecvTimeoutError::Timeout) => {
            terminal::tell("(reading standard input to its end; `< /dev/null` gives none)");
            received.recv().map_err(|_| gone())?
        }
        read => read.map_err(|_| gone())?,
    };
    Ok(without_end(utf8(bytes?, "standard input")?))
}

/// Strips the newline with which programs and editors end a text.
fn without_end(mut text: String) -> String {
    if text.ends_with('\n') {
        text.pop();
        if text.ends_with('\r') {
            text.pop();
        }
    }
    text
}
