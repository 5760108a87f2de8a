//! Random histories of the kernel's table: whatever is told and however it is lost, nothing is taken that may not be.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::net::{IpAddr, Ipv4Addr};

use super::{Change, Flow, FlowId, FlowTable, Source};
use crate::conntrack::judge::{Known, judge};
use crate::conntrack::{Admission, Direction, Mark, Reason, Way};
use crate::fuzz_input::Input;
use crate::wire::ctnetlink::{Entry, Event, KernelOnly, Labels, Tuple};
use crate::wire::protocol;

/// Entries the table has room for; the kernel has more.
const ROOM: usize = 12;
/// The label that may admit.
const LABEL: u8 = 65;

/// The kernel's table as a list, and what whoever follows it has made of what it heard.
struct Kernel {
    entries: BTreeMap<(Tuple, u32), Known>,
    table: FlowTable,
    /// What was taken and not released.
    taken: BTreeMap<FlowId, Option<[Direction; 2]>>,
    local: HashSet<IpAddr>,
    admission: Admission,
    /// A message was lost, or found no room: the two need not be the same before the next dump.
    lost: bool,
}

fn address(byte: u8) -> IpAddr {
    let hosts = [[10, 0, 0, 2], [10, 0, 0, 3], [192, 0, 2, 1], [198, 51, 100, 1], [224, 0, 0, 1]];
    IpAddr::V4(Ipv4Addr::from(hosts[usize::from(byte) % hosts.len()]))
}

fn tuple(input: &mut Input<'_>) -> Tuple {
    let (ends, ports) = (input.byte(), input.byte());
    Tuple {
        source: address(ends),
        destination: address(ends / 5),
        protocol: if ends & 0x80 == 0 { protocol::TCP } else { protocol::UDP },
        source_port: u16::from(ports & 3),
        destination_port: 1 + u16::from(ports >> 2 & 1),
    }
}

fn entry(input: &mut Input<'_>) -> Entry {
    let (original, reply) = (tuple(input), tuple(input));
    let protocol = original.protocol;
    let what = input.byte();
    let kernel_only = [None, None, None, Some(KernelOnly::Helper)][usize::from(what) % 4];
    Entry {
        original,
        reply: Tuple { protocol, ..reply },
        status: Some([0x18e, 0x18e, 0x18a, 0x188, 0x38e, 0x418e][usize::from(what / 4) % 6]),
        tcp_state: (protocol == protocol::TCP).then_some(3 + (what >> 7)),
        timeout_s: Some(30),
        mark: Some(u32::from(what & 0x30) << 4),
        labels: Some(if what & 0x10 == 0 { Labels::default() } else { Labels::of(LABEL) }),
        kernel_only,
        zone: u32::from(input.byte() & 7 == 0),
        created: true,
    }
}

impl Kernel {
    fn tell(&mut self, event: &Event, heard: bool) {
        let overflowed = self.table.overflowed();
        if heard {
            self.table.observe(event, Source::Event);
        }
        self.lost |= !heard || self.table.overflowed() != overflowed;
        self.follow();
    }

    fn follow(&mut self) {
        // Every entry here is one the kernel tells of.
        for original in self.table.take_touches(usize::MAX) {
            if let Some(known) = self.entries.get(&(original, 0)) {
                self.table.observe(&Event::Present(told(known, false)), Source::Event);
            }
        }
        for change in self.table.take_changes() {
            match change {
                // One that is gone by now is released by the next change.
                Change::Take { id } => {
                    let both = self.table.flow(id).map(Flow::directions);
                    assert!(self.taken.insert(id, both).is_none(), "taken twice");
                }
                Change::Release { id, .. } => {
                    assert!(self.taken.remove(&id).is_some(), "released, but not taken")
                }
            }
        }
    }

    fn dump(&mut self) {
        self.table.begin_resync();
        let entries: Vec<Known> = self.entries.values().copied().collect();
        let overflowed = self.table.overflowed();
        for known in &entries {
            self.table.observe(&Event::Present(told(known, false)), Source::Answer);
        }
        self.table.end_resync();
        self.lost = self.table.overflowed() != overflowed;
        self.follow();
    }

    /// What a table of all entries would take: judged one by one, and against every other.
    fn expected(&self) -> Vec<[Direction; 2]> {
        let local = |address| self.local.contains(&address);
        let admitted = |known: &&Known| judge(known, self.admission, local).is_none();
        let arrivals = |known: &Known| HashSet::from([known.original, known.reply]);
        let mut counts: HashMap<Tuple, usize> = HashMap::new();
        for tuple in self.entries.values().flat_map(arrivals) {
            *counts.entry(tuple).or_default() += 1;
        }
        let alone = |known: &&Known| arrivals(known).iter().all(|tuple| counts[tuple] == 1);
        let taken = self.entries.values().filter(admitted).filter(alone);
        taken.map(|known| Direction::both(&known.original, &known.reply)).collect()
    }

