//! The steering program in C decides as the assembled one does: by tables of packets and by random ones.

use std::collections::BTreeMap;
use std::io::Write;
use std::net::IpAddr;
use std::os::fd::{AsFd, FromRawFd, OwnedFd};

use weir_core::packet::DeviceId;
use weir_core::random::SplitMix64;
use weir_core::tables::Owner;
use weir_core::wire::build;
use weir_xdp::layout::{FlowProgress, SteerParams};
use weir_xdp::{LoadError, Loaded, Memory, Mode, STEER};

use super::express::{Decided, Express, progress};
use super::express_program::Lane;
use super::{Cause, LocalAddresses, MAX_QUEUES, PROGRAM_NAME, express, program};
use crate::bpf::attach::{Attachment, XdpMode};
use crate::bpf::object::{LoadedProgram, Map, MapKind, SharedWords};

const OURS: [u8; 6] = [2, 0, 0, 0, 0, 0x0a];
const FAR: [u8; 6] = [2, 0, 0, 0, 0, 0x0b];

/// Both programs over the same tables.
struct Both {
    asm: LoadedProgram,
    counters: Map,
    words: SharedWords,
    express: Express,
    c: Loaded,
    progress: Memory<{ FlowProgress::SIZE }>,
    _kept: (Vec<Map>, LocalAddresses, OwnedFd),
}

fn both(offload: bool, socket: bool) -> Option<Both> {
    let params = SteerParams { flow_offload: offload.into(), device: 3 };
    let mut c = match STEER.load(&[("params", &params.to_bytes())], &[]) {
        Ok(c) => c,
        Err(LoadError::Call { error, .. }) if error.kind() == std::io::ErrorKind::PermissionDenied => {
            let _ = writeln!(std::io::stderr(), "SKIP steer in C: bpf programs need root ({error})");
            return None;
        }
        Err(error) => panic!("{error}"),
    };
    let mut local = LocalAddresses::new().expect("maps");
    let addresses = [
        ("192.0.2.1", Owner::Kernel),
        ("2001:db8::1", Owner::Kernel),
        ("192.0.2.3", Owner::Kernel),
        ("192.0.2.9", Owner::Weir),
        ("fe80::9", Owner::Weir),
    ];
    let ip = |text: &str| -> IpAddr { text.parse().expect("an address") };
    local.set(addresses.map(|(a, owner)| (ip(a), owner))).expect("room");
    let ends = ["192.0.2.1", "2001:db8::1"].map(ip);
    local.set_esp(ends.into(), [4500, 4501].into()).expect("room");
    for (address, owner) in addresses {
        let value = program::owner_value(owner, ends.contains(&ip(address))).to_ne_bytes();
        match ip(address) {
            IpAddr::V4(a) => c.insert("weir_local4", a.octets(), value).expect("inserted"),
            IpAddr::V6(a) => c.insert("weir_local6", a.octets(), value).expect("inserted"),
        }
    }
    for port in [4500, 4501] {
        let key = program::esp_port_key(port).to_ne_bytes();
        c.insert("weir_esp_ports", key, 1u32.to_ne_bytes()).expect("inserted");
    }
    let xsks = Map::new("weir_xsks", MapKind::Xsk, 4, 4, MAX_QUEUES).expect("map");
    let counters = Map::new("weir_counters", MapKind::PerCpuArray, 4, 8, Cause::COUNT as u32).expect("map");
    let (numbers, words) = Map::shared("weir_progress", progress::SIZE).expect("map");
    // SAFETY: socket takes no pointers; a fresh descriptor nobody else owns.
    let xsk = unsafe { OwnedFd::from_raw_fd(libc::socket(libc::AF_XDP, libc::SOCK_RAW, 0)) };
    if socket {
        let fd = std::os::fd::AsRawFd::as_raw_fd(&xsk);
        xsks.update(&0u32.to_ne_bytes(), &fd.to_ne_bytes()).expect("set");
        c.set_socket("weir_xsks", 0, xsk.as_fd()).expect("set");
    }
    let express = Express::new().expect("maps");
    express.set_generation(7).expect("set");
    let lane = Lane { express: &express, device: DeviceId(3), progress: &numbers };
    let maps = program::Maps {
        xsks: &xsks,
        counters: &counters,
        local4: &local.v4,
        local6: &local.v6,
        esp_ports: &local.esp_ports,
    };
    let listing = program::assemble(&maps, offload.then_some(&lane)).expect("whole");
    let asm = LoadedProgram::load(PROGRAM_NAME, &listing).expect("loaded");
    c.take_array::<8>("weir_generation").and_then(|mut g| g.write(&7u64.to_ne_bytes())).expect("set");
    let progress = c.take_array("weir_progress").expect("there");
    Some(Both { asm, counters, words, express, c, progress, _kept: (vec![xsks, numbers], local, xsk) })
}

