//! [`Wrap`]: styled text on a terminal, wrapped between words.

use std::io::{self, Write};

use crate::terminal::sanitized;

/// Style of a piece of text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Style {
    #[default]
    Plain,
    Bold,
    Code,
    BoldCode,
    Dim,
}

impl Style {
    /// SGR escape sequence.
    fn code(self) -> &'static str {
        match self {
            Style::Plain => "\u{1b}[0m",
            Style::Bold => "\u{1b}[0;1m",
            Style::Code => "\u{1b}[0;36m",
            Style::BoldCode => "\u{1b}[0;1;36m",
            Style::Dim => "\u{1b}[0;2m",
        }
    }
}

/// A writer that tracks the cursor. The last word is held back until it is complete.
pub(crate) struct Wrap<W> {
    out: W,
    /// Columns of the terminal; `None` does not wrap.
    width: Option<usize>,
    colours: bool,
    /// Current style of the terminal.
    style: Style,
    /// Current column of the cursor.
    column: usize,
    spaces: String,
    word: Vec<(Style, char)>,
    word_width: usize,
}

impl<W: Write> Wrap<W> {
    pub(crate) fn new(out: W, width: Option<usize>, colours: bool) -> Wrap<W> {
        let (style, spaces, word) = Default::default();
        Wrap { out, width, colours, style, column: 0, spaces, word, word_width: 0 }
    }

    /// True if the line is empty so far.
    pub(crate) fn at_start(&self) -> bool {
        self.column == 0 && self.word.is_empty()
    }

    /// Writes text, wrapped between words.
    pub(crate) fn text(&mut self, text: &str, style: Style) -> io::Result<()> {
        for c in sanitized(text).chars() {
            match c {
                '\n' => {
                    self.word_out()?;
                    self.line_out()?;
                }
                // No line is broken at a no-break space.
                c if c.is_whitespace() && c != '\u{a0}' && c != '\u{202f}' => {
                    self.word_out()?;
                    self.spaces.push(c);
                }
                c => self.letter(c, style)?,
            }
        }
        self.out.flush()
    }

    /// Writes text without wrapping its lines.
    pub(crate) fn verbatim(&mut self, text: &str, style: Style) -> io::Result<()> {
        self.word_out()?;
        self.spaces_out(style)?;
        for line in sanitized(text).split_inclusive('\n') {
            let (line, ends) = line.strip_suffix('\n').map_or((line, false), |line| (line, true));
            self.switch(style)?;
            self.out.write_all(line.as_bytes())?;
            self.column += columns(line);
            if ends {
                self.line_out()?;
            }
        }
        self.out.flush()
    }

    /// Writes what is held back, and resets the style.
    pub(crate) fn end(&mut self) -> io::Result<()> {
        self.word_out()?;
        self.spaces.clear();
        self.switch(Style::Plain)?;
        self.out.flush()
    }

    fn letter(&mut self, c: char, style: Style) -> io::Result<()> {
        let width = columns(c.encode_utf8(&mut [0; 4]));
        // Scripts without spaces have wide letters, and lines may be broken at each of them.
        if width > 1 {
            self.word_out()?;
        }
        self.word.push((style, c));
        self.word_width += width;
        if width > 1 || self.width.is_some_and(|most| self.word_width >= most) {
            self.word_out()?;
        }
        Ok(())
    }

    fn word_out(&mut self) -> io::Result<()> {
        let Some((first, letter)) = self.word.first().copied() else { return Ok(()) };
        let spaces = self.spaces.chars().fold(self.column, after_space) - self.column;
        let end = self.column + spaces + self.word_width;
        let fits = self.width.is_none_or(|most| end <= most);
        // The rest of a long word follows it directly.
        let may_break = !self.spaces.is_empty() || is_wide(letter);
        if fits || self.column == 0 || !may_break {
            self.spaces_out(first)?;
        } else {
            self.line_out()?;
        }
        for (style, c) in std::mem::take(&mut self.word) {
            self.switch(style)?;
            write!(self.out, "{c}")?;
        }
        self.column += std::mem::take(&mut self.word_width);
        if let Some(most) = self.width {
            // Where the terminal itself has wrapped a line.
            self.column -= (self.column.saturating_sub(1)) / most * most;
        }
        Ok(())
    }

