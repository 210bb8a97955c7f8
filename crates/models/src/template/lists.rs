//! The filters of lists.

use std::cmp::Ordering;

use super::Failure;
use super::run::{Done, Given, Run};
use super::value::Value;

impl Run<'_> {
    pub(super) fn list_filter(&mut self, name: &str, value: Value, mut given: Given) -> Done<Value> {
        match name {
            "map" => self.map(&value, given),
            "select" | "reject" | "selectattr" | "rejectattr" => self.select(name, &value, given),
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
                let reverse = given.take(0, "reverse").is_some_and(|reverse| reverse.is_true());
                let keys = Keys::take(&mut given, 1, 2);
                let items = self.items(&value)?;
                let sorted = self.sorted(items, &keys, reverse)?;
                self.list(sorted)
            }
            "unique" => {
                let keys = Keys::take(&mut given, 0, 1);
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
                let keys = Keys::take(&mut given, 0, 1);
                let items = self.items(&value)?;
                let sorted = self.sorted(items, &keys, name == "max")?;
                Ok(sorted
                    .into_iter()
                    .next()
                    .unwrap_or_else(|| Value::undefined("the least or most of nothing")))
            }
            "sum" => {
                let attribute = given.take(0, "attribute").filter(|a| !matches!(a, Value::None));
                let mut sum = given.take(1, "start").unwrap_or(Value::Int(0));
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
                let case = given.take(0, "case_sensitive").is_some_and(|case| case.is_true());
                let by_value = given.take(1, "by").is_some_and(|by| by.as_str() == Some("value"));
                let reverse = given.take(2, "reverse").is_some_and(|reverse| reverse.is_true());
                let Value::Dict(_) = &value else { return Err(Failure::operand("dictsort", &value)) };
                let pairs = super::methods::call(self, &value, "items", Given::default())?;
                let pairs = self.items(&pairs)?;
                let place = Value::Int(i128::from(by_value));
                let sorted = self.sorted(pairs, &Keys { attribute: Some(place), case }, reverse)?;
                self.list(sorted)
            }
            "batch" => {
                let size = given
                    .take(0, "linecount")
                    .and_then(|n| usize::try_from(n.as_int()?).ok())
                    .filter(|n| *n > 0);
                let size = size.ok_or_else(|| Failure::wrong("batch needs a number of items"))?;
                let fill = given.take(1, "fill_with").filter(|fill| !matches!(fill, Value::None));
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
            _ => Err(Failure::wrong(format!("there is no filter named '{name}'"))),
        }
    }

    fn map(&mut self, value: &Value, mut given: Given) -> Done<Value> {
        let items = if value.is_true() { self.items(value)? } else { Vec::new() };
        let attribute = given.named.iter().position(|(name, _)| &**name == "attribute");
        let mapped: Vec<Value> = if let Some(at) = attribute {
            let attribute = given.named.swap_remove(at).1;
            let default = given.take(usize::MAX, "default");
            let get = |item: &Value| {
                let found = self.attribute(item, &attribute)?;
                Ok(if found.is_undefined() { default.clone().unwrap_or(found) } else { found })
            };
            items.iter().map(get).collect::<Done<_>>()?
        } else {
            if given.plain.is_empty() {
                return Err(Failure::wrong("map needs a filter's name or an attribute"));
            }
            let name = given.plain.remove(0);
            let name = name.as_str().ok_or_else(|| Failure::wrong("map needs a filter's name"))?.to_owned();
            let again = |given: &Given| Given { plain: given.plain.clone(), named: given.named.clone() };
            items.into_iter().map(|item| self.filter(&name, item, again(&given))).collect::<Done<_>>()?
        };
        self.once(mapped)
    }

    fn select(&mut self, name: &str, value: &Value, mut given: Given) -> Done<Value> {
        let wanted = name.starts_with("select");
        let attribute = match name.ends_with("attr") {
            true if given.plain.is_empty() => {
                return Err(Failure::wrong(format!("{name} needs an attribute")));
            }
            true => Some(given.plain.remove(0)),
            false => None,
        };
        let test = match given.plain.is_empty() {
            true => None,
            false => Some(given.plain.remove(0)),
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
                        Given { plain: given.plain.clone(), named: given.named.clone() },
                    )?
                }
            };
            if holds == wanted {
                kept.push(item);
            }
        }
        self.once(kept)
    }

    /// What an item is sorted by.
    fn key(&mut self, item: &Value, keys: &Keys) -> Done<Value> {
        let key = match &keys.attribute {
            Some(attribute) => self.attribute(item, attribute)?,
            None => item.clone(),
        };
        match &key {
            Value::Str(text) if !keys.case => {
                let lower = text.of.to_lowercase();
                self.text(lower)
            }
            _ => Ok(key),
        }
    }

    /// Items in order, those that are equal as they were.
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

/// What to sort by: an attribute, and whether the case of letters counts.
struct Keys {
    attribute: Option<Value>,
    case: bool,
}

impl Keys {
    fn take(given: &mut Given, case_at: usize, attribute_at: usize) -> Keys {
        let case = given.take(case_at, "case_sensitive").is_some_and(|case| case.is_true());
        let attribute = given.take(attribute_at, "attribute").filter(|a| !matches!(a, Value::None));
        Keys { attribute, case }
    }
}
