//! [`parse`]: from the arguments to a command.

use std::ffi::{OsStr, OsString};
use std::io::Write;

use clap::FromArgMatches;

use super::rewrite::{Rewritten, rewrite};
use super::{Cli, command};
use crate::model_name::is_model;

/// Parses the command line. Errors end the program with a message.
pub(crate) fn parse() -> Cli {
    let mut cli = command();
    cli.build();
    match read(&mut cli, std::env::args_os().collect()) {
        Ok((parsed, notes)) => {
            for note in notes {
                // Errors are ignored: nobody may be reading.
                let _ = writeln!(std::io::stderr(), "note: {note}");
            }
            parsed
        }
        Err(why) => why.exit(),
    }
}

fn read(cli: &mut clap::Command, argv: Vec<OsString>) -> Result<(Cli, Vec<String>), clap::Error> {
    let Rewritten { argv, notes } = rewrite(cli, argv)?;
    let matches = cli.try_get_matches_from_mut(&argv).map_err(plain)?;
    let parsed = Cli::from_arg_matches(&matches)?;
    Ok((parsed, notes))
}

/// A clap error without misleading suggestions.
fn plain(mut why: clap::Error) -> clap::Error {
    use clap::error::{ContextKind, ContextValue, ErrorKind};
    match why.kind() {
        ErrorKind::UnknownArgument => {
            why.remove(ContextKind::Suggested);
            let text = |kind| match why.get(kind) {
                Some(ContextValue::String(text)) => text.clone(),
                _ => String::new(),
            };
            let (given, like) = (text(ContextKind::InvalidArg), text(ContextKind::SuggestedArg));
            if !is_similar(&given, &like) {
                why.remove(ContextKind::SuggestedArg);
            }
        }
        ErrorKind::InvalidSubcommand => {
            let Some(ContextValue::String(given)) = why.get(ContextKind::InvalidSubcommand).cloned() else {
                return why;
            };
            let tip = match given.as_str() {
                "create" | "cp" => {
                    "a table [models.\"NAME\"] in config.toml gives a model a name, a system prompt and settings of your own".into()
                }
                "push" => "models are uploaded by the hub's own program, hf".into(),
                _ if is_model(OsStr::new(&given)) => format!("to chat with a model: tallow run {given}"),
                _ => return why,
            };
            why.remove(ContextKind::SuggestedSubcommand);
            why.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![tip.into()]));
        }
        _ => {}
    }
    why
}

/// True if one is a likely typo of the other: an edit distance of up to a third of the shorter one.
fn is_similar(a: &str, b: &str) -> bool {
    let (a, b) = (a.trim_start_matches('-').as_bytes(), b.trim_start_matches('-').as_bytes());
    if a.len().max(b.len()) > 64 {
        return false;
    }
    // Levenshtein distance, row by row: from each prefix of `a` to the prefixes of `b`.
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.iter().enumerate() {
        let mut corner = std::mem::replace(&mut row[0], i + 1);
        for (j, y) in b.iter().enumerate() {
            let change = corner + usize::from(x != y);
            corner = row[j + 1];
            row[j + 1] = change.min(row[j] + 1).min(corner + 1);
        }
    }
    row.last().is_some_and(|changes| *changes * 3 <= a.len().min(b.len()))
}
