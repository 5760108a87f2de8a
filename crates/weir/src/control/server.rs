//! The control socket: HTTP/1.1 and JSON over a Unix socket, and `/metrics` over TCP where asked for.
//!
//! ```text
//! curl --unix-socket /run/weir/router.sock http://weir/v1/ports
//! ```
//!
//! One thread with its own small runtime. It knows no router and no relay: every request becomes a [`super::Request`] to
//! the control thread, which says status and body. Promises: a request body has a limit, a slow
//! client delays nobody, the socket file goes when the server does. Refuses: to take over a socket that
//! somebody answers on.

use std::convert::Infallible;
use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use http_body_util::{BodyExt, Full, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::header::{CONNECTION, CONTENT_TYPE, UPGRADE};
use hyper::service::service_fn;
use hyper::upgrade::Upgraded;
use hyper::{Method, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;

use super::{Connection, HttpRequest, RequestKind, RequestQueue, Response, Upgrade};

/// A configuration may be as large as a file may be.
const BODY_MAX: usize = 256 << 20;
/// A client that sends its request head slower than this is let go.
const HEAD_TIMEOUT: Duration = Duration::from_secs(5);
/// Requests still being answered when the daemon ends get this long.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// What a listener serves.
#[derive(Clone, Copy)]
enum Scope {
    /// All the daemon has, and the path on which connections change hands, if there is one.
    Everything(Option<&'static Upgrade>),
    /// `/metrics` alone: who may scrape may not reconfigure.
    Metrics,
}

/// The running server; dropping it ends it and removes the socket file.
pub struct Server {
    file: Removed,
    end: watch::Sender<bool>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    /// Listens before it returns, so that "ready" is true when it is printed.
    pub fn start(socket: &Path, metrics: Option<SocketAddr>, queue: RequestQueue) -> Result<Server, String> {
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
    ) -> Result<Server, String> {
        let mut own = socket.as_os_str().to_owned();
        if beside {
            own.push(format!(".{}", std::process::id()));
        }
        Server::over(listen(Path::new(&own))?, metrics, Scope::Everything(upgrade), queue)
    }

    /// Answers where another has answered until now.
    pub fn take_place(&mut self, socket: &Path) -> Result<(), String> {
        std::fs::rename(&self.file.path, socket)
            .map_err(|e| format!("control socket {}: cannot be taken over ({e})", socket.display()))?;
        self.file.path = socket.to_owned();
        Ok(())
    }

    fn over(
        (listener, file): (std::os::unix::net::UnixListener, Removed),
        metrics: Option<std::net::TcpListener>,
        scope: Scope,
        queue: RequestQueue,
    ) -> Result<Server, String> {
        let (end, ended) = watch::channel(false);
        let serving = Serving::new(listener, metrics)
            .map_err(|e| format!("control socket: cannot be served ({e}); raise the limit of open files"))?;
        let thread = thread::Builder::new()
            .name("weir-http".into())
            .spawn(move || serving.run(&queue, scope, ended))
            .map_err(|e| format!("control socket: no thread ({e}); raise the limit of tasks"))?;
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

/// Removes a file when dropped, unless another has come in its place.
#[derive(Debug)]
struct Removed {
    path: PathBuf,
    /// Device and number.
    node: (u64, u64),
}

impl Removed {
    fn new(path: &Path) -> io::Result<Removed> {
        Ok(Removed { path: path.to_owned(), node: node(path)? })
    }
}

fn node(path: &Path) -> io::Result<(u64, u64)> {
    let of = std::fs::symlink_metadata(path)?;
    Ok((of.dev(), of.ino()))
}

impl Drop for Removed {
    fn drop(&mut self) {
        if node(&self.path).is_ok_and(|found| found == self.node) {
            // Nobody needs to hear that it was gone already.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// Of `/metrics`.
pub fn metrics_listener(address: SocketAddr) -> Result<std::net::TcpListener, String> {
    let bound = std::net::TcpListener::bind(address).and_then(|l| {
        l.set_nonblocking(true)?;
        Ok(l)
    });
    bound.map_err(|e| {
        format!("metrics {address}: cannot listen ({e}); choose a free address in [control] metrics")
    })
}

/// Binds the socket; a file a dead predecessor left is replaced, one somebody answers on is not.
fn listen(socket: &Path) -> Result<(std::os::unix::net::UnixListener, Removed), String> {
    let shown = socket.display();
    let fail = |what: &str, e: io::Error| {
        let remedy = match e.kind() {
            io::ErrorKind::PermissionDenied => "run as root or choose another path with --socket",
            _ => "choose another path with --socket or [control] socket",
        };
        format!("control socket {shown}: {what} ({e}); {remedy}")
    };
    if let Some(folder) = socket.parent() {
        std::fs::create_dir_all(folder).map_err(|e| fail("its folder cannot be made", e))?;
    }
    match std::os::unix::net::UnixStream::connect(socket) {
        Ok(_) => {
            return Err(format!(
                "control socket {shown}: another weir answers on it; stop that one, or give this one another name or --socket; a relay takes over with --take-over"
            ));
        }
        Err(e) if e.kind() == io::ErrorKind::ConnectionRefused => {
            std::fs::remove_file(socket).map_err(|e| fail("the one left behind cannot be removed", e))?;
            tracing::info!("control socket {shown}: left by a dead predecessor, replaced");
        }
        Err(_) => {}
    }
    let listener = std::os::unix::net::UnixListener::bind(socket).map_err(|e| fail("cannot be made", e))?;
    let file = Removed::new(socket).map_err(|e| fail("cannot be looked at", e))?;
    // Whoever may reconfigure the router must be root or be let in by the operator.
    std::fs::set_permissions(socket, std::fs::Permissions::from_mode(0o600))
        .map_err(|e| fail("permissions cannot be set", e))?;
    listener.set_nonblocking(true).map_err(|e| fail("cannot be made non-blocking", e))?;
    Ok((listener, file))
}

/// All there is to be had before anything is answered: a signal that comes at once is heard.
struct Serving {
    runtime: tokio::runtime::Runtime,
    listener: tokio::net::UnixListener,
    metrics: Option<tokio::net::TcpListener>,
    signals: [(Signal, RequestKind); 3],
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
        ];
        drop(entered);
        Ok(Serving { runtime, listener, metrics, signals })
    }

    fn run(self, queue: &RequestQueue, scope: Scope, mut ended: watch::Receiver<bool>) {
        let Serving { runtime, listener, metrics, signals } = self;
        runtime.block_on(async {
            for (signal, kind) in signals {
                tokio::spawn(on_signal(signal, kind, queue.clone()));
            }
            if let Some(metrics) = metrics {
                let next = move |cx: &mut Context<'_>| metrics.poll_accept(cx).map_ok(|(stream, _)| stream);
                tokio::spawn(accept("metrics", next, queue.clone(), Scope::Metrics));
            }
            let next = move |cx: &mut Context<'_>| listener.poll_accept(cx).map_ok(|(stream, _)| stream);
            tokio::spawn(accept("control socket", next, queue.clone(), scope));
            // Ends too when the server was dropped without a word.
            let _ = ended.changed().await;
            // Answers that are on their way get out.
            tokio::time::sleep(Duration::from_millis(20)).await;
        });
        runtime.shutdown_timeout(LAST_WORDS);
    }
}

/// Serves every connection there is by `next`. Out of descriptors or memory: says so and tries again a little later.
async fn accept<S>(
    what: &str,
    mut next: impl FnMut(&mut Context<'_>) -> Poll<io::Result<S>>,
    queue: RequestQueue,
    scope: Scope,
) where
    S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin + Send + 'static,
{
    loop {
        match poll_fn(&mut next).await {
            Ok(stream) => drop(tokio::spawn(connection(stream, queue.clone(), scope))),
            Err(error) => {
                tracing::warn!("{what}: a connection was not accepted ({error})");
                tokio::time::sleep(Duration::from_millis(100)).await;
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

async fn connection<S>(stream: S, queue: RequestQueue, scope: Scope)
where
    S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin + Send + 'static,
{
    let service = service_fn(move |request: hyper::Request<Incoming>| {
        let queue = queue.clone();
        async move {
            if let Some(to) = scope.upgrade_of(&request) {
                return Ok(upgrade(request, to, queue));
            }
            let said = respond(request, &queue, scope).await;
            let mut response = hyper::Response::new(Full::new(Bytes::from(said.body)));
            *response.status_mut() =
                StatusCode::from_u16(said.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
            let content_type = hyper::header::HeaderValue::from_static(said.content_type);
            response.headers_mut().insert(CONTENT_TYPE, content_type);
            Ok::<_, Infallible>(response)
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

impl Scope {
    /// The upgrade a request asks for, where there is one.
    fn upgrade_of(self, request: &hyper::Request<Incoming>) -> Option<&'static Upgrade> {
        let Scope::Everything(Some(upgrade)) = self else { return None };
        let asked = request.headers().get(UPGRADE).is_some_and(|value| value == upgrade.protocol);
        (asked && request.method() == Method::POST && request.uri().path() == upgrade.path).then_some(upgrade)
    }
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

async fn respond(request: hyper::Request<Incoming>, queue: &RequestQueue, scope: Scope) -> Response {
    let (head, body) = request.into_parts();
    let path = head.uri.path().to_owned();
    let query = head.uri.query().unwrap_or_default().to_owned();
    if matches!(scope, Scope::Metrics) && path != "/metrics" {
        return Response::refusal(404, format!("{path}: not here; this address serves /metrics only"));
    }
    let body = if head.method == Method::POST {
        match Limited::new(body, BODY_MAX).collect().await {
            Ok(body) => body.to_bytes().to_vec(),
            Err(error) => return Response::refusal(413, format!("{path}: the body was not taken ({error})")),
        }
    } else {
        Vec::new()
    };
    let request = HttpRequest { method: head.method, path, query, body };
    queue.ask(RequestKind::Http(request)).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_socket_somebody_answers_on_is_not_taken() {
        let path = std::env::temp_dir().join(format!("weir-server-{}.sock", std::process::id()));
        let (first, _file) = listen(&path).expect("free");
        let refused = listen(&path).expect_err("taken");
        assert!(refused.contains("another weir answers on it; stop that one"), "{refused}");
        drop(first);
        listen(&path).expect("a file left behind is replaced");
    }

    #[test]
    fn a_file_that_another_has_put_in_its_place_is_not_removed() {
        let path = std::env::temp_dir().join(format!("weir-server-place-{}.sock", std::process::id()));
        let (_first, file) = listen(&path).expect("free");
        let beside = path.with_extension("beside");
        let (_second, other) = listen(&beside).expect("free");
        std::fs::rename(&beside, &path).expect("renamed");
        drop(file);
        assert!(path.exists(), "it is the other's now");
        drop(other);
        std::fs::remove_file(&path).expect("its name was another");
    }
}
