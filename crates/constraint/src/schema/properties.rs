//! [`write()`]: rules for the properties of objects, in the order in which the schema names them.

use hashbrown::HashMap;
use llguidance::derivre::RegexAst;
use serde_json::Value;

use super::draft;
use super::shape::{All, Objects, Properties, join};
use super::strings::{Strings, quoted};
use super::writer::Writer;
use crate::refused::Refused;
use crate::rules::Symbol;

/// Maximum patterns of names in one object: each set of them may match a name.
const MOST_PATTERNS: usize = 6;
/// Maximum of a count of properties that is kept in mind.
const MOST_COUNTED: u64 = 64;

/// One property with a name.
pub(super) struct Named {
    /// Its name, its value and what stands around them.
    pub(super) property: Symbol,
    pub(super) required: bool,
}

/// Rules for the texts of objects.
pub(super) fn write(writer: &mut Writer<'_, '_>, objects: &Objects) -> Result<Symbol, Refused> {
    let open = writer.mark(false, "{", true)?;
    let close = writer.mark(true, "}", false)?;
    let comma = writer.mark(true, ",", true)?;
    let allowed = names(writer, objects)?;
    let property = |writer: &mut Writer<'_, '_>, name: &str, all: All| {
        let text = Value::from(name).to_string();
        let key = RegexAst::Concat(vec![RegexAst::Literal(text), writer.colon()?]);
        let (key, value) = (writer.rules.terminal(&key)?, writer.value(all));
        writer.rules.any_of([vec![key, value]])
    };
    let Some(named) = named(writer, (objects, allowed.as_deref()), property)? else {
        return writer.rules.any_of([]);
    };
    let mut others = Vec::new();
    for (text, all) in unnamed(writer, objects, allowed.as_deref())? {
        let text = writer.without_ends(text);
        let key = RegexAst::Concat(vec![quoted(text), writer.colon()?]);
        let (key, value) = (writer.rules.terminal(&key)?, writer.value(all));
        others.push(vec![key, value]);
    }
    let other = if others.is_empty() { None } else { Some(writer.rules.any_of(others)?) };
    let inside = row(writer, objects, (named, other, Some(comma)))?;
    writer.rules.any_of([vec![open, inside, close]])
}

/// The properties that the schema names and that may be there. `None` if one is required that may not be.
pub(super) fn named(
    writer: &mut Writer<'_, '_>,
    (objects, allowed): (&Objects, Option<&[Strings]>),
    mut property: impl FnMut(&mut Writer<'_, '_>, &str, All) -> Result<Symbol, Refused>,
) -> Result<Option<Vec<Named>>, Refused> {
    let mut named = Vec::new();
    for name in objects.names() {
        let mut all = All::new();
        for layer in &objects.layers {
            writer.rules.budget().spend(layer.patterns.len())?;
            join(&mut all, &layer.of(Some(name), &layer.matched(name)?));
        }
        let required = objects.required.iter().any(|r| r == name);
        let mut may_be = !writer.schemas.is_never(&all);
        if let Some(allowed) = allowed {
            may_be &= any_has(allowed, name)?;
        }
        match (may_be, required) {
            (true, _) => named.push(Named { property: property(writer, name, all)?, required }),
            (false, true) => return Ok(None),
            (false, false) => {}
        }
    }
    Ok(Some(named))
}

/// Properties one after another: those with names, then others; and what stands between two.
pub(super) fn row(
    writer: &mut Writer<'_, '_>,
    objects: &Objects,
    (named, other, comma): (Vec<Named>, Option<Symbol>, Option<Symbol>),
) -> Result<Symbol, Refused> {
    let required = named.iter().filter(|n| n.required).count() as u64;
    let mut row = Row { named, other, comma, min: objects.min, most: objects.most, known: HashMap::new() };
    let counted = row.most.is_some_and(|most| row.other.is_some() || most < row.named.len() as u64);
    if !counted {
        row.most = None;
    }
    if row.min <= required {
        row.min = 0;
    }
    let inside = if row.most.is_none_or(|most| most <= MOST_COUNTED) && row.min <= MOST_COUNTED {
        row.from(writer, 0, 0)?
    } else {
        let keyword = if row.min > MOST_COUNTED { "minProperties" } else { "maxProperties" };
        let why = format!("counts of properties above {MOST_COUNTED} cannot be enforced");
        writer.schemas.leave_out(Refused::whole(format!("{keyword}: {why}")))?;
        (row.min, row.most) = (0, None);
        row.from(writer, 0, 0)?
    };
    match inside {
        Some(inside) => Ok(inside),
        None if row.other.is_some() && row.min > 1 => {
            let why = format!("minProperties: {}", draft::why("minProperties"));
            writer.schemas.leave_out(Refused::whole(why))?;
            row.min = 0;
            row.known.clear();
            match row.from(writer, 0, 0)? {
                Some(inside) => Ok(inside),
                None => writer.rules.any_of([]),
            }
        }
        None => writer.rules.any_of([]),
    }
}

fn any_has(allowed: &[Strings], name: &str) -> Result<bool, Refused> {
    for strings in allowed {
        if strings.has(name)? {
            return Ok(true);
        }
    }
    Ok(false)
}

/// The names that `propertyNames` allows, if it says anything.
pub(super) fn names(writer: &mut Writer<'_, '_>, objects: &Objects) -> Result<Option<Vec<Strings>>, Refused> {
    if objects.names.is_empty() {
        return Ok(None);
    }
    let shapes = writer.schemas.expand(&objects.names)?;
    Ok(Some(shapes.into_iter().filter_map(|shape| shape.strings).collect()))
}

