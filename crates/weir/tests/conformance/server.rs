//! A relay under test: derper or ours, plain TCP, with a mesh key, at a loopback address that nobody else uses.
//!
//! Promises: both are told the same, each in its own way; it takes connections when [`Server::start`] returns, and is gone with its files when dropped; what it
//! logged is shown when the test fails.

use std::fs::{self, File, OpenOptions};
use std::io::Write as _;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU8, Ordering};

use weir_io::process;

use crate::machine::until;

/// The mesh key of every server of this suite.
pub const MESH_KEY: &str = "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff";
const PORT: u16 = 3340;
pub const STUN_PORT: u16 = 3478;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sut {
    Derper,
    Ours,
}

/// What a server is told besides the usual.
#[derive(Clone, Copy, Debug, Default)]
pub struct ServerOptions<'a> {
    pub stun: bool,
    /// The URL to ask about clients.
    pub verify: Option<&'a str>,
    /// What becomes of clients while nobody answers there.
    pub fail_closed: bool,
}

pub struct Server {
    pub address: SocketAddr,
    child: Child,
    folder: PathBuf,
}

/// Where derper is: installed for the tests, or by the operator.
fn derper() -> Option<PathBuf> {
    let cache = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    let cache = cache.or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".cache")));
    let ours = cache.map(|cache| cache.join("weir/peers/bin"));
    let path = std::env::var_os("PATH").unwrap_or_default();
    ours.into_iter().chain(std::env::split_paths(&path)).map(|dir| dir.join("derper")).find(|p| p.is_file())
}

/// Makes an address of 127.0.0.0/8 from this process and how many it has started.
fn loopback() -> Ipv4Addr {
    static STARTED: AtomicU8 = AtomicU8::new(1);
    let [_, _, high, low] = std::process::id().to_be_bytes();
    Ipv4Addr::new(127, 64 | high & 63, low, STARTED.fetch_add(1, Ordering::Relaxed))
}

/// Starts derper, which takes flags.
fn derper_command(folder: &Path, at: SocketAddr, told: ServerOptions<'_>) -> Result<Command, String> {
    let mut command = Command::new(derper().ok_or("derper is not installed; `make interop` installs it")?);
    command.args(["-a", &at.to_string(), "-http-port", "-1", "-hostname", "relay.example"]);
    command.arg("-c").arg(folder.join("key")).arg("-mesh-psk-file").arg(folder.join("mesh"));
    command.arg(format!("-stun={}", told.stun)).arg(format!("-stun-port={STUN_PORT}"));
    command.args(told.verify.map(|url| format!("-verify-client-url={url}")));
    command.arg(format!("-verify-client-url-fail-open={}", !told.fail_closed));
    Ok(command)
}

/// Starts weir, which takes a file.
fn our_command(folder: &Path, at: SocketAddr, told: ServerOptions<'_>) -> Command {
    let mut text = format!(
        "[relay]\nlisten = [\"{at}\"]\ntls = \"off\"\nhostname = \"relay.example\"\nkey = {:?}\nmesh_key = {:?}\n",
        folder.join("key"),
        folder.join("mesh")
    );
    if told.stun {
        text += &format!("stun = [\"{}:{STUN_PORT}\"]\n", at.ip());
    }
    if let Some(url) = told.verify {
        text += &format!("verify = \"{url}\"\nverify_fail_open = {}\n", !told.fail_closed);
    }
    let file = folder.join("relay.toml");
    fs::write(&file, text).expect("its configuration");
    let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
    command.arg("--socket").arg(folder.join("socket")).arg("run").arg(file);
    command
}

impl Server {
    /// A server of its own; or what is missing.
    pub fn start(subject: Sut, told: ServerOptions<'_>) -> Result<Server, String> {
        let ip = loopback();
        let address = SocketAddr::from((ip, PORT));
        let folder = std::env::temp_dir().join(format!("weir-conformance-{ip}"));
        fs::create_dir_all(&folder).expect("a folder for the server's files");
        let mut mesh = OpenOptions::new();
        let mesh = mesh.create(true).write(true).truncate(true).mode(0o600).open(folder.join("mesh"));
        mesh.and_then(|mut file| file.write_all(MESH_KEY.as_bytes())).expect("its mesh key");
        let mut command = match subject {
            Sut::Derper => derper_command(&folder, address, told)?,
            Sut::Ours => our_command(&folder, address, told),
        };
        let log = File::create(folder.join("log")).expect("its log");
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        let child = process::dies_with_starter(&mut command).spawn().expect("the server starts");
        let mut server = Server { address, child, folder };
        until("a server that takes connections", || {
            assert!(server.child.try_wait().ok().flatten().is_none(), "{subject:?} ended: {}", server.log());
            TcpStream::connect(address).ok()
        });
        Ok(server)
    }

    pub fn ip(&self) -> IpAddr {
        self.address.ip()
    }

    pub fn log(&self) -> String {
        fs::read_to_string(self.folder.join("log")).unwrap_or_default()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            eprintln!("the server's log:\n{}", self.log());
        }
        let _ = fs::remove_dir_all(&self.folder);
    }
}
