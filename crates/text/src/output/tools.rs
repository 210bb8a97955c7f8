//! [`Tools`]: the tools that a model may call, and the types of their parameters.

use std::collections::HashMap;

use serde_json::Value as Json;

use super::python::string;
use super::step::Typed;

/// Most references and alternatives in the schema of a parameter that are followed.
const MOST_STEPS: usize = 64;
/// Longest name of a tool that is plausible where the tools are not known.
const MOST_NAME: usize = 256;

/// The tools of a request: their names, and the JSON schemas of their parameters.
#[derive(Debug, Clone, Default)]
pub struct Tools {
    parameters: HashMap<String, Json>,
}

/// Why a list of tools cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ToolsError {
    /// It is no list.
    #[error("the tools are no list")]
    NoList,
    /// A tool has no name.
    #[error("tools[{0}] has no name")]
    NoName(usize),
}

impl Tools {
    /// Reads the `tools` of a request, as OpenAI's APIs define them: the function is in `function`, or is the tool
    /// itself. Tools without a name that are no functions, such as hosted ones, are left out.
    pub fn from_json(tools: &Json) -> Result<Tools, ToolsError> {
        let mut parameters = HashMap::new();
        for (i, tool) in tools.as_array().ok_or(ToolsError::NoList)?.iter().enumerate() {
            let function = tool.get("function").unwrap_or(tool);
            let Some(name) = function.get("name").and_then(Json::as_str) else {
                match tool.get("type").and_then(Json::as_str) {
                    None | Some("function") => return Err(ToolsError::NoName(i)),
                    Some(_) => continue,
                }
            };
            let schema = ["parameters", "input_schema"].iter().find_map(|key| function.get(*key));
            parameters.insert(name.to_owned(), schema.cloned().unwrap_or(Json::Null));
        }
        Ok(Tools { parameters })
    }

    /// True if there are none.
    pub fn is_empty(&self) -> bool {
        self.parameters.is_empty()
    }

    /// True if a tool has this name.
    pub fn contains(&self, name: &str) -> bool {
        self.parameters.contains_key(name)
    }

    /// The types that a parameter of a tool may have.
    fn types(&self, tool: &str, parameter: &str) -> Types {
        let (mut types, mut steps) = (Types::default(), MOST_STEPS);
        if let Some(root) = self.parameters.get(tool) {
            let named = root.get("properties").and_then(|properties| properties.get(parameter));
            if let Some(schema) = named.or_else(|| root.get("additionalProperties")) {
                types.add(schema, root, &mut steps);
            }
        }
        types
    }
}

/// The name of a tool that a model means by `written`; `prefix` is what its family writes in front of names. `None` if
/// it is none, or if no tool has the name.
pub(super) fn tool_name<'a>(written: &'a str, prefix: &str, tools: Option<&Tools>) -> Option<&'a str> {
    let short = written.strip_prefix(prefix).unwrap_or(written);
    match tools {
        Some(tools) => [written, short].into_iter().find(|name| tools.contains(name)),
        None => Some(short).filter(|name| is_plausible(name)),
    }
}

/// True for a character that names of tools do not have.
pub(super) fn ends_name(c: char) -> bool {
    c.is_whitespace() || matches!(c, '"' | '\'' | '`')
}

fn is_plausible(name: &str) -> bool {
    !name.is_empty() && name.len() <= MOST_NAME && !name.contains(ends_name)
}

/// Types of JSON that a schema allows.
#[derive(Debug, Clone, Copy, Default)]
struct Types {
    /// True if the schema says nothing.
    unknown: bool,
    text: bool,
    number: bool,
    boolean: bool,
    null: bool,
    object: bool,
    array: bool,
}

impl Types {
    fn add(&mut self, schema: &Json, root: &Json, steps: &mut usize) {
        let Some(left) = steps.checked_sub(1) else { return };
        *steps = left;
        let reference = schema.get("$ref").and_then(Json::as_str).and_then(|path| path.strip_prefix('#'));
        if let Some(schema) = reference.and_then(|path| root.pointer(path)) {
            self.add(schema, root, steps);
        }
        match schema.get("type") {
            Some(Json::String(name)) => self.add_named(name),
            Some(Json::Array(names)) => {
                names.iter().filter_map(Json::as_str).for_each(|name| self.add_named(name))
            }
            _ => {
                let values = schema.get("enum").and_then(Json::as_array).into_iter().flatten();
                values.chain(schema.get("const")).for_each(|value| self.add_named(type_of(value)));
            }
        }
        for key in ["anyOf", "oneOf", "allOf"] {
            let alternatives = schema.get(key).and_then(Json::as_array);
            alternatives.into_iter().flatten().for_each(|schema| self.add(schema, root, steps));
        }
        if schema.get("nullable") == Some(&Json::Bool(true)) {
            self.null = true;
        }
    }

    fn add_named(&mut self, name: &str) {
        match name {
            "string" => self.text = true,
            "integer" | "number" => self.number = true,
            "boolean" => self.boolean = true,
            "null" => self.null = true,
            "object" => self.object = true,
            "array" => self.array = true,
            _ => self.unknown = true,
        }
    }

    fn is_known(self) -> bool {
        let Types { text, number, boolean, null, object, array, .. } = self;
        !self.unknown && (text || number || boolean || null || object || array)
    }

    fn allows(self, value: &Json) -> bool {
        match value {
            Json::Null => self.null,
            Json::Bool(_) => self.boolean,
            Json::Number(_) => self.number,
            Json::String(_) => false,
            Json::Array(_) => self.array,
            Json::Object(_) => self.object,
        }
    }

    fn only_text(self) -> bool {
        let Types { number, boolean, null, object, array, .. } = self;
        self.is_known() && self.text && !(number || boolean || null || object || array)
    }
}

fn type_of(value: &Json) -> &'static str {
    match value {
        Json::Null => "null",
        Json::Bool(_) => "boolean",
        Json::Number(_) => "number",
        Json::String(_) => "string",
        Json::Array(_) => "array",
        Json::Object(_) => "object",
    }
}

/// The value of an argument as JSON, from the text that the model wrote for it.
pub(super) fn value(text: &str, typed: Typed, parameter: (&str, &str), tools: Option<&Tools>) -> String {
    let text = match typed {
        Typed::Lines => {
            let text = text.strip_prefix('\n').unwrap_or(text);
            text.strip_suffix('\n').unwrap_or(text)
        }
        Typed::Schema | Typed::Text | Typed::Json => text,
    };
    if typed == Typed::Text {
        return string(text);
    }
    let (tool, parameter) = parameter;
    let types = match (typed, tools) {
        (Typed::Json, _) | (_, None) => Types::default(),
        (_, Some(tools)) => tools.types(tool, parameter),
    };
    if types.only_text() {
        return string(text);
    }
    let json = match text.trim() {
        "True" if types.is_known() => "true",
        "False" if types.is_known() => "false",
        "None" if types.is_known() => "null",
        json => json,
    };
    match serde_json::from_str::<Json>(json) {
        // A string among other types: only what is certainly one of the others is not text.
        Ok(value) if types.is_known() && types.text && !types.allows(&value) => string(text),
        Ok(_) => json.to_owned(),
        Err(_) => string(text),
    }
}
