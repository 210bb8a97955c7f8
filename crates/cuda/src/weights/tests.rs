//! Packing, undone by what the module says of the layout, and not by the arithmetic that packs.

use std::ops::Range;
use std::sync::Mutex;

use tallow_core::Backend;
use tallow_core::ops::Dequant;
use tallow_ptx::mock::{self, Machine};
use tallow_quant::{F8, F16};

use super::*;

/// Any bytes are blocks.
fn random(len: usize, seed: u32) -> Vec<u8> {
    let mut state = seed.wrapping_mul(2_654_435_761) | 1;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 24) as u8
    };
    (0..len).map(|_| next()).collect()
}

/// Packs all rows.
fn packed(format: Format, rows: usize, cols: usize, bytes: &[u8]) -> Vec<u8> {
    let (layout, width) = (Layout::of(format), bytes.len() / rows);
    let words = layout.panel(cols) / 4;
    let mut out = vec![!0; rows.div_ceil(PANEL) * words];
    for (out, rows) in out.chunks_exact_mut(words).zip(bytes.chunks(PANEL * width)) {
        layout.pack(format, (rows, width), cols, out);
    }
    bytemuck::cast_slice(&out).to_vec()
}

fn half(at: &[u8], i: usize) -> f32 {
    F16([at[2 * i], at[2 * i + 1]]).get()
}

fn word(at: &[u8], i: usize) -> u32 {
    u32::from_le_bytes([0, 1, 2, 3].map(|b| at[4 * i + b]))
}

/// The scale of a run, its minimum, and what is subtracted from its codes.
fn scale(layout: &Layout, at: &[u8], row: usize, run: usize, runs: usize) -> (f32, f32, i32) {
    let place = 2 * (row % 8) + row / 8;
    let (i, all) = (place * runs + run, 16 * runs);
    let byte = |i: usize| f32::from(at[i]);
    let bias = i32::from(layout.bias);
    match layout.scales {
        Kind::Halves => (half(at, i), 0.0, bias),
        Kind::HalvesMin => (half(at, i), -half(at, all + i), bias),
        Kind::HalvesZero => (half(at, i), 0.0, i32::from(at[2 * all + i])),
        Kind::Bytes => (half(at, place) * layout.unit * f32::from(at[32 + i] as i8), 0.0, bias),
        Kind::BytesMin => (half(at, place) * byte(64 + i), half(at, 16 + place) * byte(64 + all + i), bias),
        Kind::NibblesMin => {
            let both = at[64 + i];
            let (scale, min) = (f32::from(both & 15), f32::from(both >> 4));
            (half(at, place) * scale, half(at, 16 + place) * min, bias)
        }
        Kind::Singles => (f32::from_bits(word(at, i)), 0.0, bias),
        Kind::Exponents => (tallow_quant::MXFP4 { e: at[i], qs: [0; 16] }.scale(), 0.0, bias),
        Kind::Eighths => (F8::value(at[i]) * layout.unit, 0.0, bias),
    }
}

fn unpack_planes(layout: &Layout, cols: usize, panel: &[u8]) -> Vec<f32> {
    let mut out = vec![f32::NAN; 16 * cols];
    let mut at = panel;
    for first in (0..cols).step_by(256) {
        let inputs = (cols - first).min(256);
        let (steps, runs) = (inputs.div_ceil(32), inputs.div_ceil(layout.run));
        let mut codes = [[0u32; 256]; 16];
        let mut below = 0;
        for width in [8, 4, 2, 1].into_iter().filter(|w| layout.bits & w != 0) {
            for (step, lane, j, b) in
                (0..steps * 32 * 4 * 4).map(|i| (i / 512, i / 16 % 32, i / 4 % 4, i % 4))
            {
                let (row, input) = (lane / 4 + 8 * (j % 2), 32 * step + 4 * (lane % 4) + b + 16 * (j / 2));
                let word = word(at, (step * width / 8 * 32 + lane) * 4 + j);
                codes[row][input] |= (word >> (step * width % 8 + 8 * b) & ((1 << width) - 1)) << below;
            }
            at = &at[(steps * width).div_ceil(8) * 512..];
            below += width;
        }
        for (row, codes) in codes.iter().enumerate() {
            for (input, code) in codes[..inputs].iter().enumerate() {
                let (scale, min, less) = scale(layout, at, row, input / layout.run, runs);
                let value = match layout.meaning {
                    Meaning::Signed => f32::from(*code as u8 as i8),
                    Meaning::LessBias => (*code as i32 - less) as f32,
                    Meaning::Table => f32::from(layout.table[*code as usize]),
                    Meaning::Floats => F8::value(*code as u8),
                };
                out[row * cols + first + input] = scale * value - min;
            }
        }
        at = &at[layout.chunk(inputs) - layout.codes(inputs)..];
    }
    assert!(at.is_empty());
    out
}

