//! Every command as users type it, and the errors for wrong usage.

use std::process::Stdio;

use crate::common::{Did, Home, did};
use serde_json::Value;
use tallow_models::Model;
use tallow_support::{golden, root};

const STORY: [&str; 7] = ["run", "demo", "--seed", "7", "-n", "24", "Once upon a time"];

#[test]
fn a_story_is_the_same_for_the_same_seed() {
    let home = Home::new();
    let story = home.run(&STORY).ok();
    // In a pipe only the answer is printed, unless the prompt is asked for with `--echo`.
    assert!(story.len() > 40 && !story.starts_with("Once upon a time"), "{story:?}");
    let echoed = home.run(&[&STORY[..], &["--echo"]].concat()).ok();
    assert_eq!(echoed, format!("Once upon a time{story}"));
    assert_eq!(home.run(&STORY).ok(), story);
    let other = home.run(&["run", "demo", "--seed", "8", "-n", "24", "Once upon a time"]).ok();
    assert_ne!(other, story);
    // Prompt words need no quotes, and the prompt can come from a pipe.
    let words = home.run(&["run", "demo", "--seed", "7", "-n", "24", "Once", "upon", "a", "time"]).ok();
    assert_eq!(words, story);
    assert_eq!(home.run_with(&["run", "demo", "--seed", "7", "-n", "24"], b"Once upon a time").ok(), story);
    // Options are recognised anywhere, unless they follow `--`.
    assert_eq!(home.run(&["run", "demo", "Once upon a time", "--seed", "7", "-n", "24"]).ok(), story);
    let dashed = home.run(&["run", "demo", "--seed", "7", "-n", "1", "--", "--seed", "is a word"]).ok();
    assert_eq!(dashed, home.run_with(&["run", "demo", "--seed", "7", "-n", "1"], b"--seed is a word").ok());
}

/// SentencePiece tokenizers drop the space of a text's first token. An answer's first token is not the first of the
/// text.
#[test]
fn the_space_after_a_prompt_is_kept() {
    let Some(folder) = tallow_support::shared("stories260K-hf") else { return };
    let home = Home::new();
    let model = folder.join("stories260K-Q8_0.gguf");
    let args = ["run", model.to_str().unwrap(), "-n", "4", "--temperature", "0", "Once upon"];
    assert_eq!(home.run(&args).ok(), " a time, there\n");
    let echoed = home.run(&[&args[..], &["--echo"]].concat()).ok();
    assert_eq!(echoed, "Once upon a time, there\n");
}

#[test]
fn nothing_but_the_answer_goes_into_a_pipe() {
    let Did { err, .. } = Home::new().run(&STORY);
    assert_eq!(err, "");
}

#[test]
fn a_reader_that_goes_away_is_no_error() {
    let home = Home::new();
    let mut command = home.command(&["run", "demo", "-n", "500", "The king"]);
    let mut child =
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!((output.status.code(), output.stderr.as_slice()), (Some(0), &b""[..]));
}

#[test]
fn text_that_is_too_long_or_no_text_is_refused() {
    let home = Home::new();
    let long = "word ".repeat(2_000_000);
    insta::assert_snapshot!(home.run_with(&["run", "demo"], long.as_bytes()).failed(), @"error: the prompt has 2000005 tokens, and the context is 1024, which is this model's own limit: shorten the prompt");
    insta::assert_snapshot!(home.run_with(&["run", "demo"], b"ab\xff\xfe").failed(), @"error: standard input is not UTF-8 text: byte 2 cannot be read; convert it first (iconv)");
}

