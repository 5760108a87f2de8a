//! weir, a kernel and a key daemon, with an end of weir between any two steps of what it does: nobody gives out a number
//! twice, and nobody takes one twice.
//!
//! ```text
//! used by workers ≤ R, on disk ≤ K, the kernel's own number
//!
//! apply ─►▪─ image ─►▪─ K of each SA ─►▪─ R on disk ─►▪─ workers get it ─►▪─ K of SAs made again ─► publish ─►▪
//!
//! ▪ a point: workers use all they have, and weir may end there
//! ```
//!
//! Everything is the code of the daemon but for the disk, the kernel and the order above, which is that of
//! `weir::router::{keying, durable}`. The kernel numbers an SA from K + 1, and takes only numbers above K: it does so while weir is away, and
//! while a device has the SA's interface id. Where weir acts for the device (route mode), the kernel uses its SAs at every point, weir
//! running or not, until they are fenced: then it has the last number, behind which it does nothing. A key daemon that moves an SA (MOBIKE) makes it again with the K it has read, which may be an
//! older one: until weir has heard of that, K may be less than what is used, and the kernel is taken not to use the SA.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use proptest::prelude::*;
use weir_core::control::{Control, Durable, SaStates};
use weir_core::ipsec::durable::Counters;
use weir_core::ipsec::{Direction, SaSpec, esp};
use weir_core::keying::{Keying, UsedBefore, fence, merge};
use weir_core::state::{Desired, IpsecSpec, RouteMode, SpdSpec};
use weir_core::tables::Tables;
use weir_core::time::{MILLISECOND, Nanos, SECOND};
use weir_core::wire::xfrm::{Lifetime, News, PolicyDirection, Replay, Sa, SaKey};

use crate::keying::{captured_text, in_sa, ip, out_policy, parsed, turned};
use crate::testbed::control::port;
use crate::testbed::ipsec::{Clear, spd};

const SPD: &str = "kernel";
const BOOT: [u8; 16] = [7; 16];
const WALL: Nanos = 1_800_000_000 * SECOND;

#[derive(Clone, Debug)]
enum Step {
    /// The key daemon makes SAs both ways; the old ones stay.
    Rekey,
    /// The key daemon deletes the eldest pair.
    DeleteOld,
    /// The key daemon reads the kernel's numbers of the newest pair.
    Read,
    /// The key daemon deletes the newest pair and makes it again, as MOBIKE has it, with the numbers it has read, or with those of
    /// now.
    Move,
    /// weir hears what there is, and does what follows.
    Observe,
    /// weir reserves what its SAs have used up.
    Reserve,
    /// Time passes.
    Wait(u64),
    Kill,
    /// weir ends in order.
    Stop,
    Start,
    /// A device comes or goes, which weir hears at once.
    Device,
    /// The kernel sends and takes so many, where it may.
    KernelUses(u64),
}

/// An SA as the kernel has it, with its own numbers.
#[derive(Clone)]
struct KernelSa {
    sa: Sa,
    out: bool,
}

impl KernelSa {
    fn number(&mut self) -> &mut u64 {
        let replay = self.sa.replay.as_mut().expect("it has numbers");
        if self.out { &mut replay.sent } else { &mut replay.received }
    }
}

/// What everybody has used of each SPI.
#[derive(Default)]
struct Judge {
    given: HashMap<u32, u64>,
    taken: HashMap<u32, HashSet<u64>>,
    by_weir: u64,
    by_kernel: u64,
}

impl Judge {
    fn gives(&mut self, who: &str, spi: u32, first: u64, last: u64) {
        let highest = self.given.entry(spi).or_default();
        assert!(first > *highest, "{who} gives out {first} of SA {spi:x}, of which {highest} was");
        *highest = last;
    }

    fn takes(&mut self, who: &str, spi: u32, number: u64) {
        let new = self.taken.entry(spi).or_default().insert(number);
        assert!(new, "{who} takes {number} of SA {spi:x} again");
    }
}

/// weir, while it runs.
struct Life {
    control: Control,
    keying: Keying,
    /// What workers have.
    tables: Option<Arc<Tables>>,
    counters: &'static [Counters],
    header: [u8; 64],
    /// The counters are those to go on from.
    begun: bool,
}

/// weir has ended within a step.
struct Ended;

