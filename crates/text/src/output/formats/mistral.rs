//! `[TOOL_CALLS][{"name": "f", "arguments": {}, "id": "123456789"}]`; since Mistral Small 3.2 and Magistral
//! `[TOOL_CALLS]f[ARGS]{}`, with `[CALL_ID]123456789` behind the name at times.

use crate::output::format::{PLAIN, ToolFormat};
use crate::output::marks::Marks;
use crate::output::step::{Members, NAMED, Open, Section, Slot, Step};
use crate::output::writing::{OBJECT, OBJECTS, Writing};

const WITH_ID: Members = Members { id: &["id"], ..NAMED };

pub(super) static FORMAT: ToolFormat = ToolFormat {
    name: "mistral",
    models: "Mistral, Mixtral, Ministral, Devstral, Magistral",
    shown_by: &[&["[TOOL_CALLS]"]],
    marks: Marks::Tags { open: "[THINK]", close: "[/THINK]" },
    sections: &[Section {
        open: Open::Marker(&["[TOOL_CALLS]"]),
        steps: &[
            Step::Space,
            Step::Any(&[
                &[
                    Step::Lit("["),
                    Step::Space,
                    Step::Item(&WITH_ID),
                    Step::Many(&[Step::Space, Step::Lit(","), Step::Space, Step::Item(&WITH_ID)]),
                    Step::Space,
                    Step::Close("]"),
                ],
                &[
                    Step::Word(Slot::Name, &["[CALL_ID]", "[ARGS]"]),
                    Step::Opt(&[Step::Lit("[CALL_ID]"), Step::Word(Slot::Id, &["[ARGS]"])]),
                    Step::Lit("[ARGS]"),
                    Step::Space,
                    Step::Arguments,
                    Step::Emit,
                ],
            ]),
        ],
    }],
    writings: &[
        Writing {
            shown_by: "[ARGS]",
            before_name: "[TOOL_CALLS]",
            before_arguments: "[ARGS]",
            after_arguments: "",
            between: Some(""),
            ..OBJECT
        },
        Writing { open: "[TOOL_CALLS][", close: "]", ..OBJECTS },
    ],
    ..PLAIN
};
