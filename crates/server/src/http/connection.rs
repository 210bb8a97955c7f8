//! Accepts and serves connections, with limits on their number and on slow clients.

use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Router;
use axum::http::{Request, Version};
use hyper::body::{Body, Bytes, Frame, Incoming, SizeHint};
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper_util::rt::TokioTimer;
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use crate::http::connection_table::{ConnectionSlot, ConnectionTable, SlotGuard};
use crate::http::socket::{MAX_HEADER_BYTES, MAX_HEADERS, Socket, turn_away};

/// Time limit for a request's headers, and for an idle connection.
const HEADER_TIMEOUT: Duration = Duration::from_secs(30);
/// Time that connections have to send their answers when the server ends.
const FLUSH: Duration = Duration::from_secs(2);
/// Pause after a failed accept, which mostly means that no file descriptors are left.
const ACCEPT_RETRY: Duration = Duration::from_millis(20);

/// A client's address, which its requests carry.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Client(pub(crate) SocketAddr);

/// Connections that are still open.
#[derive(Debug)]
pub(crate) struct OpenConnections {
    closing: watch::Sender<bool>,
    connections: JoinSet<()>,
}

impl OpenConnections {
    /// Shuts them down gracefully, and cuts them off after [`FLUSH`].
    pub(crate) async fn close(mut self) {
        self.closing.send_replace(true);
        let all = async { while self.connections.join_next().await.is_some() {} };
        // Dropping the set aborts the rest.
        let _ = timeout(FLUSH, all).await;
    }
}

/// Accepts and serves connections until `end` resolves.
pub(crate) async fn accept(
    listener: &TcpListener,
    router: Router,
    table: Arc<ConnectionTable>,
    end: impl Future<Output = ()>,
) -> OpenConnections {
    let closing = watch::Sender::new(false);
    let mut connections = JoinSet::new();
    let mut end = pin!(end);
    // Kept across iterations, so that a connection waiting for a place survives the end of another.
    let mut accepted = Box::pin(next(listener, &table));
    loop {
        tokio::select! {
            () = &mut end => return OpenConnections { closing, connections },
            (stream, guard) = &mut accepted => {
                accepted.set(next(listener, &table));
                connections.spawn(serve(stream, router.clone(), closing.subscribe(), guard));
            }
            Some(_) = connections.join_next() => {}
        }
    }
}

/// Accepts the next connection that gets a place in the table.
async fn next(listener: &TcpListener, table: &Arc<ConnectionTable>) -> (TcpStream, SlotGuard) {
    loop {
        match listener.accept().await {
            Ok((stream, address)) => match table.enter(address.ip()).await {
                Some(guard) => return (stream, guard),
                None => turn_away(&stream),
            },
            Err(e) => {
                // Frees a descriptor by closing the connection that has been idle longest.
                tracing::warn!("a connection could not be accepted: {e}");
                table.evict_idle();
                sleep(ACCEPT_RETRY).await;
            }
        }
    }
}

