//! The state directory: what SAs have used outlives this process, a power cut, and the other end's patience.
//!
//! ```text
//! state directory   sa.state           images of the core's, written by a thread of their own
//! socket's folder   STORE.counters     counters of this life, mapped; of the last one, read once
//! ```
//!
//! Promises: one process a directory; an image is on disk, synced, before workers may use what it reserves; what
//! cannot be written is said with its remedy and tried again every [`AGAIN`]; at an end in order what is on disk
//! is exact. Refuses, unless told to accept the risk: to start SAs with a directory that cannot be written,
//! that others may write to, or whose file is damaged.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use weir_core::control::{Control, Disk, Durable, SaStates, save};
use weir_core::state::RECORDS_MAX;
use weir_core::time::{Nanos, SECOND};
use weir_io::lock::Lock;
use weir_io::wake::Waker;
use weir_io::{clock, lock, mapped_counters};

use super::Daemon;
use super::error::{Access, StateError, Unreserved};
use super::keying::Keys;
use crate::config::Config;
use crate::config::own_files::state_directory;
use crate::control::client;
use crate::failure::Failure;
use crate::text::count;

/// What a state directory holds.
pub const STATE_FILE: &str = "sa.state";
/// A disk that fails is tried again this often, and told of every [`TELL_EVERY`].
const AGAIN: Nanos = SECOND;
const TELL_EVERY: Nanos = 10 * SECOND;
/// A disk that takes longer for an image is told of: packets may soon wait for what it has not.
const SLOW: Nanos = 2 * SECOND;
/// A disk that does not answer within this at the start, at an `apply` or at the end is one that fails.
const PATIENCE: Duration = Duration::from_secs(20);
/// Counters there is room for at least: 256 KiB.
const COUNTERS_LEAST: usize = 4096;

/// Where state is kept, and whether SAs may do without.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StateArgs {
    /// `--state-dir`.
    pub folder: Option<PathBuf>,
    /// `--accept-replay-risk`.
    pub accept_risk: bool,
}

/// State of SAs on disk.
pub(super) enum State {
    /// No SA was added yet.
    Unused,
    Kept(Keeper),
    /// SAs run without it, because somebody said that they may: why.
    Risked(StateError),
}

/// A state directory in use.
pub(super) struct Keeper {
    folder: PathBuf,
    _lock: Lock,
    counters: Option<PathBuf>,
    images: Sender<(u64, Vec<u8>)>,
    results: Receiver<(u64, Result<(), StateError>)>,
    /// How many images were sent: an answer that comes late is not that to the last.
    sent: u64,
    /// When the last one was, while nothing came of it.
    waits: Option<Nanos>,
    /// That it takes long was told.
    slow: bool,
    failing: Option<Failing>,
}

/// The last image was not written.
struct Failing {
    error: StateError,
    /// When it was told.
    told: Nanos,
    again: Nanos,
}

impl Failing {
    fn notice(&self) -> String {
        format!(
            "{}: SAs carry packets until what is reserved for them is used, and go on by themselves when it can be written again; make room on its disk, or mend it",
            self.error
        )
    }
}

/// A state directory that was opened: its SAs are for [`Control`].
pub(super) struct Opened {
    pub keeper: Keeper,
    pub durable: Durable,
}

/// The state directory of a configuration: `--state-dir`, the file's, systemd's, the usual one of this user.
pub fn folder(args: &StateArgs, file: Option<&Path>) -> PathBuf {
    let own = || {
        if client::is_root() {
            return None;
        }
        let home = std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".local/state"));
        Some(std::env::var_os("XDG_STATE_HOME").map(PathBuf::from).or(home)?.join("weir"))
    };
    let given =
        args.folder.clone().or_else(|| file.map(Path::to_owned)).or_else(state_directory).or_else(own);
    given.unwrap_or_else(|| PathBuf::from("/var/lib/weir"))
}

