//! Steering: the XDP program that shares an interface between this router and the kernel.
//!
//! ```text
//! frame ─┬─ too short, not IP ─────────────────────────────► kernel
//!        ├─ ARP ──── for an address of weir ───────────────► weir     else ► kernel
//!        ├─ multicast, broadcast ── NS for one of weir's ──► weir     else ► kernel
//!        ├─ a pair of addresses the router decided on ─────► out  (if `express` is given)
//!        ├─ to an address the kernel owns ── ESP for us ───► weir     else ► kernel
//!        └─ anything else (transit, weir's own) ───────────► xsks[rx queue], without one ► kernel
//! ```
//!
//! Promises: what is local stays local: ping, routing daemons, IKE and SSH to the kernel's own
//! addresses work as without us; addresses can be changed while traffic flows; every frame is
//! counted under one [`Cause`]. Where policies apply, what goes to the kernel meets [`enforce`] there. ESP to an address of the kernel that is the end of an SA of ours is the
//! exception ([`LocalAddresses::set_esp`]): protocol 50, fragments too, and UDP to a port ESP comes in on
//! unless it begins with IKE's marker of four zeros (RFC 3948 2.2). One 802.1Q tag is looked through. Refuses: a second tag (it is not
//! IP to this program, the kernel gets it), other decisions by port, ESP behind IPv6 extension headers other
//! than a fragment's, and fragments of ESP in UDP: only the first of those has a port.
//!
//! Where an interface strips VLAN tags in hardware (`rx-vlan-offload`), or a veth peer keeps them
//! beside the frame (`tx-vlan-offload`), XDP does not see the tag: switch that off on such ports.
//! The same holds for checksums a veth peer leaves unfinished (see [`crate::af_xdp`]).

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::net::IpAddr;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::Arc;

use weir_core::packet::DeviceId;
use weir_core::tables::Owner;

use crate::bpf::attach::{AttachError, Attachment, XdpMode};
use crate::bpf::object::{BpfError, LoadedProgram, Map, MapKind};

pub mod enforce;
#[cfg(test)]
mod equal;
pub mod express;
mod express_program;
mod program;

use express::{Express, Progress};
use express_program::Lane;

/// The program's name in the kernel, by which a successor recognises a leftover.
pub const PROGRAM_NAME: &str = "weir_steer";

/// Local addresses of one family: 4,096 × (16 + 4 + ~48 B of hash element) ≈ 280 KiB.
pub const MAX_LOCAL: u32 = 4096;

/// UDP ports ESP may come in on: one an SA where peers behind one address are told apart by port.
pub const MAX_ESP_PORTS: u32 = 1024;

/// Receive queues of one interface that can have a socket.
pub const MAX_QUEUES: u32 = 256;

macro_rules! causes {
    ($($symbol:ident $name:literal $sentence:literal;)*) => {
        /// Why a frame went where it went.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(u32)]
        pub enum Cause { $(#[doc = $sentence] $symbol,)* }

        impl Cause {
            pub const ALL: &'static [Cause] = &[$(Cause::$symbol,)*];
            pub const COUNT: usize = Self::ALL.len();

            /// The counter's name.
            pub fn name(self) -> &'static str {
                match self { $(Cause::$symbol => $name,)* }
            }

            pub fn sentence(self) -> &'static str {
                match self { $(Cause::$symbol => $sentence,)* }
            }
        }
    };
}

causes! {
    Transit  "transit"   "steered: not for the kernel";
    Esp      "esp"       "steered: ESP to an address of the kernel where an SA of weir ends";
    Resolve  "resolve"   "steered: ARP or neighbour solicitation for an address of weir";
    Local    "local"     "to the kernel: one of its unicast addresses";
    Arp      "arp"       "to the kernel: ARP";
    Group    "group"     "to the kernel: multicast or broadcast";
    NotIp    "not_ip"    "to the kernel: neither IP nor ARP";
    Short    "short"     "to the kernel: shorter than an Ethernet header";
    NoSocket "no_socket" "to the kernel: no socket on this receive queue (where policies apply, dropped there)";
}

/// What the program did, by cause, since it was attached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SteerCounters([u64; Cause::COUNT]);

impl SteerCounters {
    pub fn of(&self, cause: Cause) -> u64 {
        self.0[cause as usize]
    }

    pub fn iter(&self) -> impl Iterator<Item = (Cause, u64)> + '_ {
        Cause::ALL.iter().map(|&c| (c, self.of(c)))
    }
}

/// Why an interface is not steered.
#[derive(Debug)]
pub enum SteerError {
    Bpf(BpfError),
    Attach(AttachError),
    TooManyAddresses { got: usize },
    TooManyPorts { got: usize },
    Queue { interface: String, queue: u32 },
}

