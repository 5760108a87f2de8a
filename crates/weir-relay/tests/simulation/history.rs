//! One random history from one seed: who comes, what they do, when time passes, and what must be true at its end.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use weir_core::random::SplitMix64;
use weir_core::relay::{Class, Frame, Key, Reason};
use weir_core::time::{MICROSECOND, MILLISECOND, Nanos, SECOND};
use weir_relay::counters::{End, Tally};
use weir_relay::registrar::Admission;
use weir_relay::session::{NewConn, TlsLayer};
use weir_relay::{Engine, Rate, Rates, Role};

use crate::codec::{self, Codec};
use crate::ledger::Ledger;
use crate::peer::{Attack, Connected, Pace, Peer};
use crate::relay::{Build, OWN, SimulatedRelay};
use crate::streams::{Link, Links};

/// What a history is made of.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// Nobody is hostile, nobody leaves: what comes is what was sent but for what was dropped.
    pub calm: bool,
    pub steps: u32,
    pub peers: usize,
    pub rates: Rates,
    pub build: Build,
}

impl Scenario {
    pub fn random(calm: bool, steps: u32, random: &mut SplitMix64) -> Scenario {
        let hour = Duration::from_secs(3600);
        let queue_bytes = [20_000, 200_000, 1 << 20, 64 << 20][random.below(4) as usize];
        let queue_frames = [20, 4096, 1 << 20][random.below(3) as usize];
        let engine = Engine {
            own: OWN,
            workers: 1 + random.below(3) as usize,
            clients: if calm || random.below(4) > 0 { 1 << 20 } else { 4 },
            queue_bytes,
            queue_frames,
            write_timeout: if calm { hour } else { Duration::from_secs(2) },
            ..Engine::default()
        };
        let some = |random: &mut SplitMix64| {
            let rate = Rate { bytes_per_second: 200_000 + random.below(10_000_000), burst: 10_000 };
            (random.below(4) == 0).then_some(rate)
        };
        Scenario {
            calm,
            steps,
            peers: 2 + random.below(8) as usize,
            rates: Rates { receive: some(random), send: some(random) },
            build: Build {
                engine,
                ring: [2, 256][random.below(2) as usize],
                buffers: 1 + random.below(12) as u16,
                register_fails: if calm { 0 } else { 40 },
            },
        }
    }
}

/// What became of a history.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Everything that happened, as one number.
    pub trace: u64,
    pub packets_sent: u64,
    pub packets_came: u64,
    pub packets_dropped: u64,
    /// Packets dropped that found their receiver gone.
    pub packets_to_nobody: u64,
    pub connections: u64,
    pub restarts: u64,
    /// Histories in which nothing was dropped.
    pub undropped: u64,
    pub paused: u64,
    pub handed: u64,
    /// Clients that came to another worker.
    pub moved: u64,
    /// Connections ended, by [`End`].
    pub ended: [u64; End::ALL.len()],
}

struct World {
    random: SplitMix64,
    now: Nanos,
    plan: Scenario,
    /// The last one takes those who come.
    relays: Vec<SimulatedRelay>,
    links: Links,
    peers: Vec<Peer>,
    /// Keys of this relay, and of relays it dialled.
    local: Vec<Key>,
    all: Vec<Key>,
    ledger: Ledger,
    hostile: u64,
    outcome: Outcome,
}

/// Plays a history to its end.
pub fn play(seed: u64, calm: bool, steps: u32) -> Outcome {
    let mut random = SplitMix64::new(seed);
    let plan = Scenario::random(calm, steps, &mut random);
    let mut world = World::new(plan, random);
    if calm {
        (0..world.peers.len()).for_each(|peer| world.connect(peer));
        world.peers.iter_mut().filter_map(|peer| peer.connected.as_mut()).for_each(|c| c.sends = false);
        world.rest();
        world.peers.iter_mut().filter_map(|peer| peer.connected.as_mut()).for_each(|c| c.sends = true);
    }
    (0..world.plan.steps).for_each(|_| world.step());
    world.finish()
}

fn key(n: u64) -> Key {
    let mut key = Key([0x40; 32]);
    key.0[..8].copy_from_slice(&n.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes());
    key
}

