//! IQ3_XXS: 256 weights; every 4 choose among 256 patterns of 8 magnitudes, and every 32 have a scale of 4 bits.
//! `w = d / 4 * (2 * s + 1) * m`.

use std::array;
use std::sync::LazyLock;

use bytemuck::{Pod, Zeroable};

use crate::fit::{Book, Signed, fit_books};
use crate::gridded::{self, Gridded, entries, even, four_and_four};
use crate::{Block, F16, Format};

/// A block of [`Format::IQ3XXS`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct IQ3XXS {
    /// Super-block scale: the scales are multiples of it.
    pub d: F16,
    /// For every 4 weights, the pattern's index.
    pub qs: [u8; 64],
    /// For every 32 weights, the signs of every 8, seven bits each, and the scale, lowest bits first.
    pub signs: [[u8; 4]; 8],
}

static GRID: [u16; 256] = entries(include_bytes!("../../../assets/grids/iq3_xxs.bin"));
static BOOK: LazyLock<[Book<4>; 1]> = LazyLock::new(|| [Book::new(&GRID, &IQ3XXS::VALUES[..8], 3)]);

impl Gridded for IQ3XXS {
    const BITS: usize = 4;
    const VALUES: [i8; 16] = [4, 12, 20, 28, 36, 44, 52, 62, -4, -12, -20, -28, -36, -44, -52, -62];

    #[inline(always)]
    fn step(&self) -> f32 {
        self.d.get() / 4.0
    }

    #[inline(always)]
    fn factors(&self) -> [u8; 16] {
        array::from_fn(|i| 2 * (self.signs[i / 2][3] >> 4) + 1)
    }

    #[inline(always)]
    fn codes(&self) -> [u8; 256] {
        let mut codes = [0; 256];
        for (i, codes) in codes.as_chunks_mut::<8>().0.iter_mut().enumerate() {
            let signs = u32::from_le_bytes(self.signs[i / 4]) >> (7 * (i % 4));
            let both = [self.qs[2 * i], self.qs[2 * i + 1]].map(|q| GRID[usize::from(q)]);
            *codes = four_and_four(both, even(signs));
        }
        codes
    }
}

impl Block for IQ3XXS {
    type Weights = [f32; 256];
    const FORMAT: Format = Format::IQ3XXS;

    #[inline(always)]
    fn unpack(&self, weights: &mut [f32; 256]) {
        gridded::unpack(self, weights);
    }

    fn pack(weights: &[f32; 256], care: &[f32; 256]) -> IQ3XXS {
        let (x, signs) = Signed::even(weights, care);
        let fit = fit_books(&x, &*BOOK, 8, 31, 4.0);
        let signs = array::from_fn(|part| {
            let signs = (0..4).map(|i| u32::from(signs[4 * part + i] & 127) << (7 * i)).sum::<u32>();
            (signs | u32::from(fit.factors[part] / 2) << 28).to_le_bytes()
        });
        IQ3XXS { d: fit.d, qs: array::from_fn(|i| fit.entries[i] as u8), signs }
    }
}
