//! The chat of `tallow run`: lines in, answers out.

use std::io::Write;

use rustyline::error::ReadlineError;
use rustyline::history::FileHistory;
use rustyline::{Config, Editor};
use serde_json::{Value, json};

use super::print;
use crate::chat::{Answered, Message, Talk, speed, writer};
use crate::load::Opened;
use crate::settings::EngineConfig;
use crate::{Failed, env, screen};

const HELP: &str = "\
/set NAME VALUE   change a setting: temperature, top-k, top-p, min-p, typical-p, repetition-penalty,
                  presence-penalty, frequency-penalty, seed, max-tokens; or system TEXT
/show             what the settings are, and what was said
/clear            forget what was said
/save FILE        write the chat to a file
/load FILE        go on with a chat from a file
/bye              leave (also Ctrl-D)
A line that ends in \\ goes on in the next; text of many lines can stand between \"\"\" and \"\"\".
Ctrl-C stops an answer.
";
/// Marks the beginning and the end of text of many lines.
const MANY: &str = "\"\"\"";
/// Lines that are remembered from one chat to the next.
const REMEMBERED: usize = 1000;
/// Largest chat that is loaded.
const MOST_SAVED: u64 = 64 << 20;

type Lines = Editor<(), FileHistory>;

/// Chats until the user leaves.
pub(crate) fn chat(opened: &Opened, config: &EngineConfig, talk: Talk, verbose: bool) -> Result<(), Failed> {
    let settings = Config::builder().max_history_size(REMEMBERED).map_err(Failed::new)?.build();
    let mut lines = Lines::with_config(settings).map_err(Failed::new)?;
    let history = env::line_history();
    if let Some(path) = &history {
        // The first time there is none.
        let _ = lines.load_history(path);
    }
    if !talk.has_template() {
        let name = screen::harmless(&opened.name).into_owned();
        println!(
            "{}",
            screen::dim(&format!("{name} was not taught to chat: it goes on with what you write."))
        );
    }
    println!("{}", screen::dim("/help shows what you can do here."));
    let mut chat = Repl { talk, config, verbose };
    while let Some(text) = read(&mut lines)? {
        let trimmed = text.trim();
        if trimmed.is_empty() {
            continue;
        }
        // That a line cannot be remembered is no reason to stop.
        let _ = lines.add_history_entry(text.as_str());
        if trimmed == "/bye" || trimmed == "/exit" || trimmed == "/quit" {
            break;
        }
        // One thing that fails does not end the chat.
        let done = match trimmed.starts_with('/') && !trimmed.contains('\n') {
            true => chat.command(trimmed),
            false => chat.say(&text),
        };
        if let Err(why) = done {
            screen::tell(&format!("{} {}", screen::red("error:"), screen::harmless(&why.to_string())));
        }
    }
    if let Some(path) = history {
        remember(&mut lines, &path);
    }
    print("")
}

/// Keeps the lines for the next chat, for this user's eyes alone. A disk that is full or read-only is no error here.
fn remember(lines: &mut Lines, path: &std::path::Path) {
    if let Some(folder) = path.parent() {
        let _ = std::fs::create_dir_all(folder);
    }
    let _ = lines.save_history(path);
}

