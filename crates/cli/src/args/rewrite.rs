//! [`rewrite`]: translates what users of other programs type into our own command line.
//!
//! clap does not support three things: `--model`, which every command takes in place of its first argument; long
//! options behind a single dash (`-hf`, `-ngl`), which clap reads as several short ones; and options of other programs,
//! which are accepted or refused with a message of their own.

use std::collections::VecDeque;
use std::ffi::{OsStr, OsString};

use clap::error::ErrorKind;
use clap::{Arg, ArgAction, Command, Error};

use tallow_models::recipe::Recipe;

use super::foreign::{self, Foreign, Means, Takes};
use super::help::NAMED;
use crate::model_name::is_model;

/// A command line for clap, and notes for the user.
#[derive(Debug)]
pub(super) struct Rewritten {
    pub argv: Vec<OsString>,
    pub notes: Vec<String>,
}

/// Rewrites a command line. `cli` must be built.
pub(super) fn rewrite(cli: &Command, argv: Vec<OsString>) -> Result<Rewritten, Error> {
    let mut rest = VecDeque::from(argv.clone());
    let mut before: Vec<OsString> = rest.pop_front().into_iter().collect();
    let as_it_is = || Ok(Rewritten { argv: argv.clone(), notes: Vec::new() });
    while let Some(token) = rest.pop_front() {
        let text = token.to_str().unwrap_or_default();
        if text.starts_with('-') {
            if known(cli, cli, text).is_none()
                && MODEL_FIRST.contains(&text.split('=').next().unwrap_or(text))
            {
                let why = format!(
                    "a command comes before {text}: `tallow run -m MODEL` chats or answers a prompt, `tallow serve -m MODEL` serves"
                );
                return Err(cli.clone().error(ErrorKind::MissingSubcommand, why));
            }
            let takes = known(cli, cli, text).is_some_and(takes_value) && !text.contains('=');
            before.push(token);
            before.extend(takes.then(|| rest.pop_front()).flatten());
            continue;
        }
        let Some(command) = cli.find_subcommand(text) else { return as_it_is() };
        // A command of a command takes no model, and its options are others' already.
        if rest.front().and_then(|next| command.find_subcommand(next)).is_some() {
            return as_it_is();
        }
        before.push(token);
        return Line::new(cli, command).read(rest)?.written(before);
    }
    as_it_is()
}

/// First options of llama.cpp's programs, which have no subcommands.
const MODEL_FIRST: [&str; 6] = ["-m", "--model", "-hf", "--hf-repo", "-p", "--prompt"];

/// Options of llama.cpp's programs that are positionals of our commands.
const WORDS: [(&str, [&str; 2]); 4] = [
    ("perplexity", ["-f", "--file"]),
    ("imatrix", ["-f", "--file"]),
    ("transcribe", ["-f", "--file"]),
    ("tokenize", ["-p", "--prompt"]),
];

/// The arguments of a subcommand.
struct Line<'a> {
    cli: &'a Command,
    command: &'a Command,
    models: Vec<OsString>,
    /// Options and positionals in their order.
    others: Vec<OsString>,
    /// The positionals among them.
    words: Vec<OsString>,
    /// `--` and what follows it.
    tail: Vec<OsString>,
    notes: Vec<String>,
}

