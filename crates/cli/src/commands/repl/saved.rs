//! `/save` and `/load`: a chat as a file.

use std::io::{ErrorKind, Write};

use serde_json::{Map, Value, json};
use tallow_engine::sampler::Sampling;
use tallow_text::reasoning::Effort;

use super::{Repl, print};
use crate::chat::dialogue::Message;
use crate::env::expand;
use crate::settings::unreadable;
use crate::{Failed, terminal};

/// Largest chat file that is loaded, in bytes.
const MAX_BYTES: u64 = 64 << 20;

impl Repl<'_> {
    /// Writes conversation and settings. An existing file is replaced only if `replaces`.
    pub(super) fn save(&self, path: &str, replaces: bool) -> Result<(), Failed> {
        let dialogue = &self.talk.dialogue;
        let message = |m: &Message| match m.reasoning.is_empty() {
            true => json!({"role": m.role, "content": m.content}),
            false => json!({"role": m.role, "content": m.content, "reasoning": m.reasoning}),
        };
        let messages: Vec<Value> = dialogue.messages.iter().map(message).collect();
        let saved = json!({
            "model": self.setup.loaded.name,
            "system": dialogue.system,
            "settings": self.settings(),
            "messages": messages,
        });
        let mut options = std::fs::OpenOptions::new();
        let options = if replaces { options.create(true).truncate(true) } else { options.create_new(true) };
        let written = options.write(true).open(expand(path)).and_then(|mut file| {
            file.write_all(format!("{saved:#}\n").as_bytes())?;
            file.sync_all()
        });
        match written {
            Ok(()) => print(&format!("saved to {path}\n")),
            Err(e) if e.kind() == ErrorKind::AlreadyExists => {
                Err(Failed::new(format!("{path} is there already; /save! {path} replaces it")))
            }
            Err(e) => Err(Failed::new(format!("{path} cannot be written: {e}"))),
        }
    }

    fn settings(&self) -> Value {
        let (s, talk) = (&self.talk.sampling, &self.talk);
        // The shortest decimal form, not that of the nearest double.
        let real = |x: f32| serde_json::from_str::<Value>(&x.to_string()).unwrap_or(Value::Null);
        json!({
            "temperature": real(s.temperature),
            "top-k": s.top_k,
            "top-p": real(s.top_p),
            "min-p": real(s.min_p),
            "typical-p": real(s.typical_p),
            "repetition-penalty": real(s.repetition_penalty),
            "presence-penalty": real(s.presence_penalty),
            "frequency-penalty": real(s.frequency_penalty),
            "seed": s.seed,
            "max-tokens": talk.max_tokens,
            "stop": talk.stops,
            "think": talk.dialogue.effort().map(Effort::name),
        })
    }

    /// Continues with the conversation and settings of a file. If any of it cannot be read, nothing changes.
    pub(super) fn load(&mut self, path: &str) -> Result<(), Failed> {
        let wrong = |why: String| Failed::new(format!("{path}: {why}"));
        let file = expand(path);
        let why = |e| wrong(format!("{}; /load reads what /save has written", unreadable(&e)));
        let size = std::fs::metadata(&file).map_err(why)?.len();
        if size > MAX_BYTES {
            return Err(wrong(format!("has {size} bytes; at most {MAX_BYTES} are read")));
        }
        let text = std::fs::read_to_string(&file).map_err(|e| wrong(e.to_string()))?;
        let saved: Value =
            serde_json::from_str(&text).map_err(|e| wrong(format!("is no saved chat: {e}")))?;
        let messages = saved["messages"].as_array();
        let messages = messages.ok_or_else(|| wrong("is no saved chat: it has no messages".into()))?;
        let text = |v: &Value| v.as_str().map(str::to_owned);
        let message = |m: &Value| {
            let reasoning = text(&m["reasoning"]).unwrap_or_default();
            Some(Message { role: text(&m["role"])?, content: text(&m["content"])?, reasoning })
        };
        let messages: Option<Vec<Message>> = messages.iter().map(message).collect();
        let messages = messages.ok_or_else(|| wrong("a message has no role or no content".into()))?;
        // Files of earlier versions have no settings.
        if let Some(settings) = saved["settings"].as_object() {
            self.restore(settings).map_err(|why| wrong(format!("settings: {why}")))?;
        }
        let count = messages.len();
        self.talk.dialogue.clear();
        self.talk.dialogue.messages = messages;
        self.talk.dialogue.system = text(&saved["system"]);
        let other = saved["model"].as_str().filter(|model| *model != self.setup.loaded.name);
        let other =
            other.map_or(String::new(), |model| format!(" (saved with {})", terminal::sanitized(model)));
        print(&format!("{count} messages{other}\n"))
    }

    /// Applies the settings that are there.
    fn restore(&mut self, settings: &Map<String, Value>) -> Result<(), Failed> {
        let mut sampling = self.talk.sampling.clone();
        let Sampling { temperature, top_p, min_p, typical_p, .. } = &mut sampling;
        let reals =
            [("temperature", temperature), ("top-p", top_p), ("min-p", min_p), ("typical-p", typical_p)];
        reals.into_iter().try_for_each(|(name, to)| real(settings, name, to))?;
        real(settings, "repetition-penalty", &mut sampling.repetition_penalty)?;
        real(settings, "presence-penalty", &mut sampling.presence_penalty)?;
        real(settings, "frequency-penalty", &mut sampling.frequency_penalty)?;
        let whole = |name: &str| match settings.get(name).unwrap_or(&Value::Null) {
            Value::Null => Ok(None),
            value => value.as_u64().map(Some).ok_or_else(|| wrong(name, "a whole number")),
        };
        let top_k = whole("top-k")?.map(usize::try_from).transpose().map_err(Failed::new)?;
        sampling.top_k = top_k.unwrap_or(sampling.top_k);
        sampling.seed = whole("seed")?.unwrap_or(sampling.seed);
        let max_tokens = whole("max-tokens")?.map(usize::try_from).transpose().map_err(Failed::new)?;
        let stops = match settings.get("stop") {
            None => Vec::new(),
            Some(stops) => {
                let all: Option<Vec<String>> = stops
                    .as_array()
                    .and_then(|all| all.iter().map(|s| Some(s.as_str()?.to_owned())).collect());
                let all = all.filter(|all| all.iter().all(|stop| !stop.is_empty()));
                all.ok_or_else(|| wrong("stop", "a list of texts"))?
            }
        };
        let effort = match settings.get("think").unwrap_or(&Value::Null) {
            Value::Null => None,
            value => {
                let effort = value.as_str().and_then(Effort::named);
                Some(effort.ok_or_else(|| wrong("think", "none, minimal, low, medium or high"))?)
            }
        };
        self.setup.config.clone().with(&sampling).check()?;
        // Another model may not support this effort; the conversation is valid all the same.
        if self.talk.dialogue.think(effort).is_err() {
            self.talk.dialogue.think(None)?;
        }
        (self.talk.sampling, self.talk.max_tokens, self.talk.stops) = (sampling, max_tokens, stops);
        Ok(())
    }
}

fn wrong(name: &str, what: &str) -> Failed {
    Failed::new(format!("{name}: {what} is expected"))
}

fn real(settings: &Map<String, Value>, name: &str, to: &mut f32) -> Result<(), Failed> {
    if let Some(value) = settings.get(name) {
        *to = value.as_f64().ok_or_else(|| wrong(name, "a number"))? as f32;
    }
    Ok(())
}
