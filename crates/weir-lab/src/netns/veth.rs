//! A wire: one veth pair between two namespaces, set up alike for every SUT.
//!
//! ```text
//! generator ns            device-under-test ns           receiver ns
//!    gen ═══════════════ din               dout ═══════════════ rcv
//! ```
//!
//! Settings, and why:
//! - one queue each way, unless the experiment says how many: a queue's receive side is one NAPI context,
//!   on one CPU we choose;
//! - GRO on, so that the receive side is NAPI for every SUT (without it a veth delivers on the
//!   *sender's* CPU, and forwarding would be charged to the generator); UDP is not merged by it;
//! - NAPI threaded and pinned: reception runs where placement says, not where the sender happens to be;
//! - transmit checksums, TSO and GSO off: frames are finished, as on a physical wire; or on
//!   ([`lay_with_offloads`]), as they are for a host whose card does the work.

use std::{fmt, fs, io};

use weir_core::wire::DisplayMac;
use weir_io::interface::{HeldInterrupts, MODERATED};
use weir_io::offload::{self, Offload};
use weir_io::process;

use super::namespace::Namespace;
use crate::model::LabError;

/// One end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Port {
    /// Unique on the machine (thread names carry it).
    pub name: String,
    pub mac: [u8; 6],
    /// Each way.
    pub queues: u32,
}

impl Port {
    /// Two ends of a wire of this lab: `role` and `peer` of at most four letters.
    pub fn named(role: &str, mac_last: u8) -> Port {
        Port {
            name: format!("{role}-{}", super::residue::tag()),
            mac: [0x02, 0x77, 0x65, 0x69, 0x72, mac_last],
            queues: 1,
        }
    }

    pub fn queues(self, queues: u32) -> Port {
        Port { queues: queues.max(1), ..self }
    }

    pub fn mac_text(&self) -> String {
        DisplayMac(self.mac).to_string()
    }
}

/// Lays a wire from `near` to `far`, of as many queues as `near` has, and brings both ends up.
pub fn lay(near: (&Namespace, &Port), far: (&Namespace, &Port)) -> Result<(), LabError> {
    join(near, far, &[Offload::TxChecksum, Offload::Tso, Offload::Gso])
}

/// The same, and senders leave to the wire what cards do for them: checksums and the cutting of TCP.
pub fn lay_with_offloads(near: (&Namespace, &Port), far: (&Namespace, &Port)) -> Result<(), LabError> {
    join(near, far, &[])
}

fn join(
    near: (&Namespace, &Port),
    far: (&Namespace, &Port),
    off: &'static [Offload],
) -> Result<(), LabError> {
    let queues = format!("numtxqueues {0} numrxqueues {0}", near.1.queues);
    near.0.ip(&format!(
        "link add {} address {} {queues} type veth peer name {} address {} {queues} netns {}",
        near.1.name,
        near.1.mac_text(),
        far.1.name,
        far.1.mac_text(),
        far.0.path()
    ))?;
    for (namespace, port) in [near, far] {
        let name = port.name.clone();
        namespace
            .run(move || finish(&name, off))?
            .map_err(|e| LabError::new(format!("{}: {e}", port.name)))?;
    }
    // Both finished before either is up: a veth decides then whether its other end takes XDP frames.
    for (namespace, port) in [near, far] {
        namespace.ip(&format!("link set {} up", port.name))?;
    }
    Ok(())
}

fn finish(name: &str, off: &[Offload]) -> Result<(), NotSwitched> {
    for &what in off {
        offload::set(name, what, false).map_err(|error| NotSwitched {
            what: what.name(),
            to: "off",
            error,
        })?;
    }
    offload::set(name, Offload::Gro, true).map_err(|error| NotSwitched { what: "gro", to: "on", error })
}

/// An offload that a wire needs otherwise.
struct NotSwitched {
    what: &'static str,
    to: &'static str,
    error: io::Error,
}

impl fmt::Display for NotSwitched {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} cannot be switched {}: {}", self.what, self.to, self.error)
    }
}

/// Lets the receive side of a port run in threads on `cpus`, a queue each in turn, before ordinary threads when
/// `first`.
///
/// The threads are as nice as the lab: `nice -n -20 weir-lab` holds other work of the machine off the
/// kernel's forwarding just as off a daemon started by the lab.
///
/// Returns what could not be had, for the notes: a kernel without threaded NAPI measures on.
pub fn place(
    namespace: &Namespace,
    port: &Port,
    cpus: &[u32],
    first: bool,
) -> Result<Option<String>, LabError> {
    let (name, own) = (port.name.clone(), cpus.to_vec());
    let placed = namespace.run(move || {
        fs::write(format!("/sys/class/net/{name}/threaded"), "1").map_err(|e| e.to_string())?;
        let threads = napi_threads(&name);
        if threads.is_empty() {
            return Err("no NAPI thread appeared".to_string());
        }
        for (thread, cpu) in threads.into_iter().zip(own.into_iter().cycle()) {
            process::pin(thread, cpu).map_err(|e| format!("cpu {cpu}: {e}"))?;
            process::as_nice_as_we_are(thread).map_err(|e| format!("niceness: {e}"))?;
            if first {
                process::run_first(thread, 1).map_err(|e| format!("priority: {e}"))?;
            }
        }
        Ok(())
    })?;
    Ok(placed.err().map(|e| format!("{}: reception is not pinned to cpu {cpus:?} ({e})", port.name)))
}

/// Holds the receive interrupts of a port back, as weir's moderation does, but all the time.
pub fn hold(namespace: &Namespace, port: &Port) -> Result<HeldInterrupts, LabError> {
    let name = port.name.clone();
    let held = namespace.run(move || HeldInterrupts::hold(&name, MODERATED))?;
    held.map_err(|e| LabError::new(format!("{}: its interrupts cannot be held back: {e}", port.name)))
}

/// Kernel threads that poll the device, in the order of its queues: their names are `napi/<device>-<id>`.
fn napi_threads(device: &str) -> Vec<u32> {
    let prefix = format!("napi/{device}-");
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    let mut threads: Vec<(u32, u32)> = entries
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter_map(|thread: u32| {
            let comm = fs::read_to_string(format!("/proc/{thread}/comm")).ok()?;
            // A long device name leaves no room for all of the number; what is left still tells them apart.
            Some((comm.trim_end().strip_prefix(&prefix)?.parse().unwrap_or(0), thread))
        })
        .collect();
    threads.sort_unstable();
    threads.into_iter().map(|(_, thread)| thread).collect()
}