impl fmt::Display for SteerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SteerError::Bpf(error) => error.fmt(f),
            SteerError::Attach(error) => error.fmt(f),
            SteerError::TooManyAddresses { got } => {
                write!(f, "steering: {got} local addresses of one family, expected at most {MAX_LOCAL}")
            }
            SteerError::TooManyPorts { got } => {
                write!(f, "steering: {got} UDP ports for ESP, expected at most {MAX_ESP_PORTS}")
            }
            SteerError::Queue { interface, queue } => {
                write!(
                    f,
                    "{interface}: queue {queue}, expected below {MAX_QUEUES}; reduce them with ethtool -L"
                )
            }
        }
    }
}

impl std::error::Error for SteerError {}

impl From<BpfError> for SteerError {
    fn from(error: BpfError) -> Self {
        SteerError::Bpf(error)
    }
}

impl From<AttachError> for SteerError {
    fn from(error: AttachError) -> Self {
        SteerError::Attach(error)
    }
}

/// The addresses of this host, shared by the programs of all interfaces. Broadcast addresses of
/// the kernel's networks belong in here too, as the kernel's.
#[derive(Debug)]
pub struct LocalAddresses {
    v4: Map,
    v6: Map,
    esp_ports: Map,
    known: HashMap<IpAddr, Owner>,
    /// Where SAs end.
    esp: HashSet<IpAddr>,
    ports: HashSet<u16>,
}

impl LocalAddresses {
    pub fn new() -> Result<LocalAddresses, SteerError> {
        Ok(LocalAddresses {
            v4: Map::new("weir_local4", MapKind::Hash, 4, 4, MAX_LOCAL)?,
            v6: Map::new("weir_local6", MapKind::Hash, 16, 4, MAX_LOCAL)?,
            esp_ports: Map::new("weir_esp_ports", MapKind::Hash, 4, 4, MAX_ESP_PORTS)?,
            known: HashMap::new(),
            esp: HashSet::new(),
            ports: HashSet::new(),
        })
    }

    /// Makes the set exactly this one; takes effect for the next frame. Returns how many entries
    /// changed. An address named twice is the kernel's if one of the two says so.
    pub fn set(&mut self, wanted: impl IntoIterator<Item = (IpAddr, Owner)>) -> Result<usize, SteerError> {
        let mut next: HashMap<IpAddr, Owner> = HashMap::new();
        for (address, owner) in wanted {
            let entry = next.entry(address).or_insert(owner);
            if owner == Owner::Kernel {
                *entry = Owner::Kernel;
            }
        }
        let v4 = next.keys().filter(|a| a.is_ipv4()).count();
        let most = v4.max(next.len() - v4);
        if most > MAX_LOCAL as usize {
            return Err(SteerError::TooManyAddresses { got: most });
        }
        let gone: Vec<IpAddr> = self.known.keys().filter(|a| !next.contains_key(a)).copied().collect();
        for address in &gone {
            self.with_key(*address, |map, key| map.delete(key).map(drop))?;
            self.known.remove(address);
        }
        let mut changed = gone.len();
        for (address, owner) in next {
            if self.known.get(&address) != Some(&owner) {
                self.write(address, owner)?;
                self.known.insert(address, owner);
                changed += 1;
            }
        }
        Ok(changed)
    }

    /// Makes these the addresses where SAs of ours end, and these the UDP ports ESP comes in on there;
    /// takes effect for the next frame. Only addresses of the kernel need it: everything for others is
    /// ours already. Returns how many entries changed.
    pub fn set_esp(&mut self, ends: HashSet<IpAddr>, ports: HashSet<u16>) -> Result<usize, SteerError> {
        if ports.len() > MAX_ESP_PORTS as usize {
            return Err(SteerError::TooManyPorts { got: ports.len() });
        }
        let key = |port: u16| program::esp_port_key(port).to_ne_bytes();
        let mut changed = 0;
        for gone in self.ports.difference(&ports) {
            self.esp_ports.delete(&key(*gone))?;
            changed += 1;
        }
        for come in ports.difference(&self.ports) {
            self.esp_ports.update(&key(*come), &1u32.to_ne_bytes())?;
            changed += 1;
        }
        self.ports = ports;
        let other: Vec<IpAddr> = self.esp.symmetric_difference(&ends).copied().collect();
        self.esp = ends;
        for address in other {
            if self.known.get(&address) == Some(&Owner::Kernel) {
                self.write(address, Owner::Kernel)?;
                changed += 1;
            }
        }
        Ok(changed)
    }

    fn write(&self, address: IpAddr, owner: Owner) -> Result<(), SteerError> {
        let value = program::owner_value(owner, self.esp.contains(&address)).to_ne_bytes();
        self.with_key(address, |map, key| map.update(key, &value))
    }

