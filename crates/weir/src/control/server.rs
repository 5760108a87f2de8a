//! The control socket: HTTP/1.1 and JSON over a Unix socket, and `/metrics` over TCP where asked for.
//!
//! ```text
//! curl --unix-socket /run/weir/router.sock http://weir/v1/ports
//! ```
//!
//! One thread with its own small runtime. It knows no router and no relay: every request becomes a [`super::Request`] to
//! the control thread, which says status and body. Promises: a request body has a limit, a slow
//! client delays nobody, the socket file goes when the server does. Refuses: whoever is neither root nor the user weir runs
//! as; to take over a socket that somebody answers on.

mod error;
mod scrape;
mod socket;

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use http_body_util::{BodyExt, Full, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::header::{ACCEPT, CONNECTION, CONTENT_TYPE, HeaderMap, UPGRADE};
use hyper::service::service_fn;
use hyper::upgrade::Upgraded;
use hyper::{Method, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{UnixListener, UnixStream};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;

pub use error::ServerError;
pub use scrape::metrics_listener;
use socket::{Removed, listen};

use super::{Connection, HttpRequest, RequestKind, RequestQueue, Response, Upgrade};

/// A configuration may be as large as a file may be.
const BODY_MAX: usize = 256 << 20;
/// Out of descriptors or memory: tried again after this.
const PAUSE: Duration = Duration::from_millis(100);
/// A client that sends its request head slower than this is disconnected.
const HEAD_TIMEOUT: Duration = Duration::from_secs(5);
/// Requests still being answered when the daemon ends get this long.
const SHUTDOWN_GRACE: Duration = Duration::from_secs(1);

/// The running server; dropping it ends it and removes the socket file.
pub struct Server {
    file: Removed,
    end: watch::Sender<bool>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    /// Listens before it returns, so that "ready" is true when it is printed.
    pub fn start(
        socket: &Path,
        metrics: Option<SocketAddr>,
        queue: RequestQueue,
    ) -> Result<Server, ServerError> {
        Server::new(socket, false, metrics.map(metrics_listener).transpose()?, None, queue)
    }

    /// The same over a listener for `/metrics`; `beside` a socket that another answers on, until
    /// [`Server::take_place`].
    pub fn new(
        socket: &Path,
        beside: bool,
        metrics: Option<std::net::TcpListener>,
        upgrade: Option<&'static Upgrade>,
        queue: RequestQueue,
    ) -> Result<Server, ServerError> {
        let mut own = socket.as_os_str().to_owned();
        if beside {
            own.push(format!(".{}", std::process::id()));
        }
        Server::over(listen(Path::new(&own))?, metrics, upgrade, queue)
    }

    /// Answers where another has answered until now.
    pub fn take_place(&mut self, socket: &Path) -> Result<(), ServerError> {
        std::fs::rename(&self.file.path, socket)
            .map_err(|error| ServerError::NotTakenOver { socket: socket.to_owned(), error })?;
        self.file.path = socket.to_owned();
        Ok(())
    }

    fn over(
        (listener, file): (std::os::unix::net::UnixListener, Removed),
        metrics: Option<std::net::TcpListener>,
        change: Option<&'static Upgrade>,
        queue: RequestQueue,
    ) -> Result<Server, ServerError> {
        let (end, ended) = watch::channel(false);
        let serving = Serving::new(listener, metrics).map_err(ServerError::NotServed)?;
        let thread = thread::Builder::new()
            .name("weir-http".into())
            .spawn(move || serving.run(&queue, change, ended))
            .map_err(ServerError::NoThread)?;
        Ok(Server { file, end, thread: Some(thread) })
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // No receiver is left when the thread has ended by itself.
        let _ = self.end.send(true);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// All there is to be had before anything is answered: a signal that comes at once is heard.
struct Serving {
    runtime: tokio::runtime::Runtime,
    listener: tokio::net::UnixListener,
    metrics: Option<tokio::net::TcpListener>,
    signals: [(Signal, RequestKind); 4],
}

impl Serving {
    fn new(
        listener: std::os::unix::net::UnixListener,
        metrics: Option<std::net::TcpListener>,
    ) -> io::Result<Serving> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let entered = runtime.enter();
        let listener = tokio::net::UnixListener::from_std(listener)?;
        let metrics = metrics.map(tokio::net::TcpListener::from_std).transpose()?;
        let signals = [
            (signal(SignalKind::terminate())?, RequestKind::Stop),
            (signal(SignalKind::interrupt())?, RequestKind::Stop),
            (signal(SignalKind::hangup())?, RequestKind::Reload),
            (signal(SignalKind::user_defined2())?, RequestKind::Succeed),
        ];
        drop(entered);
        Ok(Serving { runtime, listener, metrics, signals })
    }

    fn run(self, queue: &RequestQueue, change: Option<&'static Upgrade>, mut ended: watch::Receiver<bool>) {
        let Serving { runtime, listener, metrics, signals } = self;
        runtime.block_on(async {
            for (signal, kind) in signals {
                tokio::spawn(on_signal(signal, kind, queue.clone()));
            }
            if let Some(metrics) = metrics {
                tokio::spawn(scrape::accept(metrics, queue.clone()));
            }
            tokio::spawn(accept(listener, queue.clone(), change));
            // Ends too when the server was dropped without a word.
            let _ = ended.changed().await;
            // Answers that are on their way get out.
            tokio::time::sleep(Duration::from_millis(20)).await;
        });
        runtime.shutdown_timeout(SHUTDOWN_GRACE);
    }
}

/// Serves every connection there is. Out of descriptors or memory: says so and tries again a little later.
async fn accept(listener: UnixListener, queue: RequestQueue, change: Option<&'static Upgrade>) {
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                let refusal = socket::refusal(stream.peer_cred());
                if let Some(why) = &refusal {
                    tracing::warn!("{why}");
                }
                drop(tokio::spawn(connection(stream, queue.clone(), change, refusal)));
            }
            Err(error) => {
                tracing::warn!("control socket: a connection was not accepted ({error})");
                tokio::time::sleep(PAUSE).await;
            }
        }
    }
}

