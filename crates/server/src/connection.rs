//! Connections: how many, and how long they may keep us waiting.

use std::future::poll_fn;
use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::Router;
use hyper::Request;
use hyper::body::Incoming;
use hyper::rt::{Read, ReadBufCursor, Write};
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::task::JoinSet;
use tokio::time::{Sleep, sleep, timeout};

use crate::access::Client;

/// Connections at one time. More wait until one ends.
const MOST_CONNECTIONS: usize = 4096;
const MOST_HEADERS: usize = 100;
const MOST_HEADER_BYTES: usize = 64 << 10;
/// How long the headers of a request may take, and how long a connection may stay idle.
const HEADERS_WITHIN: Duration = Duration::from_secs(30);
/// How long a client may take nothing of what it is sent.
const TAKES_WITHIN: Duration = Duration::from_secs(60);
/// How long connections have to send what has been answered, once the server ends.
const FLUSH: Duration = Duration::from_secs(2);
/// A rest after a connection could not be accepted, mostly because there are no descriptors left.
const REST: Duration = Duration::from_millis(100);

/// Serves connections until `end` resolves.
pub(crate) async fn accept(listener: TcpListener, router: Router, end: impl Future<Output = ()>) {
    let (places, closing) = (Arc::new(Semaphore::new(MOST_CONNECTIONS)), watch::Sender::new(false));
    let mut connections = JoinSet::new();
    let mut end = pin!(end);
    loop {
        tokio::select! {
            () = &mut end => break,
            (stream, place) = next(&listener, &places) => {
                connections.spawn(serve(stream, router.clone(), closing.subscribe(), place));
            }
            Some(_) = connections.join_next() => {}
        }
    }
    drop(listener);
    closing.send_replace(true);
    let all = async { while connections.join_next().await.is_some() {} };
    // Those that are not done by then are cut off as this set is dropped.
    let _ = timeout(FLUSH, all).await;
}

/// The next connection, with a place for it.
async fn next(listener: &TcpListener, places: &Arc<Semaphore>) -> (TcpStream, Option<OwnedSemaphorePermit>) {
    // The semaphore is never closed.
    let place = places.clone().acquire_owned().await.ok();
    loop {
        match listener.accept().await {
            Ok((stream, _)) => return (stream, place),
            Err(e) => {
                tracing::warn!("a connection could not be accepted: {e}");
                sleep(REST).await;
            }
        }
    }
}

async fn serve(
    stream: TcpStream,
    router: Router,
    mut closing: watch::Receiver<bool>,
    _place: Option<OwnedSemaphorePermit>,
) {
    // Tokens are small and should not wait for each other.
    let _ = stream.set_nodelay(true);
    let client = stream.peer_addr().ok().map(Client);
    let io = Patient { io: TokioIo::new(stream), stuck: None };
    let router = TowerToHyperService::new(router);
    let service = service_fn(move |mut request: Request<Incoming>| {
        client.and_then(|client| request.extensions_mut().insert(client));
        router.call(request)
    });
    let mut builder = http1::Builder::new();
    builder.timer(TokioTimer::new()).header_read_timeout(HEADERS_WITHIN);
    builder.max_headers(MOST_HEADERS).max_buf_size(MOST_HEADER_BYTES);
    let mut connection = pin!(builder.serve_connection(io, service));
    let close = async { drop(closing.wait_for(|closing| *closing).await) };
    let served = tokio::select! {
        served = &mut connection => served,
        () = close => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(e) = served {
        // Clients that go away or do not speak HTTP are no fault of the server's.
        tracing::debug!("a connection ended: {e}");
    }
}

/// A stream whose reader must not stop reading: without it a client that never reads would hold its answer for ever.
struct Patient<T> {
    io: T,
    /// Since something could not be sent.
    stuck: Option<Pin<Box<Sleep>>>,
}

impl<T: Write + Unpin> Patient<T> {
    /// Passes on what came of sending, but not for ever that it must wait.
    fn watch<R>(&mut self, cx: &mut Context<'_>, sent: Poll<io::Result<R>>) -> Poll<io::Result<R>> {
        if sent.is_ready() {
            self.stuck = None;
            return sent;
        }
        let stuck = self.stuck.get_or_insert_with(|| Box::pin(sleep(TAKES_WITHIN)));
        ready!(stuck.as_mut().poll(cx));
        Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the client takes nothing of its answer")))
    }
}

impl<T: Read + Unpin> Read for Patient<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_read(cx, buf)
    }
}

