//! Single instructions against what the PTX manual says of them.

#![allow(clippy::unwrap_used, clippy::panic, reason = "tests and what they share")]

use tallow_ptx::{Device, Error, Launch, Module, Trouble};

/// Runs `body` in 32 threads: `%r1` to `%r3` are a thread's inputs, `%r4` its result, `%tid` in `%r5`; `%rd5` is the address of
/// its result.
fn run(body: &str, inputs: &[[u32; 3]]) -> Result<Vec<u32>, Error> {
    let text = format!(
        ".version 7.8\n.target sm_80\n.address_size 64\n.visible .entry test(.param .u64 in, .param .u64 out)\n.maxntid 32, 1, 1\n{{\n\
         .reg .pred %p<8>;\n.reg .b16 %rs<8>;\n.reg .b32 %r<20>;\n.reg .f32 %f<8>;\n.reg .b64 %rd<10>;\n\
         .shared .align 16 .b8 area[128];\n\
         ld.param.u64 %rd1, [in];\nld.param.u64 %rd2, [out];\nmov.u32 %r5, %tid.x;\n\
         mad.wide.u32 %rd4, %r5, 12, %rd1;\nmad.wide.u32 %rd5, %r5, 4, %rd2;\n\
         ld.global.u32 %r1, [%rd4];\nld.global.u32 %r2, [%rd4+4];\nld.global.u32 %r3, [%rd4+8];\n\
         {body}\nst.global.u32 [%rd5], %r4;\nret;\n}}\n"
    );
    let module = Module::new(&text)?;
    let mut device = Device::default();
    let bytes: Vec<u8> = inputs.iter().flatten().flat_map(|word| word.to_le_bytes()).collect();
    let from = device.alloc(bytes.len());
    device.write(from, &bytes)?;
    let to = device.alloc(4 * inputs.len());
    let parameters: Vec<u8> = [from, to].into_iter().flat_map(u64::to_le_bytes).collect();
    let block = [inputs.len() as u32, 1, 1];
    let launch = Launch { grid: [1; 3], block, shared: 0, parameters: &parameters, seed: 1, limit: 10_000 };
    let kernel = module.kernel("test")?;
    device.launch(&kernel, &launch)?;
    let mut out = vec![0; 4 * inputs.len()];
    device.read(to, &mut out)?;
    Ok(out.chunks(4).map(|word| u32::from_le_bytes(word.try_into().unwrap())).collect())
}

/// Words that are likely to show a difference, three for each of 32 threads.
fn words() -> Vec<[u32; 3]> {
    let special =
        [0, 1, 2, 7, 31, 32, 33, 64, 255, 0x7fff_ffff, 0x8000_0000, 0xffff_ffff, 0x1234_5678, 0xfedc_ba98];
    (0..32usize)
        .map(|i| [special[i % 14], special[(i * 5 + 3) % 14], special[(i * 3 + i / 14) % 14]])
        .collect()
}

type Meaning = fn(u32, u32, u32) -> u32;

fn byte(bytes: u64, selector: u32) -> u32 {
    let byte = (bytes >> (8 * (selector & 7))) & 255;
    let sign = if byte & 128 != 0 { 255 } else { 0 };
    (if selector & 8 != 0 { sign } else { byte }) as u32
}

