//! Two strongSwan daemons, keyed by IKEv2, and whoever does ESP for them ([`Esp`]).
//!
//! A daemon lives in its gateway's namespace with a `/run` of its own and every other file in a folder of
//! this lab's: nothing is installed, no service is touched. Refuses: machines without TUN or the plugin where it does ESP
//! itself, kernels that take no SA of ESP where it hands them keys.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use super::gateway::kernel_addresses;
use super::gateway::{Gateway, Pair, Side};
use super::kernel_xfrm;
use crate::model::LabError;
use crate::netns::residue::Folder;

const CHARON: &str = "/usr/lib/ipsec/charon";
const PLUGIN: &str = "/usr/lib/ipsec/plugins/libstrongswan-kernel-libipsec.so";
const SWANCTL: &str = "/usr/sbin/swanctl";
const READY_WITHIN: Duration = Duration::from_secs(20);
const LOOK: Duration = Duration::from_millis(20);
/// The cipher of both gateways' ESP.
const PROPOSAL: &str = "aes128gcm16-curve25519";

/// The interface id of weir's children. No device has it, so the kernel leaves their packets alone.
const INTERFACE_ID: u32 = 7;

/// Who seals and opens what a daemon has agreed on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Esp {
    /// The daemon, in user space over TUN (`kernel-libipsec`).
    Own,
    /// The kernel.
    Kernel,
    /// weir, which follows what the kernel is told.
    Weir,
}

impl Esp {
    fn sut(self) -> &'static str {
        match self {
            Esp::Own => "strongswan",
            Esp::Kernel => "strongswan-kernel",
            Esp::Weir => "weir-strongswan",
        }
    }
}

/// What it needs and this machine lacks, with the remedy.
pub fn missing(esp: Esp) -> Option<String> {
    let own: &[(&str, &str)] =
        &[(PLUGIN, "install libcharon-extra-plugins"), ("/dev/net/tun", "use a kernel with TUN")];
    let all = [
        (CHARON, "install strongswan-charon"),
        (SWANCTL, "install strongswan-swanctl"),
        ("/usr/bin/taskset", "install util-linux"),
    ];
    let mut needed = all.iter().chain(if esp == Esp::Own { own } else { &[] });
    let file = needed.find(|(path, _)| !Path::new(path).exists());
    let lack = match file {
        Some((path, remedy)) => format!("{path} is not there: {remedy}"),
        None if esp == Esp::Own => return None,
        None => format!(
            "this kernel takes no SA of ESP, by which a key daemon hands over its keys ({}): use one with CONFIG_XFRM_USER, \
             CONFIG_INET_ESP and AES-GCM (scripts/second-kernel starts one, whose values mean nothing)",
            kernel_xfrm::gateway::refuses_esp()?
        ),
    };
    Some(format!("{}: {lack}", esp.sut()))
}

pub struct Strongswan {
    child: Child,
    esp: Esp,
    socket: PathBuf,
    log: PathBuf,
    note: String,
    // Dropped last: the daemon's files are in it.
    _folder: Folder,
}

pub fn start(pair: Pair<'_>, esp: Esp) -> Result<Vec<Box<dyn Gateway>>, LabError> {
    let [left, right] = daemons(pair, esp)?;
    left.initiate()?;
    Ok(vec![Box::new(left), Box::new(right)])
}

/// Both daemons, left first, which know each other and have agreed on nothing yet.
pub fn daemons(Pair([left, right]): Pair<'_>, esp: Esp) -> Result<[Strongswan; 2], LabError> {
    Ok([Strongswan::start(left, esp)?, Strongswan::start(right, esp)?])
}

impl Strongswan {
    fn start(side: &Side<'_>, esp: Esp) -> Result<Strongswan, LabError> {
        addresses(side, esp)?;
        let folder = Folder::new()?;
        let (socket, log) = (folder.path().join("charon.vici"), folder.path().join("charon.log"));
        let (conf, connection) = (folder.path().join("strongswan.conf"), folder.path().join("swanctl.conf"));
        let failed = |what: &str, e: std::io::Error| LabError::new(format!("strongswan: {what}: {e}"));
        fs::write(&conf, settings(&socket, &log, esp)).map_err(|e| failed("settings", e))?;
        fs::write(&connection, connections(side, esp)).map_err(|e| failed("connections", e))?;
        let output = File::create(folder.path().join("charon.out")).map_err(|e| failed("output", e))?;
        let cpu = side.cpu.to_string();
        let child = side
            .namespace
            .run(move || {
                let mut command = Command::new("unshare");
                // every charon writes its process number to the same place below /run
                let script = format!("mount -t tmpfs tmpfs /run && exec taskset -c {cpu} {CHARON}");
                command.args(["--mount", "sh", "-c", &script]).env("STRONGSWAN_CONF", conf);
                command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(output);
                super::as_service(&mut command).spawn()
            })?
            .map_err(|e| failed("cannot be started", e))?;
        folder.record_sut(child.id())?;
        let plugin = if esp == Esp::Own { "kernel-libipsec" } else { "kernel-netlink" };
        let note = format!("strongswan: {plugin}, IKEv2, ESP {PROPOSAL}");
        let mut daemon = Strongswan { child, esp, socket, log, note, _folder: folder };
        daemon.wait_until_ready()?;
        daemon.told(&["--load-all", "--file", &connection.display().to_string()])?;
        Ok(daemon)
    }

