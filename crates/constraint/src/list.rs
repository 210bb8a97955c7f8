//! [`write()`]: a [`List`] as rules.

use crate::grammar::List;
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
    let mut items = Vec::with_capacity(list.items.len());
    for (i, tag) in list.items.iter().enumerate() {
        let mut symbols = text(rules, vocabulary, &tag.begin)?;
        let between = content((rules, vocabulary), (&tag.grammar, ""), inside);
        symbols.extend(between.map_err(|refused| refused.inside(&format!("/items/{i}/grammar")))?);
        symbols.extend(text(rules, vocabulary, &tag.end)?);
        items.push(symbols);
    }
    let item = rules.any_of(items)?;
    let mut all = text(rules, vocabulary, &list.open)?;
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
