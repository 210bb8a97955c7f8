//! A client's schema or grammar: the first byte says which. What compiles allows a token at each step, or ends.
#![no_main]

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tallow_constraint::{Compiler, Grammar, Limits, Vocabulary};

/// Tokens of a text that are followed.
const STEPS: usize = 16;

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

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let [kind, text @ ..] = data else { return };
    let Ok(text) = std::str::from_utf8(text) else { return };
    let grammar = match kind % 5 {
        0 | 1 => match serde_json::from_str(text) {
            Ok(schema) => Grammar::JsonSchema { schema, best_effort: *kind == 1 },
            Err(_) => return,
        },
        2 => Grammar::Regex(text.to_owned()),
        3 => Grammar::Gbnf(text.to_owned()),
        _ => Grammar::Lark(text.to_owned()),
    };
    let Ok(compiled) = compiler().compile(&grammar) else { return };
    let mut matcher = compiled.matcher();
    for step in 0..STEPS {
        // A grammar that costs too much fails its request.
        let Ok(mask) = matcher.mask() else { return };
        let allowed = mask.iter().enumerate().flat_map(|(at, word)| {
            (0..32).filter(move |bit| word >> bit & 1 == 1).map(move |bit| 32 * at as u32 + bit)
        });
        let allowed: Vec<u32> = allowed.collect();
        assert!(!allowed.is_empty(), "nothing may come next, and the text has not ended: {grammar:?}");
        let token = allowed[(step * 31 + usize::from(*kind)) % allowed.len()];
        if matcher.accept(token).is_err() || matcher.is_over() {
            return;
        }
    }
});
