//! The interactive chat, driven through a pseudo-terminal.

#![cfg(target_os = "linux")]

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::FromRawFd;
use std::os::unix::process::CommandExt;
use std::process::{Child, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Instant;

use crate::common::Home;
use tallow_support::PATIENCE;

/// A program running on a pseudo-terminal.
struct Terminal {
    child: Child,
    keys: File,
    screen: Receiver<Vec<u8>>,
    seen: String,
}

impl Terminal {
    fn start(home: &Home, args: &[&str]) -> Terminal {
        let mut command = home.command(args);
        command.env("TERM", "xterm").env("NO_COLOR", "1");
        Terminal::of(command, 0)
    }

    /// Starts a program on a terminal with `columns` columns; 0 leaves the size unset.
    fn of(mut command: std::process::Command, columns: u16) -> Terminal {
        let (mut ours, mut theirs) = (0, 0);
        let (name, how) = (std::ptr::null_mut(), std::ptr::null());
        let size = libc::winsize { ws_row: 50, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
        // SAFETY: both descriptor pointers and the window size are valid for the call; null name and termios select the
        // defaults.
        assert_eq!(unsafe { libc::openpty(&mut ours, &mut theirs, name, how, &size) }, 0);
        // SAFETY: `openpty` has just opened both descriptors, and nothing else owns them. Programs that inherited the
        // terminal's other end would keep it open for good.
        let (ours, theirs) = unsafe {
            for descriptor in [ours, theirs] {
                assert_eq!(libc::fcntl(descriptor, libc::F_SETFD, libc::FD_CLOEXEC), 0);
            }
            (File::from_raw_fd(ours), File::from_raw_fd(theirs))
        };
        let copy = || Stdio::from(theirs.try_clone().unwrap());
        let (input, output, error) = (copy(), copy(), copy());
        // SAFETY: between fork and exec the closure makes plain system calls only: it does not allocate or lock. They
        // make the pty the controlling terminal and restore SIGHUP's default, which under nohup would be ignored.
        unsafe {
            command.pre_exec(|| {
                libc::signal(libc::SIGHUP, libc::SIG_DFL);
                libc::setsid();
                match libc::ioctl(0, libc::TIOCSCTTY, 0) {
                    0 => Ok(()),
                    _ => Err(std::io::Error::last_os_error()),
                }
            });
        }
        let child = command.stdin(input).stdout(output).stderr(error).spawn().unwrap();
        let (sender, screen) = channel();
        let mut reader = ours.try_clone().unwrap();
        std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(n) = reader.read(&mut bytes) {
                if n == 0 || sender.send(bytes[..n].to_vec()).is_err() {
                    break;
                }
            }
        });
        Terminal { child, keys: ours, screen, seen: String::new() }
    }

    /// Output up to and including `text`.
    fn until(&mut self, text: &str) -> String {
        let begun = Instant::now();
        loop {
            if let Some(at) = self.seen.find(text) {
                let rest = self.seen.split_off(at + text.len());
                return std::mem::replace(&mut self.seen, rest);
            }
            match self.screen.recv_timeout(PATIENCE.saturating_sub(begun.elapsed())) {
                Ok(bytes) => self.seen += &String::from_utf8_lossy(&bytes),
                Err(_) => panic!("{text:?} did not come, but this:\n{}", self.seen),
            }
        }
    }

    fn keys(&mut self, keys: &str) {
        self.keys.write_all(keys.as_bytes()).unwrap();
    }

    /// Types a line at the prompt and returns the output up to the next prompt.
    fn line(&mut self, line: &str) -> String {
        self.keys(&format!("{line}\r"));
        self.until(PROMPT)
    }
}

/// No program outlives its test, whether that ended the chat, failed, or left it at the prompt.
impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

const PROMPT: &str = ">>> ";
const MORE: &str = "... ";
/// Ctrl-C and Ctrl-D.
const STOP: &str = "\u{3}";
const END: &str = "\u{4}";

/// Makes an answer take seconds, so that there is time to interrupt it.
const SLOWLY: [&str; 6] = ["-n", "1900", "--isa", "scalar", "--arithmetic", "exact"];

