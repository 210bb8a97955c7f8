//! The engine's constraint of a structure: a matcher of its grammar, which begins behind the reasoning.

use tallow_constraint::Matcher;
use tallow_engine::sampler::{Constraint, TokenMask};
use tallow_text::output::OutputParser;
use tallow_text::tokenizer::{Detokenizer, Shown, Tokenizer};

/// A grammar's matcher.
#[derive(Clone, Debug)]
struct Follows(Matcher);

/// Lets a model reason before the answer that a constraint is about.
#[derive(Clone, Debug)]
struct AfterReasoning {
    before: Option<Before>,
    inner: Box<dyn Constraint>,
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
}

/// The constraint of an answer. `reasoning`: a parser that tells it from what comes before it, and the token that opens that.
pub fn constraint(
    matcher: Matcher,
    reasoning: Option<(OutputParser, Option<u32>)>,
    (tokenizer, vocab): (&Tokenizer, usize),
) -> Box<dyn Constraint> {
    let inner = Box::new(Follows(matcher));
    let Some((parser, opening)) = reasoning else { return inner };
    let opening = opening.filter(|_| !parser.is_before_answer());
    if opening.is_none() && !parser.is_before_answer() {
        return inner;
    }
    let mut free = TokenMask::all(vocab);
    tokenizer.ends().for_each(|end| free.set(end, false));
    let before = Before { parser, text: tokenizer.stream(Shown::All), opening, free };
    Box::new(AfterReasoning { before: Some(before), inner })
}

impl Constraint for Follows {
    fn accept(&mut self, token: u32) -> Result<(), String> {
        self.0.accept(token).map_err(|e| e.to_string())
    }

    fn allowed(&mut self) -> Result<TokenMask, String> {
        self.0.mask().map(|words| TokenMask::of_words(words.to_vec())).map_err(|e| e.to_string())
    }

    fn fork(&self) -> Box<dyn Constraint> {
        Box::new(self.clone())
    }
}

impl Constraint for AfterReasoning {
    fn accept(&mut self, token: u32) -> Result<(), String> {
        let Some(before) = &mut self.before else { return self.inner.accept(token) };
        if before.opening.take().is_some_and(|opening| opening != token) {
            self.before = None;
            return self.inner.accept(token);
        }
        if let Some(text) = before.text.push(token) {
            before.parser.push(text);
        }
        if !before.parser.is_before_answer() {
            self.before = None;
        }
        Ok(())
    }

    fn allowed(&mut self) -> Result<TokenMask, String> {
        match &self.before {
            Some(Before { opening: None, free, .. }) => Ok(free.clone()),
            Some(Before { opening: Some(opening), .. }) => {
                let mut mask = self.inner.allowed()?;
                mask.set(*opening, true);
                Ok(mask)
            }
            None => self.inner.allowed(),
        }
    }

    fn fork(&self) -> Box<dyn Constraint> {
        Box::new(self.clone())
    }
}
