//! Drivers that run the XDP program no longer once their device was set down and up, or the machine slept, though the
//! kernel still names it.
//!
//! Promises: such a device is named from its driver's name, and each time it has been away is told once. Refuses: to
//! guess from traffic; a driver that is not in the list is believed.

use std::io;

use crate::interface::Interface;
use weir_core::device::DeviceStatus;

/// A driver that makes its receive queues anew without the program: these hand every frame to the kernel's stack until a
/// program is attached to the device without one. Seen with Linux 7.3.
struct Driver {
    name: &'static str,
    /// It does so each time its device was down; if not, when the machine was suspended.
    by_link: bool,
}

const FORGETFUL: [Driver; 2] =
    [Driver { name: "vmxnet3", by_link: true }, Driver { name: "virtio_net", by_link: false }];

/// A device of a forgetful driver.
#[derive(Debug)]
pub(super) struct Forgetful {
    interface: Interface,
    by_link: bool,
    seen: Absences,
}

impl Forgetful {
    /// None where the driver keeps its program, or does not say what it is.
    pub fn of(name: &str) -> Option<Forgetful> {
        let interface = Interface::open(name).ok()?;
        let driver = interface.driver().ok()?;
        let by_link = FORGETFUL.iter().find(|known| known.name == driver)?.by_link;
        let mut forgetful = Forgetful { interface, by_link, seen: Absences(0) };
        forgetful.seen = forgetful.absences();
        Some(forgetful)
    }

    /// Whether the program has to be attached again, which `attach` does and which may cost the link once more.
    pub fn mend(&mut self, attach: impl FnOnce() -> io::Result<()>) -> io::Result<bool> {
        let up = self.interface.status() == DeviceStatus::Up;
        if !self.seen.was_away(&self.absences(), up) {
            return Ok(false);
        }
        let attached = attach();
        self.seen = self.absences();
        attached.map(|()| true)
    }

    fn absences(&self) -> Absences {
        let links = if self.by_link { self.interface.carrier_changes() } else { None };
        Absences(links.unwrap_or(0) + suspends())
    }
}

/// How often the machine has slept, where the kernel counts that.
fn suspends() -> u64 {
    let count = std::fs::read_to_string("/sys/power/suspend_stats/success").ok();
    count.and_then(|count| count.trim().parse().ok()).unwrap_or(0)
}

/// How often a device's carrier had come or gone, or the machine had slept, when its program was attached.
#[derive(Debug)]
struct Absences(u64);

impl Absences {
    /// Whether it has come back since; while it is away there is nothing to mend yet.
    fn was_away(&self, now: &Absences, up: bool) -> bool {
        up && now.0 != self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_that_came_back_is_told_and_one_that_is_away_waits() {
        let seen = Absences(2);
        assert!(!seen.was_away(&Absences(2), true), "as it was when the program was attached");
        assert!(!seen.was_away(&Absences(3), false), "away");
        assert!(seen.was_away(&Absences(4), true));
        assert!(seen.was_away(&Absences(1), true), "another device under the same name");
    }

    #[test]
    fn loopback_has_no_forgetful_driver() {
        assert!(Forgetful::of("lo").is_none());
    }
}
