//! The interpreter can fail: bugs planted in the kernels that we ship are found, each by its name.

#![allow(clippy::unwrap_used, clippy::panic, reason = "tests and what they share")]

use half::{bf16, f16};
use tallow_ptx::{Device, Error, Launch, Module, Trouble};

const ROWWISE: &str = include_str!("../../../crates/cuda/ptx/rowwise.ptx");
const ATTENTION: &str = include_str!("../../../crates/cuda/ptx/attention.ptx");
const SIXTEEN: &str = include_str!("../../../crates/cuda/ptx/sixteen_bf16.ptx");
const ATTENTION_F16: &str = include_str!("../../../crates/cuda/ptx/attention_f16.ptx");

/// A kernel's text within a module, changed.
fn changed(text: &str, kernel: &str, change: &dyn Fn(&mut Vec<String>)) -> String {
    let start = text.find(&format!(".entry {kernel}(")).unwrap();
    let end = start + text[start..].find("\n}").unwrap();
    let mut lines: Vec<String> = text[start..end].lines().map(str::to_owned).collect();
    let before = lines.clone();
    change(&mut lines);
    assert_ne!(lines, before, "{kernel} was not changed");
    format!("{}{}{}", &text[..start], lines.join("\n"), &text[end..])
}

/// The number of the line that has the `nth` of these.
fn line(lines: &[String], what: &str, nth: usize) -> usize {
    let found = lines.iter().enumerate().filter(|(_, line)| line.contains(what)).nth(nth);
    found.unwrap_or_else(|| panic!("there are fewer than {} of {what:?}", nth + 1)).0
}

fn without(what: &'static str, nth: usize) -> impl Fn(&mut Vec<String>) {
    move |lines| {
        let at = line(lines, what, nth);
        lines.remove(at);
    }
}

fn replaced(what: &'static str, nth: usize, by: &'static str) -> impl Fn(&mut Vec<String>) {
    move |lines| {
        let at = line(lines, what, nth);
        lines[at] = lines[at].replace(what, by);
    }
}

/// Numbers between -1 and 1.
fn numbers(count: usize, seed: u32) -> Vec<f32> {
    let mut x = seed;
    let next = || {
        x = x.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (x >> 8) as f32 / (1 << 23) as f32 - 1.0
    };
    std::iter::repeat_with(next).take(count).collect()
}

fn bytes(numbers: &[f32]) -> Vec<u8> {
    numbers.iter().flat_map(|x| x.to_le_bytes()).collect()
}

/// Memory of the device that holds these bytes.
fn up(device: &mut Device, data: &[u8]) -> u64 {
    let at = device.alloc(data.len());
    device.write(at, data).unwrap();
    at
}

fn matrix(at: u64, rows: u32, cols: u32, stride: u32) -> Vec<u8> {
    let words = [rows, cols, stride, 0];
    at.to_le_bytes().into_iter().chain(words.into_iter().flat_map(u32::to_le_bytes)).collect()
}

const ROWS: usize = 5;
const COLS: usize = 300;
const EPS: f32 = 1e-3;

/// LayerNorm of five rows of 300 columns by a module. The result, or what is wrong with it.
fn normalize(text: &str, seed: u64) -> Result<(), Found> {
    let module = Module::new(text).map_err(Found::from)?;
    let kernel = module.kernel("normalize").map_err(Found::from)?;
    let mut device = Device::default();
    let (x, weight, bias) = (numbers(ROWS * COLS, 1), numbers(COLS, 2), numbers(COLS, 3));
    let (x_at, weight_at, bias_at) =
        (up(&mut device, &bytes(&x)), up(&mut device, &bytes(&weight)), up(&mut device, &bytes(&bias)));
    let out = device.alloc(4 * ROWS * COLS);
    let (rows, cols) = (ROWS as u32, COLS as u32);
    let mut parameters = matrix(x_at, rows, cols, cols);
    parameters.extend([weight_at, bias_at].into_iter().flat_map(u64::to_le_bytes));
    parameters.extend([cols, 1, EPS.to_bits(), 0].into_iter().flat_map(u32::to_le_bytes));
    parameters.extend(matrix(0, 0, 0, 0));
    parameters.extend(matrix(out, rows, cols, cols));
    let launch = Launch {
        grid: [rows, 1, 1],
        block: [256, 1, 1],
        shared: 0,
        parameters: &parameters,
        seed,
        limit: 100_000,
    };
    device.launch(&kernel, &launch)?;
    if device.unwritten(out, 4 * ROWS * COLS).is_some() {
        return Err(Found::Unwritten);
    }
    let mut result = vec![0; 4 * ROWS * COLS];
    device.read(out, &mut result).unwrap();
    for (r, row) in x.chunks(COLS).enumerate() {
        let mean = row.iter().map(|x| f64::from(*x)).sum::<f64>() / COLS as f64;
        let squares = row.iter().map(|x| (f64::from(*x) - mean).powi(2)).sum::<f64>() / COLS as f64;
        for c in 0..COLS {
            let y = (f64::from(row[c]) - mean) / (squares + f64::from(EPS)).sqrt();
            let want = y * f64::from(weight[c]) + f64::from(bias[c]);
            let at = 4 * (r * COLS + c);
            let got = f32::from_le_bytes(result[at..at + 4].try_into().unwrap());
            if (f64::from(got) - want).abs() > 4e-6 * (1.0 + y.abs()) {
                return Err(Found::Wrong);
            }
        }
    }
    Ok(())
}

