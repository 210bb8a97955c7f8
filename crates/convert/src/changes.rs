//! Transformations of a tensor's matrices when converting to GGUF.

use std::borrow::Cow;

use tallow_models::Result;
use tallow_models::weights::{Runs, Transpose, room};
use tallow_quant::Format;

/// A transformation step.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Change {
    /// Transposes, all rows or some of them.
    Transposed(Transpose),
    /// Permutes or selects rows.
    Rows(Runs),
    /// Permutes columns.
    Columns(Runs),
    /// Adds a constant to each element.
    Offset(f32),
    /// Decay rates: x becomes -exp(x) (`A_log` to `ssm_a`).
    Rates,
}

/// A matrix's data with its format.
pub(super) type Numbers<'a> = (Format, Cow<'a, [u8]>);

impl Change {
    /// Output shape for an input shape [rows, cols].
    pub(super) fn shape(&self, [rows, cols]: [usize; 2]) -> [usize; 2] {
        match self {
            Change::Transposed(transpose) => [transpose.rows, transpose.cols],
            Change::Rows(runs) => [runs.iter().map(|run| run.len()).sum(), cols],
            Change::Columns(runs) => [rows, runs.iter().map(|run| run.len()).sum()],
            Change::Offset(_) | Change::Rates => [rows, cols],
        }
    }

    /// True if all that it reads is inside a matrix [rows, cols].
    pub(super) fn is_within(&self, [rows, cols]: [usize; 2]) -> bool {
        let within =
            |runs: &Runs, count: usize| runs.iter().all(|run| run.start <= run.end && run.end <= count);
        match self {
            Change::Transposed(transpose) => transpose.is_within(rows.saturating_mul(cols)),
            Change::Rows(runs) => within(runs, rows),
            Change::Columns(runs) => within(runs, cols),
            Change::Offset(_) | Change::Rates => true,
        }
    }

    /// The change and why it is impossible with weights of this format; `None` if it is possible.
    pub(super) fn refuses(&self, format: Format) -> Option<[&'static str; 2]> {
        let is_whole = |n: usize| format.row_bytes(n).is_some();
        match self {
            Change::Transposed(_) if !format.is_plain() => {
                Some(["which has to be transposed", "only plain numbers can be"])
            }
            Change::Columns(runs) if !runs.iter().all(|run| is_whole(run.start) && is_whole(run.end)) => {
                Some(["whose columns have to be permuted", "only those of whole blocks can"])
            }
            _ => None,
        }
    }

    /// Applies it to a matrix [rows, cols].
    pub(super) fn apply<'a>(
        &self,
        (format, bytes): Numbers<'a>,
        [rows, cols]: [usize; 2],
    ) -> Result<Numbers<'a>> {
        let row = format.row_bytes(cols).unwrap_or(0);
        let [wanted, cols] = self.shape([rows, cols]);
        let size = |format: Format| format.row_bytes(cols).unwrap_or(0).saturating_mul(wanted);
        let mut to = match self {
            Change::Offset(_) | Change::Rates => room(size(Format::F32))?,
            _ => room(size(format))?,
        };
        match self {
            Change::Transposed(transpose) => transpose.bytes(&bytes, &mut to),
            Change::Rows(runs) => {
                let mut rest = &mut to[..];
                for run in runs {
                    let (some, after) = rest.split_at_mut(run.len() * row);
                    some.copy_from_slice(&bytes[run.start * row..run.end * row]);
                    rest = after;
                }
            }
            Change::Columns(runs) => {
                let at = |n: usize| format.row_bytes(n).unwrap_or(0);
                for (from, mut to) in bytes.chunks_exact(row.max(1)).zip(to.chunks_exact_mut(row.max(1))) {
                    for run in runs {
                        let (some, after) = to.split_at_mut(at(run.len()));
                        some.copy_from_slice(&from[at(run.start)..at(run.end)]);
                        to = after;
                    }
                }
            }
            Change::Offset(by) => each(format, &bytes, &mut to, |x| x + by),
            Change::Rates => each(format, &bytes, &mut to, |x| -x.exp()),
        }
        let format = if let Change::Offset(_) | Change::Rates = self { Format::F32 } else { format };
        Ok((format, to.into()))
    }
}

/// Maps each element, as `f32`.
fn each(format: Format, bytes: &[u8], to: &mut [u8], change: impl Fn(f32) -> f32) {
    let to = to.as_chunks_mut::<4>().0;
    let mut numbers = vec![0.0; to.len()];
    // `numbers` has the right length.
    let _ = tallow_quant::unpack(format, bytes, &mut numbers);
    to.iter_mut().zip(numbers).for_each(|(to, x)| *to = change(x).to_le_bytes());
}
