//! From a file to a running daemon, with everything that was chosen printed on the way.

use std::collections::{BTreeMap, HashMap};
use std::hash::{BuildHasher, Hasher};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{channel, sync_channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use weir_core::control::{Control, Durable};
use weir_core::ipsec::spd::LookupSpec;
use weir_core::mirror::Passes;
use weir_core::packet::DeviceId;
use weir_core::tables::Tables;
use weir_core::time::Nanos;
use weir_core::wire::flow::FlowKey;
use weir_io::af_xdp::RING;
use weir_io::bpf::attach;
use weir_io::clock;
use weir_io::cpu::{Placement, Topology};
use weir_io::netlink::{self, FilterMonitor, LinkInfo, Monitor};
use weir_io::steer::LocalAddresses;
use weir_io::steer::tracked::Tracked;
use weir_io::umem::{ChunkSize, MAX_CHUNKS, Umem};
use weir_io::wake::{Sleep, Trigger, Waker};

use super::apply::rejected;
use super::durable::{self, State, StateArgs};
use super::enforcement::{self, Points};
use super::firewall::{self, Firewall};
use super::flow_offload::{FlowOffload, FlowOffloadHandle};
use super::gateway::Watch;
use super::keying;
use super::live::LiveHandle;
use super::ports::{self, With};
use super::succession::{Predecessor, end_predecessor};
use super::worker::{EVENTS_QUEUED_MAX, EventSender, OpenDevice, Start, Worker};
use super::{Daemon, Kernel, Open, device_id, links, routed};
use super::{memory, mirror};
use crate::config::ipsec::Ciphers;
use crate::config::settings::Workers;
use crate::config::{self, Config, Kind};
use crate::control::client::socket_path;
use crate::control::server::Server;
use crate::control::{RequestQueue, secrets};
use crate::failure::Failure;
use crate::service::{self, Watchdog};
use crate::successor::Successor;
use crate::text::count;

/// Buffers of a worker beside its rings: two batches in flight of each kind, held frames, ICMP.
const BUFFERS_BESIDE: u32 = 2048;
const BUFFERS_LEAST: u32 = 8192;
/// Posting takes a breath; after this frames come without.
const BUFFERS_POSTED_WITHIN: Duration = Duration::from_secs(1);

/// What the command line says beside the file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StartArgs {
    pub state: StateArgs,
    /// `--bypass-firewall`.
    pub bypass_firewall: bool,
    /// `--take-over`.
    pub take_over: bool,
}

/// Reads the file, opens everything, starts the workers. What fails is undone, but for policy enforcement points.
pub fn start(path: &Path, socket: Option<PathBuf>, args: StartArgs) -> Result<Daemon, Failure> {
    secrets::keep_in_memory();
    let config = config::load(path).map_err(Failure::of)?;
    start_as(config, Some(path), socket, args)
}

/// The same without a file: these devices, with everything the kernel has on them; its keys only where asked for. Where its packet
/// filter or address translation decides about transit, it is asked; or what is `told` of flows says which of them pass it by.
pub fn accelerate(
    (devices, keys, told): (&[String], bool, Option<String>),
    socket: Option<PathBuf>,
    args: StartArgs,
) -> Result<Daemon, Failure> {
    secrets::keep_in_memory();
    // What cannot be read is refused by whoever looks next.
    let decides = |devices: &[String]| {
        let devices: Vec<&str> = devices.iter().map(String::as_str).collect();
        firewall::bypassed(&devices).is_ok_and(|bypassed| !bypassed.decisive.is_empty())
    };
    let firewall = match told {
        Some(told) => Some(told),
        None if !keys && !args.bypass_firewall && decides(devices) => Some("\"kernel\"".to_owned()),
        None => None,
    };
    start_as(mirror::taken_over(devices, keys, firewall.as_deref())?, None, socket, args)
}

fn start_as(
    config: Config,
    path: Option<&Path>,
    socket: Option<PathBuf>,
    args: StartArgs,
) -> Result<Daemon, Failure> {
    memory::fits(&config, &LookupSpec::default()).map_err(Failure::of)?;
    let mut points = Points::default();
    start_behind(&mut points, (config, path), socket, args).map_err(|Failure(why)| {
        // What keeps transit from the kernel is not undone: the operator wants policies to hold.
        let left = points.left_behind().map_or(String::new(), |left| format!("\n{left}"));
        Failure(why.trim_end().to_owned() + &left)
    })
}

