//! Matrices are packed element by element in each layout, and read back.

use serde_json::{Value, json};

use super::super::StoredTensors;
use super::super::map::Mapping;
use super::*;
use std::path::Path;
use std::sync::Arc;

/// A matrix as plain values: the source of its tensors, and the expected result.
struct Matrix {
    rows: usize,
    cols: usize,
    group: usize,
    bits: usize,
    /// [rows][cols]
    codes: Vec<Vec<u32>>,
    /// [rows][groups]
    zeros: Vec<Vec<u32>>,
    scales: Vec<Vec<f32>>,
    /// Group of each input.
    of: Vec<usize>,
}

/// The inputs that share a scale.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Sharing {
    Neighbours,
    /// Groups of equal size, at random positions.
    Anywhere,
    /// At random positions, with groups of unequal size.
    Unequal,
}

fn random(seed: &mut u64) -> u32 {
    *seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
    (*seed >> 33) as u32
}

impl Matrix {
    fn new(rows: usize, cols: usize, group: usize, bits: usize, sharing: Sharing) -> Matrix {
        let mut seed = (rows * 31 + cols * 7 + group * 3 + bits) as u64;
        let (count, seed) = (cols.div_ceil(group), &mut seed);
        let mut of: Vec<usize> = (0..cols).map(|i| i / group).collect();
        match sharing {
            Sharing::Neighbours => {}
            Sharing::Anywhere => (1..cols).rev().for_each(|i| of.swap(i, random(seed) as usize % (i + 1))),
            Sharing::Unequal => of.iter_mut().for_each(|g| *g = random(seed) as usize % count),
        }
        let mut table = |width: usize, most: u32| -> Vec<Vec<u32>> {
            (0..rows).map(|_| (0..width).map(|_| random(seed) % most).collect()).collect()
        };
        let (codes, zeros) = (table(cols, 1 << bits), table(count, 1 << bits));
        // Exactly representable in f16.
        let scale = |n: &u32| (1 + n % 1000) as f32 / 4096.0;
        let scales = table(count, 1 << 30).iter().map(|row| row.iter().map(scale).collect()).collect();
        Matrix { rows, cols, group, bits, codes, zeros, scales, of }
    }

    fn symmetric(mut self) -> Matrix {
        let zero = 1 << (self.bits - 1);
        self.zeros.iter_mut().flatten().for_each(|z| *z = zero);
        self
    }

    /// Expected values. `zero_offset` is added to the zero points.
    fn want(&self, zero_offset: i64) -> Vec<f32> {
        let at = |r: usize, c: usize| {
            let g = self.of[c];
            let code = i64::from(self.codes[r][c]) - i64::from(self.zeros[r][g]) - zero_offset;
            self.scales[r][g] * code as f32
        };
        (0..self.rows).flat_map(|r| (0..self.cols).map(move |c| at(r, c))).collect()
    }
}

/// Packs values of `bits` bits into words, lowest bits first.
fn packed(numbers: impl IntoIterator<Item = u32>, bits: usize) -> Vec<u32> {
    let mut words = Vec::new();
    for (i, n) in numbers.into_iter().enumerate() {
        for bit in 0..bits {
            let at = i * bits + bit;
            words.resize(words.len().max(at / 32 + 1), 0u32);
            words[at / 32] |= (n >> bit & 1) << (at % 32);
        }
    }
    words
}

/// Transposes.
fn transposed<T: Copy>(rows: &[Vec<T>]) -> Vec<Vec<T>> {
    (0..rows[0].len()).map(|c| rows.iter().map(|row| row[c]).collect()).collect()
}

struct Tensors(StoredTensors);

impl Tensors {
    fn add(&mut self, name: &str, kind: Kind, shape: &[usize], bytes: Vec<u8>) {
        let file = Arc::new(Mapping::embedded("test", bytes.leak()));
        let bytes = 0..file.len();
        self.0.insert(format!("x.{name}"), Stored { file, kind, shape: shape.to_vec(), bytes });
    }

    fn words(&mut self, name: &str, rows: &[Vec<u32>]) {
        let bytes = rows.iter().flatten().flat_map(|w| w.to_le_bytes()).collect();
        self.add(name, Kind::Other("I32".into()), &[rows.len(), rows[0].len()], bytes);
    }

