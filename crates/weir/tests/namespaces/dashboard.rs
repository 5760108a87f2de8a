//! The dashboard against a real Prometheus, which scrapes a gateway under traffic and two relays.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use weir::testing::client::Client;
use weir::testing::daemon::{Running, program};
use weir::testing::machine::{ip, until, until_within};

use super::metrics::{gateway, packaging, relay};
use super::traffic::under_traffic;

/// Ends what goes on beside a test, after a panic too.
struct Ending<'a>(&'a AtomicBool);

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

/// A port that was free a moment ago.
fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").and_then(|l| l.local_addr()).expect("a port").port()
}

/// Answers a scrape with what `text` says then.
fn answer(mut stream: TcpStream, text: &str) -> std::io::Result<()> {
    stream.set_nonblocking(false)?;
    stream.set_read_timeout(Some(Duration::from_secs(5)))?;
    let mut head = Vec::new();
    let mut piece = [0; 4096];
    while !head.windows(4).any(|w| w == b"\r\n\r\n") {
        match stream.read(&mut piece)? {
            0 => return Ok(()),
            n => head.extend_from_slice(&piece[..n]),
        }
    }
    let length = text.len();
    write!(
        stream,
        "HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=0.0.4\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{text}"
    )
}

fn serve(listener: &TcpListener, done: &AtomicBool, daemon: &Running) {
    listener.set_nonblocking(true).expect("a socket");
    while !done.load(Ordering::Acquire) {
        match listener.accept() {
            // A scrape that was given up is no matter.
            Ok((stream, _)) => drop(answer(stream, &daemon.metrics())),
            Err(_) => thread::sleep(Duration::from_millis(10)),
        }
    }
}

/// Packets from one client to another, a hundred a second.
fn keep_relaying(port: u16, done: &AtomicBool) {
    let at = ([127, 0, 0, 1], port).into();
    let [mut one, mut other] = [1, 2].map(|n| Client::connect(at, n).expect("a client"));
    while !done.load(Ordering::Acquire) {
        one.reaches(&mut other, &[0x5a; 200]);
        thread::sleep(Duration::from_millis(10));
    }
}

/// A relay without TLS, whose clients can be as small as ours.
fn plain_relay(folder: &Path, port: u16) -> Running {
    let socket = folder.join("plain.sock");
    let mut command = Command::new(program());
    command.arg("--socket").arg(&socket);
    command.args(["relay", "--dev", "--epoll", "--listen", &format!("127.0.0.1:{port}")]);
    let running = Running::start(&mut command, socket);
    until("the relay is ready", || running.log().contains("is ready").then_some(()));
    running
}

fn prometheus(folder: &Path, scraped: &[u16]) -> (Running, String) {
    let targets: Vec<String> = scraped.iter().map(|port| format!("\"127.0.0.1:{port}\"")).collect();
    let file = folder.join("prometheus.yml");
    let text = format!(
        "global: {{ scrape_interval: 1s, scrape_timeout: 1s }}\nscrape_configs:\n  - job_name: weir\n    static_configs:\n      - targets: [{}]\n",
        targets.join(", ")
    );
    std::fs::write(&file, text).expect("a file");
    let port = free_port();
    let mut command = Command::new("prometheus");
    command.arg(format!("--config.file={}", file.display()));
    command.arg(format!("--storage.tsdb.path={}", folder.join("series").display()));
    command.arg(format!("--web.listen-address=127.0.0.1:{port}"));
    (Running::start(&mut command, folder.to_owned()), format!("http://127.0.0.1:{port}"))
}

/// Runs `scripts/dashboard`: whether it ended well, and what it said.
fn dashboard(url: &str, args: &[&str]) -> (bool, String) {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/dashboard");
    let asked = Command::new(script).args([url, "--last", "10", "--rate", "6s"]).args(args).output();
    let output = asked.expect("python3 is there");
    let said = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    (output.status.success(), said.into_owned())
}

/// `WEIR_DASHBOARD=FILE` keeps the page that is drawn.
#[test]
fn every_panel_has_values_where_a_gateway_and_relays_work() {
    let test = "every_panel_has_values_where_a_gateway_and_relays_work";
    for need in ["prometheus", "python3"] {
        if Command::new(need).arg("--version").output().is_err() {
            return writeln!(std::io::stderr(), "SKIP {test}: needs {need}; install {need}")
                .expect("stderr is open");
        }
    }
    let Some((testbed, [west, _east])) = gateway(test) else { return };
    let folder = testbed.west.folder.clone();
    let port = free_port();
    let relays = [relay(&folder), plain_relay(&folder, port)];
    let daemons: [&Running; 3] = [&west, &relays[0], &relays[1]];
    let listeners = daemons.map(|_| TcpListener::bind("127.0.0.1:0").expect("a port"));
    let ports = listeners.each_ref().map(|l| l.local_addr().expect("bound").port());
    let done = AtomicBool::new(false);
    let mut seen = String::new();
    thread::scope(|scope| {
        let _ending = Ending(&done);
        let done = &done;
        for (listener, daemon) in listeners.iter().zip(daemons) {
            scope.spawn(move || serve(listener, done, daemon));
        }
        scope.spawn(move || keep_relaying(port, done));
        let (prometheus, url) = prometheus(&folder, &ports);
        under_traffic(&testbed.west, ip("10.1.0.2"), ip("10.3.0.2"), || {
            until_within(Duration::from_secs(90), "every panel has values", || {
                let well;
                (well, seen) = dashboard(&url, &["--check"]);
                println!("{seen}{}", if well { "" } else { "waiting" });
                well.then_some(())
            });
            let (well, page) = dashboard(&url, &[]);
            assert!(well && page.contains("<svg") && !page.contains("NaN"), "{page}");
            if let Some(file) = std::env::var_os("WEIR_DASHBOARD") {
                std::fs::write(file, page).expect("a page");
            }
        });
        // The check is one: what nobody exports is found.
        let text = std::fs::read_to_string(packaging("grafana/weir.json")).expect("packaging has it");
        let other = folder.join("other.json");
        let renamed = text.replace("weir_buffers_free", "weir_buffers_gone");
        std::fs::write(&other, renamed).expect("a file");
        let (well, said) = dashboard(&url, &["--check", "--file", &other.display().to_string()]);
        assert!(!well && said.contains("Free buffers: 0 series, NONE"), "{said}\n{}", prometheus.log());
    });
    assert!(seen.lines().count() > 25, "{seen}");
}
