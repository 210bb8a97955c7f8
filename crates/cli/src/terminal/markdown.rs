//! [`Markdown`]: streaming renderer of headings, bold text and code.
//!
//! Only unambiguous markup is rendered, and only once its closing mark has arrived: a mark that is not closed, or
//! closed too far away, stays text. Nothing but the marks themselves is removed.

use std::io;

use crate::terminal::wrap::Style;

/// Maximum bytes between an opening mark and its closing mark.
const MAX_LOOKAHEAD: usize = 600;
/// Deepest heading level.
const MAX_HEADING: usize = 6;

/// Receives rendered pieces. `verbatim` text keeps its lines.
pub(crate) type Put<'a> = dyn FnMut(&str, Style, bool) -> io::Result<()> + 'a;

/// A streaming renderer.
#[derive(Debug)]
pub(crate) struct Markdown {
    /// Text held back until more of it decides how it is rendered.
    held: String,
    /// True if this is the beginning of a line.
    at_start: bool,
    /// Mark that closes the current block of code.
    fence: Option<String>,
    in_heading: bool,
    /// Last character written.
    before: char,
}

/// Marker at the start of a line.
enum Start {
    /// Undecided until more text arrives.
    Unknown,
    /// A fence: its mark, and bytes of the line with its newline.
    Fence(String, usize),
    /// A heading: bytes of its mark.
    Heading(usize),
    Text,
}

impl Markdown {
    pub(crate) fn new() -> Markdown {
        Markdown { held: String::new(), at_start: true, fence: None, in_heading: false, before: '\n' }
    }

    /// Adds text, and renders what is decided.
    pub(crate) fn push(&mut self, text: &str, put: &mut Put<'_>) -> io::Result<()> {
        self.held += text;
        while self.step(false, put)? {}
        Ok(())
    }

    /// Ends the text: renders what is held back.
    pub(crate) fn end(&mut self, put: &mut Put<'_>) -> io::Result<()> {
        while self.step(true, put)? {}
        *self = Markdown::new();
        Ok(())
    }

    /// Renders one piece; returns whether there may be more.
    fn step(&mut self, at_end: bool, put: &mut Put<'_>) -> io::Result<bool> {
        if self.held.is_empty() {
            return Ok(false);
        }
        if self.at_start {
            return self.start(at_end, put);
        }
        if self.fence.is_some() {
            let end = self.held.find('\n').map_or(self.held.len(), |at| at + 1);
            self.put(end, Style::Code, true, put)?;
            return Ok(true);
        }
        let usual = if self.in_heading { Style::Bold } else { Style::Plain };
        match self.held.find(['\n', '`', '*']) {
            None => self.put(self.held.len(), usual, false, put)?,
            Some(0) if self.held.starts_with('\n') => self.put(1, usual, false, put)?,
            Some(0) => return self.span(usual, at_end, put),
            Some(at) => self.put(at, usual, false, put)?,
        }
        Ok(true)
    }

    /// Handles the beginning of a line.
    fn start(&mut self, at_end: bool, put: &mut Put<'_>) -> io::Result<bool> {
        match line_start(&self.held, self.fence.as_deref(), at_end) {
            Start::Unknown => return Ok(false),
            Start::Fence(mark, length) => {
                self.put(length, Style::Dim, true, put)?;
                self.fence = if self.fence.is_some() { None } else { Some(mark) };
                return Ok(true);
            }
            Start::Heading(length) => {
                self.held.drain(..length);
                self.in_heading = true;
            }
            Start::Text => {}
        }
        self.at_start = false;
        Ok(true)
    }

