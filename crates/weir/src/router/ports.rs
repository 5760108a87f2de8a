//! Opening devices: which kind, in which order, with what the kernel said to each attempt.
//!
//! ```text
//! kind = "auto"       af_xdp (zero-copy, then copy; native XDP, then generic)  ─►  af_packet
//! kind = "af_xdp"     the same without the last step
//! kind = "af_packet"  only where the kernel does not forward too, or policies apply (then it gets no transit)
//! kind = "tun", "pcap"
//! firewall = { … }    XDP alone (`tracked`)
//! ```
//!
//! Promises: every refusal on the way is kept and printed; receive offloads that merge frames are off
//! while a port is ours and on again afterwards; dropping an [`OpenPort`] leaves the
//! interface as it was, but for a policy enforcement point, which is the daemon's.

mod card;
mod moderation;
mod shares;
mod tracked;

use std::os::fd::{AsRawFd, BorrowedFd};
use std::path::Path;
use std::sync::Arc;

use weir_core::device::Device;
use weir_core::packet::DeviceId;
use weir_io::af_packet::{AfPacket, Tap, kernel_forwards};
use weir_io::af_xdp::live::LiveTransmit;
use weir_io::af_xdp::{AfXdp, Bind, Options, RING};
use weir_io::bpf::attach::{self, XdpMode};
use weir_io::coalescing::SentAtOnce;
use weir_io::interface::{count_queues, may_be_a_card, no_redirects};
use weir_io::irq::PlacedIrqs;
use weir_io::netlink::{self, LinkInfo};
use weir_io::offload::SwitchedOff;
use weir_io::pcap::Pcap;
use weir_io::port_error::PortError;
use weir_io::process::passed_descriptors_by_name;
use weir_io::rss::HashedByFlow;
use weir_io::steer::flow_offload::{FlowOffload, MAX_DEVICES};
use weir_io::steer::{LocalAddresses, Steering};
use weir_io::tun::Tun;
use weir_io::umem::{Chunk, Umem};

use self::card::{place_irqs, send_at_once, spread_flows, switch_off_hiding, switch_off_merging};
pub use self::moderation::Moderation;
use self::shares::shares;
use super::flow_offload::{FlowOffloadHandle, OffloadingSocket, ReceiveQueue};
use super::live::LiveHandle;
use super::worker::{OpenDevice, Several};
use crate::config::settings::{WakeUp, Workers, Xdp, ZeroCopy};
use crate::config::{self, Kind};
use crate::service;

/// Frames a worker's own receive call takes from the interface: one batch.
const BUSY_POLL_BUDGET: u16 = 64;

/// What a device is while it is ours. The workers hold its queues; this holds the rest.
#[derive(Default)]
pub struct OpenPort {
    /// `af_xdp`, `af_packet`, `tun`, `pcap` or `xdp`: what it became.
    pub kind: &'static str,
    /// One sentence each: what was refused, what was chosen, what was switched off.
    pub said: Vec<String>,
    /// Which of these say that a better way was refused.
    pub fallbacks: Vec<String>,
    pub steering: Option<Steering>,
    /// Hears ARP and NDP where they stay with the kernel.
    pub tap: Option<Tap>,
    /// Receive queues with an AF_XDP socket.
    pub queues: usize,
    /// The queue each worker sends by.
    senders: Vec<u32>,
    pub moderation: Option<Moderation>,
    /// A card writes the buffers of a queue, so that frames have less room in them.
    pub zero_copy: bool,
    link: KeptLink,
    _offloads: Vec<Option<SwitchedOff>>,
    _coalescing: Option<SentAtOnce>,
    _hash: Option<HashedByFlow>,
    irqs: Option<PlacedIrqs>,
}

/// The link of the XDP program that the service manager keeps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum KeptLink {
    /// That of the process before, if any.
    #[default]
    Inherited,
    None,
    /// The link has this number, as each has one of its own.
    Number(u32),
}

/// What the service manager calls a device's link: `xdp-DEVICE`.
const LINK_NAME: &str = "xdp-";

