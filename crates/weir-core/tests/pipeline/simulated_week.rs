//! A week of two gateways on virtual time: something changes every second and keys every minute, the wire loses a packet in a
//! hundred, repeats some and brings what strangers made of others, links fail, and wishes that cannot be are refused.
//!
//! `WEIR_WEEK_SECONDS` says how long (`make simulated-week`), an hour where nobody does; `WEIR_FUZZ_SEED` chooses the same again.
//! Every packet of a host comes once, in order, but for what the wire lost; nothing that a stranger made, and nothing twice. The
//! books balance each second, and at the end a gateway holds what it held at the beginning.

use std::collections::VecDeque;

use weir_core::ipsec::spd::Action;
use weir_core::state::{Desired, SpdSpec};
use weir_core::time::{Nanos, SECOND};
use weir_core::verdict::Reason;
use weir_testing::fuzz::{Random, seed};
use weir_testing::process::resident;

use crate::testbed::control::{address, link, port, route};
use crate::testbed::gateway::{BUFFERS, Gateway, make, outer, remove, switch};
use crate::testbed::ipsec::{policy, spd};

const SHORT: u64 = 3_600;
const MINUTE: u64 = 60;
/// Packets of a host a second.
const LOAD: u64 = 3;
/// One packet in so many is lost, one is repeated at once, one is changed by a stranger.
const ONE_IN: usize = 100;
/// Packets on the wire that a stranger keeps, to send them again.
const KEPT: usize = 4_096;
const ROUTES: usize = 64;
const POLICIES: usize = 20;
/// What the allocator may keep of the largest moment, in a week as in an hour.
const SLACK: u64 = 8 << 20;
/// What is remembered of an SA that was used, so that its key is never started again: at most so many bytes, of the last 131,072.
const REMEMBERED: u64 = 1 << 10;

/// What a frame on the wire is.
#[derive(Clone)]
enum Comes {
    Once(u64),
    Again,
    Forged,
}

/// A gateway, what is on its way to it, and what a stranger kept of that.
struct Side {
    gateway: Gateway,
    inbox: Vec<(Vec<u8>, Comes)>,
    /// What comes a second later.
    far: Vec<(Vec<u8>, Comes)>,
    kept: VecDeque<Vec<u8>>,
    /// Its WAN has no carrier.
    is_cut: bool,
    sent: u64,
    arrived: u64,
    refused: u64,
    changes: u64,
}

impl Side {
    fn new(site: u8) -> Side {
        let mut gateway = Gateway::new(site);
        gateway.desired.ports.push(port("dmz", "eth2", &[&format!("10.{site}.64.1/24")]));
        gateway.control.link_changed(0, link("eth2", true));
        gateway.apply(0);
        let (inbox, far, kept) = (Vec::new(), Vec::new(), VecDeque::new());
        Side { gateway, inbox, far, kept, is_cut: false, sent: 0, arrived: 0, refused: 0, changes: 0 }
    }

    /// One of the changes an operator makes, or one that is none.
    fn change(&mut self, now: Nanos, random: &mut Random) {
        let site = self.gateway.site;
        self.changes += 1;
        let wish = &mut self.gateway.desired;
        match random.below(8) {
            0 | 1 => {
                wish.routes.truncate(1);
                for n in 0..random.below(ROUTES) {
                    let hop = if random.below(2) == 0 { "@east".into() } else { outer(3 - site) };
                    wish.routes.push(route(&format!("198.18.{n}.0/24"), &[&hop]));
                }
            }
            2 => wish.neighbors[1].mac[5] = random.below(256) as u8,
            3 => wish.ipsec.spds = vec![dmz(site, random.below(POLICIES))],
            4 => wish.ipsec.spds.clear(),
            5 => wish.ipsec.tunnels[0].mtu = [None, Some(1400), Some(1280)][random.below(3)],
            6 => {
                let addresses = &mut wish.ports[2].addresses;
                match addresses.len() {
                    1 => addresses.push(address(&format!("10.{site}.65.1/24"))),
                    _ => addresses.truncate(1),
                }
            }
            _ => return self.refuse(now),
        }
        self.gateway.apply(now);
    }

