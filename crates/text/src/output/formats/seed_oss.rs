//! `<seed:tool_call><function=f><parameter=key>value</parameter></function></seed:tool_call>`

use crate::output::format::{PLAIN, ToolFormat};
use crate::output::marks::Marks;
use crate::output::step::{Open, Raw, Section, Slot, Step, Typed};
use crate::output::writing::{Arguments, Each, OBJECT, Writing};

const VALUE: Raw = Raw {
    typed: Typed::Schema,
    end: "</parameter>",
    then: &["<parameter=", "</function>"],
    never: &["</function>\n</seed:tool_call>", "</function></seed:tool_call>"],
};

/// A function behind `<function=`.
const FUNCTION: &[Step] = &[
    Step::Word(Slot::Name, &[">"]),
    Step::Lit(">"),
    Step::Space,
    Step::Many(&[Step::Lit("<parameter="), Step::Key(">"), Step::Value(VALUE), Step::Space]),
    Step::Tag("</function>"),
    Step::Emit,
    Step::Opt(&[Step::Space, Step::Close("</seed:tool_call>")]),
];

pub(super) static FORMAT: ToolFormat = ToolFormat {
    name: "seed_oss",
    models: "Seed-OSS",
    shown_by: &[&["seed:tool_call"]],
    marks: Marks::Tags { open: "<seed:think>", close: "</seed:think>" },
    sections: &[
        Section {
            open: Open::Marker(&["<seed:tool_call>"]),
            steps: &[Step::Space, Step::Lit("<function="), Step::Any(&[FUNCTION])],
        },
        Section { open: Open::Marker(&["<function="]), steps: FUNCTION },
    ],
    writings: &[Writing {
        before_name: "<seed:tool_call>\n<function=",
        before_arguments: ">\n",
        after_arguments: "</function>\n</seed:tool_call>",
        between: Some("\n"),
        arguments: Arguments::Each(Each {
            before_key: "<parameter=",
            before_text: ">",
            before_json: ">",
            after_value: "</parameter>\n",
            raw: &VALUE,
        }),
        ..OBJECT
    }],
    ..PLAIN
};