/// Gathers 40 of seven rows of 33 columns, in views with gaps, some of them past the end.
fn gather(text: &str, seed: u64) -> Result<(), Found> {
    let module = Module::new(text)?;
    let kernel = module.kernel("gather_rows")?;
    let (rows, cols, stride, count, out_stride) = (7usize, 33usize, 40usize, 40usize, 37usize);
    let (x, ids) = (numbers(rows * stride, 4), (0..count as u32).map(|i| i * 5 % 9).collect::<Vec<_>>());
    let mut device = Device::default();
    let x_at = up(&mut device, &bytes(&x)[..4 * (stride * (rows - 1) + cols)]);
    let ids_at = up(&mut device, &ids.iter().flat_map(|id| id.to_le_bytes()).collect::<Vec<_>>());
    let out = device.alloc(4 * (out_stride * (count - 1) + cols));
    let mut parameters = matrix(x_at, rows as u32, cols as u32, stride as u32);
    parameters.extend(ids_at.to_le_bytes());
    parameters.extend(matrix(out, count as u32, cols as u32, out_stride as u32));
    let launch = Launch {
        grid: [4, 1, 1],
        block: [256, 1, 1],
        shared: 0,
        parameters: &parameters,
        seed,
        limit: 100_000,
    };
    device.launch(&kernel, &launch)?;
    for (r, id) in ids.iter().enumerate() {
        let at = out + 4 * (r * out_stride) as u64;
        if device.unwritten(at, 4 * cols).is_some() {
            return Err(Found::Unwritten);
        }
        let mut row = vec![0; 4 * cols];
        device.read(at, &mut row).unwrap();
        let id = *id as usize;
        let want = if id < rows { x[id * stride..id * stride + cols].to_vec() } else { vec![0.0; cols] };
        if row != bytes(&want) {
            return Err(Found::Wrong);
        }
    }
    Ok(())
}

/// Over a cache of f32.
fn attend(text: &str, seed: u64) -> Result<(), Found> {
    attend_over(text, 0, seed)
}

/// Over a cache of f16, by tensor cores.
fn attend_by_mma(text: &str, seed: u64) -> Result<(), Found> {
    attend_over(text, 1, seed)
}

