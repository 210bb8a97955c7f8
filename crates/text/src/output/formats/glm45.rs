//! `<tool_call>f`, `<arg_key>key</arg_key>`, `<arg_value>value</arg_value>`, `</tool_call>`, in lines since GLM 4.5 and
//! without since GLM 4.7.

use crate::output::format::{PLAIN, ToolFormat};
use crate::output::step::{Open, Raw, Section, Slot, Step, Typed};
use crate::output::writing::{Arguments, Each, OBJECT, Writing};

const VALUE: Raw = Raw {
    typed: Typed::Schema,
    end: "</arg_value>",
    then: &["<arg_key>", "</tool_call>"],
    never: &["</tool_call>\n<tool_call>", "</tool_call><tool_call>"],
};

pub(super) static FORMAT: ToolFormat = ToolFormat {
    name: "glm45",
    models: "GLM 4.5 and later",
    shown_by: &[&["<arg_key>"]],
    sections: &[Section {
        open: Open::Marker(&["<tool_call>"]),
        steps: &[
            Step::Space,
            Step::Word(Slot::Name, &["<arg_key>", "</tool_call>"]),
            Step::Space,
            Step::Many(&[
                Step::Lit("<arg_key>"),
                Step::Key("</arg_key>"),
                Step::Space,
                Step::Lit("<arg_value>"),
                Step::Value(VALUE),
                Step::Space,
            ]),
            Step::Tag("</tool_call>"),
            Step::Emit,
        ],
    }],
    writings: &[Writing {
        before_name: "<tool_call>",
        before_arguments: "\n",
        after_arguments: "</tool_call>",
        between: Some("\n"),
        arguments: Arguments::Each(Each {
            before_key: "<arg_key>",
            before_text: "</arg_key>\n<arg_value>",
            before_json: "</arg_key>\n<arg_value>",
            after_value: "</arg_value>\n",
            raw: &VALUE,
        }),
        ..OBJECT
    }],
    ..PLAIN
};