    /// Has both daemons agree on the tunnel.
    pub fn initiate(&self) -> Result<(), LabError> {
        self.told(&["--initiate", "--child", "tunnel"])
    }

    fn wait_until_ready(&mut self) -> Result<(), LabError> {
        let until = Instant::now() + READY_WITHIN;
        while !self.socket.exists() {
            if let Ok(Some(status)) = self.child.try_wait() {
                return Err(LabError::new(format!(
                    "strongswan: ended at its start ({status}): {}",
                    self.log()
                )));
            }
            if Instant::now() > until {
                return Err(LabError::new(format!("strongswan: does not listen: {}", self.log())));
            }
            std::thread::sleep(LOOK);
        }
        Ok(())
    }

    fn told(&self, words: &[&str]) -> Result<(), LabError> {
        let mut swanctl = Command::new(SWANCTL);
        swanctl.arg(words[0]).arg("--uri").arg(format!("unix://{}", self.socket.display()));
        swanctl.args(&words[1..]).env("SWANCTL_DIR", self._folder.path());
        let output = swanctl
            .output()
            .map_err(|e| LabError::new(format!("strongswan: swanctl cannot be started: {e}")))?;
        if output.status.success() {
            return Ok(());
        }
        let said = String::from_utf8_lossy(&output.stderr);
        Err(LabError::new(format!(
            "strongswan: swanctl {}: {}; {}",
            words.join(" "),
            said.trim(),
            self.log()
        )))
    }
}

impl Gateway for Strongswan {
    fn notes(&self) -> Vec<String> {
        let mut notes = vec![self.note.clone()];
        if self.esp == Esp::Kernel {
            notes.push("strongswan-kernel: where the kernel has no AES instructions, values say that it carries, not how fast".into());
        }
        notes
    }

    fn log(&self) -> String {
        super::weir::tail(&self.log)
    }
}

impl Drop for Strongswan {
    fn drop(&mut self) {
        // Errors mean that it has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The gateway's addresses. Where weir does ESP, it alone forwards.
fn addresses(side: &Side<'_>, esp: Esp) -> Result<(), LabError> {
    kernel_addresses(side.namespace, side.inner, side.outer, side.number())?;
    match esp {
        Esp::Own => Ok(()),
        Esp::Weir => side.namespace.sysctl("net/ipv4/ip_forward", "0"),
        // What policies are to protect needs a route, as anything that is forwarded.
        Esp::Kernel => {
            let (far, outer) = (side.other(), &side.outer.name);
            side.namespace.ip(&format!("route add 10.{far}.0.0/24 via 192.0.2.{far} dev {outer}"))
        }
    }
}

/// One setting a line: the parser takes the rest of a line for the value.
fn settings(socket: &Path, log: &Path, esp: Esp) -> String {
    let (socket, log) = (socket.display(), log.display());
    let own = if esp == Esp::Own { "kernel-libipsec " } else { "" };
    format!(
        "charon {{\n  load = random nonce openssl kdf {own}kernel-netlink socket-default vici updown\n  \
         plugins {{\n    vici {{\n      socket = unix://{socket}\n    }}\n  }}\n  filelog {{\n    log {{\n      \
         path = {log}\n      default = 1\n      flush_line = yes\n    }}\n  }}\n}}\n"
    )
}

fn connections(side: &Side<'_>, esp: Esp) -> String {
    let (own, far) = (side.number(), side.other());
    let id = match esp {
        Esp::Weir => format!("        if_id_in = {INTERFACE_ID}\n        if_id_out = {INTERFACE_ID}\n"),
        Esp::Own | Esp::Kernel => String::new(),
    };
    format!(
        "connections {{\n  lab {{\n    version = 2\n    local_addrs = 192.0.2.{own}\n    remote_addrs = 192.0.2.{far}\n    \
         proposals = aes128-sha256-curve25519\n    local {{\n      auth = psk\n      id = gateway-{own}\n    }}\n    \
         remote {{\n      auth = psk\n      id = gateway-{far}\n    }}\n    children {{\n      tunnel {{\n        \
         local_ts = 10.{own}.0.0/24\n        remote_ts = 10.{far}.0.0/24\n        esp_proposals = {PROPOSAL}\n{id}      \
         }}\n    }}\n  }}\n}}\nsecrets {{\n  ike {{\n    secret = \"measured, not kept\"\n  }}\n}}\n"
    )
}
