//! Schemas as unions of shapes: [`Schemas::expand`].

use hashbrown::HashSet;
use serde_json::{Map, Value};

use super::decimal::Decimal;
use super::document::{Part, Place};
use super::draft;
use super::keywords::{Reader, plain};
use super::numbers::Numbers;
use super::overlap;
use super::schemas::{MOST_SHAPES, Made, Schemas};
use super::shape::{Arrays, Items, Objects, Properties, Shape};
use super::strings::Strings;
use super::{kind, opposite, uri};
use crate::refused::Refused;

/// Maximum schemas that are applied to the same value, one inside of the other.
const MOST_IN_PLACE: usize = 100;

/// The schemas that are applied to one value.
#[derive(Debug, Clone, Default)]
pub(super) struct Path {
    /// One inside of the other.
    open: Vec<Part>,
    /// Those that hold for certain: applied again, they change nothing.
    hold: HashSet<Part>,
}

impl<'s> Schemas<'s> {
    /// The values that are valid under all of these.
    pub(super) fn expand(&mut self, all: &[Part]) -> Result<Vec<Shape>, Refused> {
        let mut shapes = vec![Shape::any()];
        let mut path = Path::default();
        for part in all {
            shapes = self.apply(shapes, *part, &mut path)?;
        }
        Ok(shapes)
    }

    /// The values of these shapes that are valid under a schema.
    pub(super) fn apply(
        &mut self,
        shapes: Vec<Shape>,
        part: Part,
        path: &mut Path,
    ) -> Result<Vec<Shape>, Refused> {
        if self.depth > MOST_IN_PLACE {
            let why = format!(
                "more than {MOST_IN_PLACE} schemas apply each other to the same value: use fewer steps"
            );
            return Err(Refused::at(self.pointer(&[part]), why));
        }
        self.depth += 1;
        let applied = self.apply_one(shapes, part, path);
        self.depth -= 1;
        applied
    }

    fn apply_one(&mut self, shapes: Vec<Shape>, part: Part, path: &mut Path) -> Result<Vec<Shape>, Refused> {
        if let Some(made) = self.made(part) {
            let shapes_of = match made {
                Made::Value(value) => vec![self.value(value)?],
                Made::Opposite(all, pointer) => {
                    let shapes = self.expand(&all)?;
                    match opposite::of(self, &shapes, &pointer)? {
                        Some(shapes) => shapes,
                        None => {
                            let keyword = pointer.rsplit('/').next().unwrap_or_default();
                            self.leave_out(Refused::at(pointer.clone(), draft::why(keyword)))?;
                            vec![Shape::any()]
                        }
                    }
                }
                Made::Any => vec![Shape::any()],
                Made::Never => Vec::new(),
            };
            return self.meet(&shapes, &shapes_of);
        }
        let Some(place) = self.document.place(part).cloned() else { return Ok(Vec::new()) };
        if path.open.contains(&part) {
            let why = "it applies itself to the same value again, without a property or an item in between";
            return Err(Refused::at(place.pointer, why));
        }
        if path.hold.contains(&part) {
            return Ok(shapes);
        }
        path.open.push(part);
        let applied = match place.value {
            Value::Bool(false) => Ok(Vec::new()),
            Value::Object(schema) => self.evaluated(shapes, (part, &place, schema), path),
            _ => Ok(shapes),
        };
        path.open.pop();
        path.hold.insert(part);
        applied
    }

