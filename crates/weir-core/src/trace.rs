//! Why a packet goes where it goes: every decision and the table entry that made it.
//!
//! Promises: the steps and the verdict come from the code that forwards ([`crate::router`]'s rules with an
//! observer that writes down), so they cannot tell another story; tested on random frames. Refuses to
//! guess: what depends on the moment (a full hold queue, the ICMP rate limit, a full ring) is not in it.

#[cfg(feature = "ipsec")]
mod ipsec;

use std::fmt;

use crate::id::PortId;
use crate::packet::DeviceId;
use crate::router::decide::{Context, Decided, Decision, IcmpError, Observer, decide};
use crate::router::ingress::OwnAddresses;
use crate::tables::Tables;
use crate::verdict::Verdict;
use crate::wire::flow::FlowKey;

/// One thing looked at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// `ethernet`, `port`, `ipv4`, `route`, `neighbour`, `next hop`, …
    pub stage: &'static str,
    pub looked_at: String,
    pub found: String,
}

/// A packet's way through one snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trace {
    /// The port the frame belongs to, if any.
    pub port: Option<PortId>,
    pub steps: Vec<Step>,
    pub verdict: Verdict,
}

struct Scribe(Vec<Step>);

impl Observer for Scribe {
    fn note(&mut self, stage: &'static str, what: impl FnOnce() -> (String, String)) {
        let (looked_at, found) = what();
        self.0.push(Step { stage, looked_at, found });
    }
}

/// Follows `frame`, received from `device`, through `tables`. `key` is the workers' flow key: it decides
/// among several paths.
pub fn trace(tables: &Tables, key: &FlowKey, device: DeviceId, frame: &[u8]) -> Trace {
    let own = OwnAddresses::new(tables);
    let mut scribe = Scribe(Vec::new());
    let context = Context { tables, own: &own, key };
    let decided = decide(&context, device, frame, &mut scribe);
    let (verdict, found) = end(&context, &mut scribe, &decided, frame, 0);
    scribe.note("verdict", || (name(tables, verdict), found));
    Trace { port: decided.port, steps: scribe.0, verdict }
}

/// What a decision comes to; behind a tunnel or a policy enforcement point, and inside a sealed packet, it goes on. `depth` is
/// how often the packet was opened.
fn end(
    context: &Context<'_>,
    scribe: &mut Scribe,
    decided: &Decided,
    frame: &[u8],
    depth: usize,
) -> (Verdict, String) {
    let tables = context.tables;
    #[cfg(feature = "ipsec")]
    let packet = frame.get(decided.network..).unwrap_or(&[]);
    #[cfg(feature = "ipsec")]
    match decided.decision {
        Decision::Open(id) => return ipsec::inward(context, scribe, id, packet, depth),
        Decision::Collect => return (Verdict::Held, "held for the other fragments".into()),
        Decision::AwaitSa(_) => return (Verdict::Held, ipsec::waits()),
        Decision::Forward(id) | Decision::Fragment(id) => {
            if let Some(end) = ipsec::outward(context, scribe, id, packet) {
                return end;
            }
        }
        _ => {}
    }
    #[cfg(not(feature = "ipsec"))]
    let _ = (scribe, frame, depth);
    let leaves_by = |id: crate::id::AdjacencyId| {
        Verdict::Forward(tables.adjacencies.get(id.0 as usize).map_or(PortId::default(), |a| a.port))
    };
    match decided.decision {
        Decision::Forward(id) => (leaves_by(id), "sent to the next hop".into()),
        Decision::Fragment(id) => (leaves_by(id), "cut into fragments and sent to the next hop".into()),
        Decision::Hold(_, next_hop) => (Verdict::Held, format!("held until {next_hop} answers")),
        Decision::Punt => (Verdict::Local, "given to the control side".into()),
        Decision::Local => (Verdict::Local, "the kernel's".into()),
        Decision::EchoReply => (Verdict::Local, "an echo request, answered by weir".into()),
        Decision::Drop(reason, error) => (Verdict::Drop(reason), dropped(reason.sentence(), error)),
        #[cfg(feature = "ipsec")]
        Decision::Deliver(_) => {
            (Verdict::Local, "given to the kernel, as if it came in by this device".into())
        }
        #[cfg(feature = "ipsec")]
        Decision::Open(_) | Decision::Collect | Decision::AwaitSa(_) => (Verdict::Held, "opened".into()),
    }
}

fn dropped(sentence: &str, error: Option<IcmpError>) -> String {
    match error {
        None => sentence.into(),
        Some(IcmpError::V4(error)) => format!("{sentence}; the sender is told by ICMP: {error:?}"),
        Some(IcmpError::V6(error)) => format!("{sentence}; the sender is told by ICMPv6: {error:?}"),
    }
}

fn name(tables: &Tables, verdict: Verdict) -> String {
    match verdict {
        Verdict::Forward(port) => {
            format!("forward by {}", name_of(tables, port))
        }
        Verdict::Local => "local".into(),
        Verdict::Held => "held".into(),
        Verdict::Drop(reason) => format!("drop: {}", reason.name()),
    }
}

fn name_of(tables: &Tables, port: PortId) -> &str {
    tables.ports.get(port.index()).map_or("an unknown port", |p| &p.name)
}

impl fmt::Display for Trace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for step in &self.steps {
            writeln!(f, "{:12} {} → {}", step.stage, step.looked_at, step.found)?;
        }
        Ok(())
    }
}
