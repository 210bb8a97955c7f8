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

use crate::errors::ApiError;
use crate::generation::answers::Answers;
use crate::generation::outputs::ChoiceEvent;
use crate::generation::wire::Envelope;

/// After this much silence a comment is sent as keep-alive, so that no proxy takes the connection for dead.
pub(crate) const KEEP_ALIVE: Duration = Duration::from_secs(15);
/// Target size of one body frame.
const PIECE: usize = 16 << 10;

/// Body of an SSE response.
struct Events {
    answers: Answers,
    envelope: Envelope,
    buffer: String,
    keep_alive: Pin<Box<Sleep>>,
    ended: bool,
}

/// Streams an answer.
pub(crate) fn stream(answers: Answers, envelope: Envelope, choices: usize) -> Response {
    let mut events = Events {
        answers,
        envelope,
        buffer: String::new(),
        keep_alive: Box::pin(sleep(KEEP_ALIVE)),
        ended: false,
    };
    for index in 0..choices {
        let begin = events.envelope.begin(index);
        events.push_data(begin);
    }
    let headers = [(header::CONTENT_TYPE, "text/event-stream"), (header::CACHE_CONTROL, "no-cache")];
    (StatusCode::OK, headers, [("x-accel-buffering", "no")], Body::new(events)).into_response()
}

impl Events {
    fn push_data(&mut self, data: impl IntoIterator<Item = String>) {
        for data in data {
            self.buffer += "data: ";
            self.buffer += &data;
            self.buffer += "\n\n";
        }
    }

    fn write(&mut self, update: Option<Result<ChoiceEvent, ApiError>>) {
        match update {
            Some(Ok(ChoiceEvent { index, part, end, progress })) => {
                let progress = progress.map(|progress| self.envelope.progress(index, &progress));
                self.push_data(progress);
                let part = part.map(|part| self.envelope.part(index, &part));
                self.push_data(part);
                let last = self.answers.ended() && !self.envelope.include_usage;
                let totals = last.then(|| self.answers.totals());
                let end = end.map(|end| self.envelope.end(index, end, totals));
                self.push_data(end);
            }
            Some(Err(error)) => {
                self.push_data([error.json()]);
                self.ended = true;
            }
            None => {
                let usage = self.envelope.usage(self.answers.totals());
                self.push_data(usage);
                self.push_data(["[DONE]".to_owned()]);
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
        while !this.ended && this.buffer.len() < PIECE {
            match this.answers.poll_next(cx) {
                Poll::Ready(update) => this.write(update),
                Poll::Pending => break,
            }
        }
        if this.buffer.is_empty() && !this.ended && this.keep_alive.as_mut().poll(cx).is_ready() {
            this.buffer += ": keep-alive\n\n";
        }
        if !this.buffer.is_empty() {
            this.keep_alive.as_mut().reset(Instant::now() + KEEP_ALIVE);
            let bytes = Bytes::from(std::mem::take(&mut this.buffer));
            return Poll::Ready(Some(Ok(Frame::data(bytes))));
        }
        if this.ended { Poll::Ready(None) } else { Poll::Pending }
    }
}
