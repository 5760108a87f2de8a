//! Taking a flow, step by step, and giving it back.
//!
//! Promises: what rules and policies say is asked with each way; a step that fails leaves the flow to the kernel, with its reason; liberal windows are set before a segment passes
//! the kernel; a flow whose way is another under new tables is out of force from their first moment. Refuses: to give time to
//! an entry that is not established any more.

use std::collections::HashMap;
use std::io;
use std::net::IpAddr;
use std::time::Duration;

use weir_core::conntrack::{Change, Direction, FlowId, Reason, Refresh, Rewrite, Way};
use weir_core::id::PortId;
use weir_core::packet::DeviceId;
use weir_core::route::Prefix;
use weir_core::router::lasting::{NoWay, Toward, toward};
use weir_core::tables::Tables;
use weir_core::time::{Nanos, SECOND};
use weir_core::wire::ctnetlink::{self, TCP_ESTABLISHED};
use weir_core::wire::protocol;
use weir_io::clock;
use weir_io::steer::tracked::DirectionWay;

use super::hops::{self, Asked, Choice, Leaves, adjacencies};
use super::{Known, Thread, lock};

/// Flows that are taken before the kernel is listened to again: at some 10 µs each, 5 ms.
const TAKEN_A_TURN: usize = 512;

/// How long a flow may be taken before it is: most connections are over by then, and taking them would cost more than it saves.
pub(super) const TAKEN_AFTER: Nanos = SECOND / 20;

/// Places besides the first where packets of a direction come in: each takes room in the program's table.
const OTHERS_MAX: usize = 3;

/// A flow that is forwarded here.
pub(super) struct Taken {
    /// Its number in the program's tables.
    pub number: u32,
    ways: Ways,
    pub refresh: Refresh,
    pub since: Nanos,
}

/// The device that a flow with a translated source left by when it was given back.
pub(super) struct LeftBy {
    direction: Direction,
    device: DeviceId,
}

impl LeftBy {
    fn of(original: &DirectionWay) -> Option<LeftBy> {
        let direction = original.rewrite.direction;
        let translated = direction.arrives.source != direction.leaves.source;
        translated.then_some(LeftBy { direction, device: original.out_device })
    }

    /// The same flow leads elsewhere: where its source is masqueraded the kernel ends it with its next packet.
    fn moved(&self, original: &DirectionWay) -> bool {
        self.is_of(&original.rewrite.direction) && self.device != original.out_device
    }

    /// An entry's number may be another's by now.
    pub fn is_of(&self, original: &Direction) -> bool {
        self.direction == *original
    }
}

/// Where the packets of a flow come in and leave.
struct Ways {
    both: [DirectionWay; 2],
    /// The same for packets that come in by another of several next hops; true: answers.
    others: Vec<(bool, DirectionWay)>,
    /// What was chosen for each direction where there are several next hops.
    chosen: [Option<Choice>; 2],
}

impl Ways {
    fn all(&self) -> impl Iterator<Item = &DirectionWay> {
        self.both.iter().chain(self.others.iter().map(|(_, way)| way))
    }
}

/// Destinations whose routes only the kernel can follow: the longest prefix says.
#[derive(Default)]
pub struct Kept {
    prefixes: HashMap<Prefix, bool>,
    /// The lengths there are, of IPv4 and IPv6, the longest first.
    lengths: [Vec<u8>; 2],
}

impl Kept {
    pub fn new(prefixes: impl IntoIterator<Item = (Prefix, bool)>) -> Kept {
        let prefixes: HashMap<Prefix, bool> = prefixes.into_iter().collect();
        let lengths = [true, false].map(|v4| {
            let family = prefixes.keys().filter(|prefix| prefix.addr().is_ipv4() == v4);
            let mut lengths: Vec<u8> = family.map(|prefix| prefix.len()).collect();
            lengths.sort_unstable_by(|a, b| b.cmp(a));
            lengths.dedup();
            lengths
        });
        Kept { prefixes, lengths }
    }

