//! Whether a flow may be taken: a function of what its entry says, and of the admission.
//!
//! Promises: the first reason that holds, in one order; what an entry does not say counts against it. Refuses:
//! routes, neighbours and room, which are known elsewhere.

use std::net::IpAddr;

use super::{Admission, Direction, Reason};
use crate::wire::ctnetlink::{
    KernelOnly, Labels, STATUS_ASSURED, STATUS_DYING, STATUS_OFFLOADED, STATUS_SEEN_REPLY, TCP_ESTABLISHED,
    Tuple,
};
use crate::wire::protocol;

/// Bits of a conntrack mark that admit a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mark {
    value: u32,
    mask: u32,
}

impl Mark {
    /// `None` where the value is 0, which flows without a mark have too, or has bits outside the mask.
    pub fn new(value: u32, mask: u32) -> Option<Mark> {
        (value != 0 && value & !mask == 0).then_some(Mark { value, mask })
    }

    pub fn admits(self, mark: u32) -> bool {
        mark & self.mask == self.value
    }

    pub fn value(self) -> u32 {
        self.value
    }

    pub fn mask(self) -> u32 {
        self.mask
    }
}

/// What is known of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Known {
    pub original: Tuple,
    pub reply: Tuple,
    pub zone: u32,
    pub status: u32,
    pub tcp_state: Option<u8>,
    pub mark: Option<u32>,
    pub labels: Option<Labels>,
    pub kernel_only: Option<KernelOnly>,
}

/// Why the flow is the kernel's; `None`: it may be taken. Whether another entry has its tuples is not looked at.
pub(super) fn judge(known: &Known, admission: Admission, local: impl Fn(IpAddr) -> bool) -> Option<Reason> {
    let both = Direction::both(&known.original, &known.reply);
    let ends = || both.iter().flat_map(|d| [d.arrives.source, d.arrives.destination]);
    if known.zone != 0 {
        return Some(Reason::Zone);
    }
    if known.original == known.reply {
        return Some(Reason::Ambiguous);
    }
    if let Some(kernel_only) = known.kernel_only {
        return Some(match kernel_only {
            KernelOnly::Helper => Reason::Helper,
            KernelOnly::SequenceAdjustment => Reason::SequenceAdjustment,
            KernelOnly::Synproxy => Reason::Synproxy,
        });
    }
    if known.status & STATUS_OFFLOADED != 0 {
        return Some(Reason::Flowtable);
    }
    if !ends().all(forwardable) {
        return Some(Reason::Address);
    }
    if both.iter().any(|d| d.arrives.source_port == 0 || d.arrives.destination_port == 0) {
        return Some(Reason::Translation);
    }
    // Both sources as they are before any translation: who asked, and who answered.
    if local(known.original.source) || local(known.reply.source) {
        return Some(Reason::Local);
    }
    established(known).or_else(|| admitted(known, admission))
}

fn established(known: &Known) -> Option<Reason> {
    if known.status & STATUS_SEEN_REPLY == 0 {
        return Some(Reason::Unanswered);
    }
    let ends = known.status & STATUS_DYING != 0;
    let tcp = known.original.protocol == protocol::TCP;
    if ends || tcp && known.tcp_state != Some(TCP_ESTABLISHED) {
        return Some(Reason::NotEstablished);
    }
    (known.status & STATUS_ASSURED == 0).then_some(Reason::Young)
}

fn admitted(known: &Known, admission: Admission) -> Option<Reason> {
    match admission {
        Admission::Nothing => Some(Reason::Rules),
        Admission::Established => None,
        Admission::Marked(mark) => (!known.mark.is_some_and(|m| mark.admits(m))).then_some(Reason::Mark),
        Admission::Labelled(label) => {
            (!known.labels.is_some_and(|labels| labels.has(label))).then_some(Reason::Mark)
        }
    }
}

/// Whether routers forward unicast packets from and to it.
fn forwardable(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => {
            !(v4.is_multicast()
                || v4.is_broadcast()
                || v4.is_loopback()
                || v4.is_link_local()
                || v4.octets()[0] == 0)
        }
        IpAddr::V6(v6) => {
            !(v6.is_multicast()
                || v6.is_loopback()
                || v6.is_unspecified()
                || v6.is_unicast_link_local()
                || v6.to_ipv4_mapped().is_some())
        }
    }
}
