//! The JSON-Schema test suite: each schema is refused by name, or its instances are judged as the suite does.

use std::collections::BTreeMap;
use std::fmt::Write;

use serde_json::{Map, Value};
use tallow_constraint::{Compiled, Grammar, check_instance};

use crate::tiny;

/// Valid instances that are not generated, by a part of their description: numbers have one spelling, formats are
/// enforced though the suite takes them for annotations, and `unevaluated…` counts what one alternative evaluates.
const RESTRICTIONS: [&str; 11] = [
    "all items evaluated by contains",
    "valid in case if is evaluated",
    "when two match and has no unevaluated properties",
    "string is only an annotation by default",
    "float zero is valid",
    "float one is valid",
    "[0.0] is valid",
    "[1.0] is valid",
    "float -2.0 is valid",
    "float is valid",
    "a float with zero fractional part is an integer",
];

#[derive(Default)]
struct Counts {
    right: usize,
    refused: usize,
    restricted: usize,
    wrong: usize,
}

/// The value with the properties of its objects in all orders, up to a limit.
fn orders(value: &Value) -> Vec<Value> {
    const MOST: usize = 300;
    let mut all = match value {
        Value::Array(items) => items
            .iter()
            .fold(vec![Vec::new()], |rows, item| {
                let items = orders(item);
                rows.iter()
                    .flat_map(|row: &Vec<Value>| {
                        items.iter().map(|item| [row.clone(), vec![item.clone()]].concat())
                    })
                    .take(MOST)
                    .collect()
            })
            .into_iter()
            .map(Value::Array)
            .collect(),
        Value::Object(map) => permutations(map).into_iter().map(Value::Object).collect(),
        other => vec![other.clone()],
    };
    all.truncate(MOST);
    all
}

fn permutations(map: &Map<String, Value>) -> Vec<Map<String, Value>> {
    if map.is_empty() {
        return vec![Map::new()];
    }
    let mut all = Vec::new();
    for (first, value) in map {
        let mut rest = map.clone();
        rest.shift_remove(first);
        for value in orders(value) {
            for rest in permutations(&rest) {
                let mut row = Map::new();
                row.insert(first.clone(), value.clone());
                row.extend(rest);
                all.push(row);
            }
            if all.len() > 300 {
                return all;
            }
        }
    }
    all
}

/// JSON with a space behind each comma and colon.
fn spaced(value: &Value) -> String {
    match value {
        Value::Array(items) => {
            format!("[{}]", items.iter().map(spaced).collect::<Vec<_>>().join(", "))
        }
        Value::Object(map) => {
            let pairs = map.iter().map(|(k, v)| format!("{}: {}", Value::from(k.as_str()), spaced(v)));
            format!("{{{}}}", pairs.collect::<Vec<_>>().join(", "))
        }
        other => other.to_string(),
    }
}

/// True if the value is accepted in some order of its properties; with and without spaces it is the same.
fn accepted(compiled: &Compiled, value: &Value) -> bool {
    orders(value).iter().any(|value| {
        let plain = check_instance(compiled, &value.to_string()).is_ok();
        assert_eq!(check_instance(compiled, &spaced(value)).is_ok(), plain, "{value}");
        assert_eq!(check_instance(compiled, &format!("{value:#}")).is_ok(), plain, "{value}");
        plain
    })
}

#[test]
fn no_invalid_instance_is_accepted() {
    let (Some(folder), Some(compiler)) = (tallow_support::shared("json-schema-test-suite"), tiny()) else {
        return;
    };
    let mut files: Vec<_> = std::fs::read_dir(folder).unwrap().map(|e| e.unwrap().path()).collect();
    files.sort();
    let mut drafts: BTreeMap<String, Counts> = BTreeMap::new();
    let (mut wrong, mut refusals) = (String::new(), String::new());
    for file in files.iter().filter(|f| f.extension().is_some_and(|e| e == "json")) {
        let name = file.file_stem().unwrap().to_str().unwrap();
        let (draft, keyword) = name.split_once("--").unwrap();
        let counts = drafts.entry(draft.into()).or_default();
        for group in tallow_support::json(file).as_array().unwrap() {
            let mut schema = group["schema"].clone();
            if let (Value::Object(map), "draft7") = (&mut schema, draft)
                && !map.contains_key("$schema")
            {
                map.shift_insert(0, "$schema".into(), "http://json-schema.org/draft-07/schema#".into());
            }
            let tests = group["tests"].as_array().unwrap();
            let what = format!("{draft} {keyword}: {}", group["description"].as_str().unwrap());
            let compiled = match compiler.compile(&Grammar::JsonSchema { schema, best_effort: false }) {
                Ok(compiled) => compiled,
                Err(refused) => {
                    counts.refused += tests.len();
                    writeln!(refusals, "{what}: {refused}").unwrap();
                    let unsatisfiable = refused.why.starts_with("nothing satisfies");
                    let any_valid = tests.iter().any(|test| test["valid"] == true);
                    assert!(!unsatisfiable || !any_valid, "{what}: {refused}");
                    continue;
                }
            };
            for test in tests {
                let valid = test["valid"].as_bool().unwrap();
                let description = test["description"].as_str().unwrap();
                let is_accepted = accepted(&compiled, &test["data"]);
                if is_accepted == valid {
                    counts.right += 1;
                } else if valid && RESTRICTIONS.iter().any(|r| description.ends_with(r)) {
                    counts.restricted += 1;
                } else {
                    counts.wrong += 1;
                    writeln!(wrong, "{what}: {description}: {}", test["data"]).unwrap();
                }
            }
        }
    }
    let mut table = String::new();
    for (draft, c) in &drafts {
        let Counts { right, refused, restricted, wrong } = c;
        writeln!(
            table,
            "{draft}: {right} right, {refused} in refused schemas, {restricted} restricted, {wrong} wrong"
        )
        .unwrap();
    }
    if std::env::args().any(|argument| argument == "--nocapture") {
        eprintln!("{refusals}\n{table}");
    }
    assert_eq!(wrong, "");
    insta::assert_snapshot!(table, @r##"
    draft2020-12: 995 right, 277 in refused schemas, 27 restricted, 0 wrong
    draft7: 778 right, 140 in refused schemas, 9 restricted, 0 wrong
    "##);
}
