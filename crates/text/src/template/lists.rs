//! Filters of lists.

use std::cmp::Ordering;

use super::Failure;
use super::run::{CallArgs, Done, Run};
use super::value::{Kind, Value};

impl Run<'_> {
    pub(super) fn list_filter(&mut self, name: &str, value: Value, mut args: CallArgs) -> Done<Value> {
        match name {
            "map" => self.map(&value, args),
            "select" | "reject" | "selectattr" | "rejectattr" => self.select(name, &value, args),
            "reverse" => {
                if let Value::Str(text) = &value {
                    self.spend(text.of.len())?;
                    let reversed: String = text.of.chars().rev().collect();
                    return self.text(reversed);
                }
                let mut items = self.items(&value)?;
                items.reverse();
                self.once(items)
            }
            "sort" => {
                let reverse = args.take(0, "reverse").is_some_and(|reverse| reverse.is_true());
                let keys = Keys::take(&mut args, 1, 2).each();
                let items = self.items(&value)?;
                let sorted = self.sorted(items, &keys, reverse)?;
                self.list(sorted)
            }
            "unique" => {
                let keys = Keys::take(&mut args, 0, 1);
                let mut found: Vec<Value> = Vec::new();
                let mut kept = Vec::new();
                for item in self.items(&value)? {
                    let key = self.key(&item, &keys)?;
                    let mut known = false;
                    for other in &found {
                        known = known || self.equals(other, &key)?;
                    }
                    if !known {
                        found.push(key);
                        kept.push(item);
                    }
                }
                self.once(kept)
            }
            "min" | "max" => {
                let keys = Keys::take(&mut args, 0, 1);
                let items = self.items(&value)?;
                let sorted = self.sorted(items, &keys, name == "max")?;
                Ok(sorted
                    .into_iter()
                    .next()
                    .unwrap_or_else(|| Value::undefined("the least or most of nothing")))
            }
            "sum" => {
                let attribute = args.take(0, "attribute").filter(|a| !matches!(a, Value::None));
                let mut sum = args.take(1, "start").unwrap_or(Value::Int(0));
                for item in self.items(&value)? {
                    let item = match &attribute {
                        Some(attribute) => self.attribute(&item, attribute)?,
                        None => item,
                    };
                    sum = self.arithmetic(super::ast::Operator::Add, &sum, &item)?;
                }
                Ok(sum)
            }
            "dictsort" => {
                let case = args.take(0, "case_sensitive").is_some_and(|case| case.is_true());
                let by_value = args.take(1, "by").is_some_and(|by| by.as_str() == Some("value"));
                let reverse = args.take(2, "reverse").is_some_and(|reverse| reverse.is_true());
                let Value::Dict(_) = &value else { return Err(Failure::operand("dictsort", &value)) };
                let pairs = super::methods::call(self, &value, "items", CallArgs::default())?;
                let pairs = self.items(&pairs)?;
                let place = Value::Int(i128::from(by_value));
                let sorted =
                    self.sorted(pairs, &Keys { attributes: vec![place], case, default: None }, reverse)?;
                self.list(sorted)
            }
            "batch" => {
                let size = args
                    .take(0, "linecount")
                    .and_then(|n| usize::try_from(n.as_int()?).ok())
                    .filter(|n| *n > 0);
                let size = size.ok_or_else(|| Failure::wrong("batch needs a number of items"))?;
                let fill = args.take(1, "fill_with").filter(|fill| !matches!(fill, Value::None));
                let mut batches = Vec::new();
                for items in self.items(&value)?.chunks(size) {
                    let mut batch = items.to_vec();
                    if let Some(fill) = &fill {
                        self.room(size.saturating_mul(size_of::<Value>()))?;
                        batch.resize(size, fill.clone());
                    }
                    batches.push(self.list(batch)?);
                }
                self.once(batches)
            }
            "slice" => self.slices(&value, args),
            "groupby" => self.groups(&value, args),
            _ => Err(Failure::wrong(format!("there is no filter named '{name}'"))),
        }
    }

    /// `slice`: a list in `slices` parts of equal length, as far as possible.
    fn slices(&mut self, value: &Value, mut args: CallArgs) -> Done<Value> {
        let count = args.take(0, "slices").and_then(|n| usize::try_from(n.as_int()?).ok()).filter(|n| *n > 0);
        let count = count.ok_or_else(|| Failure::wrong("slice needs a number of slices"))?;
        let fill = args.take(1, "fill_with").filter(|fill| !matches!(fill, Value::None));
        let items = self.items(value)?;
        // Each slice is a list of its own.
        self.room(count.saturating_mul(160))?;
        let (each, more) = (items.len() / count, items.len() % count);
        let (mut slices, mut from) = (Vec::with_capacity(count), 0);
        for at in 0..count {
            let end = from + each + usize::from(at < more);
            let mut slice = items[from..end].to_vec();
            slice.extend(fill.clone().filter(|_| at >= more));
            slices.push(self.list(slice)?);
            from = end;
        }
        self.once(slices)
    }

    /// `groupby`: groups of items with the same key, each with that key.
    fn groups(&mut self, value: &Value, mut args: CallArgs) -> Done<Value> {
        let attribute =
            args.take(0, "attribute").ok_or_else(|| Failure::wrong("groupby needs an attribute"))?;
        let default = args.take(1, "default").filter(|default| !matches!(default, Value::None));
        let case = args.take(2, "case_sensitive").is_some_and(|case| case.is_true());
        let keys = Keys { attributes: vec![attribute], case, default };
        let items = self.items(value)?;
        let sorted = self.sorted(items, &keys, false)?;
        let mut groups: Vec<(Value, Vec<Value>)> = Vec::new();
        for item in sorted {
            let key = self.key(&item, &keys)?;
            match groups.last_mut() {
                Some((last, group)) if self.equals(last, &key)? => group.push(item),
                _ => groups.push((key, vec![item])),
            }
        }
        let exact = Keys { case: true, ..keys };
        let mut found = Vec::new();
        for (_, group) in groups {
            // The key as the group's first item has it, with its case.
            let common = self.key(&group[0], &exact)?;
            let group = self.list(group)?;
            found.push(self.sequence(vec![common, group], Kind::Group)?);
        }
        self.list(found)
    }

    fn map(&mut self, value: &Value, mut args: CallArgs) -> Done<Value> {
        let items = if value.is_true() { self.items(value)? } else { Vec::new() };
        let attribute = args.named.iter().position(|(name, _)| &**name == "attribute");
        let mapped: Vec<Value> = if let Some(at) = attribute {
            let attribute = args.named.swap_remove(at).1;
            let default = args.take(usize::MAX, "default");
            let get = |item: &Value| {
                let found = self.attribute(item, &attribute)?;
                Ok(if found.is_undefined() { default.clone().unwrap_or(found) } else { found })
            };
            items.iter().map(get).collect::<Done<_>>()?
        } else {
            if args.plain.is_empty() {
                return Err(Failure::wrong("map needs a filter's name or an attribute"));
            }
            let name = args.plain.remove(0);
            let name = name.as_str().ok_or_else(|| Failure::wrong("map needs a filter's name"))?.to_owned();
            let again = |args: &CallArgs| CallArgs { plain: args.plain.clone(), named: args.named.clone() };
            items.into_iter().map(|item| self.filter(&name, item, again(&args))).collect::<Done<_>>()?
        };
        self.once(mapped)
    }

    fn select(&mut self, name: &str, value: &Value, mut args: CallArgs) -> Done<Value> {
        let wanted = name.starts_with("select");
        let attribute = match name.ends_with("attr") {
            true if args.plain.is_empty() => {
                return Err(Failure::wrong(format!("{name} needs an attribute")));
            }
            true => Some(args.plain.remove(0)),
            false => None,
        };
        let test = match args.plain.is_empty() {
            true => None,
            false => Some(args.plain.remove(0)),
        };
        let mut kept = Vec::new();
        let items = if value.is_true() { self.items(value)? } else { Vec::new() };
        for item in items {
            let subject = match &attribute {
                Some(attribute) => self.attribute(&item, attribute)?,
                None => item.clone(),
            };
            let holds = match &test {
                None => subject.is_true(),
                Some(test) => {
                    let test =
                        test.as_str().ok_or_else(|| Failure::wrong(format!("{name} needs a test's name")))?;
                    self.spend(0)?;
                    self.test(
                        test,
                        &subject,
                        CallArgs { plain: args.plain.clone(), named: args.named.clone() },
                    )?
                }
            };
            if holds == wanted {
                kept.push(item);
            }
        }
        self.once(kept)
    }

    /// Sort key of an item.
    fn key(&mut self, item: &Value, keys: &Keys) -> Done<Value> {
        let mut found = Vec::with_capacity(1);
        for attribute in &keys.attributes {
            let key = self.attribute(item, attribute)?;
            found.push(if key.is_undefined() { keys.default.clone().unwrap_or(key) } else { key });
        }
        if found.is_empty() {
            found.push(item.clone());
        }
        for key in &mut found {
            if let Value::Str(text) = key
                && !keys.case
            {
                let lower = text.of.to_lowercase();
                *key = self.text(lower)?;
            }
        }
        match <[Value; 1]>::try_from(found) {
            Ok([key]) => Ok(key),
            Err(several) => self.sequence(several, Kind::Tuple),
        }
    }

    /// Stable sort.
    fn sorted(&mut self, items: Vec<Value>, keys: &Keys, reverse: bool) -> Done<Vec<Value>> {
        let keyed = items.into_iter().map(|item| Ok((self.key(&item, keys)?, item)));
        let mut keyed: Vec<(Value, Value)> = keyed.collect::<Done<_>>()?;
        let mut failed = None;
        keyed.sort_by(|(a, _), (b, _)| {
            if failed.is_some() {
                return Ordering::Equal;
            }
            match self.order("<", a, b) {
                Ok(order) if reverse => order.unwrap_or(Ordering::Equal).reverse(),
                Ok(order) => order.unwrap_or(Ordering::Equal),
                Err(e) => {
                    failed = Some(e);
                    Ordering::Equal
                }
            }
        });
        match failed {
            Some(e) => Err(e),
            None => Ok(keyed.into_iter().map(|(_, item)| item).collect()),
        }
    }
}

/// Sort keys: attributes, or the items themselves, and whether case matters.
struct Keys {
    attributes: Vec<Value>,
    case: bool,
    /// Key of an item that has no such attribute.
    default: Option<Value>,
}

impl Keys {
    fn take(args: &mut CallArgs, case_at: usize, attribute_at: usize) -> Keys {
        let case = args.take(case_at, "case_sensitive").is_some_and(|case| case.is_true());
        let attribute = args.take(attribute_at, "attribute").filter(|a| !matches!(a, Value::None));
        Keys { attributes: attribute.into_iter().collect(), case, default: None }
    }

    /// Splits an attribute with commas into several.
    fn each(self) -> Keys {
        let [Value::Str(text)] = self.attributes.as_slice() else { return self };
        let parts: Vec<Value> = text.of.split(',').map(|part| text.part(part)).collect();
        Keys { attributes: parts, ..self }
    }
}
