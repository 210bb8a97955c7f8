//! [`Events`]: an answer as server-sent events.
//!
//! The connection polls for more once it has sent what it had, so a slow client makes nothing pile up here; the
//! engine's events wait in the request's own channel, which the length of the answer bounds.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::Body;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use hyper::body::{Bytes, Frame};
use tokio::time::{Instant, Sleep, sleep};

use crate::answers::{Answers, ChoiceEvent};
use crate::errors::ApiError;
use crate::wire::Envelope;

/// After this much silence a comment is sent as keep-alive, so that no proxy takes the connection for dead.
pub(crate) const SILENCE: Duration = Duration::from_secs(15);
/// Target size of one body frame.
const PIECE: usize = 16 << 10;

/// Body of an SSE response.
struct Events {
    answers: Answers,
    envelope: Envelope,
    ready: String,
    silence: Pin<Box<Sleep>>,
    ended: bool,
}

/// Streams an answer.
pub(crate) fn stream(answers: Answers, envelope: Envelope, choices: usize) -> Response {
    let mut events =
        Events { answers, envelope, ready: String::new(), silence: Box::pin(sleep(SILENCE)), ended: false };
    for index in 0..choices {
        let begin = events.envelope.begin(index);
        events.say(begin);
    }
    let headers = [(header::CONTENT_TYPE, "text/event-stream"), (header::CACHE_CONTROL, "no-cache")];
    (StatusCode::OK, headers, [("x-accel-buffering", "no")], Body::new(events)).into_response()
}

impl Events {
    fn say(&mut self, data: impl IntoIterator<Item = String>) {
        for data in data {
            self.ready += "data: ";
            self.ready += &data;
            self.ready += "\n\n";
        }
    }

    fn tell(&mut self, told: Option<Result<ChoiceEvent, ApiError>>) {
        match told {
            Some(Ok(ChoiceEvent { index, part, end, progress })) => {
                let progress = progress.map(|progress| self.envelope.progress(index, &progress));
                self.say(progress);
                let part = part.map(|part| self.envelope.part(index, &part));
                self.say(part);
                let last = self.answers.ended() && !self.envelope.include_usage;
                let totals = last.then(|| self.answers.totals());
                let end = end.map(|end| self.envelope.end(index, &end, totals));
                self.say(end);
            }
            Some(Err(error)) => {
                self.say([error.json()]);
                self.ended = true;
            }
            None => {
                let usage = self.envelope.usage(self.answers.totals());
                self.say(usage);
                self.say(["[DONE]".to_owned()]);
                self.ended = true;
            }
        }
    }
}

impl hyper::body::Body for Events {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let this = self.get_mut();
        while !this.ended && this.ready.len() < PIECE {
            match this.answers.poll_next(cx) {
                Poll::Ready(told) => this.tell(told),
                Poll::Pending => break,
            }
        }
        if this.ready.is_empty() && !this.ended && this.silence.as_mut().poll(cx).is_ready() {
            this.ready += ": keep-alive\n\n";
        }
        if !this.ready.is_empty() {
            this.silence.as_mut().reset(Instant::now() + SILENCE);
            let bytes = Bytes::from(std::mem::take(&mut this.ready));
            return Poll::Ready(Some(Ok(Frame::data(bytes))));
        }
        if this.ended { Poll::Ready(None) } else { Poll::Pending }
    }
}
