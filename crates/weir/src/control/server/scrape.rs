//! `/metrics` over TCP: the one thing strangers of the network may reach.
//!
//! Promises: no body is read; there are at most [`CONNECTIONS`] connections, of which the oldest makes room; a head and
//! a whole connection have deadlines; a connection is for one request. Refuses: everything but GET and HEAD of
//! `/metrics`.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::time::Duration;

use hyper::body::{Body as _, Incoming};
use hyper::service::service_fn;
use hyper::{Method, Request};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::AbortHandle;
use tokio::time::{sleep, timeout};

use super::{HEAD_TIMEOUT, PAUSE, ServerError, accepted, written};
use crate::control::{HttpRequest, RequestKind, RequestQueue, Response};

/// A collector or two, and people who look. Of some 20 KiB each.
const CONNECTIONS: usize = 16;
/// Time from the first packet to the last: what is told is some 100 KiB, which a slow line carries in seconds.
const WHOLE: Duration = Duration::from_secs(30);

/// A listener, before there is anything to answer with.
pub fn metrics_listener(address: SocketAddr) -> Result<std::net::TcpListener, ServerError> {
    let bound = std::net::TcpListener::bind(address).and_then(|l| {
        l.set_nonblocking(true)?;
        Ok(l)
    });
    bound.map_err(|error| ServerError::Metrics { address, error })
}

/// Serves every connection there is. Out of descriptors or memory: says so and tries again a little later.
pub(super) async fn accept(listener: TcpListener, queue: RequestQueue) {
    let mut open: VecDeque<AbortHandle> = VecDeque::with_capacity(CONNECTIONS);
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                open.retain(|connection| !connection.is_finished());
                if open.len() >= CONNECTIONS
                    && let Some(oldest) = open.pop_front()
                {
                    oldest.abort();
                }
                let queue = queue.clone();
                let served = async move { timeout(WHOLE, connection(stream, queue)).await };
                open.push_back(tokio::spawn(served).abort_handle());
            }
            Err(error) => {
                tracing::warn!("metrics: a connection was not accepted ({error})");
                sleep(PAUSE).await;
            }
        }
    }
}

async fn connection(stream: TcpStream, queue: RequestQueue) {
    let service = service_fn(move |request: Request<Incoming>| {
        let queue = queue.clone();
        async move {
            let said = match refusal(&request) {
                Some(refusal) => refusal,
                None => {
                    let accept = accepted(request.headers());
                    queue.ask(RequestKind::Http(wanted(request))).await.negotiated(accept.as_deref())
                }
            };
            Ok::<_, Infallible>(written(said))
        }
    });
    // A client that hangs up in the middle is no event of ours.
    let _ = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIMEOUT)
        .keep_alive(false)
        .serve_connection(TokioIo::new(stream), service)
        .await;
}

fn wanted(request: Request<Incoming>) -> HttpRequest {
    let (head, _) = request.into_parts();
    HttpRequest {
        method: head.method,
        path: head.uri.path().to_owned(),
        query: head.uri.query().unwrap_or_default().to_owned(),
        body: Vec::new(),
    }
}

/// What is not answered with metrics, seen from the head alone.
fn refusal(request: &Request<Incoming>) -> Option<Response> {
    let path = request.uri().path();
    if path != "/metrics" {
        return Some(Response::refusal(404, format!("{path}: not here; this address serves /metrics only")));
    }
    if !matches!(*request.method(), Method::GET | Method::HEAD) {
        let method = request.method();
        return Some(Response::refusal(405, format!("{path}: got {method}, expected GET")));
    }
    if !request.body().is_end_stream() {
        return Some(Response::refusal(
            413,
            format!("{path}: got a body, expected none; send the head alone"),
        ));
    }
    None
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::net::TcpStream;
    use std::sync::Arc;
    use std::sync::mpsc::channel;
    use std::thread;

    use weir_io::wake::Waker;

    use super::*;
    use crate::control::Request as Asked;
    use crate::control::server::Server;

    /// Longer than any machine keeps anything waiting.
    const LONG: Duration = Duration::from_secs(60);

    /// A server whose metrics are one line.
    fn start(name: &str) -> (Server, SocketAddr) {
        let (requests, asked) = channel::<Asked>();
        thread::spawn(move || {
            for ask in asked {
                let _ = ask.reply.send(Response::text("up 1\n"));
            }
        });
        let listener = metrics_listener("127.0.0.1:0".parse().expect("an address")).expect("free");
        let address = listener.local_addr().expect("bound");
        let socket = std::env::temp_dir().join(format!("weir-scrape-{name}-{}.sock", std::process::id()));
        let queue = RequestQueue { requests, waker: Arc::new(Waker::new().expect("a descriptor")) };
        (Server::new(&socket, false, Some(listener), None, queue).expect("starts"), address)
    }

    fn connect(address: SocketAddr) -> TcpStream {
        let stream = TcpStream::connect(address).expect("it listens");
        stream.set_read_timeout(Some(LONG)).expect("set");
        stream
    }

    /// What is said to this head, and nothing after it, until the connection ends.
    fn told(stream: &mut TcpStream, head: &str) -> String {
        stream.write_all(format!("{head}\r\nHost: h\r\n\r\n").as_bytes()).expect("asked");
        let mut answer = Vec::new();
        // What was sent and not read ends a connection with a reset, after its answer.
        let _ = stream.read_to_end(&mut answer);
        String::from_utf8(answer).expect("text")
    }

    #[test]
    fn a_body_is_refused_by_its_head_and_never_waited_for() {
        let (_server, address) = start("bodies");
        let told = |head: &str| told(&mut connect(address), head);
        assert!(told("GET /metrics HTTP/1.1").ends_with("up 1\n"));
        let long = "Content-Length: 268435456";
        for (head, status) in [
            (format!("POST /metrics HTTP/1.1\r\n{long}"), "405"),
            (format!("POST /v1/apply HTTP/1.1\r\n{long}"), "404"),
            (format!("GET /metrics HTTP/1.1\r\n{long}"), "413"),
            ("GET /metrics HTTP/1.1\r\nTransfer-Encoding: chunked".to_owned(), "413"),
            ("GET /v1/status HTTP/1.1".to_owned(), "404"),
        ] {
            let answer = told(&head);
            assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{head}: {answer}");
        }
    }

    #[test]
    fn the_oldest_connection_makes_room_and_the_others_are_served() {
        let (_server, address) = start("many");
        let mut all: Vec<TcpStream> = (0..CONNECTIONS).map(|_| connect(address)).collect();
        // Accepted in their order: when this one was answered they all were taken.
        assert!(told(&mut connect(address), "GET /metrics HTTP/1.1").ends_with("up 1\n"));
        let mut first = all.remove(0);
        assert_eq!(first.read(&mut [0]).unwrap_or(0), 0, "the oldest is disconnected");
        for mut other in all {
            assert!(told(&mut other, "GET /metrics HTTP/1.1").ends_with("up 1\n"), "the others are not");
        }
    }
}
