//! `weir_steer` against its model.

use std::io::Write;
use std::mem::offset_of;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::sync::atomic::Ordering::Relaxed;

use weir_core::packet::{DeviceId, Frame};
use weir_core::random::SplitMix64;
use weir_core::tables::Owner;
use weir_xdp::layout::{FLOW_ENFORCED, FLOW_SPREAD, Flow, FlowProgress};
use weir_xdp::{Action, Counters, Loaded};

use super::frames::{PAIRS, SPREAD_PAIRS, TAGGED_PAIRS, corpus};
use super::model::{INGRESS, Model, WAYS};
use super::{OURS, checksum, frame, ip, local, mutated};
use crate::steer::flow_offload::{Arrives, Decided, FlowOffload, Leaves, Progress};
use crate::steer::{Cause, LocalAddresses, enforce, load};
use crate::xdp_gen::{FrameTemplate, Generator, Layout};

const DEVICE: DeviceId = DeviceId(3);
const OUT: DeviceId = DeviceId(1);
/// Numbers that policies count under.
const POLICIES: [DeviceId; 2] = [DeviceId(300), DeviceId(511)];
const GENERATION: u64 = 7;
/// The VLAN of frames of the corpus.
const TAG: u16 = 7;
/// Flows of [`SPREAD_PAIRS`] that have a way: datagrams from 1000 to 2000, and ESP.
const FLOWS: [(u8, u32); 2] = [(17, 1000 << 16 | 2000), (50, 0)];

/// The program, the model, and the tables of both.
struct Both {
    program: Loaded,
    counters: Counters<1>,
    progress: Progress,
    offload: FlowOffload,
    model: Model,
    local: LocalAddresses,
    /// Numbers are in fronts, and how many were.
    fronts: bool,
    seen_fronts: usize,
    _socket: OwnedFd,
}

/// Frames longer than this get no front here.
const FRONT_ROOM: usize = 100;

fn both(test: &str, offloads: bool, socket: bool) -> Option<Both> {
    let local = local(test)?;
    let offload = FlowOffload::new().expect("maps");
    let mut program = load(&local, offloads.then_some(&offload), None).expect("loaded");
    // SAFETY: socket takes no pointers; a fresh descriptor nobody else owns.
    let xsk = unsafe { OwnedFd::from_raw_fd(libc::socket(libc::AF_XDP, libc::SOCK_RAW, 0)) };
    // Kernels from 7.x on take no socket without a ring to receive on.
    let entries: libc::c_int = 64;
    let size = size_of_val(&entries) as libc::socklen_t;
    // SAFETY: the kernel reads `size` bytes at the pointer, which are `entries`.
    let set = unsafe {
        libc::setsockopt(xsk.as_raw_fd(), libc::SOL_XDP, libc::XDP_RX_RING, (&raw const entries).cast(), size)
    };
    assert_eq!(set, 0, "{}", std::io::Error::last_os_error());
    let mut sockets = program.maps.sockets("weir_xsks").expect("there");
    if socket {
        sockets.set(0, xsk.as_fd()).expect("set");
    }
    let counters = program.maps.counters("weir_counters").expect("there");
    let progress = Progress::of(&program).expect("mapped");
    let model = Model { offload: offloads, socket, device: DEVICE.0.into(), ..Model::default() };
    let (fronts, seen_fronts) = (false, 0);
    Some(Both { program, counters, progress, offload, model, local, fronts, seen_fronts, _socket: xsk })
}

impl Both {
    fn in_force(&mut self, generation: u64) {
        self.offload.set_generation(generation);
        self.model.generation = generation;
    }

    fn follow_policies(&mut self, followed: bool) {
        self.offload.follow_policies_until(if followed { u64::MAX } else { 0 });
        self.model.policies_followed = followed;
    }

    /// Numbers frames in a front, as on a driver without metadata.
    fn in_fronts(&mut self) {
        self.fronts = true;
        self.progress.allow_fronts(FRONT_ROOM + 14);
        self.progress.word(offset_of!(FlowProgress, front_always) / 8).store(1, Relaxed);
    }

