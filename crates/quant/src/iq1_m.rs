//! IQ1_M: 256 weights; every 8 choose among 2048 patterns of -1, 0 and 1, and are all shifted up or down by an eighth;
//! every 16 have a scale of 3 bits. `w = d * (2 * s + 1) * (q ± 1/8)`.

use std::array;
use std::sync::LazyLock;

use bytemuck::{Pod, Zeroable};

use crate::fit::{Book, Unit, finite, fit_books};
use crate::gridded::{self, Gridded, IQ1, IQ1_GRID, eight};
use crate::{Block, F16, Format};

/// A block of [`Format::IQ1M`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct IQ1M {
    /// For every 8 weights, the low bits of the pattern's index.
    pub qs: [u8; 32],
    /// For every 8 weights, in half a byte: the three high bits of the pattern's index, and whether weights are shifted
    /// down.
    pub qh: [u8; 16],
    /// For every 64 weights, lowest bits first: four scales, and four bits of `d`.
    pub scales: [[u8; 2]; 4],
}

/// The patterns shifted up, followed by those shifted down.
static BOOK: LazyLock<[Book<8>; 1]> = LazyLock::new(|| {
    let [up, down] = [&IQ1[..3], &IQ1[4..7]].map(|values| Book::new(&IQ1_GRID, values, 2));
    [up.and(down)]
});

impl IQ1M {
    /// Super-block scale: the scales are multiples of it.
    #[inline(always)]
    pub fn d(&self) -> F16 {
        let four = |i: usize| u16::from(self.scales[i][1] >> 4) << (4 * i);
        F16((four(0) | four(1) | four(2) | four(3)).to_le_bytes())
    }
}

impl Gridded for IQ1M {
    const BITS: usize = 3;
    const VALUES: [i8; 16] = IQ1;

    #[inline(always)]
    fn step(&self) -> f32 {
        self.d().get() / 8.0
    }

    #[inline(always)]
    fn factors(&self) -> [u8; 16] {
        array::from_fn(|i| 2 * (u16::from_le_bytes(self.scales[i / 4]) >> (3 * (i % 4)) & 7) as u8 + 1)
    }

    #[inline(always)]
    fn codes(&self) -> [u8; 256] {
        let mut codes = [0; 256];
        for (i, codes) in codes.as_chunks_mut::<8>().0.iter_mut().enumerate() {
            let qh = self.qh[i / 2] >> (4 * (i % 2));
            let down = if qh & 8 != 0 { 255 } else { 0 };
            *codes = eight(IQ1_GRID[usize::from(self.qs[i]) | usize::from(qh & 7) << 8], down);
        }
        codes
    }
}

impl Block for IQ1M {
    type Weights = [f32; 256];
    const FORMAT: Format = Format::IQ1M;

    #[inline(always)]
    fn unpack(&self, weights: &mut [f32; 256]) {
        gridded::unpack(self, weights);
    }

    fn pack(weights: &[f32; 256], care: &[f32; 256]) -> IQ1M {
        let fit = fit_books(&Unit::new(&finite(weights), care), &*BOOK, 2, 15, 8.0);
        let d = u16::from_le_bytes(fit.d.0);
        let scales = array::from_fn(|i| {
            let four = (0..4).map(|j| u16::from(fit.factors[4 * i + j] / 2) << (3 * j)).sum::<u16>();
            (four | (d >> (4 * i) & 15) << 12).to_le_bytes()
        });
        // The bit above the index of a pattern says which half of the book it is in.
        let high = |i: usize| (fit.entries[i] >> 8) as u8;
        let qh = array::from_fn(|i| high(2 * i) | high(2 * i + 1) << 4);
        IQ1M { qs: array::from_fn(|i| fit.entries[i] as u8), qh, scales }
    }
}
