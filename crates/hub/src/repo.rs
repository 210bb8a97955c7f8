//! [`RepoName`]: the name of a repository.

use std::fmt;

/// A text that is not a model name.
#[derive(Debug, thiserror::Error)]
#[error(
    "{given:?} is not a model name: {why}. Names look like org/name, org/name:Q4_K_M or org/name@revision; \
     `tallow search TEXT` finds short ones"
)]
pub struct NameError {
    /// The text, truncated.
    pub given: String,
    /// Why not.
    pub why: String,
}

impl NameError {
    pub(crate) fn new(given: &str, why: &str) -> NameError {
        NameError { given: given.chars().take(80).collect(), why: why.to_owned() }
    }
}

/// Name of a repository on the hub: `org/name`, or `name` alone for the oldest ones.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RepoName(String);

impl RepoName {
    /// Parses a name by the hub's own rules.
    pub fn parse(text: &str) -> Result<RepoName, NameError> {
        let bad = |why: &str| Err(NameError::new(text, why));
        let mut parts = 0;
        for part in text.split('/') {
            parts += 1;
            if part.is_empty() || part.len() > 96 {
                return bad("each part has 1 to 96 characters");
            }
            if !part.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(&b)) {
                return bad("only letters, digits, '-', '_' and '.' may occur");
            }
            let ends = |c| part.starts_with(c) || part.ends_with(c);
            if ends('-') || ends('.') || part.contains("--") || part.contains("..") {
                return bad("'-' and '.' may neither begin nor end a part, nor be doubled");
            }
        }
        if parts > 2 {
            return bad("it has more than two parts");
        }
        if text.ends_with(".git") {
            return bad("it ends in .git");
        }
        Ok(RepoName(text.to_owned()))
    }

    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Name of its folder in the cache.
    pub(crate) fn folder(&self) -> String {
        format!("models--{}", self.0.replace('/', "--"))
    }

    /// The repository of a cache folder. `None` for datasets and everything else.
    pub(crate) fn from_folder(folder: &str) -> Option<RepoName> {
        RepoName::parse(&folder.strip_prefix("models--")?.replacen("--", "/", 1)).ok()
    }
}

impl fmt::Display for RepoName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
