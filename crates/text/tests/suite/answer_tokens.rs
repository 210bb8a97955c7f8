//! Tokens of answers that are used again: the text never changes, and as many are kept as can be.

use std::path::Path;
use std::sync::Arc;

use proptest::prelude::*;
use proptest::test_runner::{RngAlgorithm, TestRng, TestRunner};
use serde_json::{Value, json};
use tallow_text::answer_tokens::{AnswerTokens, Reused, longest_prompt};
use tallow_text::tokenizer::Tokenizer;

/// Letters of the texts: few, so that tokens overlap in many ways, and two that are parts of characters.
const LETTERS: [u8; 4] = [b'a', b'b', 0xC3, 0xA9];
/// Special tokens, and one that is added without being special.
const ADDED: [&str; 3] = ["<s>", "<end>", "ab"];
const WORDS: u32 = 1000;

/// The character for a byte in byte-level vocabularies.
fn byte_character(byte: u8) -> char {
    let is_plain = |b: u8| matches!(b, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff);
    let odd = (0..byte).filter(|b| !is_plain(*b)).count() as u32;
    if is_plain(byte) { byte.into() } else { char::from_u32(256 + odd).unwrap() }
}

fn tokenizer_of(vocab: &Value, added: &[(u32, &str, bool)], decoder: &Value) -> Tokenizer {
    let added = added.iter().map(|(id, content, special)| {
        json!({"id": id, "content": content, "special": special, "normalized": false, "single_word": false,
               "lstrip": false, "rstrip": false})
    });
    let file = json!({
        "version": "1.0", "added_tokens": added.collect::<Vec<_>>(), "normalizer": null, "pre_tokenizer": null,
        "post_processor": null, "decoder": decoder,
        "model": {"type": "BPE", "vocab": vocab, "merges": [], "unk_token": "<unk>"}
    });
    Tokenizer::from_json(Path::new("tokenizer.json"), file.to_string().as_bytes(), None).unwrap()
}

/// A byte-level vocabulary of the bytes, of `words`, whose ids begin at 1000, and of the [`ADDED`], whose ids come first.
struct Vocabulary {
    words: Vec<Vec<u8>>,
    tokenizer: Tokenizer,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Symbol {
    Byte(u8),
    Added(u32),
}

fn byte_id(byte: u8) -> u32 {
    100 + u32::from(byte)
}

impl Vocabulary {
    fn new(mut words: Vec<Vec<u8>>) -> Vocabulary {
        words.sort();
        words.dedup();
        let written = |word: &[u8]| word.iter().map(|b| byte_character(*b)).collect::<String>();
        // No text is tokenized here, so it does not matter that `ab` is an added token and a word.
        words.retain(|word| word.len() > 1 && word != b"ab");
        let bytes = (0..=255).map(|b| (written(&[b]), Value::from(byte_id(b))));
        let of_words = words.iter().zip(WORDS..).map(|(word, id)| (written(word), Value::from(id)));
        let vocab: serde_json::Map<_, _> =
            bytes.chain(of_words).chain([("<unk>".to_owned(), 50.into())]).collect();
        let added: Vec<_> = (0..).zip(ADDED).map(|(id, content)| (id, content, id < 2)).collect();
        let tokenizer = tokenizer_of(&vocab.into(), &added, &json!({"type": "ByteLevel"}));
        Vocabulary { words, tokenizer }
    }

    fn bytes(&self, id: u32) -> Option<Vec<u8>> {
        match id {
            WORDS.. => self.words.get((id - WORDS) as usize).cloned(),
            100.. => Some(vec![(id - 100) as u8]),
            _ => None,
        }
    }

    fn symbols(&self, ids: &[u32]) -> Vec<Symbol> {
        let of = |id: &u32| match self.bytes(*id) {
            Some(bytes) => bytes.into_iter().map(Symbol::Byte).collect(),
            None => vec![Symbol::Added(*id)],
        };
        ids.iter().flat_map(of).collect()
    }

