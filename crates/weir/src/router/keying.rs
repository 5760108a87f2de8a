//! Follows the kernel's SAs and policies, has them carried here, and tells the kernel what became of them.
//!
//! ```text
//! netlink (XFRM) ─► Keying ─► merge: SAs, policies of SPD `kernel` ─► state directory ─► tables
//!       ▲                                                                                   │
//!       └── bytes and packets, expiries, acquires ◄──── counters of SAs and policies ◄──────┘
//! ```
//!
//! Promises: what came in one go is one change; a change the control side refuses is made without what it refuses; after
//! an overrun, and every five minutes, everything is dumped again and compared, counted and logged; what fails is tried again
//! within seconds. The kernel is told of
//! an SA's counters at most every second. Its own numbers of an SA are never below what workers may use: whoever goes on with
//! the SA, whenever this process ends, repeats none. Refuses: making, changing or deleting an SA of the kernel's.

mod comparison;
mod numbers;

use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};
use std::io;
use std::os::fd::{AsRawFd, RawFd};

use weir_core::control::{SaEvent, SaView};
use weir_core::ipsec::SaSpec;
use weir_core::keying::{BLOCK_PRIORITY, Keying, Left, PREFIX, Trap, Wanted, merge};
use weir_core::state::{Desired, Element, Error, IpsecElement, SpdSpec};
use weir_core::time::{MILLISECOND, Nanos, SECOND};
use weir_core::wire::xfrm::{self, Lifetime, Sa};
use weir_io::netlink::LinkInfo;
use weir_io::netlink::xfrm::{KeyMonitor, KeyRequests, dump};

use comparison::{AGAIN, Comparison};

use super::durable::wall;
use super::metrics::KeyMirror;
use super::{Daemon, Kernel, links, routed};
use crate::config::Config;
use crate::config::ipsec::lifetime;
use crate::config::kernel::SPD;
use crate::failure::Failure;

/// How often the kernel is told of counters.
const TELL_EVERY: Nanos = SECOND;
/// How often policies without an SA are looked at for packets that wait for one, and the least time between two
/// requests for the same: what a key daemon takes for an exchange.
const TRAP_EVERY: Nanos = 50 * MILLISECOND;
const ACQUIRE_EVERY: Nanos = SECOND;
/// How long what an SA used is remembered when it is gone: one whose addresses change (MOBIKE) is deleted and made again.
const REMEMBER: Nanos = 60 * SECOND;
/// SAs and policies the control side may refuse in one change; then everything stays as it was.
const REFUSED_MAX: usize = 64;
/// What is done about dumps that fail.
const FAILS: &str = "and are dumped again until that succeeds";
/// What is left to the kernel, told one by one.
const LEFT_SHOWN: usize = 20;

/// What is known of the kernel's SAs and policies.
pub(super) struct Keys {
    monitor: KeyMonitor,
    requests: KeyRequests,
    keying: Keying,
    /// What is not taken, as said last.
    left: Vec<Left>,
    traps: Vec<Trap>,
    /// Packets each trap had seen, and when a key daemon was asked last.
    asked: HashMap<String, (u64, Nanos)>,
    /// Bytes and packets as the kernel was told last.
    told: HashMap<String, (u64, u64)>,
    /// SAs that went, and when.
    gone: VecDeque<(Nanos, SaSpec)>,
    /// Devices weir acts for, each the SPD it is here, without policies.
    routed: Vec<SpdSpec>,
    told_at: Nanos,
    trapped_at: Nanos,
    comparison: Comparison,
    /// The kernel's SAs were not used, because the state directory could not be written: when that is tried again.
    unwritten: Option<Nanos>,
    counters: Counters,
}

/// What happened while the kernel's keys were followed.
#[derive(Clone, Copy, Debug, Default)]
struct Counters {
    /// The kernel dropped messages because they were not read in time.
    overruns: u64,
    /// Dumps after the first.
    resyncs: u64,
    /// Dumps that a change interrupted, so that nothing was concluded from what they lacked.
    interrupted: u64,
    /// Dumps that failed.
    failed: u64,
    /// SAs and policies that a dump found gone without a message.
    vanished: u64,
    malformed: u64,
}

impl AsRawFd for Keys {
    fn as_raw_fd(&self) -> RawFd {
        self.monitor.as_raw_fd()
    }
}

