//! Offloads that merge or split frames or take their VLAN tags off: read, switched off on ports we own, put back
//! afterwards.
//!
//! A router forwards the frames that were on the wire. GRO and LRO merge them before we see them (a merged
//! frame exceeds every MTU and its parts can't be told apart); TSO, GSO and transmit checksumming let the
//! sender on the other end of a veth pair leave frames unfinished. The old ethtool interface knows all
//! but one by an ioctl each; receive merging by the card (`rx-gro-hw`) is known by name only.

mod features;

use std::io;

use crate::interface::Interface;

/// One offload, with its name as `ethtool -k` prints it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Offload {
    Gro,
    Lro,
    /// Merging by the card, of frames that can be told apart again. Linux switches it off itself when a generic XDP program
    /// comes, and on again never: so we do, and put it back.
    GroHw,
    Tso,
    Gso,
    RxChecksum,
    TxChecksum,
    RxVlan,
}

/// Those that merge received frames: never wanted on a port that forwards.
pub const MERGING: [Offload; 3] = [Offload::Gro, Offload::Lro, Offload::GroHw];

/// Those that keep from an XDP program what was on the wire: the card takes a VLAN tag off and tells the driver only.
pub const HIDING: [Offload; 1] = [Offload::RxVlan];

/// Those that leave sent frames unfinished: never wanted on the sending end of a veth pair whose other
/// end is ours.
pub const UNFINISHED: [Offload; 3] = [Offload::Tso, Offload::Gso, Offload::TxChecksum];

// linux/ethtool.h
const ETHTOOL_GRXCSUM: u32 = 0x14;
const ETHTOOL_GTXCSUM: u32 = 0x16;
const ETHTOOL_GTSO: u32 = 0x1e;
const ETHTOOL_GGSO: u32 = 0x23;
const ETHTOOL_GFLAGS: u32 = 0x25;
const ETHTOOL_GGRO: u32 = 0x2b;
/// Every "set" is its "get" plus one.
const SET: u32 = 1;
const ETH_FLAG_RXVLAN: u32 = 1 << 8;
const ETH_FLAG_LRO: u32 = 1 << 15;

impl Offload {
    pub const ALL: [Offload; 8] = [
        Offload::Gro,
        Offload::Lro,
        Offload::GroHw,
        Offload::Tso,
        Offload::Gso,
        Offload::RxChecksum,
        Offload::TxChecksum,
        Offload::RxVlan,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Offload::Gro => "generic-receive-offload",
            Offload::Lro => "large-receive-offload",
            Offload::GroHw => "rx-gro-hw",
            Offload::Tso => "tcp-segmentation-offload",
            Offload::Gso => "generic-segmentation-offload",
            Offload::RxChecksum => "rx-checksumming",
            Offload::TxChecksum => "tx-checksumming",
            Offload::RxVlan => "rx-vlan-offload",
        }
    }

    fn known_by(self) -> KnownBy {
        match self {
            Offload::Gro => KnownBy::Command(ETHTOOL_GGRO),
            Offload::Lro => KnownBy::Flag(ETH_FLAG_LRO),
            Offload::RxVlan => KnownBy::Flag(ETH_FLAG_RXVLAN),
            Offload::GroHw => KnownBy::Name,
            Offload::Tso => KnownBy::Command(ETHTOOL_GTSO),
            Offload::Gso => KnownBy::Command(ETHTOOL_GGSO),
            Offload::RxChecksum => KnownBy::Command(ETHTOOL_GRXCSUM),
            Offload::TxChecksum => KnownBy::Command(ETHTOOL_GTXCSUM),
        }
    }
}

/// How ethtool knows an offload.
enum KnownBy {
    /// It has a command of its own.
    Command(u32),
    /// It is a bit that several share a command for.
    Flag(u32),
    /// It is a name among the features.
    Name,
}

/// Whether an offload is on. A device that does not know it has it off.
pub fn is_on(device: &str, offload: Offload) -> io::Result<bool> {
    let (command, mask) = match offload.known_by() {
        KnownBy::Command(command) => (command, u32::MAX),
        KnownBy::Flag(flag) => (ETHTOOL_GFLAGS, flag),
        KnownBy::Name => return features::is_active(device, offload.name()),
    };
    let value = match ethtool(device, command, 0) {
        Err(e) if e.raw_os_error() == Some(libc::EOPNOTSUPP) => 0,
        other => other?,
    };
    Ok(value & mask != 0)
}

/// Switches an offload on or off.
pub fn set(device: &str, offload: Offload, on: bool) -> io::Result<()> {
    let (command, value) = match offload.known_by() {
        KnownBy::Command(command) => (command, u32::from(on)),
        KnownBy::Flag(flag) => {
            let flags = ethtool(device, ETHTOOL_GFLAGS, 0)?;
            (ETHTOOL_GFLAGS, if on { flags | flag } else { flags & !flag })
        }
        KnownBy::Name => return features::set(device, offload.name(), on),
    };
    ethtool(device, command + SET, value).map(drop)
}

/// Offloads switched off on a device; dropping it switches them on again.
#[derive(Debug)]
pub struct SwitchedOff {
    device: String,
    offloads: Vec<Offload>,
}

impl SwitchedOff {
    /// Switches off those of `offloads` that are on.
    pub fn on(device: &str, offloads: &[Offload]) -> io::Result<SwitchedOff> {
        let mut done = SwitchedOff { device: device.to_string(), offloads: Vec::new() };
        for &offload in offloads {
            if is_on(device, offload)? {
                set(device, offload, false)?;
                done.offloads.push(offload);
            }
        }
        Ok(done)
    }

    /// What was on before.
    pub fn offloads(&self) -> &[Offload] {
        &self.offloads
    }
}

impl Drop for SwitchedOff {
    fn drop(&mut self) {
        for &offload in self.offloads.iter().rev() {
            // The device may be gone by now, and then so is the setting.
            let _ = set(&self.device, offload, true);
        }
    }
}

/// A command whose argument is one value (`struct ethtool_value`), and what it says.
fn ethtool(device: &str, command: u32, data: u32) -> io::Result<u32> {
    let mut value = [command, data];
    Interface::open(device)?.ethtool(&mut value)?;
    Ok(value[1])
}
