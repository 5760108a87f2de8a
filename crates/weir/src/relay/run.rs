//! The relay's daemon: workers, acceptor and control socket, from settings to the last goodbye.
//!
//! ```text
//! HTTP socket, signals ──► this thread ──► acceptor: settings of the next connections
//!                                     └──► workers: counters, peers, drain
//! ```
//!
//! Promises: everything listens before "ready" is said, and before a relay that is taken over from ends; at SIGTERM no new connection is taken, clients are told to come
//! back, and what waits for them is sent as far as they take it. Refuses: to start half.

use std::net::TcpListener;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant, SystemTime};

use weir_core::relay::handshake::Secret;
use weir_io::cpu::{Placement, Topology};
use weir_io::wake::Waker;
use weir_relay::acceptor::listen::ListenerKind;
use weir_relay::acceptor::mesh::Mesh;
use weir_relay::acceptor::{self, Acceptor, Live, Sockets};
use weir_relay::certificates::Identity;
use weir_relay::error::KeyError;
use weir_relay::inherited::Inherited;
use weir_relay::reconfigure::{self, Reconfiguration};
use weir_relay::settings::{Certificates, Io, Settings, Tls};
use weir_relay::warning::{Warning, warnings};
use weir_relay::{Relay, keyfile};

use super::resources::Resource;
use super::{handover, show};
use crate::config::relay::ReadKey;
use crate::config::{self, Config};
use crate::control::server::{Server, metrics_listener};
use crate::control::{ApplyRequest, Request, RequestKind, RequestQueue, Response, secrets};
use crate::failure::Failure;
use crate::service::{self, Watchdog};
use crate::successor::Successor;
use crate::view;

/// Clients come back after this, spread over as much again, and try for the other.
const RECONNECT_IN: Duration = Duration::from_millis(100);
const TRY_FOR: Duration = Duration::from_secs(10);
/// What waits for clients at the end gets this long.
const GRACE: Duration = Duration::from_secs(2);
/// Those in the middle of their handshake at the end get this long to arrive, and hear the same as the others.
const ARRIVALS: Duration = Duration::from_secs(2);
/// How often it is looked whether all is well while nobody asks.
const LOOK: Duration = Duration::from_secs(2);
/// Descriptors that are no client's: rings, wakers, listeners, files, pages that are asked for.
const OWN_DESCRIPTORS: u64 = 4 << 10;

/// How it is started beside its settings.
#[derive(Clone, Debug, Default)]
pub struct Started {
    pub socket: PathBuf,
    pub metrics: Option<std::net::SocketAddr>,
    /// The configuration, read again at SIGHUP.
    pub file: Option<PathBuf>,
    /// Whether to take over from the relay that answers on the control socket, if one does.
    pub take_over: bool,
}

/// Everything that runs. The server goes first, then the acceptor, then the workers.
pub struct Running {
    server: Server,
    /// Handed on with the listeners.
    metrics: Option<TcpListener>,
    /// A successor has the sockets and is not ready yet.
    succeeding: bool,
    acceptor: Acceptor,
    mesh: Mesh,
    sockets: Sockets,
    relay: Arc<Relay>,
    requests: Receiver<Request>,
    settings: Settings,
    file: Option<PathBuf>,
    since: Instant,
    notices: Vec<String>,
    watchdog: Watchdog,
    successor: Successor,
}

/// What `systemctl status` shows.
fn status_line(settings: &Settings) -> String {
    format!("serves as {}", settings.name)
}

/// Why a relay drains.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// The relay was told to end, by a signal or by `weir drain`.
    Requested,
    /// Another relay serves in its place.
    Succeeded,
}

/// A relay of a configuration file.
pub fn start_file(
    path: &Path,
    config: &Config,
    socket: PathBuf,
    take_over: bool,
) -> Result<Running, Failure> {
    let settings = settings_of(path, config, keyfile::read_or_make)?;
    // Those of the relay itself are logged with those of one without a file.
    let others = config.warnings().into_iter().filter(|w| !matches!(w, config::Warning::Relay(_)));
    others.for_each(|warning| tracing::warn!("{warning}"));
    let (metrics, file) = (config.control.metrics, Some(path.to_owned()));
    start(settings, Started { socket, metrics, file, take_over })
}