#[test]
fn a_chat_from_the_first_line_to_the_last() {
    let home = Home::new();
    let mut t = Terminal::start(&home, &[&["run", "demo", "--seed", "1"], &SLOWLY[..]].concat());
    assert!(t.until(PROMPT).contains("cpu: weights"));
    // Interrupting an answer does not end the chat.
    t.keys("Story time\r");
    t.until(" was ");
    t.keys(STOP);
    t.until("(stopped)");
    t.until(PROMPT);
    assert!(t.line("/set max-tokens 8").contains("max-tokens is 8"));
    assert!(t.line("There was a king").contains("There was a king"));
    // Multi-line text, in both notations.
    for line in ["\"\"\"", "first line"] {
        t.keys(&format!("{line}\r"));
        t.until(MORE);
    }
    t.line("second line\"\"\"");
    t.keys("third \\\r");
    t.until(MORE);
    t.line("fourth");
    let shown = t.line("/show");
    for part in [
        "[user] Story time",
        "[user] first line\r\nsecond line\r\n[assistant]",
        "third \r\nfourth",
        "max-tokens 8",
    ] {
        assert!(shown.contains(part), "{part:?} is not in {shown}");
    }
    assert!(t.line("/save chat.json").contains("saved to chat.json"));
    // An existing file is not overwritten unless asked, and `~` is the home folder.
    let said = t.line("/save ~/chat.json");
    assert!(said.contains("~/chat.json is there already; /save! ~/chat.json replaces it"), "{said}");
    assert!(t.line("/save! ~/chat.json").contains("saved to ~/chat.json"));
    assert!(t.line("/clear").contains("forgotten"));
    assert!(!t.line("/show").contains("[user]"));
    assert!(t.line("/load chat.json").contains("8 messages"));
    assert!(t.line("/show").contains("[user] There was a king"));
    // Errors are reported, and the chat is kept.
    for (line, why) in [
        (
            "/load nothing.json",
            "nothing.json: there is no such file or folder; /load reads what /save has written",
        ),
        ("/set temperature cold", "temperature \"cold\": a number is expected"),
        ("/set top-k -3", "top-k \"-3\": a whole number is expected"),
        ("/set context 4000", "context 4000: from 1 to 1024, which is this model's own limit"),
        ("/set think", "this model's chat template has no variable for how much to think"),
        ("/set temperature -1", "temperature is -1; 0 to 100 make sense"),
        ("/set mood good", "there is no setting \"mood\"; /set lists those there are"),
        (
            "/dance",
            "there is no /dance; /help shows what there is. To say it to the model, begin the line with a space",
        ),
        ("/save", "/save needs a file"),
    ] {
        let said = t.line(line);
        assert!(said.contains(why), "{said}");
    }
    assert!(t.line("/help").contains("/bye"));
    // At the prompt Ctrl-C prints how to leave, also the second time.
    for _ in 0..2 {
        t.keys(STOP);
        t.until("/bye or Ctrl-D leaves.");
        t.until(PROMPT);
    }
    t.keys(END);
    assert_eq!(t.child.wait().unwrap().code(), Some(0));
    // Line history is kept for the next chat.
    let mut t = Terminal::start(&home, &["run", "demo"]);
    t.until(PROMPT);
    t.keys("\u{1b}[A");
    t.until("/help");
    t.keys(STOP);
    t.until(PROMPT);
    t.keys("/bye\r");
    assert_eq!(t.child.wait().unwrap().code(), Some(0));
}

/// Outside of a chat Ctrl-C ends the program as usual.
#[test]
fn one_question_can_be_stopped() {
    let home = Home::new();
    let mut t = Terminal::start(&home, &[&["run", "demo", "Story time"], &SLOWLY[..]].concat());
    t.until(" was ");
    t.keys(STOP);
    assert_eq!(t.child.wait().unwrap().code(), Some(130));
}

/// Starts the demo with a few tokens per answer.
fn short(home: &Home, more: &[&str]) -> Terminal {
    let mut t = Terminal::start(home, &[&["run", "demo", "--seed", "1"], more].concat());
    t.until(PROMPT);
    t
}