    fn insert(&mut self, (source, destination): (&str, &str), change: impl Fn(&mut Decided)) {
        let mut decided = Decided {
            generation: GENERATION,
            source: ip(source),
            destination: ip(destination),
            flow: None,
            arrives: Arrives { ifindex: INGRESS, queue: 0, device: DEVICE, vlan: None, mac: OURS },
            leaves: Leaves {
                ifindex: 1,
                device: OUT,
                vlan: None,
                queue: 0,
                far_queues: 0,
                mtu: 1400,
                macs: [2, 0, 0, 0, 0, 0x0d, 2, 0, 0, 0, 0, 0x0c],
            },
            policies: None,
        };
        change(&mut decided);
        self.offload.insert(&decided).expect("room");
        let Decided { generation, arrives, leaves, policies, .. } = decided;
        let flags = if policies.is_some() { FLOW_ENFORCED as u16 } else { 0 };
        let [in_policy, out_policy] =
            policies.unwrap_or_default().map(|number| number.map_or(0, |number| number.0));
        let flow = Flow {
            generation,
            in_ifindex: arrives.ifindex,
            out_ifindex: 1,
            mtu: 1400,
            out_device: OUT.0.into(),
            in_mac: OURS,
            tag: leaves.vlan.unwrap_or(0).to_be_bytes(),
            in_vlan: arrives.vlan.unwrap_or(0),
            out_macs: leaves.macs,
            in_device: DEVICE.0.into(),
            flags,
            in_policy,
            out_policy,
            ..Flow::default()
        };
        let pair = (decided.source, decided.destination);
        self.model.flows.entry((pair, decided.flow)).or_insert(flow);
        if decided.flow.is_some() {
            let spread = Flow { generation, flags: FLOW_SPREAD as u16, ..Flow::default() };
            self.model.flows.entry((pair, None)).or_insert(spread);
        }
    }

    /// The worker says how far it is.
    fn done(&mut self, number: u64) {
        self.progress.done(number);
        self.model.done = number;
    }

    fn compare(&mut self, what: &str, frame: &[u8]) {
        let (action, expected) = self.model.run(frame);
        let mut run = self.program.run(frame, 1).expect("runs");
        let before: Vec<u8> = run.frame.drain(..run.frame.len().saturating_sub(expected.len())).collect();
        let fronted =
            self.fronts && action == Action::Redirect && expected == frame && frame.len() <= FRONT_ROOM;
        match before.len() {
            14 => {
                let mut front =
                    Frame::from_bytes(vec![0; 2048].into_boxed_slice(), &before, DEVICE).expect("room");
                let number = self.progress.number(&mut front, self.model.steered - 1);
                assert_eq!(
                    (number, front.len(), &before[12..]),
                    (Some(self.model.steered), 0, &[0x88, 0xb5][..])
                );
                self.seen_fronts += 1;
            }
            // Linux 6.18 shows what stands before the frame: the number it was given.
            8 => assert_eq!(before, self.model.steered.to_ne_bytes(), "{what}"),
            other => assert_eq!(other, 0, "{what}"),
        }
        assert_eq!(before.len() == 14, fronted, "{what}: {frame:02x?}");
        let header = if expected.get(12..14) == Some(&[0x81, 0]) { 18 } else { 14 };
        if expected != frame && expected[header - 2..header] == [8, 0] {
            // Two ways to write one checksum (RFC 1624 3): either is right.
            assert_eq!(checksum(&run.frame[header..header + 20]), 0xffff, "{what}: {frame:02x?}");
            let sum = header + 10..header + 12;
            run.frame[sum.clone()].copy_from_slice(&expected[sum]);
        }
        assert_eq!((run.action, run.frame), (action, expected), "{what}: {frame:02x?}");
        assert_eq!(
            self.progress.word(offset_of!(FlowProgress, steered) / 8).load(Relaxed),
            self.model.steered,
            "{what}"
        );
    }

