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
//! Why: where policies say what must not leave in clear, the kernel must not forward what weir did not take:
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

use super::LocalAddresses;
use super::program::{KERNEL, KERNEL_BUT_ESP, lookup, wire16};
use crate::bpf::asm::{Alu, Asm, AsmError, Cond, Helper, Label, Program, Reg::*, Size};
use crate::bpf::attach::AttachError;
use crate::bpf::object::{LoadedProgram, Map, MapKind, counters_of};
use crate::bpf::tc;
use crate::steer::SteerError;

/// The program's name in the kernel.
pub const PROGRAM_NAME: &str = "weir_enforce";
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
    program: LoadedProgram,
    id: u32,
    counters: Map,
    inherited: EnforceCounters,
}

impl Enforcement {
    /// Attaches the program, in place of a predecessor's. From now on transit of the interface reaches the
    /// router or nobody.
    pub fn attach(interface: &str, ifindex: u32, local: &LocalAddresses) -> Result<Enforcement, SteerError> {
        let failed = |error| AttachError::Filter { interface: interface.into(), error };
        let counters = Map::new(COUNTERS_NAME, MapKind::PerCpuArray, 4, 8, 2)?;
        let listing =
            assemble(&counters, &local.v4, &local.v6).map_err(|error| SteerError::Bpf(error.into()))?;
        let program = LoadedProgram::load_classifier(PROGRAM_NAME, &listing)?;
        let id = program.id().map_err(failed)?;
        // What is dropped between these two lines is counted by nobody; that it is dropped matters more.
        // Who may attach a program may not always read another's counters; then they start anew.
        let inherited = counted(ifindex).unwrap_or_default().unwrap_or_default();
        tc::attach(ifindex, &program).map_err(failed)?;
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
        Ok(tc::attach(self.ifindex, &self.program).map_err(failed)?)
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
    let Some(counters) = counters_of(id, COUNTERS_NAME)? else { return Ok(None) };
    read(&counters).map(Some).map_err(io::Error::other)
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

fn read(counters: &Map) -> Result<EnforceCounters, SteerError> {
    let one = |key: i32| counters.sum(key as u32).map(|words| words.first().copied().unwrap_or(0));
    Ok(EnforceCounters { transit: one(TRANSIT)?, opaque: one(OPAQUE)? })
}

/// Keys of the counters.
const TRANSIT: i32 = 0;
const OPAQUE: i32 = 1;

/// Offsets in `struct __sk_buff`.
const SKB_PACKET_TYPE: i16 = 4;
const SKB_PROTOCOL: i16 = 16;
/// `PACKET_HOST`: for our MAC address. The kernel forwards nothing else (`ip_forward`, `ip6_forward`).
const TO_US: i32 = 0;
/// Let other filters have their say.
const TC_ACT_UNSPEC: i32 = -1;
const TC_ACT_SHOT: i32 = 2;
/// Offsets count from the network header.
const FROM_NETWORK: i32 = 1;
const ADDRESS: i16 = -16;
const COUNTER_KEY: i16 = -20;

/// `R6` context. Addresses are copied to the stack: the frame may not be linear.
fn assemble(counters: &Map, local4: &Map, local6: &Map) -> Result<Program, AsmError> {
    let mut a = Asm::new();
    let (pass, is_v6) = (a.label("pass"), a.label("is_v6"));
    let (transit, opaque, drop) = (a.label("transit"), a.label("opaque"), a.label("drop"));
    a.mov(R6, R1);
    a.load(Size::U32, R3, R6, SKB_PACKET_TYPE);
    a.jump_if(Cond::NotEqual, R3, TO_US, pass);
    a.load(Size::U32, R3, R6, SKB_PROTOCOL);
    a.jump_if(Cond::Equal, R3, wire16(0x86dd), is_v6);
    a.note("a VLAN tag behind the first, which the kernel has taken off; MPLS");
    for hidden in [0x8100, 0x88a8, 0x8847, 0x8848] {
        a.jump_if(Cond::Equal, R3, wire16(hidden), opaque);
    }
    a.jump_if(Cond::NotEqual, R3, wire16(0x0800), pass);
    destination(&mut a, 16, 4, transit);
    a.load(Size::U8, R3, R10, ADDRESS);
    a.alu(Alu::And, R3, 0xf0);
    a.note("224.0.0.0/4, 255.255.255.255");
    a.jump_if(Cond::Equal, R3, 0xe0, pass);
    a.load(Size::U32, R3, R10, ADDRESS);
    a.mov64(R4, u64::from(u32::MAX));
    a.jump_if(Cond::Equal, R3, R4, pass);
    owned_by_kernel(&mut a, local4, pass);
    a.jump(transit);
    a.bind(is_v6);
    destination(&mut a, 24, 16, transit);
    a.load(Size::U8, R3, R10, ADDRESS);
    a.jump_if(Cond::Equal, R3, 0xff, pass);
    owned_by_kernel(&mut a, local6, pass);
    a.bind(transit);
    a.store(Size::U32, R10, COUNTER_KEY, TRANSIT);
    a.jump(drop);
    a.bind(opaque);
    a.store(Size::U32, R10, COUNTER_KEY, OPAQUE);
    a.bind(drop);
    count(&mut a, counters);
    a.mov(R0, TC_ACT_SHOT);
    a.exit();
    a.bind(pass);
    a.mov(R0, TC_ACT_UNSPEC);
    a.exit();
    a.finish()
}

/// Copies the destination address of `bytes` bytes to the stack; a header without one is transit.
fn destination(a: &mut Asm, at: i32, bytes: i32, transit: Label) {
    a.mov(R1, R6);
    a.mov(R2, at);
    a.mov(R3, R10);
    a.add(R3, i32::from(ADDRESS));
    a.mov(R4, bytes);
    a.mov(R5, FROM_NETWORK);
    a.call(Helper::SkbLoadBytesRelative);
    a.jump_if(Cond::NotEqual, R0, 0, transit);
}

fn owned_by_kernel(a: &mut Asm, local: &Map, pass: Label) {
    lookup(a, local, i32::from(ADDRESS));
    a.jump_if(Cond::Equal, R0, KERNEL, pass);
    a.jump_if(Cond::Equal, R0, KERNEL_BUT_ESP, pass);
}

fn count(a: &mut Asm, counters: &Map) {
    let uncounted = a.label("uncounted");
    a.map(R1, counters);
    a.mov(R2, R10);
    a.add(R2, i32::from(COUNTER_KEY));
    a.call(Helper::MapLookup);
    a.jump_if(Cond::Equal, R0, 0, uncounted);
    a.load(Size::U64, R1, R0, 0);
    a.add(R1, 1);
    a.store(Size::U64, R0, 0, R1);
    a.bind(uncounted);
}