#[test]
fn whole_numbers_are_as_the_manual_says() {
    let cases: &[(&str, Meaning)] = &[
        ("add.s32 %r4, %r1, %r2;", |a, b, _| a.wrapping_add(b)),
        ("sub.u32 %r4, %r1, 5;", |a, _, _| a.wrapping_sub(5)),
        ("mad.lo.s32 %r4, %r1, %r2, %r3;", |a, b, c| a.wrapping_mul(b).wrapping_add(c)),
        ("mul.hi.u32 %r4, %r1, %r2;", |a, b, _| ((a as u64 * b as u64) >> 32) as u32),
        ("mul.hi.s32 %r4, %r1, %r2;", |a, b, _| ((a as i32 as i64 * b as i32 as i64) >> 32) as u32),
        ("shl.b32 %r4, %r1, %r2;", |a, b, _| if b > 31 { 0 } else { a << b }),
        ("shr.u32 %r4, %r1, %r2;", |a, b, _| if b > 31 { 0 } else { a >> b }),
        ("shr.s32 %r4, %r1, %r2;", |a, b, _| ((a as i32) >> b.min(31)) as u32),
        ("shf.l.wrap.b32 %r4, %r1, %r2, %r3;", |a, b, c| {
            if c & 31 == 0 { b } else { b << (c & 31) | a >> (32 - (c & 31)) }
        }),
        ("shf.r.wrap.b32 %r4, %r1, %r2, %r3;", |a, b, c| {
            if c & 31 == 0 { a } else { a >> (c & 31) | b << (32 - (c & 31)) }
        }),
        ("prmt.b32 %r4, %r1, %r2, %r3;", |a, b, c| {
            let bytes = (b as u64) << 32 | a as u64;
            byte(bytes, c) | byte(bytes, c >> 4) << 8 | byte(bytes, c >> 8) << 16 | byte(bytes, c >> 12) << 24
        }),
        ("prmt.b32 %r4, %r1, %r2, 0x7531;", |a, b, _| {
            (a >> 8 & 255) | (a >> 24) << 8 | (b >> 8 & 255) << 16 | (b >> 24) << 24
        }),
        ("bfe.u32 %r4, %r1, 4, 8;", |a, _, _| a >> 4 & 255),
        ("bfe.s32 %r4, %r1, 4, 8;", |a, _, _| (a >> 4) as u8 as i8 as i32 as u32),
        ("lop3.b32 %r4, %r1, %r2, %r3, 0xe8;", |a, b, c| a & b | a & c | b & c),
        ("lop3.b32 %r4, %r1, %r2, %r3, 0xca;", |a, b, c| a & b | !a & c),
        ("popc.b32 %r4, %r1;", |a, _, _| a.count_ones()),
        ("clz.b32 %r4, %r1;", |a, _, _| a.leading_zeros()),
        ("min.s32 %r4, %r1, %r2;", |a, b, _| (a as i32).min(b as i32) as u32),
        ("max.u32 %r4, %r1, %r2;", |a, b, _| a.max(b)),
        ("dp4a.s32.s32 %r4, %r1, %r2, %r3;", |a, b, c| {
            let at = |x: u32, i: u32| (x >> (8 * i)) as u8 as i8 as i32;
            (0..4).fold(c as i32, |sum, i| sum.wrapping_add(at(a, i) * at(b, i))) as u32
        }),
        ("cvt.u64.u32 %rd6, %r1;\nshl.b64 %rd6, %rd6, 20;\nmov.b64 {%r6, %r4}, %rd6;", |a, _, _| a >> 12),
        ("mul.wide.s32 %rd6, %r1, %r2;\nshr.s64 %rd6, %rd6, 16;\ncvt.u32.u64 %r4, %rd6;", |a, b, _| {
            ((a as i32 as i64 * b as i32 as i64) >> 16) as u32
        }),
        ("mov.b32 {%rs1, %rs2}, %r1;\nmov.b32 %r4, {%rs2, %rs1};", |a, _, _| a.rotate_left(16)),
        ("cvt.u16.u32 %rs1, %r1;\ncvt.s32.s16 %r4, %rs1;", |a, _, _| a as u16 as i16 as i32 as u32),
        (
            "setp.lt.s32 %p1, %r1, %r2;\nselp.b32 %r4, %r3, 9, %p1;",
            |a, b, c| if (a as i32) < b as i32 { c } else { 9 },
        ),
        (
            "setp.gt.u32 %p1, %r1, 5;\nsetp.lt.and.u32 %p2, %r2, 40, %p1;\nselp.b32 %r4, 1, 0, %p2;",
            |a, b, _| u32::from(a > 5 && b < 40),
        ),
        (
            "mov.b64 %rd6, out;\nld.param.u64 %rd7, [%rd6];\nsub.s64 %rd7, %rd7, %rd2;\ncvt.u32.u64 %r4, %rd7;",
            |_, _, _| 0,
        ),
        (
            "mov.pred %p1, -1;\nmov.pred %p2, 0;\nselp.b32 %r4, %r1, 9, %p1;\n@%p2 mov.u32 %r4, 8;",
            |a, _, _| a,
        ),
        ("prefetch.global.L2 [%rd4];\nmov.u32 %r4, %r1;", |a, _, _| a),
        (
            "mov.u32 %r4, 3;\nsetp.eq.u32 %p1, %r1, 0;\n@!%p1 mov.u32 %r4, 4;",
            |a, _, _| if a == 0 { 3 } else { 4 },
        ),
    ];
    for (body, meaning) in cases {
        let want: Vec<u32> = words().iter().map(|[a, b, c]| meaning(*a, *b, *c)).collect();
        assert_eq!(run(body, &words()).unwrap(), want, "{body}");
    }
}

