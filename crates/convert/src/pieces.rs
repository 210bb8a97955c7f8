//! [`Piece`]: source tensors of a GGUF tensor.

use std::borrow::Cow;

use tallow_checkpoint::{Kind, Stored};
use tallow_models::weights::{Pair, not_finite, room};
use tallow_models::{LoadError, Result};
use tallow_quant::Format;

use super::changes::Numbers;

/// A source tensor.
#[derive(Debug, Clone)]
pub(super) struct Piece<'a> {
    pub(super) name: String,
    pub(super) stored: &'a Stored,
    /// Block exponents, where the tensor has only the MXFP4 codes.
    pub(super) exponents: Option<&'a Stored>,
}

impl<'a> Piece<'a> {
    pub(super) fn new(name: String, stored: &'a Stored) -> Piece<'a> {
        Piece { name, stored, exponents: None }
    }

    /// Format of its weights in a file, if it has any. `f32` where its columns would otherwise be permuted (act-order).
    pub(super) fn format(&self) -> Option<Format> {
        match &self.stored.kind {
            _ if self.exponents.is_some() => Some(Format::MXFP4),
            _ if self.is_shuffled() => Some(Format::F32),
            Kind::Grouped(matrix) => Some(matrix.gguf_format()),
            _ => self.stored.format(),
        }
    }

    /// True if conversion to blocks would permute its columns (act-order).
    pub(super) fn is_shuffled(&self) -> bool {
        matches!(&self.stored.kind, Kind::Grouped(matrix) if matrix.is_shuffled())
    }

    /// Matrix `i` of `count`, each [rows, cols].
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
                    false => matrix.write_for_gguf(&mut to),
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
            // Refused while planning.
            Kind::Other(_) => Ok((Format::F32, Cow::Borrowed(&[]))),
        }
    }

    /// Drops the pages that were read, after checking that they came from the file.
    pub(super) fn release(&self) -> Result<()> {
        for stored in [Some(self.stored), self.exponents].into_iter().flatten() {
            stored.file.intact()?;
            stored.file.release(stored.bytes.clone());
        }
        Ok(())
    }
}
