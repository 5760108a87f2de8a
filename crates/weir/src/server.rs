//! The control socket: HTTP/1.1 and JSON over a Unix socket, and `/metrics` over TCP where asked for.
//!
//! ```text
//! curl --unix-socket /run/weir/router.sock http://weir/v1/ports
//! ```
//!
//! One thread with its own small runtime. It knows no router: every request becomes a [`Request`] to the
//! control thread, which answers with a status and a body. Promises: a request body has a limit, a slow
//! client delays nobody, the socket file goes when the server does. Refuses: to take over a socket that
//! somebody answers on.

use std::convert::Infallible;
use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::Sender;
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
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::{oneshot, watch};
use weir_io::wake::Waker;

/// A configuration may be as large as a file may be.
const BODY_MAX: usize = 256 << 20;
/// A client that sends its request head slower than this is let go.
const HEAD_TIMEOUT: Duration = Duration::from_secs(5);
/// Requests still being answered when the daemon ends get this long.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// What does not stand in a query as it is.
const ESCAPED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~').remove(b'/');

/// What the control thread is asked.
#[derive(Debug)]
pub struct Ask {
    pub what: What,
    pub answer: oneshot::Sender<Answer>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum What {
    Status,
    Ports,
    Routes {
        limit: Option<usize>,
    },
    Neighbors,
    Workers,
    Drops,
    Sas,
    Spds,
    Tunnels,
    Cache,
    Apply {
        file: String,
        /// Where the keys file is looked for; the daemon's own configuration's folder when not told.
        folder: Option<PathBuf>,
        text: String,
        dry_run: bool,
    },
    Policies {
        body: Vec<u8>,
        dry_run: bool,
    },
    Trace {
        body: Vec<u8>,
    },
    /// A relay's counters.
    Relay,
    /// Who is connected to a relay.
    Peers,
    Metrics,
    /// A relay: as [`What::Stop`], asked by an operator.
    Drain,
    /// A successor asks for a relay's sockets.
    HandOver(Successor),
    /// The successor is there no longer, or is ready to serve.
    Succeeded {
        ready: bool,
    },
    /// SIGHUP: read the file again and apply it.
    Reload,
    /// SIGTERM, SIGINT: drain and end.
    Stop,
}

/// What `Upgrade` says when a successor asks.
pub const HANDOVER: &str = "weir-handover";
/// What the successor says when it serves.
pub const READY: &[u8; 6] = b"ready\n";

/// The connection of a successor.
#[derive(Clone, Debug)]
pub struct Successor(pub Arc<std::os::unix::net::UnixStream>);

impl PartialEq for Successor {
    fn eq(&self, other: &Successor) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for Successor {}

/// Status and body of a response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    pub status: u16,
    pub kind: &'static str,
    pub body: String,
}

impl Answer {
    pub fn json(status: u16, body: &impl serde::Serialize) -> Answer {
        match serde_json::to_string(body) {
            Ok(body) => Answer { status, kind: "application/json", body: body + "\n" },
            Err(error) => Answer::refusal(500, format!("answer: not expressible as JSON ({error})")),
        }
    }

    pub fn refusal(status: u16, error: String) -> Answer {
        let body = serde_json::json!({ "error": error }).to_string() + "\n";
        Answer { status, kind: "application/json", body }
    }
}

/// Where asks go: the control thread's queue, and the waker that makes it look.
#[derive(Clone)]
pub struct Desk {
    pub asks: Sender<Ask>,
    pub waker: Arc<Waker>,
}

impl Desk {
    async fn ask(&self, what: What) -> Answer {
        let (answer, reply) = oneshot::channel();
        if self.asks.send(Ask { what, answer }).is_ok() {
            self.waker.wake();
        }
        reply
            .await
            .unwrap_or_else(|_| Answer::refusal(503, "weir: ending; no request is taken any more".into()))
    }
}

/// The running server; dropping it ends it and removes the socket file.
pub struct Server {
    file: Removed,
    end: watch::Sender<bool>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    /// Listens before it returns, so that "ready" is true when it is printed.
    pub fn start(socket: &Path, metrics: Option<SocketAddr>, desk: Desk) -> Result<Server, String> {
        Server::new(socket, false, metrics.map(metrics_listener).transpose()?, desk)
    }