fn unpack_fragments(is_f16: bool, cols: usize, panel: &[u8]) -> Vec<f32> {
    let mut out = vec![f32::NAN; 16 * cols];
    for (group, at) in panel.chunks_exact(512).enumerate() {
        for (lane, j, b) in (0..32 * 4 * 2).map(|i| (i / 8, i / 2 % 4, i % 2)) {
            let (row, input) = (lane / 4 + 8 * (j % 2), 16 * group + 2 * (lane % 4) + 8 * (j / 2) + b);
            let bits = (word(at, lane * 4 + j) >> (16 * b)) as u16;
            let x =
                if is_f16 { F16(bits.to_le_bytes()).get() } else { f32::from_bits(u32::from(bits) << 16) };
            match input < cols {
                true => out[row * cols + input] = x,
                false => assert_eq!(bits, 0),
            }
        }
    }
    out
}

/// What the file says and what the packed bytes say, row by row, and what is in rows that the weight lacks.
fn check(format: Format, rows: usize, cols: usize) {
    let width = HostWeight::row_bytes(format, cols).unwrap();
    let bytes = random(rows * width, (rows * cols) as u32);
    let layout = Layout::of(format);
    let packed = packed(format, rows, cols, &bytes);
    let panels = packed.chunks_exact(layout.panel(cols)).map(|panel| match layout.stored {
        Stored::Planes => unpack_planes(&layout, cols, panel),
        stored => unpack_fragments(stored == Stored::FragmentsOfF16, cols, panel),
    });
    let got: Vec<f32> = panels.flatten().collect();
    let mut want = vec![0.0; width / format.block_bytes() * format.block_weights()];
    for r in 0..rows {
        tallow_quant::unpack(format, &bytes[r * width..][..width], &mut want).unwrap();
        for (c, (got, want)) in got[r * cols..].iter().zip(&want[..cols]).enumerate() {
            let same = got.to_bits() == want.to_bits() || got.is_nan() && want.is_nan();
            assert!(same, "{format}[{rows}, {cols}] at {r}, {c}: {got} for {want}");
        }
    }
    assert!(got[rows * cols..].iter().all(|x| *x == 0.0), "{format}[{rows}, {cols}] is padded with zeros");
}

fn blocks() -> impl Iterator<Item = Format> {
    Format::ALL.into_iter().filter(|f| !f.is_plain())
}

#[test]
fn what_is_packed_has_the_bits_of_the_file() {
    for format in blocks() {
        for rows in [1, 15, 16, 37] {
            for blocks in [1, 2, 3, 9, 11] {
                check(format, rows, blocks * format.block_weights());
            }
        }
    }
    for cols in [1, 7, 16, 40, 289, 300] {
        check(Format::Q8_0, 17, cols);
        check(Format::F16, 17, cols);
        check(Format::BF16, 5, cols);
    }
}

/// Bytes of a weight over those in the file.
fn growth(format: Format, rows: usize, cols: usize) -> f64 {
    let packed = Layout::of(format).panel(cols) * rows.div_ceil(PANEL);
    packed as f64 / (HostWeight::row_bytes(format, cols).unwrap() * rows) as f64
}

#[test]
fn packed_weights_are_hardly_larger_than_the_file() {
    for format in blocks() {
        // Codes of 3 and 4 bits for what is indices of patterns in the file, and of 2 for five weights in a byte. A last chunk
        // takes whole groups of each plane, of which one of single bits has room for 256 inputs.
        let most = match format {
            Format::IQ1S => 2.3,
            Format::IQ1M => 2.05,
            Format::IQ2XXS => 1.73,
            Format::IQ2XS => 1.55,
            Format::IQ2S => 1.4,
            Format::IQ3XXS => 1.41,
            Format::IQ3S => 1.26,
            Format::TQ1_0 => 1.23,
            Format::Q1_0 => 1.13,
            _ => 1.04,
        };
        let some: &[usize] = match format.block_weights() {
            32 | 64 => &[896, 2880, 4096],
            128 => &[896, 4096],
            _ => &[768, 4096],
        };
        for &cols in some {
            let growth = growth(format, 4096, cols);
            assert!(growth <= most, "{format} of {cols} columns: {growth}");
        }
    }
}

