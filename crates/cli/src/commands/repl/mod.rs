//! The interactive chat of `tallow run`.

mod lines;
mod saved;
mod set;

use std::io::Write;

use super::print;
use crate::args::Run;
use crate::chat::view::{Looks, View};
use crate::chat::{Answered, Cut, Talk, speed};
use crate::load::LoadedModel;
use crate::lora::Lora;
use crate::notice::Notice;
use crate::settings::{EngineConfig, Origin, Setting};
use crate::{Failed, terminal};
use lines::Lines;

/// A command of the chat.
struct Known {
    name: &'static str,
    /// Arguments of the command.
    takes: &'static str,
    does: &'static str,
}

const fn known(name: &'static str, takes: &'static str, does: &'static str) -> Known {
    Known { name, takes, does }
}

/// All commands of a chat.
static COMMANDS: &[Known] = &[
    known("/set", "NAME VALUE", "change a setting; /set alone lists them"),
    known("/show", "", "the settings, and the conversation"),
    known("/retry", "", "another answer to the last message"),
    known("/undo", "", "take the last message and its answer back"),
    known("/clear", "", "forget the conversation"),
    known("/save", "FILE", "write conversation and settings to a file (/save! replaces one)"),
    known("/load", "FILE", "go on with a conversation from a file"),
    known("/help", "", "this list (also /?)"),
    known("/bye", "", "leave (also /exit, /quit, Ctrl-D)"),
];
/// Aliases of commands.
static SYNONYMS: &[(&str, &str)] =
    &[("/?", "/help"), ("/exit", "/bye"), ("/quit", "/bye"), ("/regenerate", "/retry"), ("/reset", "/clear")];

const KEYS: &str = "\
A line that ends in \\ goes on in the next; text of many lines can stand between \"\"\" and \"\"\".
A line that begins with a space is never a command. Tab completes commands, settings and file names.
Ctrl-C stops an answer.
";

/// Settings of a chat besides a running model.
pub(crate) struct Setup<'a> {
    pub loaded: &'a LoadedModel,
    pub config: EngineConfig,
    pub args: &'a Run,
}

/// Runs the chat until the user leaves.
pub(crate) fn chat(setup: Setup<'_>, talk: Talk) -> Result<(), Failed> {
    let mut lines = Lines::open()?;
    if !talk.dialogue.has_template() {
        let name = terminal::sanitized(&setup.loaded.name).into_owned();
        println!("{}", terminal::dim(&format!("{name} has no chat template: it continues your text.")));
    }
    println!("{}", terminal::dim("/help shows what you can do here."));
    let looks = Looks::new(&setup.args.chat, talk.dialogue.has_template());
    let verbose = setup.args.verbose;
    let mut chat = Repl { setup, talk, looks, verbose };
    while let Some(text) = lines.message()? {
        if text.trim().is_empty() {
            continue;
        }
        let done = match command(&text) {
            Some(Ok(("/bye", _))) => break,
            Some(Ok((name, rest))) => chat.command(name, rest),
            Some(Err(why)) => Err(why),
            None => chat.say(&text),
        };
        // A command that fails does not end the chat.
        if let Err(why) = done {
            terminal::tell(&format!("{} {}", terminal::red("error:"), terminal::sanitized(&why.to_string())));
        }
    }
    print("")
}

/// Parses a line as a command and its arguments; `None` if it is a message, as are paths and lines that begin with a
/// space.
fn command(line: &str) -> Option<Result<(&'static str, &str), Failed>> {
    if !line.starts_with('/') || line.trim_end().contains('\n') {
        return None;
    }
    let (name, rest) = line.trim_end().split_once(char::is_whitespace).unwrap_or((line.trim_end(), ""));
    // `/etc/passwd`, `//` and `/usr.` are text.
    let plain = |c: char| c.is_ascii_lowercase() || c == '-' || c == '?' || c == '!';
    if name.len() < 2 || !name[1..].chars().all(plain) {
        return None;
    }
    let rest = rest.trim();
    if name == "/save!" {
        return Some(Ok(("/save!", rest)));
    }
    let meant = SYNONYMS.iter().find(|(other, _)| *other == name).map_or(name, |(_, meant)| *meant);
    if let Some(known) = COMMANDS.iter().find(|known| known.name == meant) {
        return Some(Ok((known.name, rest)));
    }
    let near = COMMANDS.iter().find(|known| known.name.starts_with(name) || name.starts_with(known.name));
    let near = near.map_or(String::new(), |known| format!(" Is {} meant?", known.name));
    Some(Err(Failed::new(format!(
        "there is no {name}; /help shows what there is.{near} To say it to the model, begin the line with a space."
    ))))
}

struct Repl<'a> {
    setup: Setup<'a>,
    talk: Talk,
    looks: Looks,
    verbose: bool,
}

