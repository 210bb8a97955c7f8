//! [`write()`]: the members of an object, each between texts of its own.

use llguidance::derivre::RegexAst;

use super::properties;
use super::schemas::Schemas;
use super::shape::{All, Shape};
use super::values::ROOT;
use super::writer::{Blanks, Writer};
use crate::grammar::Members;
use crate::parts::text;
use crate::refused::Refused;
use crate::rules::{Rules, Symbol};
use crate::vocabulary::{Piece, Vocabulary};

/// Rules for the members of the objects of a schema. Those that it does not name are not written.
pub(super) fn write(
    (rules, vocabulary): (&mut Rules, &Vocabulary),
    members: &Members,
    schemas: &mut Schemas<'_>,
) -> Result<Symbol, Refused> {
    let mut writer = Writer::new(rules, schemas, Blanks::Dumped).ended_by(&members.ends);
    let mut alternatives = Vec::new();
    for shape in writer.schemas.expand(&ROOT)? {
        let Some(objects) = &shape.objects else { continue };
        let allowed = properties::names(&mut writer, objects)?;
        let member = |writer: &mut Writer<'_, '_>, name: &str, all: All| {
            if name.contains(['<', '>', '"', '\n']) {
                let why = format!(
                    "the name {name:?} cannot be written in this model's calls: use letters and digits"
                );
                return Err(Refused::at("/properties", why));
            }
            let values = value(writer, (members, vocabulary), &all)?;
            let key = text(writer.rules, vocabulary, &format!("{}{name}", members.before_key))?;
            let with_key = values.into_iter().map(|value| [key.clone(), value].concat());
            writer.rules.any_of(with_key.collect::<Vec<_>>())
        };
        let named = properties::named(&mut writer, (objects, allowed.as_deref()), member)?;
        if let Some(named) = named {
            alternatives.push(vec![properties::row(&mut writer, objects, (named, None, None))?]);
        }
    }
    writer.define_all()?;
    writer.rules.any_of(alternatives)
}

/// The ways of writing a value: the text behind its key, itself, and the text behind it.
fn value(
    writer: &mut Writer<'_, '_>,
    (members, vocabulary): (&Members, &Vocabulary),
    all: &All,
) -> Result<Vec<Vec<Symbol>>, Refused> {
    let shapes = writer.schemas.expand(all)?;
    let mut strings: Vec<RegexAst> = Vec::new();
    for some in shapes.iter().filter_map(|shape| shape.strings.as_ref()) {
        if !some.is_empty()? {
            strings.push(writer.without_ends(some.text()));
        }
    }
    let others: Vec<Shape> = shapes.into_iter().map(|shape| Shape { strings: None, ..shape }).collect();
    let mut ways = Vec::new();
    // What is read by the schema alone: a text may be taken for any value of another type.
    let by_schema = members.before_text == members.before_json;
    if !strings.is_empty() && (!by_schema || others.iter().all(is_whole)) {
        if by_schema {
            for other in &others {
                strings.extend(writer.scalars(other)?);
            }
        }
        let mut way = text(writer.rules, vocabulary, &members.before_text)?;
        way.extend(up_to(writer, vocabulary, RegexAst::Or(strings), &members.after_value)?);
        ways.push(way);
        if by_schema {
            return Ok(ways);
        }
    }
    let alternatives = writer.alternatives(&others, all)?;
    let mut way = text(writer.rules, vocabulary, &members.before_json)?;
    way.push(writer.rules.any_of(alternatives)?);
    way.extend(text(writer.rules, vocabulary, &members.after_value)?);
    ways.push(way);
    Ok(ways)
}

/// True if it has all values of each type that it has.
fn is_whole(shape: &Shape) -> bool {
    fn none_or_all<T: Default + PartialEq>(some: &Option<T>) -> bool {
        some.as_ref().is_none_or(|some| *some == T::default())
    }
    let Shape { null: _, booleans: [no, yes], numbers, strings: _, arrays, objects } = shape;
    no == yes && none_or_all(numbers) && none_or_all(arrays) && none_or_all(objects)
}

/// A text and what stands behind it, which would be taken for a part of it if it were a terminal of its own.
fn up_to(
    writer: &mut Writer<'_, '_>,
    vocabulary: &Vocabulary,
    inside: RegexAst,
    end: &str,
) -> Result<Vec<Symbol>, Refused> {
    let pieces = vocabulary.pieces(end);
    let (first, rest) = match pieces.first() {
        Some(Piece::Text(first)) => (*first, &end[first.len()..]),
        _ => ("", end),
    };
    let whole = RegexAst::Concat(vec![inside, RegexAst::Literal(first.into())]);
    let mut symbols = match first {
        // Nothing but a token can end it, and it may be empty.
        "" => {
            let some = RegexAst::And(vec![whole, RegexAst::Regex("(?s:.+)".into())]);
            let some = writer.rules.terminal(&some)?;
            vec![writer.rules.any_of([vec![], vec![some]])?]
        }
        _ => vec![writer.rules.terminal(&whole)?],
    };
    symbols.extend(text(writer.rules, vocabulary, rest)?);
    Ok(symbols)
}
