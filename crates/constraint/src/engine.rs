//! [`Engine`]: `llguidance`'s parser of one text, whose panics are errors.

use std::panic::AssertUnwindSafe;

use llguidance::TokenParser;
use llguidance::api::StopReason;
use llguidance::panic_utils::catch_unwind;
use toktrie::SimpleVob;

/// A parser. Clones share the lexer's tables, which grow with use; [copies](Engine::copy) have tables of their own.
#[derive(Clone)]
pub(crate) struct Engine {
    parser: TokenParser,
    failed: bool,
}

impl Engine {
    pub(crate) fn new(mut parser: TokenParser) -> Engine {
        parser.start_without_prompt();
        Engine { parser, failed: false }
    }

    /// A parser at the same point, with tables of its own.
    pub(crate) fn copy(&self) -> Engine {
        Engine { parser: self.parser.deep_clone(), failed: self.failed }
    }

    /// Bytes of the lexer's tables.
    pub(crate) fn table_bytes(&mut self) -> usize {
        self.run(|parser| Ok(parser.parser.lexer_stats().num_bytes)).unwrap_or(usize::MAX)
    }

    /// After an error the parser is not used any more.
    pub(crate) fn has_failed(&self) -> bool {
        self.failed
    }

    fn run<T>(&mut self, step: impl FnOnce(&mut TokenParser) -> Result<T, String>) -> Result<T, String> {
        let parser = &mut self.parser;
        let done = catch_unwind(AssertUnwindSafe(|| Ok(step(parser))));
        let done = done.unwrap_or_else(|panic| Err(panic.to_string()));
        self.failed |= done.is_err();
        done
    }

    /// True if nothing but an end may come.
    pub(crate) fn is_stopped(&self) -> bool {
        !self.failed && self.parser.stop_reason() != StopReason::NotStopped
    }

    pub(crate) fn mask(&mut self) -> Result<SimpleVob, String> {
        if self.is_stopped() {
            return Ok(self.parser.token_env.tok_trie().eos_token_set());
        }
        self.run(|parser| parser.compute_mask().map_err(|e| e.to_string()))
    }

    /// True if the text of a token may come next.
    pub(crate) fn allows(&mut self, token: u32) -> Result<bool, String> {
        self.run(|parser| parser.validate_tokens_raw(&[token]).map(|n| n == 1).map_err(|e| e.to_string()))
    }

    pub(crate) fn accept(&mut self, token: u32) -> Result<(), String> {
        self.run(|parser| {
            let taken = parser.consume_token(token).and_then(|_| parser.check_stop());
            taken.map(|_| ()).map_err(|e| e.to_string())
        })
    }

    pub(crate) fn may_end(&mut self) -> Result<bool, String> {
        if self.is_stopped() { Ok(true) } else { self.run(|parser| Ok(parser.is_accepting())) }
    }

    pub(crate) fn forced(&mut self) -> Result<Vec<u32>, String> {
        self.run(|parser| Ok(parser.compute_ff_tokens()))
    }
}