/// Begins to follow, where the configuration says so.
pub(super) fn begin(config: &Config, kernel: &Kernel, now: Nanos) -> Result<Option<Keys>, Failure> {
    if config.kernel.keys.is_none() {
        return Ok(None);
    }
    let refused = |error: io::Error| {
        Failure(format!(
            "keys: the kernel does not tell its SAs ({error}); it needs XFRM (the module xfrm_user), and root"
        ))
    };
    let mut keys = Keys {
        // Before the dump: a change between the two is heard twice, not missed.
        monitor: KeyMonitor::open().map_err(refused)?,
        requests: KeyRequests::open().map_err(refused)?,
        keying: Keying::default(),
        left: Vec::new(),
        traps: Vec::new(),
        asked: HashMap::new(),
        told: HashMap::new(),
        gone: VecDeque::new(),
        routed: Vec::new(),
        told_at: now,
        trapped_at: now,
        comparison: Comparison::new(now),
        unwritten: None,
        counters: Counters::default(),
    };
    keys.look_around(config, kernel);
    keys.dump(now).map_err(refused)?;
    Ok(Some(keys))
}

fn devices(links: &[LinkInfo]) -> BTreeSet<u32> {
    links.iter().filter_map(|l| l.if_id).collect()
}

impl Keys {
    /// Takes in which addresses and xfrm devices there are.
    fn look_around(&mut self, config: &Config, kernel: &Kernel) -> bool {
        let mut addresses: HashSet<_> = kernel.addresses.iter().map(|a| a.address).collect();
        let desired = links::desired_ports(config, kernel);
        addresses.extend(desired.ports.iter().flat_map(|p| p.addresses.iter().map(|a| a.address)));
        let routed = routed::spds(config, kernel, &desired);
        let ids = routed::if_ids(&routed);
        let others = &devices(&kernel.links) - &ids;
        let moved = std::mem::replace(&mut self.routed, routed) != self.routed;
        let changed = self.keying.set_addresses(addresses) | self.keying.set_devices(others);
        self.keying.set_routed(ids) | changed | moved
    }

    fn dump(&mut self, now: Nanos) -> io::Result<()> {
        let keying = &mut self.keying;
        keying.begin_resync();
        let dumped = dump(|news| _ = keying.observe(news))?;
        self.counters.malformed += dumped.malformed;
        if dumped.interrupted {
            self.counters.interrupted += 1;
        } else {
            self.counters.vanished += keying.end_resync() as u64;
        }
        if self.comparison.dumped(now, dumped.interrupted) {
            tracing::info!("netlink: SAs and policies can be dumped again");
        }
        Ok(())
    }

    /// What was heard since the last call: whether something may be another, and whether everything was read.
    fn read_messages(&mut self) -> (bool, bool) {
        let keying = &mut self.keying;
        let mut changed = false;
        let heard = self.monitor.observe(|news| changed |= keying.observe(news));
        match heard {
            Ok(heard) => {
                self.counters.malformed += heard.malformed;
                if heard.lost {
                    self.counters.overruns += 1;
                    self.comparison.messages_lost();
                    tracing::warn!(
                        "the kernel's messages about SAs were not read in time; everything is dumped again"
                    );
                }
                (changed, !heard.more)
            }
            Err(error) => {
                self.counters.overruns += 1;
                self.comparison.messages_lost();
                tracing::warn!("netlink: {error}; SAs and policies are dumped again");
                (changed, true)
            }
        }
    }

    /// What was heard since the last call, and compared where that is due; true where something may be another.
    pub(super) fn observe(&mut self, now: Nanos) -> bool {
        let (changed, all_read) = self.read_messages();
        // What still waits may be older than what the device did; it is read first.
        if !self.comparison.is_due(now, all_read, self.keying.asks_for_dump()) {
            return changed;
        }
        self.counters.resyncs += 1;
        if let Err(error) = self.dump(now) {
            self.counters.failed += 1;
            if self.comparison.failed(now, &error) {
                tracing::warn!("netlink: {error}; SAs and policies stay as they were heard last, {FAILS}");
            }
            return changed;
        }
        // What changed while it was dumped: half of it may be in the dump.
        self.read_messages();
        true
    }

    fn wanted(&self) -> Wanted {
        let mut wanted = self.keying.wanted();
        for sa in &mut wanted.sas {
            let params = &mut sa.params;
            (params.soft, params.hard) = lifetime::with_defaults(params.suite, params.soft, params.hard);
        }
        wanted
    }