    /// A wish that cannot be is refused, and nothing of it is done.
    fn refuse(&mut self, now: Nanos) {
        let before = self.gateway.control.desired().clone();
        let mut wish: Desired = before.clone();
        wish.routes.push(route("203.0.113.0/24", &["@nowhere"]));
        assert!(self.gateway.control.apply(now, wish).is_err());
        assert_eq!(self.gateway.control.desired(), &before);
        self.refused += 1;
    }

    fn cut(&mut self, now: Nanos, is_cut: bool) {
        if self.is_cut != is_cut {
            self.is_cut = is_cut;
            self.gateway.control.link_changed(now, link("eth1", !is_cut));
        }
    }

    /// Receives what is on the wire to it.
    fn receive(&mut self, now: Nanos) {
        let far = std::mem::take(&mut self.far);
        let inbox = std::mem::replace(&mut self.inbox, far);
        if self.is_cut {
            // what never came would be no replay
            self.kept.retain(|kept| inbox.iter().all(|(bytes, _)| bytes != kept));
            return;
        }
        let frames: Vec<Vec<u8>> = inbox.iter().map(|(bytes, _)| bytes.clone()).collect();
        let [lan, wan] = self.gateway.breathe(now, 1, &frames);
        let came: Vec<u64> = lan.iter().map(|frame| number(frame)).collect();
        let due: Vec<u64> =
            inbox.iter().filter_map(|(_, c)| if let Comes::Once(n) = c { Some(*n) } else { None }).collect();
        assert_eq!(came, due, "site {} at {} s", self.gateway.site, now / SECOND);
        assert!(wan.is_empty(), "nobody is told of what strangers send");
        self.arrived += came.len() as u64;
    }

    /// Sends its hosts' packets; what is sealed of them.
    fn send(&mut self, now: Nanos) -> Vec<(Vec<u8>, u64)> {
        let numbers: Vec<u64> = (self.sent..self.sent + LOAD).collect();
        self.sent += LOAD;
        let load: Vec<Vec<u8>> = numbers.iter().map(|&n| self.gateway.load(n)).collect();
        let [lan, sealed] = self.gateway.breathe(now, 0, &load);
        if self.is_cut {
            assert!(sealed.is_empty(), "a link without carrier takes none");
            assert_eq!(lan.len() as u64, 0, "hosts are not told of a link that is down");
            return Vec::new();
        }
        assert_eq!(sealed.len() as u64, LOAD, "site {} at {} s", self.gateway.site, now / SECOND);
        sealed.into_iter().zip(numbers).collect()
    }

    /// What the wire makes of packets on their way to it.
    fn carry(&mut self, sealed: Vec<(Vec<u8>, u64)>, random: &mut Random) {
        for (bytes, number) in sealed {
            if random.below(ONE_IN) == 0 {
                continue;
            }
            if self.kept.len() == KEPT {
                self.kept.pop_front();
            }
            self.kept.push_back(bytes.clone());
            if random.below(ONE_IN) == 0 {
                let mut forged = bytes.clone();
                let at = 34 + random.below(forged.len() - 34);
                forged[at] ^= 1 << random.below(8);
                self.far.push((forged, Comes::Forged));
            }
            self.far.push((bytes.clone(), Comes::Once(number)));
            if random.below(ONE_IN) == 0 {
                self.far.push((bytes, Comes::Again));
            }
        }
        if random.below(ONE_IN / 2) == 0 && !self.kept.is_empty() {
            let again = random.below(self.kept.len());
            self.far.push((self.kept[again].clone(), Comes::Again));
        }
    }

