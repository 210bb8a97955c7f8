//! Parallel download of a large file over several connections.
//!
//! Each connection fetches one piece (a byte range). Pieces arrive in any order and are buffered until all before them
//! are written, so the file on disk is always a prefix, as with one connection. Whoever resumes it, this program or
//! another, needs only its length, and it never looks more complete than it is. A crash loses only the buffered pieces.

use std::collections::BTreeMap;
use std::io::{self, Read};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use ureq::http::{Method, header};

use crate::blob::{CHUNK, PROGRESS, Partial};
use crate::error::Result;
use crate::http::{Answer, Http, Place, Span, Target, Tries, Trouble, cut_off};
use crate::repo::RepoName;
use crate::settings::{Event, Ranges, Watch, tell};

/// Pieces that may be buffered beyond one per connection.
const SPARE: usize = 2;
/// Target time per piece, adjusted through its size: shorter, and requests cost too much; longer, and too much is lost
/// in a crash.
const QUICK: Duration = Duration::from_secs(1);
const SLOW: Duration = Duration::from_secs(4);

/// A connection's message about the piece that begins at the offset.
enum News {
    Bytes(u64, Vec<u8>),
    Ended(u64, Duration),
    Failed(u64, Failure),
}

/// Why a piece failed.
enum Failure {
    Trouble(Trouble),
    /// The server does not return the requested range.
    NoRanges,
    /// The server's file has another length.
    Length(u64),
    /// The download was abandoned: nobody receives.
    Unwanted,
}

impl From<Trouble> for Failure {
    fn from(trouble: Trouble) -> Failure {
        Failure::Trouble(trouble)
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Idle,
    Flying,
    Ended,
}

/// A piece that is not fully written yet.
struct Piece {
    end: u64,
    /// End of what has been received.
    have: u64,
    /// Received and not yet written.
    waiting: Vec<Vec<u8>>,
    state: State,
}

/// Downloads the rest of a partial file. Returns false if the server does not support ranges: then use one connection.
pub(crate) fn fetch(
    http: &Arc<Http>,
    target: &Target,
    partial: &mut Partial,
    watch: &mut Watch<'_>,
) -> Result<bool> {
    let (file, total) = (partial.blob.file.clone(), partial.blob.size);
    let asker = Arc::new(Asker {
        http: http.clone(),
        repo: target.repo.clone(),
        revision: target.revision.to_owned(),
        url: http.file_url(target.repo, target.revision, &file),
        file: file.clone(),
        size: total,
        place: Mutex::new(None),
    });
    let (send, news) = channel();
    let mut line = Line::new(&http.ranges, partial.done);
    let mut tries = Tries::new(&http.timing, http.timing.tries);
    let (mut arrived, mut best) = (partial.done, partial.done);
    let mut trouble: Option<Trouble> = None;
    while partial.done < total {
        match trouble.take() {
            // When one connection fails, others are likely to. Wait for all of them, and count it as one failure.
            Some(why) if line.flying == 0 => {
                line.allowed = (line.allowed / 2).max(1);
                tries.pause(&target.what(), why, watch)?;
            }
            None => {
                while let Some((start, span)) = line.next(total) {
                    asker.clone().start(start, span, send.clone());
                }
            }
            waiting => trouble = waiting,
        }
        if line.flying == 0 {
            continue;
        }
        // `send` is alive here, so `recv` cannot fail.
        let Ok(told) = news.recv() else { break };
        match told {
            News::Bytes(start, bytes) => {
                arrived += bytes.len() as u64;
                line.took(start, bytes);
                line.written(|bytes| partial.append(bytes))?;
                tell(watch, Event::Progress { file: &file, done: arrived, total })?;
            }
            News::Ended(start, took) => {
                line.ended(start, took);
                line.written(|bytes| partial.append(bytes))?;
            }
            News::Failed(start, failure) => {
                line.failed(start);
                match failure {
                    Failure::Trouble(Trouble::Final(error)) => return Err(error),
                    Failure::Trouble(passing) => trouble = trouble.or(Some(passing)),
                    Failure::NoRanges => return Ok(false),
                    Failure::Length(n) => return Err(partial.wrong_length(format!("the server has {n}"))),
                    Failure::Unwanted => {}
                }
            }
        }
        if partial.done >= best.saturating_add(PROGRESS) {
            best = partial.done;
            line.allowed = (line.allowed + 1).min(line.ranges.connections);
            tries.reset();
        }
    }
    Ok(true)
}

/// The pieces under way, in file order.
struct Line<'a> {
    ranges: &'a Ranges,
    pieces: BTreeMap<u64, Piece>,
    /// Start of the next new piece, and its size.
    next: u64,
    size: u64,
    flying: usize,
    /// Most connections for now: halved by a failure, raised by progress.
    allowed: usize,
}