    /// Handles a mark within a line, and the span up to its closing mark.
    fn span(&mut self, usual: Style, at_end: bool, put: &mut Put<'_>) -> io::Result<bool> {
        let held = self.held.as_str();
        let mark = &held[..held.len() - held.trim_start_matches(&held[..1]).len()];
        let (code, length) = (mark.starts_with('`'), mark.len());
        let line = held.split('\n').next().unwrap_or(held);
        // The mark itself may be incomplete.
        let open = line.len() == held.len() && held.len() <= MAX_LOOKAHEAD && !at_end;
        if held.len() == length && open {
            return Ok(false);
        }
        if !code && length != 2 {
            self.put(length, usual, false, put)?;
            return Ok(true);
        }
        let inner = &line[length..];
        match other_half(inner, mark, open) {
            // `**` after a letter or digit is mostly a power.
            Some(end) if code || is_emphasis(&inner[..end]) && !self.before.is_ascii_alphanumeric() => {
                let inner = inner[..end].to_owned();
                self.before = mark.chars().next().unwrap_or_default();
                self.held.drain(..end + 2 * length);
                match (code, usual) {
                    (true, Style::Bold) => put(trimmed_code(&inner), Style::BoldCode, false)?,
                    (true, _) => put(trimmed_code(&inner), Style::Code, false)?,
                    (false, _) => bold(&inner, put)?,
                }
            }
            None if open && (code || !inner.starts_with(char::is_whitespace)) => return Ok(false),
            _ => self.put(length, usual, false, put)?,
        }
        Ok(true)
    }

    /// Writes the first `length` bytes of the held text.
    fn put(&mut self, length: usize, style: Style, verbatim: bool, put: &mut Put<'_>) -> io::Result<()> {
        let rest = self.held.split_off(length);
        let text = std::mem::replace(&mut self.held, rest);
        self.at_start = text.ends_with('\n');
        self.in_heading &= !self.at_start;
        self.before = text.chars().next_back().unwrap_or(self.before);
        put(&text, style, verbatim)
    }
}

/// Position of the closing mark, which is a run of the same length. `open`: more of the line may come.
fn other_half(inner: &str, mark: &str, open: bool) -> Option<usize> {
    let mut from = 0;
    while let Some(at) = inner[from..].find(mark) {
        let at = from + at;
        let rest = &inner[at..];
        let run = rest.len() - rest.trim_start_matches(&mark[..1]).len();
        // A run at the end of the received text may go on.
        let whole = run < rest.len() || !open;
        if run == mark.len() && whole {
            return Some(at).filter(|at| (1..=MAX_LOOKAHEAD).contains(at));
        }
        from = at + run;
    }
    None
}

/// True if that can be emphasis: not empty, and no whitespace at either end.
fn is_emphasis(inner: &str) -> bool {
    let space = char::is_whitespace;
    !inner.is_empty() && !inner.starts_with(space) && !inner.ends_with(space)
}

/// Strips the spaces that separate backticks at the edges of a code span from its marks.
fn trimmed_code(inner: &str) -> &str {
    let stripped = inner.strip_prefix(' ').and_then(|inner| inner.strip_suffix(' '));
    stripped.filter(|inner| inner.starts_with('`') || inner.ends_with('`')).unwrap_or(inner)
}

/// Bold text, which may contain code spans.
fn bold(inner: &str, put: &mut Put<'_>) -> io::Result<()> {
    let parts: Vec<&str> = inner.split('`').collect();
    // Unpaired backticks stay text.
    if parts.len().is_multiple_of(2) {
        return put(inner, Style::Bold, false);
    }
    let styled = parts.iter().zip([Style::Bold, Style::BoldCode].into_iter().cycle());
    styled.filter(|(text, _)| !text.is_empty()).try_for_each(|(text, style)| put(text, style, false))
}