    fn keeps(&self, address: IpAddr) -> bool {
        let lengths = &self.lengths[usize::from(address.is_ipv6())];
        let named = lengths.iter().find_map(|&len| self.prefixes.get(&Prefix::new(address, len)));
        named.copied().unwrap_or(false)
    }
}

/// What the kernel gives an entry after a packet, where it is not heard to give more.
pub(super) struct Lifetimes {
    tcp_s: u32,
    /// What it gives while data waits for its acknowledgement, or behind a window of zero.
    tcp_least_s: u32,
    /// What it gives after a RST, which may leave the state as it was.
    pub close_s: u32,
    udp_s: u32,
}

impl Lifetimes {
    /// The kernel's settings, or its defaults where they are not to be read.
    pub fn read() -> Lifetimes {
        let read = |name: &str| {
            let text = std::fs::read_to_string(format!("/proc/sys/net/netfilter/nf_conntrack_{name}"));
            text.ok().and_then(|text| text.trim().parse().ok())
        };
        Lifetimes {
            tcp_s: read("tcp_timeout_established").unwrap_or(432_000),
            tcp_least_s: ["tcp_timeout_unacknowledged", "tcp_timeout_max_retrans"]
                .map(|name| read(name).unwrap_or(300))
                .into_iter()
                .fold(u32::MAX, u32::min),
            close_s: read("tcp_timeout_close").unwrap_or(10),
            udp_s: read("udp_timeout_stream").unwrap_or(120),
        }
    }

    /// Whether so little is left as a RST leaves: of anything else a third of the least is left when an entry is given time.
    pub fn is_after_reset(&self, left_s: u32) -> bool {
        left_s <= self.close_s && self.close_s < self.tcp_s.min(self.tcp_least_s) / 3
    }

    fn of(&self, protocol: u8, heard_s: u32) -> u32 {
        heard_s.max(if protocol == protocol::TCP { self.tcp_s } else { self.udp_s })
    }

    /// The least that an entry may have left after the last packet that the kernel saw: what was heard of one that was there before
    /// may be all that it has.
    fn least_of(&self, protocol: u8, heard_s: u32) -> u32 {
        let least = if protocol == protocol::TCP { self.tcp_least_s } else { self.udp_s };
        if heard_s == 0 { least } else { least.min(heard_s) }
    }
}

impl Known {
    /// Lets flows be taken that are old enough and still may be.
    fn ripen(&mut self, now: Nanos) {
        while self.fresh.front().is_some_and(|(due, _)| *due <= now)
            && let Some((_, id)) = self.fresh.pop_front()
        {
            if self.wanted.contains(&id) {
                self.next.push_back(id);
            }
        }
    }
}

impl Thread {
    /// Follows changes of flows and of tables; true when flows are left to be taken.
    pub(super) fn take_and_release(&mut self) -> bool {
        let shared = self.known.clone();
        let mut known = lock(&shared);
        let now = clock::now();
        for change in known.table.take_changes() {
            match change {
                Change::Take { id } => {
                    known.wanted.insert(id);
                    known.fresh.push_back((now + TAKEN_AFTER, id));
                }
                Change::Release { id, gone } => {
                    known.wanted.remove(&id);
                    known.full.remove(&id);
                    known.reset.remove(&id);
                    self.release(&mut known, id, gone);
                }
            }
        }
        known.ripen(now);
        self.kept = known.kept.clone();
        let tables = self.tables.load_full();
        let word = self.offload.word(tables.generation);
        if word != self.word {
            self.word = word;
            self.revise(&mut known, &tables);
        }
        let now = known.next.len().min(TAKEN_A_TURN);
        let now: Vec<FlowId> = known.next.drain(..now).collect();
        for id in now {
            let way = match self.take(&mut known, id, &tables) {
                Ok(()) => Way::Xdp,
                Err(reason) => Way::Kernel(reason),
            };
            if way == Way::Kernel(Reason::TableFull) {
                known.full.insert(id);
            }
            known.table.set_way(id, way);
        }
        !known.next.is_empty()
    }

