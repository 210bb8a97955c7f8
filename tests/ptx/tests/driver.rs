//! The driver over the interpreter refuses what NVIDIA's does.

#![allow(clippy::unwrap_used, clippy::panic, reason = "tests and what they share")]

use std::ffi::{c_int, c_uint, c_void};
use std::ptr::{null, null_mut};

use tallow_ptx::mock::{self, Gpu, Machine};

/// Calls a function of the driver.
macro_rules! call {
    ($name:ident($($arg:expr => $of:ty),*)) => {{
        let name = std::ffi::CString::new(stringify!($name)).unwrap();
        let function = mock::symbol(&name).unwrap_or_else(|| panic!("there is no {name:?}"));
        // SAFETY: it has this type, and the places in the tests are valid.
        unsafe {
            std::mem::transmute::<std::ptr::NonNull<c_void>, unsafe extern "C" fn($($of),*) -> c_int>(function)($($arg),*)
        }
    }};
}

const ROWWISE: &str = include_str!("../../../crates/cuda/ptx/rowwise.ptx");

/// The first device's context, the thread's now.
fn context() -> *mut c_void {
    assert_eq!(call!(cuInit(0 => c_uint)), 0);
    let mut context = null_mut();
    assert_eq!(call!(cuDevicePrimaryCtxRetain(&mut context => *mut *mut c_void, 0 => c_int)), 0);
    assert_eq!(call!(cuCtxSetCurrent(context => *mut c_void)), 0);
    context
}

fn alloc(bytes: usize) -> (c_int, u64) {
    let mut address = 0;
    (call!(cuMemAlloc_v2(&mut address => *mut u64, bytes => usize)), address)
}

fn load(text: &str) -> (c_int, *mut c_void) {
    let (mut module, text) = (null_mut(), std::ffi::CString::new(text).unwrap());
    let code = call!(cuModuleLoadDataEx(
        &mut module => *mut *mut c_void, text.as_ptr().cast() => *const c_void, 0 => c_uint,
        null_mut() => *mut c_int, null_mut() => *mut *mut c_void
    ));
    (code, module)
}

fn function(module: *mut c_void, name: &std::ffi::CStr) -> (c_int, *mut c_void) {
    let mut function = null_mut();
    let code = call!(cuModuleGetFunction(
        &mut function => *mut *mut c_void, module => *mut c_void, name.as_ptr() => *const std::ffi::c_char
    ));
    (code, function)
}

fn launch(function: *mut c_void, grid: [u32; 3], shared: u32, parameters: &[u8]) -> c_int {
    let mut size = parameters.len();
    // Tags of the parameters, of their size, and of the end.
    let [at, length, end] = [1usize, 2, 0].map(|tag| tag as *mut c_void);
    let mut extra = [at, parameters.as_ptr().cast_mut().cast(), length, (&raw mut size).cast(), end];
    call!(cuLaunchKernel(
        function => *mut c_void, grid[0] => u32, grid[1] => u32, grid[2] => u32, 256 => u32, 1 => u32, 1 => u32,
        shared => u32, null_mut() => *mut c_void, null_mut() => *mut *mut c_void, extra.as_mut_ptr() => *mut *mut c_void
    ))
}

#[test]
fn calls_come_in_order() {
    mock::set(Machine::default());
    let mut count = 0;
    assert_eq!(call!(cuDeviceGetCount(&mut count => *mut c_int)), 3);
    assert_eq!(call!(cuInit(0 => c_uint)), 0);
    assert_eq!((call!(cuDeviceGetCount(&mut count => *mut c_int)), count), (0, 1));
    assert_eq!(alloc(4).0, 201);
    let mut device = 0;
    assert_eq!(call!(cuDeviceGet(&mut device => *mut c_int, 1 => c_int)), 101);
    assert_eq!(call!(cuCtxSetCurrent(1234 as *mut c_void => *mut c_void)), 201);
    let context = context();
    assert_eq!(alloc(4).0, 0);
    assert_eq!(alloc(0).0, 1);
    // The last holder's release destroys it.
    assert_eq!(call!(cuDevicePrimaryCtxRelease_v2(0 => c_int)), 0);
    assert_eq!(alloc(4).0, 201);
    assert_eq!(call!(cuCtxSetCurrent(context => *mut c_void)), 201);
}

#[test]
fn memory_is_as_large_as_the_device_and_freed_once() {
    mock::set(Machine { devices: vec![Gpu { memory: 1000, ..Gpu::default() }], ..Machine::default() });
    context();
    let (code, address) = alloc(600);
    assert_eq!((code, alloc(401).0, alloc(400).0), (0, 2, 0));
    assert_eq!(call!(cuMemFree_v2(address + 1 => u64)), 1);
    assert_eq!(call!(cuMemFree_v2(address => u64)), 0);
    assert_eq!(call!(cuMemFree_v2(address => u64)), 1);
    assert_eq!(alloc(600).0, 0);
}

