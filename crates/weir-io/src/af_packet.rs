//! `af_packet`: a port on any Ethernet device, through the kernel's packet sockets.
//!
//! The fallback where AF_XDP cannot be had, and said out loud as such. It differs in one way that matters:
//! the kernel sees every frame too. It must not forward ([`kernel_forwards`], or [`crate::steer::enforce`] behind the sockets), and what is local to this
//! host has reached it already.
//!
//! Frames are received through a ring shared with the kernel (the measurements that chose it are in its file) and
//! sent by `sendmmsg` past the queueing discipline. The receive socket carries virtio headers, because a veth peer on this machine may leave checksums unfinished (completed here) or merge segments
//! (refused and counted in `rx_invalid`: no next link could carry them). VLAN tags the kernel took off are
//! put back.

use std::fs;
use std::io;
use std::marker::PhantomData;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};

use weir_core::device::{Device, DeviceStats, DeviceStatus};
use weir_core::packet::{BATCH, Batch, Buffer, DeviceId, Frame, HEADROOM, Pool};

use crate::interface::Interface;
use crate::netlink;
use crate::port_error::PortError;

mod rx_ring;
pub(crate) mod socket;
mod tap;

use rx_ring::{RingFrame, RxRing};
pub use tap::Tap;

/// One queue of a device. Several on one device share its flows by hash.
pub struct AfPacket<B> {
    interface: Interface,
    device: DeviceId,
    rx: OwnedFd,
    ring: RxRing,
    tx: OwnedFd,
    stats: DeviceStats,
    gone: bool,
    buffers: PhantomData<fn() -> B>,
}

impl<B: Buffer> AfPacket<B> {
    /// Opens one queue on `name`. Queues that name the same `fanout` group share the device's flows.
    pub fn open(name: &str, device: DeviceId, fanout: Option<u16>) -> Result<Self, PortError> {
        let failed = |doing: &'static str| move |e| PortError::from_io("af_packet", name, doing, e);
        let link = netlink::link(name).map_err(failed("listing devices"))?;
        let link = link.ok_or_else(|| PortError::no_such_device("af_packet", name))?;
        if !link.ethernet {
            return Err(PortError::new(format!(
                "port af_packet:{name}: not an Ethernet device; use kind \"tun\""
            )));
        }
        let interface = Interface::open(name).map_err(failed("finding the device"))?;
        let rx = socket::open().map_err(failed("opening a packet socket"))?;
        for option in [libc::PACKET_IGNORE_OUTGOING, libc::PACKET_VNET_HDR] {
            socket::set(&rx, libc::SOL_PACKET, option, 1).map_err(failed("setting up reception"))?;
        }
        let ring = RxRing::map(&rx, link.mtu).map_err(failed("making the receive ring"))?;
        // A socket joins its group only once bound, and until then hears every frame, which the queues
        // opened before hear too: deaf meanwhile, or those frames would be forwarded twice.
        socket::filter(&rx, &socket::NOTHING).map_err(failed("attaching a filter"))?;
        socket::bind(&rx, link.index, libc::ETH_P_ALL as u16).map_err(failed("binding"))?;
        if let Some(group) = fanout {
            let hash = (libc::PACKET_FANOUT_HASH << 16) as i32 | i32::from(group);
            socket::set(&rx, libc::SOL_PACKET, libc::PACKET_FANOUT, hash)
                .map_err(failed("joining the fanout group"))?;
        }
        socket::set(&rx, libc::SOL_SOCKET, libc::SO_DETACH_FILTER, 0)
            .map_err(failed("detaching the filter"))?;
        let tx = socket::open().map_err(failed("opening a packet socket"))?;
        socket::set(&tx, libc::SOL_PACKET, libc::PACKET_QDISC_BYPASS, 1)
            .map_err(failed("setting up sending"))?;
        socket::bind(&tx, link.index, 0).map_err(failed("binding"))?;
        Ok(AfPacket {
            interface,
            device,
            rx,
            ring,
            tx,
            stats: DeviceStats::default(),
            gone: false,
            buffers: PhantomData,
        })
    }

    /// Notes what an error says of the device; an empty queue says nothing.
    fn note(&mut self, error: &io::Error) {
        if matches!(error.raw_os_error(), Some(libc::ENODEV | libc::ENXIO)) {
            self.gone = true;
        }
    }
}