    /// How long the next flow is too young to be taken.
    pub(super) fn until_one_is_old_enough(&self) -> Duration {
        let known = lock(&self.known);
        let next = known.fresh.front().map(|(due, _)| due.saturating_sub(clock::now()));
        next.map_or(Duration::MAX, Duration::from_nanos)
    }

    /// The tables are others: ways are found again.
    fn revise(&mut self, known: &mut Known, tables: &Tables) {
        self.proof.forget_devices();
        self.links.forget();
        let ids: Vec<FlowId> = known.taken.keys().copied().collect();
        for id in ids {
            let Some(taken) = known.taken.get_mut(&id) else { continue };
            let both = taken.ways.both.map(|way| way.rewrite.direction);
            if let Ok(ways) = self.ways(tables, &both, taken.ways.chosen)
                && ways.all().eq(taken.ways.all())
            {
                taken.ways = ways;
                lock(&self.tracked).set_in_force(taken.number, self.word);
                continue;
            }
            self.give_back(known, id);
        }
        // What had no way may have one now.
        known.next = known.wanted.iter().copied().collect();
        known.full.clear();
    }

    fn take(&mut self, known: &mut Known, id: FlowId, tables: &Tables) -> Result<(), Reason> {
        let Some(flow) = known.table.flow(id).filter(|_| known.wanted.contains(&id)) else {
            return if known.taken.contains_key(&id) { Ok(()) } else { Err(Reason::Waiting) };
        };
        if known.numbers.are_all_used() {
            return Err(Reason::TableFull);
        }
        let (original, both) = (*flow.original(), flow.directions());
        let ways = self.ways(tables, &both, [None; 2])?;
        if known.left_by.get(&id).is_some_and(|left| left.moved(&ways.both[0])) {
            return Err(Reason::Moved);
        }
        let number = known.numbers.take().ok_or(Reason::TableFull)?;
        if let Err(reason) = self.prepare(number, &ways) {
            known.counters.refused += 1;
            known.numbers.give_back(number, self.take_out(number, &ways));
            return Err(reason);
        }
        let now = clock::now();
        lock(&self.tracked).set_in_force(number, self.word);
        let taken = Taken { number, ways, refresh: Refresh::new(now, 0), since: now };
        known.taken.insert(id, taken);
        known.left_by.remove(&id);
        known.wanted.remove(&id);
        known.counters.taken += 1;
        // One that came before the program counted the flow's, or that a weir before this one saw.
        if self.was_reset(&original) {
            self.give_back_reset(known, id);
            return Err(Reason::Reset);
        }
        Ok(())
    }

    /// Everything but the word that puts the flow in force.
    fn prepare(&mut self, number: u32, ways: &Ways) -> Result<(), Reason> {
        let original = &ways.both[0].rewrite.direction.arrives;
        if original.protocol == protocol::TCP {
            // Else the first segment behind some the kernel did not see would end the connection.
            let set = self.requests.send(&ctnetlink::set_liberal(original));
            set.map_err(|error| self.refused("liberal windows", &error))?;
        }
        let mut tracked = lock(&self.tracked);
        tracked.clear(number);
        tracked.install(number, &ways.both).map_err(|error| {
            tracing::debug!("a flow is not taken: {error}");
            Reason::TableFull
        })?;
        for (reply, way) in &ways.others {
            if let Err(error) = tracked.add(number, *reply, way) {
                tracing::debug!("packets of a flow that come in elsewhere are the kernel's: {error}");
            }
        }
        Ok(())
    }

    fn refused(&self, what: &str, error: &io::Error) -> Reason {
        // The entry went meanwhile, which its own message tells.
        if error.kind() != io::ErrorKind::NotFound {
            tracing::debug!("netlink: {what} of a flow: {error}");
        }
        Reason::Refused
    }

