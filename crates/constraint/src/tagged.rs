//! [`write()`]: rules for free text in which triggers begin parts under grammars.

use llguidance::derivre::RegexAst;

use crate::grammar::Tagged;
use crate::parts::{Inside, any, content, literals, text, up_to};
use crate::refused::Refused;
use crate::rules::{Rules, Symbol};
use crate::vocabulary::{Piece, Vocabulary};

/// Texts in which none of these stands.
fn without(texts: &[&str]) -> RegexAst {
    if texts.is_empty() {
        return any();
    }
    let contains = RegexAst::Concat(vec![any(), literals(texts), any()]);
    RegexAst::And(vec![any(), RegexAst::Not(Box::new(contains))])
}

/// Rules for a text with tags.
pub(crate) fn write(
    (rules, vocabulary): (&mut Rules, &Vocabulary),
    tagged: &Tagged,
    inside: &mut Inside<'_>,
) -> Result<Symbol, Refused> {
    if tagged.tags.is_empty() {
        return Err(Refused::at("/tags", "there is no tag: give at least one, or no grammar"));
    }
    if let Some(at) = tagged.triggers.iter().position(String::is_empty) {
        return Err(Refused::at(format!("/triggers/{at}"), "a trigger is a text, and this one is empty"));
    }
    // A trigger that begins with another one would never be reached.
    let shorter = |t: &String| tagged.triggers.iter().any(|o| o != t && t.starts_with(o.as_str()));
    let mut triggers: Vec<&str> =
        tagged.triggers.iter().filter(|t| !shorter(t)).map(String::as_str).collect();
    triggers.sort_unstable();
    triggers.dedup();
    // Special tokens stand in no free text, whatever their texts are.
    let is_special = |trigger: &str| matches!(vocabulary.pieces(trigger).first(), Some(Piece::Special(_)));
    let texts: Vec<&str> = triggers.iter().copied().filter(|trigger| !is_special(trigger)).collect();
    let mut first: Vec<Vec<Vec<Symbol>>> = vec![Vec::new(); triggers.len().max(1)];
    for (i, tag) in tagged.tags.iter().enumerate() {
        let at = format!("/tags/{i}");
        let trigger = triggers.iter().position(|t| tag.begin.starts_with(t));
        let (row, skipped) = match trigger {
            Some(row) => (row, triggers[row].len()),
            None if triggers.is_empty() => (0, 0),
            None => {
                let why = "no trigger begins it, so that it can never be written: add one to `triggers`";
                return Err(Refused::at(format!("{at}/begin"), why));
            }
        };
        let between = content((rules, vocabulary), (&tag.grammar, &tag.end), inside)
            .map_err(|refused| refused.inside(&format!("{at}/grammar")))?;
        let mut tag_rule = text(rules, vocabulary, &tag.begin[skipped..])?;
        tag_rule.extend(between);
        first[row].push(tag_rule);
    }
    let mut parts = Vec::new();
    for (i, tags) in first.into_iter().enumerate() {
        match triggers.get(i) {
            Some(trigger) if !tags.is_empty() => {
                let tags = rules.any_of(tags)?;
                let mut part = if is_special(trigger) {
                    let free = rules.terminal(&without(&texts))?;
                    let free = rules.any_of([vec![], vec![free]])?;
                    [vec![free], text(rules, vocabulary, trigger)?].concat()
                } else {
                    vec![rules.terminal(&up_to(trigger, &texts))?]
                };
                part.push(tags);
                parts.push(part);
            }
            Some(trigger) => {
                let at = tagged.triggers.iter().position(|t| t == trigger).unwrap_or_default();
                return Err(Refused::at(format!("/triggers/{at}"), "no tag begins with it: leave it out"));
            }
            None => parts.extend(tags),
        }
    }
    let part = rules.any_of(parts)?;
    let rest = if triggers.is_empty() {
        rules.any_of([vec![]])?
    } else {
        let free = rules.terminal(&without(&texts))?;
        rules.any_of([vec![], vec![free]])?
    };
    match (tagged.at_least_one, tagged.stop_after_first) {
        (true, true) => Ok(part),
        (false, true) => rules.any_of([vec![part], vec![rest]]),
        (at_least_one, false) => {
            let parts = rules.repeat(part, u64::from(at_least_one), None)?;
            rules.any_of([vec![parts, rest]])
        }
    }
}
