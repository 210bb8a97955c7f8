//! Tokenizers against their reference implementations on the same texts.

use std::path::Path;
use std::sync::{Arc, LazyLock};

use proptest::prelude::*;
use serde_json::Value;
use tallow_checkpoint::gguf::Gguf;
use tallow_checkpoint::map::Mapping;
use tallow_support::shared;
use tallow_text::tokenizer::{Around, Shown, Special, TokenizeError, Tokenizer, Written};

const BARE: Special = Special::BARE;
const FULL: Special = Special { around: Around::Added, written: Written::Parsed };

fn gguf(path: &Path) -> Tokenizer {
    let mapping = Arc::new(Mapping::open(path).unwrap());
    Tokenizer::from_gguf(&Gguf::parse(mapping).unwrap().meta).unwrap()
}

fn ids(value: &Value) -> Vec<u32> {
    value.as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect()
}

fn cases(path: &Path) -> Vec<Value> {
    tallow_support::json(path)["cases"].as_array().unwrap().clone()
}

const FOLDERS: [&str; 10] = [
    "tokenizer-bert",
    "tokenizer-clip",
    "tokenizer-llama2",
    "tokenizer-llama3",
    "tokenizer-mistral",
    "tokenizer-qwen2.5",
    "tokenizer-roberta",
    "tokenizer-t5",
    "tokenizer-whisper",
    "stories260K-hf",
];
const VOCABS: [&str; 5] = ["bert-bge", "gpt-2", "llama-spm", "qwen2", "starcoder"];

#[test]
fn folders_give_the_reference_ids_and_texts() {
    for name in FOLDERS {
        let (Some(folder), Some(tokenizer)) = (shared(name), one(name)) else { return };
        let golden = if name == "stories260K-hf" { "tokenizer-golden.json" } else { "golden.json" };
        let cases = cases(&folder.join(golden));
        assert!(cases.len() > 40);
        for case in cases {
            let text = case["text"].as_str().unwrap();
            // The reference parsed special tokens both times.
            let written = Written::Parsed;
            let bare = tokenizer.encode(text, Special { around: Around::Omitted, written }).unwrap();
            let full = tokenizer.encode(text, FULL).unwrap();
            assert_eq!(bare, ids(&case["ids"]), "{name}: {text:?}");
            assert_eq!(full, ids(&case["ids_with_special"]), "{name}: {text:?}");
            assert_eq!(tokenizer.decode(&bare, Shown::All), case["decoded"], "{name}: {text:?}");
            let shown = tokenizer.decode(&full, Shown::Text);
            assert_eq!(shown, case["decoded_skip_special"], "{name}: {text:?}");
        }
    }
}

#[test]
fn gguf_vocabularies_give_the_reference_ids() {
    for name in VOCABS {
        let (Some(folder), Some(tokenizer)) = (shared("gguf-vocab"), one(name)) else { return };
        // The reference (llama.cpp) does not apply NFC, which the model's own tokenizer does.
        let counts = |text: &str| name != "qwen2" || unicode_normalization::is_nfc(text);
        let cases = cases(&folder.join(format!("{name}.golden-A.json")));
        assert!(cases.len() > 40);
        for case in cases {
            let text = case["text"].as_str().unwrap();
            if !counts(text) {
                continue;
            }
            assert_eq!(tokenizer.encode(text, BARE).unwrap(), ids(&case["ids"]), "{name}: {text:?}");
            assert_eq!(tokenizer.encode(text, FULL).unwrap(), ids(&case["ids_special"]), "{name}: {text:?}");
        }
        let read =
            |ext| std::fs::read_to_string(folder.join(format!("ggml-vocab-{name}.gguf.{ext}"))).unwrap();
        let (texts, lines) = (read("inp"), read("out"));
        let texts: Vec<&str> = texts.split("\n__ggml_vocab_test__\n").collect();
        let lines: Vec<&str> = lines.lines().collect();
        assert_eq!(texts.len(), lines.len() + 1, "the last separator ends the file");
        for (text, line) in texts.iter().zip(lines).filter(|(text, _)| counts(text)) {
            let want: Vec<u32> = line.split_whitespace().map(|id| id.parse().unwrap()).collect();
            assert_eq!(tokenizer.encode(text, BARE).unwrap(), want, "{name}: {text:?}");
        }
    }
}