    /// What a wish becomes with what is wanted of the kernel's.
    fn merged(&self, desired: &Desired) -> (Desired, Vec<Left>) {
        let wanted = self.wanted();
        let mut ipsec = desired.ipsec.clone();
        routed::replace(&mut ipsec, &self.routed);
        let (ipsec, hidden) = merge(&ipsec, SPD, &wanted);
        let left = wanted.left.into_iter().chain(hidden).collect();
        (Desired { ipsec, ..desired.clone() }, left)
    }

    /// Says what is not taken, once.
    fn say(&mut self, left: Vec<Left>) {
        let new: Vec<&Left> = left.iter().filter(|l| !self.left.contains(l)).collect();
        new.iter().take(LEFT_SHOWN).for_each(|left| tracing::warn!("left to the kernel: {left}"));
        if let Some(more) = new.len().checked_sub(LEFT_SHOWN).filter(|&more| more > 0) {
            tracing::warn!("left to the kernel: {more} SAs and policies more");
        }
        self.left = left;
    }

    /// True where the kernel did what was asked.
    fn send(&mut self, what: &str, request: &[u8]) -> bool {
        match self.requests.send(request) {
            Ok(()) => return true,
            // It went meanwhile, which its own message tells.
            Err(error) if error.raw_os_error() == Some(ESRCH) => {}
            Err(error) => tracing::warn!("netlink: {what}: {error}"),
        }
        false
    }

    /// Has the kernel know what SAs have carried.
    fn tell(&mut self, sas: &[SaView]) {
        let named = self.keying.named();
        let mut requests = Vec::new();
        for view in sas.iter().filter(|view| view.draining.is_none()) {
            let Some(sa) = named.get(&view.name) else { continue };
            let now = (view.bytes, view.packets);
            if self.told.get(&view.name) == Some(&now) || now == (0, 0) {
                continue;
            }
            requests.push((view.name.clone(), now, counted(sa, now)));
        }
        self.told.retain(|name, _| named.contains_key(name));
        for (name, now, request) in requests {
            self.send("counters of an SA", &request);
            self.told.insert(name, now);
        }
    }

    /// Has the kernel send nothing in cleartext of what weir is to protect.
    fn block(&mut self) {
        let (lacking, over) = self.keying.blocks();
        for selector in lacking {
            let packets = format!("{} to {}", selector.source, selector.destination);
            match self.requests.send(&xfrm::block(&selector, BLOCK_PRIORITY)) {
                Ok(()) => tracing::info!("the host's own packets from {packets} are dropped by the kernel"),
                Err(error) if error.raw_os_error() == Some(EEXIST) => {}
                Err(error) => tracing::error!(
                    "netlink: a policy that drops the host's own packets from {packets}: {error}; they leave in cleartext"
                ),
            }
        }
        for selector in over {
            self.send("a policy of weir's", &xfrm::unblock(&selector));
        }
    }
}

/// What becomes of SAs that cannot be written.
const UNWRITTEN: &str = "the kernel's new SAs are not used until the state directory can be written";

/// `EEXIST` of errno(3).
const EEXIST: i32 = 17;
/// `ESRCH` of errno(3): there is no such SA.
const ESRCH: i32 = 3;

fn counted(sa: &Sa, (bytes, packets): (u64, u64)) -> Vec<u8> {
    let used = if sa.lifetime.used == 0 { wall() / SECOND } else { sa.lifetime.used };
    xfrm::counted(&sa.key, &Lifetime { bytes, packets, used, ..sa.lifetime })
}

/// The SA or policy of the kernel's an error is about.
fn culprit(desired: &Desired, error: &Error) -> Option<String> {
    let ipsec = &desired.ipsec;
    let name = match error.at {
        Element::Ipsec(IpsecElement::Sa(i)) => ipsec.sas.get(i).map(|sa| sa.name.clone()),
        Element::Ipsec(IpsecElement::Policy { spd, policy }) => {
            ipsec.spds.get(spd).and_then(|s| s.policies.get(policy)).map(|p| p.name.clone())
        }
        _ => None,
    };
    name.filter(|name| name.starts_with(PREFIX))
}