impl<'a> Line<'a> {
    fn new(cli: &'a Command, command: &'a Command) -> Line<'a> {
        let (models, others, words, tail) = Default::default();
        Line { cli, command, models, others, words, tail, notes: Vec::new() }
    }

    fn read(mut self, mut rest: VecDeque<OsString>) -> Result<Line<'a>, Error> {
        while let Some(token) = rest.pop_front() {
            match token.to_str() {
                Some("--") => {
                    self.tail.push(token);
                    self.tail.extend(rest.drain(..));
                }
                Some(text) if text.len() > 1 && text.starts_with('-') => {
                    let text = text.to_owned();
                    self.option(&text, &mut rest)?;
                }
                _ => {
                    self.words.push(token.clone());
                    self.others.push(token);
                }
            }
        }
        Ok(self)
    }

    fn option(&mut self, text: &str, rest: &mut VecDeque<OsString>) -> Result<(), Error> {
        let (name, value) = text.split_once('=').map_or((text, None), |(n, v)| (n, Some(v)));
        if let Some(arg) = known(self.cli, self.command, name) {
            let long = name.trim_start_matches('-');
            // `-hf` becomes `--hf`; a single letter stays.
            let typed = if long.len() > 1 { format!("--{long}") } else { name.to_owned() };
            return self.ours(arg, typed, value.map(OsString::from), rest);
        }
        let is_word = |(command, names): &(&str, [&str; 2])| {
            *command == self.command.get_name() && names.contains(&name)
        };
        if WORDS.iter().any(is_word)
            && let Some(word) = value.map(OsString::from).or_else(|| rest.pop_front())
        {
            self.words.push(word.clone());
            self.others.push(word);
            return Ok(());
        }
        if let Some(foreign) = foreign::find(name) {
            return self.foreign(foreign, name, value.is_some(), rest);
        }
        // Bundled short options, the last of which may have a value: `-vn5`.
        if !text.starts_with("--") {
            for (at, letter) in text.char_indices().skip(1) {
                let Some(arg) = known(self.cli, self.command, &format!("-{letter}")) else { break };
                if takes_value(arg) {
                    let value = &text[at + letter.len_utf8()..];
                    if at > 1 {
                        self.others.push(text[..at].into());
                    }
                    let value = Some(value.strip_prefix('=').unwrap_or(value)).filter(|v| !v.is_empty());
                    return self.ours(arg, format!("-{letter}"), value.map(OsString::from), rest);
                }
            }
        }
        self.others.push(text.into());
        Ok(())
    }

    fn ours(
        &mut self,
        arg: &Arg,
        typed: String,
        value: Option<OsString>,
        rest: &mut VecDeque<OsString>,
    ) -> Result<(), Error> {
        let value = match value {
            None if takes_value(arg) && !rest.front().is_some_and(|next| is_option(next)) => rest.pop_front(),
            given => given,
        };
        match value {
            Some(value) if arg.get_id() == NAMED => self.models.push(value),
            // After `=` a value may begin with a dash.
            Some(value) => {
                let mut both = OsString::from(typed);
                both.push("=");
                both.push(value);
                self.others.push(both);
            }
            None => self.others.push(typed.into()),
        }
        Ok(())
    }

    fn foreign(
        &mut self,
        foreign: &Foreign,
        name: &str,
        has_value: bool,
        rest: &mut VecDeque<OsString>,
    ) -> Result<(), Error> {
        let is_switch = |next: &OsString| ["on", "off", "auto", "0", "1"].iter().any(|v| next == v);
        let follows = match foreign.takes {
            _ if has_value => false,
            Takes::Nothing => false,
            Takes::Value => true,
            Takes::Switch => rest.front().is_some_and(is_switch),
        };
        if follows && !rest.front().is_some_and(|next| is_option(next)) {
            rest.pop_front();
        }
        match foreign.means {
            Means::Needless(why) => self.notes.push(format!("{name} is not needed: {why}")),
            Means::Instead(what) => {
                let why = format!("there is no {name} for `tallow {}`: {what}", self.command.get_name());
                return Err(self.error(ErrorKind::UnknownArgument, why));
            }
        }
        Ok(())
    }

    /// `llama-quantize IN OUT TYPE`: the type becomes `--quant`.
    fn quantize(&mut self) {
        let Some(recipe) = self.words.last().filter(|_| self.words.len() + self.models.len() == 3) else {
            return;
        };
        let is_recipe = recipe.to_str().is_some_and(|word| word.parse::<Recipe>().is_ok());
        if self.command.get_name() == "convert" && is_recipe {
            let mut option = OsString::from("--quant=");
            option.push(recipe);
            self.others.retain(|word| word != recipe);
            self.others.push(option);
            self.words.pop();
        }
    }

    fn error(&self, kind: ErrorKind, why: String) -> Error {
        self.command.clone().error(kind, why)
    }

    /// The rewritten command line, with the model as the first positional.
    fn written(mut self, before: Vec<OsString>) -> Result<Rewritten, Error> {
        self.quantize();
        if let Some(first) = self.models.first() {
            let places: Vec<&Arg> = self.command.get_positionals().collect();
            let many = places.iter().any(|arg| arg.get_num_args().is_some_and(|n| n.max_values() > 1));
            let model_is_many =
                places.first().is_some_and(|arg| matches!(arg.get_action(), ArgAction::Append));
            let second = match self.models.get(1).filter(|_| !model_is_many) {
                Some(second) => Some(second),
                None if model_is_many => None,
                // One positional too many, or one that can hardly be anything but a model.
                None if !many && self.words.len() + self.tail.len().saturating_sub(1) >= places.len() => {
                    self.words.first()
                }
                None => self.words.first().filter(|word| many && is_model(word)),
            };
            if let Some(second) = second {
                let [first, second] = [first, second].map(|name| name.to_string_lossy());
                let why = format!(
                    "the model is named twice, as {first} and as {second}; name it once, in the first place or by --model"
                );
                return Err(self.error(ErrorKind::ArgumentConflict, why));
            }
        }
        let Line { models, others, tail, notes, .. } = self;
        let argv = [before, models, others, tail].concat();
        Ok(Rewritten { argv, notes })
    }
}

/// An option of a command, or a global one, by its name as typed: `--long`, `-s` and `-long`.
fn known<'a>(cli: &'a Command, command: &'a Command, name: &str) -> Option<&'a Arg> {
    let name = name.split('=').next()?;
    let bare = name.strip_prefix("--").or_else(|| name.strip_prefix('-'))?;
    let mut letters = bare.chars();
    let letter = letters.next().filter(|_| letters.next().is_none() && !name.starts_with("--"));
    let is = |arg: &&Arg| match letter {
        Some(letter) => arg.get_short_and_visible_aliases().unwrap_or_default().contains(&letter),
        None => arg.get_long() == Some(bare) || arg.get_all_aliases().unwrap_or_default().contains(&bare),
    };
    let all = cli.get_arguments().filter(|arg| arg.is_global_set());
    command.get_arguments().chain(all).find(is)
}