    /// Both ways, as the tables have them; `before` is what was chosen for each.
    fn ways(
        &mut self,
        tables: &Tables,
        both: &[Direction; 2],
        before: [Option<Choice>; 2],
    ) -> Result<Ways, Reason> {
        let of = |n: usize| {
            let destination = both[n].leaves.destination;
            if self.kept.keeps(destination) {
                return Err(Reason::LeftToKernel);
            }
            toward(tables, destination).ok_or(Reason::NoRoute)
        };
        let toward = [of(0)?, of(1)?];
        // What one direction leaves by the other comes in by. The kernel's choice does not rest on the device, so any of
        // several does to ask.
        let [first, second] = toward.map(|toward| any_port(tables, toward));
        let leaves = [
            self.leaves(tables, (both, 0), (toward[0], second?), before[0])?,
            self.leaves(tables, (both, 1), (toward[1], first?), before[1])?,
        ];
        if hops::is_bound_elsewhere(tables, &both[0], leaves[0].port) {
            return Err(Reason::Moved);
        }
        let ways = [
            self.way(tables, both[0], (leaves[1].port, leaves[0]))?,
            self.way(tables, both[1], (leaves[0].port, leaves[1]))?,
        ];
        let mut others = Vec::new();
        for (n, back) in [(0, 1), (1, 0)] {
            for port in other_ports(tables, toward[back], leaves[back].port) {
                let way = self.way(tables, both[n], (port, leaves[n]));
                others.extend(way.ok().map(|way| (n == 1, way)));
            }
        }
        let chosen = leaves.map(|leaves| leaves.hop.map(|(_, choice)| choice));
        Ok(Ways { both: ways, others, chosen })
    }

