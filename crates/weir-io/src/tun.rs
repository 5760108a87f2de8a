//! `tun`: a port to this host's own stack or to a program, carrying IP packets without Ethernet.
//!
//! The pipeline works on Ethernet frames, so each packet read gets a filler header (all-zero addresses and
//! the EtherType of its version) and each packet written loses it. Such a port is point-to-point: it has no
//! neighbours. The device exists as long as the port is open.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

use weir_core::device::{Device, DeviceStats, DeviceStatus};
use weir_core::packet::{Batch, Buffer, DeviceId, Frame, HEADROOM, Pool};
use weir_core::tables::Mac;

use crate::netlink;
use crate::port_error::PortError;

/// The address both ends of a TUN port have in the filler header.
pub const FILLER_MAC: Mac = [0; 6];

const ETHERNET: usize = 14;
const CLONE_DEVICE: &std::ffi::CStr = c"/dev/net/tun";

/// See the module.
pub struct Tun {
    name: String,
    device: DeviceId,
    fd: OwnedFd,
    stats: DeviceStats,
}

impl Tun {
    /// Creates (or attaches to) the TUN device `name`. It is left down: set it up and give it addresses as
    /// any device.
    pub fn open(name: &str, device: DeviceId) -> Result<Tun, PortError> {
        let failed = |doing: &'static str| move |e| PortError::from_io("tun", name, doing, e);
        if name.is_empty() || name.len() >= libc::IFNAMSIZ {
            return Err(PortError::new(format!(
                "port tun:{name}: the name has {} bytes, expected 1 to {}",
                name.len(),
                libc::IFNAMSIZ - 1
            )));
        }
        // SAFETY: the path is a NUL-terminated string that lives for the call.
        let fd =
            unsafe { libc::open(CLONE_DEVICE.as_ptr(), libc::O_RDWR | libc::O_NONBLOCK | libc::O_CLOEXEC) };
        if fd < 0 {
            return Err(failed("opening /dev/net/tun")(io::Error::last_os_error()));
        }
        // SAFETY: `fd` is a fresh descriptor that nothing else owns.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        // SAFETY: ifreq is plain data for which all zeros is valid.
        let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
        for (to, &from) in request.ifr_name.iter_mut().zip(name.as_bytes()) {
            *to = from as std::ffi::c_char;
        }
        request.ifr_ifru.ifru_flags = (libc::IFF_TUN | libc::IFF_NO_PI) as i16;
        // SAFETY: TUNSETIFF reads one ifreq, which outlives the call.
        if unsafe { libc::ioctl(fd.as_raw_fd(), libc::TUNSETIFF, &raw const request) } < 0 {
            return Err(failed("creating the device")(io::Error::last_os_error()));
        }
        Ok(Tun { name: name.to_string(), device, fd, stats: DeviceStats::default() })
    }

    fn read(&self, window: &mut [u8]) -> io::Result<usize> {
        // SAFETY: the kernel writes at most `window.len()` bytes into `window`, borrowed for the call.
        let length = unsafe { libc::read(self.fd.as_raw_fd(), window.as_mut_ptr().cast(), window.len()) };
        if length < 0 { Err(io::Error::last_os_error()) } else { Ok(length as usize) }
    }

    fn write(&self, packet: &[u8]) -> io::Result<()> {
        // SAFETY: the kernel reads `packet.len()` bytes of `packet`, borrowed for the call.
        let length = unsafe { libc::write(self.fd.as_raw_fd(), packet.as_ptr().cast(), packet.len()) };
        if length < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }
}

impl<B: Buffer> Device<B> for Tun {
    fn rx(&mut self, pool: &mut Pool<B>, batch: &mut Batch<B>) -> usize {
        let mut taken = 0;
        while batch.room() > 0 {
            let Some(mut buffer) = pool.take() else { break };
            let window = &mut buffer.bytes_mut()[HEADROOM..];
            let room = window.len();
            let Ok(length) = self.read(&mut window[ETHERNET..]) else {
                pool.put(buffer);
                break;
            };
            let ethertype: [u8; 2] = if window[ETHERNET] >> 4 == 6 { [0x86, 0xdd] } else { [0x08, 0x00] };
            window[..12].fill(0);
            window[12..ETHERNET].copy_from_slice(&ethertype);
            // A packet that fills the window to the brim was cut by the read: TUN does not say so.
            if length == 0 || length + ETHERNET == room {
                self.stats.rx_invalid += 1;
                pool.put(buffer);
                continue;
            }
            match batch.push(Frame::new(buffer, HEADROOM, ETHERNET + length, self.device)) {
                Ok(()) => taken += 1,
                Err(frame) => pool.put(frame.into_buffer()),
            }
        }
        taken
    }

    fn tx(&mut self, pool: &mut Pool<B>, frames: &mut Vec<Frame<B>>) -> usize {
        let mut accepted = 0;
        for frame in frames.iter() {
            let packet = frame.data().get(ETHERNET..).unwrap_or_default();
            match self.write(packet) {
                Ok(()) => {}
                Err(e) if e.raw_os_error() == Some(libc::EINVAL) => self.stats.tx_invalid += 1,
                // Down, gone or full: what is left stays with the caller.
                Err(_) => break,
            }
            accepted += 1;
        }
        for frame in frames.drain(..accepted) {
            pool.put(frame.into_buffer());
        }
        accepted
    }

    fn buffers_held(&self) -> usize {
        0
    }

    fn stats(&mut self) -> DeviceStats {
        self.stats
    }

    fn status(&mut self) -> DeviceStatus {
        match netlink::link(&self.name) {
            Ok(Some(link)) if link.up => DeviceStatus::Up,
            Ok(Some(_)) => DeviceStatus::Down,
            Ok(None) => DeviceStatus::Gone,
            Err(_) => DeviceStatus::Up,
        }
    }
}

impl AsRawFd for Tun {
    /// Readable when packets wait.
    fn as_raw_fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }
}
