//! [`RecordKey`]: the name of a page or a state in a store, which follows from all that its content depends on.

use sha2::{Digest, Sha256};

/// Random bytes of a folder. Keys and checksums begin with them, so that the files show nothing of the salts, and files of
/// another folder are worth nothing here.
pub(super) type Secret = [u8; 32];

/// SHA-256 of all that pages depend on beside their tokens: the model, the device, the program.
pub(super) type Fingerprint = [u8; 32];

/// Key of a page, a digest of its tokens and of all before them, down to the salt of the sequence; or that of the state after a
/// page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct RecordKey(pub(super) [u8; 32]);

/// Kind of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// K and V of a page.
    Page,
    /// Snapshot of the recurrent state after a page.
    State,
}

impl Kind {
    pub(super) const ALL: [Kind; 2] = [Kind::Page, Kind::State];

    /// The byte that stands for it in a file.
    pub(super) fn byte(self) -> u8 {
        match self {
            Kind::Page => 1,
            Kind::State => 2,
        }
    }
}

/// A page or a state as the stores name it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RecordName {
    pub(super) kind: Kind,
    /// Its key.
    pub(super) key: RecordKey,
    /// Of a page, the key of the page before it, or of the start of the sequence. Of a state, the key of the page that it is the
    /// state after.
    pub(super) after: RecordKey,
    /// The page's tokens.
    pub(super) tokens: Box<[u32]>,
}

/// Hash functions of a folder and a model.
#[derive(Clone)]
pub(super) struct Keys {
    start: Sha256,
    fingerprint: Fingerprint,
}

impl std::fmt::Debug for Keys {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // The secret stays one.
        f.debug_struct("Keys").field("fingerprint", &hex(&self.fingerprint)).finish_non_exhaustive()
    }
}

/// Kind of a digest: hashed first, so that a digest of one kind is never taken for one of another.
#[derive(Clone, Copy)]
enum Of {
    Start,
    Salted,
    Page,
    State,
    SegmentHead,
    RecordHead,
    Content,
}

impl Keys {
    pub(super) fn new(secret: Secret, fingerprint: Fingerprint) -> Keys {
        Keys { start: Sha256::new().chain_update(secret).chain_update(fingerprint), fingerprint }
    }

    /// Keys of records that never leave the process: there is nothing that they could be confused with or read from, so they need
    /// neither a secret nor a fingerprint.
    pub(super) fn of_memory() -> Keys {
        Keys::new([0; 32], fingerprint([]))
    }

    pub(super) fn fingerprint(&self) -> &Fingerprint {
        &self.fingerprint
    }

    fn hash(&self, of: Of, parts: &[&[u8]]) -> [u8; 32] {
        let start = self.start.clone().chain_update([of as u8]);
        parts.iter().fold(start, |hash, part| hash.chain_update(part)).finalize().into()
    }

    /// Parent key of the first page of sequences with this salt.
    pub(super) fn start(&self, salt: Option<&str>) -> RecordKey {
        RecordKey(match salt {
            None => self.hash(Of::Start, &[]),
            Some(salt) => self.hash(Of::Salted, &[salt.as_bytes()]),
        })
    }

    /// Key of a page.
    pub(super) fn page(&self, after: &RecordKey, tokens: &[u32]) -> RecordKey {
        RecordKey(self.hash(Of::Page, &[&after.0, &token_bytes(tokens)]))
    }

    /// A page, by the key of the one before it.
    pub(super) fn page_name(&self, after: RecordKey, tokens: Box<[u32]>) -> RecordName {
        RecordName { kind: Kind::Page, key: self.page(&after, &tokens), after, tokens }
    }

    /// Key of the recurrent state after a page.
    pub(super) fn state(&self, page: &RecordKey) -> RecordKey {
        RecordKey(self.hash(Of::State, &[&page.0]))
    }

    /// The recurrent state after a page.
    pub(super) fn state_name(&self, page: RecordKey, tokens: Box<[u32]>) -> RecordName {
        RecordName { kind: Kind::State, key: self.state(&page), after: page, tokens }
    }

    /// Checksum of the beginning of a segment.
    pub(super) fn segment_head(&self, bytes: &[u8]) -> [u8; 32] {
        self.hash(Of::SegmentHead, &[bytes])
    }

    /// Checksum of the beginning of a record, which says what it holds.
    pub(super) fn record_head(&self, bytes: &[u8]) -> [u8; 32] {
        self.hash(Of::RecordHead, &[bytes])
    }

    /// Checksum of a record's content, and of what it is the content of.
    pub(super) fn content(&self, head: &[u8], bytes: &[u8]) -> [u8; 32] {
        self.hash(Of::Content, &[head, bytes])
    }
}

/// Fingerprint of these parts, each with its length, so that none can pass for a part of another.
pub(super) fn fingerprint<'a>(parts: impl IntoIterator<Item = &'a [u8]>) -> Fingerprint {
    let add =
        |hash: Sha256, part: &[u8]| hash.chain_update((part.len() as u64).to_le_bytes()).chain_update(part);
    parts.into_iter().fold(Sha256::new(), add).finalize().into()
}

/// Tokens as they are written.
pub(super) fn token_bytes(tokens: &[u32]) -> Vec<u8> {
    tokens.iter().flat_map(|token| token.to_le_bytes()).collect()
}

/// Hexadecimal digits.
pub(super) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_depends_on_all_before_it() {
        let keys = |secret: u8, model: u8| Keys::new([secret; 32], fingerprint([&[model][..]]));
        let key = |keys: &Keys, salt: Option<&str>, pages: &[&[u32]]| {
            pages.iter().fold(keys.start(salt), |after, page| keys.page(&after, page))
        };
        let all = [
            key(&keys(1, 1), None, &[&[1, 2], &[3, 4]]),
            key(&keys(2, 1), None, &[&[1, 2], &[3, 4]]),
            key(&keys(1, 2), None, &[&[1, 2], &[3, 4]]),
            key(&keys(1, 1), Some(""), &[&[1, 2], &[3, 4]]),
            key(&keys(1, 1), Some("key 1"), &[&[1, 2], &[3, 4]]),
            key(&keys(1, 1), None, &[&[1, 5], &[3, 4]]),
            key(&keys(1, 1), None, &[&[1, 2], &[3, 5]]),
            key(&keys(1, 1), None, &[&[1, 2]]),
            key(&keys(1, 1), None, &[&[3, 4]]),
            keys(1, 1).state(&key(&keys(1, 1), None, &[&[1, 2], &[3, 4]])),
            keys(1, 1).state(&key(&keys(1, 1), None, &[&[1, 2]])),
            keys(2, 1).state(&key(&keys(1, 1), None, &[&[1, 2]])),
        ];
        for (i, one) in all.iter().enumerate() {
            assert!(all[..i].iter().all(|other| other != one), "{i}");
        }
        assert_eq!(all[0], key(&keys(1, 1), None, &[&[1, 2], &[3, 4]]));
        assert_ne!(fingerprint([&b"ab"[..], b"c"]), fingerprint([&b"a"[..], b"bc"]));
        // The secret is not shown.
        assert_eq!(format!("{:?}", keys(7, 1)), format!("{:?}", keys(8, 1)));
    }
}
