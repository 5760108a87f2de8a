//! ESP that comes before weir has heard of its SA, where keys come from the kernel: bounded, in order, and not for long.

use std::collections::{BTreeMap, HashSet};

use crate::common::sas;
use crate::common::site::*;
use proptest::prelude::*;
use weir_core::packet::DeviceId;
use weir_core::router::{SA_WAIT_FRAMES, SA_WAIT_FRAMES_OF_SPI, SA_WAIT_TIME};
use weir_core::tables::Owner;
use weir_core::time::MILLISECOND;
use weir_core::trace::trace;
use weir_core::verdict::{Reason, Verdict};
use weir_core::wire::build;
use weir_core::wire::flow::FlowKey;

const NEW: u32 = 0x3003;

/// A gateway whose SAs come from the kernel.
fn site() -> Site {
    let mut site = Site::policy_mode(gcm());
    site.awaited = Some(HashSet::new());
    site.publish();
    site
}

/// An SA the far end has and the gateway has not heard of.
fn rekeyed(id: u32, spi: u32) -> Ends {
    inbound(id, spi, &gcm())
}

/// The gateway has it from the next snapshot on.
fn install(site: &mut Site, ends: &Ends) {
    site.more_in.push(ends.here.clone());
    site.policies.iter_mut().for_each(|rule| rule.sas_in.push(ends.here.id));
}

/// Packet `n`, sealed by the far end.
fn sealed(site: &Site, ends: &Ends, n: u8) -> Vec<u8> {
    on_wan(&sas::seal(&ends.there, &site.far_packet(0, &[n; 40])).expect("the far end seals"))
}

/// The numbers of packets that left.
fn numbers(seen: &Seen) -> Vec<u8> {
    seen.sent.iter().map(|(_, bytes)| *bytes.last().expect("a payload")).collect()
}

/// ESP nobody has sealed.
fn forged(spi: u32, destination: &str) -> Vec<u8> {
    let frame = build::Frame::ip(addr(THERE[0]), addr(destination)).expect("one family");
    let mut esp = spi.to_be_bytes().to_vec();
    esp.resize(64, 0);
    on_wan(&frame.packet().raw(50, &esp))
}

#[test]
fn packets_that_came_before_their_sa_are_opened_in_order_when_it_comes() {
    let mut site = site();
    let new = rekeyed(3, NEW);
    for n in 1..=5 {
        let frame = sealed(&site, &new, n);
        let seen = site.w.send(WAN, &frame);
        assert_eq!((seen.sent.len(), seen.local, seen.drops.len()), (0, 0, 0), "{seen:?}");
        let frame = sealed(&site, &site.back, 100 + n);
        assert_eq!(numbers(&site.w.send(WAN, &frame)), [100 + n], "who is known does not wait");
    }
    assert_eq!((site.w.router.held(), site.w.router.ledger().held), (5, 5));
    install(&mut site, &new);
    assert_eq!(numbers(&site.publish()), [1, 2, 3, 4, 5]);
    assert_eq!((site.w.router.held(), site.w.router.ledger().held), (0, 0));
}

#[test]
fn later_packets_do_not_overtake_those_that_waited() {
    let mut site = site();
    let new = rekeyed(3, NEW);
    for n in 1..=3 {
        let frame = sealed(&site, &new, n);
        site.w.send(WAN, &frame);
    }
    install(&mut site, &new);
    let more: Vec<_> = (4..=6).map(|n| (DeviceId(1), sealed(&site, &new, n))).collect();
    // The snapshot is new to the router in the very batch that brings more.
    site.prepare();
    assert_eq!(numbers(&site.w.send_all(&more)), [1, 2, 3, 4, 5, 6]);
}

#[test]
fn what_no_sa_comes_for_is_dropped_when_the_time_is_over() {
    for owner in [Owner::Kernel, Owner::Weir] {
        let mut site = site();
        for address in &mut site.w.net.ports[WAN.index()].addresses {
            address.owner = owner;
        }
        site.publish();
        let frame = sealed(&site, &rekeyed(3, NEW), 1);
        site.w.send(WAN, &frame);
        // A snapshot without the SA ends no wait.
        assert_eq!(site.publish().drops, []);
        assert_eq!(site.w.wait(SA_WAIT_TIME - MILLISECOND).drops, []);
        assert_eq!(site.w.router.held(), 1);
        site.w.wait(MILLISECOND).dropped_silently(Reason::NoSa);
        assert_eq!(site.w.router.held(), 0);
    }
}

