//! Tailscale's `derper`, plain or with a certificate it signs itself.
//!
//! Its counters are those of `/debug/varz`, which it shows to its own host.

use std::net::TcpStream;
use std::process::Command;

use rustls::pki_types::ServerName;

use super::control::{ANSWERS_WITHIN, ask};
use super::peer::{self, Started};
use super::relay::{self, ADDRESS, Environment, NoCounters, Relaying};
use crate::generator::derp::tls::Trusting;
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
    peer::find("derper").is_none().then(|| MISSING.into())
}

pub struct Derper {
    started: Started,
    tls: Tls,
    notes: Vec<String>,
}

impl Derper {
    pub fn start(environment: &Environment<'_>) -> Result<Derper, LabError> {
        let program = peer::find("derper").ok_or_else(|| LabError::new(MISSING.into()))?;
        let version = peer::version("derper").unwrap_or_else(|| "of unknown version".into());
        let tls = environment.relay.tls;
        let workers = environment.relay.workers.to_string();
        let mut line = String::new();
        let started = relay::launch("derper", environment, |folder| {
            let mut command = Command::new(program);
            command.arg("-a").arg(ADDRESS.to_string()).args(["-http-port", "-1", "-stun=false"]);
            command.arg("-c").arg(folder.join("derper.json"));
            if tls.is_on() {
                // without a certificate for an address, it signs one itself
                command.args(["-certmode", "manual", "-hostname", &ADDRESS.ip().to_string()]);
                command.arg("-certdir").arg(folder);
            }
            let words: Vec<_> = command.get_args().map(|word| word.to_string_lossy()).collect();
            let words = words.join(" ").replace(&folder.display().to_string(), "<folder>");
            line = format!("GOMAXPROCS={workers} derper {words}");
            command.env("GOMAXPROCS", workers);
            Ok(command)
        })?;
        let notes = vec![format!("derper {version}: {line}")];
        Ok(Derper { started, tls, notes })
    }
}

impl Relaying for Derper {
    fn process(&self) -> u32 {
        self.started.child.id()
    }

    fn drops(&mut self, namespace: &Namespace) -> Result<Counters, LabError> {
        let tls = self.tls.is_on();
        let failed = |e: String| LabError::new(format!("derper: /debug/varz: {e}"));
        let answer = namespace.run(move || variables(tls))?.map_err(|e| failed(e.to_string()))?;
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

fn variables(tls: bool) -> std::io::Result<String> {
    let stream = TcpStream::connect(ADDRESS)?;
    stream.set_read_timeout(Some(ANSWERS_WITHIN))?;
    let request = format!("GET /debug/varz HTTP/1.0\r\nHost: {ADDRESS}\r\n\r\n");
    if !tls {
        return ask(stream, &request);
    }
    let name = ServerName::IpAddress(ADDRESS.ip().into());
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
