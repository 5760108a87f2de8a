//! What became of a frame: forwarded, given to this host, held, or dropped for a reason.
//!
//! A reason is one line of the table below: symbol, counter name, who is to blame and one sentence.
//! Counters, `weir show drops`, metrics and traces all read this table.

use crate::id::PortId;

/// Every frame ends in exactly one of these.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Sent out of a port.
    Forward(PortId),
    /// Given to this host: to the kernel, or to our own ARP, NDP and ICMP.
    Local,
    /// Waiting for a neighbour, other fragments or an SA; becomes another of these later.
    Held,
    Drop(Reason),
}

/// Who has to act for a drop to stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Blame {
    /// The packet is malformed or asks for what no router does.
    Sender,
    /// A rule the operator wrote says so.
    Policy,
    /// The configuration lacks something.
    Operator,
    /// A neighbour or link does not keep up or does not answer.
    Network,
    /// More arrived than a bounded queue of ours takes.
    Load,
    /// A limit or defect of this program.
    Us,
}

macro_rules! reasons {
    ($($symbol:ident $name:literal $blame:ident $sentence:literal;)*) => {
        /// Why a frame was dropped.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(u8)]
        pub enum Reason { $(#[doc = $sentence] $symbol,)* }

        impl Reason {
            pub const ALL: &'static [Reason] = &[$(Reason::$symbol,)*];
            pub const COUNT: usize = Self::ALL.len();

            /// The reason with this counter.
            pub fn of_name(name: &str) -> Option<Reason> {
                Self::ALL.iter().copied().find(|reason| reason.name() == name)
            }

            /// The counter's name.
            pub fn name(self) -> &'static str {
                match self { $(Reason::$symbol => $name,)* }
            }

            pub fn blame(self) -> Blame {
                match self { $(Reason::$symbol => Blame::$blame,)* }
            }

            pub fn sentence(self) -> &'static str {
                match self { $(Reason::$symbol => $sentence,)* }
            }
        }
    };
}