/// Every tokenizer that is available.
fn all() -> &'static [(&'static str, Tokenizer)] {
    static ALL: LazyLock<Vec<(&str, Tokenizer)>> = LazyLock::new(|| {
        let folder = |name| Some((name, Tokenizer::from_folder(&shared(name)?).unwrap()));
        let vocab = |name: &'static str| {
            let path = shared("gguf-vocab")?.join(format!("ggml-vocab-{name}.gguf"));
            Some((name, gguf(&path)))
        };
        FOLDERS.into_iter().map(folder).chain(VOCABS.into_iter().map(vocab)).flatten().collect()
    });
    &ALL
}

fn one(name: &str) -> Option<Tokenizer> {
    all().iter().find(|(n, _)| *n == name).map(|(_, tokenizer)| tokenizer.clone())
}

fn streamed(tokenizer: &Tokenizer, ids: &[u32], shown: Shown) -> String {
    let mut stream = tokenizer.stream(shown);
    let mut text = String::new();
    for id in ids {
        text.extend(stream.push(*id).map(str::to_owned));
    }
    text.extend(stream.finish().map(str::to_owned));
    text
}

/// Hard texts: word fragments, spaces, scripts, combining marks, and text that looks like special tokens.
fn texts() -> impl Strategy<Value = String> {
    let odd = prop::sample::select(vec![
        "'s",
        "don't",
        " ",
        "  ",
        "\n",
        "\r\n",
        " \n",
        "\t",
        "123",
        "1,000",
        "½",
        "٣",
        "é",
        "e\u{301}",
        "İ",
        "ß",
        "你好",
        "カナ",
        "안녕",
        "สวัสดี",
        "हैलो",
        "مرحبا",
        "🙂",
        "👨\u{200d}👩",
        "\u{a0}",
        "\u{2003}",
        "\u{3000}",
        "\0",
        "\u{7f}",
        "…",
        "$",
        "<",
        "_",
        "<s>",
        "</s>",
        "<|im_end|>",
        "<|endoftext|>",
        "[CLS]",
        "<0x0A>",
        "▁",
        "Ġ",
        "##",
        "\u{FFFD}",
        "\u{FDD0}",
    ]);
    let part = prop_oneof![
        4 => odd.prop_map(str::to_owned),
        2 => "[a-zA-Z]{1,8}",
        1 => prop::collection::vec(any::<char>(), 1..4).prop_map(String::from_iter),
    ];
    prop::collection::vec(part, 0..12).prop_map(|parts| parts.concat())
}

fn property(count: u32, test: impl Fn(&str, u64)) {
    let config = ProptestConfig { cases: count, failure_persistence: None, ..ProptestConfig::default() };
    let mut runner = proptest::test_runner::TestRunner::new_with_rng(
        config,
        proptest::test_runner::TestRng::deterministic_rng(proptest::test_runner::RngAlgorithm::ChaCha),
    );
    runner
        .run(&(texts(), any::<u64>()), |(text, seed)| {
            test(&text, seed);
            Ok(())
        })
        .unwrap();
}

#[test]
fn decoding_by_token_equals_decoding_at_once() {
    for (name, tokenizer) in all() {
        let size = tokenizer.vocab_size() as u64;
        property(200, |text, seed| {
            let mut random = seed;
            let mut any_ids = || {
                random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                ((random >> 33) % (size + 2)) as u32
            };
            let mut ids = tokenizer.encode(text, FULL).unwrap();
            ids.extend((0..12).map(|_| any_ids()));
            // Drop tokens, so that characters are cut in the middle.
            let cut: Vec<u32> =
                ids.iter().enumerate().filter(|(i, _)| i % 3 != 1).map(|(_, id)| *id).collect();
            for ids in [&ids, &cut] {
                for shown in [Shown::All, Shown::Text] {
                    assert_eq!(
                        streamed(tokenizer, ids, shown),
                        tokenizer.decode(ids, shown),
                        "{name} {ids:?}"
                    );
                }
            }
        });
    }
}

