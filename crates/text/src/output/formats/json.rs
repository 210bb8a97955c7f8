//! `{"name": "f", "arguments": {}}` or a list of such objects, as the whole answer. The fallback.

use crate::output::format::{PLAIN, ToolFormat};
use crate::output::step::{Members, NAMED, Open, Section, Step};
use crate::output::writing::OBJECT;

const ANY: Members = Members { id: &["id"], nested: Some("function"), bare: true, ..NAMED };

/// An object, or a list of objects.
const CALLS: Step = Step::Any(&[
    &[Step::Call(&ANY)],
    &[
        Step::Lit("["),
        Step::Space,
        Step::Call(&ANY),
        Step::Keep,
        Step::Many(&[Step::Space, Step::Lit(","), Step::Space, Step::Call(&ANY), Step::Keep]),
        Step::Space,
        Step::Lit("]"),
    ],
]);

pub(super) static FORMAT: ToolFormat = ToolFormat {
    name: "json",
    models: "any model that is asked for JSON",
    sections: &[Section {
        open: Open::First,
        steps: &[
            Step::Any(&[
                &[
                    Step::Lit("```"),
                    Step::Opt(&[Step::Lit("json")]),
                    Step::Space,
                    CALLS,
                    Step::Space,
                    Step::Close("```"),
                ],
                &[CALLS],
            ]),
            Step::Space,
            Step::End,
            Step::Emit,
        ],
    }],
    writings: &[OBJECT],
    ..PLAIN
};