/// Marker at the start of a line; `held` is as much of it as has arrived. In a code block only the closing fence counts.
fn line_start(held: &str, fence: Option<&str>, at_end: bool) -> Start {
    let (line, whole) = held.split_once('\n').map_or((held, at_end), |(line, _)| (line, true));
    let length = held.find('\n').map_or(held.len(), |at| at + 1);
    let text = line.trim_start();
    // Longer indentation is not a fence.
    if !whole && text.is_empty() && line.len() <= MAX_LOOKAHEAD {
        return Start::Unknown;
    }
    let first = text.get(..1).unwrap_or("");
    let run = text.chars().take_while(|c| first.starts_with(*c)).count();
    if let Some(mark) = fence {
        let may_end = mark.starts_with(first) && !first.is_empty();
        return match (may_end, whole) {
            (true, true) if run >= mark.len() && text[run..].trim().is_empty() => {
                Start::Fence(mark.to_owned(), length)
            }
            (true, false) if text[run..].trim().is_empty() && line.len() <= MAX_LOOKAHEAD => Start::Unknown,
            _ => Start::Text,
        };
    }
    match first {
        "`" | "~" if run < 3 => {
            if !whole && run == text.len() {
                Start::Unknown
            } else {
                Start::Text
            }
        }
        // A run of backticks with others behind it on the line is an inline code span.
        "`" | "~" if text[run..].contains(first) => Start::Text,
        "`" | "~" if whole => Start::Fence(text[..run].to_owned(), length),
        "`" | "~" if line.len() <= MAX_LOOKAHEAD => Start::Unknown,
        "#" if run <= MAX_HEADING && text[run..].trim().is_empty() && !whole => Start::Unknown,
        "#" if run <= MAX_HEADING && text[run..].starts_with(' ') => {
            Start::Heading(line.len() - text[run..].trim_start().len())
        }
        _ => Start::Text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A text with its styles written as tags; checked to be the same however the text is chunked.
    fn rendered(text: &str) -> String {
        let whole = in_pieces(text, usize::MAX);
        for size in [1, 2, 3, 5, 7] {
            assert_eq!(in_pieces(text, size), whole, "{size} characters at a time");
        }
        whole
    }

    fn in_pieces(text: &str, size: usize) -> String {
        let mut runs: Vec<(String, Style)> = Vec::new();
        let mut put = |text: &str, style: Style, _: bool| {
            match runs.last_mut().filter(|(_, last)| *last == style) {
                Some((run, _)) => *run += text,
                None => runs.push((text.to_owned(), style)),
            }
            Ok(())
        };
        let mut markdown = Markdown::new();
        let chars: Vec<char> = text.chars().collect();
        for piece in chars.chunks(size.min(chars.len().max(1))) {
            markdown.push(&piece.iter().collect::<String>(), &mut put).unwrap();
        }
        markdown.end(&mut put).unwrap();
        let tag = |style| match style {
            Style::Plain => "",
            Style::Bold => "b",
            Style::Code => "c",
            Style::BoldCode => "bc",
            Style::Dim => "d",
        };
        let written = |(text, style): &(String, Style)| match tag(*style) {
            "" => text.clone(),
            tag => format!("<{tag}>{text}</{tag}>"),
        };
        runs.iter().map(written).collect()
    }

    #[test]
    fn marks_become_styles() {
        assert_eq!(rendered("a **bold** word and `code()`."), "a <b>bold</b> word and <c>code()</c>.");
        assert_eq!(rendered("# Title\ntext"), "<b>Title\n</b>text");
        assert_eq!(rendered("**the `ls` command**"), "<b>the </b><bc>ls</bc><b> command</b>");
        assert_eq!(rendered("``a ` b``"), "<c>a ` b</c>");
        assert_eq!(
            rendered("so:\n```rust\nlet x = **y; // `z`\n```\n**done**"),
            "so:\n<d>```rust\n</d><c>let x = **y; // `z`\n</c><d>```\n</d><b>done</b>"
        );
        assert_eq!(
            rendered("1. x\n   ```\n   a\n   ```\nb"),
            "1. x\n<d>   ```\n</d><c>   a\n</c><d>   ```\n</d>b"
        );
    }

    #[test]
    fn what_is_no_mark_stays() {
        for text in [
            "2 ** 3 and 2**3",
            "* an item\n* another",
            "a lonely ` here\nand ` there",
            "***",
            "#hashtag and #1",
            "####### seven",
            "** not bold **",
            "a*b*c",
            "2**3 and 4**5",
            "``` is a fence, ``` is not",
            "an end in the middle **of",
            "C:\\`",
            "",
            "\n\n\n",
            "日本**語",
        ] {
            let seen = rendered(text);
            assert!(!seen.contains("<b>"), "{seen}");
            assert_eq!(seen.replace("<c>", "```").replace("</c>", "```"), text);
        }
        let far = format!("**{}** b", "x".repeat(2 * MAX_LOOKAHEAD));
        assert_eq!(in_pieces(&far, 1), far);
    }
}