impl<T: Write + Unpin> Write for Patient<T> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let sent = Pin::new(&mut self.io).poll_write(cx, buf);
        self.watch(cx, sent)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let sent = Pin::new(&mut self.io).poll_write_vectored(cx, bufs);
        self.watch(cx, sent)
    }
}

/// Runs what may panic; if it does, gives nothing.
pub(crate) async fn contained<T>(work: impl Future<Output = T>) -> Option<T> {
    let mut work = pin!(work);
    let poll = |cx: &mut Context<'_>| {
        let polled = std::panic::AssertUnwindSafe(|| work.as_mut().poll(cx));
        match std::panic::catch_unwind(polled) {
            Ok(polled) => polled.map(Some),
            Err(_) => Poll::Ready(None),
        }
    };
    poll_fn(poll).await
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use axum::body::Body;
    use axum::routing::get;
    use hyper::body::Bytes;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::time::Instant;

    use super::*;

    /// Something that always has more to send.
    struct Flood;

    impl hyper::body::Body for Flood {
        type Data = Bytes;
        type Error = io::Error;
        fn poll_frame(
            self: Pin<&mut Self>,
            _: &mut Context<'_>,
        ) -> Poll<Option<io::Result<hyper::body::Frame<Bytes>>>> {
            Poll::Ready(Some(Ok(hyper::body::Frame::data(Bytes::from_static(&[0; 4096])))))
        }
    }

    /// A connection to a server that floods whoever asks, and when it has ended.
    async fn connect() -> (TcpStream, tokio::task::JoinHandle<()>) {
        let listener = TcpListener::bind(SocketAddr::from(([127, 0, 0, 1], 0))).await.unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (stream, _) = listener.accept().await.unwrap();
        let router = Router::new().route("/", get(|| async { Body::new(Flood) }));
        let closing = watch::Sender::new(false);
        let served = async move {
            serve(stream, router, closing.subscribe(), None).await;
            drop(closing);
        };
        (client, tokio::spawn(served))
    }

    #[tokio::test(start_paused = true)]
    async fn who_takes_nothing_of_an_answer_is_cut_off() {
        let (mut client, served) = connect().await;
        let begun = Instant::now();
        client.write_all(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
        timeout(2 * TAKES_WITHIN, served).await.expect("it has ended").unwrap();
        assert!(begun.elapsed() >= TAKES_WITHIN, "but not at once");
    }

    #[tokio::test(start_paused = true)]
    async fn headers_that_never_end_are_not_waited_for() {
        for start in ["", "GET / HTTP/1.1\r\nx: "] {
            let (mut client, served) = connect().await;
            let begun = Instant::now();
            client.write_all(start.as_bytes()).await.unwrap();
            timeout(2 * HEADERS_WITHIN, served).await.expect("it has ended").unwrap();
            assert!(begun.elapsed() >= HEADERS_WITHIN, "but not at once");
            let mut rest = Vec::new();
            client.read_to_end(&mut rest).await.unwrap();
            assert!(!String::from_utf8_lossy(&rest).contains("200"));
        }
    }

    #[tokio::test]
    async fn panics_are_contained() {
        let worked = contained(async {
            tokio::task::yield_now().await;
            5
        });
        assert_eq!(worked.await, Some(5));
        let failed = contained(async {
            tokio::task::yield_now().await;
            panic!("on purpose");
        });
        assert_eq!(failed.await, None);
    }
}
