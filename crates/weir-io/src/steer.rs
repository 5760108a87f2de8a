//! Steering: the XDP program that shares an interface between this router and the kernel.
//!
//! ```text
//! frame ─┬─ too short, not IP ─────────────────────────────► kernel
//!        ├─ ARP ──── for an address of weir ───────────────► weir     else ► kernel
//!        ├─ multicast, broadcast ── NS for one of weir's ──► weir     else ► kernel
//!        ├─ a pair of addresses the router decided on ─────► out  (flow offload, where there is one)
//!        ├─ to an address the kernel owns ── ESP for us ───► weir     else ► kernel
//!        ├─ to a prefix whose route is left to the kernel ─► kernel
//!        └─ anything else (transit, weir's own) ───────────► xsks[rx queue], without one ► kernel
//! ```
//!
//! Promises: what is local stays local: ping, routing daemons, IKE and SSH to the kernel's own
//! addresses work as without us; addresses can be changed while traffic flows; every frame is
//! counted under one [`Cause`]. The program is `bpf/steer.c` of `weir-xdp`. Where policies apply, what goes to the kernel meets [`enforce`] there. ESP to an address of the kernel that is the end of an SA of ours is the
//! exception ([`LocalAddresses::set_esp`]): protocol 50, fragments too, and UDP to a port ESP comes in on
//! unless it begins with IKE's marker of four zeros (RFC 3948 2.2), or has an SPI only the kernel opens
//! ([`LocalAddresses::set_kept_spis`]). One 802.1Q tag is looked through. Refuses: a second tag (it is not
//! IP to this program, the kernel gets it), other decisions by port, ESP behind IPv6 extension headers other
//! than a fragment's, and fragments of ESP in UDP: only the first of those has a port.
//!
//! Where an interface strips VLAN tags in hardware (`rx-vlan-offload`), or a veth peer keeps them
//! beside the frame (`tx-vlan-offload`), XDP does not see the tag: switch that off on such ports.
//! The same holds for checksums a veth peer leaves unfinished (see [`crate::af_xdp`]).

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt;
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Mutex, PoisonError};

use weir_core::mirror::PASSES_MAX;
use weir_core::route::Prefix;
use weir_core::tables::Owner;
use weir_xdp::layout::{
    FLOWS_MAX, Kept, STEER_CAUSES, STEER_KERNEL, STEER_KERNEL_BUT_ESP, STEER_WEIR, TRACKED_MAX,
    TRACKED_WAYS_MAX,
};
use weir_xdp::{
    Counters, LoadError, Loaded, Memory, Run, STEER, STEER_FLOW, STEER_TRACKED, Settings, Sockets, Table,
    Trie,
};

use crate::bpf::attach::{AttachError, Attachment, XdpMode};
use crate::bpf::words::SharedWords;

pub mod enforce;
pub mod flow_offload;
mod forgetful;
#[cfg(test)]
mod tests;
pub mod tracked;

use flow_offload::{FlowOffload, Progress};
use forgetful::Forgetful;
use tracked::Tracked;

/// Local addresses of one family: 4,096 × (16 + 4 + ~48 B of hash element) ≈ 280 KiB.
pub const MAX_LOCAL: u32 = weir_xdp::layout::STEER_LOCAL_MAX;

/// UDP ports ESP may come in on: one an SA where peers behind one address are told apart by port.
pub const MAX_ESP_PORTS: u32 = weir_xdp::layout::STEER_ESP_PORTS_MAX;

/// SPIs of SAs that only the kernel opens, beyond which ESP to where SAs of ours end is ours.
pub const MAX_KEPT_SPIS: u32 = weir_xdp::layout::STEER_SPIS_MAX;

/// Prefixes of one family whose routes only the kernel can follow.
pub const MAX_KEPT: u32 = weir_xdp::layout::STEER_KEPT_MAX;

const _: () = assert!(MAX_KEPT as usize == PASSES_MAX);

/// Receive queues of one interface that can have a socket.
pub const MAX_QUEUES: u32 = weir_xdp::layout::STEER_QUEUES_MAX;

