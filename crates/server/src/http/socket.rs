//! [`Socket`]: the byte stream of a connection, below the HTTP implementation.
//!
//! It detects what hyper does not report: clients that do not read, clients that closed their sending side but still
//! listen, and requests that cannot be parsed at all, which get a proper error response.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::http::StatusCode;
use hyper::rt::{Read, ReadBufCursor, Write};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::time::{Instant, Sleep, sleep};

use crate::errors::ApiError;
use crate::http::connection_table::{ConnectionSlot, Probe};
use crate::request_id::unique;

/// Most headers of a request, and most bytes of them with its path.
pub(crate) const MAX_HEADERS: usize = 100;
pub(crate) const MAX_HEADER_BYTES: usize = 64 << 10;
/// Time that a client may go without reading what it is sent.
pub(crate) const WRITE_TIMEOUT: Duration = Duration::from_secs(60);
/// Time that a client may go on sending a request that was answered before it was read.
pub(crate) const LINGER: Duration = Duration::from_secs(2);
/// Interval of checks whether a half-closed client is gone altogether.
const POLL_INTERVAL: Duration = Duration::from_millis(40);
/// HTTP/2 connection preface.
const HTTP2_PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// Probes that change nothing before an answer (interim response) and within a stream (SSE comment chunk). A client
/// that is gone answers them with a reset.
const BEFORE_ANSWER: &[u8] = b"HTTP/1.1 100 Continue\r\n\r\n";
const WITHIN_STREAM: &[u8] = b"3\r\n:\n\n\r\n";

/// A connection to a client.
pub(crate) struct Socket {
    io: TokioIo<TcpStream>,
    connection: Arc<ConnectionSlot>,
    /// Times out when nothing could be sent.
    write_timeout: Option<Pin<Box<Sleep>>>,
    /// True if the client has closed its sending side.
    ended: bool,
    /// Time of the next check whether it is gone.
    next_poll: Option<Pin<Box<Sleep>>>,
    /// True if a probe was sent.
    probed: bool,
    /// True if everything written so far was flushed.
    flushed: bool,
    /// Bytes of [`HTTP2_PREFACE`] matched at the start of the stream; `None` once that is decided.
    preface: Option<usize>,
    /// An error response of ours in place of hyper's bare one, until it is sent.
    replacement: Option<ErrorResponse>,
    /// End of the time in which the rest of a request is read that is already answered.
    linger: Option<Pin<Box<Sleep>>>,
}

struct ErrorResponse {
    bytes: Vec<u8>,
    sent: usize,
}

impl Socket {
    pub(crate) fn new(stream: TcpStream, connection: Arc<ConnectionSlot>) -> Socket {
        Socket {
            io: TokioIo::new(stream),
            connection,
            write_timeout: None,
            ended: false,
            next_poll: None,
            probed: false,
            flushed: true,
            preface: Some(0),
            replacement: None,
            linger: None,
        }
    }

    fn stream(&self) -> &TcpStream {
        self.io.inner()
    }

    /// Passes on the result of a write, but times out if it stays pending: otherwise a client that never reads would
    /// hold its answer forever.
    fn watch<R>(&mut self, cx: &mut Context<'_>, sent: Poll<io::Result<R>>) -> Poll<io::Result<R>> {
        if sent.is_ready() {
            self.write_timeout = None;
            self.connection.transferred();
            return sent;
        }
        self.connection.blocked();
        let write_timeout = self.write_timeout.get_or_insert_with(|| Box::pin(sleep(WRITE_TIMEOUT)));
        ready!(write_timeout.as_mut().poll(cx));
        Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the client takes nothing of its answer")))
    }