    fn with_key(
        &self,
        address: IpAddr,
        act: impl FnOnce(&Map, &[u8]) -> Result<(), BpfError>,
    ) -> Result<(), SteerError> {
        match address {
            IpAddr::V4(v4) => act(&self.v4, &v4.octets())?,
            IpAddr::V6(v6) => act(&self.v6, &v6.octets())?,
        }
        Ok(())
    }
}

/// The program on one interface, with the sockets it steers to. Detaches when dropped.
#[derive(Debug)]
pub struct Steering {
    interface: String,
    xsks: Map,
    counters: Map,
    attachment: Attachment,
    program: LoadedProgram,
    ifindex: u32,
    progress: Option<Arc<Progress>>,
}

impl Steering {
    /// Loads the program and attaches it in the first of `modes` the interface takes. Until a
    /// socket is added, everything still goes to the kernel.
    pub fn attach(
        interface: &str,
        ifindex: u32,
        modes: &[XdpMode],
        local: &LocalAddresses,
    ) -> Result<Steering, SteerError> {
        Self::attach_with(interface, ifindex, modes, local, None)
    }

    /// As [`Steering::attach`]; with `express`, frames of this device may take the express lane.
    pub fn attach_with(
        interface: &str,
        ifindex: u32,
        modes: &[XdpMode],
        local: &LocalAddresses,
        express: Option<(&Express, DeviceId)>,
    ) -> Result<Steering, SteerError> {
        let xsks = Map::new("weir_xsks", MapKind::Xsk, 4, 4, MAX_QUEUES)?;
        let counters = Map::new("weir_counters", MapKind::PerCpuArray, 4, 8, Cause::COUNT as u32)?;
        let (numbers, words) = Map::shared("weir_progress", express::progress::SIZE)?;
        let lane = express.map(|(express, device)| Lane { express, device, progress: &numbers });
        let maps = program::Maps {
            xsks: &xsks,
            counters: &counters,
            local4: &local.v4,
            local6: &local.v6,
            esp_ports: &local.esp_ports,
        };
        let listing =
            program::assemble(&maps, lane.as_ref()).map_err(|error| SteerError::Bpf(error.into()))?;
        let loaded = LoadedProgram::load(PROGRAM_NAME, &listing)?;
        let attachment = Attachment::new(interface, ifindex, &loaded, modes)?;
        let progress = express.map(|_| Arc::new(Progress(words)));
        let interface = interface.into();
        Ok(Steering { interface, xsks, counters, attachment, program: loaded, ifindex, progress })
    }

    /// Brings the program to queues that came. A card's driver does that by itself, and may lose its link over a
    /// program attached anew; a veth leaves new queues without one until then (Linux 6.18).
    pub fn reach_new_queues(&mut self) -> Result<(), SteerError> {
        let card = format!("/sys/class/net/{}/device", self.interface);
        if self.mode() == XdpMode::Generic || std::path::Path::new(&card).exists() {
            return Ok(());
        }
        let failed = |error| AttachError::Netlink { interface: self.interface.clone(), error };
        Ok(self.attachment.again(&self.program).map_err(failed)?)
    }

    /// Attaches the program again, with its sockets and counters, where somebody took it off. False when it was there.
    pub fn attach_if_gone(&mut self) -> Result<bool, SteerError> {
        let failed = |error| AttachError::Netlink { interface: self.interface.clone(), error };
        if self.attachment.is_there().map_err(failed)? {
            return Ok(false);
        }
        self.attachment =
            Attachment::new(&self.interface, self.ifindex, &self.program, &[self.attachment.mode])?;
        Ok(true)
    }

    /// From now on, transit of `queue` goes to `socket`. The kernel forgets the socket by itself
    /// when it closes.
    pub fn add(&self, queue: u32, socket: BorrowedFd<'_>) -> Result<(), SteerError> {
        if queue >= MAX_QUEUES {
            return Err(SteerError::Queue { interface: self.interface.clone(), queue });
        }
        Ok(self.xsks.update(&queue.to_ne_bytes(), &socket.as_raw_fd().to_ne_bytes())?)
    }

    pub fn counters(&self) -> Result<SteerCounters, SteerError> {
        let mut counters = SteerCounters::default();
        for (to, cause) in counters.0.iter_mut().zip(0..) {
            *to = self.counters.sum(cause)?.first().copied().unwrap_or(0);
        }
        Ok(counters)
    }

    /// Where the worker of an interface with an express lane says how far it has come.
    pub fn progress(&self) -> Option<&Arc<Progress>> {
        self.progress.as_ref()
    }

    pub fn mode(&self) -> XdpMode {
        self.attachment.mode
    }

    /// How it is attached, and what was refused before.
    pub fn attachment(&self) -> &Attachment {
        &self.attachment
    }

    pub fn interface(&self) -> &str {
        &self.interface
    }
}
