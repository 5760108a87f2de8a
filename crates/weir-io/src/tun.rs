//! `tun`: a port to this host's own stack or to a program, carrying IP packets without Ethernet.
//!
//! The pipeline works on Ethernet frames, so each packet read gets a filler header (all-zero addresses and
//! the EtherType of its version) and each packet written loses it. Such a port is point-to-point: it has no
//! neighbours. The device exists as long as the port is open.
//!
//! Where the kernel offers it, TCP crosses in packets of up to 64 KiB: what the kernel hands over whole is cut
//! here (`tun/cut.rs`), and segments that follow each other go back as one (`tun/merge.rs`). The pipeline sees
//! packets of the path's size only, and counts those.

mod cut;
#[cfg(feature = "testing")]
pub mod fuzz;
mod host;
mod merge;
mod vnet;

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

use weir_core::device::{Device, DeviceStats, DeviceStatus};
use weir_core::id::Mac;
use weir_core::packet::{BATCH, Batch, Buffer, DeviceId, Frame, HEADROOM, Pool};

use crate::netlink;
use crate::port_error::PortError;
use cut::Cut;
use merge::{HEADERS_MAX, Merge, Run};

/// The address both ends of a TUN port have in the filler header.
pub const FILLER_MAC: Mac = [0; 6];

const ETHERNET: usize = 14;
const CLONE_DEVICE: &std::ffi::CStr = c"/dev/net/tun";
/// `TUN_F_CSUM`, `TUN_F_TSO4`, `TUN_F_TSO6` of linux/if_tun.h: what may be left to us.
const LEFT_TO_US: libc::c_ulong = 0x01 | 0x02 | 0x04;
/// The device's header, the packet's headers, a payload a frame: merged packets are at most a batch.
const PARTS: usize = 2 + BATCH;

/// Where packets are read.
enum Source {
    /// The device itself.
    Own,
    /// What the kernel sends by another device.
    Outgoing(OwnedFd),
    /// Nowhere: another queue of the device reads.
    None,
}

/// See the module.
pub struct Tun {
    name: String,
    device: DeviceId,
    fd: OwnedFd,
    source: Source,
    stats: DeviceStats,
    /// Why the kernel cuts and merges by itself, if it does.
    refused: Option<io::Error>,
    cut: Cut,
    merge: Merge,
    sent: Vec<bool>,
}

impl Tun {
    /// Creates (or attaches to) the TUN device `name`. It is left down: set it up and give it addresses as
    /// any device.
    pub fn open(name: &str, device: DeviceId) -> Result<Tun, PortError> {
        if name.is_empty() || name.len() >= libc::IFNAMSIZ {
            return Err(PortError::new(format!(
                "port tun:{name}: the name has {} bytes, expected 1 to {}",
                name.len(),
                libc::IFNAMSIZ - 1
            )));
        }
        Tun::made(name, device, 0)
    }

    /// The device with these flags besides those of every one.
    fn made(name: &str, device: DeviceId, more: libc::c_int) -> Result<Tun, PortError> {
        let failed = |doing: &'static str| move |e| PortError::from_io("tun", name, doing, e);
        let flags = libc::IFF_TUN | libc::IFF_NO_PI | libc::IFF_VNET_HDR | more;
        let (fd, _) = create(name, flags).map_err(|(doing, error)| failed(doing)(error))?;
        // SAFETY: TUNSETOFFLOAD takes its argument by value.
        let offload = unsafe { libc::ioctl(fd.as_raw_fd(), libc::TUNSETOFFLOAD, LEFT_TO_US) };
        let refused = (offload < 0).then(io::Error::last_os_error);
        Ok(Tun {
            name: name.to_string(),
            device,
            fd,
            source: Source::Own,
            stats: DeviceStats::default(),
            refused,
            cut: Cut::new(),
            merge: Merge::default(),
            sent: Vec::new(),
        })
    }

    /// One sentence on who cuts and merges TCP.
    pub fn report(&self) -> String {
        match &self.refused {
            None => format!("port tun:{}: TCP segmentation offload, both ways", self.name),
            Some(e) => {
                format!("port tun:{}: TCP segmentation offload refused ({e}); a packet a call", self.name)
            }
        }
    }

    /// Reads one packet with its header into `cut`; whether there is one to be cut.
    fn read(&mut self) -> io::Result<bool> {
        let source = match &self.source {
            Source::Own => &self.fd,
            Source::Outgoing(socket) => socket,
            Source::None => return Err(io::ErrorKind::WouldBlock.into()),
        };
        let room = self.cut.room();
        // SAFETY: the kernel writes at most `room.len()` bytes into `room`, borrowed for the call.
        let length = unsafe { libc::read(source.as_raw_fd(), room.as_mut_ptr().cast(), room.len()) };
        if length < 0 { Err(io::Error::last_os_error()) } else { Ok(self.cut.start(length as usize)) }
    }

