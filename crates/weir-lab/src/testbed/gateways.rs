//! The `gateways` topology: TCP, or datagrams at a rate, from a client to a server through a tunnel between two gateways.
//!
//! ```text
//!   client ns          left gateway ns          right gateway ns         server ns
//!   cl ═══════════ lin ─► seal ─► lout ═══════════ rout ─► open ─► rin ═══════════ sv
//!      10.1.0.0/24                    192.0.2.0/24                     10.2.0.0/24
//! ```
//!
//! Promises: both gateways are of one kind and stand on the same wires, with the same packets (an MTU of
//! 1,400 at both ends) and the same CPUs, whichever kind it is: client and left gateway share one, server
//! and right gateway another. The baseline is the kernel forwarding without a tunnel. What counts is what the
//! server read.
//!
//! Gateways that only a relay joins have its namespace between them instead of one wire ([`tailnet`]). Both directions of the
//! middle can have delay and loss of the kernel's netem.
//!
//! Without a rate that is TCP, which finds its own. Refuses: bursts.

mod datagrams;
mod tcp;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use crate::model::{
    Configuration, Family, FrameSize, LabError, Prepared, Sample, Scope, Sut, Trial, Workload,
};
use crate::netns::counters::{TICKS_A_SECOND, cpu_ticks};
use crate::netns::cpus::{self, Cpus};
use crate::netns::namespace::Namespace;
use crate::netns::residue::Sweep;
use crate::netns::veth::{self, Port};
use crate::sut::gateway::{Gateway, MTU, Pair, Side, kernel_addresses};
use crate::sut::kernel_xfrm;
use crate::sut::strongswan::{self, Esp};
use crate::sut::tailnet::{self, Between};
use crate::sut::{vpp, weir};
use weir_stats::search::{LossLedger, Rate};

/// Keys are agreed on and neighbours found within this.
const READY_WITHIN: Duration = Duration::from_secs(20);
const MBIT: f64 = 1e6 / 8.0;

#[derive(Debug, Default)]
pub struct GatewaysTestbed {
    sweep: Sweep,
}

impl GatewaysTestbed {
    pub fn missing(&mut self, configuration: &Configuration) -> Option<String> {
        if configuration.workload.family == Family::Inet6 {
            return Some("gateways: IPv4 only; use family = \"inet\"".into());
        }
        if let Some(refused) = datagrams::refused(configuration) {
            return Some(refused);
        }
        cpus::missing_privilege().or_else(|| missing_netem(configuration)).or_else(|| match configuration.sut() {
            Sut::Baseline => None,
            Sut::Weir => crate::sut::missing(configuration),
            Sut::Strongswan => strongswan::missing(Esp::Own),
            Sut::StrongswanKernel => strongswan::missing(Esp::Kernel),
            Sut::KernelXfrm => kernel_xfrm::gateway::missing(),
            Sut::WeirStrongswan => weir::keyed::missing(configuration),
            Sut::TailscaleWeir => tailnet::missing(Sut::Weir),
            Sut::TailscaleDerper => tailnet::missing(Sut::Derper),
            Sut::Vpp => vpp::gateway::missing(configuration),
            other => Some(format!(
                "{}: is no tunnel gateway here: use sut = \"weir\", \"kernel-xfrm\", \"strongswan\", \"strongswan-kernel\", \"weir-strongswan\", \"tailscale-weir\", \"tailscale-derper\" or \"vpp\"",
                crate::experiment::kebab(&other)
            )),
        })
    }

    pub fn prepare(&mut self, configuration: &Configuration) -> Result<Box<dyn Prepared>, LabError> {
        let missing = self.missing(configuration);
        self.sweep
            .deploy(missing, |swept| Ok(Box::new(Deployed::new(configuration, swept)?) as Box<dyn Prepared>))
    }
}

/// Wires, gateways and ends of one configuration.
struct Deployed {
    // Dropped first: they end before their namespaces do.
    gateways: Vec<Box<dyn Gateway>>,
    server: tcp::Server,
    client: Namespace,
    _middle: [Namespace; 2],
    _between: Option<Between>,
    far: Namespace,
    /// Connections of TCP, or flows of datagrams.
    flows: u32,
    frame: FrameSize,
    /// The CPU of the left side and of the right side.
    cpus: [u32; 2],
    notes: Vec<String>,
    /// Which of them say that something better was refused.
    fallbacks: Vec<String>,
}