#[test]
fn floats_are_as_the_manual_says() {
    let values = [
        0.0,
        -0.0,
        1.0,
        -1.5,
        3.0e-39,
        1e30,
        -1e30,
        f32::INFINITY,
        f32::NEG_INFINITY,
        f32::NAN,
        0.1,
        2.5,
        -2.5,
        65520.0,
    ];
    let inputs: Vec<[u32; 3]> = (0..32usize)
        .map(|i| [i % 14, (i * 5 + 3) % 14, (i * 3 + i / 14) % 14].map(|i| f32::to_bits(values[i])))
        .collect();
    type Meaning = fn(f32, f32, f32) -> f32;
    let cases: &[(&str, Meaning)] = &[
        ("fma.rn.f32 %f4, %f1, %f2, %f3;", |a, b, c| a.mul_add(b, c)),
        ("div.rn.f32 %f4, %f1, %f2;", |a, b, _| a / b),
        ("sqrt.rn.f32 %f4, %f1;", |a, _, _| a.sqrt()),
        ("min.f32 %f4, %f1, %f2;", |a, b, _| {
            if a.is_nan() {
                b
            } else if b.is_nan() {
                a
            } else if b < a || b == a && b.is_sign_negative() {
                b
            } else {
                a
            }
        }),
        ("max.f32 %f4, %f1, %f2;", |a, b, _| {
            if a.is_nan() {
                b
            } else if b.is_nan() {
                a
            } else if b > a || b == a && b.is_sign_positive() {
                b
            } else {
                a
            }
        }),
        ("copysign.f32 %f4, %f1, %f2;", |a, b, _| b.copysign(a)),
        ("cvt.rni.f32.f32 %f4, %f1;", |a, _, _| a.round_ties_even()),
        ("cvt.rn.f16.f32 %rs1, %f1;\ncvt.f32.f16 %f4, %rs1;", |a, _, _| half::f16::from_f32(a).to_f32()),
        ("setp.neu.f32 %p1, %f1, %f2;\nselp.f32 %f4, 0f3F800000, 0f00000000, %p1;", |a, b, _| {
            f32::from(u8::from(a != b))
        }),
    ];
    for (body, meaning) in cases {
        let body =
            format!("mov.b32 %f1, %r1;\nmov.b32 %f2, %r2;\nmov.b32 %f3, %r3;\n{body}\nmov.b32 %r4, %f4;");
        for (input, got) in inputs.iter().zip(run(&body, &inputs).unwrap()) {
            let [a, b, c] = input.map(f32::from_bits);
            let (want, got) = (meaning(a, b, c), f32::from_bits(got));
            let is_same = want.to_bits() == got.to_bits() || want.is_nan() && got.is_nan();
            assert!(is_same, "{body}\n{a} {b} {c}: {got}, not {want}");
        }
    }
}

