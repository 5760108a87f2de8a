//! The receive ring of a packet socket (PACKET_RX_RING, version 2): frames appear in memory shared with the
//! kernel, and taking one costs no system call.
//!
//! ```text
//! | slot 0 | slot 1 | … | slot n−1 |     a slot, 2 KiB or more:
//!                                        0      32       mac − 10        mac     mac + snaplen
//!                                        | header | …    | virtio header | frame |
//! ```
//!
//! Against `recvmmsg`, 60-byte frames over veth: 20 instead of 280 ns a frame in the worker, 770 instead of
//! 910 with the sender's part, copies included (`cargo bench -p weir-io --bench packet_receive`, one CPU for
//! both ends). Version 3 of the ring delivers by blocks, after a millisecond when traffic is thin; version 2
//! at once.
//!
//! Promises: a slot belongs to us from the kernel's release of its status word to ours. Refuses: frames
//! longer than a slot (cut, and said so).

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};

use super::socket::{self, VirtioHeader};

/// Slots of a ring: 4,096 × 2 KiB is 8 MiB, 2 ms of 2 million frames a second.
const SLOTS: u32 = 4096;
/// The kernel's unit of allocation: a multiple of every slot size and of the page size.
const BLOCK: u32 = 256 << 10;
/// What stands before the frame in a slot: `tpacket2_hdr` (32), `sockaddr_ll` (20), the virtio header (10), each aligned
/// to 16, and the kernel's own alignment of the network header.
const SLOT_OVERHEAD: usize = 128;

/// See the module.
#[derive(Debug)]
pub struct RxRing {
    base: NonNull<u8>,
    slot_size: usize,
    next: usize,
}

// SAFETY: the mapping is owned by this value alone (its other side is the kernel's, synchronised by the
// status words), so it may move to another thread with it.
unsafe impl Send for RxRing {}

/// A frame in its slot.
#[derive(Debug)]
pub struct RingFrame<'a> {
    pub data: &'a [u8],
    /// Longer than the slot.
    pub cut: bool,
    pub header: VirtioHeader,
    /// The VLAN tag the kernel took off, as it stood in the frame.
    pub tag: Option<[u8; 4]>,
}

impl RxRing {
    /// Gives `socket`, which has asked for virtio headers and is not yet bound, a ring for frames of a
    /// device with this MTU.
    pub fn map(socket: &OwnedFd, mtu: u32) -> io::Result<RxRing> {
        // Ethernet header and a tag beside the packet; a slot never spans two blocks.
        let slot_size = (mtu as usize + 18 + SLOT_OVERHEAD).next_power_of_two().clamp(2048, BLOCK as usize);
        let request = libc::tpacket_req {
            tp_block_size: BLOCK,
            tp_block_nr: SLOTS * slot_size as u32 / BLOCK,
            tp_frame_size: slot_size as u32,
            tp_frame_nr: SLOTS,
        };
        socket::set(
            socket,
            libc::SOL_PACKET,
            libc::PACKET_VERSION,
            libc::tpacket_versions::TPACKET_V2 as i32,
        )?;
        // SAFETY: the kernel reads `size_of::<tpacket_req>()` bytes of `request`, which outlives the call.
        let done = unsafe {
            libc::setsockopt(
                socket.as_raw_fd(),
                libc::SOL_PACKET,
                libc::PACKET_RX_RING,
                (&raw const request).cast(),
                size_of::<libc::tpacket_req>() as libc::socklen_t,
            )
        };
        if done != 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: a new shared mapping at an address of the kernel's choice, of exactly the ring's size;
        // the result is checked before use.
        let base = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                SLOTS as usize * slot_size,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED | libc::MAP_POPULATE,
                socket.as_raw_fd(),
                0,
            )
        };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let base = NonNull::new(base.cast::<u8>()).ok_or_else(|| io::Error::other("mapped at address 0"))?;
        Ok(RxRing { base, slot_size, next: 0 })
    }

    /// Hands the next frame to `use_it` and its slot back to the kernel; `None` when no frame waits.
    #[inline]
    pub fn take<R>(&mut self, use_it: impl FnOnce(RingFrame<'_>) -> R) -> Option<R> {
        // SAFETY: `next` is below SLOTS, so the slot lies inside the mapping, which lives as long as self;
        // a slot is aligned to 2 KiB at least, and its first word is the status, which both sides only
        // touch atomically.
        let (slot, status) = unsafe {
            let slot = self.base.as_ptr().add(self.next * self.slot_size);
            (slot, &*slot.cast::<AtomicU32>())
        };
        let flags = status.load(Ordering::Acquire);
        if flags & libc::TP_STATUS_USER == 0 {
            return None;
        }
        // SAFETY: with TP_STATUS_USER seen (acquire) the slot is ours until we store 0, and the kernel has
        // written the whole slot. Lengths and offsets come from the kernel; clipping them to the slot keeps
        // every access inside it in any case. `data` ends before the status is given back below.
        let frame = unsafe {
            let header = slot.cast::<libc::tpacket2_hdr>().read();
            let mac = (header.tp_mac as usize).clamp(SLOT_OVERHEAD / 4, self.slot_size);
            let length = (header.tp_snaplen as usize).min(self.slot_size - mac);
            RingFrame {
                data: std::slice::from_raw_parts(slot.add(mac), length),
                cut: header.tp_len as usize > length,
                header: slot.add(mac - size_of::<VirtioHeader>()).cast::<VirtioHeader>().read_unaligned(),
                tag: tag(flags, header.tp_vlan_tci, header.tp_vlan_tpid),
            }
        };
        let result = use_it(frame);
        status.store(libc::TP_STATUS_KERNEL, Ordering::Release);
        self.next = (self.next + 1) % SLOTS as usize;
        Some(result)
    }

    /// Whether a frame waits.
    pub fn is_ready(&self) -> bool {
        // SAFETY: as in `take`: an aligned status word inside the mapping.
        let status = unsafe { &*self.base.as_ptr().add(self.next * self.slot_size).cast::<AtomicU32>() };
        status.load(Ordering::Relaxed) & libc::TP_STATUS_USER != 0
    }
}