impl OpenPort {
    /// Gives the service manager the link of the XDP program, once for each that there comes to be.
    pub fn keep_link(&mut self, device: &str) {
        let Some(number) = self.steering.as_ref().map(|steering| steering.attachment().number()) else {
            return;
        };
        if self.link != KeptLink::Number(number)
            && let Some((name, link)) = self.named_link(device)
        {
            service::keep(&name, link);
            self.link = KeptLink::Number(number);
        }
    }

    /// The link of the XDP program, under the name it is kept by.
    pub fn named_link(&self, device: &str) -> Option<(String, BorrowedFd<'_>)> {
        let link = self.steering.as_ref()?.attachment().link()?;
        Some((format!("{LINK_NAME}{device}"), link))
    }

    /// The link goes with this process; true where the service manager had it.
    pub fn forget_link(&mut self, device: &str) -> bool {
        let was = std::mem::replace(&mut self.link, KeptLink::None);
        if was != KeptLink::None {
            service::forget(&format!("{LINK_NAME}{device}"));
        }
        matches!(was, KeptLink::Number(_))
    }

    /// The device is no longer ours: its program goes, whoever keeps the link.
    pub fn give_back(mut self, device: &str) {
        if self.forget_link(device) {
            // What cannot be taken off is on no device any more.
            let _ = self.steering.as_mut().map(Steering::take_off);
        }
    }
}

/// Links of the process before this one, which the service manager kept, or that process passed on. Call it while that one runs.
pub fn inherit_links() {
    let passed = passed_descriptors_by_name().into_iter();
    attach::inherit(passed.filter(|(name, _)| name.starts_with(LINK_NAME)).map(|(_, link)| link));
}

/// Queues the device can give to workers, each of its own: `None` means any number.
pub fn queues(port: &config::Port) -> Option<usize> {
    match port.kind.value {
        Kind::Tun | Kind::Pcap => Some(1),
        Kind::AfPacket => None,
        Kind::Auto | Kind::AfXdp => count_queues(&port.device.value, "rx-").map(|count| count.max(1)),
    }
}

/// Whether the device's card may come to read and write buffers itself.
pub fn may_be_zero_copy(port: &config::Port, wanted: &Workers) -> bool {
    wanted.zero_copy != ZeroCopy::Off
        && wanted.xdp != Xdp::Generic
        && matches!(port.kind.value, Kind::Auto | Kind::AfXdp)
        && may_be_a_card(&port.device.value)
}

/// What devices are opened with.
pub struct With<'a> {
    /// The CPU of each worker.
    pub cpus: &'a [u32],
    /// The memory of each worker.
    pub umems: &'a [Arc<Umem>],
    pub local: Option<&'a LocalAddresses>,
    pub flow_offload: Option<&'a FlowOffloadHandle>,
    /// Which ways of AF_XDP are tried, and how workers learn of frames.
    pub workers: &'a Workers,
    pub live: &'a LiveHandle,
    /// What the router does not take must not be forwarded by the kernel.
    pub policies: bool,
    /// Frames stay with the kernel until [`Steering::release`].
    pub held: bool,
    /// The devices where a program in front of the kernel sees to it.
    pub enforced: &'a [String],
}

impl With<'_> {
    fn is_enforced(&self, device: &str) -> bool {
        self.enforced.iter().any(|enforced| enforced == device)
    }
}

impl OpenPort {
    /// Logs what became of it. That a port of kind `auto` is no AF_XDP is a warning.
    pub fn log(&self) {
        for said in &self.said {
            if self.kind == "af_packet" && self.fallbacks.contains(said) {
                tracing::warn!("{said}");
            } else {
                tracing::info!("{said}");
            }
        }
    }
}

