//! A tailnet of two nodes: headscale tells them of each other and of the relays, `tailscaled` is the client.

use std::fmt::Write as _;
use std::net::IpAddr;
use std::path::PathBuf;
use std::process::Command;
use std::thread;

use serde_json::Value;

use super::net::{CONTROL, NAMES, Net, RELAYS};
use super::peers::{command, path, patiently};
use crate::daemon::Running;

const PORT: u16 = 8080;

/// What nodes are told and how they are run.
#[derive(Clone, Copy, Debug)]
pub struct Way {
    /// Relays of the one region.
    pub relays: usize,
    /// Whether the first node comes by WebSocket.
    pub websocket: bool,
}

/// Nodes that have each other in their maps, ended on drop.
pub struct Tailnet {
    pub nodes: [Node; 2],
    headscale: Running,
}

/// A running `tailscaled`.
pub struct Node {
    running: Running,
    name: &'static str,
    pub ns: String,
    pub ip: IpAddr,
    /// `nodekey:` and hex digits.
    pub key: String,
    folder: PathBuf,
}

/// The region as Tailscale's own tools read it, in JSON.
pub fn map(relays: usize, fields: [&str; 9]) -> String {
    let [regions, region_id, code, region_name, nodes, name, host, ipv4, port] = fields;
    let mut rows = String::new();
    for n in 0..relays {
        let (own, ip) = (NAMES[n], RELAYS[n]);
        let comma = if n == 0 { "" } else { "," };
        let _ = write!(
            rows,
            "{comma}{{\"{name}\":\"900-{n}\",\"{region_id}\":900,\"{host}\":\"{own}\",\"{ipv4}\":\"{ip}\",\"{port}\":443}}"
        );
    }
    format!(
        "{{\"{regions}\":{{\"900\": {{\"{region_id}\":900,\"{code}\":\"weir\",\"{region_name}\":\"weir\",\"{nodes}\":[{rows}]}}}}}}"
    )
}

const HEADSCALE_FIELDS: [&str; 9] =
    ["regions", "regionid", "regioncode", "regionname", "nodes", "name", "hostname", "ipv4", "derpport"];

impl Tailnet {
    /// Both nodes are up when this returns; whether they reach each other is for the test.
    pub fn start(net: &Net, way: Way) -> Tailnet {
        let headscale = start_headscale(net, way.relays);
        let key = new_key(net, &headscale);
        // A program ends with the thread that started it: this one.
        let mut nodes = [Node::start(net, 0, way.websocket), Node::start(net, 1, false)];
        thread::scope(|scope| {
            let joining = nodes.each_mut().map(|node| scope.spawn(|| node.join(&key)));
            for node in joining {
                node.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            }
        });
        let tailnet = Tailnet { nodes, headscale };
        for (node, other) in [(0, 1), (1, 0)] {
            patiently("a node knows the other", || {
                let peers = tailnet.nodes[node].status()["Peer"].as_object()?.clone();
                peers.contains_key(&tailnet.nodes[other].key).then_some(())
            });
        }
        tailnet
    }
}

fn start_headscale(net: &Net, relays: usize) -> Running {
    let folder = net.folder.display();
    // JSON is YAML, but for names of members that are numbers.
    net.file("map.yaml", &map(relays, HEADSCALE_FIELDS).replacen("\"900\"", "900", 1));
    let config = net.file(
        "headscale.yaml",
        &format!(
            "server_url: http://{CONTROL}:{PORT}\nlisten_addr: {CONTROL}:{PORT}\nmetrics_listen_addr: \"\"\n\
             grpc_listen_addr: 127.0.0.1:50443\nunix_socket: {folder}/headscale.sock\nunix_socket_permission: \"0700\"\n\
             noise:\n  private_key_path: {folder}/noise.key\n\
             prefixes:\n  v4: 100.64.0.0/10\n  v6: fd7a:115c:a1e0::/48\n  allocation: sequential\n\
             derp:\n  server:\n    enabled: false\n  urls: []\n  paths: [{folder}/map.yaml]\n  auto_update_enabled: false\n\
             disable_check_updates: true\n\
             database:\n  type: sqlite\n  sqlite:\n    path: {folder}/headscale.sqlite\n\
             dns:\n  magic_dns: false\n  override_local_dns: false\n  base_domain: weir.test\n\
             log:\n  level: info\npolicy:\n  mode: file\n  path: \"\"\nlogtail:\n  enabled: false\n"
        ),
    );
    let mut serve = command(net, &net.middle, path("headscale"));
    serve.arg("--config").arg(config).arg("serve");
    Running::start(&mut serve, net.folder.join("headscale.sock"))
}

impl Drop for Tailnet {
    fn drop(&mut self) {
        if thread::panicking() {
            println!("headscale said:\n{}", self.headscale.log());
        }
    }
}

