//! What a lookup in an SPD costs with the flow cache and without it: clocks a packet.
//!
//! ```text
//! cargo bench -p weir-core --bench spd_cache                   every size, a few seconds
//! cargo bench -p weir-core --bench spd_cache -- --quick        smoke values, as `cargo test --benches` runs it
//! cargo bench -p weir-core --bench spd_cache -- v6 hit         only parts whose name holds every word
//! ```
//!
//! Packets come in batches and match the last of so many rules. *scan* asks the ordered scan packet by packet;
//! *hit* has all flows in the cache, 64 of them or as many as do not fit the nearest caches; *stale* and
//! *collision* find another epoch or another flow in each bucket, ask the scan and teach the cache; *off* is the
//! batch without a cache. All cases of a family take turns; a turn's value is the median of its 16 slices, which
//! are shorter than a scheduler's, so that a neighbour on the same core spoils some slices and not the value.
//! Printed are the best and the median turn, by the clock rate `/proc/cpuinfo` names (nanoseconds where it
//! names none).

use std::hint::black_box;
use std::net::IpAddr;
use std::sync::Arc;

use weir_core::ipsec::spd::{
    AddressRange, Cached, Found, Layer, Lookup, LookupSpec, PolicyIndex, PortRange, Question, RuleSet,
    Selector,
};
use weir_core::ipsec::{Action, Direction, FlowCaches, Spd, SpdId};
use weir_core::packet::BATCH;
use weir_core::wire::build::Frame;
use weir_testing::race::{Case, race};

/// Every parameter, with its smoke value.
struct Size {
    rules: &'static [usize],
    /// Packets of a slice, each of another flow in the cases that are not of few flows; fewer by the rules where
    /// each asks the scan.
    packets: usize,
    buckets: u32,
    repeats: usize,
}

const FULL: Size = Size { rules: &[1, 2, 10, 100, 1000], packets: 1 << 12, buckets: 1 << 16, repeats: 15 };
const SMOKE: Size = Size { rules: &[1, 10], packets: 1 << 7, buckets: 1 << 8, repeats: 2 };

/// Parts of a turn that are timed on their own.
const SLICES: usize = 16;

/// Times the cases in turns and prints best and median of each.
fn print_race(mut cases: Vec<Case<'_>>, size: &Size, rate: f64) {
    let turns = race(&mut cases, SLICES, size.repeats, true);
    for (case, turns) in cases.iter().zip(turns) {
        println!("{:44} {:8.1} {:8.1}", case.name, turns.best * rate, turns.median * rate);
    }
}

/// Clocks a second, or nanoseconds.
fn rate() -> f64 {
    let text = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let line = text.lines().find(|line| line.starts_with("cpu MHz"));
    let mhz: Option<f64> = line.and_then(|line| line.split(':').nth(1)?.trim().parse().ok());
    mhz.map_or(1e9, |mhz| mhz * 1e6)
}

fn host(ipv4: bool, n: u32) -> IpAddr {
    if ipv4 { IpAddr::V4(n.into()) } else { IpAddr::V6((0x2001_0db8_u128 << 96 | u128::from(n)).into()) }
}

/// `rules` rules of which the last matches what [`packets`] gives.
fn rules(ipv4: bool, rules: usize) -> RuleSet {
    let any = PortRange::ANY;
    let last = if ipv4 { AddressRange::ANY_V4 } else { AddressRange::ANY_V6 };
    let rule = |n: usize| {
        let other = AddressRange { first: host(ipv4, n as u32), last: host(ipv4, n as u32) };
        let destination = if n + 1 == rules { last } else { other };
        Selector {
            source: last,
            destination,
            protocol: None,
            source_ports: any,
            destination_ports: any,
            icmp: any,
        }
    };
    RuleSet::new((0..rules).map(|n| (rule(n), PolicyIndex(n as u32))).collect()).with_layer(Layer::Scan)
}

/// Packets of so many flows.
fn packets(ipv4: bool, flows: usize, packets: usize) -> Vec<Vec<u8>> {
    let to = |n: usize| host(ipv4, 0x0a00_0000 + (n % flows) as u32);
    let frame = |n| Frame::ip(host(ipv4, 0x0a63_0001), to(n)).expect("of one family").packet();
    (0..packets).map(|n| frame(n).udp(1000, 2000, &[0; 18])).collect()
}

/// One SPD and the caches it is asked with.
struct Gateway {
    spd: Spd,
    caches: FlowCaches,
    lookup: Lookup,
    found: Vec<Found>,
}

