//! `tallow schema`: what of a schema or a grammar is enforced, and whether texts would be generated under it.

use std::path::Path;
use std::sync::Arc;

use serde_json::{Value, json};
use tallow_constraint::{Compiled, Compiler, Grammar, Limits, Refused, Vocabulary, check_instance};

use super::{print, text_file, text_or_stdin};
use crate::args::{GrammarKind, Schema};
use crate::settings::Sources;
use crate::{Failed, hub, load};

pub(crate) fn schema(args: &Schema, sources: &Sources) -> Result<(), Failed> {
    let grammar = grammar(args)?;
    let texts: Vec<String> = args.instance.iter().map(|file| text(file)).collect::<Result<_, _>>()?;
    let tokenizer = load::tokenizer(&args.model, hub::offline(sources, args.offline)?)?;
    let vocabulary =
        Vocabulary::new(&tokenizer).map_err(|why| Failed::new(format!("{}: {why}", args.model)))?;
    let compiled = Compiler::new(Arc::new(vocabulary), Limits::default()).compile(&grammar);
    let checked = match &compiled {
        Ok(compiled) => {
            let one = |(file, text): (&std::path::PathBuf, &String)| instance(compiled, file, text);
            json!({
                "enforced": true,
                "unenforced": compiled.unenforced().iter().map(refused).collect::<Vec<_>>(),
                "instances": args.instance.iter().zip(&texts).map(one).collect::<Vec<_>>(),
            })
        }
        Err(why) => json!({"enforced": false, "refused": refused(why)}),
    };
    print(&format!("{checked:#}\n"))
}

/// The grammar of the file.
fn grammar(args: &Schema) -> Result<Grammar, Failed> {
    let (file, best_effort) = (&args.file, args.best_effort);
    let text = text_file(file)?;
    let kind = args.kind.unwrap_or_else(|| kind(file, &text));
    Ok(match kind {
        GrammarKind::Json => {
            let schema = serde_json::from_str(&text);
            let schema =
                schema.map_err(|e| Failed::new(format!("{}: it is no JSON: {e}", file.display())))?;
            Grammar::JsonSchema { schema, best_effort }
        }
        GrammarKind::Gbnf => Grammar::Gbnf(text),
        GrammarKind::Lark => Grammar::Lark(text),
        GrammarKind::Regex => Grammar::Regex(one_line_less(text)),
    })
}

/// The kind of a file, by its name or else by its text.
fn kind(file: &Path, text: &str) -> GrammarKind {
    match file.extension().and_then(|extension| extension.to_str()) {
        Some("json") => GrammarKind::Json,
        Some("gbnf") => GrammarKind::Gbnf,
        Some("lark") => GrammarKind::Lark,
        Some("regex") => GrammarKind::Regex,
        _ if text.contains("::=") => GrammarKind::Gbnf,
        _ if text.lines().any(|line| line.trim_start().starts_with("start:")) => GrammarKind::Lark,
        _ => GrammarKind::Json,
    }
}

/// The text of an instance.
fn text(file: &Path) -> Result<String, Failed> {
    let text = if file == Path::new("-") { text_or_stdin(&[])? } else { text_file(file)? };
    Ok(one_line_less(text))
}

/// A text without the end of line at its end.
fn one_line_less(mut text: String) -> String {
    if text.ends_with('\n') {
        text.pop();
        if text.ends_with('\r') {
            text.pop();
        }
    }
    text
}

fn instance(compiled: &Compiled, file: &Path, text: &str) -> Value {
    let file = file.display().to_string();
    match check_instance(compiled, text) {
        Ok(()) => json!({"file": file, "accepted": true}),
        Err(place) => json!({
            "file": file, "accepted": false, "offset": place.offset, "token": place.token, "expected": place.expected,
        }),
    }
}

fn refused(refused: &Refused) -> Value {
    json!({"pointer": refused.pointer, "why": refused.why})
}