struct World {
    kernel: BTreeMap<u32, KernelSa>,
    pairs: Vec<[u32; 2]>,
    /// Numbers the key daemon has read.
    read: HashMap<u32, u64>,
    /// SAs that were made again with them, of which weir has not heard.
    moved: HashSet<u32>,
    device: bool,
    /// weir acts for the device.
    routed: bool,
    disk: Vec<u8>,
    counters_file: Option<Vec<u8>>,
    life: Option<Life>,
    news: Vec<News>,
    now: Nanos,
    judge: Judge,
    /// Points until weir ends.
    until_end: Option<u32>,
    /// Workers use all they have at every point, or nothing.
    busy: bool,
}

fn base(routed: bool) -> Desired {
    let mut spds = vec![spd(SPD, &["wan"], &[])];
    if routed {
        let device = RouteMode { if_id: 7, mtu: 1500, up: true, addresses: Vec::new() };
        spds.push(SpdSpec { route_mode: Some(device), ..spd("ipsec0", &[], &[]) });
    }
    Desired {
        ports: vec![port("wan", "eth0", &["192.0.2.1/24"])],
        ipsec: IpsecSpec { spds, ..IpsecSpec::default() },
        ..Desired::default()
    }
}

fn out_sa(spi: u32) -> Sa {
    let key = format!("{spi:08x}").repeat(5);
    let text = captured_text("newsa-gcm").replace("000102030405060708090a0b0c0d0e0f10111213", &key);
    let News::Sa(sa) = parsed(&text) else { panic!("an SA") };
    Sa { key: SaKey { spi, ..sa.key }, ..*sa }
}

impl World {
    fn new(busy: bool, routed: bool) -> World {
        let empty = Durable::resume(SaStates { store: [9; 16], ..SaStates::default() }, None, &BOOT);
        World {
            kernel: BTreeMap::new(),
            pairs: Vec::new(),
            read: HashMap::new(),
            moved: HashSet::new(),
            device: routed,
            routed,
            disk: { empty }.last_image(0, 0),
            counters_file: None,
            life: None,
            news: Vec::new(),
            now: SECOND,
            judge: Judge::default(),
            until_end: None,
            busy,
        }
    }

    fn run(&mut self, step: &Step, end_at: Option<u32>) {
        self.until_end = end_at;
        let life = self.life.take();
        let alive = life.is_some();
        self.life = match (step, life) {
            (Step::Rekey, life) => self.rekey(life),
            (Step::DeleteOld, life) => self.delete_old(life),
            (Step::Read, life) => {
                let newest = self.pairs.last().copied().into_iter().flatten();
                self.read =
                    newest.filter_map(|spi| Some((spi, *self.kernel.get_mut(&spi)?.number()))).collect();
                life
            }
            (Step::Move, life) => self.moves(life),
            (Step::Wait(ms), life) => {
                self.now += ms * MILLISECOND;
                life
            }
            (Step::Device, life) if !self.moved.is_empty() => life,
            (Step::Device, life) => {
                self.device = !self.device;
                // Within the moment of a move no device comes: the kernel would use the SA before weir has heard of it.
                self.read.clear();
                let mut life = life;
                if let Some(life) = &mut life {
                    self.tell_devices(&mut life.keying);
                    self.news.drain(..).for_each(|news| _ = life.keying.observe(news));
                    if life.keying.asks_for_dump() {
                        self.dump(&mut life.keying);
                    }
                }
                life.and_then(|life| self.whole(life, World::take_keys))
            }
            (Step::KernelUses(n), life) => {
                self.kernel_uses(*n, !alive || self.device);
                if self.routed && alive && self.device {
                    // As fast as it can, of which weir hears nothing.
                    self.kernel_uses(1, true);
                }
                life
            }
            (Step::Start, None) => self.start(),
            (Step::Observe, Some(mut life)) => {
                self.news.drain(..).for_each(|news| _ = life.keying.observe(news));
                self.whole(life, World::take_keys)
            }
            (Step::Reserve, Some(mut life)) => {
                life.control.handle_event(self.now, weir_core::router::Event::Reserve);
                self.whole(life, World::write)
            }
            (Step::Kill, Some(life)) => {
                self.kill(life);
                None
            }
            (Step::Stop, Some(life)) => {
                if let Some(life) = self.whole(life, World::stop) {
                    drop(life);
                    self.counters_file = None;
                }
                None
            }
            (Step::Start, Some(life)) => Some(life),
            (_, None) => None,
        };
        if self.life.is_none() {
            self.news.clear();
        }
    }