    /// Handles a client that has closed its sending side, either because its request is complete or because it is gone.
    /// While its answer is being made a probe finds out which; otherwise the connection ends.
    fn half_closed(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        loop {
            if self.connection.is_idle() {
                return Poll::Ready(Ok(()));
            }
            if let Ok(Some(error)) = self.stream().take_error() {
                return Poll::Ready(Err(error));
            }
            if self.connection.is_working() && !self.probed && self.flushed {
                self.probed = true;
                let probe = match self.connection.probe() {
                    Probe::None => &[][..],
                    Probe::BeforeAnswer => BEFORE_ANSWER,
                    Probe::WithinStream => WITHIN_STREAM,
                };
                // If it cannot be sent now, sending the answer will tell.
                let _ = self.stream().try_write(probe);
            }
            let next_poll = self.next_poll.get_or_insert_with(|| Box::pin(sleep(POLL_INTERVAL)));
            ready!(next_poll.as_mut().poll(cx));
            next_poll.as_mut().reset(Instant::now() + POLL_INTERVAL);
            // A reader of a complete body has noticed that by now.
            if self.connection.is_arriving() {
                return Poll::Ready(Ok(()));
            }
        }
    }

    /// Matches the first bytes read against the HTTP/2 preface. Returns whether all of it has arrived.
    fn is_http2_preface(&mut self, read: &[u8]) -> bool {
        let Some(known) = self.preface else { return false };
        let expected = &HTTP2_PREFACE[known..];
        let n = expected.len().min(read.len());
        let same = expected[..n] == read[..n];
        self.preface = same.then_some(known + n).filter(|n| *n < HTTP2_PREFACE.len());
        same && known + n == HTTP2_PREFACE.len()
    }

    /// The response to send in place of one that hyper made by itself because it could not parse the request: that one
    /// has a status and nothing more.
    fn replacement_for(&self, bytes: &[u8]) -> Option<ErrorResponse> {
        let bare = self.flushed && self.connection.is_answered() && bytes.ends_with(b"\r\n\r\n");
        let head = std::str::from_utf8(bytes).ok().filter(|_| bare)?;
        let status = head.strip_prefix("HTTP/1.1 ").filter(|_| head.contains("\r\ncontent-length: 0\r\n"))?;
        let status = StatusCode::from_bytes(status.get(..3)?.as_bytes()).ok()?;
        status.is_client_error().then(|| ErrorResponse { bytes: unread(status), sent: 0 })
    }

    /// Sends the rest of our own response.
    fn poll_replacement(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while let Some(replacement) = &mut self.replacement {
            let sent = Pin::new(&mut self.io).poll_write(cx, &replacement.bytes[replacement.sent..]);
            match sent {
                Poll::Ready(Ok(n)) if n > 0 => replacement.sent += n,
                Poll::Ready(Ok(_)) => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                Poll::Ready(Err(e)) => return Poll::Ready(Err(e)),
                Poll::Pending => return self.watch(cx, Poll::Pending),
            }
            if replacement.sent == replacement.bytes.len() {
                self.replacement = None;
            }
        }
        Poll::Ready(Ok(()))
    }

    /// Reads and drops what the client still sends of a request that was answered early, until it closes its side or [`LINGER`]
    /// is over. To close at once would make the system reset the connection, and the client lose an answer that it has
    /// not read yet: why its request was refused.
    fn poll_linger(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let linger = self.linger.get_or_insert_with(|| Box::pin(sleep(LINGER)));
        let mut bytes = [0; 8 << 10];
        while !self.ended && linger.as_mut().poll(cx).is_pending() {
            let mut piece = hyper::rt::ReadBuf::new(&mut bytes);
            match ready!(Pin::new(&mut self.io).poll_read(cx, piece.unfilled())) {
                Ok(()) if !piece.filled().is_empty() => {}
                Ok(()) | Err(_) => self.ended = true,
            }
        }
        Poll::Ready(Ok(()))
    }

    /// Records that an answer is being sent, unless it is only `100 Continue`.
    fn sending(&mut self, bytes: &[u8]) {
        self.flushed = false;
        if !bytes.starts_with(b"HTTP/1.1 100 ") {
            self.connection.answering();
        }
    }
}

