//! strongSwan as a peer: its IKEv2 daemon with ESP of its own (`kernel-libipsec`), several side by side.
//!
//! A daemon lives in a gateway's network namespace, with a `/run` of its own and every other file in the
//! testbed's folder; nothing is installed, no service is touched. Two daemons agree on an SA by IKEv2, and what
//! they agreed on is read from the initiator's log at the level that shows keys: so another data plane can
//! take its place.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::thread;

use weir_io::process;

use crate::kernel::End;
use crate::testbed::{Family, Testbed, until};

/// The daemon, as two packages have it.
const CHARONS: [&str; 2] = ["/usr/lib/ipsec/charon", "/usr/sbin/charon-systemd"];

fn charon() -> Option<&'static str> {
    CHARONS.into_iter().find(|path| Path::new(path).exists())
}

/// What strongSwan needs beside a kernel with ESP, and this machine lacks.
pub fn missing_daemon() -> Option<String> {
    if charon().is_none() {
        return Some(format!("{}; install strongswan-charon", CHARONS.join(" or ")));
    }
    if !Path::new("/usr/sbin/swanctl").exists() {
        return Some("the `swanctl` command; install strongswan-swanctl".into());
    }
    None
}

/// How a daemon is set up.
#[derive(Clone, Copy, Debug)]
pub struct Setup<'a> {
    pub proposal: &'a str,
    /// ESP is the kernel's, or what follows the kernel's; else the daemon's own.
    pub kernel: bool,
    /// The family of the gateways' addresses.
    pub outer: Family,
    /// The families of the child `row`.
    pub inner: &'a [Family],
    /// Lines of the daemon's own settings.
    pub daemon: &'a str,
    /// Lines of the connection; FAR is the other gateway's address.
    pub connection: &'a str,
    /// Lines of the child.
    pub child: &'a str,
    /// Children beside that.
    pub more: &'a str,
}

impl<'a> Setup<'a> {
    /// ESP is the kernel's, or what follows the kernel's.
    pub fn of_kernel(proposal: &'a str) -> Setup<'a> {
        Setup {
            proposal,
            kernel: true,
            outer: Family::V4,
            inner: &[Family::V4],
            daemon: "",
            connection: "",
            child: "",
            more: "",
        }
    }
}

/// What strongSwan needs and this machine lacks.
pub fn missing() -> Option<String> {
    let daemon = missing_daemon();
    if daemon.is_some() {
        return daemon;
    }
    if !Path::new("/usr/lib/ipsec/plugins/libstrongswan-kernel-libipsec.so").exists() {
        return Some("strongSwan's kernel-libipsec plugin; install libcharon-extra-plugins".into());
    }
    if !Path::new("/dev/net/tun").exists() {
        return Some("/dev/net/tun: a kernel with TUN".into());
    }
    None
}

/// A running daemon, killed on drop.
pub struct Daemon {
    child: Child,
    folder: PathBuf,
    name: &'static str,
}

/// The SAs two daemons agreed on, seen from the initiator.
#[derive(Debug)]
pub struct Negotiated {
    pub spi_in: u32,
    pub spi_out: u32,
    /// Initiator to responder: key and salt, integrity key.
    pub out: [Vec<u8>; 2],
    pub inward: [Vec<u8>; 2],
}

impl Daemon {
    /// A gateway of the IPv4 row, ready to protect its network with the ESP proposal.
    pub fn start(testbed: &Testbed, end: End, proposal: &str) -> Daemon {
        Daemon::start_as(testbed, end, &Setup { kernel: false, ..Setup::of_kernel(proposal) })
    }

    pub fn start_as(testbed: &Testbed, end: End, setup: &Setup<'_>) -> Daemon {
        let (name, ns) = if end == End::Left { ("left", &testbed.left) } else { ("right", &testbed.right) };
        let daemon_settings = testbed.file(&format!("{name}.conf"), &settings(&testbed.folder, name, setup));
        let connection = testbed.file(&format!("{name}.swanctl"), &connection(end, setup));
        let charon = charon().expect("looked for before");
        // What an earlier one left: it is not this one that listens.
        let _ = std::fs::remove_file(testbed.folder.join(format!("{name}.vici")));
        let mut command = Command::new("ip");
        command.args(["netns", "exec", ns, "sh", "-c"]);
        // Both write their process number to the same place below /run.
        let folder = testbed.folder.display();
        // The testbed may be below /run itself.
        let keep = format!("mount --bind {folder} /mnt");
        let give = format!("mkdir -p {folder} && mount --bind /mnt {folder}");
        command
            .arg(format!("{keep} && mount -t tmpfs tmpfs /run && {give} && exec {charon}"))
            .env("STRONGSWAN_CONF", daemon_settings);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let child = process::dies_with_starter(&mut command).spawn().expect("charon starts");
        let daemon = Daemon { child, folder: testbed.folder.clone(), name };
        until("charon listens", || daemon.socket().exists().then_some(()));
        daemon.told("--load-all", &["--file", &connection.display().to_string()]);
        daemon
    }

    fn socket(&self) -> PathBuf {
        self.folder.join(format!("{}.vici", self.name))
    }

    pub fn log(&self) -> String {
        std::fs::read_to_string(self.folder.join(format!("{}.log", self.name))).unwrap_or_default()
    }