/// One received frame in `buffer`, finished and tagged, or the buffer back when it cannot be used.
fn copied<B: Buffer>(slot: RingFrame<'_>, mut buffer: B, device: DeviceId) -> Result<Frame<B>, B> {
    let length = slot.data.len();
    if slot.cut || slot.header.is_merged() {
        return Err(buffer);
    }
    match buffer.bytes_mut().get_mut(HEADROOM..HEADROOM + length) {
        Some(room) => room.copy_from_slice(slot.data),
        None => return Err(buffer),
    }
    let mut frame = Frame::new(buffer, HEADROOM, length, device);
    if !socket::finish_checksum(frame.data_mut(), slot.header) {
        return Err(frame.into_buffer());
    }
    if let Some(tag) = slot.tag {
        if frame.len() < 12 || !frame.grow_front(4) {
            return Err(frame.into_buffer());
        }
        let data = frame.data_mut();
        data.copy_within(4..16, 0);
        data[12..16].copy_from_slice(&tag);
    }
    Ok(frame)
}

impl<B: Buffer> Device<B> for AfPacket<B> {
    fn rx(&mut self, pool: &mut Pool<B>, batch: &mut Batch<B>) -> usize {
        let mut taken = 0;
        while batch.room() > 0 && self.ring.is_ready() {
            let Some(buffer) = pool.take() else {
                self.stats.rx_fill_empty += 1;
                break;
            };
            match self.ring.take(|slot| copied(slot, buffer, self.device)) {
                Some(Ok(frame)) => match batch.push(frame) {
                    Ok(()) => taken += 1,
                    Err(frame) => pool.put(frame.into_buffer()),
                },
                Some(Err(buffer)) => {
                    self.stats.rx_invalid += 1;
                    pool.put(buffer);
                }
                None => break,
            }
        }
        taken
    }

    fn tx(&mut self, pool: &mut Pool<B>, frames: &mut Vec<Frame<B>>) -> usize {
        let mut accepted = 0;
        while accepted < frames.len() {
            let chunk = &frames[accepted..(accepted + BATCH).min(frames.len())];
            match socket::send(&self.tx, chunk.iter().map(Frame::data)) {
                Ok(sent) => accepted += sent,
                // This one frame is refused (too long for the device): the rest may go.
                Err(e) if matches!(e.raw_os_error(), Some(libc::EMSGSIZE | libc::EINVAL)) => {
                    self.stats.tx_invalid += 1;
                    accepted += 1;
                }
                Err(e) => {
                    self.note(&e);
                    break;
                }
            }
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
        // The kernel resets its counter at each reading.
        if let Ok(dropped) = socket::dropped(&self.rx) {
            self.stats.rx_ring_full += u64::from(dropped);
        }
        self.stats
    }

    fn status(&mut self) -> DeviceStatus {
        if let Some(error) = socket::take_error(&self.rx) {
            self.note(&error);
        }
        if self.gone { DeviceStatus::Gone } else { self.interface.status() }
    }
}

impl<B> AsRawFd for AfPacket<B> {
    /// Readable when frames wait.
    fn as_raw_fd(&self) -> RawFd {
        self.rx.as_raw_fd()
    }
}

/// Whether the kernel forwards packets that come in by this device, which would double what an
/// `af_packet` port forwards: (IPv4, IPv6).
///
/// IPv4 goes by the device's own `forwarding`. IPv6 goes by that of `all` (`ip6_forward`): the device's only says
/// whether it behaves as a router toward neighbours; since Linux 6.17 its `force_forwarding` counts too.
pub fn kernel_forwards(name: &str) -> (bool, bool) {
    let on = |knob: String| {
        fs::read_to_string(format!("/proc/sys/net/{knob}")).is_ok_and(|text| text.trim() != "0")
    };
    let v6 = on("ipv6/conf/all/forwarding".into()) || on(format!("ipv6/conf/{name}/force_forwarding"));
    (on(format!("ipv4/conf/{name}/forwarding")), v6)
}

/// Makes the kernel forward nothing that comes in by this device; of IPv6, nothing at all.
pub fn stop_forwarding(name: &str) -> io::Result<()> {
    let (v4, v6) = kernel_forwards(name);
    let off = |knob: String| fs::write(format!("/proc/sys/net/{knob}"), "0");
    if v4 {
        off(format!("ipv4/conf/{name}/forwarding"))?;
    }
    if v6 {
        off("ipv6/conf/all/forwarding".into())?;
        // A kernel without it has no such file.
        let _ = off(format!("ipv6/conf/{name}/force_forwarding"));
    }
    Ok(())
}
