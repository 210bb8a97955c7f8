//! The modules of a crate, and which of them each names by `crate::…`, `super::…` or `self::…`.

use std::collections::{BTreeMap, BTreeSet};

use super::source::File;

/// A module: its names from the crate's root on. The root has none.
pub(super) type Module = Vec<String>;

/// A path in the code of a module, and where it stands.
pub(super) struct Import {
    pub(super) from: Module,
    pub(super) to: Module,
    /// Index of the file, and line.
    pub(super) file: usize,
    pub(super) line: usize,
}

/// A word or a sign of code, and its line.
struct Token {
    text: String,
    line: usize,
}

/// A path as it is written, and the name that a `use` gives to it.
struct Path {
    names: Vec<String>,
    alias: Option<String>,
}

/// The path of a crate's sources that a file is in, as `crates/core/src/`, and the file's module.
pub(super) fn place(path: &str) -> Option<(&str, Module)> {
    let at = path.find("/src/")? + "/src/".len();
    let (root, rest) = path.split_at(at);
    let mut names: Module = rest.strip_suffix(".rs")?.split('/').map(str::to_owned).collect();
    if names.last().is_some_and(|last| last == "mod") || matches!(rest, "lib.rs" | "main.rs") {
        names.pop();
    }
    Some((root, names))
}

fn tokens(file: &File) -> Vec<Token> {
    let mut found = Vec::new();
    for (line, code) in file.code_lines() {
        let mut word = String::new();
        for c in code.chars().chain([' ']) {
            if c.is_alphanumeric() || c == '_' {
                word.push(c);
                continue;
            }
            if !word.is_empty() {
                found.push(Token { text: std::mem::take(&mut word), line });
            }
            if !c.is_whitespace() {
                found.push(Token { text: c.into(), line });
            }
        }
    }
    found
}

fn is_word(text: &str) -> bool {
    text.starts_with(|c: char| c.is_alphabetic() || c == '_')
}

/// True if the attribute before the item at `at` makes it part of the tests.
fn is_test(tokens: &[Token], at: usize) -> bool {
    let before = &tokens[..at];
    let before = match before.last() {
        Some(last) if last.text == "pub" => &before[..at - 1],
        _ => before,
    };
    if before.last().is_none_or(|last| last.text != "]") {
        return false;
    }
    let begin = before.iter().rposition(|t| t.text == "#").unwrap_or(0);
    let has = |word: &str| before[begin..].iter().any(|t| t.text == word);
    has("cfg") && has("test")
}

/// The imports of a crate's modules, from its files as indices of `files` with their modules.
pub(super) fn imports(files: &[File], of: &[(usize, Module)]) -> Vec<Import> {
    let all: Vec<(usize, &Module, Vec<Token>)> =
        of.iter().map(|(i, module)| (*i, module, tokens(&files[*i]))).collect();
    let tests = test_files(&all);
    let mut modules = BTreeSet::from([Module::new()]);
    modules.extend(of.iter().map(|(_, m)| m.clone()).filter(|m| !tests.contains(m)));
    let (mut paths, mut names) = (Vec::new(), BTreeMap::new());
    for (file, module, tokens) in all.iter().filter(|(_, m, _)| modules.contains(*m)) {
        let mut reader = Reader { tokens, at: 0, module, inline: Vec::new(), modules: &modules };
        for (line, path, is_use) in reader.paths() {
            if let (true, Some(last)) = (is_use, path.alias.as_ref().or(path.names.last())) {
                names.insert(((*module).clone(), last.clone()), path.names.clone());
            }
            paths.push((*file, line, (*module).clone(), path.names));
        }
    }
    let import = |(file, line, from, path): (usize, usize, Module, Vec<String>)| {
        let to = target(&path, &modules, &names, 8);
        (to != from).then_some(Import { from, to, file, line })
    };
    paths.into_iter().filter_map(import).collect()
}

/// Modules whose files are read for tests only.
fn test_files(all: &[(usize, &Module, Vec<Token>)]) -> BTreeSet<Module> {
    let mut found = BTreeSet::new();
    for (_, module, tokens) in all {
        for at in 0..tokens.len().saturating_sub(2) {
            if tokens[at].text == "mod" && tokens[at + 2].text == ";" && is_test(tokens, at) {
                found.insert([module.as_slice(), &[tokens[at + 1].text.clone()]].concat());
            }
        }
    }
    found
}

