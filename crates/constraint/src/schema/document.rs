//! [`Document`]: a schema's parts, and how they refer to each other.
//!
//! Nothing is ever fetched: what is not in the document is refused.

use hashbrown::HashMap;
use serde_json::Value;

use super::draft::{Draft, SUBSCHEMA_LISTS, SUBSCHEMA_MAPS, SUBSCHEMAS};
use super::uri;
use crate::refused::Refused;

/// Maximum nesting of a schema.
const MOST_DEPTH: usize = 128;
/// The base of a document that has no `$id`.
const NO_BASE: &str = "tallow:schema";

/// A part of the document, or something that is made while it is compiled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Part(pub(super) u32);

/// A schema and where it stands.
#[derive(Debug, Clone)]
pub(super) struct Place<'s> {
    pub(super) value: &'s Value,
    pub(super) pointer: String,
    pub(super) draft: Draft,
    /// The URI that references are resolved against.
    base: u32,
}

/// All schemas of a document.
#[derive(Debug)]
pub(super) struct Document<'s> {
    places: Vec<Place<'s>>,
    by_address: HashMap<usize, Part>,
    bases: Vec<String>,
    /// Schemas with an identifier, and those with an anchor: `uri#anchor`.
    named: HashMap<String, Part>,
    /// Names of anchors that depend on where a schema is used, once for each.
    dynamic: Vec<String>,
    best_effort: bool,
}

impl<'s> Document<'s> {
    pub(super) fn read(root: &'s Value, best_effort: bool) -> Result<Document<'s>, Refused> {
        let mut document = Document {
            places: Vec::new(),
            by_address: HashMap::new(),
            bases: vec![NO_BASE.into()],
            named: HashMap::new(),
            dynamic: Vec::new(),
            best_effort,
        };
        document.walk(root, String::new(), (0, Draft::D2020), 0)?;
        document.named.entry(NO_BASE.into()).or_insert(Part(0));
        Ok(document)
    }

    pub(super) fn place(&self, part: Part) -> Option<&Place<'s>> {
        self.places.get(part.0 as usize)
    }

    /// The part that a subschema is, which must stand where schemas stand.
    pub(super) fn part(&self, value: &Value) -> Option<Part> {
        self.by_address.get(&std::ptr::from_ref(value).addr()).copied()
    }

    fn walk(
        &mut self,
        value: &'s Value,
        pointer: String,
        (mut base, mut draft): (u32, Draft),
        depth: usize,
    ) -> Result<Part, Refused> {
        if depth > MOST_DEPTH {
            let why = format!("its schemas are nested more than {MOST_DEPTH} deep: put some into `$defs`");
            return Err(Refused::whole(why));
        }
        let part = Part(self.places.len() as u32);
        self.by_address.insert(std::ptr::from_ref(value).addr(), part);
        let Value::Object(object) = value else {
            if !value.is_boolean() {
                let why = format!("a schema is an object, true or false, not {}", super::kind(value));
                return Err(Refused::at(pointer, why));
            }
            self.places.push(Place { value, pointer, draft, base });
            return Ok(part);
        };
        if let Some(named) = object.get("$schema").and_then(Value::as_str) {
            match Draft::named(named) {
                Some(known) => draft = known,
                None if self.best_effort => {}
                None => {
                    let why = format!(
                        "the dialect {named:?} is not known: name draft 4, 6, 7, 2019-09 or 2020-12, or leave \
                         `$schema` out"
                    );
                    return Err(Refused::at(format!("{pointer}/$schema"), why));
                }
            }
        }
        // In older drafts `$ref` hides all that stands beside it.
        let hidden = draft.ref_hides() && object.contains_key("$ref");
        if let Some(id) = object.get(draft.id()).and_then(Value::as_str).filter(|_| !hidden) {
            let uri = uri::resolve(&self.bases[base as usize], id);
            let (document, fragment) = uri.split_once('#').unwrap_or((&uri, ""));
            if fragment.is_empty() {
                self.named.insert(document.to_owned(), part);
                base = self.bases.len() as u32;
                self.bases.push(document.to_owned());
            } else {
                self.named.insert(uri, part);
            }
        }
        for key in ["$anchor", "$dynamicAnchor"] {
            if let Some(anchor) = object.get(key).and_then(Value::as_str).filter(|_| draft >= Draft::D2019) {
                self.named.insert(format!("{}#{anchor}", self.bases[base as usize]), part);
            }
        }
        if let Some(name) = object.get("$dynamicAnchor").and_then(Value::as_str) {
            self.dynamic.push(name.to_owned());
        }
        if object.get("$recursiveAnchor") == Some(&Value::Bool(true)) {
            self.dynamic.push(String::new());
        }
        self.places.push(Place { value, pointer: pointer.clone(), draft, base });
        let here = (base, draft);
        for (key, inner) in object {
            let at = format!("{pointer}/{}", uri::escape(key));
            let key = key.as_str();
            match inner {
                Value::Object(map) if SUBSCHEMA_MAPS.contains(&key) => {
                    for (name, inner) in map {
                        // `dependencies` may have lists of names.
                        if key != "dependencies" || !inner.is_array() {
                            let at = format!("{at}/{}", uri::escape(name));
                            self.walk(inner, at, here, depth + 1)?;
                        }
                    }
                }
                Value::Array(list) if SUBSCHEMA_LISTS.contains(&key) => {
                    for (i, inner) in list.iter().enumerate() {
                        self.walk(inner, format!("{at}/{i}"), here, depth + 1)?;
                    }
                }
                Value::Object(_) | Value::Bool(_) if SUBSCHEMAS.contains(&key) => {
                    self.walk(inner, at, here, depth + 1)?;
                }
                _ => {}
            }
        }
        Ok(part)
    }

