//! `<｜DSML｜function_calls>`, `<｜DSML｜invoke name="f">`, `<｜DSML｜parameter name="key" string="true">value`, and their
//! closing tags; V4 writes `tool_calls` for the first.

use crate::output::format::{PLAIN, ToolFormat};
use crate::output::step::{Open, Raw, Section, Slot, Step, Typed};
use crate::output::writing::{Arguments, Each, OBJECT, Writing};

const THEN: &[&str] = &["<｜DSML｜parameter name=\"", "</｜DSML｜invoke>"];
const NEVER: &[&str] = &["</｜DSML｜invoke>\n</｜DSML｜", "</｜DSML｜invoke></｜DSML｜"];
const TEXT: Raw = Raw { typed: Typed::Text, end: "</｜DSML｜parameter>", then: THEN, never: NEVER };
const JSON: Raw = Raw { typed: Typed::Json, ..TEXT };

/// A call behind `<｜DSML｜invoke name="`.
const INVOKE: &[Step] = &[
    Step::Word(Slot::Name, &["\""]),
    Step::Lit("\">"),
    Step::Space,
    Step::Many(&[
        Step::Lit("<｜DSML｜parameter name=\""),
        Step::Key("\""),
        Step::Any(&[
            &[Step::Lit(" string=\"true\">"), Step::Value(TEXT)],
            &[Step::Lit(" string=\"false\">"), Step::Value(JSON)],
        ]),
        Step::Space,
    ]),
    Step::Tag("</｜DSML｜invoke>"),
    Step::Emit,
    Step::Opt(&[
        Step::Space,
        Step::Any(&[&[Step::Close("</｜DSML｜function_calls>")], &[Step::Close("</｜DSML｜tool_calls>")]]),
    ]),
];

const CALLS: Writing = Writing {
    open: "<｜DSML｜function_calls>\n",
    before_name: "<｜DSML｜invoke name=\"",
    before_arguments: "\">\n",
    arguments: Arguments::Each(Each {
        before_key: "<｜DSML｜parameter name=\"",
        before_text: "\" string=\"true\">",
        before_json: "\" string=\"false\">",
        after_value: "</｜DSML｜parameter>\n",
        raw: &TEXT,
    }),
    after_arguments: "</｜DSML｜invoke>",
    between: Some("\n"),
    close: "\n</｜DSML｜function_calls>",
    ..OBJECT
};

pub(super) static FORMAT: ToolFormat = ToolFormat {
    name: "deepseek_v32",
    models: "DeepSeek V3.2 and V4",
    shown_by: &[&["｜DSML｜"]],
    sections: &[
        Section {
            open: Open::Marker(&["<｜DSML｜function_calls>", "<｜DSML｜tool_calls>"]),
            steps: &[Step::Space, Step::Lit("<｜DSML｜invoke name=\""), Step::Any(&[INVOKE])],
        },
        Section { open: Open::Marker(&["<｜DSML｜invoke name=\""]), steps: INVOKE },
    ],
    writings: &[
        Writing {
            shown_by: "tool_calls>",
            open: "<｜DSML｜tool_calls>\n",
            close: "\n</｜DSML｜tool_calls>",
            ..CALLS
        },
        CALLS,
    ],
    tokens: &["｜DSML｜"],
    ..PLAIN
};