impl World {
    fn new(plan: Scenario, mut random: SplitMix64) -> World {
        let now = SECOND;
        let mut peers: Vec<Peer> = Vec::new();
        for n in 0..plan.peers {
            let role = match random.below(8) {
                0 => Role::Mesh,
                1 => Role::Dialled,
                _ => Role::Client,
            };
            let hostile = !plan.calm && role == Role::Client && random.below(4) == 0;
            let attack = hostile.then(|| Attack::ALL[random.below(8) as usize]);
            let pace = match random.below(4) {
                0 if !plan.calm => Pace::Never,
                1 | 2 => Pace::Slow,
                _ => Pace::Eager,
            };
            // Two devices may have one key.
            let twin = peers.last().filter(|last| !plan.calm && last.role == role && random.below(6) == 0);
            let key = twin.map_or(key(n as u64), |twin| twin.key);
            peers.push(Peer { key, role, pace, attack, unsteady: !plan.calm, connected: None });
        }
        let local: Vec<Key> = peers.iter().filter(|p| p.role != Role::Dialled).map(|p| p.key).collect();
        let mut all: Vec<Key> = peers.iter().map(|p| p.key).collect();
        if !plan.calm {
            // Nobody has this one.
            all.push(key(1000));
        }
        let relay = SimulatedRelay::new(&plan.build, now, &mut random);
        World {
            random,
            now,
            plan,
            relays: vec![relay],
            links: Links::new(),
            peers,
            local,
            all,
            ledger: Ledger::default(),
            hostile: 0,
            outcome: Outcome::default(),
        }
    }

    fn step(&mut self) {
        match self.random.below(20) {
            0..8 => {
                let relay = self.random.below(self.relays.len() as u64) as usize;
                let worker = self.random.below(self.relays[relay].workers.len() as u64) as usize;
                self.turn(relay, worker);
            }
            8..10 => {
                let relay = self.random.below(self.relays.len() as u64) as usize;
                let most = 1 + self.random.below(20) as usize;
                self.relays[relay].observe(most);
                self.relays[relay].relocate(self.now, &mut self.random);
            }
            10..18 => {
                let peer = self.random.below(self.peers.len() as u64) as usize;
                self.act(peer);
            }
            18 => {
                let most = match self.random.below(30) {
                    0 if !self.plan.calm => 70 * SECOND,
                    0..4 => 100 * MILLISECOND,
                    _ => 300 * MICROSECOND,
                };
                self.now += self.random.below(most);
            }
            _ if self.plan.calm => {}
            _ => match self.random.below(50) {
                0 => self.restart(),
                1 => self.tune(),
                _ => {}
            },
        }
    }

    /// The limits become others while packets wait.
    fn tune(&mut self) {
        let queue_bytes = 10_000 + self.random.below(400_000) as usize;
        let engine = Engine { queue_bytes, ..self.plan.build.engine.clone() };
        self.relays.iter_mut().for_each(|relay| relay.tune(&engine));
    }

    fn turn(&mut self, relay: usize, worker: usize) {
        let trace = self.relays[relay].turn(worker, self.now, &mut self.links, &mut self.random);
        self.outcome.trace = self.outcome.trace.wrapping_mul(0x0100_0000_01b3) ^ trace;
        if self.random.below(8) == 0 {
            self.relays[relay].check_memory();
        }
    }

    fn act(&mut self, at: usize) {
        let Some(connected) = &self.peers[at].connected else {
            if !self.plan.calm {
                self.connect(at);
            }
            return;
        };
        let number = connected.link;
        let link = self.links.get_mut(&number).expect("a peer has a link");
        let over = link.down_ended && link.down.is_empty();
        if over || !self.plan.calm && self.random.below(60) == 0 {
            return self.leave(at);
        }
        let keys = if self.peers[at].role == Role::Mesh { &self.local } else { &self.all };
        self.peers[at].act(keys, link, &mut self.ledger, &mut self.random);
    }

