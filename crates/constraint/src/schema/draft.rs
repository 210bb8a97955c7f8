//! [`Draft`]: the dialects of JSON Schema, and their keywords.

/// A dialect of JSON Schema.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Draft {
    D4,
    D6,
    D7,
    D2019,
    D2020,
}

impl Draft {
    /// The dialect that `$schema` names.
    pub(super) fn named(uri: &str) -> Option<Draft> {
        let uri = uri.trim_end_matches('#').trim_end_matches('/');
        let name = uri.strip_prefix("https://").or_else(|| uri.strip_prefix("http://")).unwrap_or(uri);
        Some(match name {
            "json-schema.org/draft-04/schema" => Draft::D4,
            "json-schema.org/draft-06/schema" => Draft::D6,
            "json-schema.org/draft-07/schema" => Draft::D7,
            "json-schema.org/draft/2019-09/schema" => Draft::D2019,
            "json-schema.org/draft/2020-12/schema" | "json-schema.org/schema" => Draft::D2020,
            _ => return None,
        })
    }

    /// True if all that stands beside `$ref` is ignored.
    pub(super) fn ref_hides(self) -> bool {
        self <= Draft::D7
    }

    /// The keyword that identifies a schema.
    pub(super) fn id(self) -> &'static str {
        if self == Draft::D4 { "id" } else { "$id" }
    }

    /// True if the dialect has the keyword; others are annotations.
    pub(super) fn knows(self, keyword: &str) -> bool {
        let since = match keyword {
            "const" | "contains" | "propertyNames" => Draft::D6,
            "if" | "then" | "else" => Draft::D7,
            "$recursiveRef"
            | "contentSchema"
            | "dependentRequired"
            | "dependentSchemas"
            | "maxContains"
            | "minContains"
            | "unevaluatedItems"
            | "unevaluatedProperties" => Draft::D2019,
            "$dynamicRef" | "prefixItems" => Draft::D2020,
            _ => Draft::D4,
        };
        self >= since
    }
}

/// Keywords whose value is a schema.
pub(super) const SUBSCHEMAS: [&str; 14] = [
    "additionalItems",
    "additionalProperties",
    "contains",
    "contentSchema",
    "else",
    "if",
    "items",
    "not",
    "propertyNames",
    "then",
    "unevaluatedItems",
    "unevaluatedProperties",
    "extends",
    "disallow",
];
/// Keywords whose value is a list of schemas.
pub(super) const SUBSCHEMA_LISTS: [&str; 5] = ["allOf", "anyOf", "items", "oneOf", "prefixItems"];
/// Keywords whose value has schemas by name.
pub(super) const SUBSCHEMA_MAPS: [&str; 6] =
    ["$defs", "definitions", "dependencies", "dependentSchemas", "patternProperties", "properties"];

/// A keyword that is refused, and why.
pub(super) struct Unenforced {
    pub(super) keyword: &'static str,
    pub(super) why: &'static str,
}

/// Keywords that are never enforced.
pub(super) const NEVER_ENFORCED: [Unenforced; 1] = [Unenforced {
    keyword: "contentSchema",
    why: "JSON inside of strings cannot be enforced: use an object",
}];
/// Keywords that are refused in some schemas, and which.
pub(super) const SOMETIMES_ENFORCED: [Unenforced; 12] = [
    Unenforced {
        keyword: "uniqueItems",
        why: "the items written so far cannot be kept in mind: leave it out, or set `maxItems` to 1",
    },
    Unenforced {
        keyword: "contains",
        why: "it is enforced alone, without `minItems` above 1, `maxItems`, `prefixItems`, `maxContains` or \
              `minContains` above 1",
    },
    Unenforced {
        keyword: "$dynamicRef",
        why: "there are several anchors of this name, and which one is meant depends on where the schema is used: use \
              `$ref`",
    },
    Unenforced {
        keyword: "$recursiveRef",
        why: "there are several schemas with `$recursiveAnchor` or `$id`, and which one is meant depends on where the \
              schema is used: use `$ref`",
    },
    Unenforced {
        keyword: "not",
        why: "the opposite of this schema cannot be written as a grammar: use `enum`, `const`, `required` or `type` \
              in it",
    },
    Unenforced {
        keyword: "if",
        why: "the opposite of this schema cannot be written as a grammar: use `const`, `enum` or `required` in it, or \
              `anyOf` instead of it",
    },
    Unenforced {
        keyword: "oneOf",
        why: "more than one of its schemas may be valid at once, and that cannot be excluded: use `anyOf`, or give \
              each of them a property that is required and has another `const`",
    },
    Unenforced {
        keyword: "format",
        why: "texts of this format are not a regular language that is known here",
    },
    Unenforced {
        keyword: "pattern",
        why: "the pattern has parts that finite automata cannot match, such as look-around or back references",
    },
    Unenforced { keyword: "patternProperties", why: "as `pattern`; and at most 6 patterns in one object" },
    Unenforced {
        keyword: "minProperties",
        why: "names may be repeated, so that two or more properties without a name in the schema cannot be asked for",
    },
    Unenforced { keyword: "multipleOf", why: "the number has too many digits" },
];

/// The reason of a keyword that is refused.
pub(super) fn why(keyword: &str) -> &'static str {
    let all = NEVER_ENFORCED.iter().chain(&SOMETIMES_ENFORCED);
    all.clone().find(|u| u.keyword == keyword).map_or("it cannot be enforced", |u| u.why)
}
