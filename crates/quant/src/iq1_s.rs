//! IQ1_S: 256 weights; every 8 choose among 2048 patterns of -1, 0 and 1; every 32 have a scale of 3 bits, and are all
//! shifted up or down by an eighth. `w = d * (2 * s + 1) * (q ± 1/8)`.

use std::array;
use std::sync::LazyLock;

use bytemuck::{Pod, Zeroable};

use crate::fit::{Book, Unit, finite, fit_books};
use crate::gridded::{self, Gridded, IQ1, IQ1_GRID, eight};
use crate::{Block, F16, Format};

/// A block of [`Format::IQ1S`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct IQ1S {
    /// Super-block scale: the scales are multiples of it.
    pub d: F16,
    /// For every 8 weights, the low bits of the pattern's index.
    pub qs: [u8; 32],
    /// For every 32 weights, lowest bits first: the three high bits of each pattern's index, the scale, and whether
    /// weights are shifted down.
    pub qh: [[u8; 2]; 8],
}

static BOOKS: LazyLock<[Book<8>; 2]> =
    LazyLock::new(|| [&IQ1[..3], &IQ1[4..7]].map(|values| Book::new(&IQ1_GRID, values, 2)));

impl Gridded for IQ1S {
    const BITS: usize = 3;
    const VALUES: [i8; 16] = IQ1;

    #[inline(always)]
    fn step(&self) -> f32 {
        self.d.get() / 8.0
    }

    #[inline(always)]
    fn factors(&self) -> [u8; 16] {
        array::from_fn(|i| 2 * (self.qh[i / 2][1] >> 4 & 7) + 1)
    }

    #[inline(always)]
    fn codes(&self) -> [u8; 256] {
        let mut codes = [0; 256];
        for (i, codes) in codes.as_chunks_mut::<8>().0.iter_mut().enumerate() {
            let qh = u16::from_le_bytes(self.qh[i / 4]);
            let high = usize::from(qh >> (3 * (i % 4)) & 7) << 8;
            let down = if qh >> 15 == 1 { 255 } else { 0 };
            *codes = eight(IQ1_GRID[usize::from(self.qs[i]) | high], down);
        }
        codes
    }
}

impl Block for IQ1S {
    type Weights = [f32; 256];
    const FORMAT: Format = Format::IQ1S;

    #[inline(always)]
    fn unpack(&self, weights: &mut [f32; 256]) {
        gridded::unpack(self, weights);
    }

    fn pack(weights: &[f32; 256], care: &[f32; 256]) -> IQ1S {
        let fit = fit_books(&Unit::new(&finite(weights), care), &*BOOKS, 4, 15, 8.0);
        let qh = array::from_fn(|part| {
            let high = (0..4).map(|i| (fit.entries[4 * part + i] >> 8) << (3 * i)).sum::<u16>();
            let scale = u16::from(fit.factors[part] / 2) << 12;
            (high | scale | u16::from(fit.books[part]) << 15).to_le_bytes()
        });
        IQ1S { d: fit.d, qs: array::from_fn(|i| fit.entries[i] as u8), qh }
    }
}
