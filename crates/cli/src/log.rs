//! The log: lines on standard error, plain or JSON.
//!
//! A separate thread writes them. A stderr that nobody reads, or a full disk, neither blocks nor ends the program:
//! lines that do not fit a bounded queue, or cannot be written, are dropped and counted.

use std::collections::VecDeque;
use std::fmt;
use std::io::{ErrorKind, Write};
use std::str::FromStr;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use clap::{ArgAction, Args, ValueEnum};
use serde_json::Value;
use tallow_server::LogHealth;
use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};
use tracing_subscriber::util::SubscriberInitExt;

use crate::{Failed, clock, devices, env, terminal};

/// Maximum bytes of queued lines: some thousand lines.
const QUEUE_BYTES: usize = 1 << 20;
/// Pause before a write that would block is retried.
const RETRY_PAUSE: Duration = Duration::from_millis(20);
/// Time limit for the last lines when the program ends.
const FINISH_LIMIT: Duration = Duration::from_secs(1);
/// Fields that the message of an access log line contains.
const IN_MESSAGE: [&str; 3] = ["method", "path", "status"];
/// Crates that can have a log level of their own.
fn parts() -> Vec<&'static str> {
    let parts = [
        "tallow",
        "tallow_audio",
        "tallow_core",
        "tallow_engine",
        "tallow_hub",
        "tallow_models",
        "tallow_quant",
        "tallow_server",
    ];
    let mut parts = [&parts, devices::CRATES].concat();
    parts.sort_unstable();
    parts
}

/// Levels and format of the log.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Log")]
pub(crate) struct LogArgs {
    /// Log problems only, and leave out notes
    #[arg(short, long, global = true, conflicts_with_all = ["verbose", "log_level"])]
    pub quiet: bool,
    /// Log more; with `run` show how fast it went, too. Again for still more: -vv, -vvv
    #[arg(short, long, global = true, action = ArgAction::Count, conflicts_with = "log_level")]
    pub verbose: u8,
    /// Level of the log: off, error, warn, info, debug or trace, and levels for parts of the program, as in
    /// info,tallow_server=debug [default: info for `serve`, else warn]
    #[arg(long, global = true, value_name = "LEVEL")]
    pub log_level: Option<Levels>,
    /// How to write the log [default: plain]
    #[arg(long, global = true, value_name = "FORMAT")]
    pub log_format: Option<LogFormat>,
}

/// Format of log lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum LogFormat {
    /// For people
    Plain,
    /// An object a line
    Json,
}

/// Log filter: a default level, and levels of single targets.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Levels(Targets);

impl Levels {
    fn all(level: LevelFilter) -> Levels {
        Levels(Targets::new().with_default(level))
    }
}

impl FromStr for Levels {
    type Err = String;

    fn from_str(text: &str) -> Result<Levels, String> {
        let wrong = |part: &str| {
            format!(
                "{part:?} is no level; there are off, error, warn, info, debug and trace. Parts of the program can \
                 have one of their own, as in info,tallow_server=debug"
            )
        };
        let level = |name: &str| match name.to_ascii_lowercase().as_str() {
            "off" => Ok(LevelFilter::OFF),
            "error" => Ok(LevelFilter::ERROR),
            "warn" | "warning" => Ok(LevelFilter::WARN),
            "info" => Ok(LevelFilter::INFO),
            "debug" => Ok(LevelFilter::DEBUG),
            "trace" => Ok(LevelFilter::TRACE),
            _ => Err(wrong(name)),
        };
        let mut targets = Targets::new().with_default(LevelFilter::ERROR);
        for part in text.split(',').map(str::trim) {
            targets = match part.split_once('=') {
                None => targets.with_default(level(part)?),
                Some((target, name)) => {
                    let parts = parts();
                    if !parts.contains(&target.split("::").next().unwrap_or_default()) {
                        return Err(format!("there is no part {target:?}; there are {}", parts.join(", ")));
                    }
                    targets.with_target(target, level(name)?)
                }
            };
        }
        Ok(Levels(targets))
    }
}