    /// A schema, with what it says about properties and items that nothing in it evaluates.
    fn evaluated(
        &mut self,
        shapes: Vec<Shape>,
        (part, place, schema): (Part, &Place<'s>, &'s Map<String, Value>),
        path: &mut Path,
    ) -> Result<Vec<Shape>, Refused> {
        let get = |schemas: &Self, keyword: &str| {
            let value = schema.get(keyword).filter(|_| place.draft.knows(keyword))?;
            schemas.part(value)
        };
        let (properties, items) = (get(self, "unevaluatedProperties"), get(self, "unevaluatedItems"));
        if properties.is_none() && items.is_none() {
            return self.object(shapes, (part, place, schema), path);
        }
        // What schemas around this one evaluate does not count.
        let mut inside = Path { open: path.open.clone(), hold: HashSet::new() };
        let mut own = self.object(vec![Shape::any()], (part, place, schema), &mut inside)?;
        for shape in &mut own {
            if let (Some(rest), Some(objects)) = (properties, &mut shape.objects) {
                objects.add_unevaluated(Schemas::any(), rest);
            }
            if let (Some(rest), Some(arrays)) = (items, &mut shape.arrays) {
                arrays.add_unevaluated(Schemas::any(), rest);
            }
        }
        self.meet(&shapes, &own)
    }

    fn object(
        &mut self,
        mut shapes: Vec<Shape>,
        (part, place, schema): (Part, &Place<'s>, &'s Map<String, Value>),
        path: &mut Path,
    ) -> Result<Vec<Shape>, Refused> {
        let hidden = place.draft.ref_hides() && schema.contains_key("$ref");
        if !hidden {
            let plain = plain(&mut Reader { schemas: self, place, schema })?;
            shapes = self.meet(&shapes, &[plain])?;
            shapes = self.constants(shapes, place, schema)?;
        }
        for keyword in ["$ref", "$dynamicRef", "$recursiveRef"] {
            let Some(reference) = schema.get(keyword).filter(|_| place.draft.knows(keyword)) else {
                continue;
            };
            let Some(reference) = reference.as_str() else {
                let why = format!("it is a string, not {}", kind(reference));
                return Err(Refused::at(format!("{}/{keyword}", place.pointer), why));
            };
            if keyword != "$ref" && self.document.is_dynamic(reference) {
                self.leave_out(Refused::at(format!("{}/{keyword}", place.pointer), draft::why(keyword)))?;
                continue;
            }
            let target = self.document.resolve(part, keyword, reference)?;
            shapes = self.apply(shapes, target, path)?;
        }
        if hidden {
            return Ok(shapes);
        }
        for branch in self.branches(place, schema, "allOf")? {
            shapes = self.apply(shapes, branch, path)?;
        }
        let any_of = self.branches(place, schema, "anyOf")?;
        if !any_of.is_empty() {
            let mut united = Vec::new();
            for branch in any_of {
                united.extend(self.apply(shapes.clone(), branch, &mut path.clone())?);
                self.check_count(&united, place, "anyOf")?;
            }
            shapes = united;
        }
        shapes = self.dependent(shapes, place, schema, path)?;
        shapes = self.opposites(shapes, place, schema, path)?;
        let one_of = self.branches(place, schema, "oneOf")?;
        if !one_of.is_empty() {
            shapes = self.one_of(&shapes, place, &one_of, path)?;
        }
        Ok(shapes)
    }

    fn check_count(&self, shapes: &[Shape], place: &Place<'_>, keyword: &str) -> Result<(), Refused> {
        if shapes.len() > MOST_SHAPES {
            let why = format!("there are more than {MOST_SHAPES} combinations of alternatives: use fewer");
            return Err(Refused::at(format!("{}/{keyword}", place.pointer), why));
        }
        Ok(())
    }

    /// The subschemas that a keyword applies to the same value.
    fn branches(
        &self,
        place: &Place<'s>,
        schema: &'s Map<String, Value>,
        keyword: &str,
    ) -> Result<Vec<Part>, Refused> {
        let Some(value) = schema.get(keyword) else { return Ok(Vec::new()) };
        let bad = || {
            let why = "it is a list of at least one schema";
            Refused::at(format!("{}/{keyword}", place.pointer), why)
        };
        let list = value.as_array().filter(|list| !list.is_empty()).ok_or_else(bad)?;
        list.iter().map(|branch| self.part(branch).ok_or_else(bad)).collect()
    }

