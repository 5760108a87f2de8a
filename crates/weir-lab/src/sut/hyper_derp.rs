//! Hyper-DERP, a relay on io_uring, plain; used where it is installed, never fetched or built.
//!
//! It has no TLS of its own: where a kernel has none, it cannot be compared with. Its counters are those of its metrics
//! endpoint, which the lab asks on a port of the relay's namespace.

use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::process::Command;

use super::control::{ANSWERS_WITHIN, ask};
use super::peer::{self, Started};
use super::relay::{self, Environment, NoCounters, Relaying};
use crate::model::LabError;
use crate::model::relay::Tls;
use crate::netns::counters::Counters;
use crate::netns::namespace::Namespace;

const MISSING: &str = "hyper-derp: no such program in ~/.cache/weir/peers/bin or on the PATH: install it by its own instructions";
const METRICS: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 3341);
/// Counters of packets it dropped; a full slab is one reason of `send_drops` in some versions, so is not added.
const LOST: [(&str, &str); 2] = [
    ("hyper_derp_send_drops_total", "hyper-derp.send_queue"),
    ("hyper_derp_xfer_drops_total", "hyper-derp.between_workers"),
];

pub fn missing(tls: Tls) -> Option<String> {
    if tls.is_on() {
        return Some("hyper-derp: has no TLS of its own: use tls = \"off\"".into());
    }
    peer::find("hyper-derp").is_none().then(|| MISSING.into())
}

pub struct HyperDerp {
    started: Started,
    notes: Vec<String>,
}

impl HyperDerp {
    pub fn start(environment: &Environment<'_>) -> Result<HyperDerp, LabError> {
        let program = peer::find("hyper-derp").ok_or_else(|| LabError::new(MISSING.into()))?;
        let version = peer::version("hyper-derp").unwrap_or_else(|| "of unknown version".into());
        let cpus = environment.cpus.iter().map(u32::to_string).collect::<Vec<_>>().join(",");
        let words = [
            ("--port", environment.address.port().to_string()),
            ("--workers", environment.relay.workers.to_string()),
            ("--pin-workers", cpus),
            ("--metrics-port", METRICS.port().to_string()),
            ("--log-level", "warn".into()),
        ];
        let line = words.iter().map(|(flag, value)| format!("{flag} {value}")).collect::<Vec<_>>().join(" ");
        let started = relay::launch("hyper-derp", environment, |_| {
            let mut command = Command::new(program);
            command.args(words.iter().flat_map(|(flag, value)| [*flag, value.as_str()]));
            Ok(command)
        })?;
        Ok(HyperDerp { started, notes: vec![format!("hyper-derp: {version}: hyper-derp {line}")] })
    }
}

impl Relaying for HyperDerp {
    fn process(&self) -> u32 {
        self.started.child.id()
    }

    fn drops(&mut self, namespace: &Namespace) -> Result<Counters, LabError> {
        let answer = namespace.run(metrics)?;
        let read = answer.map_err(NoCounters::Unread).and_then(|answer| counters(&answer));
        read.map_err(|e| self.ended().unwrap_or(LabError::new(format!("hyper-derp: /metrics: {e}"))))
    }

    fn notes(&self) -> Vec<String> {
        self.notes.clone()
    }

    fn ended(&mut self) -> Option<LabError> {
        self.started.ended()
    }
}

fn metrics() -> std::io::Result<String> {
    let stream = TcpStream::connect(METRICS)?;
    stream.set_read_timeout(Some(ANSWERS_WITHIN))?;
    ask(stream, &format!("GET /metrics HTTP/1.1\r\nHost: {METRICS}\r\nConnection: close\r\n\r\n"))
}

/// Lines such as `hyper_derp_send_drops_total 17`.
fn counters(metrics: &str) -> Result<Counters, NoCounters> {
    let value = |name: &str| {
        let line = metrics.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '))?;
        line.trim().parse().ok()
    };
    let found = |&(name, ours): &(&str, &str)| {
        Ok((ours.to_string(), value(name).ok_or_else(|| NoCounters::Named(name.into()))?))
    };
    LOST.iter().map(found).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drops_are_read_and_an_endpoint_without_them_is_refused() {
        let said = "HTTP/1.1 200 OK\r\n\r\n# TYPE hyper_derp_send_drops_total counter\n\
            hyper_derp_send_drops_total 17\nhyper_derp_xfer_drops_total 0\nhyper_derp_workers 1\n";
        let expected = [("hyper-derp.between_workers", 0), ("hyper-derp.send_queue", 17)];
        assert_eq!(
            counters(said).ok(),
            Some(expected.into_iter().map(|(k, n)| (k.to_string(), n)).collect())
        );
        assert!(counters("HTTP/1.1 404 Not Found\r\n\r\n").is_err());
    }

    #[test]
    fn it_is_skipped_by_name_where_tls_is_asked_for() {
        for tls in [Tls::User, Tls::Kernel] {
            assert!(missing(tls).is_some_and(|why| why.contains("hyper-derp: has no TLS")));
        }
    }
}
