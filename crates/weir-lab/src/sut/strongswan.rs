//! Two strongSwan daemons with ESP of their own (`kernel-libipsec`: in user space, over TUN), keyed by IKEv2.
//!
//! A daemon lives in its gateway's namespace with a `/run` of its own and every other file in a folder of
//! this lab's: nothing is installed, no service is touched. Refuses: machines without TUN or the plugin.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use weir_io::process;

use super::gateway::kernel_addresses;
use super::gateway::{Gateway, Pair, Side};
use crate::model::LabError;
use crate::netns::residue::Folder;

const CHARON: &str = "/usr/lib/ipsec/charon";
const PLUGIN: &str = "/usr/lib/ipsec/plugins/libstrongswan-kernel-libipsec.so";
const SWANCTL: &str = "/usr/sbin/swanctl";
const READY_WITHIN: Duration = Duration::from_secs(20);
const LOOK: Duration = Duration::from_millis(20);
/// The cipher of both gateways' ESP.
const PROPOSAL: &str = "aes128gcm16-curve25519";

/// What it needs and this machine lacks, with the remedy.
pub fn missing() -> Option<String> {
    [
        (CHARON, "install strongswan-charon"),
        (PLUGIN, "install libcharon-extra-plugins"),
        (SWANCTL, "install strongswan-swanctl"),
        ("/dev/net/tun", "use a kernel with TUN"),
        ("/usr/bin/taskset", "install util-linux"),
    ]
    .into_iter()
    .find(|(path, _)| !Path::new(path).exists())
    .map(|(path, remedy)| format!("strongswan: {path} is not there: {remedy}"))
}

pub struct Strongswan {
    child: Child,
    socket: PathBuf,
    log: PathBuf,
    note: String,
    // Dropped last: the daemon's files are in it.
    _folder: Folder,
}

pub fn start(pair: Pair<'_>) -> Result<Vec<Box<dyn Gateway>>, LabError> {
    let [left, right] = pair.0;
    let right = Strongswan::start(right)?;
    let left = Strongswan::start(left)?;
    left.told(&["--initiate", "--child", "tunnel"])?;
    Ok(vec![Box::new(left), Box::new(right)])
}

impl Strongswan {
    fn start(side: &Side<'_>) -> Result<Strongswan, LabError> {
        kernel_addresses(side.namespace, side.inner, side.outer, side.number())?;
        let folder = Folder::new()?;
        let (socket, log) = (folder.path().join("charon.vici"), folder.path().join("charon.log"));
        let (conf, connection) = (folder.path().join("strongswan.conf"), folder.path().join("swanctl.conf"));
        let failed = |what: &str, e: std::io::Error| LabError::new(format!("strongswan: {what}: {e}"));
        fs::write(&conf, settings(&socket, &log)).map_err(|e| failed("settings", e))?;
        fs::write(&connection, connections(side)).map_err(|e| failed("connections", e))?;
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
                process::dies_with_starter(&mut command).spawn()
            })?
            .map_err(|e| failed("cannot be started", e))?;
        folder.record_sut(child.id())?;
        let note = format!("strongswan: kernel-libipsec, IKEv2, ESP {PROPOSAL}");
        let mut daemon = Strongswan { child, socket, log, note, _folder: folder };
        daemon.wait_until_ready()?;
        daemon.told(&["--load-all", "--file", &connection.display().to_string()])?;
        Ok(daemon)
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
        vec![self.note.clone()]
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

/// One setting a line: the parser takes the rest of a line for the value.
fn settings(socket: &Path, log: &Path) -> String {
    let (socket, log) = (socket.display(), log.display());
    format!(
        "charon {{\n  load = random nonce openssl kdf kernel-libipsec kernel-netlink socket-default vici updown\n  \
         plugins {{\n    vici {{\n      socket = unix://{socket}\n    }}\n  }}\n  filelog {{\n    log {{\n      \
         path = {log}\n      default = 1\n      flush_line = yes\n    }}\n  }}\n}}\n"
    )
}

fn connections(side: &Side<'_>) -> String {
    let (own, far) = (side.number(), side.other());
    format!(
        "connections {{\n  lab {{\n    version = 2\n    local_addrs = 192.0.2.{own}\n    remote_addrs = 192.0.2.{far}\n    \
         proposals = aes128-sha256-curve25519\n    local {{\n      auth = psk\n      id = gateway-{own}\n    }}\n    \
         remote {{\n      auth = psk\n      id = gateway-{far}\n    }}\n    children {{\n      tunnel {{\n        \
         local_ts = 10.{own}.0.0/24\n        remote_ts = 10.{far}.0.0/24\n        esp_proposals = {PROPOSAL}\n      \
         }}\n    }}\n  }}\n}}\nsecrets {{\n  ike {{\n    secret = \"measured, not kept\"\n  }}\n}}\n"
    )
}