    /// Writes a packet whose parts lie apart.
    fn write(&self, parts: &[libc::iovec]) -> io::Result<()> {
        // SAFETY: each part is a slice its maker has borrowed for the call, and the kernel only reads them.
        let length = unsafe { libc::writev(self.fd.as_raw_fd(), parts.as_ptr(), parts.len() as _) };
        if length < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    fn write_run<B: Buffer>(&self, run: Run, frames: &[Frame<B>]) -> io::Result<()> {
        let mut parts = [part(&[]); PARTS];
        let mut headers = [0; HEADERS_MAX];
        let last = self.merge.packets(run).last().unwrap_or(run.first);
        let head = run.head(packet(&frames[run.first]), packet(&frames[last]), &mut headers);
        let Some((header, len)) = head else {
            let whole = vnet::Header::default().bytes();
            return self.write(&[part(&whole), part(packet(&frames[run.first]))]);
        };
        let header = header.bytes();
        (parts[0], parts[1]) = (part(&header), part(&headers[..len]));
        let mut count = 2;
        for at in self.merge.packets(run) {
            parts[count] = part(&packet(&frames[at])[run.payload_at()..]);
            count += 1;
        }
        self.write(&parts[..count])
    }
}

/// A TAP device that is down and that nobody uses: for a program that has to be attached somewhere. `%d` in its name becomes a
/// number; it goes with the descriptor.
pub(crate) fn spare_tap(name: &str) -> io::Result<(OwnedFd, String)> {
    create(name, libc::IFF_TAP | libc::IFF_NO_PI).map_err(|(_, error)| error)
}

/// Creates the device (or attaches to it); its descriptor and its name, or what failed.
fn create(name: &str, flags: libc::c_int) -> Result<(OwnedFd, String), (&'static str, io::Error)> {
    // SAFETY: the path is a NUL-terminated string that lives for the call.
    let fd = unsafe { libc::open(CLONE_DEVICE.as_ptr(), libc::O_RDWR | libc::O_NONBLOCK | libc::O_CLOEXEC) };
    if fd < 0 {
        return Err(("opening /dev/net/tun", io::Error::last_os_error()));
    }
    // SAFETY: `fd` is a fresh descriptor that nothing else owns.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    // SAFETY: ifreq is plain data for which all zeros is valid.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, &from) in request.ifr_name.iter_mut().zip(name.as_bytes().iter().take(libc::IFNAMSIZ - 1)) {
        *to = from as std::ffi::c_char;
    }
    request.ifr_ifru.ifru_flags = flags as i16;
    // SAFETY: TUNSETIFF reads one ifreq and writes the name into it; it outlives the call.
    if unsafe { libc::ioctl(fd.as_raw_fd(), libc::TUNSETIFF, &raw mut request) } < 0 {
        return Err(("creating the device", io::Error::last_os_error()));
    }
    let name = request.ifr_name.iter().take_while(|&&byte| byte != 0).map(|&byte| byte as u8).collect();
    Ok((fd, String::from_utf8(name).unwrap_or_default()))
}

fn part(bytes: &[u8]) -> libc::iovec {
    libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() }
}

/// The IP packet behind the filler.
fn packet<B: Buffer>(frame: &Frame<B>) -> &[u8] {
    frame.data().get(ETHERNET..).unwrap_or_default()
}

impl<B: Buffer> Device<B> for Tun {
    fn rx(&mut self, pool: &mut Pool<B>, batch: &mut Batch<B>) -> usize {
        let mut taken = 0;
        while batch.room() > 0 {
            if !self.cut.pending() {
                match self.read() {
                    Ok(true) => {}
                    Ok(false) => {
                        self.stats.rx_invalid += 1;
                        continue;
                    }
                    Err(_) => break,
                }
            }
            // What is left of a large packet waits for buffers.
            let Some(mut buffer) = pool.take() else { break };
            let window = &mut buffer.bytes_mut()[HEADROOM..];
            let Some(length) = self.cut.next(&mut window[ETHERNET..]) else {
                self.stats.rx_invalid += 1;
                pool.put(buffer);
                continue;
            };
            let ethertype: [u8; 2] = if window[ETHERNET] >> 4 == 6 { [0x86, 0xdd] } else { [0x08, 0x00] };
            window[..12].fill(0);
            window[12..ETHERNET].copy_from_slice(&ethertype);
            match batch.push(Frame::new(buffer, HEADROOM, ETHERNET + length, self.device)) {
                Ok(()) => taken += 1,
                Err(frame) => pool.put(frame.into_buffer()),
            }
        }
        taken
    }

    fn tx(&mut self, pool: &mut Pool<B>, frames: &mut Vec<Frame<B>>) -> usize {
        let mut accepted = 0;
        while !frames.is_empty() {
            let batch = &frames[..frames.len().min(BATCH)];
            self.merge.plan(batch.iter().map(packet), |at| packet(&batch[at]));
            self.sent.clear();
            self.sent.resize(batch.len(), false);
            let mut full = false;
            for &run in self.merge.runs() {
                match self.write_run(run, batch) {
                    Ok(()) => {}
                    Err(e) if e.raw_os_error() == Some(libc::EINVAL) => {
                        self.stats.tx_invalid += run.count as u64;
                    }
                    // Down, gone or full: what is left stays with the caller.
                    Err(_) => {
                        full = true;
                        break;
                    }
                }
                for at in self.merge.packets(run) {
                    self.sent[at] = true;
                }
            }
            let mut sent = self.sent.iter();
            for frame in frames.extract_if(..self.sent.len(), |_| sent.next() == Some(&true)) {
                accepted += 1;
                pool.put(frame.into_buffer());
            }
            if full {
                break;
            }
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
        match &self.source {
            Source::Outgoing(socket) => socket.as_raw_fd(),
            Source::Own | Source::None => self.fd.as_raw_fd(),
        }
    }
}

#[cfg(test)]
mod tests;
