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
