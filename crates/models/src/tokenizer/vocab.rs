//! [`Vocab`]: the tokens that a model of text knows, by id and by text.

use std::collections::{HashMap, HashSet};

/// Ids above this are refused. The largest vocabularies have some 300,000 tokens.
pub(super) const MOST_IDS: usize = 1 << 22;

/// Tokens by id and ids by token.
#[derive(Debug, Default)]
pub(super) struct Vocab {
    texts: Vec<Option<Box<str>>>,
    ids: HashMap<Box<str>, u32>,
    longest: usize,
    /// Tokens that text never becomes, however it is spelled.
    silent: HashSet<u32>,
}

/// Why a token cannot be in the vocabulary.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Clash {
    /// The id is past [`MOST_IDS`].
    Far,
    /// Another token has the id.
    Id(String),
    /// Another id has the token.
    Text(u32),
}

impl std::fmt::Display for Clash {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Clash::Far => write!(f, "is above the highest id that is taken, {}", MOST_IDS - 1),
            Clash::Id(other) => write!(f, "is also the id of {:?}", super::shorten(other)),
            Clash::Text(id) => write!(f, "is also token {id}"),
        }
    }
}

impl Vocab {
    /// Adds a token.
    pub(super) fn add(&mut self, id: u32, text: &str) -> Result<(), Clash> {
        if let Some(other) = self.ids.get(text) {
            return Err(Clash::Text(*other));
        }
        self.add_twin(id, text)
    }

    /// Adds a token whose text may be there under another id, of which it takes the place when text is looked up.
    pub(super) fn add_twin(&mut self, id: u32, text: &str) -> Result<(), Clash> {
        let at = id as usize;
        if at >= MOST_IDS {
            return Err(Clash::Far);
        }
        if at >= self.texts.len() {
            self.texts.resize(at + 1, None);
        }
        if let Some(other) = &self.texts[at] {
            return Err(Clash::Id(other.to_string()));
        }
        self.texts[at] = Some(text.into());
        self.ids.insert(text.into(), id);
        self.longest = self.longest.max(text.len());
        Ok(())
    }

    pub(super) fn text(&self, id: u32) -> Option<&str> {
        self.texts.get(id as usize)?.as_deref()
    }

    pub(super) fn id(&self, text: &str) -> Option<u32> {
        // Hashing a text that is too long to be a token would make one long word cost its square.
        if text.len() > self.longest { None } else { self.ids.get(text).copied() }
    }

    /// The token that a piece of text becomes.
    pub(super) fn spoken(&self, text: &str) -> Option<u32> {
        self.id(text).filter(|id| !self.is_silent(*id))
    }

    /// Special tokens are cut out of text before this is asked. What is left spells none, even where it looks so.
    pub(super) fn silence(&mut self, special: impl Iterator<Item = u32>) {
        self.silent.extend(special);
    }

    pub(super) fn is_silent(&self, id: u32) -> bool {
        self.silent.contains(&id)
    }

    /// One more than the highest id.
    pub(super) fn len(&self) -> usize {
        self.texts.len()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (u32, &str)> {
        self.texts.iter().enumerate().filter_map(|(id, text)| Some((id as u32, text.as_deref()?)))
    }

    /// The ids of `<0x00>` to `<0xFF>`, of those that are there.
    pub(super) fn bytes(&self) -> Box<[Option<u32>; 256]> {
        Box::new(std::array::from_fn(|byte| self.id(&format!("<0x{byte:02X}>"))))
    }
}