/// The log, once started.
static LOG: OnceLock<Log> = OnceLock::new();

struct Log {
    queue: Arc<Queue>,
    quiet: bool,
    /// True if this is a server, where nothing may block on standard error.
    serves: bool,
}

/// Starts the log. Servers log requests; other commands only problems, unless asked for more.
pub(crate) fn start(args: &LogArgs, serves: bool) -> Result<(), Failed> {
    let variable = |name: &str| env::get(name).map(|value| (name.to_owned(), value));
    let steps =
        [LevelFilter::ERROR, LevelFilter::WARN, LevelFilter::INFO, LevelFilter::DEBUG, LevelFilter::TRACE];
    let usual = if serves { 2 } else { 1 };
    let at = |step: usize| Levels::all(steps[step.min(steps.len() - 1)]);
    let refused = |(name, value): &(String, String), why: &dyn fmt::Display| {
        Failed::new(format!("the variable {name} is {value:?}: {why}"))
    };
    // Variables are parsed even where a flag takes precedence, so that invalid values are reported.
    let set = variable("TALLOW_LOG");
    let set = set.map(|set| set.1.parse::<Levels>().map_err(|why| refused(&set, &why))).transpose()?;
    let flag = match (args.quiet, usize::from(args.verbose)) {
        (true, _) => Some(at(usual - 1)),
        (false, 0) => args.log_level.clone(),
        (false, more) => Some(at(usual + more)),
    };
    let Levels(targets) = flag.or(set).unwrap_or_else(|| at(usual));
    let format = variable("TALLOW_LOG_FORMAT");
    let format = format
        .map(|set| LogFormat::from_str(&set.1, true).map_err(|_| refused(&set, &"there are plain and json")));
    let format = args.log_format.or(format.transpose()?).unwrap_or(LogFormat::Plain);

    let look = Look { format, colours: terminal::has_colours() };
    let queue = Arc::new(Queue::default());
    let writer = queue.clone();
    let out = standard_error()?;
    std::thread::Builder::new().name("tallow-log".into()).spawn(move || writer.write_all(out, look))?;
    // It is started only once.
    let _ = LOG.set(Log { queue: queue.clone(), quiet: args.quiet, serves });
    tracing_subscriber::registry().with(targets).with(Lines { queue, look }).init();
    if serves {
        // The default panic hook would block on standard error.
        std::panic::set_hook(Box::new(|panic| {
            let text = panic.payload().downcast_ref::<String>().map(String::as_str);
            let text =
                text.or_else(|| panic.payload().downcast_ref::<&str>().copied()).unwrap_or("no message");
            let place = panic.location().map(ToString::to_string).unwrap_or_default();
            let trace = std::backtrace::Backtrace::capture();
            let trace = match trace.status() {
                std::backtrace::BacktraceStatus::Captured => format!("\n{trace}"),
                _ => String::new(),
            };
            tracing::error!("an internal error, please report it: {text} at {place}{trace}");
        }));
    }
    Ok(())
}

/// True if `--quiet` is given.
pub(crate) fn is_quiet() -> bool {
    LOG.get().is_some_and(|log| log.quiet)
}

/// Health counters of the log.
pub(crate) fn health() -> Arc<LogHealth> {
    LOG.get().map(|log| log.queue.health.clone()).unwrap_or_default()
}

/// Waits until all lines are written, for at most [`FINISH_LIMIT`].
pub(crate) fn finish() {
    if let Some(log) = LOG.get() {
        log.queue.finish(FINISH_LIMIT);
    }
}

/// Writes a final message after all other lines. Errors are ignored: the program ends.
pub(crate) fn final_line(text: &str) {
    finish();
    match LOG.get().filter(|log| log.serves) {
        None => terminal::tell(text),
        Some(log) => {
            log.queue.push(format!("{text}\n").into_bytes());
            finish();
        }
    }
}