/// Reads what is there of a state directory held by this process: SAs of earlier lives, or none of them.
pub fn read(folder: &Path) -> Result<(Lock, SaStates), StateError> {
    let failed = |access| move |error| StateError::Directory { folder: folder.to_owned(), access, error };
    if !folder.exists() {
        let made = DirBuilder::new().recursive(true).mode(0o700).create(folder);
        made.map_err(failed(Access::Make))?;
    }
    let mode = fs::metadata(folder).map_err(failed(Access::Read))?.mode() & 0o777;
    if mode & 0o022 != 0 {
        return Err(StateError::NotPrivate { folder: folder.to_owned(), mode });
    }
    let held = lock::take(folder).map_err(failed(Access::Lock))?;
    let held = held.ok_or_else(|| StateError::InUse { folder: folder.to_owned() })?;
    let file = folder.join(STATE_FILE);
    let bytes = match fs::read(&file) {
        Ok(bytes) => bytes,
        Err(e) if e.kind() == io::ErrorKind::NotFound => {
            let random = weir_io::cipher::best().random();
            let more = weir_io::cipher::best().random();
            let mut store = [0; 16];
            store[..8].copy_from_slice(&random.to_le_bytes());
            store[8..].copy_from_slice(&more.to_le_bytes());
            tracing::info!(
                "state directory {} is new: it knows of no key, so none may have been used before",
                folder.display()
            );
            return Ok((held, SaStates { store, ..SaStates::default() }));
        }
        Err(error) => return Err(StateError::Unreadable { file, error }),
    };
    let state = SaStates::decode(&bytes).map_err(|damaged| StateError::Damaged { file, damaged })?;
    Ok((held, state))
}

/// Writes an image into a state directory: the image is there, or the old one, whatever happens.
pub fn write(folder: &Path, image: &[u8]) -> Result<(), StateError> {
    save(&mut Folder { folder, beside: None }, image).map_err(|error| unwritten(folder, error))
}

fn unwritten(folder: &Path, error: io::Error) -> StateError {
    StateError::Directory { folder: folder.to_owned(), access: Access::Write, error }
}

struct Folder<'a> {
    folder: &'a Path,
    beside: Option<File>,
}

impl Folder<'_> {
    fn beside(&self) -> PathBuf {
        self.folder.join(format!("{STATE_FILE}.new"))
    }
}

impl Disk for Folder<'_> {
    type Error = io::Error;

    fn write_beside(&mut self, image: &[u8]) -> io::Result<()> {
        let mut options = OpenOptions::new();
        let mut file = options.write(true).create(true).truncate(true).mode(0o600).open(self.beside())?;
        file.write_all(image)?;
        self.beside = Some(file);
        Ok(())
    }

    fn sync_beside(&mut self) -> io::Result<()> {
        self.beside.as_ref().map_or(Ok(()), File::sync_all)
    }

    fn rename(&mut self) -> io::Result<()> {
        fs::rename(self.beside(), self.folder.join(STATE_FILE))
    }

    fn sync_folder(&mut self) -> io::Result<()> {
        File::open(self.folder)?.sync_all()
    }
}

/// Nanoseconds since 1970.
pub(super) fn wall() -> Nanos {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    since.map_or(0, |since| since.as_nanos().try_into().unwrap_or(Nanos::MAX))
}

/// Which start of the machine this is.
fn boot_id() -> Option<[u8; 16]> {
    let text = fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    let digits: String = text.chars().filter(char::is_ascii_hexdigit).collect();
    u128::from_str_radix(&digits, 16).ok().map(u128::to_be_bytes)
}

/// Opens a state directory for a gateway with this control socket.
pub(super) fn open(folder: PathBuf, socket: &Path, waker: Arc<Waker>) -> Result<Opened, StateError> {
    let (held, state) = read(&folder)?;
    let known = state.records.len();
    let store: String = state.store.iter().map(|b| format!("{b:02x}")).collect();
    let runtime = socket.parent().map(Path::to_owned).unwrap_or_default();
    let counters = runtime.join(format!("{store}.counters"));
    let boot = boot_id();
    let left = fs::read(&counters).ok();
    let mut durable = Durable::resume(state, left.as_deref(), &boot.unwrap_or_default());
    let room = (2 * known).clamp(COUNTERS_LEAST, RECORDS_MAX);
    let made = boot.ok_or_else(|| io::Error::other("the kernel tells no boot id")).and_then(|boot| {
        fs::create_dir_all(&runtime)?;
        mapped_counters::create(&beside(&counters), &durable.counters_header(&boot), room)
    });
    let counters = match made {
        Ok(made) => {
            durable = durable.with_counters(made);
            Some(counters)
        }
        Err(error) => {
            tracing::warn!(
                "{}: counters of SAs cannot be kept there ({error}): killed, weir goes on above what is reserved, as after a power cut",
                counters.display()
            );
            None
        }
    };
    let now = clock::now();
    let durable = durable.at(now, wall());
    tracing::info!("state directory {}: {} used before", folder.display(), count(known, "sa"));
    let (images, results) = writer(folder.clone(), waker).map_err(StateError::NoThread)?;
    Ok(Opened {
        keeper: Keeper {
            folder,
            _lock: held,
            counters,
            images,
            results,
            sent: 0,
            waits: None,
            slow: false,
            failing: None,
        },
        durable,
    })
}

/// The counters of this life, until what was due first is on disk.
fn beside(counters: &Path) -> PathBuf {
    counters.with_extension("counters.new")
}

