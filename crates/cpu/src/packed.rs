//! How weights lie in memory: panels of 16 rows, made once when a model is loaded.
//!
//! A *panel* is 16 rows of a weight. It is cut into *chunks* of [`CHUNK`] inputs (the last may be shorter). A chunk holds
//! the numbers that its codes are scaled by, then the codes, in lines of 64 bytes: 16 rows times 4 inputs. One
//! instruction multiplies such a line with four inputs and adds them up for all 16 rows, so nothing is ever summed
//! across lanes, and one layout serves one row of input and a thousand, on every instruction set.
//!
//! Codes of fewer than 8 bits are split into planes of 4, 2 and 1 bits. The planes of a *part* of 32 inputs lie together:
//!
//! - four bits: line `j` has group `j` (of 4 inputs) in the low halves of its bytes and group `j + 4` in the high halves;
//! - two bits: line `h` has group `4 h + j` in bits `2 j` and `2 j + 1` of its bytes;
//! - one bit: bit `g` of the line's bytes is group `g`'s.
//!
//! Panels come in pairs, whose chunks take turns: a kernel works on both, and so reads memory from front to back.

use tallow_quant::{
    BF16, Block, F16, F32, Format, IQ4NL, IQ4XS, MXFP4, Q2K, Q3K, Q4_0, Q4_1, Q4K, Q5_0, Q5_1, Q5K, Q6K,
    Q8_0, Q8K, with_block,
};

/// Rows of a panel.
pub(crate) const ROWS: usize = 16;
/// Rows of a pair of panels.
pub(crate) const PAIR: usize = 2 * ROWS;
/// Inputs of a chunk.
pub(crate) const CHUNK: usize = 256;
/// Inputs whose codes lie together.
pub(crate) const PART: usize = 32;
/// Bytes of a line.
pub(crate) const LINE: usize = 64;

/// What a chunk begins with: 16 numbers each, one for every row.
///
/// Where numbers of the chunk are multiplied by whole ones of its runs, all products of the chunk add up without rounding
/// ([`Layout::is_whole`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scales {
    /// Nothing: the numbers are plain.
    Plain,
    /// A half for each part, which scales it.
    Halves,
    /// Two halves for each part: its scale, and what is added.
    HalvesAdd,
    /// A half for the chunk, and a signed byte that multiplies it for each run.
    Bytes,
    /// Two halves for the chunk. For each run, a byte that multiplies the first and scales; and a byte that multiplies
    /// the second and is taken away.
    BytesLess,
    /// The same, the two bytes being the halves of one.
    NibblesLess,
    /// A single for the chunk.
    Single,
    /// An exponent of two for each part.
    Exponents,
}

/// How a format's blocks become chunks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Layout {
    /// Bits of a code.
    pub bits: usize,
    /// What codes stand for, where they are not numbers.
    pub table: Option<[i8; 16]>,
    /// What is taken away from each code. Codes of 8 bits, and what tables hold, are signed and have none.
    pub bias: u8,
    /// Inputs that share a scale: 16 or 32.
    pub run: usize,
    pub scales: Scales,
}

impl Layout {
    const fn new(bits: usize, bias: u8, run: usize, scales: Scales) -> Layout {
        Layout { bits, table: None, bias, run, scales }
    }

    const fn signed(bits: usize, table: Option<[i8; 16]>, scales: Scales) -> Layout {
        Layout { bits, table, bias: 0, run: 32, scales }
    }

    /// Are codes, looked up if they must be, signed bytes?
    pub(crate) const fn is_wide(&self) -> bool {
        self.bits == 8 || self.table.is_some()
    }

    /// Do all products of a chunk add up without rounding? They do where whole numbers multiply one scale, or none do.
    pub(crate) const fn is_whole(&self) -> bool {
        matches!(self.scales, Scales::Bytes | Scales::BytesLess | Scales::NibblesLess | Scales::Single)
    }

    /// Do the products of 16 codes with bytes add up to 16 bits?
    pub(crate) const fn is_narrow(&self) -> bool {
        !self.is_wide() && self.bits <= 4
    }

    /// Inputs whose products are added before anything scales them.
    pub(crate) const fn step(&self) -> usize {
        if self.is_whole() && self.is_narrow() { 16 } else { self.run }
    }

    /// Is something taken away from (or added to) each run?
    pub(crate) const fn has_mins(&self) -> bool {
        matches!(self.scales, Scales::HalvesAdd | Scales::BytesLess | Scales::NibblesLess)
    }

