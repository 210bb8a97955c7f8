//! [`Strings`]: a set of JSON strings, and the expression of their texts.

use hashbrown::HashSet;
use llguidance::derivre::{JsonQuoteOptions, RegexAst};

use crate::refused::Refused;
use crate::rules;

/// A set of strings.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Strings {
    pub(super) min: u32,
    pub(super) most: Option<u32>,
    /// Expressions that match somewhere in the string.
    pub(super) patterns: Vec<String>,
    /// Expressions that match the whole string.
    pub(super) formats: Vec<String>,
    /// Expressions that match nowhere in the string.
    pub(super) not_patterns: Vec<String>,
    /// These alone.
    pub(super) among: Option<Vec<String>>,
    /// All but these.
    pub(super) without: Vec<String>,
}

impl Strings {
    /// The strings that are in both.
    pub(super) fn meet(&self, other: &Strings) -> Result<Option<Strings>, Refused> {
        let both = |a: &[String], b: &[String]| {
            let mut all = a.to_vec();
            all.extend(b.iter().filter(|x| !a.contains(x)).cloned());
            all
        };
        let mut met = Strings {
            min: self.min.max(other.min),
            most: match (self.most, other.most) {
                (Some(a), Some(b)) => Some(a.min(b)),
                (a, b) => a.or(b),
            },
            patterns: both(&self.patterns, &other.patterns),
            formats: both(&self.formats, &other.formats),
            not_patterns: both(&self.not_patterns, &other.not_patterns),
            among: None,
            without: both(&self.without, &other.without),
        };
        let among = match (&self.among, &other.among) {
            (Some(a), Some(b)) => {
                let b: HashSet<&String> = b.iter().collect();
                Some(a.iter().filter(|s| b.contains(s)).cloned().collect())
            }
            (a, b) => a.as_ref().or(b.as_ref()).cloned(),
        };
        if let Some(mut left) = among {
            let simple = met == Strings::default();
            if !simple {
                let mut regex = rules::matcher(&met.text())?;
                left.retain(|text: &String| regex.is_match(text));
            }
            met = Strings { among: Some(left), ..Strings::default() };
        }
        let empty = met.among.as_ref().is_some_and(Vec::is_empty) || met.most.is_some_and(|m| m < met.min);
        Ok((!empty).then_some(met))
    }

    /// True if the string is in the set.
    pub(super) fn has(&self, text: &str) -> Result<bool, Refused> {
        let length = text.chars().count() as u64;
        let fits = length >= u64::from(self.min) && self.most.is_none_or(|most| length <= u64::from(most));
        if !fits
            || self.without.iter().any(|w| w == text)
            || self.among.as_ref().is_some_and(|among| !among.iter().any(|a| a == text))
        {
            return Ok(false);
        }
        let patterns = self.only_patterns();
        if patterns.is_empty() { Ok(true) } else { rules::matches(&RegexAst::And(patterns), text) }
    }

    /// True if nothing but the text itself is asked for, which is never empty.
    fn is_simple(&self) -> bool {
        self.patterns.is_empty() && self.formats.is_empty() && self.not_patterns.is_empty()
    }

    fn only_patterns(&self) -> Vec<RegexAst> {
        let search = |p: &String| RegexAst::SearchRegex(p.clone());
        let mut all: Vec<RegexAst> = self.patterns.iter().map(search).collect();
        all.extend(self.formats.iter().map(|f| RegexAst::Regex(format!("(?s:{f})"))));
        all.extend(self.not_patterns.iter().map(|p| RegexAst::Not(Box::new(search(p)))));
        all
    }

    /// The expression of the strings themselves, not quoted.
    pub(super) fn text(&self) -> RegexAst {
        if let Some(among) = &self.among {
            return RegexAst::Or(among.iter().map(|s| RegexAst::Literal(s.clone())).collect());
        }
        let mut all = self.only_patterns();
        if self.min > 0 || self.most.is_some() || all.is_empty() || !self.not_patterns.is_empty() {
            let most = self.most.map_or(String::new(), |m| m.to_string());
            let any = if self.min == 0 && self.most.is_none() {
                "(?s:.*)".to_owned()
            } else {
                format!("(?s:.{{{},{most}}})", self.min)
            };
            all.push(RegexAst::Regex(any));
        }
        if !self.without.is_empty() {
            let not = self.without.iter().map(|s| RegexAst::Literal(s.clone())).collect();
            all.push(RegexAst::Not(Box::new(RegexAst::Or(not))));
            all.push(RegexAst::Regex("(?s:.*)".into()));
        }
        if all.len() == 1 { all.remove(0) } else { RegexAst::And(all) }
    }

    /// True if no string is in the set.
    pub(super) fn is_empty(&self) -> Result<bool, Refused> {
        if let Some(among) = &self.among {
            return Ok(among.is_empty());
        }
        if self.is_simple() { Ok(false) } else { rules::is_empty(&self.text()) }
    }

    /// True if no string is in both, as far as it can be seen.
    pub(super) fn is_disjoint(&self, other: &Strings) -> Result<bool, Refused> {
        match self.meet(other) {
            Ok(None) => Ok(true),
            Ok(Some(met)) => Ok(met.is_empty().unwrap_or(false)),
            Err(e) => Err(e),
        }
    }
}

/// The expression of strings as JSON writes them, each character in one way.
pub(super) fn quoted(text: RegexAst) -> RegexAst {
    let options = JsonQuoteOptions { allowed_escapes: "nrbtf\\\"u".into(), raw_mode: false };
    RegexAst::JsonQuote(Box::new(text), options)
}
