//! Why something of the kernel's is not taken, in words.

use std::fmt;

/// Why something of the kernel's is not taken.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Why {
    /// A policy without interface id: the kernel acts on it.
    NoInterfaceId,
    /// An xfrm device has this interface id.
    Device(u32),
    Marked,
    Selector,
    /// Several templates.
    Bundle,
    Optional,
    Protocol(u8),
    Transport,
    Mode(u8),
    Algorithm(String),
    NoAlgorithm,
    Encapsulation(u16),
    /// The kernel shows zeros instead of the key.
    HiddenKey,
    /// The kernel has used sequence numbers of it.
    Numbered,
    /// Its numbers begin anew behind the last one.
    Wraps,
    /// A device of the kernel's works on it.
    Offloaded,
    /// Another policy comes before it for all it is about.
    Hidden,
    /// The control side refused it.
    Refused(String),
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Why::NoInterfaceId => f.write_str(
                "it has no interface id, so the kernel acts on it; set `if_id_in` and `if_id_out` of the child in swanctl.conf",
            ),
            Why::Device(id) => write!(f, "an xfrm device has its interface id {id}, so the kernel acts on it"),
            Why::Marked => f.write_str("it is for packets with a mark, which weir does not have"),
            Why::Selector => f.write_str("it selects by interface, user, or a mask of ports"),
            Why::Bundle => f.write_str("it asks for several transformations"),
            Why::Optional => f.write_str("its protection is optional"),
            Why::Protocol(51) => f.write_str("AH is not offered"),
            Why::Protocol(108) => f.write_str("IPComp is not offered"),
            Why::Protocol(number) => write!(f, "protocol {number} is not ESP"),
            Why::Transport => f.write_str("transport mode is for packets of the host itself, which weir does not send"),
            Why::Mode(4) => f.write_str("BEET mode is not offered"),
            Why::Mode(number) => write!(f, "mode {number} is not offered"),
            Why::Algorithm(name) => write!(f, "{name} is not offered"),
            Why::NoAlgorithm => f.write_str("it has no algorithms"),
            Why::Encapsulation(number) => write!(f, "encapsulation {number} is not UDP of RFC 3948"),
            Why::HiddenKey => f.write_str(
                "the kernel tells zeros instead of its key (lockdown or a security policy keeps keys from everybody)",
            ),
            Why::Numbered => {
                f.write_str("the kernel has used sequence numbers of it; another is asked for by a soft expiry")
            }
            Why::Wraps => f.write_str("its sequence numbers begin anew behind the last one (extra-flag oseq-may-wrap)"),
            Why::Offloaded => f.write_str("a network card works on it (`hw_offload` of the child in swanctl.conf)"),
            Why::Hidden => f.write_str("another policy comes before it for all it is about"),
            Why::Refused(why) => f.write_str(why),
        }
    }
}

/// Something of the kernel's that is not taken.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Left {
    pub subject: String,
    pub why: Why,
}

impl fmt::Display for Left {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.subject, self.why)
    }
}
