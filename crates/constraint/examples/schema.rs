//! Is a schema enforced, and which instances are accepted?
//!
//! `cargo run --release -p tallow-constraint --example schema -- TOKENIZER_FOLDER SCHEMA.json [INSTANCE.json...]`

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use serde_json::json;
use tallow_constraint::{Compiler, Grammar, Limits, Vocabulary, check_instance};
use tallow_text::tokenizer::Tokenizer;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [folder, file, instances @ ..] = arguments.as_slice() else {
        return Err("name the folder of a tokenizer, a schema, and instances".into());
    };
    let vocabulary = Vocabulary::new(&Tokenizer::from_folder(Path::new(folder))?)?;
    let compiler = Compiler::new(Arc::new(vocabulary), Limits::default());
    let schema = serde_json::from_str(&std::fs::read_to_string(file)?)?;
    let started = Instant::now();
    let compiled = compiler.compile(&Grammar::JsonSchema { schema, best_effort: false });
    let milliseconds = started.elapsed().as_secs_f64() * 1000.0;
    let compiled = match compiled {
        Ok(compiled) => compiled,
        Err(refused) => {
            println!("{}", json!({"refused": refused.why, "pointer": refused.pointer, "ms": milliseconds}));
            return Ok(());
        }
    };
    println!("{}", json!({"enforced": true, "ms": milliseconds}));
    for name in instances {
        let text = std::fs::read_to_string(name)?;
        let started = Instant::now();
        let place = check_instance(&compiled, text.trim()).err().map(|place| place.to_string());
        let milliseconds = started.elapsed().as_secs_f64() * 1000.0;
        println!(
            "{}",
            json!({"instance": name, "accepted": place.is_none(), "place": place, "ms": milliseconds})
        );
    }
    Ok(())
}