/// The next thing that is said; `None` at the end.
fn read(lines: &mut Lines) -> Result<Option<String>, Failed> {
    let mut text = String::new();
    let mut many = false;
    loop {
        let prompt = if text.is_empty() && !many { ">>> " } else { "... " };
        let line = match lines.readline(prompt) {
            Ok(line) => line,
            // What was begun is dropped; at an empty prompt it only says how to leave.
            Err(ReadlineError::Interrupted) => {
                if text.is_empty() && !many {
                    println!("{}", screen::dim("/bye or Ctrl-D leaves."));
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
            && let Some(rest) = line.trim_start().strip_prefix(MANY)
        {
            (many, line) = (true, rest);
        }
        if many {
            if let Some(last) = line.trim_end().strip_suffix(MANY) {
                text += last;
                return Ok(Some(text));
            }
            // What opens the text may stand on a line of its own, which is no part of it.
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

struct Repl<'a> {
    talk: Talk,
    config: &'a EngineConfig,
    verbose: bool,
}

impl Repl<'_> {
    fn say(&mut self, text: &str) -> Result<(), Failed> {
        let mut show = writer();
        if !self.talk.has_template() {
            show(text)?;
        }
        let answered = self.talk.say(text, &mut show);
        show("\n")?;
        match answered? {
            Answered::Whole(done) if self.verbose => println!("{}", screen::dim(&speed(&done))),
            Answered::Whole(_) => {}
            Answered::Stopped => {
                println!("{}", screen::dim("(stopped)"));
                self.talk.settle();
            }
        }
        println!();
        Ok(std::io::stdout().flush()?)
    }

    fn command(&mut self, line: &str) -> Result<(), Failed> {
        let (name, rest) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
        let rest = rest.trim();
        let needs = |what: &str| match rest.is_empty() {
            true => Err(Failed::new(format!("{name} needs {what}; see /help"))),
            false => Ok(rest),
        };
        match name {
            "/help" | "/?" => print(HELP),
            "/clear" => {
                self.talk.messages.clear();
                print("forgotten\n")
            }
            "/show" => print(&self.show()),
            "/set" => {
                let (setting, value) =
                    needs("a name and a value")?.split_once(char::is_whitespace).unwrap_or((rest, ""));
                self.set(setting, value.trim())
            }
            "/save" => self.save(needs("a file")?),
            "/load" => self.load(needs("a file")?),
            _ => Err(Failed::new(format!("there is no {name}; /help shows what there is"))),
        }
    }

    fn set(&mut self, name: &str, value: &str) -> Result<(), Failed> {
        if name == "system" {
            self.talk.system = Some(value.to_owned()).filter(|v| !v.is_empty());
            return print("set\n");
        }
        let mut changed = self.talk.sampling.clone();
        let number = || value.parse::<f32>().map_err(|e| Failed::new(format!("{name} {value:?}: {e}")));
        let count = || value.parse::<usize>().map_err(|e| Failed::new(format!("{name} {value:?}: {e}")));
        match name {
            "temperature" => changed.temperature = number()?,
            "top-k" => changed.top_k = count()?,
            "top-p" => changed.top_p = number()?,
            "min-p" => changed.min_p = number()?,
            "typical-p" => changed.typical_p = number()?,
            "repetition-penalty" => changed.repetition_penalty = number()?,
            "presence-penalty" => changed.presence_penalty = number()?,
            "frequency-penalty" => changed.frequency_penalty = number()?,
            "seed" => {
                changed.seed = value.parse().map_err(|e| Failed::new(format!("seed {value:?}: {e}")))?
            }
            "max-tokens" => {
                self.talk.max_tokens = Some(count()?);
                return print("set\n");
            }
            _ => return Err(Failed::new(format!("there is no setting {name:?}; see /help"))),
        }
        self.config.clone().with(&changed).check()?;
        self.talk.sampling = changed;
        print("set\n")
    }

    fn show(&self) -> String {
        let (s, talk) = (&self.talk.sampling, &self.talk);
        let most = talk.max_tokens.map_or("as many as fit".into(), |n| n.to_string());
        let used = talk.prompt().map_or(0, |tokens| tokens.len());
        let mut text = format!(
            "temperature {}, top-k {}, top-p {}, min-p {}, typical-p {}\n\
             repetition-penalty {}, presence-penalty {}, frequency-penalty {}\n\
             seed {}, max-tokens {most}\n\
             {used} of {} tokens of context used\n",
            s.temperature,
            s.top_k,
            s.top_p,
            s.min_p,
            s.typical_p,
            s.repetition_penalty,
            s.presence_penalty,
            s.frequency_penalty,
            s.seed,
            talk.context(),
        );
        let system = talk.system.iter().map(|text| ("system", text));
        for (role, content) in system.chain(talk.messages.iter().map(|m| (m.role.as_str(), &m.content))) {
            text += &format!("[{role}] {content}\n");
        }
        screen::harmless(&text).into_owned()
    }

    fn save(&self, path: &str) -> Result<(), Failed> {
        let messages: Vec<Value> =
            self.talk.messages.iter().map(|m| json!({"role": m.role, "content": m.content})).collect();
        let saved = json!({"system": self.talk.system, "messages": messages});
        let written = std::fs::write(path, format!("{saved:#}\n"));
        written.map_err(|e| Failed::new(format!("{path} cannot be written: {e}")))?;
        print(&format!("saved to {path}\n"))
    }

    fn load(&mut self, path: &str) -> Result<(), Failed> {
        let wrong = |why: String| Failed::new(format!("{path}: {why}"));
        let size = std::fs::metadata(path).map_err(|e| wrong(e.to_string()))?.len();
        if size > MOST_SAVED {
            return Err(wrong(format!("has {size} bytes; at most {MOST_SAVED} are read")));
        }
        let text = std::fs::read_to_string(path).map_err(|e| wrong(e.to_string()))?;
        let saved: Value =
            serde_json::from_str(&text).map_err(|e| wrong(format!("is no saved chat: {e}")))?;
        let messages =
            saved["messages"].as_array().ok_or_else(|| wrong("is no saved chat: no messages".into()))?;
        let text = |v: &Value| v.as_str().map(str::to_owned);
        let message = |m: &Value| Some(Message { role: text(&m["role"])?, content: text(&m["content"])? });
        let messages: Option<Vec<Message>> = messages.iter().map(message).collect();
        self.talk.messages = messages.ok_or_else(|| wrong("a message has no role or no content".into()))?;
        self.talk.system = text(&saved["system"]);
        print(&format!("{} messages\n", self.talk.messages.len()))
    }
}