    fn leaves(
        &mut self,
        tables: &Tables,
        (both, n): (&[Direction; 2], usize),
        (toward, from): (Toward<'_>, PortId),
        before: Option<Choice>,
    ) -> Result<Leaves, Reason> {
        let (links, offload) = (&mut self.links, &self.offload);
        let mut link = |port| links.of(tables, port, |device| offload.joined(device)).map(|link| link.index);
        let from = link(from).ok_or(Reason::Port)?;
        let asked = Asked { direction: &both[n], original: n == 0, toward, from, before };
        self.hops.choose(tables, &asked, link)
    }

    fn way(
        &mut self,
        tables: &Tables,
        direction: Direction,
        (from, to): (PortId, Leaves),
    ) -> Result<DirectionWay, Reason> {
        let (source, destination) = (direction.arrives.source, direction.leaves.destination);
        let hop = to.hop.map(|(id, _)| id);
        let way = self.lasting.between(tables, from, (source, destination), hop).map_err(|no| match no {
            NoWay::Route => Reason::NoRoute,
            NoWay::Neighbor => Reason::NoNeighbor,
            NoWay::Port => Reason::Port,
        })?;
        if way.next.port != to.port {
            return Err(Reason::NoRoute);
        }
        let (links, offload) = (&mut self.links, &self.offload);
        let mut link = |port| links.of(tables, port, |device| offload.joined(device)).ok_or(Reason::Port);
        let (input, output) = (link(from)?, link(to.port)?);
        if offload.takes(way.next.device) != Some(output.device) {
            return Err(Reason::Port);
        }
        self.proof.admits(&direction, input.index, output.index)?;
        Ok(DirectionWay {
            rewrite: Rewrite::new(direction),
            in_ifindex: input.device,
            in_device: self.offload.counted(way.arrived.device, way.arrived.vlan),
            in_vlan: way.arrived.vlan,
            in_mac: way.arrived.mac,
            out_ifindex: output.device,
            out_device: self.offload.counted(way.next.device, way.next.vlan),
            out_vlan: way.next.vlan,
            mtu: way.next.mtu.min(output.mtu),
            out_macs: way.next.header,
        })
    }

    /// The flow is the kernel's from now on, and may be taken again.
    fn give_back(&mut self, known: &mut Known, id: FlowId) {
        let Some(taken) = known.taken.get(&id) else { return };
        if lock(&self.tracked).resets(taken.number) > 0 {
            return self.give_back_reset(known, id);
        }
        self.release(known, id, false);
        known.wanted.insert(id);
    }

    /// The flow is the kernel's from now on.
    pub(super) fn release(&mut self, known: &mut Known, id: FlowId, gone: bool) {
        let Some(mut taken) = known.taken.remove(&id) else { return };
        known.numbers.give_back(taken.number, self.take_out(taken.number, &taken.ways));
        let passed = lock(&self.tracked).passed(taken.number);
        let (packets, bytes) = (passed[0].packets + passed[1].packets, passed[0].bytes + passed[1].bytes);
        known.counters.released += 1;
        known.counters.packets += packets;
        known.counters.bytes += bytes;
        let room = known.full.pop_first();
        known.next.extend(room);
        if !gone {
            known.left_by.extend(LeftBy::of(&taken.ways.both[0]).map(|left| (id, left)));
            // Who has seen a RST gives no time; whoever released it knows what becomes of it.
            _ = self.give_time(known, id, &mut taken.refresh, (clock::now(), packets, true));
        }
    }

    /// Ends a flow in the program; true when nothing of it is left there.
    fn take_out(&self, number: u32, ways: &Ways) -> bool {
        let removed = lock(&self.tracked).remove(number, ways.all());
        if let Err(error) = &removed {
            tracing::warn!(
                "a flow is out of force, but stays in its table, and its number is not used again: {error}"
            );
        }
        removed.is_ok()
    }

    /// Gives entries time whose packets passed here.
    pub(super) fn refresh(&mut self, now: Nanos) {
        let shared = self.known.clone();
        let mut known = lock(&shared);
        let mut all = std::mem::take(&mut known.taken);
        let mut reset = Vec::new();
        for (&id, taken) in &mut all {
            let (passed, resets) = {
                let tracked = lock(&self.tracked);
                (tracked.passed(taken.number), tracked.resets(taken.number))
            };
            let packets = passed.iter().map(|p| p.packets).sum();
            let given = self.give_time(&mut known, id, &mut taken.refresh, (now, packets, false));
            if resets > 0 || given == Err(Reason::Reset) {
                reset.push(id);
            }
        }
        known.taken = all;
        reset.into_iter().for_each(|id| self.give_back_reset(&mut known, id));
    }

    /// `Err` where the entry has what a RST leaves.
    fn give_time(
        &mut self,
        known: &mut Known,
        id: FlowId,
        refresh: &mut Refresh,
        (now, packets, last): (Nanos, u64, bool),
    ) -> Result<(), Reason> {
        let Some(flow) = known.table.flow(id) else { return Ok(()) };
        let original = *flow.original();
        // What ends has another time, which is the kernel's to choose.
        if original.protocol == protocol::TCP && flow.tcp_state() != Some(TCP_ESTABLISHED) {
            return Ok(());
        }
        let heard = flow.lifetime_s();
        let lifetime = self.lifetimes.of(original.protocol, heard);
        let least = self.lifetimes.least_of(original.protocol, heard);
        let left = match last {
            true => refresh.last(now, packets, lifetime),
            false => refresh.poll(now, packets, (least, lifetime)),
        };
        let Some(left) = left else { return Ok(()) };
        if self.was_reset(&original) {
            return Err(Reason::Reset);
        }
        match self.requests.send(&ctnetlink::refresh(&original, left)) {
            Ok(()) => known.counters.refreshed += 1,
            Err(error) => {
                self.refused("the time", &error);
            }
        }
        Ok(())
    }

    /// Gives every flow back.
    pub(super) fn release_all(&mut self) {
        let shared = self.known.clone();
        let mut known = lock(&shared);
        let ids: Vec<FlowId> = known.taken.keys().copied().collect();
        ids.into_iter().for_each(|id| self.release(&mut known, id, false));
    }
}

/// Ports of next hops, each once, without the first.
fn other_ports(tables: &Tables, toward: Toward<'_>, first: PortId) -> Vec<PortId> {
    let Toward::Several { hops, .. } = toward else { return Vec::new() };
    let mut ports = Vec::new();
    for (_, hop) in adjacencies(tables, hops) {
        if hop.port != first && !ports.contains(&hop.port) && ports.len() < OTHERS_MAX {
            ports.push(hop.port);
        }
    }
    ports
}

/// A port by which packets may leave.
fn any_port(tables: &Tables, toward: Toward<'_>) -> Result<PortId, Reason> {
    let port = match toward {
        Toward::One(port) => Some(port),
        Toward::Several { hops, .. } => adjacencies(tables, hops).next().map(|(_, hop)| hop.port),
    };
    port.ok_or(Reason::NoRoute)
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_core::wire::ctnetlink::Tuple;

    #[test]
    fn the_longest_prefix_says_whether_a_destination_is_the_kernels() {
        let prefix = |text: &str| text.parse::<Prefix>().expect("a prefix");
        let kept = Kept::new([
            (prefix("0.0.0.0/0"), true),
            (prefix("10.0.0.0/8"), false),
            (prefix("10.1.0.0/16"), true),
            (prefix("2001:db8::/32"), true),
        ]);
        for (address, keeps) in [
            ("192.0.2.1", true),
            ("10.2.0.1", false),
            ("10.1.0.1", true),
            ("2001:db8::1", true),
            ("2001:db9::1", false),
        ] {
            assert_eq!(kept.keeps(address.parse().expect("an address")), keeps, "{address}");
        }
        assert!(!Kept::default().keeps(IpAddr::from([10, 0, 0, 1])));
    }

    #[test]
    fn a_flow_with_a_translated_source_has_moved_when_it_leaves_by_another_device() {
        let tuple = |source: &str, port| Tuple {
            source: source.parse().expect("an address"),
            destination: "192.0.2.1".parse().expect("an address"),
            protocol: protocol::UDP,
            source_port: port,
            destination_port: 53,
        };
        let way = |leaves, out| DirectionWay {
            rewrite: Rewrite::new(Direction { arrives: tuple("10.1.0.2", 1000), leaves }),
            in_ifindex: 1,
            in_device: DeviceId(0),
            in_vlan: None,
            in_mac: [0; 6],
            out_ifindex: 2,
            out_device: DeviceId(out),
            out_vlan: None,
            mtu: 1500,
            out_macs: [0; 12],
        };
        assert!(LeftBy::of(&way(tuple("10.1.0.2", 1000), 1)).is_none(), "not translated");
        let left = LeftBy::of(&way(tuple("10.2.0.1", 1000), 1)).expect("translated");
        assert!(left.moved(&way(tuple("10.2.0.1", 1000), 2)));
        assert!(!left.moved(&way(tuple("10.2.0.1", 1000), 1)));
        assert!(!left.moved(&way(tuple("10.3.0.1", 1000), 2)), "another entry");
    }

    #[test]
    fn an_entry_lives_as_long_as_the_kernel_was_heard_to_let_it_and_no_less_than_its_settings() {
        let lifetimes = Lifetimes { tcp_s: 100, tcp_least_s: 30, close_s: 10, udp_s: 20 };
        assert_eq!(
            [(protocol::TCP, 0), (protocol::TCP, 500), (protocol::UDP, 7)].map(|(p, s)| lifetimes.of(p, s)),
            [100, 500, 20]
        );
        assert_eq!(
            [(protocol::TCP, 0), (protocol::TCP, 500), (protocol::UDP, 7)]
                .map(|(p, s)| lifetimes.least_of(p, s)),
            [30, 30, 7]
        );
        assert_eq!(
            [9, 10, 11].map(|left| lifetimes.is_after_reset(left)),
            [false; 3],
            "others leave as little"
        );
        let usual = Lifetimes { tcp_least_s: 300, tcp_s: 432_000, ..lifetimes };
        assert_eq!([9, 10, 11].map(|left| usual.is_after_reset(left)), [true, true, false]);
    }
}
