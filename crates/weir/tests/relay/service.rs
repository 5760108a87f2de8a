//! A service manager hears of a daemon what sd_notify(3) promises: a real socket, as systemd makes it.

use std::io::Write as _;
use std::os::unix::fs::MetadataExt as _;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::daemon::{Orphan, Running, program};
use crate::machine::{PATIENCE, until};

struct Manager {
    folder: PathBuf,
    socket: UnixDatagram,
}

impl Manager {
    fn new() -> Manager {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let folder = std::env::temp_dir().join(format!("weir-service-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder");
        let socket = UnixDatagram::bind(folder.join("notify")).expect("a socket");
        socket.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        Manager { folder, socket }
    }

    fn file(&self, text: &str) -> PathBuf {
        let file = self.folder.join("daemon.toml");
        std::fs::write(&file, text).expect("a file");
        file
    }

    /// Starts a daemon of `file`, to be heard of every second at least.
    fn start(&self, file: &Path, more: &[&str]) -> Running {
        let control = self.folder.join("control");
        let mut command = Command::new(program());
        command.arg("--socket").arg(&control).arg("run").args(more).arg(file);
        command.env("NOTIFY_SOCKET", self.folder.join("notify")).env("WATCHDOG_USEC", "1000000");
        command.env_remove("WATCHDOG_PID");
        Running::start(&mut command, control)
    }

    /// The next message with this line in it, and those before it.
    fn hears(&self, line: &str, of: &Running) -> (String, Vec<String>) {
        let mut before = Vec::new();
        let mut buffer = [0; 4096];
        loop {
            let length = self.socket.recv(&mut buffer).unwrap_or_else(|e| {
                panic!("{line} was not heard, but {before:?}: {e}\n{}", of.log());
            });
            let message = String::from_utf8_lossy(&buffer[..length]).into_owned();
            if message.lines().any(|said| said == line) {
                return (message, before);
            }
            before.push(message);
        }
    }
}

impl Drop for Manager {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

fn relay(manager: &Manager) -> PathBuf {
    manager.file("[relay]\nlisten = \"127.0.0.1:0\"\ntls = \"off\"\nio = \"epoll\"\nkey = \"relay.key\"\n")
}

/// What both daemons do.
fn lives_as_promised(manager: &Manager, mut daemon: Running, status: &str) {
    let (ready, before) = manager.hears("READY=1", &daemon);
    assert!(ready.contains(status), "{ready}");
    assert!(before.iter().all(|message| message.trim() == "WATCHDOG=1"), "before it was ready: {before:?}");
    manager.hears("WATCHDOG=1", &daemon);
    manager.hears("WATCHDOG=1", &daemon);
    weir_io::process::reload(daemon.child.id()).expect("it runs");
    let (reloading, _) = manager.hears("RELOADING=1", &daemon);
    assert!(reloading.contains("MONOTONIC_USEC="), "{reloading}");
    manager.hears("READY=1", &daemon);
    weir_io::process::terminate(daemon.child.id()).expect("it runs");
    manager.hears("STOPPING=1", &daemon);
    let status = until("it ends", || daemon.child.try_wait().expect("a child of ours"));
    assert!(status.success(), "{}", daemon.log());
}

#[test]
fn a_relay_says_that_it_is_ready_alive_reloading_and_stopping() {
    let manager = Manager::new();
    let daemon = manager.start(&relay(&manager), &[]);
    lives_as_promised(&manager, daemon, "STATUS=serves as daemon");
}

#[test]
fn a_router_says_that_it_is_ready_alive_reloading_and_stopping() {
    let manager = Manager::new();
    let file = manager.file(
        "[[port]]\nname = \"one\"\ndevice = \"one\"\nkind = \"pcap\"\nwrite = \"/dev/null\"\naddresses = [\"192.0.2.1/24\"]\n",
    );
    let daemon = manager.start(&file, &[]);
    lives_as_promised(&manager, daemon, "STATUS=forwards as daemon between 1 device");
}

#[test]
fn a_relay_without_a_key_and_a_socket_of_its_own_has_them_where_the_manager_keeps_state_and_what_runs() {
    let manager = Manager::new();
    let [state, runtime] = ["state", "runtime"].map(|name| manager.folder.join(name));
    for folder in [&state, &runtime] {
        std::fs::create_dir(folder).expect("a folder");
    }
    let file = manager.file("[relay]\nlisten = \"127.0.0.1:0\"\ntls = \"off\"\nio = \"epoll\"\n");
    let mut command = Command::new(program());
    command.arg("run").arg(&file).env("STATE_DIRECTORY", &state).env("RUNTIME_DIRECTORY", &runtime);
    let mut daemon = Running::start(&mut command, runtime.join("daemon.sock"));
    until("it is ready", || daemon.log().contains("is ready").then_some(()));
    assert!(daemon.told(&["show", "status"]).contains("daemon"), "{}", daemon.log());
    let found = Command::new(program()).args(["show", "status"]).env("RUNTIME_DIRECTORY", &runtime).output();
    assert!(found.expect("weir starts").status.success(), "a command of the same unit finds it");
    weir_io::process::terminate(daemon.child.id()).expect("it runs");
    until("it ends", || daemon.child.try_wait().expect("a child of ours"));
    let key = std::fs::metadata(state.join("daemon.key")).expect("a key");
    assert_eq!(key.mode() & 0o777, 0o600);
    assert!(!manager.folder.join("daemon.key").exists(), "a unit may write to its state alone");
}

#[test]
fn a_successor_is_the_managers_process_before_the_one_before_ends() {
    let manager = Manager::new();
    let file = relay(&manager);
    let mut first = manager.start(&file, &[]);
    manager.hears("READY=1", &first);
    let second = manager.start(&file, &["--take-over"]);
    let own = format!("MAINPID={}", second.child.id());
    manager.hears(&own, &second);
    until("the one before has ended", || first.child.try_wait().expect("a child of ours"));
    weir_io::process::terminate(second.child.id()).expect("it runs");
    let (_, before) = manager.hears("STOPPING=1", &second);
    let stopped = before.iter().any(|message| message.contains("STOPPING"));
    assert!(!stopped, "the one before said that the service stops: {before:?}");
}

#[test]
fn the_installed_program_takes_over_at_a_signal() {
    let manager = Manager::new();
    let file = relay(&manager);
    let mut first = manager.start(&file, &[]);
    manager.hears("READY=1", &first);
    weir_io::process::succeed(first.child.id()).expect("it runs");
    let own = format!("MAINPID={}", first.child.id());
    let successor = loop {
        let (message, _) = manager.hears("READY=1", &first);
        let pid = message.lines().find_map(|line| line.strip_prefix("MAINPID="));
        if let Some(pid) = pid {
            assert!(!message.contains(&own), "{message}");
            break Orphan(pid.parse().expect("a process id"));
        }
    };
    let status = until("the one before has ended", || first.child.try_wait().expect("a child of ours"));
    assert!(status.success(), "{}", first.log());
    manager.hears("WATCHDOG=1", &first);
    weir_io::process::terminate(successor.0).expect("it runs");
    manager.hears("STOPPING=1", &first);
}

#[test]
fn a_relay_whose_successor_fails_serves_on() {
    let manager = Manager::new();
    let file = relay(&manager);
    let mut first = manager.start(&file, &[]);
    manager.hears("READY=1", &first);
    std::fs::write(&file, "[relay]\nlisten = 7\n").expect("a file");
    weir_io::process::succeed(first.child.id()).expect("it runs");
    until("it is said", || first.log().contains("this relay serves on").then_some(()));
    assert!(first.child.try_wait().expect("a child of ours").is_none(), "{}", first.log());
    manager.hears("WATCHDOG=1", &first);
}

#[test]
fn the_journal_gets_priorities_and_no_times_and_others_get_times() {
    let manager = Manager::new();
    let file = relay(&manager);
    let log = manager.folder.join("log");
    for (named, journal) in [(true, true), (false, false)] {
        let to = std::fs::File::create(&log).expect("a file");
        let meta = to.metadata().expect("of a file");
        let inode = if named { meta.ino() } else { meta.ino() + 1 };
        let mut command = Command::new(program());
        command.arg("--socket").arg(manager.folder.join("journal")).arg("run").arg(&file);
        command.env("JOURNAL_STREAM", format!("{}:{inode}", meta.dev())).stderr(to);
        let mut child = command.spawn().expect("it starts");
        let read = || std::fs::read_to_string(&log).expect("a file");
        until("it is ready", || read().contains("is ready").then_some(()));
        weir_io::process::terminate(child.id()).expect("it runs");
        child.wait().expect("a child of ours");
        let lines = read();
        assert!(lines.lines().all(|line| line.starts_with('<') == journal), "{lines}");
        assert_eq!(lines.contains("<4> WARN tls is off"), journal, "{lines}");
    }
}

#[test]
fn a_log_for_programs_is_an_object_a_line() {
    let manager = Manager::new();
    let file = relay(&manager);
    let log = manager.folder.join("json");
    for journal in [false, true] {
        let to = std::fs::File::create(&log).expect("a file");
        let meta = to.metadata().expect("of a file");
        let mut command = Command::new(program());
        command
            .arg("--socket")
            .arg(manager.folder.join("json.sock"))
            .args(["--log", "json", "run"])
            .arg(&file);
        if journal {
            command.env("JOURNAL_STREAM", format!("{}:{}", meta.dev(), meta.ino()));
        }
        let mut child = command.stderr(to).spawn().expect("it starts");
        let read = || std::fs::read_to_string(&log).expect("a file");
        until("it is ready", || read().contains("is ready").then_some(()));
        weir_io::process::terminate(child.id()).expect("it runs");
        child.wait().expect("a child of ours");
        let mut warned = false;
        for line in read().lines() {
            let object = if journal { line.split_once('>').expect("a priority").1 } else { line };
            let event: serde_json::Value =
                serde_json::from_str(object).unwrap_or_else(|e| panic!("{line}: {e}"));
            assert_eq!(event["time"].is_null(), journal, "{line}");
            assert!(event["message"].as_str().is_some_and(|words| !words.is_empty()), "{line}");
            warned |= event["level"] == "warn"
                && event["message"].as_str().is_some_and(|w| w.starts_with("tls is off"));
        }
        assert!(warned, "{}", read());
    }
}

#[test]
fn a_relay_by_epoll_starts_where_there_is_no_sysfs() {
    let test = "a_relay_by_epoll_starts_where_there_is_no_sysfs";
    if let Some(missing) = crate::machine::missing() {
        writeln!(std::io::stderr(), "SKIP {test}: needs {missing}").expect("stderr is open");
        return;
    }
    let manager = Manager::new();
    let control = manager.folder.join("control");
    // An empty folder in place of it, in a mount namespace of the relay's own.
    let script = format!(
        "mount --make-rprivate / && mount -t tmpfs none /sys && exec {} --socket {} relay --dev --epoll --listen 127.0.0.1:0",
        program().display(),
        control.display()
    );
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", &script]);
    let relay = Running::start(&mut command, control);
    until("the relay answers", || relay.ask(&["show", "relay"]).status.success().then_some(()));
    assert!(relay.log().contains("every CPU this process may use counts as a core"), "{}", relay.log());
    relay.told(&["stop"]);
}
