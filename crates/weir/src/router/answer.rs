//! Answers to what the control socket is asked: the state of this moment as [`crate::view`] types.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::Path;

use weir_core::control::RouteView;
use weir_core::packet::DeviceId;
use weir_core::router::PortCounters;

use weir_core::tables::{Owner, PortKind};
use weir_core::time::{Nanos, SECOND};
use weir_core::trace::{Step, trace};
use weir_core::verdict::{Blame, DropCounters, Reason, Verdict};
use weir_core::wire::DisplayMac;

use super::error::TraceError;
use super::resources::Resource;
use super::worker::WorkerState;
use super::{Daemon, lookups, metrics};
use crate::config;
use crate::control::{ApplyRequest, RequestKind, Response};
use crate::{service, view};

impl Daemon {
    pub(super) fn respond(&mut self, now: Nanos, kind: RequestKind) -> Response {
        match kind {
            RequestKind::Http(request) => match Resource::of(request) {
                Ok(resource) => self.answer(now, resource),
                Err(response) => response,
            },
            RequestKind::Reload => {
                service::reloading();
                let response = self.reload_and_say(now);
                service::ready(&self.status_line());
                response
            }
            RequestKind::Succeed => self.start_successor(),
            RequestKind::Stop => Response::json(200, &self.status(now)),
            // The server of a router knows no path on which connections change hands.
            RequestKind::Upgraded(_) | RequestKind::UpgradeEnded { .. } => {
                Response::refusal(404, "this weir is a router; a relay's file has `[relay]`".to_owned())
            }
        }
    }

    fn reload_and_say(&mut self, now: Nanos) -> Response {
        match self.reload(now) {
            Ok(applied) => {
                tracing::info!("reloaded {}: {} changes", self.config.source.name, applied.actions.len());
                Response::json(200, &applied)
            }
            Err(error) => {
                tracing::error!("not reloaded: {error}");
                Response::blamed(422, error.blame(), error)
            }
        }
    }

    fn answer(&mut self, now: Nanos, resource: Resource) -> Response {
        if resource.shows_figures() {
            self.refresh();
        }
        match resource {
            Resource::Status => Response::json(200, &self.status(now)),
            Resource::Ports => Response::json(200, &self.ports()),
            Resource::Routes { address, skip, limit } => {
                Response::json(200, &self.routes(address, skip, limit))
            }
            Resource::Neighbors(page) => {
                Response::json(200, &page.cut(&self.neighbors(now), view::Neighbor::words))
            }
            Resource::Workers => Response::json(200, &self.worker_views()),
            Resource::Drops => Response::json(200, &self.drops()),
            Resource::Sas(page) => Response::json(200, &page.cut(&self.sas(now), view::Sa::words)),
            Resource::Spds => Response::json(200, &self.spds()),
            Resource::Tunnels(page) => Response::json(200, &page.cut(&self.tunnels(), view::Tunnel::words)),
            Resource::Cache => Response::json(200, &self.cache()),
            Resource::Flows(page) => {
                let flows = self.flows.as_ref();
                Response::json(200, &flows.map_or_else(view::Flows::default, |f| f.view(now, &page)))
            }
            Resource::Offload => Response::json(200, &self.offload()),
            Resource::Trace { body } => match self.trace(&body) {
                Ok(trace) => Response::json(200, &trace),
                Err(error) => Response::blamed(400, error.blame(), error),
            },
            Resource::Capture { body } => match self.capture(now, &body) {
                Ok(capture) => Response::json(200, &capture),
                Err(error) => Response::blamed(422, error.blame(), error),
            },
            Resource::Apply(ApplyRequest { file, folder, text, dry_run }) => {
                let folder = folder
                    .unwrap_or_else(|| config::folder_of(self.path.as_deref().unwrap_or(Path::new("."))));
                match self.apply_text(now, &file, &folder, text, dry_run) {
                    Ok(applied) => Response::json(200, &applied),
                    Err(error) => Response::blamed(422, error.blame(), error),
                }
            }
            Resource::Policies { body, dry_run } => match self.change_policies(&body, dry_run) {
                Ok(applied) => Response::json(200, &applied),
                Err(error) => Response::blamed(422, error.blame(), error),
            },
            Resource::Config => self.running(),
            Resource::Metrics => Response::metrics(metrics::text(
                &self.ports(),
                &self.worker_views(),
                &self.status(now),
                self.control.neighbor_counters(),
                metrics::Ipsec { sas: self.sas(now), spds: self.spds(), cache: self.cache() },
                (self.mirror_metrics(), self.key_mirror_metrics(), self.offload()),
            )),
        }
    }

