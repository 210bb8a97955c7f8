//! `<minimax:tool_call><invoke name="f"><parameter name="key">value</parameter></invoke></minimax:tool_call>`

use crate::output::format::{PLAIN, ToolFormat};
use crate::output::step::{Open, Raw, Section, Slot, Step, Typed};
use crate::output::writing::{Arguments, Each, OBJECT, Writing};

const VALUE: Raw = Raw {
    typed: Typed::Schema,
    end: "</parameter>",
    then: &["<parameter name=\"", "</invoke>"],
    never: &["</invoke>\n</minimax:tool_call>", "</invoke></minimax:tool_call>"],
};

/// A call behind `<invoke name="`.
const INVOKE: &[Step] = &[
    Step::Word(Slot::Name, &["\""]),
    Step::Lit("\">"),
    Step::Space,
    Step::Many(&[Step::Lit("<parameter name=\""), Step::Key("\">"), Step::Value(VALUE), Step::Space]),
    Step::Tag("</invoke>"),
    Step::Emit,
    Step::Opt(&[Step::Space, Step::Close("</minimax:tool_call>")]),
];

pub(super) static FORMAT: ToolFormat = ToolFormat {
    name: "minimax_m2",
    models: "MiniMax M2",
    shown_by: &[&["minimax:tool_call"]],
    sections: &[
        Section {
            open: Open::Marker(&["<minimax:tool_call>"]),
            steps: &[Step::Space, Step::Lit("<invoke name=\""), Step::Any(&[INVOKE])],
        },
        Section { open: Open::Marker(&["<invoke name=\""]), steps: INVOKE },
    ],
    writings: &[Writing {
        open: "<minimax:tool_call>\n",
        before_name: "<invoke name=\"",
        before_arguments: "\">\n",
        after_arguments: "</invoke>",
        between: Some("\n"),
        close: "\n</minimax:tool_call>",
        arguments: Arguments::Each(Each {
            before_key: "<parameter name=\"",
            before_text: "\">",
            before_json: "\">",
            after_value: "</parameter>\n",
            raw: &VALUE,
        }),
        ..OBJECT
    }],
    ..PLAIN
};
