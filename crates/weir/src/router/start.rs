//! From a file to a running daemon, with everything that was chosen printed on the way.

use std::collections::{BTreeMap, HashMap};
use std::hash::{BuildHasher, Hasher};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{channel, sync_channel};

use arc_swap::ArcSwap;
use weir_core::control::{Control, Durable};
use weir_core::ipsec::spd::LookupSpec;
use weir_core::packet::DeviceId;
use weir_core::tables::Tables;
use weir_core::time::Nanos;
use weir_core::wire::flow::FlowKey;
use weir_io::af_xdp::RING;
use weir_io::clock;
use weir_io::cpu::{Placement, Topology};
use weir_io::netlink::{self, FilterMonitor, LinkInfo, Monitor};
use weir_io::steer::LocalAddresses;
use weir_io::umem::{ChunkSize, MAX_CHUNKS, Umem};
use weir_io::wake::{Sleep, Waker};

use super::durable::{self, State, StateArgs};
use super::enforcement::{self, Points};
use super::gateway::Watch;
use super::lane::{Lane, Lessons};
use super::memory;
use super::ports::{self, With};
use super::worker::{OpenDevice, Start, TOLD_MAX, Tell, Worker};
use super::{Daemon, Kernel, Open, device_id, links};
use crate::config::{self, Config, Kind};
use crate::control::RequestQueue;
use crate::control::client::socket_path;
use crate::control::server::Server;
use crate::failure::Failure;
use crate::text::count;

/// Buffers of a worker beside its rings: two batches in flight of each kind, held frames, ICMP.
const BUFFERS_BESIDE: u32 = 2048;
const BUFFERS_LEAST: u32 = 8192;

/// Reads the file, opens everything, starts the workers. What fails is undone, but for policy enforcement points.
pub fn start(path: &Path, socket: Option<PathBuf>, state_args: StateArgs) -> Result<Daemon, Failure> {
    let mut points = Points::default();
    start_behind(&mut points, path, socket, state_args).map_err(|Failure(why)| {
        // What keeps transit from the kernel is not undone: the operator wants policies to hold.
        let left = points.left_behind().map_or(String::new(), |left| format!("\n{left}"));
        Failure(why.trim_end().to_owned() + &left)
    })
}

