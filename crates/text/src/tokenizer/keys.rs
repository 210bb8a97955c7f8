//! Conversion of a `tokenizer.json` to GGUF's `tokenizer.ggml` keys.

use std::collections::HashMap;
use std::path::Path;

use tallow_checkpoint::gguf::write::Written;
use tallow_checkpoint::{FileError, Result};

use super::cut::{Cutter, Step as CutStep, Words};
use super::pre::{self, Alphabet, Pre};
use super::{Model, Tokenizer, bpe, json};

/// Texts that distinguish pre-tokenizers: letters, digits, marks, spaces and signs of many scripts, side by side.
pub const SAMPLES: [&str; 24] = [
    "Hello, world! It's 10 o'clock; we'll see, they'RE here, I'D say so.",
    "  two  spaces,   three    four     five\t\ttabs \t mixed",
    "line\nline\n\nline\r\n\r\n  indented\n    more\n\n\n  \n",
    "1 12 123 1234 12345 1234567890 3.14159 1,000,000 2024-11-22 0x1F",
    "fn main() { let x: Vec<u8> = vec![1, 2, 3]; println!(\"{x:?}\"); } // done",
    "def f(self, *args, **kwargs):\n    return self._g(args[0])[1:-1] != None\n",
    "Größe straße naïve café Łódź İstanbul ŒUVRE ǅ ﬁ",
    "Съешь же ещё этих мягких французских булок, да выпей чаю. 42-й",
    "Ἐν ἀρχῇ ἦν ὁ λόγος καὶ",
    "我能吞下玻璃而不伤身体。第123章:測試!“引號”、頓號…",
    "私はガラスを食べられます。ﾊﾝｶｸ カタカナ ひらがな 漢字1234年",
    "나는 유리를 먹을 수 있어요. 그래도 아프지 않아요 ㅋㅋㅋ",
    "أنا قادر على أكل الزجاج و هذا لا يؤلمني. ١٢٣٤٥",
    "אני יכול לאכול זכוכית וזה לא מזיק לי.",
    "मैं काँच खा सकता हूँ और मुझे उससे कोई चोट नहीं पहुंचती. १२३४",
    "ฉันกินกระจกได้ แต่มันไม่ทำให้ฉันเจ็บ ๑๒๓๔",
    "Tôi có thể ăn thủy tinh mà không hại gì.",
    "😀👍🏽 👨‍👩‍👧‍👦 🇩🇪 ❤️ e=mc² ½ ⅷ ① x₂",
    "a_b __init__ CamelCase camelCase HTTPServer snake_case_2 kebab-case",
    "\u{a0}no\u{a0}break\u{2009}thin\u{3000}wide\u{200b}zero \u{feff}bom",
    "!!! ??? ... --- === ### @@@ $$$ %%% ^^^ &&& *** (((a))) [[b]] {{c}} <<d>> ~~ || \\\\ // ``",
    "https://example.org/a/b?c=d&e=f#g user@example.org C:\\x\\y.txt",
    "'s 't 're 've 'm 'll 'd 'S 'T 'RE 'VE 'M 'LL 'D 'x ’s",
    "",
];

/// Token types (`tokenizer.ggml.token_type`) as GGUF files number them.
const NORMAL: i32 = 1;
const UNKNOWN: i32 = 2;
const CONTROL: i32 = 3;
const USER_DEFINED: i32 = 4;
const UNUSED: i32 = 5;
const BYTE: i32 = 6;

impl Tokenizer {
    /// The GGUF keys of this tokenizer, which was read from `folder`, for a model with `vocab` tokens.
    pub fn gguf_keys(&self, folder: &Path, vocab: usize) -> Result<Vec<(&'static str, Written)>> {
        let refused =
            |what: &str, why: &str| Err(FileError::unsupported(folder, format!("converting {what}"), why));
        let Model::Bpe(bpe) = &self.parts.model else {
            return refused("its tokenizer", "tokenizers of merges are");
        };
        let merges = json::merges(&folder.join("tokenizer.json"))?;
        let mut keys = match bpe.options().bytes {
            true => self.of_spaces(bpe, &merges, vocab),
            false => {
                let Some(way) = self.way(bpe, folder)? else {
                    return refused(
                        "its tokenizer",
                        "no known way to cut text has a name in GGUF files that is this one",
                    );
                };
                let merges = merges.iter().map(|(a, b)| format!("{a} {b}")).collect();
                vec![
                    ("model", Written::Text("gpt2".into())),
                    ("pre", Written::Text(way.into())),
                    ("merges", Written::Texts(merges)),
                ]
            }
        };
        let frame = &self.parts.frame;
        let (before, after): (Vec<u32>, Vec<u32>) = (frame.before().collect(), frame.after().collect());
        for (flag, around, id) in
            [("add_bos_token", before, self.bos()), ("add_eos_token", after, self.eos())]
        {
            match around.as_slice() {
                [] => keys.push((flag, Written::Flag(false))),
                [one] if Some(*one) == id => keys.push((flag, Written::Flag(true))),
                _ => {
                    return refused(
                        "its tokenizer",
                        "one token before and after a text is, that which begins or ends it",
                    );
                }
            }
        }
        for (key, id) in [("bos_token_id", self.bos()), ("eos_token_id", self.eos())] {
            keys.extend(id.map(|id| (key, Written::Count(id))));
        }
        let ids = 0..u32::try_from(vocab).unwrap_or(u32::MAX);
        let text = |id| self.token_text(id).map_or_else(|| format!("[PAD{id}]"), str::to_owned);
        keys.push(("tokens", Written::Texts(ids.clone().map(text).collect())));
        keys.push(("token_type", Written::Counts(ids.map(|id| self.kind(bpe, id)).collect())));
        Ok(keys)
    }

