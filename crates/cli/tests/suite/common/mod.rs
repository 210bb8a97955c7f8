//! The program as users start it: in its own home, with an empty environment.

pub(crate) mod server;
pub(crate) mod written;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};

/// The GPU that tests run on, by its `--device` name.
pub(crate) fn gpu() -> Option<String> {
    let found = tallow_wgpu::devices();
    let about = tallow_support::needed("Vulkan or Metal device", found.first())?.about();
    Some(format!("{}:{}", about.api, about.index))
}

/// The cache of downloaded models in a home.
pub(crate) const HUB: &str = ".cache/huggingface/hub";

/// The user's home folder, removed on drop.
pub(crate) struct Home(PathBuf);

/// Result of a program.
#[derive(Debug)]
pub(crate) struct Did {
    pub(crate) code: Option<i32>,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl Did {
    /// Standard output; the program must have succeeded.
    #[track_caller]
    pub(crate) fn ok(self) -> String {
        assert_eq!(self.code, Some(0), "{}", self.err);
        self.out
    }

    /// The error message; the program must have failed.
    #[track_caller]
    pub(crate) fn failed(self) -> String {
        assert_eq!(self.code, Some(1), "{self:?}");
        self.err
    }
}

impl Home {
    pub(crate) fn new() -> Home {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("tallow-cli-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Home(path)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    pub(crate) fn file(&self, name: &str, content: impl AsRef<[u8]>) -> String {
        let path = self.0.join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, content).unwrap();
        path.to_str().unwrap().to_owned()
    }

    /// Has the demo model in its cache as org/NAME:Q8_0, as other programs leave models there.
    pub(crate) fn caches(&self, name: &str) {
        let commit = "0123456789abcdef0123456789abcdef01234567";
        let folder = format!("{HUB}/models--org--{name}");
        self.file(&format!("{folder}/refs/main"), commit);
        let demo = std::fs::read(tallow_support::root().join("assets/demo.gguf")).unwrap();
        self.file(&format!("{folder}/snapshots/{commit}/m-Q8_0.gguf"), demo);
    }

    /// The command, not yet started. Its hub address does not answer.
    pub(crate) fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tallow"));
        command.args(args).env_clear().env("HOME", &self.0).env("HF_ENDPOINT", "http://127.0.0.1:9");
        // Test output must not depend on the machine's GPU.
        command.env("TALLOW_DEVICE", "cpu");
        command.current_dir(&self.0);
        command
    }

    pub(crate) fn run(&self, args: &[&str]) -> Did {
        self.run_with(args, b"")
    }

    /// Runs it with something on standard input.
    pub(crate) fn run_with(&self, args: &[&str], input: &[u8]) -> Did {
        did(self.command(args), input)
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Runs a program to its end.
pub(crate) fn did(mut command: Command, input: &[u8]) -> Did {
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let (mut stdin, input) = (child.stdin.take().unwrap(), input.to_vec());
    // The program may not read all of it.
    let writer = std::thread::spawn(move || drop(stdin.write_all(&input)));
    let output = child.wait_with_output().unwrap();
    writer.join().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    Did { code: output.status.code(), out: text(output.stdout), err: text(output.stderr) }
}