/// The module that a path from the crate's root leads to, through names that modules import themselves.
fn target(
    path: &[String],
    modules: &BTreeSet<Module>,
    names: &BTreeMap<(Module, String), Vec<String>>,
    left: usize,
) -> Module {
    let len = (0..=path.len()).rev().find(|n| modules.contains(&path[..*n])).unwrap_or(0);
    let (module, rest) = path.split_at(len);
    let given = rest.first().and_then(|name| names.get(&(module.to_vec(), name.clone())));
    match given {
        Some(given) if left > 0 && given != path => {
            target(&[given, &rest[1..]].concat(), modules, names, left - 1)
        }
        _ => module.to_vec(),
    }
}

/// Finds the paths in the code of one file.
struct Reader<'a> {
    tokens: &'a [Token],
    at: usize,
    module: &'a Module,
    /// For each open brace, the module that it begins.
    inline: Vec<Option<String>>,
    modules: &'a BTreeSet<Module>,
}

impl Reader<'_> {
    fn text(&self, at: usize) -> &str {
        self.tokens.get(at).map_or("", |t| &t.text)
    }

    fn is_colons(&self, at: usize) -> bool {
        self.text(at) == ":" && self.text(at + 1) == ":"
    }

    /// All paths with their lines, and whether a `use` has them.
    fn paths(&mut self) -> Vec<(usize, Path, bool)> {
        let mut found = Vec::new();
        while self.at < self.tokens.len() {
            let (text, line) = (self.text(self.at), self.tokens[self.at].line);
            match text {
                "mod" if self.text(self.at + 2) == "{" => {
                    let name = self.text(self.at + 1).to_owned();
                    if is_test(self.tokens, self.at) {
                        self.skip();
                    } else {
                        self.inline.push(Some(name));
                        self.at += 3;
                    }
                }
                "{" => {
                    self.inline.push(None);
                    self.at += 1;
                }
                "}" => {
                    self.inline.pop();
                    self.at += 1;
                }
                "use" => {
                    self.at += 1;
                    self.tree(&[], line, true, &mut found);
                }
                "crate" | "super" | "self" if self.is_colons(self.at + 1) => {
                    self.tree(&[], line, false, &mut found);
                }
                _ => self.at += 1,
            }
        }
        found
    }

    /// Skips the braces that come next, with all between.
    fn skip(&mut self) {
        let mut depth = 0;
        while self.at < self.tokens.len() {
            depth += match self.text(self.at) {
                "{" => 1,
                "}" => -1,
                _ => 0,
            };
            let done = depth == 0 && self.text(self.at) == "}";
            self.at += 1;
            if done {
                return;
            }
        }
    }

    /// Reads a path after `before`, or several in braces.
    fn tree(&mut self, before: &[String], line: usize, is_use: bool, found: &mut Vec<(usize, Path, bool)>) {
        let mut names = before.to_vec();
        loop {
            let text = self.text(self.at).to_owned();
            if is_use && text == "{" {
                self.at += 1;
                while !matches!(self.text(self.at), "}" | "") {
                    let line = self.tokens[self.at].line;
                    self.tree(&names, line, true, found);
                    if self.text(self.at) == "," {
                        self.at += 1;
                    }
                }
                self.at += 1;
                return;
            }
            self.at += 1;
            if !is_word(&text) {
                break;
            }
            names.push(text);
            if !self.is_colons(self.at) || !(is_use || is_word(self.text(self.at + 2))) {
                break;
            }
            self.at += 2;
        }
        let alias = (is_use && self.text(self.at) == "as").then(|| {
            self.at += 2;
            self.text(self.at - 1).to_owned()
        });
        if let Some(names) = self.whole(&names) {
            found.push((line, Path { names, alias }, is_use));
        }
    }

    /// A path from the crate's root; `None` where it leads into another crate.
    fn whole(&self, names: &[String]) -> Option<Vec<String>> {
        let mut path = self.module.clone();
        path.extend(self.inline.iter().flatten().cloned());
        let first = names.first()?;
        let rest = match first.as_str() {
            "crate" => {
                path.clear();
                &names[1..]
            }
            "self" => &names[1..],
            "super" => names,
            child => {
                path.push(child.to_owned());
                return self.modules.contains(&path).then(|| [path.as_slice(), &names[1..]].concat());
            }
        };
        let up = rest.iter().take_while(|name| *name == "super").count();
        path.truncate(path.len().saturating_sub(up));
        let named = rest[up..].iter().filter(|name| *name != "self");
        path.extend(named.cloned());
        Some(path)
    }
}
