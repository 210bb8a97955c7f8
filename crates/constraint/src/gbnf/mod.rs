//! [`write()`]: llama.cpp's grammar notation as rules.
//!
//! Each character is a terminal of its own, so that the text is cut in the one way that the notation means: a longer
//! terminal would win over a shorter one where both fit.

mod parse;

use hashbrown::HashMap;
use llguidance::derivre::RegexAst;

use crate::refused::Refused;
use crate::rules::{Rules, Symbol};
use parse::{Item, Rule};

/// Rules for a grammar, from its rule `root`.
pub(crate) fn write(rules: &mut Rules, text: &str) -> Result<Symbol, Refused> {
    let parsed = parse::parse(text)?;
    let mut symbols = HashMap::new();
    for rule in &parsed {
        let symbol = rules.declare();
        if symbols.insert(rule.name.as_str(), symbol).is_some() {
            return Err(Refused::at(rule.at(), format!("the rule `{}` is defined twice", rule.name)));
        }
    }
    let Some(root) = symbols.get("root").copied() else {
        return Err(Refused::whole(
            "there is no rule `root`, which is where a grammar starts: add `root ::= …`",
        ));
    };
    let mut writer = Writer { rules, symbols };
    for rule in &parsed {
        writer.define(rule)?;
    }
    let Writer { rules, symbols } = writer;
    let finite = rules.finite();
    for rule in &parsed {
        let endless =
            matches!(symbols.get(rule.name.as_str()), Some(Symbol::Rule(id)) if !finite[*id as usize]);
        if endless {
            let why = format!(
                "no text ever satisfies the rule `{}`: it needs itself, or a rule that does",
                rule.name
            );
            return Err(Refused::at(rule.at(), why));
        }
    }
    Ok(root)
}

struct Writer<'a, 'g> {
    rules: &'a mut Rules,
    symbols: HashMap<&'g str, Symbol>,
}

impl Writer<'_, '_> {
    fn define(&mut self, rule: &Rule) -> Result<(), Refused> {
        let alternatives = self.alternatives(&rule.alternatives)?;
        let symbol = self.symbols.get(rule.name.as_str()).copied();
        symbol.map_or(Ok(()), |symbol| self.rules.define(symbol, alternatives))
    }

    fn alternatives(&mut self, alternatives: &[Vec<Item>]) -> Result<Vec<Vec<Symbol>>, Refused> {
        let mut all = Vec::with_capacity(alternatives.len());
        for alternative in alternatives {
            let mut symbols = Vec::with_capacity(alternative.len());
            for item in alternative {
                self.item(item, &mut symbols)?;
            }
            all.push(symbols);
        }
        Ok(all)
    }

    fn item(&mut self, item: &Item, out: &mut Vec<Symbol>) -> Result<(), Refused> {
        match item {
            Item::Text(text) => {
                let mut buffer = [0; 4];
                for c in text.chars() {
                    out.push(self.rules.literal(c.encode_utf8(&mut buffer))?);
                }
            }
            Item::Class(class) => out.push(self.rules.terminal(&RegexAst::Regex(class.clone()))?),
            Item::Name(name, at) => match self.symbols.get(name.as_str()) {
                Some(symbol) => out.push(*symbol),
                None => {
                    let why = format!("the rule `{name}` is not defined: add `{name} ::= …`");
                    return Err(Refused::at(at.to_string(), why));
                }
            },
            Item::Group(alternatives) => {
                let alternatives = self.alternatives(alternatives)?;
                out.push(self.rules.any_of(alternatives)?);
            }
            Item::Repeat(item, min, most) => {
                let mut symbols = Vec::new();
                self.item(item, &mut symbols)?;
                let one = match symbols.as_slice() {
                    [one] => *one,
                    _ => self.rules.any_of([symbols])?,
                };
                out.push(self.rules.repeat(one, *min, *most)?);
            }
        }
        Ok(())
    }
}