fn start(
    sut: Sut,
    pair: Pair<'_>,
    between: Option<&Between>,
    cpu: u32,
) -> Result<Vec<Box<dyn Gateway>>, LabError> {
    if let (Some(between), Some(relay)) = (between, tailnet::relay_of(sut)) {
        return tailnet::start(pair, between, relay, cpu);
    }
    match sut {
        Sut::Weir => weir::gateway::start(pair),
        Sut::WeirStrongswan => weir::keyed::start(pair),
        Sut::Strongswan => strongswan::start(pair, Esp::Own),
        Sut::StrongswanKernel => strongswan::start(pair, Esp::Kernel),
        Sut::KernelXfrm => kernel_xfrm::gateway::start(pair),
        Sut::Vpp => vpp::gateway::start(pair),
        _ => Ok(Vec::new()),
    }
}

/// Namespaces of the two sides and their wires, from the outside in.
struct Wires {
    ends: [(Namespace, Port); 2],
    middle: [Namespace; 2],
    inner: [Port; 2],
    outer: [Port; 2],
    between: Option<Between>,
}

/// Why the kernel delays and loses no packets, where a configuration asks for that.
fn missing_netem(configuration: &Configuration) -> Option<String> {
    let words = Some(configuration.netem()).filter(|words| !words.is_empty())?;
    let tried =
        Namespace::new("probe").and_then(|probe| probe.tc(&format!("qdisc add dev lo root netem {words}")));
    let said = tried.err()?.said;
    let reason = said.lines().next().unwrap_or_default();
    Some(format!("gateways: {reason}: use a kernel with netem (CONFIG_NET_SCH_NETEM, module sch_netem)"))
}

impl Deployed {
    fn new(configuration: &Configuration, swept: Vec<String>) -> Result<Deployed, LabError> {
        let chosen = Cpus::choose(&configuration.placement)?;
        let cpus = match configuration.placement.cpus[..] {
            [] => [chosen.generator, chosen.sut[0]],
            [both] => [both, both],
            [left, .., right] => [left, right],
        };
        // A relay between them has a CPU of its own where one is named.
        let relay_cpu = match configuration.placement.cpus[..] {
            [_, relay, _, ..] => relay,
            _ => cpus[1],
        };
        let offload = configuration.offload();
        let relayed = tailnet::relay_of(configuration.sut()).is_some();
        let wires = Wires::lay(offload, relayed)?;
        let tunnelled = !configuration.is_baseline();
        wires.address(tunnelled)?;
        let mut notes = swept;
        notes.push(format!(
            "cpus: client and left gateway {}, server and right gateway {}; an MTU of {MTU} at both ends",
            cpus[0], cpus[1]
        ));
        let mut fallbacks = Vec::new();
        for (end, _) in &wires.ends {
            let tcp = end.untuned()?;
            fallbacks.extend(tcp.fell_back.then(|| tcp.said.clone()));
            notes.push(tcp.said);
        }
        if offload {
            notes.push(
                "inner wires: TCP leaves its hosts uncut and without checksums, as with cards that do both"
                    .into(),
            );
        }
        let sides = [0, 1].map(|i| Side {
            namespace: &wires.middle[i],
            inner: &wires.inner[i],
            outer: &wires.outer[i],
            cpu: cpus[i],
            right: i == 1,
            configuration,
        });
        let gateways = start(configuration.sut(), Pair(&sides), wires.between.as_ref(), relay_cpu)?;
        notes.extend(gateways.iter().flat_map(|g| g.notes()));
        fallbacks.extend(gateways.iter().flat_map(|g| g.fallbacks()));
        notes.sort_unstable();
        notes.dedup();
        notes.extend(wires.place(cpus, relay_cpu)?);
        notes.extend(wires.disturb(configuration.netem())?);
        let [near, far] = wires.ends;
        let server = tcp::Server::start(&far.0, cpus[1])?;
        let Workload { flows, frame, .. } = configuration.workload;
        Ok(Deployed {
            gateways,
            server,
            client: near.0,
            _middle: wires.middle,
            _between: wires.between,
            far: far.0,
            flows,
            frame,
            cpus,
            notes,
            fallbacks,
        })
    }

    /// Connects as soon as packets pass.
    fn connect(&self) -> Result<tcp::Client, LabError> {
        self.patiently("connection", || tcp::Client::start(&self.client, self.flows, self.cpus[0]))
    }

    /// What comes of `begin` as soon as packets pass.
    fn patiently<T, E: std::fmt::Display>(
        &self,
        what: &str,
        mut begin: impl FnMut() -> Result<T, E>,
    ) -> Result<T, LabError> {
        let until = Instant::now() + READY_WITHIN;
        loop {
            match begin() {
                Ok(begun) => return Ok(begun),
                Err(e) if Instant::now() > until => {
                    let said: Vec<String> = self.gateways.iter().map(|g| g.log()).collect();
                    return Err(LabError::new(format!(
                        "gateways: no {what} passes: {e}; {}",
                        said.join("; ")
                    )));
                }
                Err(_) => std::thread::sleep(Duration::from_millis(100)),
            }
        }
    }