#[test]
fn transfers_stay_within_their_memory() {
    mock::set(Machine::default());
    context();
    let (_, at) = alloc(16);
    let (_, other) = alloc(16);
    let bytes = [1u8; 32];
    let none: *mut c_void = null_mut();
    let up = |to: u64, n: usize, stream: *mut c_void| {
        call!(cuMemcpyHtoDAsync_v2(
            to => u64, bytes.as_ptr().cast() => *const c_void, n => usize, stream => *mut c_void
        ))
    };
    assert_eq!((up(at, 16, none), up(at + 1, 16, none), up(12, 4, none)), (0, 1, 1));
    assert!(mock::last_fault().unwrap().contains("there is no memory at 0xc"));
    assert_eq!(up(at, 16, 256 as *mut c_void), 400);
    let within = |to: u64, from: u64, n: usize| call!(cuMemcpyDtoDAsync_v2(to => u64, from => u64, n => usize, none => *mut c_void));
    assert_eq!((within(other, at, 16), within(at + 4, at, 8), within(at + 8, at, 8)), (0, 1, 0));
    assert_eq!(call!(cuMemsetD8Async(at => u64, 0 => u8, 17 => usize, none => *mut c_void)), 1);
    let nowhere: *const c_void = null();
    assert_eq!(
        call!(cuMemcpyHtoDAsync_v2(at => u64, nowhere => *const c_void, 4 => usize, none => *mut c_void)),
        1
    );
}

#[test]
fn launches_are_checked() {
    mock::set(Machine::default());
    context();
    assert_eq!(load("add.s32 %r1;").0, 218);
    assert!(mock::last_fault().unwrap().contains("line 1"));
    let (code, module) = load(ROWWISE);
    assert_eq!(code, 0, "{:?}", mock::last_fault());
    assert_eq!(function(module, c"nothing").0, 500);
    assert_eq!(function(null_mut(), c"normalize").0, 400);
    let (_, copy) = function(module, c"copy_words");
    // Two matrices without rows.
    let empty = [0; 48];
    assert_eq!(launch(copy, [1, 1, 1], 0, &empty), 0);
    assert_eq!(launch(copy, [0, 1, 1], 0, &empty), 1);
    assert_eq!(launch(copy, [1, 1 << 16, 1], 0, &empty), 1);
    assert_eq!(launch(copy, [1, 1, 1], 0, &empty[..40]), 1);
    assert_eq!(launch(module, [1, 1, 1], 0, &empty), 400);
    // More shared memory than it is allowed.
    assert_eq!(launch(copy, [1, 1, 1], (48 << 10) + 1, &empty), 1);
    let allow = |bytes| call!(cuFuncSetAttribute(copy => *mut c_void, 8 => c_int, bytes => c_int));
    assert_eq!((allow(100 << 10), allow(64 << 10)), (1, 0));
    assert_eq!(call!(cuModuleUnload(module => *mut c_void)), 0);
    assert_eq!(launch(copy, [1, 1, 1], 0, &empty), 400);
}

#[test]
fn a_context_does_not_survive_a_fault_and_others_do() {
    mock::set(Machine { devices: vec![Gpu::default(); 2], ..Machine::default() });
    context();
    let (_, copy) = function(load(ROWWISE).1, c"copy_words");
    let mut astray = [0u8; 48];
    // One row of one column, and nowhere to write it.
    for at in [8, 12, 32, 36] {
        astray[at] = 1;
    }
    let (_, from) = alloc(4);
    astray[..8].copy_from_slice(&from.to_le_bytes());
    assert_eq!(call!(cuMemsetD8Async(from => u64, 0 => u8, 4 => usize, null_mut() => *mut c_void)), 0);
    assert_eq!(launch(copy, [1, 1, 1], 0, &astray), 700);
    assert!(
        mock::last_fault()
            .unwrap()
            .starts_with("copy_words, CTA (0, 0, 0), thread 0: there is no memory at 0x0")
    );
    assert_eq!((alloc(4).0, launch(copy, [1, 1, 1], 0, &[0; 48])), (700, 700));
    let mut other = null_mut();
    assert_eq!(call!(cuDevicePrimaryCtxRetain(&mut other => *mut *mut c_void, 1 => c_int)), 0);
    assert_eq!(call!(cuCtxSetCurrent(other => *mut c_void)), 0);
    assert_eq!(alloc(4).0, 0);
    // Once nobody holds it, the first device's next context is a new one.
    assert_eq!(call!(cuDevicePrimaryCtxRelease_v2(0 => c_int)), 0);
    context();
    assert_eq!(alloc(4).0, 0);
}