#[test]
fn lanes_exchange_words() {
    let inputs: Vec<[u32; 3]> = (0..32).map(|i| [100 + i, i % 5, 0]).collect();
    type Meaning = fn(u32) -> u32;
    let cases: &[(&str, Meaning)] = &[
        ("shfl.sync.bfly.b32 %r4, %r1, 5, 31, -1;", |i| 100 + (i ^ 5)),
        ("shfl.sync.down.b32 %r4, %r1, 3, 31, -1;", |i| 100 + if i + 3 < 32 { i + 3 } else { i }),
        ("shfl.sync.up.b32 %r4, %r1, 3, 0, -1;", |i| 100 + if i >= 3 { i - 3 } else { i }),
        // Segments of eight.
        ("shfl.sync.idx.b32 %r4, %r1, 2, 6175, -1;", |i| 100 + (i / 8) * 8 + 2),
        ("setp.eq.u32 %p1, %r2, 0;\nvote.sync.ballot.b32 %r4, %p1, -1;", |_| {
            (0..32).filter(|i| i % 5 == 0).fold(0, |b, i| b | 1 << i)
        }),
        ("redux.sync.add.s32 %r4, %r1, -1;", |_| (100..132).sum()),
    ];
    for (body, meaning) in cases {
        assert_eq!(run(body, &inputs).unwrap(), (0..32).map(meaning).collect::<Vec<_>>(), "{body}");
    }
}

#[test]
fn lanes_that_diverge_meet_again() {
    // A loop of a different length in each lane, a branch within, and a shuffle where all are back.
    let body = "mov.u32 %r6, 0;\nmov.u32 %r7, 0;\nsetp.eq.u32 %p1, %r1, 0;\n@%p1 bra DONE;\n\
                AGAIN:\nand.b32 %r8, %r7, 1;\nsetp.ne.u32 %p2, %r8, 0;\n@%p2 bra ODD;\nadd.u32 %r6, %r6, %r7;\nODD:\n\
                add.u32 %r7, %r7, 1;\nsetp.lt.u32 %p1, %r7, %r1;\n@%p1 bra AGAIN;\nDONE:\n\
                shfl.sync.idx.b32 %r4, %r6, 7, 31, -1;\nadd.u32 %r4, %r4, %r6;";
    let inputs: Vec<[u32; 3]> = (0..32).map(|i| [i, 0, 0]).collect();
    let even = |i: u32| (0..i).filter(|i| i % 2 == 0).sum::<u32>();
    assert_eq!(run(body, &inputs).unwrap(), (0..32).map(|i| even(i) + even(7)).collect::<Vec<_>>());
}

fn trouble(body: &str) -> Trouble {
    let inputs: Vec<[u32; 3]> = (0..32).map(|i| [i, 1, 2]).collect();
    match run(body, &inputs) {
        Err(Error::Fault(fault)) => fault.trouble,
        other => panic!("{body}\n{other:?}"),
    }
}

