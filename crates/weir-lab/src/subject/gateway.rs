//! What the two ends of a tunnel are to the topology `gateways`.

use crate::bed::netns::namespace::Namespace;
use crate::bed::netns::wire::Port;
use crate::model::Configuration;

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
    /// What a reader of its figures must know.
    fn notes(&self) -> Vec<String>;

    /// The end of what it logged.
    fn log(&self) -> String;
}