/// Standard error as a separate file: a write that blocks holds no lock that others need.
#[cfg(unix)]
fn standard_error() -> std::io::Result<impl Write + Send> {
    use std::os::fd::AsFd;
    Ok(std::fs::File::from(std::io::stderr().as_fd().try_clone_to_owned()?))
}

#[cfg(not(unix))]
fn standard_error() -> std::io::Result<impl Write + Send> {
    Ok(std::io::stderr())
}

/// Lines that wait to be written.
#[derive(Default)]
struct Queue {
    waiting: Mutex<Waiting>,
    /// Signalled when there is a line.
    more: Condvar,
    /// Signalled when there is none, and none is being written.
    none: Condvar,
    health: Arc<LogHealth>,
}

#[derive(Default)]
struct Waiting {
    lines: VecDeque<Vec<u8>>,
    bytes: usize,
    /// True if a line is being written.
    busy: bool,
}

impl Queue {
    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Queues a line; drops it if there is no room.
    fn push(&self, line: Vec<u8>) {
        let mut waiting = self.lock();
        if waiting.bytes + line.len() > QUEUE_BYTES {
            drop(waiting);
            self.health.dropped();
            return;
        }
        waiting.bytes += line.len();
        waiting.lines.push_back(line);
        self.more.notify_one();
    }

