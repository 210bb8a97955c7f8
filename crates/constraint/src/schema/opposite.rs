//! [`of()`]: the values that are in none of some shapes, where shapes can say so.

use super::document::Part;
use super::numbers::Numbers;
use super::schemas::Schemas;
use super::shape::{Arrays, Objects, Properties, Shape};
use super::strings::Strings;
use crate::refused::Refused;

/// The values that are in none of these. `None` if shapes cannot say so. `pointer` is the keyword that asks.
pub(super) fn of(
    schemas: &mut Schemas<'_>,
    shapes: &[Shape],
    pointer: &str,
) -> Result<Option<Vec<Shape>>, Refused> {
    let mut all = vec![Shape::any()];
    for shape in shapes {
        let Some(not) = of_one(schemas, shape, pointer) else { return Ok(None) };
        all = schemas.meet(&all, &not)?;
    }
    Ok(Some(all))
}

/// Objects that do not have a property.
pub(super) fn without(name: &str) -> Objects {
    let named = vec![(name.to_owned(), Schemas::never())];
    Objects { layers: vec![Properties { named, ..Properties::default() }], ..Objects::default() }
}

fn of_one(schemas: &mut Schemas<'_>, shape: &Shape, pointer: &str) -> Option<Vec<Shape>> {
    let mut scalars = Shape::none();
    scalars.null = !shape.null;
    scalars.booleans = shape.booleans.map(|b| !b);
    let mut all = vec![scalars];
    let mut add = |change: &dyn Fn(&mut Shape)| {
        let mut shape = Shape::none();
        change(&mut shape);
        all.push(shape);
    };
    for numbers in not_numbers(shape.numbers.as_ref())? {
        add(&|shape| shape.numbers = Some(numbers.clone()));
    }
    for strings in not_strings(shape.strings.as_ref())? {
        add(&|shape| shape.strings = Some(strings.clone()));
    }
    for arrays in not_arrays(shape.arrays.as_ref())? {
        add(&|shape| shape.arrays = Some(arrays.clone()));
    }
    for objects in not_objects(schemas, shape.objects.as_ref(), pointer)? {
        add(&|shape| shape.objects = Some(objects.clone()));
    }
    Some(all)
}

fn not_numbers(numbers: Option<&Numbers>) -> Option<Vec<Numbers>> {
    let Some(numbers) = numbers else { return Some(vec![Numbers::default()]) };
    // Multiples may be written in many ways.
    if numbers.multiple_of.is_some() || !numbers.without.is_empty() {
        return None;
    }
    if let Some(among) = &numbers.among {
        return Some(vec![Numbers { without: among.clone(), ..Numbers::default() }]);
    }
    let flip = |bound: Option<_>| bound.map(|(n, excluded): (_, bool)| (n, !excluded));
    let below = numbers.low.map(|_| Numbers { high: flip(numbers.low), ..Numbers::default() });
    let above = numbers.high.map(|_| Numbers { low: flip(numbers.high), ..Numbers::default() });
    let fraction = numbers.integer.then(|| Numbers { fraction: true, ..Numbers::default() });
    let integer = numbers.fraction.then(|| Numbers { integer: true, ..Numbers::default() });
    Some([below, above, fraction, integer].into_iter().flatten().collect())
}

fn not_strings(strings: Option<&Strings>) -> Option<Vec<Strings>> {
    let Some(strings) = strings else { return Some(vec![Strings::default()]) };
    if let Some(among) = &strings.among {
        return Some(vec![Strings { without: among.clone(), ..Strings::default() }]);
    }
    if !strings.formats.is_empty() {
        return None;
    }
    let mut all = Vec::new();
    if strings.min > 0 {
        all.push(Strings { most: Some(strings.min - 1), ..Strings::default() });
    }
    all.extend(strings.most.map(|most| Strings { min: most.saturating_add(1), ..Strings::default() }));
    let one = |pattern: &String| vec![pattern.clone()];
    all.extend(strings.patterns.iter().map(|p| Strings { not_patterns: one(p), ..Strings::default() }));
    all.extend(strings.not_patterns.iter().map(|p| Strings { patterns: one(p), ..Strings::default() }));
    if !strings.without.is_empty() {
        all.push(Strings { among: Some(strings.without.clone()), ..Strings::default() });
    }
    Some(all)
}

fn not_arrays(arrays: Option<&Arrays>) -> Option<Vec<Arrays>> {
    let Some(arrays) = arrays else { return Some(vec![Arrays::default()]) };
    if !arrays.layers.is_empty() || !arrays.contains.is_empty() {
        return None;
    }
    let mut all = Vec::new();
    if arrays.min > 0 {
        all.push(Arrays { most: Some(arrays.min - 1), ..Arrays::default() });
    }
    all.extend(arrays.most.map(|most| Arrays { min: most.saturating_add(1), ..Arrays::default() }));
    Some(all)
}

fn not_objects(schemas: &mut Schemas<'_>, objects: Option<&Objects>, pointer: &str) -> Option<Vec<Objects>> {
    let Some(objects) = objects else { return Some(vec![Objects::default()]) };
    let open = |layer: &Properties| layer.patterns.is_empty() && layer.rest.is_none();
    if !objects.names.is_empty() || !objects.layers.iter().all(open) {
        return None;
    }
    let mut all: Vec<Objects> = objects.required.iter().map(|name| without(name)).collect();
    if objects.min > 0 {
        all.push(Objects { most: Some(objects.min - 1), ..Objects::default() });
    }
    all.extend(objects.most.map(|most| Objects { min: most.saturating_add(1), ..Objects::default() }));
    for layer in &objects.layers {
        for (name, part) in &layer.named {
            all.push(with(schemas, name, *part, pointer));
        }
    }
    Some(all)
}

/// Objects that have a property that is not valid.
fn with(schemas: &mut Schemas<'_>, name: &str, part: Part, pointer: &str) -> Objects {
    let required = vec![name.to_owned()];
    let mut layer = Properties::default();
    if part != Schemas::never() {
        layer.named.push((name.to_owned(), schemas.opposite(&vec![part], pointer)));
    }
    let layers = if layer.named.is_empty() { Vec::new() } else { vec![layer] };
    Objects { layers, required, ..Objects::default() }
}