    fn constants(
        &mut self,
        mut shapes: Vec<Shape>,
        place: &Place<'s>,
        schema: &'s Map<String, Value>,
    ) -> Result<Vec<Shape>, Refused> {
        if let Some(value) = schema.get("const").filter(|_| place.draft.knows("const")) {
            let at = format!("{}/const", place.pointer);
            let one = self.value(value).map_err(|refused| refused.inside(&at))?;
            shapes = self.meet(&shapes, &[one])?;
        }
        if let Some(list) = schema.get("enum") {
            let at = format!("{}/enum", place.pointer);
            let Some(list) = list.as_array() else {
                return Err(Refused::at(at, format!("it is a list, not {}", kind(list))));
            };
            let mut scalars = Shape::none();
            let (mut numbers, mut strings) = (Vec::new(), Vec::new());
            let mut options = Vec::new();
            for (i, value) in list.iter().enumerate() {
                let one = self.value(value).map_err(|refused| refused.inside(&format!("{at}/{i}")))?;
                match value {
                    Value::Null => scalars.null = true,
                    Value::Bool(b) => scalars.booleans[usize::from(*b)] = true,
                    Value::Number(_) => {
                        numbers.extend(one.numbers.and_then(|n| n.among).into_iter().flatten())
                    }
                    Value::String(_) => strings.push(value.as_str().unwrap_or_default().to_owned()),
                    _ => options.push(one),
                }
            }
            if !numbers.is_empty() {
                scalars.numbers = Some(Numbers { among: Some(numbers), ..Numbers::default() });
            }
            if !strings.is_empty() {
                scalars.strings = Some(Strings { among: Some(strings), ..Strings::default() });
            }
            options.push(scalars);
            shapes = self.meet(&shapes, &options)?;
        }
        Ok(shapes)
    }

    /// The shape of one value.
    fn value(&mut self, value: &'s Value) -> Result<Shape, Refused> {
        let mut shape = Shape::none();
        match value {
            Value::Null => shape.null = true,
            Value::Bool(b) => shape.booleans[usize::from(*b)] = true,
            Value::Number(number) => {
                let why = || Refused::whole(format!("{number} has too many digits: use fewer than 18"));
                let number = Decimal::read(number).ok_or_else(why)?;
                shape.numbers = Some(Numbers { among: Some(vec![number]), ..Numbers::default() });
            }
            Value::String(text) => {
                shape.strings = Some(Strings { among: Some(vec![text.clone()]), ..Strings::default() });
            }
            Value::Array(list) => {
                let prefix = list.iter().map(|item| self.make(Made::Value(item))).collect();
                let layer = Items { prefix, rest: Some(Schemas::never()), evaluates: false };
                let count = list.len() as u64;
                shape.arrays =
                    Some(Arrays { layers: vec![layer], min: count, most: Some(count), ..Arrays::default() });
            }
            Value::Object(map) => {
                let named = map.iter().map(|(name, value)| (name.clone(), self.make(Made::Value(value))));
                let named = named.collect();
                let layer = Properties { named, rest: Some(Schemas::never()), ..Properties::default() };
                let required = map.keys().cloned().collect();
                shape.objects = Some(Objects { layers: vec![layer], required, ..Objects::default() });
            }
        }
        Ok(shape)
    }