/// True if it looks like an option, not like a value. Negative numbers are values.
fn is_option(token: &OsStr) -> bool {
    let text = token.to_str().unwrap_or_default();
    text.strip_prefix('-').is_some_and(|rest| rest.starts_with(|c: char| c != '.' && !c.is_ascii_digit()))
}

fn takes_value(arg: &Arg) -> bool {
    // An optional value comes after `=`, so it is never the next argument.
    arg.get_action().takes_values() && arg.get_num_args().is_none_or(|n| n.min_values() > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rewritten(line: &str) -> Result<(String, Vec<String>), String> {
        let mut cli = super::super::command();
        cli.build();
        let argv = std::iter::once("tallow").chain(line.split_whitespace()).map(OsString::from).collect();
        let done = rewrite(&cli, argv).map_err(|e| e.to_string())?;
        let argv: Vec<_> =
            done.argv[1..].iter().map(|a: &OsString| AsRef::<OsStr>::as_ref(a).to_string_lossy()).collect();
        Ok((argv.join(" "), done.notes))
    }

    #[track_caller]
    fn becomes(line: &str, want: &str) {
        assert_eq!(rewritten(line).map(|(argv, _)| argv), Ok(want.to_owned()), "{line}");
    }

    #[test]
    fn a_model_comes_first_however_it_is_named() {
        becomes("run -m demo Hello there", "run demo Hello there");
        becomes("run Hello --model demo", "run demo Hello");
        becomes("run --model=demo -n5 Hello", "run demo -n=5 Hello");
        becomes("run -vm demo", "run demo -v");
        becomes("run -hf org/name:Q8_0 -p Hi", "run org/name:Q8_0 -p=Hi");
        becomes("--config f.toml run -m x", "--config f.toml run x");
        becomes("embed a --json -m x b", "embed x a --json b");
        becomes("perplexity -m x -f text -c 256", "perplexity x text -c=256");
        becomes("imatrix -f text -m x -o y", "imatrix x text -o=y");
        becomes("tokenize -m x -p Hi", "tokenize x Hi");
        becomes("convert in out q4_k_m", "convert in out --quant=q4_k_m");
        becomes("convert in out --force Q8_0", "convert in out --force --quant=Q8_0");
        becomes("convert in q8_0", "convert in q8_0");
        becomes("bench -m a,b -m c -p 16", "bench a,b c -p=16");
        becomes("run -m x -- -m y", "run x -- -m y");
        // Nothing to do.
        becomes("run demo Hello", "run demo Hello");
        becomes("nothing -m x", "nothing -m x");
    }

    #[test]
    fn two_models_are_one_too_many() {
        for line in ["show a -m b", "run -m a -m b", "run demo -m b", "transcribe demo b -m c", "rm x -m y"] {
            let why = rewritten(line).unwrap_err();
            assert!(why.contains("the model is named twice"), "{line}: {why}");
        }
        becomes("transcribe a.wav -m c", "transcribe c a.wav");
        for line in ["-m demo", "-hf org/name -p Hi", "--model=demo"] {
            let why = rewritten(line).unwrap_err();
            assert!(why.contains("`tallow run -m MODEL` chats"), "{line}: {why}");
        }
        becomes("transcribe a.wav - -m c", "transcribe c a.wav -");
    }

    #[test]
    fn options_of_other_programs_are_read_with_one_dash() {
        becomes("run demo -ngl 99 Hi", "run demo Hi");
        becomes("run demo -fa on Hi", "run demo Hi");
        becomes("run demo -fa Hi", "run demo Hi");
        becomes("run demo -ctk q8_0", "run demo --ctk=q8_0");
        becomes("serve demo -np 4", "serve demo --np=4");
        becomes("run demo --seed -1 -n -1", "run demo --seed=-1 -n=-1");
        let (_, notes) = rewritten("run demo -ngl 99").unwrap();
        assert_eq!(
            notes,
            [
                "-ngl is not needed: a model runs on one device, whole; --device says which (cpu, vulkan, metal, cuda)"
            ]
        );
        let why = rewritten("run demo -np 4").unwrap_err();
        assert!(why.contains("`tallow serve --slots N`"), "{why}");
    }

    #[test]
    fn no_option_of_others_is_one_of_ours_everywhere() {
        let mut cli = super::super::command();
        cli.build();
        for name in foreign::FOREIGN.iter().flat_map(|f| f.names) {
            assert!(name.starts_with('-'), "{name}");
            let twice = foreign::FOREIGN.iter().filter(|f| f.names.contains(name)).count();
            assert_eq!(twice, 1, "{name}");
            let all = cli.get_subcommands().filter(|c| !["help", "completions"].contains(&c.get_name()));
            assert!(!all.into_iter().all(|c| known(&cli, c, name).is_some()), "{name} is never reached");
        }
    }
}
