//! Asking a running daemon: one HTTP request over its Unix socket.
//!
//! Promises: a refusal of the daemon is passed on in its own words; a socket that is not there, not ours
//! or dead is one sentence with the remedy.

use std::fmt;
use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use serde::de::DeserializeOwned;

use crate::config::Config;
use crate::config::own_files::runtime_directory;
use crate::view::Refusal;

/// A daemon that does not answer within this is stuck; a full table takes a second or two to apply.
const PATIENCE: Duration = Duration::from_secs(60);

/// How long a daemon may take to end: workers send what has arrived, a relay's clients get what waits for them.
const STOP_MAX: Duration = Duration::from_secs(30);
const LOOK: Duration = Duration::from_millis(20);

/// Why a daemon was not asked, or did not do what it was asked.
#[derive(Debug)]
pub enum ClientError {
    NoSocket {
        folder: PathBuf,
    },
    /// Which of them is not said.
    Several {
        sockets: Vec<PathBuf>,
    },
    NotReached {
        socket: PathBuf,
        error: io::Error,
    },
    NoAnswer {
        socket: PathBuf,
        error: io::Error,
    },
    NotHttp {
        socket: PathBuf,
    },
    NotUnderstood {
        path: String,
        cause: String,
    },
    /// The daemon refused, in its own words.
    Refused {
        status: u16,
        why: String,
    },
    /// It was told to end and has not.
    NotEnded {
        socket: PathBuf,
    },
    /// A refusal without words of a daemon.
    Status {
        path: String,
        status: u16,
        body: String,
    },
}

impl ClientError {
    /// What to do, where the sentence does not end with it.
    fn remedy(&self) -> Option<&'static str> {
        Some(match self {
            ClientError::NoSocket { .. } => "start one with `weir run FILE`, or name its --socket",
            ClientError::NotReached { error, .. } => match error.kind() {
                io::ErrorKind::NotFound => "start the router with `weir run FILE`, or name its --socket",
                io::ErrorKind::ConnectionRefused => {
                    "its router was killed; start it again with `weir run FILE`"
                }
                io::ErrorKind::PermissionDenied => "run as the user the router runs as (root)",
                _ => "name another --socket",
            },
            ClientError::NoAnswer { .. } | ClientError::NotEnded { .. } => "see its log",
            ClientError::NotHttp { .. } => "is it a weir's socket?",
            ClientError::NotUnderstood { .. } => "the daemon is of another version: restart it",
            ClientError::Several { .. } | ClientError::Refused { .. } | ClientError::Status { .. } => {
                return None;
            }
        })
    }
}

impl fmt::Display for ClientError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ClientError::NoSocket { folder } => {
                write!(f, "no router runs here ({} has no socket)", folder.display())
            }
            ClientError::Several { sockets } => {
                let names: Vec<String> = sockets.iter().map(|p| p.display().to_string()).collect();
                write!(f, "several routers run here; name one: --socket {}", names.join(" or --socket "))
            }
            ClientError::NotReached { socket, error } => {
                write!(f, "control socket {}: {error}", socket.display())
            }
            ClientError::NoAnswer { socket, error } => {
                write!(f, "control socket {}: the router did not answer ({error})", socket.display())
            }
            ClientError::NotHttp { socket } => {
                write!(f, "control socket {}: the answer is not HTTP", socket.display())
            }
            ClientError::NotUnderstood { path, cause } => {
                write!(f, "{path}: the answer is not understood ({cause})")
            }
            ClientError::NotEnded { socket } => {
                write!(f, "{}: the daemon has not ended after {STOP_MAX:?}", socket.display())
            }
            ClientError::Refused { why, .. } => f.write_str(why),
            ClientError::Status { path, status, body } => write!(f, "{path}: status {status}: {body}"),
        }?;
        self.remedy().map_or(Ok(()), |remedy| write!(f, "; {remedy}"))
    }
}

impl std::error::Error for ClientError {}

/// Has the daemon end in order; returns when nobody answers on the socket any more.
pub fn stop(socket: &Path) -> Result<(), ClientError> {
    let _: serde_json::Value = post(socket, "/v1/stop", "application/json", b"")?;
    ends(socket, || UnixStream::connect(socket).is_err())
}

/// Waits until the process that answered on a socket is gone.
pub fn wait_for_end(socket: &Path, pid: u32) -> Result<(), ClientError> {
    ends(socket, || {
        // One that nobody has waited for yet holds nothing any more.
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"));
        stat.map_or(true, |stat| stat.rsplit(") ").next().is_some_and(|rest| rest.starts_with(['Z', 'X'])))
    })
}