    /// The symbols as tokens. Of the tokens that could be next, `choose` takes one.
    fn divide(&self, mut symbols: &[Symbol], mut choose: impl FnMut(usize) -> usize) -> Vec<u32> {
        let mut ids = Vec::new();
        while let Some(first) = symbols.first() {
            let next = |id: &u32| symbols.starts_with(&self.symbols(&[*id]));
            let mut could: Vec<u32> = match first {
                Symbol::Added(id) => vec![*id],
                Symbol::Byte(byte) => {
                    let words = (WORDS..).take(self.words.len()).filter(next);
                    std::iter::once(byte_id(*byte)).chain(words).collect()
                }
            };
            could.sort_by_key(|id| self.symbols(&[*id]).len());
            let id = could[choose(could.len())];
            ids.push(id);
            symbols = &symbols[self.symbols(&[id]).len()..];
        }
        ids
    }

    /// The definition of [`Tokenizer::same_text`].
    fn same_text(&self, a: &[u32], b: &[u32]) -> (usize, usize) {
        let all = (0..=a.len()).flat_map(|n| (0..=b.len()).map(move |m| (n, m)));
        let same = |(n, m): &(usize, usize)| self.symbols(&a[..*n]) == self.symbols(&b[..*m]);
        all.filter(same).max().unwrap()
    }
}

fn vocabularies() -> impl Strategy<Value = Vec<Vec<u8>>> {
    let word = prop::collection::vec(prop::sample::select(LETTERS.to_vec()), 2..5);
    prop::collection::vec(word, 0..12)
}

fn texts(most: usize) -> impl Strategy<Value = Vec<Symbol>> {
    let byte = prop::sample::select(LETTERS.to_vec()).prop_map(Symbol::Byte);
    prop::collection::vec(prop_oneof![12 => byte, 1 => (0..3u32).prop_map(Symbol::Added)], 0..most)
}

fn property<S: Strategy>(cases: u32, given: &S, test: impl Fn(S::Value)) {
    let config = ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() };
    let rng = TestRng::deterministic_rng(RngAlgorithm::ChaCha);
    let ran = TestRunner::new_with_rng(config, rng).run(given, |value| {
        test(value);
        Ok(())
    });
    ran.unwrap();
}

/// Pseudo-random choices.
fn choices(mut seed: u64) -> impl FnMut(usize) -> usize {
    move |n| {
        seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (seed >> 33) as usize % n
    }
}

#[test]
fn the_longest_beginnings_with_the_same_text_are_found() {
    let given = (vocabularies(), texts(20), texts(8), texts(8), any::<u64>());
    property(3000, &given, |(words, text, of_a, of_b, seed)| {
        let (vocabulary, mut choose) = (Vocabulary::new(words), choices(seed));
        let a = vocabulary.divide(&[&*text, &of_a].concat(), &mut choose);
        let b = vocabulary.divide(&[&*text, &of_b].concat(), &mut choose);
        let same = vocabulary.tokenizer.same_text(a.iter().copied(), b.iter().copied());
        assert_eq!(same, vocabulary.same_text(&a, &b), "{a:?} {b:?}");
    });
}

fn reuse(answers: &Arc<AnswerTokens>, vocabulary: &Vocabulary, ids: &[u32], answer: &[u32]) -> Vec<u32> {
    let Reused { ids, mut record, .. } = answers.reuse("", ids.to_vec(), usize::MAX, &vocabulary.tokenizer);
    answer.iter().for_each(|id| record.push(*id));
    ids
}

#[test]
fn a_prompt_keeps_its_text_and_begins_with_what_was_generated() {
    let given = (vocabularies(), texts(30), texts(20), texts(12), any::<u64>());
    property(3000, &given, |(words, prompt, answer, more, seed)| {
        let (vocabulary, mut choose) = (Vocabulary::new(words), choices(seed));
        let answers = Arc::default();
        // As tokenizers do it: what is before a place does not depend on what comes much later.
        let greedy = |text: &[Symbol]| vocabulary.divide(text, |n| n - 1);
        let first = greedy(&prompt);
        let answered = vocabulary.divide(&answer, &mut choose);
        assert_eq!(reuse(&answers, &vocabulary, &first, &answered), first);
        // What the client sends back may be shorter than the answer, or go on in another way.
        let text = [&*prompt, &answer[..choose(answer.len() + 1)], &more].concat();
        let given = greedy(&text);
        let ids = reuse(&answers, &vocabulary, &given, &[]);
        assert_eq!(vocabulary.symbols(&ids), text);
        let at = first.len().saturating_sub(8).max(1).min(first.len());
        let generated = [&first[at..], &answered].concat();
        let (ours, theirs) = match given.len() >= at {
            true => vocabulary.same_text(&generated, &given[at..]),
            false => (0, 0),
        };
        if given.starts_with(&first[..at]) {
            assert_eq!(ids, [&first[..at], &generated[..ours], &given[at + theirs..]].concat());
        } else {
            assert!(first.len() < 9, "{first:?} {given:?}");
        }
    });
}