/// Streamed text of tokens that follow a prompt.
fn streamed_after(tokenizer: &Tokenizer, prompt: &[u32], ids: &[u32]) -> String {
    let mut stream = tokenizer.stream_after(prompt, Shown::Text);
    let mut text = String::new();
    for id in ids {
        text.extend(stream.push(*id).map(str::to_owned));
    }
    text.extend(stream.finish().map(str::to_owned));
    text
}

/// As in the reference, an answer's text is the text of prompt and answer tokens together, minus the prompt's.
#[test]
fn an_answer_has_the_text_that_it_adds_to_the_prompt() {
    type Case<'a> = (&'a str, &'a [u32], &'a [u32], &'a str);
    let cases: [Case<'_>; 14] = [
        ("stories260K-hf", &[1, 403], &[407, 261, 378], " upon a time"),
        ("stories260K-hf", &[1, 261, 13], &[430], "b"),
        ("stories260K-hf", &[1], &[403, 407], "Once upon"),
        ("tokenizer-llama2", &[1, 9038], &[2501, 263, 931], " upon a time"),
        ("tokenizer-llama2", &[1, 263, 13], &[29890], "b"),
        ("tokenizer-llama2", &[1, 796, 29920, 904], &[29871, 30919, 31076, 13, 921], " 你好\n x"),
        ("tokenizer-mistral", &[1, 5713], &[3714, 264, 727], " upon a time"),
        ("tokenizer-mistral", &[1, 1054, 28764, 1233], &[28705, 29383, 29530, 13, 1318], " 你好\n x"),
        ("tokenizer-qwen2.5", &[12522], &[5193, 264, 882], " upon a time"),
        ("tokenizer-qwen2.5", &[], &[5193], " upon"),
        ("tokenizer-t5", &[1447], &[1286, 3, 9, 97, 1], " upon a time"),
        ("tokenizer-t5", &[], &[1286, 1], "upon"),
        ("tokenizer-bert", &[101, 2320], &[2588, 1037, 2051, 102], " upon a time"),
        ("tokenizer-bert", &[101], &[2588, 102], "upon"),
    ];
    for (name, prompt, answer, want) in cases {
        let Some(tokenizer) = one(name) else { return };
        assert_eq!(streamed_after(&tokenizer, prompt, answer), want, "{name} {prompt:?}");
    }
}

#[test]
fn a_prompt_and_its_answer_have_the_text_of_both() {
    for (name, tokenizer) in all() {
        property(60, |text, seed| {
            // Twice, so that the prompt is longer than the context that streaming decodes with.
            let ids = tokenizer.encode(&[text, text].concat(), FULL).unwrap();
            let (prompt, answer) = ids.split_at(seed as usize % (ids.len() + 1));
            let (whole, before) =
                (tokenizer.decode(&ids, Shown::Text), tokenizer.decode(prompt, Shown::Text));
            let added = streamed_after(tokenizer, prompt, answer);
            match whole.strip_prefix(&before) {
                Some(after) => assert_eq!(added, after, "{name} {prompt:?} {answer:?}"),
                // A character or byte sequence was cut in two: what is complete by then belongs to the answer.
                None => assert!(whole.ends_with(&added), "{name} {prompt:?} {answer:?}"),
            }
        });
    }
}