    /// The same over a listener for `/metrics`; `beside` a socket that another answers on, until
    /// [`Server::take_place`].
    pub fn new(
        socket: &Path,
        beside: bool,
        metrics: Option<std::net::TcpListener>,
        desk: Desk,
    ) -> Result<Server, String> {
        let mut own = socket.as_os_str().to_owned();
        if beside {
            own.push(format!(".{}", std::process::id()));
        }
        Server::over(listen(Path::new(&own))?, metrics, desk)
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
        desk: Desk,
    ) -> Result<Server, String> {
        let (end, ended) = watch::channel(false);
        let serving = Serving::new(listener, metrics)
            .map_err(|e| format!("control socket: cannot be served ({e}); raise the limit of open files"))?;
        let thread = thread::Builder::new()
            .name("weir-http".into())
            .spawn(move || serving.run(&desk, ended))
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
    signals: [(Signal, What); 3],
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
            (signal(SignalKind::terminate())?, What::Stop),
            (signal(SignalKind::interrupt())?, What::Stop),
            (signal(SignalKind::hangup())?, What::Reload),
        ];
        drop(entered);
        Ok(Serving { runtime, listener, metrics, signals })
    }

    fn run(self, desk: &Desk, mut ended: watch::Receiver<bool>) {
        let Serving { runtime, listener, metrics, signals } = self;
        runtime.block_on(async {
            for (signal, what) in signals {
                tokio::spawn(on_signal(signal, what, desk.clone()));
            }
            if let Some(metrics) = metrics {
                let next = move |cx: &mut Context<'_>| metrics.poll_accept(cx).map_ok(|(stream, _)| stream);
                tokio::spawn(accept("metrics", next, desk.clone(), true));
            }
            let next = move |cx: &mut Context<'_>| listener.poll_accept(cx).map_ok(|(stream, _)| stream);
            tokio::spawn(accept("control socket", next, desk.clone(), false));
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
    desk: Desk,
    metrics_only: bool,
) where
    S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin + Send + 'static,
{
    loop {
        match poll_fn(&mut next).await {
            Ok(stream) => drop(tokio::spawn(connection(stream, desk.clone(), metrics_only))),
            Err(error) => {
                tracing::warn!("{what}: a connection was not accepted ({error})");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

/// Turns a signal into an ask, every time it comes. The control thread logs what comes of it.
async fn on_signal(mut signal: Signal, what: What, desk: Desk) {
    while signal.recv().await.is_some() {
        desk.ask(what.clone()).await;
    }
}

async fn connection<S>(stream: S, desk: Desk, metrics_only: bool)
where
    S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin + Send + 'static,
{
    let service = service_fn(move |request: hyper::Request<Incoming>| {
        let desk = desk.clone();
        async move {
            let answer = match is_handover(&request) && !metrics_only {
                true => return Ok(upgrade(request, desk)),
                false => respond(request, &desk, metrics_only).await,
            };
            let mut response = hyper::Response::new(Full::new(Bytes::from(answer.body)));
            *response.status_mut() =
                StatusCode::from_u16(answer.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
            response.headers_mut().insert(CONTENT_TYPE, hyper::header::HeaderValue::from_static(answer.kind));
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

fn is_handover(request: &hyper::Request<Incoming>) -> bool {
    let asked = request.headers().get(UPGRADE).is_some_and(|value| value == HANDOVER);
    asked && request.method() == Method::POST && request.uri().path() == "/v1/handover"
}

/// Lets the control thread speak on the connection itself.
fn upgrade(request: hyper::Request<Incoming>, desk: Desk) -> hyper::Response<Full<Bytes>> {
    tokio::spawn(async move {
        if let Err(error) = succeed(hyper::upgrade::on(request).await, &desk).await {
            tracing::warn!("handover: {error}");
        }
    });
    let mut response = hyper::Response::new(Full::default());
    *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    let fields = response.headers_mut();
    fields.insert(CONNECTION, hyper::header::HeaderValue::from_static("upgrade"));
    fields.insert(UPGRADE, hyper::header::HeaderValue::from_static(HANDOVER));
    response
}

/// Sockets to the successor, then its word that it is ready.
async fn succeed(upgraded: hyper::Result<Upgraded>, desk: &Desk) -> io::Result<()> {
    let parts = upgraded.map_err(io::Error::other)?.downcast::<TokioIo<tokio::net::UnixStream>>();
    let stream = parts.map_err(|_| io::Error::other("not a Unix socket"))?.io.into_inner().into_std()?;
    let mut own = tokio::net::UnixStream::from_std(stream.try_clone()?)?;
    let answer = desk.ask(What::HandOver(Successor(Arc::new(stream)))).await;
    if answer.status != 200 {
        return own.write_all(answer.body.as_bytes()).await;
    }
    let mut word = [0; READY.len()];
    let ready = own.read_exact(&mut word).await.is_ok() && word == *READY;
    desk.ask(What::Succeeded { ready }).await;
    Ok(())
}

async fn respond(request: hyper::Request<Incoming>, desk: &Desk, metrics_only: bool) -> Answer {
    let (head, body) = request.into_parts();
    let path = head.uri.path().to_owned();
    let query = head.uri.query().unwrap_or_default().to_owned();
    if metrics_only && path != "/metrics" {
        return Answer::refusal(404, format!("{path}: not here; this address serves /metrics only"));
    }
    let body = if head.method == Method::POST {
        match Limited::new(body, BODY_MAX).collect().await {
            Ok(body) => body.to_bytes().to_vec(),
            Err(error) => return Answer::refusal(413, format!("{path}: the body was not taken ({error})")),
        }
    } else {
        Vec::new()
    };
    match route(&head.method, &path, &query, body) {
        Ok(what) => desk.ask(what).await,
        Err(answer) => answer,
    }
}

const INDEX: &str = "weir control socket\n\
    GET  /v1/status     name, version, generation, what works otherwise than asked\n\
    GET  /v1/ports      devices, addresses, traffic, losses\n\
    GET  /v1/routes     the first 1,000; ?limit=N for more\n\
    GET  /v1/neighbors  ARP and NDP\n\
    GET  /v1/workers    ledgers, buffers, traffic by port\n\
    GET  /v1/drops      by reason, with who has to act\n\
    GET  /v1/sa         IPsec: security associations, traffic, why packets failed\n\
    GET  /v1/spd        IPsec: policies in order, what each decided\n\
    GET  /v1/tunnels    IPsec: tunnels of route mode\n\
    GET  /v1/cache      IPsec: flow caches and rules of SPDs, who answered\n\
    GET  /v1/relay      a relay: what became of connections, workers, drops by reason\n\
    GET  /v1/peers      a relay: who is connected\n\
    POST /v1/apply      a configuration as the body; ?dry-run only tells what it would do; ?file=NAME for complaints,\n\
    \x20                   ?folder=PATH where the keys file lies\n\
    POST /v1/drain      a relay: takes nobody new, tells clients to come back, ends\n\
    POST /v1/handover   a relay: its listening sockets to a successor (`weir run --take-over`)\n\
    POST /v1/policies   {\"spd\": \"wan\", \"changes\": [{\"remove\": {\"name\": \"p\"}}]}; ?dry-run only tells\n\
    POST /v1/trace      {\"port\": \"lan\", \"frame\": \"<hex>\"}\n\
    GET  /metrics       Prometheus text\n";

/// What a request asks for.
fn route(method: &Method, path: &str, query: &str, body: Vec<u8>) -> Result<What, Answer> {
    let option = |key: &str| {
        query.split('&').find_map(|pair| {
            let (k, v) = pair.split_once('=').unwrap_or((pair, ""));
            (k == key).then(|| decoded(v))
        })
    };
    let get = |what: What| match *method {
        Method::GET | Method::HEAD => Ok(what),
        _ => Err(Answer::refusal(405, format!("{path}: got {method}, expected GET"))),
    };
    let post = |what: What| match *method {
        Method::POST => Ok(what),
        _ => Err(Answer::refusal(405, format!("{path}: got {method}, expected POST"))),
    };
    match path {
        "/" | "/v1" | "/v1/" => {
            Err(Answer { status: 200, kind: "text/plain; charset=utf-8", body: INDEX.into() })
        }
        "/v1/status" => get(What::Status),
        "/v1/ports" => get(What::Ports),
        "/v1/routes" => match option("limit").map(|l| l.parse()) {
            None => get(What::Routes { limit: Some(1000) }),
            Some(Ok(limit)) => get(What::Routes { limit: Some(limit) }),
            Some(Err(_)) => get(What::Routes { limit: None }),
        },
        "/v1/neighbors" => get(What::Neighbors),
        "/v1/workers" => get(What::Workers),
        "/v1/drops" => get(What::Drops),
        "/v1/sa" => get(What::Sas),
        "/v1/spd" => get(What::Spds),
        "/v1/tunnels" => get(What::Tunnels),
        "/v1/cache" => get(What::Cache),
        "/v1/relay" => get(What::Relay),
        "/v1/peers" => get(What::Peers),
        "/v1/drain" => post(What::Drain),
        "/v1/policies" => post(What::Policies { body, dry_run: option("dry-run").is_some() }),
        "/v1/trace" => post(What::Trace { body }),
        "/metrics" => get(What::Metrics),
        "/v1/apply" => {
            let text = String::from_utf8(body).map_err(|_| {
                Answer::refusal(
                    400,
                    "apply: the body is not UTF-8; send the configuration file as it is".into(),
                )
            })?;
            let file = option("file").filter(|f| !f.is_empty()).unwrap_or_else(|| "body".into());
            let folder = option("folder").filter(|f| f.starts_with('/')).map(PathBuf::from);
            post(What::Apply { file, folder, text, dry_run: option("dry-run").is_some() })
        }
        _ => Err(Answer::refusal(404, format!("{path}: no such resource; GET / lists what there is"))),
    }
}

/// Percent-decoding; what is not valid stays as it is.
pub fn decoded(text: &str) -> String {
    percent_decode_str(text).decode_utf8_lossy().into_owned()
}

/// Percent-encoding, for clients.
pub fn encoded(text: &str) -> String {
    utf8_percent_encode(text, ESCAPED).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_name_survives_the_query() {
        for name in ["router.toml", "a b&c=d.toml", "größe.toml", "100%"] {
            assert_eq!(decoded(&encoded(name)), name);
        }
    }

    #[test]
    fn paths_lead_to_asks() {
        assert_eq!(route(&Method::GET, "/v1/ports", "", Vec::new()), Ok(What::Ports));
        let apply = route(&Method::POST, "/v1/apply", "dry-run&file=a.toml", b"x".to_vec());
        let what = What::Apply { file: "a.toml".into(), folder: None, text: "x".into(), dry_run: true };
        assert_eq!(apply, Ok(what));
        let wrong = route(&Method::GET, "/v1/apply", "", Vec::new()).expect_err("refused");
        assert_eq!(wrong.status, 405);
        assert_eq!(route(&Method::GET, "/v2", "", Vec::new()).expect_err("refused").status, 404);
    }

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
