//! `<tool_call>{"name": "f", "arguments": {}}</tool_call>`

use crate::output::format::{PLAIN, ToolFormat};
use crate::output::step::{NAMED, Open, Section, Step};
use crate::output::writing::{OBJECT, Writing};

pub(super) static FORMAT: ToolFormat = ToolFormat {
    name: "hermes",
    models: "Hermes 2 and 3, Qwen 2.5 and 3, Granite 4, SmolLM3",
    // SmolLM3's template is also in use without its part for tools.
    shown_by: &[&["<tool_call>"], &["<|im_start|>", "named SmolLM"]],
    sections: &[Section {
        open: Open::Marker(&["<tool_call>"]),
        steps: &[Step::Space, Step::Call(&NAMED), Step::Space, Step::Close("</tool_call>"), Step::Emit],
    }],
    writings: &[Writing {
        before_name: "<tool_call>\n{\"name\": \"",
        after_arguments: "}\n</tool_call>",
        between: Some("\n"),
        ..OBJECT
    }],
    ..PLAIN
};
