//! `<｜tool▁call▁begin｜>f<｜tool▁sep｜>{}<｜tool▁call▁end｜>`

use crate::output::format::{PLAIN, ToolFormat};
use crate::output::step::{Open, Section, Slot, Step};
use crate::output::writing::{OBJECT, Writing};

/// A call behind `<｜tool▁call▁begin｜>`.
const CALL: &[Step] = &[
    Step::Word(Slot::Name, &["<｜tool▁sep｜>"]),
    Step::Lit("<｜tool▁sep｜>"),
    Step::Space,
    Step::Arguments,
    Step::Space,
    Step::Close("<｜tool▁call▁end｜>"),
    Step::Emit,
    Step::Opt(&[Step::Space, Step::Close("<｜tool▁calls▁end｜>")]),
];

pub(super) static FORMAT: ToolFormat = ToolFormat {
    name: "deepseek_v31",
    models: "DeepSeek V3.1",
    shown_by: &[&["<｜tool▁sep｜>"]],
    sections: &[
        Section {
            open: Open::Marker(&["<｜tool▁calls▁begin｜>"]),
            steps: &[Step::Space, Step::Lit("<｜tool▁call▁begin｜>"), Step::Any(&[CALL])],
        },
        Section { open: Open::Marker(&["<｜tool▁call▁begin｜>"]), steps: CALL },
    ],
    writings: &[Writing {
        open: "<｜tool▁calls▁begin｜>",
        before_name: "<｜tool▁call▁begin｜>",
        before_arguments: "<｜tool▁sep｜>",
        after_arguments: "<｜tool▁call▁end｜>",
        between: Some(""),
        close: "<｜tool▁calls▁end｜>",
        ..OBJECT
    }],
    ..PLAIN
};
