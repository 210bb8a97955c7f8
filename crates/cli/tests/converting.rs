//! `tallow convert` as users type it.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

mod common;

use common::Home;
use tallow_support::{golden, shared};

fn stablelm() -> String {
    golden("stablelm").to_str().unwrap().to_owned()
}

#[test]
fn a_folder_becomes_a_file_that_runs() {
    let home = Home::new();
    let Some(folder) = shared("stories260K-hf") else { return };
    let folder = folder.to_str().unwrap();
    let story =
        |model: &str| home.run(&["run", model, "--raw", "--temperature", "0", "-n", "40", "Once upon"]).ok();
    assert!(home.run(&["convert", folder, "plain.gguf"]).ok().starts_with("plain.gguf: "));
    assert_eq!(story("plain.gguf"), story(folder));
    let said = home.run(&["convert", folder, "small.gguf", "--quant", "q8_0"]).ok();
    assert!(said.contains(" bits a weight\n"), "{said}");
    let sizes = ["plain.gguf", "small.gguf"].map(|name| home.path().join(name).metadata().unwrap().len());
    assert!(sizes[1] < sizes[0] / 2, "{sizes:?}");
    // What a file of eight bits says is what the folder says when it is loaded in eight bits.
    let quantized = home
        .run(&["run", folder, "--quant", "q8_0", "--raw", "--temperature", "0", "-n", "40", "Once upon"])
        .ok();
    assert_eq!(story("small.gguf"), quantized);
    // A file becomes a smaller file.
    home.run(&["convert", "plain.gguf", "smaller.gguf", "--quant", "q8_0"]).ok();
    assert_eq!(story("smaller.gguf"), quantized);
    let left = std::fs::read_dir(home.path()).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap());
    assert!(left.into_iter().all(|name| !name.ends_with(".part")));
}

#[test]
fn what_is_there_stays_there() {
    let home = Home::new();
    let folder = stablelm();
    let there = home.file("there.gguf", "mine");
    std::fs::create_dir(home.path().join("folder")).unwrap();
    insta::assert_snapshot!(home.run(&["convert", &folder, "there.gguf"]).failed(), @"error: there.gguf is there already; choose another name, or --force to replace it");
    assert_eq!(std::fs::read(&there).unwrap(), b"mine");
    insta::assert_snapshot!(home.run(&["convert", &folder, "folder"]).failed(), @"error: folder is a folder; name the file, such as folder/model.gguf");
    let did = home.run(&["convert", &folder, "there.gguf", "--force"]);
    assert!(did.err.contains("tokenizer.json is missing, so the file will have no tokenizer"), "{}", did.err);
    assert!(did.ok().starts_with("there.gguf: "));
    insta::assert_snapshot!(home.run(&["convert", "there.gguf", "there.gguf", "--force"]).failed(), @"error: there.gguf is what is to be read; choose another name");
    insta::assert_snapshot!(home.run(&["convert", "there.gguf", "no/such/x.gguf"]).failed(), @"error: no/such/x.gguf: there is no folder no/such; make it first");
    let parts = std::fs::read_dir(home.path())
        .unwrap()
        .filter(|e| e.as_ref().unwrap().path().extension().is_some_and(|e| e == "part"));
    assert_eq!(parts.count(), 0);
}

#[test]
fn what_no_file_can_say_is_refused() {
    let home = Home::new();
    let folder = golden("more/llama-dynamic");
    let said = home.run(&["convert", folder.to_str().unwrap(), "x.gguf"]).failed();
    insta::assert_snapshot!(said.replace(folder.to_str().unwrap(), "FOLDER"), @"error: FOLDER: converting the rotary embeddings is not supported: a GGUF file of a Llama model cannot say what this model has there, so it would become another one");
    assert!(!home.path().join("x.gguf").exists());
}