    /// Hangs up, in the middle of a frame or not, or resets the connection.
    fn leave(&mut self, at: usize) {
        let Some(mut connected) = self.peers[at].connected.take() else { return };
        let link = self.links.get_mut(&connected.link).expect("a peer has a link");
        match self.random.below(3) {
            0 => link.broken = true,
            1 => {
                let mut words = Vec::new();
                if let Some(tls) = &mut connected.codec.tls {
                    tls.close_notify(&mut words).expect("sealed");
                }
                link.up.extend(words);
                link.up_ended = true;
            }
            _ => {
                let left = self.random.below(link.up.len() as u64 + 1) as usize;
                link.up.truncate(left);
                link.up_ended = true;
            }
        }
        // Nobody reads it: what the relay sends from now on is lost on the way.
        link.room = usize::MAX;
    }

    fn connect(&mut self, at: usize) {
        self.outcome.connections += 1;
        let number = self.outcome.connections;
        let (mut codec, mut tls) = (Codec::default(), TlsLayer::Off);
        if self.random.below(3) == 0 {
            let (client, server) = codec::sessions(self.random.below(4) == 0);
            codec.tls = Some(client);
            tls = TlsLayer::Session(server);
        }
        let peer = &self.peers[at];
        let role = peer.role;
        codec.websocket = role == Role::Client && self.random.below(4) == 0;
        let room = 2000 + self.random.below(300_000) as usize;
        let mut link = Link { room, ..Link::default() };
        let (mut early, mut unread, mut greeting) = (Vec::new(), Vec::new(), Vec::new());
        if role == Role::Dialled {
            let mut frames = Vec::new();
            Frame::PeerPresent(peer.key, None).write(&mut frames);
            link.up.extend(codec.encode(&frames, &mut self.random));
        } else {
            Frame::ServerInfo([0; 24], &[0; 40]).write(&mut greeting);
        }
        if !self.plan.calm && peer.attack.is_none() && role == Role::Client && self.random.below(3) == 0 {
            let frames = peer.frames(number, &self.all, &mut self.ledger, &mut self.random);
            let mut sent = codec.encode(&frames, &mut self.random);
            let rest = sent.split_off(self.random.below(sent.len() as u64 + 1) as usize);
            link.up.extend(rest);
            *(if codec.tls.is_some() { &mut unread } else { &mut early }) = sent;
        }
        let websocket = codec.websocket.then(Box::default);
        let address = SocketAddr::from(([192, 0, 2, 1], number as u16));
        let rates = if role == Role::Client { self.plan.rates } else { Rates::default() };
        let connection =
            NewConn { key: peer.key, role, address, tls, websocket, greeting, early, unread, rates };
        let admission =
            Admission { key: peer.key, role, prober: false, can_ack_pings: true, ideal: true, address };
        self.links.insert(number, link);
        self.hostile += u64::from(peer.attack.is_some());
        self.peers[at].connected = Some(Connected::new(number, number, codec));
        if let Some(relay) = self.relays.last_mut() {
            relay.admit(&admission, number, connection);
        }
        if role == Role::Mesh {
            self.watch(at);
        }
    }

    /// A relay of the mesh asks who is here.
    fn watch(&mut self, at: usize) {
        let Some(connected) = &mut self.peers[at].connected else { return };
        let mut frames = Vec::new();
        Frame::WatchConns.write(&mut frames);
        let sent = connected.codec.encode(&frames, &mut self.random);
        self.links.entry(connected.link).or_default().up.extend(sent);
    }

    /// A relay is replaced: told to go, with its successor beside it, or killed.
    fn restart(&mut self) {
        self.outcome.restarts += 1;
        let new = SimulatedRelay::new(&self.plan.build, self.now, &mut self.random);
        if self.random.below(2) == 0 {
            let grace = Duration::from_millis(self.random.below(3000));
            self.relays.iter_mut().for_each(|relay| relay.drain(grace));
            self.relays.push(new);
            return;
        }
        for relay in std::mem::replace(&mut self.relays, vec![new]) {
            relay.tallies().for_each(|tally| self.outcome.add(tally));
        }
        for peer in &mut self.peers {
            peer.connected = None;
        }
        self.links.clear();
    }

