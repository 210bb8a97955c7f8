//! [`Schemas`]: a document, and the schemas that are made while it is compiled.

use hashbrown::HashMap;
use serde_json::Value;

use super::document::{Document, Part};
use super::shape::{All, Shape};
use crate::limits::Budget;
use crate::refused::Refused;

/// Maximum shapes of one schema: alternatives of alternatives multiply.
pub(super) const MOST_SHAPES: usize = 512;
/// Parts from here on are made while the document is compiled.
const MADE: u32 = 1 << 31;

/// A schema that does not stand in the document.
#[derive(Debug, Clone)]
pub(super) enum Made<'s> {
    /// One value.
    Value(&'s Value),
    /// No value.
    Never,
    /// All values.
    Any,
    /// All values that are not valid under these, which a keyword asks for.
    Opposite(All, String),
}

/// A document whose schemas are looked at as unions of shapes.
#[derive(Debug)]
pub(super) struct Schemas<'s> {
    pub(super) document: Document<'s>,
    made: Vec<Made<'s>>,
    opposites: HashMap<(All, String), Part>,
    pub(super) best_effort: bool,
    left_out: Vec<Refused>,
    budget: Budget,
    /// Schemas that are being applied, one inside of the other.
    pub(super) depth: usize,
}

impl<'s> Schemas<'s> {
    pub(super) fn new(schema: &'s Value, best_effort: bool, budget: Budget) -> Result<Schemas<'s>, Refused> {
        Ok(Schemas {
            document: Document::read(schema, best_effort)?,
            made: vec![Made::Never, Made::Any],
            opposites: HashMap::new(),
            best_effort,
            left_out: Vec::new(),
            budget,
            depth: 0,
        })
    }

    pub(super) fn budget(&mut self) -> &mut Budget {
        &mut self.budget
    }

    /// The keywords that were left out.
    pub(super) fn left_out(self) -> Vec<Refused> {
        self.left_out
    }

    /// Leaves something out, if the schema is to be enforced as far as possible.
    pub(super) fn leave_out(&mut self, refused: Refused) -> Result<(), Refused> {
        if !self.best_effort {
            return Err(refused);
        }
        if !self.left_out.contains(&refused) {
            self.left_out.push(refused);
        }
        Ok(())
    }

    pub(super) fn part(&self, value: &Value) -> Option<Part> {
        self.document.part(value)
    }

    /// The schema that no value is valid under.
    pub(super) fn never() -> Part {
        Part(MADE)
    }

    /// The schema that all values are valid under.
    pub(super) fn any() -> Part {
        Part(MADE + 1)
    }

    pub(super) fn make(&mut self, made: Made<'s>) -> Part {
        self.made.push(made);
        Part(MADE + self.made.len() as u32 - 1)
    }

    /// A schema that was made here. `None` if the part stands in the document.
    pub(super) fn made(&self, part: Part) -> Option<Made<'s>> {
        let index = part.0.checked_sub(MADE)? as usize;
        self.made.get(index).cloned()
    }

    /// The schema that is valid where not all of these are.
    pub(super) fn opposite(&mut self, all: &All, pointer: &str) -> Part {
        let key = (all.clone(), pointer.to_owned());
        if let Some(known) = self.opposites.get(&key) {
            return *known;
        }
        let part = self.make(Made::Opposite(all.clone(), pointer.into()));
        self.opposites.insert(key, part);
        part
    }

    /// True if it is plain to see that no value is valid under one of these.
    pub(super) fn is_never(&self, all: &[Part]) -> bool {
        let false_schema =
            |part: &Part| self.document.place(*part).is_some_and(|place| *place.value == Value::Bool(false));
        all.iter().any(|part| *part == Schemas::never() || false_schema(part))
    }

    /// The place of the first of these that has one.
    pub(super) fn pointer(&self, all: &[Part]) -> String {
        let places = all.iter().filter_map(|part| self.document.place(*part));
        places.map(|place| place.pointer.clone()).next().unwrap_or_default()
    }

    /// The values that are in one of each.
    pub(super) fn meet(&mut self, a: &[Shape], b: &[Shape]) -> Result<Vec<Shape>, Refused> {
        let mut met: Vec<Shape> = Vec::new();
        for a in a {
            for b in b {
                self.budget.spend(1)?;
                let both = a.meet(b)?;
                if !both.is_none() && !met.contains(&both) {
                    met.push(both);
                }
            }
            if met.len() > MOST_SHAPES {
                let why =
                    format!("there are more than {MOST_SHAPES} combinations of alternatives: use fewer");
                return Err(Refused::whole(why));
            }
        }
        Ok(met)
    }
}
