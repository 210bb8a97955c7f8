//! [`Vocab`]: the tokens of a tokenizer model, by id and by text.

use std::hash::BuildHasher;

use hashbrown::hash_table::Entry;
use hashbrown::{DefaultHashBuilder, HashSet, HashTable};

/// Maximum number of ids. The largest vocabularies have some 300,000 tokens.
pub(super) const MOST_IDS: usize = 1 << 22;

/// Tokens by id and ids by text. All texts are stored once, in one string, as there are hundreds of thousands.
#[derive(Debug, Default)]
pub(super) struct Vocab {
    letters: String,
    /// Start and end of each token's text in `letters`, by id.
    places: Vec<Option<(u32, u32)>>,
    /// The ids, by the hash of their texts.
    ids: HashTable<u32>,
    /// Randomly keyed in each process, so that no file can make its tokens collide.
    keys: DefaultHashBuilder,
    longest: usize,
    /// Tokens that text never becomes, even if it is spelled like them.
    silent: HashSet<u32>,
}

/// Why a token cannot be added to the vocabulary.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Clash {
    /// The id is not below [`MOST_IDS`].
    Far,
    /// The texts total more than 4 GiB.
    Long,
    /// Another token has the id.
    Id(String),
    /// Another id has the text.
    Text(u32),
}

impl std::fmt::Display for Clash {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Clash::Far => write!(f, "is above the highest id that is taken, {}", MOST_IDS - 1),
            Clash::Long => write!(f, "makes the tokens longer than {} bytes together", u32::MAX),
            Clash::Id(other) => write!(f, "is also the id of {:?}", super::shorten(other)),
            Clash::Text(id) => write!(f, "is also token {id}"),
        }
    }
}

impl Vocab {
    /// Reserves memory for `tokens` more tokens.
    pub(super) fn reserve(&mut self, tokens: usize) {
        self.places.reserve(tokens);
        let Vocab { letters, places, keys, .. } = self;
        self.ids.reserve(tokens, |id| keys.hash_one(of(letters, places, *id)));
    }

    /// Adds a token.
    pub(super) fn add(&mut self, id: u32, text: &str) -> Result<(), Clash> {
        if let Some(other) = self.id(text) {
            return Err(Clash::Text(other));
        }
        self.add_twin(id, text)
    }

    /// Adds a token whose text may already exist under another id; lookups by text then return the new id.
    pub(super) fn add_twin(&mut self, id: u32, text: &str) -> Result<(), Clash> {
        let at = id as usize;
        if at >= MOST_IDS {
            return Err(Clash::Far);
        }
        if at >= self.places.len() {
            self.places.resize(at + 1, None);
        }
        if let Some(other) = self.text(id) {
            return Err(Clash::Id(other.to_owned()));
        }
        let (start, end) = (self.letters.len() as u32, u32::try_from(self.letters.len() + text.len()));
        self.places[at] = Some((start, end.map_err(|_| Clash::Long)?));
        self.letters.push_str(text);
        let Vocab { letters, places, keys, .. } = self;
        let hash = |id: &u32| keys.hash_one(of(letters, places, *id));
        match self.ids.entry(keys.hash_one(text), |id| of(letters, places, *id) == text, hash) {
            Entry::Occupied(mut twin) => *twin.get_mut() = id,
            Entry::Vacant(place) => _ = place.insert(id),
        }
        self.longest = self.longest.max(text.len());
        Ok(())
    }

    pub(super) fn text(&self, id: u32) -> Option<&str> {
        self.places.get(id as usize)?.is_some().then(|| of(&self.letters, &self.places, id))
    }

    pub(super) fn id(&self, text: &str) -> Option<u32> {
        // Skips the hash of a text that is too long to be a token; hashing it would make a long word quadratic.
        if text.len() > self.longest {
            return None;
        }
        let is = |id: &u32| of(&self.letters, &self.places, *id) == text;
        self.ids.find(self.keys.hash_one(text), is).copied()
    }

    /// The token that a piece of text becomes; special tokens are excluded.
    pub(super) fn spoken(&self, text: &str) -> Option<u32> {
        self.id(text).filter(|id| !self.is_silent(*id))
    }

    /// Excludes special tokens from encoding. They are split off before the model runs; the remaining text never
    /// becomes one.
    pub(super) fn silence(&mut self, special: impl Iterator<Item = u32>) {
        self.silent.extend(special);
    }

    pub(super) fn is_silent(&self, id: u32) -> bool {
        self.silent.contains(&id)
    }

    /// Bytes of the longest token.
    pub(super) fn longest(&self) -> usize {
        self.longest
    }

    /// The highest id plus one.
    pub(super) fn len(&self) -> usize {
        self.places.len()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (u32, &str)> {
        (0..self.places.len() as u32).filter_map(|id| Some((id, self.text(id)?)))
    }

    /// The ids of the byte tokens `<0x00>` to `<0xFF>`; `None` for those that are missing.
    pub(super) fn bytes(&self) -> Box<[Option<u32>; 256]> {
        Box::new(std::array::from_fn(|byte| self.id(&format!("<0x{byte:02X}>"))))
    }
}

/// The text of a token; empty if there is none.
fn of<'a>(letters: &'a str, places: &[Option<(u32, u32)>], id: u32) -> &'a str {
    let place = places.get(id as usize).copied().flatten();
    place.and_then(|(start, end)| letters.get(start as usize..end as usize)).unwrap_or_default()
}