/// Attention of one query to 600 positions in three units, which the last of three CTAs merges. All numbers are whole in f16; but
/// the one kernel computes in f32, and that for f16 rounds weights.
fn attend_over(text: &str, cache_type: u32, seed: u64) -> Result<(), Found> {
    let module = Module::new(text)?;
    let kernel = module.kernel("attend")?;
    let (dim, len, page, pages) = (64usize, 600u32, 256u32, 3u32);
    let wide = page * dim as u32;
    let [q, k, v] = [(dim, 5), ((pages * wide) as usize, 6), ((pages * wide) as usize, 7)].map(
        |(count, seed)| -> Vec<f32> {
            numbers(count, seed).into_iter().map(|x| f16::from_f32(x).to_f32()).collect()
        },
    );
    let cached = |x: &[f32]| match cache_type {
        0 => bytes(x),
        _ => x.iter().flat_map(|x| f16::from_f32(*x).to_le_bytes()).collect(),
    };
    let tolerance = if cache_type == 0 { 1e-5 } else { 5e-4 };
    let mut device = Device::default();
    let [q_at, k_at, v_at] = [bytes(&q), cached(&k), cached(&v)].map(|x| up(&mut device, &x));
    let lists: [&[u32]; 4] = [&[0, 1], &[len], &[2, 0, 1], &[0]];
    let words = |words: &[u32]| words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<_>>();
    let [starts, lens, table, arrivals] = lists.map(|list| up(&mut device, &words(list)));
    let (out, parts) = (device.alloc(4 * dim), device.alloc(4 * 3 * (dim + 2)));
    let mut parameters = matrix(q_at, 1, dim as u32, dim as u32);
    parameters.extend([k_at, v_at].into_iter().flat_map(|at| matrix(at, pages, wide, wide)));
    parameters.extend(words(&[cache_type, page, 1, dim as u32]));
    parameters.extend([starts, lens].into_iter().flat_map(u64::to_le_bytes));
    parameters.extend(matrix(table, 1, pages, pages));
    parameters.extend(words(&[1, u32::MAX, u32::MAX, 1, 1, 1f32.to_bits(), 0, 0]));
    parameters.extend(matrix(0, 0, 0, 0));
    parameters.extend(0u64.to_le_bytes());
    parameters.extend(matrix(out, 1, dim as u32, dim as u32));
    parameters.extend([parts, arrivals].into_iter().flat_map(u64::to_le_bytes));
    let launch = Launch {
        grid: [1, 1, 3],
        block: [256, 1, 1],
        shared: 0,
        parameters: &parameters,
        seed,
        limit: 100_000,
    };
    device.launch(&kernel, &launch)?;
    if device.unwritten(out, 4 * dim).is_some() {
        return Err(Found::Unwritten);
    }
    let (mut result, mut count) = (vec![0; 4 * dim], [0; 4]);
    device.read(out, &mut result).unwrap();
    device.read(arrivals, &mut count).unwrap();
    let (mut sums, mut total) = (vec![0f64; dim], 0f64);
    for position in 0..len {
        let at = ([2, 0, 1][(position / page) as usize] * page + position % page) as usize * dim;
        let score: f64 = (0..dim).map(|i| f64::from(q[i]) * f64::from(k[at + i])).sum();
        total += score.exp();
        sums.iter_mut().zip(&v[at..]).for_each(|(sum, v)| *sum += score.exp() * f64::from(*v));
    }
    let is_right = result.chunks(4).zip(sums).all(|(got, sum)| {
        let got = f32::from_le_bytes(got.try_into().unwrap());
        (f64::from(got) - sum / total).abs() < tolerance
    });
    if is_right && count == [0; 4] { Ok(()) } else { Err(Found::Wrong) }
}

/// Products of a panel of 16 weights of 384 inputs in bf16 with a tile of 64 rows.
fn multiply(text: &str, seed: u64) -> Result<(), Found> {
    let module = Module::new(text)?;
    let kernel = module.kernel("sixteen_64")?;
    let (outputs, rows, cols) = (16usize, 64usize, 384usize);
    let halves = |count, seed| numbers(count, seed).into_iter().map(bf16::from_f32).collect::<Vec<_>>();
    let (x, w) = (halves(rows * cols, 8), halves(outputs * cols, 9));
    // Groups of 16 inputs: 32 lanes of 4 words of two inputs.
    let place = |i: usize| {
        let (group, lane, word, half) = (i / 256, i / 8 % 32, i / 2 % 4, i % 2);
        (lane / 4 + 8 * (word % 2)) * cols + 16 * group + 2 * (lane % 4) + 8 * (word / 2) + half
    };
    let packed: Vec<u8> = (0..outputs * cols).flat_map(|i| w[place(i)].to_le_bytes()).collect();
    let mut device = Device::default();
    let w_at = up(&mut device, &packed);
    let x_at = up(&mut device, &x.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<_>>());
    let out = device.alloc(4 * rows * outputs);
    let words = |words: &[u32]| words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<_>>();
    let wide = |wide: &[u64]| wide.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<_>>();
    // The weight's form, its one part of four, no activation, no gate.
    let mut parameters = wide(&[w_at, (32 * cols) as u64]);
    parameters.extend(words(&[outputs as u32, cols as u32, 4, 0, 0, 0, 0, 8, 0, 0, 0, 0, 0, 0]));
    parameters.extend(wide(&[w_at, 0]));
    parameters.extend(words(&[outputs as u32, 0]));
    parameters.extend([0; 3 * 24]);
    parameters.extend(words(&[7, 0]));
    parameters.extend(wide(&[x_at, 0]));
    parameters.extend(matrix(0, 0, 0, 0));
    parameters.extend(matrix(out, rows as u32, outputs as u32, outputs as u32));
    parameters.extend(words(&[1f32.to_bits(), 0]));
    let launch = Launch {
        grid: [1; 3],
        block: [256, 1, 1],
        shared: 0,
        parameters: &parameters,
        seed,
        limit: 1_000_000,
    };
    device.launch(&kernel, &launch)?;
    if device.unwritten(out, 4 * rows * outputs).is_some() {
        return Err(Found::Unwritten);
    }
    let mut result = vec![0; 4 * rows * outputs];
    device.read(out, &mut result).unwrap();
    let is_right = result.chunks(4).enumerate().all(|(i, got)| {
        let (x, w) = (&x[i / outputs * cols..][..cols], &w[i % outputs * cols..][..cols]);
        let want: f64 = x.iter().zip(w).map(|(x, w)| x.to_f64() * w.to_f64()).sum();
        (f64::from(f32::from_le_bytes(got.try_into().unwrap())) - want).abs() < 1e-4
    });
    if is_right { Ok(()) } else { Err(Found::Wrong) }
}

