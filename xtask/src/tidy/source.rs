//! [`File`]: a file of the repository, with its code separated from its comments.

use std::io;
use std::path::Path;

use super::Finding;

/// A text file.
#[derive(Clone)]
pub(super) struct File {
    /// From the root, with slashes.
    pub(super) path: String,
    pub(super) text: String,
    /// The lines of a Rust file without comments and without the contents of strings.
    pub(super) code: Vec<String>,
    /// The text of its comments, line by line.
    pub(super) comments: Vec<String>,
}

/// Folders without text of ours.
const SKIPPED: [&str; 9] = [
    ".git",
    "target",
    "goldens",
    "corpus",
    "artifacts",
    "assets",
    "node_modules",
    "__pycache__",
    "snapshots",
];
/// Extensions of the files outside of `crates` that are read.
const READ: [&str; 8] = ["rs", "md", "toml", "py", "sh", "yml", "html", "js"];

impl File {
    pub(super) fn new(path: &str, text: &str) -> File {
        let (mut code, mut comments) = (Vec::new(), Vec::new());
        if path.ends_with(".rs") {
            (code, comments) = split(text);
        }
        File { path: path.into(), text: text.into(), code, comments }
    }

    pub(super) fn is_rust(&self) -> bool {
        self.path.ends_with(".rs")
    }

    /// The crate under `crates/` that it belongs to.
    pub(super) fn member(&self) -> Option<&str> {
        self.path.strip_prefix("crates/")?.split('/').next()
    }

    /// True if it is part of the program, not of its tests.
    pub(super) fn is_program(&self) -> bool {
        self.is_rust() && self.member().is_some_and(|m| self.path.starts_with(&format!("crates/{m}/src/")))
    }

    /// Its lines, numbered from 1.
    pub(super) fn lines(&self) -> impl Iterator<Item = (usize, &str)> {
        self.text.lines().enumerate().map(|(i, line)| (i + 1, line))
    }

    /// Its lines of code, numbered from 1.
    pub(super) fn code_lines(&self) -> impl Iterator<Item = (usize, &str)> {
        self.code.iter().enumerate().map(|(i, line)| (i + 1, line.as_str()))
    }
}

/// All files of the repository that the rules apply to. Files among the sources that are not text are findings.
pub(super) fn read(root: &Path) -> io::Result<(Vec<File>, Vec<Finding>)> {
    let (mut files, mut found) = (Vec::new(), Vec::new());
    let mut folders = vec![String::new()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(root.join(&folder))? {
            let entry = entry?;
            let name = entry.file_name().to_string_lossy().into_owned();
            let path = if folder.is_empty() { name.clone() } else { format!("{folder}/{name}") };
            if entry.file_type()?.is_dir() {
                if !SKIPPED.contains(&name.as_str()) {
                    folders.push(path);
                }
                continue;
            }
            let extension = name.rsplit_once('.').map_or("", |(_, extension)| extension);
            let source = path.starts_with("crates/");
            if !source && !READ.contains(&extension) && !path.starts_with(".ci/") {
                continue;
            }
            match String::from_utf8(std::fs::read(entry.path())?) {
                Ok(text) => files.push(File::new(&path, &text)),
                Err(_) => {
                    let what = "is no text: data belongs into assets or tests/goldens".into();
                    found.push(Finding { path, line: 1, what });
                }
            }
        }
    }
    files.sort_by(|a, b| a.path.cmp(&b.path));
    Ok((files, found))
}

/// The folder with a file for each device.
pub(super) const DEVICES: &str = "crates/cli/src/devices/";

/// Crates of backends: those with a file of their name among the devices.
pub(super) fn backends(files: &[File]) -> Vec<&str> {
    let is_crate = |name: &str| files.iter().any(|file| file.path == format!("crates/{name}/Cargo.toml"));
    let names = files.iter().filter_map(|file| file.path.strip_prefix(DEVICES)?.strip_suffix(".rs"));
    names.filter(|name| is_crate(name)).collect()
}

/// Kind of source that a character of Rust belongs to.
#[derive(Clone, Copy, PartialEq)]
enum Part {
    Code,
    Comment,
    /// Between the quotes.
    Quoted,
}

