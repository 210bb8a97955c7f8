//! One prompt and its answer: sources of the prompt, ends of an answer, and prompts that do not fit.

use tallow_support::golden;

use crate::common::written::Written;
use crate::common::{Did, Home};

/// Output before the answer's first word.
fn prompt_of(home: &Home, args: &[&str], input: &str) -> String {
    let args = [&["run", "demo", "--echo", "--seed", "7", "-n", "1"], args].concat();
    let Did { out, .. } = home.run_with(&args, input.as_bytes());
    out
}

#[test]
fn the_prompt_comes_from_everywhere_at_once() {
    let home = Home::new();
    home.file("notes.txt", "Of a king.\n");
    let begins = |args: &[&str], input: &str, prompt: &str| {
        let out = prompt_of(&home, args, input);
        assert!(out.starts_with(prompt), "{out:?}");
        out.len() - prompt.len()
    };
    begins(&["Summarise:"], "Notes about dragons.\n", "Notes about dragons.\n\nSummarise:");
    begins(&["-f", "notes.txt"], "", "Of a king.");
    begins(&["-f", "notes.txt", "Go", "on:"], "Dragons.", "Dragons.\n\nOf a king.\n\nGo on:");
    begins(&["-p", "Go on:"], "Dragons.", "Dragons.\n\nGo on:");
    begins(&["-"], "Dragons.", "Dragons.");
    // Without a prompt there is nothing to answer.
    let none = home.run(&["run", "demo"]).failed();
    assert_eq!(
        none,
        "error: the prompt is empty: give one behind the model, in a file (-f FILE) or through standard input\n"
    );
    let gone = home.run(&["run", "demo", "-f", "nothing.txt"]).failed();
    assert!(gone.contains("nothing.txt: "), "{gone}");
}

#[test]
fn an_answer_ends_at_a_stop_text() {
    let home = Home::new();
    let ask = ["run", "demo", "--seed", "7", "-n", "40", "Once upon a time"];
    let whole = home.run(&ask).ok();
    let stop = whole.split_whitespace().nth(6).unwrap();
    let cut = home.run(&[&ask[..], &["--stop", "never there", "--stop", stop]].concat()).ok();
    assert_eq!(cut.trim_end_matches('\n'), &whole[..whole.find(stop).unwrap()]);
    let empty = home.run(&[&ask[..], &["--stop", ""]].concat()).failed();
    assert!(empty.contains("--stop: the text is empty"), "{empty}");
}

#[test]
fn an_answer_that_is_cut_says_so() {
    let home = Home::new();
    let err = |args: &[&str]| home.run(&[&["run", "demo", "--seed", "7"], args].concat()).err;
    insta::assert_snapshot!(err(&["--raw", "The sea"]), @"(stopped: --max-tokens 256, the default for models without a chat template; --max-tokens N for more)");
    insta::assert_snapshot!(err(&["-c", "32", "-n", "100", "Once upon a time"]), @"(stopped: context full, 32 tokens; --context N makes room, up to 1024)");
    // With an explicit `-n` there is no note about the limit.
    assert_eq!(err(&["-n", "4", "Once upon a time"]), "");
}

#[test]
fn a_prompt_that_does_not_fit_says_what_to_do_and_nothing_before_it() {
    let home = Home::new();
    let Did { code, out, err } = home.run(&["run", "demo", "--echo", "-c", "16", &"word ".repeat(20)]);
    assert_eq!((code, out.as_str()), (Some(1), ""));
    insta::assert_snapshot!(err, @"error: the prompt has 25 tokens, and the context is 16. This model's own limit is 1024: give it room with --context 1024 (-c 1024)");
}

/// The context grows to fit a long prompt file.
#[test]
fn a_long_prompt_gets_the_context_that_it_needs() {
    let home = Home::new();
    let path = home.path().join("long.gguf");
    let path = path.to_str().unwrap();
    Written { context: 32_768, ..Written::SMALL }.to(path);
    let long = "w1 ".repeat(4000);
    let count = home.run_with(&["tokenize", path, "--ids"], long.as_bytes()).ok().matches(',').count();
    // More than the default context.
    assert!((8_192..30_000).contains(&count), "{count}");
    home.run_with(&["run", path, "-n", "2"], long.as_bytes()).ok();
    // An explicit context is kept.
    let refused = home.run_with(&["run", path, "-n", "2", "-c", "8192"], long.as_bytes()).failed();
    assert!(
        refused.contains(
            "and the context is 8192. This model's own limit is 32768: give it room with --context"
        ),
        "{refused}"
    );
    let refused = home.run_with(&["run", path, "-n", "2"], long.repeat(3).as_bytes()).failed();
    assert!(
        refused.contains("the context is 32768, which is this model's own limit: shorten the prompt"),
        "{refused}"
    );
}

/// A draft model changes no answer, and is refused where its tokens mean something else.
#[test]
fn a_draft_model_needs_the_same_vocabulary() {
    let home = Home::new();
    let ask = ["run", "demo", "--seed", "7", "-n", "40", "Once upon a time"];
    let plain = home.run(&ask).ok();
    assert_eq!(home.run(&[&ask[..], &["--draft", "demo"]].concat()).ok(), plain);
    let refused = |model: &str, draft: &str| {
        let err = home.run(&["run", model, "-n", "1", "--draft", draft, "A"]).failed();
        err.replace(draft, "DRAFT")
    };
    let file = |name: &str| golden(name).to_str().unwrap().to_owned();
    insta::assert_snapshot!(refused("demo", &file("gguf-models/llama-bf16.gguf")), @r#"error: draft model DRAFT: its vocabulary is another: token 0 is "<unk>", and "<|begin_of_text|>" in demo. Take a smaller model of the same family"#);
    insta::assert_snapshot!(refused("demo", "nothing.gguf"), @"error: draft model DRAFT: DRAFT: there is no such file or folder");
    let recurrent = file("gguf-models/qwen3.5-bf16.gguf");
    insta::assert_snapshot!(refused(&recurrent, &recurrent), @"error: draft model DRAFT: models with recurrent state do not draft for others; take one without, or leave --draft out");
}
