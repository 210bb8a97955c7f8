//! The formats of all families: a file for each, and a line below.

use crate::template::ChatTemplate;

use super::format::ToolFormat;

/// Declares a module for each format and lists them. The first that a template shows is its own, so what is special
/// stands before what is common. `cargo fmt` does not see these modules; CONTRIBUTING.md names the command that does.
macro_rules! formats {
    ($($file:ident,)*) => {
        $(mod $file;)*

        static ALL: &[&ToolFormat] = &[$(&$file::FORMAT),*];
    };
}

formats! {
    harmony,
    gemma4,
    functiongemma,
    minimax_m2,
    deepseek_v32,
    deepseek_v3,
    deepseek_v31,
    kimi_k2,
    mistral,
    glm45,
    seed_oss,
    qwen3_xml,
    command_r,
    nemotron,
    granite3,
    phi4,
    lfm2,
    apriel,
    hermes,
    gemma3,
    llama4_pythonic,
    llama3_json,
    json,
}

impl ToolFormat {
    /// All formats; those of few models before those of many.
    pub const ALL: &'static [&'static ToolFormat] = ALL;

    /// Finds a format by name.
    pub fn named(name: &str) -> Option<&'static ToolFormat> {
        ALL.iter().copied().find(|format| format.name == name)
    }

    /// The format of a chat template, by its text. A template that shows none has the fallback, JSON.
    pub fn of(template: &ChatTemplate) -> &'static ToolFormat {
        let source = template.source();
        let shows = |set: &&[&str]| set.iter().all(|text| source.contains(text));
        let shown = ALL.iter().copied().find(|format| format.shown_by.iter().any(shows));
        shown.unwrap_or(&json::FORMAT)
    }
}
