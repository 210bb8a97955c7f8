//! [`write()`]: rules for the texts of a schema's values.

use llguidance::derivre::RegexAst;

use super::document::Part;
use super::draft;
use super::properties;
use super::schemas::Schemas;
use super::shape::{All, Arrays, Shape, join};
use super::strings::quoted;
use super::writer::{Blanks, Writer};
use crate::refused::Refused;
use crate::rules::{Rules, Symbol};

/// The root of a document.
pub(super) const ROOT: [Part; 1] = [Part(0)];

/// Rules for the values of the root of a document.
pub(super) fn write(rules: &mut Rules, schemas: &mut Schemas<'_>, blanks: Blanks) -> Result<Symbol, Refused> {
    let mut writer = Writer::new(rules, schemas, blanks);
    let start = writer.value(ROOT.into());
    writer.define_all()?;
    Ok(start)
}

impl Writer<'_, '_> {
    /// Defines the rules of all values that are needed.
    pub(super) fn define_all(&mut self) -> Result<(), Refused> {
        while let Some((all, rule)) = self.waiting.pop() {
            let pointer = self.schemas.pointer(&all);
            let written = self.define(&all, rule);
            written.map_err(|refused| match refused.pointer.as_str() {
                "" => refused.inside(&pointer),
                _ => refused,
            })?;
        }
        Ok(())
    }

    fn define(&mut self, all: &All, rule: Symbol) -> Result<(), Refused> {
        let shapes = self.schemas.expand(all)?;
        let alternatives = self.alternatives(&shapes, all)?;
        self.rules.define(rule, alternatives)
    }

    /// The ways of writing the values of these shapes, which are those of some schemas.
    pub(super) fn alternatives(&mut self, shapes: &[Shape], all: &All) -> Result<Vec<Vec<Symbol>>, Refused> {
        let mut scalars = Vec::new();
        let mut alternatives = Vec::new();
        for shape in shapes {
            scalars.extend(self.scalars(shape)?);
            if let Some(arrays) = &shape.arrays {
                alternatives.push(vec![self.array(arrays, all)?]);
            }
            if let Some(objects) = &shape.objects {
                alternatives.push(vec![properties::write(self, objects)?]);
            }
        }
        if !scalars.is_empty() {
            alternatives.push(vec![self.rules.terminal(&RegexAst::Or(scalars))?]);
        }
        Ok(alternatives)
    }

    /// The expressions of a shape's values that are neither arrays nor objects.
    pub(super) fn scalars(&mut self, shape: &Shape) -> Result<Vec<RegexAst>, Refused> {
        let mut all = Vec::new();
        let literal = |text: &str| RegexAst::Literal(text.into());
        if shape.null {
            all.push(literal("null"));
        }
        for (value, name) in shape.booleans.iter().zip(["false", "true"]) {
            if *value {
                all.push(literal(name));
            }
        }
        if let Some(numbers) = &shape.numbers {
            all.push(match numbers.ast().map_err(Refused::whole)? {
                RegexAst::Regex(source) => self.rules.known(&source)?,
                ast => ast,
            });
        }
        if let Some(strings) = &shape.strings
            && !strings.is_empty()?
        {
            let text = match strings.text() {
                RegexAst::Regex(source) => self.rules.known(&source)?,
                ast => ast,
            };
            all.push(quoted(self.without_ends(text)));
        }
        Ok(all)
    }

    fn array(&mut self, arrays: &Arrays, all: &All) -> Result<Symbol, Refused> {
        let (open, close) = (self.mark(false, "[", true)?, self.mark(true, "]", false)?);
        let items = match arrays.contains.as_slice() {
            [] => self.items(arrays)?,
            [_] => self.containing(arrays)?,
            _ => {
                let at = format!("{}/contains", self.schemas.pointer(all));
                self.schemas.leave_out(Refused::at(at, draft::why("contains")))?;
                self.items(arrays)?
            }
        };
        self.rules.any_of([vec![open, items, close]])
    }

    fn items(&mut self, arrays: &Arrays) -> Result<Symbol, Refused> {
        let comma = self.mark(true, ",", true)?;
        let prefix = arrays.prefix();
        let (min, most) = (arrays.min, arrays.most);
        // Written from the end: what may follow so many items.
        let listed = most.map_or(prefix, |most| prefix.min(usize::try_from(most).unwrap_or(prefix)));
        let count = listed as u64;
        let mut rest = if listed < prefix || most == Some(count) {
            self.rules.any_of(if min <= count { vec![vec![]] } else { vec![] })?
        } else {
            let item = self.value(arrays.item(prefix));
            let (min, most) = (min.saturating_sub(count), most.map(|most| most - count));
            match listed {
                0 => {
                    let next = self.rules.any_of([vec![comma, item]])?;
                    let more = self.rules.repeat(next, min.saturating_sub(1), most.map(|most| most - 1))?;
                    let mut options = vec![vec![item, more]];
                    if min == 0 {
                        options.push(vec![]);
                    }
                    self.rules.any_of(options)?
                }
                _ => {
                    let next = self.rules.any_of([vec![comma, item]])?;
                    self.rules.repeat(next, min, most)?
                }
            }
        };
        for at in (0..listed).rev() {
            let item = self.value(arrays.item(at));
            let mut options = vec![if at == 0 { vec![item, rest] } else { vec![comma, item, rest] }];
            if min <= at as u64 {
                options.push(vec![]);
            }
            rest = self.rules.any_of(options)?;
        }
        Ok(rest)
    }

    /// Items of which one at least is valid under a further schema.
    fn containing(&mut self, arrays: &Arrays) -> Result<Symbol, Refused> {
        if arrays.prefix() > 0 || arrays.min > 1 || arrays.most.is_some() {
            let at = self.schemas.pointer(&arrays.contains);
            self.schemas.leave_out(Refused::at(at, draft::why("contains")))?;
            return self.items(arrays);
        }
        let comma = self.mark(true, ",", true)?;
        let all = arrays.item(0);
        let mut found = all.clone();
        join(&mut found, &arrays.contains);
        let (item, found) = (self.value(all), self.value(found));
        let before = self.rules.any_of([vec![item, comma]])?;
        let before = self.rules.repeat(before, 0, None)?;
        let after = self.rules.any_of([vec![comma, item]])?;
        let after = self.rules.repeat(after, 0, None)?;
        self.rules.any_of([vec![before, found, after]])
    }
}