    fn compare_counters(&self) {
        for &cause in Cause::ALL {
            let counted = self.counters.sum(cause as u32).expect("readable");
            let expected = self.model.causes.get(cause.name()).copied().unwrap_or(0);
            assert_eq!(counted, [expected], "{}", cause.name());
        }
        for device in [DEVICE, OUT].into_iter().chain(POLICIES) {
            let expected = self.model.counters.get(&device.0.into()).copied().unwrap_or_default();
            assert_eq!(self.offload.counters(device).expect("readable"), expected);
        }
    }
}

/// Every frame of the corpus, then mutations of bytes and lengths, while tables and worker move on.
fn campaign(test: &str, offloads: bool, socket: bool, frames: usize) {
    campaign_of(test, offloads, socket, frames, |_| {});
}

fn campaign_of(test: &str, offloads: bool, socket: bool, frames: usize, set: fn(&mut Both)) -> Option<Both> {
    let mut both = both(test, offloads, socket)?;
    set(&mut both);
    let corpus = corpus();
    let mut random = SplitMix64::new(29);
    both.in_force(GENERATION);
    for n in 0..frames {
        if n == corpus.len() {
            both.insert(PAIRS[0], |_| {});
            both.insert(PAIRS[1], |decided| {
                decided.leaves.vlan = Some(9);
                decided.policies = Some([Some(POLICIES[1]), None]);
            });
            both.insert(PAIRS[2], |decided| decided.arrives.ifindex += 1);
            both.insert(TAGGED_PAIRS[0], |decided| decided.arrives.vlan = Some(TAG));
            both.insert(TAGGED_PAIRS[1], |decided| {
                (decided.arrives.vlan, decided.leaves.vlan) = (Some(TAG), Some(9));
            });
            for (pair, flow) in SPREAD_PAIRS.into_iter().flat_map(|pair| FLOWS.map(|flow| (pair, flow))) {
                both.insert(pair, |decided| {
                    decided.flow = Some(flow);
                    // Those of one protocol are counted where they come in too.
                    decided.policies =
                        Some([(flow.0 == FLOWS[0].0).then_some(POLICIES[0]), Some(POLICIES[1])]);
                });
            }
        }
        if random.below(3) > 0 {
            let behind = u64::from(random.below(4) == 0);
            both.done(both.model.steered.saturating_sub(behind));
        }
        if random.below(64) == 0 {
            both.in_force(GENERATION + random.below(8) / 7);
            both.follow_policies(random.below(8) > 0);
        }
        let round = n / corpus.len();
        let frame = if round < 4 { corpus[n % corpus.len()].clone() } else { mutated(&corpus, &mut random) };
        both.compare(&format!("frame {n}"), &frame);
        if n % 1000 == 999 {
            both.compare_counters();
        }
    }
    both.compare_counters();
    let (instructions, stack) = both.program.size().expect("known");
    let Model { causes, ways, .. } = &both.model;
    let _ = writeln!(
        std::io::stderr(),
        "weir_steer (offload {offloads}, socket {socket}): {instructions} instructions, {stack} bytes of stack; \
         {frames} frames as described: {causes:?}, {ways:?}"
    );
    for &cause in Cause::ALL {
        let expected = match cause {
            Cause::Transit | Cause::Esp | Cause::Resolve => socket,
            Cause::NoSocket => !socket,
            // Only where the firewall stays the kernel's.
            Cause::Conntrack => false,
            _ => true,
        };
        assert_eq!(causes.contains_key(cause.name()), expected, "{}", cause.name());
    }
    for way in WAYS {
        assert_eq!(ways.contains_key(way), offloads, "{way}");
    }
    assert!(instructions < if offloads { 2100 } else { 320 } && stack <= 128);
    Some(both)
}

#[test]
fn frames_go_where_the_kernel_and_the_router_expect_them() {
    let test = "frames_go_where_the_kernel_and_the_router_expect_them";
    campaign(test, false, false, 10_000);
    campaign(test, false, true, 20_000);
}

#[test]
fn a_flow_is_offloaded_as_the_router_would_forward_it_and_held_for_every_reason() {
    let test = "a_flow_is_offloaded_as_the_router_would_forward_it_and_held_for_every_reason";
    campaign(test, true, true, 100_000);
}

