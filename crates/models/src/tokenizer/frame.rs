//! [`Frame`]: the tokens that a model expects around a text, or around two.

use super::field::Field;
use crate::error::Result;

/// What stands at a place around texts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Piece {
    /// A token.
    Token(u32),
    /// The first text.
    First,
    /// The second text.
    Second,
}

/// A piece, and which of two texts the model takes it to belong to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Placed {
    /// What stands there.
    pub piece: Piece,
    /// 0 or 1 mostly.
    pub of: u32,
}

/// Tokens around a text, and around two.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Frame {
    /// In this there is one text.
    one: Vec<Placed>,
    /// In this there are two, the first in front. `None` where the tokenizer was not made for that.
    two: Option<Vec<Placed>>,
}

impl Default for Frame {
    fn default() -> Frame {
        Frame { one: vec![Placed { piece: Piece::First, of: 0 }], two: None }
    }
}

impl Frame {
    /// Around one text only.
    pub(super) fn around(before: &[u32], after: &[u32]) -> Frame {
        let tokens = |ids: &[u32]| ids.iter().map(|id| Piece::Token(*id)).collect::<Vec<_>>();
        let pieces = [tokens(before), vec![Piece::First], tokens(after)].concat();
        Frame { one: pieces.into_iter().map(|piece| Placed { piece, of: 0 }).collect(), two: None }
    }

    /// What is around one text.
    pub(super) fn one(&self) -> &[Placed] {
        &self.one
    }

    /// What is around two.
    pub(super) fn two(&self) -> Option<&[Placed]> {
        self.two.as_deref()
    }

    /// The tokens before a text.
    pub(super) fn before(&self) -> impl Iterator<Item = u32> {
        tokens(self.one.split(|p| p.piece == Piece::First).next().unwrap_or_default())
    }

    /// The tokens after it.
    pub(super) fn after(&self) -> impl Iterator<Item = u32> {
        tokens(self.one.split(|p| p.piece == Piece::First).nth(1).unwrap_or_default())
    }

    /// All tokens.
    pub(super) fn tokens(&self) -> impl Iterator<Item = u32> {
        tokens(&self.one).chain(tokens(self.two.as_deref().unwrap_or_default()))
    }

    /// Reads a `post_processor`.
    pub(super) fn read(field: &Field<'_>) -> Result<Frame> {
        let mut frame = Frame::default();
        for part in field.parts("processors")? {
            let read = match part.kind()? {
                "ByteLevel" => continue,
                kind @ ("BertProcessing" | "RobertaProcessing") => classic(&part, kind == "BertProcessing")?,
                "TemplateProcessing" => template(&part)?,
                other => return Err(part.unsupported(format_args!("post-processor {other:?}"))),
            };
            if frame.one.len() > 1 {
                return Err(part.unsupported("a second post-processor that adds tokens"));
            }
            frame = read;
        }
        Ok(frame)
    }
}

fn tokens(pieces: &[Placed]) -> impl Iterator<Item = u32> {
    pieces.iter().filter_map(|placed| match placed.piece {
        Piece::Token(id) => Some(id),
        Piece::First | Piece::Second => None,
    })
}

/// BERT has one token between texts and tells them apart; RoBERTa has two, and does not.
fn classic(part: &Field<'_>, is_bert: bool) -> Result<Frame> {
    let id = |key| {
        let pair = part.at(key);
        pair.items()?.get(1).ok_or_else(|| pair.bad("should be a token and its id"))?.id()
    };
    let (cls, sep) = (Piece::Token(id("cls")?), Piece::Token(id("sep")?));
    let first = [cls, Piece::First, sep].map(|piece| Placed { piece, of: 0 });
    let two: Vec<Placed> = match is_bert {
        true => first.into_iter().chain([Piece::Second, sep].map(|piece| Placed { piece, of: 1 })).collect(),
        false => {
            first.into_iter().chain([sep, Piece::Second, sep].map(|piece| Placed { piece, of: 0 })).collect()
        }
    };
    Ok(Frame { one: first.to_vec(), two: Some(two) })
}

fn template(field: &Field<'_>) -> Result<Frame> {
    let single = field.at("single");
    let one = pieces(field, &single)?;
    if one.iter().any(|p| p.piece == Piece::Second) {
        return Err(single.bad("has a second text in the template for one"));
    }
    let texts = one.iter().filter(|p| p.piece == Piece::First).count();
    if texts != 1 {
        return Err(single.bad(format_args!("has the text {texts} times, not once")));
    }
    // What is no template for two texts, each once and in order, is none.
    let pair = field.at("pair");
    let two = if pair.is_null() { None } else { Some(pieces(field, &pair)?) };
    let texts = |two: &Vec<Placed>| {
        let texts = two.iter().map(|p| p.piece).filter(|p| !matches!(p, Piece::Token(_)));
        texts.eq([Piece::First, Piece::Second])
    };
    Ok(Frame { one, two: two.filter(texts) })
}

fn pieces(field: &Field<'_>, template: &Field<'_>) -> Result<Vec<Placed>> {
    let mut pieces = Vec::new();
    for piece in template.items()? {
        let (token, text) = (piece.at("SpecialToken"), piece.at("Sequence"));
        let at = if token.is_null() { &text } else { &token };
        let of = at.at("type_id");
        let of = if of.is_null() { 0 } else { of.id()? };
        if token.is_null() {
            let piece = match text.at("id").text()? {
                "A" => Piece::First,
                "B" => Piece::Second,
                other => return Err(text.bad(format_args!("has the text {other:?}; there are A and B"))),
            };
            pieces.push(Placed { piece, of });
            continue;
        }
        let ids = field.at("special_tokens").at(token.at("id").text()?).at("ids");
        for id in ids.items()? {
            pieces.push(Placed { piece: Piece::Token(id.id()?), of });
        }
    }
    Ok(pieces)
}
