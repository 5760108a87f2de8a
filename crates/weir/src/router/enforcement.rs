//! Policy enforcement points: where policies apply, what the router does not take never reaches the kernel.
//!
//! ```text
//! start ─► points first, then sockets ─► … ─► stop, kill, panic: points stay ─► start takes them over
//!                       every WATCH: program still there? queues? forwarding? frames without a socket?
//! ```
//!
//! Promises: with IPsec in the configuration every device of kind `af_xdp` or `af_packet` has a point before its
//! first socket is opened and until `weir release` or a configuration without IPsec takes it off: what comes in
//! anywhere could leave by the protected port. A program that was taken off from outside is back within a second,
//! and said. A new receive queue gets a socket; what came in meanwhile is dropped, counted and said.
//! Leaves alone: TUN devices, into which only the host's own routes lead, and capture files.

use std::collections::{BTreeMap, BTreeSet};

use weir_core::packet::DeviceId;
use weir_core::router::PortCounters;
use weir_core::tables::Tables;
use weir_core::time::{MILLISECOND, Nanos, SECOND};
use weir_core::verdict::Reason;
use weir_io::af_packet::{self, kernel_forwards};
use weir_io::netlink::LinkInfo;
use weir_io::steer::LocalAddresses;
use weir_io::steer::enforce::{self, EnforceCounters, Enforcement};

use super::error::{ApplyError, EnforcementError};
use super::ports::{self, With};
use super::worker::{WorkerCommand, WorkerState, cpus_of};
use super::{Daemon, Open, links};
use crate::config::{Config, Kind, Port};
use crate::enforcement::{Claim, Taken, kernel_would};

/// How often is looked whether all is as it was made, besides when the kernel tells of filters.
pub(super) const WATCH: Nanos = 250 * MILLISECOND;
/// Frames without a socket are told of at most this often.
const ALARM_EVERY: Nanos = 10 * SECOND;

fn forwards(device: &str) -> bool {
    kernel_forwards(device) != (false, false)
}

/// The points of this daemon, by device.
#[derive(Default)]
pub(super) struct Points {
    points: BTreeMap<String, Point>,
    /// Dropped for want of a socket at points that are no more.
    past: u64,
    looked: Nanos,
}

struct Point {
    enforcement: Enforcement,
    _claim: Option<Claim>,
    /// The device has sockets behind XDP: what reaches the kernel found none.
    steered: bool,
    /// Transit dropped before this daemon came.
    before: u64,
    told: u64,
    told_at: Nanos,
}

impl Point {
    fn unserved(&self) -> u64 {
        match (self.steered, self.enforcement.counters()) {
            (true, Ok(counters)) => counters.transit.saturating_sub(self.before),
            _ => 0,
        }
    }
}

impl Points {
    /// A point on a port's device, unless it has one; false when it had. Without a program packet sockets may
    /// still do, where the kernel forwards nothing: [`Daemon::watch_forwarding`] keeps it so.
    pub(super) fn arm(
        &mut self,
        port: &Port,
        index: u32,
        local: Option<&LocalAddresses>,
    ) -> Result<bool, EnforcementError> {
        let device = &port.device.value;
        let packet_sockets = |error: &EnforcementError| {
            error.is_for_want_of_a_program() && port.kind.value == Kind::AfPacket && !forwards(device)
        };
        match self.arm_device(device, index, local) {
            Err(error) if packet_sockets(&error) => {
                tracing::warn!(
                    "{error}; the kernel forwards nothing from {device}: packet sockets will do as long as it stays so, and weir switches it off when it does not"
                );
                Ok(false)
            }
            armed => armed,
        }
    }

    fn arm_device(
        &mut self,
        device: &str,
        index: u32,
        local: Option<&LocalAddresses>,
    ) -> Result<bool, EnforcementError> {
        if self.points.get(device).is_some_and(|p| p.enforcement.ifindex() == index) {
            return Ok(false);
        }
        self.forget(device);
        let own = || device.to_owned();
        let local = local.ok_or_else(|| EnforcementError::NoBpf { device: own() })?;
        let claim = Claim::new(index);
        let claim = match claim.map_err(|error| EnforcementError::NoClaim { device: own(), error })? {
            Ok(claim) => Some(claim),
            Err(Taken::Weir) => {
                return Err(EnforcementError::AnotherWeir { device: own() });
            }
            Err(Taken::Stranger { uid }) => {
                tracing::warn!(
                    "{device}: user {uid} holds the name by which weirs know each other; `weir release` cannot see that this one runs"
                );
                None
            }
        };
        let enforcement = Enforcement::attach(device, index, local).map_err(EnforcementError::NotAttached)?;
        let before = enforcement.counters().map_or(0, |counters| counters.transit);
        if before > 0 {
            tracing::warn!(
                "{device}: {before} packets of transit were dropped in front of the kernel so far, because policies apply"
            );
        }
        let point = Point { enforcement, _claim: claim, steered: true, before, told: 0, told_at: 0 };
        self.points.insert(device.to_owned(), point);
        Ok(true)
    }

