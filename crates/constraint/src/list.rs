//! [`write()`]: a [`List`] as rules.

use crate::grammar::{List, Tag};
use crate::parts::{Inside, content, text};
use crate::refused::Refused;
use crate::rules::{Rules, Symbol};
use crate::vocabulary::Vocabulary;

/// Rules for parts in a row.
pub(crate) fn write(
    (rules, vocabulary): (&mut Rules, &Vocabulary),
    list: &List,
    inside: &mut Inside<'_>,
) -> Result<Symbol, Refused> {
    let before = tags((rules, vocabulary), ("before", &list.before), inside)?;
    let items = tags((rules, vocabulary), ("items", &list.items), inside)?;
    let mut all = Vec::new();
    if !before.is_empty() {
        let before = rules.any_of(before)?;
        all.push(rules.repeat(before, 0, None)?);
    }
    all.extend(text(rules, vocabulary, &list.open)?);
    let item = rules.any_of(items)?;
    all.push(item);
    if let Some(between) = &list.between {
        let mut next = text(rules, vocabulary, between)?;
        next.push(item);
        let next = rules.any_of([next])?;
        all.push(rules.repeat(next, 0, None)?);
    }
    all.extend(text(rules, vocabulary, &list.close)?);
    rules.any_of([all])
}

/// The symbols of each of some parts.
fn tags(
    (rules, vocabulary): (&mut Rules, &Vocabulary),
    (name, tags): (&str, &[Tag]),
    inside: &mut Inside<'_>,
) -> Result<Vec<Vec<Symbol>>, Refused> {
    let mut parts = Vec::with_capacity(tags.len());
    for (i, tag) in tags.iter().enumerate() {
        let mut symbols = text(rules, vocabulary, &tag.begin)?;
        let between = content((rules, vocabulary), (&tag.grammar, &tag.end), inside);
        symbols.extend(between.map_err(|refused| refused.inside(&format!("/{name}/{i}/grammar")))?);
        parts.push(symbols);
    }
    Ok(parts)
}
