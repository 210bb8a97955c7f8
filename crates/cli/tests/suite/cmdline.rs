//! The command line: help, option names, model names, the configuration file, and messages.

use crate::common::{Did, Home, did};
use tallow_support::root;

const COMMANDS: [&str; 23] = [
    "run",
    "serve",
    "ps",
    "stop",
    "pull",
    "search",
    "list",
    "rm",
    "show",
    "convert",
    "doctor",
    "bench",
    "embed",
    "rerank",
    "classify",
    "transcribe",
    "tokenize",
    "parse",
    "pack",
    "perplexity",
    "imatrix",
    "dump",
    "completions",
];

/// First line of the usage error for these arguments.
#[track_caller]
fn misused(home: &Home, args: &[&str]) -> String {
    let Did { code, err, .. } = home.run(args);
    assert_eq!(code, Some(2), "{args:?}: {err}");
    err.lines().next().unwrap_or_default().to_owned()
}

#[test]
fn short_help_has_an_option_on_one_line() {
    let home = Home::new();
    for command in COMMANDS {
        let help = home.run(&[command, "-h"]).ok();
        let mut in_options = false;
        for line in help.lines() {
            match line.chars().next() {
                None => in_options = false,
                Some(c) if c != ' ' => {
                    in_options =
                        line.ends_with("ptions:") || ["Engine:", "Sampling:", "Device:"].contains(&line)
                }
                Some(_) if in_options => {
                    assert!(
                        line.trim_start().starts_with('-'),
                        "{command}: {line:?} goes on from the line before"
                    );
                    assert!(line.chars().count() <= 100, "{command}: {line:?}");
                }
                Some(_) => {}
            }
        }
        assert!(help.contains("-h, --help"), "{help}");
        let long = home.run(&[command, "--help"]).ok();
        assert!(long.len() > help.len(), "{command} --help says no more than -h");
    }
}

#[test]
fn help_has_the_words_that_people_search_for() {
    let home = Home::new();
    for (command, words) in [
        (
            "run",
            &[
                "system prompt",
                "context",
                "KV cache",
                "greedy",
                "nucleus",
                "--temp,",
                "chat template",
                "LoRA",
                "TALLOW_TEMPERATURE",
                "cat notes.txt | tallow run",
            ][..],
        ),
        ("serve", &["API key", "CORS", "parallel", "curl "]),
        ("embed", &["embedding", "zero-shot", "Matryoshka"]),
        ("perplexity", &["chunk", "KV cache"]),
        ("imatrix", &["importance matrix", "--chunks"]),
        ("transcribe", &["Whisper", "subtitles", "segment"]),
        ("bench", &["prefill", "decode"]),
        ("tokenize", &["token ids", "BOS"]),
        ("parse", &["tool call", "reasoning", "stream"]),
    ] {
        let help = home.run(&[command, "--help"]).ok().to_lowercase();
        for word in words {
            assert!(help.contains(&word.to_lowercase()), "{word:?} is not in `tallow {command} --help`");
        }
    }
    let help = home.run(&["--help"]).ok();
    for word in [
        "Examples:",
        "Variables:",
        "HF_HUB_CACHE",
        "TALLOW_API_KEY",
        "Files:",
        "~/.config/tallow/config.toml",
        "uninstall",
        "https://github.com/",
    ] {
        assert!(help.contains(word), "{word:?} is not in `tallow --help`");
    }
}

#[test]
fn defaults_in_help_are_those_that_are_used() {
    let home = Home::new();
    let line = |command: &str, option: &str| {
        let help = home.run(&[command, "-h"]).ok();
        help.lines().find(|line| line.contains(option)).unwrap().to_owned()
    };
    for (option, chat, api) in [
        ("--temperature", "0.8", "1"),
        ("--top-k", "40", "0"),
        ("--top-p", "0.95", "1"),
        ("--min-p", "0.05", "0"),
    ] {
        assert!(line("run", option).ends_with(&format!("[default: {chat}]")), "{}", line("run", option));
        assert!(line("serve", option).ends_with(&format!("[default: {api}]")), "{}", line("serve", option));
    }
    // `doctor` shows the values that `run` uses.
    let shown = home.run(&["doctor", "demo"]).ok();
    for (name, value) in [("temperature", "0.8"), ("top-k", "40"), ("top-p", "0.95"), ("min-p", "0.05")] {
        let row = shown.lines().find(|line| line.trim_start().starts_with(name)).unwrap();
        assert_eq!(row.split_whitespace().nth(1), Some(value), "{row}");
    }
    assert!(shown.contains("(configuration file: none; it would be "), "{shown}");
}