    /// Every device of the configuration that is there; the names of those that got a point now.
    pub(super) fn arm_all(
        &mut self,
        config: &Config,
        known: &[LinkInfo],
        local: Option<&LocalAddresses>,
    ) -> Result<Vec<String>, ApplyError> {
        let mut armed = Vec::new();
        for port in config.enforced_devices() {
            let device = &port.device.value;
            let Some(index) = links::index_of(device, known) else { continue };
            match self.arm(port, index, local) {
                Ok(true) => armed.push(device.clone()),
                Ok(false) => {}
                Err(error) => {
                    self.release(&armed);
                    let at = Box::new(config.excerpt(port.device.span.clone()));
                    return Err(ApplyError::Enforcement { at, port: port.name.value.clone(), error });
                }
            }
        }
        Ok(armed)
    }

    pub(super) fn has(&self, device: &str) -> bool {
        self.points.contains_key(device)
    }

    pub(super) fn names(&self) -> Vec<String> {
        self.points.keys().cloned().collect()
    }

    pub(super) fn opened_as(&mut self, device: &str, kind: &str) {
        if let Some(point) = self.points.get_mut(device) {
            point.steered = kind == "af_xdp";
        }
    }

    /// No longer this daemon's; the program stays.
    fn forget(&mut self, device: &str) {
        if let Some(point) = self.points.remove(device) {
            self.past += point.unserved();
        }
    }

    /// Takes points off: from now on the kernel gets the transit that reaches it.
    pub(super) fn release(&mut self, devices: &[String]) {
        for device in devices {
            let Some(index) = self.points.get(device).map(|p| p.enforcement.ifindex()) else { continue };
            self.forget(device);
            if let Err(error) = enforce::release(index) {
                tracing::error!(
                    "{device}: {error}; its transit stays dropped, `weir release {device}` tries again"
                );
            }
        }
    }

    pub(super) fn counters(&self, device: &str) -> Option<EnforceCounters> {
        self.points.get(device)?.enforcement.counters().ok()
    }

    fn unserved(&self) -> u64 {
        self.past + self.points.values().map(Point::unserved).sum::<u64>()
    }

    /// What found no socket, as a report beside the workers'.
    pub(super) fn report(&self, tables: &Tables) -> WorkerState {
        let unserved = self.unserved();
        let mut report = WorkerState { generation: tables.generation, ..WorkerState::default() };
        report.ports.resize(tables.ports.len(), PortCounters::default());
        report.ledger.received = unserved;
        report.ledger.drops.add(Reason::NoSocket, unserved);
        report
    }

    /// Tells an operator whose weir ends what is left on the devices; `None` without points.
    pub(super) fn left_behind(&self) -> Option<String> {
        let names: Vec<&str> = self.points.keys().map(String::as_str).collect();
        (!names.is_empty()).then(|| {
            format!(
                "transit on {} stays dropped in front of the kernel, because policies apply; start weir again, or give it to the kernel with `weir release`",
                names.join(", ")
            )
        })
    }

    /// Devices with a point that the next configuration enforces nothing on.
    fn gone(&self, next: &Config) -> impl Iterator<Item = &String> {
        let stay: BTreeSet<String> =
            next.enforced_devices().into_iter().map(|port| port.device.value.clone()).collect();
        self.points.keys().filter(move |device| !stay.contains(*device))
    }

    /// Devices that have a point and will have none, or one nobody looks after: a sentence each.
    pub(super) fn changes(&self, next: &Config) -> Vec<String> {
        self.gone(next).map(|device| match next.enforces() {
            true => format!(
                "{device} is no port then, and its transit stays dropped in front of the kernel, because policies apply; `weir release {device}` gives it to the kernel"
            ),
            false => format!(
                "no policies apply then: what the router does not take of {device} reaches the kernel, and {}",
                kernel_would(device)
            ),
        })
        .collect()
    }