/// A key that nodes may join with.
fn new_key(net: &Net, headscale: &Running) -> String {
    let ask = |args: &[&str]| {
        let mut ask = command(net, &net.middle, path("headscale"));
        ask.arg("--config").arg(net.folder.join("headscale.yaml")).args(["--output", "json"]).args(args);
        let output = ask.output().expect("headscale starts");
        output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())
    };
    patiently("headscale answers", || {
        assert!(!headscale.log().contains(" FTL "), "{}", headscale.log());
        headscale.socket.exists().then(|| ask(&["users", "list"]))?
    });
    // On a busy machine its answer may be too late for the one who asked, and yet it was done.
    let id = patiently("there is a user", || {
        let _ = ask(&["users", "create", "weir"]);
        let users: Value = serde_json::from_str(&ask(&["users", "list"])?).ok()?;
        Some(users[0]["id"].as_u64()?.to_string())
    });
    let key =
        ask(&["preauthkeys", "create", "--user", id.trim_matches('"'), "--reusable", "--expiration", "1h"]);
    let key: Value = serde_json::from_str(&key.expect("headscale makes a key")).expect("JSON");
    key["key"].as_str().expect("a key").to_string()
}

impl Node {
    fn start(net: &Net, n: usize, websocket: bool) -> Node {
        let name = ["one", "two"][n];
        let folder = net.folder.join(name);
        std::fs::create_dir_all(&folder).expect("a folder");
        let ns = net.clients[n].clone();
        let mut daemon = command(net, &ns, path("tailscaled"));
        daemon.arg("--statedir").arg(&folder).arg("--socket").arg(folder.join("socket"));
        daemon.args(["--tun=tailscale0", "--port=0", "--no-logs-no-support"]);
        if websocket {
            daemon.env("TS_DEBUG_DERP_WS_CLIENT", "true");
        }
        let running = Running::start(&mut daemon, folder.join("socket"));
        Node { running, name, ns, ip: IpAddr::from([0; 4]), key: String::new(), folder }
    }

    /// Has it join with this key of headscale's.
    fn join(&mut self, key: &str) {
        patiently("tailscaled listens", || self.running.socket.exists().then_some(()));
        let server = format!("--login-server=http://{CONTROL}:{PORT}");
        let key = format!("--auth-key={key}");
        let hostname = format!("--hostname={}", self.name);
        let up =
            ["up", &server, &key, &hostname, "--netfilter-mode=off", "--accept-dns=false", "--timeout=120s"];
        let (well, said) = self.ask(&up);
        assert!(well, "tailscale up: {said}");
        let own = self.status()["Self"].clone();
        self.key = own["PublicKey"].as_str().expect("a key").to_string();
        self.ip = own["TailscaleIPs"][0].as_str().expect("an address").parse().expect("an address");
    }

    pub fn log(&self) -> String {
        self.running.log()
    }

    /// Where this node's tailscaled answers.
    pub fn socket(&self) -> PathBuf {
        self.running.socket.clone()
    }

    /// What `tailscale` says, and whether it ended well.
    pub fn ask(&self, args: &[&str]) -> (bool, String) {
        let mut ask = Command::new(path("tailscale"));
        ask.arg("--socket").arg(self.folder.join("socket")).args(args).env("HOME", &self.folder);
        let output = ask.output().expect("tailscale starts");
        let said = [output.stdout, output.stderr].concat();
        (output.status.success(), String::from_utf8_lossy(&said).into_owned())
    }

    /// Asks for a new map when this node was not told the other's home, as may happen on a busy machine: a packet to
    /// nowhere is no relay's to deliver.
    pub fn learn_home(&self, other: &Node) {
        let status = self.status();
        let mut peers = status["Peer"].as_object().into_iter().flat_map(|peers| peers.values());
        let peer = peers.find(|peer| peer["PublicKey"] == other.key.as_str());
        let home = peer.map(|peer| &peer["Relay"]);
        println!("node {} cannot reach node {}, whose home it takes for {home:?}", self.name, other.name);
        if home.is_some_and(|home| home == "") {
            self.ask(&["down"]);
            let (well, said) = self.ask(&["up"]);
            assert!(well, "tailscale up: {said}");
        }
    }

    fn status(&self) -> Value {
        let (_, said) = self.ask(&["status", "--json"]);
        serde_json::from_str(&said).unwrap_or_default()
    }

    /// One ping of the other node: whether it was answered, by way of the relay.
    pub fn reaches(&self, other: &Node) -> bool {
        let to = other.ip.to_string();
        let (_, said) = self.ask(&["ping", "--c=1", "--until-direct=false", "--timeout=3s", &to]);
        assert!(!said.contains("pong") || said.contains("via DERP(weir)"), "not by the relay: {said}");
        said.contains("pong")
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        if thread::panicking() {
            println!("node {} said:\n{}", self.name, self.log());
        }
    }
}
