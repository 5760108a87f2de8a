//! Sequence numbers over many lives of a gateway whose disk loses what was not synced.
//!
//! Each life resumes from what the last one left, gives out and takes numbers as workers do, has its images
//! written late, never, or torn by the end, and ends by a kill, a power cut or in order. Promises of the code
//! under test, all of it the code of the daemon but for the disk: no number of a key is given out twice, none
//! is taken twice, used lifetimes never shrink. `WEIR_LIVES` and `WEIR_LIVES_PACKETS` make it a campaign.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use crate::testbed::ipsec::{Clear, HERE, THERE, sa, tunnel};
use weir_core::control::{Control, Disk, Durable, SaStates, save};
use weir_core::ipsec::durable::Counters;
use weir_core::ipsec::{Direction, Sa, esp};
use weir_core::state::{Desired, IpsecSpec};
use weir_core::time::{MILLISECOND, Nanos, SECOND};

/// SplitMix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }

    fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }
}

/// A file and one beside it; what was not synced is lost when the power fails.
#[derive(Clone, Debug)]
struct SimDisk {
    /// What readers see now.
    file: Vec<u8>,
    file_is_synced: bool,
    /// What a power cut leaves, while a rename was not synced.
    before: Option<Vec<u8>>,
    beside: Option<(Vec<u8>, bool)>,
    /// Steps until the end, or until the disk fails.
    steps: Option<u64>,
}

#[derive(Debug)]
struct Failed;

impl SimDisk {
    fn step(&mut self) -> Result<(), Failed> {
        match &mut self.steps {
            Some(0) => Err(Failed),
            Some(n) => {
                *n -= 1;
                Ok(())
            }
            None => Ok(()),
        }
    }

    fn cut_power(&mut self, random: &mut Random) {
        if let Some(before) = self.before.take()
            && random.one_in(2)
        {
            self.file = before;
        } else if !self.file_is_synced {
            let len = random.below(self.file.len() as u64 + 1);
            self.file.truncate(len as usize);
        }
        self.file_is_synced = true;
        self.beside = None;
    }
}

impl Disk for SimDisk {
    type Error = Failed;

    fn write_beside(&mut self, image: &[u8]) -> Result<(), Failed> {
        self.step()?;
        self.beside = Some((image.to_vec(), false));
        Ok(())
    }

    fn sync_beside(&mut self) -> Result<(), Failed> {
        self.step()?;
        self.beside.as_mut().expect("written before").1 = true;
        Ok(())
    }

    fn rename(&mut self) -> Result<(), Failed> {
        self.step()?;
        let (file, synced) = self.beside.take().expect("written before");
        let old = std::mem::replace(&mut self.file, file);
        if self.file_is_synced && self.before.is_none() {
            self.before = Some(old);
        }
        self.file_is_synced = synced;
        Ok(())
    }

    fn sync_folder(&mut self) -> Result<(), Failed> {
        self.step()?;
        self.before = None;
        Ok(())
    }
}

/// What all lives together have used; the judge.
#[derive(Default)]
struct Seen {
    /// The highest number given out, IVs being numbers added to a constant.
    given: u64,
    first_iv: Option<u64>,
    packets: u64,
    bytes: u64,
    taken: HashSet<u64>,
    highest_taken: u64,
    /// The peer's counter.
    peer: u64,
    refused_by_lease: u64,
}

struct World {
    disk: SimDisk,
    counters_file: Option<Vec<u8>>,
    boot: [u8; 16],
    now: Nanos,
    seen: Seen,
    random: Random,
}

fn desired(window: u16) -> Desired {
    let mut out = sa("out", Direction::Out, 0x1001, (HERE, THERE));
    let mut inbound = sa("in", Direction::In, 0x1002, (THERE, HERE));
    out.params.esn = true;
    (inbound.params.esn, inbound.params.replay_window) = (true, window);
    let ipsec = IpsecSpec {
        sas: vec![out, inbound],
        tunnels: vec![tunnel("east", &["out"], &["in"])],
        ..IpsecSpec::default()
    };
    Desired { ipsec, ..Desired::default() }
}

