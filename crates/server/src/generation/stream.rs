//! [`Events`]: an answer as a stream of events.
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
use crate::generation::memory::TextClaim;
use crate::generation::outputs::ChoiceEvent;
use crate::generation::writer::AnswerWriter;

/// After this much silence a comment is sent as keep-alive, so that no proxy takes the connection for dead.
pub(crate) const KEEP_ALIVE: Duration = Duration::from_secs(15);
/// Target size of one body frame.
const PIECE: usize = 16 << 10;

/// Body of a stream.
struct Events {
    answers: Answers,
    writer: Box<dyn AnswerWriter>,
    /// Accounts the text that the writer keeps.
    text_claim: TextClaim,
    buffer: String,
    keep_alive: Pin<Box<Sleep>>,
    ended: bool,
}

/// Streams an answer.
pub(crate) fn stream(answers: Answers, mut writer: Box<dyn AnswerWriter>, text_claim: TextClaim) -> Response {
    let (mut buffer, kind) = (String::new(), writer.stream_type());
    writer.begin(&mut buffer);
    let keep_alive = Box::pin(sleep(KEEP_ALIVE));
    let events = Events { answers, writer, text_claim, buffer, keep_alive, ended: false };
    let headers = [(header::CONTENT_TYPE, kind), (header::CACHE_CONTROL, "no-cache")];
    (StatusCode::OK, headers, [("x-accel-buffering", "no")], Body::new(events)).into_response()
}

impl Events {
    fn write(&mut self, update: Option<Result<ChoiceEvent, ApiError>>) {
        match update {
            Some(Ok(event)) => {
                if let Some(part) = event.part.as_ref().filter(|_| self.writer.keeps_text()) {
                    self.text_claim.add(part.text_bytes());
                }
                let totals = self.answers.ended().then(|| self.answers.totals());
                self.writer.update(event, totals, &mut self.buffer);
            }
            Some(Err(error)) => {
                self.writer.fail(&error, &mut self.buffer);
                self.ended = true;
            }
            None => {
                self.writer.finish(self.answers.totals(), &mut self.buffer);
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
        if this.buffer.is_empty()
            && !this.ended
            && let Some(comment) = this.writer.keep_alive()
            && this.keep_alive.as_mut().poll(cx).is_ready()
        {
            this.buffer += comment;
        }
        if !this.buffer.is_empty() {
            this.keep_alive.as_mut().reset(Instant::now() + KEEP_ALIVE);
            let bytes = Bytes::from(std::mem::take(&mut this.buffer));
            return Poll::Ready(Some(Ok(Frame::data(bytes))));
        }
        if this.ended { Poll::Ready(None) } else { Poll::Pending }
    }
}