    /// The token type of an id.
    fn kind(&self, bpe: &bpe::Bpe, id: u32) -> i32 {
        let is_byte = |text: &str| text.len() == 6 && text.starts_with("<0x") && text.ends_with('>');
        match (self.parts.added.get(id), self.parts.vocab.text(id)) {
            _ if bpe.options().unknown == Some(id) => UNKNOWN,
            (Some(token), _) if token.special => CONTROL,
            (Some(_), _) => USER_DEFINED,
            (None, Some(text)) if bpe.options().bytes && is_byte(text) => BYTE,
            (None, Some(_)) => NORMAL,
            (None, None) => UNUSED,
        }
    }

    /// The `tokenizer.ggml.pre` name whose pre-tokenizer splits the samples as this one does.
    fn way(&self, bpe: &bpe::Bpe, folder: &Path) -> Result<Option<&'static str>> {
        let cut = |cutter: &Cutter| -> Option<Vec<Vec<String>>> {
            let words = |text: &&str| cutter.run(Words::new((*text).to_owned(), true)).ok();
            let texts = |words: Words| words.iter().map(str::to_owned).collect();
            SAMPLES.iter().map(|text| words(text).map(texts)).collect()
        };
        let mine = cut(&self.parts.cutter);
        // Names whose NFC normalisation agrees with the tokenizer's are tried first.
        let composes = |name: &&str| Pre::named(Some(name)).is_some_and(|way| way.composes);
        let (alike, other): (Vec<_>, Vec<_>) =
            pre::NAMES.into_iter().partition(|name| composes(name) == self.parts.normalizer.composes());
        for name in alike.into_iter().chain(other) {
            let Some(way) = Pre::named(Some(name)) else { continue };
            if way.alphabet != Alphabet::Bytes || way.words_first != bpe.options().words_first {
                continue;
            }
            let mut steps = way.steps(folder)?;
            steps.push(CutStep::ByteLevel { prefix: false, pattern: None });
            if cut(&Cutter(steps)) == mine {
                return Ok(Some(name));
            }
        }
        Ok(None)
    }

    /// The keys of a SentencePiece vocabulary (`llama`). A token's score is minus the rank of its merge.
    fn of_spaces(
        &self,
        bpe: &bpe::Bpe,
        merges: &[(String, String)],
        vocab: usize,
    ) -> Vec<(&'static str, Written)> {
        let mut rank = HashMap::new();
        for (at, (a, b)) in merges.iter().enumerate() {
            if let Some(id) = self.parts.vocab.id(&format!("{a}{b}")) {
                rank.entry(id).or_insert(at);
            }
        }
        let ids = 0..u32::try_from(vocab).unwrap_or(u32::MAX);
        let worth = |id| rank.get(&id).map_or(-(merges.len() as f32), |at| -(*at as f32));
        // If the tokenizer adds a leading space, encoding a text differs from encoding the bare word.
        let prefix = self.encode("x", super::Special::BARE).ok() != self.encode_word("x", bpe);
        let mut keys = vec![
            ("model", Written::Text("llama".into())),
            ("scores", Written::Numbers(ids.map(worth).collect())),
            ("add_space_prefix", Written::Flag(prefix)),
        ];
        keys.extend(bpe.options().unknown.map(|id| ("unknown_token_id", Written::Count(id))));
        keys
    }

    /// The tokens of a word, without normalisation and pre-tokenization.
    fn encode_word(&self, word: &str, bpe: &bpe::Bpe) -> Option<Vec<u32>> {
        let mut out = Vec::new();
        bpe.add(&self.parts.vocab, word, &mut Default::default(), &mut out);
        Some(out)
    }
}