#[test]
fn a_full_context_loses_the_oldest_turns_and_goes_on() {
    let home = Home::new();
    let system = "The story of the king who lived in a house of stone by the sea, and of his three sons.";
    let mut t = short(&home, &["-c", "96", "-n", "16", "-v", "--system", system]);
    let (mut rolled, mut cached) = (0, 0);
    for i in 0..8 {
        let said = t.line(&format!("Then the king went to the market for the {i} time and said"));
        assert!(!said.contains("error"), "{said}");
        if said.contains("(context full: the model no longer sees the oldest") {
            rolled += 1;
            // The system prompt keeps its position and is served from the prefix cache.
            let (_, rest) = said.split_once("tokens (").unwrap();
            cached += usize::from(rest.split(' ').next().unwrap().parse::<usize>().unwrap() >= 16);
        }
    }
    assert!((1..8).contains(&rolled), "it rolled {rolled} times of 8");
    assert_eq!(cached, rolled);
    // The whole chat is kept, and /show tells what the model still sees.
    let shown = t.line("/show");
    assert!(
        shown.contains("for the 0 time") && shown.contains("(the model no longer sees what stands above)"),
        "{shown}"
    );
    assert!(shown.contains("of 96 tokens of context used (the model's own limit is 1024)"), "{shown}");
}

/// Prompt tokens of an answer, how many of them were cached, and the answer's tokens.
fn counts(said: &str) -> [usize; 3] {
    let number_after = |before: &str| {
        let (_, rest) = said.rsplit_once(before).unwrap_or_else(|| panic!("{before:?} in {said}"));
        rest.split(' ').next().unwrap().parse().unwrap()
    };
    [number_after("prompt "), number_after("tokens ("), number_after("; answer ")]
}

/// Answers so random that the tokenizer makes other tokens of their text.
#[test]
fn earlier_answers_are_in_the_cache_as_they_were_generated() {
    let home = Home::new();
    let exact = ["--isa", "scalar", "--arithmetic", "exact", "--threads", "2"];
    let random = ["-n", "40", "-v", "--temperature", "3", "--top-k", "100"];
    let mut t = short(&home, &[&exact[..], &random[..]].concat());
    let mut computed = 0;
    for i in 0..4 {
        let [prompt, cached, answer] = counts(&t.line("And then?"));
        assert_eq!(cached, computed / 16 * 16, "answer {i}");
        computed = prompt + answer - 1;
    }
}

#[test]
fn an_answer_goes_on_past_a_full_context() {
    let home = Home::new();
    let mut t = short(&home, &["-c", "128", "-n", "40", "--temperature", "0"]);
    t.line("Once upon a time there was a king");
    t.line("/set max-tokens 90");
    let said = t.line("Tell me a story about a king and his daughter");
    assert!(said.contains("(context full: the model no longer sees the oldest 2 messages)"), "{said}");
    assert!(said.contains("(stopped: --max-tokens 90)"), "{said}");
}

#[test]
fn a_chat_that_must_not_roll_says_what_to_do() {
    let home = Home::new();
    let mut t = short(&home, &["-c", "48", "--no-roll"]);
    let said = t.line("Once upon a time");
    assert!(
        said.contains("(stopped: context full, 48 tokens; /set context N makes room, up to 1024)"),
        "{said}"
    );
    let said = t.line("And then");
    for part in [
        "error: the conversation has ",
        ", and the context is 48. /clear forgets it",
        "/set context 1024 makes room",
    ] {
        assert!(said.contains(part), "{part:?} is not in {said}");
    }
    // Both suggested remedies work.
    assert!(t.line("/set ctx 200").contains("context is 200"));
    t.line("/set n 8");
    let said = t.line("Tell me a story");
    assert!(!said.contains("error") && said.contains("(stopped: --max-tokens 8)"), "{said}");
    t.line("/clear");
    assert!(!t.line("There was").contains("error"));
    // A single message that is too long cannot be helped by that.
    t.keys(&format!("{}\r", "word ".repeat(300)));
    t.until("the context is 200. /clear forgets it");
}