    fn halves(&mut self, name: &str, rows: &[Vec<f32>]) {
        let bytes = rows.iter().flatten().flat_map(|x| F16::nearest(*x).0).collect();
        self.add(name, Kind::Weights(Format::F16), &[rows.len(), rows[0].len()], bytes);
    }

    fn gptq(m: &Matrix) -> Tensors {
        let mut t = Tensors(StoredTensors::new());
        let columns: Vec<_> = m.codes.iter().map(|row| packed(row.iter().copied(), m.bits)).collect();
        t.words("qweight", &transposed(&columns));
        let zeros: Vec<_> = transposed(&m.zeros).into_iter().map(|row| packed(row, m.bits)).collect();
        t.words("qzeros", &zeros);
        t.halves("scales", &transposed(&m.scales));
        let of = m.of.iter().flat_map(|g| (*g as u32).to_le_bytes()).collect();
        t.add("g_idx", Kind::Other("I32".into()), &[m.cols], of);
        t
    }

    fn awq(m: &Matrix) -> Tensors {
        let mut t = Tensors(StoredTensors::new());
        // Outputs in a word: 0, 2, 4, 6, 1, 3, 5, 7.
        let across = |rows: &[Vec<u32>]| -> Vec<Vec<u32>> {
            let word = |eight: &[u32]| packed([0, 2, 4, 6, 1, 3, 5, 7].map(|i| eight[i]), 4)[0];
            transposed(rows).iter().map(|line| line.chunks(8).map(word).collect()).collect()
        };
        t.words("qweight", &across(&m.codes));
        t.words("qzeros", &across(&m.zeros));
        t.halves("scales", &transposed(&m.scales));
        t
    }

    fn compressed(m: &Matrix, with_zeros: bool) -> Tensors {
        let mut t = Tensors(StoredTensors::new());
        let rows: Vec<_> = m.codes.iter().map(|row| packed(row.iter().copied(), m.bits)).collect();
        t.words("weight_packed", &rows);
        let shape = [m.rows, m.cols].iter().flat_map(|n| (*n as u64).to_le_bytes()).collect();
        t.add("weight_shape", Kind::Other("I64".into()), &[2], shape);
        if with_zeros {
            let zeros: Vec<_> = transposed(&m.zeros).into_iter().map(|row| packed(row, m.bits)).collect();
            t.words("weight_zero_point", &transposed(&zeros));
        }
        t.halves("weight_scale", &m.scales);
        if m.of.iter().enumerate().any(|(i, g)| *g != i / m.group) {
            let of = m.of.iter().flat_map(|g| (*g as u32).to_le_bytes()).collect();
            t.add("weight_g_idx", Kind::Other("I32".into()), &[m.cols], of);
        }
        t
    }

    /// The values in file order, and the chosen format.
    fn read(self, settings: &Value) -> (Vec<f32>, Format) {
        self.read_by(settings, find)
    }

    fn read_by(
        mut self,
        settings: &Value,
        find: fn(&Value, &Path, &mut StoredTensors) -> Result<()>,
    ) -> (Vec<f32>, Format) {
        find(settings, Path::new("config.json"), &mut self.0).unwrap();
        let names: Vec<_> = self.0.keys().collect();
        assert_eq!(names, ["x.weight"], "nothing is left over");
        let stored = &self.0["x.weight"];
        let Kind::Grouped(matrix) = &stored.kind else { panic!("{stored:?}") };
        let order = matrix.order();
        let mut bytes = vec![0; matrix.size()];
        matrix.write(order.as_deref(), &mut bytes);
        assert_eq!(matrix.fault(), None);
        let mut data = vec![0.0; stored.len()];
        tallow_quant::unpack(matrix.format(), &bytes, &mut data).unwrap();
        let mut plain = vec![0; 4 * data.len()];
        matrix.write_plain(&mut plain);
        let mut plain_of_gguf = vec![0.0; data.len()];
        let plain: Vec<f32> = plain.as_chunks().0.iter().map(|x| f32::from_le_bytes(*x)).collect();
        let Some(order) = order else {
            assert!(plain == data);
            // A GGUF file has the same values.
            let (format, [rows, cols]) = (matrix.gguf_format(), [stored.shape[0], stored.shape[1]]);
            let mut bytes = vec![0; rows * format.row_bytes(cols).unwrap()];
            matrix.write_for_gguf(&mut bytes);
            tallow_quant::unpack(format, &bytes, &mut plain_of_gguf).unwrap();
            assert!(plain_of_gguf == data && (format.gguf_id().is_some() || format == Format::F8));
            return (data, matrix.format());
        };
        let cols = order.len();
        let mut back = vec![0.0; data.len()];
        for (row, back) in data.chunks(cols).zip(back.chunks_mut(cols)) {
            row.iter().zip(&order).for_each(|(x, i)| back[*i as usize] = *x);
        }
        assert!(plain == back);
        (back, matrix.format())
    }
}

