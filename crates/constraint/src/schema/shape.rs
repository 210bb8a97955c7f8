//! [`Shape`]: a set of JSON values, type by type. A schema is a union of these.
//!
//! Items and properties are kept as lists of schemas, all of which hold, and is looked at only when it
//! is written: so schemas may refer to themselves.

use llguidance::derivre::RegexAst;

use super::document::Part;
use super::numbers::Numbers;
use super::strings::Strings;
use crate::refused::Refused;
use crate::rules;

/// Schemas that all hold, in order and without repeats.
pub(super) type All = Vec<Part>;

/// Adds the schemas of one list to another.
pub(super) fn join(all: &mut All, more: &[Part]) {
    all.extend(more);
    all.sort_unstable();
    all.dedup();
}

/// A set of JSON values.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Shape {
    pub(super) null: bool,
    /// `false` and `true`.
    pub(super) booleans: [bool; 2],
    pub(super) numbers: Option<Numbers>,
    pub(super) strings: Option<Strings>,
    pub(super) arrays: Option<Arrays>,
    pub(super) objects: Option<Objects>,
}

/// A set of arrays.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Arrays {
    pub(super) layers: Vec<Items>,
    pub(super) min: u64,
    pub(super) most: Option<u64>,
    /// At least one item is valid under each of these.
    pub(super) contains: All,
}

/// A schema's word on items.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Items {
    pub(super) prefix: Vec<Part>,
    pub(super) rest: Option<Part>,
    /// True if what it says something about is evaluated, for `unevaluatedItems`.
    pub(super) evaluates: bool,
}

/// A set of objects.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Objects {
    pub(super) layers: Vec<Properties>,
    pub(super) required: Vec<String>,
    pub(super) min: u64,
    pub(super) most: Option<u64>,
    /// Schemas of all names.
    pub(super) names: All,
}

/// A schema's word on properties.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Properties {
    pub(super) named: Vec<(String, Part)>,
    /// Expressions, and the schemas of the properties whose names they match.
    pub(super) patterns: Vec<(String, Part)>,
    pub(super) rest: Option<Part>,
    /// True if what it says something about is evaluated, for `unevaluatedProperties`.
    pub(super) evaluates: bool,
}

fn least(a: Option<u64>, b: Option<u64>) -> Option<u64> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (a, b) => a.or(b),
    }
}

fn add_new<T: PartialEq + Clone>(all: &mut Vec<T>, more: &[T]) {
    for item in more {
        if !all.contains(item) {
            all.push(item.clone());
        }
    }
}

impl Shape {
    /// All values.
    pub(super) fn any() -> Shape {
        Shape {
            null: true,
            booleans: [true; 2],
            numbers: Some(Numbers::default()),
            strings: Some(Strings::default()),
            arrays: Some(Arrays::default()),
            objects: Some(Objects::default()),
        }
    }

    /// No value.
    pub(super) fn none() -> Shape {
        Shape { null: false, booleans: [false; 2], numbers: None, strings: None, arrays: None, objects: None }
    }

    /// True if it is plain to see that no value is in it.
    pub(super) fn is_none(&self) -> bool {
        *self == Shape::none()
    }

    /// The values that are in both.
    pub(super) fn meet(&self, other: &Shape) -> Result<Shape, Refused> {
        let both = |a: bool, b: bool| a && b;
        Ok(Shape {
            null: both(self.null, other.null),
            booleans: [0, 1].map(|i| both(self.booleans[i], other.booleans[i])),
            numbers: match (&self.numbers, &other.numbers) {
                (Some(a), Some(b)) => a.meet(b).map_err(Refused::whole)?,
                _ => None,
            },
            strings: match (&self.strings, &other.strings) {
                (Some(a), Some(b)) => a.meet(b)?,
                _ => None,
            },
            arrays: match (&self.arrays, &other.arrays) {
                (Some(a), Some(b)) => a.meet(b),
                _ => None,
            },
            objects: match (&self.objects, &other.objects) {
                (Some(a), Some(b)) => a.meet(b),
                _ => None,
            },
        })
    }
}