/// Opens a device for every worker, with a share of its queues each.
pub fn open(
    port: &config::Port,
    device: DeviceId,
    with: &With<'_>,
) -> Result<(OpenPort, Vec<OpenDevice>), PortError> {
    let name = port.device.value.as_str();
    let workers = with.umems.len();
    if let Some(handle) = with.flow_offload
        && let Some(tracked) = &handle.tracked
    {
        return tracked::open(port, device, with, (handle, tracked));
    }
    match port.kind.value {
        Kind::Tun => open_tun(name, device),
        Kind::Pcap => open_pcap(port, device),
        Kind::AfPacket => open_af_packet(name, device, workers, with.is_enforced(name), Vec::new()),
        Kind::AfXdp => open_af_xdp(port, device, with),
        Kind::Auto => match open_af_xdp(port, device, with) {
            Ok(opened) => Ok(opened),
            Err(refusal) if with.workers.insist() => Err(refusal),
            Err(refusal) => {
                let fallback = fallback(name, &refusal);
                let said = vec![fallback.clone()];
                let opened = open_af_packet(name, device, workers, with.is_enforced(name), said);
                // Why it is not AF_XDP is what has to be mended.
                let (mut opened, queues) =
                    opened.map_err(|error| PortError::new(format!("{refusal}; {error}")))?;
                opened.fallbacks.push(fallback);
                Ok((opened, queues))
            }
        },
    }
}

/// One line: a verifier's own words are in the log of `WEIR_LOG=debug`.
fn fallback(name: &str, refusal: &PortError) -> String {
    let whole = refusal.to_string();
    let mut lines = whole.lines();
    let first = lines.next().unwrap_or_default().trim_end_matches(':').to_owned();
    if lines.next().is_some() {
        tracing::debug!("{whole}");
    }
    format!("port {name}: falling back to af_packet: {first}")
}

/// The link behind a device name, set up if it was down.
fn ready_link(kind: &str, name: &str, said: &mut Vec<String>) -> Result<LinkInfo, PortError> {
    let failed = |doing: &'static str| move |e| PortError::from_io(kind, name, doing, e);
    let link = netlink::link(name).map_err(failed("listing devices"))?;
    let link = link.ok_or_else(|| PortError::no_such_device(kind, name))?;
    if !link.up {
        netlink::set_up(link.index).map_err(failed("setting the device up"))?;
        said.push(format!("port {name}: was down, set up"));
    }
    Ok(link)
}

/// How a program may be attached to this device. Programs of a bond's members would see the members' numbers, not the bond's; the
/// kernel gives a socket of the bond's nothing that came that way.
fn xdp_modes(link: &LinkInfo, wanted: Xdp, said: &mut Vec<String>) -> Result<&'static [XdpMode], PortError> {
    match wanted {
        Xdp::Generic => return Ok(&[XdpMode::Generic]),
        Xdp::Native if link.bond => {
            let name = &link.name;
            return Err(PortError::new(format!(
                "port {name}: a bond takes generic XDP only; write `xdp = \"auto\"` in [workers]"
            )));
        }
        Xdp::Native => return Ok(&[XdpMode::Native]),
        Xdp::Auto if !link.bond => return Ok(&[XdpMode::Native, XdpMode::Generic]),
        Xdp::Auto => {}
    }
    said.push(format!(
        "port {}: a bond, whose members' drivers would name themselves instead of it: generic XDP",
        link.name
    ));
    Ok(&[XdpMode::Generic])
}

/// Attaches the steering program; held, its sockets get nothing before they are released.
fn steer(
    link: &LinkInfo,
    local: &LocalAddresses,
    flows: Option<&FlowOffload>,
    with: &With<'_>,
    said: &mut Vec<String>,
) -> Result<Steering, PortError> {
    let modes = xdp_modes(link, with.workers.xdp, said)?;
    let steering = Steering::attach_with(&link.name, link.index, modes, local, flows)
        .map_err(|e| PortError::new(e.to_string()))?;
    if with.held {
        steering.hold();
    }
    Ok(steering)
}

