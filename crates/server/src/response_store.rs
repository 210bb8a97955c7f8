//! [`ResponseStore`]: responses that were asked to be kept, for requests that go on from them.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::task::AbortHandle;

use crate::http::guard::Caller;

/// Most responses that are kept.
const MOST: usize = 1024;
/// Most bytes that they take.
const MOST_BYTES: usize = 64 << 20;

/// A part of a conversation in OpenAI's Responses API.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Item {
    /// A message of any role.
    Message { role: String, text: String },
    /// Reasoning in front of an answer.
    Reasoning(String),
    /// A call of a tool.
    Call { id: String, name: String, arguments: String },
    /// The result of a call.
    Output { id: String, text: String },
}

impl Item {
    /// Bytes that it takes.
    pub(crate) fn bytes(&self) -> usize {
        let texts = match self {
            Item::Message { role, text } => role.len() + text.len(),
            Item::Reasoning(text) => text.len(),
            Item::Call { id, name, arguments } => id.len() + name.len() + arguments.len(),
            Item::Output { id, text } => id.len() + text.len(),
        };
        size_of::<Item>() + texts
    }
}

/// Responses by their ids. The least recently used ones are dropped when there are too many.
#[derive(Debug, Default)]
pub(crate) struct ResponseStore(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    responses: HashMap<String, Entry>,
    /// Ids by the time of their last use.
    by_use: BTreeMap<u64, String>,
    clock: u64,
    bytes: usize,
}

#[derive(Debug)]
struct Entry {
    response: StoredResponse,
    used: u64,
    bytes: usize,
}

/// A response that is kept.
#[derive(Clone, Debug)]
pub(crate) struct StoredResponse {
    /// The caller that may read it.
    pub(crate) caller: Caller,
    /// The response as it is answered.
    pub(crate) json: String,
    /// The response that its request goes on from.
    pub(crate) previous: Option<String>,
    /// Items of its request.
    pub(crate) input: Vec<Item>,
    pub(crate) output: Vec<Item>,
    /// Ends its generation, if that goes on in the background.
    pub(crate) running: Option<AbortHandle>,
}

impl StoredResponse {
    fn bytes(&self) -> usize {
        let items = self.input.iter().chain(&self.output).map(Item::bytes);
        size_of::<Entry>() + self.json.len() + items.sum::<usize>()
    }
}

impl ResponseStore {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps a response.
    pub(crate) fn insert(&self, id: String, response: StoredResponse) {
        self.state().insert(id, response);
    }

    /// Replaces a response that is generated in the background, unless it was deleted or cancelled meanwhile.
    pub(crate) fn replace_running(&self, id: &str, response: StoredResponse) {
        let mut state = self.state();
        if state.responses.get(id).is_some_and(|entry| entry.response.running.is_some()) {
            state.insert(id.to_owned(), response);
        }
    }

    /// A caller's response.
    pub(crate) fn get(&self, id: &str, caller: Caller) -> Option<StoredResponse> {
        self.state().touch(id, caller).cloned()
    }

    /// Removes a caller's response. Its generation ends, if it goes on.
    pub(crate) fn remove(&self, id: &str, caller: Caller) -> Option<StoredResponse> {
        let mut state = self.state();
        state.touch(id, caller)?;
        let removed = state.remove(id)?;
        if let Some(running) = &removed.running {
            running.abort();
        }
        Some(removed)
    }

    /// All items of a conversation up to a caller's response, the oldest first. `None` if a part of it is not kept.
    pub(crate) fn conversation(&self, id: &str, caller: Caller) -> Option<Vec<Item>> {
        let mut state = self.state();
        let (mut turns, mut next) = (Vec::new(), Some(id.to_owned()));
        while let Some(id) = next {
            let response = state.touch(&id, caller)?;
            // What is not complete cannot be gone on from.
            if response.running.is_some() {
                return None;
            }
            turns.push([response.input.clone(), response.output.clone()].concat());
            next = response.previous.clone();
        }
        turns.reverse();
        Some(turns.concat())
    }
}

