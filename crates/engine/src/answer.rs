//! [`Answer`]: from generated tokens to text that can be shown.
//!
//! Text is released in whole characters, and only once it cannot be part of a stop string any more.

use tallow_text::tokenizer::{Detokenizer, Shown, Tokenizer};

/// Incremental text of one answer.
#[derive(Debug)]
pub struct Answer {
    tokenizer: Tokenizer,
    text: Detokenizer,
    stops: Vec<String>,
    stop_tokens: Vec<u32>,
    ignore_end: bool,
    /// Text that may be the beginning of a stop string.
    held: String,
}

/// Result of a token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TextStep {
    /// Text to show; the answer continues.
    More(String),
    /// The last text to show, and the stop string that ended the answer.
    Stop(String, String),
    /// An end-of-generation or stop token ended the answer.
    End,
}

impl Answer {
    /// An answer to `prompt` that ends at any of `stops` or `stop_tokens`, or at the model's end-of-generation tokens
    /// unless `ignore_end`. Its text is what its tokens add to the prompt's text.
    pub fn new(
        tokenizer: Tokenizer,
        prompt: &[u32],
        stops: Vec<String>,
        stop_tokens: Vec<u32>,
        ignore_end: bool,
    ) -> Answer {
        let text = tokenizer.stream_after(prompt, Shown::Text);
        Answer { tokenizer, text, stops, stop_tokens, ignore_end, held: String::new() }
    }

    /// Shows these special tokens in the text.
    #[must_use]
    pub fn showing(mut self, special: Vec<u32>) -> Answer {
        self.text = self.text.showing(special);
        self
    }

    /// True if a token ends the answer: an end-of-generation or stop token.
    pub fn ends_at(&self, token: u32) -> bool {
        (self.tokenizer.ends_generation(token) && !self.ignore_end) || self.stop_tokens.contains(&token)
    }

    /// Adds the next token.
    pub fn push(&mut self, token: u32) -> TextStep {
        if self.ends_at(token) {
            return TextStep::End;
        }
        self.held += self.text.push(token).unwrap_or_default();
        self.look()
    }

    /// Remaining text at the end.
    pub fn rest(&mut self) -> String {
        self.held += self.text.finish().unwrap_or_default();
        match self.look() {
            TextStep::More(text) => text + &std::mem::take(&mut self.held),
            TextStep::Stop(text, _) => text,
            TextStep::End => String::new(),
        }
    }

    /// Releases the text that can be shown.
    fn look(&mut self) -> TextStep {
        // The stop string that begins first; of those at the same position, the longest.
        let found = self.stops.iter().filter_map(|s| Some((self.held.find(s.as_str())?, s)));
        if let Some((at, stop)) = found.min_by_key(|(at, s)| (*at, std::cmp::Reverse(s.len()))) {
            let stop = stop.clone();
            self.held.truncate(at);
            return TextStep::Stop(std::mem::take(&mut self.held), stop);
        }
        let keep = self.stops.iter().map(|s| overlap(&self.held, s)).max().unwrap_or(0);
        let rest = self.held.split_off(self.held.len() - keep);
        TextStep::More(std::mem::replace(&mut self.held, rest))
    }
}

/// Length in bytes of the longest suffix of `text` that is a proper prefix of `stop`.
fn overlap(text: &str, stop: &str) -> usize {
    let most = text.len().min(stop.len().saturating_sub(1));
    let could = |n: &usize| {
        text.is_char_boundary(text.len() - n)
            && stop.as_bytes().starts_with(&text.as_bytes()[text.len() - n..])
    };
    (1..=most).rev().find(could).unwrap_or(0)
}
