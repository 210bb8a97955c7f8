//! [`write()`]: JSON Schema as rules.
//!
//! `llguidance` compiles JSON Schema too, but accepts some invalid values and has no place for the rest: see
//! `docs/decisions/structured-output.md`. Here a schema is a union of [`Shape`](shape::Shape)s; what cannot be
//! written as rules is refused, with its place.

mod decimal;
mod document;
mod draft;
mod expand;
mod formats;
mod keywords;
mod members;
mod numbers;
mod opposite;
mod overlap;
mod properties;
mod schemas;
mod shape;
mod strings;
mod uri;
mod values;
mod writer;

use serde_json::Value;

use crate::grammar::Members;
use crate::refused::Refused;
use crate::rules::{Rules, Symbol};
use crate::vocabulary::Vocabulary;

pub(crate) use writer::Blanks;

/// Rules for the values of a schema. Also what was left out, if the schema is enforced as far as possible.
pub(crate) fn write(
    rules: &mut Rules,
    schema: &Value,
    (best_effort, blanks): (bool, Blanks),
) -> Result<(Symbol, Vec<Refused>), Refused> {
    let mut schemas = schemas::Schemas::new(schema, best_effort, rules.budget().clone())?;
    let start = values::write(rules, &mut schemas, blanks)?;
    Ok((start, schemas.left_out()))
}

/// Rules for the members of the objects of a schema, each between texts of its own. Also what was left out.
pub(crate) fn write_members(
    (rules, vocabulary): (&mut Rules, &Vocabulary),
    members: &Members,
) -> Result<(Symbol, Vec<Refused>), Refused> {
    let mut schemas = schemas::Schemas::new(&members.schema, members.best_effort, rules.budget().clone())?;
    let start = members::write((rules, vocabulary), members, &mut schemas)?;
    Ok((start, schemas.left_out()))
}

/// The type of a JSON value, for messages.
fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "an array",
        Value::Object(_) => "an object",
    }
}

/// A table of what is refused, for the documentation.
pub fn refused_keywords() -> String {
    let mut table = String::from("| keyword | refused |\n|---|---|\n");
    for (all, when) in [(&draft::NEVER_ENFORCED[..], "always"), (&draft::SOMETIMES_ENFORCED, "sometimes")] {
        for unenforced in all {
            table.push_str(&format!("| `{}` | {when}: {} |\n", unenforced.keyword, unenforced.why));
        }
    }
    let list = |names: &[&str]| names.iter().map(|n| format!("`{n}`")).collect::<Vec<_>>().join(", ");
    table.push_str(&format!(
        "\nFormats that are enforced: {}. Refused: {}. Others are annotations.\n",
        list(&formats::ENFORCED),
        list(&formats::REFUSED)
    ));
    table
}