fn start_behind(
    points: &mut Points,
    (config, path): (Config, Option<&Path>),
    socket: Option<PathBuf>,
    StartArgs { state: state_args, bypass_firewall, take_over }: StartArgs,
) -> Result<Daemon, Failure> {
    let socket = socket.unwrap_or_else(|| socket_path(&config));
    let (waker, sleep) = waker_and_sleep()?;
    let ((requests_in, requests), (events_in, events)) = (channel(), sync_channel(EVENTS_QUEUED_MAX));
    let kernel = Kernel::ask().map_err(|e| resource("netlink", &e))?;
    devices_exist(&config, &kernel.links)?;
    let firewall = Firewall::begin(&config, bypass_firewall)?;
    let predecessor = end_predecessor(take_over.then_some(&socket))?;
    let now = clock::now();
    let (mut control, state) = begin(&config, &kernel, now, &socket, (&state_args, &waker))?;
    let (mut routes, passes) = mirror::begin(&config, &kernel.links, now, &waker, &mut control)?;
    let tables = control.take_snapshot().unwrap_or_else(|| control.tables().clone());
    // Before a socket is opened, and anything else that may fail.
    let local = local_addresses(&tables, &kernel, routes.as_mut().zip(passes))?;
    points.arm_all(&config, &kernel.links, local.as_ref()).map_err(Failure::of)?;
    let (state, keys) = (state?, keying::begin(&config, &kernel, now)?);
    let server = serve(&socket, &config, RequestQueue { requests: requests_in, waker: waker.clone() })?;
    let (placement, umems) = placed(&config, &kernel)?;
    let key = FlowKey::new(std::collections::hash_map::RandomState::new().build_hasher().finish());
    let published = Arc::new(ArcSwap::new(tables.clone()));
    let flow_offload = flow_offload(&config, local.is_some(), &published, key)?;
    let live = LiveHandle::new(config.workers.live_transmit);
    let (sending, enforced) = ((flow_offload.as_ref(), &live), points.names());
    let with = with(&config, (&placement.cpus, &umems, local.as_ref()), sending, &enforced);
    let (open, devices) = open_devices(&config, &tables, &with)?;
    let sender = EventSender { queue: events_in, waker: waker.clone() };
    let queues = placement.cpus.iter().copied().zip(&umems).zip(devices);
    let workers = start_workers(queues, (key, &config.workers), &published, &sender)?;
    let mut daemon = Daemon {
        watchdog: Watchdog::from_environment(),
        _server: server,
        workers,
        open,
        hosts: BTreeMap::new(),
        points: std::mem::take(points),
        path: path.map(Path::to_owned),
        config,
        control,
        tables: published,
        umems,
        key,
        local,
        flow_offload,
        live,
        kernel,
        routes,
        keys,
        flows: None,
        firewall,
        events,
        requests,
        watch: Watch::default(),
        state,
        state_args,
        socket,
        waker,
        sleep,
        resleep: true,
        started: now,
        unsaved: Default::default(),
        captures: Default::default(),
        successor: Successor::of_this_process(),
    };
    daemon.begin(predecessor).map(|()| daemon)
}

/// What wakes the control thread, and where it waits for that.
fn waker_and_sleep() -> Result<(Arc<Waker>, Sleep), Failure> {
    let waker = Arc::new(Waker::new().map_err(|e| resource("eventfd", &e))?);
    let sleep = Sleep::new(&waker, Trigger::Level).map_err(|e| resource("eventfd", &e))?;
    Ok((waker, sleep))
}

/// Answers on the control socket from now on.
fn serve(socket: &Path, config: &Config, queue: RequestQueue) -> Result<Server, Failure> {
    let server = Server::start(socket, config.control.metrics, queue).map_err(Failure::of)?;
    tracing::info!("control socket {}", socket.display());
    Ok(server)
}

/// Which CPUs forward, and the buffers of each.
fn placed(config: &Config, kernel: &Kernel) -> Result<(Placement, Vec<Arc<Umem>>), Failure> {
    let placement = place(config)?;
    let umems = buffers(config, &kernel.links, placement.cpus.len())?;
    Ok((placement, umems))
}

