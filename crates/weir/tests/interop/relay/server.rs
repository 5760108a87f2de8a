//! A relay of either kind, told the same things in its own words.

use std::path::PathBuf;
use std::process::Command;

use weir_io::process;

use super::net::{NAMES, Net, RELAYS};
use super::peers::{command, path, patiently, until_listening};
use crate::daemon::Running;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Derper,
    Weir,
}

/// What relays of one mesh share.
const MESH_KEY: &str = "6d2ad9d1c3a1e5f0b7480c2e9f3a51667788990011aabbccddeeff0123456789";

/// How a relay is run.
#[derive(Clone, Debug)]
pub struct RelayOptions {
    kind: Kind,
    /// Which of [`RELAYS`].
    which: usize,
    /// Asks this URL about each client.
    verify: Option<String>,
    /// Asks the tailscaled at this socket.
    tailscaled: Option<PathBuf>,
    /// One of a mesh with the other.
    mesh: bool,
}

/// A running relay, killed on drop.
pub struct PeerRelay {
    running: Running,
    pub plan: RelayOptions,
}

impl RelayOptions {
    pub fn new(kind: Kind) -> RelayOptions {
        RelayOptions { kind, which: 0, verify: None, tailscaled: None, mesh: false }
    }

    pub fn second(self) -> RelayOptions {
        RelayOptions { which: 1, ..self }
    }

    pub fn verify(self, url: String) -> RelayOptions {
        RelayOptions { verify: Some(url), ..self }
    }

    pub fn tailscaled(self, socket: PathBuf) -> RelayOptions {
        RelayOptions { tailscaled: Some(socket), ..self }
    }

    pub fn mesh(self) -> RelayOptions {
        RelayOptions { mesh: true, ..self }
    }

    /// Starts it, at a port that nobody has to be root for elsewhere, and waits until it listens. Its key is that
    /// of the last start in this net.
    pub fn start(&self, net: &Net) -> PeerRelay {
        let name = NAMES[self.which];
        if !net.folder.join(format!("{name}.crt")).exists() {
            net.authority.issue(name);
        }
        if self.mesh {
            mesh_key(net);
        }
        let mut command = match self.kind {
            Kind::Derper => self.derper(net),
            Kind::Weir => self.weir(net),
        };
        let running = Running::start(&mut command, net.folder.join(format!("{name}.sock")));
        until_listening(&net.middle, net.relay(self.which), 443, || running.log());
        PeerRelay { running, plan: self.clone() }
    }

    fn derper(&self, net: &Net) -> Command {
        let name = NAMES[self.which];
        let mut command = command(net, &net.middle, path("derper"));
        command.args(["-hostname", name, "-certmode", "manual", "-certdir", "."]);
        command.args([
            "-a",
            &format!("{name}:443"),
            "-http-port",
            "80",
            "-stun",
            "-c",
            &format!("{name}.derper"),
        ]);
        if let Some(url) = &self.verify {
            command.args(["-verify-client-url", url]);
        }
        if let Some(socket) = &self.tailscaled {
            command.arg("-verify-clients").arg("-socket").arg(socket);
        }
        if self.mesh {
            command.arg("-mesh-psk-file").arg(mesh_key(net)).args(["-mesh-with", NAMES[1 - self.which]]);
        }
        command
    }

    fn weir(&self, net: &Net) -> Command {
        let name = NAMES[self.which];
        let at = RELAYS[self.which];
        let mut text = format!(
            "[relay]\nhostname = \"{name}\"\nlisten = [\"{at}:443\"]\nhttp = [\"{at}:80\"]\n\
             stun = [\"{at}:3478\"]\nkey = \"{name}.secret\"\n"
        );
        if let Some(url) = &self.verify {
            text += &format!("verify = \"{url}\"\n");
        }
        if let Some(socket) = &self.tailscaled {
            text += &format!("verify_tailscaled = {socket:?}\n");
        }
        if self.mesh {
            let key = mesh_key(net);
            text += &format!("mesh_key = {key:?}\nmesh_with = [\"{}\"]\n", NAMES[1 - self.which]);
        }
        text += &format!("certificate = \"{name}.crt\"\nprivate_key = \"{name}.key\"\n");
        let file = net.file(&format!("{name}.toml"), &text);
        let mut command = command(net, &net.middle, env!("CARGO_BIN_EXE_weir"));
        command.arg("--socket").arg(net.folder.join(format!("{name}.sock"))).arg("run").arg(file);
        command
    }
}

fn mesh_key(net: &Net) -> std::path::PathBuf {
    let file = net.folder.join("mesh.key");
    if !file.exists() {
        super::peers::private(&file, MESH_KEY);
    }
    file
}

impl PeerRelay {
    pub fn log(&self) -> String {
        self.running.log()
    }

    /// Ends it at once: nobody is told.
    pub fn kill(&mut self) {
        self.running.child.kill().expect("it runs");
        self.running.child.wait().expect("a child of ours");
    }

    /// Asks it to end, and waits until it has.
    pub fn terminate(&mut self) {
        process::terminate(self.running.child.id()).expect("it runs");
        patiently("the relay ends", || self.running.child.try_wait().expect("a child of ours"));
    }
}

impl Drop for PeerRelay {
    fn drop(&mut self) {
        if std::thread::panicking() {
            println!("{:?} at {} said:\n{}", self.plan.kind, RELAYS[self.plan.which], self.log());
        }
    }
}
