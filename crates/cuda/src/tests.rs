//! Tests of the backend without a GPU: the interpreter of `tests/ptx` takes the driver's place. Conformance of the ops, memory, and
//! what is said when something fails.

mod attention;
mod devices;
mod experts;
mod layers;
mod lora;
mod order;
mod products;
mod replay;
mod sixteen;
mod trouble;

use tallow_core::conformance::{Loose, Suite, cases};
use tallow_core::ops::{Eltwise, EltwiseOp};
use tallow_core::{Arithmetic, Backend, DType, Format, Memory, Result};
use tallow_ptx::mock::{self, Machine};

use crate::{Cuda, Found, devices_through};

/// The devices of this machine, which are the interpreter's from now on.
pub(crate) fn devices(machine: Machine) -> Result<Vec<Found>> {
    mock::set(machine);
    // SAFETY: its functions have the types of NVIDIA's, and do the same.
    unsafe { devices_through(&mock::symbol) }
}

fn open(machine: Machine) -> Cuda {
    Cuda::open(&devices(machine).unwrap()[0]).unwrap()
}

/// Cases in tests of their own; another test runs the others.
const APART: [&[&str]; 7] = [
    &["embed", "dequant", "matmul"],
    &["linear", "linear_many"],
    &["linear_alone"],
    &["attend"],
    &["attend_alone", "attend_window", "attend_keys_as_values"],
    &["ffn", "moe", "moe_alone", "lora"],
    &["normalize", "rope", "activate", "eltwise", "index_rows", "permute_cols", "route", "topk", "tail_sum"],
];

/// Index of the attention cases, which take long: this part and the next.
const ATTEND: usize = 3;

/// Types of the KV cache in each of the orders of CTAs, warps and turns in which each case is run. Attention takes long: it meets
/// all types in the first, and one in each of the others. With one of f32 it has the exact kernels' bits in either arithmetic
/// (`fast_attention_is_by_tensor_cores`).
fn orders(arithmetic: Arithmetic) -> [&'static [DType]; 3] {
    let all: &[DType] = &[DType::F16, DType::BF16, DType::I8, DType::F8, DType::F32];
    let first = match arithmetic {
        Arithmetic::Exact => all,
        Arithmetic::Fast => &all[..4],
    };
    [first, &all[1..2], &all[2..3]]
}

/// Rounding of queries and weights for tensor cores: to bf16 with a cache of that, otherwise to f16.
fn attends(dtype: DType) -> Loose {
    match dtype {
        DType::F32 => Loose::Exact,
        DType::BF16 => Loose::Each(1.0 / 256.0),
        _ => Loose::Each(1.0 / 2048.0),
    }
}

/// Runs conformance cases. Each result has memory of its own, so that reads of what nobody wrote are found.
fn conforms(suite: Suite, seed: u64, takes: impl Fn(&str) -> bool) {
    let b = open(Machine::default()).with(suite.arithmetic);
    b.gpu.stop_reuse();
    let (mut failed, mut ran) = (Vec::new(), 0);
    let (sizes, every_row) = if tallow_support::ci() { (usize::MAX, true) } else { (2, false) };
    let attends: fn(DType) -> Loose = match suite.arithmetic {
        Arithmetic::Exact => |_| Loose::Exact,
        Arithmetic::Fast => attends,
    };
    let suite = Suite { sizes, every_row, attends, ..suite };
    for case in cases::<Cuda>().iter().filter(|case| takes(case.name)) {
        ran += 1;
        for (order, caches) in orders(suite.arithmetic).into_iter().enumerate() {
            let seed = seed + 1000 * order as u64;
            mock::seed(seed);
            if let Err(why) = (case.run)(&b, Suite { caches, ..suite }) {
                let fault = mock::last_fault().map_or(String::new(), |fault| format!("\n  {fault}"));
                failed.push(format!("{} with seed {seed}: {why}{fault}", case.name));
                break;
            }
        }
    }
    println!("{}: {ran} cases, {} failed", b.label(), failed.len());
    assert!(ran > 0 && failed.is_empty(), "{}", failed.join("\n"));
}

macro_rules! conformance {
    ($($test:ident = $part:literal),*) => {
        $(#[test]
        fn $test() {
            conforms(Suite::exact(), $part, |name| APART[$part].contains(&name));
        })*
    };
}