    /// Everybody reads and nobody sends, until nothing is under way.
    fn rest(&mut self) {
        for round in 0.. {
            assert!(round < 200_000, "it does not come to rest: {:?}", self.plan);
            for relay in 0..self.relays.len() {
                self.relays[relay].observe(usize::MAX);
                (0..self.relays[relay].workers.len()).for_each(|worker| self.turn(relay, worker));
            }
            for peer in &mut self.peers {
                let Some(connected) = &peer.connected else { continue };
                let link = self.links.get_mut(&connected.link).expect("a peer has a link");
                peer.take(link.down.len(), link, &mut self.ledger);
            }
            let wait = self.relays.iter().filter_map(SimulatedRelay::timeout).min().unwrap_or(SECOND);
            self.now += wait.clamp(MILLISECOND, SECOND);
            let empty =
                |link: &Link| link.down_ended || link.broken || link.up.is_empty() && link.down.is_empty();
            let waits = self.links.values().any(|link| !empty(link));
            if !waits && self.relays.iter().all(|relay| relay.is_quiet()) {
                return;
            }
        }
    }

    fn finish(mut self) -> Outcome {
        for peer in &mut self.peers {
            peer.pace = Pace::Eager;
            if let Some(connected) = &mut peer.connected {
                connected.sends = false;
            }
        }
        for link in self.links.values_mut() {
            link.room = usize::MAX;
        }
        self.rest();
        let relays = std::mem::take(&mut self.relays);
        for relay in relays {
            for tally in relay.close(&mut self.links, &mut self.random) {
                self.outcome.add(&tally);
            }
        }
        self.outcome.packets_sent = self.ledger.packets_sent;
        self.outcome.packets_came = self.ledger.packets_came;
        let ended = |end: End| self.outcome.ended[end as usize];
        assert!(
            ended(End::Protocol) + ended(End::Transport) <= self.hostile,
            "{} connections ended for what they sent, {} are hostile",
            ended(End::Protocol) + ended(End::Transport),
            self.hostile
        );
        self.outcome.undropped = u64::from(self.outcome.packets_dropped == 0);
        if self.plan.calm {
            self.check_calm();
        }
        self.outcome
    }

    fn check_calm(&self) {
        let Outcome { packets_sent, packets_came, packets_dropped, .. } = self.outcome;
        assert_eq!(packets_sent, packets_came + packets_dropped, "some packets are nowhere: {:?}", self.plan);
        assert_eq!(
            self.outcome.ended[End::Drained as usize],
            self.outcome.connections,
            "somebody was let go"
        );
        assert_eq!(self.outcome.packets_to_nobody, 0, "everybody is here: {:?}", self.plan);
        if self.outcome.undropped > 0 {
            let receivers: BTreeMap<Key, u64> = self
                .peers
                .iter()
                .filter_map(|peer| Some((peer.key, peer.connected.as_ref()?.number)))
                .collect();
            self.ledger.assert_all_came(&receivers);
        }
    }
}

impl Outcome {
    fn add(&mut self, tally: &Tally) {
        self.packets_dropped += tally.drops.packets();
        let to_nobody = |class| tally.drops.of(Reason::GoneDisconnected, class).packets;
        self.packets_to_nobody += Class::ALL.map(to_nobody).iter().sum::<u64>();
        self.paused += tally.paused;
        self.handed += tally.handed;
        self.moved += tally.moved;
        for (sum, n) in self.ended.iter_mut().zip(tally.ended) {
            *sum += n;
        }
    }

    /// Adds another history's.
    pub fn sum(&mut self, other: &Outcome) {
        self.trace ^= other.trace;
        self.packets_sent += other.packets_sent;
        self.packets_came += other.packets_came;
        self.packets_dropped += other.packets_dropped;
        self.packets_to_nobody += other.packets_to_nobody;
        self.connections += other.connections;
        self.restarts += other.restarts;
        self.undropped += other.undropped;
        self.paused += other.paused;
        self.handed += other.handed;
        self.moved += other.moved;
        for (sum, n) in self.ended.iter_mut().zip(other.ended) {
            *sum += n;
        }
    }
}