impl Drop for RxRing {
    fn drop(&mut self) {
        // SAFETY: exactly the mapping made in `map`; no slice into it outlives a call of `take`.
        unsafe { libc::munmap(self.base.as_ptr().cast(), SLOTS as usize * self.slot_size) };
    }
}

fn tag(flags: u32, tci: u16, tpid: u16) -> Option<[u8; 4]> {
    if flags & libc::TP_STATUS_VLAN_VALID == 0 {
        return None;
    }
    let tpid = if flags & libc::TP_STATUS_VLAN_TPID_VALID == 0 { 0x8100 } else { tpid };
    let ([p0, p1], [t0, t1]) = (tpid.to_be_bytes(), tci.to_be_bytes());
    Some([p0, p1, t0, t1])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::anonymous;

    #[test]
    fn tag_is_there_only_when_the_kernel_says_so() {
        assert_eq!(tag(libc::TP_STATUS_USER, 5, 0x8100), None);
        assert_eq!(tag(libc::TP_STATUS_VLAN_VALID, 0x6005, 0), Some([0x81, 0, 0x60, 5]));
        let both = libc::TP_STATUS_VLAN_VALID | libc::TP_STATUS_VLAN_TPID_VALID;
        assert_eq!(tag(both, 5, 0x88a8), Some([0x88, 0xa8, 0, 5]));
    }

    /// Writes a slot as the kernel does; the status last.
    fn deliver(ring: &RxRing, slot: usize, header: libc::tpacket2_hdr, frame: &[u8]) {
        let at = ring.base.as_ptr().wrapping_add(slot * ring.slot_size);
        let status = header.tp_status;
        // SAFETY: the slot lies in the ring's mapping, is aligned for its header, and has room for the frame there.
        unsafe {
            at.cast::<libc::tpacket2_hdr>().write(libc::tpacket2_hdr { tp_status: 0, ..header });
            std::ptr::copy_nonoverlapping(frame.as_ptr(), at.add(128), frame.len());
            (*at.cast::<AtomicU32>()).store(status, Ordering::Release);
        }
    }

    fn header(mac: u16, snaplen: u32, len: u32) -> libc::tpacket2_hdr {
        // SAFETY: plain numbers, of which zero is one.
        let empty: libc::tpacket2_hdr = unsafe { std::mem::zeroed() };
        let tp_status = libc::TP_STATUS_USER;
        libc::tpacket2_hdr { tp_status, tp_len: len, tp_snaplen: snaplen, tp_mac: mac, ..empty }
    }

    #[test]
    fn a_frame_lies_within_its_slot_whatever_the_header_says() {
        let slot_size = 2048;
        let base = anonymous::map(SLOTS as usize * slot_size, 0).expect("eight mebibytes");
        // The last slot and the first: nothing is behind the one.
        let mut ring = RxRing { base, slot_size, next: SLOTS as usize - 1 };
        let last = SLOTS as usize - 1;
        assert!(!ring.is_ready() && ring.take(|_| ()).is_none());
        deliver(&ring, last, header(128, u32::MAX, u32::MAX), &[7; 1920]);
        assert_eq!(
            ring.take(|frame| (frame.data.len(), frame.data == [7; 1920], frame.cut)),
            Some((1920, true, true))
        );
        assert!(!ring.is_ready(), "the next slot is the first");
        deliver(&ring, 0, header(128, 4, 4), b"abcd");
        assert_eq!(ring.take(|frame| (frame.data.to_vec(), frame.cut)), Some((b"abcd".to_vec(), false)));
        for (slot, (mac, length)) in [(1, (u16::MAX, 0)), (2, (0, 2016))] {
            deliver(&ring, slot, header(mac, u32::MAX, 60), b"");
            assert_eq!(ring.take(|frame| frame.data.len()), Some(length), "a frame at {mac}");
        }
        assert!(!ring.is_ready());
    }
}
