//! Parsing and validation of model names and of file names, before they become paths.

use std::fmt;

use crate::aliases::{self, Found};
use crate::error::{HubError, Result};
use crate::repo::{NameError, RepoName};

/// Default branch.
const MAIN: &str = "main";
/// Limit of a file name in common file systems.
const LONGEST_PART: usize = 255;
const LONGEST_PATH: usize = 1024;

/// A parsed model name: `org/name`, `org/name:quant`, `org/name@revision`, both, or an alias for `org/name`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelRef {
    /// Repository on the hub.
    pub repo: RepoName,
    /// The GGUF file's variant: a quantization, or a file's name without `.gguf`.
    pub quant: Option<String>,
    /// Branch, tag or commit.
    pub revision: Option<String>,
}

impl ModelRef {
    /// Parses user input.
    pub fn parse(text: &str) -> Result<ModelRef> {
        if text.len() > LONGEST_PATH {
            return Err(NameError::new(text, "it is too long").into());
        }
        let page = page(text)?;
        let (whole, text) = (text, page.as_ref().map_or(text, |page| page.name));
        let (name, revision) = match text.split_once('@') {
            Some((name, revision)) => (name, Some(parse_revision(whole, revision)?)),
            None => (text, None),
        };
        let alias = aliases::find(name);
        let (repo, quant) = match &alias {
            Some(Found::Model(model, quant)) => (*model, quant.as_deref().unwrap_or_default()),
            Some(Found::Sizes(sizes)) => {
                return Err(HubError::Alias { given: name.to_owned(), have: sizes.join(", ") });
            }
            None => name.split_once(':').unwrap_or((name, "")),
        };
        if name.ends_with(':') || quant.chars().any(is_hidden) {
            return Err(NameError::new(whole, "what follows ':' is no quantization").into());
        }
        let (quant, revision) = match page {
            Some(page) => (
                page.file.unwrap_or(quant),
                page.revision.map(|r| parse_revision(whole, r)).transpose()?.or(revision),
            ),
            None => (quant, revision),
        };
        let repo = RepoName::parse(repo)?;
        Ok(ModelRef { repo, quant: Some(quant.to_owned()).filter(|q| !q.is_empty()), revision })
    }

    /// The revision, by default `main`.
    pub(crate) fn revision(&self) -> &str {
        self.revision.as_deref().unwrap_or(MAIN)
    }
}

impl fmt::Display for ModelRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mark =
            |sign, text: &Option<String>| text.as_ref().map_or(String::new(), |t| format!("{sign}{t}"));
        write!(f, "{}{}{}", self.repo, mark(':', &self.quant), mark('@', &self.revision))
    }
}

/// Target of the URL of a web page at the hub.
struct Page<'a> {
    name: &'a str,
    revision: Option<&'a str>,
    /// A GGUF file without `.gguf` and without its part number.
    file: Option<&'a str>,
}

/// Parses `https://huggingface.co/org/name` with any suffix, `hf.co/org/name:quant`, and Ollama's pages. `None` if the
/// text is not a URL.
fn page(text: &str) -> Result<Option<Page<'_>>> {
    let rest = text.strip_prefix("https://").or_else(|| text.strip_prefix("http://"));
    let (host, path) = rest.unwrap_or(text).split_once('/').unwrap_or((rest.unwrap_or(text), ""));
    let host = host.strip_prefix("www.").unwrap_or(host).to_ascii_lowercase();
    let path = path.split(['?', '#']).next().unwrap_or_default().trim_end_matches('/');
    match host.as_str() {
        "huggingface.co" | "hf.co" => {}
        "ollama.com" | "registry.ollama.ai" => {
            let name = path.strip_prefix("library/").unwrap_or(path);
            return match aliases::find(name) {
                Some(_) => Ok(Some(Page { name, revision: None, file: None })),
                None => Err(NameError::new(
                    text,
                    "models come from huggingface.co, and Ollama's of this name is not known",
                )
                .into()),
            };
        }
        _ if rest.is_some() || text.contains("://") => {
            let why = "it is an address, and only those at huggingface.co are models; another hub is set by HF_ENDPOINT";
            return Err(NameError::new(text, why).into());
        }
        _ => return Ok(None),
    }
    let mut parts = path.splitn(5, '/');
    let mut next = || parts.next().filter(|part| !part.is_empty());
    let (org, model, kind, revision, file) = (next(), next(), next(), next(), next());
    if matches!(org, None | Some("datasets" | "spaces" | "docs" | "models")) {
        return Err(NameError::new(text, "it is the address of no model; a model's ends in org/name").into());
    }
    if !matches!(kind, None | Some("tree" | "blob" | "resolve" | "raw")) {
        return Err(NameError::new(text, "after org/name there may be tree, blob or resolve").into());
    }
    let whole = org.map_or(0, str::len) + model.map_or(0, |model| model.len() + 1);
    let name = path.get(..whole).unwrap_or(path);
    let file = file.and_then(|file| file.strip_suffix(".gguf")).map(crate::pick::stem);
    Ok(Some(Page { name, revision: revision.filter(|revision| *revision != MAIN), file }))
}