#[test]
fn encoding_ends_where_more_tokens_than_wanted_are_certain() {
    for (name, tokenizer) in all() {
        property(60, |text, _| {
            let text = text.repeat(5);
            let ids = tokenizer.encode(&text, FULL).unwrap();
            for most in [0, ids.len() / 3, ids.len().saturating_sub(1), ids.len(), ids.len() + 1] {
                let within = tokenizer.encode_at_most(&text, FULL, most);
                match ids.len() <= most {
                    true => assert_eq!(within.as_ref(), Ok(&ids), "{name} {most} {text:?}"),
                    false => assert_eq!(within, Err(TokenizeError::TooMany { most }), "{name} {text:?}"),
                }
            }
        });
    }
    let said = TokenizeError::TooMany { most: 512 }.to_string();
    assert_eq!(said, "the text has more than 512 tokens");
}

#[test]
fn text_is_given_out_when_its_last_byte_is_there() {
    let Some(tokenizer) = one("qwen2") else { return };
    let ids = tokenizer.encode("a𒀀b", BARE).unwrap();
    let mut stream = tokenizer.stream(Shown::All);
    let given: Vec<Option<String>> = ids.iter().map(|id| stream.push(*id).map(str::to_owned)).collect();
    let last = given.iter().position(|text| text.as_deref().is_some_and(|t| t.contains('𒀀'))).unwrap();
    assert!(given[1..last].iter().all(Option::is_none), "{given:?}");
    assert_eq!(given.last().unwrap().as_deref(), Some("b"), "nothing waits for the end: {given:?}");
    // An incomplete character becomes one replacement character, at the end.
    let half = tokenizer.encode("𒀀", BARE).unwrap()[0];
    let mut stream = tokenizer.stream(Shown::All);
    assert_eq!(stream.push(half), None);
    assert_eq!(stream.finish(), Some("\u{FFFD}"));
}

#[test]
fn byte_level_vocabularies_lose_nothing() {
    for name in ["gpt-2", "qwen2", "tokenizer-llama3", "tokenizer-whisper", "tokenizer-roberta"] {
        let Some(tokenizer) = one(name) else { return };
        property(200, |text, _| {
            let ids = tokenizer.encode(text, BARE).unwrap();
            let composed: String = unicode_normalization::UnicodeNormalization::nfc(text).collect();
            let text = if name == "qwen2" { composed.as_str() } else { text };
            assert_eq!(tokenizer.decode(&ids, Shown::All), text, "{name}");
            let bytes: Vec<u8> = ids.iter().flat_map(|id| tokenizer.token_bytes(*id).unwrap()).collect();
            assert_eq!(bytes, text.as_bytes(), "{name}");
        });
    }
}

#[test]
fn one_vocabulary_in_two_files_gives_the_same() {
    for (in_gguf, in_folder) in [("qwen2", "tokenizer-qwen2.5"), ("llama-spm", "tokenizer-llama2")] {
        let (Some(a), Some(b)) = (one(in_gguf), one(in_folder)) else { return };
        property(400, |text, _| {
            // The GGUF file has more special tokens, and a literal space mark in the text is decoded as a space in the
            // other.
            if text.contains(['<', '▁']) {
                return;
            }
            let (ids, other) = (a.encode(text, BARE).unwrap(), b.encode(text, BARE).unwrap());
            assert_eq!(ids, other, "{text:?}");
            assert_eq!(a.decode(&ids, Shown::All), b.decode(&ids, Shown::All), "{text:?}");
        });
    }
}

/// File names on macOS are NFD. These GGUF files do not say that the tokenizer normalizes to NFC.
#[test]
fn decomposed_text_has_the_tokens_that_the_model_knows() {
    let (Some(in_gguf), Some(in_folder)) = (one("qwen2"), one("tokenizer-qwen2.5")) else { return };
    for text in [
        "cafe\u{301}",
        "Tie\u{302}\u{301}ng Vie\u{323}\u{302}t",
        "\u{1112}\u{1161}\u{11ab}\u{1100}\u{1173}\u{11af}",
    ] {
        let ids = in_gguf.encode(text, BARE).unwrap();
        assert_eq!(ids, in_folder.encode(text, BARE).unwrap(), "{text:?}");
        let composed: String = unicode_normalization::UnicodeNormalization::nfc(text).collect();
        assert_eq!(ids, in_gguf.encode(&composed, BARE).unwrap(), "{text:?}");
    }
}

