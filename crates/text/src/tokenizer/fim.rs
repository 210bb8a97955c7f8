//! [`FillInMiddle`]: prompts for the text between two others.

use super::{Special, TokenizeError, Tokenizer};

/// The texts in front of a prefix, of a suffix and of the middle, as families of models have them; `true` where the suffix
/// comes first. Without a third one the middle follows at once.
const MARKS: [(&str, &str, Option<&str>, bool); 9] = [
    ("<|fim_prefix|>", "<|fim_suffix|>", Some("<|fim_middle|>"), false),
    ("<fim_prefix>", "<fim_suffix>", Some("<fim_middle>"), false),
    ("<fim-prefix>", "<fim-suffix>", Some("<fim-middle>"), false),
    ("<｜fim▁begin｜>", "<｜fim▁hole｜>", Some("<｜fim▁end｜>"), false),
    ("▁<PRE>", "▁<SUF>", Some("▁<MID>"), false),
    ("<PRE>", "<SUF>", Some("<MID>"), false),
    ("<|code_prefix|>", "<|code_suffix|>", Some("<|code_middle|>"), false),
    ("<[fim-prefix]>", "<[fim-suffix]>", Some("<[fim-middle]>"), true),
    ("[PREFIX]", "[SUFFIX]", None, true),
];
/// Stands in front of a file's name, in models that know repositories.
const FILE: &str = "<|file_sep|>";

/// The special tokens of a model that fills in the middle.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FillInMiddle {
    prefix: u32,
    suffix: u32,
    middle: Option<u32>,
    suffix_first: bool,
    file: Option<u32>,
}

impl Tokenizer {
    /// The tokens for filling in the middle, if the model has them.
    pub fn fill_in_middle(&self) -> Option<FillInMiddle> {
        let special = |text: &str| self.id_of(text).filter(|id| self.is_special(*id));
        MARKS.iter().find_map(|(prefix, suffix, middle, suffix_first)| {
            let (prefix, suffix) = (special(prefix)?, special(suffix)?);
            let middle = match middle {
                Some(text) => Some(special(text)?),
                None => None,
            };
            let suffix_first = *suffix_first;
            Some(FillInMiddle { prefix, suffix, middle, suffix_first, file: special(FILE) })
        })
    }
}

impl FillInMiddle {
    /// The prompt for the text between two others, behind other files (their names and texts) that it may use.
    pub fn prompt(
        &self,
        tokenizer: &Tokenizer,
        (prefix, suffix): (&str, &str),
        files: &[(String, String)],
    ) -> Result<Vec<u32>, TokenizeError> {
        let mut tokens = Vec::new();
        for (name, text) in files {
            tokens.extend(self.file);
            tokens.extend(tokenizer.encode(&format!("{name}\n{text}\n"), Special::BARE)?);
        }
        let [prefix, suffix] = [(self.prefix, prefix), (self.suffix, suffix)].map(|(mark, text)| {
            let text = tokenizer.encode(text, Special::BARE)?;
            Ok::<_, TokenizeError>([vec![mark], text].concat())
        });
        let both = if self.suffix_first { [suffix?, prefix?] } else { [prefix?, suffix?] };
        tokens.extend(both.concat());
        tokens.extend(self.middle);
        Ok(tokenizer.begun(tokens))
    }
}
