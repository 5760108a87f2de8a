//! Linux's own forwarding with an SPD of its own: XFRM policies, asked about every packet it forwards.
//!
//! The SUT `kernel` with outbound policies whose action is to allow: nothing is sealed, so any kernel with XFRM will do. The
//! kernel keeps policies that name whole addresses in trees, others in one list that it scans; it remembers no
//! answers. Promises: what a policy stopped is in the ledger by the kernel's own counter. Refuses: a kernel that has XFRM
//! policies already, which packets would ask too.

pub mod gateway;

use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;

use super::kernel::Kernel;
use super::{Environment, Running, policies};
use crate::model::spd::LookupBy;
use crate::model::{Configuration, Family, LabError};
use crate::netns::counters::Counters;
use crate::netns::namespace::Namespace;
use crate::workload::address;

/// There wherever the kernel has XFRM.
const SETTING: &str = "/proc/sys/net/core/xfrm_larval_drop";

pub struct KernelXfrm {
    kernel: Kernel,
    note: String,
}

pub fn missing(c: &Configuration) -> Option<String> {
    refused(c).or_else(no_xfrm)
}

/// Why this kernel cannot be asked, with the remedy.
fn no_xfrm() -> Option<String> {
    (!Path::new(SETTING).exists())
        .then(|| "kernel-xfrm: this kernel has no XFRM: use one with CONFIG_XFRM_USER".into())
}

/// Why no kernel can be asked as a configuration says, with the remedy.
pub fn refused(c: &Configuration) -> Option<String> {
    if let Some(refused) = policies::refused(c) {
        return Some(refused);
    }
    if c.ipsec().is_some_and(|p| matches!(p.spd.lookup, LookupBy::Classifier | LookupBy::Cache)) {
        return Some("kernel-xfrm: it remembers no answers and chooses its tables by the policies: remove `lookup`, or \
                     use \"linear\" (policies of ports, which it keeps in one list)".into());
    }
    None
}

impl KernelXfrm {
    pub fn start(environment: &Environment) -> Result<KernelXfrm, LabError> {
        if let Some(lacks) = no_xfrm() {
            return Err(LabError::new(lacks));
        }
        match own_policies(environment.namespace)? {
            0 => {}
            found => {
                return Err(LabError::new(format!(
                    "kernel-xfrm: got {found} XFRM policies that are there already, expected none, since packets would \
                     ask them too: remove them (`ip xfrm policy`), or use another host"
                )));
            }
        }
        let kernel = Kernel::start(environment)?;
        environment.namespace.ip_batch(lines(environment.configuration))?;
        let said = policies::note(environment.configuration).unwrap_or("no policies".into());
        Ok(KernelXfrm { kernel, note: format!("kernel-xfrm: outbound XFRM policies: {said}") })
    }
}

/// The number of policies that are there already, those of single sockets aside.
fn own_policies(namespace: &Namespace) -> Result<usize, LabError> {
    let listed = namespace.run(|| Command::new("ip").args(["xfrm", "policy"]).output())?;
    let failed =
        |said: String| LabError::new(format!("`ip xfrm policy`: {said}; install the package iproute2"));
    let listed = listed.map_err(|e| failed(e.to_string()))?;
    if !listed.status.success() {
        return Err(failed(String::from_utf8_lossy(&listed.stderr).trim().into()));
    }
    let text = String::from_utf8_lossy(&listed.stdout);
    Ok(text.lines().filter(|line| line.trim_start().starts_with("dir ")).count())
}

/// Policies in the order of their priority, for `ip -batch`.
fn lines(c: &Configuration) -> String {
    let Some(p) = c.ipsec() else { return String::new() };
    let (any, bits) = match c.workload.family {
        Family::Inet => ("0.0.0.0/0", 32),
        Family::Inet6 => ("::/0", 128),
    };
    let mut text = String::new();
    for n in 1..=p.policies {
        let selector = if policies::matching(&p) == Some(n) {
            format!("dst {any}")
        } else if policies::are_of_ports(&p) {
            format!("dst {any} proto udp dport {n}")
        } else {
            format!("dst {}/{bits}", address::nobody(c.workload.family, n))
        };
        let _ = writeln!(text, "xfrm policy add src {any} {selector} dir out priority {n} action allow");
    }
    text
}

impl Running for KernelXfrm {
    fn drops(&mut self, namespace: &Namespace) -> Result<Counters, LabError> {
        let mut all = self.kernel.drops(namespace)?;
        // a kernel without these counters has no file
        let said = namespace.read("/proc/thread-self/net/xfrm_stat").unwrap_or_default();
        let counted = said.lines().filter_map(|line| {
            let (name, value) = line.split_once(char::is_whitespace)?;
            Some((format!("kernel.{name}"), value.trim().parse().ok()?))
        });
        all.extend(counted);
        Ok(all)
    }

    fn notes(&self) -> Vec<String> {
        let mut notes = self.kernel.notes();
        notes.push(self.note.clone());
        notes
    }
}
