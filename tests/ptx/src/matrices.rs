//! Products of small matrices (`mma`), whose fragments are spread over a warp's lanes.

use crate::code::{Mma, MmaKind};
use crate::registers::{LANES, Registers};

/// Rows of the first factor, columns of the second.
const ROWS: usize = 16;
const COLS: usize = 8;

/// The row and the column of a lane's `i`th element of the sum.
fn place(lane: usize, i: usize) -> (usize, usize) {
    (lane / 4 + i / 2 * 8, lane % 4 * 2 + i % 2)
}

/// Both factors' fragments as matrices: the first by rows, the second by columns. `EACH` elements are in a word.
#[inline(always)]
fn factors<T: Copy + Default, const K: usize, const EACH: usize>(
    registers: &Registers,
    mma: &Mma,
    of: impl Fn(u32, usize, bool) -> T,
) -> ([[T; K]; ROWS], [[T; K]; COLS]) {
    let (mut a, mut b) = ([[T::default(); K]; ROWS], [[T::default(); K]; COLS]);
    // One of each word, of all lanes at once, and then each where it belongs.
    let elements = |at: u16, i: usize, is_a: bool| {
        let mut elements = [T::default(); LANES];
        for (element, word) in elements.iter_mut().zip(registers.words(at)) {
            *element = of(*word, i, is_a);
        }
        elements
    };
    for i in 0..EACH {
        for (j, at) in mma.a.iter().enumerate() {
            for (lane, element) in elements(*at, i, true).into_iter().enumerate() {
                a[lane / 4 + j % 2 * 8][lane % 4 * EACH + i + j / 2 * K / 2] = element;
            }
        }
        for (j, at) in mma.b.iter().enumerate() {
            for (lane, element) in elements(*at, i, false).into_iter().enumerate() {
                b[lane / 4][lane % 4 * EACH + i + j * K / 2] = element;
            }
        }
    }
    (a, b)
}

/// The number that 16 bits of an `f16` are.
#[inline(always)]
fn of_f16(half: u16) -> f32 {
    let (sign, rest) = (u32::from(half & 0x8000) << 16, u32::from(half & 0x7fff) << 13);
    // Its exponent, less by 112, makes a subnormal number of what is one, and 31 is infinity or NaN.
    let finite = f32::from_bits(rest) * f32::from_bits((127 + 112) << 23);
    let special = rest | 0x7f80_0000;
    f32::from_bits(sign | if rest < 0x0f80_0000 { finite.to_bits() } else { special })
}

/// Sums of products of 16-bit floats. The products are exact. How a GPU rounds their sum is its own affair; here it is rounded
/// once, after each was added in `f64` in order.
#[inline(always)]
fn floats(registers: &Registers, mma: &Mma, float: impl Fn(u16) -> f32, sums: &mut [[u32; 4]; LANES]) {
    let element = |word: u32, i: usize, _: bool| float((word >> (16 * i)) as u16);
    let (a, b) = factors::<f32, 16, 2>(registers, mma, element);
    // Columns side by side.
    let mut columns = [[0f64; COLS]; 16];
    for (col, b) in b.iter().enumerate() {
        for (k, b) in b.iter().enumerate() {
            columns[k][col] = f64::from(*b);
        }
    }
    let mut products = [[0f64; COLS]; ROWS];
    for (products, a) in products.iter_mut().zip(&a) {
        for (a, columns) in a.iter().zip(&columns) {
            let a = f64::from(*a);
            products.iter_mut().zip(columns).for_each(|(sum, b)| *sum += a * b);
        }
    }
    for (lane, sums) in sums.iter_mut().enumerate() {
        for (i, sum) in sums.iter_mut().enumerate() {
            let (row, col) = place(lane, i);
            let old = f64::from(f32::from_bits(registers.word(mma.c[i], lane)));
            *sum = ((old + products[row][col]) as f32).to_bits();
        }
    }
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
            let (a, b) = factors::<i16, 32, 4>(registers, mma, element);
            for (lane, sums) in sums.iter_mut().enumerate() {
                for (i, sum) in sums.iter_mut().enumerate() {
                    let (row, col) = place(lane, i);
                    let products = a[row].iter().zip(&b[col]).map(|(a, b)| i32::from(*a) * i32::from(*b));
                    *sum = registers.word(mma.c[i], lane).wrapping_add(products.sum::<i32>() as u32);
                }
            }
        }
        MmaKind::F16 => floats(registers, mma, of_f16, &mut sums),
        MmaKind::Bf16 => floats(registers, mma, |half| f32::from_bits(u32::from(half) << 16), &mut sums),
    }
    for (lane, sums) in sums.iter().enumerate() {
        for (at, sum) in mma.to.iter().zip(sums) {
            registers.set_word(*at, lane, *sum);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn f16_is_what_it_says() {
        for bits in 0..=u16::MAX {
            let (got, want) = (of_f16(bits), half::f16::from_bits(bits).to_f32());
            assert!(
                got.to_bits() == want.to_bits() || got.is_nan() && want.is_nan(),
                "{bits:#x}: {got} for {want}"
            );
        }
    }
}