/// The key of a relay that runs stays what it is, so a file that is not there is none to be made: it would be another.
fn read_key(path: &Path) -> Result<Secret, KeyError> {
    keyfile::read(path)?.map_or_else(keyfile::fresh, Ok)
}

fn settings_of(path: &Path, config: &Config, key: ReadKey) -> Result<Settings, Failure> {
    let Some(relay) = &config.relay else {
        return Err(Failure(format!("{}: has no `[relay]`; write one", path.display())));
    };
    let folder = crate::config::folder_of(path);
    relay
        .settings(&config.name, &config.workers.cpus, &folder, key)
        .map_err(|unread| Failure(config.complain(unread.span.clone(), unread.to_string())))
}

pub fn start(mut settings: Settings, started: Started) -> Result<Running, Failure> {
    secrets::keep_in_memory();
    let mut notices = Vec::new();
    place(&mut settings)?;
    raise_descriptors(&settings, &mut notices);
    let live = Live::new(&settings, certificates(&settings, &mut notices)?);
    // What was opened for us, and what another relay has: it serves until we are ready.
    let mut inherited = Inherited::of(weir_io::process::passed_descriptors());
    let passed = inherited.untaken().collect::<Vec<_>>();
    let mut predecessor = None;
    if started.take_over
        && let Some((before, sockets)) = handover::ask(&started.socket).map_err(Failure::of)?
    {
        inherited.extend(sockets);
        predecessor = Some(before);
    }
    let sockets = Sockets::open(&settings.acceptor, &mut inherited).map_err(Failure::of)?;
    let metrics = started.metrics.map(|at| inherited.tcp(at).map_or_else(|| metrics_listener(at), Ok));
    let metrics = metrics.transpose().map_err(Failure::of)?;
    notices.extend(inherited.untaken().filter(|name| passed.contains(name)).map(|name| unserved(&name)));
    drop(inherited);
    let relay = Relay::start(&settings.engine).map_err(Failure::of)?;
    let relay = Arc::new(relay);
    let (requests_in, requests) = channel();
    let few = |e| Failure(format!("{e}; raise the limit of open files"));
    let queue = RequestQueue { requests: requests_in, waker: Arc::new(Waker::new().map_err(few)?) };
    let own_metrics = metrics.as_ref().map(TcpListener::try_clone).transpose().map_err(few)?;
    let (beside, upgrade) = (predecessor.is_some(), Some(&handover::UPGRADE));
    let mut server =
        Server::new(&started.socket, beside, own_metrics, upgrade, queue).map_err(Failure::of)?;
    let acceptor = Acceptor::start(live, &sockets, relay.clone()).map_err(Failure::of)?;
    let mesh = Mesh::start(&settings.mesh_with, &acceptor.shared).map_err(Failure::of)?;
    if let Some(before) = predecessor {
        server.take_place(&started.socket).map_err(Failure::of)?;
        // First of all: the manager must not see its process end and nobody in its place.
        service::takes_over(&status_line(&settings));
        before.ready();
    }
    tracing::info!("control socket {}", started.socket.display());
    let running = Running {
        server,
        metrics,
        succeeding: false,
        acceptor,
        mesh,
        sockets,
        relay,
        requests,
        settings,
        file: started.file,
        since: Instant::now(),
        notices,
        watchdog: Watchdog::from_environment(),
        successor: Successor::of_this_process(),
    };
    running.say();
    service::ready(&status_line(&running.settings));
    Ok(running)
}

/// A socket that the service manager keeps open, whoever takes it.
fn unserved(name: &str) -> String {
    format!(
        "{name} was opened by the service manager, and no key names it: who connects there waits in vain; take it out of the \
         .socket unit, or name it (`listen`, `http`, `stun`, `metrics`)"
    )
}

