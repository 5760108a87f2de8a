//! Asking a running daemon: one HTTP request over its Unix socket.
//!
//! Promises: a refusal of the daemon is passed on in its own words; a socket that is not there, not ours
//! or dead is one sentence with the remedy.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::de::DeserializeOwned;

use crate::config::Config;
use crate::view::Refusal;

/// A daemon that does not answer within this is stuck; a full table takes a second or two to apply.
const PATIENCE: Duration = Duration::from_secs(60);

/// The usual place of a router's socket: `/run/weir` for root, else this user's own folder.
pub fn default_socket(name: &str) -> PathBuf {
    folder().join(format!("{name}.sock"))
}

/// The socket of the daemon this file makes.
pub fn socket_path(config: &Config) -> PathBuf {
    config.control.socket.clone().unwrap_or_else(|| default_socket(&config.name))
}

fn folder() -> PathBuf {
    match std::env::var_os("XDG_RUNTIME_DIR") {
        Some(own) if !is_root() => PathBuf::from(own).join("weir"),
        _ => PathBuf::from("/run/weir"),
    }
}

/// Only root may make folders in `/run`.
pub fn is_root() -> bool {
    use std::os::unix::fs::MetadataExt;
    std::fs::metadata("/proc/self").is_ok_and(|m| m.uid() == 0)
}

/// `--socket`, or the one socket there is in the usual place.
pub fn find(given: Option<PathBuf>) -> Result<PathBuf, String> {
    if let Some(given) = given {
        return Ok(given);
    }
    let folder = folder();
    let entries = std::fs::read_dir(&folder).into_iter().flatten().flatten().map(|e| e.path());
    let mut sockets: Vec<PathBuf> = entries.filter(|p| p.extension().is_some_and(|e| e == "sock")).collect();
    sockets.sort();
    let shown = folder.display();
    match sockets.as_slice() {
        [] => Err(format!(
            "no router runs here ({shown} has no socket); start one with `weir run FILE`, or name its --socket"
        )),
        [one] => Ok(one.clone()),
        several => {
            let names: Vec<String> = several.iter().map(|p| p.display().to_string()).collect();
            Err(format!("several routers run here; name one: --socket {}", names.join(" or --socket ")))
        }
    }
}

/// GET of a path, as it stands.
pub fn get(socket: &Path, path: &str) -> Result<String, String> {
    request(socket, "GET", path, "", &[])
}

/// GET of a path, understood.
pub fn read<T: DeserializeOwned>(socket: &Path, path: &str) -> Result<T, String> {
    understood(path, &get(socket, path)?)
}

/// POST of a body, the answer understood.
pub fn post<T: DeserializeOwned>(socket: &Path, path: &str, kind: &str, body: &[u8]) -> Result<T, String> {
    understood(path, &request(socket, "POST", path, kind, body)?)
}

fn understood<T: DeserializeOwned>(path: &str, body: &str) -> Result<T, String> {
    serde_json::from_str(body).map_err(|e| {
        format!("{path}: the answer is not understood ({e}); the daemon is of another version: restart it")
    })
}

fn request(socket: &Path, method: &str, path: &str, kind: &str, body: &[u8]) -> Result<String, String> {
    let shown = socket.display();
    let mut stream = UnixStream::connect(socket).map_err(|e| {
        let remedy = match e.kind() {
            io::ErrorKind::NotFound => "start the router with `weir run FILE`, or name its --socket",
            io::ErrorKind::ConnectionRefused => "its router was killed; start it again with `weir run FILE`",
            io::ErrorKind::PermissionDenied => "run as the user the router runs as (root)",
            _ => "name another --socket",
        };
        format!("control socket {shown}: {e}; {remedy}")
    })?;
    let failed =
        |e: io::Error| format!("control socket {shown}: the router did not answer ({e}); see its log");
    stream.set_read_timeout(Some(PATIENCE)).map_err(failed)?;
    stream.set_write_timeout(Some(PATIENCE)).map_err(failed)?;
    let head = format!(
        "{method} {path} HTTP/1.1\r\nhost: weir\r\nconnection: close\r\ncontent-type: {kind}\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(body)).map_err(failed)?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).map_err(failed)?;
    let (status, body) = split(&answer)
        .ok_or_else(|| format!("control socket {shown}: the answer is not HTTP; is it a weir's socket?"))?;
    if status == 200 {
        return Ok(body);
    }
    Err(match serde_json::from_str::<Refusal>(&body) {
        Ok(refusal) => refusal.error,
        Err(_) => format!("{path}: status {status}: {}", body.trim()),
    })
}

/// Status and body of a response that ended with its connection and is not chunked: the daemon knows the
/// length of all it says.
fn split(answer: &[u8]) -> Option<(u16, String)> {
    let text = String::from_utf8_lossy(answer);
    let (head, body) = text.split_once("\r\n\r\n")?;
    let status = head.strip_prefix("HTTP/1.1 ")?.get(..3)?.parse().ok()?;
    Some((status, body.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_response_is_split_into_status_and_body() {
        let answer = b"HTTP/1.1 404 Not Found\r\ncontent-length: 3\r\n\r\nno\n";
        assert_eq!(split(answer), Some((404, "no\n".into())));
        assert_eq!(split(b"SSH-2.0"), None);
    }

    #[test]
    fn a_socket_that_is_not_there_is_one_sentence() {
        let error = get(Path::new("/nonexistent/weir.sock"), "/v1/ports").expect_err("no socket");
        assert!(error.ends_with("start the router with `weir run FILE`, or name its --socket"), "{error}");
    }
}