fn open_af_xdp(
    port: &config::Port,
    device: DeviceId,
    with: &With<'_>,
) -> Result<(OpenPort, Vec<OpenDevice>), PortError> {
    let name = port.device.value.as_str();
    let (mut said, mut fallbacks) = (Vec::new(), Vec::new());
    let &With { umems, flow_offload, .. } = with;
    if with.policies && !with.is_enforced(name) {
        return Err(PortError::new(format!(
            "port af_xdp:{name}: policies apply, and the kernel takes no program that keeps from it what no socket takes"
        )));
    }
    let local = with.local.ok_or_else(|| {
        PortError::new(format!(
            "port af_xdp:{name}: BPF maps cannot be made; run as root or grant CAP_BPF and CAP_NET_ADMIN"
        ))
    })?;
    let link = ready_link("af_xdp", name, &mut said)?;
    let offloads = vec![switch_off_merging(name, &mut said), switch_off_hiding(name, &mut said)];
    // Devices beyond those with counters of flow offload would leave the ledger unbalanced.
    let flow_offload = flow_offload.filter(|_| u32::from(device.0) < MAX_DEVICES);
    let flows = flow_offload.map(|handle| &handle.shared.flows);
    let steering = steer(&link, local, flows, with, &mut said)?;
    let live = with.live.of(name, &mut said);
    // Every queue gets a socket: the kernel would keep what arrives on one without.
    let has = queues(port).unwrap_or(umems.len());
    let shares = shares(has.max(umems.len()) as u32, with.cpus, !may_be_a_card(name));
    let senders: Vec<u32> = shares.iter().filter_map(|share| share.first().copied()).collect();
    let opened = open_shares((device, &shares), &steering, with, live, (&mut said, &mut fallbacks))?;
    let copied = opened.iter().flatten().all(|socket| socket.report().bind == Bind::Copy);
    let zero_copy = !copied;
    let generic = steering.mode() == XdpMode::Generic;
    let offloading = flow_offload.filter(|_| copied && (!generic || one_poller_receives(&link)));
    if let Some(handle) = offloading {
        join((device, &link), handle, &mut said);
    }
    let wrap = |worker: usize, socket| {
        wrap((device, link.index), &steering, (senders[worker], &umems[worker]), socket, offloading)
    };
    let sockets = opened.into_iter().enumerate();
    let queues =
        sockets.filter_map(|(worker, sockets)| several(sockets, |socket| wrap(worker, socket))).collect();
    let tap = Tap::open(name)?;
    let opened = OpenPort {
        kind: "af_xdp",
        fallbacks,
        steering: Some(steering),
        link: KeptLink::default(),
        tap: Some(tap),
        zero_copy,
        queues: has.max(umems.len()),
        senders: senders.clone(),
        moderation: Moderation::of(name, with.workers),
        _offloads: offloads,
        _hash: spread_flows(name, has, &mut said),
        _coalescing: zero_copy.then(|| send_at_once(name, &mut said)).flatten(),
        irqs: place_irqs(name, with, &mut said),
        said,
    };
    Ok((opened, queues))
}

/// Sockets for the queues of each worker, that of the queue it sends by first.
fn open_shares(
    (device, shares): (DeviceId, &[Vec<u32>]),
    steering: &Steering,
    with: &With<'_>,
    live: Option<Arc<LiveTransmit>>,
    (said, fallbacks): (&mut Vec<String>, &mut Vec<String>),
) -> Result<Vec<Vec<AfXdp>>, PortError> {
    let mut opened: Vec<Vec<AfXdp>> = shares.iter().map(|_| Vec::new()).collect();
    for queue in 0..shares.iter().flatten().count() as u32 {
        let Some(worker) = shares.iter().position(|share| share.contains(&queue)) else { continue };
        let how = (with.workers, live.clone());
        let socket = open_queue(device, queue, steering, &with.umems[worker], how, RING)?;
        said.push(socket.report().to_string());
        fallbacks.extend(socket.report().fell_back().then(|| socket.report().to_string()));
        opened[worker].push(socket);
    }
    for (sockets, share) in opened.iter_mut().zip(shares) {
        sockets.sort_by_key(|socket| share.first() != Some(&socket.report().queue));
    }
    Ok(opened)
}

/// Flows that come in by this device are offloaded from now on.
fn join((device, link): (DeviceId, &LinkInfo), handle: &FlowOffloadHandle, said: &mut Vec<String>) {
    let barred = no_redirects(&link.name);
    handle.shared.join(device, link.index, barred.is_none().then(|| far_queues(&link.name)));
    said.extend(barred.map(|why| format!("port {}: no XDP flow offload out of it: {why}", link.name)));
    said.push(format!(
        "port {}: XDP flow offload: pairs of addresses a worker has decided on are forwarded by the XDP program",
        link.name
    ));
}