impl Repl<'_> {
    fn say(&mut self, text: &str) -> Result<(), Failed> {
        // A model without a template continues the text, so both are shown as one.
        let echo = (!self.talk.dialogue.has_template() && !self.setup.args.chat.no_echo)
            || self.setup.args.chat.echo;
        let mut view = View::new(self.looks, echo.then(|| text.to_owned()));
        let answered = match self.talk.say(text, &mut |news| view.tell(news)) {
            Err(why) if !view.has_begun() => {
                view.abandon();
                return Err(why);
            }
            answered => {
                view.end()?;
                answered?
            }
        };
        let notice = match &answered {
            Answered::Whole(_, cut) => cut.map(|cut| Cut::words(cut, true)),
            Answered::Stopped => {
                self.talk.settle();
                Some("(stopped)".into())
            }
        };
        let speed = match &answered {
            Answered::Whole(done, _) if self.verbose => Some(speed(done)),
            _ => None,
        };
        for line in [notice, speed].into_iter().flatten() {
            println!("{}", terminal::dim(&line));
        }
        println!();
        Ok(std::io::stdout().flush()?)
    }

    fn command(&mut self, name: &str, rest: &str) -> Result<(), Failed> {
        let needs = |what: &str| match rest.is_empty() {
            true => Err(Failed::new(format!("{name} needs {what}; see /help"))),
            false => Ok(rest),
        };
        match name {
            "/help" => print(&help()),
            "/clear" => {
                self.talk.dialogue.clear();
                print("forgotten\n")
            }
            "/retry" => self.retry(),
            "/undo" => self.undo(),
            "/show" => print(&self.show()),
            "/set" if rest.is_empty() => print(&set::list()),
            "/set" => self.set(rest),
            "/save" => self.save(needs("a file")?, false),
            "/save!" => self.save(needs("a file")?, true),
            "/load" => self.load(needs("a file")?),
            _ => Err(Failed::new(format!("there is no {name}"))),
        }
    }

    /// Answers the last message again, in place of the previous answer.
    fn retry(&mut self) -> Result<(), Failed> {
        let Some(asked) = self.talk.dialogue.last_asked() else {
            return Err(Failed::new("there is no message to answer again"));
        };
        let text = self.talk.dialogue.messages[asked].content.clone();
        let before = self.talk.dialogue.messages.clone();
        self.talk.dialogue.truncate(asked);
        let said = self.say(&text);
        // If there is no new answer the old one stays.
        if self.talk.dialogue.messages.len() == asked {
            self.talk.dialogue.messages = before;
        }
        said
    }

    fn undo(&mut self) -> Result<(), Failed> {
        let Some(asked) = self.talk.dialogue.last_asked() else {
            return Err(Failed::new("there is no message to take back"));
        };
        let text = self.talk.dialogue.messages[asked].content.clone();
        self.talk.dialogue.truncate(asked);
        let first = text.lines().next().unwrap_or_default();
        let (left, more) = (self.talk.dialogue.messages.len(), if first == text { "" } else { " …" });
        print(&format!("taken back: {}{more} ({left} messages left)\n", terminal::sanitized(first)))
    }

    /// Changes the context size: the model is loaded again.
    fn set_context(&mut self, context: usize) -> Result<(), Failed> {
        let (before, made_for) = (self.talk.context(), self.talk.made_for());
        if context == 0 || context > made_for {
            let why = format!("context {context}: from 1 to {made_for}, which is this model's own limit");
            return Err(Failed::new(why));
        }
        // The memory may not suffice for two engines.
        self.talk.close();
        let started = self.start(context);
        if started.is_err() {
            self.start(before)?;
        }
        started
    }

    fn start(&mut self, context: usize) -> Result<(), Failed> {
        let Setup { loaded, config, args } = &mut self.setup;
        let adapters = Lora::open_all(args.lora.as_slice())?;
        let wanted = EngineConfig {
            context: Some(Setting { value: context, origin: Origin::Flag }),
            ..config.clone()
        };
        let handle = loaded.start(&wanted, vec![loaded.name.clone()], &Notice::show)?;
        crate::lora::load(&handle, adapters)?;
        *config = wanted;
        self.talk.go_on_with(handle);
        Ok(())
    }
}

fn help() -> String {
    let line = |known: &Known| {
        let typed = format!("{} {}", known.name, known.takes);
        format!("{typed:<16}  {}\n", known.does)
    };
    COMMANDS.iter().map(line).collect::<String>() + KEYS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_no_command() {
        let is = |line| match command(line) {
            None => "a message".to_owned(),
            Some(Ok((name, rest))) => format!("{name}|{rest}"),
            Some(Err(why)) => why.to_string(),
        };
        for text in [
            "hello",
            " /bye",
            "/etc/passwd what is this",
            "/",
            "// a comment",
            "/Users",
            "/bye\nnow",
            "/usr.",
        ] {
            assert_eq!(is(text), "a message", "{text}");
        }
        assert_eq!(is("/set  temp 1 "), "/set|temp 1");
        assert_eq!(is("/quit"), "/bye|");
        assert_eq!(is("/save! a b"), "/save!|a b");
        assert!(is("/hel").contains("there is no /hel; /help shows what there is. Is /help meant?"));
    }
}