#[test]
fn calls_fail_as_planned() {
    mock::set(Machine {
        fail: vec![("cuMemAlloc_v2", 2, 2)],
        lacks: vec!["cuMemFree_v2"],
        ..Machine::default()
    });
    context();
    assert_eq!([alloc(4).0, alloc(4).0, alloc(4).0], [0, 2, 0]);
    assert_eq!(mock::calls("cuMemAlloc_v2"), 3);
    assert!(mock::symbol(c"cuMemFree_v2").is_none());
    assert!(mock::symbol(c"cuNothing").is_none());
}

/// Bytes of the device's memory.
fn down(at: u64, bytes: usize) -> (c_int, Vec<u8>) {
    let mut data = vec![9; bytes];
    let code = call!(cuMemcpyDtoHAsync_v2(
        data.as_mut_ptr().cast() => *mut c_void, at => u64, bytes => usize, null_mut() => *mut c_void
    ));
    (code, data)
}

fn fill(at: u64, value: u8, stream: *mut c_void) -> c_int {
    call!(cuMemsetD8Async(at => u64, value => u8, 4 => usize, stream => *mut c_void))
}

fn stream() -> *mut c_void {
    let mut stream = null_mut();
    assert_eq!(call!(cuStreamCreate(&mut stream => *mut *mut c_void, 1 => c_uint)), 0);
    stream
}

fn begin(stream: *mut c_void, mode: c_int) -> c_int {
    call!(cuStreamBeginCapture_v2(stream => *mut c_void, mode => c_int))
}

fn end(stream: *mut c_void) -> (c_int, *mut c_void) {
    let mut graph = stream;
    (call!(cuStreamEndCapture(stream => *mut c_void, &mut graph => *mut *mut c_void)), graph)
}

fn instantiate(graph: *mut c_void) -> (c_int, *mut c_void) {
    let mut executable = null_mut();
    let code = call!(cuGraphInstantiateWithFlags(
        &mut executable => *mut *mut c_void, graph => *mut c_void, 0 => u64
    ));
    (code, executable)
}

#[test]
fn what_is_captured_is_done_by_its_graph_alone() {
    mock::set(Machine::default());
    context();
    let (stream, at) = (stream(), alloc(4).1);
    let launch =
        |executable: *mut c_void| call!(cuGraphLaunch(executable => *mut c_void, stream => *mut c_void));
    assert_eq!((fill(at, 1, stream), begin(stream, 1)), (0, 0));
    assert_eq!((fill(at, 2, stream), down(at, 4)), (0, (0, vec![1; 4])));
    // Other streams go on.
    assert_eq!((fill(at, 3, null_mut()), down(at, 1).1), (0, vec![3]));
    let (code, graph) = end(stream);
    assert_eq!((code, down(at, 1).1), (0, vec![3]));
    let (code, executable) = instantiate(graph);
    assert_eq!((code, down(at, 1).1), (0, vec![3]));
    // It does not need what it was made from.
    let destroy = |graph: *mut c_void| call!(cuGraphDestroy(graph => *mut c_void));
    assert_eq!((destroy(graph), destroy(graph), instantiate(graph).0), (0, 400, 400));
    assert_eq!((launch(executable), down(at, 1).1), (0, vec![2]));
    assert_eq!((fill(at, 4, stream), launch(executable), down(at, 1).1), (0, 0, vec![2]));
    let destroy = |executable: *mut c_void| call!(cuGraphExecDestroy(executable => *mut c_void));
    assert_eq!((destroy(executable), destroy(executable), launch(executable)), (0, 400, 400));
    // An empty one.
    assert_eq!(begin(stream, 1), 0);
    assert_eq!(launch(instantiate(end(stream).1).1), 0);
    // A kernel of a module that is gone.
    let module = load(ROWWISE).1;
    let copy = function(module, c"copy_words").1;
    assert_eq!(begin(stream, 2), 0);
    let (mut size, empty) = (48usize, [0u8; 48]);
    let [data, length, last] = [1usize, 2, 0].map(|tag| tag as *mut c_void);
    let mut extra = [data, empty.as_ptr().cast_mut().cast(), length, (&raw mut size).cast(), last];
    assert_eq!(
        call!(cuLaunchKernel(
            copy => *mut c_void, 1 => u32, 1 => u32, 1 => u32, 256 => u32, 1 => u32, 1 => u32, 0 => u32,
            stream => *mut c_void, null_mut() => *mut *mut c_void, extra.as_mut_ptr() => *mut *mut c_void
        )),
        0
    );
    let executable = instantiate(end(stream).1).1;
    assert_eq!(launch(executable), 0);
    assert_eq!(call!(cuModuleUnload(module => *mut c_void)), 0);
    assert_eq!(launch(executable), 400);
}