/// Turns a signal into a request, every time it comes. The control thread logs what comes of it.
async fn on_signal(mut signal: Signal, kind: RequestKind, queue: RequestQueue) {
    while signal.recv().await.is_some() {
        queue.ask(kind.clone()).await;
    }
}

/// Serves a connection, with a reason to refuse whatever is asked, if there is one.
async fn connection(
    stream: UnixStream,
    queue: RequestQueue,
    change: Option<&'static Upgrade>,
    refusal: Option<String>,
) {
    let service = service_fn(move |request: hyper::Request<Incoming>| {
        let (queue, refusal) = (queue.clone(), refusal.clone());
        async move {
            let said = match (refusal, change.filter(|to| asks_for(&request, to))) {
                (Some(why), _) => Response::refusal(403, why),
                (None, Some(to)) => return Ok(upgrade(request, to, queue)),
                (None, None) => respond(request, &queue).await,
            };
            Ok::<_, Infallible>(written(said))
        }
    });
    // A client that hangs up in the middle is no event of ours.
    let _ = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIMEOUT)
        .serve_connection(TokioIo::new(stream), service)
        .with_upgrades()
        .await;
}

fn written(said: Response) -> hyper::Response<Full<Bytes>> {
    let mut response = hyper::Response::new(Full::new(Bytes::from(said.body)));
    *response.status_mut() = StatusCode::from_u16(said.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let content_type = hyper::header::HeaderValue::from_static(said.content_type);
    response.headers_mut().insert(CONTENT_TYPE, content_type);
    response
}

/// What the asker reads, where it says so.
fn accepted(fields: &HeaderMap) -> Option<String> {
    let values: Vec<&str> = fields.get_all(ACCEPT).iter().filter_map(|value| value.to_str().ok()).collect();
    (!values.is_empty()).then(|| values.join(","))
}

fn asks_for(request: &hyper::Request<Incoming>, to: &Upgrade) -> bool {
    let asked = request.headers().get(UPGRADE).is_some_and(|value| value == to.protocol);
    asked && request.method() == Method::POST && request.uri().path() == to.path
}

/// Lets the control thread speak on the connection itself.
fn upgrade(
    request: hyper::Request<Incoming>,
    to: &'static Upgrade,
    queue: RequestQueue,
) -> hyper::Response<Full<Bytes>> {
    tokio::spawn(async move {
        if let Err(error) = change_hands(hyper::upgrade::on(request).await, to, &queue).await {
            tracing::warn!("{}: {error}", to.protocol);
        }
    });
    let mut response = hyper::Response::new(Full::default());
    *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    let fields = response.headers_mut();
    fields.insert(CONNECTION, hyper::header::HeaderValue::from_static("upgrade"));
    fields.insert(UPGRADE, hyper::header::HeaderValue::from_static(to.protocol));
    response
}

/// What the daemon writes, then the other side's word.
async fn change_hands(
    upgraded: hyper::Result<Upgraded>,
    to: &'static Upgrade,
    queue: &RequestQueue,
) -> io::Result<()> {
    let parts = upgraded.map_err(io::Error::other)?.downcast::<TokioIo<tokio::net::UnixStream>>();
    let stream = parts.map_err(|_| io::Error::other("not a Unix socket"))?.io.into_inner().into_std()?;
    let mut own = tokio::net::UnixStream::from_std(stream.try_clone()?)?;
    let said = queue.ask(RequestKind::Upgraded(Connection(Arc::new(stream)))).await;
    if said.status != 200 {
        return own.write_all(said.body.as_bytes()).await;
    }
    let mut word = vec![0; to.word.len()];
    let completed = own.read_exact(&mut word).await.is_ok() && word == to.word;
    queue.ask(RequestKind::UpgradeEnded { completed }).await;
    Ok(())
}

async fn respond(request: hyper::Request<Incoming>, queue: &RequestQueue) -> Response {
    let (head, body) = request.into_parts();
    let path = head.uri.path().to_owned();
    let query = head.uri.query().unwrap_or_default().to_owned();
    let body = if head.method == Method::POST {
        match Limited::new(body, BODY_MAX).collect().await {
            Ok(body) => body.to_bytes().to_vec(),
            Err(error) => return Response::refusal(413, format!("{path}: the body was not taken ({error})")),
        }
    } else {
        Vec::new()
    };
    let accept = accepted(&head.headers);
    let request = HttpRequest { method: head.method, path, query, body };
    let kind = match request.path.as_str() {
        // What signals do too, and every daemon has.
        "/v1/reload" => request.post(RequestKind::Reload),
        "/v1/stop" => request.post(RequestKind::Stop),
        _ => Ok(RequestKind::Http(request)),
    };
    let kind = match kind {
        Ok(kind) => kind,
        Err(refusal) => return refusal,
    };
    queue.ask(kind).await.negotiated(accept.as_deref())
}