#[test]
fn what_does_not_fit_is_refused_with_the_numbers() {
    let home = Home::new();
    insta::assert_snapshot!(home.run(&["run", "demo", "-c", "2000", "Hi"]).failed(), @"error: a context of 2000 tokens is asked for (the command line), and the model was made for 1024: past that its answers make no sense. Take --context 1024 or less");
    // A KV cache for that many slots exceeds any machine's memory.
    let why =
        home.run(&["serve", "demo", "--port", "0", "-c", "1024", "--slots", "4096", "--kv", "f32"]).failed();
    let tried = home.run(&["doctor", "demo"]).ok();
    // f16 or bf16, depending on the CPU.
    let cache = "cpu: weights 7.45 MiB + cache 4.00 MiB (1024 tokens of ";
    assert!(tried.split_once(cache).is_some_and(|(_, rest)| rest.contains("f16) + workspace")), "{tried}");
    for part in [
        "the model does not fit: it needs 3",
        " of memory are free",
        "4096 x 1024 tokens of f32",
        "fewer --slots",
    ] {
        assert!(why.contains(part), "{part:?} is not in {why}");
    }
}

/// The report goes to standard output; only the verdict is an error.
#[test]
fn doctor_reports_and_says_the_true_reason() {
    let home = Home::new();
    let long = home.run(&["doctor", "demo", "-c", "2000"]);
    assert_eq!(long.code, Some(1));
    insta::assert_snapshot!(long.err, @"error: a context of 2000 tokens is asked for (the command line), and the model was made for 1024: past that its answers make no sense. Take --context 1024 or less");
    assert!(long.out.contains("; the model was made for 1024 tokens\n"), "{}", long.out);
    assert!(
        !long.out.contains("does not fit") && long.out.contains("settings of `tallow run`"),
        "{}",
        long.out
    );
    // A folder without a tokenizer can be inspected.
    let folder = golden("llama");
    let folder = folder.to_str().unwrap();
    let seen = home.run(&["doctor", folder]).ok();
    assert!(
        seen.contains("it cannot read or write text here: ") && seen.contains("tokenizer.json"),
        "{seen}"
    );
    let shown = home.run(&["show", folder]).ok();
    assert!(shown.contains("template     not known: ") && shown.contains("vocabulary "), "{shown}");
    for name in ["bert", "whisper"] {
        let seen = home.run(&["doctor", golden(name).to_str().unwrap()]).ok();
        assert!(seen.contains(&format!("{name} would take\n  cpu: weights ")), "{seen}");
    }
    // A model with dynamic RoPE scaling can exceed its training context on request.
    let dynamic = golden("more/llama-dynamic");
    let dynamic = dynamic.to_str().unwrap();
    for (args, tokens) in [(&["doctor", dynamic][..], 12), (&["doctor", dynamic, "-c", "24"], 24)] {
        let seen = home.run(args).ok();
        assert!(seen.contains(&format!("({tokens} tokens of ")), "{seen}");
    }
    assert!(home.run(&["doctor", dynamic, "-c", "25"]).failed().contains("the model was made for 24"));
}

#[test]
fn dump_replaces_no_file_unasked() {
    let home = Home::new();
    let (model, out) = (golden("llama"), home.file("mine.safetensors", "mine"));
    let input = model.join("golden.safetensors");
    let [model, input] = [&model, &input].map(|path| path.to_str().unwrap());
    let args = ["dump", model, "--in", input, "--out", "mine.safetensors"];
    insta::assert_snapshot!(home.run(&args).failed(), @"error: mine.safetensors is there already; choose another name, or --force to replace it");
    assert_eq!(std::fs::read(&out).unwrap(), b"mine");
    home.run(&[&args[..], &["--force"]].concat()).ok();
    assert!(std::fs::metadata(&out).unwrap().len() > 1000);
}

/// A command's error message, without what differs between machines.
fn said(home: &Home, args: &[&str]) -> String {
    home.run(args).failed().replace(home.path().to_str().unwrap(), "~")
}