    fn check(&self) {
        let kernel: u64 = self.table.kernel().map(|(_, count)| count).sum();
        assert_eq!(kernel + self.table.xdp(), self.table.len() as u64, "each flow has one way");
        assert!(self.table.len() <= ROOM);
        for (id, flow) in self.table.flows() {
            let waits = flow.way() == Way::Kernel(Reason::Waiting);
            assert_eq!(waits, self.taken.contains_key(&id), "{flow:?}");
        }
        if self.lost {
            return;
        }
        let mut taken: Vec<_> = self.taken.values().flatten().map(|both| both[0].arrives).collect();
        let mut expected: Vec<_> = self.expected().iter().map(|both| both[0].arrives).collect();
        taken.sort_unstable();
        expected.sort_unstable();
        assert_eq!(taken, expected);
    }
}

fn told(known: &Known, created: bool) -> Entry {
    let &Known { original, reply, zone, status, tcp_state, mark, labels, kernel_only } = known;
    let status = Some(status);
    Entry {
        original,
        reply,
        zone,
        status,
        tcp_state,
        mark,
        labels,
        kernel_only,
        timeout_s: Some(30),
        created,
    }
}

fn known(entry: &Entry) -> Known {
    let &Entry { original, reply, zone, status, tcp_state, mark, labels, kernel_only, .. } = entry;
    Known { original, reply, zone, status: status.unwrap_or(0), tcp_state, mark, labels, kernel_only }
}

/// A history from any bytes.
pub fn fuzz_conntrack(data: &[u8]) {
    let mut input = Input(data);
    let mut kernel = Kernel {
        entries: BTreeMap::new(),
        table: FlowTable::new(ROOM),
        taken: BTreeMap::new(),
        local: HashSet::new(),
        admission: Admission::Nothing,
        lost: false,
    };
    for _ in 0..data.len().min(200) / 2 {
        let heard = input.byte() & 15 != 0;
        match input.byte() % 8 {
            0..=2 => {
                let entry = entry(&mut input);
                // The kernel deletes the entry before it makes another of its tuple.
                if let Some(old) = kernel.entries.insert((entry.original, entry.zone), known(&entry)) {
                    kernel.tell(&Event::Gone(told(&old, false)), heard);
                }
                kernel.tell(&Event::Present(entry), heard);
            }
            3 => {
                let nth = usize::from(input.byte()) % kernel.entries.len().max(1);
                let Some(key) = kernel.entries.keys().nth(nth).copied() else { continue };
                let gone = kernel.entries.remove(&key).map(|known| told(&known, false));
                gone.iter().for_each(|gone| kernel.tell(&Event::Gone(*gone), heard));
            }
            4 => {
                let nth = usize::from(input.byte()) % kernel.entries.len().max(1);
                let Some(entry) = kernel.entries.values_mut().nth(nth) else { continue };
                let what = input.byte();
                entry.mark = if what & 1 == 0 { Some(u32::from(what & 0x30) << 4) } else { entry.mark };
                entry.status |= u32::from(what & 0x40);
                let mut told = told(entry, false);
                told.mark = told.mark.filter(|_| what & 1 == 0);
                if what & 2 == 0 {
                    entry.labels = Some(if what & 0x20 == 0 { Labels::default() } else { Labels::of(LABEL) });
                }
                told.labels = entry.labels.filter(|_| what & 2 == 0);
                kernel.tell(&Event::Present(told), heard);
            }
            5 => kernel.dump(),
            6 => {
                kernel.local = (0..input.byte() & 3).map(address).collect();
                kernel.table.set_local(kernel.local.clone());
                kernel.follow();
            }
            _ => {
                let marked = Mark::new(0x100, 0x100).map(Admission::Marked);
                let labelled = Some(Admission::Labelled(LABEL));
                let all = [Some(Admission::Nothing), Some(Admission::Established), marked, labelled];
                kernel.admission = all[usize::from(input.byte()) % 4].unwrap_or_default();
                kernel.table.set_admission(kernel.admission);
                kernel.follow();
            }
        }
        kernel.check();
    }
    kernel.entries.clear();
    kernel.dump();
    kernel.check();
    assert!(kernel.table.is_empty() && kernel.taken.is_empty());
}
