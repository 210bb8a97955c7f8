//! IQ2_XS: 256 weights; every 8 choose among 512 patterns of 3 magnitudes, and every 16 have a scale of 4 bits.
//! `w = d / 8 * (2 * s + 1) * m`.

use std::array;
use std::sync::LazyLock;

use bytemuck::{Pod, Zeroable};

use crate::fit::{Book, Signed, fit_books};
use crate::gridded::{self, Gridded, IQ2, eight, entries, even, odd};
use crate::{Block, F16, Format};

/// A block of [`Format::IQ2XS`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct IQ2XS {
    /// Super-block scale: the scales are multiples of it.
    pub d: F16,
    /// For every 8 weights, the pattern's index in nine bits and then the signs in seven.
    pub qs: [[u8; 2]; 32],
    /// The scales, low half first.
    pub scales: [u8; 8],
}

static GRID: [u16; 512] = entries(include_bytes!("../../../assets/grids/iq2_xs.bin"));
static BOOK: LazyLock<[Book<8>; 1]> = LazyLock::new(|| [Book::new(&GRID, &IQ2[..3], 2)]);

impl Gridded for IQ2XS {
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
        for (q, codes) in self.qs.iter().zip(codes.as_chunks_mut::<8>().0) {
            let q = u16::from_le_bytes(*q);
            *codes = eight(GRID[usize::from(q & 511)], even(u32::from(q >> 9)));
        }
        codes
    }
}

impl Block for IQ2XS {
    type Weights = [f32; 256];
    const FORMAT: Format = Format::IQ2XS;

    #[inline(always)]
    fn unpack(&self, weights: &mut [f32; 256]) {
        gridded::unpack(self, weights);
    }

    fn pack(weights: &[f32; 256], care: &[f32; 256]) -> IQ2XS {
        let (x, signs) = Signed::even(weights, care);
        let fit = fit_books(&x, &*BOOK, 2, 31, 8.0);
        let qs = array::from_fn(|i| (fit.entries[i] | u16::from(signs[i] & 127) << 9).to_le_bytes());
        IQ2XS { d: fit.d, qs, scales: fit.nibbles() }
    }
}
