//! Tailscale's own clients as gateways, and the DERP relay that is the only way from one to the other: weir or derper.
//!
//! ```text
//!   left gateway ns                     relay ns                        right gateway ns
//!   tailscaled ══ 192.0.2.0/25 ══ relay 203.0.113.9, forwards nothing ══ 192.0.2.128/25 ══ tailscaled
//!                                  headscale 203.0.113.8
//! ```
//!
//! Each gateway is a subnet router for its inner network; headscale tells them of each other and of the relay. All files are in
//! folders of this lab's: nothing is installed, no service is touched.
//!
//! Promises: what comes to the other gateway has come by the relay. Refuses: kernels without TUN.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

use super::gateway::{Gateway, MTU, Pair, Side};
use super::peer::{self, ProcessPlacement, Started};
use super::relay::{self, Environment, Relaying};
use super::{derper, weir};
use crate::model::relay::{RelayScenario, Tls};
use crate::model::{LabError, Sut};
use crate::netns::namespace::Namespace;
use crate::netns::veth::{self, Port};

const CONTROL: Ipv4Addr = Ipv4Addr::new(203, 0, 113, 8);
const CONTROL_PORT: u16 = 8080;
const RELAY: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::new(203, 0, 113, 9)), 443);
/// Each of these is a large program, and several start at once.
const READY_WITHIN: Duration = Duration::from_secs(120);
const LOOK: Duration = Duration::from_millis(100);
const PROGRAMS: [&str; 3] = ["headscale", "tailscale", "tailscaled"];

/// The relay between Tailscale's clients, where a SUT is that.
pub fn relay_of(sut: Sut) -> Option<Sut> {
    match sut {
        Sut::TailscaleWeir => Some(Sut::Weir),
        Sut::TailscaleDerper => Some(Sut::Derper),
        _ => None,
    }
}

/// What it needs and this machine lacks, with the remedy.
pub fn missing(relay: Sut) -> Option<String> {
    let lacking: Vec<&str> = PROGRAMS.into_iter().filter(|name| peer::find(name).is_none()).collect();
    if !lacking.is_empty() {
        let names = lacking.join(", ");
        let words = lacking.join(" ");
        return Some(format!(
            "{names}: no such program in ~/.cache/weir/peers/bin or on the PATH: `scripts/peers {words}` builds it"
        ));
    }
    if !Path::new("/dev/net/tun").exists() {
        return Some("tailscaled: /dev/net/tun is not there: use a kernel with TUN".into());
    }
    if relay == Sut::Weir { weir::relay::missing(Tls::User) } else { derper::missing(Tls::User) }
}

/// One of those that were there when they were looked for.
fn program(name: &str) -> Result<PathBuf, LabError> {
    peer::find(name).ok_or_else(|| LabError::new(format!("{name}: has gone")))
}

/// The namespace between the gateways, and its ends of their outer wires.
pub struct Between {
    pub namespace: Namespace,
    pub ports: [Port; 2],
}

impl Between {
    /// Lays a wire from each gateway to a namespace that forwards nothing.
    pub fn lay(gateways: &[Namespace; 2], outer: &[Port; 2]) -> Result<Between, LabError> {
        let namespace = Namespace::new("relay")?;
        let ports = [Port::named("rl", 7), Port::named("rr", 8)];
        namespace.sysctl("net/ipv4/ip_forward", "0")?;
        namespace.sysctl("net/ipv6/conf/default/disable_ipv6", "1")?;
        for i in [0, 1] {
            veth::lay((&gateways[i], &outer[i]), (&namespace, &ports[i]))?;
        }
        let [left, right] = [0, 1].map(|i| format!("address add {}/25 dev {}\n", next_hop(i), ports[i].name));
        namespace.ip_batch(format!(
            "{left}{right}address add {CONTROL}/32 dev lo\naddress add {}/32 dev lo\n",
            RELAY.ip()
        ))?;
        Ok(Between { namespace, ports })
    }
}

/// The relay's address on the wire to a gateway.
fn next_hop(side: usize) -> Ipv4Addr {
    Ipv4Addr::new(192, 0, 2, [126, 254][side])
}

/// Clients, the server that tells them of each other, and the relay.
struct Tailnet {
    // Dropped in this order.
    nodes: [Node; 2],
    headscale: Started,
    _relay: Box<dyn Relaying>,
    notes: Vec<String>,
}

/// A `tailscaled` that says it has the inner network of its side.
struct Node {
    started: Started,
    name: &'static str,
    network: String,
}

