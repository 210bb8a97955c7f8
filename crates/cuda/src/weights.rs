//! Packed weights: their layout on the device. `kernels/weights.cuh` reads it.
//!
//! A *panel* is 16 outputs. It is cut into *chunks* of 256 inputs (the last may be shorter), and a chunk holds its codes
//! and behind them its scales. Both lie as the matrix units take them, so that exact kernels and those with matrix units
//! read the same bytes.
//!
//! - *Codes* lie in planes of 8, 4, 2 and 1 bits, so that one way of unpacking serves all widths: codes of 3 bits are their
//!   low two bits and then their third, those of 5 bits four and one, those of 6 bits four and two. A plane of `w` bits is
//!   groups of 32 lanes times 4 words. Word `j` of lane `l` holds the codes of row `l / 4 + 8 * (j % 2)` and of 4 inputs,
//!   from `4 * (l % 4) + 16 * (j / 2)` on, a byte each, for each of `8 / w` *steps*: a step is 32 inputs, and step `s` is
//!   `w` bits of each byte, from bit `s * w % 8` on, of group `s * w / 8`. So a lane loads 16 bytes, unpacks four words
//!   with shifts and masks, and has what `mma.m16n8k32` takes of a step's weights.
//! - *Scales*: a *run* is as many inputs as share one. A chunk has first what it has once for each row, and then what it
//!   has for each run, row by row: rows `r` and `r + 8`, of which a lane has both, are neighbours. Scales of k-quants take
//!   a byte each instead of six bits.
//! - *Floats of 16 bits* are groups of 32 lanes times 4 words for each 16 inputs, without chunks: word `j` of lane `l`
//!   holds inputs `2 * (l % 4) + 8 * (j / 2)` and the one after it, of row `l / 4 + 8 * (j % 2)`. That is what
//!   `mma.m16n8k16` takes. Floats of 8 bits have codes of 8 bits.
//! - *Floats of 32 bits* are rows as they are: no matrix unit takes them without rounding.
//!
//! Rows and inputs that a weight lacks are zeros.

mod stacked;

use tallow_core::{
    DType, Error, Format, HostWeight, LinearWeight, Memory, Refusal, Result, Tensor, Weight, compose,
};
use tallow_quant::{Coded, Coding, F16, ScaleSink, Scales, with_block};

use crate::args::{Args, words};
use crate::device::Cuda;
pub(crate) use stacked::{Evenly, Stacked};

/// Rows of a panel.
const PANEL: usize = 16;
/// Inputs of a chunk.
const CHUNK: usize = 256;
/// Inputs that `mma.m16n8k32` takes at once.
const STEP: usize = 32;
/// Words of a group: 32 lanes times 4.
const GROUP: usize = 128;
/// Widths of planes, in the order in which they lie.
const WIDTHS: [usize; 4] = [8, 4, 2, 1];
/// Bytes packed before they are sent: loading needs little host memory.
const AT_ONCE: usize = 16 << 20;
/// Bytes for which it is worth starting a thread.
const OF_THREAD: usize = 256 << 10;
/// Threads that pack at a time, at most: then memory is the limit.
const MOST_CORES: usize = 16;
/// Kernels count rows and inputs with 32 bits.
const MOST: usize = 1 << 31;

/// Storage of a weight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stored {
    RowsOfF32,
    RowsOfF16,
    RowsOfBf16,
    FragmentsOfF16,
    FragmentsOfBf16,
    Planes,
}

/// How a code decodes to a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Meaning {
    /// A signed byte.
    Signed,
    /// An unsigned number, from which the bias or the zero point of its run is subtracted.
    LessBias,
    /// A value of the table.
    Table,
    /// An 8-bit float.
    Floats,
}

/// Kind of the scales.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// An f16 per run.
    Halves,
    /// An f16 per run, then one per run that is added.
    HalvesMin,
    /// An f16 per run, then a byte per run: the zero point.
    HalvesZero,
    /// An f16 per row, times `unit`, and a signed byte per run that multiplies it.
    Bytes,
    /// Two f16 per row; a byte per run that multiplies the first; a byte per run that multiplies the second, which is
    /// subtracted.
    BytesMin,
    /// As `BytesMin`, with both factors of a run in the nibbles of a byte.
    NibblesMin,
    /// An f32 per run.
    Singles,
    /// The exponent of a power of two per run.
    Exponents,
    /// An 8-bit float per run, times `unit`.
    Eighths,
}