#[test]
fn what_has_no_result_is_a_fault() {
    assert!(matches!(trouble("ld.global.u32 %r4, [%rd2+128];"), Trouble::OutOfBounds { size: 128, .. }));
    let beyond = trouble("prefetch.global.L2 [%rd2+128];\nmov.u32 %r4, 0;");
    assert!(matches!(beyond, Trouble::OutOfBounds { .. }), "{beyond:?}");
    assert!(matches!(
        trouble("ld.global.u32 %r4, [%rd2];"),
        Trouble::Unwritten { what: "global memory", at: 0 }
    ));
    assert!(matches!(trouble("ld.global.u32 %r4, [%rd1+2];"), Trouble::Misaligned { size: 4, .. }));
    assert!(matches!(
        trouble("mov.u64 %rd6, 64;\nld.global.u32 %r4, [%rd6];"),
        Trouble::NoMemory { address: 64 }
    ));
    assert!(matches!(
        trouble("ld.shared.u32 %r4, [area];"),
        Trouble::Unwritten { what: "shared memory", at: 0 }
    ));
    assert!(matches!(
        trouble("st.shared.u32 [area+128], %r1;\nmov.u32 %r4, 0;"),
        Trouble::OutOfBounds { .. }
    ));
    assert_eq!(
        trouble("setp.eq.u32 %p1, %r1, 3;\n@%p1 mov.u32 %r6, 1;\nmov.u32 %r4, %r6;"),
        Trouble::UnwrittenRegister
    );
    assert_eq!(trouble("L:\nbra L;\nmov.u32 %r4, 0;"), Trouble::Endless(10_000));
    assert_eq!(trouble("mov.u32 %r4, 0;\ntrap;"), Trouble::Trap);
    let alone = "setp.ne.u32 %p1, %r1, 4;\n@%p1 bra AWAY;\nshfl.sync.bfly.b32 %r4, %r1, 1, 31, -1;\nret;\nAWAY:\nmov.u32 %r4, 0;";
    assert!(matches!(trouble(alone), Trouble::Divergent { missing: 0xffff_ffef }), "{:?}", trouble(alone));
    let absent = "setp.ne.u32 %p1, %r1, 4;\n@%p1 bra AWAY;\nshfl.sync.bfly.b32 %r4, %r1, 1, 31, 16;\nAWAY:\nmov.u32 %r4, 0;";
    assert_eq!(trouble(absent), Trouble::AbsentLane { lane: 5 });
}

#[test]
fn what_we_do_not_ship_is_refused() {
    let error = |body: &str| run(body, &words()).unwrap_err().to_string();
    assert_eq!(
        error("sin.approx.f32 %f4, %f1;\nmov.u32 %r4, 0;"),
        "line 21 of the PTX: sin.approx.f32 is not known, or not with these operands"
    );
    assert!(error("mov.u32 %r4, nothing;").contains("nothing is called nothing"));
    assert!(error("bra NOWHERE;").contains("no label is called NOWHERE"));
    assert!(error("add.s64 %rd6, %r1, %r2;\nmov.u32 %r4, 0;").contains("in place of Wide"));
}

/// Shared memory that the launch sizes lies behind what the kernel declares, whether it is declared in the kernel or outside.
#[test]
fn a_launch_sizes_shared_memory() {
    let text = ".version 7.8\n.target sm_80\n.address_size 64\n.extern .shared .align 16 .b8 sized[];\n\
        .visible .entry test(.param .u64 out)\n.maxntid 32, 1, 1\n{\n\
        .reg .b32 %r<8>;\n.reg .b64 %rd<4>;\n.shared .align 4 .b8 own[4];\n\
        ld.param.u64 %rd1, [out];\nmov.u32 %r1, %tid.x;\nmov.u32 %r2, sized;\nshl.b32 %r3, %r1, 2;\n\
        add.s32 %r4, %r2, %r3;\nst.shared.u32 [%r4], %r1;\nld.shared.u32 %r5, [%r4];\n\
        mad.wide.u32 %rd2, %r1, 4, %rd1;\nst.global.u32 [%rd2], %r5;\nret;\n}\n";
    let module = Module::new(text).unwrap();
    let kernel = module.kernel("test").unwrap();
    let mut device = Device::default();
    let to = device.alloc(128);
    let parameters = to.to_le_bytes();
    for (shared, fits) in [(128, true), (124, false)] {
        let (grid, block, seed) = ([1; 3], [32, 1, 1], 1);
        let launch = Launch { grid, block, shared, parameters: &parameters, seed, limit: 1000 };
        assert_eq!(device.launch(&kernel, &launch).is_ok(), fits, "{shared} bytes");
    }
    let mut out = [0; 128];
    device.read(to, &mut out).unwrap();
    assert!(out.chunks(4).zip(0u32..).all(|(word, i)| word == i.to_le_bytes()));
    assert!(Module::new(&text.replace("sized[]", "sized[8]")).is_err());
}
