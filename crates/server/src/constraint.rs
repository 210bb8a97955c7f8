//! The engine's constraint of an answer: a matcher of its structure, which begins behind the reasoning, and the limit of that.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use tallow_constraint::Matcher;
use tallow_engine::sampler::{Allowed, Constraint, TokenMask};
use tallow_text::output::{OutputFormat, OutputParser};
use tallow_text::tokenizer::{Detokenizer, Shown, Tokenizer};

/// The reasoning in front of an answer.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ReasoningPart {
    /// Format that tells it from the answer.
    #[serde(with = "by_name")]
    pub format: OutputFormat,
    /// End of the prompt, which may open the reasoning.
    pub prompt: String,
    /// Beginning of the answer, if it goes on with one.
    pub begun: Option<String>,
    /// The token that opens it, if one token does.
    pub opening: Option<u32>,
    /// Its limit, if it has one.
    pub limit: Option<ReasoningLimit>,
}

/// Limit of the reasoning in front of an answer.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ReasoningLimit {
    /// Most tokens.
    pub tokens: usize,
    /// The tokens that close it then.
    pub closing: Vec<u32>,
}

impl ReasoningPart {
    /// The reasoning of a format's answers to a prompt.
    pub fn new(format: OutputFormat, prompt: String) -> ReasoningPart {
        ReasoningPart { format, prompt, begun: None, opening: None, limit: None }
    }

    /// Tells it from the answer.
    fn parser(&self) -> OutputParser {
        let mut parser = self.format.parser(&self.prompt, Some(Arc::default()));
        if let Some(begun) = &self.begun {
            parser.resume(begun);
        }
        parser
    }
}

/// A format as its name.
mod by_name {
    use serde::{Deserialize, Deserializer, Serializer, de::Error};
    use tallow_text::output::OutputFormat;

    pub(super) fn serialize<S: Serializer>(format: &OutputFormat, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&format.name())
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<OutputFormat, D::Error> {
        let name = String::deserialize(from)?;
        OutputFormat::named(&name).ok_or_else(|| D::Error::custom(format!("there is no format {name:?}")))
    }
}

/// A grammar's matcher.
#[derive(Clone, Debug)]
struct Follows(Matcher);

/// Lets a model reason before the answer that a constraint is about.
#[derive(Clone, Debug)]
struct AfterReasoning {
    before: Option<Before>,
    /// Constraint of the answer; `None` if there is none.
    inner: Option<Box<dyn Constraint>>,
    vocab: usize,
}

/// The text in front of an answer.
#[derive(Clone, Debug)]
struct Before {
    /// Tells reasoning from the answer.
    parser: OutputParser,
    /// Decodes it, marks included.
    text: Detokenizer,
    /// At the start, the token that opens reasoning: an answer without begins with any other.
    opening: Option<u32>,
    /// What may come within reasoning: all but what ends the generation.
    free: TokenMask,
    limit: Option<Limit>,
}

/// Rest of a limit.
#[derive(Clone, Debug)]
struct Limit {
    tokens: usize,
    /// The tokens that close the reasoning and are still to come, the next one last.
    closing: Vec<u32>,
    /// True once they must come.
    is_closing: bool,
}

/// The constraint of an answer, if there is anything to hold it to: a structure, or a limit of the reasoning.
pub fn constraint(
    matcher: Option<Matcher>,
    reasoning: Option<ReasoningPart>,
    (tokenizer, vocab): (&Tokenizer, usize),
) -> Option<Box<dyn Constraint>> {
    let inner = matcher.map(|matcher| Box::new(Follows(matcher)) as Box<dyn Constraint>);
    // Reasoning without a limit in front of a free answer is free, too.
    let Some(reasoning) = reasoning.filter(|part| inner.is_some() || part.limit.is_some()) else {
        return inner;
    };
    let parser = reasoning.parser();
    let ReasoningPart { opening, limit, .. } = reasoning;
    // In a free answer any text may be in front of the reasoning.
    let opening = opening.filter(|_| inner.is_some() && !parser.is_before_answer());
    let may_reason = parser.is_before_answer() || opening.is_some() || inner.is_none();
    if !may_reason {
        return inner;
    }
    let mut free = TokenMask::all(vocab);
    tokenizer.ends().for_each(|end| free.set(end, false));
    let limit = limit.map(|ReasoningLimit { tokens, mut closing }| {
        closing.reverse();
        Limit { tokens, closing, is_closing: tokens == 0 && parser.is_reasoning() }
    });
    let before = Before { parser, text: tokenizer.stream(Shown::All), opening, free, limit };
    Some(Box::new(AfterReasoning { before: Some(before), inner, vocab }))
}

