//! [`Frame`]: the tokens that a model expects around a text.

use super::field::Field;
use crate::error::Result;

/// Tokens before and after a text.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(super) struct Frame {
    pub(super) before: Vec<u32>,
    pub(super) after: Vec<u32>,
}

impl Frame {
    /// Reads a `post_processor`.
    pub(super) fn read(field: &Field<'_>) -> Result<Frame> {
        let mut frame = Frame::default();
        for part in field.parts("processors")? {
            let Frame { before, after } = match part.kind()? {
                "ByteLevel" => continue,
                "BertProcessing" | "RobertaProcessing" => {
                    let id = |key| {
                        let pair = part.at(key);
                        pair.items()?.get(1).ok_or_else(|| pair.bad("should be a token and its id"))?.id()
                    };
                    Frame { before: vec![id("cls")?], after: vec![id("sep")?] }
                }
                "TemplateProcessing" => template(&part)?,
                other => return Err(part.unsupported(format_args!("post-processor {other:?}"))),
            };
            if frame != Frame::default() {
                return Err(part.unsupported("a second post-processor that adds tokens"));
            }
            frame = Frame { before, after };
        }
        Ok(frame)
    }
}

fn template(field: &Field<'_>) -> Result<Frame> {
    let mut frame = Frame::default();
    let mut texts = 0;
    let single = field.at("single");
    for piece in single.items()? {
        let special = piece.at("SpecialToken");
        if special.is_null() {
            if piece.at("Sequence").at("id").text()? != "A" {
                return Err(piece.bad("has a second text in the template for one"));
            }
            texts += 1;
            continue;
        }
        let name = special.at("id").text()?;
        let ids = field.at("special_tokens").at(name).at("ids");
        let side = if texts == 0 { &mut frame.before } else { &mut frame.after };
        for id in ids.items()? {
            side.push(id.id()?);
        }
    }
    if texts != 1 {
        return Err(single.bad(format_args!("has the text {texts} times, not once")));
    }
    Ok(frame)
}
