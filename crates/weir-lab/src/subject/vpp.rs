//! FD.io's VPP on the wires of a namespace, by its AF_PACKET host interfaces, one core, no workers, no huge pages.
//!
//! It is used where it is installed, and written from its documentation (releases 22.06 to 25.10): the lab's own tests
//! have its settings and its absence, not its packets. Its drops are what `show errors` says with severity `error`.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use weir_core::wire::DisplayMac;

use super::peer::{self, Place, Started};
use super::{Running, Site};
use crate::bed::netns::counters::Counters;
use crate::bed::netns::namespace::Namespace;
use crate::model::{Family, LabError};
use crate::workload::address;

const MISSING: &str =
    "vpp: no such program (vpp and vppctl) in ~/.cache/weir/peers/bin or on the PATH: install VPP";
const READY_WITHIN: Duration = Duration::from_secs(60);

pub fn missing() -> Option<String> {
    (peer::find("vpp").is_none() || peer::find("vppctl").is_none()).then(|| MISSING.into())
}

pub struct Vpp {
    started: Started,
    ctl: PathBuf,
    socket: PathBuf,
    notes: Vec<String>,
}

impl Vpp {
    pub fn start(site: &Site<'_>) -> Result<Vpp, LabError> {
        let (Some(program), Some(ctl)) = (peer::find("vpp"), peer::find("vppctl")) else {
            return Err(LabError(MISSING.into()));
        };
        let commands = commands(site);
        let mut settings = String::new();
        let place = Place { namespace: Some(site.namespace), cpus: site.cpus };
        let started = Started::launch("vpp", place, |folder| {
            settings = startup(folder, site.cpus[0]);
            let file = folder.join("startup.conf");
            fs::write(&file, &settings)?;
            fs::write(folder.join("commands"), &commands)?;
            let mut command = Command::new(program);
            command.arg("-c").arg(file);
            Ok(command)
        })?;
        let folder = started.folder.path().to_path_buf();
        let mut vpp = Vpp { started, ctl, socket: folder.join("cli.sock"), notes: Vec::new() };
        let socket = vpp.socket.clone();
        vpp.started.wait(READY_WITHIN, |_| Ok(socket.exists()))?;
        let said = vpp.told(&["exec", &folder.join("commands").display().to_string()])?;
        if said.contains("unknown") || said.contains("error") {
            return Err(LabError(format!("vpp: refuses its configuration: {}", said.trim())));
        }
        let version = vpp.told(&["show", "version"])?;
        let steady = settings.replace(&folder.display().to_string(), "<folder>");
        let shown = steady.split_whitespace().collect::<Vec<_>>().join(" ");
        vpp.notes = vec![
            format!("vpp: {}: startup.conf: {shown}", version.trim()),
            "vpp: host interfaces (AF_PACKET), which copy every packet in the kernel; its main thread forwards"
                .into(),
        ];
        Ok(vpp)
    }

    fn told(&mut self, words: &[&str]) -> Result<String, LabError> {
        let output = Command::new(&self.ctl).arg("-s").arg(&self.socket).args(words).output();
        let output = output.map_err(|e| LabError(format!("vpp: vppctl cannot be started: {e}")))?;
        if output.status.success() {
            return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
        }
        let said = String::from_utf8_lossy(&output.stderr).trim().to_string();
        let refused = || LabError(format!("vpp: vppctl {}: {said}", words.join(" ")));
        Err(self.started.ended().unwrap_or_else(refused))
    }
}

/// Everything it makes is in the lab's folder; its memory has no huge pages.
fn startup(folder: &Path, cpu: u32) -> String {
    let at = |name: &str| folder.join(name).display().to_string();
    format!(
        "unix {{\n  nodaemon\n  runtime-dir {}\n  cli-listen {}\n  log {}\n}}\n\
         api-segment {{\n  prefix {}\n}}\nsocksvr {{\n  socket-name {}\n}}\nstatseg {{\n  socket-name {}\n}}\n\
         cpu {{\n  main-core {cpu}\n}}\nbuffers {{\n  page-size default\n  buffers-per-numa 16384\n}}\n\
         plugins {{\n  plugin dpdk_plugin.so {{ disable }}\n}}\n",
        folder.display(),
        at("cli.sock"),
        at("vpp.log"),
        folder.file_name().map_or("lab".into(), |name| name.to_string_lossy().into_owned()),
        at("api.sock"),
        at("stats.sock"),
    )
}

