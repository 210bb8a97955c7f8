//! `<tool_call><function=f><parameter=key>value</parameter></function></tool_call>`

use crate::output::format::{PLAIN, ToolFormat};
use crate::output::step::{Open, Raw, Section, Slot, Step, Typed};
use crate::output::writing::{Arguments, Each, OBJECT, Writing};

const VALUE: Raw = Raw {
    typed: Typed::Lines,
    end: "</parameter>",
    then: &["<parameter=", "</function>"],
    never: &["</function>\n</tool_call>", "</function></tool_call>"],
};

/// A function behind `<function=`. The tags around it are missing at times.
const FUNCTION: &[Step] = &[
    Step::Word(Slot::Name, &[">"]),
    Step::Lit(">"),
    Step::Space,
    Step::Many(&[Step::Lit("<parameter="), Step::Key(">"), Step::Value(VALUE), Step::Space]),
    Step::Tag("</function>"),
    Step::Emit,
    Step::Opt(&[Step::Space, Step::Close("</tool_call>")]),
];

pub(super) static FORMAT: ToolFormat = ToolFormat {
    name: "qwen3_xml",
    models: "Qwen3-Coder, Qwen3.5, Nemotron 3",
    shown_by: &[&["<tool_call>", "<function=", "<parameter="]],
    sections: &[
        Section {
            open: Open::Marker(&["<tool_call>"]),
            steps: &[Step::Space, Step::Lit("<function="), Step::Any(&[FUNCTION])],
        },
        Section { open: Open::Marker(&["<function="]), steps: FUNCTION },
    ],
    writings: &[Writing {
        before_name: "<tool_call>\n<function=",
        before_arguments: ">\n",
        after_arguments: "</function>\n</tool_call>",
        between: Some("\n"),
        arguments: Arguments::Each(Each {
            before_key: "<parameter=",
            before_text: ">\n",
            before_json: ">\n",
            after_value: "\n</parameter>\n",
            raw: &VALUE,
        }),
        ..OBJECT
    }],
    ..PLAIN
};
