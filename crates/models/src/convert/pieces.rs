//! [`Piece`]: what a tensor of a GGUF file is made of.

use std::borrow::Cow;

use tallow_quant::Format;

use super::changes::Numbers;
use crate::error::{LoadError, Result};
use crate::formats::{Kind, Stored};
use crate::weights::{Pair, not_finite, room};

/// A tensor of a checkpoint.
#[derive(Debug, Clone)]
pub(super) struct Piece<'a> {
    pub(super) name: String,
    pub(super) stored: &'a Stored,
    /// The exponents of blocks, where it has no more than their codes.
    pub(super) exponents: Option<&'a Stored>,
}

impl<'a> Piece<'a> {
    pub(super) fn new(name: String, stored: &'a Stored) -> Piece<'a> {
        Piece { name, stored, exponents: None }
    }

    /// What its numbers are, if it has any. Where columns would come in another order they are plain.
    pub(super) fn format(&self) -> Option<Format> {
        match &self.stored.kind {
            _ if self.exponents.is_some() => Some(Format::MXFP4),
            _ if self.is_shuffled() => Some(Format::F32),
            _ => self.stored.format(),
        }
    }

    /// Would it be blocks whose inputs are in an order of their own?
    pub(super) fn is_shuffled(&self) -> bool {
        matches!(&self.stored.kind, Kind::Grouped(matrix) if matrix.is_shuffled())
    }

    /// The matrix with number `i` of as many as it holds, each of so many rows and columns.
    pub(super) fn matrix(&self, i: usize, count: usize, [rows, cols]: [usize; 2]) -> Result<Numbers<'a>> {
        let damaged = |at: usize| {
            let why = format!("element {} is not a finite number: the file is damaged", i * rows * cols + at);
            LoadError::bad(self.stored.file.path(), format!("tensor {:?}", self.name), why)
        };
        if let Some(exponents) = self.exponents {
            let mut to = room(Format::MXFP4.row_bytes(cols).unwrap_or(0).saturating_mul(rows))?;
            Pair { codes: self.stored, exponents }.rows(i * rows..(i + 1) * rows, &mut to);
            return Ok((Format::MXFP4, to.into()));
        }
        match &self.stored.kind {
            Kind::Grouped(matrix) => {
                if let Some(at) = matrix.fault() {
                    return Err(damaged(at));
                }
                let format = self.format().unwrap_or(Format::F32);
                let mut to = room(format.row_bytes(cols).unwrap_or(0).saturating_mul(rows))?;
                match self.is_shuffled() {
                    true => matrix.write_plain(&mut to),
                    false => matrix.write(None, &mut to),
                }
                Ok((format, to.into()))
            }
            Kind::Weights(format) => {
                let all = self.stored.bytes();
                let each = all.len() / count.max(1);
                let bytes = all.get(i * each..(i + 1) * each).unwrap_or_default();
                match not_finite(*format, bytes) {
                    Some(at) => Err(damaged(at)),
                    None => Ok((*format, bytes.into())),
                }
            }
            // Refused when this was planned.
            Kind::Other(_) => Ok((Format::F32, Cow::Borrowed(&[]))),
        }
    }

    /// Lets go of what has been read, if that really came from the file.
    pub(super) fn release(&self) -> Result<()> {
        for stored in [Some(self.stored), self.exponents].into_iter().flatten() {
            stored.file.intact()?;
            stored.file.release(stored.bytes.clone());
        }
        Ok(())
    }
}
