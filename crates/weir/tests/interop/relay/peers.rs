//! The programs `scripts/peers` installs.

use std::net::IpAddr;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use weir_io::netns;

use super::net::Net;
use crate::machine::until_within;

/// How long a peer may take to do something on a busy machine: each is a large program, and several start at once.
pub const PATIENCE: Duration = Duration::from_secs(120);

/// Where the programs are.
fn folder() -> PathBuf {
    let set = |name| std::env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
    let cache = set("XDG_CACHE_HOME").or_else(|| set("HOME").map(|home| home.join(".cache")));
    cache.unwrap_or_else(|| "/nonexistent".into()).join("weir/peers/bin")
}

pub fn path(program: &str) -> PathBuf {
    folder().join(program)
}

/// Those that are not there, and what to do about it.
pub fn missing(programs: &[&str]) -> Option<String> {
    let absent: Vec<&str> = programs.iter().copied().filter(|p| !path(p).is_file()).collect();
    (!absent.is_empty()).then(|| format!("{}; `make interop` installs what is missing", absent.join(", ")))
}

/// The command that runs a program in a namespace, where relays have names, and with the test's own authority trusted
/// and no other.
pub fn command(net: &Net, ns: &str, program: impl Into<PathBuf>) -> Command {
    let mut command = Command::new("ip");
    command.args(["netns", "exec", ns, "sh", "-c", "mount --bind hosts /etc/hosts && exec \"$0\" \"$@\""]);
    command.arg(program.into()).current_dir(&net.folder).stdin(Stdio::null());
    command
        .env("SSL_CERT_FILE", net.authority.path())
        .env("SSL_CERT_DIR", &net.folder)
        .env("HOME", &net.folder);
    command.env("TS_NO_LOGS_NO_SUPPORT", "true").env_remove("XDG_CACHE_HOME");
    command
}

/// Waits with the patience peers need.
pub fn patiently<T>(what: &str, attempt: impl FnMut() -> Option<T>) -> T {
    until_within(PATIENCE, what, attempt)
}

/// Waits until something takes TCP connections there.
pub fn until_listening(ns: &str, ip: IpAddr, port: u16, said: impl Fn() -> String) {
    let connected = || netns::inside(ns, || std::net::TcpStream::connect((ip, port)).is_ok());
    let start = std::time::Instant::now();
    while !connected().expect("the namespace is there") {
        assert!(start.elapsed() < PATIENCE, "nobody listens at {ip} port {port}:\n{}", said());
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Writes a file only its owner may read.
pub fn private(path: &std::path::Path, text: &str) {
    use std::io::Write as _;
    use std::os::unix::fs::OpenOptionsExt as _;
    let mut file = std::fs::OpenOptions::new();
    let mut file = file.write(true).create(true).truncate(true).mode(0o600).open(path).expect("a file");
    file.write_all(text.as_bytes()).expect("a file");
}
