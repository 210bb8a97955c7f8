//! [`Markdown`]: headings, bold text and code of an answer that comes in pieces.
//!
//! Only what cannot be mistaken is taken for markup, and only once its end is there: a mark without its other half, or
//! whose other half is far, stays as it is. Nothing of the text is lost but the marks themselves.

use std::io;

use crate::wrap::Style;

/// Bytes between a mark and its other half at most.
const FAR: usize = 600;
/// The deepest heading.
const DEEPEST: usize = 6;

/// Where a rendered piece goes. `verbatim` text keeps its lines.
pub(crate) type Put<'a> = dyn FnMut(&str, Style, bool) -> io::Result<()> + 'a;

/// A renderer.
#[derive(Debug)]
pub(crate) struct Markdown {
    /// Text that the next piece may decide about.
    held: String,
    /// Is it at the beginning of a line?
    at_start: bool,
    /// The mark that ends a block of code, while there is one.
    fence: Option<String>,
    in_heading: bool,
    /// The last character that went out.
    before: char,
}

/// What a line begins with.
enum Start {
    /// More has to be seen.
    Unknown,
    /// A fence: its mark, and the length of the line with its end.
    Fence(String, usize),
    /// A heading: bytes of its mark.
    Heading(usize),
    Text,
}

impl Markdown {
    pub(crate) fn new() -> Markdown {
        Markdown { held: String::new(), at_start: true, fence: None, in_heading: false, before: '\n' }
    }

    /// More text.
    pub(crate) fn push(&mut self, text: &str, put: &mut Put<'_>) -> io::Result<()> {
        self.held += text;
        while self.step(false, put)? {}
        Ok(())
    }

    /// The end of the text.
    pub(crate) fn end(&mut self, put: &mut Put<'_>) -> io::Result<()> {
        while self.step(true, put)? {}
        *self = Markdown::new();
        Ok(())
    }

    /// Renders something; is there more?
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

    /// The beginning of a line.
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

    /// A mark in the middle of a line, and what is between it and its other half.
    fn span(&mut self, usual: Style, at_end: bool, put: &mut Put<'_>) -> io::Result<bool> {
        let held = self.held.as_str();
        let mark = &held[..held.len() - held.trim_start_matches(&held[..1]).len()];
        let (code, length) = (mark.starts_with('`'), mark.len());
        let line = held.split('\n').next().unwrap_or(held);
        // The mark itself may not be whole yet.
        let open = line.len() == held.len() && held.len() <= FAR && !at_end;
        if held.len() == length && open {
            return Ok(false);
        }
        if !code && length != 2 {
            self.put(length, usual, false, put)?;
            return Ok(true);
        }
        let inner = &line[length..];
        match other_half(inner, mark, open) {
            // Within a word of letters it is mostly a power.
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

    /// Puts out the first so many bytes.
    fn put(&mut self, length: usize, style: Style, verbatim: bool, put: &mut Put<'_>) -> io::Result<()> {
        let rest = self.held.split_off(length);
        let text = std::mem::replace(&mut self.held, rest);
        self.at_start = text.ends_with('\n');
        self.in_heading &= !self.at_start;
        self.before = text.chars().next_back().unwrap_or(self.before);
        put(&text, style, verbatim)
    }
}

/// Where the other half of a mark is, as a run of the same length. `open`: more of the line may come.
fn other_half(inner: &str, mark: &str, open: bool) -> Option<usize> {
    let mut from = 0;
    while let Some(at) = inner[from..].find(mark) {
        let at = from + at;
        let rest = &inner[at..];
        let run = rest.len() - rest.trim_start_matches(&mark[..1]).len();
        // A run at the end of what there is may go on.
        let whole = run < rest.len() || !open;
        if run == mark.len() && whole {
            return Some(at).filter(|at| (1..=FAR).contains(at));
        }
        from = at + run;
    }
    None
}

/// Is that something that people emphasise?
fn is_emphasis(inner: &str) -> bool {
    let space = char::is_whitespace;
    !inner.is_empty() && !inner.starts_with(space) && !inner.ends_with(space)
}

/// Code that begins or ends with a backtick has a space beside it.
fn trimmed_code(inner: &str) -> &str {
    let stripped = inner.strip_prefix(' ').and_then(|inner| inner.strip_suffix(' '));
    stripped.filter(|inner| inner.starts_with('`') || inner.ends_with('`')).unwrap_or(inner)
}

/// Bold text, in which there may be code.
fn bold(inner: &str, put: &mut Put<'_>) -> io::Result<()> {
    let parts: Vec<&str> = inner.split('`').collect();
    // Backticks without their other half stay.
    if parts.len().is_multiple_of(2) {
        return put(inner, Style::Bold, false);
    }
    let styled = parts.iter().zip([Style::Bold, Style::BoldCode].into_iter().cycle());
    styled.filter(|(text, _)| !text.is_empty()).try_for_each(|(text, style)| put(text, style, false))
}

/// What a line begins with, of which `held` is the beginning. In a block of code only its end counts.
fn line_start(held: &str, fence: Option<&str>, at_end: bool) -> Start {
    let (line, whole) = held.split_once('\n').map_or((held, at_end), |(line, _)| (line, true));
    let length = held.find('\n').map_or(held.len(), |at| at + 1);
    let text = line.trim_start();
    // What is longer is no fence.
    if !whole && text.is_empty() && line.len() <= FAR {
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
            (true, false) if text[run..].trim().is_empty() && line.len() <= FAR => Start::Unknown,
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
        // Three backticks with others behind them on the line are code within it.
        "`" | "~" if text[run..].contains(first) => Start::Text,
        "`" | "~" if whole => Start::Fence(text[..run].to_owned(), length),
        "`" | "~" if line.len() <= FAR => Start::Unknown,
        "#" if run <= DEEPEST && text[run..].trim().is_empty() && !whole => Start::Unknown,
        "#" if run <= DEEPEST && text[run..].starts_with(' ') => {
            Start::Heading(line.len() - text[run..].trim_start().len())
        }
        _ => Start::Text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A text with its styles written as tags; however it is cut, the same.
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
        let far = format!("**{}** b", "x".repeat(2 * FAR));
        assert_eq!(in_pieces(&far, 1), far);
    }
}
