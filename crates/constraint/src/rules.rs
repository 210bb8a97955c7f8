//! [`Rules`]: a context-free grammar over regular expressions, as every kind of constraint is written before
//! `llguidance` gets it.
//!
//! Rules that no finite text satisfies are removed, so that generation never enters what it cannot finish; if the start
//! is one of them the whole grammar is refused.

use hashbrown::HashMap;
use llguidance::api::{GrammarInit, SkipSpec};
use llguidance::derivre::{ExprRef, Regex, RegexAst, RegexBuilder};
use llguidance::earley::lexerspec::LexerSpec;
use llguidance::earley::{Grammar, SymIdx, SymbolProps};

use crate::limits::Budget;
use crate::refused::Refused;

/// Fuel for the question whether two expressions have a text in common.
const EMPTINESS_FUEL: u64 = 30_000;

/// A rule or a terminal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Symbol {
    Rule(u32),
    Terminal(u32),
    /// A special token.
    Token(u32),
}

/// A grammar that is being written.
pub(crate) struct Rules {
    /// The alternatives of each rule.
    rules: Vec<Vec<Vec<Symbol>>>,
    terminals: Vec<ExprRef>,
    by_expression: HashMap<ExprRef, u32>,
    by_source: HashMap<String, ExprRef>,
    lexer: LexerSpec,
    budget: Budget,
}

impl Rules {
    pub(crate) fn new(budget: Budget) -> Result<Rules, Refused> {
        let mut lexer = LexerSpec::new().map_err(|e| Refused::whole(e.to_string()))?;
        lexer
            .setup_lexeme_class_with_skip(SkipSpec::unbounded(RegexAst::NoMatch))
            .map_err(|e| Refused::whole(e.to_string()))?;
        Ok(Rules {
            rules: Vec::new(),
            terminals: Vec::new(),
            by_expression: HashMap::new(),
            by_source: HashMap::new(),
            lexer,
            budget,
        })
    }

    pub(crate) fn budget(&mut self) -> &mut Budget {
        &mut self.budget
    }

    /// A terminal that matches an expression, which must not match the empty text.
    pub(crate) fn terminal(&mut self, ast: &RegexAst) -> Result<Symbol, Refused> {
        self.budget.spend(1)?;
        let expression = self.expression(ast)?;
        let next = self.terminals.len() as u32;
        let id = *self.by_expression.entry(expression).or_insert_with(|| {
            self.terminals.push(expression);
            next
        });
        Ok(Symbol::Terminal(id))
    }

    /// An expression, which may become part of terminals.
    pub(crate) fn expression(&mut self, ast: &RegexAst) -> Result<ExprRef, Refused> {
        let made = self.lexer.regex_builder.mk(ast);
        let expression =
            made.map_err(|e| Refused::whole(format!("the regular expression is refused: {e}")))?;
        self.budget.size(self.lexer.cost())?;
        Ok(expression)
    }

    /// An expression by its source, which is read once.
    pub(crate) fn known(&mut self, source: &str) -> Result<RegexAst, Refused> {
        if let Some(known) = self.by_source.get(source) {
            return Ok(RegexAst::ExprRef(*known));
        }
        let expression = self.expression(&RegexAst::Regex(source.into()))?;
        self.by_source.insert(source.into(), expression);
        Ok(RegexAst::ExprRef(expression))
    }

    /// A terminal that matches one text.
    pub(crate) fn literal(&mut self, text: &str) -> Result<Symbol, Refused> {
        self.terminal(&RegexAst::Literal(text.into()))
    }

    /// A new rule, whose alternatives come [later](Rules::define).
    pub(crate) fn declare(&mut self) -> Symbol {
        self.rules.push(Vec::new());
        Symbol::Rule(self.rules.len() as u32 - 1)
    }

    /// Gives a declared rule further alternatives.
    pub(crate) fn define(
        &mut self,
        rule: Symbol,
        alternatives: impl IntoIterator<Item = Vec<Symbol>>,
    ) -> Result<(), Refused> {
        if let Symbol::Rule(id) = rule {
            for alternative in alternatives {
                // What matches no text is left out.
                if alternative.iter().any(|symbol| self.is_no_match(*symbol)) {
                    continue;
                }
                self.budget.spend(1 + alternative.len())?;
                self.rules[id as usize].push(alternative);
            }
        }
        Ok(())
    }