/// Interfaces, addresses, neighbours and routes, as its command line takes them.
fn commands(site: &Site<'_>) -> String {
    let mut text = String::new();
    let (v4, v6) = ((address::IN_V4, address::OUT_V4), (address::IN_V6, address::OUT_V6));
    for (port, a4, a6) in [(site.input, v4.0, v6.0), (site.output, v4.1, v6.1)] {
        let (name, mac) = (&port.name, port.mac_text());
        let _ = writeln!(text, "create host-interface name {name} hw-addr {mac}");
        let _ = writeln!(text, "set interface state host-{name} up");
        let _ = writeln!(text, "set interface ip address host-{name} {}/{}", a4.0, a4.1);
        let _ = writeln!(text, "set interface ip address host-{name} {}/{}", a6.0, a6.1);
    }
    let out = format!("host-{}", site.output.name);
    let mac = DisplayMac(site.gateway_mac);
    for family in [Family::Inet, Family::Inet6] {
        for n in 0..address::GATEWAYS {
            let _ = writeln!(text, "set ip neighbor {out} {} {mac} static", address::gateway(family, n));
        }
    }
    let family = site.configuration.workload.family;
    for n in 0..site.configuration.routes {
        let ((network, len), gateway) = (address::prefix(family, n), address::gateway(family, n));
        let _ = writeln!(text, "ip route add {network}/{len} via {gateway} {out}");
    }
    text
}

impl Running for Vpp {
    fn drops(&mut self, _: &Namespace) -> Result<Counters, LabError> {
        Ok(errors(&self.told(&["show", "errors"])?))
    }

    fn notes(&self) -> Vec<String> {
        self.notes.clone()
    }

    fn ended(&mut self) -> Option<LabError> {
        self.started.ended()
    }
}

/// Lines of a count, a node, a reason and, in newer releases, a severity; columns are two spaces apart or more.
fn errors(said: &str) -> Counters {
    let mut found = Counters::new();
    for line in said.lines() {
        let columns: Vec<&str> = line.split("  ").map(str::trim).filter(|c| !c.is_empty()).collect();
        let (count, node, reason) = match columns[..] {
            [count, node, reason] | [count, node, reason, "error"] => (count, node, reason),
            _ => continue,
        };
        if let Ok(count) = count.parse::<u64>() {
            *found.entry(format!("vpp.{node}.{}", reason.replace(' ', "_"))).or_default() += count;
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_are_drops_and_information_is_not() {
        let said = "   Count                  Node                              Reason               Severity \n         \
            6                ip4-input              ip4 ttl <= 1            error   \n        \
            41                 arp-reply             ARP replies sent          info    \n         \
            3              host-dout-tx             tx ring full\n";
        let expected = [("vpp.host-dout-tx.tx_ring_full", 3), ("vpp.ip4-input.ip4_ttl_<=_1", 6)];
        assert_eq!(errors(said), expected.into_iter().map(|(k, n)| (k.to_string(), n)).collect());
    }

    #[test]
    fn all_that_it_makes_is_in_the_labs_folder() {
        let settings = startup(Path::new("/tmp/weir-lab-7-8-9"), 3);
        for what in
            ["runtime-dir /tmp/weir-lab-7-8-9\n", "main-core 3", "prefix weir-lab-7-8-9\n", "nodaemon"]
        {
            assert!(settings.contains(what), "{what}: {settings}");
        }
        let (opened, closed) = (settings.matches('{').count(), settings.matches('}').count());
        assert_eq!(opened, closed, "{settings}");
        let paths: Vec<&str> = settings.split_whitespace().filter(|w| w.starts_with('/')).collect();
        assert!(paths.len() == 5 && paths.iter().all(|p| p.starts_with("/tmp/weir-lab-7-8-9")), "{paths:?}");
    }
}