    /// A step of weir's, which may end in the middle of it.
    fn whole(
        &mut self,
        mut life: Life,
        step: fn(&mut World, &mut Life) -> Result<(), Ended>,
    ) -> Option<Life> {
        match step(self, &mut life) {
            Ok(()) => Some(life),
            Err(Ended) => {
                self.kill(life);
                None
            }
        }
    }

    /// Lets workers use what they have between two steps, and ends weir there or not.
    fn point(&mut self, life: &Life) -> Result<(), Ended> {
        if self.busy {
            self.workers_use(life);
            // Nobody keeps the kernel from sending into a device that weir acts for.
            if self.routed && self.device {
                self.kernel_uses(2, true);
            }
        }
        match &mut self.until_end {
            Some(0) => Err(Ended),
            Some(n) => {
                *n -= 1;
                Ok(())
            }
            None => Ok(()),
        }
    }

    fn workers_use(&mut self, life: &Life) {
        let Some(ipsec) = life.tables.as_ref().and_then(|t| t.ipsec.clone()) else { return };
        for sa in ipsec.outbound.iter() {
            // All of it, in two goes.
            let all = sa.state.lease.sequence().saturating_sub(sa.state.sequence.load(Relaxed));
            for n in [all / 2, all - all / 2] {
                let (first, granted) = esp::take_sequence(sa, n);
                if granted == 0 {
                    continue;
                }
                let last = first + granted - 1;
                self.judge.gives("weir", sa.params.spi, first, last);
                self.judge.by_weir += 1;
                if let Some(kernel) = self.kernel.get_mut(&sa.params.spi)
                    && !self.moved.contains(&sa.params.spi)
                {
                    let k = *kernel.number();
                    assert!(
                        last <= k,
                        "{last} of SA {:x} was used, the kernel's number is {k}",
                        sa.params.spi
                    );
                }
            }
        }
        for entry in ipsec.sad.iter() {
            let (state, spi) = (&entry.sa.state, entry.sa.params.spi);
            let mut replay = state.replay.lock().expect("nobody panicked");
            // What a peer may have reached, and a packet that was recorded.
            for number in [state.lease.sequence(), state.lease.sequence().saturating_sub(20), 1] {
                if number > 0 && esp::admit(state, &mut replay, number).is_ok() {
                    self.judge.takes("weir", spi, number);
                    self.judge.by_weir += 1;
                    if let Some(kernel) = self.kernel.get_mut(&spi)
                        && !self.moved.contains(&spi)
                    {
                        let k = *kernel.number();
                        assert!(number <= k, "{number} of SA {spi:x} was taken, the kernel's number is {k}");
                    }
                }
            }
            state.sequence.store(replay.top(), Relaxed);
        }
    }

    fn kernel_uses(&mut self, n: u64, may: bool) {
        for (spi, sa) in self.kernel.iter_mut().filter(|(spi, _)| may && !self.moved.contains(spi)) {
            let (out, number) = (sa.out, sa.number());
            // Numbers of 32 bits end, and so do those a fence leaves of 64.
            if out && *number + n > u32::MAX.into() || *number >= u64::MAX >> 1 {
                continue;
            }
            if out {
                self.judge.gives("the kernel", *spi, *number + 1, *number + n);
            } else {
                self.judge.takes("the kernel", *spi, *number + n);
            }
            *number += n;
            // One large packet of as many pieces.
            sa.sa.lifetime.bytes += n;
            sa.sa.lifetime.packets += 1;
            self.judge.by_kernel += 1;
            // A key daemon that puts back what the kernel itself used is nothing weir could see.
            self.read.remove(spi);
        }
    }

    fn tell_devices(&self, keying: &mut Keying) {
        let there = if self.device { BTreeSet::from([7]) } else { BTreeSet::new() };
        match self.routed {
            true => _ = keying.set_routed(there),
            false => _ = keying.set_devices(there),
        }
    }

    fn tell(&mut self, life: &Option<Life>, news: News) {
        if life.is_some() {
            self.news.push(news);
        }
    }

    fn rekey(&mut self, life: Option<Life>) -> Option<Life> {
        let n = self.pairs.last().map_or(1, |pair| pair[0] - 0x1000 + 1);
        let pair = [0x1000 + n, 0x2000 + n];
        let replay = |window| Some(Replay { window, words: window / 32, ..Replay::default() });
        for (sa, out) in [(out_sa(pair[0]), true), (in_sa(pair[1]), false)] {
            let sa = Sa { replay: replay(if out { 32 } else { 64 }), ..sa };
            self.kernel.insert(sa.key.spi, KernelSa { sa: sa.clone(), out });
            self.tell(&life, News::Sa(Box::new(sa)));
        }
        self.pairs.push(pair);
        life
    }