struct Life {
    control: Control,
    out: Arc<Sa>,
    inbound: Arc<Sa>,
    counters: &'static [Counters],
    header: [u8; 64],
}

const WALL: Nanos = 1_800_000_000 * SECOND;

impl World {
    fn begin(&mut self) -> Life {
        let state = SaStates::decode(&self.disk.file).expect("the disk has an old file or a new one, whole");
        let counters: &'static [Counters] = Box::leak((0..4).map(|_| Counters::default()).collect());
        let durable = Durable::resume(state, self.counters_file.as_deref(), &self.boot)
            .with_counters(counters)
            .at(self.now, WALL + self.now);
        let header = durable.counters_header(&self.boot);
        let mut control = Control::with_state(desired(256), [], self.now, Arc::new(Clear), durable)
            .expect("it was good before");
        let tables = control.take_snapshot().expect("a first snapshot");
        let ipsec = tables.ipsec.as_ref().expect("there are SAs");
        let inbound = ipsec.sad.iter().next().expect("one is inbound").sa.clone();
        let out = ipsec.outbound[0].clone();
        assert!(esp::take_sequence(&out, 1).1 == 0, "nothing may leave before anything is on disk");
        Life { control, out, inbound, counters, header }
    }

    fn give_out(&mut self, life: &Life) {
        let n = 1 + self.random.below(64);
        let (first, granted) = esp::take_sequence(&life.out, n);
        if granted == 0 {
            self.seen.refused_by_lease += 1;
            return;
        }
        assert!(first > self.seen.given, "{first} was given out, after {}", self.seen.given);
        assert_eq!(*self.seen.first_iv.get_or_insert(life.out.state.first_iv), life.out.state.first_iv);
        self.seen.given = first + granted - 1;
        let state = &life.out.state;
        state.packets.fetch_add(granted, Relaxed);
        state.bytes.fetch_add(granted * 1000, Relaxed);
        self.seen.packets += granted;
        self.seen.bytes += granted * 1000;
        assert!(state.packets.load(Relaxed) >= self.seen.packets, "packets used were forgotten");
        assert!(state.bytes.load(Relaxed) >= self.seen.bytes, "bytes used were forgotten");
    }

    /// The peer's next packets, with losses and what arrives late; and some that were recorded.
    fn take(&mut self, life: &Life) {
        let state = &life.inbound.state;
        let mut replay = state.replay.lock().expect("nobody panicked");
        for _ in 0..1 + self.random.below(8) {
            let late = self.random.below(40);
            self.peer_sends();
            let sequence = match self.random.below(4) {
                0 => self.seen.peer.saturating_sub(late),
                1 => 1 + self.random.below(self.seen.peer),
                2 => self.seen.highest_taken.max(1),
                _ => self.seen.peer,
            };
            if esp::admit(state, &mut replay, sequence).is_ok() {
                assert!(sequence + 256 > self.seen.highest_taken, "{sequence} was taken, left of the window");
                assert!(self.seen.taken.insert(sequence), "{sequence} was taken twice");
                self.seen.highest_taken = self.seen.highest_taken.max(sequence);
            }
        }
        state.sequence.store(replay.top(), Relaxed);
    }

    fn peer_sends(&mut self) {
        self.seen.peer += if self.random.one_in(20_000) { 1 << 20 } else { 1 + self.random.below(2) };
    }

    /// Takes an image if there is one, and writes it now, later, or not.
    fn keep(&mut self, life: &mut Life, waiting: &mut Option<Vec<u8>>) {
        if waiting.is_none() {
            *waiting = life.control.state_image(self.now, WALL + self.now);
        }
        if self.random.one_in(3)
            && let Some(image) = waiting.take()
        {
            self.disk.steps = self.random.one_in(8).then(|| self.random.below(4));
            let is_on_disk = save(&mut self.disk, &image).is_ok();
            self.disk.steps = None;
            life.control.state_written(self.now, is_on_disk);
        }
    }