#[test]
fn calls_that_wait_are_forbidden_while_a_stream_captures() {
    mock::set(Machine::default());
    context();
    let (stream, at, mut event) = (stream(), alloc(4).1, null_mut());
    assert_eq!(call!(cuEventCreate(&mut event => *mut *mut c_void, 0 => c_uint)), 0);
    let query = || call!(cuEventQuery(event => *mut c_void));
    let ready = || call!(cuStreamQuery(stream => *mut c_void));
    let mut pinned = null_mut();
    assert_eq!((begin(null_mut(), 1), begin(stream, 3), begin(event, 1), end(stream).0), (900, 1, 400, 401));
    type Call<'a> = &'a mut dyn FnMut() -> c_int;
    let mut calls: [Call<'_>; 6] = [
        &mut || alloc(4).0,
        &mut || call!(cuMemFree_v2(at => u64)),
        &mut || call!(cuMemHostAlloc(&mut pinned => *mut *mut c_void, 4 => usize, 0 => c_uint)),
        &mut || load(ROWWISE).0,
        &mut || query(),
        &mut || ready(),
    ];
    for (i, call) in calls.iter_mut().enumerate() {
        for mode in 0..2 {
            assert_eq!((begin(stream, mode), begin(stream, mode), fill(at, 1, stream)), (0, 401, 0));
            // Nothing becomes of it from then on.
            assert_eq!((call(), fill(at, 1, stream), end(stream)), (900, 901, (901, null_mut())), "call {i}");
        }
    }
    // Without restrictions only what waits for the stream is.
    assert_eq!((begin(stream, 2), alloc(4).0, query(), fill(at, 1, stream)), (0, 0, 0, 0));
    assert_eq!((ready(), end(stream).0), (900, 901));
    assert_eq!((ready(), fill(at, 1, stream)), (0, 0));
    // An event that a capture has named says nothing until it is recorded again.
    let record = || call!(cuEventRecord(event => *mut c_void, stream => *mut c_void));
    assert_eq!((begin(stream, 1), record(), end(stream).0, query()), (0, 0, 0, 907));
    assert_eq!((record(), query()), (0, 0));
}

#[test]
fn a_kernel_that_never_ends_holds_up_what_comes_behind_it() {
    mock::set(Machine { endless: Some("copy_words"), ..Machine::default() });
    context();
    let (stream, at) = (stream(), alloc(4).1);
    let [mut before, mut behind] = [null_mut(); 2];
    let query = |event: *mut c_void| call!(cuEventQuery(event => *mut c_void));
    let record = |event: *mut c_void| call!(cuEventRecord(event => *mut c_void, stream => *mut c_void));
    assert_eq!(call!(cuEventCreate(&mut before => *mut *mut c_void, 0 => c_uint)), 0);
    assert_eq!(call!(cuEventCreate(&mut behind => *mut *mut c_void, 0 => c_uint)), 0);
    assert_eq!((record(before), fill(at, 1, stream)), (0, 0));
    assert_eq!(launch(function(load(ROWWISE).1, c"copy_words").1, [1, 1, 1], 0, &[0; 48]), 0);
    assert_eq!((record(behind), fill(at, 2, stream)), (0, 0));
    assert_eq!((query(before), query(behind)), (0, 600));
    assert_eq!(call!(cuStreamQuery(stream => *mut c_void)), 600);
    // Neither is done.
    assert_eq!(down(at, 4), (0, vec![9; 4]));
}

/// Only the host works: kernels do nothing, and memory takes no room.
#[test]
fn a_machine_may_compute_nothing() {
    let gpu = Gpu { memory: 1 << 40, ..Gpu::default() };
    mock::set(Machine { devices: vec![gpu], computes: false, ..Machine::default() });
    context();
    let [(_, at), (code, other)] = [alloc(1 << 38), alloc(1 << 39)];
    assert_eq!((code, alloc(1 << 39).0), (0, 2));
    assert_ne!(at, other);
    assert_eq!((fill(at, 7, null_mut()), down(at + 5, 4)), (0, (0, vec![0; 4])));
    let copy = function(load(ROWWISE).1, c"copy_words").1;
    assert_eq!((launch(copy, [1, 1, 1], 0, &[1; 48]), launch(copy, [0, 1, 1], 0, &[1; 48])), (0, 1));
    assert_eq!(call!(cuMemFree_v2(at => u64)), 0);
}