impl Constraint for Follows {
    fn accept(&mut self, token: u32) -> Result<(), String> {
        self.0.accept(token).map_err(|e| e.to_string())
    }

    /// Text that is forced has the tokens that the tokenizer cuts it into.
    fn allowed(&mut self) -> Result<Allowed, String> {
        let forced = self.0.forced().map_err(|e| e.to_string())?;
        if let Some(forced) = Allowed::forced(&forced) {
            return Ok(forced);
        }
        let mask = self.0.mask().map(|words| TokenMask::of_words(words.to_vec()));
        mask.map(Allowed::Any).map_err(|e| e.to_string())
    }

    fn fork(&self) -> Box<dyn Constraint> {
        Box::new(self.clone())
    }
}

impl Before {
    /// Follows a token. False once the answer has begun, which free answers do with text.
    fn accept(&mut self, token: u32, is_free: bool) -> bool {
        self.opening = None;
        let counts = self.parser.is_reasoning();
        if let Some(text) = self.text.push(token) {
            self.parser.push(text);
        }
        if let Some(limit) = &mut self.limit {
            limit.accept(token, counts);
            limit.is_closing |= limit.tokens == 0 && self.parser.is_reasoning();
        }
        self.parser.is_before_answer() || (is_free && self.parser.is_at_start())
    }

    /// The tokens that must come, where reasoning is closed.
    fn closing(&self) -> Option<Allowed> {
        let closing = &self.limit.as_ref().filter(|limit| limit.is_closing)?.closing;
        Allowed::forced(&closing.iter().rev().copied().collect::<Vec<_>>())
    }
}

impl Limit {
    fn accept(&mut self, token: u32, counts: bool) {
        if self.is_closing && self.closing.last() == Some(&token) {
            self.closing.pop();
        } else if counts {
            self.tokens = self.tokens.saturating_sub(1);
        }
    }
}

impl AfterReasoning {
    /// Follows a token of the answer.
    fn accept_answer(&mut self, token: u32) -> Result<(), String> {
        self.before = None;
        self.inner.as_mut().map_or(Ok(()), |inner| inner.accept(token))
    }

    /// The tokens that may come next in the answer.
    fn allowed_in_answer(&mut self) -> Result<Allowed, String> {
        let all = || Ok(Allowed::Any(TokenMask::all(self.vocab)));
        self.inner.as_mut().map_or_else(all, |inner| inner.allowed())
    }
}

impl Constraint for AfterReasoning {
    fn accept(&mut self, token: u32) -> Result<(), String> {
        let Some(before) = &mut self.before else { return self.accept_answer(token) };
        if before.opening.is_some_and(|opening| opening != token) {
            return self.accept_answer(token);
        }
        if !before.accept(token, self.inner.is_none()) {
            self.before = None;
        }
        Ok(())
    }

    fn allowed(&mut self) -> Result<Allowed, String> {
        let Some(before) = &self.before else { return self.allowed_in_answer() };
        if let Some(closing) = before.closing() {
            return Ok(closing);
        }
        if self.inner.is_none() {
            return Ok(Allowed::Any(TokenMask::all(self.vocab)));
        }
        let Some(opening) = before.opening else { return Ok(Allowed::Any(before.free.clone())) };
        let may_reason = before.limit.as_ref().is_none_or(|limit| limit.tokens > 0);
        let mut mask = match self.allowed_in_answer()? {
            forced @ Allowed::Forced { .. } if !may_reason => return Ok(forced),
            Allowed::Forced { token, .. } => TokenMask::of_tokens(&[token], self.vocab),
            Allowed::Any(mask) => mask,
        };
        mask.set(opening, may_reason);
        Ok(Allowed::Any(mask))
    }

    fn fork(&self) -> Box<dyn Constraint> {
        Box::new(self.clone())
    }
}