async fn serve(stream: TcpStream, router: Router, mut closing: watch::Receiver<bool>, guard: SlotGuard) {
    // Tokens are small and should not wait for each other (Nagle).
    let _ = stream.set_nodelay(true);
    let client = stream.peer_addr().ok().map(Client);
    let slot = guard.slot.clone();
    let socket = Socket::new(stream, slot.clone());
    let routes = TowerToHyperService::new(router);
    let service = service_fn(|mut request: Request<Incoming>| {
        slot.begin(request.version() == Version::HTTP_11);
        slot.set_unread(!request.body().is_end_stream());
        request.extensions_mut().insert(slot.clone());
        client.and_then(|client| request.extensions_mut().insert(client));
        routes.call(request.map(|body| RequestBody { body, slot: slot.clone() }))
    });
    let mut builder = http1::Builder::new();
    builder.timer(TokioTimer::new()).header_read_timeout(HEADER_TIMEOUT);
    builder.max_headers(MAX_HEADERS).max_buf_size(MAX_HEADER_BYTES);
    let mut connection = pin!(builder.serve_connection(socket, service));
    let close = async { drop(closing.wait_for(|closing| *closing).await) };
    let served = tokio::select! {
        // Read what has arrived before checking whether the connection must close.
        biased;
        served = &mut connection => served,
        () = slot.evicted() => {
            tracing::debug!("a connection was given up for others");
            return;
        }
        () = close => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(e) = served {
        // Clients that disconnect or do not speak HTTP are not a server error.
        tracing::debug!("a connection ended: {e}");
    }
}

/// A request's body, whose end is recorded.
struct RequestBody {
    body: Incoming,
    slot: Arc<ConnectionSlot>,
}

impl Body for RequestBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let frame = Pin::new(&mut self.body).poll_frame(cx);
        if self.body.is_end_stream() || matches!(frame, Poll::Ready(None)) {
            self.slot.set_unread(false);
        }
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use axum::body::Body as AnyBody;
    use axum::routing::{get, post};
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::time::Instant;

    use super::*;
    use crate::http::socket::{LINGER, WRITE_TIMEOUT};

    /// A body that never ends.
    struct Flood;

    impl Body for Flood {
        type Data = Bytes;
        type Error = io::Error;
        fn poll_frame(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<io::Result<Frame<Bytes>>>> {
            Poll::Ready(Some(Ok(Frame::data(Bytes::from_static(&[0; 4096])))))
        }
    }

    /// A connection to a server that sends [`Flood`], or answers without reading a request, and a task that ends with it.
    async fn connect() -> (TcpStream, tokio::task::JoinHandle<()>) {
        let listener = TcpListener::bind(SocketAddr::from(([127, 0, 0, 1], 0))).await.unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (stream, _) = listener.accept().await.unwrap();
        let router = Router::new().route("/", get(|| async { AnyBody::new(Flood) }));
        let router = router.route("/refused", post(|| async { "no" }));
        let closing = watch::Sender::new(false);
        let guard =
            Arc::new(ConnectionTable::new(1, 1)).enter(client.local_addr().unwrap().ip()).await.unwrap();
        let served = async move {
            serve(stream, router, closing.subscribe(), guard).await;
            drop(closing);
        };
        (client, tokio::spawn(served))
    }

    #[tokio::test(start_paused = true)]
    async fn who_takes_nothing_of_an_answer_is_cut_off() {
        let (mut client, served) = connect().await;
        let begun = Instant::now();
        client.write_all(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
        timeout(2 * WRITE_TIMEOUT, served).await.expect("it has ended").unwrap();
        assert!(begun.elapsed() >= WRITE_TIMEOUT, "but not at once");
    }

    const REFUSED: &[u8] = b"POST /refused HTTP/1.1\r\nhost: x\r\ncontent-length: 3000000\r\n\r\n";

    /// A client that sends all of its request before it looks for an answer gets the one that was given long before.
    #[tokio::test]
    async fn who_is_refused_while_sending_learns_why() {
        let (mut client, served) = connect().await;
        client.write_all(REFUSED).await.unwrap();
        for _ in 0..30 {
            sleep(Duration::from_millis(2)).await;
            client.write_all(&[b'x'; 100_000]).await.expect("it is read");
        }
        let mut answer = Vec::new();
        client.read_to_end(&mut answer).await.unwrap();
        assert!(answer.starts_with(b"HTTP/1.1 200 ") && answer.ends_with(b"no"));
        drop(client);
        timeout(LINGER, served).await.expect("it has ended").unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn who_never_ends_its_request_is_cut_off() {
        let (mut client, served) = connect().await;
        let begun = Instant::now();
        client.write_all(REFUSED).await.unwrap();
        timeout(2 * LINGER, served).await.expect("it has ended").unwrap();
        assert!(begun.elapsed() >= LINGER, "but not at once");
    }

    #[tokio::test(start_paused = true)]
    async fn headers_that_never_end_are_not_waited_for() {
        for start in ["", "GET / HTTP/1.1\r\nx: "] {
            let (mut client, served) = connect().await;
            let begun = Instant::now();
            client.write_all(start.as_bytes()).await.unwrap();
            timeout(2 * HEADER_TIMEOUT, served).await.expect("it has ended").unwrap();
            assert!(begun.elapsed() >= HEADER_TIMEOUT, "but not at once");
            let mut rest = Vec::new();
            client.read_to_end(&mut rest).await.unwrap();
            assert!(!String::from_utf8_lossy(&rest).contains("200"));
        }
    }
}