/// The header has the enums of this module, in their order.
#[test]
fn kernels_have_the_same_numbers() {
    let header = include_str!("../../kernels/weights.cuh");
    let names = |name: &str| -> Vec<String> {
        let (_, rest) = header.split_once(&format!("enum {name} {{")).unwrap();
        let inside = rest.split_once('}').unwrap().0;
        inside.split(',').map(|name| name.trim().replace('_', "").to_lowercase()).collect()
    };
    let stored = [
        Stored::RowsOfF32,
        Stored::RowsOfF16,
        Stored::RowsOfBf16,
        Stored::FragmentsOfF16,
        Stored::FragmentsOfBf16,
        Stored::Planes,
    ];
    let meanings = [Meaning::Signed, Meaning::LessBias, Meaning::Table, Meaning::Floats];
    let kinds = [
        Kind::Halves,
        Kind::HalvesMin,
        Kind::HalvesZero,
        Kind::Bytes,
        Kind::BytesMin,
        Kind::NibblesMin,
        Kind::Singles,
        Kind::Exponents,
        Kind::Eighths,
    ];
    let lower = |name: String| name.to_lowercase();
    assert_eq!(names("Stored"), stored.map(|s| lower(format!("{s:?}"))));
    assert_eq!(names("Meaning"), meanings.map(|m| lower(format!("{m:?}"))));
    assert_eq!(names("Scales"), kinds.map(|k| lower(format!("{k:?}"))));
}

fn open() -> Cuda {
    mock::set(Machine::default());
    // SAFETY: its functions have the types of NVIDIA's, and do the same.
    let found = unsafe { crate::devices_through(&mock::symbol) }.unwrap();
    Cuda::open(&found[0]).unwrap()
}

#[test]
fn what_kernels_cannot_count_is_refused() {
    let b = open();
    let refused = b.prepare(HostWeight::new(Format::F32, MOST, 0, &[]));
    assert!(matches!(refused, Err(Error::Refused(_))), "{refused:?}");
    for (rows, cols) in [(0, 256), (3, 0)] {
        for format in Format::ALL {
            let w = b.prepare(HostWeight::new(format, rows, cols, &[])).unwrap();
            assert_eq!((w.rows(), w.cols(), w.bytes()), (rows, cols, 0));
        }
    }
}

/// Threads share what is packed at a time: more than one of them has work here, and the last panel has fewer rows.
#[test]
fn panels_are_packed_alike_by_many_threads() {
    let (format, rows, cols) = (Format::Q4K, 16 * 150 + 3, 2048);
    let width = HostWeight::row_bytes(format, cols).unwrap();
    let (bytes, layout) = (random(rows * width, 1), Layout::of(format));
    let mut got = vec![!0; rows.div_ceil(PANEL) * layout.panel(cols) / 4];
    assert!(size_of_val(got.as_slice()) > 8 * OF_THREAD);
    layout.pack_panels(format, (&bytes, width), cols, &mut got);
    assert!(bytemuck::cast_slice::<u32, u8>(&got) == packed(format, rows, cols, &bytes));
}

/// Of any bytes, those with scales that are infinite among them; and rows are released once, when they have been read.
#[test]
fn kernels_unpack_the_bits_of_the_file() {
    let b = open();
    for format in Format::ALL {
        for (rows, cols) in [(37, 256 + 128), (18, 512), (5, 1024 + 64)] {
            let cols = cols / format.block_weights() * format.block_weights();
            let width = HostWeight::row_bytes(format, cols).unwrap();
            let bytes = random(rows * width, (rows + cols) as u32);
            let released = Mutex::new(vec![0; rows]);
            let release = |range: Range<usize>| {
                released.lock().unwrap()[range].iter_mut().for_each(|times| *times += 1);
            };
            let weight = HostWeight { release: &release, ..HostWeight::new(format, rows, cols, &bytes) };
            let w = b.prepare(weight).unwrap();
            assert_eq!(*released.lock().unwrap(), vec![1; rows]);
            let got = b.run(Dequant { w: &w, rows: 1..rows }).unwrap();
            let got = b.download::<f32>(&got).unwrap();
            let mut want = vec![0.0; rows * cols];
            tallow_quant::unpack(format, &bytes, &mut want).unwrap();
            for (i, (got, want)) in got.iter().zip(&want[cols..]).enumerate() {
                let same = got.to_bits() == want.to_bits() || got.is_nan() && want.is_nan();
                assert!(same, "{format}[{rows}, {cols}], weight {i}: {got} for {want}");
            }
        }
    }
}
