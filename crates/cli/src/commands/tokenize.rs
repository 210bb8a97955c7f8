//! `tallow tokenize`: text to tokens and back.

use tallow_text::tokenizer::{Around, Shown, Special, Written};

use super::{print, text_or_stdin};
use crate::args::Tokenize;
use crate::settings::{Sources, reason};
use crate::{Failed, hub, load, terminal};

pub(crate) fn tokenize(args: &Tokenize, sources: &Sources) -> Result<(), Failed> {
    let text = text_or_stdin(&args.text)?;
    let tokenizer = load::tokenizer(&args.model, hub::offline(sources, args.offline)?)?;
    if args.decode {
        let ids = numbers(&text)?;
        let vocab = tokenizer.vocab_size();
        if let Some(id) = ids.iter().find(|id| **id as usize >= vocab) {
            return Err(Failed::new(format!(
                "there is no token {id}: the model has {vocab} tokens, from 0 on"
            )));
        }
        return print(&format!("{}\n", tokenizer.decode(&ids, Shown::All)));
    }
    let special = Special {
        around: if args.special { Around::Added } else { Around::Omitted },
        written: if args.parse_special { Written::Parsed } else { Written::Plain },
    };
    // A newline that the shell's `echo` adds is part of the text: it gets tokens, too.
    let ids = tokenizer.encode(&text, special)?;
    if args.ids {
        let list: Vec<String> = ids.iter().map(u32::to_string).collect();
        return print(&format!("[{}]\n", list.join(", ")));
    }
    let line = |id: &u32| format!("{id:>8}  {:?}\n", tokenizer.token_text(*id).unwrap_or_default());
    print(&terminal::sanitized(&ids.iter().map(line).collect::<String>()))
}

/// Token ids, however they are separated.
fn numbers(text: &str) -> Result<Vec<u32>, Failed> {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric()).filter(|w| !w.is_empty());
    words
        .map(|w| w.parse().map_err(|e| Failed::new(format!("{w:?} is no token id: {}", reason(&e)))))
        .collect()
}
