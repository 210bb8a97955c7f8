//! [`View`]: an answer on its way to the user.
//!
//! In a pipe it is the answer and nothing else. On a terminal lines are broken between words, Markdown is rendered,
//! thinking is shown dimmed, and a long prompt shows how far it has got.

use std::io::{self, IsTerminal, Stdout, Write};
use std::time::{Duration, Instant};

use indicatif::ProgressBar;

use crate::chat::News;
use crate::commands::counted;
use crate::markdown::Markdown;
use crate::terminal;
use crate::wrap::{Style, Wrap};

/// A prompt that takes longer shows how far it has got.
const PATIENCE: Duration = Duration::from_secs(1);

/// How answers are shown on a terminal.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Looks {
    /// Render Markdown.
    pub markdown: bool,
    /// Break lines between words.
    pub wraps: bool,
    /// Keep thinking to itself.
    pub hides_thinking: bool,
}

/// What is on the screen so far.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Part {
    Nothing,
    Thinking,
    Answer,
}

/// See the [module](self).
pub(crate) struct View {
    out: Out,
    looks: Looks,
    /// The prompt, if it is to stand in front of the answer.
    echo: Option<String>,
    part: Part,
    bar: Option<ProgressBar>,
    began: Instant,
    /// Messages that have left the context while the answer was shown.
    rolled: usize,
}

enum Out {
    Pipe(Stdout),
    Terminal(Wrap<Stdout>, Option<Markdown>),
}

impl View {
    /// For one answer, behind its prompt if there is one to echo.
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
        View { out, looks, echo, part: Part::Nothing, bar: None, began: Instant::now(), rolled: 0 }
    }

    /// Shows what has happened.
    pub(crate) fn tell(&mut self, news: News<'_>) -> io::Result<()> {
        match news {
            News::Prefill { computed, total } => self.prefill(computed, total),
            News::Rolled(messages) if self.part == Part::Nothing => note_rolled(messages),
            News::Rolled(messages) => self.rolled += messages,
            News::Thought(text) => return self.thought(text),
            News::Answer(text) => return self.answer(text),
        }
        Ok(())
    }

    /// The end of the answer, whatever ended it: the cursor is at the beginning of a line.
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
        self.part = Part::Nothing;
        Ok(())
    }

    /// Has anything of the answer been shown?
    pub(crate) fn has_begun(&self) -> bool {
        self.part != Part::Nothing
    }

    /// There is no answer: nothing is shown, not even the prompt.
    pub(crate) fn abandon(&mut self) {
        self.clear_bar();
        self.echo = None;
    }

    /// Nobody looks at a bar in a pipe, and indicatif draws none.
    fn prefill(&mut self, computed: usize, total: usize) {
        if computed >= total || self.part != Part::Nothing {
            self.clear_bar();
        } else if self.bar.is_some() || self.began.elapsed() >= PATIENCE {
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
        if self.part != Part::Thinking {
            wrap.text("Thinking …\n", Style::Dim)?;
        }
        self.part = Part::Thinking;
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
                if self.part == Part::Thinking {
                    wrap.text("\n… done thinking.\n\n", Style::Dim)?;
                }
                let mut put = |text: &str, style, verbatim| put(wrap, text, style, verbatim);
                match markdown {
                    Some(markdown) => markdown.push(text, &mut put)?,
                    None => put(text, Style::Plain, false)?,
                }
            }
        }
        self.part = Part::Answer;
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
