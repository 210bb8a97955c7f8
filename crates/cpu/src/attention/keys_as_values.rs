//! Values from blocks of keys, for a cache whose values are its keys (the latent rows of MLA).
//!
//! A block of keys lies by elements, a block of values by slots (see [`page`](super::page)), so each is the transpose of
//! the other. A segment's values are laid out once for all query rows of a task, from keys that have just been read.

use super::BLOCK;

/// Elements of a slot that are stored together.
const TOGETHER: usize = 4;

/// Lays out the values of a block of keys: from [dim, BLOCK] to [BLOCK, dim].
#[inline(always)]
pub(super) fn transpose<E: bytemuck::Pod>(keys: &[E], dim: usize, values: &mut [E]) {
    let (keys, values) = (&keys[..BLOCK * dim], &mut values[..BLOCK * dim]);
    for (d, keys) in (0..dim).step_by(TOGETHER).zip(keys.chunks_exact(TOGETHER * BLOCK)) {
        for (i, values) in values.chunks_exact_mut(dim).enumerate() {
            let four = std::array::from_fn(|e| keys[e * BLOCK + i]);
            put(four, &mut values[d..d + TOGETHER]);
        }
    }
    for d in dim / TOGETHER * TOGETHER..dim {
        (0..BLOCK).for_each(|i| values[i * dim + d] = keys[d * BLOCK + i]);
    }
}

/// Stores elements next to each other: narrow ones by one instruction.
#[inline(always)]
fn put<E: bytemuck::Pod>(elements: [E; TOGETHER], to: &mut [E]) {
    match size_of::<E>() {
        2 => {
            let bits = |x: &E| u64::from(bytemuck::cast::<E, u16>(*x).to_le());
            let [a, b, c, d] = elements.each_ref().map(bits);
            let word = a | b << 16 | c << 32 | d << 48;
            bytemuck::cast_slice_mut::<E, u8>(to).copy_from_slice(&word.to_le_bytes());
        }
        1 => {
            let bits = |x: &E| u32::from(bytemuck::cast::<E, u8>(*x));
            let [a, b, c, d] = elements.each_ref().map(bits);
            let word = a | b << 8 | c << 16 | d << 24;
            bytemuck::cast_slice_mut::<E, u8>(to).copy_from_slice(&word.to_le_bytes());
        }
        _ => to.copy_from_slice(&elements),
    }
}

/// Lays out the values of a block of i8 keys in the paired layout: from [dim / 2, BLOCK, 2] to [BLOCK / 2, dim, 2].
#[inline(always)]
pub(super) fn pairs(keys: &[i8], dim: usize, values: &mut [i8]) {
    // Two elements in two slots are four neighbours in both.
    let lines = keys[..BLOCK * dim].chunks_exact(2 * BLOCK).enumerate();
    for (pair, line) in lines {
        for (two, from) in line.chunks_exact(4).enumerate() {
            let to = &mut values[2 * (two * dim + 2 * pair)..][..4];
            to.copy_from_slice(&[from[0], from[2], from[1], from[3]]);
        }
    }
}

/// Columns of a tile.
#[cfg(any(test, target_arch = "x86_64"))]
const COLUMNS: usize = 16;

/// Lays out up to 16 elements of a block of bf16 keys, [elements, BLOCK], as lines of a right operand of tiles: two slots
/// of each element a line. The slots from `len` on, and the elements that are missing, are zero.
#[cfg(any(test, target_arch = "x86_64"))]
#[inline(always)]
pub(super) fn tile_lines(keys: &[u16], len: usize, lines: &mut [[u32; COLUMNS]; BLOCK / 2]) {
    if keys.len() < COLUMNS * BLOCK {
        *lines = [[0; COLUMNS]; BLOCK / 2];
    }
    for (column, key) in keys.chunks_exact(BLOCK).take(COLUMNS).enumerate() {
        for (line, two) in lines.iter_mut().zip(key.chunks_exact(2)) {
            line[column] = u32::from(two[0]) | u32::from(two[1]) << 16;
        }
    }
    if len < BLOCK {
        let kept = |line: usize| match len.saturating_sub(2 * line) {
            0 => 0,
            1 => 0xffff,
            _ => u32::MAX,
        };
        lines.iter_mut().enumerate().for_each(|(i, line)| line.iter_mut().for_each(|x| *x &= kept(i)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn transposed<E: bytemuck::Pod + PartialEq + std::fmt::Debug>(keys: Vec<E>, dim: usize) {
        let mut values = vec![E::zeroed(); dim * BLOCK];
        transpose(&keys, dim, &mut values);
        for (at, value) in values.iter().enumerate() {
            assert_eq!(*value, keys[at % dim * BLOCK + at / dim], "element {at} of {dim}");
        }
    }

    #[test]
    fn values_are_the_transpose_of_keys() {
        for dim in [1, 7, 8, 20, 576] {
            transposed((0..dim * BLOCK).map(|i| i as f32).collect(), dim);
            transposed((0..dim * BLOCK).map(|i| i as u16).collect(), dim);
            transposed((0..dim * BLOCK).map(|i| (i % 251) as u8).collect(), dim);
        }
    }

    #[test]
    fn paired_values_have_two_slots_of_an_element_side_by_side() {
        for dim in [2, 6, 34] {
            // Different in any element and slot that could be mistaken for each other.
            let code = |d: usize, slot: usize| (d * 16 + slot) as u8 as i8;
            let mut keys = vec![0; dim * BLOCK];
            for (d, slot) in (0..dim).flat_map(|d| (0..BLOCK).map(move |slot| (d, slot))) {
                keys[d / 2 * 2 * BLOCK + 2 * slot + d % 2] = code(d, slot);
            }
            let mut values = vec![0; dim * BLOCK];
            pairs(&keys, dim, &mut values);
            for (d, slot) in (0..dim).flat_map(|d| (0..BLOCK).map(move |slot| (d, slot))) {
                let got = values[slot / 2 * 2 * dim + 2 * d + slot % 2];
                assert_eq!(got, code(d, slot), "element {d} of {dim} in slot {slot}");
            }
        }
    }

    #[test]
    fn tile_lines_have_two_slots_of_an_element_and_zeros_past_the_end() {
        for (columns, len) in [(16, 16), (16, 5), (3, 16), (3, 8), (16, 0)] {
            let keys: Vec<u16> = (1..=columns as u16 * BLOCK as u16).collect();
            let mut lines = [[7; COLUMNS]; BLOCK / 2];
            tile_lines(&keys, len, &mut lines);
            for (slot, column) in (0..BLOCK).flat_map(|slot| (0..COLUMNS).map(move |c| (slot, c))) {
                let is_there = slot < len && column < columns;
                let want = if is_there { keys[column * BLOCK + slot] } else { 0 };
                let got = (lines[slot / 2][column] >> (slot % 2 * 16)) as u16;
                assert_eq!(got, want, "slot {slot} of {len}, column {column} of {columns}");
            }
        }
    }
}
