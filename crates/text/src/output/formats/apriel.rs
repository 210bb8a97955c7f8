//! `<tool_calls>[{"name": "f", "arguments": {}, "id": "..."}]</tool_calls>`

use crate::output::format::{PLAIN, ToolFormat};
use crate::output::step::{Members, NAMED, Open, Section, Step};
use crate::output::writing::{OBJECTS, Writing};

const WITH_ID: Members = Members { id: &["id"], ..NAMED };

pub(super) static FORMAT: ToolFormat = ToolFormat {
    name: "apriel",
    models: "Apriel 1.5 and 1.6",
    shown_by: &[&["<tool_calls>[", "</tool_calls>"]],
    sections: &[Section {
        open: Open::Marker(&["<tool_calls>"]),
        steps: &[
            Step::Space,
            Step::Lit("["),
            Step::Space,
            Step::Item(&WITH_ID),
            Step::Many(&[Step::Space, Step::Lit(","), Step::Space, Step::Item(&WITH_ID)]),
            Step::Space,
            Step::Close("]"),
            Step::Space,
            Step::Close("</tool_calls>"),
        ],
    }],
    writings: &[Writing { open: "<tool_calls>[", close: "]</tool_calls>", ..OBJECTS }],
    ..PLAIN
};
