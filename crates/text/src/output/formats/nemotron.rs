//! `<TOOLCALL>[{"name": "f", "arguments": {}}]</TOOLCALL>`

use crate::output::format::{PLAIN, ToolFormat};
use crate::output::step::{ITEMS, Open, Section, Step};
use crate::output::writing::{OBJECTS, Writing};

pub(super) static FORMAT: ToolFormat = ToolFormat {
    name: "nemotron",
    models: "Llama Nemotron, Nemotron Nano 2",
    shown_by: &[&["<TOOLCALL>"]],
    sections: &[Section {
        open: Open::Marker(&["<TOOLCALL>"]),
        steps: &[Step::Space, Step::Lit("["), Step::Any(&[ITEMS]), Step::Space, Step::Close("</TOOLCALL>")],
    }],
    writings: &[Writing { open: "<TOOLCALL>[", close: "]</TOOLCALL>", ..OBJECTS }],
    ..PLAIN
};