    /// True if what a dynamic reference refers to depends on where it is used: there are several anchors of its name.
    pub(super) fn is_dynamic(&self, reference: &str) -> bool {
        let name = reference.split_once('#').map_or("", |(_, fragment)| fragment);
        let several = self.dynamic.iter().filter(|anchor| *anchor == name).count() > 1;
        // `$recursiveAnchor` at the root of the only document is what `#` refers to in any case.
        several || (name.is_empty() && self.dynamic.iter().any(String::is_empty) && self.bases.len() > 2)
    }

    /// The part that a reference in `from` refers to.
    pub(super) fn resolve(&mut self, from: Part, keyword: &str, reference: &str) -> Result<Part, Refused> {
        let Some(place) = self.place(from) else { return Err(Refused::whole("a reference from nowhere")) };
        let at = format!("{}/{keyword}", place.pointer);
        let uri = uri::resolve(&self.bases[place.base as usize], reference);
        let (document, fragment) = uri.split_once('#').unwrap_or((&uri, ""));
        let fragment = uri::decode(fragment);
        let Some(resource) = self.named.get(document).copied() else {
            let why =
                format!("{reference:?} is not in this schema, and nothing is fetched: put it into `$defs`");
            return Err(Refused::at(at, why));
        };
        let missing = || Refused::at(at.clone(), format!("{reference:?} refers to nothing in this schema"));
        if fragment.is_empty() {
            return Ok(resource);
        }
        if !fragment.starts_with('/') {
            return self.named.get(&format!("{document}#{fragment}")).copied().ok_or_else(missing);
        }
        let start = self.place(resource).cloned().ok_or_else(missing)?;
        let (mut value, mut here) = (start.value, (start.base, start.draft));
        for token in fragment[1..].split('/') {
            let token = token.replace("~1", "/").replace("~0", "~");
            value = match value {
                Value::Object(map) => map.get(&token),
                Value::Array(list) => token.parse::<usize>().ok().and_then(|i| list.get(i)),
                _ => None,
            }
            .ok_or_else(missing)?;
            if let Some(place) = self.part(value).and_then(|part| self.place(part)) {
                here = (place.base, place.draft);
            }
        }
        match self.part(value) {
            Some(part) => Ok(part),
            // A reference may make a schema of what does not stand where schemas stand.
            None => self.walk(value, format!("{}{fragment}", start.pointer), here, 0),
        }
    }
}