    /// Makes that so.
    pub(super) fn drop_gone(&mut self, next: &Config) {
        let gone: Vec<String> = self.gone(next).cloned().collect();
        match next.enforces() {
            true => gone.iter().for_each(|device| self.forget(device)),
            false => self.release(&gone),
        }
    }
}

/// A configuration without policies finds what one with policies left: it is the truth now.
pub(super) fn release_leftovers(config: &Config, known: &[LinkInfo]) {
    if config.enforces() {
        return;
    }
    for port in config.devices() {
        let device = &port.device.value;
        let Some(index) = links::index_of(device, known) else { continue };
        if enforce::release(index).unwrap_or(false) {
            tracing::warn!(
                "{device}: a weir with policies left its transit dropped; this configuration has none: the kernel gets what the router does not take, and {}",
                kernel_would(device)
            );
        }
    }
}

/// Some drivers go without the program after their link was down.
fn watch_forgetful(device: &str, open: &mut Open) {
    let Some(steering) = &mut open.port.steering else { return };
    match steering.attach_if_forgotten() {
        Ok(false) => {}
        Ok(true) => {
            open.forgotten += 1;
            tracing::warn!(
                "{device}: its driver goes without the XDP program after its link was down or the machine slept; it is attached again"
            );
        }
        Err(error) => open.complain(format!("{device}: frames reach no worker: {error}")),
    }
}

impl Daemon {
    /// Whether programs, queues and forwarding are as they were made; what is not is put right and said.
    pub(super) fn watch_enforcement(&mut self, now: Nanos) {
        let heard = self.kernel.filters.heard();
        if !heard && now.saturating_sub(self.points.looked) < WATCH {
            return;
        }
        self.points.looked = now;
        self.watch_programs();
        self.keep_links();
        self.watch_unserved(now);
        let devices: Vec<Port> = self.config.devices().into_iter().cloned().collect();
        for port in &devices {
            self.follow_queues(port);
            self.moderate(port, now);
            self.watch_forwarding(port);
        }
    }

    /// What an operator should know of what happened so far.
    pub(super) fn enforcement_notices(&self) -> Vec<String> {
        let unserved = self.points.unserved();
        let unserved = (unserved > 0).then(|| {
            format!(
                "{unserved} frames found no socket and were dropped in front of the kernel, because policies apply; see `weir show ports`"
            )
        });
        let taken = self.open.iter().filter(|(_, open)| open.reattached > 0).map(|(device, open)| {
            format!(
                "{device}: programs were taken off by somebody {}; they are attached again",
                if open.reattached == 1 { "once".to_owned() } else { format!("{} times", open.reattached) }
            )
        });
        let forgotten = self.open.iter().filter(|(_, open)| open.forgotten > 0).map(|(device, open)| {
            format!(
                "{device}: its driver goes without the XDP program after its link was down or the machine slept; it was attached again {}",
                if open.forgotten == 1 { "once".to_owned() } else { format!("{} times", open.forgotten) }
            )
        });
        unserved.into_iter().chain(taken).chain(forgotten).collect()
    }

    /// Attaching a program resets some cards; its link can outlive this process.
    pub(super) fn keep_links(&mut self) {
        // Without somebody who follows them, flows of the kernel's firewall must not be forwarded.
        if self.config.kernel.firewall.is_some() {
            return;
        }
        let enforced = self.control.tables().ports.iter().any(|port| port.egress != port.device);
        for (device, open) in &mut self.open {
            // What policies let pass is forwarded by flows, which nobody would void when another policy comes.
            if enforced && !open.port.zero_copy {
                open.port.forget_link(device);
            } else {
                open.port.keep_link(device);
            }
        }
    }

    fn watch_programs(&mut self) {
        for (device, open) in &mut self.open {
            let point = self.points.points.get(device);
            // An interface that is gone says so by netlink.
            if let Some(point) = point.filter(|p| p.enforcement.is_there().is_ok_and(|there| !there)) {
                open.reattached += 1;
                match point.enforcement.attach_again() {
                    Ok(()) => tracing::error!(
                        "{device}: the program that keeps transit from the kernel was taken off by somebody; it is attached again; find out who did it"
                    ),
                    Err(error) => tracing::error!(
                        "{device}: transit can reach the kernel in spite of policies: {error}"
                    ),
                }
            }
            let Some(steering) = &mut open.port.steering else { continue };
            match steering.attach_if_gone() {
                Ok(false) => watch_forgetful(device, open),
                Ok(true) => {
                    open.reattached += 1;
                    tracing::error!(
                        "{device}: the XDP program was taken off by somebody; it is attached again; find out who did it"
                    );
                }
                Err(error) => open.complain(format!("{device}: frames reach no worker: {error}")),
            }
        }
    }