    /// Blocks until there is a line, and returns it.
    fn next(&self) -> Vec<u8> {
        let mut waiting = self.lock();
        waiting.busy = false;
        loop {
            if let Some(line) = waiting.lines.pop_front() {
                waiting.bytes -= line.len();
                waiting.busy = true;
                return line;
            }
            self.none.notify_all();
            waiting = self.more.wait(waiting).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Waits until everything is written, for at most `within`.
    fn finish(&self, within: Duration) {
        let end = Instant::now() + within;
        let mut waiting = self.lock();
        while waiting.busy || !waiting.lines.is_empty() {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            waiting = self.none.wait_timeout(waiting, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Writes lines as they come; never returns.
    fn write_all(&self, mut out: impl Write, look: Look) {
        let mut torn = false;
        loop {
            let mut line = self.next();
            self.health.begin();
            if torn {
                line.insert(0, b'\n');
            }
            match self.write(&mut out, &line) {
                Ok(()) => {
                    torn = false;
                    let dropped = self.health.written();
                    if dropped > 0 {
                        let note =
                            format!("lines of the log that could not be written before this: {dropped}");
                        let note =
                            look.line(Level::WARN, module_path!(), &Fields { message: note, all: vec![] });
                        if let Err((why, _)) = self.write(&mut out, note.as_bytes()) {
                            self.health.failed(&why);
                        }
                    }
                }
                Err((why, some)) => {
                    torn |= some;
                    self.health.failed(&why);
                }
            }
        }
    }

    /// Writes all of a text. On failure also says whether part of it was written.
    fn write(&self, out: &mut impl Write, mut text: &[u8]) -> Result<(), (std::io::Error, bool)> {
        let length = text.len();
        while !text.is_empty() {
            match out.write(text) {
                Ok(0) => return Err((ErrorKind::WriteZero.into(), text.len() < length)),
                Ok(n) => text = &text[n..],
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                // Another process that has the same file open made it non-blocking.
                Err(e) if e.kind() == ErrorKind::WouldBlock => std::thread::sleep(RETRY_PAUSE),
                Err(e) => return Err((e, text.len() < length)),
            }
        }
        Ok(())
    }
}

/// Format of log lines, and whether they have colours.
#[derive(Clone, Copy)]
struct Look {
    format: LogFormat,
    colours: bool,
}

impl Look {
    fn line(self, level: Level, target: &str, fields: &Fields) -> String {
        let now = clock::milliseconds(SystemTime::now());
        match self.format {
            LogFormat::Plain => self.plain(&now, level, fields),
            LogFormat::Json => json(&now, level, target, fields),
        }
    }

    fn plain(self, now: &str, level: Level, fields: &Fields) -> String {
        let colour = match level {
            Level::ERROR => "31",
            Level::WARN => "33",
            Level::INFO => "32",
            _ => "2",
        };
        let name = format!("{:>5}", level.as_str());
        let name = if self.colours { format!("\u{1b}[{colour}m{name}\u{1b}[0m") } else { name };
        // Continuation lines are indented, so that none can pass for a log line.
        let message = terminal::sanitized(&fields.message).replace('\n', "\n    ");
        let mut line = format!("{now} {name} {message}");
        for (field, value) in fields.all.iter().filter(|(field, _)| !IN_MESSAGE.contains(field)) {
            let value = match value {
                Value::String(text) if is_plain(text) => text.clone(),
                Value::String(text) => format!("{text:?}"),
                other => other.to_string(),
            };
            line += &format!(" {field}={value}");
        }
        line.push('\n');
        line
    }
}

/// True if a text needs no quotes as a value.
fn is_plain(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|b| b.is_ascii_graphic() && b != b'"' && b != b'=')
}

fn json(now: &str, level: Level, target: &str, fields: &Fields) -> String {
    let level = level.as_str().to_ascii_lowercase();
    let known = [("time", now.into()), ("level", level.into()), ("target", target.into())];
    let message = ("message", Value::String(fields.message.clone()));
    let all = known.iter().chain([&message]).chain(&fields.all);
    let members: Vec<String> = all.map(|(name, value)| format!("{}:{value}", Value::from(*name))).collect();
    format!("{{{}}}\n", members.join(","))
}

/// The fields of an event.
#[derive(Default)]
struct Fields {
    message: String,
    all: Vec<(&'static str, Value)>,
}

impl Visit for Fields {
    fn record_f64(&mut self, field: &Field, value: f64) {
        self.all.push((field.name(), value.into()));
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.all.push((field.name(), value.into()));
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.all.push((field.name(), value.into()));
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.all.push((field.name(), value.into()));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.all.push((field.name(), value.into()));
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        match field.name() {
            "message" => self.message = format!("{value:?}"),
            name => self.all.push((name, format!("{value:?}").into())),
        }
    }
}

/// Layer that formats events as lines.
struct Lines {
    queue: Arc<Queue>,
    look: Look,
}

impl<S: Subscriber> Layer<S> for Lines {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let (mut fields, about) = (Fields::default(), event.metadata());
        event.record(&mut fields);
        self.queue.push(self.look.line(*about.level(), about.target(), &fields).into_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event() -> Fields {
        let all = vec![
            ("path", "/x".into()),
            ("id", "a\n\u{1b}[2J\"b".into()),
            ("client", "[::1]:80".into()),
            ("tokens", 3.into()),
        ];
        Fields { message: "GET /x 200\nforged \u{7}".into(), all }
    }

    #[test]
    fn nothing_in_a_line_acts() {
        let plain = Look { format: LogFormat::Plain, colours: false }.plain("NOW", Level::WARN, &event());
        insta::assert_snapshot!(plain, @r#"
        NOW  WARN GET /x 200
            forged ␇ id="a\n\u{1b}[2J\"b" client=[::1]:80 tokens=3
        "#);
        let json = json("NOW", Level::INFO, "there", &event());
        insta::assert_snapshot!(json, @r#"{"time":"NOW","level":"info","target":"there","message":"GET /x 200\nforged \u0007","path":"/x","id":"a\n\u001b[2J\"b","client":"[::1]:80","tokens":3}"#);
    }

    #[test]
    fn levels_are_read_and_nonsense_is_refused() {
        let enabled =
            |text: &str, target: &str, level| text.parse::<Levels>().unwrap().0.would_enable(target, &level);
        assert!(enabled("debug", "tallow_engine::engine", Level::DEBUG));
        assert!(!enabled("debug", "tallow_engine::engine", Level::TRACE));
        assert!(enabled("warn, tallow_server=TRACE", "tallow_server::access", Level::TRACE));
        assert!(!enabled("warn,tallow_server=trace", "tallow", Level::INFO));
        assert!(enabled("tallow_server::access=info", "tallow", Level::ERROR));
        for wrong in
            ["garbage===", "", "info,", "loud", "tallow_server=loud", "hyper=debug", "tallow=", "=info", "3"]
        {
            let why = wrong.parse::<Levels>().unwrap_err();
            assert!(why.contains("there are"), "{wrong}: {why}");
        }
    }

    /// Writer that blocks until its gate is opened.
    #[derive(Clone, Default)]
    struct Slow(Arc<(Gate, Condvar)>);

    /// State of the gate (true: open), and the bytes written.
    type Gate = Mutex<(bool, Vec<u8>)>;

    impl Write for Slow {
        fn write(&mut self, text: &[u8]) -> std::io::Result<usize> {
            let mut state = self.0.0.lock().unwrap();
            while !state.0 {
                state = self.0.1.wait(state).unwrap();
            }
            // A partial write, as of a pipe.
            let n = text.len().min(1000);
            state.1.extend(&text[..n]);
            Ok(n)
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_log_that_is_stuck_drops_and_counts_and_goes_on() {
        let (queue, out) = (Arc::new(Queue::default()), Slow::default());
        let look = Look { format: LogFormat::Json, colours: false };
        let (writer, to) = (queue.clone(), out.clone());
        std::thread::spawn(move || writer.write_all(to, look));
        let line = |i: usize| format!("{i} {}\n", "x".repeat(10_000)).into_bytes();
        let begun = Instant::now();
        (0..1000).for_each(|i| queue.push(line(i)));
        queue.finish(Duration::from_millis(50));
        assert!(begun.elapsed() < Duration::from_secs(5), "nobody waits");
        let dropped = queue.health.total_dropped();
        assert!((800..1000).contains(&dropped), "{dropped}");
        assert!(queue.health.problem().unwrap().contains("not being read"));
        out.0.0.lock().unwrap().0 = true;
        out.0.1.notify_all();
        queue.finish(Duration::from_secs(20));
        assert_eq!(queue.health.problem(), None);
        let text = String::from_utf8(out.0.0.lock().unwrap().1.clone()).unwrap();
        let note = text.lines().nth(1).unwrap();
        let note: Value = serde_json::from_str(note).unwrap();
        assert_eq!(
            note["message"],
            format!("lines of the log that could not be written before this: {dropped}")
        );
        assert_eq!(text.lines().count() as u64, 1000 - dropped + 1);
    }

    /// Writer whose first calls fail.
    struct Full(Arc<Mutex<Vec<u8>>>, usize);

    impl Write for Full {
        fn write(&mut self, text: &[u8]) -> std::io::Result<usize> {
            self.1 += 1;
            match self.1 {
                // Part of a line, and then errors until the disk has room again.
                1 => self.0.lock().unwrap().extend(&text[..3]),
                2..=3 => return Err(ErrorKind::StorageFull.into()),
                4 => return Err(ErrorKind::WouldBlock.into()),
                _ => {
                    self.0.lock().unwrap().extend(text);
                    return Ok(text.len());
                }
            }
            Ok(3)
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_log_that_cannot_be_written_is_written_again_when_it_can() {
        let (queue, text) = (Arc::new(Queue::default()), Arc::new(Mutex::new(Vec::new())));
        let (writer, out) = (queue.clone(), Full(text.clone(), 0));
        let look = Look { format: LogFormat::Json, colours: false };
        std::thread::spawn(move || writer.write_all(out, look));
        ["first\n", "second\n", "third\n", "fourth\n"].into_iter().for_each(|line| queue.push(line.into()));
        queue.finish(Duration::from_secs(20));
        let text = String::from_utf8(text.lock().unwrap().clone()).unwrap();
        let mut lines = text.lines();
        assert_eq!((lines.next(), lines.next()), (Some("fir"), Some("third")), "{text}");
        assert!(lines.next().unwrap().contains("before this: 2"), "{text}");
        assert_eq!((lines.next(), lines.next()), (Some("fourth"), None), "{text}");
    }
}