/// A socket of a worker that sends by this queue; one whose frames may be offloaded installs their flows.
fn wrap(
    (device, ifindex): (DeviceId, u32),
    steering: &Steering,
    (sends_by, umem): (u32, &Umem),
    socket: AfXdp,
    offloading: Option<&FlowOffloadHandle>,
) -> Box<dyn Device<Chunk> + Send> {
    let queue = socket.report().queue;
    let Some((handle, progress)) = offloading.zip(steering.progress(queue)) else { return Box::new(socket) };
    progress.allow_fronts(umem.copied_room());
    let generic = steering.mode() == XdpMode::Generic;
    let at = ReceiveQueue { device, ifindex, queue, sends_by: sends_by as u16, progress, generic };
    Box::new(OffloadingSocket::new(socket, at, handle.clone()))
}

/// Queues at the far end, where which of them takes a redirected frame follows the CPU: a virtual cable's, taken to have as many as
/// this end sends by. 0: a card's, whose driver has it when it is redirected.
pub fn far_queues(name: &str) -> u32 {
    if may_be_a_card(name) { 0 } else { count_queues(name, "tx-").unwrap_or(0) as u32 }
}

/// Frames posted for reception on a queue that came later: buffers were counted without it.
const POSTED_LATER: u32 = 256;

/// Sockets for the queues from those a device has to `count`, each with the worker it falls to.
pub fn open_more(
    (device, name): (DeviceId, &str),
    count: usize,
    opened: &mut OpenPort,
    with: &With<'_>,
) -> Result<Vec<(usize, OpenDevice)>, PortError> {
    let Some(steering) = &mut opened.steering else { return Ok(Vec::new()) };
    if with.flow_offload.is_some_and(|handle| handle.tracked.is_some()) {
        steering.reach_new_queues().map_err(|e| PortError::new(e.to_string()))?;
        opened.queues = count;
        return Ok(Vec::new());
    }
    let ifindex = with.flow_offload.and_then(|handle| handle.shared.joined(device));
    let mut queues = Vec::new();
    for queue in opened.queues..count {
        let worker = queue % with.umems.len();
        let umem = &with.umems[worker];
        let socket = open_queue(device, queue as u32, steering, umem, (with.workers, None), POSTED_LATER)?;
        opened.said.push(socket.report().to_string());
        let poll = vec![socket.poll_fd().as_raw_fd()];
        let socket = match ifindex {
            Some(ifindex) => {
                let sender = opened.senders.get(worker).copied().unwrap_or(worker as u32);
                wrap((device, ifindex), steering, (sender, umem), socket, with.flow_offload)
            }
            None => Box::new(socket),
        };
        queues.push((worker, OpenDevice { device: socket, poll }));
    }
    steering.reach_new_queues().map_err(|e| PortError::new(e.to_string()))?;
    opened.queues = count;
    // Those the driver has asked for anew, for all queues: what was moved before is no more.
    opened.irqs = None;
    opened.irqs = place_irqs(name, with, &mut opened.said);
    Ok(queues)
}

/// A worker's queues of one device as one.
fn several(sockets: Vec<AfXdp>, wrap: impl Fn(AfXdp) -> Box<dyn Device<Chunk> + Send>) -> Option<OpenDevice> {
    let poll = sockets.iter().map(|socket| socket.poll_fd().as_raw_fd()).collect();
    let mut queues = sockets.into_iter().map(wrap);
    let mut several = Several::new(queues.next()?);
    queues.for_each(|queue| several.add(queue));
    Some(OpenDevice { device: Box::new(several), poll })
}

/// Whether behind generic XDP one poller alone brings the frames of a queue, so that they are numbered in the order in which they
/// reach the worker: a card's. What a bond receives comes by its members; what other devices receive runs on any CPU that sends,
/// and with RPS on several.
fn one_poller_receives(link: &LinkInfo) -> bool {
    let name = &link.name;
    if link.bond {
        return false;
    }
    let spreads = |queue: usize| {
        let rps = std::fs::read_to_string(format!("/sys/class/net/{name}/queues/rx-{queue}/rps_cpus"));
        rps.is_ok_and(|cpus| cpus.trim().contains(|c| c != '0' && c != ','))
    };
    may_be_a_card(name) && !(0..count_queues(name, "rx-").unwrap_or(0)).any(spreads)
}