    fn watch_unserved(&mut self, now: Nanos) {
        for (device, point) in &mut self.points.points {
            let unserved = point.unserved();
            let due = point.told_at == 0 || now.saturating_sub(point.told_at) >= ALARM_EVERY;
            if unserved > point.told && due {
                let queues = self.open.get(device).map_or(0, |open| open.port.queues);
                tracing::error!(
                    "{device}: {} frames found no socket and were dropped in front of the kernel, because policies apply ({queues} sockets; `ethtool -l {device}` has the queues)",
                    unserved - point.told
                );
                (point.told, point.told_at) = (unserved, now);
            }
        }
    }

    /// Sockets for receive queues that came.
    fn follow_queues(&mut self, port: &Port) {
        let device = &port.device.value;
        let Some(open) = self.open.get_mut(device).filter(|open| open.port.kind == "af_xdp") else { return };
        let (had, has) = (open.port.queues, ports::queues(port).unwrap_or(0));
        if has < had {
            open.complain(format!(
                "{device}: {has} receive queues, and sockets on {had}; weir keeps the sockets, restart it to close them"
            ));
        }
        if let Some(handle) = &self.flow_offload {
            handle.shared.follow_far_queues(open.id, ports::far_queues(device));
        }
        if has <= had {
            return;
        }
        let names = self.points.names();
        let cpus = cpus_of(&self.workers);
        let with = With {
            cpus: &cpus,
            umems: &self.umems,
            local: self.local.as_ref(),
            flow_offload: self.flow_offload.as_ref(),
            workers: &self.config.workers,
            live: &self.live,
            policies: self.config.enforces(),
            held: false,
            enforced: &names,
        };
        match ports::open_more((open.id, device), has, &mut open.port, &with) {
            Ok(queues) => {
                tracing::warn!(
                    "port {}: {device} has {has} receive queues now instead of {had}; each has a socket",
                    port.name.value
                );
                let id: DeviceId = open.id;
                for (worker, queue) in queues {
                    if let Some(worker) = self.workers.get(worker) {
                        worker.post(WorkerCommand::Add(id, queue));
                    }
                }
            }
            Err(error) => {
                open.complain(format!("{device}: a receive queue that came has no socket: {error}"))
            }
        }
    }

    /// Interrupts of virtual cables, by how much they receive.
    fn moderate(&mut self, port: &Port, now: Nanos) {
        let device = &port.device.value;
        let Some(open) = self.open.get_mut(device) else { return };
        let moderation = open.port.moderation.as_mut();
        if let Some(said) = moderation.and_then(|m| m.watch(device, open.port.queues, now))
            && !open.port.said.contains(&said)
        {
            tracing::info!("{said}");
            open.port.said.push(said);
        }
    }

    /// A packet socket without a point behind it lives by the kernel's not forwarding; where policies apply weir
    /// switches it off again.
    fn watch_forwarding(&mut self, port: &Port) {
        let device = &port.device.value;
        if self.points.has(device) {
            return;
        }
        let Some(open) = self.open.get_mut(device).filter(|open| open.port.kind == "af_packet") else {
            return;
        };
        let forwarded = std::mem::replace(&mut open.forwarded, forwards(device));
        if !open.forwarded {
            return;
        }
        let now = kernel_would(device);
        if self.config.enforces() {
            let stopped = af_packet::stop_forwarding(device);
            let stopped = match &stopped {
                Ok(()) => "weir switched it off".to_owned(),
                Err(error) => format!("weir cannot switch it off ({error}): do it now, or stop the traffic"),
            };
            tracing::error!(
                "port {}: somebody made it so that {now}, past the policies; {stopped}",
                port.name.value
            );
        } else if !forwarded {
            tracing::error!(
                "port {}: since now {now} too: every packet goes out twice; switch it off, or use kind \"af_xdp\"",
                port.name.value
            );
        }
    }
}