type Writer = (Sender<(u64, Vec<u8>)>, Receiver<(u64, Result<(), StateError>)>);

/// A thread that writes one image after another: a slow disk must not keep the control thread from its work.
fn writer(folder: PathBuf, waker: Arc<Waker>) -> io::Result<Writer> {
    let (images, taken) = channel::<(u64, Vec<u8>)>();
    let (told, results) = channel();
    thread::Builder::new().name("weir-state".to_owned()).spawn(move || {
        for (number, image) in taken {
            if told.send((number, write(&folder, &image))).is_err() {
                return;
            }
            waker.wake();
        }
    })?;
    Ok((images, results))
}

impl Keeper {
    /// Writes what is due and waits for it: afterwards every SA there is may be used. `ahead` is told of every image before
    /// it is written, and so before workers go as far.
    pub fn write_now(
        &mut self,
        control: &mut Control,
        ahead: &mut dyn FnMut(&Control),
    ) -> Result<(), StateError> {
        loop {
            let now = clock::now();
            let Some(image) = control.state_image(now, wall()) else {
                if control.is_writing_state() {
                    let done = self.wait();
                    self.take(control, now, done);
                    continue;
                }
                return self.begin_counters();
            };
            ahead(control);
            let done = self.send(image).and_then(|()| self.wait());
            self.answered();
            control.state_written(now, done.is_ok());
            done?;
        }
    }

    fn send(&mut self, image: Vec<u8>) -> Result<(), StateError> {
        self.sent += 1;
        self.waits = Some(clock::now());
        let ended = |_| unwritten(&self.folder, io::Error::other("its thread has ended"));
        self.images.send((self.sent, image)).map_err(ended)
    }

    /// Waits for what comes of the last image.
    fn wait(&self) -> Result<(), StateError> {
        let until = Instant::now() + PATIENCE;
        loop {
            match self.results.recv_timeout(until.saturating_duration_since(Instant::now())) {
                Ok((number, done)) if number == self.sent => return done,
                Ok(_) => {}
                Err(_) => {
                    let late = io::Error::new(io::ErrorKind::TimedOut, "its disk does not answer");
                    return Err(unwritten(&self.folder, late));
                }
            }
        }
    }

    /// Makes the counters of this life those to go on from.
    fn begin_counters(&mut self) -> Result<(), StateError> {
        let Some(counters) = &self.counters else { return Ok(()) };
        match fs::rename(beside(counters), counters) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(StateError::CountersNotMoved { file: counters.clone(), error })
            }
            // It is there since the last time.
            _ => Ok(()),
        }
    }

    /// Writes what is due, and tells of a disk that fails and of one that does again.
    fn keep(&mut self, control: &mut Control, now: Nanos, ahead: &mut dyn FnMut(&Control)) {
        while let Ok((number, done)) = self.results.try_recv() {
            if number == self.sent {
                self.take(control, now, done);
            }
        }
        if !self.slow && self.waits.is_some_and(|since| now.saturating_sub(since) > SLOW) {
            self.slow = true;
            tracing::warn!("{}", self.slow_notice());
        }
        if self.failing.as_ref().is_some_and(|f| f.again > now) {
            return;
        }
        let Some(image) = control.state_image(now, wall()) else { return };
        ahead(control);
        if let Err(error) = self.send(image) {
            self.take(control, now, Err(error));
        }
    }

    /// What an operator should know of a disk that neither writes nor fails.
    fn slow_notice(&self) -> String {
        format!(
            "state directory {}: its disk has not answered for {} seconds: SAs carry packets until what is reserved for them is used, and go on when it does; \
             look at what else writes to it, or keep the state on another (`--state-dir`)",
            self.folder.display(),
            SLOW / SECOND
        )
    }

    /// Something came of the last image.
    fn answered(&mut self) {
        self.waits = None;
        if std::mem::take(&mut self.slow) {
            tracing::info!("state directory {}: its disk answers again", self.folder.display());
        }
    }

    fn take(&mut self, control: &mut Control, now: Nanos, done: Result<(), StateError>) {
        self.answered();
        control.state_written(now, done.is_ok());
        let Err(error) = done else {
            if self.failing.take().is_some() {
                tracing::info!("state directory {}: can be written again", self.folder.display());
            }
            return;
        };
        let told = self.failing.as_ref().map(|f| f.told).filter(|at| now.saturating_sub(*at) < TELL_EVERY);
        let failing = Failing { error, told: told.unwrap_or(now), again: now + AGAIN };
        if told.is_none() {
            tracing::error!("{}", failing.notice());
        }
        self.failing = Some(failing);
    }

    /// Workers have ended: what is on disk is exact from here on.
    pub fn finish(&mut self, control: &mut Control) {
        let now = clock::now();
        if control.is_writing_state() {
            let done = self.wait();
            control.state_written(now, done.is_ok());
        }
        let Some(image) = control.last_state_image(now, wall()) else { return };
        match self.send(image).and_then(|()| self.wait()) {
            Ok(()) => {
                if let Some(counters) = &self.counters {
                    // Read again, it would say the same.
                    let _ = fs::remove_file(counters);
                }
            }
            Err(error) => tracing::error!(
                "{error}; the next start goes on from the counters of this one, or above what was reserved"
            ),
        }
    }
}