    fn live(&mut self, numbers: u64) {
        let mut life = self.begin();
        let (mut waiting, until) = (None, self.seen.given + numbers);
        let mut turns = 0u64;
        while self.seen.given < until && turns < numbers + 1000 {
            turns += 1;
            self.give_out(&life);
            if self.random.one_in(16) {
                self.take(&life);
            }
            if self.random.one_in(8) || turns < 50 {
                self.now += self.random.below(20 * MILLISECOND);
                if life.out.state.lease.is_due(&life.out.state)
                    || life.inbound.state.lease.is_due(&life.inbound.state)
                {
                    life.control.handle_event(self.now, weir_core::router::Event::Reserve);
                }
                self.keep(&mut life, &mut waiting);
            }
        }
        self.end(life, waiting);
    }

    fn end(&mut self, mut life: Life, waiting: Option<Vec<u8>>) {
        let mut file = life.header.to_vec();
        life.counters.iter().for_each(|c| file.extend(c.file_bytes()));
        match self.random.below(5) {
            0 => {
                let image = life.control.last_state_image(self.now, WALL + self.now).expect("state is kept");
                assert!(save(&mut self.disk, &image).is_ok());
                self.counters_file = None;
            }
            1 | 2 => {
                // In the middle of a write, or not.
                if let Some(image) = waiting {
                    self.disk.steps = Some(self.random.below(5));
                    let _ = save(&mut self.disk, &image);
                    self.disk.steps = None;
                }
                // The daemon renames its counters file into place after its first image is on disk.
                if life.out.state.lease.sequence() > 0 && life.out.state.packets.load(Relaxed) > 0 {
                    self.counters_file = Some(file);
                }
            }
            _ => {
                if let Some(image) = waiting {
                    self.disk.steps = Some(self.random.below(5));
                    let _ = save(&mut self.disk, &image);
                    self.disk.steps = None;
                }
                self.disk.cut_power(&mut self.random);
                self.boot[0] = self.boot[0].wrapping_add(1);
                // Whatever a power cut left of it.
                if self.random.one_in(2) {
                    self.counters_file = Some(file);
                }
            }
        }
        self.now += self.random.below(60 * SECOND);
        // The peer does not know.
        self.seen.peer += if self.random.one_in(3) { 0 } else { self.random.below(1 << 18) };
    }
}

fn setting(name: &str, usual: u64) -> u64 {
    std::env::var(name).ok().and_then(|v| v.parse().ok()).unwrap_or(usual)
}

#[test]
fn no_life_repeats_a_number_or_takes_one_twice_whatever_the_disk_loses() {
    let (lives, packets) = (setting("WEIR_LIVES", 1000), setting("WEIR_LIVES_PACKETS", 3_000_000));
    let seed = setting("WEIR_LIVES_SEED", 25);
    let empty = Durable::resume(SaStates { store: [9; 16], ..SaStates::default() }, None, &[0; 16]);
    let file = { empty }.last_image(0, 0);
    let mut world = World {
        disk: SimDisk { file, file_is_synced: true, before: None, beside: None, steps: None },
        counters_file: None,
        boot: [0; 16],
        now: SECOND,
        seen: Seen::default(),
        random: Random(seed),
    };
    for _ in 0..lives {
        let mean = packets / lives;
        let numbers = if world.random.one_in(10) { mean * 5 } else { 1 + world.random.below(mean) };
        world.live(numbers);
        // Numbers are compared with the highest; what was taken long ago lies below every window.
        if world.seen.taken.len() > 1 << 20 {
            let keep = world.seen.highest_taken.saturating_sub(1 << 18);
            world.seen.taken.retain(|&n| n >= keep);
        }
    }
    let seen = &world.seen;
    assert!(seen.packets >= packets / 4, "only {} packets left", seen.packets);
    assert!(seen.taken.len() > 1000, "only {} packets were taken", seen.taken.len());
    println!(
        "{lives} lives, seed {seed}: {} numbers given out up to {}, {} taken up to {}, {} times nothing reserved",
        seen.packets,
        seen.given,
        seen.taken.len(),
        seen.highest_taken,
        seen.refused_by_lease
    );
}
