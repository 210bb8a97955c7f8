//! [`StreamCheck`]: checks a tensor's bytes for NaN and infinity while they are cached, then releases their pages.

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};

use tallow_checkpoint::Stored;
use tallow_quant::Format;

use crate::error::{LoadError, Result};

/// A matrix on its way to a device. Rows that the device has read are checked while they are cached, and then released.
///
/// Unquantized elements must be finite. Quantized blocks are not checked: damage there shows in the logits.
pub(super) struct StreamCheck<'a> {
    stored: &'a Stored,
    format: Format,
    rows: usize,
    /// Number of rows checked.
    checked: AtomicUsize,
    /// Index of the first element that is not finite among those checked; `usize::MAX` if there is none.
    bad: AtomicUsize,
}

/// Bytes checked and released at a time where a device does not report which rows it has read.
const AT_ONCE: usize = 1 << 20;

impl<'a> StreamCheck<'a> {
    pub(super) fn new(stored: &'a Stored, format: Format, rows: usize) -> StreamCheck<'a> {
        StreamCheck { stored, format, rows, checked: AtomicUsize::new(0), bad: AtomicUsize::new(usize::MAX) }
    }

    fn row_bytes(&self) -> usize {
        self.stored.bytes.len() / self.rows.max(1)
    }

    pub(super) fn release_rows(&self, rows: Range<usize>) {
        let (width, count) = (self.row_bytes(), rows.len());
        let bytes = rows.start * width..rows.end * width;
        let first = self.stored.bytes().get(bytes.clone()).and_then(|bytes| not_finite(self.format, bytes));
        if let Some(first) = first {
            self.bad.fetch_min(rows.start * (self.stored.len() / self.rows) + first, Ordering::Relaxed);
        }
        self.checked.fetch_add(count, Ordering::Relaxed);
        let start = self.stored.bytes.start;
        self.stored.file.release(start + bytes.start..start + bytes.end);
    }

    /// Checks all rows if the device did not report all of them, and returns an error if an element is not finite.
    pub(super) fn finish(self, name: &str) -> Result<()> {
        if self.checked.load(Ordering::Relaxed) != self.rows {
            let step = (AT_ONCE / self.row_bytes().max(1)).max(1);
            (0..self.rows).step_by(step).for_each(|row| self.release_rows(row..self.rows.min(row + step)));
        }
        match self.bad.into_inner() {
            usize::MAX => Ok(()),
            i => {
                let why = format!("element {i} is not a finite number: the file is damaged");
                Err(LoadError::bad(self.stored.file.path(), format!("tensor {name:?}"), why))
            }
        }
    }
}

/// Index of the first element that is NaN or infinite (all exponent bits set), in unquantized formats.
pub fn not_finite(format: Format, bytes: &[u8]) -> Option<usize> {
    match format {
        Format::F32 => position(bytes, |x| u32::from_le_bytes(x) & 0x7F80_0000 == 0x7F80_0000),
        Format::BF16 => position(bytes, |x| u16::from_le_bytes(x) & 0x7F80 == 0x7F80),
        Format::F16 => position(bytes, |x| u16::from_le_bytes(x) & 0x7C00 == 0x7C00),
        _ => None,
    }
}

fn position<const N: usize>(bytes: &[u8], is_bad: impl Fn([u8; N]) -> bool) -> Option<usize> {
    let elements = bytes.as_chunks::<N>().0;
    // Testing a chunk without branching on each element is several times as fast.
    let some_bad = |some: &[[u8; N]]| some.iter().fold(false, |bad, x| bad | is_bad(*x));
    let at = elements.chunks(1024).position(some_bad)? * 1024;
    elements[at..].iter().position(|x| is_bad(*x)).map(|i| at + i)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use tallow_checkpoint::Kind;
    use tallow_checkpoint::map::Mapping;

    const COLS: usize = 1500;

    /// The error for ten rows with NaN at `bad`, where the device reads the rows `read` in that order.
    fn said(bad: &[usize], read: &[Range<usize>]) -> Option<String> {
        let mut data = vec![1.0f32; 10 * COLS];
        bad.iter().for_each(|i| data[*i] = f32::NAN);
        let bytes: Vec<u8> = data.iter().flat_map(|x| x.to_le_bytes()).collect();
        let file = Arc::new(Mapping::embedded("test", bytes.leak()));
        let (kind, bytes) = (Kind::Weights(Format::F32), 0..file.len());
        let stored = Stored { file, kind, shape: vec![10, COLS], bytes };
        let check = StreamCheck::new(&stored, Format::F32, 10);
        read.iter().for_each(|rows| check.release_rows(rows.clone()));
        check.finish("w").err().map(|e| e.to_string())
    }

    #[test]
    fn the_first_number_that_is_none_is_named_whatever_a_device_reads_first() {
        let first = "test: tensor \"w\": element 3001 is not a finite number: the file is damaged";
        let bad = [3001, 3002, 4 * COLS, 10 * COLS - 1];
        for read in [&[][..], &[0..4, 4..10], &[7..10, 4..7, 0..4], &[3..10, 0..3], &[7..10, 5..7]] {
            assert_eq!(said(&bad, read).as_deref(), Some(first), "{read:?}");
            assert_eq!(said(&[], read), None, "{read:?}");
        }
        let last = said(&[10 * COLS - 1], &[0..2, 2..5]).unwrap();
        assert!(last.contains("element 14999 "), "{last}");
    }

    #[test]
    fn what_is_not_finite_is_found_in_every_plain_format() {
        let is = |format, bits: &[u8]| not_finite(format, bits) == Some(0);
        for x in [f32::NAN, -f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            assert!(
                is(Format::F32, &x.to_le_bytes()) && is(Format::BF16, &half::bf16::from_f32(x).to_le_bytes())
            );
            assert!(is(Format::F16, &half::f16::from_f32(x).to_le_bytes()));
        }
        for x in [0.0, -0.0, f32::MIN_POSITIVE, -1.5, f32::MAX] {
            assert!(!is(Format::F32, &x.to_le_bytes()), "{x}");
        }
        assert!(
            !is(Format::F16, &half::f16::MAX.to_le_bytes())
                && !is(Format::BF16, &half::bf16::MAX.to_le_bytes())
        );
    }
}