/// A queue whose worker polls the interface itself, or one driven by interrupts where that is refused or not wanted.
fn open_queue(
    device: DeviceId,
    queue: u32,
    steering: &Steering,
    umem: &Umem,
    (workers, live): (&Workers, Option<Arc<LiveTransmit>>),
    posted: u32,
) -> Result<AfXdp, PortError> {
    let mut options = Options::new(device, queue);
    options.posted = posted;
    options.busy_poll = (workers.wake_up != WakeUp::Interrupt).then_some(BUSY_POLL_BUDGET);
    options.busy_poll_insists = workers.wake_up == WakeUp::BusyPoll;
    options.live = live;
    options.order.retain(|bind| match workers.zero_copy {
        ZeroCopy::Auto => true,
        ZeroCopy::Off => *bind == Bind::Copy,
        ZeroCopy::Require => *bind == Bind::ZeroCopy,
    });
    AfXdp::open(&options, steering, umem).map_err(|e| match workers.zero_copy {
        ZeroCopy::Require => PortError::new(format!("{e}; or write `zero_copy = \"auto\"` in [workers]")),
        _ => PortError::new(e.to_string()),
    })
}

fn open_af_packet(
    name: &str,
    device: DeviceId,
    workers: usize,
    enforced: bool,
    mut said: Vec<String>,
) -> Result<(OpenPort, Vec<OpenDevice>), PortError> {
    ready_link("af_packet", name, &mut said)?;
    let v4 = format!("net.ipv4.conf.{name}.forwarding=0");
    let v6 = "net.ipv6.conf.all.forwarding=0".to_owned();
    let families = match kernel_forwards(name) {
        _ if enforced => None,
        (false, false) => None,
        (true, false) => Some(("IPv4", v4)),
        (false, true) => Some(("IPv6", v6)),
        (true, true) => Some(("IPv4 and IPv6", format!("{v4} {v6}"))),
    };
    if let Some((families, remedy)) = families {
        return Err(PortError::new(format!(
            "port af_packet:{name}: the kernel forwards {families} from this device too and every packet would go \
             out twice; run `sysctl -w {remedy}` or use kind \"af_xdp\""
        )));
    }
    let offloads = vec![switch_off_merging(name, &mut said)];
    // Any number all queues of this device share and no other socket of this host uses.
    let fanout = (workers > 1).then(|| (std::process::id() as u16).wrapping_mul(64).wrapping_add(device.0));
    let mut queues = Vec::new();
    for _ in 0..workers {
        let port: AfPacket<Chunk> = AfPacket::open(name, device, fanout)?;
        let poll = vec![port.as_raw_fd()];
        queues.push(OpenDevice { device: Box::new(port), poll });
    }
    said.push(format!(
        "af_packet {name}: {workers} socket{}",
        if workers == 1 { "" } else { "s, flows shared by hash" }
    ));
    Ok((OpenPort { kind: "af_packet", said, _offloads: offloads, ..OpenPort::default() }, queues))
}

fn open_tun(name: &str, device: DeviceId) -> Result<(OpenPort, Vec<OpenDevice>), PortError> {
    let port = Tun::open(name, device)?;
    let mut said = vec![port.report()];
    ready_link("tun", name, &mut said)?;
    let poll = vec![port.as_raw_fd()];
    let opened = OpenPort { kind: "tun", said, ..OpenPort::default() };
    Ok((opened, vec![OpenDevice { device: Box::new(port), poll }]))
}

fn open_pcap(port: &config::Port, device: DeviceId) -> Result<(OpenPort, Vec<OpenDevice>), PortError> {
    let (read, write) = (port.read.as_deref(), port.write.as_deref());
    let file = Pcap::open(read.map(Path::new), write.map(Path::new), device)?;
    let (read, write) = (read.unwrap_or("nothing"), write.unwrap_or("nothing"));
    let said = vec![format!("pcap {}: reads {read}, writes {write}", port.device.value)];
    let opened = OpenPort { kind: "pcap", said, ..OpenPort::default() };
    Ok((opened, vec![OpenDevice { device: Box::new(file), poll: Vec::new() }]))
}