/// Maps the programs of all interfaces share, and how many entries each has.
const SHARED: [(&str, u32); 12] = [
    ("weir_local4", MAX_LOCAL),
    ("weir_local6", MAX_LOCAL),
    ("weir_esp_ports", MAX_ESP_PORTS),
    ("weir_kept_spis", MAX_KEPT_SPIS),
    ("weir_kept4", MAX_KEPT),
    ("weir_kept6", MAX_KEPT),
    ("weir_flows4", FLOWS_MAX),
    ("weir_flows6", FLOWS_MAX),
    ("weir_flow_count", 1),
    ("weir_tracked4", TRACKED_WAYS_MAX),
    ("weir_tracked6", TRACKED_WAYS_MAX),
    ("weir_tracked", TRACKED_MAX),
];

/// The shared maps whose names `wanted` picks in their size, the others with one entry.
fn sizes(wanted: impl Fn(&str) -> bool) -> [(&'static str, u32); 12] {
    SHARED.map(|(map, size)| (map, if wanted(map) { size } else { 1 }))
}

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
    Kept     "kept"      "to the kernel: its route is one that only the kernel can follow";
    Arp      "arp"       "to the kernel: ARP";
    Group    "group"     "to the kernel: multicast or broadcast";
    NotIp    "not_ip"    "to the kernel: neither IP nor ARP";
    Short    "short"     "to the kernel: shorter than an Ethernet header";
    NoSocket "no_socket" "to the kernel: no socket on this receive queue (where policies apply, dropped there)";
    Conntrack "conntrack" "to the kernel: its firewall decides, the flow is not one that is forwarded here";
}

const _: () = assert!(Cause::COUNT == STEER_CAUSES as usize);

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
    Load(LoadError),
    Attach(AttachError),
    /// The program's memory is not in ours.
    Memory(io::Error),
    TooManyAddresses {
        got: usize,
    },
    TooManyPorts {
        got: usize,
    },
    TooManySpis {
        got: usize,
    },
    Queue {
        interface: String,
        queue: u32,
    },
}

