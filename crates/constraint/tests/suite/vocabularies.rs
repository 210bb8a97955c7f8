//! Each family of tokenizers.

use tallow_constraint::{Grammar, check_instance};
use tallow_text::tokenizer::{Special, Tokenizer};

use crate::{compiler, schema};

fn has(mask: &[u32], token: u32) -> bool {
    mask[token as usize / 32] >> (token % 32) & 1 == 1
}

fn family(name: &str, space_first: bool) {
    let (Some(compiler), Some(folder)) = (compiler(name), tallow_support::shared(name)) else { return };
    let tokenizer = Tokenizer::from_folder(&folder).unwrap();
    let compiled = compiler.compile(&Grammar::JsonObject).unwrap();
    assert_eq!(compiled.space_first(), space_first, "{name}");
    assert_eq!(compiled.vocabulary().size(), tokenizer.vocab_size());
    let mut matcher = compiled.matcher();
    let mask = matcher.mask().unwrap().to_vec();
    assert_eq!(mask.len(), tokenizer.vocab_size().div_ceil(32));
    let first = tokenizer.encode("{", Special::BARE).unwrap()[0];
    assert!(has(&mask, first), "{name}: the first token of a text");
    assert!(has(&mask, tokenizer.id_of("{").unwrap()), "{name}");
    for token in 0..tokenizer.vocab_size() as u32 {
        if has(&mask, token) {
            let bytes = tokenizer.token_bytes(token).unwrap();
            let text = bytes.trim_ascii_start();
            assert!(text.is_empty() || text[0] == b'{', "{name}: {token} {bytes:?}");
            assert!(!tokenizer.is_special(token), "{name}: {token}");
        }
    }
    let value = r#"{"name": "Zoë 😀 \"x\"", "list": [1, -2.5e3, true, null], "nested": {"a": "b\n"}}"#;
    check_instance(&compiled, value).unwrap_or_else(|e| panic!("{name}: {e}"));
    let choice = compiler.compile(&Grammar::Choice(vec!["yes".into(), "no".into()])).unwrap();
    check_instance(&choice, "yes").unwrap_or_else(|e| panic!("{name}: {e}"));
    // The text of a special token is text, and never the token.
    let end = tokenizer.ends().next().unwrap();
    let text = tokenizer.token_text(end).unwrap().to_owned();
    let special = compiler.compile(&Grammar::Choice(vec![text])).unwrap();
    let mut matcher = special.matcher();
    assert!(!has(matcher.mask().unwrap(), end), "{name}");
    // All ends are allowed where the text may end, and none before.
    let number = compiler.compile(&Grammar::Regex("[0-9]+".into())).unwrap();
    let mut matcher = number.matcher();
    assert!(tokenizer.ends().all(|end| !has(matcher.mask().unwrap(), end)));
    matcher.accept(*tokenizer.encode("7", Special::BARE).unwrap().last().unwrap()).unwrap();
    assert!(tokenizer.ends().all(|end| has(matcher.mask().unwrap(), end)), "{name}");
}

#[test]
fn llama2() {
    family("tokenizer-llama2", true);
}

#[test]
fn mistral() {
    family("tokenizer-mistral", true);
}

#[test]
fn llama3() {
    family("tokenizer-llama3", false);
}

#[test]
fn qwen() {
    family("tokenizer-qwen2.5", false);
}

#[test]
fn what_must_come_is_forced_as_the_tokenizer_cuts_it() {
    let (Some(compiler), Some(folder)) =
        (compiler("tokenizer-llama3"), tallow_support::shared("tokenizer-llama3"))
    else {
        return;
    };
    let tokenizer = Tokenizer::from_folder(&folder).unwrap();
    let grammar = schema(serde_json::json!({"const": "an answer that must come"}));
    let compiled = compiler.compile(&grammar).unwrap();
    let mut matcher = compiled.matcher();
    let forced = matcher.forced().unwrap();
    let whole = tokenizer.encode("\"an answer that must come\"", Special::BARE).unwrap();
    assert!(forced.len() >= 4 && whole.starts_with(&forced), "{forced:?} {whole:?}");
    for token in forced {
        assert!(has(matcher.mask().unwrap(), token));
        matcher.accept(token).unwrap();
    }
}
