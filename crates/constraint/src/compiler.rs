//! [`Compiler`]: a client's grammar to one that masks are computed from.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError};

use llguidance::Logger;
use llguidance::api::{GrammarInit, ParserLimits, TopLevelGrammar};
use serde_json::json;
use toktrie::InferenceCapabilities;

use crate::cache::Cache;
use crate::compiled::Compiled;
use crate::engine::Engine;
use crate::expression::expression;
use crate::grammar::Grammar;
use crate::limits::{Budget, Limits};
use crate::matcher::Start;
use crate::refused::Refused;
use crate::rules::{Rules, Symbol};
use crate::schema::Blanks;
use crate::vocabulary::Vocabulary;
use crate::{gbnf, lark, list, schema, tagged};

/// Stack of a thread that compiles; only what is used of it takes memory.
const STACK: usize = 64 << 20;

/// Compiles grammars for one model, and keeps the last ones. It may be used by many threads at once.
#[derive(Debug)]
pub struct Compiler {
    vocabulary: Arc<Vocabulary>,
    limits: Limits,
    cache: Mutex<Cache>,
}

impl Compiler {
    /// A compiler for a model's tokens.
    pub fn new(vocabulary: Arc<Vocabulary>, limits: Limits) -> Compiler {
        let cache = Mutex::new(Cache::new(limits.cached, limits.cached_bytes));
        Compiler { vocabulary, limits, cache }
    }

    /// A grammar, compiled now or before. Not for the thread of the engine: it takes up to some tenths of a second.
    pub fn compile(&self, grammar: &Grammar) -> Result<Arc<Compiled>, Refused> {
        let key = self.key(grammar)?;
        let lock = || self.cache.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = lock().get(&key) {
            return Ok(known);
        }
        // Without the lock: two threads may compile the same grammar, and none waits for another.
        let compiled = Arc::new(self.compile_apart(grammar, key.len())?);
        lock().insert(key, &compiled);
        Ok(compiled)
    }

    /// The number of grammars in the cache, and their bytes.
    pub fn cached(&self) -> (usize, usize) {
        let cache = self.cache.lock().unwrap_or_else(PoisonError::into_inner);
        (cache.len(), cache.bytes())
    }

    /// The grammar as text, in which the order of properties counts.
    fn key(&self, grammar: &Grammar) -> Result<String, Refused> {
        let mut key = Key { text: String::new(), most: self.limits.input_bytes };
        let whole = std::fmt::Write::write_fmt(&mut key, format_args!("{grammar:?}"));
        let why = || format!("it is larger than {} bytes: use a smaller one", self.limits.input_bytes);
        whole.map(|()| key.text).map_err(|_| Refused::whole(why()))
    }

    /// On a thread with a deep stack: the engine goes down into grammars by recursion.
    fn compile_apart(&self, grammar: &Grammar, input: usize) -> Result<Compiled, Refused> {
        let failed = || Refused::whole("the server could not compile it: try again");
        std::thread::scope(|scope| {
            let thread = std::thread::Builder::new().name("grammar".into()).stack_size(STACK);
            let compiling = thread.spawn_scoped(scope, || self.compile_new(grammar, input));
            compiling.map_err(|_| failed())?.join().unwrap_or_else(|_| Err(failed()))
        })
    }

    fn compile_new(&self, grammar: &Grammar, input: usize) -> Result<Compiled, Refused> {
        let panicked = |_| Err(Refused::whole("the engine of grammars failed on it: use a simpler one"));
        let (init, unenforced) =
            catch_unwind(AssertUnwindSafe(|| self.rules(grammar))).unwrap_or_else(panicked)?;
        let limits = self.limits();
        let size = match &init {
            GrammarInit::Internal(grammar, lexer) => {
                grammar.num_symbols() * 300 + lexer.cost() as usize * 100
            }
            GrammarInit::Serialized(_) => input * 200,
        };
        // Panics of the engine come back as errors.
        let parser = self.vocabulary.factory.create_parser_from_init_ext(
            init,
            Logger::new(0, 0),
            InferenceCapabilities::default(),
            limits,
        );
        let parser = parser.map_err(|e| explain(grammar, &e.to_string()))?;
        let engine = Engine::new(parser);
        let lead = self.vocabulary.lead().filter(|_| !is_free(grammar));
        let triggers = match grammar {
            Grammar::Tagged(tagged) => tagged.triggers.as_slice(),
            _ => &[],
        };
        let start = Start::new(engine, (&self.vocabulary, lead), triggers, self.limits.table_bytes).map_err(
            |message| {
                let message = message.lines().next().unwrap_or_default().to_owned();
                Refused::whole(format!("no token may come first under it ({message}): use a simpler one"))
            },
        )?;
        let bytes = size + input + self.limits.table_bytes;
        Ok(Compiled { start: Arc::new(start), vocabulary: Arc::clone(&self.vocabulary), unenforced, bytes })
    }

