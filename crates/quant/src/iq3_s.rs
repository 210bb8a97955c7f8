//! IQ3_S: 256 weights; every 4 choose among 512 patterns of 8 magnitudes, and every 32 have a scale of 4 bits.
//! `w = d * (2 * s + 1) * m`.

use std::array;
use std::sync::LazyLock;

use bytemuck::{Pod, Zeroable};

use crate::fit::{Book, Signed, fit_books};
use crate::gridded::{self, Gridded, entries, four_and_four, odd};
use crate::{Block, F16, Format};

/// A block of [`Format::IQ3S`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct IQ3S {
    /// Super-block scale: the scales are multiples of it.
    pub d: F16,
    /// For every 4 weights, the low bits of the pattern's index.
    pub qs: [u8; 64],
    /// The high bits of the patterns' indices.
    pub qh: [u8; 8],
    /// The weights' signs.
    pub signs: [u8; 32],
    /// The scales, low half first.
    pub scales: [u8; 4],
}

static GRID: [u16; 512] = entries(include_bytes!("../../../assets/grids/iq3_s.bin"));
static BOOK: LazyLock<[Book<4>; 1]> = LazyLock::new(|| [Book::new(&GRID, &IQ3S::VALUES[..8], 3)]);

impl Gridded for IQ3S {
    const BITS: usize = 4;
    const VALUES: [i8; 16] = [1, 3, 5, 7, 9, 11, 13, 15, -1, -3, -5, -7, -9, -11, -13, -15];

    #[inline(always)]
    fn step(&self) -> f32 {
        self.d.get()
    }

    #[inline(always)]
    fn factors(&self) -> [u8; 16] {
        odd(&self.scales, 2)
    }

    #[inline(always)]
    fn codes(&self) -> [u8; 256] {
        let mut codes = [0; 256];
        for (i, codes) in codes.as_chunks_mut::<8>().0.iter_mut().enumerate() {
            let entry = |at: usize| {
                let high = usize::from(self.qh[at / 8] >> (at % 8) & 1) << 8;
                GRID[usize::from(self.qs[at]) | high]
            };
            *codes = four_and_four([entry(2 * i), entry(2 * i + 1)], self.signs[i]);
        }
        codes
    }
}

impl Block for IQ3S {
    type Weights = [f32; 256];
    const FORMAT: Format = Format::IQ3S;

    #[inline(always)]
    fn unpack(&self, weights: &mut [f32; 256]) {
        gridded::unpack(self, weights);
    }

    fn pack(weights: &[f32; 256], care: &[f32; 256]) -> IQ3S {
        let (x, signs) = Signed::free(weights, care);
        let fit = fit_books(&x, &*BOOK, 8, 31, 1.0);
        let qs = array::from_fn(|i| fit.entries[i] as u8);
        let mut block = IQ3S { d: fit.d, qs, signs, scales: fit.nibbles(), ..IQ3S::zeroed() };
        for (i, entry) in fit.entries.iter().enumerate() {
            block.qh[i / 8] |= ((entry >> 8) as u8) << (i % 8);
        }
        block
    }
}
