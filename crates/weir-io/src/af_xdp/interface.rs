//! A network interface by name: its index, whether it is up, and its receive-polling knobs.
//!
//! Promises: an interface that vanished, or came back as another one under its old name, is told
//! apart from one that is down; knobs that were turned are turned back when dropped.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::path::PathBuf;

use weir_core::device::DeviceStatus;

/// An interface in the namespace this thread was in when it was opened.
#[derive(Debug)]
pub struct Interface {
    name: String,
    index: u32,
    control: OwnedFd,
}

impl Interface {
    pub fn open(name: &str) -> io::Result<Interface> {
        // SAFETY: socket takes no pointers; the result is checked before it is owned.
        let fd = unsafe { libc::socket(libc::AF_INET, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: a fresh descriptor nobody else owns.
        let control = unsafe { OwnedFd::from_raw_fd(fd) };
        let mut interface = Interface { name: name.into(), index: 0, control };
        let request = interface.ask(libc::SIOCGIFINDEX)?;
        // SAFETY: SIOCGIFINDEX filled this member of the union.
        interface.index = unsafe { request.ifr_ifru.ifru_ifindex } as u32;
        Ok(interface)
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    pub fn index(&self) -> u32 {
        self.index
    }

    pub fn status(&self) -> DeviceStatus {
        let Ok(index) = self.ask(libc::SIOCGIFINDEX) else { return DeviceStatus::Gone };
        // SAFETY: SIOCGIFINDEX filled this member of the union.
        if unsafe { index.ifr_ifru.ifru_ifindex } as u32 != self.index {
            return DeviceStatus::Gone;
        }
        let Ok(flags) = self.ask(libc::SIOCGIFFLAGS) else { return DeviceStatus::Gone };
        // SAFETY: SIOCGIFFLAGS filled this member of the union.
        let flags = unsafe { flags.ifr_ifru.ifru_flags } as libc::c_int;
        let usable = libc::IFF_UP | libc::IFF_RUNNING;
        if flags & usable == usable { DeviceStatus::Up } else { DeviceStatus::Down }
    }

    fn ask(&self, request: libc::Ioctl) -> io::Result<libc::ifreq> {
        // SAFETY: all zeros is a valid `ifreq`: integers, byte arrays and a null pointer.
        let mut ifreq: libc::ifreq = unsafe { std::mem::zeroed() };
        let bytes = self.name.as_bytes();
        if bytes.is_empty() || bytes.len() >= ifreq.ifr_name.len() {
            return Err(io::Error::from_raw_os_error(libc::ENODEV));
        }
        for (to, from) in ifreq.ifr_name.iter_mut().zip(bytes) {
            *to = *from as libc::c_char;
        }
        // SAFETY: both requests read the name from and write one member of the `ifreq` they are given.
        if unsafe { libc::ioctl(self.control.as_raw_fd(), request, &mut ifreq) } < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(ifreq)
    }
}

/// Interrupts of an interface held back so that a polling worker is not interrupted. Turned back
/// when dropped.
#[derive(Debug)]
pub struct HeldInterrupts {
    before: Vec<(PathBuf, String)>,
}

/// Polls that find nothing before interrupts are let through again.
const DEFER_POLLS: &str = "2";
/// How long the kernel waits for our next poll before it polls itself: 200 µs, in ns. Longer than a
/// breath, shorter than the 256 slots of a veth ring last at 1 Mpps.
const FLUSH_TIMEOUT_NS: &str = "200000";

impl HeldInterrupts {
    /// Needs sysfs of the namespace the interface is in.
    pub fn hold(interface: &str) -> io::Result<HeldInterrupts> {
        let mut held = HeldInterrupts { before: Vec::new() };
        for (knob, value) in [("napi_defer_hard_irqs", DEFER_POLLS), ("gro_flush_timeout", FLUSH_TIMEOUT_NS)]
        {
            let path = PathBuf::from(format!("/sys/class/net/{interface}/{knob}"));
            let before = std::fs::read_to_string(&path)?;
            std::fs::write(&path, value)?;
            held.before.push((path, before));
        }
        Ok(held)
    }
}

impl Drop for HeldInterrupts {
    fn drop(&mut self) {
        for (path, value) in &self.before {
            // The interface may be gone, and its knobs with it.
            let _ = std::fs::write(path, value.trim());
        }
    }
}