impl Line<'_> {
    fn new(ranges: &Ranges, done: u64) -> Line<'_> {
        let (pieces, size) = (BTreeMap::new(), ranges.least.max(1));
        Line { ranges, pieces, next: done, size, flying: 0, allowed: ranges.connections.max(1) }
    }

    /// The next piece to request, if a connection is free: its start, and the range that is missing.
    fn next(&mut self, total: u64) -> Option<(u64, Span)> {
        if self.flying >= self.allowed {
            return None;
        }
        let idle = self.pieces.iter().find(|(_, piece)| piece.state == State::Idle).map(|(start, _)| *start);
        let room = self.next < total && self.pieces.len() < self.ranges.connections + SPARE;
        let start = match idle {
            Some(start) => start,
            None if room => {
                let (start, end) = (self.next, self.next.saturating_add(self.size).min(total));
                self.next = end;
                self.pieces
                    .insert(start, Piece { end, have: start, waiting: Vec::new(), state: State::Idle });
                start
            }
            None => return None,
        };
        let piece = self.pieces.get_mut(&start)?;
        piece.state = State::Flying;
        self.flying += 1;
        Some((start, Span { from: piece.have, end: Some(piece.end) }))
    }

    fn took(&mut self, start: u64, bytes: Vec<u8>) {
        if let Some(piece) = self.pieces.get_mut(&start) {
            piece.have += bytes.len() as u64;
            piece.waiting.push(bytes);
        }
    }

    fn ended(&mut self, start: u64, took: Duration) {
        self.flying -= 1;
        if let Some(piece) = self.pieces.get_mut(&start) {
            piece.state = State::Ended;
        }
        if took < QUICK {
            self.size = self.size.saturating_mul(2).min(self.ranges.most);
        } else if took > SLOW {
            self.size = (self.size / 2).max(self.ranges.least.max(1));
        }
    }

    /// Keeps what was received of a failed piece; the rest is requested again.
    fn failed(&mut self, start: u64) {
        self.flying -= 1;
        if let Some(piece) = self.pieces.get_mut(&start) {
            piece.state = State::Idle;
        }
    }

    /// Appends all buffered bytes that have nothing missing before them.
    fn written(&mut self, mut append: impl FnMut(&[u8]) -> Result<()>) -> Result<()> {
        while let Some(mut first) = self.pieces.first_entry() {
            for bytes in std::mem::take(&mut first.get_mut().waiting) {
                append(&bytes)?;
            }
            if first.get().state != State::Ended {
                break;
            }
            first.remove();
        }
        Ok(())
    }
}

/// Requests pieces of one file, on threads that end when nobody receives.
struct Asker {
    http: Arc<Http>,
    repo: RepoName,
    revision: String,
    file: String,
    url: String,
    size: u64,
    /// Final URL of the last successful request.
    place: Mutex<Option<Place>>,
}

impl Asker {
    fn start(self: Arc<Asker>, start: u64, span: Span, send: Sender<News>) {
        let own = send.clone();
        let work = move || {
            let begun = Instant::now();
            let mut took = |bytes| own.send(News::Bytes(start, bytes)).is_ok();
            let told = match self.piece(span, &mut took) {
                Ok(()) => News::Ended(start, begun.elapsed()),
                Err(failure) => News::Failed(start, failure),
            };
            let _ = own.send(told);
        };
        if let Err(e) = thread::Builder::new().name("download".to_owned()).spawn(work) {
            let why = format!("there is no thread for another connection: {e}");
            let _ = send.send(News::Failed(start, Trouble::Transient { why, after: None }.into()));
        }
    }

    /// Downloads a piece. `took` is called with each chunk and returns whether to continue.
    fn piece(&self, span: Span, took: &mut dyn FnMut(Vec<u8>) -> bool) -> std::result::Result<(), Failure> {
        let Span { mut from, end } = span;
        let end = end.unwrap_or(self.size);
        let answer = self.asked(span)?;
        match answer.status() {
            206 => match answer.header(header::CONTENT_RANGE).and_then(content_range) {
                Some((_, Some(total))) if total != self.size => return Err(Failure::Length(total)),
                Some((start, _)) if start == from => {}
                _ => return Err(Failure::NoRanges),
            },
            200 | 416 => return Err(Failure::NoRanges),
            _ => return Err(self.http.refusal(&answer, &self.target()).into()),
        }
        *self.place() = Some(answer.place);
        let mut body = answer.response.into_body().into_reader();
        while from < end {
            let mut chunk = vec![0; CHUNK.min((end - from) as usize)];
            let n = body.read(&mut chunk).map_err(|e| cut_off(&e))?;
            if n == 0 {
                return Err(cut_off(&io::ErrorKind::UnexpectedEof.into()).into());
            }
            chunk.truncate(n);
            from += n as u64;
            if !took(chunk) {
                return Err(Failure::Unwanted);
            }
        }
        Ok(())
    }

    /// Requests a range from the last final URL, or from the hub at first and when that URL has expired.
    fn asked(&self, span: Span) -> std::result::Result<Answer, Trouble> {
        let known = self.place().clone();
        if let Some(place) = known {
            match self.http.ask_at(Method::GET, place, span, &self.target()) {
                Ok(answer) if answer.status() < 400 || answer.status() >= 500 => return Ok(answer),
                Err(trouble @ Trouble::Transient { .. }) => {
                    *self.place() = None;
                    return Err(trouble);
                }
                _ => *self.place() = None,
            }
        }
        self.http.ask(Method::GET, &self.url, span, &self.target())
    }

    fn place(&self) -> std::sync::MutexGuard<'_, Option<Place>> {
        self.place.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn target(&self) -> Target<'_> {
        Target { repo: &self.repo, revision: &self.revision, file: Some(&self.file) }
    }
}

/// Start and total of a `Content-Range` header: `bytes 5-9/10`.
pub(crate) fn content_range(text: &str) -> Option<(u64, Option<u64>)> {
    let (range, total) = text.strip_prefix("bytes ")?.split_once('/')?;
    let start = range.split_once('-')?.0.trim().parse().ok()?;
    Some((start, total.trim().parse().ok()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn content_ranges_are_read() {
        assert_eq!(content_range("bytes 5-9/10"), Some((5, Some(10))));
        assert_eq!(content_range("bytes 5-9/*"), Some((5, None)));
        for bad in ["", "bytes */10", "5-9/10", "bytes -9/10"] {
            assert_eq!(content_range(bad), None, "{bad}");
        }
    }
}
