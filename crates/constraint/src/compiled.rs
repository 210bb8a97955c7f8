//! [`Compiled`]: a grammar that matchers are made from.

use std::sync::Arc;

use crate::matcher::{Matcher, Start};
use crate::refused::Refused;
use crate::vocabulary::Vocabulary;

/// A grammar that matchers are made from.
pub struct Compiled {
    pub(crate) start: Arc<Start>,
    pub(crate) vocabulary: Arc<Vocabulary>,
    pub(crate) unenforced: Vec<Refused>,
    pub(crate) bytes: usize,
}

impl std::fmt::Debug for Compiled {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Compiled").field("bytes", &self.bytes).finish_non_exhaustive()
    }
}

impl Compiled {
    /// A matcher at the start of a text.
    pub fn matcher(&self) -> Matcher {
        Matcher::new(Arc::clone(&self.start), Arc::clone(&self.vocabulary))
    }

    /// The tokens of the model.
    pub fn vocabulary(&self) -> &Vocabulary {
        &self.vocabulary
    }

    /// True if the first token may have a space in front that is not in the text (SentencePiece): whoever shows the text leaves
    /// it out. Free text in front of a trigger has none.
    pub fn space_first(&self) -> bool {
        self.start.space_first()
    }

    /// Keywords that were left out of a schema that is enforced as far as possible.
    pub fn unenforced(&self) -> &[Refused] {
        &self.unenforced
    }

    /// Memory that it takes, roughly, with what the tables of its lexer may grow to.
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}
