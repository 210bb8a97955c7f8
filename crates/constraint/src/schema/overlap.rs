//! [`are_disjoint`]: whether no value is in two unions of shapes, as far as that can be seen.

use super::schemas::Schemas;
use super::shape::{All, Arrays, Objects, Shape, join};
use crate::refused::Refused;

/// Depth of properties and items that are looked at.
const MOST_DEPTH: usize = 3;

/// True if it is certain that no value is in both.
pub(super) fn are_disjoint(
    schemas: &mut Schemas<'_>,
    a: &[Shape],
    b: &[Shape],
    depth: usize,
) -> Result<bool, Refused> {
    for a in a {
        for b in b {
            if !one(schemas, a, b, depth)? {
                return Ok(false);
            }
        }
    }
    Ok(true)
}

fn one(schemas: &mut Schemas<'_>, a: &Shape, b: &Shape, depth: usize) -> Result<bool, Refused> {
    schemas.budget().spend(1)?;
    if (a.null && b.null) || (0..2).any(|i| a.booleans[i] && b.booleans[i]) {
        return Ok(false);
    }
    if let (Some(a), Some(b)) = (&a.numbers, &b.numbers)
        && !a.is_disjoint(b)
    {
        return Ok(false);
    }
    if let (Some(a), Some(b)) = (&a.strings, &b.strings)
        && !a.is_disjoint(b)?
    {
        return Ok(false);
    }
    if let (Some(a), Some(b)) = (&a.arrays, &b.arrays)
        && !arrays(schemas, a, b, depth)?
    {
        return Ok(false);
    }
    if let (Some(a), Some(b)) = (&a.objects, &b.objects)
        && !objects(schemas, a, b, depth)?
    {
        return Ok(false);
    }
    Ok(true)
}

/// True if no value is valid under both lists of schemas.
fn exclude_each_other(schemas: &mut Schemas<'_>, a: All, b: &All, depth: usize) -> Result<bool, Refused> {
    let mut both = a.clone();
    join(&mut both, b);
    if schemas.is_never(&both) {
        return Ok(true);
    }
    if depth >= MOST_DEPTH || a.is_empty() || b.is_empty() {
        return Ok(false);
    }
    let (a, b) = (schemas.expand(&a)?, schemas.expand(b)?);
    are_disjoint(schemas, &a, &b, depth + 1)
}

fn arrays(schemas: &mut Schemas<'_>, a: &Arrays, b: &Arrays, depth: usize) -> Result<bool, Refused> {
    let most = a.most.unwrap_or(u64::MAX).min(b.most.unwrap_or(u64::MAX));
    if a.min.max(b.min) > most {
        return Ok(true);
    }
    // An item that one of them has for certain, and that is not valid in the other.
    for at in 0..a.min.max(b.min).min(8) as usize {
        if exclude_each_other(schemas, a.item(at), &b.item(at), depth)? {
            return Ok(true);
        }
    }
    Ok(false)
}

fn objects(schemas: &mut Schemas<'_>, a: &Objects, b: &Objects, depth: usize) -> Result<bool, Refused> {
    let fewest = a.min.max(b.min).max(a.required.len() as u64).max(b.required.len() as u64);
    if fewest > a.most.unwrap_or(u64::MAX).min(b.most.unwrap_or(u64::MAX)) {
        return Ok(true);
    }
    let mut names = a.required.clone();
    names.extend(b.required.iter().filter(|name| !a.required.contains(name)).cloned());
    for name in &names {
        let of = |objects: &Objects| -> Result<All, Refused> {
            let mut all = All::new();
            for layer in &objects.layers {
                let matched = layer.matched(name)?;
                join(&mut all, &layer.of(Some(name), &matched));
            }
            Ok(all)
        };
        let (in_a, in_b) = (of(a)?, of(b)?);
        if exclude_each_other(schemas, in_a, &in_b, depth)? {
            return Ok(true);
        }
    }
    Ok(false)
}
