//! `{"name": "f", "parameters": {}}`, with `<|python_tag|>` before it at times, and `;` between several.

use crate::output::format::{PLAIN, ToolFormat};
use crate::output::step::{Members, NAMED, Open, Section, Step};
use crate::output::writing::{PARAMETERS, Writing};

const BARE: Members = Members { arguments: &["parameters", "arguments"], bare: true, ..NAMED };

const BETWEEN: Step = Step::Opt(&[Step::Any(&[&[Step::Lit(";")], &[Step::Lit(",")]]), Step::Space]);

pub(super) static FORMAT: ToolFormat = ToolFormat {
    name: "llama3_json",
    models: "Llama 3.1, 3.2 and 3.3",
    shown_by: &[&["<|python_tag|>"], &["<|start_header_id|>", "\"parameters\""]],
    sections: &[
        Section {
            open: Open::Marker(&["<|python_tag|>"]),
            steps: &[
                Step::Space,
                Step::Any(&[
                    &[
                        Step::Call(&NAMED),
                        Step::Emit,
                        Step::Many(&[Step::Space, BETWEEN, Step::Call(&NAMED), Step::Emit]),
                    ],
                    // Built-in tools.
                    &[Step::Python(".call"), Step::Emit],
                ]),
            ],
        },
        Section {
            open: Open::First,
            steps: &[
                Step::Call(&BARE),
                Step::Emit,
                Step::Many(&[Step::Space, BETWEEN, Step::Call(&BARE), Step::Emit]),
            ],
        },
    ],
    writings: &[Writing { between: Some("; "), ..PARAMETERS }],
    ..PLAIN
};