/// How weights lie on the device. Most of it is about planes.
#[derive(Clone, Copy, Debug)]
struct Layout {
    stored: Stored,
    /// Bits of a code, which are the widths of its planes added up.
    bits: usize,
    /// Lowest bits of a block's codes that are always zero, and not stored.
    zeros: usize,
    meaning: Meaning,
    bias: u8,
    table: [i8; 16],
    scales: Kind,
    run: usize,
    unit: f32,
}

impl Layout {
    /// Weights that have no codes.
    const fn plain(stored: Stored) -> Layout {
        Layout {
            stored,
            bits: 0,
            zeros: 0,
            meaning: Meaning::Signed,
            bias: 0,
            table: [0; 16],
            scales: Kind::Halves,
            run: CHUNK,
            unit: 1.0,
        }
    }

    /// Rows as they are.
    fn rows(dtype: DType) -> Layout {
        Layout::plain(match dtype {
            DType::F16 => Stored::RowsOfF16,
            DType::BF16 => Stored::RowsOfBf16,
            _ => Stored::RowsOfF32,
        })
    }

    /// Weights of a format, as they are prepared.
    fn of(format: Format) -> Layout {
        match format {
            Format::F32 => Layout::plain(Stored::RowsOfF32),
            Format::F16 => Layout::plain(Stored::FragmentsOfF16),
            Format::BF16 => Layout::plain(Stored::FragmentsOfBf16),
            _ => with_block!(format, B => Layout::planes::<B>()),
        }
    }

    /// Planes for a format's codes and scales. The exceptions save memory: what a coding has in a common form is more than what
    /// the block holds.
    fn planes<B: Coded>() -> Layout {
        let Coding { bits, table, bias, run, scales } = B::CODING;
        let meaning = match &table {
            Some(_) => Meaning::Table,
            None if B::FORMAT == Format::F8 => Meaning::Floats,
            None if bits == 8 => Meaning::Signed,
            None => Meaning::LessBias,
        };
        let scales = match scales {
            Scales::F16Add => Kind::HalvesMin,
            Scales::F16Zero => Kind::HalvesZero,
            Scales::Bytes => Kind::Bytes,
            Scales::BytesMin => Kind::BytesMin,
            Scales::NibblesMin => Kind::NibblesMin,
            Scales::F32 | Scales::PlainF32 => Kind::Singles,
            Scales::Exponents => Kind::Exponents,
            Scales::F16 | Scales::Plain => Kind::Halves,
        };
        let table = table.unwrap_or_default();
        let usual = Layout { bits, meaning, bias, table, scales, run, ..Layout::plain(Stored::Planes) };
        match B::FORMAT {
            // Codes are 0 and 2 for -1 and 1, and a block has one scale.
            Format::Q1_0 => {
                let mut table = [0; 16];
                table[..2].copy_from_slice(&[-1, 1]);
                Layout { bits: 1, zeros: 1, meaning: Meaning::Table, table, run: 128, ..usual }
            }
            Format::Q2_0 => Layout { run: 64, ..usual },
            Format::TQ1_0 | Format::TQ2_0 => Layout { scales: Kind::Halves, ..usual },
            Format::NVFP4 => Layout { scales: Kind::Eighths, unit: 0.5, ..usual },
            Format::IQ1S | Format::IQ1M | Format::IQ2XXS | Format::IQ2XS | Format::IQ2S => {
                Layout { unit: 0.125, ..usual }
            }
            Format::IQ3XXS => Layout { unit: 0.25, ..usual },
            _ => usual,
        }
    }

