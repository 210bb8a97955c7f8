//! `tallow convert` as users type it.

use crate::common::Home;
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
    // A Q8_0 file answers as the folder does when it is loaded with `--quant q8_0`.
    let quantized = home
        .run(&["run", folder, "--quant", "q8_0", "--raw", "--temperature", "0", "-n", "40", "Once upon"])
        .ok();
    assert_eq!(story("small.gguf"), quantized);
    // A file is converted to a smaller file.
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

/// A file's `general.file_type` (ftype), and the type its matrices have.
fn file_type(home: &Home, name: &str) -> (String, String) {
    let metadata = home.run(&["show", name, "--metadata"]).ok();
    let number =
        metadata.lines().find_map(|line| line.strip_prefix("general.file_type = ")).unwrap_or("none");
    let summary = home.run(&["show", name]).ok();
    let types = summary.lines().find_map(|line| line.strip_prefix("types        ")).unwrap();
    (number.to_owned(), types.split(' ').next().unwrap().to_owned())
}

/// Quantized weights are requantized only on request, and the file records its type.
#[test]
fn requantizing_has_to_be_allowed() {
    let home = Home::new();
    let refused = home.run(&["convert", "demo", "q4.gguf", "--quant", "q4_k_m"]).failed();
    insta::assert_snapshot!(refused, @r#"error: demo: tensor "blk.0.attn_k.weight": requantizing from type q8_0 is disabled: what it has lost stays lost, and more is lost. Start from the F16, BF16 or F32 model, or take --allow-requantize"#);
    assert!(!home.path().join("q4.gguf").exists());
    home.run(&["convert", "demo", "same.gguf"]).ok();
    assert_eq!(file_type(&home, "same.gguf"), ("7".into(), "Q8_0".into()));
    let made = home.run(&["convert", "demo", "q4.gguf", "--quant", "q4_k_m", "--allow-requantize"]);
    assert_eq!((made.code, made.err.as_str()), (Some(0), ""));
    assert_eq!(file_type(&home, "q4.gguf"), ("15".into(), "Q4_K".into()));
    let size = |name: &str| home.path().join(name).metadata().unwrap().len();
    assert!(size("q4.gguf") < size("same.gguf") * 3 / 4, "{} {}", size("q4.gguf"), size("same.gguf"));
    home.run(&["run", "q4.gguf", "-n", "8", "Once upon a time"]).ok();
    // A copied file keeps its ftype.
    home.run(&["convert", "q4.gguf", "copy.gguf"]).ok();
    assert_eq!(file_type(&home, "copy.gguf"), ("15".into(), "Q4_K".into()));
    // `quant` of the configuration file applies to running models, not to converting.
    home.file(".config/tallow/config.toml", "quant = \"q2_k\"\n");
    home.run(&["convert", "q4.gguf", "again.gguf"]).ok();
    assert_eq!(file_type(&home, "again.gguf"), ("15".into(), "Q4_K".into()));
    let alone = home.run(&["convert", "demo", "x.gguf", "--allow-requantize"]).failed();
    insta::assert_snapshot!(alone, @"error: --allow-requantize is about how to quantize; say to what with --quant");
}

/// `--quant` on a quantized model prints a note that it has no effect.
#[test]
fn quantizing_what_is_quantized_is_said_to_do_nothing() {
    let home = Home::new();
    let run = home.run(&["run", "demo", "--quant", "q2_k", "-n", "4", "Once"]);
    insta::assert_snapshot!(run.err, @"--quant q2_k changes nothing: the model is quantized already (Q8_0); `tallow convert --allow-requantize` would quantize again, and lose more");
    let bench = home.run(&["bench", "-m", "demo", "--quant", "q2_k", "-p", "8", "-n", "0", "-r", "1"]);
    assert_eq!(bench.err, run.err);
    assert_eq!(bench.code, Some(0));
}

/// Rows whose length is no multiple of a type's block get another type, which is reported and recorded in the file.
#[test]
fn types_that_do_not_fit_are_named() {
    let home = Home::new();
    let folder = stablelm();
    let made = home.run(&["convert", &folder, "small.gguf", "--quant", "iq2_xxs"]);
    insta::assert_snapshot!(made.err.replace(&folder, "FOLDER"), @r"
    FOLDER/tokenizer.json is missing, so the file will have no tokenizer
    16 of 16 matrices have rows that are no whole blocks of iq2_xxs: 15 as IQ4_NL instead of IQ2_XXS, 1 as Q8_0 instead of Q6_K
    ");
    made.ok();
    assert_eq!(file_type(&home, "small.gguf"), ("25".into(), "IQ4_NL".into()));
    home.run(&["convert", &folder, "plain.gguf"]).ok();
    let (number, kind) = file_type(&home, "plain.gguf");
    assert_eq!((number.as_str(), kind.as_str()), ("32", "BF16"));
}

#[test]
fn what_is_no_decoder_is_refused_as_such() {
    let home = Home::new();
    let mut said = String::new();
    for name in ["bert", "whisper", "t5"] {
        let folder = golden(name);
        let folder = folder.to_str().unwrap();
        said += &home.run(&["convert", folder, "x.gguf", "--quant", "q8_0"]).failed().replace(folder, name);
    }
    insta::assert_snapshot!(said, @r"
    error: bert: GGUF files are written of models that generate text only, and this is BERT, an encoder: use it as it is stored, by `tallow embed`, `tallow rerank`, `tallow classify` or `tallow serve`
    error: whisper: GGUF files are written of models that generate text only, and this is Whisper, a speech model: use it as it is stored, by `tallow transcribe` or `tallow serve`
    error: t5: GGUF files are written of models that generate text only, and this is T5, an encoder with a decoder: use it as it is stored, by `tallow run`
    ");
    assert!(!home.path().join("x.gguf").exists());
}
