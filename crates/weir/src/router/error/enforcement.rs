//! Devices that have no policy enforcement point.

use std::fmt;
use std::io;

use weir_io::steer::SteerError;

use crate::failure::Blame;

/// Why a device has no policy enforcement point.
#[derive(Debug)]
pub enum EnforcementError {
    /// The kernel gives no BPF maps to enforce policies with.
    NoBpf {
        device: String,
    },
    /// The kernel takes no program there.
    NotAttached(SteerError),
    NoClaim {
        device: String,
        error: io::Error,
    },
    AnotherWeir {
        device: String,
    },
}

impl EnforcementError {
    /// No program can be had: where the kernel forwards nothing, packet sockets do without.
    pub fn is_for_want_of_a_program(&self) -> bool {
        matches!(self, EnforcementError::NoBpf { .. } | EnforcementError::NotAttached(_))
    }

    pub fn blame(&self) -> Blame {
        match self {
            EnforcementError::AnotherWeir { .. } => Blame::Operator,
            _ => Blame::Machine,
        }
    }
}

impl fmt::Display for EnforcementError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            EnforcementError::NoBpf { device } => write!(
                f,
                "{device}: policies apply, and the kernel takes no BPF program to enforce them; run as root or grant CAP_BPF and CAP_NET_ADMIN"
            ),
            EnforcementError::NotAttached(error) => error.fmt(f),
            EnforcementError::NoClaim { device, error } => write!(f, "{device}: claiming it: {error}"),
            EnforcementError::AnotherWeir { device } => write!(
                f,
                "{device}: another weir with policies runs on it; stop that one, or take the device out of one file"
            ),
        }
    }
}

impl std::error::Error for EnforcementError {}
