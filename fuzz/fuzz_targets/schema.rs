//! A client's schema or grammar, or a tool to be called: the first byte says which. What compiles allows a token at each step, or
//! ends. A call that has ended is read as one.
#![no_main]

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tallow_constraint::{Beside, Callable, Compiler, Grammar, Limits, Vocabulary};
use tallow_text::output::{Event, OutputFormat, ToolFormat};

/// Tokens of a text that are chosen, and those that must come.
const STEPS: usize = 16;
const FORCED: usize = 512;

fn compiler() -> &'static Compiler {
    static COMPILER: OnceLock<Compiler> = OnceLock::new();
    COMPILER.get_or_init(|| {
        let vocabulary = Vocabulary::new(&tallow_fuzz::bytes_tokenizer()).expect("a vocabulary");
        // Far below what a server allows: an input has seconds here, with everything instrumented.
        let limits = Limits {
            input_bytes: 4 << 10,
            time: Duration::from_millis(500),
            symbols: 2_000,
            regex_fuel: 20_000,
            mask_fuel: 20_000,
            mask_items: 5_000,
            lexer_states: 2_000,
            ..Limits::default()
        };
        Compiler::new(Arc::new(vocabulary), limits)
    })
}

/// A tool whose arguments are valid under a schema; two bytes say in which format and what is beside calls of it.
fn calls(header: [u8; 2], parameters: serde_json::Value) -> Option<(Grammar, Option<OutputFormat>)> {
    let format = OutputFormat::new(ToolFormat::ALL[usize::from(header[0]) % ToolFormat::ALL.len()]);
    let tool = Callable { name: "tool".to_owned(), parameters, best_effort: header[1] & 1 == 1 };
    let beside = match header[1] / 2 % 3 {
        0 => Beside::Nothing,
        1 => Beside::Text,
        _ => Beside::Instead(Grammar::JsonObject),
    };
    let must = (beside == Beside::Nothing).then_some(format);
    let calls = Grammar::calls(format.writing()?, &[tool.clone(), tool], header[1] & 8 == 0, beside).ok()?;
    Some((calls.grammar, must))
}

/// Goes on from a mask.
fn choose(mask: &[u32], at: usize) -> u32 {
    let allowed = mask.iter().enumerate().flat_map(|(at, word)| {
        (0..32).filter(move |bit| word >> bit & 1 == 1).map(move |bit| 32 * at as u32 + bit)
    });
    let allowed: Vec<u32> = allowed.collect();
    assert!(!allowed.is_empty(), "nothing may come next, and the text has not ended");
    allowed[at % allowed.len()]
}

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let [kind, text @ ..] = data else { return };
    let (header, text) = match (kind % 6, text) {
        (5, [format, beside, text @ ..]) => ([*format, *beside], text),
        (5, _) => return,
        _ => ([0, 0], text),
    };
    let Ok(text) = std::str::from_utf8(text) else { return };
    let schema = || serde_json::from_str(text).ok();
    let made = match kind % 6 {
        0 | 1 => schema().map(|schema| (Grammar::JsonSchema { schema, best_effort: kind % 6 == 1 }, None)),
        2 => Some((Grammar::Regex(text.to_owned()), None)),
        3 => Some((Grammar::Gbnf(text.to_owned()), None)),
        4 => Some((Grammar::Lark(text.to_owned()), None)),
        _ => schema().and_then(|schema| calls(header, schema)),
    };
    let Some((grammar, called)) = made else { return };
    let Ok(compiled) = compiler().compile(&grammar) else { return };
    let (mut matcher, mut text) = (compiled.matcher(), Vec::new());
    let (mut steps, mut forced) = (0, 0);
    while !matcher.is_over() {
        // A grammar that costs too much fails its request.
        let Ok(must) = matcher.forced() else { return };
        let Ok(mask) = matcher.mask() else { return };
        let token = match must.first() {
            Some(token) => {
                let is_in = mask.get(*token as usize / 32).is_some_and(|word| word >> (token % 32) & 1 == 1);
                assert!(is_in, "{token} must come, and may not: {grammar:?}");
                forced += 1;
                *token
            }
            None => {
                steps += 1;
                choose(mask, steps * 31 + usize::from(*kind))
            }
        };
        if steps > STEPS || forced > FORCED || matcher.accept(token).is_err() {
            return;
        }
        text.extend(u8::try_from(token));
    }
    let Some(format) = called else { return };
    let text = String::from_utf8(text).expect("the grammar's text");
    let mut parser = format.parser("", None);
    let mut events = parser.push(&text);
    events.extend(parser.finish());
    let is_called = |event: &Event| matches!(event, Event::Call(call) if call.name == "tool");
    assert!(events.iter().any(is_called), "{} {text:?}: {events:?}", format.tools().name());
});