impl fmt::Display for SteerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SteerError::Load(error) => error.fmt(f),
            SteerError::Attach(error) => error.fmt(f),
            SteerError::Memory(error) => write!(f, "steering: mapping the program's memory: {error}"),
            SteerError::TooManyAddresses { got } => {
                write!(f, "steering: {got} local addresses of one family, expected at most {MAX_LOCAL}")
            }
            SteerError::TooManyPorts { got } => {
                write!(f, "steering: {got} UDP ports for ESP, expected at most {MAX_ESP_PORTS}")
            }
            SteerError::TooManySpis { got } => {
                write!(f, "steering: {got} SPIs that only the kernel opens, expected at most {MAX_KEPT_SPIS}")
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

impl From<LoadError> for SteerError {
    fn from(error: LoadError) -> Self {
        SteerError::Load(error)
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
    v4: Table<4, 4>,
    v6: Table<16, 4>,
    esp_ports: Table<4, 4>,
    kept4: Trie<4, 4>,
    kept6: Trie<16, 4>,
    kept_spis: Table<4, 4>,
    /// How many there are in each trie and of these SPIs, for the programs.
    kept_counts: Memory<{ Kept::SIZE }>,
    /// The longest prefix says whether the kernel keeps an address that is not local.
    kept: BTreeMap<Prefix, bool>,
    known: HashMap<IpAddr, Owner>,
    /// Where SAs end.
    esp: HashSet<IpAddr>,
    ports: HashSet<u16>,
    /// SPIs only the kernel opens.
    spis: HashSet<u32>,
}

impl LocalAddresses {
    pub fn new() -> Result<LocalAddresses, SteerError> {
        let mut maps =
            STEER.maps(&sizes(|map| !map.starts_with("weir_flow") && !map.starts_with("weir_tracked")))?;
        Ok(LocalAddresses {
            v4: maps.table("weir_local4")?,
            v6: maps.table("weir_local6")?,
            esp_ports: maps.table("weir_esp_ports")?,
            kept4: maps.trie("weir_kept4")?,
            kept6: maps.trie("weir_kept6")?,
            kept_spis: maps.table("weir_kept_spis")?,
            kept_counts: maps.memory("weir_kept")?,
            kept: BTreeMap::new(),
            known: HashMap::new(),
            esp: HashSet::new(),
            ports: HashSet::new(),
            spis: HashSet::new(),
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
            match *address {
                IpAddr::V4(v4) => self.v4.remove(v4.octets())?,
                IpAddr::V6(v6) => self.v6.remove(v6.octets())?,
            };
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
        // As the program has it: a word with the bytes in network order.
        let key = |port: u16| u32::from(port.to_be()).to_ne_bytes();
        let mut changed = 0;
        for gone in self.ports.difference(&ports) {
            self.esp_ports.remove(key(*gone))?;
            changed += 1;
        }
        for come in ports.difference(&self.ports) {
            self.esp_ports.insert(key(*come), 1u32.to_ne_bytes())?;
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

    /// Makes these the SPIs that only the kernel opens: ESP by them stays with it though an SA of ours ends at their address;
    /// takes effect for the next frame. Of fragments only the first has an SPI, so they are ours. Returns how many changed.
    pub fn set_kept_spis(&mut self, spis: HashSet<u32>) -> Result<usize, SteerError> {
        if spis.len() > MAX_KEPT_SPIS as usize {
            return Err(SteerError::TooManySpis { got: spis.len() });
        }
        let other: Vec<u32> = self.spis.symmetric_difference(&spis).copied().collect();
        for spi in &other {
            // As the program has it: a word with the bytes in network order.
            let key = spi.to_be_bytes();
            match spis.contains(spi) {
                true => self.kept_spis.insert(key, 1u32.to_ne_bytes())?,
                false => self.kept_spis.remove(key).map(drop)?,
            }
        }
        self.spis = spis;
        self.count_kept()?;
        Ok(other.len())
    }

    /// Has the kernel keep these destinations too (true) or not (false); those of before stay as they are until
    /// [`LocalAddresses::set_kept`].
    pub fn keep(&mut self, wanted: &[(Prefix, bool)]) -> Result<(), SteerError> {
        for &(prefix, kernel) in wanted.iter().filter(|w| w.1) {
            if self.kept.get(&prefix) != Some(&kernel) {
                self.write_kept(prefix, kernel)?;
                self.kept.insert(prefix, kernel);
            }
        }
        self.count_kept()
    }

    /// What the kernel keeps, and what inside that it does not.
    pub fn kept(&self) -> impl Iterator<Item = (Prefix, bool)> {
        self.kept.iter().map(|(&prefix, &kernel)| (prefix, kernel))
    }

    /// Makes what the kernel keeps exactly this; takes effect for the next frame.
    pub fn set_kept(&mut self, wanted: &[(Prefix, bool)]) -> Result<(), SteerError> {
        let wanted: BTreeMap<Prefix, bool> = wanted.iter().copied().collect();
        let gone: Vec<Prefix> = self.kept.keys().filter(|p| !wanted.contains_key(p)).copied().collect();
        for prefix in gone {
            match prefix.addr() {
                IpAddr::V4(v4) => self.kept4.remove(v4.octets(), prefix.len())?,
                IpAddr::V6(v6) => self.kept6.remove(v6.octets(), prefix.len())?,
            };
            self.kept.remove(&prefix);
        }
        for (prefix, kernel) in wanted {
            if self.kept.get(&prefix) != Some(&kernel) {
                self.write_kept(prefix, kernel)?;
                self.kept.insert(prefix, kernel);
            }
        }
        self.count_kept()
    }

    /// Tells the programs how many there are, which do not look into an empty map.
    fn count_kept(&mut self) -> Result<(), SteerError> {
        let v4 = self.kept.keys().filter(|prefix| prefix.addr().is_ipv4()).count();
        let (v6, spis) = (self.kept.len() - v4, self.spis.len());
        let kept = Kept { v4: v4 as u64, v6: v6 as u64, spis: spis as u64 };
        Ok(self.kept_counts.write(&kept.to_bytes())?)
    }

    fn write_kept(&mut self, prefix: Prefix, kernel: bool) -> Result<(), SteerError> {
        let value = if kernel { STEER_KERNEL } else { STEER_WEIR }.to_ne_bytes();
        match prefix.addr() {
            IpAddr::V4(v4) => self.kept4.insert(v4.octets(), prefix.len(), value)?,
            IpAddr::V6(v6) => self.kept6.insert(v6.octets(), prefix.len(), value)?,
        }
        Ok(())
    }

    fn write(&mut self, address: IpAddr, owner: Owner) -> Result<(), SteerError> {
        let value = match (owner, self.esp.contains(&address)) {
            (Owner::Kernel, false) => STEER_KERNEL,
            (Owner::Kernel, true) => STEER_KERNEL_BUT_ESP,
            (Owner::Weir, _) => STEER_WEIR,
        };
        match address {
            IpAddr::V4(v4) => self.v4.insert(v4.octets(), value.to_ne_bytes())?,
            IpAddr::V6(v6) => self.v6.insert(v6.octets(), value.to_ne_bytes())?,
        }
        Ok(())
    }
}

/// The program on one interface, with the sockets it steers to. Detaches when dropped.
#[derive(Debug)]
pub struct Steering {
    interface: String,
    sockets: Mutex<Sockets>,
    counters: Counters<1>,
    attachment: Attachment,
    program: Loaded,
    ifindex: u32,
    progress: Option<Progress>,
    /// Sockets that wait for [`Steering::release`]; none where nothing is held back.
    waiting: Mutex<Option<Vec<(u32, OwnedFd)>>>,
    forgetful: Option<Forgetful>,
}

/// The program over the tables all interfaces share.
fn load(
    local: &LocalAddresses,
    offload: Option<&FlowOffload>,
    tracked: Option<&Tracked>,
) -> Result<Loaded, LoadError> {
    let mut shared = vec![local.v4.shared()?, local.v6.shared()?, local.esp_ports.shared()?];
    shared.extend([local.kept4.shared()?, local.kept6.shared()?]);
    shared.extend([local.kept_spis.shared()?, local.kept_counts.shared()?]);
    if let Some(offload) = offload {
        shared.extend(offload.shared()?);
    }
    let mut program = if offload.is_some() { STEER_FLOW } else { STEER };
    if let Some(tracked) = tracked {
        shared.extend(tracked.shared()?);
        program = STEER_TRACKED;
    }
    program.load(Settings { constants: &[], entries: &sizes(|_| false), shared: &shared })
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

    /// Like [`Steering::attach`]; with `offload`, the program may forward flows of this device.
    pub fn attach_with(
        interface: &str,
        ifindex: u32,
        modes: &[XdpMode],
        local: &LocalAddresses,
        offload: Option<&FlowOffload>,
    ) -> Result<Steering, SteerError> {
        Self::over((interface, ifindex, modes), load(local, offload, None)?, offload)
    }

    /// Attaches the program that leaves everything to the kernel but tracked flows, which it forwards under the generation
    /// that `offload` has in force.
    pub fn attach_tracked(
        interface: &str,
        ifindex: u32,
        modes: &[XdpMode],
        local: &LocalAddresses,
        (offload, tracked): (&FlowOffload, &Tracked),
    ) -> Result<Steering, SteerError> {
        Self::over((interface, ifindex, modes), load(local, Some(offload), Some(tracked))?, None)
    }

    fn over(
        (interface, ifindex, modes): (&str, u32, &[XdpMode]),
        mut program: Loaded,
        offload: Option<&FlowOffload>,
    ) -> Result<Steering, SteerError> {
        let progress = offload.map(|_| Progress::of(&program)).transpose()?;
        let sockets = Mutex::new(program.maps.sockets("weir_xsks")?);
        let counters = program.maps.counters("weir_counters")?;
        let attachment = Attachment::new(interface, ifindex, &mut program, modes)?;
        let native = attachment.mode == XdpMode::Native;
        Ok(Steering {
            interface: interface.into(),
            sockets,
            counters,
            attachment,
            program,
            ifindex,
            progress,
            waiting: Mutex::default(),
            forgetful: native.then(|| Forgetful::of(interface)).flatten(),
        })
    }

    /// Brings the program to queues that came. A card's driver does that by itself, and may lose its link over a
    /// program attached anew; a veth leaves new queues without one until then (Linux 6.18).
    pub fn reach_new_queues(&mut self) -> Result<(), SteerError> {
        let card = format!("/sys/class/net/{}/device", self.interface);
        if self.mode() == XdpMode::Generic || std::path::Path::new(&card).exists() {
            return Ok(());
        }
        let failed = |error| AttachError::Netlink { interface: self.interface.clone(), error };
        Ok(self.attachment.again(&mut self.program).map_err(failed)?)
    }

    /// Attaches the program again, with its sockets and counters, where somebody took it off. False when it was there.
    pub fn attach_if_gone(&mut self) -> Result<bool, SteerError> {
        let failed = |error| AttachError::Netlink { interface: self.interface.clone(), error };
        if self.attachment.is_there().map_err(failed)? {
            return Ok(false);
        }
        // What it leaves is a link that holds nothing.
        let _ = self.attachment.take_off(&mut self.program);
        self.attachment =
            Attachment::new(&self.interface, self.ifindex, &mut self.program, &[self.attachment.mode])?;
        Ok(true)
    }

    /// Takes the program off the interface, even where somebody else holds its link.
    pub fn take_off(&mut self) -> Result<(), SteerError> {
        let failed = |error| AttachError::Netlink { interface: self.interface.clone(), error };
        Ok(self.attachment.take_off(&mut self.program).map_err(failed)?)
    }

    /// Attaches the program again where the driver runs it no longer, because its link was down. False when nothing was done.
    pub fn attach_if_forgotten(&mut self) -> Result<bool, SteerError> {
        let Some(forgetful) = &mut self.forgetful else { return Ok(false) };
        let mended = forgetful.mend(|| self.attachment.again(&mut self.program));
        Ok(mended.map_err(|error| AttachError::Netlink { interface: self.interface.clone(), error })?)
    }

    /// Sends transit of `queue` to `socket` from now on. The kernel forgets the socket by itself when it closes.
    pub fn add(&self, queue: u32, socket: BorrowedFd<'_>) -> Result<(), SteerError> {
        if queue >= MAX_QUEUES {
            return Err(SteerError::Queue { interface: self.interface.clone(), queue });
        }
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(waiting) = &mut *waiting {
            waiting.push((queue, socket.try_clone_to_owned().map_err(SteerError::Memory)?));
            return Ok(());
        }
        Ok(self.sockets.lock().unwrap_or_else(PoisonError::into_inner).set(queue, socket)?)
    }

    /// Sockets added from now on get nothing before [`Steering::release`]: until somebody reads them, frames are better
    /// with the kernel.
    pub fn hold(&self) {
        *self.waiting.lock().unwrap_or_else(PoisonError::into_inner) = Some(Vec::new());
    }

    /// Gives no socket any frame from now on, even where somebody keeps the program on its device.
    pub fn withhold(&self) {
        let mut sockets = self.sockets.lock().unwrap_or_else(PoisonError::into_inner);
        (0..MAX_QUEUES).for_each(|queue| sockets.unset(queue));
    }

    /// Sockets that were held back get their queues.
    pub fn release(&self) -> Result<(), SteerError> {
        let waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner).take();
        waiting.into_iter().flatten().try_for_each(|(queue, socket)| self.add(queue, socket.as_fd()))
    }

    pub fn counters(&self) -> Result<SteerCounters, SteerError> {
        let mut counters = SteerCounters::default();
        for (to, cause) in counters.0.iter_mut().zip(0..) {
            [*to] = self.counters.sum(cause)?;
        }
        Ok(counters)
    }

    /// Where the worker of a queue says how far it has come, on an interface with a flow offload.
    pub fn progress(&self, queue: u32) -> Option<Progress> {
        self.progress.as_ref()?.queue(queue)
    }

    /// Runs the program on one frame `repeat` times, on no device: for benches.
    pub fn run(&self, frame: &[u8], repeat: u32) -> Result<Run, SteerError> {
        Ok(self.program.run(frame, repeat)?)
    }

    /// The number the kernel knows the program by.
    pub fn id(&self) -> Result<u32, SteerError> {
        Ok(self.program.id()?)
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