conformance! {
    conformance_of_weights = 0,
    conformance_of_linear = 1,
    conformance_of_linear_alone = 2,
    conformance_of_attention = 3,
    conformance_of_attention_alone = 4,
    conformance_of_blocks = 5,
    conformance_of_rows = 6
}

/// A row of a layer's input, rounded to 8 or to 16 bits.
fn round_input(format: Format, x: &[f32]) -> Vec<f32> {
    match sixteen::FORMATS.contains(&format) {
        true => sixteen::rounded(format, x),
        false => Arithmetic::Fast.round_input(format, x),
    }
}

/// Products of input that is rounded. What is chained may round either way where an input is near a boundary.
fn fast_conforms(seed: u64, names: &[&str]) {
    conforms(Suite { round_input, ..Suite::fast(8e-3) }, seed, |name| names.contains(&name));
}

#[test]
fn conformance_of_fast_layers() {
    fast_conforms(8, &["linear", "linear_many", "act_order"]);
}

#[test]
fn conformance_of_fast_heads() {
    fast_conforms(8, &["linear_heads"]);
}

#[test]
fn conformance_of_fast_layers_alone() {
    fast_conforms(9, &["linear_alone"]);
}

#[test]
fn conformance_of_fast_blocks() {
    fast_conforms(10, &["ffn", "moe", "moe_alone"]);
}

#[test]
fn conformance_of_fast_attention() {
    fast_conforms(11, APART[ATTEND]);
}

#[test]
fn conformance_of_fast_attention_alone() {
    fast_conforms(12, APART[ATTEND + 1]);
}

#[test]
fn conformance_of_all_else() {
    conforms(Suite::exact(), 7, |name| !APART.concat().contains(&name));
}

/// Memory is used again, as it is outside of these tests.
#[test]
fn ops_conform_when_memory_is_reused() {
    let b = open(Machine::default()).with(Arithmetic::Exact);
    let is_attention = |name| APART[ATTEND].contains(&name) || APART[ATTEND + 1].contains(&name);
    for case in cases::<Cuda>().iter().filter(|case| !is_attention(case.name)) {
        (case.run)(&b, Suite::exact().brief())
            .unwrap_or_else(|why| panic!("{}: {why}\n{:?}", case.name, mock::last_fault()));
    }
}

/// Freed memory is given to the next who asks for as much, and there is room for other sizes when it is needed.
#[test]
fn memory_is_used_again() {
    let b = open(Machine {
        devices: vec![mock::Gpu { memory: 1 << 20, ..mock::Gpu::default() }],
        ..Machine::default()
    });
    let first = Cuda::address(&b.alloc(DType::F32, 100, 100).unwrap());
    let allocated = mock::calls("cuMemAlloc_v2");
    for _ in 0..10 {
        assert_eq!(Cuda::address(&b.alloc(DType::F32, 100, 100).unwrap()), first);
    }
    assert_eq!(mock::calls("cuMemAlloc_v2"), allocated);
    // Other sizes each, which would not fit side by side.
    for rows in [600, 700, 800, 900, 950] {
        let t = b.alloc(DType::U8, rows, 1024).unwrap();
        b.zero(&t).unwrap();
        assert!(b.download::<u8>(&t).unwrap().iter().all(|x| *x == 0));
    }
    let (total, free) = b.memory().unwrap();
    assert!(total == 1 << 20 && free < 100 << 10, "{free} of {total} bytes are free");
}

/// Larger than what is copied at a time, and than what is kept; and from many who do not wait for it.
#[test]
fn large_tensors_come_back_as_they_went() {
    let b = open(Machine::default());
    let data: Vec<u32> = (0..3 << 20).map(|i: u32| i.wrapping_mul(0x9E37_79B9)).collect();
    let t = b.upload(&data, 3, 1 << 20).unwrap();
    for _ in 0..40 {
        b.fetch(&[&t.col_range(0..2)]).unwrap();
    }
    assert!(b.download::<u32>(&t).unwrap() == data);
    let middle = t.row_range(1..2).col_range(5..9);
    b.write(&middle, bytemuck::cast_slice(&[1u32, 2, 3, 4])).unwrap();
    assert_eq!(b.download::<u32>(&t.col_range(4..6)).unwrap()[2..4], [data[(1 << 20) + 4], 1]);
}