    fn status(&self, now: Nanos) -> view::Status {
        let reports = self.reports();
        let lost: u64 = reports.iter().map(|r| r.commands_lost + r.events_lost).sum();
        let mut notices: Vec<String> = self.control.notices().iter().map(ToString::to_string).collect();
        notices.extend(self.state_notice());
        if lost > 0 {
            notices
                .push(format!("{lost} messages between workers and control thread were lost to full queues"));
        }
        notices.extend(self.enforcement_notices());
        notices.extend(self.route_notices());
        notices.extend(self.key_notices());
        notices.extend(self.host_notices());
        notices.extend(self.flow_notices());
        notices.extend(self.firewall_notice());
        view::Status {
            name: self.config.name.clone(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            pid: std::process::id(),
            uptime_seconds: now.saturating_sub(self.started) as f64 / SECOND as f64,
            generation: self.control.tables().generation,
            ports: self.control.desired().ports.len(),
            routes: self.control.desired().routes.len() + self.control.mirrored(),
            workers: self.workers.len(),
            sas: self.sas(now).len(),
            balance: reports.iter().map(|r| r.ledger.balance()).sum(),
            notices,
        }
    }

    pub(super) fn ports(&self) -> Vec<view::Port> {
        let reports = self.reports();
        let mut ports: Vec<view::Port> = self
            .control
            .ports()
            .map(|(id, port)| {
                let device = self.control.tables().devices.get(port.device.index());
                let name = device.map_or(String::new(), |d| d.name.clone());
                let open = self.open.get(&name);
                let mut traffic = view::Traffic::default();
                for counters in reports.iter().filter_map(|r| r.ports.get(id.index())) {
                    add(&mut traffic, counters);
                }
                let steering = open.and_then(|o| o.port.steering.as_ref()).and_then(|s| s.counters().ok());
                view::Port {
                    name: port.name.clone(),
                    vlan: port.vlan,
                    kind: match port.kind {
                        PortKind::Device => open.map_or(String::new(), |o| o.port.kind.to_owned()),
                        PortKind::Tunnel => "tunnel".to_owned(),
                        PortKind::Policy => "policy".to_owned(),
                    },
                    up: port.up,
                    mtu: port.mtu,
                    mac: DisplayMac(port.mac).to_string(),
                    addresses: port
                        .addresses
                        .iter()
                        .map(|a| view::Address {
                            address: format!("{}/{}", a.address, a.prefix_len),
                            owner: match a.owner {
                                Owner::Kernel => "kernel".to_owned(),
                                Owner::Weir => "weir".to_owned(),
                            },
                        })
                        .collect(),
                    traffic,
                    losses: losses(&reports, port.device),
                    steered: steering
                        .iter()
                        .flat_map(|s| s.iter())
                        .map(|(cause, count)| (cause.name().to_owned(), count))
                        .chain(open.and_then(|_| self.offloaded(port.device)))
                        .chain(self.enforced(&name))
                        .collect(),
                    reattached: open.map_or(0, |o| o.reattached + o.forgotten),
                    opened: open.map_or(Vec::new(), |o| o.port.said.clone()),
                    fallbacks: open.map_or(Vec::new(), |o| o.port.fallbacks.clone()),
                    device: name,
                }
            })
            .collect();
        ports.sort_by(|a, b| a.name.cmp(&b.name));
        ports
    }

    /// Frames the device received that the XDP program forwarded by itself.
    fn offloaded(&self, device: DeviceId) -> Option<(String, u64)> {
        Some(("flow_offload".to_owned(), self.flow_offload.as_ref()?.shared.received(device)?))
    }

    /// What the device's policy enforcement point kept from the kernel.
    fn enforced(&self, device: &str) -> impl Iterator<Item = (String, u64)> {
        let counters = self.points.counters(device).into_iter();
        counters
            .flat_map(|c| [("kept_from_kernel".to_owned(), c.transit), ("kept_opaque".to_owned(), c.opaque)])
    }

    fn routes(&self, address: Option<IpAddr>, skip: usize, limit: Option<usize>) -> view::Routes {
        let mut routes = self.control.routes();
        if let Some(address) = address {
            routes.retain(|route| route.prefix.contains(address));
            // The longest, which is used, comes last.
            routes.sort_by_key(|route| route.prefix.len());
        }
        let total = routes.len();
        let routes = routes.into_iter().skip(skip).take(limit.unwrap_or(usize::MAX)).map(route).collect();
        view::Routes { total, routes }
    }

    fn neighbors(&self, now: Nanos) -> Vec<view::Neighbor> {
        let all = self.control.neighbors(now).into_iter();
        all.map(|n| view::Neighbor {
            port: n.port,
            address: n.address.to_string(),
            mac: n.mac.map(|m| DisplayMac(m).to_string()),
            state: n.state.name().to_owned(),
            origin: n.origin.to_owned(),
            age_seconds: n.age as f64 / SECOND as f64,
            gateway: n.gateway,
        })
        .collect()
    }

    pub(super) fn worker_views(&self) -> Vec<view::WorkerCounters> {
        self.workers.iter().map(|w| self.worker_view(w.number, w.cpu, &w.report())).collect()
    }

    fn worker_view(&self, worker: usize, cpu: u32, report: &WorkerState) -> view::WorkerCounters {
        let ledger = &report.ledger;
        let ports = self.control.ports().filter_map(|(id, port)| {
            let mut traffic = view::Traffic::default();
            add(&mut traffic, report.ports.get(id.index())?);
            Some((port.name.clone(), traffic))
        });
        view::WorkerCounters {
            worker,
            cpu,
            generation: report.generation,
            received: ledger.received,
            forwarded: ledger.forwarded,
            local: ledger.local,
            held: ledger.held,
            dropped: ledger.drops.total(),
            drops: ledger.drops.nonzero().map(|(r, n)| (r.name().to_owned(), n)).collect(),
            originated: ledger.originated,
            originated_lost: ledger.originated_lost,
            icmp_limited: ledger.icmp_limited,
            balance: ledger.balance(),
            breaths: report.breaths,
            idle_breaths: report.idle_breaths,
            buffers_total: report.buffers_total,
            buffers_free: report.buffers_free,
            buffers_missing: report.buffers_missing(),
            ports: ports.collect::<BTreeMap<_, _>>(),
            lookups: match self.control.desired().ipsec.spds.is_empty() {
                true => Vec::new(),
                false => lookups::worker(&report.lookups),
            },
        }
    }

    fn drops(&self) -> Vec<view::Drop> {
        let mut total = DropCounters::default();
        for report in self.reports() {
            total.merge(&report.ledger.drops);
        }
        let mut drops: Vec<view::Drop> = total
            .nonzero()
            .map(|(reason, packets)| view::Drop {
                reason: reason.name().to_owned(),
                packets,
                blame: blame(reason).to_owned(),
                sentence: reason.sentence().to_owned(),
            })
            .collect();
        drops.sort_by_key(|d| std::cmp::Reverse(d.packets));
        drops
    }

    /// What a step found, with the table's prefix, and where its route comes from, where it looked an address up.
    fn with_prefix(&self, step: &Step) -> String {
        let by_address = matches!(step.stage, "route" | "reverse path");
        let address = step.looked_at.parse().ok().filter(|_| by_address);
        match address.and_then(|address| self.control.matched(address)) {
            Some((prefix, Some(origin))) => format!("{prefix} {} ({origin})", step.found),
            Some((prefix, None)) => format!("{prefix} {}", step.found),
            None => step.found.clone(),
        }
    }

    fn trace(&self, body: &[u8]) -> Result<view::Trace, TraceError> {
        let request: view::TraceRequest = serde_json::from_slice(body).map_err(TraceError::NotARequest)?;
        let frame = view::from_hex(&request.frame).map_err(TraceError::NoHex)?;
        let tables = self.control.tables();
        let id = self.control.port_id(&request.port).ok_or_else(|| TraceError::NoPort {
            name: request.port.clone(),
            ports: self.control.ports().map(|(_, p)| p.name.clone()).collect(),
        })?;
        let device = tables.ports.get(id.index()).map_or(DeviceId(0), |p| p.device);
        let traced = trace(tables, &self.key, device, &frame);
        let steps = traced.steps.iter();
        let (verdict, port, reason) = match traced.verdict {
            Verdict::Forward(port) => {
                ("forward", tables.ports.get(port.index()).map(|p| p.name.clone()), None)
            }
            Verdict::Local => ("local", None, None),
            Verdict::Held => ("held", None, None),
            Verdict::Drop(reason) => ("drop", None, Some(reason.name().to_owned())),
        };
        let steps = steps.map(|s| view::Step {
            stage: s.stage.to_owned(),
            looked_at: s.looked_at.clone(),
            found: self.with_prefix(s),
        });
        Ok(view::Trace {
            generation: tables.generation,
            steps: steps.chain(self.firewall_step(&request.port, &frame, traced.verdict)).collect(),
            verdict: verdict.to_owned(),
            port,
            reason,
        })
    }
}

pub(super) fn add(to: &mut view::Traffic, more: &PortCounters) {
    to.rx_packets += more.rx_packets;
    to.rx_bytes += more.rx_bytes;
    to.tx_packets += more.tx_packets;
    to.tx_bytes += more.tx_bytes;
}

fn losses(reports: &[WorkerState], device: DeviceId) -> view::DeviceLosses {
    let mut sum = view::DeviceLosses::default();
    for stats in reports.iter().filter_map(|r| r.devices.get(device.index())) {
        sum.rx_ring_full += stats.rx_ring_full;
        sum.rx_invalid += stats.rx_invalid;
        sum.tx_invalid += stats.tx_invalid;
        sum.rx_fill_empty += stats.rx_fill_empty;
        sum.rx_truncated += stats.rx_truncated;
        sum.tx_stalled += stats.tx_stalled;
        sum.tx_live += stats.tx_live;
        sum.tx_dropped += stats.tx_dropped;
    }
    sum
}

fn route(route: RouteView) -> view::Route {
    view::Route {
        prefix: route.prefix.to_string(),
        origin: route.origin.to_string(),
        discard: route.discard.map(str::to_owned),
        left: route.left.map(|why| why.to_string()),
        next_hops: route
            .hops
            .into_iter()
            .map(|h| view::NextHop {
                port: h.port,
                gateway: h.gateway.map(|g| g.to_string()),
                weight: h.weight,
                up: h.up,
                resolved: h.resolved,
            })
            .collect(),
        active: route.active,
    }
}

/// Who has to act, as a word.
pub fn blame(reason: Reason) -> &'static str {
    match reason.blame() {
        Blame::Sender => "sender",
        Blame::Policy => "policy",
        Blame::Operator => "operator",
        Blame::Network => "network",
        Blame::Load => "load",
        Blame::Us => "weir",
    }
}