    /// Packets that reached the server, each segment of what came in one piece counted.
    fn received(&self) -> Result<u64, LabError> {
        // A thread has the counters of its own namespace.
        const COUNTERS: &str = "/proc/thread-self/net/netstat";
        segments(&self.far.read(COUNTERS)?).ok_or_else(|| {
            LabError::new(format!(
                "{COUNTERS}: has no number of IP packets received: use a kernel that counts segments by ECN mark (Linux 3.10)"
            ))
        })
    }
}

/// The kernel counts segments, however many come together, where it counts marks of congestion (RFC 3168).
fn segments(netstat: &str) -> Option<u64> {
    const BY_MARK: [&str; 4] = ["InNoECTPkts", "InECT1Pkts", "InECT0Pkts", "InCEPkts"];
    let mut lines = netstat.lines().filter_map(|line| line.strip_prefix("IpExt: "));
    let (names, values) = (lines.next()?.split(' '), lines.next()?.split(' '));
    let counted = names.zip(values).filter(|(name, _)| BY_MARK.contains(name));
    counted.map(|(_, value)| value.parse::<u64>().ok()).sum()
}

impl Wires {
    fn lay(offload: bool, relayed: bool) -> Result<Wires, LabError> {
        let [client, left, right, server] =
            ["client", "left-gateway", "right-gateway", "server"].map(Namespace::new);
        let (client, left, right, server) = (client?, left?, right?, server?);
        let port = Port::named;
        let (ends, middle) = ([(client, port("cl", 1)), (server, port("sv", 6))], [left, right]);
        let (inner, outer) = ([port("lin", 2), port("rin", 5)], [port("lout", 3), port("rout", 4)]);
        for i in [0, 1] {
            ends[i].0.sysctl("net/ipv6/conf/default/disable_ipv6", "1")?;
            middle[i].sysctl("net/ipv6/conf/default/disable_ipv6", "1")?;
            let lay = if offload { veth::lay_with_offloads } else { veth::lay };
            lay((&ends[i].0, &ends[i].1), (&middle[i], &inner[i]))?;
        }
        let between = match relayed {
            true => Some(Between::lay(&middle, &outer)?),
            false => {
                veth::lay((&middle[0], &outer[0]), (&middle[1], &outer[1]))?;
                None
            }
        };
        Ok(Wires { ends, middle, inner, outer, between })
    }

    /// Has each side's reception on its CPU, and that of what is between them on the relay's; gives what could not be had.
    fn place(&self, cpus: [u32; 2], relay_cpu: u32) -> Result<Vec<String>, LabError> {
        let mut notes = Vec::new();
        for (i, cpu) in cpus.into_iter().enumerate() {
            let (end, port) = &self.ends[i];
            notes.extend(veth::place(end, port, &[cpu], false)?);
            for port in [&self.inner[i], &self.outer[i]] {
                notes.extend(veth::place(&self.middle[i], port, &[cpu], false)?);
            }
        }
        if let Some(between) = &self.between {
            for port in &between.ports {
                notes.extend(veth::place(&between.namespace, port, &[relay_cpu], false)?);
            }
        }
        Ok(notes)
    }

    /// Gives what each gateway sends delay and loss; says so.
    fn disturb(&self, words: &str) -> Result<Option<String>, LabError> {
        if words.is_empty() {
            return Ok(None);
        }
        for (gateway, port) in self.middle.iter().zip(&self.outer) {
            gateway.tc(&format!("qdisc add dev {} root netem {words}", port.name))?;
        }
        Ok(Some(format!("netem on what each gateway sends: {words}")))
    }

    /// Addresses and routes of the ends; the gateways' are their own affair, unless there is no tunnel.
    fn address(&self, tunnelled: bool) -> Result<(), LabError> {
        for (i, (end, port)) in self.ends.iter().enumerate() {
            let (net, name) = (i + 1, &port.name);
            end.ip_batch(format!(
                "link set {name} mtu {MTU}\naddress add 10.{net}.0.2/24 dev {name}\nroute add default via 10.{net}.0.1 dev {name}\n"
            ))?;
        }
        if tunnelled {
            return Ok(());
        }
        for i in [0, 1] {
            self.kernel_addresses(i)?;
            let (own, far) = (i + 1, 2 - i);
            let outer = &self.outer[i].name;
            self.middle[i]
                .ip_batch(format!("route add 10.{far}.0.0/24 via 192.0.2.{far} dev {outer}\n"))
                .map_err(|e| LabError::new(format!("gateway {own}: {e}")))?;
        }
        Ok(())
    }