    /// The module of the kernels that multiply such weights with rounded input. Its file says what it takes.
    fn products(&self) -> Option<&'static str> {
        let is_centred = self.meaning == Meaning::LessBias && usize::from(self.bias) == 1 << (self.bits - 1);
        Some(match (self.bits, self.meaning, self.scales) {
            (1, Meaning::Table, Kind::Halves) => "products_1_halves",
            (2, Meaning::LessBias, Kind::Halves) if self.run == CHUNK => "products_2_whole",
            (2, Meaning::LessBias, Kind::Halves) => "products_2_halves",
            (2, Meaning::LessBias, Kind::NibblesMin) => "products_2_nibbles_min",
            (3, Meaning::LessBias, Kind::Bytes) if is_centred => "products_3_bytes",
            (3, Meaning::Table, Kind::Bytes) => "products_3_table_bytes",
            (4, Meaning::LessBias, Kind::Halves) if is_centred => "products_4_halves",
            (4, Meaning::LessBias, Kind::HalvesMin) => "products_4_halves_min",
            (4, Meaning::LessBias, Kind::HalvesZero) => "products_4_halves_zero",
            (4, Meaning::LessBias, Kind::BytesMin) => "products_4_bytes_min",
            (4, Meaning::Table, Kind::Halves) => "products_4_table_halves",
            (4, Meaning::Table, Kind::Bytes) => "products_4_table_bytes",
            (4, Meaning::Table, Kind::Exponents) => "products_4_table_exponents",
            (4, Meaning::Table, Kind::Eighths) => "products_4_table_eighths",
            (5, Meaning::LessBias, Kind::Halves) if is_centred => "products_5_halves",
            (5, Meaning::LessBias, Kind::HalvesMin) => "products_5_halves_min",
            (5, Meaning::LessBias, Kind::BytesMin) => "products_5_bytes_min",
            (6, Meaning::LessBias, Kind::Bytes) if is_centred => "products_6_bytes",
            (8, Meaning::Signed, Kind::Halves) => "products_8_halves",
            (8, Meaning::Signed, Kind::Singles) => "products_8_singles",
            _ => return None,
        })
    }

    /// Bytes of the codes of a chunk of a panel.
    fn codes(&self, inputs: usize) -> usize {
        let steps = inputs.div_ceil(STEP);
        self.widths().map(|width| (steps * width).div_ceil(8) * GROUP * 4).sum()
    }

    /// Bytes of a chunk of a panel.
    fn chunk(&self, inputs: usize) -> usize {
        let runs = inputs.div_ceil(self.run);
        let (row, each) = match self.scales {
            Kind::Halves => (0, 2),
            Kind::HalvesMin | Kind::Singles => (0, 4),
            Kind::HalvesZero => (0, 3),
            Kind::Bytes => (2, 1),
            Kind::BytesMin => (4, 2),
            Kind::NibblesMin => (4, 1),
            Kind::Exponents | Kind::Eighths => (0, 1),
        };
        self.codes(inputs) + PANEL * (row + runs * each)
    }

    /// Bytes of a panel, or of a row where rows are as they are: a multiple of 16 but for rows.
    fn panel(&self, cols: usize) -> usize {
        match self.stored {
            Stored::RowsOfF32 => 4 * cols,
            Stored::RowsOfF16 | Stored::RowsOfBf16 => 2 * cols,
            Stored::FragmentsOfF16 | Stored::FragmentsOfBf16 => cols.div_ceil(16) * GROUP * 4,
            Stored::Planes => {
                let (whole, rest) = (cols / CHUNK, cols % CHUNK);
                whole * self.chunk(CHUNK) + if rest == 0 { 0 } else { self.chunk(rest) }
            }
        }
    }

    /// Widths of the planes.
    fn widths(&self) -> impl Iterator<Item = usize> + use<> {
        let bits = self.bits;
        WIDTHS.into_iter().filter(move |width| bits & width != 0)
    }

    /// Packs a panel of `cols` inputs. `rows` are those of the file, `width` bytes each; the last panel may have fewer than 16.
    fn pack(&self, format: Format, (rows, width): (&[u8], usize), cols: usize, out: &mut [u32]) {
        out.fill(0);
        for (r, row) in rows.chunks_exact(width.max(1)).enumerate() {
            match self.stored {
                Stored::Planes => with_block!(format, B => self.pack_row::<B>(r, row, cols, out)),
                _ => pack_halves(r, row, out),
            }
        }
    }

    /// Packs as many panels as `out` has room for, on all cores where they are many. `rows` begins with those of the first.
    fn pack_panels(&self, format: Format, (rows, width): (&[u8], usize), cols: usize, out: &mut [u32]) {
        let (words, of_panel) = ((self.panel(cols) / 4).max(1), PANEL * width);
        let pack = |rows: &[u8], out: &mut [u32]| {
            for (i, out) in out.chunks_exact_mut(words).enumerate() {
                let rows = &rows[i * of_panel..rows.len().min((i + 1) * of_panel)];
                self.pack(format, (rows, width), cols, out);
            }
        };
        let cores = std::thread::available_parallelism().map_or(1, |n| n.get()).min(MOST_CORES);
        let threads = cores.min(size_of_val(out) / OF_THREAD).max(1);
        let each = (out.len() / words).div_ceil(threads).max(1);
        std::thread::scope(|scope| {
            let mut parts = out.chunks_mut(each * words).enumerate();
            let own = parts.next();
            for (i, out) in parts {
                scope.spawn(move || pack(&rows[i * each * of_panel..], out));
            }
            if let Some((_, out)) = own {
                pack(rows, out);
            }
        });
    }

    /// Packs row `r` of a panel.
    fn pack_row<B: Coded>(&self, r: usize, row: &[u8], cols: usize, out: &mut [u32]) {
        let weights = B::FORMAT.block_weights();
        let blocks: &[B] = bytemuck::cast_slice(row);
        let mut out = out;
        for (i, blocks) in blocks.chunks(CHUNK / weights).enumerate() {
            let inputs = CHUNK.min(cols - i * CHUNK);
            let (chunk, rest) = out.split_at_mut(self.chunk(inputs) / 4);
            out = rest;
            let (planes, scales) = chunk.split_at_mut(self.codes(inputs) / 4);
            let mut codes = [0u32; CHUNK / 4];
            let mut sink = Places {
                layout: self,
                each: B::CODING.run,
                at: bytemuck::cast_slice_mut(scales),
                row: 2 * (r % 8) + r / 8,
                run: 0,
                runs: inputs.div_ceil(self.run),
            };
            let each = bytemuck::bytes_of_mut(&mut codes).chunks_exact_mut(weights);
            for (block, codes) in blocks.iter().zip(each) {
                block.unsigned_codes(codes);
                match B::FORMAT {
                    // Its scale begins the block. What `write_scales` tells of it may be too large for an f32.
                    Format::F8 => sink.bytes(4 * sink.place(), &bytemuck::bytes_of(block)[..4]),
                    _ => block.write_scales(&mut sink),
                }
                sink.run += weights / self.run;
            }
            self.put(r, &codes, inputs.div_ceil(STEP), planes);
        }
    }

    /// The codes of a row of a chunk, four inputs a word, into its planes. Shifts and masks act within bytes.
    fn put(&self, r: usize, codes: &[u32; CHUNK / 4], steps: usize, planes: &mut [u32]) {
        let (mut below, mut planes) = (self.zeros, planes);
        for width in self.widths() {
            let (plane, rest) = planes.split_at_mut((steps * width).div_ceil(8) * GROUP);
            planes = rest;
            let mask = ((1 << width) - 1) * 0x0101_0101;
            let each = 8 / width;
            for (group, codes) in plane.chunks_exact_mut(GROUP).zip(codes.chunks_exact(8 * each)) {
                for four in 0..8 {
                    let part = |step: usize| (codes[8 * step + four] >> below & mask) << (step * width);
                    group[place(r, four)] = (0..each).map(part).sum();
                }
            }
            below += width;
        }
    }
}

