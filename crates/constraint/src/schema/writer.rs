//! [`Writer`]: rules that are written once for each list of schemas.

use hashbrown::HashMap;
use llguidance::derivre::RegexAst;

use super::schemas::Schemas;
use super::shape::All;
use crate::refused::Refused;
use crate::rules::{Rules, Symbol};

/// Blanks between two parts of a text: a limit keeps a model from writing nothing else.
const ANY: &str = r"( |(\r?\n){1,2}[ \t]{0,40})?";

/// Blanks around punctuation marks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Blanks {
    /// None or some.
    Any,
    /// Those of Python's `json.dumps`: a space behind colons and commas.
    Dumped,
}

impl Blanks {
    /// The source of a mark's expression, with blanks in front of it and behind it.
    fn around(self, mark: &str, (before, after): (bool, bool)) -> String {
        let [before, after] = match self {
            Blanks::Any => [before, after].map(|wanted| if wanted { ANY } else { "" }),
            Blanks::Dumped => ["", if matches!(mark, "," | ":") { " " } else { "" }],
        };
        format!(r"{before}\{mark}{after}")
    }
}

/// Rules that are written once for each list of schemas.
pub(super) struct Writer<'a, 's> {
    pub(super) rules: &'a mut Rules,
    pub(super) schemas: &'a mut Schemas<'s>,
    known: HashMap<All, Symbol>,
    /// Texts that no string may contain, since they end what the value stands in.
    ends: Option<RegexAst>,
    blanks: Blanks,
    pub(super) waiting: Vec<(All, Symbol)>,
}

impl<'a, 's> Writer<'a, 's> {
    pub(super) fn new(rules: &'a mut Rules, schemas: &'a mut Schemas<'s>, blanks: Blanks) -> Writer<'a, 's> {
        Writer { rules, schemas, known: HashMap::new(), ends: None, blanks, waiting: Vec::new() }
    }

    /// A writer of values that stand in something which one of these texts ends.
    pub(super) fn ended_by(self, ends: &[String]) -> Writer<'a, 's> {
        let any = || RegexAst::Regex("(?s:.*)".into());
        let contains = |text: &String| RegexAst::Concat(vec![any(), RegexAst::Literal(text.clone()), any()]);
        Writer { ends: Some(RegexAst::Or(ends.iter().map(contains).collect())), ..self }
    }
}

impl Writer<'_, '_> {
    /// The rule of the values that are valid under all of these; it is defined later.
    pub(super) fn value(&mut self, all: All) -> Symbol {
        if let Some(known) = self.known.get(&all) {
            return *known;
        }
        let rule = self.rules.declare();
        self.known.insert(all.clone(), rule);
        self.waiting.push((all, rule));
        rule
    }

    /// The texts that do not end what they stand in.
    pub(super) fn without_ends(&self, text: RegexAst) -> RegexAst {
        match &self.ends {
            None => text,
            Some(ends) => RegexAst::And(vec![text, RegexAst::Not(Box::new(ends.clone()))]),
        }
    }

    /// A punctuation mark with the blanks around it.
    pub(super) fn mark(&mut self, before: bool, mark: &str, after: bool) -> Result<Symbol, Refused> {
        let mark = self.rules.known(&self.blanks.around(mark, (before, after)))?;
        self.rules.terminal(&mark)
    }

    /// The colon behind a name.
    pub(super) fn colon(&mut self) -> Result<RegexAst, Refused> {
        self.rules.known(&self.blanks.around(":", (true, true)))
    }
}