#[test]
fn special_tokens_in_text_are_text_unless_parsed() {
    for name in ["qwen2", "tokenizer-qwen2.5"] {
        let Some(tokenizer) = one(name) else { return };
        let end = tokenizer.id_of("<|im_end|>").unwrap();
        let text = "hi<|im_end|>there";
        let plain = tokenizer.encode(text, BARE).unwrap();
        assert!(!plain.contains(&end) && plain.iter().all(|id| !tokenizer.is_special(*id)));
        assert_eq!(tokenizer.decode(&plain, Shown::Text), text);
        let parsed = tokenizer.encode(text, Special::RENDERED).unwrap();
        assert!(parsed.contains(&end) && tokenizer.is_special(end));
        assert_eq!(tokenizer.decode(&parsed, Shown::Text), "hithere");
    }
}

#[test]
fn shielded_text_is_text_within_a_rendered_chat() {
    for (name, tokenizer) in all() {
        let special = (0..tokenizer.vocab_size() as u32).filter(|id| tokenizer.is_special(*id));
        let special: Vec<String> =
            special.filter_map(|id| tokenizer.token_text(id)).take(5).map(str::to_owned).collect();
        let shielded = Special { around: Around::Omitted, written: Written::Shielded };
        property(60, |text, _| {
            let user = [text, &special.concat(), text].join("x");
            let ids = tokenizer.encode(&tokenizer.shield(&user), shielded).unwrap();
            let special = |id: &&u32| tokenizer.is_special(**id) && Some(**id) != unknown(tokenizer);
            assert_eq!(ids.iter().find(special), None, "{name} {user:?}");
            assert_eq!(ids, tokenizer.encode(&user, BARE).unwrap(), "{name} {user:?}");
        });
        // Special tokens around the shielded text are still parsed.
        let Some(first) = special.first() else { continue };
        let prompt = format!("{first}{}{first}", tokenizer.shield(first));
        let ids = tokenizer.encode(&prompt, shielded).unwrap();
        let count = ids.iter().filter(|id| tokenizer.token_text(**id) == Some(first)).count();
        assert_eq!(count, 2, "{name}");
    }
}

/// The unknown token is special in some vocabularies, and odd text is encoded as it.
fn unknown(tokenizer: &Tokenizer) -> Option<u32> {
    ["[UNK]", "<unk>", "<|endoftext|>"].iter().find_map(|text| tokenizer.id_of(text))
}

#[test]
fn tokens_with_a_meaning_are_known() {
    for (name, bos, eos, adds, ends) in [
        ("tokenizer-llama2", Some("<s>"), "</s>", true, &["</s>"][..]),
        (
            "tokenizer-llama3",
            Some("<|begin_of_text|>"),
            "<|eot_id|>",
            true,
            &["<|eot_id|>", "<|end_of_text|>"],
        ),
        ("tokenizer-mistral", Some("<s>"), "</s>", true, &["</s>"]),
        ("tokenizer-qwen2.5", None, "<|im_end|>", false, &["<|im_end|>", "<|endoftext|>"]),
        ("tokenizer-t5", None, "</s>", false, &["</s>"]),
        ("tokenizer-roberta", Some("<s>"), "</s>", true, &["</s>"]),
        ("tokenizer-whisper", Some("<|endoftext|>"), "<|endoftext|>", false, &["<|endoftext|>"]),
        ("llama-spm", Some("<s>"), "</s>", true, &["</s>"]),
        ("gpt-2", Some("<|endoftext|>"), "<|endoftext|>", false, &["<|endoftext|>"]),
        ("qwen2", Some("<|endoftext|>"), "<|endoftext|>", false, &["<|endoftext|>", "<|im_end|>"]),
    ] {
        let Some(tokenizer) = one(name) else { return };
        let id = |text: &str| tokenizer.id_of(text).unwrap_or_else(|| panic!("{name} {text}"));
        assert_eq!(tokenizer.bos(), bos.map(id), "{name}");
        assert_eq!(tokenizer.eos(), Some(id(eos)), "{name}");
        assert_eq!(tokenizer.adds_bos(), adds, "{name}");
        for end in ends {
            assert!(tokenizer.ends_generation(id(end)), "{name} {end}");
        }
        assert!(!tokenizer.ends_generation(id("a")), "{name}");
        assert!(tokenizer.clone().ending_with(&[id("a")]).ends_generation(id("a")), "{name}");
    }
    // `</s>` is ordinary text in that vocabulary, whatever it looks like.
    let Some(qwen2) = one("qwen2") else { return };
    assert!(!qwen2.ends_generation(qwen2.id_of("</s>").unwrap()));
}

