//! A request of a benchmark, and what its client sees.

use std::io::{BufRead, BufReader};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::args::Api;
use crate::remote::Remote;
use crate::terminal::sanitized;

/// Most bytes of an answer.
const MAX_BYTES: u64 = 1 << 30;

/// Prompt and length of a request.
#[derive(Clone, Debug)]
pub(super) struct Ask {
    pub prompt: String,
    pub max_tokens: usize,
}

/// Parameters that all requests to a server share.
#[derive(Clone, Debug)]
pub(super) struct How {
    pub model: String,
    pub api: Api,
    pub temperature: f64,
    pub ignore_eos: bool,
}

/// An answer, as its client saw it.
#[derive(Clone, Debug, Default)]
pub(super) struct Answered {
    pub prompt_tokens: usize,
    pub tokens: usize,
    /// From the request to its first token.
    pub first: Duration,
    /// From each token, or tokens that came together, to the next.
    pub gaps: Vec<Duration>,
    /// From the request to its last token.
    pub took: Duration,
}

impl How {
    fn path(&self) -> &'static str {
        match self.api {
            Api::Completions => "/v1/completions",
            Api::Chat => "/v1/chat/completions",
        }
    }

    fn body(&self, ask: &Ask) -> Value {
        let mut body = json!({
            "model": self.model,
            "max_tokens": ask.max_tokens,
            "temperature": self.temperature,
            "stream": true,
            "stream_options": {"include_usage": true},
        });
        match self.api {
            Api::Completions => body["prompt"] = json!(ask.prompt),
            Api::Chat => body["messages"] = json!([{"role": "user", "content": ask.prompt}]),
        }
        // Others than those who have this field may refuse it.
        if self.ignore_eos {
            body["ignore_eos"] = json!(true);
        }
        body
    }

    /// Sends a request and reads its answer; fails with the reason.
    pub(super) fn send(&self, server: &Remote, ask: &Ask) -> Result<Answered, String> {
        let begun = Instant::now();
        let mut answer = server.send(self.path(), &self.body(ask)).map_err(|e| e.to_string())?;
        let status = answer.status().as_u16();
        if status != 200 {
            let text = answer.body_mut().read_to_string().unwrap_or_default();
            let parsed: Value = serde_json::from_str(&text).unwrap_or_default();
            let why = parsed["error"]["message"].as_str().unwrap_or(text.as_str());
            return Err(format!("status {status}: {}", sanitized(why.trim())));
        }
        read(BufReader::new(answer.body_mut().with_config().limit(MAX_BYTES).reader()), begun)
    }
}

/// Reads the events of an answer.
fn read(mut events: impl BufRead, begun: Instant) -> Result<Answered, String> {
    let (mut answered, mut before, mut chunks) = (Answered::default(), None, 0);
    let mut line = String::new();
    loop {
        line.clear();
        if events.read_line(&mut line).map_err(|e| e.to_string())? == 0 {
            return Err("the answer ended before it was complete".into());
        }
        let Some(data) = line.strip_prefix("data:").map(str::trim) else { continue };
        if data == "[DONE]" {
            break;
        }
        let event: Value = serde_json::from_str(data).map_err(|e| format!("an event is not JSON: {e}"))?;
        if let Some(why) = event["error"]["message"].as_str() {
            return Err(sanitized(why).into_owned());
        }
        if let Some(usage) = event["usage"].as_object() {
            let count = |name: &str| usage.get(name).and_then(Value::as_u64).unwrap_or(0) as usize;
            (answered.prompt_tokens, answered.tokens) = (count("prompt_tokens"), count("completion_tokens"));
        }
        if !has_token(&event["choices"][0]) {
            continue;
        }
        let now = begun.elapsed();
        match before {
            None => answered.first = now,
            Some(before) => answered.gaps.push(now - before),
        }
        (before, answered.took) = (Some(now), now);
        chunks += 1;
    }
    // Not all servers tell.
    if answered.tokens == 0 {
        answered.tokens = chunks;
    }
    if chunks == 0 {
        return Err("the answer is empty".into());
    }
    Ok(answered)
}

/// True if an event brings text, of whatever kind.
fn has_token(choice: &Value) -> bool {
    let is_text = |text: &Value| text.as_str().is_some_and(|text| !text.is_empty());
    let delta = &choice["delta"];
    is_text(&choice["text"])
        || ["content", "reasoning_content", "reasoning"].iter().any(|name| is_text(&delta[*name]))
        || delta["tool_calls"].is_array()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(events: &[&str]) -> Result<Answered, String> {
        let text: String = events.iter().map(|event| format!("data: {event}\n\n")).collect();
        read(text.as_bytes(), Instant::now())
    }

    #[test]
    fn tokens_are_those_that_the_server_counts() {
        let text = r#"{"choices":[{"text":"ab"}],"usage":null}"#;
        let last = r#"{"choices":[],"usage":{"prompt_tokens":7,"completion_tokens":5}}"#;
        let told = answer(&[text, text, last, "[DONE]"]).unwrap();
        assert_eq!((told.prompt_tokens, told.tokens, told.gaps.len()), (7, 5, 1));
        let chat = r#"{"choices":[{"delta":{"reasoning_content":"ab"}}]}"#;
        let role = r#"{"choices":[{"delta":{"role":"assistant","content":""}}]}"#;
        let not_told = answer(&[role, chat, chat, chat, "[DONE]"]).unwrap();
        assert_eq!((not_told.tokens, not_told.gaps.len()), (3, 2));
        assert!(not_told.first <= not_told.took);
    }

    #[test]
    fn what_is_no_whole_answer_has_failed() {
        let text = r#"{"choices":[{"text":"ab"}]}"#;
        let error = r#"{"error":{"message":"out of\u001b memory"}}"#;
        let failures = [answer(&[text]), answer(&["[DONE]"]), answer(&[text, error]), answer(&["{"])];
        let failures: Vec<String> = failures.into_iter().map(Result::unwrap_err).collect();
        insta::assert_snapshot!(failures.join("\n"), @"
        the answer ended before it was complete
        the answer is empty
        out of␛ memory
        an event is not JSON: EOF while parsing an object at line 1 column 1
        ");
    }
}
