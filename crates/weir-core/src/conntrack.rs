//! The kernel's conntrack entries, and which of their flows may be forwarded past the kernel.
//!
//! ```text
//! ctnetlink ─► FlowTable::observe ─► judge: one reason, or none ─► Change::Take, Change::Release ─► who forwards
//!                  ▲                                                                               │
//!                  └───────────────────── set_way: where the flow is forwarded, or why not ◄───────┘
//! ```
//!
//! Promises: a flow is offered when both its directions are established, its translation is understood and its
//! admission is given, and is taken back with the message that ends one of these; a flow that is not offered has one
//! [`Reason`]; everything is bounded. Refuses: to decide about a first packet, to know routes, to read rules.

mod judge;
mod refresh;
mod table;
mod translate;

use std::fmt;

pub use judge::Mark;
pub use refresh::Refresh;
pub use table::{Change, FLOW_BYTES, Flow, FlowId, FlowTable, Source};
pub use translate::{NotTranslated, Rewrite, translate};

use crate::wire::ctnetlink::Tuple;

/// Which established flows may be taken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Admission {
    /// No rules were judged, or they do not allow it.
    #[default]
    Nothing,
    /// Flows that carry this mark: the administrator's rules say so, flow by flow.
    Marked(Mark),
    /// Flows that carry this label of conntrack's 128, likewise.
    Labelled(u8),
    /// All that are established: the rules were judged to accept each of their packets.
    Established,
}

/// One direction of a flow: its packets as they arrive, and as they leave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Direction {
    pub arrives: Tuple,
    pub leaves: Tuple,
}

impl Direction {
    /// Both directions of an entry: what the answer to a direction looks like before its translation is what the direction
    /// looks like after its own, turned around.
    pub fn both(original: &Tuple, reply: &Tuple) -> [Direction; 2] {
        [
            Direction { arrives: *original, leaves: reply.reversed() },
            Direction { arrives: *reply, leaves: original.reversed() },
        ]
    }

    pub fn is_translated(&self) -> bool {
        self.arrives != self.leaves
    }
}

macro_rules! reasons {
    ($($symbol:ident $name:literal $sentence:literal;)*) => {
        /// Why a flow is forwarded by the kernel.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        #[repr(u8)]
        pub enum Reason { $(#[doc = $sentence] $symbol,)* }

        impl Reason {
            pub const ALL: &'static [Reason] = &[$(Reason::$symbol,)*];
            pub const COUNT: usize = Self::ALL.len();

            /// The reason's name in counters.
            pub fn name(self) -> &'static str {
                match self { $(Reason::$symbol => $name,)* }
            }

            pub fn sentence(self) -> &'static str {
                match self { $(Reason::$symbol => $sentence,)* }
            }
        }
    };
}

reasons! {
    Zone               "zone"                "It is in a conntrack zone, which the packet alone does not tell.";
    Ambiguous          "ambiguous"           "Another entry has the same addresses and ports.";
    Helper             "helper"              "A helper reads its packets.";
    SequenceAdjustment "sequence_adjustment" "The kernel shifts its sequence numbers.";
    Synproxy           "synproxy"            "The kernel answered its first packet itself.";
    Flowtable          "flowtable"           "A flow table of the kernel forwards it.";
    Address            "address"             "One of its addresses is not one that unicast packets are forwarded for.";
    Translation        "translation"         "One of its ports is 0.";
    Local              "local"               "It begins or ends at this host.";
    Unanswered         "unanswered"          "Only one direction has had packets.";
    Young              "young"               "The kernel does not take it for lasting yet.";
    NotEstablished     "not_established"     "Its connection is not established, or ends.";
    Unheard            "unheard"             "It began before anybody listened, and the kernel does not tell what becomes of it.";
    Mark               "mark"                "It does not carry the mark or the label that admits flows.";
    Rules              "rules"               "The rules do not allow that established flows pass without them.";
    Policy             "policy"              "An IPsec policy of the kernel may concern it.";
    NoOffload          "no_offload"          "Nothing here can forward it past the kernel.";
    LeftToKernel       "left_to_kernel"      "Routes of one of its directions are left to the kernel, for a reason that `weir show status` says.";
    NoRoute            "no_route"            "One of its directions has no route between ports here.";
    SeveralHops        "several_hops"        "Its source is translated, and which of several next hops the kernel takes is not known.";
    Reset              "reset"               "A RST may have shortened its entry's time; it is the kernel's until a packet has given that back.";
    Moved              "moved"               "It leads to another device than the one its translated source belongs to; the kernel may end it.";
    NoNeighbor         "no_neighbor"         "The next hop of one of its directions is not resolved.";
    Port               "port"                "One of its ports takes no frames from XDP.";
    TableFull          "table_full"          "One of the tables of flows that are taken is full.";
    Refused            "refused"             "The kernel refused what taking the flow needs.";
    Waiting            "waiting"             "It is being taken.";
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Who forwards a flow's packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    Kernel(Reason),
    /// The XDP program: packets it takes for plain ones.
    Xdp,
}

#[cfg(feature = "testing")]
pub use table::fuzz::fuzz_conntrack;