    /// What `swanctl` answers.
    pub fn told(&self, command: &str, more: &[&str]) -> String {
        let output = self.swanctl(command, more);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "swanctl {command}: {stderr}\n{}", self.log());
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    fn swanctl(&self, command: &str, more: &[&str]) -> Output {
        let mut swanctl = Command::new("/usr/sbin/swanctl");
        swanctl.arg(command).arg("--uri").arg(format!("unix://{}", self.socket().display())).args(more);
        swanctl.env("SWANCTL_DIR", &self.folder).output().expect("swanctl starts")
    }

    /// False where the peer did not answer in time; everything else that goes wrong is told.
    fn try_initiate(&self) -> bool {
        let before = self.log().matches("peer not responding").count();
        let output = self.swanctl("--initiate", &["--child", "row"]);
        let unanswered = self.log().matches("peer not responding").count() > before;
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() || unanswered, "swanctl --initiate: {stderr}\n{}", self.log());
        output.status.success()
    }

    /// Has this daemon and the other set up the child of the row. A peer that had no CPU while few and short retransmissions
    /// lasted is asked again.
    pub fn agree(&self) {
        until("the peer agrees", || self.try_initiate().then_some(()));
    }

    /// What both agree on, of the child of the row.
    pub fn initiate(&self) -> Negotiated {
        self.agree();
        let log = self.log();
        let missing = || panic!("the log does not say what was agreed on:\n{log}");
        let spis = log.split("established with SPIs ").nth(1).unwrap_or_else(missing);
        let mut spis = spis.split_whitespace().map(|word| word.split('_').next().unwrap_or_default());
        let mut spi =
            || spis.next().and_then(|s| u32::from_str_radix(s, 16).ok()).unwrap_or_else(|| missing_spi(&log));
        Negotiated {
            spi_in: spi(),
            spi_out: spi(),
            out: ["encryption", "integrity"].map(|k| logged_key(&log, &format!("{k} initiator key"))),
            inward: ["encryption", "integrity"].map(|k| logged_key(&log, &format!("{k} responder key"))),
        }
    }

    /// Ends it at once: it says no goodbye, and its peer keeps the SA.
    pub fn vanish(mut self) {
        self.child.kill().expect("it runs");
        self.child.wait().expect("a child of ours");
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        if thread::panicking() {
            println!("{} said:\n{}", self.name, self.log());
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn missing_spi(log: &str) -> u32 {
    panic!("the log names no SPI:\n{log}")
}

/// The bytes of a dump in the log: `… => 20 bytes @ …`, then lines of at most 16 behind their offset. Empty
/// when there is none.
fn logged_key(log: &str, name: &str) -> Vec<u8> {
    let Some(dump) = log.split(&format!("{name} => ")).nth(1) else { return Vec::new() };
    let len: usize = dump.split_whitespace().next().and_then(|n| n.parse().ok()).expect("a length");
    let mut key = Vec::new();
    for line in dump.lines().skip(1) {
        let Some((_, hex)) = line.split_once(": ") else { break };
        let row = (len - key.len()).min(16);
        key.extend(hex.split(' ').take(row).map(|byte| u8::from_str_radix(byte, 16).expect("hex")));
        if key.len() == len {
            break;
        }
    }
    key
}

/// One setting a line: the parser takes the rest of a line for the value.
fn settings(folder: &Path, name: &str, setup: &Setup<'_>) -> String {
    let folder = folder.display();
    let own = if setup.kernel { "" } else { "kernel-libipsec " };
    let more = setup.daemon;
    // Keys are read from the log of who does ESP by itself.
    let keys = if setup.kernel { 1 } else { 4 };
    format!(
        "charon {{
  load = random nonce openssl kdf {own}kernel-netlink socket-default vici updown
  {more}
  plugins {{
    vici {{
      socket = unix://{folder}/{name}.vici
    }}
  }}
  filelog {{
    log {{
      path = {folder}/{name}.log
      default = 1
      chd = {keys}
      flush_line = yes
    }}
  }}
}}
"
    )
}

fn connection(end: End, setup: &Setup<'_>) -> String {
    let Setup { proposal, outer, inner, child, more, .. } = setup;
    let (local, remote) = if end == End::Left { (1, 2) } else { (2, 1) };
    let ends = [outer.row().left, outer.row().right];
    let (near, far) = (ends[local - 1], ends[remote - 1]);
    let connection = setup.connection.replace("FAR", &far.to_string());
    let nets = |of: usize| inner.iter().map(|f| f.row().nets[of - 1]).collect::<Vec<&str>>().join(",");
    let (local_ts, remote_ts) = (nets(local), nets(remote));
    format!(
        "connections {{
  row {{
    version = 2
    local_addrs = {near}
    remote_addrs = {far}
    proposals = aes128-sha256-curve25519
    {connection}
    local {{
      auth = psk
      id = gateway-{local}
    }}
    remote {{
      auth = psk
      id = gateway-{remote}
    }}
    children {{
      row {{
        local_ts = {local_ts}
        remote_ts = {remote_ts}
        esp_proposals = {proposal}
        {child}
      }}
      {more}
    }}
  }}
}}
secrets {{
  ike {{
    secret = \"known to both, and to nobody else\"
  }}
}}
"
    )
}
