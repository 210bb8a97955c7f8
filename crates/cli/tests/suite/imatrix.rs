//! `tallow imatrix` as users type it.

use std::collections::BTreeMap;

use crate::common::{Home, gpu};
use tallow_support::{golden, json, shared};

/// The means in an imatrix file of the legacy (.dat) format, by tensor.
fn means(bytes: &[u8]) -> BTreeMap<String, Vec<f32>> {
    let mut left = bytes;
    let mut take = |n: usize| {
        let (some, rest) = left.split_at(n);
        left = rest;
        some
    };
    let count = |bytes: &[u8]| i32::from_le_bytes(bytes.try_into().unwrap()) as usize;
    let mut found = BTreeMap::new();
    for _ in 0..count(take(4)) {
        let len = count(take(4));
        let name = String::from_utf8(take(len).to_vec()).unwrap();
        let (calls, len) = (count(take(4)), count(take(4)));
        let numbers = take(4 * len).as_chunks().0.iter().map(|x| f32::from_le_bytes(*x) / calls as f32);
        found.insert(name, numbers.collect());
    }
    found
}

/// Matches llama.cpp's imatrix of the same model and text, up to the rounding of products.
fn as_llama_cpp(device: &str) {
    let home = Home::new();
    let want = json(&golden("imatrix").join("demo.json"));
    home.file("text.txt", want["text"].as_str().unwrap());
    let context = want["context"].to_string();
    let run = |out: &str| {
        home.run(&[
            "imatrix", "demo", "text.txt", "-o", out, "-c", &context, "--goes", "1", "--device", device,
        ])
        .ok()
    };
    assert_eq!(run("x.dat"), "x.dat: inputs of 56 tensors, over 128 tokens\n");
    let found = means(&std::fs::read(home.path().join("x.dat")).unwrap());
    let tensors = want["tensors"].as_object().unwrap();
    assert_eq!(found.keys().collect::<Vec<_>>(), tensors.keys().collect::<Vec<_>>());
    for (name, want) in tensors {
        let (count, sum) = (want["count"].as_f64().unwrap(), want["sum"].as_f64().unwrap());
        let got = found[name].iter().map(|x| f64::from(*x) * count).sum::<f64>();
        assert!((got / sum - 1.0).abs() < 0.01, "{name}: {got}, not {sum}");
    }
    let name = "blk.3.attn_output.weight";
    let squares = tensors[name]["squares"].as_array().unwrap().iter().map(|x| x.as_f64().unwrap());
    let largest = squares.clone().fold(0.0, f64::max);
    for (got, want) in found[name].iter().zip(squares) {
        let got = f64::from(*got) * 128.0;
        assert!((got - want).abs() < 0.02 * largest, "{got}, not {want}");
    }
}

#[test]
fn inputs_are_what_llama_cpp_measures() {
    as_llama_cpp("cpu");
}

#[test]
fn inputs_are_what_llama_cpp_measures_on_a_gpu() {
    gpu().into_iter().for_each(|device| as_llama_cpp(&device));
}

/// A folder's imatrix names its tensors as in the converted GGUF file.
#[test]
fn a_folder_is_quantized_with_what_was_measured() {
    let home = Home::new();
    let Some(folder) = shared("stories260K-hf") else { return };
    let folder = folder.to_str().unwrap();
    home.file("text.txt", "Once upon a time there was a little girl who had a cat. ".repeat(40));
    let said = home.run(&["imatrix", folder, "text.txt", "-c", "64"]).ok();
    assert!(said.starts_with("imatrix.gguf: inputs of 35 tensors, over "), "{said}");
    home.run(&["convert", folder, "plain.gguf", "--quant", "q4_0"]).ok();
    home.run(&["convert", folder, "cared.gguf", "--quant", "q4_0", "--imatrix", "imatrix.gguf"]).ok();
    home.run(&["convert", folder, "whole.gguf"]).ok();
    home.run(&["imatrix", "whole.gguf", "text.txt", "-c", "64", "-o", "of-file.gguf"]).ok();
    home.run(&["convert", folder, "same.gguf", "--quant", "q4_0", "--imatrix", "of-file.gguf"]).ok();
    let perplexity = |model: &str| -> f64 {
        let said = home.run(&["perplexity", model, "text.txt", "-c", "64", "--json", "--device", "cpu"]).ok();
        serde_json::from_str::<serde_json::Value>(&said).unwrap()["perplexity"].as_f64().unwrap()
    };
    let (plain, cared, same) = (perplexity("plain.gguf"), perplexity("cared.gguf"), perplexity("same.gguf"));
    // The imatrix agrees to seven digits, but a few quantization choices are so close that even this flips them.
    assert!((cared - same).abs() < 0.01 * cared, "{cared} {same}");
    assert!((cared - plain).abs() > 0.02 * cared, "{cared} {plain}");
}

#[test]
fn what_cannot_be_measured_is_refused() {
    let home = Home::new();
    home.file("text.txt", "Once upon a time");
    home.file("empty.txt", "");
    home.file("bytes.txt", [0xff, 0xfe]);
    home.file("there.gguf", "mine");
    let failed = |args: &[&str]| home.run(&[&["imatrix", "demo"], args].concat()).failed();
    let said = [
        failed(&["text.txt", "-o", "there.gguf"]),
        failed(&["nothing.txt"]),
        failed(&["bytes.txt"]),
        failed(&["text.txt", "-c", "1"]),
        failed(&["text.txt", "-o", "no/such/x.gguf"]),
    ];
    insta::assert_snapshot!(said.concat());
    assert!(home.run(&["imatrix", "demo", "text.txt"]).ok().contains("inputs of 56 tensors"));
}