/// Fetches in flight are waited for in any order, with launches in between.
#[test]
fn results_are_read_one_by_one() {
    let b = open(Machine::default());
    let x = b.upload(&[1.0f32, 2.0], 1, 2).unwrap();
    for order in [[0, 1, 2, 3], [3, 2, 1, 0], [1, 3, 0, 2]] {
        let before = b.counts();
        let launch = |n: u8| {
            let y = b.run(Eltwise { x: &x, op: EltwiseOp::Scale(f32::from(n)) }).unwrap();
            let pending = b.fetch(&[&y]).unwrap();
            assert!(b.begin().unwrap());
            Some(pending)
        };
        let mut all = [0, 1, 2, 3].map(launch);
        for n in order {
            let mut got = [0f32; 2];
            b.wait(all[n].take().unwrap(), &mut [bytemuck::cast_slice_mut(&mut got)]).unwrap();
            assert_eq!(got, [n as f32, 2.0 * n as f32]);
        }
        let after = b.counts();
        assert_eq!((after.launches - before.launches, after.reads - before.reads), (4, 4));
    }
}

/// Elements smaller than a word, at odd places.
#[test]
fn small_elements_are_written_where_they_should() {
    let b = open(Machine::default());
    let t = b.upload(&(0u8..35).collect::<Vec<u8>>(), 5, 7).unwrap();
    b.write(&t.row_range(1..3), &[100; 14]).unwrap();
    b.zero(&t.row_range(4..5)).unwrap();
    let mut want: Vec<u8> = (0..35).collect();
    want[7..21].fill(100);
    want[28..].fill(0);
    assert_eq!(b.download::<u8>(&t).unwrap(), want);
    assert!(b.zero(&t.col_range(0..1)).is_err());
}

/// Nothing of a device is left when nobody has it any more, in whatever order its parts go.
#[test]
fn a_device_that_is_closed_gives_all_of_it_back() {
    let found = devices(Machine::default()).unwrap();
    let b = Cuda::open(&found[0]).unwrap();
    let x = b.upload(&[1.0f32, 2.0], 1, 2).unwrap();
    let y = b.run(Eltwise { x: &x, op: EltwiseOp::Scale(2.0) }).unwrap();
    let pending = b.fetch(&[&y]).unwrap();
    b.clock().unwrap();
    drop(b);
    drop((x, y));
    drop(pending);
    for (made, unmade) in [
        ("cuDevicePrimaryCtxRetain", "cuDevicePrimaryCtxRelease_v2"),
        ("cuStreamCreate", "cuStreamDestroy_v2"),
        ("cuEventCreate", "cuEventDestroy_v2"),
        ("cuMemAlloc_v2", "cuMemFree_v2"),
        ("cuMemHostAlloc", "cuMemFreeHost"),
        ("cuModuleLoadDataEx", "cuModuleUnload"),
    ] {
        assert!(mock::calls(made) > 0);
        assert_eq!(mock::calls(made), mock::calls(unmade), "{made} and {unmade}");
    }
    assert_eq!(found[0].free_memory().unwrap(), found[0].about().memory);
}

/// Two devices of one thread do not get in each other's way.
#[test]
fn two_devices_are_used_in_turn() {
    let both = devices(Machine { devices: vec![mock::Gpu::default(); 2], ..Machine::default() }).unwrap();
    let both: Vec<Cuda> = both.iter().map(|found| Cuda::open(found).unwrap()).collect();
    let x: Vec<_> = both.iter().map(|b| b.upload(&[1.0f32, 2.0], 1, 2).unwrap()).collect();
    for _ in 0..3 {
        for (b, x) in both.iter().zip(&x) {
            let y = b.run(Eltwise { x, op: EltwiseOp::Scale(3.0) }).unwrap();
            assert_eq!(b.download::<f32>(&y).unwrap(), [3.0, 6.0]);
        }
    }
    assert_eq!(
        both.iter().map(|b| b.label()).collect::<Vec<_>>(),
        ["cuda:0 interpreter", "cuda:1 interpreter"]
    );
}