reasons! {
    // Ethernet
    FrameTooShort     "frame_too_short"      Sender   "shorter than an Ethernet header";
    OtherHost         "other_host"           Sender   "the destination MAC address is not this port's";
    UnknownVlan       "unknown_vlan"         Operator "no port is configured for this VLAN tag on this device";
    StackedVlan       "stacked_vlan"         Sender   "more than one VLAN tag";
    UnknownProtocol   "unknown_protocol"     Sender   "neither IPv4, IPv6 nor ARP";
    LinkBroadcast     "link_broadcast"       Sender   "an IP unicast packet in a link-layer broadcast or multicast frame (RFC 1812 5.3.4)";
    BadArp            "bad_arp"              Sender   "an ARP packet that is cut short or not Ethernet/IPv4 (RFC 826)";
    // IP headers
    IpTooShort        "ip_too_short"         Sender   "shorter than an IP header";
    IpBadVersion      "ip_bad_version"       Sender   "the IP version does not match the EtherType";
    IpBadHeaderLength "ip_bad_header_length" Sender   "the IPv4 header length is below 20 bytes or beyond the packet";
    IpTruncated       "ip_truncated"         Sender   "the IP total length is beyond the frame or below the header";
    IpBadChecksum     "ip_bad_checksum"      Sender   "the IPv4 header checksum is wrong";
    IpBadOption       "ip_bad_option"        Sender   "an IPv4 option runs past the header or has an impossible length";
    IpSourceRoute     "ip_source_route"      Policy   "an IPv4 source route option (not obeyed: RFC 7126)";
    Ip6BadExtension   "ip6_bad_extension"    Sender   "for one of our own addresses or with `ipv6_extensions = \"check\"`: IPv6 extension headers that are cut short, too many or out of order (RFC 8200)";
    Ip6RoutingHeader  "ip6_routing_header"   Policy   "for one of our own addresses or with `ipv6_extensions = \"check\"`: an IPv6 type 0 routing header (deprecated: RFC 5095)";
    TtlExpired        "ttl_expired"          Sender   "the TTL or hop limit ran out";
    MartianSource     "martian_source"       Sender   "a source address no packet may carry (RFC 1812 5.3.7)";
    MartianDestination "martian_destination" Sender   "a destination address no packet may be forwarded to (RFC 1812 5.3.7)";
    LinkLocalScope    "link_local_scope"     Sender   "a link-local address would leave its link (RFC 4291 2.5.6, RFC 3927 2.7)";
    Multicast         "multicast"            Sender   "a multicast packet; multicast is not routed";
    DirectedBroadcast "directed_broadcast"   Policy   "a directed broadcast to a connected network (RFC 2644)";
    ReversePath       "reverse_path"         Policy   "the source is not reachable through the port it came in on (RFC 3704)";
    // Routing
    NoRoute           "no_route"             Operator "no route to the destination";
    Blackhole         "blackhole"            Policy   "the route says to discard silently";
    Unreachable       "unreachable"          Policy   "the route says to answer unreachable";
    Prohibited        "prohibited"           Policy   "the route says to answer administratively prohibited";
    LeftToKernel      "left_to_kernel"       Operator "its route is the kernel's to follow, and this device takes frames from both (`weir show routes` says why)";
    FragmentNeeded    "fragment_needed"      Sender   "larger than the next link and not to be fragmented";
    NeighborUnresolved "neighbor_unresolved" Network  "the next hop did not answer ARP or neighbour solicitation in time";
    HoldQueueFull     "hold_queue_full"      Load     "too many packets already wait for this next hop";
    // Local delivery
    LocalNotServed    "local_not_served"     Sender   "for one of our own addresses, which serve only ARP, NDP and echo";
    BadIcmp           "bad_icmp"             Sender   "an ICMP message to us that is cut short or has a wrong checksum";
    PuntQueueFull     "punt_queue_full"      Load     "too many packets already wait for the control thread";
    // IPsec
    EspTooShort       "esp_too_short"        Sender   "shorter than ESP with its IV and integrity check value, or not whole blocks (RFC 4303 2)";
    EspBadTrailer     "esp_bad_trailer"      Sender   "authentic, but its padding or next header is not what ESP allows (RFC 4303 2.4)";
    EspDummy          "esp_dummy"            Sender   "a dummy packet of traffic flow confidentiality (RFC 4303 2.6)";
    EcnNotCapable     "ecn_not_capable"      Network  "congestion was marked on the way, and the packet inside does not know ECN (RFC 6040 4.2)";
    TransportFragment "transport_fragment"   Operator "a fragment, which transport mode cannot seal (RFC 4303 3.3.4); use tunnel mode";
    NoSa              "no_sa"                Operator "ESP with an SPI that no SA of ours has";
    SaWaitFull        "sa_wait_full"         Load     "too many packets with unknown SPIs already wait for SAs of the kernel";
    Replayed          "replayed"             Sender   "a sequence number seen before (RFC 4303 3.4.3)";
    ReplayTooOld      "replay_too_old"       Sender   "a sequence number older than the replay window";
    IntegrityFailed   "integrity_failed"     Sender   "the integrity check value is wrong: corrupted, forged, or sealed with another key";
    SaExpired         "sa_expired"           Operator "the SA has reached its hard lifetime";
    SequenceExhausted "sequence_exhausted"   Operator "the SA has used all its sequence numbers";
    SaUnreserved      "sa_unreserved"        Operator "more than is reserved on disk for this SA; the log says what the state directory lacks";
    NoOutboundSa      "no_outbound_sa"       Operator "the policy or tunnel has no SA to send by";
    PolicyDiscard     "policy_discard"       Policy   "a policy says to discard";
    PolicyNone        "policy_none"          Policy   "no policy matches, and the SPD drops what none matches";
    PolicyUnprotected "policy_unprotected"   Sender   "came in as cleartext where a policy asks for protection";
    PolicyMismatch    "policy_mismatch"      Sender   "what an SA carried is not what its policy lets it carry (RFC 4301 5.2)";
    TunnelNesting     "tunnel_nesting"       Operator "more tunnels inside each other than are opened";
    DecryptedForKernel "decrypted_for_kernel" Operator "a decrypted packet for an address of the kernel; let weir own the address, or put it behind a tun port";
    FragmentTimeout   "fragment_timeout"     Network  "the other fragments of an ESP packet did not come in time";
    FragmentsFull     "fragments_full"       Load     "too many fragments of ESP packets already wait";
    FragmentOverlap   "fragment_overlap"     Sender   "fragments of an ESP packet overlap or disagree (RFC 5722)";
    FragmentTooLarge  "fragment_too_large"   Us       "fragments of an ESP packet add up to more than a buffer";
    // Leaving
    TxRingFull        "tx_ring_full"         Load     "the outgoing ring is full";
    PortDown          "port_down"            Network  "the outgoing port is down or gone";
    NoSocket          "no_socket"            Operator "came in where no socket was open for it, and policies apply: dropped in front of the kernel";
    NoBuffer          "no_buffer"            Load     "no free buffer was left";
    FrameTooLarge     "frame_too_large"      Us       "does not fit in one buffer";
}