    fn kernel_addresses(&self, i: usize) -> Result<(), LabError> {
        kernel_addresses(&self.middle[i], &self.inner[i], &self.outer[i], i + 1)
    }
}

impl Prepared for Deployed {
    fn run(&mut self, trial: &Trial) -> Result<Sample, LabError> {
        match trial.rate {
            Rate::FlatOut => self.tcp(trial),
            Rate::Pps(rate) => self.datagrams(rate, trial),
            Rate::Burst(_) => Err(LabError::new(
                "gateways: bursts have no meaning here: use method \"mrr\", \"ndr\" or a rate".into(),
            )),
        }
    }

    fn scope(&self) -> Option<Scope> {
        Some(Scope::Cpus(self.cpus.to_vec()))
    }
}

impl Deployed {
    fn datagrams(&self, rate: u64, trial: &Trial) -> Result<Sample, LabError> {
        let payload = datagrams::payload(self.frame)?;
        let load = datagrams::Load { payload, flows: self.flows, rate };
        let ends = datagrams::Ends::join([&self.client, &self.far], self.cpus, load)?;
        self.patiently("datagram", || ends.probe())?;
        let ticks = self.ticks();
        let carried = ends.run(trial)?;
        let ticks = [ticks, self.ticks()];
        if carried.delivered == 0 {
            return Err(LabError::new(format!(
                "gateways: none of {} datagrams came: lower `rate`, or lengthen `window`",
                carried.sent
            )));
        }
        let seconds = (carried.ended - carried.began) as f64 / 1e9;
        let pps = carried.delivered as f64 / seconds;
        let drops = [("server.no_room".to_string(), carried.no_room)];
        let ledger = LossLedger {
            intended: carried.intended,
            offered: carried.offered,
            sent: carried.sent,
            delivered: carried.delivered,
            drops: drops.into_iter().filter(|(_, n)| *n > 0).collect(),
        };
        Ok(Sample {
            seconds,
            pps,
            ledger,
            reordered: carried.reordered,
            metrics: metrics(pps * payload as f64 / MBIT, carried.delivered, ticks),
            notes: self.notes.clone(),
            fallbacks: Some(self.fallbacks.clone()),
            window_ns: Some((carried.began, carried.ended)),
            ..Sample::default()
        })
    }

    fn tcp(&self, trial: &Trial) -> Result<Sample, LabError> {
        let client = self.connect()?;
        std::thread::sleep(trial.warm_up);
        let (bytes, packets, ticks) = (self.server.read(), self.received()?, self.ticks());
        let began = weir_io::clock::now();
        std::thread::sleep(trial.window);
        let (read, received) = (self.server.read() - bytes, self.received()? - packets);
        let ended = weir_io::clock::now();
        let ticks = [ticks, self.ticks()];
        client.stop();
        let seconds = (ended - began) as f64 / 1e9;
        if read == 0 {
            return Err(LabError::new(
                "gateways: the server read nothing in the window: lengthen `window`".into(),
            ));
        }
        let metrics = metrics(read as f64 / seconds / MBIT, received, ticks);
        let ledger = LossLedger {
            intended: received,
            offered: received,
            sent: received,
            delivered: received,
            ..LossLedger::default()
        };
        let pps = received as f64 / seconds;
        let mut notes = self.notes.clone();
        notes.push(
            "packets are those that reached the server; what TCP sent again for is in no ledger".into(),
        );
        Ok(Sample {
            seconds,
            pps,
            ledger,
            metrics,
            notes,
            fallbacks: Some(self.fallbacks.clone()),
            window_ns: Some((began, ended)),
            ..Sample::default()
        })
    }

    /// Ticks of both sides' CPUs, which may be one.
    fn ticks(&self) -> Option<(u64, u64)> {
        let [left, right] = self.cpus;
        cpu_ticks(if left == right { &self.cpus[..1] } else { &self.cpus })
    }
}

/// CPU time is what both sides' CPUs spent between two readings of their ticks, ends included.
fn metrics(mbps: f64, packets: u64, [before, after]: [Option<(u64, u64)>; 2]) -> BTreeMap<String, f64> {
    let busy = before.zip(after).map(|((before, _), (after, _))| after.saturating_sub(before));
    let each = busy.filter(|_| packets > 0).map(|ticks| ticks as f64 / TICKS_A_SECOND * 1e9 / packets as f64);
    let known =
        [("mbps", Some(mbps)), ("cpu_percent", cpus::percent(before, after)), ("ns_per_packet", each)];
    known.into_iter().filter_map(|(name, value)| Some((name.to_string(), value?))).collect()
}