#[test]
fn options_of_llama_cpp_mean_what_they_mean_there() {
    let home = Home::new();
    let ours = home
        .run(&[
            "run",
            "demo",
            "-c",
            "512",
            "-n",
            "6",
            "--temperature",
            "0",
            "--repetition-penalty",
            "1.1",
            "Once",
        ])
        .ok();
    let theirs: [&[&str]; 3] = [
        &[
            "run",
            "-m",
            "demo",
            "--ctx-size",
            "512",
            "--n-predict",
            "6",
            "--temp",
            "0",
            "--repeat-penalty",
            "1.1",
            "-p",
            "Once",
        ],
        &[
            "run",
            "--model",
            "demo",
            "--ctx",
            "512",
            "-n",
            "6",
            "--temp=0",
            "--repeat-penalty",
            "1.1",
            "--prompt",
            "Once",
        ],
        &[
            "run",
            "-hf",
            "demo",
            "-c",
            "512",
            "--predict",
            "6",
            "--temp",
            "0",
            "--repeat-penalty",
            "1.1",
            "-s",
            "-1",
            "Once",
        ],
    ];
    for args in theirs {
        assert_eq!(home.run(args).ok(), ours, "{args:?}");
    }
    // Settings that have no effect are noted once and ignored.
    let Did { code, out, err } = home.run(&[
        "run",
        "demo",
        "-ngl",
        "99",
        "--jinja",
        "-fa",
        "on",
        "-ctk",
        "f16",
        "-b",
        "64",
        "-c",
        "512",
        "-n",
        "6",
        "--temp",
        "0",
        "--repeat-penalty",
        "1.1",
        "Once",
    ]);
    assert_eq!((code, out), (Some(0), ours), "{err}");
    insta::assert_snapshot!(err, @r"
    note: -ngl is not needed: a model runs on one device, whole; --device says which (cpu, vulkan, metal, cuda)
    note: --jinja is not needed: the model's chat template is always used; --raw leaves it out
    note: -fa is not needed: attention is always computed that way
    ");
    // A stop string ends an answer and is not part of it.
    let args = ["run", "demo", "-n", "60", "--temp", "0", "Once upon a time"];
    let whole = home.run(&args).ok();
    let word = whole.split_whitespace().nth(9).unwrap();
    let cut = home.run(&[&args[..], &["--stop", word]].concat()).ok();
    assert!(whole.starts_with(cut.trim_end()) && !cut["Once upon a time".len()..].contains(word), "{cut:?}");
    assert_eq!(home.run(&[&args[..], &["-r", word]].concat()).ok(), cut);
    // The prompt can be a file.
    let file = home.file("prompt.txt", "Once upon a time");
    assert_eq!(home.run(&["run", "demo", "-n", "60", "--temp", "0", "-f", &file]).ok(), whole);
    assert_eq!(
        home.run(&["run", "demo", "-f", "no.txt"]).failed(),
        "error: no.txt: there is no such file or folder\n"
    );
}

#[test]
fn options_that_are_not_there_are_refused_with_what_is() {
    let home = Home::new();
    let tried: [&[&str]; 13] = [
        &["run", "demo", "--format", "json"],
        &["run", "demo", "--parallel", "4"],
        &["run", "demo", "--mmproj", "x.gguf"],
        &["run", "demo", "--draft-max", "8"],
        &["run", "demo", "--mirostat", "2"],
        &["run", "demo", "--main-gpu", "1"],
        &["serve", "demo", "--api-key", "x"],
        &["run", "demo", "--no-such-thing"],
        &["run", "demo", "--temprature", "1"],
        &["run", "demo", "-n", "many"],
        &["run", "demo", "--temp", ""],
        &["run", "demo", "--seed", "-2"],
        &["serve", "demo", "--port", "99999"],
    ];
    let mut text = String::new();
    for args in tried {
        let Did { code, err, .. } = home.run(args);
        assert_eq!(code, Some(2), "{args:?}: {err}");
        let said = err
            .lines()
            .take_while(|line| !line.starts_with("Usage"))
            .filter(|line| !line.is_empty() && !line.starts_with("For more"));
        text += &format!("{}\n", args.join(" "));
        said.for_each(|line| text += &format!("  {}\n", line.trim()));
    }
    insta::assert_snapshot!(text);
}

#[test]
fn every_command_takes_its_model_by_place_and_by_name() {
    let home = Home::new();
    let text = home.file("text.txt", "Once upon a time there was a king.".repeat(20));
    let both: [(&[&str], &[&str]); 5] = [
        (&["show", "demo"], &["show", "-m", "demo"]),
        (&["tokenize", "demo", "Hello"], &["tokenize", "Hello", "--model", "demo"]),
        (
            &["perplexity", "demo", &text, "-c", "64"],
            &["perplexity", "-m", "demo", &text, "--ctx-size", "64"],
        ),
        (&["tokenize", "demo", "--decode", "5"], &["tokenize", "-m", "demo", "-d", "5"]),
        (&["run", "demo", "-n", "3", "--temp", "0", "a"], &["run", "-n", "3", "--temp", "0", "-m=demo", "a"]),
    ];
    for (place, named) in both {
        assert_eq!(home.run(place).ok(), home.run(named).ok(), "{named:?}");
    }
    let speed = home.run(&["bench", "demo", "-p", "8", "-n", "0", "-r", "1", "-o", "jsonl"]).ok();
    assert_eq!(speed.lines().count(), 1);
    for args in [
        &["show", "demo", "-m", "demo"][..],
        &["run", "-m", "demo", "-m", "other"],
        &["run", "demo", "-m", "other", "Hi"],
    ] {
        let why = misused(&home, args);
        assert!(why.contains("the model is named twice, as "), "{why}");
    }
    // Arguments that are not a model's name are the prompt.
    assert!(home.run(&["run", "two words", "-m", "demo", "-n", "1", "--echo"]).ok().starts_with("two words"));
    for command in COMMANDS.iter().filter(|c| !["ps", "search", "list", "parse", "completions"].contains(c)) {
        assert!(home.run(&[command, "-h"]).ok().contains("-m, --model <MODEL>"), "{command}");
    }
}

#[test]
fn a_model_in_place_of_a_command_is_understood() {
    let home = Home::new();
    let said = |word: &str| home.run(&[word]).err;
    assert!(said("demo").contains("tip: to chat with a model: tallow run demo"), "{}", said("demo"));
    assert!(said("llama3.2").contains("tallow run llama3.2"));
    assert_eq!(home.run(&["ls"]).ok(), home.run(&["list"]).ok());
}

#[test]
fn names_of_models_are_taken_as_people_have_them() {
    let home = Home::new();
    // No hub answers in these tests; the error shows what would be requested.
    let asked = |name: &str| {
        let why = home.run(&["pull", name]).failed();
        let about = why.split("the files of ").nth(1).unwrap_or_else(|| panic!("{name}: {why}"));
        about.split(':').next().unwrap().to_owned()
    };
    for (name, repo) in [
        ("hf.co/Qwen/Qwen3-4B-GGUF", "Qwen/Qwen3-4B-GGUF"),
        ("https://huggingface.co/Qwen/Qwen3-4B-GGUF/blob/main/Qwen3-4B-Q8_0.gguf", "Qwen/Qwen3-4B-GGUF"),
        ("gemma3:4b", "ggml-org/gemma-3-4b-it-GGUF"),
        ("gpt-oss:20b", "ggml-org/gpt-oss-20b-GGUF"),
        ("llama3", "bartowski/Meta-Llama-3-8B-Instruct-GGUF"),
        ("deepseek-r1:7b-qwen-distill-q4_K_M", ""),
    ] {
        match repo {
            "" => assert!(home.run(&["pull", name]).failed().contains("there are deepseek-r1:8b")),
            repo => assert_eq!(asked(name), repo),
        }
    }
    assert_eq!(
        home.run(&["run", "--offline", "hf.co/org/name:Q8_0", "Hi"]).failed(),
        "error: hf.co/org/name:Q8_0 is not on this machine, and --offline is given: leave it out to download models. `tallow list` shows what is here\n"
    );
    let why = home.run(&["pull", "https://example.com/org/name"]).failed();
    assert!(why.contains("only those at huggingface.co are models"), "{why}");
    let why = home.run(&["pull", "demo"]).ok();
    assert!(why.contains("demo is part of the program"), "{why}");
}

#[test]
fn models_are_found_by_a_word() {
    let home = Home::new();
    insta::assert_snapshot!(home.run(&["search", "GPT-oss", "--offline"]).ok(), @r"
    NAME                             SIZE  MODEL
    gpt-oss:20b                   12.1 GB  ggml-org/gpt-oss-20b-GGUF
    gpt-oss:120b                  63.4 GB  ggml-org/gpt-oss-120b-GGUF

    Sizes are about what is downloaded. A quantization may follow a name, as in qwen3:4b:Q8_0. Every other model of the
    hub is named as org/name or org/name:QUANT; `tallow pull NAME` says whether it can be run.
    ");
    // An unreachable hub does not hide the local results.
    let out = home.run(&["search", "qwen3"]).ok();
    assert!(out.contains("Qwen/Qwen3-4B-GGUF") && out.contains("the hub was not searched: "), "{out}");
    assert!(home.run(&["search", "zzz", "--offline"]).ok().starts_with("no short name contains \"zzz\""));
    let json: serde_json::Value =
        serde_json::from_str(&home.run(&["search", "phi4-mini", "--json", "--offline"]).ok()).unwrap();
    assert_eq!(json["short_names"][0]["name"], "phi4-mini:3.8b");
    assert!(home.run(&["list", "--aliases"]).ok().contains("nomic-embed-text"));
}

#[test]
fn files_are_what_they_begin_with() {
    let home = Home::new();
    let demo = std::fs::read(root().join("assets/demo.gguf")).unwrap();
    home.file("model.bin", &demo);
    let want = home.run(&["run", "demo", "-n", "4", "--temp", "0", "Once"]).ok();
    assert_eq!(home.run(&["run", "model.bin", "-n", "4", "--temp", "0", "Once"]).ok(), want);
    for name in ["a.gguf", "b.gguf", "c.gguf"] {
        home.file(&format!("several/{name}"), b"GGUF");
    }
    let why = home.run(&["show", "several"]).failed();
    assert!(why.contains("holds 3 GGUF models; name one of them: a.gguf, b.gguf, c.gguf"), "{why}");
    // A file in place of a folder: the path exists but cannot be read.
    let why = home.run(&["show", "./model.bin/x.gguf"]).failed();
    assert!(!why.contains("there is no such file"), "{why}");
}

#[test]
fn a_model_that_others_use_is_removed_only_with_consent() {
    let home = Home::new();
    home.caches("name");
    assert!(home.run(&["list"]).ok().contains("org/name:Q8_0"));
    let why = home.run(&["rm", "org/name"]).failed();
    assert!(why.contains("org/name:Q8_0 (") && why.contains("--yes"), "{why}");
    assert!(home.run(&["list"]).ok().contains("org/name:Q8_0"));
    let out = home.run(&["rm", "org/name", "--yes"]).ok();
    assert!(out.starts_with("removed 1 file, "), "{out}");
    assert!(!home.run(&["list"]).ok().contains("org/name"));
    assert!(home.run(&["rm", "demo"]).failed().contains("part of the program"));
}

#[test]
fn the_configuration_file_names_models_and_has_settings_of_each() {
    let home = Home::new();
    home.caches("name");
    home.file(
        ".config/tallow/config.toml",
        r#"
model = "mine"
top-k = 7

[models."mine"]
model = "org/name:Q8_0"
top-k = 3
temperature = 0

[models."org/name"]
top-k = 5
"#,
    );
    let row = |args: &[&str], name: &str| {
        let out = home.run(args).ok().replace(home.path().to_str().unwrap(), "~");
        let row = out.lines().find(|line| line.trim_start().starts_with(name)).unwrap().to_owned();
        row.split_whitespace().skip(1).collect::<Vec<_>>().join(" ")
    };
    assert_eq!(row(&["doctor"], "top-k"), "7 ~/.config/tallow/config.toml");
    assert_eq!(row(&["doctor", "mine"], "top-k"), "3 ~/.config/tallow/config.toml [models.\"mine\"]");
    assert_eq!(row(&["doctor", "org/name"], "top-k"), "5 ~/.config/tallow/config.toml [models.\"org/name\"]");
    assert_eq!(
        row(&["doctor", "https://huggingface.co/org/name"], "top-k"),
        "5 ~/.config/tallow/config.toml [models.\"org/name\"]"
    );
    assert_eq!(row(&["doctor", "demo", "--top-k", "9"], "top-k"), "9 the command line");
    // A user-defined alias works wherever a model is named, and as the default model.
    assert!(home.run(&["show", "mine"]).ok().contains("m-Q8_0.gguf"));
    assert!(home.run_with(&["run", "-n", "3", "--echo"], b"Once").ok().starts_with("Once"));
    let mut other = home.command(&["run", "-n", "3"]);
    other.env("TALLOW_MODEL", "no/such/model");
    assert!(did(other, b"Once").failed().contains("no/such/model: there is no such file or folder"));
    // Lists, and invalid values.
    home.file(".config/tallow/config.toml", "lora = [\"one\", \"two\"]\n");
    assert!(home.run(&["run", "demo", "Hi"]).failed().contains("lora names several adapters"));
    for (file, why) in [
        ("[models.\"x\"]\ntopk = 3\n", "[models.\"x\"] there is no setting \"topk\""),
        ("[models]\nx = 3\n", "[models.\"x\"] is no table"),
        ("context = \"abc\"\n", "context is \"abc\": a whole number from 0 up is expected"),
        ("temperature = [1]\n", "temperature is [1]: one value is expected"),
        ("top-k = -3\n", "top-k is -3: a whole number from 0 up is expected"),
        ("offline = \"perhaps\"\n", "offline is \"perhaps\": true or false is expected"),
    ] {
        home.file(".config/tallow/config.toml", file);
        let said = home.run(&["doctor"]).failed();
        assert!(said.contains(why), "{said}");
    }
}

#[test]
fn values_that_come_to_nothing_are_refused() {
    let home = Home::new();
    let why = home.run(&["tokenize", "demo", "-d", "99999999"]).failed();
    assert_eq!(why, "error: there is no token 99999999: the model has 4099 tokens, from 0 on\n");
    let why = home.run(&["bench", "-p", "0", "-n", "0"]).failed();
    assert!(why.contains("leave nothing to measure"), "{why}");
}

#[test]
fn what_users_install_has_no_line_tables() {
    let read = |name: &str| std::fs::read_to_string(root().join(name)).unwrap();
    let manifest: toml::Table = read("Cargo.toml").parse().unwrap();
    assert_eq!(manifest["profile"]["dist"]["strip"].as_str(), Some("debuginfo"));
    let readme = read("README.md");
    let install = readme.lines().find(|line| line.starts_with("cargo install")).unwrap();
    assert!(install.contains("--profile dist"), "{install}");
    // The package's metadata: repository and toolchain.
    let package = &manifest["workspace"]["package"];
    for fact in ["repository", "rust-version"] {
        let fact = package[fact].as_str().unwrap();
        assert!(readme.contains(fact), "{fact} is not in README.md");
    }
}

#[test]
fn what_keeps_the_hub_from_being_asked_is_named() {
    let home = Home::new();
    let said = |variables: &[(&str, &str)], args: &[&str]| {
        let mut command = home.command(args);
        command.envs(variables.iter().copied());
        String::from_utf8(command.output().unwrap().stderr).unwrap()
    };
    let pull = ["pull", "org/name"];
    for (variables, why) in [
        (&[("HF_HUB_OFFLINE", "1")][..], "HF_HUB_OFFLINE is set: unset it to download models"),
        (&[("TALLOW_OFFLINE", "true")], "TALLOW_OFFLINE is set: unset it to download models"),
    ] {
        assert_eq!(said(variables, &pull), format!("error: {why}\n"));
        let run = said(variables, &["run", "org/name", "Hi"]);
        assert_eq!(
            run,
            format!("error: org/name is not on this machine, and {why}. `tallow list` shows what is here\n")
        );
    }
    let said_of_endpoint = said(&[("HF_ENDPOINT", "notaurl")], &pull);
    assert_eq!(
        said_of_endpoint,
        "error: HF_ENDPOINT (\"notaurl\") cannot be used: it must begin with https:// or http:// and name a host\n"
    );
    let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    for (variable, scheme) in [("HTTPS_PROXY", "http"), ("ALL_PROXY", "socks5")] {
        let why = said(&[(variable, &format!("{scheme}://{closed}"))], &pull);
        let want = format!("no connection to the proxy {scheme}://{closed} ({variable})");
        assert!(why.contains(&want) && why.contains("Nothing was downloaded"), "{why}");
    }
    home.file(".config/tallow/config.toml", "offline = true\n");
    assert!(
        said(&[], &pull).starts_with("error: the configuration file says `offline = true`: take that out")
    );
}