    fn spaces_out(&mut self, style: Style) -> io::Result<()> {
        let spaces = std::mem::take(&mut self.spaces);
        if !spaces.is_empty() {
            // Between two words of the same style it stays.
            if style != self.style {
                self.switch(Style::Plain)?;
            }
            self.out.write_all(spaces.as_bytes())?;
            self.column = spaces.chars().fold(self.column, after_space);
        }
        Ok(())
    }

    fn line_out(&mut self) -> io::Result<()> {
        self.spaces.clear();
        self.switch(Style::Plain)?;
        self.column = 0;
        self.out.write_all(b"\n")
    }

    fn switch(&mut self, style: Style) -> io::Result<()> {
        if !self.colours || style == self.style {
            return Ok(());
        }
        self.style = style;
        self.out.write_all(style.code().as_bytes())
    }
}

/// The column after a space character at `column`.
fn after_space(column: usize, space: char) -> usize {
    match space {
        '\t' => (column / 8 + 1) * 8,
        _ => column + columns(space.encode_utf8(&mut [0; 4])),
    }
}

/// True if a character takes two columns.
fn is_wide(c: char) -> bool {
    columns(c.encode_utf8(&mut [0; 4])) > 1
}

/// Columns of a text.
fn columns(text: &str) -> usize {
    console::measure_text_width(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wrapped(width: usize, colours: bool, pieces: &[(&str, Style)]) -> String {
        let mut out = Vec::new();
        let mut wrap = Wrap::new(&mut out, Some(width), colours);
        for (text, style) in pieces {
            // One character at a time: chunking does not matter.
            for c in text.chars() {
                wrap.text(c.encode_utf8(&mut [0; 4]), *style).unwrap();
            }
        }
        wrap.end().unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn lines_are_broken_between_words() {
        let plain = |width, text| wrapped(width, false, &[(text, Style::Plain)]);
        assert_eq!(plain(11, "the quick brown fox"), "the quick\nbrown fox");
        assert_eq!(plain(9, "the quick brown fox"), "the quick\nbrown fox");
        assert_eq!(plain(8, "the quick brown fox"), "the\nquick\nbrown\nfox");
        // Line breaks and indentation of the text are kept.
        assert_eq!(plain(11, "a\n  - quick brown"), "a\n  - quick\nbrown");
        // A word longer than a line is broken by the terminal.
        assert_eq!(plain(5, "a abcdefghij b"), "a\nabcdefghij\nb");
        // Wide letters take two columns and may end a line.
        assert_eq!(plain(6, "犬犬犬犬"), "犬犬犬\n犬");
        assert_eq!(
            plain(6, "e\u{301}e\u{301} e\u{301}e\u{301}e\u{301}"),
            "e\u{301}e\u{301} e\u{301}e\u{301}e\u{301}"
        );
    }

    #[test]
    fn styles_end_where_they_should_and_text_cannot_make_any() {
        let styled = wrapped(80, true, &[("a ", Style::Plain), ("b c", Style::Bold), (" d", Style::Plain)]);
        assert_eq!(styled, "a \u{1b}[0;1mb c\u{1b}[0m d");
        assert_eq!(wrapped(80, true, &[("x", Style::Code)]), "\u{1b}[0;36mx\u{1b}[0m");
        assert_eq!(wrapped(80, true, &[("\u{1b}[31mred", Style::Plain)]), "␛[31mred");
        assert_eq!(wrapped(80, false, &[("x", Style::Code)]), "x");
    }
}