/// Both gateways and the relay, on the CPUs given.
pub fn start(
    pair: Pair<'_>,
    between: &Between,
    sut: Sut,
    cpu: u32,
) -> Result<Vec<Box<dyn Gateway>>, LabError> {
    let environment = Environment {
        namespace: &between.namespace,
        cpus: &[cpu],
        address: RELAY,
        relay: RelayScenario { tls: Tls::User, ..RelayScenario::default() },
    };
    let relay = relay::start(sut, &environment)?
        .ok_or_else(|| LabError::new(format!("{}: is no relay", crate::experiment::kebab(&sut))))?;
    let headscale = start_headscale(between)?;
    let key = admit(&headscale)?;
    let [left, right] = pair.0;
    let nodes = [Node::start(left)?, Node::start(right)?];
    let joined = thread::scope(|scope| {
        let joining = nodes.each_ref().map(|node| scope.spawn(|| node.join(&key)));
        joining.map(|joining| joining.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
    });
    joined.into_iter().collect::<Result<Vec<()>, LabError>>()?;
    approve_routes(&headscale, &nodes)?;
    let mut notes = relay.notes();
    notes.push(format!("relay: on CPU {cpu}"));
    let version = peer::version("tailscaled").unwrap_or_else(|| "of unknown version".into());
    notes.push(format!(
        "tailscaled {version}: subnet routers, MTU {MTU} (TS_DEBUG_MTU), every packet by the relay"
    ));
    let tailnet = Tailnet { nodes, headscale, _relay: relay, notes };
    tailnet.await_relayed()?;
    Ok(vec![Box::new(tailnet)])
}

fn start_headscale(between: &Between) -> Result<Started, LabError> {
    let program = program("headscale")?;
    let place = ProcessPlacement { namespace: Some(&between.namespace), cpus: &[] };
    let mut started = Started::launch("headscale", place, |folder| {
        fs::write(folder.join("map.yaml"), map())?;
        let file = folder.join("headscale.yaml");
        fs::write(&file, settings(folder))?;
        let mut command = Command::new(program);
        command.arg("--config").arg(file).arg("serve").env("HOME", folder);
        Ok(command)
    })?;
    started.wait(READY_WITHIN, |started| Ok(asked(started, &["users", "list"]).is_ok()))?;
    Ok(started)
}

/// The relay as the one node of the one region. Its certificate is signed by itself.
fn map() -> String {
    let (ip, port) = (RELAY.ip(), RELAY.port());
    format!(
        "regions:\n  900:\n    regionid: 900\n    regioncode: lab\n    regionname: lab\n    nodes:\n      - name: 900-0\n        \
         regionid: 900\n        hostname: \"{ip}\"\n        ipv4: \"{ip}\"\n        stunport: -1\n        derpport: {port}\n        \
         insecurefortests: true\n"
    )
}

fn settings(folder: &Path) -> String {
    let folder = folder.display();
    format!(
        "server_url: http://{CONTROL}:{CONTROL_PORT}\nlisten_addr: {CONTROL}:{CONTROL_PORT}\nmetrics_listen_addr: \"\"\n\
         grpc_listen_addr: 127.0.0.1:50443\nunix_socket: {folder}/headscale.sock\nunix_socket_permission: \"0700\"\n\
         noise:\n  private_key_path: {folder}/noise.key\n\
         prefixes:\n  v4: 100.64.0.0/10\n  v6: fd7a:115c:a1e0::/48\n  allocation: sequential\n\
         derp:\n  server:\n    enabled: false\n  urls: []\n  paths: [{folder}/map.yaml]\n  auto_update_enabled: false\n\
         disable_check_updates: true\n\
         database:\n  type: sqlite\n  sqlite:\n    path: {folder}/headscale.sqlite\n\
         dns:\n  magic_dns: false\n  override_local_dns: false\n  base_domain: lab.test\n\
         log:\n  level: info\npolicy:\n  mode: file\n  path: \"\"\nlogtail:\n  enabled: false\n"
    )
}

/// What headscale answers to its own command.
fn asked(headscale: &Started, words: &[&str]) -> Result<Value, LabError> {
    let failed = |why: &dyn std::fmt::Display| LabError::new(format!("headscale {}: {why}", words.join(" ")));
    let mut ask = Command::new(program("headscale")?);
    ask.arg("--config").arg(headscale.folder.path().join("headscale.yaml")).args(["--output", "json"]);
    let output = ask.args(words).env("HOME", headscale.folder.path()).output().map_err(|e| failed(&e))?;
    if !output.status.success() {
        return Err(failed(&String::from_utf8_lossy(&output.stderr).trim()));
    }
    serde_json::from_slice(&output.stdout).map_err(|e| failed(&e))
}

/// A key that both clients may join with.
fn admit(headscale: &Started) -> Result<String, LabError> {
    let user = asked(headscale, &["users", "create", "lab"])?;
    let id = user["id"].as_u64().map(|id| id.to_string()).or_else(|| user["id"].as_str().map(String::from));
    let id = id.ok_or_else(|| LabError::new(format!("headscale: no number of a user in {user}")))?;
    let key =
        asked(headscale, &["preauthkeys", "create", "--user", &id, "--reusable", "--expiration", "1h"])?;
    let word = key["key"].as_str().map(String::from);
    word.ok_or_else(|| LabError::new(format!("headscale: no key in {key}")))
}

/// Lets each client have the inner network it says it has.
fn approve_routes(headscale: &Started, nodes: &[Node; 2]) -> Result<(), LabError> {
    let known = asked(headscale, &["nodes", "list"])?;
    for Node { name, network, .. } in nodes {
        let node = known.as_array().into_iter().flatten().find(|node| node["given_name"] == **name);
        let id = node.map(|node| node["id"].to_string());
        let id = id.ok_or_else(|| LabError::new(format!("headscale: no node named {name} in {known}")))?;
        let id = id.trim_matches('"');
        asked(headscale, &["nodes", "approve-routes", "--identifier", id, "--routes", network])?;
    }
    Ok(())
}

fn network(number: usize) -> String {
    format!("10.{number}.0.0/24")
}

/// A gateway's own addresses, and the way to the relay.
fn addresses(side: &Side<'_>) -> Result<(), LabError> {
    let (number, inner, outer) = (side.number(), &side.inner.name, &side.outer.name);
    let next_hop = next_hop(number - 1);
    let own = Ipv4Addr::from(u32::from(next_hop) - 1);
    side.namespace.sysctl("net/ipv4/ip_forward", "1")?;
    side.namespace.ip_batch(format!(
        "address add 10.{number}.0.1/24 dev {inner}\naddress add {own}/25 dev {outer}\nroute add default via {next_hop} dev {outer}\n"
    ))
}

impl Node {
    fn start(side: &Side<'_>) -> Result<Node, LabError> {
        addresses(side)?;
        let program = program("tailscaled")?;
        let place = ProcessPlacement { namespace: Some(side.namespace), cpus: &[side.cpu] };
        let mut started = Started::launch("tailscaled", place, |folder| {
            let mut command = Command::new(program);
            command.arg("--statedir").arg(folder).arg("--socket").arg(folder.join("socket"));
            command.args(["--tun=tailscale0", "--port=0", "--no-logs-no-support"]);
            command.env("HOME", folder).env("TS_NO_LOGS_NO_SUPPORT", "true").env_remove("XDG_CACHE_HOME");
            command.env("TS_DEBUG_MTU", MTU.to_string());
            Ok(command)
        })?;
        started.wait(READY_WITHIN, |started| Ok(started.folder.path().join("socket").exists()))?;
        Ok(Node { started, name: side.name(), network: network(side.number()) })
    }

    fn join(&self, key: &str) -> Result<(), LabError> {
        let (name, network) = (self.name, &self.network);
        let server = format!("--login-server=http://{CONTROL}:{CONTROL_PORT}");
        let mut words =
            vec!["up".to_string(), server, format!("--auth-key={key}"), format!("--hostname={name}")];
        words.push(format!("--advertise-routes={network}"));
        let alike =
            ["--accept-routes", "--snat-subnet-routes=false", "--netfilter-mode=off", "--accept-dns=false"];
        words.extend(alike.map(String::from));
        words.push("--timeout=120s".into());
        self.told(&words).map(drop)
    }

    fn told<S: AsRef<str>>(&self, words: &[S]) -> Result<String, LabError> {
        let failed = |why: &dyn std::fmt::Display| {
            LabError::new(format!("tailscale {}: {why}", words.first().map_or("", |word| word.as_ref())))
        };
        let mut tell = Command::new(program("tailscale")?);
        tell.arg("--socket")
            .arg(self.started.folder.path().join("socket"))
            .args(words.iter().map(AsRef::as_ref));
        let output = tell.env("HOME", self.started.folder.path()).output().map_err(|e| failed(&e))?;
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        if output.status.success() {
            return Ok(said);
        }
        let errors = String::from_utf8_lossy(&output.stderr);
        Err(failed(&format!("{} {}", errors.trim(), said.trim())))
    }
}

impl Tailnet {
    /// Pings from the left node to the right one until an answer comes by the relay.
    fn await_relayed(&self) -> Result<(), LabError> {
        let [left, right] = &self.nodes;
        let address = right.told(&["ip", "-4"])?;
        let ping = ["ping", "--c=1", "--until-direct=false", "--timeout=3s", address.trim()];
        let until = Instant::now() + READY_WITHIN;
        loop {
            let said = left.told(&ping).unwrap_or_else(|e| e.said);
            if said.contains("via DERP(lab)") {
                return Ok(());
            }
            if said.contains("pong") || Instant::now() > until {
                return Err(LabError::new(format!(
                    "tailscaled: no answer by the relay: {said}; {}",
                    self.log()
                )));
            }
            thread::sleep(LOOK);
        }
    }
}

impl Gateway for Tailnet {
    fn notes(&self) -> Vec<String> {
        self.notes.clone()
    }

    fn log(&self) -> String {
        let nodes = self.nodes.iter().map(|node| format!("{}: {}", node.name, node.started.said()));
        nodes.chain([format!("headscale: {}", self.headscale.said())]).collect::<Vec<_>>().join("; ")
    }
}