#[test]
fn every_layout_stands_for_the_numbers_it_was_made_from() {
    use Format::{F32, Q4_0, Q8_0, U4G32, U4G64, U4G128};
    use Sharing::{Anywhere, Neighbours, Unequal};
    // Odd numbers of panels; group sizes that are and are not multiples of a block.
    for (rows, cols, group, with_zeros) in [
        (64, 96, 32, U4G32),
        (96, 128, 64, U4G64),
        (32, 384, 128, U4G128),
        (40, 256, 256, U4G128),
        (32, 48, 16, F32),
        (32, 96, 64, U4G32),
    ] {
        for (bits, sym, narrowest) in [
            (2, false, Q4_0),
            (3, false, Q4_0),
            (4, true, Q4_0),
            (4, false, with_zeros),
            (8, true, Q8_0),
            (8, false, F32),
        ] {
            if cols * bits % 32 != 0 {
                continue;
            }
            for sharing in [Neighbours, Anywhere, Unequal] {
                let m = Matrix::new(rows, cols, group, bits, sharing);
                let m = if sym { m.symmetric() } else { m };
                // Groups can be made contiguous if they are equal in size; with a single group all are.
                let alike =
                    sharing == Neighbours || cols <= group || sharing == Anywhere && cols % group == 0;
                let format = if group % 32 == 0 && alike { narrowest } else { F32 };
                let what = format!("[{rows}, {cols}] in groups of {group}, {bits} bits, {sharing:?}");
                for (zero_offset, version) in [(1, "gptq"), (0, "gptq_v2")] {
                    let settings = json!({"quant_method": "gptq", "bits": bits, "group_size": group, "checkpoint_format": version});
                    let (data, got) = Tensors::gptq(&m).read(&settings);
                    assert!(data == m.want(zero_offset), "{what}, {version}");
                    if zero_offset == 0 || !sym {
                        assert_eq!(got, format, "{what}, {version}");
                    }
                }
                if bits == 4 && sharing == Neighbours {
                    let settings =
                        json!({"quant_method": "awq", "bits": 4, "group_size": group, "version": "GEMM"});
                    let (data, got) = Tensors::awq(&m).read(&settings);
                    assert!(data == m.want(0) && got == format, "awq {what}: {got}");
                }
                if bits >= 4 && cols % group == 0 {
                    let weights = json!({"num_bits": bits, "type": "int", "group_size": group});
                    let settings = json!({"quant_method": "compressed-tensors", "format": "pack-quantized", "config_groups": {"group_0": {"weights": weights}}});
                    let (data, got) = Tensors::compressed(&m, !sym).read(&settings);
                    assert!(data == m.want(0) && got == format, "compressed-tensors {what}: {got}");
                }
            }
        }
    }
}

/// A word for each group in addition to the codes.
#[test]
fn zero_points_cost_few_bits() {
    for (group, bits) in [(32, 5.0), (64, 4.5), (128, 4.25)] {
        let m = Matrix::new(64, 384, group, 4, Sharing::Neighbours);
        let gptq = json!({"quant_method": "gptq", "bits": 4, "group_size": group});
        let awq = json!({"quant_method": "awq", "bits": 4, "group_size": group});
        for (settings, mut t) in [(gptq, Tensors::gptq(&m)), (awq, Tensors::awq(&m))] {
            find(&settings, Path::new("config.json"), &mut t.0).unwrap();
            let stored = &t.0["x.weight"];
            assert_eq!(8.0 * stored.size() as f64 / stored.len() as f64, bits, "{settings}");
        }
    }
}

