//! Terminal output: sanitized text, colours, progress bars.

pub(crate) mod markdown;
pub(crate) mod wrap;

use std::borrow::Cow;
use std::io::{IsTerminal, Write};

use indicatif::{ProgressBar, ProgressStyle};

use crate::env;

/// Sanitizes text from a file, a model or a server for a terminal: control characters other than newlines and tabs are
/// replaced by visible ones.
pub(crate) fn sanitized(text: &str) -> Cow<'_, str> {
    let is_control = |c: char| c.is_control() && c != '\n' && c != '\t';
    // Bidi controls can make text look like other text.
    let is_bidi = |c: char| matches!(c, '\u{202A}'..='\u{202E}' | '\u{2066}'..='\u{2069}');
    if !text.chars().any(|c| is_control(c) || is_bidi(c)) {
        return Cow::Borrowed(text);
    }
    let shown = |c: char| match c {
        c if is_control(c) && (c as u32) < 0x20 => char::from_u32(0x2400 + c as u32).unwrap_or('?'),
        c if is_control(c) || is_bidi(c) => '\u{FFFD}',
        c => c,
    };
    Cow::Owned(text.chars().map(shown).collect())
}

/// `1 file`, `2 files`
pub(crate) fn counted(n: usize, what: &str) -> String {
    format!("{n} {what}{}", if n == 1 { "" } else { "s" })
}

/// True if text there may have colours.
pub(crate) fn colours_on(out: &impl IsTerminal) -> bool {
    out.is_terminal() && env::get("NO_COLOR").is_none() && env::get("TERM").is_none_or(|term| term != "dumb")
}

/// True if text on standard error may have colours.
pub(crate) fn has_colours() -> bool {
    colours_on(&std::io::stderr())
}

/// Columns of the terminal on standard output.
pub(crate) fn width() -> Option<usize> {
    console::Term::stdout().size_checked().map(|(_, columns)| usize::from(columns))
}

/// Writes a line to standard error; errors are ignored.
pub(crate) fn tell(text: &str) {
    let _ = writeln!(std::io::stderr(), "{text}");
}

/// Does what [`tell`] does, without a newline.
pub(crate) fn tell_here(text: &str) {
    let mut err = std::io::stderr();
    let _ = err.write_all(text.as_bytes()).and_then(|()| err.flush());
}

fn coloured(text: &str, code: &str) -> String {
    match has_colours() {
        true => format!("\u{1b}[{code}m{text}\u{1b}[0m"),
        false => text.to_owned(),
    }
}

pub(crate) fn red(text: &str) -> String {
    coloured(text, "1;31")
}

pub(crate) fn dim(text: &str) -> String {
    coloured(text, "2")
}

/// Below this many bytes of weights, loading is too fast for a progress bar.
const QUICK: usize = 64 << 20;

/// Progress bar of bytes; hidden in a pipe.
pub(crate) fn bytes_bar(total: u64, what: &str) -> ProgressBar {
    bar(total, what, "{msg} [{bar:30}] {bytes}/{total_bytes} {bytes_per_sec} {eta}")
}

/// Progress bar of a model's weights, unless they are loaded too fast for one.
pub(crate) fn loading_bar(bytes: usize) -> ProgressBar {
    match bytes {
        0..QUICK => ProgressBar::hidden(),
        _ => bytes_bar(bytes as u64, "loading"),
    }
}

/// As [`bytes_bar`], with the first `done` bytes there before: the speed is that of the others.
pub(crate) fn resumed_bar(total: u64, done: u64, what: &str) -> ProgressBar {
    let bar = bytes_bar(total, what);
    bar.set_position(done);
    bar.tick();
    bar.reset_eta();
    bar
}

/// Progress bar of items.
pub(crate) fn count_bar(total: u64, what: &str) -> ProgressBar {
    bar(total, what, "{msg} [{bar:30}] {pos}/{len} {eta}")
}

/// Spinner for work of unknown duration.
pub(crate) fn spinner(what: &str) -> ProgressBar {
    let style = ProgressStyle::with_template("{spinner} {msg} {elapsed}");
    let style = style.unwrap_or_else(|_| ProgressStyle::default_spinner());
    ProgressBar::new_spinner().with_style(style).with_message(what.to_owned())
}

/// Progress bar without an ETA, for a few items of which each may take minutes.
pub(crate) fn slow_bar() -> ProgressBar {
    bar(0, "", "{msg} ({pos}/{len} done, {elapsed})")
}

fn bar(total: u64, what: &str, style: &str) -> ProgressBar {
    let style = ProgressStyle::with_template(style).unwrap_or_else(|_| ProgressStyle::default_bar());
    let bar = ProgressBar::new(total).with_style(style.progress_chars("=> "));
    bar.with_message(sanitized(what).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_there_before_is_no_speed() {
        let bar = resumed_bar(20 << 30, 10 << 30, "m.gguf");
        bar.set_draw_target(indicatif::ProgressDrawTarget::hidden());
        std::thread::sleep(std::time::Duration::from_millis(50));
        bar.set_position((10 << 30) + 1000);
        bar.tick();
        // 1000 bytes in 50 ms at the fastest.
        assert!(bar.per_sec() < 100_000.0, "{}", bar.per_sec());
        assert_eq!(bar.position(), (10 << 30) + 1000);
    }

    #[test]
    fn control_characters_are_shown_and_not_obeyed() {
        assert_eq!(sanitized("plain\ttext\n"), "plain\ttext\n");
        assert_eq!(sanitized("\u{1b}[2Jgone\r\u{7f}\u{202e}"), "␛[2Jgone␍\u{FFFD}\u{FFFD}");
    }
}