impl Gateway {
    fn new(set: &Arc<RuleSet>, buckets: Option<u32>) -> Gateway {
        let caches = FlowCaches::new(&LookupSpec { caches: [buckets; 4], ..LookupSpec::default() }, 0x5eed);
        let spd = Spd {
            name: String::new(),
            policies: Vec::new(),
            outbound: set.clone(),
            inbound: set.clone(),
            default: Action::Discard,
            epochs: [caches.next_epoch(), caches.next_epoch()],
        };
        Gateway { spd, caches, lookup: Lookup::default(), found: Vec::new() }
    }

    /// Asks about all of `packets`; `fresh` gives the rules a new epoch for each batch.
    fn ask(&mut self, packets: &[Vec<u8>], fresh: bool) -> u64 {
        let mut sum = 0;
        for batch in packets.chunks(BATCH) {
            if fresh {
                self.spd.epochs[Direction::Out as usize] = self.caches.next_epoch();
            }
            let Gateway { spd, caches, lookup, found } = self;
            let question = Question { spd, id: SpdId(0), direction: Direction::Out, caches, oracle: false };
            lookup.find(question, black_box(batch).iter().map(Vec::as_slice), found);
            sum += answers(found);
        }
        sum
    }
}

fn answers(found: &[Found]) -> u64 {
    found.iter().map(|found| found.flatten().map_or(0, |policy| u64::from(policy.0))).sum()
}

fn family(ipv4: bool, size: &Size, wanted: &dyn Fn(&str) -> bool, rate: f64) {
    let few = packets(ipv4, BATCH, size.packets);
    let mut many = packets(ipv4, size.packets, size.packets);
    own_buckets(&mut many, size.buckets);
    let mut cases: Vec<Case<'_>> = Vec::new();
    for &count in size.rules {
        let set = Arc::new(rules(ipv4, count));
        let name = |what: &str| format!("{} {count:>5} {what}", if ipv4 { "v4" } else { "v6" });
        let scans = (size.packets / count.div_ceil(8)).next_multiple_of(BATCH);
        let (few, many, asked) = (&few, &many, &few[..scans]);
        let scanned = set.clone();
        let mut found = Vec::new();
        let slice = Box::new(move |_| scan(&scanned, asked, &mut found));
        cases.push(Case { name: name("scan"), lookups: scans, slice });
        for (what, packets, buckets, fresh) in [
            ("off", asked, None, false),
            ("hit, 64 flows", few, Some(size.buckets), false),
            ("hit, a flow a packet", many, Some(size.buckets), false),
            ("stale", &many[..scans.min(many.len())], Some(size.buckets), true),
            ("collision", &many[..scans.min(many.len())], Some(1), false),
        ] {
            let mut gateway = Gateway::new(&set, buckets);
            let slice = Box::new(move |_| gateway.ask(packets, fresh));
            cases.push(Case { name: name(what), lookups: packets.len(), slice });
        }
    }
    cases.retain(|case| wanted(&case.name));
    print_race(cases, size, rate);
}

/// Keeps packets whose flows share no bucket.
fn own_buckets(packets: &mut Vec<Vec<u8>>, buckets: u32) {
    let mut gateway = Gateway::new(&Arc::new(RuleSet::default()), Some(buckets));
    gateway.ask(packets, false);
    let Gateway { spd, caches, .. } = &gateway;
    let question = Question { spd, id: SpdId(0), direction: Direction::Out, caches, oracle: false };
    packets.retain(|packet| {
        Lookup::explain(question, packet).is_some_and(|explained| matches!(explained.cached, Cached::Hit(_)))
    });
}

fn scan(set: &RuleSet, packets: &[Vec<u8>], found: &mut Vec<Found>) -> u64 {
    let mut sum = 0;
    for batch in packets.chunks(BATCH) {
        found.clear();
        found.extend(black_box(batch).iter().map(|packet| set.find_packet(packet)));
        sum += answers(found);
    }
    sum
}

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let full = args.iter().any(|arg| arg == "--bench") && !args.iter().any(|arg| arg == "--quick");
    let words: Vec<&String> = args.iter().filter(|a| !a.starts_with('-')).collect();
    let wanted = |name: &str| words.iter().all(|word| name.contains(word.as_str()));
    let size = if full { FULL } else { SMOKE };
    println!("clocks a packet: best and median turn");
    for ipv4 in [true, false] {
        family(ipv4, &size, &wanted, rate());
    }
}