impl Daemon {
    /// News of the kernel's SAs and policies, and what is due about them.
    pub(super) fn on_key_news(&mut self, now: Nanos) {
        let Some(mut keys) = self.keys.take() else { return };
        let again = keys.unwritten.is_some_and(|at| now >= at) && self.can_write_state();
        if keys.observe(now) || again {
            self.take_keys(now, &mut keys);
        }
        self.spring_traps(now, &mut keys);
        if now.saturating_sub(keys.told_at) >= TELL_EVERY {
            keys.told_at = now;
            keys.tell(&self.control.sas(now));
            let over = keys.gone.partition_point(|(at, _)| now.saturating_sub(*at) > REMEMBER);
            let due: Vec<SaSpec> = keys.gone.drain(..over).map(|(_, sa)| sa).collect();
            for sa in due {
                // One that the kernel has still may be wanted again: its numbers must not begin anew.
                if !keys.keying.has_spi(sa.params.spi) {
                    self.control.forget_sa(&sa);
                } else if keys.gone.iter().all(|(_, other)| other.name != sa.name) {
                    keys.gone.push_back((now, sa));
                }
            }
        }
        self.keys = Some(keys);
    }

    /// Has the tables be what the kernel's SAs and policies say; what is refused stays out.
    pub(super) fn take_keys(&mut self, now: Nanos, keys: &mut Keys) {
        let before = self.control.desired().clone();
        keys.fence(&mut self.control);
        keys.take_back(&self.control);
        self.control.await_sas(SPD, keys.keying.others());
        for _ in 0..REFUSED_MAX {
            let (desired, left) = keys.merged(&before);
            let errors = match self.control.apply(now, desired.clone()) {
                Ok(actions) => {
                    actions.iter().for_each(|action| tracing::info!("the kernel's keys: {action}"));
                    return self.keys_taken(now, keys, before, left);
                }
                Err(errors) => errors,
            };
            let mut found = false;
            for error in &errors {
                if let Some(name) = culprit(&desired, error) {
                    found |= keys.keying.refuse(&name, error.to_string());
                }
            }
            if !found {
                keys.unwritten = None;
                errors.iter().for_each(|error| {
                    tracing::error!("the kernel's keys do not fit the configuration: {error}; kept what was");
                });
                return;
            }
        }
        keys.unwritten = None;
        tracing::error!(
            "more than {REFUSED_MAX} of the kernel's SAs and policies are refused; kept what was"
        );
    }

    fn keys_taken(&mut self, now: Nanos, keys: &mut Keys, before: Desired, left: Vec<Left>) {
        self.freeze_left(keys, &before);
        if let Err(error) = self.write_state(Some(keys)) {
            if keys.unwritten.replace(now.saturating_add(AGAIN)).is_none() {
                tracing::error!("{error}; {UNWRITTEN}");
            }
            let back = self.control.go_back(now, before);
            debug_assert!(back.is_ok(), "{back:?}");
            return;
        }
        // Those too that were made again meanwhile, for which nothing had to be written.
        keys.run_ahead(&self.control);
        if keys.unwritten.take().is_some() {
            tracing::info!("the kernel's new SAs are used: the state directory was written");
        }
        self.publish();
        let there: HashSet<&String> = self.control.desired().ipsec.sas.iter().map(|sa| &sa.name).collect();
        let went = before.ipsec.sas.into_iter().filter(|sa| sa.name.starts_with(PREFIX));
        keys.gone.extend(went.filter(|sa| !there.contains(&sa.name)).map(|sa| (now, sa)));
        keys.block();
        keys.say(left);
        keys.traps = keys.keying.traps();
        keys.asked.retain(|name, _| keys.traps.iter().any(|trap| trap.policy == *name));
        for key in keys.keying.to_be_replaced() {
            keys.send("a soft expiry", &xfrm::expire(&key, false));
        }
    }

    /// SAs that are gone here and that the kernel still has are numbered by it from now on, above what is reserved here.
    fn freeze_left(&mut self, keys: &Keys, before: &Desired) {
        let there: HashSet<String> =
            self.control.desired().ipsec.sas.iter().map(|sa| sa.name.clone()).collect();
        let named = keys.keying.named();
        for sa in
            before.ipsec.sas.iter().filter(|sa| named.contains_key(&sa.name) && !there.contains(&sa.name))
        {
            self.control.freeze_sa(sa);
        }
    }

    /// Asks key daemons for SAs packets wait for.
    fn spring_traps(&mut self, now: Nanos, keys: &mut Keys) {
        if keys.traps.is_empty() || now.saturating_sub(keys.trapped_at) < TRAP_EVERY {
            return;
        }
        keys.trapped_at = now;
        let policies = self.control.policies();
        let seen: HashMap<&str, u64> =
            policies.iter().map(|view| (view.policy.name.as_str(), view.out_packets)).collect();
        let mut requests = Vec::new();
        for trap in &keys.traps {
            let Some(&packets) = seen.get(trap.policy.as_str()) else { continue };
            let (before, at) = *keys.asked.entry(trap.policy.clone()).or_insert((packets, 0));
            if packets > before && now.saturating_sub(at) >= ACQUIRE_EVERY {
                keys.asked.insert(trap.policy.clone(), (packets, now));
                tracing::info!("policy {}: packets wait for an SA; key daemons are asked", trap.policy);
                requests.push(trap.acquire.clone());
            }
        }
        requests.iter().for_each(|request| _ = keys.send("an acquire", request));
    }

