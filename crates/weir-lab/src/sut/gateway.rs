//! What the two ends of a tunnel are to the topology `gateways`.

use crate::model::{Configuration, LabError};
use crate::netns::namespace::Namespace;
use crate::netns::veth::Port;

/// MTU at both ends: what any tunnel here adds still fits into 1,500 bytes.
pub const MTU: u16 = 1400;

/// Where one of the two stands.
pub struct Side<'a> {
    pub namespace: &'a Namespace,
    /// Towards client or server.
    pub inner: &'a Port,
    /// Towards the other gateway.
    pub outer: &'a Port,
    pub cpu: u32,
    pub right: bool,
    pub configuration: &'a Configuration,
}

impl Side<'_> {
    /// 1 on the left, 2 on the right: the varying part of its addresses.
    pub fn number(&self) -> usize {
        1 + usize::from(self.right)
    }

    pub fn other(&self) -> usize {
        3 - self.number()
    }

    pub fn name(&self) -> &'static str {
        if self.right { "right" } else { "left" }
    }
}

/// Both, left first.
pub struct Pair<'a>(pub &'a [Side<'a>; 2]);

/// A gateway that is up; it ends when dropped.
pub trait Gateway {
    /// What a reader of its values must know.
    fn notes(&self) -> Vec<String>;

    /// Which of its notes say that a better way was refused.
    fn fallbacks(&self) -> Vec<String> {
        Vec::new()
    }

    /// The end of what it logged.
    fn log(&self) -> String;
}

/// A gateway whose kernel has the addresses and forwards.
pub fn kernel_addresses(
    namespace: &Namespace,
    inner: &Port,
    outer: &Port,
    number: usize,
) -> Result<(), LabError> {
    namespace.sysctl("net/ipv4/ip_forward", "1")?;
    namespace.ip_batch(format!(
        "address add 10.{number}.0.1/24 dev {}\naddress add 192.0.2.{number}/24 dev {}\n",
        inner.name, outer.name
    ))
}
