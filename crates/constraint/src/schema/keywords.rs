//! [`plain`]: what the keywords of a schema that have no schemas in place say.

use serde_json::{Map, Value};

use super::decimal::Decimal;
use super::document::{Part, Place};
use super::draft;
use super::formats::{self, Format};
use super::kind;
use super::numbers::{Bound, Numbers};
use super::schemas::Schemas;
use super::shape::{Arrays, Items, Objects, Properties, Shape};
use super::strings::Strings;
use super::uri;
use crate::pattern;
use crate::refused::Refused;

type Schema = Map<String, Value>;

/// A schema whose keywords are read.
pub(super) struct Reader<'a, 's> {
    pub(super) schemas: &'a mut Schemas<'s>,
    pub(super) place: &'a Place<'s>,
    pub(super) schema: &'s Schema,
}

/// The values that the keywords of a schema allow, apart from those that apply other schemas to the same value.
pub(super) fn plain(reader: &mut Reader<'_, '_>) -> Result<Shape, Refused> {
    reader.unenforced()?;
    let mut shape = Shape::any();
    if let Some(types) = reader.types()? {
        let any = std::mem::replace(&mut shape, Shape::none());
        for name in types {
            match name {
                "null" => shape.null = true,
                "boolean" => shape.booleans = [true; 2],
                "number" => shape.numbers = any.numbers.clone(),
                "integer" if shape.numbers.is_none() => {
                    shape.numbers = Some(Numbers { integer: true, ..Numbers::default() });
                }
                "integer" => {}
                "string" => shape.strings = any.strings.clone(),
                "array" => shape.arrays = any.arrays.clone(),
                "object" => shape.objects = any.objects.clone(),
                name => {
                    let why = format!(
                        "there is no type {name:?}: use null, boolean, number, integer, string, array or object"
                    );
                    return Err(reader.refused("type", why));
                }
            }
        }
    }
    // What is said about other types is read as well, so that it is refused if it cannot be right.
    let others = Shape {
        numbers: reader.numbers()?,
        strings: reader.strings()?,
        arrays: reader.arrays()?,
        objects: reader.objects()?,
        ..Shape::any()
    };
    shape.meet(&others).map_err(|refused| refused.inside(&reader.place.pointer))
}

