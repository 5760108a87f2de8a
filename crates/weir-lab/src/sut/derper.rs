//! Tailscale's `derper`, plain or with a certificate it signs itself.
//!
//! Its counters are those of `/debug/varz`, which it shows to its own host: to the loopback address, and to the one it is told.

use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::process::Command;

use rustls::pki_types::ServerName;

use super::control::{ANSWERS_WITHIN, ask};
use super::peer::{self, Started};
use super::relay::{self, Environment, NoCounters, Relaying};
use crate::generator::derp::tls::Trusting;
use crate::machine;
use crate::model::LabError;
use crate::model::relay::Tls;
use crate::netns::counters::Counters;
use crate::netns::namespace::Namespace;

pub const MISSING: &str =
    "derper: no such program in ~/.cache/weir/peers/bin or on the PATH: `scripts/peers derper` builds it";

pub fn missing(tls: Tls) -> Option<String> {
    if tls == Tls::Kernel {
        return Some("derper: has no TLS in the kernel: use tls = \"user\"".into());
    }
    program().is_none().then(|| MISSING.into())
}

/// The one the lab brought to a host, or the machine's own.
pub fn program() -> Option<PathBuf> {
    peer::beside("derper").or_else(|| peer::find("derper"))
}

pub struct Derper {
    started: Started,
    tls: Tls,
    address: SocketAddr,
    notes: Vec<String>,
}

impl Derper {
    pub fn start(environment: &Environment<'_>) -> Result<Derper, LabError> {
        let program = program().ok_or_else(|| LabError::new(MISSING.into()))?;
        let version = machine::version(&program, "-version").unwrap_or_else(|| "of unknown version".into());
        let (tls, address) = (environment.relay.tls, environment.address);
        let workers = environment.relay.workers.to_string();
        let mut line = String::new();
        let started = relay::launch("derper", environment, |folder| {
            let mut command = Command::new(program);
            command.arg("-a").arg(address.to_string()).args(["-http-port", "-1", "-stun=false"]);
            command.arg("-c").arg(folder.join("derper.json"));
            if tls.is_on() {
                // without a certificate for an address, it signs one itself
                command.args(["-certmode", "manual", "-hostname", &address.ip().to_string()]);
                command.arg("-certdir").arg(folder);
            }
            let words: Vec<_> = command.get_args().map(|word| word.to_string_lossy()).collect();
            let words = words.join(" ").replace(&folder.display().to_string(), "<folder>");
            line = format!("GOMAXPROCS={workers} derper {words}");
            command.env("GOMAXPROCS", workers);
            if !address.ip().is_loopback() {
                // tsweb.AllowDebugAccess: whom it shows its variables beside the loopback address
                command.env("TS_ALLOW_DEBUG_IP", address.ip().to_string());
            }
            Ok(command)
        })?;
        let notes = vec![format!("derper {version}: {line}")];
        Ok(Derper { started, tls, address, notes })
    }
}

impl Relaying for Derper {
    fn process(&self) -> u32 {
        self.started.child.id()
    }

    fn drops(&mut self, namespace: &Namespace) -> Result<Counters, LabError> {
        let (address, tls) = (self.address, self.tls.is_on());
        let failed = |e: String| LabError::new(format!("derper: /debug/varz: {e}"));
        let answer = namespace.run(move || variables(address, tls))?.map_err(|e| failed(e.to_string()))?;
        let body = answer.split_once("\r\n\r\n").map_or("", |(_, body)| body);
        counters(body).map_err(|e| failed(e.to_string()))
    }

    fn notes(&self) -> Vec<String> {
        self.notes.clone()
    }

    fn ended(&mut self) -> Option<LabError> {
        self.started.ended()
    }
}

fn variables(address: SocketAddr, tls: bool) -> std::io::Result<String> {
    let stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(ANSWERS_WITHIN))?;
    let request = format!("GET /debug/varz HTTP/1.0\r\nHost: {address}\r\n\r\n");
    if !tls {
        return ask(stream, &request);
    }
    let name = ServerName::IpAddress(address.ip().into());
    let config = Trusting::new()?.config();
    let client = rustls::ClientConnection::new(config, name).map_err(std::io::Error::other)?;
    ask(rustls::StreamOwned::new(client, stream), &request)
}

/// Packets dropped, by reason: lines such as `derp_packets_dropped{reason="queue_head",kind="other"} 17`.
fn counters(variables: &str) -> Result<Counters, NoCounters> {
    let mut found = Counters::new();
    for line in variables.lines() {
        let Some(rest) = line.strip_prefix("derp_packets_dropped{reason=\"") else { continue };
        let (reason, rest) = rest.split_once('"').ok_or_else(|| NoCounters::Reason(line.into()))?;
        let value = rest.rsplit(' ').next().and_then(|n| n.parse::<f64>().ok());
        let value = value.ok_or_else(|| NoCounters::Number(line.into()))?;
        *found.entry(format!("derper.{reason}")).or_default() += value as u64;
    }
    if found.is_empty() { Err(NoCounters::None) } else { Ok(found) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drops_are_read_by_reason_and_other_variables_left() {
        let said = "# TYPE derp_packets_dropped counter\nderp_bytes_dropped{reason=\"queue_head\",kind=\"other\"} 9\n\
            derp_packets_dropped{reason=\"queue_head\",kind=\"disco\"} 3\n\
            derp_packets_dropped{reason=\"queue_head\",kind=\"other\"} 17\n\
            derp_packets_dropped{reason=\"write_error\",kind=\"other\"} 0\n";
        let expected = [("derper.queue_head", 20), ("derper.write_error", 0)];
        let expected: Counters = expected.into_iter().map(|(k, n)| (k.to_string(), n)).collect();
        assert_eq!(counters(said).ok(), Some(expected));
        assert!(counters("").is_err());
    }
}
