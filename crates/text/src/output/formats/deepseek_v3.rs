//! `<｜tool▁call▁begin｜>function<｜tool▁sep｜>f`, and the arguments in a fence of JSON.

use crate::output::format::{PLAIN, ToolFormat};
use crate::output::step::{Open, Section, Slot, Step};
use crate::output::writing::{OBJECT, Writing};

/// A call behind `<｜tool▁call▁begin｜>`.
const CALL: &[Step] = &[
    Step::Word(Slot::Ignored, &["<｜tool▁sep｜>"]),
    Step::Lit("<｜tool▁sep｜>"),
    Step::Word(Slot::Name, &[]),
    Step::Space,
    Step::Lit("```json"),
    Step::Space,
    Step::Arguments,
    Step::Space,
    Step::Close("```"),
    Step::Space,
    Step::Close("<｜tool▁call▁end｜>"),
    Step::Emit,
    Step::Opt(&[Step::Space, Step::Close("<｜tool▁calls▁end｜>")]),
];

pub(super) static FORMAT: ToolFormat = ToolFormat {
    name: "deepseek_v3",
    models: "DeepSeek R1 and V3",
    shown_by: &[&["<｜tool▁sep｜>", "```json"]],
    sections: &[
        Section {
            open: Open::Marker(&["<｜tool▁calls▁begin｜>"]),
            steps: &[Step::Space, Step::Lit("<｜tool▁call▁begin｜>"), Step::Any(&[CALL])],
        },
        Section { open: Open::Marker(&["<｜tool▁call▁begin｜>"]), steps: CALL },
    ],
    writings: &[Writing {
        open: "<｜tool▁calls▁begin｜>",
        before_name: "<｜tool▁call▁begin｜>function<｜tool▁sep｜>",
        before_arguments: "\n```json\n",
        after_arguments: "\n```<｜tool▁call▁end｜>",
        between: Some("\n"),
        close: "<｜tool▁calls▁end｜>",
        ..OBJECT
    }],
    ..PLAIN
};