    /// Bytes before the codes of a chunk.
    pub(crate) const fn head(&self, inputs: usize) -> usize {
        let (parts, runs) = (inputs / PART, inputs / self.run);
        let bytes = match self.scales {
            Scales::Plain => 0,
            Scales::Halves => parts * 32,
            Scales::HalvesAdd => parts * 64,
            Scales::Bytes | Scales::NibblesLess => 64 + runs * ROWS,
            Scales::BytesLess => 64 + 2 * runs * ROWS,
            Scales::Single => 64,
            Scales::Exponents => parts * ROWS,
        };
        bytes.next_multiple_of(LINE)
    }

    /// Bytes of a chunk of a panel.
    pub(crate) const fn chunk(&self, inputs: usize) -> usize {
        match self.scales {
            Scales::Plain => (inputs * ROWS * self.bits / 8).next_multiple_of(LINE),
            _ => self.head(inputs) + inputs / PART * LINE * self.bits,
        }
    }

    /// Bytes of a panel.
    pub(crate) const fn panel(&self, cols: usize) -> usize {
        let rest = cols % CHUNK;
        cols / CHUNK * self.chunk(CHUNK) + if rest == 0 { 0 } else { self.chunk(rest) }
    }
}

/// Bytes of a weight, or `None` where that is past all bounds.
pub(crate) fn packed_bytes(format: Format, rows: usize, cols: usize) -> Option<usize> {
    // Panels are hardly larger than the rows in the file, which fit into memory.
    let layout = layout(format);
    layout.panel(cols).checked_mul(rows.div_ceil(PAIR).checked_mul(2)?)
}

/// The layout of a format.
pub(crate) fn layout(format: Format) -> Layout {
    with_block!(format, B => B::LAYOUT)
}

/// The numbers at the head of a chunk, for one row.
pub(crate) struct Head<'a> {
    bytes: &'a mut [u8],
    row: usize,
}

impl Head<'_> {
    fn half(&mut self, i: usize, x: F16) {
        self.bytes[32 * i + 2 * self.row..][..2].copy_from_slice(&x.0);
    }

    /// Byte `i` of those that follow the halves of the chunk.
    fn byte(&mut self, i: usize, x: u8) {
        self.bytes[LINE + ROWS * i + self.row] = x;
    }
}

/// A block that can be packed.
pub(crate) trait Packing: Block {
    const LAYOUT: Layout;

    /// Writes the codes, one a byte, as [`Layout`] says. `out` is as long as the block.
    fn codes(&self, out: &mut [u8]);

    /// Writes what scales the block, which is the `at`-th of its chunk.
    fn head(&self, at: usize, head: &mut Head<'_>);
}

/// With the bias added. `out` has that length.
#[inline(always)]
fn unsigned<const N: usize>(codes: &[i8; N], bias: u8, out: &mut [u8]) {
    if let Some(out) = out.first_chunk_mut::<N>() {
        *out = codes.map(|c| c.wrapping_add_unsigned(bias) as u8);
    }
}

impl Packing for Q4_0 {
    const LAYOUT: Layout = Layout::new(4, 8, 32, Scales::Halves);

    #[inline(always)]
    fn codes(&self, out: &mut [u8]) {
        unsigned(&Q4_0::codes(self), 8, out);
    }

    fn head(&self, at: usize, head: &mut Head<'_>) {
        head.half(at, self.d);
    }
}

impl Packing for Q4_1 {
    const LAYOUT: Layout = Layout::new(4, 0, 32, Scales::HalvesAdd);

    #[inline(always)]
    fn codes(&self, out: &mut [u8]) {
        out.copy_from_slice(&Q4_1::codes(self));
    }

    fn head(&self, at: usize, head: &mut Head<'_>) {
        head.half(2 * at, self.d);
        head.half(2 * at + 1, self.m);
    }
}

impl Packing for Q5_0 {
    const LAYOUT: Layout = Layout::new(5, 16, 32, Scales::Halves);

    #[inline(always)]
    fn codes(&self, out: &mut [u8]) {
        unsigned(&Q5_0::codes(self), 16, out);
    }

    fn head(&self, at: usize, head: &mut Head<'_>) {
        head.half(at, self.d);
    }
}

impl Packing for Q5_1 {
    const LAYOUT: Layout = Layout::new(5, 0, 32, Scales::HalvesAdd);

    #[inline(always)]
    fn codes(&self, out: &mut [u8]) {
        out.copy_from_slice(&Q5_1::codes(self));
    }

    fn head(&self, at: usize, head: &mut Head<'_>) {
        head.half(2 * at, self.d);
        head.half(2 * at + 1, self.m);
    }
}

impl Packing for Q8_0 {
    const LAYOUT: Layout = Layout::signed(8, None, Scales::Halves);

    #[inline(always)]
    fn codes(&self, out: &mut [u8]) {
        unsigned(&self.qs, 0, out);
    }

