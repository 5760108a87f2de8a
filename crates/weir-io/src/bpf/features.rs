//! What an interface's driver can do with XDP, as the kernel tells it (generic netlink "netdev", Linux 6.3).
//!
//! Refuses to guess: where the kernel does not tell, an interface is taken to be unable.

use std::io;

use super::netlink::{NLMSG_HEADER, attribute, push_attribute, transact};

// `linux/genetlink.h`, `linux/netdev.h`.
const CTRL_CMD_GETFAMILY: u8 = 3;
const CTRL_ATTR_FAMILY_ID: u16 = 1;
const CTRL_ATTR_FAMILY_NAME: u16 = 2;
const NETDEV_CMD_DEV_GET: u8 = 1;
const NETDEV_A_DEV_IFINDEX: u16 = 1;
const NETDEV_A_DEV_XDP_FEATURES: u16 = 3;
/// `NETDEV_XDP_ACT_NDO_XMIT`: frames can be redirected to it.
const NDO_XMIT: u64 = 1 << 2;
const NETDEV_CMD_QUEUE_GET: u8 = 10;
const NETDEV_A_QUEUE_ID: u16 = 1;
const NETDEV_A_QUEUE_IFINDEX: u16 = 2;
const NETDEV_A_QUEUE_TYPE: u16 = 3;
const NETDEV_A_QUEUE_NAPI_ID: u16 = 4;
const NETDEV_QUEUE_TYPE_RX: u32 = 0;
const NETDEV_QUEUE_TYPE_TX: u32 = 1;
const GENL_HEADER: usize = 4;

/// Whether a program may redirect frames out of this interface. A veth can only while its peer
/// receives by NAPI (an XDP program of its own, or GRO); else frames vanish there. Worth asking again.
pub fn can_transmit(ifindex: u32) -> io::Result<bool> {
    let Some(family) = family()? else { return Ok(false) };
    let mut index = Vec::new();
    push_attribute(&mut index, NETDEV_A_DEV_IFINDEX, &ifindex.to_ne_bytes());
    let device = ask(family, NETDEV_CMD_DEV_GET, &index)?;
    let features = attribute(body(&device), NETDEV_A_DEV_XDP_FEATURES).and_then(|v| v.try_into().ok());
    Ok(features.map_or(0, u64::from_ne_bytes) & NDO_XMIT != 0)
}

/// Whether the driver sends on this queue by another poller (NAPI instance) than it receives by; `None` where the kernel
/// (before 6.8) or the driver does not tell. A poller that only sends may have no number: the kernel gives none to those
/// that no socket can poll, as virtio-net's.
pub fn sends_by_another_poller(ifindex: u32, queue: u32) -> io::Result<Option<bool>> {
    let Some(family) = family()? else { return Ok(None) };
    let poller = |kind: u32| {
        let mut wanted = Vec::new();
        push_attribute(&mut wanted, NETDEV_A_QUEUE_IFINDEX, &ifindex.to_ne_bytes());
        push_attribute(&mut wanted, NETDEV_A_QUEUE_TYPE, &kind.to_ne_bytes());
        push_attribute(&mut wanted, NETDEV_A_QUEUE_ID, &queue.to_ne_bytes());
        let reply = ask(family, NETDEV_CMD_QUEUE_GET, &wanted)?;
        let id = attribute(body(&reply), NETDEV_A_QUEUE_NAPI_ID).and_then(|v| v.try_into().ok());
        Ok::<_, io::Error>(id.map(u32::from_ne_bytes))
    };
    let (rx, tx) = (poller(NETDEV_QUEUE_TYPE_RX)?, poller(NETDEV_QUEUE_TYPE_TX)?);
    Ok(differ(rx, tx))
}

/// Whether these pollers' numbers are of two pollers.
fn differ(rx: Option<u32>, tx: Option<u32>) -> Option<bool> {
    rx.map(|rx| tx != Some(rx))
}

/// The number of the family "netdev" on this kernel.
fn family() -> io::Result<Option<u16>> {
    let mut name = Vec::new();
    push_attribute(&mut name, CTRL_ATTR_FAMILY_NAME, b"netdev\0");
    let family = ask(libc::GENL_ID_CTRL as u16, CTRL_CMD_GETFAMILY, &name)?;
    let family = attribute(body(&family), CTRL_ATTR_FAMILY_ID).and_then(|v| v.try_into().ok());
    Ok(family.map(u16::from_ne_bytes))
}

fn body(reply: &[u8]) -> &[u8] {
    reply.get(NLMSG_HEADER + GENL_HEADER..).unwrap_or(&[])
}

/// `nlmsghdr`, `genlmsghdr`, attributes.
fn ask(family: u16, command: u8, attributes: &[u8]) -> io::Result<Vec<u8>> {
    let len = (NLMSG_HEADER + GENL_HEADER + attributes.len()) as u32;
    let mut message = Vec::with_capacity(len as usize);
    message.extend(len.to_ne_bytes());
    message.extend(family.to_ne_bytes());
    message.extend((libc::NLM_F_REQUEST as u16).to_ne_bytes());
    message.extend([0; 8]);
    message.extend([command, 1, 0, 0]);
    message.extend(attributes);
    transact(libc::NETLINK_GENERIC, &message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_poller_without_a_number_is_one_that_only_sends() {
        assert_eq!(differ(Some(7), Some(7)), Some(false));
        assert_eq!(differ(Some(7), Some(8)), Some(true), "igb with an interrupt for each direction");
        assert_eq!(differ(Some(7), None), Some(true), "virtio-net");
        assert_eq!(differ(None, None), None, "a driver that does not tell");
        assert_eq!(differ(None, Some(8)), None);
    }
}