impl Both {
    fn learn(&mut self, decided: &Decided) {
        self.express.learn(decided).expect("room");
        let value = express::value(decided);
        match (decided.source, decided.destination) {
            (IpAddr::V4(s), IpAddr::V4(d)) => {
                let key: [u8; 8] = [s.octets(), d.octets()].concat().try_into().expect("eight");
                self.c.insert("weir_flows4", key, value).expect("room");
            }
            (IpAddr::V6(s), IpAddr::V6(d)) => {
                let key: [u8; 32] = [s.octets(), d.octets()].concat().try_into().expect("thirty-two");
                self.c.insert("weir_flows6", key, value).expect("room");
            }
            _ => unreachable!("one family"),
        }
    }

    /// Every frame so far has left the router.
    fn done(&mut self, all: bool) {
        use std::sync::atomic::Ordering::Relaxed;
        let steered = self.words.word(0).load(Relaxed);
        let mut progress = FlowProgress::from_bytes(&self.progress.read().expect("readable"));
        assert_eq!(progress.steered, steered, "both number the same frames");
        progress.done = steered - u64::from(!all).min(steered);
        self.words.word(progress::DONE as usize / 8).store(progress.done, Relaxed);
        self.progress.write(&progress.to_bytes()).expect("written");
    }

    /// The same action, frame and counts; the counts so far by cause.
    fn compare(&self, what: &str, frame: &[u8]) -> (u32, Vec<u64>) {
        let (action, left) = self.asm.run(frame, 1);
        let run = self.c.run(frame, 1).expect("runs");
        let number = match run.action {
            weir_xdp::Action::Aborted => 0,
            weir_xdp::Action::Drop => 1,
            weir_xdp::Action::Pass => 2,
            weir_xdp::Action::Tx => 3,
            weir_xdp::Action::Redirect => 4,
            weir_xdp::Action::Other(other) => other,
        };
        assert_eq!((number, run.frame), (action, left), "{what}: {frame:02x?}");
        let asm: Vec<u64> = (0..9).map(|c| self.counters.sum(c).expect("readable")[0]).collect();
        let c: Vec<u64> = (0..9).map(|n| self.c.sum::<1>("weir_counters", n).expect("readable")[0]).collect();
        assert_eq!(c, asm, "{what}: {frame:02x?}");
        (action, asm)
    }

    fn offloaded(&self) -> u64 {
        let asm = self.express.counters(DeviceId(3)).expect("readable");
        let c = self.c.sum::<4>("weir_flow_count", 3).expect("readable");
        assert_eq!(c[..2], [asm.rx_packets, asm.rx_bytes]);
        let out = self.express.counters(DeviceId(1)).expect("readable");
        assert_eq!(
            self.c.sum::<4>("weir_flow_count", 1).expect("readable")[2..],
            [out.tx_packets, out.tx_bytes]
        );
        asm.rx_packets
    }
}