#[test]
fn every_turn_of_a_chat_keeps_all_answers() {
    let turn = || (texts(12), texts(20));
    let given = (vocabularies(), prop::collection::vec(turn(), 1..6), any::<u64>());
    property(1000, &given, |(words, turns, seed)| {
        let (vocabulary, mut choose) = (Vocabulary::new(words), choices(seed));
        let (answers, mut all) = (Arc::default(), vec![0]);
        for (question, answer) in turns {
            // Byte by byte, so that all places where tokens end are places where these end.
            let bytes = |symbols: &[Symbol]| vocabulary.divide(symbols, |_| 0);
            let answered = vocabulary.divide(&answer, &mut choose);
            let given = bytes(&[vocabulary.symbols(&all), question.clone()].concat());
            all.extend(bytes(&question));
            assert_eq!(reuse(&answers, &vocabulary, &given, &answered), all);
            all.extend(answered);
        }
    });
}

/// A vocabulary with the words `aa` (1000) and `aaa` (1001), and ids of texts byte by byte.
fn small() -> (Vocabulary, impl Fn(&str) -> Vec<u32>) {
    let vocabulary = Vocabulary::new(vec![b"aa".to_vec(), b"aaa".to_vec()]);
    (vocabulary, |text: &str| text.bytes().map(byte_id).collect())
}

#[test]
fn tokens_that_are_no_text_match_only_themselves() {
    let (vocabulary, ids) = small();
    let same = |a: &[u32], b: &[u32]| {
        let same = vocabulary.tokenizer.same_text(a.iter().copied(), b.iter().copied());
        assert_eq!(vocabulary.tokenizer.same_text(b.iter().copied(), a.iter().copied()), (same.1, same.0));
        same
    };
    for (token, spelled) in [(0, "<s>"), (1, "<end>"), (2, "ab"), (50, "<unk>")] {
        assert_eq!(same(&[1000, token, 1000], &[&ids("aa")[..], &[token], &ids("aa")].concat()), (3, 5));
        assert_eq!(same(&[1000, token], &ids(&format!("aa{spelled}"))), (1, 2), "{spelled}");
        assert_eq!(same(&[token], &[]), (0, 0));
    }
    // Ids that the vocabulary has not, and tokens that only begin alike.
    assert_eq!(same(&[1000, 7, 1000], &[1000, 7, 1000]), (3, 3));
    assert_eq!(same(&[1001], &ids("aab")), (0, 0));
    assert_eq!(same(&[1000, 1000], &[1001]), (0, 0));
    assert_eq!(same(&[1000, 1000, 1000], &[1001, 1001]), (3, 2));
}

#[test]
fn tokens_are_compared_where_their_bytes_are_all_their_text() {
    let vocab =
        json!({"<unk>": 0, "▁": 1, "a": 2, "é": 3, "▁a": 4, "<0x61>": 5, "<0xC3>": 6, "<0xA9>": 7, "▁▁": 8});
    let same = |decoder: &Value, a: [u32; 3], b: [u32; 3]| tokenizer_of(&vocab, &[], decoder).same_text(a, b);
    let spaces = json!({"type": "Replace", "pattern": {"String": "▁"}, "content": " "});
    let strip = json!({"type": "Strip", "content": " ", "start": 1, "stop": 0});
    let bytes = json!({"type": "ByteFallback"});
    let fuse = json!({"type": "Fuse"});
    let sequence = |decoders: &[&Value]| json!({"type": "Sequence", "decoders": decoders});
    // As those of Llama 2.
    let llama = sequence(&[&spaces, &bytes, &fuse, &strip]);
    assert_eq!(same(&llama, [4, 3, 3], [1, 5, 3]), (2, 3));
    assert_eq!(same(&llama, [2, 3, 1], [5, 6, 7]), (2, 3));
    assert_eq!(same(&llama, [8, 0, 2], [1, 1, 0]), (2, 3));
    // Spaces that are taken off each token, and spaces between tokens.
    assert_eq!(same(&sequence(&[&spaces, &strip]), [2, 4, 2], [2, 1, 2]), (1, 1));
    assert_eq!(same(&Value::Null, [2, 4, 2], [2, 1, 2]), (1, 1));
}