    fn is_no_match(&self, symbol: Symbol) -> bool {
        matches!(symbol, Symbol::Terminal(id) if self.terminals[id as usize] == ExprRef::NO_MATCH)
    }

    /// A rule with these alternatives.
    pub(crate) fn any_of(
        &mut self,
        alternatives: impl IntoIterator<Item = Vec<Symbol>>,
    ) -> Result<Symbol, Refused> {
        let rule = self.declare();
        self.define(rule, alternatives)?;
        Ok(rule)
    }

    /// A symbol, at least `min` and at most `most` times in a row.
    pub(crate) fn repeat(&mut self, symbol: Symbol, min: u64, most: Option<u64>) -> Result<Symbol, Refused> {
        let mut counts = Counts { symbol, exactly: HashMap::new(), at_most: HashMap::new() };
        let head = counts.exactly(self, min)?;
        let tail = match most {
            Some(most) => counts.at_most(self, most.saturating_sub(min))?,
            None => {
                let star = self.declare();
                self.define(star, [vec![], vec![star, symbol]])?;
                star
            }
        };
        self.any_of([vec![head, tail]])
    }

    /// True if no text matches the expression. An error if that takes too long to find out.
    pub(crate) fn is_empty(&mut self, ast: &RegexAst) -> Result<bool, Refused> {
        self.budget.spend(20)?;
        is_empty(ast)
    }

    /// The grammar as `llguidance` takes it, with texts that start with `start`.
    pub(crate) fn finish(mut self, start: Symbol) -> Result<GrammarInit, Refused> {
        let finite = self.finite();
        let is_finite = |symbol: &Symbol| match symbol {
            Symbol::Rule(id) => finite[*id as usize],
            Symbol::Terminal(_) | Symbol::Token(_) => true,
        };
        if !is_finite(&start) {
            return Err(Refused::whole(
                "nothing satisfies it: every text contradicts some part of it, so loosen one",
            ));
        }
        let reached = self.reached(start, &finite);
        let engine = |e: &dyn std::fmt::Display| Refused::whole(format!("the grammar is refused: {e}"));
        let mut grammar = Grammar::new(None);
        let props = |is_start| SymbolProps { is_start, ..SymbolProps::default() };
        let root = grammar.fresh_symbol_ext("start", props(true));
        let mut symbols: HashMap<Symbol, SymIdx> = HashMap::new();
        for symbol in &reached {
            let named = grammar.fresh_symbol_ext("", props(false));
            let lexeme = match symbol {
                Symbol::Rule(_) => None,
                Symbol::Terminal(id) => {
                    let expression = RegexAst::ExprRef(self.terminals[*id as usize]);
                    Some(self.lexer.add_greedy_lexeme(String::new(), expression, false, None, usize::MAX))
                }
                Symbol::Token(token) => {
                    Some(self.lexer.add_special_token(String::new(), vec![*token..=*token]))
                }
            };
            if let Some(lexeme) = lexeme {
                let lexeme = lexeme.map_err(|e| engine(&e))?;
                grammar.make_terminal(named, lexeme, &self.lexer).map_err(|e| engine(&e))?;
            }
            symbols.insert(*symbol, named);
        }
        for symbol in &reached {
            let Symbol::Rule(id) = symbol else { continue };
            for alternative in &self.rules[*id as usize] {
                if alternative.iter().all(is_finite) {
                    let right = alternative.iter().map(|s| symbols[s]).collect();
                    grammar.add_rule(symbols[symbol], right).map_err(|e| engine(&e))?;
                }
            }
        }
        grammar.add_rule(root, vec![symbols[&start]]).map_err(|e| engine(&e))?;
        Ok(GrammarInit::Internal(grammar, self.lexer))
    }

    /// True for each rule that some finite text matches.
    pub(crate) fn finite(&self) -> Vec<bool> {
        // For each alternative the number of its rules that are not known to be finite yet.
        let mut users: Vec<Vec<(usize, usize)>> = vec![Vec::new(); self.rules.len()];
        let mut missing: Vec<Vec<usize>> = Vec::with_capacity(self.rules.len());
        let mut finite = vec![false; self.rules.len()];
        let mut ready = Vec::new();
        for (rule, alternatives) in self.rules.iter().enumerate() {
            let mut counts = Vec::with_capacity(alternatives.len());
            for (i, alternative) in alternatives.iter().enumerate() {
                let mut count = 0;
                for symbol in alternative {
                    if let Symbol::Rule(id) = symbol {
                        users[*id as usize].push((rule, i));
                        count += 1;
                    }
                }
                if count == 0 && !finite[rule] {
                    finite[rule] = true;
                    ready.push(rule);
                }
                counts.push(count);
            }
            missing.push(counts);
        }
        while let Some(done) = ready.pop() {
            for (rule, i) in std::mem::take(&mut users[done]) {
                missing[rule][i] -= 1;
                if missing[rule][i] == 0 && !finite[rule] {
                    finite[rule] = true;
                    ready.push(rule);
                }
            }
        }
        finite
    }