impl<'s> Reader<'_, 's> {
    /// A refusal of a keyword of this schema.
    pub(super) fn refused(&self, keyword: &str, why: impl Into<String>) -> Refused {
        Refused::at(format!("{}/{keyword}", self.place.pointer), why)
    }

    /// A keyword that is not enforced: an error unless the schema is to be enforced as far as possible.
    pub(super) fn cannot(&mut self, keyword: &str, why: impl Into<String>) -> Result<(), Refused> {
        let refused = self.refused(keyword, why);
        self.schemas.leave_out(refused)
    }

    /// A keyword that the schema's dialect knows.
    pub(super) fn get(&self, keyword: &str) -> Option<&'s Value> {
        self.schema.get(keyword).filter(|_| self.place.draft.knows(keyword))
    }

    fn unenforced(&mut self) -> Result<(), Refused> {
        for unenforced in &draft::NEVER_ENFORCED {
            if self.get(unenforced.keyword).is_some() {
                self.cannot(unenforced.keyword, unenforced.why)?;
            }
        }
        Ok(())
    }

    fn types(&self) -> Result<Option<Vec<&'s str>>, Refused> {
        let bad =
            |value| self.refused("type", format!("it is a name or a list of names, not {}", kind(value)));
        match self.get("type") {
            None => Ok(None),
            Some(Value::String(name)) => Ok(Some(vec![name])),
            Some(Value::Array(list)) => list
                .iter()
                .map(|name| name.as_str().ok_or_else(|| bad(name)))
                .collect::<Result<_, _>>()
                .map(Some),
            Some(other) => Err(bad(other)),
        }
    }

    fn count(&self, keyword: &str) -> Result<Option<u64>, Refused> {
        let Some(value) = self.get(keyword) else { return Ok(None) };
        let float =
            || value.as_f64().filter(|f| f.fract() == 0.0 && (0.0..9e15).contains(f)).map(|f| f as u64);
        match value.as_u64().or_else(float) {
            Some(count) => Ok(Some(count)),
            None => Err(self.refused(keyword, format!("it is a count, and {value} is none"))),
        }
    }

    /// A number that is small and short enough to be computed with.
    fn decimal(&mut self, keyword: &str) -> Result<Option<Decimal>, Refused> {
        let Some(value) = self.get(keyword) else { return Ok(None) };
        let Value::Number(number) = value else {
            return Err(self.refused(keyword, format!("it is a number, not {}", kind(value))));
        };
        let decimal = Decimal::read(number);
        if decimal.is_none() {
            self.cannot(keyword, format!("{number} has too many digits: use fewer than 18"))?;
        }
        Ok(decimal)
    }

    fn numbers(&mut self) -> Result<Option<Numbers>, Refused> {
        let mut bounds: [Bound; 2] = [None; 2];
        for (i, (inclusive, exclusive)) in
            [("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")].into_iter().enumerate()
        {
            let bound = self.decimal(inclusive)?.map(|n| (n, false));
            let other = match self.get(exclusive) {
                // Draft 4: `exclusive…` says something about the other.
                Some(Value::Bool(excluded)) => bound.map(|(n, _)| (n, *excluded)),
                _ => self.decimal(exclusive)?.map(|n| (n, true)),
            };
            bounds[i] = match (bound, other) {
                (Some(a), Some(b)) if a.0 == b.0 => Some((a.0, a.1 || b.1)),
                (Some(a), Some(b)) => Some(if (a.0 > b.0) == (i == 0) { a } else { b }),
                (a, b) => a.or(b),
            };
        }
        let multiple_of = self.decimal("multipleOf")?;
        if let Some(step) = multiple_of {
            if step.is_negative() || step == Decimal::ZERO {
                return Err(self.refused("multipleOf", "it must be above 0"));
            }
            if step.without_zeros().0.small().is_none() {
                self.cannot("multipleOf", draft::why("multipleOf"))?;
            }
        }
        let multiple_of = multiple_of.filter(|step| step.without_zeros().0.small().is_some());
        let numbers = Numbers { low: bounds[0], high: bounds[1], multiple_of, ..Numbers::default() };
        let empty = numbers.is_empty().map_err(|why| self.refused("multipleOf", why))?;
        Ok((!empty).then_some(numbers))
    }

    /// A pattern in the syntax of expressions; `None` if it is left out.
    fn pattern(&mut self, keyword: &str, pattern: &str) -> Result<Option<String>, Refused> {
        match pattern::ecma(pattern).and_then(|translated| pattern::check(&translated).map(|()| translated)) {
            Ok(translated) => Ok(Some(translated)),
            Err(why) => {
                self.cannot(keyword, format!("the pattern {pattern:?} is not enforced: {why}")).map(|()| None)
            }
        }
    }

    fn strings(&mut self) -> Result<Option<Strings>, Refused> {
        let large = |count: u64| u32::try_from(count).unwrap_or(u32::MAX - 1).min(u32::MAX - 1);
        let mut strings = Strings {
            min: self.count("minLength")?.map_or(0, large),
            most: self.count("maxLength")?.filter(|n| *n < u64::from(u32::MAX)).map(large),
            ..Strings::default()
        };
        match self.get("pattern") {
            Some(Value::String(pattern)) => strings.patterns.extend(self.pattern("pattern", pattern)?),
            Some(other) => {
                return Err(self.refused("pattern", format!("it is a string, not {}", kind(other))));
            }
            None => {}
        }
        if let Some(Value::String(name)) = self.get("format") {
            match formats::format(name) {
                Format::Enforced(all) => strings.formats = all,
                Format::NotEnforced => {
                    self.cannot("format", format!("{name:?}: {}", draft::why("format")))?
                }
                Format::Unknown => {}
            }
        }
        Ok(strings.most.is_none_or(|most| strings.min <= most).then_some(strings))
    }

    /// The part that a subschema is.
    fn part(&self, keyword: &str, value: &Value) -> Result<Part, Refused> {
        let part = self.schemas.part(value);
        part.ok_or_else(|| self.refused(keyword, format!("it is a schema, not {}", kind(value))))
    }

    fn parts(&self, keyword: &str, list: &'s [Value]) -> Result<Vec<Part>, Refused> {
        list.iter().map(|value| self.part(keyword, value)).collect()
    }

    fn arrays(&mut self) -> Result<Option<Arrays>, Refused> {
        let mut items = Items { evaluates: true, ..Items::default() };
        let prefix = self.get("prefixItems");
        match (prefix, self.get("items")) {
            (Some(Value::Array(list)), rest) => {
                items.prefix = self.parts("prefixItems", list)?;
                items.rest = rest.map(|rest| self.part("items", rest)).transpose()?;
            }
            (Some(other), _) => {
                return Err(self.refused("prefixItems", format!("it is a list, not {}", kind(other))));
            }
            // Before 2020-12, a list in `items` is what `prefixItems` became.
            (None, Some(Value::Array(list))) => {
                items.prefix = self.parts("items", list)?;
                let rest = self.get("additionalItems");
                items.rest = rest.map(|rest| self.part("additionalItems", rest)).transpose()?;
            }
            (None, Some(rest)) => items.rest = Some(self.part("items", rest)?),
            (None, None) => {}
        }
        let mut arrays = Arrays {
            min: self.count("minItems")?.unwrap_or(0),
            most: self.count("maxItems")?,
            ..Arrays::default()
        };
        if self.get("uniqueItems") == Some(&Value::Bool(true)) && arrays.most.is_none_or(|most| most > 1) {
            self.cannot("uniqueItems", draft::why("uniqueItems"))?;
        }
        if let Some(contains) = self.get("contains") {
            let (min, most) = (self.count("minContains")?, self.count("maxContains")?);
            let simple = items.prefix.is_empty() && arrays.min <= 1 && arrays.most.is_none();
            match (min.unwrap_or(1), most) {
                (0, None) => {}
                (1, None) if simple => arrays.contains = vec![self.part("contains", contains)?],
                _ => self.cannot("contains", draft::why("contains"))?,
            }
        }
        if !items.prefix.is_empty() || items.rest.is_some() {
            arrays.layers.push(items);
        }
        Ok(arrays.most.is_none_or(|most| arrays.min <= most).then_some(arrays))
    }

    fn objects(&mut self) -> Result<Option<Objects>, Refused> {
        let mut layer = Properties { evaluates: true, ..Properties::default() };
        let object = |reader: &Self, keyword: &str| match reader.get(keyword) {
            None => Ok(None),
            Some(Value::Object(map)) => Ok(Some(map)),
            Some(other) => Err(reader.refused(keyword, format!("it is an object, not {}", kind(other)))),
        };
        for (name, value) in object(self, "properties")?.into_iter().flatten() {
            let part = self.part(&format!("properties/{}", uri::escape(name)), value)?;
            layer.named.push((name.clone(), part));
        }
        for (source, value) in object(self, "patternProperties")?.into_iter().flatten() {
            let keyword = format!("patternProperties/{}", uri::escape(source));
            let part = self.part(&keyword, value)?;
            layer.patterns.extend(self.pattern(&keyword, source)?.map(|pattern| (pattern, part)));
        }
        let rest = self.get("additionalProperties");
        layer.rest = rest.map(|rest| self.part("additionalProperties", rest)).transpose()?;
        let mut objects = Objects {
            required: self.required()?,
            min: self.count("minProperties")?.unwrap_or(0),
            most: self.count("maxProperties")?,
            ..Objects::default()
        };
        if let Some(names) = self.get("propertyNames") {
            objects.names.push(self.part("propertyNames", names)?);
        }
        if layer.says_something() {
            objects.layers.push(layer);
        }
        let fewest = objects.min.max(objects.required.len() as u64);
        Ok(objects.most.is_none_or(|most| fewest <= most).then_some(objects))
    }

    fn required(&self) -> Result<Vec<String>, Refused> {
        match self.get("required") {
            None => Ok(Vec::new()),
            Some(list) => self.names("required", list),
        }
    }

    /// A list of names of properties.
    pub(super) fn names(&self, keyword: &str, list: &Value) -> Result<Vec<String>, Refused> {
        let bad = || self.refused(keyword, format!("it is a list of names, not {}", kind(list)));
        let mut names: Vec<String> = Vec::new();
        for name in list.as_array().ok_or_else(bad)? {
            let name = name.as_str().ok_or_else(bad)?;
            if !names.iter().any(|known| known == name) {
                names.push(name.into());
            }
        }
        Ok(names)
    }
}
