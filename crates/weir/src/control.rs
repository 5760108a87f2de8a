//! The floor both daemons stand on: requests and signals in, responses out, and the client that asks.
//!
//! ```text
//! HTTP over a Unix socket, signals ──► server (a thread) ──► RequestQueue ──► a daemon's control thread
//!                                        ◄───────────────────── Response ◄──┘
//! ```
//!
//! Promises: nothing here knows a router or a relay: which paths there are and what they mean is the daemon's own table.

pub mod client;
pub mod page;
pub mod secrets;
pub mod server;

use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::Sender;

use hyper::Method;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};
use tokio::sync::oneshot;
use weir_io::wake::Waker;

use crate::failure::Blame;
use crate::view::Refusal;

/// What does not stand in a query as it is.
const ESCAPED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~').remove(b'/');

/// What the control thread is asked, and where its response goes.
#[derive(Debug)]
pub struct Request {
    pub kind: RequestKind,
    pub reply: oneshot::Sender<Response>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RequestKind {
    Http(HttpRequest),
    /// A connection changed hands as the daemon's [`Upgrade`] has it: the daemon may write on it. Unless it responds
    /// with 200, the response's body is the last that is written.
    Upgraded(Connection),
    /// The other side of an upgraded connection said the word of the [`Upgrade`], or went away without it.
    UpgradeEnded {
        completed: bool,
    },
    /// SIGHUP: read the file again and apply it.
    Reload,
    /// SIGUSR2: start the program that is installed now in place of this process.
    Succeed,
    /// SIGTERM, SIGINT: drain and end.
    Stop,
}

/// The path on which a connection stops being HTTP: the daemon writes on it, then its other side says one word.
#[derive(Clone, Copy, Debug)]
pub struct Upgrade {
    pub path: &'static str,
    /// What `Upgrade` names.
    pub protocol: &'static str,
    pub word: &'static [u8],
}

/// A connection that is no longer HTTP.
#[derive(Clone, Debug)]
pub struct Connection(pub Arc<UnixStream>);

impl PartialEq for Connection {
    fn eq(&self, other: &Connection) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for Connection {}

/// A request of the control socket, its body read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HttpRequest {
    pub method: Method,
    pub path: String,
    pub query: String,
    /// The body of a POST; empty for other methods.
    pub body: Vec<u8>,
}

/// `POST /v1/apply`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApplyRequest {
    /// Named in complaints.
    pub file: String,
    /// Where the files it names are looked for; the folder of the daemon's own configuration when not told.
    pub folder: Option<PathBuf>,
    pub text: String,
    pub dry_run: bool,
}

impl HttpRequest {
    /// The first value of this key in the query, decoded; empty where the key stands alone.
    pub fn option(&self, key: &str) -> Option<String> {
        self.query.split('&').find_map(|pair| {
            let (k, v) = pair.split_once('=').unwrap_or((pair, ""));
            (k == key).then(|| decoded(v))
        })
    }

    pub fn is_dry_run(&self) -> bool {
        self.option("dry-run").is_some()
    }

    /// `wanted`, if the method reads.
    pub fn get<T>(&self, wanted: T) -> Result<T, Response> {
        match self.method {
            Method::GET | Method::HEAD => Ok(wanted),
            _ => Err(self.wrong_method("GET")),
        }
    }

    /// `wanted`, if the method is POST.
    pub fn post<T>(&self, wanted: T) -> Result<T, Response> {
        match self.method {
            Method::POST => Ok(wanted),
            _ => Err(self.wrong_method("POST")),
        }
    }

    fn wrong_method(&self, expected: &str) -> Response {
        Response::refusal(405, format!("{}: got {}, expected {expected}", self.path, self.method))
    }

    pub fn apply(&self) -> Result<ApplyRequest, Response> {
        let text = String::from_utf8(self.body.clone()).map_err(|_| {
            let why = "apply: the body is not UTF-8; send the configuration file as it is";
            Response::refusal(400, why.to_owned())
        })?;
        let file = self.option("file").filter(|f| !f.is_empty()).unwrap_or_else(|| "body".into());
        let folder = self.option("folder").filter(|f| f.starts_with('/')).map(PathBuf::from);
        self.post(ApplyRequest { file, folder, text, dry_run: self.is_dry_run() })
    }
}

/// Status and body of a response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Response {
    pub status: u16,
    pub content_type: &'static str,
    pub body: String,
}

impl Response {
    pub fn json(status: u16, body: &impl serde::Serialize) -> Response {
        match serde_json::to_string(body) {
            Ok(body) => Response { status, content_type: "application/json", body: body + "\n" },
            Err(error) => Response::refusal(500, format!("response: not expressible as JSON ({error})")),
        }
    }

    pub fn text(body: impl Into<String>) -> Response {
        Response { status: 200, content_type: "text/plain; charset=utf-8", body: body.into() }
    }

    /// Responds with OpenMetrics text; which format goes out is settled by [`Response::negotiated`].
    pub fn metrics(body: String) -> Response {
        Response { status: 200, content_type: weir_metrics::OPENMETRICS, body }
    }

    /// Metrics in the format that the asker's `Accept` names; everything else as it is.
    pub fn negotiated(self, accept: Option<&str>) -> Response {
        if self.content_type != weir_metrics::OPENMETRICS {
            return self;
        }
        let (content_type, body) = weir_metrics::negotiated(accept, self.body);
        Response { content_type, body, ..self }
    }

    pub fn refusal(status: u16, error: String) -> Response {
        Response::refused(status, Refusal { error, responsible: None })
    }

    /// A refusal that says who has to act.
    pub fn blamed(status: u16, blame: Blame, error: impl std::fmt::Display) -> Response {
        let responsible = Some(blame.name().to_owned());
        Response::refused(status, Refusal { error: error.to_string(), responsible })
    }

    fn refused(status: u16, refusal: Refusal) -> Response {
        let body = serde_json::json!(refusal).to_string() + "\n";
        Response { status, content_type: "application/json", body }
    }
}

/// Where requests go: the control thread's queue, and the waker that makes it look.
#[derive(Clone)]
pub struct RequestQueue {
    pub requests: Sender<Request>,
    pub waker: Arc<Waker>,
}

impl RequestQueue {
    /// Asks the control thread, and waits for what it says.
    async fn ask(&self, kind: RequestKind) -> Response {
        let (reply, response) = oneshot::channel();
        if self.requests.send(Request { kind, reply }).is_ok() {
            self.waker.wake();
        }
        response
            .await
            .unwrap_or_else(|_| Response::refusal(503, "weir: ending; no request is taken any more".into()))
    }
}

/// Percent-decoding; what is not valid stays as it is.
fn decoded(text: &str) -> String {
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
    fn a_configuration_comes_with_its_name_and_whether_it_is_meant() {
        let request = HttpRequest {
            method: Method::POST,
            path: "/v1/apply".into(),
            query: "dry-run&file=a.toml&folder=/etc".into(),
            body: b"x".to_vec(),
        };
        let wanted = ApplyRequest {
            file: "a.toml".into(),
            folder: Some("/etc".into()),
            text: "x".into(),
            dry_run: true,
        };
        assert_eq!(request.apply(), Ok(wanted));
        let not_text = HttpRequest { body: vec![0xff], ..request.clone() };
        assert_eq!(not_text.apply().expect_err("refused").status, 400);
        assert_eq!(HttpRequest { method: Method::GET, ..request }.apply().expect_err("refused").status, 405);
    }
}