    fn head(&self, at: usize, head: &mut Head<'_>) {
        head.half(at, self.d);
    }
}

impl Packing for Q2K {
    const LAYOUT: Layout = Layout::new(2, 0, 16, Scales::NibblesLess);

    #[inline(always)]
    fn codes(&self, out: &mut [u8]) {
        out.copy_from_slice(&Q2K::codes(self));
    }

    fn head(&self, _: usize, head: &mut Head<'_>) {
        head.half(0, self.d);
        head.half(1, self.dmin);
        self.scales.iter().enumerate().for_each(|(i, s)| head.byte(i, *s));
    }
}

impl Packing for Q3K {
    const LAYOUT: Layout = Layout::new(3, 4, 16, Scales::Bytes);

    #[inline(always)]
    fn codes(&self, out: &mut [u8]) {
        unsigned(&Q3K::codes(self), 4, out);
    }

    fn head(&self, _: usize, head: &mut Head<'_>) {
        head.half(0, self.d);
        self.scales().iter().enumerate().for_each(|(i, s)| head.byte(i, *s as u8));
    }
}

impl Packing for Q4K {
    const LAYOUT: Layout = Layout::new(4, 0, 32, Scales::BytesLess);

    #[inline(always)]
    fn codes(&self, out: &mut [u8]) {
        out.copy_from_slice(&Q4K::codes(self));
    }

    fn head(&self, _: usize, head: &mut Head<'_>) {
        head.half(0, self.d);
        head.half(1, self.dmin);
        let (scales, mins) = self.scales.get();
        scales.iter().chain(&mins).enumerate().for_each(|(i, s)| head.byte(i, *s));
    }
}

impl Packing for Q5K {
    const LAYOUT: Layout = Layout::new(5, 0, 32, Scales::BytesLess);

    #[inline(always)]
    fn codes(&self, out: &mut [u8]) {
        out.copy_from_slice(&Q5K::codes(self));
    }

    fn head(&self, _: usize, head: &mut Head<'_>) {
        head.half(0, self.d);
        head.half(1, self.dmin);
        let (scales, mins) = self.scales.get();
        scales.iter().chain(&mins).enumerate().for_each(|(i, s)| head.byte(i, *s));
    }
}

impl Packing for Q6K {
    const LAYOUT: Layout = Layout::new(6, 32, 16, Scales::Bytes);

    #[inline(always)]
    fn codes(&self, out: &mut [u8]) {
        unsigned(&Q6K::codes(self), 32, out);
    }

    fn head(&self, _: usize, head: &mut Head<'_>) {
        head.half(0, self.d);
        self.scales.iter().enumerate().for_each(|(i, s)| head.byte(i, *s as u8));
    }
}

impl Packing for Q8K {
    const LAYOUT: Layout = Layout::signed(8, None, Scales::Single);

    #[inline(always)]
    fn codes(&self, out: &mut [u8]) {
        unsigned(&self.qs, 0, out);
    }

    fn head(&self, _: usize, head: &mut Head<'_>) {
        head.bytes[4 * head.row..][..4].copy_from_slice(&self.d.0);
    }
}

/// The codes of a block of 32 in two halves, as IQ4_NL and MXFP4 store them.
fn split_halves(qs: &[u8; 16], out: &mut [u8]) {
    let (low, high) = out.split_at_mut(16);
    for ((q, low), high) in qs.iter().zip(low).zip(high) {
        (*low, *high) = (q & 15, q >> 4);
    }
}

impl Packing for IQ4NL {
    const LAYOUT: Layout = Layout::signed(4, Some(IQ4NL::VALUES), Scales::Halves);

    #[inline(always)]
    fn codes(&self, out: &mut [u8]) {
        split_halves(&self.qs, out);
    }

    fn head(&self, at: usize, head: &mut Head<'_>) {
        head.half(at, self.d);
    }
}

impl Packing for IQ4XS {
    const LAYOUT: Layout = Layout { scales: Scales::Bytes, ..IQ4NL::LAYOUT };

    #[inline(always)]
    fn codes(&self, out: &mut [u8]) {
        self.qs.iter().zip(out.chunks_exact_mut(32)).for_each(|(qs, out)| split_halves(qs, out));
    }

    fn head(&self, _: usize, head: &mut Head<'_>) {
        head.half(0, self.d);
        self.scales().iter().enumerate().for_each(|(i, s)| head.byte(i, *s as u8));
    }
}

impl Packing for MXFP4 {
    const LAYOUT: Layout = Layout::signed(4, Some(MXFP4::VALUES), Scales::Exponents);