#[test]
fn lines_that_wait_are_all_asked() {
    let home = Home::new();
    let mut t = short(&home, &["-n", "2"]);
    t.keys("line one\rline two\r\rline three\r");
    t.until("line three");
    t.until(PROMPT);
    let shown = t.line("/show");
    for line in ["[user] line one", "[user] line two", "[user] line three"] {
        assert!(shown.contains(line), "{line:?} is not in {shown}");
    }
}

#[test]
fn lines_are_remembered_when_the_terminal_is_closed() {
    let home = Home::new();
    let mut t = short(&home, &["-n", "2"]);
    t.line("There was a king");
    t.line("/set temp 0.5");
    // SAFETY: `kill` takes no pointers. The child is this test's own and has not been waited for, so its pid is valid.
    assert_eq!(unsafe { libc::kill(t.child.id() as i32, libc::SIGHUP) }, 0);
    assert_ne!(t.child.wait().unwrap().code(), Some(0));
    let lines = std::fs::read_to_string(home.path().join(".local/state/tallow/lines")).unwrap();
    assert!(lines.contains("There was a king\n/set temp 0.5\n"), "{lines}");
}

#[test]
fn an_answer_can_be_tried_again_and_taken_back() {
    let home = Home::new();
    // At such a temperature no two answers are alike.
    let mut t = short(&home, &["-n", "8", "--temperature", "4", "--min-p", "0"]);
    t.line("There was a king");
    t.line("His name was");
    let answer = |shown: String| shown.rsplit_once("[assistant] ").unwrap().1.to_owned();
    let first = answer(t.line("/show"));
    t.line("/retry");
    let shown = t.line("/show");
    assert_eq!(shown.matches("[user] His name was").count(), 1, "{shown}");
    assert_ne!(answer(shown), first);
    assert!(t.line("/undo").contains("taken back: His name was (2 messages left)"));
    assert!(t.line("/undo").contains("taken back: There was a king (0 messages left)"));
    assert!(t.line("/undo").contains("error: there is no message to take back"));
    assert!(t.line("/retry").contains("error: there is no message to answer again"));
    // A line that is not a command is a message.
    t.line("/etc/passwd what is this");
    t.line(" /bye");
    let shown = t.line("/show");
    assert!(shown.contains("[user] /etc/passwd what is this") && shown.contains("[user]  /bye"), "{shown}");
}