impl State {
    fn insert(&mut self, id: String, response: StoredResponse) {
        self.remove(&id);
        let (used, bytes) = (self.tick(), response.bytes());
        // All others would have to go for it.
        if bytes > MOST_BYTES {
            return;
        }
        self.by_use.insert(used, id.clone());
        self.bytes += bytes;
        self.responses.insert(id, Entry { response, used, bytes });
        while self.responses.len() > MOST || self.bytes > MOST_BYTES {
            let Some((_, oldest)) = self.by_use.first_key_value() else { return };
            let oldest = oldest.clone();
            if let Some(running) = self.remove(&oldest).and_then(|dropped| dropped.running) {
                // Nobody can ask for it any more.
                running.abort();
            }
        }
    }

    fn remove(&mut self, id: &str) -> Option<StoredResponse> {
        let entry = self.responses.remove(id)?;
        self.by_use.remove(&entry.used);
        self.bytes -= entry.bytes;
        Some(entry.response)
    }

    fn touch(&mut self, id: &str, caller: Caller) -> Option<&StoredResponse> {
        let used = self.tick();
        let entry = self.responses.get_mut(id).filter(|entry| entry.response.caller == caller)?;
        self.by_use.remove(&entry.used);
        self.by_use.insert(used, id.to_owned());
        entry.used = used;
        Some(&entry.response)
    }

    fn tick(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn response(caller: Caller, previous: Option<&str>, text: &str) -> StoredResponse {
        let message = |role: &str| Item::Message { role: role.into(), text: text.into() };
        StoredResponse {
            caller,
            json: String::new(),
            previous: previous.map(str::to_owned),
            input: vec![message("user")],
            output: vec![message("assistant")],
            running: None,
        }
    }

    #[test]
    fn conversations_are_of_one_caller() {
        let store = ResponseStore::default();
        store.insert("a".into(), response(Caller::Key(0), None, "1"));
        store.insert("b".into(), response(Caller::Key(0), Some("a"), "2"));
        let texts = |items: Vec<Item>| -> Vec<String> {
            let text = |item: Item| match item {
                Item::Message { text, .. } => text,
                other => panic!("{other:?}"),
            };
            items.into_iter().map(text).collect()
        };
        assert_eq!(texts(store.conversation("b", Caller::Key(0)).unwrap()), ["1", "1", "2", "2"]);
        assert!(store.conversation("b", Caller::Key(1)).is_none());
        assert!(store.get("a", Caller::Key(1)).is_none() && store.remove("a", Caller::Key(1)).is_none());
        assert!(store.remove("a", Caller::Key(0)).is_some());
        assert!(store.conversation("b", Caller::Key(0)).is_none(), "its beginning is gone");
        assert!(store.get("b", Caller::Key(0)).is_some());
    }

    #[test]
    fn memory_is_bounded_and_what_is_used_stays() {
        let store = ResponseStore::default();
        store.insert("first".into(), response(Caller::Anyone, None, "x"));
        for i in 0..2 * MOST {
            store.insert(format!("{i}"), response(Caller::Anyone, None, "y"));
            assert!(store.get("first", Caller::Anyone).is_some(), "{i}");
        }
        assert_eq!(store.state().responses.len(), MOST);
        let large = "z".repeat(MOST_BYTES / 4);
        for i in 0..8 {
            store.insert(format!("large {i}"), response(Caller::Anyone, None, &large));
            let state = store.state();
            assert!(state.bytes <= MOST_BYTES && state.by_use.len() == state.responses.len());
        }
        // What is too large by itself is not kept, and others are.
        store.insert("huge".into(), response(Caller::Anyone, None, &"z".repeat(MOST_BYTES)));
        assert!(store.get("huge", Caller::Anyone).is_none());
        assert!(store.get("large 7", Caller::Anyone).is_some());
    }
}