    fn limits(&self) -> ParserLimits {
        ParserLimits {
            initial_lexer_fuel: self.limits.regex_fuel,
            step_lexer_fuel: self.limits.mask_fuel,
            step_max_items: self.limits.mask_items,
            max_lexer_states: self.limits.lexer_states,
            max_grammar_size: self.limits.symbols,
            max_items_in_row: self.limits.row_items,
            verbose_errors: false,
            ..ParserLimits::default()
        }
    }

    /// The grammar in the form that `llguidance` takes, and what was left out.
    fn rules(&self, grammar: &Grammar) -> Result<(GrammarInit, Vec<Refused>), Refused> {
        if let Grammar::Lark(text) = grammar {
            lark::check(text)?;
            let mut init = TopLevelGrammar::from_lark(text.clone());
            if self.vocabulary.lead().is_some() {
                let start = "start: \" \" @lark_grammar\n".to_owned();
                init.grammars.insert(0, llguidance::api::GrammarWithLexer::from_lark(start));
                init.grammars[0].name = None;
            }
            return Ok((GrammarInit::Serialized(init), Vec::new()));
        }
        let mut rules = Rules::new(Budget::new(&self.limits))?;
        let mut unenforced = Vec::new();
        let mut start = write((&mut rules, &self.vocabulary), grammar, &mut unenforced)?;
        if self.vocabulary.lead().is_some() && !is_free(grammar) {
            let space = rules.literal(" ")?;
            start = rules.any_of([vec![space, start]])?;
        }
        Ok((rules.finish(start)?, unenforced))
    }
}

/// True if the text begins with free text.
fn is_free(grammar: &Grammar) -> bool {
    matches!(grammar, Grammar::Tagged(tagged) if !tagged.triggers.is_empty())
}

/// Rules for a grammar.
fn write(
    (rules, vocabulary): (&mut Rules, &Vocabulary),
    grammar: &Grammar,
    unenforced: &mut Vec<Refused>,
) -> Result<Symbol, Refused> {
    match grammar {
        Grammar::JsonObject => {
            schema::write(rules, &json!({"type": "object"}), (false, Blanks::Any)).map(|(start, _)| start)
        }
        Grammar::JsonSchema { schema, best_effort } | Grammar::Arguments { schema, best_effort } => {
            let is_call = matches!(grammar, Grammar::Arguments { .. });
            let blanks = if is_call { Blanks::Dumped } else { Blanks::Any };
            let (start, left_out) = schema::write(rules, schema, (*best_effort, blanks))?;
            unenforced.extend(left_out);
            Ok(start)
        }
        Grammar::Regex(_) | Grammar::Choice(_) | Grammar::Text => {
            let ast = expression(grammar)?;
            rules.terminal(&ast).map_err(|refused| explain(grammar, &refused.why))
        }
        Grammar::Gbnf(text) => gbnf::write(rules, text),
        Grammar::Lark(_) => Err(Refused::whole(
            "a Lark grammar stands alone: inside of tags use GBNF, a regular expression or a schema",
        )),
        Grammar::Tagged(tagged) => tagged::write((rules, vocabulary), tagged, &mut |rules, grammar| {
            write((rules, vocabulary), grammar, unenforced)
        }),
        Grammar::Members(members) => {
            let (start, left_out) = schema::write_members((rules, vocabulary), members)?;
            unenforced.extend(left_out);
            Ok(start)
        }
        Grammar::List(list) => list::write((rules, vocabulary), list, &mut |rules, grammar| {
            write((rules, vocabulary), grammar, unenforced)
        }),
    }
}

/// The engine's message in words for a client.
fn explain(grammar: &Grammar, message: &str) -> Refused {
    let lines: Vec<&str> = message.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    let first = lines.first().copied().unwrap_or_default();
    let why = match grammar {
        Grammar::Regex(_) if message.contains("look") => {
            "look-around, word boundaries, and `^` or `$` in the middle cannot be enforced; the whole text is matched"
                .into()
        }
        Grammar::Regex(_) => {
            let last = lines.last().copied().unwrap_or_default();
            format!("the regular expression is refused: {}", last.trim_start_matches("error: "))
        }
        _ if first.contains("too big") || first.contains("fuel") => {
            format!("it is too large ({first}): use fewer alternatives or smaller repetitions")
        }
        _ => first.to_owned(),
    };
    if let Grammar::Lark(_) = grammar
        && let Some((at, why)) = lark::place(message)
    {
        return Refused::at(at, why);
    }
    Refused::whole(why)
}

/// Text of limited length.
struct Key {
    text: String,
    most: usize,
}

impl std::fmt::Write for Key {
    fn write_str(&mut self, text: &str) -> std::fmt::Result {
        if self.text.len() + text.len() > self.most {
            return Err(std::fmt::Error);
        }
        self.text.push_str(text);
        Ok(())
    }
}
