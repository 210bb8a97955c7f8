//! `<|START_ACTION|>[{"tool_call_id": "0", "tool_name": "f", "parameters": {}}]<|END_ACTION|>`; the first Command R
//! writes `Action:` and a fence of JSON.

use crate::output::format::{PLAIN, ToolFormat};
use crate::output::marks::Marks;
use crate::output::step::{Members, NAMED, Open, Section, Step};
use crate::output::writing::{PARAMETERS, Writing};

const ACTION: Members = Members {
    name: &["tool_name", "name"],
    arguments: &["parameters", "arguments"],
    id: &["tool_call_id"],
    ..NAMED
};

/// Actions in a list, with its brackets.
const ACTIONS: &[Step] = &[
    Step::Space,
    Step::Lit("["),
    Step::Space,
    Step::Item(&ACTION),
    Step::Many(&[Step::Space, Step::Lit(","), Step::Space, Step::Item(&ACTION)]),
    Step::Space,
    Step::Close("]"),
    Step::Space,
];

pub(super) static FORMAT: ToolFormat = ToolFormat {
    name: "command_r",
    models: "Command R, R7B and A",
    shown_by: &[&["<|START_ACTION|>"], &["<|CHATBOT_TOKEN|>"]],
    marks: Marks::Tags { open: "<|START_THINKING|>", close: "<|END_THINKING|>" },
    sections: &[
        Section {
            open: Open::Marker(&["<|START_ACTION|>"]),
            steps: &[Step::Any(&[ACTIONS]), Step::Close("<|END_ACTION|>")],
        },
        Section {
            open: Open::Marker(&["Action: ```json", "Action:```json"]),
            steps: &[Step::Any(&[ACTIONS]), Step::Close("```")],
        },
    ],
    writings: &[
        Writing {
            shown_by: "<|START_ACTION|>",
            open: "<|START_ACTION|>[\n    ",
            // The calls of an answer are numbered.
            before_name: "{\"tool_call_id\": \"0\", \"tool_name\": \"",
            close: "\n]<|END_ACTION|>",
            ..PARAMETERS
        },
        Writing {
            open: "Action: ```json\n[\n",
            before_name: "{\"tool_name\": \"",
            close: "\n]```",
            ..PARAMETERS
        },
    ],
    frames: &["<|START_RESPONSE|>", "<|END_RESPONSE|>", "<|START_TEXT|>", "<|END_TEXT|>"],
    ..PLAIN
};