/// MLX: packed codes times a scale plus a bias.
fn mlx(m: &Matrix, scales: &[Vec<f32>], adds: &[Vec<f32>]) -> Tensors {
    let mut t = Tensors(StoredTensors::new());
    let rows: Vec<_> = m.codes.iter().map(|row| packed(row.iter().copied(), m.bits)).collect();
    let bytes = rows.iter().flatten().flat_map(|w| w.to_le_bytes()).collect();
    t.add("weight", Kind::Other("U32".into()), &[rows.len(), rows[0].len()], bytes);
    for (name, table) in [("scales", scales), ("biases", adds)] {
        let bytes = table.iter().flatten().flat_map(|x| half::bf16::from_f32(*x).to_le_bytes()).collect();
        t.add(name, Kind::Weights(Format::BF16), &[table.len(), table[0].len()], bytes);
    }
    t
}

#[test]
fn mlx_is_scale_times_code_and_what_is_added() {
    for (rows, cols, group) in [(40, 128, 64), (33, 256, 128), (8, 96, 32)] {
        for (bits, format) in [
            (2, Format::Q4_1),
            (3, Format::Q4_1),
            (4, Format::Q4_1),
            (5, Format::F32),
            (6, Format::F32),
            (8, Format::F32),
        ] {
            let m = Matrix::new(rows, cols, group, bits, Sharing::Neighbours);
            // Exact in both bf16 and f16.
            let brain = |x: f32| half::bf16::from_f32(x).to_f32();
            let scales: Vec<Vec<f32>> =
                m.scales.iter().map(|row| row.iter().map(|s| brain(*s)).collect()).collect();
            let adds: Vec<Vec<f32>> =
                scales.iter().map(|row| row.iter().map(|s| brain(-7.3 * s)).collect()).collect();
            let want: Vec<f32> = (0..rows * cols)
                .map(|i| (i / cols, i % cols))
                .map(|(r, c)| scales[r][c / group] * m.codes[r][c] as f32 + adds[r][c / group])
                .collect();
            let usual = json!({"bits": 4, "group_size": 64, "x": {"bits": bits, "group_size": group}});
            for settings in [json!({"bits": bits, "group_size": group, "mode": "affine"}), usual] {
                let (data, got) = mlx(&m, &scales, &adds).read_by(&settings, find_mlx);
                assert!(data == want && got == format, "[{rows}, {cols}] by {group}, {bits} bits: {got}");
            }
        }
    }
}

#[test]
fn parts_of_mlx_that_do_not_fit_are_named() {
    let m = Matrix::new(8, 64, 32, 4, Sharing::Neighbours);
    let made = || mlx(&m, &m.scales, &m.scales);
    let usual = json!({"bits": 4, "group_size": 32});
    let mut said = String::new();
    let mut note = |what: &str, settings: &Value, mut t: Tensors| {
        let e = find_mlx(settings, Path::new("config.json"), &mut t.0).expect_err(what);
        said += &format!("{what}: {e}\n");
    };
    let mut without = made();
    without.0.remove("x.biases");
    note("no biases", &usual, without);
    let mut other = made();
    other.0.get_mut("x.scales").unwrap().shape.push(1);
    note("another shape", &usual, other);
    note("another group", &json!({"bits": 4, "group_size": 128}), made());
    for (key, value) in
        [("bits", json!(7)), ("group_size", json!(16)), ("mode", json!("mxfp4")), ("bits", json!(null))]
    {
        let mut settings = usual.clone();
        settings[key] = value.clone();
        note(&format!("{key} = {value}"), &settings, made());
    }
    note("one layer", &json!({"bits": 4, "group_size": 32, "x": {"bits": 1}}), made());
    insta::assert_snapshot!(said);
}

