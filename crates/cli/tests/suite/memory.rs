//! Peak memory of loading a model.

#![cfg(target_os = "linux")]

use std::mem::MaybeUninit;
use std::process::Stdio;

use crate::common::Home;
use crate::common::written::{Kind, Written};

/// Runs a program and returns its peak resident memory in bytes.
#[allow(clippy::zombie_processes, reason = "`wait4` waits for it")]
fn peak(home: &Home, args: &[&str]) -> u64 {
    let mut command = home.command(args);
    command.stdin(Stdio::null()).stdout(Stdio::null());
    let child = command.spawn().unwrap();
    let (mut status, mut usage) = (0, MaybeUninit::zeroed());
    // SAFETY: both pointers are valid for writes. The child is this test's own, and nobody else waits for it.
    let waited = unsafe { libc::wait4(child.id() as i32, &mut status, 0, usage.as_mut_ptr()) };
    assert_eq!((waited, status), (child.id() as i32, 0), "{args:?}");
    // SAFETY: `wait4` succeeded and has written the struct; every field is an integer, for which any bits are valid.
    let usage: libc::rusage = unsafe { usage.assume_init() };
    usage.ru_maxrss as u64 * 1024
}

/// Writes a model, runs it, and checks that the peak is within its size plus the KV cache plus a tenth.
fn check(model: Written) {
    const CONTEXT: u64 = 2048;
    let home = Home::new();
    let path = home.path().join("large.gguf");
    let path = path.to_str().unwrap();
    let file = model.to(path);
    // K and V with half as many heads, two bytes per element.
    let cache = model.layers * model.dim / 2 * 2 * 2 * CONTEXT;
    let peak = peak(&home, &["run", path, "--raw", "-c", &CONTEXT.to_string(), "-n", "8", "w1 w2 w3"]);
    let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
    println!(
        "file {:.1} MiB + cache {:.1} MiB; peak {:.1} MiB, {:.3} of that",
        mib(file),
        mib(cache),
        mib(peak),
        peak as f64 / (file + cache) as f64
    );
    assert!(peak * 10 <= (file + cache) * 11, "peak {peak}, file {file}, cache {cache}");
}

/// Weights are never in memory twice, nor wider than in the file.
#[test]
fn loading_an_8_bit_file_takes_its_size_and_a_tenth() {
    check(Written { dim: 1024, ffn: 4096, layers: 12, vocab: 4096, ..Written::SMALL });
}

/// The same if a single weight makes up nearly all of the file.
#[test]
fn nor_does_one_large_weight_take_more() {
    check(Written { dim: 4096, ffn: 1024, vocab: 1 << 17, ..Written::SMALL });
}

/// The same for plain floats, which are also scanned for NaN.
#[test]
fn nor_does_a_large_weight_of_plain_numbers() {
    check(Written { dim: 1024, ffn: 1024, vocab: 1 << 17, kind: Kind::Bf16, ..Written::SMALL });
}
