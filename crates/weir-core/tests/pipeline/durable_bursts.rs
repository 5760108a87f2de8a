//! Bursts at full rate on a machine whose disk is slow: what is reserved before an SA is used lasts until more is on disk.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use crate::testbed::ipsec::{Clear, HERE, THERE, sa, tunnel};
use weir_core::control::{Control, Durable, SaStates};
use weir_core::ipsec::durable::Counters;
use weir_core::ipsec::{Direction, Sa, SaSpec, esp};
use weir_core::router::Event;
use weir_core::state::{Desired, IpsecSpec};
use weir_core::time::{MILLISECOND, Nanos, SECOND};

const WALL: Nanos = 1_800_000_000 * SECOND;
/// A packet of the burst.
const BYTES: u64 = 1400;

/// One SA each way, as a burst meets them.
struct Gateway {
    control: Control,
    sas: [Arc<Sa>; 2],
    now: Nanos,
    /// The image under way is on disk then.
    written: Option<Nanos>,
    numbers: u64,
}

/// What was lost for want of a reservation.
#[derive(Debug, Default, PartialEq, Eq)]
struct Lost {
    out: u64,
    inbound: u64,
}

impl Gateway {
    fn begin(out: SaSpec, inbound: SaSpec) -> Gateway {
        let counters: &'static [Counters] = Box::leak((0..4).map(|_| Counters::default()).collect());
        let state = SaStates { store: [9; 16], ..SaStates::default() };
        let durable = Durable::resume(state, None, &[7; 16]).with_counters(counters).at(0, WALL);
        let tunnels = vec![tunnel("east", &[&out.name], &[&inbound.name])];
        let ipsec = IpsecSpec { sas: vec![out, inbound], tunnels, ..IpsecSpec::default() };
        let desired = Desired { ipsec, ..Desired::default() };
        let mut control = Control::with_state(desired, [], 0, Arc::new(Clear), durable).expect("it is good");
        assert!(control.state_image(0, WALL).is_some(), "nothing is used before it is reserved");
        control.state_written(0, true);
        let tables = control.take_snapshot().expect("a first snapshot");
        let ipsec = tables.ipsec.as_ref().expect("there are SAs");
        let sas = [ipsec.outbound[0].clone(), ipsec.sad.iter().next().expect("one is inbound").sa.clone()];
        Gateway { control, sas, now: 0, written: None, numbers: 0 }
    }

    /// The control thread's turn, on a disk that takes `disk` for an image.
    fn keep(&mut self, disk: Nanos) {
        if self.written.is_some_and(|at| at <= self.now) {
            self.written = None;
            self.control.state_written(self.now, true);
        }
        if self.sas.iter().any(|sa| sa.state.lease.is_due(&sa.state)) {
            self.control.handle_event(self.now, Event::Reserve);
        }
        if self.written.is_none() && self.control.state_image(self.now, WALL + self.now).is_some() {
            self.written = Some(self.now + disk);
        }
    }

    fn rest(&mut self, seconds: u64) {
        for _ in 0..seconds {
            self.now += SECOND;
            self.keep(0);
            self.keep(0);
        }
    }

    /// So many packets each way in every millisecond.
    fn burst(&mut self, packets: u64, length: Nanos, disk: Nanos) -> Lost {
        let mut lost = Lost::default();
        let until = self.now + length;
        while self.now < until {
            self.now += MILLISECOND;
            let [out, inbound] = &self.sas;
            let (_, granted) = esp::take_sequence(out, packets);
            lost.out += packets - granted.min(room(out));
            carried(out, granted);
            let mut taken = 0;
            {
                let mut replay = inbound.state.replay.lock().expect("nobody panicked");
                for _ in 0..packets {
                    self.numbers += 1;
                    taken += u64::from(esp::admit(&inbound.state, &mut replay, self.numbers).is_ok());
                }
                inbound.state.sequence.store(replay.top(), Relaxed);
            }
            lost.inbound += packets - taken.min(room(inbound));
            carried(inbound, taken);
            self.keep(disk);
        }
        lost
    }
}

/// Packets for which packets and bytes are reserved.
fn room(sa: &Sa) -> u64 {
    let (state, lease) = (&sa.state, &sa.state.lease);
    let packets = lease.packets().saturating_sub(state.packets.load(Relaxed));
    packets.min(lease.bytes().saturating_sub(state.bytes.load(Relaxed)) / BYTES)
}

fn carried(sa: &Sa, packets: u64) {
    let packets = packets.min(room(sa));
    sa.state.packets.fetch_add(packets, Relaxed);
    sa.state.bytes.fetch_add(packets * BYTES, Relaxed);
}

fn pair(of: &str) -> [SaSpec; 2] {
    let named = |way, direction, spi, ends| sa(&format!("{of}{way}"), direction, spi, ends);
    [named("out", Direction::Out, 0x1001, (HERE, THERE)), named("in", Direction::In, 0x1002, (THERE, HERE))]
}

#[test]
fn a_burst_by_an_sa_of_the_kernels_waits_for_no_disk_whether_it_is_new_or_has_rested() {
    for rested in [0, 60] {
        let [out, inbound] = pair("kernel:");
        let mut gateway = Gateway::begin(out, inbound);
        gateway.rest(rested);
        // 40 Gb/s of 1,400 bytes, and each image takes the disk 90 ms.
        let lost = gateway.burst(3500, 500 * MILLISECOND, 90 * MILLISECOND);
        assert_eq!(lost, Lost::default(), "after a rest of {rested} s");
    }
}

#[test]
fn a_burst_by_a_new_sa_of_the_files_waits_for_no_disk_and_one_after_a_rest_may() {
    let [out, inbound] = pair("");
    let mut gateway = Gateway::begin(out, inbound);
    // 10 Gb/s, and each image takes the disk 20 ms.
    let burst = |gateway: &mut Gateway| gateway.burst(900, 500 * MILLISECOND, 20 * MILLISECOND);
    assert_eq!(burst(&mut gateway), Lost::default());
    gateway.rest(60);
    let lost = burst(&mut gateway);
    assert_eq!(lost.out, 0);
    assert!(lost.inbound > 0 && lost.inbound < 100_000, "{lost:?}: what a power cut would refuse is little");
}

#[test]
fn what_a_power_cut_takes_of_a_lifetime_is_a_sixteenth_of_it() {
    let reserved = |packets, bytes| {
        let [mut out, inbound] = pair("");
        (out.params.hard.packets, out.params.hard.bytes) = (packets, bytes);
        let gateway = Gateway::begin(out, inbound);
        let lease = &gateway.sas[0].state.lease;
        [lease.packets(), lease.bytes()]
    };
    assert_eq!(reserved(None, None), [1 << 20, 1 << 30]);
    assert_eq!(reserved(Some(1 << 22), Some(1 << 32)), [1 << 18, 1 << 28]);
    assert_eq!(reserved(Some(1000), Some(1000)), [1 << 16, 1 << 26]);
}