    fn reached(&self, start: Symbol, finite: &[bool]) -> Vec<Symbol> {
        let mut seen = hashbrown::HashSet::new();
        let (mut order, mut todo) = (Vec::new(), vec![start]);
        while let Some(symbol) = todo.pop() {
            if !seen.insert(symbol) {
                continue;
            }
            order.push(symbol);
            let Symbol::Rule(id) = symbol else { continue };
            for alternative in self.rules[id as usize].iter().rev() {
                let usable = |s: &Symbol| !matches!(s, Symbol::Rule(r) if !finite[*r as usize]);
                if alternative.iter().all(usable) {
                    todo.extend(alternative.iter().rev());
                }
            }
        }
        order
    }
}

/// True if no text matches the expression.
pub(crate) fn is_empty(ast: &RegexAst) -> Result<bool, Refused> {
    let mut builder = RegexBuilder::new();
    let expression =
        builder.mk(ast).map_err(|e| Refused::whole(format!("the regular expression is refused: {e}")))?;
    let regex = builder.to_regex_limited(expression, EMPTINESS_FUEL);
    let why =
        "it takes too long to find out whether any text satisfies all its patterns: use simpler patterns";
    Ok(regex.map_err(|_| Refused::whole(why))?.always_empty())
}

/// True if the expression matches the text.
pub(crate) fn matches(ast: &RegexAst, text: &str) -> Result<bool, Refused> {
    Ok(matcher(ast)?.is_match(text))
}

/// An expression that texts are compared with.
pub(crate) fn matcher(ast: &RegexAst) -> Result<Regex, Refused> {
    let refused =
        |e: &dyn std::fmt::Display| Refused::whole(format!("the regular expression is refused: {e}"));
    let mut builder = RegexBuilder::new();
    let expression = builder.mk(ast).map_err(|e| refused(&e))?;
    builder.to_regex_limited(expression, EMPTINESS_FUEL).map_err(|e| refused(&e))
}

/// Repetitions of a symbol, in a number of rules that grows with the logarithm of the count.
struct Counts {
    symbol: Symbol,
    exactly: HashMap<u64, Symbol>,
    at_most: HashMap<u64, Symbol>,
}

impl Counts {
    fn exactly(&mut self, rules: &mut Rules, n: u64) -> Result<Symbol, Refused> {
        if let Some(known) = self.exactly.get(&n) {
            return Ok(*known);
        }
        let made = match n {
            0 => rules.any_of([vec![]])?,
            1 => self.symbol,
            _ if n <= 4 => rules.any_of([vec![self.symbol; n as usize]])?,
            _ => {
                let half = self.exactly(rules, n / 2)?;
                let rest = if n % 2 == 1 { vec![half, half, self.symbol] } else { vec![half, half] };
                rules.any_of([rest])?
            }
        };
        self.exactly.insert(n, made);
        Ok(made)
    }

    /// Either fewer than half, or half and at most the rest: each count is derived in one way.
    fn at_most(&mut self, rules: &mut Rules, n: u64) -> Result<Symbol, Refused> {
        if let Some(known) = self.at_most.get(&n) {
            return Ok(*known);
        }
        let made = match n {
            0 => rules.any_of([vec![]])?,
            1 => rules.any_of([vec![], vec![self.symbol]])?,
            _ if n <= 8 => {
                let fewer = self.at_most(rules, n - 1)?;
                rules.any_of([vec![], vec![self.symbol, fewer]])?
            }
            _ => {
                let half = n / 2;
                let fewer = self.at_most(rules, half - 1)?;
                let (exactly, rest) = (self.exactly(rules, half)?, self.at_most(rules, n - half)?);
                rules.any_of([vec![fewer], vec![exactly, rest]])?
            }
        };
        self.at_most.insert(n, made);
        Ok(made)
    }
}
