//! [`Lines`]: line editor of the chat, with history and completion.

use std::path::{Path, PathBuf};

use rustyline::completion::{Completer, Pair};
use rustyline::error::ReadlineError;
use rustyline::highlight::Highlighter;
use rustyline::hint::Hinter;
use rustyline::history::FileHistory;
use rustyline::validate::Validator;
use rustyline::{CompletionType, Config, Context, Editor, Helper};

use super::{COMMANDS, set};
use crate::{Failed, env, terminal};

/// Opens and closes text of several lines.
const MULTILINE: &str = "\"\"\"";
/// Lines kept in the history.
const MAX_HISTORY: usize = 1000;
/// Maximum file names offered.
const MAX_CANDIDATES: usize = 500;

/// Reads messages and commands.
pub(super) struct Lines {
    editor: Editor<Names, FileHistory>,
    history: Option<PathBuf>,
}

impl Lines {
    /// Opens the editor with the history of earlier chats.
    pub(super) fn open() -> Result<Lines, Failed> {
        let settings = Config::builder().max_history_size(MAX_HISTORY).map_err(Failed::new)?;
        let settings = settings.completion_type(CompletionType::List).build();
        let mut editor = Editor::with_config(settings).map_err(Failed::new)?;
        editor.set_helper(Some(Names));
        let history = env::line_history();
        if let Some(path) = &history {
            // There is none the first time.
            let _ = editor.load_history(path);
            if let Some(folder) = path.parent() {
                let _ = std::fs::create_dir_all(folder);
            }
        }
        Ok(Lines { editor, history })
    }

    /// The next message or command; `None` at the end of input.
    pub(super) fn message(&mut self) -> Result<Option<String>, Failed> {
        let read = self.read()?;
        if let Some(text) = read.as_deref().filter(|text| !text.trim().is_empty()) {
            self.remember(text);
        }
        Ok(read)
    }

    /// Appends a line to the history, which only this user can read: at once, since closing the terminal ends the
    /// program. Errors, such as a full or read-only disk, are ignored.
    fn remember(&mut self, text: &str) {
        let _ = self.editor.add_history_entry(text);
        if let Some(path) = &self.history {
            let _ = self.editor.append_history(path);
        }
    }

    fn read(&mut self) -> Result<Option<String>, Failed> {
        let mut text = String::new();
        let mut many = false;
        loop {
            let prompt = if text.is_empty() && !many { ">>> " } else { "... " };
            let line = match self.editor.readline(prompt) {
                Ok(line) => line,
                // The text begun so far is dropped; at an empty prompt this only shows how to leave.
                Err(ReadlineError::Interrupted) => {
                    if text.is_empty() && !many {
                        println!("{}", terminal::dim("/bye or Ctrl-D leaves."));
                    }
                    (text, many) = (String::new(), false);
                    continue;
                }
                Err(ReadlineError::Eof) => return Ok(None),
                Err(why) => return Err(Failed::new(why)),
            };
            let mut line = line.as_str();
            if !many
                && text.is_empty()
                && let Some(rest) = line.trim_start().strip_prefix(MULTILINE)
            {
                (many, line) = (true, rest);
            }
            if many {
                if let Some(last) = line.trim_end().strip_suffix(MULTILINE) {
                    text += last;
                    return Ok(Some(text));
                }
                // A first line with nothing but the opening mark is not part of the text.
                if !(text.is_empty() && line.trim().is_empty()) {
                    text += line;
                    text.push('\n');
                }
            } else if let Some(more) = line.strip_suffix('\\') {
                text += more;
                text.push('\n');
            } else {
                text += line;
                return Ok(Some(text));
            }
        }
    }
}

/// Completer of commands, settings and file names.
struct Names;

impl Helper for Names {}
impl Highlighter for Names {}
impl Validator for Names {}
impl Hinter for Names {
    type Hint = String;
}

impl Completer for Names {
    type Candidate = Pair;

