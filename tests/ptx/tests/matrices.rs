//! Products of small matrices, and what brings their factors: fragments against plain loops.

#![allow(clippy::unwrap_used, clippy::panic, reason = "tests and what they share")]

use half::{bf16, f16};
use tallow_ptx::{Device, Error, Launch, Module, Trouble};

/// Runs one warp of a kernel over an area of global memory, at `%rd1`; `%r1` is the lane.
fn run(body: &str, memory: &[u8]) -> Result<Vec<u8>, Error> {
    let text = format!(
        ".version 7.8\n.target sm_80\n.address_size 64\n.visible .entry test(.param .u64 at)\n.maxntid 64, 1, 1\n{{\n\
         .reg .pred %p<4>;\n.reg .b32 %r<40>;\n.reg .f32 %f<8>;\n.reg .b64 %rd<10>;\n.shared .align 16 .b8 area[1024];\n\
         ld.param.u64 %rd1, [at];\nmov.u32 %r1, %tid.x;\n{body}\nret;\n}}\n"
    );
    let module = Module::new(&text)?;
    let mut device = Device::default();
    let at = device.alloc(memory.len());
    device.write(at, memory)?;
    let parameters = at.to_le_bytes();
    let launch = Launch {
        grid: [1; 3],
        block: [32, 1, 1],
        shared: 0,
        parameters: &parameters,
        seed: 1,
        limit: 10_000,
    };
    let kernel = module.kernel("test")?;
    device.launch(&kernel, &launch)?;
    let mut out = vec![0; memory.len()];
    device.read(at, &mut out)?;
    Ok(out)
}

/// Loads the fragments of a lane (ten words of `memory`, one after another), multiplies, and stores four words behind.
fn multiplied(mma: &str, words: &[[u32; 10]]) -> Vec<[u32; 4]> {
    let float = mma.ends_with("f32");
    let mut body = String::from("mad.wide.u32 %rd2, %r1, 40, %rd1;\nmad.wide.u32 %rd3, %r1, 16, %rd1;\n");
    for i in 0..10 {
        body += &format!("ld.global.u32 %r{}, [%rd2+{}];\n", 10 + i, 4 * i);
    }
    let (c, d) = match float {
        true => ("{%f1, %f2, %f3, %f4}", "{%f1, %f2, %f3, %f4}"),
        false => ("{%r16, %r17, %r18, %r19}", "{%r20, %r21, %r22, %r23}"),
    };
    if float {
        (0..4).for_each(|i| body += &format!("mov.b32 %f{}, %r{};\n", i + 1, 16 + i));
    }
    body += &format!("{mma} {d}, {{%r10, %r11, %r12, %r13}}, {{%r14, %r15}}, {c};\n");
    if float {
        (0..4).for_each(|i| body += &format!("mov.b32 %r{}, %f{};\n", 20 + i, i + 1));
    }
    body += "st.global.v4.u32 [%rd3+1280], {%r20, %r21, %r22, %r23};";
    let mut memory: Vec<u8> = words.iter().flatten().flat_map(|word| word.to_le_bytes()).collect();
    memory.resize(1280 + 512, 0);
    let out = run(&body, &memory).unwrap();
    let word = |bytes: &[u8]| u32::from_le_bytes(bytes.try_into().unwrap());
    out[1280..].chunks(16).map(|four| std::array::from_fn(|i| word(&four[4 * i..4 * i + 4]))).collect()
}

fn dice(seed: &mut u32) -> u32 {
    *seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
    *seed >> 8
}

#[test]
fn bytes_are_multiplied_by_their_places() {
    // The manual's figures: which element of A (16 x 32), B (32 x 8) and C (16 x 8) each lane has.
    let mut seed = 7;
    let a: Vec<[i32; 32]> =
        (0..16).map(|_| std::array::from_fn(|_| dice(&mut seed) as u8 as i8 as i32)).collect();
    let b: Vec<[i32; 8]> =
        (0..32).map(|_| std::array::from_fn(|_| dice(&mut seed) as u8 as i8 as i32)).collect();
    for (mma, is_signed) in [
        ("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32", true),
        ("mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32", false),
    ] {
        let c = |row: usize, col: usize| (1000 * row + col) as i32;
        let pack = |four: [i32; 4]| u32::from_le_bytes(four.map(|x| x as u8));
        let words: Vec<[u32; 10]> = (0..32)
            .map(|lane| {
                let (group, k) = (lane / 4, lane % 4 * 4);
                let mut words = [0; 10];
                for (i, word) in words[..4].iter_mut().enumerate() {
                    let (row, k) = (group + 8 * (i % 2), k + 16 * (i / 2));
                    *word = pack(std::array::from_fn(|j| a[row][k + j]));
                }
                for (i, word) in words[4..6].iter_mut().enumerate() {
                    *word = pack(std::array::from_fn(|j| b[k + 16 * i + j][group]));
                }
                for (i, word) in words[6..].iter_mut().enumerate() {
                    *word = c(group + 8 * (i / 2), lane % 4 * 2 + i % 2) as u32;
                }
                words
            })
            .collect();
        for (lane, got) in multiplied(mma, &words).into_iter().enumerate() {
            for (i, got) in got.into_iter().enumerate() {
                let (row, col) = (lane / 4 + 8 * (i / 2), lane % 4 * 2 + i % 2);
                let factor = |x: i32| if is_signed { x } else { x as u8 as i32 };
                let want = (0..32).fold(c(row, col), |sum, k| sum + factor(a[row][k]) * b[k][col]);
                assert_eq!(got as i32, want, "{mma}: lane {lane}, {i}");
            }
        }
    }
}