/// One counter per [`Reason`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DropCounters([u64; Reason::COUNT]);

impl Default for DropCounters {
    fn default() -> Self {
        DropCounters([0; Reason::COUNT])
    }
}

impl DropCounters {
    #[inline]
    pub fn add(&mut self, reason: Reason, n: u64) {
        self.0[reason as usize] += n;
    }

    #[inline]
    pub fn of(&self, reason: Reason) -> u64 {
        self.0[reason as usize]
    }

    pub fn total(&self) -> u64 {
        self.0.iter().sum()
    }

    /// Every reason with a count above zero.
    pub fn nonzero(&self) -> impl Iterator<Item = (Reason, u64)> + '_ {
        Reason::ALL.iter().map(|&r| (r, self.of(r))).filter(|&(_, n)| n > 0)
    }

    pub fn merge(&mut self, other: &DropCounters) {
        for (a, b) in self.0.iter_mut().zip(&other.0) {
            *a += b;
        }
    }
}

/// The pipeline's ledger. [`Ledger::balance`] is zero between two breaths; within one, frames that are on their way to a
/// device or to the control side are in no counter yet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ledger {
    /// Frames received from ports.
    pub received: u64,
    /// Received frames that left by a port (a fragmented packet counts once).
    pub forwarded: u64,
    /// Received frames given to this host.
    pub local: u64,
    /// Received frames now waiting for a neighbour (a gauge).
    pub held: u64,
    pub drops: DropCounters,
    /// Frames of our own making handed to ports (ICMP errors and replies, ARP, NDP, further
    /// fragments): not part of the balance.
    pub originated: u64,
    /// Our own frames that could not be sent.
    pub originated_lost: u64,
    /// ICMP errors not sent because of the rate limit.
    pub icmp_limited: u64,
}

impl Ledger {
    /// Frames unaccounted for: in − forwarded − local − dropped − held.
    pub fn balance(&self) -> i64 {
        let out = self.forwarded + self.local + self.held + self.drops.total();
        self.received as i64 - out as i64
    }

    pub fn merge(&mut self, other: &Ledger) {
        self.received += other.received;
        self.forwarded += other.forwarded;
        self.local += other.local;
        self.held += other.held;
        self.drops.merge(&other.drops);
        self.originated += other.originated;
        self.originated_lost += other.originated_lost;
        self.icmp_limited += other.icmp_limited;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_fit_for_metrics() {
        let mut names: Vec<_> = Reason::ALL.iter().map(|r| r.name()).collect();
        assert!(
            names
                .iter()
                .all(|n| n.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_'))
        );
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), Reason::COUNT);
    }

    #[test]
    fn an_unaccounted_frame_shows_in_the_balance() {
        let mut ledger = Ledger { received: 3, forwarded: 1, local: 1, ..Ledger::default() };
        assert_eq!(ledger.balance(), 1);
        ledger.drops.add(Reason::NoRoute, 1);
        assert_eq!(ledger.balance(), 0);
    }
}
