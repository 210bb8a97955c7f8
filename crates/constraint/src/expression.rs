//! [`expression`]: the grammars that are one expression.

use llguidance::derivre::RegexAst;

use crate::grammar::Grammar;
use crate::refused::Refused;

/// The expression of a grammar that is one.
pub(crate) fn expression(grammar: &Grammar) -> Result<RegexAst, Refused> {
    match grammar {
        Grammar::Regex(regex) => Ok(RegexAst::Regex(regex.clone())),
        Grammar::Choice(texts) if texts.is_empty() => {
            Err(Refused::whole("the list of choices is empty: give at least one"))
        }
        Grammar::Choice(texts) => {
            Ok(RegexAst::Or(texts.iter().map(|t| RegexAst::Literal(t.clone())).collect()))
        }
        _ => Ok(RegexAst::Regex("(?s:.*)".into())),
    }
}
