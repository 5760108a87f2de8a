//! A policy enforcement point: the program that keeps transit of a port from the kernel's stack.
//!
//! ```text
//! frame ─► XDP ─┬─ socket of a worker ─► router, policies
//!               └─ passed: local; no socket; no program ─┐
//! packet sockets ◄───────────────────────────────────────┴─► here ─┬─ broadcast, multicast, not IP ─► kernel
//!                                                                  ├─ to an address of the kernel ──► kernel
//!                                                                  └─ anything else ───────► dropped, counted
//! ```
//!
//! The program is `bpf/enforce.c` of `weir-xdp`.
//!
//! Why: where policies say what must not leave as cleartext, the kernel must not forward what weir did not take:
//! before its sockets are open, on a queue without one, when the steering program was taken off, and after
//! the process has ended. Behind packet sockets it also keeps the kernel from forwarding what an `af_packet`
//! port forwards, whatever `forwarding` says.
//!
//! Promises: stays when the process ends, however it ends ([`crate::bpf::tc`]); a successor takes its place in
//! one step and goes on counting; [`release`] takes it off. It is no BPF link pinned in a bpffs: a pin is gone
//! with the mount namespace, which `ip netns exec` and service managers end with the process. Without the
//! process it goes by the addresses it was told last: one that comes later is transit to it, one that went is local.
//!
//! Refuses: a second VLAN tag and MPLS, behind which nothing is looked at: dropped, and counted apart. Leaves to
//! the kernel what is tunnelled to it (GRE, PPP, a kernel's own ESP): that comes out of another interface.

use std::io;

use weir_xdp::layout::{ENFORCE_OPAQUE, ENFORCE_TRANSIT};
use weir_xdp::{Counters, ENFORCE, LoadError, Loaded, Settings};

use super::LocalAddresses;
use crate::bpf::attach::AttachError;
use crate::bpf::tc;
use crate::steer::SteerError;

/// The program's counters in the kernel.
const COUNTERS_NAME: &str = "weir_enforced";

/// What an enforcement point did, since the first of its programs was attached to the interface.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EnforceCounters {
    /// Dropped: IP packets that are not for this host.
    pub transit: u64,
    /// Dropped: more than one VLAN tag, or MPLS.
    pub opaque: u64,
}

/// The program on one interface. Dropping this leaves it there.
#[derive(Debug)]
pub struct Enforcement {
    interface: String,
    ifindex: u32,
    program: Loaded,
    id: u32,
    counters: Counters<1>,
    inherited: EnforceCounters,
}

impl Enforcement {
    /// Attaches the program, in place of a predecessor's. From now on transit of the interface reaches the
    /// router or nobody.
    pub fn attach(interface: &str, ifindex: u32, local: &LocalAddresses) -> Result<Enforcement, SteerError> {
        let failed = |error| AttachError::Filter { interface: interface.into(), error };
        let mut program = load(local)?;
        let counters = program.maps.counters(COUNTERS_NAME)?;
        let id = program.id()?;
        // What is dropped between these two lines is counted by nobody; that it is dropped matters more.
        // Who may attach a program may not always read another's counters; then they start anew.
        let inherited = counted(ifindex).unwrap_or_default().unwrap_or_default();
        tc::attach(ifindex, program.name(), program.fd()?).map_err(failed)?;
        Ok(Enforcement { interface: interface.into(), ifindex, program, id, counters, inherited })
    }

    pub fn interface(&self) -> &str {
        &self.interface
    }

    pub fn ifindex(&self) -> u32 {
        self.ifindex
    }

    /// Whether the program is still there: anybody with privilege can take it off.
    pub fn is_there(&self) -> io::Result<bool> {
        Ok(tc::attached(self.ifindex)? == Some(self.id))
    }

    /// Attaches it again, in place of whatever took its place.
    pub fn attach_again(&self) -> Result<(), SteerError> {
        let failed = |error| AttachError::Filter { interface: self.interface.clone(), error };
        Ok(tc::attach(self.ifindex, self.program.name(), self.program.fd()?).map_err(failed)?)
    }

    pub fn counters(&self) -> Result<EnforceCounters, SteerError> {
        let own = read(&self.counters)?;
        Ok(EnforceCounters {
            transit: own.transit + self.inherited.transit,
            opaque: own.opaque + self.inherited.opaque,
        })
    }
}

/// What the enforcement point of an interface has counted, with or without a daemon; `None` where there is
/// none.
pub fn counted(ifindex: u32) -> io::Result<Option<EnforceCounters>> {
    let Some(id) = tc::attached(ifindex)? else { return Ok(None) };
    let counters = Counters::of_program(id, COUNTERS_NAME).map_err(LoadError::into_io)?;
    counters.map(|counters| read(&counters)).transpose().map_err(LoadError::into_io)
}

/// Takes the enforcement point off an interface: from now on the kernel gets its transit. False when there
/// was none.
pub fn release(ifindex: u32) -> io::Result<bool> {
    tc::detach(ifindex)
}

/// Whether an interface has one.
pub fn is_enforced(ifindex: u32) -> io::Result<bool> {
    Ok(tc::attached(ifindex)?.is_some())
}

fn read(counters: &Counters<1>) -> Result<EnforceCounters, LoadError> {
    let [transit] = counters.sum(ENFORCE_TRANSIT)?;
    let [opaque] = counters.sum(ENFORCE_OPAQUE)?;
    Ok(EnforceCounters { transit, opaque })
}

pub(super) fn load(local: &LocalAddresses) -> Result<Loaded, LoadError> {
    let shared = [local.v4.shared()?, local.v6.shared()?];
    ENFORCE.load(Settings { shared: &shared, ..Settings::default() })
}