/// A revision becomes a path under `refs/`, so both the rules for paths and git's rules apply.
fn parse_revision(whole: &str, text: &str) -> Result<String> {
    let part_ok = |p: &str| !p.starts_with('.') && !p.starts_with('-') && !p.ends_with(".lock");
    let char_ok = |b: u8| b.is_ascii_graphic() && !b"~^:?*[\\@{".contains(&b);
    if check_path(text).is_err()
        || text.contains("..")
        || !text.bytes().all(char_ok)
        || !text.split('/').all(part_ok)
    {
        return Err(NameError::new(whole, "what follows '@' is no branch, tag or commit").into());
    }
    Ok(text.to_owned())
}

/// True if the text is a full commit hash.
pub(crate) fn is_commit(text: &str) -> bool {
    is_hex(text, 40)
}

/// True if the text is `digits` hexadecimal digits.
pub(crate) fn is_hex(text: &str, digits: usize) -> bool {
    text.len() == digits && text.bytes().all(|b| b.is_ascii_hexdigit())
}

/// Checks a file name chosen by a server or another program before it is used below a snapshot. The error is the
/// reason.
pub(crate) fn check_path(name: &str) -> std::result::Result<(), &'static str> {
    if name.len() > LONGEST_PATH || name.split('/').any(|part| part.len() > LONGEST_PART) {
        return Err("it is too long");
    }
    if name.split('/').any(|part| matches!(part, "" | "." | "..")) {
        return Err("it could lead out of its folder");
    }
    if name.contains('\\') {
        return Err("it has a backslash");
    }
    if name.chars().any(is_hidden) {
        return Err("it has control characters");
    }
    Ok(())
}