    fn delete_old(&mut self, life: Option<Life>) -> Option<Life> {
        if self.pairs.len() > 1 {
            for spi in self.pairs.remove(0) {
                let gone = self.kernel.remove(&spi).expect("it is there");
                self.tell(&life, News::SaGone(gone.sa.key));
            }
        }
        life
    }

    fn moves(&mut self, life: Option<Life>) -> Option<Life> {
        let read = std::mem::take(&mut self.read);
        for spi in self.pairs.last().copied().into_iter().flatten() {
            let kernel = self.kernel.get_mut(&spi).expect("it is there");
            if let Some(number) = read.get(&spi).filter(|&number| number < kernel.number()) {
                *kernel.number() = *number;
                self.moved.insert(spi);
            }
            let same = kernel.sa.clone();
            self.tell(&life, News::SaGone(same.key));
            self.tell(&life, News::Sa(Box::new(same)));
        }
        life
    }

    fn start(&mut self) -> Option<Life> {
        let state = SaStates::decode(&self.disk).expect("an old image or a new one, whole");
        let counters: &'static [Counters] = Box::leak((0..16).map(|_| Counters::default()).collect());
        let durable = Durable::resume(state, self.counters_file.as_deref(), &BOOT);
        let durable = durable.with_counters(counters).at(self.now, WALL + self.now);
        let header = durable.counters_header(&BOOT);
        let control = Control::with_state(base(self.routed), [], self.now, Arc::new(Clear), durable)
            .expect("it is good");
        let mut keying = Keying::default();
        keying.set_addresses(HashSet::from([ip("192.0.2.1")]));
        self.tell_devices(&mut keying);
        self.dump(&mut keying);
        let life = Life { control, keying, tables: None, counters, header, begun: false };
        self.whole(life, World::take_keys)
    }

    fn dump(&self, keying: &mut Keying) {
        keying.begin_resync();
        for KernelSa { sa, .. } in self.kernel.values() {
            keying.observe(News::Sa(Box::new(sa.clone())));
        }
        for policy in [out_policy(), turned(PolicyDirection::In), turned(PolicyDirection::Forward)] {
            keying.observe(News::Policy(Box::new(policy)));
        }
        keying.end_resync();
    }

    /// As the daemon does it when SAs are others.
    fn take_keys(&mut self, life: &mut Life) -> Result<(), Ended> {
        self.fence(life)?;
        let mut behind = Vec::new();
        for used in life.keying.used_before() {
            if life.control.has_reserved(&used.spec, used.number) {
                life.keying.take_back(&used.key, used.number);
            } else {
                behind.push(used);
            }
        }
        behind.extend(life.keying.not_ahead());
        for UsedBefore { key, number, spec } in behind {
            if let Some(reserved) = life.control.reserved_for(&spec).filter(|&r| r > number) {
                self.set_number(life, &key, reserved);
            }
        }
        let before = life.control.desired().clone();
        let (ipsec, _) = merge(&before.ipsec, SPD, &life.keying.wanted());
        let wish = Desired { ipsec, ..before.clone() };
        life.control.apply(self.now, wish).expect("it fits");
        let there: HashSet<&String> = life.control.desired().ipsec.sas.iter().map(|sa| &sa.name).collect();
        let named = life.keying.named();
        let left = |sa: &&SaSpec| named.contains_key(&sa.name) && !there.contains(&sa.name);
        let left: Vec<SaSpec> = before.ipsec.sas.iter().filter(left).cloned().collect();
        left.iter().for_each(|sa| life.control.freeze_sa(sa));
        self.point(life)?;
        self.write(life)?;
        self.run_ahead(life)?;
        life.tables = life.control.take_snapshot().or(life.tables.take());
        // All that was made again is known now, and what workers may use of it.
        self.moved.clear();
        self.point(life)
    }