#[test]
fn a_tokenizer_can_be_shared() {
    fn shared_between_threads<T: Send + Sync + Clone>() {}
    shared_between_threads::<Tokenizer>();
}

#[test]
fn a_text_of_ten_megabytes_is_encoded_and_a_longer_one_refused() {
    let Some(tokenizer) = one("tokenizer-qwen2.5") else { return };
    for text in ["to be or not to be, ".repeat(500_000), " ".repeat(10_000_000), "a".repeat(10_000_000)] {
        let ids = tokenizer.encode(&text, BARE).unwrap();
        assert_eq!(
            tokenizer.decode(&ids[..100], Shown::All),
            text[..tokenizer.decode(&ids[..100], Shown::All).len()]
        );
    }
    let longer = "a".repeat(tallow_text::tokenizer::MOST_TEXT + 1);
    let refused = tokenizer.encode(&longer, BARE).unwrap_err();
    assert!(matches!(refused, TokenizeError::TooLong { .. }));
    assert!(refused.to_string().contains("33554433 bytes"), "{refused}");
}

/// A text within the limit has the same tokens as without a limit; a longer one is counted, or found to be far too
/// long.
#[test]
fn a_limit_gives_the_same_tokens_or_none() {
    let long = |piece: &str| piece.repeat(3000);
    let mut samples: Vec<String> =
        ["", "a", "Hello world", "\u{110b}\u{1161}\u{11ab}e\u{301}", "  <s>  \n\n"].map(str::to_owned).into();
    samples.extend(["Once upon a time, ", "a", " ", "\n", "日本", "e\u{301}", "<s>", "1"].map(long));
    for (name, tokenizer) in all() {
        for text in &samples {
            for special in [BARE, FULL] {
                let whole = tokenizer.encode(text, special).unwrap();
                for most in [0, 1, 10, 100, 1000, whole.len().saturating_sub(1), whole.len(), whole.len() + 1]
                {
                    let shown: String = text.chars().take(20).collect();
                    match tokenizer.encode_up_to(text, special, most).unwrap() {
                        Some(tokens) => assert_eq!(tokens, whole, "{name}: {shown:?}, {most}"),
                        None => assert!(whole.len() > most, "{name}: {shown:?}, {most}"),
                    }
                }
            }
        }
    }
}

/// A far too long text costs no more than a text of the limit's length.
#[test]
fn a_text_that_is_far_too_long_is_not_tokenized() {
    for (name, tokenizer) in all() {
        for piece in ["a", "Once upon a time, "] {
            let text = piece.repeat((4 << 20) / piece.len());
            let begun = std::time::Instant::now();
            if tokenizer.encode(&text[..1 << 20], BARE).unwrap().len() <= 1024 {
                // One long unknown word: it fits.
                continue;
            }
            let quarter = begun.elapsed();
            let begun = std::time::Instant::now();
            assert_eq!(tokenizer.encode_up_to(&text, BARE, 1024).unwrap(), None, "{name}: {piece:?}");
            let limited = begun.elapsed();
            assert!(limited < quarter / 4, "{name}: {piece:?} took {limited:?}, a quarter of it {quarter:?}");
        }
    }
}
