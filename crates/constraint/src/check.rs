//! [`check_instance`]: whether a text would be generated under a grammar, token by token.

use tallow_text::tokenizer::Special;
use toktrie::SimpleVob;

use crate::compiled::Compiled;

/// The place where a text leaves a grammar.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// Byte of the text.
    pub offset: usize,
    /// The token there, or empty at the end of the text.
    pub token: String,
    /// Some of what might come instead, or why the check could not go on.
    pub expected: String,
}

impl std::fmt::Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.token.as_str() {
            "" => write!(f, "byte {}: the text ends, and {}", self.offset, self.expected),
            token => write!(f, "byte {}: {token:?} is not allowed; {}", self.offset, self.expected),
        }
    }
}

impl std::error::Error for Place {}

/// Checks that a text would be generated under a grammar: each of its tokens is in the mask, and it may end.
pub fn check_instance(compiled: &Compiled, text: &str) -> Result<(), Place> {
    let vocabulary = compiled.vocabulary();
    let failed = |offset: usize, why: String| Place { offset, token: String::new(), expected: why };
    let tokens = vocabulary.tokenizer.encode(text, Special::BARE).map_err(|e| failed(0, e.to_string()))?;
    let mut matcher = compiled.matcher();
    let mut offset = 0;
    for (i, token) in tokens.iter().enumerate() {
        matcher.mask().map_err(|e| failed(offset, e.to_string()))?;
        let bytes = vocabulary.bytes(*token);
        if matcher.accept(*token).is_err() {
            let token = String::from_utf8_lossy(bytes).into_owned();
            let token = if token.is_empty() { format!("<token {}>", tokens[i]) } else { token };
            return Err(Place { offset, token, expected: expected(compiled, matcher) });
        }
        let added = usize::from(i == 0 && vocabulary.space_first() && !text.starts_with(' '));
        offset += bytes.len().saturating_sub(added);
    }
    match matcher.may_end() {
        Ok(true) => Ok(()),
        Ok(false) => Err(failed(offset, expected(compiled, matcher))),
        Err(e) => Err(failed(offset, e.to_string())),
    }
}

/// Some of the tokens that may come next.
fn expected(compiled: &Compiled, mut matcher: crate::matcher::Matcher) -> String {
    const SHOWN: usize = 8;
    let vocabulary = compiled.vocabulary();
    let words = match matcher.mask() {
        Ok(words) => words.to_vec(),
        Err(e) => return e.to_string(),
    };
    let mut mask = SimpleVob::alloc(vocabulary.size());
    for token in 0..vocabulary.size() as u32 {
        if words.get(token as usize / 32).is_some_and(|word| word >> (token % 32) & 1 == 1) {
            mask.allow_token(token);
        }
    }
    let ends = mask.iter().any(|token| vocabulary.ends.contains(&token));
    let mut texts: Vec<String> = mask
        .iter()
        .map(|token| vocabulary.bytes(token))
        .filter(|bytes| !bytes.is_empty())
        .map(|bytes| format!("{:?}", String::from_utf8_lossy(bytes)))
        .collect();
    texts.sort_by_key(|text| text.len());
    let more = texts.len() > SHOWN;
    texts.truncate(SHOWN);
    if ends {
        texts.push("the end".into());
    }
    format!("expected {}{}", texts.join(", "), if more { " or others" } else { "" })
}