    /// When there is something due about the kernel's keys.
    pub(super) fn keys_due(&self) -> Option<Nanos> {
        let keys = self.keys.as_ref()?;
        let trap = (!keys.traps.is_empty()).then_some(keys.trapped_at.saturating_add(TRAP_EVERY));
        let tell = (!keys.keying.is_empty()).then_some(keys.told_at.saturating_add(TELL_EVERY));
        trap.into_iter().chain(tell).chain([keys.comparison.due_at()]).min()
    }

    /// Links or addresses are others.
    pub(super) fn keys_look_around(&mut self, now: Nanos) {
        let Some(mut keys) = self.keys.take() else { return };
        let there = devices(&self.kernel.links);
        let routed = routed::devices(&self.config, &self.kernel.links);
        let routed: BTreeSet<u32> = routed.iter().filter_map(|link| link.if_id).collect();
        keys.hand_back(&self.control.sas(now), &there, &routed);
        if keys.look_around(&self.config, &self.kernel) {
            keys.observe(now);
            self.take_keys(now, &mut keys);
        }
        self.keys = Some(keys);
    }

    /// An SA reached a limit; true where that is told to the kernel, which tells key daemons.
    pub(super) fn expire_in_kernel(&mut self, event: &SaEvent) -> bool {
        let Some(keys) = &mut self.keys else { return false };
        let (name, hard) = match event {
            SaEvent::SoftExpired { sa } | SaEvent::SequenceLow { sa, .. } => (sa, false),
            SaEvent::HardExpired { sa } => (sa, true),
        };
        let Some(key) = keys.keying.named().get(name).map(|sa| sa.key) else { return false };
        keys.send("an expiry", &xfrm::expire(&key, hard));
        true
    }

    /// What a wish of the file becomes with the kernel's SAs and policies.
    pub(super) fn with_keys(&self, desired: Desired) -> Desired {
        match &self.keys {
            Some(keys) => keys.merged(&desired).0,
            None => desired,
        }
    }

    /// Workers have ended: what they counted and used is final.
    pub(super) fn finish_keys(&mut self, now: Nanos) {
        let Some(keys) = &mut self.keys else { return };
        let sas = self.control.sas(now);
        keys.tell(&sas);
        keys.hand_over(&sas);
    }

    /// What an operator should know of the kernel's keys.
    pub(super) fn key_notices(&self) -> Vec<String> {
        let Some(keys) = &self.keys else { return Vec::new() };
        let shown = keys.left.iter().take(LEFT_SHOWN).map(|left| format!("left to the kernel: {left}"));
        let mut notices: Vec<String> = shown.collect();
        if let Some(more) = keys.left.len().checked_sub(LEFT_SHOWN).filter(|&more| more > 0) {
            notices.push(format!("left to the kernel: {more} SAs and policies more"));
        }
        notices.extend(keys.unwritten.is_some().then(|| UNWRITTEN.to_owned()));
        let failing = keys.comparison.failing();
        notices.extend(
            failing.map(|why| format!("the kernel's SAs and policies are as heard last, {FAILS}: {why}")),
        );
        let counters = keys.counters;
        if counters.overruns > 0 {
            notices.push(format!(
                "the kernel's messages about SAs overran {} times; {} SAs and policies had gone without a message",
                counters.overruns, counters.vanished
            ));
        }
        if counters.malformed > 0 {
            let malformed = counters.malformed;
            notices.push(format!("{malformed} messages of the kernel about SAs were not well formed"));
        }
        notices
    }

    /// What `/metrics` says of the kernel's keys; zeros where they are not followed.
    pub(super) fn key_mirror_metrics(&self) -> KeyMirror {
        let c = self.keys.as_ref().map(|keys| keys.counters).unwrap_or_default();
        let events = vec![
            ("overrun", c.overruns),
            ("resync", c.resyncs),
            ("interrupted", c.interrupted),
            ("failed", c.failed),
            ("vanished", c.vanished),
            ("malformed", c.malformed),
        ];
        KeyMirror { events }
    }
}