/// The word of a group that has a row's inputs `4 * four` to `4 * four + 3` of a step; of 16-bit floats, inputs `2 * four` and
/// `2 * four + 1`.
fn place(r: usize, four: usize) -> usize {
    4 * (4 * (r % 8) + four % 4) + r / 8 + 2 * (four / 4)
}

/// Packs row `r` of a panel of 16-bit floats.
fn pack_halves(r: usize, row: &[u8], out: &mut [u32]) {
    for (group, row) in out.chunks_exact_mut(GROUP).zip(row.chunks(32)) {
        let mut words = [0u32; 8];
        bytemuck::bytes_of_mut(&mut words)[..row.len()].copy_from_slice(row);
        words.iter().enumerate().for_each(|(i, word)| group[place(r, i)] = *word);
    }
}

/// The scales of a chunk, for a block of one of its rows.
struct Places<'a> {
    layout: &'a Layout,
    /// Inputs of a run of the format's own coding.
    each: usize,
    at: &'a mut [u8],
    /// Place of the row among those of the panel.
    row: usize,
    /// The block's first run, and the chunk's runs.
    run: usize,
    runs: usize,
}

impl Places<'_> {
    fn bytes(&mut self, at: usize, bytes: &[u8]) {
        self.at[at..at + bytes.len()].copy_from_slice(bytes);
    }

    /// Place of the block's first run among all of the panel.
    fn place(&self) -> usize {
        self.row * self.runs + self.run
    }
}

