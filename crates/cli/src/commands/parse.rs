//! `tallow parse`: takes a model's text apart, into reasoning, content and tool calls.

use std::sync::Arc;

use serde_json::{Map, Value, json};
use tallow_text::output::{Event, OutputFormat, ToolFormat, Tools};

use super::{print, text_file, text_or_stdin};
use crate::Failed;
use crate::args::Parse;

pub(crate) fn parse(args: &Parse) -> Result<(), Failed> {
    let Some(name) = &args.tool_format else { return print(&formats()) };
    let format = tool_format(name)?;
    let tools = args.tools.as_deref().map(|path| {
        let wrong = |why: String| Failed::new(format!("{}: {why}", path.display()));
        let tools: Value =
            serde_json::from_str(&text_file(path)?).map_err(|e| wrong(format!("it is no JSON: {e}")))?;
        Tools::from_json(&tools).map(Arc::new).map_err(|e| wrong(e.to_string()))
    });
    let mut parser = OutputFormat::new(format).parser(&args.prefix, tools.transpose()?);
    let text = text_or_stdin(&[])?;
    let Some(each) = args.stream else {
        let mut all = Map::from_iter(["reasoning", "content"].map(|name| (name.to_owned(), json!(""))));
        all.insert("calls".into(), json!([]));
        add(&mut all, parser.push(&text));
        add(&mut all, parser.finish());
        return print(&format!("{:#}\n", Value::Object(all)));
    };
    let mut lines = String::new();
    let mut tell = |events: Vec<Event>| {
        let mut some = Map::new();
        add(&mut some, events);
        if !some.is_empty() {
            lines += &format!("{}\n", Value::Object(some));
        }
    };
    let mut rest = &*text;
    while !rest.is_empty() {
        let end = rest.char_indices().nth(each.get()).map_or(rest.len(), |(at, _)| at);
        let (piece, others) = rest.split_at(end);
        tell(parser.push(piece));
        rest = others;
    }
    tell(parser.finish());
    print(&lines)
}

/// The format of a name.
pub(super) fn tool_format(name: &str) -> Result<&'static ToolFormat, Failed> {
    ToolFormat::named(name).ok_or_else(|| {
        let names: Vec<&str> = ToolFormat::ALL.iter().map(|format| format.name()).collect();
        Failed::new(format!("--tool-format {name}: there is no such format; there are {}", names.join(", ")))
    })
}

/// The formats, and the models that write them.
fn formats() -> String {
    let line = |format: &&ToolFormat| format!("{:<16} {}\n", format.name(), format.models());
    ToolFormat::ALL.iter().map(line).collect()
}

/// Adds events to a message.
fn add(message: &mut Map<String, Value>, events: Vec<Event>) {
    for event in events {
        let (name, text) = match event {
            Event::Reasoning(text) => ("reasoning", text),
            Event::Content(text) => ("content", text),
            Event::Call(call) => {
                let call = json!({"id": call.id, "name": call.name, "arguments": call.arguments});
                if let Value::Array(calls) = message.entry("calls").or_insert(json!([])) {
                    calls.push(call);
                }
                continue;
            }
        };
        if let Value::String(so_far) = message.entry(name).or_insert(json!("")) {
            *so_far += &text;
        }
    }
}