#[test]
fn where_there_is_no_metadata_a_front_has_the_number_and_the_kernel_never_sees_it() {
    let test = "where_there_is_no_metadata_a_front_has_the_number_and_the_kernel_never_sees_it";
    let Some(both) = campaign_of(test, true, true, 20_000, Both::in_fronts) else { return };
    let _ = writeln!(std::io::stderr(), "{} fronts", both.seen_fronts);
    assert!(both.seen_fronts > 1000);
    let both = campaign_of(test, true, false, 20_000, Both::in_fronts).expect("as above");
    assert_eq!(both.seen_fronts, 0, "without a socket the kernel gets every frame as it came");
}

#[test]
fn what_follows_a_packet_in_its_frame_stays_behind() {
    let Some(mut both) = both("what_follows_a_packet_in_its_frame_stays_behind", true, true) else { return };
    both.in_force(GENERATION);
    for (from, to) in [PAIRS[0], PAIRS[1]] {
        both.insert((from, to), |_| {});
        let whole = frame(from, to).udp(1000, 2000, b"x");
        both.compare("the first of a pair goes to the router", &whole);
        both.done(both.model.steered);
        let padded = [&whole[..], b"left in a card's memory"].concat();
        both.compare("padded", &padded);
        assert_eq!(both.program.run(&padded, 1).expect("runs").frame.len(), whole.len(), "{from} to {to}");
        both.model.run(&padded);
    }
    both.compare_counters();
    assert_eq!(both.model.ways["offloaded"], 4);
}

#[test]
fn a_prefix_is_left_to_the_kernel_as_long_as_it_is_kept() {
    let test = "a_prefix_is_left_to_the_kernel_as_long_as_it_is_kept";
    let Some(mut both) = both(test, false, true) else { return };
    let [v4, v6] = ["203.0.113.0/24", "2001:db8:f::/48"].map(|p| (p.parse().expect("a prefix"), true));
    let frames = [("10.0.0.1", "203.0.113.9"), ("2001:db8:1::1", "2001:db8:f::1")]
        .map(|(from, to)| frame(from, to).udp(1000, 2000, b"payload"));
    let mut kept_and_transit = |wanted: &[_], keep| {
        let local = &mut both.local;
        if keep { local.keep(wanted) } else { local.set_kept(wanted) }.expect("room");
        let before = [Cause::Kept, Cause::Transit].map(|c| both.counters.sum(c as u32).expect("readable")[0]);
        for frame in &frames {
            both.program.run(frame, 1).expect("runs");
        }
        let after = [Cause::Kept, Cause::Transit].map(|c| both.counters.sum(c as u32).expect("readable")[0]);
        [after[0] - before[0], after[1] - before[1]]
    };
    assert_eq!(kept_and_transit(&[], false), [0, 2], "nothing is kept");
    assert_eq!(kept_and_transit(&[v6], true), [1, 1], "one family alone");
    assert_eq!(kept_and_transit(&[v4], true), [2, 0], "those of before stay");
    assert_eq!(kept_and_transit(&[v4], false), [1, 1], "exactly these");
    assert_eq!(kept_and_transit(&[], false), [0, 2], "nothing again");
}

#[test]
fn programs_load_in_any_order() {
    let Some(local) = local("programs_load_in_any_order") else { return };
    let slot = FrameTemplate { head: vec![0; 60], len: 60, sequence: 0 };
    for _ in 0..2 {
        let offload = FlowOffload::new().expect("maps");
        // Of full size, though a program that shares them made its own with one entry.
        offload.counters(DeviceId(255)).expect("of every device");
        Generator::new(1, Layout::default(), std::slice::from_ref(&slot), 1).expect("loaded");
        let mut many = LocalAddresses::new().expect("maps behind a program with other constants");
        let addresses = (0..100).map(|n| (std::net::IpAddr::from([10, 0, 0, n]), Owner::Weir));
        assert_eq!(many.set(addresses).expect("room"), 100);
        load(&local, None, None).expect("loaded");
        load(&local, Some(&offload), None).expect("loaded");
        enforce::load(&local).expect("loaded");
    }
}
