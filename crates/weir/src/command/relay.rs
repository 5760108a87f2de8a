//! `weir relay`: a relay of a file, or at once with nothing but `--dev`.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use clap::{Args, Subcommand, ValueEnum};
use weir_relay::settings::{Acceptor, Certificates, Io, Settings, Tls};
use weir_relay::{Engine, keyfile};

use super::relay_map::{self, MapArgs};
use crate::config;
use crate::control::client;
use crate::failure::Failure;
use crate::relay::run::{self, Started};
use crate::text::print;

/// Where `--dev` listens, as derper's does.
const DEV: &str = "127.0.0.1:3340";
/// Draining has limits of its own, all shorter.
const DRAIN_MAX: Duration = Duration::from_secs(30);

#[derive(Clone, Debug, Subcommand)]
pub enum RelayVerb {
    /// Print the relay of a file as a DERP map, for Tailscale's policy file or for headscale
    #[command(after_help = "Examples:\n  \
        weir relay map relay.toml --tailscale                   `derpMap`, to paste into the policy file\n  \
        weir relay map relay.toml --headscale > derp.yaml       then name it in `derp.paths` of headscale's configuration")]
    Map(MapArgs),
}

#[derive(Clone, Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct RelayArgs {
    #[command(subcommand)]
    pub verb: Option<RelayVerb>,
    /// The configuration file
    #[arg(required_unless_present = "dev", conflicts_with = "dev")]
    pub file: Option<PathBuf>,
    /// Take over from the relay that runs: its clients come here, no connection is refused
    #[arg(long, conflicts_with = "dev")]
    pub take_over: bool,
    /// No file: plain on this host only, a new key, no certificate
    #[arg(long)]
    pub dev: bool,
    /// With --dev: address and port, `:PORT` for every address [default: 127.0.0.1:3340]
    #[arg(long, requires = "dev", value_parser = listening)]
    pub listen: Option<SocketAddr>,
    /// With --dev: answer STUN there
    #[arg(long, requires = "dev", value_parser = listening)]
    pub stun: Option<SocketAddr>,
    /// With --dev: TLS with a self-signed certificate
    #[arg(long, requires = "dev", value_enum)]
    pub tls: Option<DevTls>,
    /// With --dev: CPUs of the workers, as in 0,1 [default: one of each core]
    #[arg(long, requires = "dev", value_delimiter = ',')]
    pub cpus: Vec<u32>,
    /// With --dev: epoll instead of io_uring
    #[arg(long, requires = "dev")]
    pub epoll: bool,
    /// With --dev: keep the key in this file instead of making a new one
    #[arg(long, requires = "dev")]
    pub key: Option<PathBuf>,
    /// With --dev: a file with the mesh key
    #[arg(long, requires = "dev")]
    pub mesh_key: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum DevTls {
    Off,
    Auto,
    User,
    Kernel,
}

fn listening(text: &str) -> Result<SocketAddr, String> {
    config::relay::listening(text).ok_or_else(|| "expected an address and port, or `:PORT`".to_owned())
}

pub fn run(args: &RelayArgs, socket: Option<PathBuf>) -> Result<(), Failure> {
    if let Some(RelayVerb::Map(args)) = &args.verb {
        let (map, notes) = relay_map::text(args)?;
        notes.iter().for_each(|note| eprintln!("weir: {note}"));
        return print(&map);
    }
    match &args.file {
        Some(file) => of_file(file, socket, args.take_over),
        None => dev(args, socket),
    }
}

/// A file that must be a relay's.
pub fn of_file(file: &Path, socket: Option<PathBuf>, take_over: bool) -> Result<(), Failure> {
    let config = config::load(file).map_err(Failure::of)?;
    if config.relay.is_none() {
        return Err(Failure(format!(
            "{}: has no `[relay]`, so it is a router's; run it with `weir run`, or write `[relay]`",
            file.display()
        )));
    }
    let socket = socket.unwrap_or_else(|| client::socket_path(&config));
    run::start_file(file, &config, socket, take_over)?.run()
}

fn dev(args: &RelayArgs, socket: Option<PathBuf>) -> Result<(), Failure> {
    let listen = match args.listen {
        Some(listen) => listen,
        None => DEV.parse().map_err(|_| Failure("listen: no address".into()))?,
    };
    let secret = match &args.key {
        Some(path) => keyfile::read_or_make(path),
        None => keyfile::fresh(),
    };
    let mesh_key = args.mesh_key.as_deref().map(keyfile::read_mesh_key).transpose().map_err(Failure::of)?;
    let name = format!("dev-{}", std::process::id());
    let socket = socket.unwrap_or_else(|| client::default_socket(&name));
    let settings = Settings {
        name,
        secret: secret.map_err(Failure::of)?,
        mesh_key,
        mesh_with: Vec::new(),
        cpus: args.cpus.clone(),
        io: if args.epoll { Io::Epoll } else { Io::Auto },
        engine: Engine::default(),
        acceptor: Acceptor {
            listen: vec![listen],
            stun: args.stun.into_iter().collect(),
            tls: match args.tls.unwrap_or(DevTls::Off) {
                DevTls::Off => Tls::Off,
                DevTls::Auto => Tls::Auto,
                DevTls::User => Tls::User,
                DevTls::Kernel => Tls::Kernel,
            },
            certificates: Certificates::SelfSigned,
            ..Acceptor::default()
        },
    };
    let running = run::start(settings, Started { socket: socket.clone(), ..Started::default() })?;
    if let Some(address) = running.addresses().first() {
        let scheme = if args.tls.is_some_and(|t| t != DevTls::Off) { "https" } else { "http" };
        tracing::info!("try it: curl -ik {scheme}://{address}/derp/probe");
        tracing::info!("ask it: weir --socket {} show relay", socket.display());
    }
    running.run()
}

/// Asks a relay to drain, and returns when it has ended.
pub fn drain(socket: &Path) -> Result<(), Failure> {
    let _: serde_json::Value =
        client::post(socket, "/v1/drain", "application/json", b"").map_err(Failure::of)?;
    let end = Instant::now() + DRAIN_MAX;
    while std::os::unix::net::UnixStream::connect(socket).is_ok() {
        if Instant::now() > end {
            return Err(Failure(format!(
                "{}: the relay has not ended after {DRAIN_MAX:?}; see its log",
                socket.display()
            )));
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}
