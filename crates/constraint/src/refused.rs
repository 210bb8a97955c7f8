//! [`Refused`]: why a grammar is not enforced.

/// Why a grammar is not enforced: the place, and words that say what, why and what to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refused {
    /// JSON pointer of the keyword in a schema, `line:column` in a grammar, byte offset in a regular expression, or
    /// empty if it is the whole.
    pub pointer: String,
    /// The reason, and what to do about it.
    pub why: String,
}

impl Refused {
    /// A refusal of what stands at `pointer`.
    pub(crate) fn at(pointer: impl Into<String>, why: impl Into<String>) -> Refused {
        Refused { pointer: pointer.into(), why: why.into() }
    }

    /// A refusal of the whole.
    pub(crate) fn whole(why: impl Into<String>) -> Refused {
        Refused::at("", why)
    }

    /// The refusal of a part of something larger, in which it stands at `pointer`.
    #[must_use]
    pub(crate) fn inside(self, pointer: &str) -> Refused {
        Refused { pointer: format!("{pointer}{}", self.pointer), ..self }
    }
}

impl std::fmt::Display for Refused {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.pointer.as_str() {
            "" => f.write_str(&self.why),
            pointer => write!(f, "{pointer}: {}", self.why),
        }
    }
}

impl std::error::Error for Refused {}
