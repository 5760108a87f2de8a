//! Whether a tailscaled on this host knows a client: its key is in the network map, or is its own.
//!
//! ```text
//! GET /localapi/v0/whois?addr=nodekey:…   over the Unix socket   ─►   200 it is known, 404 it is not
//! ```
//!
//! Promises: an answer is waited for at most [`PATIENCE`]. Refuses: to take anything but 200 for a yes. As derper has it,
//! nobody is let in while tailscaled does not answer: it is on this host, so that can be mended here.

use std::fmt;
use std::path::Path;
use std::time::Duration;

use http_body_util::Empty;
use hyper::StatusCode;
use hyper::body::Bytes;
use hyper_util::rt::TokioIo;
use tokio::net::UnixStream;
use tokio::time::timeout;
use weir_core::relay::frame::Key;

const PATIENCE: Duration = Duration::from_secs(5);
/// The only name tailscaled answers to.
const HOST: &str = "local-tailscaled.sock";

/// Why tailscaled did not say. Causes are what libraries said.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unanswered {
    TooLate,
    /// Nobody listens on its socket.
    NotThere {
        cause: String,
    },
    BrokenOff {
        cause: String,
    },
    Status(StatusCode),
}

impl fmt::Display for Unanswered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Unanswered::TooLate => write!(f, "no answer within {PATIENCE:?}"),
            Unanswered::NotThere { cause } => {
                write!(f, "{cause}; start tailscaled, or name its socket in `verify_tailscaled`")
            }
            Unanswered::BrokenOff { cause } => f.write_str(cause),
            Unanswered::Status(StatusCode::FORBIDDEN) => {
                f.write_str("it does not answer this user; run as root")
            }
            Unanswered::Status(StatusCode::BAD_REQUEST) => {
                f.write_str("it does not know keys; take tailscaled 1.70 or later")
            }
            Unanswered::Status(other) => write!(f, "it answers {other}"),
        }
    }
}

fn broken(error: impl fmt::Display) -> Unanswered {
    Unanswered::BrokenOff { cause: error.to_string() }
}

/// Whether it is known, or why that cannot be said.
pub async fn knows(socket: &Path, key: &Key) -> Result<bool, Unanswered> {
    let asked = timeout(PATIENCE, ask(socket, key)).await;
    let status = asked.unwrap_or(Err(Unanswered::TooLate))?;
    match status {
        StatusCode::OK => Ok(true),
        StatusCode::NOT_FOUND => Ok(false),
        other => Err(Unanswered::Status(other)),
    }
}

/// One question a connection: there is one for each client that comes.
async fn ask(socket: &Path, key: &Key) -> Result<StatusCode, Unanswered> {
    let stream =
        UnixStream::connect(socket).await.map_err(|e| Unanswered::NotThere { cause: e.to_string() })?;
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(broken)?;
    let driver = tokio::spawn(connection);
    let request = hyper::Request::get(format!("/localapi/v0/whois?addr={key}"))
        .header(hyper::header::HOST, HOST)
        .body(Empty::<Bytes>::new())
        .map_err(broken)?;
    let answer = sender.send_request(request).await.map_err(broken);
    driver.abort();
    Ok(answer?.status())
}
