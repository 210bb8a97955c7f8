//! [`Frame`]: the post-processor template: special tokens around one text or around a pair.

use tallow_checkpoint::Result;

use super::field::Field;

/// An element of the template.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Piece {
    /// A special token.
    Token(u32),
    /// The first text.
    First,
    /// The second text.
    Second,
}

/// A template element and its token type id (segment).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Placed {
    /// The element.
    pub piece: Piece,
    /// Token type id, usually 0 or 1.
    pub of: u32,
}

/// Templates for one text and for a pair.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Frame {
    /// Template for one text.
    one: Vec<Placed>,
    /// Template for a pair, first text in front. `None` if the tokenizer has none.
    two: Option<Vec<Placed>>,
}

impl Default for Frame {
    fn default() -> Frame {
        Frame { one: vec![Placed { piece: Piece::First, of: 0 }], two: None }
    }
}

impl Frame {
    /// Template for one text only.
    pub(super) fn around(before: &[u32], after: &[u32]) -> Frame {
        let tokens = |ids: &[u32]| ids.iter().map(|id| Piece::Token(*id)).collect::<Vec<_>>();
        let pieces = [tokens(before), vec![Piece::First], tokens(after)].concat();
        Frame { one: pieces.into_iter().map(|piece| Placed { piece, of: 0 }).collect(), two: None }
    }

    /// The template for one text.
    pub(super) fn one(&self) -> &[Placed] {
        &self.one
    }

    /// The template for a pair.
    pub(super) fn two(&self) -> Option<&[Placed]> {
        self.two.as_deref()
    }

    /// The tokens before a single text.
    pub(super) fn before(&self) -> impl Iterator<Item = u32> {
        tokens(self.one.split(|p| p.piece == Piece::First).next().unwrap_or_default())
    }

    /// The tokens after a single text.
    pub(super) fn after(&self) -> impl Iterator<Item = u32> {
        tokens(self.one.split(|p| p.piece == Piece::First).nth(1).unwrap_or_default())
    }

    /// The tokens of both templates.
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

/// BERT puts one `sep` between the texts and gives the second text type id 1; RoBERTa puts two, and type id 0 for both.
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
    // A pair template must have both texts once and in order; any other is ignored.
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
