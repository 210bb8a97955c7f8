//! IQ2_XXS: 256 weights; every 8 choose among 256 patterns of 3 magnitudes, and every 32 have a scale of 4 bits.
//! `w = d / 8 * (2 * s + 1) * m`.

use std::array;
use std::sync::LazyLock;

use bytemuck::{Pod, Zeroable};

use crate::fit::{Book, Signed, fit_books};
use crate::gridded::{self, Gridded, IQ2, eight, entries, even};
use crate::{Block, F16, Format};

/// A block of [`Format::IQ2XXS`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct IQ2XXS {
    /// Super-block scale: the scales are multiples of it.
    pub d: F16,
    /// For every 32 weights: the patterns of every 8; then their signs, seven bits each, and the scale, lowest bits
    /// first.
    pub parts: [[[u8; 4]; 2]; 8],
}

static GRID: [u16; 256] = entries(include_bytes!("../../../assets/grids/iq2_xxs.bin"));
static BOOK: LazyLock<[Book<8>; 1]> = LazyLock::new(|| [Book::new(&GRID, &IQ2[..3], 2)]);

impl Gridded for IQ2XXS {
    const BITS: usize = 3;
    const VALUES: [i8; 16] = IQ2;

    #[inline(always)]
    fn step(&self) -> f32 {
        self.d.get() / 8.0
    }

    #[inline(always)]
    fn factors(&self) -> [u8; 16] {
        array::from_fn(|i| 2 * (self.parts[i / 2][1][3] >> 4) + 1)
    }

    #[inline(always)]
    fn codes(&self) -> [u8; 256] {
        let mut codes = [0; 256];
        for (i, codes) in codes.as_chunks_mut::<8>().0.iter_mut().enumerate() {
            let [patterns, signs] = self.parts[i / 4];
            let signs = u32::from_le_bytes(signs) >> (7 * (i % 4));
            *codes = eight(GRID[usize::from(patterns[i % 4])], even(signs));
        }
        codes
    }
}

impl Block for IQ2XXS {
    type Weights = [f32; 256];
    const FORMAT: Format = Format::IQ2XXS;

    #[inline(always)]
    fn unpack(&self, weights: &mut [f32; 256]) {
        gridded::unpack(self, weights);
    }

    fn pack(weights: &[f32; 256], care: &[f32; 256]) -> IQ2XXS {
        let (x, signs) = Signed::even(weights, care);
        let fit = fit_books(&x, &*BOOK, 4, 31, 8.0);
        let parts = array::from_fn(|part| {
            let signs = (0..4).map(|i| u32::from(signs[4 * part + i] & 127) << (7 * i)).sum::<u32>();
            let scale = u32::from(fit.factors[part] / 2) << 28;
            [array::from_fn(|i| fit.entries[4 * part + i] as u8), (signs | scale).to_le_bytes()]
        });
        IQ2XXS { d: fit.d, parts }
    }
}