/// True if the character could manipulate a terminal: control characters, and those that change the direction of text.
pub(crate) fn is_hidden(c: char) -> bool {
    c.is_control() || matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> (String, Option<String>, Option<String>) {
        let m = ModelRef::parse(text).unwrap();
        (m.repo.to_string(), m.quant, m.revision)
    }

    #[test]
    fn names_are_split() {
        let some = |s: &str| Some(s.to_owned());
        assert_eq!(parsed("Qwen/Qwen3-0.6B"), ("Qwen/Qwen3-0.6B".into(), None, None));
        assert_eq!(parsed("a/b:q8_0"), ("a/b".into(), some("q8_0"), None));
        assert_eq!(
            parsed("a/b:dir/file-q8@refs/pr/1"),
            ("a/b".into(), some("dir/file-q8"), some("refs/pr/1"))
        );
        assert_eq!(parsed("a/b@v1.0"), ("a/b".into(), None, some("v1.0")));
        assert_eq!(parsed("gpt2"), ("gpt2".into(), None, None));
        assert_eq!(ModelRef::parse("a/b:Q4_0@x").unwrap().to_string(), "a/b:Q4_0@x");
    }

    #[test]
    fn aliases_stand_for_models() {
        assert_eq!(parsed("Qwen3:0.6B"), ("Qwen/Qwen3-0.6B-GGUF".into(), None, None));
        assert_eq!(
            parsed("smollm3:Q8_0@main"),
            ("ggml-org/SmolLM3-3B-GGUF".into(), Some("Q8_0".into()), Some("main".into()))
        );
        for alias in aliases::ALIASES {
            assert_eq!(parsed(alias.name), parsed(alias.model));
            assert!(alias.model.contains('/'));
        }
        insta::assert_snapshot!(ModelRef::parse("smollm2:99b").unwrap_err(), @r#"there is no "smollm2:99b" among the short names; there are smollm2:1.7b, smollm2:135m, smollm2:360m. Other models are named as org/name"#);
    }

    #[test]
    fn addresses_of_pages_are_names() {
        let some = |s: &str| Some(s.to_owned());
        let plain = ("a/b".to_owned(), None, None);
        for text in [
            "https://huggingface.co/a/b",
            "https://huggingface.co/a/b/",
            "http://www.huggingface.co/a/b?library=gguf#files",
            "huggingface.co/a/b",
            "hf.co/a/b",
            "https://hf.co/a/b/tree/main",
            "https://huggingface.co/a/b/blob/main/README.md",
        ] {
            assert_eq!(parsed(text), plain, "{text}");
        }
        assert_eq!(parsed("hf.co/a/b:Q8_0"), ("a/b".into(), some("Q8_0"), None));
        assert_eq!(parsed("https://huggingface.co/a/b/tree/v1.0"), ("a/b".into(), None, some("v1.0")));
        assert_eq!(
            parsed("https://huggingface.co/a/b/resolve/main/dir/m-q4.gguf?download=true"),
            ("a/b".into(), some("dir/m-q4"), None)
        );
        assert_eq!(
            parsed("https://huggingface.co/a/b/blob/main/m-q4-00001-of-00003.gguf"),
            ("a/b".into(), some("m-q4"), None)
        );
        assert_eq!(parsed("https://huggingface.co/gpt2").0, "gpt2");
        assert_eq!(parsed("https://ollama.com/library/llama3.2:1b"), parsed("llama3.2:1b"));
    }

    #[test]
    fn names_that_could_do_harm_are_refused() {
        for bad in [
            "",
            "/",
            "a/",
            "/a",
            "../x",
            "../../x",
            "a/..",
            "a/../b",
            "a/b/c",
            "a\\b/c",
            "%2e%2e/x",
            "a/b\0",
            "a/ b",
            "a/b\n",
            "-a/b",
            "a/b.",
            "a--b/c",
            "a/b..c",
            "a/b.git",
            "a/b:",
            "a/b:\x1b[2J",
            "a/b@",
            "a/b@../x",
            "a/b@/etc",
            "a/b@x//y",
            "a/b@-x",
            "a/b@x\\y",
            "a/b@x y",
            "a/b@.x",
            "a/b@m.lock",
            "a/b@x@y",
            "ä/b",
            "https://example.com/a/b",
            "https://huggingface.co/",
            "https://huggingface.co/datasets/a/b",
            "https://huggingface.co/a/b/discussions/1",
            "https://huggingface.co/a/b/resolve/../../x",
            "https://huggingface.co.evil.example/a/b",
            "hf.co/../x",
            "ftp://huggingface.co/a/b",
            "https://ollama.com/library/no-such-model",
            "http://[::1]/x",
        ] {
            let error = ModelRef::parse(bad).expect_err(bad).to_string();
            assert!(!error.chars().any(char::is_control), "{error:?}");
        }
        let long = ModelRef::parse(&"a/".repeat(5000)).unwrap_err().to_string();
        assert!(long.len() < 400, "{long}");
        insta::assert_snapshot!(ModelRef::parse("../x").unwrap_err(), @r#""../x" is not a model name: '-' and '.' may neither begin nor end a part, nor be doubled. Names look like org/name, org/name:Q4_K_M or org/name@revision; `tallow search TEXT` finds short ones"#);
    }

    #[test]
    fn folders_give_the_name_back() {
        for name in ["a/b", "gpt2", "Qwen/Qwen3-0.6B-GGUF"] {
            let repo = RepoName::parse(name).unwrap();
            assert_eq!(RepoName::from_folder(&repo.folder()), Some(repo));
        }
        assert_eq!(RepoName::parse("a/b").unwrap().folder(), "models--a--b");
        for other in ["datasets--a--b", "models--", "models----a", "blobs", ".locks", "models--a--b--c"] {
            assert_eq!(RepoName::from_folder(other), None, "{other}");
        }
    }

    #[test]
    fn file_names_from_servers_are_data() {
        for good in ["config.json", "a/b/c.gguf", "..x", "x..", "ü.json", "a b.gguf"] {
            assert_eq!(check_path(good), Ok(()), "{good}");
        }
        let long = "x".repeat(256);
        let deep = "x/".repeat(600) + "x";
        for bad in [
            "",
            "/etc/passwd",
            "../x",
            "a/../b",
            "a//b",
            "a/",
            ".",
            "a/./b",
            "a\\b",
            "a\0b",
            "a\nb",
            "\u{202e}x",
            &long,
            &deep,
        ] {
            assert!(check_path(bad).is_err(), "{bad:?}");
        }
    }
}