    /// Objects without a property, or under a further schema.
    fn dependent(
        &mut self,
        mut shapes: Vec<Shape>,
        place: &Place<'s>,
        schema: &'s Map<String, Value>,
        path: &mut Path,
    ) -> Result<Vec<Shape>, Refused> {
        for keyword in ["dependencies", "dependentRequired", "dependentSchemas"] {
            let Some(map) = schema.get(keyword).filter(|_| place.draft.knows(keyword)) else { continue };
            let at = format!("{}/{keyword}", place.pointer);
            let Some(map) = map.as_object() else {
                return Err(Refused::at(at, format!("it is an object, not {}", kind(map))));
            };
            for (name, value) in map {
                let mut without = Shape::any();
                without.objects = Some(opposite::without(name));
                let mut options = self.meet(&shapes, &[without])?;
                let mut with = Shape::none();
                let mut objects = Objects { required: vec![name.clone()], ..Objects::default() };
                match (value, self.part(value)) {
                    (Value::Array(_), _) => {
                        let reader = Reader { schemas: self, place, schema };
                        let key = format!("{keyword}/{}", uri::escape(name));
                        for name in reader.names(&key, value)? {
                            if !objects.required.contains(&name) {
                                objects.required.push(name);
                            }
                        }
                        with.objects = Some(objects);
                        options.extend(self.meet(&shapes, &[with])?);
                    }
                    (_, Some(part)) => {
                        with.objects = Some(objects);
                        let shapes = self.meet(&shapes, &[with])?;
                        options.extend(self.apply(shapes, part, &mut path.clone())?);
                    }
                    _ => return Err(Refused::at(at, "each is a schema or a list of names")),
                }
                self.check_count(&options, place, keyword)?;
                shapes = options;
            }
        }
        Ok(shapes)
    }

    /// `not`, and `if` with `then` and `else`.
    fn opposites(
        &mut self,
        mut shapes: Vec<Shape>,
        place: &Place<'s>,
        schema: &'s Map<String, Value>,
        path: &mut Path,
    ) -> Result<Vec<Shape>, Refused> {
        let part = |schemas: &Self, keyword: &str| {
            let value = schema.get(keyword).filter(|_| place.draft.knows(keyword));
            value.and_then(|value| schemas.part(value))
        };
        if let Some(not) = part(self, "not") {
            let not = self.opposite(&vec![not], &format!("{}/not", place.pointer));
            shapes = self.apply(shapes, not, path)?;
        }
        let (then, or_else) = (part(self, "then"), part(self, "else"));
        if let Some(condition) = part(self, "if").filter(|_| then.is_some() || or_else.is_some()) {
            let pointer = format!("{}/if", place.pointer);
            if self.best_effort {
                let holds = self.expand(&[condition])?;
                if opposite::of(self, &holds, &pointer)?.is_none() {
                    self.leave_out(Refused::at(pointer, draft::why("if")))?;
                    return Ok(shapes);
                }
            }
            let (mut holds, mut fails) = (path.clone(), path.clone());
            let mut options = self.apply(shapes.clone(), condition, &mut holds)?;
            if let Some(then) = then {
                options = self.apply(options, then, &mut holds)?;
            }
            let not = self.opposite(&vec![condition], &pointer);
            let mut others = self.apply(shapes, not, &mut fails)?;
            if let Some(or_else) = or_else {
                others = self.apply(others, or_else, &mut fails)?;
            }
            options.extend(others);
            self.check_count(&options, place, "if")?;
            shapes = options;
        }
        Ok(shapes)
    }

    fn one_of(
        &mut self,
        shapes: &[Shape],
        place: &Place<'s>,
        branches: &[Part],
        path: &mut Path,
    ) -> Result<Vec<Shape>, Refused> {
        let pointer = format!("{}/oneOf", place.pointer);
        let mut each = Vec::with_capacity(branches.len());
        for branch in branches {
            each.push(self.apply(shapes.to_vec(), *branch, &mut path.clone())?);
        }
        let mut united = Vec::new();
        for (i, mut own) in each.clone().into_iter().enumerate() {
            for (j, others) in each.iter().enumerate().filter(|(j, _)| *j != i) {
                if overlap::are_disjoint(self, &own, others, 0)? {
                    continue;
                }
                // What is valid under both is valid under neither.
                let holds = self.expand(&[branches[j]])?;
                match opposite::of(self, &holds, &pointer)? {
                    Some(not) => own = self.meet(&own, &not)?,
                    None => self.leave_out(Refused::at(pointer.clone(), draft::why("oneOf")))?,
                }
            }
            united.extend(own);
            self.check_count(&united, place, "oneOf")?;
        }
        Ok(united)
    }
}