/// Expressions of the names that the schema does not have, and the schemas of their properties.
fn unnamed(
    writer: &mut Writer<'_, '_>,
    objects: &Objects,
    allowed: Option<&[Strings]>,
) -> Result<Vec<(RegexAst, All)>, Refused> {
    let mut patterns: Vec<&str> = Vec::new();
    for (pattern, _) in objects.layers.iter().flat_map(|layer| &layer.patterns) {
        if !patterns.contains(&pattern.as_str()) {
            patterns.push(pattern);
        }
    }
    let empty = |layer: &Properties| layer.rest.is_some_and(|rest| writer.schemas.is_never(&[rest]));
    // A schema without patterns that allows no further names.
    if objects.layers.iter().any(|layer| layer.patterns.is_empty() && empty(layer)) {
        return Ok(Vec::new());
    }
    if patterns.len() > MOST_PATTERNS {
        let why =
            format!("patternProperties: at most {MOST_PATTERNS} patterns in one object can be enforced");
        writer.schemas.leave_out(Refused::whole(why))?;
        patterns.clear();
    }
    let taken: Vec<RegexAst> = objects.names().into_iter().map(|n| RegexAst::Literal(n.into())).collect();
    let search = |pattern: &str| RegexAst::SearchRegex(pattern.to_owned());
    let not = |ast: RegexAst| RegexAst::Not(Box::new(ast));
    let mut sets = Vec::new();
    for set in 0..1usize << patterns.len() {
        let chosen = |i: usize| set & (1 << i) != 0;
        let mut all = All::new();
        for layer in &objects.layers {
            let matched: Vec<bool> = layer
                .patterns
                .iter()
                .map(|(p, _)| patterns.iter().position(|q| q == p).is_some_and(chosen))
                .collect();
            join(&mut all, &layer.of(None, &matched));
        }
        if writer.schemas.is_never(&all) {
            continue;
        }
        let mut text = vec![RegexAst::Regex("(?s:.*)".into())];
        for (i, pattern) in patterns.iter().enumerate() {
            text.push(if chosen(i) { search(pattern) } else { not(search(pattern)) });
        }
        if !taken.is_empty() {
            text.push(not(RegexAst::Or(taken.clone())));
        }
        if let Some(allowed) = allowed {
            text.push(RegexAst::Or(allowed.iter().map(Strings::text).collect()));
        }
        let simple = text.len() == 1;
        let text = if simple { writer.rules.known("(?s:.*)")? } else { RegexAst::And(text) };
        // Without patterns there is always another name.
        if (patterns.is_empty() && allowed.is_none()) || !writer.rules.is_empty(&text)? {
            sets.push((text, all));
        }
    }
    Ok(sets)
}

/// The properties of an object one after another.
struct Row {
    named: Vec<Named>,
    other: Option<Symbol>,
    comma: Option<Symbol>,
    min: u64,
    most: Option<u64>,
    known: HashMap<(usize, u64), Option<Symbol>>,
}

impl Row {
    /// The number of properties so far, as far as it matters.
    fn count(&self, count: u64) -> u64 {
        count.min(self.min.max(self.most.map_or(1, |most| most + 1)).max(1))
    }

    /// The row behind the first `at` properties with names, `count` of which were written. `None` if nothing may.
    fn from(
        &mut self,
        writer: &mut Writer<'_, '_>,
        at: usize,
        count: u64,
    ) -> Result<Option<Symbol>, Refused> {
        let mut columns = Vec::new();
        // From the end, so that a long row takes no deep stack.
        for i in (at..=self.named.len()).rev() {
            let most = if i == at { count } else { self.count(count + (i - at) as u64) };
            columns.clear();
            for written in count..=most.max(count) {
                columns.push((i, written));
            }
            for (i, written) in columns.drain(..) {
                let symbol = self.step(writer, i, written)?;
                self.known.insert((i, written), symbol);
            }
        }
        Ok(self.known.get(&(at, count)).copied().flatten())
    }

    fn step(
        &mut self,
        writer: &mut Writer<'_, '_>,
        at: usize,
        count: u64,
    ) -> Result<Option<Symbol>, Refused> {
        if self.most.is_some_and(|most| count > most) {
            return Ok(None);
        }
        let Some(named) = self.named.get(at) else { return self.rest(writer, count) };
        let Named { property, required } = *named;
        let mut options = Vec::new();
        if let Some(next) = self.known.get(&(at + 1, self.count(count + 1))).copied().flatten() {
            let comma = self.comma.filter(|_| count > 0);
            options.push(comma.into_iter().chain([property, next]).collect());
        }
        if !required && let Some(next) = self.known.get(&(at + 1, count)).copied().flatten() {
            options.push(vec![next]);
        }
        if options.is_empty() { Ok(None) } else { writer.rules.any_of(options).map(Some) }
    }

    /// The properties that the schema does not name.
    fn rest(&self, writer: &mut Writer<'_, '_>, count: u64) -> Result<Option<Symbol>, Refused> {
        let missing = self.min.saturating_sub(count);
        // Two names may be the same: they count as one.
        if missing > 1 || (missing == 1 && self.other.is_none()) {
            return Ok(None);
        }
        let Some(other) = self.other else { return writer.rules.any_of([vec![]]).map(Some) };
        let room = self.most.map(|most| most - count);
        if room.is_some_and(|room| room < missing) {
            return Ok(None);
        }
        let next = writer.rules.any_of([self.comma.into_iter().chain([other]).collect()])?;
        if count > 0 {
            return writer.rules.repeat(next, missing, room).map(Some);
        }
        let mut options = Vec::new();
        if missing == 0 {
            options.push(vec![]);
        }
        if room != Some(0) {
            let more = writer.rules.repeat(next, 0, room.map(|room| room - 1))?;
            options.push(vec![other, more]);
        }
        writer.rules.any_of(options).map(Some)
    }
}