#[test]
fn wrong_models_are_named_with_what_to_do() {
    let home = Home::new();
    home.file("notes.gguf", "These are my notes.");
    home.file("empty.gguf", "");
    home.file("model.bin", "\u{80}");
    home.file("folder/readme.txt", "");
    home.file("odd/config.json", r#"{"architectures": ["NobodyKnowsThis"], "model_type": "nobody"}"#);
    home.file("odd/model.safetensors", "");
    let tried =
        ["./nothing.gguf", "/no/such/folder", "notes.gguf", "empty.gguf", "model.bin", "folder", "odd"];
    let mut text = String::new();
    for name in tried {
        text += &format!("{name}\n  {}", said(&home, &["run", name, "Hello"]));
    }
    for name in ["../../no/such/file", "a/b/c", "http://example.com/x", "no spaces", "org/name", "\u{1b}[2Jx"]
    {
        text += &format!("{name:?}\n  {}", said(&home, &["run", "--offline", name, "Hello"]));
    }
    insta::assert_snapshot!(text);
}

#[test]
fn settings_that_make_no_sense_are_refused() {
    let home = Home::new();
    let mut text = String::new();
    let tried: [&[&str]; 9] = [
        &["--temperature=-1"],
        &["--temperature", "NaN"],
        &["--top-p", "2"],
        &["--threads", "0"],
        &["--context", "0"],
        &["--context", "99999999"],
        &["--kv", "q4"],
        &["--isa", "sse9"],
        &["--repetition-penalty", "0"],
    ];
    for flags in tried {
        let args = [&["run"], flags, &["demo", "Hello"]].concat();
        let did = home.run(&args);
        assert!(did.code == Some(1) || did.code == Some(2), "{did:?}");
        let first = did.err.lines().next().unwrap();
        // The amount of free memory differs.
        let first = first.split(", and ").next().unwrap();
        text += &format!("{}\n  {first}\n", flags.join(" "));
    }
    insta::assert_snapshot!(text);
}

#[test]
fn settings_come_from_the_flag_then_the_environment_then_the_file() {
    let home = Home::new();
    let origin = |args: &[&str], variable: Option<&str>| {
        let mut command = home.command(&[&["doctor"], args].concat());
        command.envs(variable.map(|v| ("TALLOW_TOP_K", v)));
        let out = did(command, b"").ok();
        let row = out.lines().find(|line| line.trim_start().starts_with("top-k")).unwrap();
        row.split_whitespace()
            .skip(1)
            .collect::<Vec<_>>()
            .join(" ")
            .replace(home.path().to_str().unwrap(), "~")
    };
    assert_eq!(origin(&[], None), "40 built in");
    home.file(".config/tallow/config.toml", "top-k = 3\ntemperature = 0.5\n");
    assert_eq!(origin(&[], None), "3 ~/.config/tallow/config.toml");
    assert_eq!(origin(&[], Some("4")), "4 TALLOW_TOP_K");
    assert_eq!(origin(&["--top-k", "5"], Some("4")), "5 the command line");
    home.file(".config/tallow/config.toml", "topk = 3\n");
    let wrong = home.run(&["doctor"]).failed();
    assert!(wrong.contains("there is no setting \"topk\""), "{wrong}");
    home.file(".config/tallow/config.toml", "top-k = [");
    assert!(home.run(&["doctor"]).failed().contains("is not TOML"));
    home.file(".config/tallow/config.toml", "top-k = \"many\"\n");
    assert!(
        home.run(&["doctor"]).failed().contains("top-k is \"many\": a whole number from 0 up is expected")
    );
}

#[test]
fn the_reference_says_what_there_is() {
    let written = std::fs::read_to_string(root().join("docs/reference.md")).unwrap();
    let now = Home::new().run(&["doctor", "--reference"]).ok();
    assert!(
        written == now,
        "run `cargo run --release -- doctor --reference > docs/reference.md` and read the difference"
    );
}

#[test]
fn help_is_there_for_every_command() {
    let home = Home::new();
    insta::assert_snapshot!(home.run(&["-h"]).ok());
    for command in
        ["run", "serve", "bench", "pull", "list", "rm", "show", "doctor", "tokenize", "perplexity", "dump"]
    {
        let help = home.run(&[command, "--help"]).ok();
        assert!(help.contains("Usage:"), "{help}");
    }
    for shell in ["bash", "zsh", "fish", "powershell", "elvish"] {
        assert!(home.run(&["completions", shell]).ok().contains("perplexity"), "{shell}");
    }
}

#[test]
fn tokens_go_there_and_back() {
    let home = Home::new();
    let text = "Café  ☕\n\tnaïve <|end_of_text|>";
    let ids = home.run(&["tokenize", "demo", "--ids", text]).ok();
    let back = home.run(&["tokenize", "demo", "--decode", ids.trim()]).ok();
    assert_eq!(back, format!("{text}\n"));
    // Text that looks like a special token is parsed as one only on request.
    let numbers = |ids: &str| serde_json::from_str::<Vec<u32>>(ids).unwrap();
    assert!(!numbers(&ids).contains(&1));
    let parsed = home.run(&["tokenize", "demo", "--ids", "--special", "--parse-special", text]).ok();
    assert_eq!((numbers(&parsed).first(), numbers(&parsed).last()), (Some(&0), Some(&1)));
    assert!(home.run(&["tokenize", "demo", "--decode", "1 x"]).failed().contains("\"x\" is no token id"));
}

#[test]
fn a_model_is_shown() {
    let home = Home::new();
    let shown = home.run(&["show", "demo"]).ok();
    for line in
        ["family       Llama", "context      1024 tokens", "vocabulary   4099 tokens", "types        Q8_0"]
    {
        assert!(shown.contains(line), "{shown}");
    }
    assert!(home.run(&["show", "demo", "--tensors"]).ok().contains("blk.7.ffn_down.weight"));
    assert!(home.run(&["show", "demo", "--metadata"]).ok().contains("general.architecture = \"llama\""));
    assert!(home.run(&["show", "demo", "--template"]).ok().contains("<|assistant|>"));
    let bare = golden("gguf-models/llama-bf16.gguf");
    let shown = home.run(&["show", bare.to_str().unwrap(), "--template"]).failed();
    assert!(shown.contains("llama-bf16 has no chat template"), "{shown}");
}

#[test]
fn an_empty_cache_is_no_error() {
    let home = Home::new();
    assert!(home.run(&["list"]).ok().starts_with("no models are downloaded"));
    assert_eq!(home.run(&["list", "--json"]).ok(), "[]\n");
    assert!(home.run(&["list", "--aliases"]).ok().contains("qwen3"));
    insta::assert_snapshot!(said(&home, &["rm", "org/name"]));
}

#[test]
fn a_hub_that_cannot_be_reached_is_named() {
    let home = Home::new();
    let why = said(&home, &["pull", "org/name"]);
    assert!(why.contains("cannot get the files of org/name: no connection to 127.0.0.1"), "{why}");
}

#[test]
fn speeds_are_written_in_the_shape_that_scripts_know() {
    let home = Home::new();
    let args = ["bench", "-m", "demo", "-p", "16", "-n", "4", "-d", "0,8", "-r", "2", "-o"];
    let run = |format| home.run(&[&args[..], &[format]].concat()).ok();
    let rows: Vec<Value> = serde_json::from_str(&run("json")).unwrap();
    let tests: Vec<(u64, u64, u64)> = rows
        .iter()
        .map(|r| ["n_prompt", "n_gen", "n_depth"].map(|k| r[k].as_u64().unwrap()))
        .map(|[p, n, d]| (p, n, d))
        .collect();
    assert_eq!(tests, [(16, 0, 0), (0, 4, 0), (16, 0, 8), (0, 4, 8)]);
    for row in &rows {
        let samples: Vec<f64> =
            row["samples_ts"].as_array().unwrap().iter().map(|x| x.as_f64().unwrap()).collect();
        let mean = samples.iter().sum::<f64>() / samples.len() as f64;
        assert_eq!(samples.len(), 2);
        assert!((row["avg_ts"].as_f64().unwrap() / mean - 1.0).abs() < 1e-9);
        for key in
            ["avg_ns", "stddev_ns", "stddev_ts", "model_size", "model_n_params", "read_gbs", "roofline"]
        {
            assert!(row[key].as_f64().is_some(), "{key}");
        }
    }
    assert_eq!(run("csv").lines().count(), 5);
    assert_eq!(run("jsonl").lines().count(), 4);
    let table = run("md");
    assert!(table.contains("| pp16 @ d8 |") || table.contains("pp16 @ d8 |"), "{table}");
    let side_by_side =
        ["bench", "-p", "7", "-n", "2", "-b", "4", "--sequences", "1,3", "-r", "1", "-o", "json"];
    let rows: Vec<Value> = serde_json::from_str(&home.run(&side_by_side).ok()).unwrap();
    let sequences: Vec<u64> = rows.iter().map(|r| r["n_sequences"].as_u64().unwrap()).collect();
    assert_eq!(sequences, [1, 1, 3, 3]);
    for row in &rows {
        // Tokens of all sequences are counted.
        let tokens = row["n_sequences"].as_u64().unwrap()
            * (row["n_prompt"].as_u64().unwrap() + row["n_gen"].as_u64().unwrap());
        let seconds = row["avg_ns"].as_f64().unwrap() / 1e9;
        assert!((row["avg_ts"].as_f64().unwrap() * seconds / tokens as f64 - 1.0).abs() < 1e-6, "{row}");
    }
    let pg = ["bench", "-p", "0", "-n", "0", "--pg", "8,4", "--ubatch-size", "4", "-r", "1", "-o", "sql"];
    let sql = home.run(&pg).ok();
    assert!(sql.starts_with("CREATE TABLE IF NOT EXISTS llama_bench (\n"), "{sql}");
    assert!(sql.contains("  n_ubatch INTEGER") && sql.contains("  avg_ts REAL"), "{sql}");
    assert_eq!(sql.matches("INSERT INTO llama_bench (").count(), 1);
    assert!(sql.contains("'llama 7.3M Q8_0'"), "{sql}");
    let table = home.run(&["bench", "-p", "8,16", "-n", "4", "--pg", "8,4", "-d", "0,100", "-r", "1"]).ok();
    let rows: Vec<&str> = table.lines().take_while(|line| !line.is_empty()).collect();
    let width = rows[0].chars().count();
    assert!(rows.len() == 10 && rows.iter().all(|row| row.chars().count() == width), "{table}");
    assert!(rows[2].starts_with("| llama 7.3M Q8_0 ") && rows[2].contains(" | "), "{table}");
    assert!(table.contains(" pp8+tg4 @ d100 |"), "{table}");
    let cells = rows[2..].iter().map(|row| row.split('|').nth_back(1).unwrap().trim());
    for cell in cells {
        let share = cell.strip_suffix(" %").map(|share| share.parse::<u32>().unwrap());
        assert!(cell == "in cache" || share.is_some(), "{table}");
    }
    assert_eq!(
        table.contains("| in cache |") || table.contains("    in cache |"),
        table.contains("\nin cache: "),
        "{table}"
    );
    home.run(&["bench", "-p", "4", "-n", "0", "-r", "1", "--flash-attn", "1", "--n-gpu-layers", "99"]).ok();
    let refused = [
        &["bench", "-p", "0", "-n", "0"][..],
        &["bench", "--flash-attn", "0"],
        &["bench", "--n-gpu-layers", "3"],
    ];
    insta::assert_snapshot!(refused.map(|args| home.run(args).failed()).concat(), @r"
    error: -p 0 and -n 0 leave nothing to measure: give a number of tokens to one of them
    error: --flash-attn 0: attention is always fused here, and cannot be switched off; leave the flag out
    error: --n-gpu-layers 3: there is no partial offload, and the model has 8 layers: 0 is for the CPU, 8 or more for a GPU
    ");
    assert!(home.run(&["bench", "--sequences", "0"]).failed().contains("counts from 1 on"));
    assert!(home.run(&["bench", "-d", "4096"]).failed().contains("the model's context is 1024"));
}

/// Random weights have the sizes of the model whose settings they are made from.
#[test]
fn a_model_that_is_not_here_is_measured_by_its_settings() {
    let home = Home::new();
    for name in ["llama", "qwen3-moe"] {
        let folder = golden(name);
        // Norms are kept in f32, as GGUF files keep them, and those of the goldens in two bytes.
        let real = Model::open(&folder).unwrap();
        let vectors = real.checkpoint.tensors().filter(|(_, stored)| stored.shape.len() == 1);
        let more = 2 * vectors.map(|(_, stored)| stored.len() as u64).sum::<u64>();
        let (folder, config) = (folder.to_str().unwrap(), folder.join("config.json"));
        let config = home.file(&format!("{name}/config.json"), std::fs::read(config).unwrap());
        let sizes = |model: &[&str]| -> Vec<[u64; 2]> {
            let how = ["--device", "cpu", "-p", "8", "-n", "2", "-r", "1", "-o", "json"];
            let rows = home.run(&[&["bench"], model, &how].concat()).ok();
            let rows: Vec<Value> = serde_json::from_str(&rows).unwrap();
            let size = |row: &Value| ["model_size", "model_n_params"].map(|key| row[key].as_u64().unwrap());
            rows.iter().map(size).collect()
        };
        for quant in [&[][..], &["--quant", "q8_0"]] {
            let (real, like) =
                (sizes(&[&[folder], quant].concat()), sizes(&[&["--like", &config], quant].concat()));
            assert!(
                real.len() == 2
                    && like == real.iter().map(|[size, count]| [size + more, *count]).collect::<Vec<_>>(),
                "{name} {quant:?}: {like:?}, not {real:?}"
            );
        }
    }
    let both = home.run(&["bench", "--like", "config.json", "demo"]);
    assert!(both.code == Some(2) && both.err.contains("cannot be used with"), "{both:?}");
    let none = home.run(&["bench", "--like", "config.json"]).failed();
    assert!(none.contains("config.json: there is no such file or folder"), "{none}");
}

/// What a stranger pastes into an issue: the machine, a table, and what stands out. Needs no model.
#[test]
fn bench_checks_the_machine() {
    let home = Home::new();
    let said = home.run(&["bench", "--self-check", "--device", "cpu", "-t", "1", "-r", "1"]).ok();
    assert!(said.starts_with("```\ntallow ") && said.ends_with("\n```\n"), "{said}");
    for format in ["Q4_K", "Q6_K", "Q8_0", "MXFP4", "BF16"] {
        let row = said.lines().find(|line| line.starts_with(&format!("{format} "))).expect(&said);
        let cells: Vec<&str> = row.split_whitespace().filter(|cell| *cell != "%").collect();
        assert_eq!(cells.len(), 7, "{row}");
        assert!(cells[1..].iter().all(|cell| cell.parse::<f64>().is_ok_and(|cell| cell > 0.0)), "{row}");
    }
    assert_eq!(said.matches(", 1 thread): reads ").count(), 1, "{said}");
    let both = home.run(&["bench", "--self-check", "-p", "8"]);
    assert!(both.code == Some(2) && both.err.contains("--n-prompt"), "{both:?}");
    assert!(home.run(&["bench", "--self-check", "-r", "0"]).failed().contains("counts from 1 on"));
}

/// The shares of the ops, and of what is outside of them, add up to the whole step.
#[test]
fn bench_says_where_the_time_of_a_step_goes() {
    let home = Home::new();
    let args =
        ["bench", "--explain", "--time", "-p", "9", "-n", "3", "-b", "4", "-r", "2", "--device", "cpu"];
    let text = home.run(&args).ok();
    assert!(text.contains("\npp9, 6 steps\n") && text.contains("\ntg3, 6 steps\n"), "{text}");
    for table in text.split("\n\n").skip(1) {
        let rows: Vec<&str> = table.lines().skip(2).collect();
        let share =
            |row: &&str| row.split_once(" %").unwrap().0.rsplit(' ').next().unwrap().parse::<f64>().unwrap();
        let (all, ops) = rows.split_last().unwrap();
        assert!(all.starts_with("all ") && share(all) == 100.0, "{text}");
        assert!((ops.iter().map(share).sum::<f64>() - 100.0).abs() < 0.1 * rows.len() as f64, "{text}");
        let ffn = ops.iter().find(|row| row.starts_with("ffn ")).unwrap();
        assert!(ffn.contains(" native ") && ffn.contains("        8 "), "{text}");
    }
    let alone = home.run(&["bench", "--time"]);
    assert!(alone.code == Some(2) && alone.err.contains("--explain"), "{alone:?}");
    let why = home.run(&["bench", "--explain", "--time", "-p", "0", "-n", "0"]).failed();
    assert!(why.contains("leave nothing to measure"), "{why}");
}
