//! [`Limits`]: how much a client's grammar may cost.

use std::time::{Duration, Instant};

use crate::refused::Refused;

/// Limits of what one grammar may cost, and of what the cache of all of them may hold.
#[derive(Debug, Clone)]
pub struct Limits {
    /// Maximum bytes of a schema, grammar or regular expression.
    pub input_bytes: usize,
    /// Time for the part of compilation that grows with what a client sends. `llguidance`'s own part has no clock; it
    /// is bounded by [`regex_fuel`](Limits::regex_fuel) and [`symbols`](Limits::symbols).
    pub time: Duration,
    /// Maximum symbols of the compiled grammar.
    pub symbols: usize,
    /// Fuel for the expressions of a grammar: roughly their nodes.
    pub regex_fuel: u64,
    /// Fuel of one mask, in derivatives of expressions.
    pub mask_fuel: u64,
    /// Maximum parser items of one mask.
    pub mask_items: usize,
    /// Maximum parser items at one place of the text: some four for each optional property that may come there.
    pub row_items: usize,
    /// Maximum states of a lexer: 1 to 2 KB each.
    pub lexer_states: usize,
    /// Bytes that the lexer's tables of one grammar may grow to before they are made anew.
    pub table_bytes: usize,
    /// Maximum grammars in the cache.
    pub cached: usize,
    /// Maximum bytes of the cache, by an estimate from each grammar's size.
    pub cached_bytes: usize,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            input_bytes: 1 << 20,
            time: Duration::from_secs(2),
            symbols: 50_000,
            regex_fuel: 1_000_000,
            mask_fuel: 1_000_000,
            mask_items: 400_000,
            row_items: 20_000,
            lexer_states: 50_000,
            table_bytes: 4 << 20,
            cached: 256,
            cached_bytes: 512 << 20,
        }
    }
}

/// The rest of the limits while one grammar is compiled.
#[derive(Debug, Clone)]
pub(crate) struct Budget {
    until: Instant,
    symbols: usize,
    used: usize,
    fuel: u64,
}

impl Budget {
    pub(crate) fn new(limits: &Limits) -> Budget {
        Budget {
            until: Instant::now() + limits.time,
            // Rules, their alternatives and what these contain are counted, of which some are never reached.
            symbols: limits.symbols * 8,
            used: 0,
            fuel: limits.regex_fuel,
        }
    }

    /// Takes `n` units of work.
    pub(crate) fn spend(&mut self, n: usize) -> Result<(), Refused> {
        self.used += n;
        if self.used > self.symbols {
            return Err(Refused::whole(
                "it is too large once its parts are combined: use fewer properties, alternatives or repetitions",
            ));
        }
        self.in_time()
    }

    pub(crate) fn in_time(&self) -> Result<(), Refused> {
        if Instant::now() > self.until {
            return Err(Refused::whole("it takes too long to compile: use a simpler one"));
        }
        Ok(())
    }

    /// Checks the size of all expressions.
    pub(crate) fn size(&self, cost: u64) -> Result<(), Refused> {
        if cost > self.fuel {
            return Err(Refused::whole(
                "its regular expressions are too large: use shorter patterns or smaller repetitions",
            ));
        }
        Ok(())
    }
}