#[test]
fn settings_go_with_a_saved_chat() {
    let home = Home::new();
    let mut t = short(&home, &["-n", "2"]);
    for line in
        ["/set parameter temperature 0.25", "/set top_k 7", "/set stop \"the end\"", "There was a king"]
    {
        t.line(line);
    }
    // Tab completes commands.
    t.keys("/sav\tsaved.json\r");
    t.until("saved to saved.json");
    t.until(PROMPT);
    for line in ["/set temp 1.5", "/set top-k 9", "/set stop", "/set n 30", "/clear"] {
        t.line(line);
    }
    t.keys("/set tem\t\r");
    t.until("/set temperature needs a value: a number");
    t.until(PROMPT);
    t.keys("/load sav\t\r");
    t.until("2 messages");
    t.until(PROMPT);
    let shown = t.line("/show");
    for part in
        ["temperature 0.25, top-k 7,", "max-tokens 2\r\n", "stop \"the end\"", "[user] There was a king"]
    {
        assert!(shown.contains(part), "{part:?} is not in {shown}");
    }
    let saved = std::fs::read_to_string(home.path().join("saved.json")).unwrap();
    let saved: serde_json::Value = serde_json::from_str(&saved).unwrap();
    assert_eq!((&saved["model"], &saved["settings"]["temperature"]), (&"demo".into(), &0.25.into()));
    // A file from before settings were saved, and one that was tampered with.
    home.file("old.json", r#"{"system": "Be kind.", "messages": [{"role": "user", "content": "Hi"}]}"#);
    assert!(t.line("/load old.json").contains("1 messages"));
    home.file("odd.json", r#"{"messages": [], "settings": {"temperature": "hot"}}"#);
    assert!(t.line("/load odd.json").contains("odd.json: settings: temperature: a number is expected"));
    assert!(t.line("/show").contains("[system] Be kind."));
}

#[test]
fn lines_on_a_terminal_are_broken_between_words() {
    let home = Home::new();
    let story = ["run", "demo", "--raw", "--seed", "7", "-n", "60", "Once upon a time"];
    let whole = home.run(&[&story[..], &["--echo"]].concat()).ok();
    let shown = |command| {
        let mut t = Terminal::of(command, 30);
        t.child.wait().unwrap();
        t.until("(stopped: --max-tokens 60)")
    };
    let mut command = home.command(&story);
    command.env("NO_COLOR", "1");
    let text = shown(command);
    let (_, text) = text.split_once("Once").unwrap();
    let text = format!("Once{}", text.strip_suffix("(stopped: --max-tokens 60)").unwrap());
    assert!(text.lines().count() > 4 && text.lines().all(|line| line.chars().count() <= 30), "{text}");
    let words = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    assert_eq!(words(&text), words(&whole));
    // Colours only on terminals that support them.
    let coloured = |term: &str| {
        let mut command = home.command(&story);
        command.env("TERM", term);
        shown(command).contains('\u{1b}')
    };
    assert!(coloured("xterm") && !coloured("dumb"));
}

/// A thinking model: its template opens the thinking block unless switched off.
fn thinker(home: &Home) -> Option<()> {
    let folder = tallow_support::shared("stories260K-hf")?;
    for name in ["config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"] {
        home.file(&format!("model/{name}"), std::fs::read(folder.join(name)).unwrap());
    }
    let template = "{% for m in messages %}{{ m.content }}\n{% endfor %}{% if add_generation_prompt %}\
        {% if enable_thinking is defined and enable_thinking is false %}<think>\n\n</think>\n\n\
        {% else %}<think>\n{% endif %}{% endif %}";
    home.file("model/chat_template.jinja", template);
    Some(())
}

#[test]
fn thinking_can_be_switched_off_and_hidden() {
    let home = Home::new();
    if thinker(&home).is_none() {
        return;
    }
    let ask = ["run", "model", "-n", "12", "--seed", "1", "Once upon a time"];
    let with = |flag: &str| home.run(&[&ask[..], &[flag]].concat());
    // In a pipe only the answer is printed, and here everything is thinking.
    assert_eq!(home.run(&ask).ok(), "\n");
    let answer = with("--think=false").ok();
    assert!(answer.trim().len() > 5, "{answer:?}");
    for flag in ["--no-think", "--think=off", "--nothink"] {
        assert_eq!(with(flag).ok(), answer, "{flag}");
    }
    assert_eq!(with("--think").ok(), "\n");
    let wrong = with("--think=perhaps");
    assert!(wrong.err.contains("true, false, low, medium or high is expected"), "{wrong:?}");
    let none = home.run(&["run", "demo", "--think", "-n", "1", "x"]).failed();
    assert!(
        none.contains("--think: this model's chat template has no variable for how much to think"),
        "{none}"
    );
    assert_eq!(home.run(&["run", "demo", "--no-think", "-n", "1", "x"]).code, Some(0));
    // On a terminal the thinking is shown, set apart from the answer.
    let mut t = Terminal::start(&home, &["run", "model", "-n", "12", "--seed", "1"]);
    t.until(PROMPT);
    assert!(t.line("Once upon a time").contains("Thinking …"));
    assert!(t.line("/set nothink").contains("think is false"));
    let said = t.line("Once upon a time");
    assert!(!said.contains("Thinking …") && said.contains("(stopped: --max-tokens 12)"), "{said}");
    assert!(t.line("/set think").contains("think is true"));
    assert!(t.line("Once upon a time").contains("Thinking …"));
    let mut t = Terminal::start(&home, &["run", "model", "-n", "12", "--hide-thinking"]);
    t.until(PROMPT);
    assert!(!t.line("Once upon a time").contains("Thinking …"));
}