fn ends(socket: &Path, has_ended: impl Fn() -> bool) -> Result<(), ClientError> {
    let end = Instant::now() + STOP_MAX;
    while !has_ended() {
        if Instant::now() > end {
            return Err(ClientError::NotEnded { socket: socket.to_owned() });
        }
        thread::sleep(LOOK);
    }
    Ok(())
}

/// The usual place of a router's socket: where a service manager keeps what ends with the service, `/run/weir` for root, else
/// this user's own folder.
pub fn default_socket(name: &str) -> PathBuf {
    folders().swap_remove(0).join(format!("{name}.sock"))
}

/// The socket of the daemon this file makes.
pub fn socket_path(config: &Config) -> PathBuf {
    config.control.socket.clone().unwrap_or_else(|| default_socket(&config.name))
}

/// Where sockets are, in the order they are looked for: packaged relays have theirs in a folder of their user.
fn folders() -> Vec<PathBuf> {
    if let Some(own) = runtime_directory() {
        return vec![own];
    }
    match std::env::var_os("XDG_RUNTIME_DIR") {
        Some(own) if !is_root() => vec![PathBuf::from(own).join("weir")],
        _ => ["/run/weir", "/run/weir-relay"].map(PathBuf::from).into(),
    }
}

/// Only root may make folders in `/run`.
pub fn is_root() -> bool {
    use std::os::unix::fs::MetadataExt;
    std::fs::metadata("/proc/self").is_ok_and(|m| m.uid() == 0)
}

fn sockets_in(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten().map(|e| e.path());
    let mut sockets: Vec<PathBuf> = entries.filter(|p| p.extension().is_some_and(|e| e == "sock")).collect();
    sockets.sort();
    sockets
}

/// `--socket`, or the one socket there is in the first of the usual places that has any.
pub fn find(given: Option<PathBuf>) -> Result<PathBuf, ClientError> {
    if let Some(given) = given {
        return Ok(given);
    }
    let mut folders = folders();
    let sockets = folders.iter().map(|folder| sockets_in(folder)).find(|sockets| !sockets.is_empty());
    let sockets = sockets.unwrap_or_default();
    match sockets.as_slice() {
        [] => Err(ClientError::NoSocket { folder: folders.swap_remove(0) }),
        [one] => Ok(one.clone()),
        _ => Err(ClientError::Several { sockets }),
    }
}

/// GET of a path, as it stands.
pub fn get(socket: &Path, path: &str) -> Result<String, ClientError> {
    request(socket, "GET", path, "", &[])
}

/// GET of a path, understood.
pub fn read<T: DeserializeOwned>(socket: &Path, path: &str) -> Result<T, ClientError> {
    understood(path, &get(socket, path)?)
}

/// POST of a body, the answer understood.
pub fn post<T: DeserializeOwned>(
    socket: &Path,
    path: &str,
    kind: &str,
    body: &[u8],
) -> Result<T, ClientError> {
    understood(path, &request(socket, "POST", path, kind, body)?)
}

fn understood<T: DeserializeOwned>(path: &str, body: &str) -> Result<T, ClientError> {
    let unclear =
        |e: serde_json::Error| ClientError::NotUnderstood { path: path.to_owned(), cause: e.to_string() };
    serde_json::from_str(body).map_err(unclear)
}

fn request(socket: &Path, method: &str, path: &str, kind: &str, body: &[u8]) -> Result<String, ClientError> {
    let own = || socket.to_owned();
    let mut stream =
        UnixStream::connect(socket).map_err(|error| ClientError::NotReached { socket: own(), error })?;
    let failed = |error: io::Error| ClientError::NoAnswer { socket: own(), error };
    stream.set_read_timeout(Some(PATIENCE)).map_err(failed)?;
    stream.set_write_timeout(Some(PATIENCE)).map_err(failed)?;
    let head = format!(
        "{method} {path} HTTP/1.1\r\nhost: weir\r\nconnection: close\r\ncontent-type: {kind}\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(body)).map_err(failed)?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).map_err(failed)?;
    let (status, body) = split(&answer).ok_or_else(|| ClientError::NotHttp { socket: own() })?;
    if status == 200 {
        return Ok(body);
    }
    Err(match serde_json::from_str::<Refusal>(&body) {
        Ok(refusal) => ClientError::Refused { status, why: refusal.error },
        Err(_) => ClientError::Status { path: path.to_owned(), status, body: body.trim().to_owned() },
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
        let error = get(Path::new("/nonexistent/weir.sock"), "/v1/ports").expect_err("no socket").to_string();
        assert!(error.ends_with("start the router with `weir run FILE`, or name its --socket"), "{error}");
    }
}