/// The code and the comments of each line.
fn split(text: &str) -> (Vec<String>, Vec<String>) {
    let (mut code, mut comments) = (String::new(), String::new());
    let mut put = |piece: &str, part: Part| {
        for c in piece.chars() {
            if c == '\n' {
                code.push('\n');
                comments.push('\n');
                continue;
            }
            match part {
                Part::Code => code.push(c),
                Part::Comment => comments.push(c),
                Part::Quoted => {}
            }
        }
    };
    let mut rest = text;
    let mut before = ' ';
    while let Some(first) = rest.chars().next() {
        let (len, part) = piece(rest, before);
        let (piece, after) = rest.split_at(len);
        put(piece, part);
        if part == Part::Quoted {
            put("\"\"", Part::Code);
        }
        before = if part == Part::Code { first } else { ' ' };
        rest = after;
    }
    let lines = |text: &str| text.lines().map(str::to_owned).collect();
    (lines(&code), lines(&comments))
}

/// Length in bytes and kind of the next comment, string or character of code, where the preceding character of code is
/// `before`.
fn piece(rest: &str, before: char) -> (usize, Part) {
    if rest.starts_with("//") {
        return (rest.find('\n').unwrap_or(rest.len()), Part::Comment);
    }
    if rest.starts_with("/*") {
        return (block_comment(rest), Part::Comment);
    }
    let in_word = before.is_alphanumeric() || before == '_';
    if let Some(len) = raw_text(rest).filter(|_| !in_word || before == 'b' || before == 'c') {
        return (len, Part::Quoted);
    }
    if rest.starts_with('"') {
        return (quoted(rest, '"'), Part::Quoted);
    }
    if rest.starts_with('\'') && is_char(rest) {
        return (quoted(rest, '\''), Part::Quoted);
    }
    (rest.chars().next().map_or(1, char::len_utf8), Part::Code)
}

/// The length of a block comment, which may be nested.
fn block_comment(rest: &str) -> usize {
    let (mut at, mut depth) = (0, 0);
    while at < rest.len() {
        let here = &rest.as_bytes()[at..];
        match here {
            [b'/', b'*', ..] => (at, depth) = (at + 2, depth + 1),
            [b'*', b'/', ..] => (at, depth) = (at + 2, depth - 1),
            _ => at += 1,
        }
        if depth == 0 {
            return at;
        }
    }
    rest.len()
}

/// The length of a raw string like `r#"…"#`.
fn raw_text(rest: &str) -> Option<usize> {
    let marks = rest.strip_prefix('r')?;
    let hashes = marks.len() - marks.trim_start_matches('#').len();
    let body = marks[hashes..].strip_prefix('"')?;
    let end = format!("\"{}", "#".repeat(hashes));
    Some(body.find(&end).map_or(rest.len(), |at| 1 + hashes + 1 + at + end.len()))
}

/// The length of a string or character literal with its quotes.
fn quoted(rest: &str, quote: char) -> usize {
    let mut escaped = true;
    for (at, c) in rest.char_indices() {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            c if c == quote => return at + 1,
            _ => {}
        }
    }
    rest.len()
}

/// True if it is a character literal, not a lifetime.
fn is_char(rest: &str) -> bool {
    let mut chars = rest.chars().skip(1);
    match chars.next() {
        Some('\\') => true,
        Some(_) => chars.next() == Some('\''),
        None => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn code_is_told_from_comments_and_texts() {
        let file = File::new(
            "a.rs",
            "let a = \"// no\\\" comment\"; // yes\nlet b = 'x'; /* one /* two */\n three */ let c: &'a str = r#\"/*\"#;\n\
             let d = '\\''; let e = b\"unsafe\"; let f = br\"\\\"; g",
        );
        assert_eq!(file.code[0], "let a = \"\"; ");
        assert_eq!(file.comments[0], "// yes");
        assert_eq!(file.code[1], "let b = \"\"; ");
        assert_eq!(file.code[2], " let c: &'a str = \"\";");
        assert_eq!(file.comments[2], " three */");
        assert_eq!(file.code[3], "let d = \"\"; let e = b\"\"; let f = b\"\"; g");
    }

    #[test]
    fn a_text_over_several_lines_keeps_the_lines_apart() {
        let file = File::new("a.rs", "let a = \"one\ntwo\";\nlet b;");
        assert_eq!(file.code[2], "let b;");
    }

    #[test]
    fn what_is_no_text_is_found() {
        let root = std::env::temp_dir().join(format!("tallow-tidy-{}", std::process::id()));
        std::fs::create_dir_all(root.join("crates/a/src")).unwrap();
        std::fs::write(root.join("crates/a/src/lib.rs"), "//! A.").unwrap();
        std::fs::write(root.join("crates/a/src/a.whl"), b"PK\xFF\xFE").unwrap();
        let (files, found) = read(&root).unwrap();
        std::fs::remove_dir_all(&root).unwrap();
        assert_eq!(files.iter().map(|f| f.path.as_str()).collect::<Vec<_>>(), ["crates/a/src/lib.rs"]);
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].path, "crates/a/src/a.whl");
    }
}