#[test]
fn halves_are_multiplied_by_their_places() {
    let mut seed = 9;
    let mut number = || dice(&mut seed) as i32 % 64 - 32;
    let a: Vec<[i32; 16]> = (0..16).map(|_| std::array::from_fn(|_| number())).collect();
    let b: Vec<[i32; 8]> = (0..16).map(|_| std::array::from_fn(|_| number())).collect();
    type Bits = fn(i32) -> u16;
    let kinds: [(&str, Bits); 2] = [
        ("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32", |x| f16::from_f32(x as f32).to_bits()),
        ("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32", |x| bf16::from_f32(x as f32).to_bits()),
    ];
    for (mma, bits) in kinds {
        let pack = |low: i32, high: i32| u32::from(bits(high)) << 16 | u32::from(bits(low));
        let words: Vec<[u32; 10]> = (0..32)
            .map(|lane| {
                let (group, k) = (lane / 4, lane % 4 * 2);
                let mut words = [0; 10];
                for (i, word) in words[..4].iter_mut().enumerate() {
                    let (row, k) = (group + 8 * (i % 2), k + 8 * (i / 2));
                    *word = pack(a[row][k], a[row][k + 1]);
                }
                for (i, word) in words[4..6].iter_mut().enumerate() {
                    *word = pack(b[k + 8 * i][group], b[k + 8 * i + 1][group]);
                }
                words[6..].fill(0.5f32.to_bits());
                words
            })
            .collect();
        for (lane, got) in multiplied(mma, &words).into_iter().enumerate() {
            for (i, got) in got.into_iter().enumerate() {
                let (row, col) = (lane / 4 + 8 * (i / 2), lane % 4 * 2 + i % 2);
                let want = 0.5 + (0..16).map(|k| a[row][k] * b[k][col]).sum::<i32>() as f32;
                assert_eq!(f32::from_bits(got), want, "{mma}: lane {lane}, {i}");
            }
        }
    }
}

/// 512 bytes, each its own number but for the highest.
fn area() -> Vec<u8> {
    (0..512u32).map(|i| (i / 2 * (1 + i % 2)) as u8).collect()
}

/// To shared memory and back, 16 bytes a lane.
const COPIED: &str = "mov.u32 %r2, area;\nshl.b32 %r3, %r1, 4;\nadd.s32 %r4, %r2, %r3;\ncvt.u64.u32 %rd2, %r3;\nadd.s64 %rd3, %rd1, %rd2;\n\
                      cp.async.cg.shared.global [%r4], [%rd3], 16;\ncp.async.commit_group;\n";

#[test]
fn matrices_are_loaded_by_their_rows() {
    let memory = area();
    for (opcode, is_transposed) in [
        ("ldmatrix.sync.aligned.m8n8.x4.shared.b16", false),
        ("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16", true),
    ] {
        let body = format!(
            "{COPIED}cp.async.wait_group 0;\nbar.sync 0;\n{opcode} {{%r10, %r11, %r12, %r13}}, [%r4];\n\
             bar.sync 0;\nst.global.v4.u32 [%rd3], {{%r10, %r11, %r12, %r13}};"
        );
        let out = run(&body, &memory).unwrap();
        for lane in 0..32 {
            for m in 0..4 {
                let half = |i: usize| {
                    let (row, col) = (lane / 4, lane % 4 * 2 + i);
                    let (row, col) = if is_transposed { (col, row) } else { (row, col) };
                    let at = 128 * m + 16 * row + 2 * col;
                    &memory[at..at + 2]
                };
                let at = 16 * lane + 4 * m;
                assert_eq!(out[at..at + 4], [half(0), half(1)].concat(), "{opcode}: lane {lane}, matrix {m}");
            }
        }
    }
}

#[test]
fn copies_hold_nothing_until_they_are_waited_for() {
    let fault = |body: String| match run(&body, &area()) {
        Err(Error::Fault(fault)) => fault.trouble,
        other => panic!("{body}\n{other:?}"),
    };
    let early = fault(format!("{COPIED}ld.shared.u32 %r5, [%r4];"));
    assert!(matches!(early, Trouble::Unwritten { what: "shared memory", .. }), "{early:?}");
    let early = fault(format!("{COPIED}cp.async.wait_group 1;\nld.shared.u32 %r5, [%r4];"));
    assert!(matches!(early, Trouble::Unwritten { what: "shared memory", .. }), "{early:?}");
    // Zeros behind what is used.
    let body = COPIED.replace("[%rd3], 16;", "[%rd3], 16, 4;")
        + "cp.async.wait_all;\nld.shared.v4.u32 {%r10, %r11, %r12, %r13}, [%r4];\nst.global.v4.u32 [%rd3], {%r10, %r11, %r12, %r13};";
    let (memory, out) = (area(), run(&body, &area()).unwrap());
    for (before, after) in memory.chunks(16).zip(out.chunks(16)) {
        assert_eq!(after, [&before[..4], &[0; 12]].concat());
    }
}
