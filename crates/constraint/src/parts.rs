//! Parts of texts: a grammar with the texts around it, in which special tokens are themselves.

use llguidance::derivre::RegexAst;

use crate::expression::expression;
use crate::grammar::Grammar;
use crate::refused::Refused;
use crate::rules::{Rules, Symbol};
use crate::vocabulary::{Piece, Vocabulary};

/// Writes rules for the grammar of a tag.
pub(crate) type Inside<'a> = dyn FnMut(&mut Rules, &Grammar) -> Result<Symbol, Refused> + 'a;

/// All texts.
pub(crate) fn any() -> RegexAst {
    RegexAst::Regex("(?s:.*)".into())
}

/// These texts.
pub(crate) fn literals(texts: &[&str]) -> RegexAst {
    RegexAst::Or(texts.iter().map(|text| RegexAst::Literal((*text).into())).collect())
}

/// Texts that end with `last`, and in which none of `texts` ends before.
pub(crate) fn up_to(last: &str, texts: &[&str]) -> RegexAst {
    let ends = RegexAst::Concat(vec![any(), RegexAst::Literal(last.into())]);
    let more = RegexAst::Regex("(?s:.+)".into());
    let before = RegexAst::Concat(vec![any(), literals(texts), more]);
    RegexAst::And(vec![ends, RegexAst::Not(Box::new(before))])
}

/// The part between the texts of a tag, and the text behind it.
pub(crate) fn content(
    (rules, vocabulary): (&mut Rules, &Vocabulary),
    (grammar, end): (&Grammar, &str),
    inside: &mut Inside<'_>,
) -> Result<Vec<Symbol>, Refused> {
    let (Grammar::Regex(_) | Grammar::Choice(_) | Grammar::Text) = grammar else {
        let mut symbols = vec![inside(rules, grammar)?];
        symbols.extend(text(rules, vocabulary, end)?);
        return Ok(symbols);
    };
    // One expression with the text behind it, which would be taken for a part of it otherwise.
    let mut ast = expression(grammar)?;
    let mut rest = end;
    if let Some(Piece::Text(first)) = vocabulary.pieces(end).first() {
        let open = RegexAst::Concat(vec![ast, RegexAst::Literal((*first).into())]);
        ast = RegexAst::And(vec![open, up_to(first, &[first])]);
        rest = &end[first.len()..];
    }
    let mut symbols = vec![rules.terminal(&ast)?];
    symbols.extend(text(rules, vocabulary, rest)?);
    Ok(symbols)
}

/// A text with its special tokens. Those that end generation are left out: it ends with them in any case.
pub(crate) fn text(rules: &mut Rules, vocabulary: &Vocabulary, text: &str) -> Result<Vec<Symbol>, Refused> {
    let mut symbols = Vec::new();
    for piece in vocabulary.pieces(text) {
        match piece {
            Piece::Text(text) => symbols.push(rules.literal(text)?),
            Piece::Special(token) if vocabulary.ends.contains(&token) => break,
            Piece::Special(token) => symbols.push(Symbol::Token(token)),
        }
    }
    Ok(symbols)
}
