//! How many queues a device has (`ethtool -l`): read, set, put back afterwards.
//!
//! A card pairs its queues (combined); a veth counts them by direction. Refuses: more than the device can have, by name, before
//! anything is changed.

use std::io;

use crate::interface::Interface;

// linux/ethtool.h
const ETHTOOL_GCHANNELS: u32 = 0x3c;
const ETHTOOL_SCHANNELS: u32 = 0x3d;
/// `struct ethtool_channels`: the command, the most of each kind, what is in use of each kind.
const WORDS: usize = 9;
/// Receiving, sending, for anything else, combined: in this order.
const MOST: usize = 1;
const NOW: usize = 5;
const RX: usize = 0;
const TX: usize = 1;
const COMBINED: usize = 3;

/// A device that has as many queues as were wanted while this is alive.
#[derive(Debug)]
pub struct Queues {
    interface: Interface,
    before: [u32; WORDS],
    set: [u32; WORDS],
}

impl Queues {
    /// `None` where the device has so many already.
    pub fn set(device: &str, wanted: u32) -> io::Result<Option<Queues>> {
        let interface = Interface::open(device)?;
        let before = read(&interface)?;
        let mut set = before;
        let most = match before[MOST + COMBINED] {
            0 => {
                (set[NOW + RX], set[NOW + TX]) = (wanted, wanted);
                before[MOST + RX].min(before[MOST + TX])
            }
            most => {
                // Queues of one direction beside combined ones would be queues too.
                (set[NOW + RX], set[NOW + TX], set[NOW + COMBINED]) = (0, 0, wanted);
                most
            }
        };
        if wanted == 0 || wanted > most {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                format!("got {wanted} queues, expected 1 to {most}: the device has no more"),
            ));
        }
        if set == before {
            return Ok(None);
        }
        write(&interface, set)?;
        Ok(Some(Queues { interface, before, set }))
    }
}

impl Drop for Queues {
    fn drop(&mut self) {
        // The device may be gone by now, and then so is the setting. Another number is somebody else's wish.
        if read(&self.interface).is_ok_and(|now| now[NOW..] == self.set[NOW..]) {
            let _ = write(&self.interface, self.before);
        }
    }
}

fn read(interface: &Interface) -> io::Result<[u32; WORDS]> {
    let mut channels = [0; WORDS];
    channels[0] = ETHTOOL_GCHANNELS;
    interface.ethtool(&mut channels)?;
    Ok(channels)
}

fn write(interface: &Interface, mut channels: [u32; WORDS]) -> io::Result<()> {
    channels[0] = ETHTOOL_SCHANNELS;
    interface.ethtool(&mut channels)
}
