//! The control socket's file, and who may speak on it.
//!
//! Promises: the file is its owner's alone from the moment it is there; it goes when it is dropped, unless another has
//! come in its place; a connection of anybody but root and the user this process acts as gets a sentence and nothing
//! else, whatever became of the file's mode. Refuses: to take over a socket that somebody answers on.

use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use rustix::fs::Mode;
use rustix::process::{geteuid, umask};
use tokio::net::unix::UCred;

use super::error::{ServerError, Step};

/// Removes a file when dropped, unless another has come in its place.
#[derive(Debug)]
pub(super) struct Removed {
    pub path: PathBuf,
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

/// Binds the socket; a file a dead predecessor left is replaced, one somebody answers on is not.
pub(super) fn listen(socket: &Path) -> Result<(UnixListener, Removed), ServerError> {
    let failed = |failed| move |error| ServerError::Socket { socket: socket.to_owned(), failed, error };
    if let Some(folder) = socket.parent() {
        std::fs::create_dir_all(folder).map_err(failed(Step::MakeFolder))?;
    }
    match UnixStream::connect(socket) {
        Ok(_) => {
            return Err(ServerError::InUse { socket: socket.to_owned() });
        }
        Err(e) if e.kind() == io::ErrorKind::ConnectionRefused => {
            std::fs::remove_file(socket).map_err(failed(Step::RemoveDead))?;
            tracing::info!("control socket {}: left by a dead predecessor, replaced", socket.display());
        }
        Err(_) => {}
    }
    let listener = bind(socket).map_err(failed(Step::Bind))?;
    let file = Removed::new(socket).map_err(failed(Step::Look))?;
    listener.set_nonblocking(true).map_err(failed(Step::NonBlocking))?;
    Ok((listener, file))
}

/// A file that is made with its mode: set afterwards, it would be open to others for a moment. What another thread makes
/// meanwhile is private as well.
fn bind(socket: &Path) -> io::Result<UnixListener> {
    let before = umask(Mode::RWXG | Mode::RWXO | Mode::XUSR);
    let bound = UnixListener::bind(socket);
    umask(before);
    bound
}

/// Why the process at the other end may not ask, if it may not: it could reconfigure the router.
pub(super) fn refusal(peer: io::Result<UCred>) -> Option<String> {
    let own = geteuid().as_raw();
    match peer.map(|peer| peer.uid()) {
        Ok(uid) if uid == 0 || uid == own => None,
        Ok(uid) => Some(format!(
            "control socket: user {uid} may not ask, expected root or user {own}, as whom weir runs; use sudo"
        )),
        Err(e) => Some(format!("control socket: it cannot be seen who asks ({e}); run `weir` on this host")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(name: &str) -> PathBuf {
        std::env::temp_dir().join(format!("weir-server-{name}-{}.sock", std::process::id()))
    }

    #[test]
    fn the_file_is_its_owners_alone_from_the_moment_it_is_there() {
        let path = path("mode");
        let _listener = bind(&path).expect("free");
        let mode = std::fs::metadata(&path).expect("there").mode() & 0o777;
        std::fs::remove_file(&path).expect("ours");
        assert_eq!(mode, 0o600, "{mode:o}");
    }

    #[test]
    fn a_socket_somebody_answers_on_is_not_taken() {
        let path = path("taken");
        let (first, _file) = listen(&path).expect("free");
        let refused = listen(&path).expect_err("taken").to_string();
        assert!(refused.contains("another weir answers on it; stop that one"), "{refused}");
        drop(first);
        listen(&path).expect("a file left behind is replaced");
    }

    #[test]
    fn a_file_that_another_has_put_in_its_place_is_not_removed() {
        let path = path("place");
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