/// How a bug shows.
#[derive(Debug, PartialEq)]
enum Found {
    Fault(Trouble),
    Wrong,
    Unwritten,
    Other(String),
}

impl From<Error> for Found {
    fn from(error: Error) -> Found {
        match error {
            Error::Fault(fault) => Found::Fault(fault.trouble),
            other => Found::Other(other.to_string()),
        }
    }
}

#[test]
fn the_kernels_as_they_are_have_no_bug() {
    for seed in 0..20 {
        assert_eq!(normalize(ROWWISE, seed), Ok(()), "seed {seed}");
        assert_eq!(gather(ROWWISE, seed), Ok(()), "seed {seed}");
        assert_eq!(attend(ATTENTION, seed), Ok(()), "seed {seed}");
        assert_eq!(multiply(SIXTEEN, seed), Ok(()), "seed {seed}");
        assert_eq!(attend_by_mma(ATTENTION_F16, seed), Ok(()), "seed {seed}");
    }
}

/// Each bug: what is done to the kernel, and how it must show.
type Bug = (&'static str, Box<dyn Fn(&mut Vec<String>)>, fn(&Found) -> bool);

fn is_race(found: &Found) -> bool {
    matches!(found, Found::Fault(Trouble::Race { .. }))
}

#[test]
fn planted_bugs_are_found() {
    let bugs: Vec<Bug> = vec![
        ("no barrier before the parts of a sum are written again", Box::new(without("bar.sync", 2)), is_race),
        ("no barrier before the parts of a sum are read", Box::new(without("bar.sync", 1)), |found| {
            is_race(found) || matches!(found, Found::Fault(Trouble::Unwritten { what: "shared memory", .. }))
        }),
        ("a loop that goes one too far", Box::new(replaced("setp.lt.u32", 0, "setp.le.u32")), |found| {
            matches!(found, Found::Fault(Trouble::OutOfBounds { .. }) | Found::Wrong)
        }),
        ("a loop that never ends", Box::new(replaced(", 256;", 0, ", 0;")), |found| {
            matches!(found, Found::Fault(Trouble::Endless(_)))
        }),
        ("a shuffle over too short a distance", Box::new(replaced(", 16;", 0, ", 8;")), |found| {
            *found == Found::Wrong
        }),
        ("a shuffle that names half of the lanes", Box::new(replaced(", -1;", 0, ", 65535;")), |found| {
            matches!(found, Found::Fault(Trouble::NotMember { members: 0xffff }))
        }),
        (
            "a stride of twice its size",
            Box::new(|lines| {
                let parts = line(lines, "parts;", 0);
                lines[parts - 1] = lines[parts - 1].replace(", 4;", ", 8;");
            }),
            |found| {
                matches!(
                    found,
                    Found::Fault(
                        Trouble::OutOfBounds { size: 32, .. }
                            | Trouble::Unwritten { what: "shared memory", .. }
                    )
                )
            },
        ),
        ("the sum's part is not written", Box::new(without("st.shared.f32", 0)), |found| {
            matches!(found, Found::Fault(Trouble::Unwritten { what: "shared memory", .. }))
        }),
        ("a part of a sum is left out", Box::new(replaced("parts+28]", 0, "parts+24]")), |found| {
            *found == Found::Wrong
        }),
        ("shared memory past its end", Box::new(replaced("parts+28]", 0, "parts+32]")), |found| {
            matches!(found, Found::Fault(Trouble::OutOfBounds { size: 32, past: 4 }))
        }),
        (
            "an address that is not aligned",
            Box::new(|lines| {
                let at = line(lines, "ld.global.f32", 0);
                let (_, place) = lines[at].split_once('[').unwrap();
                lines[at] =
                    format!("ld.global.v2.f32 {{%f1, %f2}}, [{}+4];", place.split_once(']').unwrap().0);
            }),
            |found| matches!(found, Found::Fault(Trouble::Misaligned { size: 8, .. })),
        ),
        ("the wrong axis of the grid", Box::new(replaced("%ctaid.x", 0, "%ctaid.y")), |found| {
            is_race(found) || *found == Found::Unwritten
        }),
        (
            "a sum that begins with whatever was there",
            Box::new(|lines| {
                let sum = lines[line(lines, "add.rn.f32", 0)]
                    .trim_start()
                    .trim_start_matches("add.rn.f32")
                    .trim_start();
                let zero = format!("{} 0f00000000;", &sum[..=sum.find(',').unwrap()]);
                lines.retain(|line| !line.contains(&zero));
            }),
            |found| *found == Found::Fault(Trouble::UnwrittenRegister),
        ),
        (
            "lanes that leave before a barrier",
            Box::new(|lines| lines.insert(line(lines, "bar.sync", 1), "@%p9 ret;".into())),
            |found| {
                *found == Found::Unwritten
                    || is_race(found)
                    || matches!(found, Found::Fault(Trouble::Divergent { .. }))
            },
        ),
        (
            "lanes that leave before a shuffle",
            Box::new(|lines| {
                // True for lanes other than the first, in the sum before.
                let (_, is_other) = lines[line(lines, "setp.ne", 0)].split_once('%').unwrap();
                let leave = format!("@%{} ret;", is_other.split_once(',').unwrap().0);
                lines.insert(line(lines, "shfl", 5), leave);
            }),
            |found| matches!(found, Found::Fault(Trouble::Divergent { .. })),
        ),
    ];
    all_are_found((ROWWISE, "normalize"), normalize, &bugs);
}

#[test]
fn planted_bugs_between_ctas_are_found() {
    let bugs: Vec<Bug> = vec![
        ("every CTA begins at the first element", Box::new(replaced("%ctaid.x", 0, "%ctaid.y")), is_race),
        ("a step shorter than the grid", Box::new(replaced("%nctaid.x", 0, "%nctaid.y")), is_race),
        ("an index that is not checked", Box::new(without("bra \t$L__BB4_7", 0)), |found| {
            matches!(found, Found::Fault(Trouble::OutOfBounds { .. }))
        }),
        ("a loop over one element too many", Box::new(replaced("setp.lt.u64", 0, "setp.le.u64")), |found| {
            matches!(found, Found::Fault(Trouble::OutOfBounds { .. }))
        }),
        (
            "the stride of another matrix",
            Box::new(replaced("gather_rows_param_2+16", 0, "gather_rows_param_0+16")),
            |found| {
                matches!(found, Found::Fault(Trouble::OutOfBounds { .. }) | Found::Wrong | Found::Unwritten)
            },
        ),
        (
            "an address that is null",
            Box::new(replaced("[gather_rows_param_1]", 0, "[gather_rows_param_0+16]")),
            |found| matches!(found, Found::Fault(Trouble::NoMemory { .. })),
        ),
    ];
    all_are_found((ROWWISE, "gather_rows"), gather, &bugs);
}

#[test]
fn planted_bugs_of_the_last_to_arrive_are_found() {
    let bugs: Vec<Bug> = vec![
        ("no fence before a CTA counts itself", Box::new(without("membar.gl", 0)), is_race),
        (
            "no barrier before a CTA counts itself",
            Box::new(|lines| {
                let fence = line(lines, "membar.gl", 0);
                let barrier = fence + line(&lines[fence..], "bar.sync", 0);
                lines.remove(barrier);
            }),
            is_race,
        ),
        (
            "a count that does not go back to zero",
            Box::new(|lines| {
                let count = line(lines, "atom.global.inc.u32", 0);
                let limit = lines[count].rfind(',').unwrap();
                lines[count].replace_range(limit.., ", -1;");
            }),
            |found| *found == Found::Wrong,
        ),
        (
            "a CTA that does not wait for the others",
            Box::new(replaced("atom.global.inc.u32", 0, "atom.global.add.u32")),
            |found| is_race(found) || matches!(found, Found::Fault(Trouble::Unwritten { .. })),
        ),
    ];
    all_are_found((ATTENTION, "attend"), attend, &bugs);
}

#[test]
fn planted_bugs_of_copies_under_way_are_found() {
    let is_unwritten =
        |found: &Found| matches!(found, Found::Fault(Trouble::Unwritten { what: "shared memory", .. }));
    let bugs: Vec<Bug> = vec![
        (
            "a wait for one copy too few",
            Box::new(replaced("cp.async.wait_group 2", 0, "cp.async.wait_group 3")),
            is_unwritten,
        ),
        (
            "no barrier between a wait and reads of what others copied",
            Box::new(without("bar.sync", 0)),
            |found| {
                is_race(found)
                    || matches!(found, Found::Fault(Trouble::Unwritten { what: "shared memory", .. }))
            },
        ),
        ("a copy that belongs to no group", Box::new(without("cp.async.commit_group", 0)), is_unwritten),
        (
            "the words of a factor the other way round",
            Box::new(|lines| {
                let mma = line(lines, "mma.sync", 0);
                let mut factors: Vec<String> = lines[mma].split("}, {").map(str::to_owned).collect();
                let (first, second) = factors[2].split_once(", ").unwrap();
                factors[2] = format!("{second}, {first}");
                lines[mma] = factors.join("}, {");
            }),
            |found| *found == Found::Wrong,
        ),
    ];
    all_are_found((SIXTEEN, "sixteen_64"), multiply, &bugs);
}

/// Two registers of an `mma`'s factors in each other's place: the first four are of rows, the others of positions or columns.
fn swapped(mma: usize, one: usize, other: usize) -> impl Fn(&mut Vec<String>) {
    move |lines| {
        let at = line(lines, "mma.sync", mma);
        let parts = lines[at].split(|c: char| !c.is_alphanumeric() && c != '%');
        let registers: Vec<&str> = parts.filter(|part| part.starts_with("%r")).collect();
        let (a, b) = (registers[one], registers[other]);
        lines[at] = lines[at].replace(a, "%other").replace(b, a).replace("%other", b);
    }
}

#[test]
fn planted_bugs_of_fragments_are_found() {
    let is_wrong: fn(&Found) -> bool = |found| *found == Found::Wrong;
    let bugs: Vec<Bug> = vec![
        // The query is the first of 16 rows; the others are zeros.
        ("a query's elements in the wrong rows", Box::new(swapped(0, 0, 1)), is_wrong),
        ("a query's elements in the wrong order", Box::new(swapped(0, 0, 2)), is_wrong),
        ("a key's elements in the wrong order", Box::new(swapped(0, 4, 5)), is_wrong),
        ("weights of the wrong positions", Box::new(swapped(8, 0, 2)), is_wrong),
        ("values of the wrong positions", Box::new(swapped(8, 4, 5)), is_wrong),
        (
            "no barrier before warps read each other's largest scores",
            Box::new(without("bar.sync", 1)),
            |found| {
                is_race(found)
                    || matches!(found, Found::Fault(Trouble::Unwritten { what: "shared memory", .. }))
            },
        ),
        ("no barrier before the sums of warps are added", Box::new(without("bar.sync", 4)), |found| {
            is_race(found) || matches!(found, Found::Fault(Trouble::Unwritten { what: "shared memory", .. }))
        }),
        ("no barrier before they are written again", Box::new(without("bar.sync", 5)), is_race),
    ];
    all_are_found((ATTENTION_F16, "attend"), attend_by_mma, &bugs);
}

/// Each bug is found in one of ten orders.
fn all_are_found((module, kernel): (&str, &str), run: fn(&str, u64) -> Result<(), Found>, bugs: &[Bug]) {
    let mut missed = Vec::new();
    for (name, change, is_it) in bugs {
        let text = changed(module, kernel, change.as_ref());
        // A race shows in some orders only.
        let found: Vec<_> = (0..10).map(|seed| run(&text, seed)).collect();
        match found.iter().find_map(|found| found.as_ref().err().filter(|found| is_it(found))) {
            Some(found) => println!("{name}: {found:?}"),
            None => missed.push(format!("{name}: {found:?}")),
        }
    }
    assert!(missed.is_empty(), "{}", missed.join("\n"));
}
