//! [`View`]: shows an answer to the user.
//!
//! In a pipe only the answer is written. On a terminal lines are wrapped between words, Markdown is rendered, thinking
//! is dimmed, and a long prefill has a progress bar.

use std::io::{self, IsTerminal, Stdout, Write};
use std::time::{Duration, Instant};

use indicatif::ProgressBar;

use crate::chat::News;
use crate::chat::flags::ChatArgs;
use crate::terminal::markdown::Markdown;
use crate::terminal::wrap::{Style, Wrap};
use crate::terminal::{self, counted};

/// A longer prefill shows a progress bar.
const BAR_DELAY: Duration = Duration::from_secs(1);

/// Display settings of answers on a terminal.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Looks {
    /// Render Markdown.
    pub markdown: bool,
    /// Wrap lines between words.
    pub wraps: bool,
    /// Do not show thinking.
    pub hides_thinking: bool,
}

impl Looks {
    /// As the flags say; `templated`: whether the model has a chat template.
    pub(crate) fn new(flags: &ChatArgs, templated: bool) -> Looks {
        let (wraps, hides_thinking) = (!flags.plain, flags.hide_thinking);
        // A model without a template continues the user's own text, which need not be Markdown.
        Looks { markdown: wraps && templated, wraps, hides_thinking }
    }
}

/// Part of the answer that was shown last.
#[derive(Clone, Copy, PartialEq, Eq)]
enum LastShown {
    Nothing,
    Thinking,
    Answer,
}

/// See the [module](self).
pub(crate) struct View {
    out: Out,
    looks: Looks,
    /// Prompt to be shown in front of the answer.
    echo: Option<String>,
    part: LastShown,
    bar: Option<ProgressBar>,
    began: Instant,
    /// Messages that were dropped from the context while the answer was shown.
    rolled: usize,
}

enum Out {
    Pipe(Stdout),
    Terminal(Wrap<Stdout>, Option<Markdown>),
}

impl View {
    /// For one answer, after its prompt if there is one to echo.
    pub(crate) fn new(looks: Looks, echo: Option<String>) -> View {
        let out = io::stdout();
        let out = if out.is_terminal() {
            let width = terminal::width().filter(|_| looks.wraps);
            let colours = terminal::colours_on(&out);
            let markdown = (looks.markdown && colours).then(Markdown::new);
            Out::Terminal(Wrap::new(out, width, colours), markdown)
        } else {
            Out::Pipe(out)
        };
        View { out, looks, echo, part: LastShown::Nothing, bar: None, began: Instant::now(), rolled: 0 }
    }

    /// Shows an event.
    pub(crate) fn tell(&mut self, news: News<'_>) -> io::Result<()> {
        match news {
            News::Prefill { computed, total } => self.prefill(computed, total),
            News::Rolled(messages) if self.part == LastShown::Nothing => note_rolled(messages),
            News::Rolled(messages) => self.rolled += messages,
            News::Thought(text) => return self.thought(text),
            News::Answer(text) => return self.answer(text),
        }
        Ok(())
    }

    /// Ends the answer, whatever ended it: the cursor is left at the beginning of a line.
    pub(crate) fn end(&mut self) -> io::Result<()> {
        self.clear_bar();
        self.echo_prompt()?;
        match &mut self.out {
            Out::Pipe(out) => {
                out.write_all(b"\n")?;
                out.flush()?;
            }
            Out::Terminal(wrap, markdown) => {
                if let Some(markdown) = markdown {
                    markdown.end(&mut |text, style, verbatim| put(wrap, text, style, verbatim))?;
                }
                wrap.end()?;
                if !wrap.at_start() {
                    wrap.text("\n", Style::Plain)?;
                }
            }
        }
        match std::mem::take(&mut self.rolled) {
            0 => {}
            messages => note_rolled(messages),
        }
        self.part = LastShown::Nothing;
        Ok(())
    }

    /// True if anything of the answer has been shown.
    pub(crate) fn has_begun(&self) -> bool {
        self.part != LastShown::Nothing
    }

    /// Ends without an answer: nothing is shown, not even the prompt.
    pub(crate) fn abandon(&mut self) {
        self.clear_bar();
        self.echo = None;
    }

    /// Shows prefill progress; in a pipe indicatif draws no bar.
    fn prefill(&mut self, computed: usize, total: usize) {
        if computed >= total || self.part != LastShown::Nothing {
            self.clear_bar();
        } else if self.bar.is_some() || self.began.elapsed() >= BAR_DELAY {
            let new = || terminal::count_bar(total as u64, "reading the prompt");
            self.bar.get_or_insert_with(new).set_position(computed as u64);
        }
    }

    fn clear_bar(&mut self) {
        if let Some(bar) = self.bar.take() {
            bar.finish_and_clear();
        }
    }

    fn echo_prompt(&mut self) -> io::Result<()> {
        let Some(prompt) = self.echo.take() else { return Ok(()) };
        match &mut self.out {
            Out::Pipe(out) => out.write_all(prompt.as_bytes()),
            Out::Terminal(wrap, _) => wrap.text(&prompt, Style::Plain),
        }
    }

    fn thought(&mut self, text: &str) -> io::Result<()> {
        let Out::Terminal(wrap, _) = &mut self.out else { return Ok(()) };
        if self.looks.hides_thinking {
            self.bar.get_or_insert_with(|| terminal::spinner("thinking")).tick();
            return Ok(());
        }
        if self.part != LastShown::Thinking {
            wrap.text("Thinking …\n", Style::Dim)?;
        }
        self.part = LastShown::Thinking;
        wrap.text(text, Style::Dim)
    }

    fn answer(&mut self, text: &str) -> io::Result<()> {
        self.clear_bar();
        self.echo_prompt()?;
        match &mut self.out {
            Out::Pipe(out) => {
                out.write_all(text.as_bytes())?;
                out.flush()?;
            }
            Out::Terminal(wrap, markdown) => {
                if self.part == LastShown::Thinking {
                    wrap.text("\n… done thinking.\n\n", Style::Dim)?;
                }
                let mut put = |text: &str, style, verbatim| put(wrap, text, style, verbatim);
                match markdown {
                    Some(markdown) => markdown.push(text, &mut put)?,
                    None => put(text, Style::Plain, false)?,
                }
            }
        }
        self.part = LastShown::Answer;
        Ok(())
    }
}

fn put(wrap: &mut Wrap<Stdout>, text: &str, style: Style, verbatim: bool) -> io::Result<()> {
    if verbatim { wrap.verbatim(text, style) } else { wrap.text(text, style) }
}

fn note_rolled(messages: usize) {
    let what = counted(messages, "message");
    let text = format!("(context full: the model no longer sees the oldest {what})");
    terminal::tell(&terminal::dim(&text));
}