impl ScaleSink for Places<'_> {
    fn f16(&mut self, i: usize, x: F16) {
        let (place, all) = (self.place(), PANEL * self.runs);
        let at = match self.layout.scales {
            Kind::BytesMin | Kind::NibblesMin => PANEL * i + self.row,
            Kind::HalvesMin => all * i + place,
            _ => place + i * self.each / self.layout.run,
        };
        match self.layout.scales {
            // An f16 of a 256th of an 8-bit float has its bits, seven places higher.
            Kind::Eighths => {
                let [low, high] = F16::nearest(x.get() / self.layout.unit / 256.0).0;
                self.at[at] = high << 1 | low >> 7;
            }
            _ => self.bytes(2 * at, &x.0),
        }
    }

    fn f32(&mut self, x: f32) {
        let half = F16::nearest(x / self.layout.unit).0;
        match self.layout.scales {
            Kind::Singles => self.bytes(4 * self.place(), &x.to_le_bytes()),
            Kind::Bytes => self.bytes(2 * self.row, &half),
            _ => self.bytes(2 * self.place(), &half),
        }
    }

    fn exponent(&mut self, x: u8) {
        let at = self.place();
        self.at[at] = x;
    }

    fn zero_point(&mut self, x: u8) {
        let at = 2 * PANEL * self.runs + self.place();
        self.at[at] = x;
    }

    fn factor(&mut self, i: usize, x: u8) {
        let once = if self.layout.scales == Kind::Bytes { 2 } else { 4 };
        let (mins, run) = (i / self.runs, i % self.runs);
        self.at[PANEL * (once + mins * self.runs) + self.row * self.runs + run] = x;
    }
}

impl Cuda {
    /// Packs a weight and uploads it.
    pub(crate) fn prepare_weight(&self, weight: HostWeight<'_>) -> Result<Weight<Cuda>> {
        let room = self.room_for(&weight, 1)?;
        self.pack_into(&weight, &room)?;
        Ok(room)
    }

    /// Room for so many weights of this format and shape, one behind the other. What it says of rows is those of all of them if
    /// they are rows as they are, and those of one if they are packed.
    fn room_for(&self, weight: &HostWeight<'_>, count: usize) -> Result<Weight<Cuda>> {
        compose::check_weight(weight)?;
        let HostWeight { format, rows, cols, .. } = *weight;
        if rows >= MOST || cols >= MOST {
            return Err(Error::from(Refusal {
                what: format!("a weight of {rows} x {cols}"),
                why: "the kernels count rows and columns up to two billion".into(),
                instead: "use --device cpu".into(),
            }));
        }
        let layout = Layout::of(format);
        if layout.stored == Stored::RowsOfF32 {
            return Ok(Weight::Dense(self.alloc(DType::F32, count * rows, cols)?));
        }
        let data = self.alloc(DType::U32, count * rows.div_ceil(PANEL), layout.panel(cols) / 4)?;
        Ok(Weight::Blocks { data, format, rows, cols })
    }

    /// Packs a weight to where there is room for it.
    fn pack_into(&self, weight: &HostWeight<'_>, to: &Weight<Cuda>) -> Result<()> {
        let HostWeight { format, rows, cols, bytes, release, .. } = *weight;
        let (layout, row) = (Layout::of(format), bytes.len() / rows.max(1));
        let data = match to {
            Weight::Dense(data) => {
                let at_once = (AT_ONCE / row.max(1)).max(1);
                for first in (0..rows).step_by(at_once) {
                    let end = rows.min(first + at_once);
                    self.gpu
                        .write(Cuda::address(data) + (first * row) as u64, &bytes[first * row..end * row])?;
                    release(first..end);
                }
                return Ok(());
            }
            Weight::Blocks { data, .. } => data,
        };
        let (panel, panels) = (layout.panel(cols), rows.div_ceil(PANEL));
        let at_once = (AT_ONCE / panel.max(1)).clamp(1, panels.max(1));
        let mut packed = vec![0; at_once * (panel / 4)];
        for first in (0..panels).step_by(at_once) {
            let end = panels.min(first + at_once);
            let packed = &mut packed[..(end - first) * (panel / 4)];
            layout.pack_panels(format, (&bytes[first * PANEL * row..], row), cols, packed);
            let some = bytemuck::cast_slice(packed);
            self.gpu.write(Cuda::address(data) + (first * panel) as u64, some)?;
            release(first * PANEL..rows.min(end * PANEL));
        }
        Ok(())
    }
}