/// A descriptor for each client there may be: most systems start programs with 1,024.
fn raise_descriptors(settings: &Settings, notices: &mut Vec<String>) {
    // More than the kernel gives any process is refused, even to root.
    let most = std::fs::read_to_string("/proc/sys/fs/nr_open").ok();
    let most = most.and_then(|text| text.trim().parse().ok()).unwrap_or(u64::MAX);
    let wanted = (settings.engine.clients as u64).saturating_add(OWN_DESCRIPTORS).min(most);
    match weir_io::process::raise_descriptors(wanted) {
        Ok(had) if had >= wanted => {}
        Ok(had) => notices.push(format!(
            "this process may have {had} descriptors, and each client takes one: raise it (`LimitNOFILE=` of systemd, `ulimit -n`)"
        )),
        Err(e) => notices.push(format!("the limit of descriptors cannot be raised: {e}")),
    }
}

/// Settles the workers' number: one for each CPU named, or for each core.
fn place(settings: &mut Settings) -> Result<(), Failure> {
    let topology = match Topology::read(Path::new(weir_io::cpu::SYSFS)) {
        Ok(topology) => topology,
        Err(error) => {
            tracing::warn!("{error}; every CPU this process may use counts as a core");
            Topology::of_process().map_err(Failure::of)?
        }
    };
    let placement = match settings.cpus.as_slice() {
        [] => Placement::by_core(&topology, None),
        cpus => Placement::explicit(&topology, cpus).map_err(Failure::of)?,
    };
    tracing::info!("{}", placement.reason);
    for warning in &placement.warnings {
        tracing::warn!("{warning}");
    }
    settings.engine.own = settings.secret.public();
    settings.engine.workers = placement.cpus.len();
    settings.engine.cpus = placement.cpus;
    settings.engine.epoll = settings.io == Io::Epoll;
    Ok(())
}

/// The TLS that is asked for.
fn certificates(settings: &Settings, notices: &mut Vec<String>) -> Result<Option<acceptor::Tls>, Failure> {
    let own = &settings.acceptor;
    if own.tls == Tls::Off {
        notices.push(Warning::TlsOff.to_string());
        return Ok(None);
    }
    let (name, key) = (own.hostname.as_deref(), settings.secret.public());
    let identity = Identity::open(&own.certificates, name, key, SystemTime::now()).map_err(Failure::of)?;
    if let Some(pin) = identity.pin().filter(|_| own.certificates == Certificates::SelfSigned) {
        notices.push(format!(
            "the certificate is self-signed, a new one with each start: clients know it by `CertName: \"{pin}\"` in their map of relays"
        ));
    }
    identity.keep().map_err(Failure::of)?;
    let config = identity.server_config().map_err(Failure::of)?;
    Ok(Some(acceptor::Tls { config, identity }))
}

/// Logs what these settings allow and may not be meant to.
fn warn(settings: &Settings) {
    let warnings = warnings(&settings.acceptor, &settings.mesh_with);
    // That TLS is off is among the notices, which stay to be asked for.
    warnings.iter().filter(|w| **w != Warning::TlsOff).for_each(|warning| tracing::warn!("{warning}"));
}

impl Running {
    fn say(&self) {
        for notice in &self.notices {
            tracing::warn!("{notice}");
        }
        warn(&self.settings);
        for (kind, what) in [(ListenerKind::Relay, "DERP"), (ListenerKind::Pages, "pages")] {
            for address in self.sockets.addresses(kind) {
                tracing::info!("{what} on {address}");
            }
        }
        for socket in &self.sockets.stun {
            if let Ok(address) = socket.local_addr() {
                tracing::info!("STUN on {address}");
            }
        }
        for worker in &self.relay.report().workers {
            tracing::info!("worker {}: {}", worker.worker, worker.backend);
        }
        tracing::info!("public key {}", self.settings.secret.public());
        tracing::info!("{} is ready", self.settings.name);
    }

    /// Addresses DERP is served on.
    pub fn addresses(&self) -> Vec<std::net::SocketAddr> {
        self.sockets.addresses(ListenerKind::Relay)
    }