impl Arrays {
    fn meet(&self, other: &Arrays) -> Option<Arrays> {
        let mut met = self.clone();
        add_new(&mut met.layers, &other.layers);
        met.min = met.min.max(other.min);
        met.most = least(met.most, other.most);
        join(&mut met.contains, &other.contains);
        met.most.is_none_or(|most| met.min <= most).then_some(met)
    }

    /// The schemas of the item at a position.
    pub(super) fn item(&self, at: usize) -> All {
        let mut all = All::new();
        for layer in &self.layers {
            join(&mut all, layer.prefix.get(at).or(layer.rest.as_ref()).as_slice_of());
        }
        all
    }

    /// Adds what holds for items that no schema so far evaluates.
    pub(super) fn add_unevaluated(&mut self, any: Part, rest: Part) {
        let evaluated: Vec<&Items> = self.layers.iter().filter(|layer| layer.evaluates).collect();
        if evaluated.iter().all(|layer| layer.rest.is_none()) {
            let longest = evaluated.iter().map(|layer| layer.prefix.len()).max().unwrap_or(0);
            self.layers.push(Items { prefix: vec![any; longest], rest: Some(rest), evaluates: true });
        }
    }

    /// The length of the longest prefix.
    pub(super) fn prefix(&self) -> usize {
        self.layers.iter().map(|layer| layer.prefix.len()).max().unwrap_or(0)
    }
}

/// An optional part as a list.
trait AsSlice {
    fn as_slice_of(&self) -> &[Part];
}

impl AsSlice for Option<&Part> {
    fn as_slice_of(&self) -> &[Part] {
        self.map_or(&[], std::slice::from_ref)
    }
}

impl Objects {
    fn meet(&self, other: &Objects) -> Option<Objects> {
        let mut met = self.clone();
        add_new(&mut met.layers, &other.layers);
        add_new(&mut met.required, &other.required);
        met.min = met.min.max(other.min);
        met.most = least(met.most, other.most);
        join(&mut met.names, &other.names);
        let fewest = met.min.max(met.required.len() as u64);
        met.most.is_none_or(|most| fewest <= most).then_some(met)
    }

    /// Adds what holds for properties that no schema so far evaluates.
    pub(super) fn add_unevaluated(&mut self, any: Part, rest: Part) {
        let evaluated: Vec<&Properties> = self.layers.iter().filter(|layer| layer.evaluates).collect();
        if evaluated.iter().any(|layer| layer.rest.is_some()) {
            return;
        }
        let mut added = Properties { rest: Some(rest), evaluates: true, ..Properties::default() };
        for layer in evaluated {
            add_new(&mut added.named, &layer.named.iter().map(|(n, _)| (n.clone(), any)).collect::<Vec<_>>());
            add_new(
                &mut added.patterns,
                &layer.patterns.iter().map(|(p, _)| (p.clone(), any)).collect::<Vec<_>>(),
            );
        }
        self.layers.push(added);
    }

    /// All names that the schema has, in the order in which they are written.
    pub(super) fn names(&self) -> Vec<&str> {
        let mut seen = hashbrown::HashSet::new();
        let named = self.layers.iter().flat_map(|layer| layer.named.iter().map(|(name, _)| name));
        named.chain(&self.required).map(String::as_str).filter(|name| seen.insert(*name)).collect()
    }
}

impl Properties {
    pub(super) fn says_something(&self) -> bool {
        !self.named.is_empty() || !self.patterns.is_empty() || self.rest.is_some()
    }

    /// True for each pattern that matches a name.
    pub(super) fn matched(&self, name: &str) -> Result<Vec<bool>, Refused> {
        let search = |pattern: &String| RegexAst::SearchRegex(pattern.clone());
        self.patterns.iter().map(|(pattern, _)| rules::matches(&search(pattern), name)).collect()
    }

    /// The schemas of the property of this name, where `matched` tells which patterns match it.
    pub(super) fn of(&self, name: Option<&str>, matched: &[bool]) -> All {
        let mut all = All::new();
        let named = self.named.iter().filter(|(known, _)| Some(known.as_str()) == name);
        let patterns = self.patterns.iter().zip(matched).filter(|(_, matched)| **matched);
        for (_, part) in named.chain(patterns.map(|(pattern, _)| pattern)) {
            join(&mut all, &[*part]);
        }
        if all.is_empty()
            && let Some(rest) = self.rest
        {
            all.push(rest);
        }
        all
    }
}