    fn fence(&mut self, life: &mut Life) -> Result<(), Ended> {
        for UsedBefore { key, spec, .. } in life.keying.unfenced() {
            self.point(life)?;
            let Some(kernel) = self.kernel.get_mut(&key.spi) else { continue };
            let direction = spec.params.direction;
            let (before, last) = (kernel.sa.clone(), fence::last(&kernel.sa, direction));
            let number = *kernel.number();
            let mut fenced = false;
            if number != last {
                // Between the look and the fence, seldom enough for some to find nothing.
                if self.judge.by_kernel.is_multiple_of(3) {
                    self.kernel_uses(3, self.device && !self.moved.contains(&key.spi));
                }
                let kernel = self.kernel.get_mut(&key.spi).expect("it is there");
                *kernel.number() = last;
                let after = kernel.sa.clone();
                self.point(life)?;
                let ours = direction == Direction::In && life.control.has_reserved(&spec, number);
                fenced = ours
                    || fence::used(&before, &after, direction)
                        .is_ok_and(|used| life.control.begin_behind(&spec, used));
            }
            match fenced {
                true => life.keying.set_fenced(&key, last),
                false => life.keying.set_numbered(&key),
            }
            self.point(life)?;
        }
        Ok(())
    }

    fn set_number(&mut self, life: &mut Life, key: &SaKey, number: u64) {
        if let Some(kernel) = self.kernel.get_mut(&key.spi)
            && life.keying.ahead(key) != Some(number)
        {
            *kernel.number() = number;
            life.keying.set_ahead(key, number);
        }
    }

    fn run_ahead(&mut self, life: &mut Life) -> Result<(), Ended> {
        let named: HashMap<String, SaKey> =
            life.keying.named().into_iter().map(|(name, sa)| (name, sa.key)).collect();
        let reserved: Vec<(String, u64)> =
            life.control.reserved_sequences().iter().map(|(name, _, n)| (name.to_string(), *n)).collect();
        for (name, number) in reserved {
            let Some(key) = named.get(&name).filter(|key| life.keying.ahead(key) != Some(number)) else {
                continue;
            };
            if life.keying.is_fenced(key) {
                continue;
            }
            self.set_number(life, key, number);
            self.point(life)?;
        }
        Ok(())
    }

    fn write(&mut self, life: &mut Life) -> Result<(), Ended> {
        while let Some(image) = life.control.state_image(self.now, WALL + self.now) {
            self.point(life)?;
            self.run_ahead(life)?;
            self.disk = image;
            self.point(life)?;
            life.control.state_written(self.now, true);
            self.point(life)?;
        }
        life.begun = true;
        Ok(())
    }

    /// As the daemon ends: workers have ended before.
    fn stop(&mut self, life: &mut Life) -> Result<(), Ended> {
        life.tables = None;
        self.point(life)?;
        let named: HashMap<String, SaKey> =
            life.keying.named().into_iter().map(|(name, sa)| (name, sa.key)).collect();
        for view in life.control.sas(self.now) {
            let Some(key) = named.get(&view.name).filter(|_| view.draining.is_none()) else { continue };
            let is_fenced = life.keying.is_fenced(key);
            if view.sequence == 0 && !is_fenced {
                continue;
            }
            let Some(kernel) = self.kernel.get_mut(&key.spi) else { continue };
            kernel.sa.lifetime = Lifetime { bytes: view.bytes, packets: view.packets, ..kernel.sa.lifetime };
            let may_go_on = !is_fenced || fence::may_go_on(&kernel.sa, view.sequence);
            if may_go_on && *kernel.number() == life.keying.ahead(key).unwrap_or(0) {
                *kernel.number() = view.sequence;
            }
            self.point(life)?;
        }
        self.disk = life.control.last_state_image(self.now, WALL + self.now).expect("state is kept");
        self.point(life)
    }

    fn kill(&mut self, life: Life) {
        if life.begun {
            let mut file = life.header.to_vec();
            life.counters.iter().for_each(|c| file.extend(c.file_bytes()));
            self.counters_file = Some(file);
        }
    }
}

fn step() -> impl Strategy<Value = (Step, Option<u32>)> {
    let steps = prop_oneof![
        4 => Just(Step::Rekey),
        2 => Just(Step::DeleteOld),
        2 => Just(Step::Read),
        2 => Just(Step::Move),
        6 => Just(Step::Observe),
        6 => Just(Step::Reserve),
        2 => prop::sample::select(vec![1, 100, 1100, 9000]).prop_map(Step::Wait),
        1 => Just(Step::Kill),
        1 => Just(Step::Stop),
        5 => Just(Step::Start),
        1 => Just(Step::Device),
        2 => prop::sample::select(vec![1, 1000, 1 << 20]).prop_map(Step::KernelUses),
    ];
    (steps, prop::option::weighted(0.4, 0u32..12))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, ..ProptestConfig::default() })]

    #[test]
    fn no_number_is_used_twice_whenever_weir_ends(
        steps in prop::collection::vec(step(), 1..60), busy in prop::bool::weighted(0.9), routed in any::<bool>()
    ) {
        let mut world = World::new(busy, routed);
        for (step, end_at) in &steps {
            world.run(step, *end_at);
        }
    }
}