    fn complete(&self, line: &str, at: usize, _: &Context<'_>) -> rustyline::Result<(usize, Vec<Pair>)> {
        let (start, names) = candidates(&line[..at]);
        let pair = |(display, replacement)| Pair { display, replacement };
        Ok((start, names.into_iter().map(pair).collect()))
    }
}

/// Start of the last word of the line, and its completions: as shown, and as typed.
fn candidates(line: &str) -> (usize, Vec<(String, String)>) {
    let beginning = |names: &mut dyn Iterator<Item = &'static str>, word: &str| -> Vec<(String, String)> {
        let names = names.filter(|name| name.starts_with(word));
        names.map(|name| (name.to_owned(), format!("{name} "))).collect()
    };
    let Some((name, rest)) = line.split_once(' ') else {
        let all = &mut COMMANDS.iter().map(|known| known.name);
        return (0, if line.starts_with('/') { beginning(all, line) } else { Vec::new() });
    };
    let typed = rest.trim_start();
    let start = line.len() - typed.len();
    match name {
        "/set" if !typed.contains(' ') => (start, beginning(&mut set::names(), typed)),
        "/save" | "/save!" | "/load" => (start, files(typed)),
        _ => (line.len(), Vec::new()),
    }
}

/// Files and folders whose path begins with `typed`: the name, and the whole path.
fn files(typed: &str) -> Vec<(String, String)> {
    let (folder, begun) = typed.rsplit_once('/').map_or(("", typed), |(folder, begun)| (folder, begun));
    let looked_in = match (typed.contains('/'), folder) {
        (false, _) => PathBuf::from("."),
        (true, "") => PathBuf::from("/"),
        (true, "~") => env::expand("~/"),
        (true, folder) => env::expand(folder),
    };
    let before = &typed[..typed.len() - begun.len()];
    let Ok(entries) = std::fs::read_dir(&looked_in) else { return Vec::new() };
    let mut found: Vec<(String, String)> = entries
        .filter_map(|entry| named(&looked_in, &entry.ok()?.file_name().into_string().ok()?, begun))
        .map(|name| (name.clone(), format!("{before}{name}")))
        .take(MAX_CANDIDATES)
        .collect();
    found.sort();
    found
}

/// A file's name if it begins with `begun`; a folder's with a slash. Hidden files are left out unless asked for, and so
/// are names that would disturb the terminal.
fn named(folder: &Path, name: &str, begun: &str) -> Option<String> {
    let wanted = name.starts_with(begun) && (begun.starts_with('.') || !name.starts_with('.'));
    if !wanted || terminal::sanitized(name) != name {
        return None;
    }
    let slash = if folder.join(name).is_dir() { "/" } else { "" };
    Some(format!("{name}{slash}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_completed() {
        let typed = |line: &str| {
            let (start, found) = candidates(line);
            (start, found.into_iter().map(|(_, replacement)| replacement).collect::<Vec<_>>().join("|"))
        };
        assert_eq!(typed("/sa"), (0, "/save ".into()));
        assert_eq!(typed("/s"), (0, "/set |/show |/save ".into()));
        assert_eq!(typed("/set temp"), (5, "temperature ".into()));
        assert_eq!(typed("/set top-"), (5, "top-k |top-p ".into()));
        assert_eq!(typed("hello /s"), (8, String::new()));
        assert_eq!(typed("hello"), (0, String::new()));
        let folder = std::env::temp_dir().join(format!("tallow-names-{}", std::process::id()));
        std::fs::create_dir_all(folder.join("chats")).unwrap();
        for name in ["chat one.json", ".hidden", "x\u{1b}[2J"] {
            std::fs::write(folder.join(name), "").unwrap();
        }
        let folder = folder.to_str().unwrap();
        let (start, found) = typed(&format!("/load {folder}/ch"));
        assert_eq!((start, found), (6, format!("{folder}/chat one.json|{folder}/chats/")));
        assert_eq!(typed(&format!("/load {folder}/.h")).1, format!("{folder}/.hidden"));
        assert_eq!(typed(&format!("/load {folder}/x")).1, "");
        std::fs::remove_dir_all(folder).unwrap();
    }
}