fn decided(source: &str, destination: &str) -> Decided {
    Decided {
        generation: 7,
        source: source.parse().expect("an address"),
        destination: destination.parse().expect("an address"),
        in_ifindex: 1,
        in_mac: OURS,
        out_ifindex: 1,
        out_device: DeviceId(1),
        mtu: 1400,
        out_macs: [2, 0, 0, 0, 0, 0x0d, 2, 0, 0, 0, 0, 0x0c],
    }
}

const PAIRS: [(&str, &str); 2] = [("10.0.0.1", "10.1.0.1"), ("2001:db8:1::1", "2001:db8:2::1")];

/// Well-formed frames, one for each way through the program and more.
fn corpus() -> Vec<Vec<u8>> {
    let frame = |s: &str, d: &str| {
        build::Frame::ip(s.parse().expect("an address"), d.parse().expect("an address"))
            .expect("one family")
            .macs(OURS, FAR)
    };
    let sealed = [0x10; 24];
    let ike = [&[0; 4][..], &sealed].concat();
    let mut frames = Vec::new();
    for (from, to) in [
        PAIRS[0],
        PAIRS[1],
        ("10.0.0.1", "192.0.2.1"),
        ("10.0.0.1", "192.0.2.3"),
        ("10.0.0.1", "192.0.2.9"),
        ("10.0.0.1", "224.0.0.5"),
        ("10.0.0.1", "255.255.255.255"),
        ("10.0.0.1", "240.0.0.1"),
        ("2001:db8:1::1", "2001:db8::1"),
        ("2001:db8:1::1", "ff02::5"),
    ] {
        frames.push(frame(from, to).udp(1000, 2000, b"payload"));
        frames.push(frame(from, to).udp(4500, 4500, &sealed));
        frames.push(frame(from, to).udp(4500, 4501, &ike));
        frames.push(frame(from, to).udp(500, 500, &sealed));
        frames.push(frame(from, to).udp(4500, 4500, &[0xff]));
        frames.push(frame(from, to).raw(50, &sealed));
        frames.push(frame(from, to).raw(6, &sealed));
        frames.push(frame(from, to).fragment(24, false).raw(50, &sealed));
        frames.push(frame(from, to).fragment(0, true).raw(17, &sealed));
        frames.push(frame(from, to).udp(1, 2, &[0; 1400]));
    }
    let v4 = |last: u8| std::net::Ipv4Addr::from([192, 0, 2, last]);
    for last in [1, 9, 77] {
        frames.push(build::arp_request((FAR, v4(2)), v4(last), None));
        let address = |last| std::net::Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, last);
        frames.push(build::neighbor_solicitation((FAR, address(2)), address(last.into()), None));
    }
    frames.push([&frames[0][..12], &[0x88, 0xb5], &[0; 46]].concat());
    let tagged: Vec<Vec<u8>> =
        frames.iter().map(|frame| [&frame[..12], &[0x81, 0, 0, 7], &frame[12..]].concat()).collect();
    frames.extend(tagged);
    frames
}