/// Weir has no more of an SA that is made again with the number read at each of these moments than the kernel has in the end, and
/// only one with all that is reserved is taken as if nothing had happened.
#[test]
fn an_sa_that_is_made_again_with_an_older_number_is_not_taken_with_less_than_is_reserved() {
    let rounds = 4;
    for read_at in 0..rounds {
        let mut world = World::new(true, false);
        world.run(&Step::Rekey, None);
        if read_at == 0 {
            // Before weir was there: the kernel's number is 0.
            world.run(&Step::Read, None);
        }
        world.run(&Step::Start, None);
        for round in 1..rounds {
            if round == read_at {
                world.run(&Step::Read, None);
            }
            // Used up within a second: what is reserved grows.
            world.run(&Step::Reserve, None);
        }
        world.run(&Step::Move, None);
        world.run(&Step::Observe, None);
        let life = world.life.as_ref().expect("it runs");
        let taken = life.control.desired().ipsec.sas.len();
        assert_eq!(taken, if read_at == 0 { 2 } else { 0 }, "read before reservation {read_at}");
        for KernelSa { sa, out } in world.kernel.values() {
            let replay = sa.replay.expect("it has numbers");
            let k = if *out { replay.sent } else { replay.received };
            let used = world.judge.given.get(&sa.key.spi).copied();
            let taken = || world.judge.taken[&sa.key.spi].iter().max().copied();
            assert!(used.or_else(taken).expect("it was used") <= k, "SA {:x}, {k}", sa.key.spi);
        }
        // With what the kernel has now it would be taken.
        world.run(&Step::Move, None);
        world.run(&Step::Observe, None);
        let life = world.life.as_ref().expect("it runs");
        assert_eq!(life.control.desired().ipsec.sas.len(), 2, "read before reservation {read_at}");
    }
}

/// Every order of two things after a first child SA, with an end at every point of each; of `WEIR_ORDERS` things.
#[test]
fn every_short_order_of_steps_and_every_end_within_it_repeats_no_number() {
    every_short_order(false);
}

/// The same with a device that weir acts for, into which the kernel sends at every point.
#[test]
fn every_short_order_of_steps_with_a_device_of_route_mode_repeats_no_number() {
    every_short_order(true);
}

fn every_short_order(routed: bool) {
    let steps = [
        (Step::Rekey, None),
        (Step::Observe, None),
        (Step::Reserve, None),
        (Step::Wait(9000), None),
        (Step::Start, None),
        (Step::Stop, None),
        (Step::DeleteOld, None),
        (Step::KernelUses(1000), None),
        (Step::Observe, Some(0..9)),
        (Step::Reserve, Some(0..6)),
        (Step::Start, Some(0..if routed { 14 } else { 9 })),
        (Step::Stop, Some(0..3)),
    ];
    let all: Vec<(Step, Option<u32>)> = steps
        .into_iter()
        .flat_map(|(step, ends)| match ends {
            None => vec![(step, None)],
            Some(ends) => ends.map(|end| (step.clone(), Some(end))).collect(),
        })
        .collect();
    let (mut by_weir, mut by_kernel, mut orders) = (0, 0, 0u64);
    let deep = std::env::var("WEIR_ORDERS").ok().and_then(|n| n.parse().ok()).unwrap_or(2u32);
    for order in 0..all.len().pow(deep) {
        let mut world = World::new(true, routed);
        world.run(&Step::Rekey, None);
        world.run(&Step::Start, None);
        let mut rest = order;
        for _ in 0..deep {
            let (step, end) = &all[rest % all.len()];
            rest /= all.len();
            world.run(step, *end);
        }
        // Whoever comes afterwards goes on.
        for step in
            [Step::KernelUses(10), Step::Start, Step::Reserve, Step::Kill, Step::KernelUses(10), Step::Start]
        {
            world.run(&step, None);
        }
        by_weir += world.judge.by_weir;
        by_kernel += world.judge.by_kernel;
        orders += 1;
    }
    assert!(
        by_weir > orders && by_kernel > orders,
        "{by_weir} by weir, {by_kernel} by the kernel of {orders}"
    );
}
