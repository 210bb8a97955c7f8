//! Products of small matrices (`mma`), whose fragments are spread over a warp's lanes.

use half::{bf16, f16};

use crate::code::{Mma, MmaKind};
use crate::registers::{LANES, Registers};

/// Rows of the first factor, columns of the second.
const ROWS: usize = 16;
const COLS: usize = 8;

/// The row and the column of a lane's `i`th element of the sum.
fn place(lane: usize, i: usize) -> (usize, usize) {
    (lane / 4 + i / 2 * 8, lane % 4 * 2 + i % 2)
}

/// Both factors' fragments as matrices: the first by rows, the second by columns. `each` elements are in a word.
fn factors<T: Copy + Default, const K: usize>(
    registers: &Registers,
    mma: &Mma,
    each: usize,
    element: impl Fn(u32, usize, bool) -> T,
) -> ([[T; K]; ROWS], [[T; K]; COLS]) {
    let (mut a, mut b) = ([[T::default(); K]; ROWS], [[T::default(); K]; COLS]);
    for lane in 0..LANES {
        let (group, k) = (lane / 4, lane % 4 * each);
        for (j, at) in mma.a.iter().enumerate() {
            let word = registers.word(*at, lane);
            for i in 0..each {
                a[group + j % 2 * 8][k + i + j / 2 * K / 2] = element(word, i, true);
            }
        }
        for (j, at) in mma.b.iter().enumerate() {
            let word = registers.word(*at, lane);
            for i in 0..each {
                b[group][k + i + j * K / 2] = element(word, i, false);
            }
        }
    }
    (a, b)
}

/// Executes it in all lanes.
#[inline(always)]
pub(crate) fn multiply(registers: &mut Registers, mma: &Mma) {
    let mut sums = [[0u32; 4]; LANES];
    match mma.kind {
        MmaKind::Bytes(a_signed, b_signed) => {
            let element = |word: u32, i: usize, is_a: bool| {
                let byte = (word >> (8 * i)) as u8;
                if if is_a { a_signed } else { b_signed } { i16::from(byte as i8) } else { i16::from(byte) }
            };
            let (a, b) = factors::<i16, 32>(registers, mma, 4, element);
            for (lane, sums) in sums.iter_mut().enumerate() {
                for (i, sum) in sums.iter_mut().enumerate() {
                    let (row, col) = place(lane, i);
                    let products = a[row].iter().zip(&b[col]).map(|(a, b)| i32::from(*a) * i32::from(*b));
                    *sum = registers.word(mma.c[i], lane).wrapping_add(products.sum::<i32>() as u32);
                }
            }
        }
        MmaKind::F16 | MmaKind::Bf16 => {
            let element = |word: u32, i: usize, _: bool| {
                let half = (word >> (16 * i)) as u16;
                if mma.kind == MmaKind::F16 {
                    f16::from_bits(half).to_f32()
                } else {
                    bf16::from_bits(half).to_f32()
                }
            };
            let (a, b) = factors::<f32, 16>(registers, mma, 2, element);
            for (lane, sums) in sums.iter_mut().enumerate() {
                for (i, sum) in sums.iter_mut().enumerate() {
                    let (row, col) = place(lane, i);
                    // Products are exact. How a GPU rounds their sum is its own affair; here it is rounded once.
                    let products = a[row].iter().zip(&b[col]).map(|(a, b)| f64::from(*a) * f64::from(*b));
                    let old = f64::from(f32::from_bits(registers.word(mma.c[i], lane)));
                    *sum = ((old + products.sum::<f64>()) as f32).to_bits();
                }
            }
        }
    }
    for (lane, sums) in sums.iter().enumerate() {
        for (at, sum) in mma.to.iter().zip(sums) {
            registers.set_word(*at, lane, *sum);
        }
    }
}