    /// It holds what it needs and no more.
    fn check(&self, now: Nanos) {
        let Gateway { pool, router, tables, control, .. } = &self.gateway;
        assert_eq!(pool.free() + router.held(), BUFFERS, "a buffer is gone");
        let ipsec = tables.ipsec.as_ref().expect("configured");
        assert!(ipsec.sad.iter().count() <= 2, "one in use and one that drains");
        assert!(control.sas(now).len() <= 4);
        // what a stranger sends, and what has no link to leave by: its network's route went with it
        let allowed = |reason: Reason| {
            use Reason::{IntegrityFailed, NoRoute, NoSa, ReplayTooOld, Replayed};
            matches!(reason, IntegrityFailed | NoRoute | NoSa | ReplayTooOld | Replayed)
        };
        let odd: Vec<_> = router.ledger().drops.nonzero().filter(|(reason, _)| !allowed(*reason)).collect();
        assert_eq!(odd, [], "site {}", self.gateway.site);
    }
}

/// The number a datagram has in its last eight bytes.
fn number(frame: &[u8]) -> u64 {
    frame.last_chunk().copied().map(u64::from_be_bytes).expect("eight bytes")
}

fn dmz(site: u8, policies: usize) -> SpdSpec {
    let local = format!("10.{site}.64.0/24");
    let each = |n: usize| {
        let action = if n.is_multiple_of(2) { Action::Bypass } else { Action::Discard };
        policy(&format!("p{n}"), action, &local, &format!("203.0.113.{n}"))
    };
    spd("dmz-policies", &["dmz"], &(0..policies).map(each).collect::<Vec<_>>())
}

#[test]
fn two_gateways_that_change_every_second_carry_on_and_hold_no_more_at_the_end() {
    let told: Option<u64> = std::env::var("WEIR_WEEK_SECONDS").ok().and_then(|text| text.parse().ok());
    let seconds = told.unwrap_or(SHORT);
    let mut random = Random::new(seed());
    let mut sides = [Side::new(1), Side::new(2)];
    let mut after_a_third = u64::MAX;
    for second in 1..=seconds {
        let now = second * SECOND;
        let (minute, phase) = ((second / MINUTE) as u32, second % MINUTE);
        for side in &mut sides {
            let site = side.gateway.site;
            match phase {
                0 => make(&mut side.gateway.desired, site, minute),
                // what was sealed with the old keys is on its way
                1 if minute > 0 => {
                    switch(&mut side.gateway.desired, site, minute);
                    remove(&mut side.gateway.desired, minute - 1);
                }
                _ => continue,
            }
            side.gateway.apply(now);
        }
        // a wire that is cut stays so for a second
        let cut = random.below(ONE_IN);
        for (n, side) in sides.iter_mut().enumerate() {
            side.cut(now, cut == n);
        }
        sides[random.below(2)].change(now, &mut random);
        for n in 0..2 {
            sides[n].receive(now);
            let sealed = sides[n].send(now);
            sides[1 - n].carry(sealed, &mut random);
            sides[n].check(now);
        }
        if second == seconds / 3 {
            after_a_third = resident("self");
        }
    }
    let [west, east] = &sides;
    let lost: u64 = sides.iter().map(|side| side.sent).sum::<u64>() - (west.arrived + east.arrived);
    assert!(lost < (west.sent + east.sent) / 20, "{lost} lost of {}", west.sent + east.sent);
    assert!(west.refused + east.refused > seconds / 16);
    if told.is_some() {
        // only this test runs then
        let grown = resident("self").saturating_sub(after_a_third);
        let rekeys = 2 * (seconds - seconds / 3) / MINUTE;
        let known = 2 * rekeys * REMEMBERED;
        assert!(grown < SLACK + known, "{grown} bytes more than after a third");
        println!(
            "{seconds} s on virtual time, seed {}: {} packets sent, {} came, {} changes, {} refused, {rekeys} rekeys in the last two thirds, {grown} bytes grown in them",
            seed(),
            west.sent + east.sent,
            west.arrived + east.arrived,
            west.changes + east.changes,
            west.refused + east.refused
        );
    }
}