/// Scales that are not exact in f16, and i8 codes.
#[test]
fn bytes_with_scales_of_whole_rows() {
    let settings = json!({"quant_method": "compressed-tensors", "format": "int-quantized"});
    for (cols, format) in [(512, Format::Q8K), (96, Format::F32)] {
        let m = Matrix::new(5, cols, cols, 8, Sharing::Neighbours).symmetric();
        let mut t = Tensors(StoredTensors::new());
        let bytes = m.codes.iter().flatten().map(|q| (*q as i32 - 128) as u8).collect();
        t.add("weight", Kind::Other("I8".into()), &[5, cols], bytes);
        let scales: Vec<f32> = m.scales.iter().map(|row| row[0] / 3.0).collect();
        let bytes = scales.iter().flat_map(|s| s.to_le_bytes()).collect();
        t.add("weight_scale", Kind::Weights(Format::F32), &[5, 1], bytes);
        t.add("input_scale", Kind::Weights(Format::F32), &[1], vec![0; 4]);
        let (data, got) = t.read(&settings);
        let want = |r: usize, c: usize| scales[r] * (m.codes[r][c] as i32 - 128) as f32;
        assert!((0..5 * cols).all(|i| data[i] == want(i / cols, i % cols)));
        assert_eq!(got, format);
    }
}