/// What devices are opened with at the start: frames stay with the kernel until everything is ready.
fn with<'a>(
    config: &'a Config,
    (cpus, umems, local): (&'a [u32], &'a [Arc<Umem>], Option<&'a LocalAddresses>),
    (flow_offload, live): (Option<&'a FlowOffloadHandle>, &'a LiveHandle),
    enforced: &'a [String],
) -> With<'a> {
    let policies = config.enforces();
    let workers = &config.workers;
    With { cpus, umems, local, flow_offload, workers, live, policies, held: !policies, enforced }
}

/// A worker on each CPU, with its buffers and devices.
fn start_workers<'a>(
    queues: impl Iterator<Item = ((u32, &'a Arc<Umem>), Vec<OpenDevice>)>,
    (key, wanted): (FlowKey, &Workers),
    tables: &Arc<ArcSwap<Tables>>,
    sender: &EventSender,
) -> Result<Vec<Worker>, Failure> {
    let mut workers = Vec::new();
    let queues: Vec<_> = queues.collect();
    let all = queues.len();
    for (number, ((cpu, umem), devices)) in queues.into_iter().enumerate() {
        let (wake_up, leave_nice) = (wanted.wake_up, wanted.leave_nice);
        let start =
            Start { number, workers: all, cpu, umem: umem.clone(), devices, key, wake_up, leave_nice };
        let started = Worker::start(start, tables.clone(), sender.clone());
        workers.push(started.map_err(|e| resource("a worker's thread", &e))?);
    }
    Ok(workers)
}

impl Kernel {
    fn ask() -> std::io::Result<Kernel> {
        Ok(Kernel {
            // The monitor before the lists: a change between the two is heard twice, not missed.
            monitor: Monitor::open()?,
            filters: FilterMonitor::open()?,
            links: netlink::links()?,
            addresses: netlink::addresses()?,
        })
    }
}

/// The control side, with what earlier processes left of its SAs.
fn begin(
    config: &Config,
    kernel: &Kernel,
    now: Nanos,
    socket: &Path,
    (args, waker): (&StateArgs, &Arc<Waker>),
) -> Result<(Control, Result<State, Failure>), Failure> {
    let build = |durable: Option<Durable>| {
        let desired = routed::desired(config, kernel);
        let links = config.devices().into_iter().filter_map(|port| links::link_of(port, &kernel.links));
        let ciphers = match config.ipsec.ciphers {
            Ciphers::Auto => weir_io::cipher::best(),
            Ciphers::Library => weir_io::cipher::portable(),
        };
        let built = match durable {
            Some(durable) => Control::with_state(desired, links, now, ciphers, durable),
            None => Control::with_ciphers(desired, links, now, ciphers),
        };
        built.map_err(|errors| Failure::of(rejected(config, errors)))
    };
    match config.ipsec.sas.is_empty() && config.kernel.keys.is_none() {
        true => Ok((build(None)?, Ok(State::Unused))),
        false => durable::begin((args, &config.ipsec.state), socket, waker, build),
    }
}

impl Daemon {
    fn begin(&mut self, predecessor: Option<Predecessor>) -> Result<(), Failure> {
        // Devices that opening set up or made (tun) are known to the kernel only now.
        self.list();
        self.steer_esp();
        self.reconcile(clock::now());
        if let Some(mut keys) = self.keys.take() {
            let now = clock::now();
            // What changed since the dump, while devices were opened.
            keys.observe(now);
            self.take_keys(now, &mut keys);
            self.keys = Some(keys);
        }
        for (device, open) in &self.open {
            self.points.opened_as(device, open.port.kind);
        }
        enforcement::release_leftovers(&self.config, &self.kernel.links);
        self.say();
        self.begin_flows()?;
        // Where policies apply the kernel gets nothing in any case, and nothing was held back.
        self.take_frames()?;
        let unused = attach::disinherit();
        if unused > 0 {
            tracing::info!("{} of the process before are no longer attached", count(unused, "XDP program"));
        }
        self.keep_links();
        if let Some(before) = predecessor {
            before.say(self);
        }
        tracing::info!("{} is ready", self.config.name);
        service::ready(&self.status_line());
        Ok(())
    }

    /// Frames come in from here on: workers have posted buffers for them.
    fn take_frames(&self) -> Result<(), Failure> {
        let until = Instant::now() + BUFFERS_POSTED_WITHIN;
        for worker in &self.workers {
            while worker.report().breaths == 0 && !worker.is_finished() && Instant::now() < until {
                worker.refresh().wait(until);
            }
        }
        for steering in self.open.values().filter_map(|open| open.port.steering.as_ref()) {
            steering.release().map_err(Failure::of)?;
        }
        Ok(())
    }

    /// What `systemctl status` shows.
    pub(super) fn status_line(&self) -> String {
        format!("forwards as {} between {}", self.config.name, count(self.open.len(), "device"))
    }

    /// What works otherwise than asked for, and what was made of options.
    fn say(&self) {
        self.control.notices().iter().for_each(|notice| tracing::warn!("{notice}"));
        self.config.warnings().iter().for_each(|warning| tracing::warn!("{warning}"));
        if let Some(notice) = self.state_notice() {
            tracing::error!("{notice}");
        }
        self.config.notes_on_lookups().iter().for_each(|note| tracing::info!("{note}"));
    }
}

/// What the XDP programs know of this host; absent, and said so, where BPF cannot be used.
fn local_addresses(
    tables: &Tables,
    kernel: &Kernel,
    kept: Option<(&mut mirror::Routes, Passes)>,
) -> Result<Option<LocalAddresses>, Failure> {
    match LocalAddresses::new() {
        Ok(mut local) => {
            local.set(links::steered(tables, &kernel.addresses)).map_err(Failure::of)?;
            if let Some((routes, passes)) = kept {
                routes.on_published(&passes, Some(&mut local));
            }
            Ok(Some(local))
        }
        Err(error) => {
            let said = error.to_string();
            tracing::warn!("af_xdp is not to be had here: {}", said.lines().next().unwrap_or_default());
            Ok(None)
        }
    }
}

/// XDP flow offload, where there is BPF to make it; without it every frame goes through the workers.
/// Where the firewall stays the kernel's there is nothing without it.
fn flow_offload(
    config: &Config,
    bpf: bool,
    tables: &Arc<ArcSwap<Tables>>,
    key: FlowKey,
) -> Result<Option<FlowOffloadHandle>, Failure> {
    let wanted = config.kernel.firewall.is_some();
    if !bpf && wanted {
        return Err(Failure("firewall: flows are forwarded by XDP; run as root".to_owned()));
    }
    if !bpf || config.workers.flow_offload_off {
        return Ok(None);
    }
    let tracked = if wanted { Some(Tracked::new().map_err(Failure::of)?) } else { None };
    match FlowOffload::new() {
        Ok(shared) => {
            shared.publish(tables.load().generation);
            let (shared, tables) = (Arc::new(shared), tables.clone());
            let tracked = tracked.map(|tracked| Arc::new(Mutex::new(tracked)));
            Ok(Some(FlowOffloadHandle { shared, tables, key, tracked }))
        }
        Err(error) if wanted => Err(Failure::of(error)),
        Err(error) => {
            tracing::warn!("no XDP flow offload: {error}");
            Ok(None)
        }
    }
}

type Opened = (BTreeMap<String, Open>, Vec<Vec<OpenDevice>>);

/// Every device of the file, and by worker its queues in the order of device ids.
fn open_devices(config: &Config, tables: &Tables, with: &With<'_>) -> Result<Opened, Failure> {
    let mut open = BTreeMap::new();
    let mut devices: Vec<Vec<OpenDevice>> = with.umems.iter().map(|_| Vec::new()).collect();
    for port in config.devices() {
        let name = &port.device.value;
        let id = device_id(tables, name).unwrap_or(DeviceId(open.len() as u16));
        let (opened, queues) = ports::open(port, id, with).map_err(|error| {
            Failure(config.complain(port.device.span.clone(), format!("port {}: {error}", port.name.value)))
        })?;
        opened.log();
        for (worker, queue) in devices.iter_mut().zip(queues) {
            worker.push(queue);
        }
        open.insert(name.clone(), Open::new(opened, id, links::index_now(name)));
    }
    Ok((open, devices))
}

fn resource(what: &str, error: &std::io::Error) -> Failure {
    Failure(format!("{what}: {error}; raise the limit of open files or tasks, or run as root"))
}

/// Every device but those weir makes itself must be there at the start.
fn devices_exist(config: &Config, links: &[LinkInfo]) -> Result<(), Failure> {
    let made = |kind| matches!(kind, Kind::Tun | Kind::Pcap);
    let known: Vec<&str> = links.iter().filter(|l| !l.loopback).map(|l| l.name.as_str()).collect();
    let missing = config
        .devices()
        .into_iter()
        .filter(|p| !made(p.kind.value))
        .filter(|p| !links.iter().any(|l| l.name == p.device.value));
    let complaints: String = missing
        .map(|port| {
            let device = &port.device.value;
            let remedy = match config::source::nearest(device, &known) {
                Some(near) => format!("write `{near}`"),
                None => "create it, or write one of them".to_owned(),
            };
            let there = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
            config.complain(
                port.device.span.clone(),
                format!(
                    "port {}: there is no device `{device}` here; devices are {there}; {remedy}",
                    port.name.value
                ),
            )
        })
        .collect();
    if complaints.is_empty() { Ok(()) } else { Err(Failure(complaints)) }
}

/// Settles the workers' number by CPUs and queues, and says why.
fn place(config: &Config) -> Result<Placement, Failure> {
    let topology = Topology::read(Path::new(weir_io::cpu::SYSFS)).map_err(Failure::of)?;
    let fewest =
        config.devices().into_iter().filter_map(|p| Some((ports::queues(p)?, p))).min_by_key(|f| f.0);
    let most = fewest.map(|f| f.0);
    let mut placement = match config.workers.cpus.as_slice() {
        [] => Placement::by_core(&topology, most),
        cpus => Placement::explicit(&topology, cpus).map_err(Failure::of)?,
    };
    tracing::info!("{}", placement.reason);
    if let Some((queues, port)) = fewest
        && queues < placement.cpus.len().max(topology.cores())
    {
        placement.cpus.truncate(queues);
        let device = &port.device.value;
        let more = match port.kind.value {
            Kind::Tun | Kind::Pcap => String::new(),
            _ => format!("; more with `ethtool -L {device} combined N`"),
        };
        tracing::info!(
            "not more than {}: {device} has {}, and a worker needs one of each device{more}",
            count(queues, "worker"),
            count(queues, "receive queue"),
        );
    }
    for warning in &placement.warnings {
        tracing::warn!("{warning}");
    }
    Ok(placement)
}

/// The size of chunks: every port's frames fit. A worker's ports share them, so one card makes them large for all.
fn chunk_size(config: &Config, links: &[LinkInfo]) -> Result<ChunkSize, Failure> {
    let mtus: HashMap<&str, u32> = links.iter().map(|l| (l.name.as_str(), l.mtu)).collect();
    let mut size = ChunkSize::default();
    for port in config.devices() {
        let device = &port.device.value;
        let mtu = mtus.get(device.as_str()).copied().unwrap_or(1500) as usize;
        let needed = match ports::may_be_zero_copy(port, &config.workers) {
            true => ChunkSize::for_card(mtu),
            false => ChunkSize::for_mtu(mtu),
        };
        let needed = needed.ok_or_else(|| {
            let most = links::mtu_max(ChunkSize::Bytes4096.bytes());
            Failure(config.complain(
                port.device.span.clone(),
                format!(
                    "port {}: {device} has MTU {mtu}, expected at most {most}; run `ip link set {device} mtu {most}`",
                    port.name.value,
                ),
            ))
        })?;
        if needed.bytes() > size.bytes() {
            size = needed;
        }
    }
    Ok(size)
}

/// One umem a worker: enough chunks for every ring of every device.
fn buffers(config: &Config, links: &[LinkInfo], workers: usize) -> Result<Vec<Arc<Umem>>, Failure> {
    let size = chunk_size(config, links)?;
    let devices = config.devices();
    // A receive and a transmit ring for each queue of each device.
    let queues: u32 =
        devices.iter().map(|p| ports::queues(p).unwrap_or(workers).div_ceil(workers.max(1)) as u32).sum();
    let needed = (queues * 2 * RING + BUFFERS_BESIDE).clamp(BUFFERS_LEAST, MAX_CHUNKS);
    let count = config.workers.buffers.unwrap_or(needed);
    let mut umems = Vec::new();
    for _ in 0..workers {
        umems.push(Arc::new(Umem::new(count, size).map_err(Failure::of)?));
    }
    if let Some(umem) = umems.first() {
        tracing::info!("{count} buffers of {} bytes a worker, on {}", size.bytes(), umem.pages());
    }
    Ok(umems)
}
