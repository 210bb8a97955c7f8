//! `<|channel|>commentary to=functions.f <|constrain|>json<|message|>{}<|call|>`

use crate::output::format::{PLAIN, ToolFormat};
use crate::output::marks::Marks;
use crate::output::step::{Open, Section, Step};

pub(super) static FORMAT: ToolFormat = ToolFormat {
    name: "harmony",
    models: "gpt-oss",
    shown_by: &[&["<|channel|>", "analysis"]],
    marks: Marks::Channels,
    sections: &[Section {
        open: Open::Header,
        steps: &[
            Step::Space,
            Step::Any(&[
                &[
                    Step::Arguments,
                    Step::Space,
                    Step::Any(&[
                        &[Step::Close("<|call|>")],
                        &[Step::Lit("<|end|>")],
                        &[Step::Lit("<|return|>")],
                    ]),
                ],
                &[Step::Lit("<|call|>")],
            ]),
            Step::Emit,
        ],
    }],
    prefix: "functions.",
    tokens: &["<|constrain|>"],
    ..PLAIN
};
