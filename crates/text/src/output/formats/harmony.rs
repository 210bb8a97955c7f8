//! `<|channel|>commentary to=functions.f <|constrain|>json<|message|>{}<|call|>`

use crate::output::format::{PLAIN, ToolFormat};
use crate::output::marks::Marks;
use crate::output::step::{Open, Section, Step};
use crate::output::writing::{Channels, OBJECT, Writing};

/// Between two messages.
const NEXT: &str = "<|end|><|start|>assistant";

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
    // A call is the last message. What ends it ends the answer.
    writings: &[Writing {
        before_name: "<|channel|>commentary to=functions.",
        before_arguments: " <|constrain|>json<|message|>",
        after_arguments: "",
        channels: Some(&Channels {
            reasoning: ("<|channel|>analysis<|message|>", NEXT),
            preamble: ("<|channel|>commentary<|message|>", NEXT),
            answer: "<|channel|>final<|message|>",
        }),
        ..OBJECT
    }],
    prefix: "functions.",
    tokens: &["<|constrain|>"],
    ..PLAIN
};
