//! Calls as Google's documentation of Gemma 3 asks for them, since its template knows none: `[f(a=1)]`, the same in a
//! fence of `tool_code`, or `{"name": "f", "parameters": {}}`.

use crate::output::format::{PLAIN, ToolFormat};
use crate::output::step::{KEPT_LIST, Members, NAMED, Open, Section, Step};
use crate::output::writing::PARAMETERS;

const BARE: Members = Members { arguments: &["parameters", "arguments"], bare: true, ..NAMED };

/// Calls in Python's syntax, with or without a list around them.
const CODE: &[Step] = &[
    Step::Space,
    Step::Any(&[
        &[Step::Any(&[KEPT_LIST])],
        &[Step::Python(""), Step::Keep, Step::Many(&[Step::Space, Step::Python(""), Step::Keep])],
    ]),
    Step::Space,
    Step::Close("```"),
    Step::Emit,
];

pub(super) static FORMAT: ToolFormat = ToolFormat {
    name: "gemma3",
    models: "Gemma 3",
    shown_by: &[&["<start_of_turn>"]],
    sections: &[
        Section { open: Open::Marker(&["```tool_code"]), steps: CODE },
        Section {
            open: Open::First,
            steps: &[Step::Any(&[
                &[Step::Any(&[KEPT_LIST]), Step::Edge, Step::Emit],
                &[
                    Step::Lit("```json"),
                    Step::Space,
                    Step::Call(&BARE),
                    Step::Space,
                    Step::Close("```"),
                    Step::Emit,
                ],
                &[Step::Call(&BARE), Step::Edge, Step::Emit],
            ])],
        },
    ],
    writings: &[PARAMETERS],
    ..PLAIN
};