/// Every frame as it is, then mutations of bytes and lengths.
fn campaign(offload: bool, socket: bool, frames: usize) {
    let Some(mut both) = both(offload, socket) else { return };
    let corpus = corpus();
    let mut random = SplitMix64::new(29);
    let mut actions: BTreeMap<u32, u64> = BTreeMap::new();
    let mut counts = Vec::new();
    for n in 0..frames {
        let mut frame = match corpus.get(n) {
            Some(frame) => frame.clone(),
            None => corpus[random.below(corpus.len() as u64) as usize].clone(),
        };
        if offload && n == 0 {
            PAIRS.iter().for_each(|(s, d)| both.learn(&decided(s, d)));
        }
        if offload && random.below(3) > 0 {
            both.done(random.below(4) > 0);
        }
        if n >= corpus.len() {
            for _ in 0..random.below(3) {
                let at = random.below(frame.len().min(80) as u64) as usize;
                frame[at] = random.next_u64() as u8;
            }
            if random.below(8) == 0 {
                frame.truncate(14 + random.below(frame.len() as u64 - 13) as usize);
            }
            if random.below(2) == 0 && frame.len() >= 34 && frame[12..15] == [8, 0, 0x45] {
                frame[24..26].fill(0);
                let sum: u32 = frame[14..34].chunks(2).map(|w| u32::from(w[0]) << 8 | u32::from(w[1])).sum();
                let sum = !((sum & 0xffff) + (sum >> 16)) as u16;
                frame[24..26].copy_from_slice(&sum.to_be_bytes());
            }
        }
        let (action, now) = both.compare(&format!("frame {n}"), &frame);
        *actions.entry(action).or_default() += 1;
        counts = now;
    }
    let offloaded = both.offloaded();
    let (instructions, stack) = both.c.size().expect("known");
    let by_cause: Vec<String> =
        Cause::ALL.iter().zip(&counts).map(|(cause, n)| format!("{} {n}", cause.name())).collect();
    let _ = writeln!(
        std::io::stderr(),
        "weir_steer (offload {offload}, socket {socket}): {instructions} instructions, {stack} bytes of stack; \
         {frames} frames alike: {}, offloaded {offloaded}, actions {actions:?}",
        by_cause.join(", ")
    );
    assert_eq!(offloaded > frames as u64 / 100, offload);
    for (cause, count) in Cause::ALL.iter().zip(counts) {
        let expected = match cause {
            Cause::Transit | Cause::Esp | Cause::Resolve => socket,
            Cause::NoSocket => !socket,
            // A frame shorter than an Ethernet header cannot be given to a test run; one cut in its tag can.
            _ => true,
        };
        assert_eq!(count > 0, expected, "{}: {count}", cause.name());
    }
}

#[test]
fn c_and_assembler_decide_alike() {
    campaign(false, false, 10_000);
    campaign(false, true, 20_000);
    campaign(true, true, 100_000);
}

#[test]
fn what_a_frame_costs() {
    if std::env::var_os("WEIR_COST").is_none() {
        return;
    }
    for (what, offload, pair) in
        [("transit", false, 0), ("offload v4", true, 0), ("offload v6", true, 1), ("transit v6", false, 1)]
    {
        let Some(mut both) = both(offload, true) else { return };
        for (s, d) in PAIRS {
            let mut decided = decided(s, d);
            decided.out_macs[..6].copy_from_slice(&OURS);
            both.learn(&decided);
        }
        let mut frame = corpus()[pair * 10].clone();
        // A test run keeps what the program wrote: a frame that looks as if it came again, with hops for all rounds.
        if frame[12..14] == [8, 0] {
            frame[22] = 255;
            frame[24..26].fill(0);
            let sum: u32 = frame[14..34].chunks(2).map(|w| u32::from(w[0]) << 8 | u32::from(w[1])).sum();
            let sum = !((sum & 0xffff) + (sum >> 16)) as u16;
            frame[24..26].copy_from_slice(&sum.to_be_bytes());
        } else {
            frame[21] = 255;
        }
        let kept = Attachment::new("lo", 1, &both.asm, &[XdpMode::Generic]).expect("attached");
        let time = |run: &dyn Fn(u32)| {
            let mut all: Vec<f64> = (0..5000)
                .map(|_| {
                    let start = std::time::Instant::now();
                    run(200);
                    start.elapsed().as_nanos() as f64 / 200.0
                })
                .collect();
            all.sort_by(f64::total_cmp);
            (all[0], all[500], all[2500])
        };
        // one frame makes the pair known to the worker, then everything is out
        both.compare("first", &frame);
        both.done(true);
        let asm = time(&|n| drop(both.asm.run(&frame, n)));
        drop(kept);
        both.c.attach(1, Mode::Generic).expect("attached");
        let c = time(&|n| drop(both.c.run(&frame, n).expect("runs")));
        println!("{what}: assembled {asm:.2?}, C {c:.2?}");
    }
}