/// Response to a request that could not be parsed, with a body and an id like all others; also logs it.
fn unread(status: StatusCode) -> Vec<u8> {
    let why = match status {
        StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE => format!(
            "the request's path and headers are too large: at most {} headers and {} bytes are read",
            MAX_HEADERS, MAX_HEADER_BYTES
        ),
        StatusCode::HTTP_VERSION_NOT_SUPPORTED => {
            "this server speaks HTTP/1.1 and not HTTP/2; put a proxy in front that translates".to_owned()
        }
        _ => "the request is no HTTP/1.1 that can be read; is it meant for https or for another server?"
            .to_owned(),
    };
    let id = unique();
    tracing::info!("a request could not be read: {} ({why}), request {id:?}", status.as_u16());
    let body = ApiError::new(status, why).json();
    let reason = status.canonical_reason().unwrap_or_default();
    let head = format!(
        "HTTP/1.1 {} {reason}\r\ncontent-type: application/json\r\nx-request-id: {id}\r\ncontent-length: {}\r\n\
         connection: close\r\n\r\n",
        status.as_u16(),
        body.len()
    );
    (head + &body).into_bytes()
}

/// Refuses a client before anything is read, as well as that can be done without waiting for it.
pub(crate) fn turn_away(stream: &TcpStream) {
    let why = "too many connections from this address are in use; try again in a while";
    let body = ApiError::new(StatusCode::TOO_MANY_REQUESTS, why).code("too_many_connections").json();
    let head = format!(
        "HTTP/1.1 429 Too Many Requests\r\ncontent-type: application/json\r\ncontent-length: {}\r\nretry-after: 1\r\n\
         connection: close\r\n\r\n",
        body.len()
    );
    // If the send buffer has no room, the client gets no reason.
    let _ = stream.try_write((head + &body).as_bytes());
}

impl Read for Socket {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        mut buf: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        if this.ended {
            return this.half_closed(cx);
        }
        let mut bytes = [0; 8 << 10];
        let room = bytes.len().min(buf.remaining());
        let mut piece = hyper::rt::ReadBuf::new(&mut bytes[..room]);
        ready!(Pin::new(&mut this.io).poll_read(cx, piece.unfilled()))?;
        let read = piece.filled();
        if read.is_empty() {
            this.ended = true;
            return this.half_closed(cx);
        }
        this.connection.transferred();
        if this.is_http2_preface(read) {
            let _ = this.stream().try_write(&unread(StatusCode::HTTP_VERSION_NOT_SUPPORTED));
            let why = "the client speaks HTTP/2";
            return Poll::Ready(Err(io::Error::new(io::ErrorKind::InvalidData, why)));
        }
        buf.put_slice(read);
        Poll::Ready(Ok(()))
    }
}

impl Write for Socket {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let this = &mut *self;
        ready!(this.poll_replacement(cx))?;
        if let Some(replacement) = this.replacement_for(buf) {
            this.replacement = Some(replacement);
            // Anything left is sent before all later writes.
            let _ = this.poll_replacement(cx)?;
            return Poll::Ready(Ok(buf.len()));
        }
        this.sending(buf);
        let sent = Pin::new(&mut this.io).poll_write(cx, buf);
        this.watch(cx, sent)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        ready!(this.poll_replacement(cx))?;
        this.flushed = true;
        Pin::new(&mut this.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        ready!(this.poll_replacement(cx))?;
        if this.linger.is_none() {
            ready!(Pin::new(&mut this.io).poll_shutdown(cx))?;
        }
        if this.connection.has_unread() { this.poll_linger(cx) } else { Poll::Ready(Ok(())) }
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = &mut *self;
        let mut some = bufs.iter().filter(|buf| !buf.is_empty());
        let first = some.next().map_or(&[][..], |buf| buf);
        if this.replacement.is_some() || some.next().is_none() {
            return Pin::new(this).poll_write(cx, first);
        }
        this.sending(first);
        let sent = Pin::new(&mut this.io).poll_write_vectored(cx, bufs);
        this.watch(cx, sent)
    }
}
