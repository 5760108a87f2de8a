//! Whether a tailscaled on this host knows a client: its key is in the network map, or is its own.
//!
//! ```text
//! GET /localapi/v0/whois?addr=nodekey:…   over the Unix socket   ─►   200 it is known, 404 it is not
//! ```
//!
//! Promises: an answer is waited for at most [`PATIENCE`]. Refuses: to take anything but 200 for a yes. As derper has it,
//! nobody is let in while tailscaled does not answer: it is on this host, so that can be mended here.

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

/// Whether it is known, or why that cannot be said.
pub async fn knows(socket: &Path, key: &Key) -> Result<bool, String> {
    let asked = timeout(PATIENCE, ask(socket, key)).await;
    let status = asked.unwrap_or_else(|_| Err(format!("no answer within {PATIENCE:?}")))?;
    match status {
        StatusCode::OK => Ok(true),
        StatusCode::NOT_FOUND => Ok(false),
        StatusCode::FORBIDDEN => Err("it does not answer this user; run as root".to_owned()),
        StatusCode::BAD_REQUEST => Err("it does not know keys; take tailscaled 1.70 or later".to_owned()),
        other => Err(format!("it answers {other}")),
    }
}

/// One question a connection: there is one for each client that comes.
async fn ask(socket: &Path, key: &Key) -> Result<StatusCode, String> {
    let stream = UnixStream::connect(socket)
        .await
        .map_err(|e| format!("{e}; start tailscaled, or name its socket in `verify_tailscaled`"))?;
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(|e| e.to_string())?;
    let driver = tokio::spawn(connection);
    let request = hyper::Request::get(format!("/localapi/v0/whois?addr={key}"))
        .header(hyper::header::HOST, HOST)
        .body(Empty::<Bytes>::new())
        .map_err(|e| e.to_string())?;
    let answer = sender.send_request(request).await.map_err(|e| e.to_string());
    driver.abort();
    Ok(answer?.status())
}