#[test]
fn answers_are_of_their_scope_and_prompt() {
    let (vocabulary, ids) = small();
    let answers: Arc<AnswerTokens> = Arc::default();
    let reused = |scope: &str, ids: Vec<u32>, most: usize| {
        let Reused { ids, changed, .. } = answers.reuse(scope, ids, most, &vocabulary.tokenizer);
        (ids, changed)
    };
    let prompt = ids("questions?");
    let mut record = answers.reuse("mine", prompt.clone(), 100, &vocabulary.tokenizer).record;
    [1000, 1001].into_iter().for_each(|id| record.push(id));
    let next = [prompt.clone(), ids("aaaaab")].concat();
    // Until the answer has ended there is nothing to keep.
    assert_eq!(reused("mine", next.clone(), 100), (next.clone(), 0));
    drop(record);
    let kept = [&prompt[..], &[1000, 1001], &ids("b")].concat();
    assert_eq!(reused("mine", next.clone(), 100), (kept, 2));
    assert_eq!(reused("", next.clone(), 100), (next.clone(), 0));
    let other = [ids("Questions?"), ids("aaaaab")].concat();
    assert_eq!(reused("mine", other.clone(), 100), (other, 0));
    // An empty prompt is one too.
    assert_eq!(reused("mine", Vec::new(), 100), (Vec::new(), 0));
}

#[test]
fn no_prompt_becomes_longer_than_it_may() {
    let (vocabulary, ids) = small();
    let answers: Arc<AnswerTokens> = Arc::default();
    let prompt = ids("questions?");
    let mut record = answers.reuse("", prompt.clone(), 100, &vocabulary.tokenizer).record;
    ids("aaaaa").into_iter().for_each(|id| record.push(id));
    drop(record);
    let next = [&prompt[..], &[1000, 1001]].concat();
    let reused = |most| answers.reuse("", next.clone(), most, &vocabulary.tokenizer).ids.len();
    assert_eq!((reused(0), reused(14), reused(15)), (12, 12, 15));
    // An answer that fits still fits; one that may fill the context keeps half of its room.
    for (max_new, most) in [(0, 50), (7, 43), (19, 31), (20, 40), (usize::MAX, 40)] {
        assert_eq!(longest_prompt(30, max_new, 50), most);
    }
    assert_eq!(
        (longest_prompt(49, 1, 50), longest_prompt(50, 0, 50), longest_prompt(51, 9, 50)),
        (49, 50, 50)
    );
}

#[test]
fn the_least_recently_used_are_forgotten() {
    let (vocabulary, ids) = small();
    let answers = Arc::new(AnswerTokens::new(16 << 10));
    let answer = |prompt: &str, answer: &[u32]| {
        let mut record = answers.reuse("", ids(prompt), 100, &vocabulary.tokenizer).record;
        answer.iter().for_each(|id| record.push(*id));
    };
    let is_kept = |prompt: &str| {
        let next = ids(&format!("{prompt}aa"));
        answers.reuse("", next, 100, &vocabulary.tokenizer).changed > 0
    };
    let prompts: Vec<String> = (0..400).map(|i| format!("question {i:03}")).collect();
    for prompt in &prompts {
        answer(prompt, &[1000]);
        assert!(is_kept(&prompts[0]), "what is in use stays");
    }
    let kept = prompts.iter().filter(|prompt| is_kept(prompt)).count();
    assert!((20..200).contains(&kept) && is_kept(&prompts[399]), "{kept}");
    // A prompt that is answered over and over takes no room from others.
    let often = "which one?";
    answer(often, &[1000]);
    for i in 0..100 {
        answer(often, &ids(&format!("{i:02}")));
    }
    assert!(!is_kept(often));
    assert!(prompts.iter().filter(|prompt| is_kept(prompt)).count() > kept / 2);
    // A huge answer neither: its beginning is kept.
    answer("a long one", &vec![1000; 1 << 16]);
    assert!(is_kept("a long one") && is_kept(&prompts[399]));
}
