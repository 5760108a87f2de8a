//! What two peers have agreed on: algorithms, mode, addresses, SPIs and keys, however each is told.

use std::net::IpAddr;

use weir_core::ipsec::{Encryption, Integrity, Suite};

use crate::testbed::Family;
use crate::traffic::bytes;

/// How traffic reaches the SAs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Tunnel mode, chosen by policies.
    Policy,
    /// Tunnel mode, chosen by routes to a tunnel interface.
    Route,
    /// Transport mode between the two hosts, chosen by policies.
    Transport,
}

/// One way of protecting traffic between the hosts.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    pub suite: Suite,
    pub mode: Mode,
    pub inner: &'static [Family],
    pub outer: Family,
    pub esn: bool,
    pub nat_t: bool,
}

/// One SA.
pub struct Sa {
    pub source: IpAddr,
    pub destination: IpAddr,
    pub spi: u32,
    /// Key, and salt behind it where there is one.
    pub key: Vec<u8>,
    pub integrity_key: Vec<u8>,
}

pub fn suite(encryption: Encryption, integrity: Option<Integrity>) -> Suite {
    Suite::new(encryption, integrity, false).expect("a suite")
}

impl Case {
    /// Tunnel mode by policies, IPv4 in IPv4.
    pub fn new(suite: Suite) -> Case {
        Case { suite, mode: Mode::Policy, inner: &[Family::V4], outer: Family::V4, esn: false, nat_t: false }
    }

    pub fn mode(self, mode: Mode) -> Case {
        Case { mode, ..self }
    }

    pub fn families(self, inner: &'static [Family], outer: Family) -> Case {
        Case { inner, outer, ..self }
    }

    pub fn esn(self) -> Case {
        Case { esn: true, ..self }
    }

    pub fn nat_t(self) -> Case {
        Case { nat_t: true, ..self }
    }

    /// The SAs from left to right and from right to left.
    pub fn sas(&self) -> [Sa; 2] {
        let row = self.outer.row();
        let ends = if self.mode == Mode::Transport { [row.a, row.b] } else { [row.left, row.right] };
        let encryption = self.suite.encryption();
        let key_len = encryption.key_len() + encryption.salt_len();
        let integrity_len = self.suite.integrity().map_or(0, Integrity::key_len);
        let sa = |from: usize| Sa {
            source: ends[from],
            destination: ends[1 - from],
            spi: 0x1000 + from as u32,
            key: bytes(0x11 + from as u64, key_len),
            integrity_key: bytes(0x22 + from as u64, integrity_len),
        };
        [sa(0), sa(1)]
    }
}

pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}
