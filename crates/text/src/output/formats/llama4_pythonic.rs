//! `[f(a=1), g()]`, at times between `<|python_start|>` and `<|python_end|>`. Llama 4's own template also shows JSON
//! behind those markers.

use crate::output::format::{PLAIN, ToolFormat};
use crate::output::step::{KEPT_LIST, Members, NAMED, Open, PYTHON_ITEMS, Section, Step};
use crate::output::writing::{PARAMETERS, Writing};

const OBJECT: Members = Members { arguments: &["parameters", "arguments"], ..NAMED };
const BARE: Members = Members { bare: true, ..OBJECT };

/// Objects behind each other.
const OBJECTS: &[Step] =
    &[Step::Call(&OBJECT), Step::Emit, Step::Many(&[Step::Space, Step::Call(&OBJECT), Step::Emit])];

pub(super) static FORMAT: ToolFormat = ToolFormat {
    name: "llama4_pythonic",
    models: "Llama 4; Llama 3.2 with a template for it",
    shown_by: &[
        &["<|python_start|>"],
        &["func_name1(", "_header_id|>"],
        &["func_name1(", "<|header_start|>"],
    ],
    sections: &[
        Section {
            open: Open::Marker(&["<|python_start|>"]),
            steps: &[
                Step::Space,
                Step::Any(&[
                    &[Step::Lit("["), Step::Any(&[PYTHON_ITEMS])],
                    OBJECTS,
                    &[Step::Lit("<|python_end|>"), Step::Space, Step::Any(&[OBJECTS])],
                ]),
                Step::Opt(&[Step::Space, Step::Close("<|python_end|>")]),
            ],
        },
        Section { open: Open::Marker(&["<|python_end|>"]), steps: &[Step::Space, Step::Any(&[OBJECTS])] },
        Section {
            open: Open::First,
            steps: &[Step::Any(&[
                &[Step::Any(&[KEPT_LIST]), Step::Edge, Step::Emit],
                &[Step::Call(&BARE), Step::Emit, Step::Many(&[Step::Space, Step::Call(&BARE), Step::Emit])],
            ])],
        },
    ],
    writings: &[Writing { between: Some("\n"), ..PARAMETERS }],
    ..PLAIN
};
