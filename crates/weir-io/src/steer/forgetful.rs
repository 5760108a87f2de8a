//! Drivers that run the XDP program no longer once their device was set down and up, though the kernel still names it.
//!
//! Promises: such a device is named from its driver's name, and each time its link has been away is told once. Refuses: to
//! guess from traffic; a driver that is not in the list is believed.

use std::io;

use crate::interface::Interface;
use weir_core::device::DeviceStatus;

/// vmxnet3, seen with Linux 7.3: opened anew, its receive queues hand every frame to the kernel's stack until a program
/// is attached to the device without one.
const FORGETFUL: [&str; 1] = ["vmxnet3"];

/// A device of a forgetful driver.
#[derive(Debug)]
pub(super) struct Forgetful {
    interface: Interface,
    seen: Carrier,
}

impl Forgetful {
    /// None where the driver keeps its program, or does not say what it is.
    pub fn of(name: &str) -> Option<Forgetful> {
        let interface = Interface::open(name).ok()?;
        let driver = interface.driver().ok()?;
        let seen = Carrier(interface.carrier_changes()?);
        FORGETFUL.contains(&driver.as_str()).then_some(Forgetful { interface, seen })
    }

    /// Whether the program has to be attached again, which `attach` does and which may cost the link once more.
    pub fn mend(&mut self, attach: impl FnOnce() -> io::Result<()>) -> io::Result<bool> {
        let up = self.interface.status() == DeviceStatus::Up;
        if !self.interface.carrier_changes().is_some_and(|changes| self.seen.was_away(changes, up)) {
            return Ok(false);
        }
        let attached = attach();
        self.seen = Carrier(self.interface.carrier_changes().unwrap_or(0));
        attached.map(|()| true)
    }
}

/// How often a carrier had come or gone when its program was attached.
#[derive(Debug)]
struct Carrier(u64);

impl Carrier {
    /// Whether it has come back since; while it is away there is nothing to mend yet.
    fn was_away(&self, changes: u64, up: bool) -> bool {
        up && changes != self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_that_came_back_is_told_and_one_that_is_away_waits() {
        let seen = Carrier(2);
        assert!(!seen.was_away(2, true), "as it was when the program was attached");
        assert!(!seen.was_away(3, false), "away");
        assert!(seen.was_away(4, true));
        assert!(seen.was_away(1, true), "another device under the same name");
    }

    #[test]
    fn loopback_has_no_forgetful_driver() {
        assert!(Forgetful::of("lo").is_none());
    }
}