    /// Runs until told to stop, then drains.
    pub fn run(mut self) -> Result<(), Failure> {
        loop {
            self.watchdog.alive(Instant::now());
            let Request { kind, reply } = match self.requests.recv_timeout(self.watchdog.at_most(LOOK)) {
                Ok(request) => request,
                Err(RecvTimeoutError::Timeout) => {
                    self.look()?;
                    continue;
                }
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(Failure("control socket: its thread ended; start the relay again".into()));
                }
            };
            let (response, end) = self.respond(kind);
            // Whoever asked may have gone; what was done stays done.
            let _ = reply.send(response);
            if let Some(end) = end {
                return self.drain(end);
            }
        }
    }

    /// Whether all is well, and whether certificates have changed.
    fn look(&mut self) -> Result<(), Failure> {
        if let Some(pid) = self.successor.ended() {
            tracing::error!(
                "process {pid}, which was to take over, ended before it was ready, see its log; this relay serves on"
            );
        }
        if !self.relay.is_well() {
            return Err(Failure(
                "a worker ended by a defect of weir, see the panic above; start the relay again and report the panic"
                    .into(),
            ));
        }
        if let Some(tls) = &self.acceptor.shared.live.load().tls {
            match tls.identity.refresh(SystemTime::now()) {
                Ok(true) => tracing::info!("the certificate is a new one"),
                Ok(false) => {}
                Err(why) => tracing::error!("{why}; the one before is served on"),
            }
        }
        Ok(())
    }

    /// Nobody new, a word to everybody, then what waits for them.
    fn drain(self, end: End) -> Result<(), Failure> {
        tracing::info!("stopping: not accepting new connections, clients are told to come back");
        if end == End::Requested {
            service::stopping("clients are told to come back");
        }
        let Running { server, metrics, acceptor, mesh, sockets, relay, .. } = self;
        // Until the end it is seen that this one is there, unless another is in its place.
        let _server = (end == End::Requested).then_some(server);
        drop((metrics, mesh, sockets));
        acceptor.close(ARRIVALS);
        drop(acceptor);
        relay.drain(RECONNECT_IN, TRY_FOR, GRACE);
        let report = relay.report();
        let sum = |of: fn(&weir_relay::WorkerReport) -> u64| report.workers.iter().map(of).sum::<u64>();
        tracing::info!(
            "drained: {} packets in = {} forwarded + {} dropped + {} held ({} unaccounted)",
            sum(|w| w.packets_in),
            sum(|w| w.packets_forwarded),
            sum(|w| w.drops.packets()),
            sum(|w| w.packets_held),
            report.balance()
        );
        Ok(())
    }

    /// The response, and how this relay ends if it does now.
    fn respond(&mut self, kind: RequestKind) -> (Response, Option<End>) {
        let stopping = || Response::json(200, &serde_json::json!({ "stopping": true }));
        match kind {
            RequestKind::Http(request) => match Resource::of(&request) {
                Ok(Resource::Drain) => (stopping(), Some(End::Requested)),
                Ok(resource) => (self.answer(resource), None),
                Err(response) => (response, None),
            },
            RequestKind::Stop => (stopping(), Some(End::Requested)),
            RequestKind::Reload => {
                service::reloading();
                let response = self.reload();
                service::ready(&status_line(&self.settings));
                (response, None)
            }
            RequestKind::Succeed => (self.successor.answer(&[]), None),
            RequestKind::Upgraded(connection) => (self.hand_over(&connection.0), None),
            RequestKind::UpgradeEnded { completed } => {
                self.succeeding = false;
                match completed {
                    true => tracing::info!("another relay has taken over"),
                    false => {
                        tracing::error!("the relay that was to take over has failed; this one serves on")
                    }
                }
                (Response::json(200, &completed), completed.then_some(End::Succeeded))
            }
        }
    }

    fn answer(&mut self, resource: Resource) -> Response {
        match resource {
            Resource::Status => Response::json(200, &self.status()),
            Resource::Relay => Response::json(200, &show::relay(&self.acceptor.shared, &self.relay)),
            Resource::Peers(page) => {
                Response::json(200, &page.cut(&show::peers(&self.relay), view::relay::Peer::words))
            }
            Resource::Metrics => Response::metrics(self.acceptor.shared.metrics()),
            Resource::Apply(request) => self.apply(request),
            Resource::Drain => Response::json(200, &serde_json::json!({ "stopping": true })),
        }
    }

    fn status(&self) -> view::Status {
        let report = self.relay.report();
        view::Status {
            name: self.settings.name.clone(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            pid: std::process::id(),
            uptime_seconds: self.since.elapsed().as_secs_f64(),
            workers: report.workers.len(),
            balance: report.balance(),
            notices: self.notices.clone(),
            ..view::Status::default()
        }
    }

    /// Another relay is to take over: it has the sockets too from now on.
    fn hand_over(&mut self, to: &UnixStream) -> Response {
        if self.succeeding {
            let why = "another relay is taking over already; wait for it to be ready, or stop it";
            return Response::refusal(409, why.to_owned());
        }
        match handover::give(to, &self.sockets, self.metrics.as_ref()) {
            Ok(()) => {
                tracing::info!("another relay is about to take over; this one serves until it is ready");
                self.succeeding = true;
                Response::json(200, &true)
            }
            Err(error) => Response::refusal(500, error.to_string()),
        }
    }

    /// SIGHUP: the file again; a wrong one changes nothing.
    fn reload(&mut self) -> Response {
        let Some(path) = self.file.clone() else {
            return Response::refusal(409, "reload: this relay was started without a file".to_owned());
        };
        let loaded = crate::config::load(&path).map_err(Failure::of);
        match loaded.and_then(|config| self.become_of(&path, &config, false)) {
            Ok(applied) => {
                applied.actions.iter().for_each(|line| tracing::info!("{line}"));
                Response::json(200, &applied)
            }
            Err(Failure(why)) => {
                tracing::error!("reload: nothing was changed\n{why}");
                Response::refusal(400, why)
            }
        }
    }

    fn apply(&mut self, request: ApplyRequest) -> Response {
        let ApplyRequest { file, folder, text, dry_run } = request;
        let path = match (folder, &self.file) {
            (Some(folder), _) => folder.join("body"),
            (None, Some(own)) => own.clone(),
            (None, None) => PathBuf::from("body"),
        };
        let parsed = crate::config::parse(&file, &self.settings.name, text).map_err(Failure::of);
        match parsed.and_then(|config| self.become_of(&path, &config, dry_run)) {
            Ok(applied) => Response::json(200, &applied),
            Err(Failure(why)) => Response::refusal(400, why),
        }
    }

    /// Goes from what runs to what the file says: the difference, its actions, then all of them or none.
    fn become_of(&mut self, path: &Path, config: &Config, dry_run: bool) -> Result<view::Applied, Failure> {
        let wanted = settings_of(path, config, read_key)?;
        let plan = reconfigure::plan(&self.settings, &wanted);
        let applied = view::Applied {
            actions: plan.actions.iter().map(ToString::to_string).collect(),
            notes: plan.at_start.iter().map(ToString::to_string).collect(),
            applied: !dry_run,
            ..view::Applied::default()
        };
        if !dry_run && !plan.actions.is_empty() {
            self.take(&plan)?;
        }
        Ok(applied)
    }

    /// Takes the actions; an error has changed nothing.
    fn take(&mut self, plan: &Reconfiguration) -> Result<(), Failure> {
        let next = plan.applied_to(&self.settings);
        let tls = match plan.changes_certificate() {
            true => certificates(&next, &mut Vec::new())?,
            false => self.acceptor.shared.live.load().tls.clone(),
        };
        self.relay.reload(&next.engine);
        self.acceptor.shared.limiter.change(&next.acceptor.limits);
        self.acceptor.shared.live.store(Arc::new(Live::new(&next, tls)));
        warn(&next);
        self.settings = next;
        Ok(())
    }
}