/// FP8 with scales per block (the last ones partial), per row, or per tensor.
#[test]
fn floats_with_scales_of_blocks() {
    let (rows, cols) = (40, 96);
    let codes: Vec<u8> =
        (0..rows * cols).map(|i| (i * 37 % 251) as u8).filter(|q| q & 0x7f != 0x7f).collect();
    let codes: Vec<u8> = codes.iter().copied().cycle().take(rows * cols).collect();
    let made = |scales: &[f32], shape: &[usize], name: &str| {
        let mut t = Tensors(StoredTensors::new());
        t.add("weight", Kind::Other("F8_E4M3".into()), &[rows, cols], codes.clone());
        let bytes = scales.iter().flat_map(|s| s.to_le_bytes()).collect();
        t.add(name, Kind::Weights(Format::F32), shape, bytes);
        t
    };
    let check = |t: Tensors, settings: &Value, scale: &dyn Fn(usize, usize) -> f32, format: Format| {
        let (data, got) = t.read(settings);
        let want = |i: usize| scale(i / cols, i % cols) * F8::value(codes[i]);
        assert!((0..rows * cols).all(|i| data[i] == want(i)), "{settings}");
        assert_eq!(got, format, "{settings}");
    };
    for (tall, wide, format) in [(32, 64, Format::F8), (128, 128, Format::F32), (7, 16, Format::F32)] {
        let (down, across) = (rows.div_ceil(tall), cols.div_ceil(wide));
        let scales: Vec<f32> = (0..down * across).map(|i| 0.013 * (i + 1) as f32).collect();
        let settings = json!({"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [tall, wide]});
        let scale = |r: usize, c: usize| scales[r / tall * across + c / wide];
        let format = if cols < wide { Format::F8 } else { format };
        check(made(&scales, &[down, across], "weight_scale_inv"), &settings, &scale, format);
    }
    let scales: Vec<f32> = (0..rows).map(|i| 0.007 * (i + 1) as f32).collect();
    let compressed = json!({"quant_method": "compressed-tensors", "format": "float-quantized"});
    let plain = json!({"quant_method": "fp8"});
    for settings in [&compressed, &plain] {
        check(made(&scales, &[rows, 1], "weight_scale"), settings, &|r, _| scales[r], Format::F8);
        check(made(&scales[..1], &[1], "weight_scale"), settings, &|_, _| scales[0], Format::F8);
        check(made(&scales[..1], &[], "weight_scale_inv"), settings, &|_, _| scales[0], Format::F8);
    }
    let of_rows = json!({"quant_method": "fbgemm_fp8", "activation_scale_ub": 1200.0});
    check(made(&scales, &[rows, 1], "weight_scale"), &of_rows, &|r, _| scales[r], Format::F8);
    // Blocks in compressed-tensors' notation, and power-of-two scales.
    let groups = json!({"group_0": {"weights": {"strategy": "block", "block_structure": [32, 64]}}});
    let blocks =
        json!({"quant_method": "compressed-tensors", "format": "float-quantized", "config_groups": groups});
    let scale = |r: usize, c: usize| scales[r / 32 * 2 + c / 64];
    check(made(&scales[..4], &[2, 2], "weight_scale"), &blocks, &scale, Format::F8);
    let mut powers = made(&[], &[0], "weight_scale_inv");
    powers.add("weight_scale_inv", Kind::Other("F8_E8M0".into()), &[2, 2], vec![127, 120, 128, 125]);
    powers.add("activation_scale", Kind::Weights(Format::F32), &[], vec![0; 4]);
    powers.add("k_scale", Kind::Weights(Format::F32), &[], vec![0; 4]);
    let scale = |r: usize, c: usize| [1.0, 0.007_812_5, 2.0, 0.25][r / 32 * 2 + c / 64];
    check(powers, &json!({"quant_method": "fp8", "weight_block_size": [32, 64]}), &scale, Format::F8);
}

/// Integers that share a scale and a zero point in 2-D blocks.
#[test]
fn whole_numbers_in_blocks() {
    let (rows, cols) = (40, 96);
    let codes: Vec<u8> = (0..rows * cols).map(|i| (i * 37 % 251) as u8).collect();
    let (scales, zeros) = ([0.5f32, 0.25, 1.0, 2.0, 0.125, 4.0], [3i8, -7, 0, 5, -1, 2]);
    let made = |zeros: &[i8], shape: &[usize]| {
        let mut t = Tensors(StoredTensors::new());
        t.add("weight", Kind::Other("I8".into()), &[rows, cols], codes.clone());
        let bytes = scales.iter().flat_map(|s| s.to_le_bytes()).collect();
        t.add("weight_scale", Kind::Weights(Format::F32), &[2, 3], bytes);
        let bytes = zeros.iter().map(|z| *z as u8).collect();
        t.add("weight_zero_point", Kind::Other("I8".into()), shape, bytes);
        t
    };
    let groups = json!({"group_0": {"weights": {"strategy": "block", "block_structure": [32, 32]}}});
    let settings =
        json!({"quant_method": "compressed-tensors", "format": "int-quantized", "config_groups": groups});
    let (data, _) = made(&zeros, &[2, 3]).read(&settings);
    for (i, got) in data.iter().enumerate() {
        let block = i / cols / 32 * 3 + i % cols / 32;
        assert_eq!(
            *got,
            scales[block] * f32::from(i16::from(codes[i] as i8) - i16::from(zeros[block])),
            "{i}"
        );
    }
    let mut others = made(&zeros.repeat(20), &[rows, 3]).0;
    let e = find(&settings, Path::new("config.json"), &mut others).unwrap_err();
    assert!(e.to_string().contains("weight_zero_point"), "{e}");
}

#[test]
fn floats_that_are_none_are_found() {
    let mut t = Tensors(StoredTensors::new());
    let mut codes = vec![0x7e; 128];
    codes[77] = 0xff;
    t.add("weight", Kind::Other("F8_E4M3".into()), &[2, 64], codes);
    t.add("weight_scale", Kind::Weights(Format::F32), &[1], 1f32.to_le_bytes().to_vec());
    find(&json!({"quant_method": "fp8"}), Path::new("config.json"), &mut t.0).unwrap();
    let Kind::Grouped(matrix) = &t.0["x.weight"].kind else { panic!("{:?}", t.0) };
    assert_eq!(matrix.fault(), Some(77));
}

#[test]
fn a_number_may_stand_in_two_words() {
    let numbers: Vec<u32> = (0..32).map(|i| (i * 5 + 3) % 8).collect();
    let words = packed(numbers.iter().copied(), 3);
    assert_eq!(words.len(), 3);
    let got: Vec<u32> = (0..32).map(|i| bits_at(|w| words[w], 3 * i, 3)).collect();
    assert_eq!(got, numbers);
}

/// Errors name every part that is missing or has the wrong shape or element type.
#[test]
fn parts_that_do_not_fit_are_named() {
    let m = Matrix::new(32, 64, 32, 4, Sharing::Anywhere);
    let gptq = json!({"quant_method": "gptq", "bits": 4, "group_size": 32});
    let awq = json!({"quant_method": "awq", "bits": 4, "group_size": 32});
    let weights = json!({"num_bits": 4, "type": "int", "group_size": 32});
    let compressed = json!({"quant_method": "compressed-tensors", "format": "pack-quantized", "config_groups": {"group_0": {"weights": weights}}});
    let mut said = String::new();
    let mut note = |what: String, settings: &Value, t: &mut Tensors| {
        let e = find(settings, Path::new("config.json"), &mut t.0).expect_err(&what);
        said += &format!("{what}: {e}\n");
    };
    for (method, settings, make) in [
        ("gptq", &gptq, (|m| Tensors::gptq(m)) as fn(&Matrix) -> Tensors),
        ("awq", &awq, |m| Tensors::awq(m)),
        ("compressed-tensors", &compressed, |m| Tensors::compressed(m, true)),
    ] {
        let names: Vec<String> = make(&m).0.into_keys().collect();
        for name in names {
            let is_codes = name.ends_with("qweight") || name.ends_with("packed");
            let optional = name.ends_with("g_idx") || name.ends_with("zero_point");
            if !is_codes && !optional {
                let mut t = make(&m);
                t.0.remove(&name);
                note(format!("{method} without {name}"), settings, &mut t);
            }
            let mut t = make(&m);
            if let Some(stored) = t.0.get_mut(&name) {
                stored.shape.push(1);
            }
            note(format!("{method}, another shape of {name}"), settings, &mut t);
            let mut t = make(&m);
            if let Some(stored) = t.0.get_mut(&name) {
                stored.kind = Kind::Other("F64".into());
            }
            note(format!("{method}, other elements of {name}"), settings, &mut t);
        }
    }
    let mut t = Tensors::gptq(&m);
    t.add("g_idx", Kind::Other("I32".into()), &[64], vec![9; 256]);
    note("a group that is not there".into(), &gptq, &mut t);
    let floats = json!({"quant_method": "fp8", "weight_block_size": [128, 128]});
    let made = |codes: u8, scale: &str, shape: &[usize]| {
        let mut t = Tensors(StoredTensors::new());
        t.add("weight", Kind::Other("F8_E4M3".into()), &[2, 64], vec![codes; 128]);
        t.add(scale, Kind::Weights(Format::F32), shape, 1f32.to_le_bytes().repeat(shape.iter().product()));
        t
    };
    note("blocks without scales".into(), &floats, &mut made(1, "scale", &[1, 1]));
    note("other blocks".into(), &floats, &mut made(1, "weight_scale_inv", &[3, 1]));
    for (key, value) in
        [("fmt", json!("e5m2")), ("weight_block_size", json!([128])), ("weight_block_size", json!([0, 1]))]
    {
        let mut settings = floats.clone();
        settings[key] = value.clone();
        note(format!("fp8, {key} = {value}"), &settings, &mut made(1, "weight_scale_inv", &[1, 1]));
    }
    let mut t = Tensors::gptq(&m);
    t.halves("scales", &vec![vec![f32::INFINITY; 32]; 2]);
    note("an infinite scale".into(), &gptq, &mut t);
    let mut t = Tensors::gptq(&m);
    t.halves("weight", &vec![vec![1.0; 64]; 32]);
    note("twice".into(), &gptq, &mut t);
    for (key, value) in [
        ("quant_method", json!("bitsandbytes")),
        ("quant_method", json!(null)),
        ("quant_method", json!(4)),
        ("bits", json!(5)),
        ("bits", json!("4")),
        ("group_size", json!(0)),
        ("group_size", json!(null)),
        ("checkpoint_format", json!("marlin")),
        ("dynamic", json!({"-:.*": {}, "+:.*mlp.*": {"bits": 8}})),
    ] {
        let mut settings = gptq.clone();
        settings[key] = value.clone();
        note(format!("{key} = {value}"), &settings, &mut Tensors::gptq(&m));
    }
    for (key, value) in [("version", json!("gemv")), ("bits", json!(8))] {
        let mut settings = awq.clone();
        settings[key] = value.clone();
        note(format!("awq, {key} = {value}"), &settings, &mut Tensors::awq(&m));
    }
    for (key, value) in [
        ("format", json!("nvfp4-pack-quantized")),
        ("transform_config", json!({"config_groups": {"u": {}}})),
        ("sparsity_config", json!({"format": "sparse-24-bitmask"})),
        ("config_groups", json!({"group_0": {"weights": {"group_size": 64}}})),
    ] {
        let mut settings = compressed.clone();
        settings[key] = value.clone();
        note(format!("compressed-tensors, {key} = {value}"), &settings, &mut Tensors::compressed(&m, true));
    }
    insta::assert_snapshot!(said);
}
