//! IQ2_S: 256 weights; every 8 choose among 1024 patterns of 3 magnitudes, and every 16 have a scale of 4 bits.
//! `w = d / 8 * (2 * s + 1) * m`.

use std::sync::LazyLock;

use bytemuck::{Pod, Zeroable};

use crate::fit::{Book, Signed, fit_books};
use crate::gridded::{self, Gridded, IQ2, eight, entries, odd};
use crate::{Block, F16, Format};

/// A block of [`Format::IQ2S`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct IQ2S {
    /// Super-block scale: the scales are multiples of it.
    pub d: F16,
    /// For every 8 weights, the low bits of the pattern's index.
    pub qs: [u8; 32],
    /// The weights' signs.
    pub signs: [u8; 32],
    /// The two high bits of the patterns' indices, lowest bits first.
    pub qh: [u8; 8],
    /// The scales, low half first.
    pub scales: [u8; 8],
}

static GRID: [u16; 1024] = entries(include_bytes!("../../../assets/grids/iq2_s.bin"));
static BOOK: LazyLock<[Book<8>; 1]> = LazyLock::new(|| [Book::new(&GRID, &IQ2[..3], 2)]);

impl Gridded for IQ2S {
    const BITS: usize = 3;
    const VALUES: [i8; 16] = IQ2;

    #[inline(always)]
    fn step(&self) -> f32 {
        self.d.get() / 8.0
    }

    #[inline(always)]
    fn factors(&self) -> [u8; 16] {
        odd(&self.scales, 1)
    }

    #[inline(always)]
    fn codes(&self) -> [u8; 256] {
        let mut codes = [0; 256];
        for (i, codes) in codes.as_chunks_mut::<8>().0.iter_mut().enumerate() {
            let high = usize::from(self.qh[i / 4] >> (2 * (i % 4)) & 3) << 8;
            *codes = eight(GRID[usize::from(self.qs[i]) | high], self.signs[i]);
        }
        codes
    }
}

impl Block for IQ2S {
    type Weights = [f32; 256];
    const FORMAT: Format = Format::IQ2S;

    #[inline(always)]
    fn unpack(&self, weights: &mut [f32; 256]) {
        gridded::unpack(self, weights);
    }

    fn pack(weights: &[f32; 256], care: &[f32; 256]) -> IQ2S {
        let (x, signs) = Signed::free(weights, care);
        let fit = fit_books(&x, &*BOOK, 2, 31, 8.0);
        let mut block = IQ2S { d: fit.d, signs, scales: fit.nibbles(), ..IQ2S::zeroed() };
        for i in 0..32 {
            block.qs[i] = fit.entries[i] as u8;
            block.qh[i / 4] |= ((fit.entries[i] >> 8) as u8) << (2 * (i % 4));
        }
        block
    }
}