#[test]
fn sas_that_only_the_kernel_opens_are_not_waited_for() {
    let mut site = site();
    site.awaited = Some(HashSet::from([(NEW, addr(HERE[0]))]));
    site.publish();
    assert_eq!(site.w.send(WAN, &forged(NEW, HERE[0])).local, 1);
    assert_eq!(site.w.router.held(), 0);
    site.w.send(WAN, &forged(NEW + 1, HERE[0]));
    assert_eq!(site.w.router.held(), 1);
}

#[test]
fn nothing_waits_where_keys_do_not_come_from_the_kernel() {
    let mut site = Site::policy_mode(gcm());
    assert_eq!(site.w.send(WAN, &forged(NEW, HERE[0])).local, 1);
    // Nor at a port where other policies hold, nor what is for somebody else.
    site.awaited = Some(HashSet::new());
    site.publish();
    let lan = |dst: &str| {
        let mut esp = NEW.to_be_bytes().to_vec();
        esp.resize(64, 0);
        frame(LAN, NEAR[0], dst).raw(50, &esp)
    };
    site.w.send(LAN, &lan("10.0.0.1")).dropped(Reason::NoSa);
    assert_eq!(site.w.send(LAN, &lan(FAR[0])).forwarded, 1);
    assert_eq!(site.w.router.held(), 0);
}

#[test]
fn packets_of_ipv6_in_udp_and_in_fragments_wait_too() {
    for (six, params) in [(1, outside6(gcm())), (0, in_udp(gcm()))] {
        let mut site = Site::policy_mode(params.clone());
        site.awaited = Some(HashSet::new());
        site.publish();
        let new = inbound(3, NEW, &params);
        let packet = sas::seal(&new.there, &site.far_packet(six, &[7; 40])).expect("sealed");
        assert_eq!(site.w.send(WAN, &on_wan(&packet)).local, 0);
        assert_eq!(site.w.router.held(), 1);
        install(&mut site, &new);
        assert_eq!(numbers(&site.publish()), [7]);
    }
    let mut site = site();
    let new = rekeyed(3, NEW);
    let packet = sas::seal(&new.there, &site.far_packet(0, &[7; 400])).expect("sealed");
    for (offset, piece) in [(0, &packet[20..220]), (200, &packet[220..])] {
        let whole = build::Frame::ip(addr(THERE[0]), addr(HERE[0])).expect("one family");
        let fragment = whole.packet().ident(9).fragment(offset, offset == 0).raw(50, piece);
        site.w.send(WAN, &on_wan(&fragment));
    }
    assert_eq!((site.w.router.held(), site.w.router.ledger().held), (1, 1), "made whole, it waits");
    install(&mut site, &new);
    assert_eq!(numbers(&site.publish()), [7]);
}

#[test]
fn one_spi_fills_half_of_the_room() {
    let mut site = site();
    let flood = forged(NEW, HERE[0]);
    for _ in 0..SA_WAIT_FRAMES_OF_SPI {
        assert!(site.w.send(WAN, &flood).drops.is_empty());
    }
    site.w.send(WAN, &flood).dropped_silently(Reason::SaWaitFull);
    let new = rekeyed(4, NEW + 1);
    let frame = sealed(&site, &new, 9);
    assert!(site.w.send(WAN, &frame).drops.is_empty());
    install(&mut site, &new);
    assert_eq!(numbers(&site.publish()), [9]);
    assert_eq!(site.w.router.held(), SA_WAIT_FRAMES_OF_SPI);
    let seen = site.w.wait(SA_WAIT_TIME);
    assert_eq!(seen.drops, [(Reason::NoSa, SA_WAIT_FRAMES_OF_SPI as u64)]);
    site.w.send(WAN, &flood);
    assert_eq!(site.w.router.held(), 1, "there is room again");
}

#[test]
fn unknown_spis_without_end_neither_keep_others_out_nor_take_more_room() {
    let mut site = site();
    for n in 0..SA_WAIT_FRAMES as u32 {
        assert!(site.w.send(WAN, &forged(0x1_0000 + n, HERE[0])).drops.is_empty());
    }
    let new = rekeyed(3, NEW);
    let frame = sealed(&site, &new, 5);
    site.w.send(WAN, &frame).dropped_silently(Reason::SaWaitFull);
    for n in 0..SA_WAIT_FRAMES as u32 - 1 {
        site.w.send(WAN, &forged(0x2_0000 + n, HERE[0])).dropped_silently(Reason::SaWaitFull);
    }
    assert_eq!(site.w.router.held(), SA_WAIT_FRAMES);
    let frame = sealed(&site, &site.back, 6);
    assert_eq!(numbers(&site.w.send(WAN, &frame)), [6]);
    install(&mut site, &new);
    assert_eq!(numbers(&site.publish()), [5], "the eldest made room, not the newest");
}

