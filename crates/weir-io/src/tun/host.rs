//! A TUN device by which a worker reaches this host's own stack for another device: what is written to it comes in by that device
//! ([`crate::deliver`]), and what the kernel sends by that device is read.
//!
//! Why not the TUN device both ways: what the kernel sends by the other device goes by that device's routes, MTU and packet
//! filter, and a packet socket there sees it behind all of these, with segmentation and checksums left to do as at a TUN device.
//! What was read the kernel sends all the same; that nothing comes of it is another's care.

use weir_core::packet::DeviceId;

use super::{Source, Tun};
use crate::af_packet::socket;
use crate::port_error::PortError;

/// `PACKET_OUTGOING` of packet(7).
const OUTGOING: u32 = 4;
/// `SKF_AD_OFF + SKF_AD_PKTTYPE` of linux/filter.h.
const PACKET_TYPE: u32 = 0xffff_f000 + 4;

/// Lets through what this host sends.
static SENT: [libc::sock_filter; 4] = [
    instruction(libc::BPF_LD | libc::BPF_B | libc::BPF_ABS, 0, PACKET_TYPE),
    instruction(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 1, OUTGOING),
    instruction(libc::BPF_RET | libc::BPF_K, 0, u32::MAX),
    instruction(libc::BPF_RET | libc::BPF_K, 0, 0),
];

const fn instruction(code: u32, if_not: u8, k: u32) -> libc::sock_filter {
    libc::sock_filter { code: code as u16, jt: 0, jf: if_not, k }
}

impl Tun {
    /// A queue of the TUN device `name`, one for each worker; the one that is told of the device `outgoing` (its name and index)
    /// brings what the kernel sends by that.
    pub fn to_host(name: &str, device: DeviceId, outgoing: Option<(&str, u32)>) -> Result<Tun, PortError> {
        let mut tun = Tun::made(name, device, libc::IFF_MULTI_QUEUE)?;
        tun.source = Source::None;
        if let Some((other, index)) = outgoing {
            let failed = |e| PortError::from_io("tun", other, "opening a packet socket", e);
            let socket = socket::open().map_err(failed)?;
            socket::set(&socket, libc::SOL_PACKET, libc::PACKET_VNET_HDR, 1).map_err(failed)?;
            socket::filter(&socket, &SENT).map_err(failed)?;
            socket::bind(&socket, index, libc::ETH_P_ALL as u16).map_err(failed)?;
            tun.source = Source::Outgoing(socket);
        }
        Ok(tun)
    }
}
