//! The chat, typed into a terminal.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]
#![cfg(target_os = "linux")]

mod common;

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::FromRawFd;
use std::os::unix::process::CommandExt;
use std::process::{Child, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use common::Home;

/// A program that believes to sit at a terminal.
struct Terminal {
    child: Child,
    keys: File,
    screen: Receiver<Vec<u8>>,
    seen: String,
}

impl Terminal {
    fn start(home: &Home, args: &[&str]) -> Terminal {
        let (mut ours, mut theirs) = (0, 0);
        let (name, how, size) = (std::ptr::null_mut(), std::ptr::null(), std::ptr::null());
        // SAFETY: both places are valid for a descriptor, and null asks for what is usual.
        assert_eq!(unsafe { libc::openpty(&mut ours, &mut theirs, name, how, size) }, 0);
        // SAFETY: both are open and owned by nobody else.
        let (ours, theirs) = unsafe { (File::from_raw_fd(ours), File::from_raw_fd(theirs)) };
        let mut command = home.command(args);
        command.env("TERM", "xterm").env("NO_COLOR", "1");
        let copy = || Stdio::from(theirs.try_clone().unwrap());
        let (input, output, error) = (copy(), copy(), copy());
        // SAFETY: between fork and exec these two calls are allowed; they make the terminal the one whose keys signal.
        unsafe {
            command.pre_exec(|| {
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

    /// What was shown up to this text, and the text.
    fn until(&mut self, text: &str) -> String {
        let begun = Instant::now();
        loop {
            if let Some(at) = self.seen.find(text) {
                let rest = self.seen.split_off(at + text.len());
                return std::mem::replace(&mut self.seen, rest);
            }
            match self.screen.recv_timeout(Duration::from_secs(30).saturating_sub(begun.elapsed())) {
                Ok(bytes) => self.seen += &String::from_utf8_lossy(&bytes),
                Err(_) => panic!("{text:?} did not come, but this:\n{}", self.seen),
            }
        }
    }

    fn keys(&mut self, keys: &str) {
        self.keys.write_all(keys.as_bytes()).unwrap();
    }

    /// Types a line at the prompt and gives what is shown up to the next prompt.
    fn line(&mut self, line: &str) -> String {
        self.keys(&format!("{line}\r"));
        self.until(PROMPT)
    }
}

const PROMPT: &str = ">>> ";
const MORE: &str = "... ";
/// Ctrl-C and Ctrl-D.
const STOP: &str = "\u{3}";
const END: &str = "\u{4}";

/// Makes an answer that takes seconds: there is time to stop it.
const SLOWLY: [&str; 6] = ["-n", "1900", "--isa", "scalar", "--arithmetic", "exact"];

#[test]
fn a_chat_from_the_first_line_to_the_last() {
    let home = Home::new();
    let mut t = Terminal::start(&home, &[&["run", "demo", "--seed", "1"], &SLOWLY[..]].concat());
    assert!(t.until(PROMPT).contains("cpu: weights"));
    // An answer that is stopped does not end the chat.
    t.keys("Once upon a time\r");
    t.until("Once upon a time ");
    t.keys(STOP);
    t.until("(stopped)");
    t.until(PROMPT);
    assert!(t.line("/set max-tokens 8").contains("set"));
    assert!(t.line("There was a king").contains("There was a king"));
    // Text of many lines, both ways.
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
        "[user] Once upon a time",
        "[user] first line\r\nsecond line\r\n[assistant]",
        "third \r\nfourth",
        "max-tokens 8",
    ] {
        assert!(shown.contains(part), "{part:?} is not in {shown}");
    }
    assert!(t.line("/save chat.json").contains("saved to chat.json"));
    assert!(t.line("/clear").contains("forgotten"));
    assert!(!t.line("/show").contains("[user]"));
    assert!(t.line("/load chat.json").contains("8 messages"));
    assert!(t.line("/show").contains("[user] There was a king"));
    // What goes wrong is said, and nothing is lost.
    for (line, why) in [
        ("/load nothing.json", "nothing.json: No such file"),
        ("/set temperature cold", "temperature \"cold\": invalid float"),
        ("/set temperature -1", "temperature is -1; 0 to 100 make sense"),
        ("/set mood good", "there is no setting \"mood\""),
        ("/dance", "there is no /dance; /help shows what there is"),
        ("/save", "/save needs a file"),
    ] {
        let said = t.line(line);
        assert!(said.contains(why), "{said}");
    }
    assert!(t.line("/help").contains("/bye"));
    // At the prompt Ctrl-C says how to leave, and twice is no way out either.
    for _ in 0..2 {
        t.keys(STOP);
        t.until("/bye or Ctrl-D leaves.");
        t.until(PROMPT);
    }
    t.keys(END);
    assert_eq!(t.child.wait().unwrap().code(), Some(0));
    // Lines are there in the next chat.
    let mut t = Terminal::start(&home, &["run", "demo"]);
    t.until(PROMPT);
    t.keys("\u{1b}[A");
    t.until("/help");
    t.keys(STOP);
    t.until(PROMPT);
    t.keys("/bye\r");
    assert_eq!(t.child.wait().unwrap().code(), Some(0));
}

/// Where there is no chat to go on with, Ctrl-C ends the program as it ends any other.
#[test]
fn one_question_can_be_stopped() {
    let home = Home::new();
    let mut t = Terminal::start(&home, &[&["run", "demo", "Once upon a time"], &SLOWLY[..]].concat());
    t.until("Once upon a time ");
    t.keys(STOP);
    assert_eq!(t.child.wait().unwrap().code(), Some(130));
}
