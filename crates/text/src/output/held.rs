//! [`Held`]: the text that is not yet out.

/// Text that is held until it is known what it is. Positions count from the beginning of the whole text.
#[derive(Debug, Clone, Default)]
pub(super) struct Held {
    text: String,
    /// Position of the first byte of `text`.
    base: usize,
    /// True if no more text comes.
    pub(super) ended: bool,
    /// Bytes looked at, so that tests see that none is looked at again and again.
    #[cfg(test)]
    pub(super) scanned: std::cell::Cell<usize>,
}

/// The first part of the held text: what an attempt may look at.
#[derive(Clone, Copy)]
pub(super) struct View<'a> {
    held: &'a Held,
    bytes: &'a [u8],
    /// True if no more text comes behind it.
    pub(super) ended: bool,
}

/// Result of looking for a text at a place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Match {
    /// It is there.
    Yes,
    /// It is not.
    No,
    /// It may be: more text is needed.
    Partial,
}

impl Held {
    pub(super) fn push(&mut self, text: &str) {
        self.text.push_str(text);
    }

    /// Position of the end of the text so far.
    pub(super) fn end(&self) -> usize {
        self.base + self.text.len()
    }

    /// The text between two positions.
    pub(super) fn text(&self, from: usize, to: usize) -> &str {
        let inside = from.checked_sub(self.base).zip(to.checked_sub(self.base));
        inside.and_then(|(from, to)| self.text.get(from..to)).unwrap_or_default()
    }

    /// All text before `limit`.
    pub(super) fn view(&self, limit: usize) -> View<'_> {
        let all = self.text.as_bytes();
        let bytes = all.get(..limit.saturating_sub(self.base)).unwrap_or(all);
        View { held: self, bytes, ended: self.ended && bytes.len() == all.len() }
    }

    /// Forgets the text before a position. It is moved only when that halves it, so that small steps cost little.
    pub(super) fn forget(&mut self, before: usize) {
        let gone = before.saturating_sub(self.base);
        if gone * 2 > self.text.len() && self.text.is_char_boundary(gone) {
            self.text.drain(..gone);
            self.base += gone;
        }
    }
}

impl<'a> View<'a> {
    /// Bytes from a position on.
    pub(super) fn from(&self, at: usize) -> &'a [u8] {
        self.bytes.get(at.saturating_sub(self.held.base)..).unwrap_or_default()
    }

    /// Position behind the last byte.
    pub(super) fn end(&self) -> usize {
        self.held.base + self.bytes.len()
    }

    /// The text between two positions.
    pub(super) fn text(&self, from: usize, to: usize) -> &'a str {
        self.held.text(from, to)
    }

    /// Counts bytes that were looked at.
    pub(super) fn count(&self, _bytes: usize) {
        #[cfg(test)]
        self.held.scanned.set(self.held.scanned.get() + _bytes);
    }

    /// Looks for `wanted` at a position.
    pub(super) fn has(&self, at: usize, wanted: &str) -> Match {
        let (rest, wanted) = (self.from(at), wanted.as_bytes());
        let common = rest.iter().zip(wanted).take_while(|(a, b)| a == b).count();
        self.count(common + 1);
        match () {
            () if common == wanted.len() => Match::Yes,
            () if common == rest.len() && !self.ended => Match::Partial,
            () => Match::No,
        }
    }

    /// The character at a position.
    pub(super) fn char(&self, at: usize) -> Option<char> {
        match self.from(at).first()? {
            byte if byte.is_ascii() => Some(char::from(*byte)),
            _ => self.text(at, self.end()).chars().next(),
        }
    }

    /// The position behind the whitespace at `at`.
    pub(super) fn past_space(&self, at: usize) -> usize {
        let mut now = at;
        while let Some(c) = self.char(now).filter(|c| c.is_whitespace()) {
            now += c.len_utf8();
        }
        self.count(now - at + 1);
        now
    }
}