/// A gateway's control side with the state of its SAs, whose first reservations are on disk. Where there is none to be
/// had, the control side all the same: what it says of ports must hold before the start is refused.
pub(super) fn begin(
    (args, file): (&StateArgs, &crate::config::ipsec::State),
    socket: &Path,
    waker: &Arc<Waker>,
    build: impl Fn(Option<Durable>) -> Result<Control, Failure>,
) -> Result<(Control, Result<State, Failure>), Failure> {
    let folder = folder(args, file.folder.as_deref());
    let why = match open(folder, socket, waker.clone()) {
        Ok(Opened { mut keeper, durable }) => {
            let mut control = build(Some(durable))?;
            match keeper.write_now(&mut control, &mut |_| {}) {
                Ok(()) => return Ok((control, Ok(State::Kept(keeper)))),
                Err(why) => why,
            }
        }
        Err(why) => why,
    };
    let control = build(None)?;
    if !args.accept_risk && !file.accept_risk {
        return Ok((control, Err(Failure::of(Unreserved(why)))));
    }
    Ok((control, Ok(State::Risked(why))))
}

/// What an operator should know who accepted the risk.
fn risk(why: &StateError) -> String {
    format!(
        "{why}; told to accept the risk, weir runs SAs whose sequence numbers, replay windows and lifetimes begin anew: packets that were recorded may be accepted again"
    )
}

impl Daemon {
    /// Reserves what SAs need.
    pub(super) fn keep_state(&mut self, now: Nanos) {
        if let State::Kept(keeper) = &mut self.state {
            let keys = &mut self.keys;
            keeper.keep(&mut self.control, now, &mut |control| {
                if let Some(keys) = keys {
                    keys.run_ahead(control);
                }
            });
        }
    }

    /// Opens the state directory, before SAs are added to a gateway that has none.
    pub(super) fn open_state(&mut self, config: &Config) -> Result<(), Unreserved> {
        if (config.ipsec.sas.is_empty() && config.kernel.keys.is_none())
            || !matches!(self.state, State::Unused)
        {
            return Ok(());
        }
        let (args, file) = (&self.state_args, &config.ipsec.state);
        match open(folder(args, file.folder.as_deref()), &self.socket, self.waker.clone()) {
            Ok(Opened { keeper, durable }) => {
                self.control.keep_state(durable);
                self.state = State::Kept(keeper);
                Ok(())
            }
            Err(why) if args.accept_risk || file.accept_risk => {
                tracing::error!("{}", risk(&why));
                self.state = State::Risked(why);
                Ok(())
            }
            Err(why) => Err(Unreserved(why)),
        }
    }

    /// Has what SAs may use from now on written, before workers see them; the kernel's are numbered ahead there first.
    pub(super) fn write_state(&mut self, mut keys: Option<&mut Keys>) -> Result<(), StateError> {
        match &mut self.state {
            State::Kept(keeper) => keeper.write_now(&mut self.control, &mut |control| {
                if let Some(keys) = &mut keys {
                    keys.run_ahead(control);
                }
            }),
            State::Unused | State::Risked(_) => Ok(()),
        }
    }

    /// Whether the state directory could be written last, as far as is known.
    pub(super) fn can_write_state(&self) -> bool {
        match &self.state {
            State::Kept(keeper) => keeper.failing.is_none() && !self.control.is_writing_state(),
            State::Unused | State::Risked(_) => true,
        }
    }

    /// Workers have ended.
    pub(super) fn finish_state(&mut self) {
        if let State::Kept(keeper) = &mut self.state {
            keeper.finish(&mut self.control);
        }
    }

    /// What an operator should know of it.
    pub(super) fn state_notice(&self) -> Option<String> {
        match &self.state {
            State::Unused => None,
            State::Kept(keeper) if keeper.slow => Some(keeper.slow_notice()),
            State::Kept(keeper) => keeper.failing.as_ref().map(Failing::notice),
            State::Risked(why) => Some(risk(why)),
        }
    }

    /// Whether SAs go on where they stopped, whatever happens.
    pub(super) fn keeps_state(&self) -> bool {
        matches!(self.state, State::Kept(_))
    }
}
