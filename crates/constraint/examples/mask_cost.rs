//! Measures what tools cost: compiling their schemas, and the masks of a call.
//!
//! `cargo run --release -p tallow-constraint --example mask_cost -- TOKENIZER_FOLDER [TOOLS]`

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tallow_constraint::{Compiler, Grammar, Limits, Tag, Tagged, Vocabulary};
use tallow_text::tokenizer::{Special, Tokenizer};

/// The schema of a tool: strings, numbers, enumerations, lists and nested objects.
fn tool(i: usize) -> Value {
    json!({
        "type": "object",
        "properties": {
            format!("path_{i}"): {"type": "string", "description": "where"},
            "mode": {"enum": ["read", "write", format!("mode-{i}")]},
            "limit": {"type": "integer", "minimum": 1, "maximum": 1000 + i},
            "ratio": {"type": "number"},
            "tags": {"type": "array", "items": {"type": "string"}, "maxItems": 20},
            "range": {
                "type": "object",
                "properties": {"start": {"type": "integer"}, "end": {"type": "integer"}},
                "required": ["start"],
                "additionalProperties": false
            },
            "note": {"anyOf": [{"type": "string", "maxLength": 200}, {"type": "null"}]}
        },
        "required": [format!("path_{i}"), "mode"],
        "additionalProperties": false
    })
}

fn call(i: usize) -> String {
    format!(
        "I will look.\n<tool_call>\n{{\"name\": \"tool_{i}\", \"arguments\": {{\"path_{i}\": \"src/main.rs, then the \
         rest of it\", \"mode\": \"mode-{i}\", \"limit\": 17, \"ratio\": 0.25, \"tags\": [\"first\", \"second one\"], \
         \"range\": {{\"start\": 3, \"end\": 40}}, \"note\": \"nothing else to say here\"}}}}\n</tool_call>"
    )
}

fn tools(count: usize, salt: usize) -> Grammar {
    let tags = (0..count).map(|i| Tag {
        begin: format!("<tool_call>\n{{\"name\": \"tool_{i}\", \"arguments\": "),
        grammar: Grammar::JsonSchema { schema: tool(i + salt), best_effort: false },
        end: "}\n</tool_call>".into(),
    });
    Grammar::Tagged(Tagged {
        triggers: vec!["<tool_call>".into()],
        tags: tags.collect(),
        at_least_one: false,
        stop_after_first: false,
    })
}

fn report(what: &str, mut times: Vec<Duration>) {
    times.sort_unstable();
    let at = |per_mille: usize| times[(times.len() - 1) * per_mille / 1000];
    let mean = times.iter().sum::<Duration>() / times.len() as u32;
    println!(
        "{what}: {} times, mean {mean:.1?}, p50 {:.1?}, p95 {:.1?}, p99 {:.1?}, most {:.1?}",
        times.len(),
        at(500),
        at(950),
        at(990),
        at(1000)
    );
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let folder = arguments.next().ok_or("name the folder of a tokenizer")?;
    let count: usize = arguments.next().map_or(Ok(50), |n| n.parse())?;
    let tokenizer = Tokenizer::from_folder(Path::new(&folder))?;
    let started = Instant::now();
    let vocabulary = Arc::new(Vocabulary::new(&tokenizer)?);
    println!("vocabulary: {} tokens in {:.2?}", vocabulary.size(), started.elapsed());
    let compiler = Compiler::new(vocabulary, Limits::default());
    let (mut compile, mut single) = (Vec::new(), Vec::new());
    for round in 0..100 {
        let started = Instant::now();
        compiler.compile(&tools(count, round * count))?;
        compile.push(started.elapsed());
        let started = Instant::now();
        compiler.compile(&Grammar::JsonSchema { schema: tool(1_000_000 + round), best_effort: false })?;
        single.push(started.elapsed());
    }
    report(&format!("compile {count} tools"), compile);
    report("compile 1 tool", single);
    let compiled = compiler.compile(&tools(count, 0))?;
    println!("compiled: {} KB by estimate", compiled.bytes() / 1024);
    let (mut starts, mut masks, mut accepts) = (Vec::new(), Vec::new(), Vec::new());
    for i in 0..count {
        let started = Instant::now();
        let mut matcher = compiled.matcher();
        starts.push(started.elapsed());
        for token in tokenizer.encode(&call(i), Special::BARE)? {
            let started = Instant::now();
            matcher.mask()?;
            masks.push(started.elapsed());
            let started = Instant::now();
            matcher.accept(token)?;
            accepts.push(started.elapsed());
        }
    }
    report("start a matcher", starts);
    report("mask", masks);
    report("accept", accepts);
    Ok(())
}