    #[inline(always)]
    fn codes(&self, out: &mut [u8]) {
        split_halves(&self.qs, out);
    }

    fn head(&self, at: usize, head: &mut Head<'_>) {
        head.bytes[ROWS * at + head.row] = self.e;
    }
}

/// Numbers that stand for themselves: no codes, no scales.
macro_rules! plain {
    ($($block:ty: $bits:literal),*) => {
        $(impl Packing for $block {
            const LAYOUT: Layout = Layout::new($bits, 0, 32, Scales::Plain);

            fn codes(&self, _: &mut [u8]) {}

            fn head(&self, _: usize, _: &mut Head<'_>) {}
        })*
    };
}

plain!(F32: 32, F16: 16, BF16: 16);

/// Packs a pair of panels from rows as a file has them. `rows` are at most [`PAIR`] rows of `width` bytes; what is
/// missing of the pair is filled with zeros.
pub(crate) fn pack_pair(format: Format, rows: &[u8], width: usize, cols: usize, out: &mut [u8]) {
    with_block!(format, B => pack_pair_as::<B>(rows, width, cols, out));
}

fn pack_pair_as<B: Packing>(rows: &[u8], width: usize, cols: usize, out: &mut [u8]) {
    if rows.len() < PAIR * width {
        out.fill(0);
    }
    let mut at = 0;
    for first in (0..cols).step_by(CHUNK) {
        let inputs = CHUNK.min(cols - first);
        let bytes = B::LAYOUT.chunk(inputs);
        for (panel, rows) in rows.chunks(ROWS * width).enumerate() {
            let out = &mut out[at + panel * bytes..][..bytes];
            for (row, from) in rows.chunks_exact(width).enumerate() {
                let weights = B::FORMAT.block_weights();
                let from = &from[first / weights * size_of::<B>()..][..inputs / weights * size_of::<B>()];
                match B::LAYOUT.scales {
                    Scales::Plain => plain_row(from, size_of::<B>(), B::FORMAT == Format::BF16, row, out),
                    _ => blocks_row(bytemuck::cast_slice::<u8, B>(from), inputs, row, out),
                }
            }
        }
        at += 2 * bytes;
    }
}

/// Plain numbers of one row: input by input, or pairs of inputs where there are instructions for pairs.
fn plain_row(from: &[u8], size: usize, in_pairs: bool, row: usize, out: &mut [u8]) {
    let (lines, step) = if in_pairs { (2, 2 * size) } else { (1, size) };
    for (line, x) in from.chunks(step).enumerate() {
        out[line * lines * ROWS * size + row * step..][..x.len()].copy_from_slice(x);
        if x.len() < step {
            out[line * lines * ROWS * size + row * step + x.len()..][..step - x.len()].fill(0);
        }
    }
}

fn blocks_row<B: Packing>(blocks: &[B], inputs: usize, row: usize, out: &mut [u8]) {
    let (head, planes) = out.split_at_mut(B::LAYOUT.head(inputs));
    let mut head = Head { bytes: head, row };
    let mut codes = [0u32; CHUNK / 4];
    let bytes = bytemuck::bytes_of_mut(&mut codes);
    for (i, (block, out)) in blocks.iter().zip(bytes.chunks_exact_mut(B::FORMAT.block_weights())).enumerate()
    {
        block.codes(out);
        block.head(i, &mut head);
    }
    // Kernels see bytes, whichever end of a word comes first.
    let planes: &mut [u32] = bytemuck::cast_slice_mut(planes);
    for (part, w) in codes[..inputs / 4].chunks_exact(PART / 4).enumerate() {
        let lines = &mut planes[part * B::LAYOUT.bits * ROWS..];
        let mut put = |line: usize, x: u32| lines[line * ROWS + row] = x;
        let two = |shift: u32, h: usize| {
            (0..4).map(|j| (w[4 * h + j] >> shift & 0x0303_0303) << (2 * j)).sum::<u32>()
        };
        let one = |shift: u32| (0..8).map(|g| (w[g] >> shift & 0x0101_0101) << g).sum::<u32>();
        match B::LAYOUT.bits {
            8 => (0..8).for_each(|g| put(g, w[g])),
            2 => (0..2).for_each(|h| put(h, two(0, h))),
            3 => {
                (0..2).for_each(|h| put(h, two(0, h)));
                put(2, one(2));
            }
            bits => {
                (0..4).for_each(|j| put(j, w[j] & 0x0f0f_0f0f | (w[j + 4] & 0x0f0f_0f0f) << 4));
                match bits {
                    5 => put(4, one(4)),
                    6 => (0..2).for_each(|h| put(4 + h, two(4, h))),
                    _ => {}
                }
            }
        }
    }
}
