//! What loading a model takes at most.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]
#![cfg(target_os = "linux")]

mod common;

use std::mem::MaybeUninit;
use std::process::Stdio;

use common::Home;
use common::written::{Kind, Written};

/// Runs a program and gives the most memory that it ever had in use, in bytes.
#[allow(clippy::zombie_processes, reason = "`wait4` waits for it")]
fn peak(home: &Home, args: &[&str]) -> u64 {
    let mut command = home.command(args);
    command.stdin(Stdio::null()).stdout(Stdio::null());
    let child = command.spawn().unwrap();
    let (mut status, mut usage) = (0, MaybeUninit::zeroed());
    // SAFETY: both pointers are valid for what is written. The child is this test's own, and nobody else waits for it.
    let waited = unsafe { libc::wait4(child.id() as i32, &mut status, 0, usage.as_mut_ptr()) };
    assert_eq!((waited, status), (child.id() as i32, 0), "{args:?}");
    // SAFETY: all zeroes are a value of this struct, and the call has written it since.
    let usage: libc::rusage = unsafe { usage.assume_init() };
    usage.ru_maxrss as u64 * 1024
}

/// Writes a model, runs it, and checks that this takes its size, that of the cache, and a tenth.
fn check(model: Written) {
    const CONTEXT: u64 = 2048;
    let home = Home::new();
    let path = home.path().join("large.gguf");
    let path = path.to_str().unwrap();
    let file = model.to(path);
    // Keys and values of half of the heads, two bytes each.
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

/// Weights are never held twice, nor as anything larger than they are in the file.
#[test]
fn loading_an_8_bit_file_takes_its_size_and_a_tenth() {
    check(Written { dim: 1024, ffn: 4096, layers: 12, vocab: 4096, ..Written::SMALL });
}

/// Nor is any one weight, if it is nearly all of the file.
#[test]
fn nor_does_one_large_weight_take_more() {
    check(Written { dim: 2048, ffn: 1024, vocab: 1 << 17, ..Written::SMALL });
}

/// Plain numbers are looked at besides, to find those that are none.
#[test]
fn nor_does_a_large_weight_of_plain_numbers() {
    check(Written { dim: 1024, ffn: 1024, vocab: 1 << 17, kind: Kind::Bf16, ..Written::SMALL });
}
