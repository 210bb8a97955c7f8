//! `tallow pack` and `--mmap` as users type them.

#![cfg(unix)]

use std::path::PathBuf;

use crate::common::Home;
use crate::common::written::Written;
use tallow_support::golden;

/// The files of packed weights in this home.
fn packed(home: &Home) -> Vec<PathBuf> {
    let folder = std::fs::read_dir(home.path().join(".cache/tallow/packed"));
    let mut files: Vec<PathBuf> = folder.into_iter().flatten().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files
}

fn small(home: &Home) -> String {
    let path = home.path().join("small.gguf");
    let path = path.to_str().unwrap().to_owned();
    Written::SMALL.to(&path);
    path
}

/// Also of families whose matrices are transposed, split or stacked as they are loaded.
#[test]
fn packed_models_compute_the_same() {
    for name in [
        "llama",
        "llama-f16-shards",
        "qwen3-moe",
        "deepseek-v3",
        "gemma3-text",
        "qwen3-next",
        "gpt2",
        "gpt-oss",
        "phi3",
    ] {
        let home = Home::new();
        let folder = golden(name);
        let (folder, input) = (folder.to_str().unwrap(), folder.join("golden.safetensors"));
        let dump = |out: &str| {
            home.run(&["dump", folder, "--in", input.to_str().unwrap(), "--out", out]).ok();
            std::fs::read(home.path().join(out)).unwrap()
        };
        let before = dump("before.safetensors");
        let said = home.run(&["pack", folder]).ok();
        assert!(said.contains(".packed: ") && said.contains(" packed in "), "{said}");
        let [file] = &packed(&home)[..] else { panic!("{name}: {:?}", packed(&home)) };
        assert!(dump("after.safetensors") == before, "{name}");
        // It is really read: with other weights there, results are others.
        let mut bytes = std::fs::read(file).unwrap();
        let end = u64::from_le_bytes(bytes[44..52].try_into().unwrap()) as usize;
        bytes[4096..end].fill(0);
        std::fs::write(file, bytes).unwrap();
        assert!(dump("zeros.safetensors") != before, "{name}");
    }
}

#[test]
fn weights_are_packed_once_for_a_model_as_it_is() {
    let home = Home::new();
    let path = small(&home);
    let run = |more: &[&str]| {
        home.run(&[&["run", path.as_str(), "--raw", "-n", "4", "--seed", "1"], more, &["w1 w2"]].concat())
    };
    let answer = run(&[]).ok();
    assert!(packed(&home).is_empty(), "nobody asked for it");
    let first = run(&["--mmap"]);
    assert!(first.err.starts_with("packing the weights into "), "{}", first.err);
    assert_eq!(first.ok(), answer);
    let second = run(&["--mmap"]);
    assert_eq!(second.err, "");
    assert_eq!(second.ok(), answer);
    assert_eq!(run(&[]).ok(), answer);
    assert!(home.run(&["pack", &path]).ok().ends_with(", packed already\n"));
    let plan = home.run(&["doctor", &path]).ok();
    assert!(plan.contains(" on the disk;"), "{plan}");
    // Another model in its place is packed anew.
    Written { layers: 2, ..Written::SMALL }.to(&path);
    let plan = home.run(&["doctor", &path]).ok();
    assert!(!plan.contains(" on the disk;"), "{plan}");
    let other = run(&[]);
    assert_eq!(other.err, "");
    let anew = run(&["--mmap"]);
    assert!(anew.err.starts_with("packing the weights into "), "{}", anew.err);
    assert_eq!(anew.ok(), other.ok());
    assert_eq!(packed(&home).len(), 1);
    assert!(home.run(&["pack", "--remove", &path]).ok().ends_with(": removed\n"));
    assert!(home.run(&["pack", "--remove", &path]).ok().ends_with(" is not there\n"));
    assert!(packed(&home).is_empty());
}

/// What is on the disk may be of another version, damaged or no such file at all; then the model is loaded as without.
#[test]
fn files_that_do_not_fit_are_left_alone() {
    let home = Home::new();
    let path = small(&home);
    let run = || home.run(&["run", &path, "--raw", "-n", "4", "--seed", "1", "w1 w2"]);
    let answer = run().ok();
    home.run(&["pack", &path]).ok();
    let [file] = &packed(&home)[..] else { panic!("{:?}", packed(&home)) };
    let good = std::fs::read(file).unwrap();
    let changed = |at: usize, to: u8| {
        let mut bytes = good.clone();
        bytes[at] ^= to;
        bytes
    };
    let bad = [
        Vec::new(),
        b"no such file".repeat(1000),
        good[..good.len() - 1].to_vec(),
        changed(8, 1),
        changed(20, 1),
    ];
    for (i, bytes) in bad.into_iter().enumerate() {
        std::fs::write(file, bytes).unwrap();
        let did = run();
        assert_eq!(did.err, "", "{i}");
        assert_eq!(did.ok(), answer, "{i}");
        assert!(home.run(&["pack", &path]).ok().contains(" packed in "), "{i}");
        assert_eq!(std::fs::read(file).unwrap(), good, "{i}");
    }
}

#[test]
fn what_cannot_be_packed_is_said() {
    let home = Home::new();
    let path = small(&home);
    insta::assert_snapshot!(home.run(&["pack", "demo"]).failed(), @"error: a model that is part of the program is not kept packed");
    let quantized = home.run(&["run", &path, "--quant", "q4_0", "--mmap", "--raw", "-n", "1", "w1"]);
    assert!(
        quantized.err.contains("--mmap is ignored: weights that are quantized on load (--quant q4_0)"),
        "{}",
        quantized.err
    );
    quantized.ok();
    // A folder that cannot be made.
    home.file(".cache/tallow", "a file");
    let said = home.run(&["pack", &path]).failed();
    assert!(said.contains(".cache/tallow/packed/small-") && said.contains(".packed: "), "{said}");
}

/// The disk is full: the largest file that the program may write is smaller than the weights.
#[test]
fn nothing_is_left_where_the_disk_is_full() {
    let home = Home::new();
    let path = small(&home);
    let mut command = std::process::Command::new("sh");
    let script = format!("ulimit -f 8; trap '' XFSZ; exec {} pack {path}", env!("CARGO_BIN_EXE_tallow"));
    command.args(["-c", &script]).env_clear().env("HOME", home.path());
    let said = crate::common::did(command, b"").failed();
    assert!(said.contains("File too large"), "{said}");
    assert!(packed(&home).is_empty());
}