fn start_behind(
    points: &mut Points,
    path: &Path,
    socket: Option<PathBuf>,
    state_args: StateArgs,
) -> Result<Daemon, Failure> {
    let config = config::load(path).map_err(|refused| Failure(refused.0))?;
    let socket = socket.unwrap_or_else(|| socket_path(&config));
    memory::fits(&config, &LookupSpec::default()).map_err(Failure)?;
    let waker = Arc::new(Waker::new().map_err(|e| resource("eventfd", &e))?);
    let sleep = Sleep::new(&waker).map_err(|e| resource("eventfd", &e))?;
    let (requests_in, requests) = channel();
    let (told_in, told) = sync_channel(TOLD_MAX);
    let kernel = Kernel::ask().map_err(|e| resource("netlink", &e))?;
    devices_exist(&config, &kernel.links)?;
    let now = clock::now();
    let (mut control, state) = begin(&config, &kernel, now, &socket, (&state_args, &waker))?;
    let tables = control.take_snapshot().unwrap_or_else(|| control.tables().clone());
    // Before a socket is opened, and anything else that may fail.
    let local = local_addresses(&tables, &kernel)?;
    points.arm_all(&config, &kernel.links, local.as_ref()).map_err(Failure)?;
    let state = state?;
    let queue = RequestQueue { requests: requests_in, waker: waker.clone() };
    let server = Server::start(&socket, config.control.metrics, queue).map_err(Failure::of)?;
    tracing::info!("control socket {}", socket.display());
    let placement = place(&config)?;
    let umems = buffers(&config, &kernel.links, placement.cpus.len())?;
    let key = FlowKey::new(std::collections::hash_map::RandomState::new().build_hasher().finish());
    let published = Arc::new(ArcSwap::new(tables.clone()));
    let lessons = lessons(local.is_some() && !config.workers.express_off, &published, key);
    let wake_up = config.workers.wake_up;
    let (policies, enforced) = (config.enforces(), &points.names());
    let (local_too, lessons_too) = (local.as_ref(), lessons.as_ref());
    let with = With { umems: &umems, local: local_too, lessons: lessons_too, wake_up, policies, enforced };
    let (open, devices) = open_devices(&config, &tables, &with)?;
    let tell = Tell { queue: told_in, waker: waker.clone() };
    let starts = placement.cpus.iter().zip(&umems).zip(devices).enumerate();
    let starts = starts.map(|(number, ((&cpu, umem), devices))| {
        let start = Start { number, cpu, umem: umem.clone(), devices, key, wake_up };
        Worker::start(start, published.clone(), tell.clone())
    });
    let workers = starts.collect::<Result<_, _>>().map_err(|e| resource("a worker's thread", &e))?;
    let mut daemon = Daemon {
        _server: server,
        workers,
        open,
        points: std::mem::take(points),
        path: path.to_owned(),
        config,
        control,
        tables: published,
        umems,
        key,
        local,
        lessons,
        kernel,
        told,
        requests,
        watch: Watch::default(),
        state,
        state_args,
        socket,
        waker,
        sleep,
        resleep: true,
        started: now,
    };
    daemon.begin();
    Ok(daemon)
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
        let desired = config.desired(&|port| links::kernel_addresses(port, kernel));
        let links = config.devices().into_iter().filter_map(|port| links::link_of(port, &kernel.links));
        let ciphers = weir_io::cipher::best();
        let built = match durable {
            Some(durable) => Control::with_state(desired, links, now, ciphers, durable),
            None => Control::with_ciphers(desired, links, now, ciphers),
        };
        built.map_err(|errors| Failure(config::check::explain(config, &errors)))
    };
    match config.ipsec.sas.is_empty() {
        true => Ok((build(None)?, Ok(State::Unused))),
        false => durable::begin((args, &config.ipsec.state), socket, waker, build),
    }
}

impl Daemon {
    fn begin(&mut self) {
        // Devices that opening set up or made (tun) are known to the kernel only now.
        self.list();
        self.steer_esp();
        self.take_up(clock::now());
        for (device, open) in &self.open {
            self.points.opened_as(device, open.port.kind);
        }
        enforcement::release_leftovers(&self.config, &self.kernel.links);
        self.say();
        tracing::info!("{} is ready", self.config.name);
    }

    /// What works otherwise than asked for, and what was made of options.
    fn say(&self) {
        self.control.notices().iter().for_each(|notice| tracing::warn!("{notice}"));
        self.config.warnings().iter().for_each(|warning| tracing::warn!("{warning}"));
        if let Some(notice) = self.state_notice() {
            tracing::error!("{notice}");
        }
        self.config.remarks().iter().for_each(|remark| tracing::info!("{remark}"));
    }
}

/// What the XDP programs know of this host; absent, and said so, where BPF cannot be used.
fn local_addresses(tables: &Tables, kernel: &Kernel) -> Result<Option<LocalAddresses>, Failure> {
    match LocalAddresses::new() {
        Ok(mut local) => {
            local.set(links::steered(tables, &kernel.addresses)).map_err(Failure::of)?;
            Ok(Some(local))
        }
        Err(error) => {
            tracing::warn!("af_xdp is not to be had here: {error}");
            Ok(None)
        }
    }
}

/// The express lane, where there is BPF to make it; without it every frame goes through the workers.
fn lessons(bpf: bool, tables: &Arc<ArcSwap<Tables>>, key: FlowKey) -> Option<Lessons> {
    if !bpf {
        return None;
    }
    match Lane::new() {
        Ok(lane) => {
            lane.publish(tables.load().generation);
            Some(Lessons { lane: Arc::new(lane), tables: tables.clone(), key })
        }
        Err(error) => {
            tracing::warn!("no express lane: {error}");
            None
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
        for said in &opened.said {
            tracing::info!("{said}");
        }
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

/// As many workers as CPUs and queues allow, and why.
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
        let needed = match ports::may_be_zero_copy(port) {
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