#[test]
fn ending_worker_and_a_snapshot_without_ipsec_give_every_buffer_back() {
    for ends in [true, false] {
        let mut site = site();
        (0..3).for_each(|n| drop(site.w.send(WAN, &forged(NEW + n, HERE[0]))));
        assert_eq!(site.w.router.held(), 3);
        if ends {
            site.w.router.shutdown(&mut site.w.pool);
        } else {
            site.w.net.ipsec = None;
            assert_eq!(site.w.publish().drops, [(Reason::NoSa, 3)]);
        }
        assert_eq!((site.w.router.held(), site.w.router.ledger().balance()), (0, 0));
        assert_eq!((site.w.router.ledger().held, site.w.router.ledger().drops.of(Reason::NoSa)), (0, 3));
    }
}

#[test]
fn a_trace_says_what_is_waited_for() {
    let site = site();
    let device = site.w.tables.ports[WAN.index()].device;
    let told = trace(&site.w.tables, &FlowKey::new(0), device, &forged(NEW, HERE[0]));
    assert_eq!(told.verdict, Verdict::Held);
    let text = told.to_string();
    assert!(
        text.contains("held for its SA, 2 s at most; then: ESP with an SPI that no SA of ours has"),
        "{text}"
    );
}

/// A step of a history.
#[derive(Clone, Copy, Debug)]
enum Step {
    /// A packet of this SA comes.
    Packet(usize),
    Install(usize),
    Wait(u64),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        6 => (0..4usize).prop_map(Step::Packet),
        1 => (0..4usize).prop_map(Step::Install),
        2 => (0..800u64).prop_map(Step::Wait),
    ];
    prop::collection::vec(step, 1..60)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Against a plain list: each packet is opened once its SA is there, unless it waited too long; each SA's in order.
    #[test]
    fn packets_wait_as_a_plain_list_says(steps in steps()) {
        let mut site = site();
        let all: Vec<Ends> = (0..4).map(|n| rekeyed(10 + n, NEW + n)).collect();
        let (mut known, mut waiting) = (HashSet::new(), Vec::<(usize, u8, u64)>::new());
        let mut next = 0u8;
        for step in steps {
            let (seen, mut expected, over) = match step {
                Step::Packet(sa) => {
                    next += 1;
                    let frame = sealed(&site, &all[sa], next);
                    let seen = site.w.send(WAN, &frame);
                    if known.contains(&sa) {
                        (seen, vec![(sa, next)], 0)
                    } else {
                        waiting.push((sa, next, site.w.now + SA_WAIT_TIME));
                        (seen, vec![], 0)
                    }
                }
                Step::Install(sa) => {
                    if known.insert(sa) {
                        install(&mut site, &all[sa]);
                    }
                    let seen = site.publish();
                    let due = waiting.extract_if(.., |w| w.0 == sa);
                    (seen, due.map(|w| (w.0, w.1)).collect(), 0)
                }
                Step::Wait(ms) => {
                    let seen = site.w.wait(ms * MILLISECOND);
                    let now = site.w.now;
                    (seen, vec![], waiting.extract_if(.., |w| w.2 <= now).count() as u64)
                }
            };
            let by_sa = |list: &[(usize, u8)]| {
                let mut of = BTreeMap::<usize, Vec<u8>>::new();
                list.iter().for_each(|&(sa, n)| of.entry(sa).or_default().push(n));
                of
            };
            let left: Vec<(usize, u8)> = numbers(&seen)
                .into_iter()
                .map(|n| (expected.iter().find(|e| e.1 == n).map_or(usize::MAX, |e| e.0), n))
                .collect();
            expected.sort_unstable();
            prop_assert_eq!(by_sa(&left), by_sa(&expected));
            let lost: Vec<_> = Some((Reason::NoSa, over)).into_iter().filter(|_| over > 0).collect();
            prop_assert_eq!((seen.local, seen.drops), (0, lost));
            prop_assert_eq!(site.w.router.held(), waiting.len());
        }
    }
}