/// A weight as the struct `Weights` of `kernels/weights.cuh`.
pub(crate) fn arg(args: Args, w: &Weight<Cuda>) -> Args {
    arg_of_rows(args, w, w.rows())
}

/// The same of the first rows of it.
pub(crate) fn arg_of_rows(args: Args, w: &Weight<Cuda>, rows: usize) -> Args {
    let (layout, data) = match w {
        Weight::Dense(t) => (Layout::rows(t.dtype()), t),
        Weight::Blocks { data, format, .. } => (Layout::of(*format), data),
    };
    let whole = if layout.stored == Stored::Planes { layout.chunk(CHUNK) } else { 0 };
    let [stride, above] = words((data.stride() * data.dtype().size()) as u64);
    let args = args.wide_and(
        Cuda::address(data),
        [
            stride,
            above,
            rows as u32,
            w.cols() as u32,
            layout.stored as u32,
            layout.bits as u32,
            layout.meaning as u32,
            u32::from(layout.bias),
            layout.scales as u32,
            layout.run.trailing_zeros(),
            layout.unit.to_bits(),
            whole as u32,
        ],
    );
    let four = |v: &[i8; 4]| u32::from_le_bytes(v.map(|v| v as u8)) as usize;
    layout.table.as_chunks::<4>().0.iter().fold(args, |args, v| args.word(four(v)))
}

/// A layer's weight, and the order in which its columns take inputs, if not one after the other.
pub(crate) fn in_any_order(weight: &LinearWeight<Cuda>) -> (&Weight<Cuda>, Option<&Tensor<Cuda>>) {
    match weight {
        LinearWeight::InOrder(weight) => (weight, None),
        LinearWeight::ActOrder { weight, order } => (weight, Some(order)),
    }
}

/// True if weights differ in nothing but their rows: one launch takes both.
pub(crate) fn lie_alike(a: &Weight<Cuda>, b: &Weight<Cuda>) -> bool {
    match (a, b) {
        (Weight::Dense(a), Weight::Dense(b)) => {
            (a.dtype(), a.cols(), a.stride()) == (b.dtype(), b.cols(), b.stride())
        }
        (
            Weight::Blocks { data: a, format: of_a, cols: inputs_of_a, .. },
            Weight::Blocks { data: b, format: of_b, cols: inputs_of_b, .. },
        ) => (of_a, inputs_of_a, a.stride()) == (of_b, inputs_of_b, b.stride()),
        _ => false,
    }
}

/// The address of a row, if kernels can begin there: of panels that is the first row.
pub(crate) fn address_of_row(w: &Weight<Cuda>, row: usize) -> Option<u64> {
    let (data, each) = match w {
        Weight::Dense(t) => (t, 1),
        Weight::Blocks { data, .. } => (data, PANEL),
    };
    let before = (row / each * data.stride() * data.dtype().size()) as u64;
    row.is_multiple_of(each).then(|| Cuda::address(data) + before)
}

/// The module of the kernels that multiply a weight with input that is rounded to 8 bits; `None` if its codes are no whole numbers.
pub(crate) fn products(w: &Weight<Cuda>) -> Option<&'static str> {
    let Weight::Blocks { format, .. } = w else { return None };
    let layout = Layout::of(*format);
    if layout.stored == Stored::Planes { layout.products() } else { None }
}

/// Kernels that multiply a weight with input that is rounded to 16 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sixteen {
    /// Their module.
    pub module: &'static str,
    /// Input rounded to f16, and not to bf16.
    pub is_f16: bool,
}

/// The kernels that multiply a weight with input that is rounded to 16 bits; `None` if it has no floats of 16 or 8 bits in the order
/// of fragments.
pub(crate) fn sixteen(w: &Weight<Cuda>) -> Option<Sixteen> {
    let Weight::Blocks { format, .. } = w else { return None };
    match format {
        Format::F16 => Some(Sixteen { module: "sixteen_f16", is_f16: true }),
        Format::BF16 => Some(Sixteen { module: "sixteen_bf16", is_f16: false }),
        Format::F8 => Some(Sixteen { module: "sixteen_f8", is_f16: false }),
        _ => None,
    }
}

#[cfg(test)]
mod tests;
