//! The express lane's part of the steering program: from the IP header to the redirect.
//!
//! Entered with `R6` context, `R7` at the IP header behind an untagged Ethernet header, `R8` end of the
//! frame, `R9` the action so far. What does not go express leaves by `slow` with these four as they were.
//!
//! ```text
//! pair known? ─ no ─────────────────────────────────────────────► slow
//!   └ yes ─► plain, in force, and no earlier frame on its way? ─► rewrite, redirect
//!                └ no ─► the pair's last slow frame is this one ► slow
//! ```

use weir_core::packet::DeviceId;

use super::express::{Express, counter, entry, progress};
use crate::bpf::asm::{Alu, Asm, Cond, Helper, Label, Reg::*, Size};
use crate::bpf::object::Map;

const ETHERNET: i16 = 14;
const MD_DATA: i16 = 0;
const MD_DATA_END: i16 = 4;
const MD_DATA_META: i16 = 8;
const MD_INGRESS_IFINDEX: i16 = 12;
const MD_RX_QUEUE: i16 = 16;
const XDP_PASS: i32 = 2;

/// Stack below the steering program's own: a key of up to 32 bytes, packet length, counter key.
const KEY: i16 = -64;
const LENGTH: i16 = -72;
const COUNTER_KEY: i16 = -76;

/// What the lane's code refers to.
pub(super) struct Lane<'a> {
    pub express: &'a Express,
    pub device: DeviceId,
    pub progress: &'a Map,
}

/// IPv4 (RFC 1812 5.2.1, 5.3.1): a header without options, of a whole packet, with a right checksum.
pub(super) fn ipv4(a: &mut Asm, lane: &Lane<'_>, slow: Label) {
    let held = a.label("held4");
    a.load(Size::U64, R3, R7, 12);
    a.store(Size::U64, R10, KEY, R3);
    find(a, &lane.express.pairs4, slow);
    plain_ipv4(a, held);
    in_force(a, lane, held);
    a.note("TTL, and RFC 1624: the checksum rises by as much as the word falls");
    a.load(Size::U8, R3, R7, 8);
    a.alu(Alu::Sub, R3, 1);
    a.store(Size::U8, R7, 8, R3);
    a.load(Size::U16, R3, R7, 10);
    a.add(R3, i32::from(0x0100u16.to_be()));
    a.mov(R4, R3);
    a.alu(Alu::Rsh, R4, 16);
    a.add(R3, R4);
    a.store(Size::U16, R7, 10, R3);
    send(a, lane);
    hold(a, lane, held, slow);
}

/// IPv6 (RFC 8200 3): TCP, UDP or ESP right behind the header.
pub(super) fn ipv6(a: &mut Asm, lane: &Lane<'_>, slow: Label) {
    let (known, held) = (a.label("known_header"), a.label("held6"));
    for at in [0, 8, 16, 24] {
        a.load(Size::U64, R3, R7, 8 + at);
        a.store(Size::U64, R10, KEY + at, R3);
    }
    find(a, &lane.express.pairs6, slow);
    a.load(Size::U8, R3, R7, 0);
    a.alu(Alu::And, R3, 0xf0);
    a.jump_if(Cond::NotEqual, R3, 0x60, held);
    a.load(Size::U8, R3, R7, 7);
    a.jump_if(Cond::LessOrEqual, R3, 1, held);
    a.load(Size::U8, R3, R7, 6);
    for protocol in [6, 17] {
        a.jump_if(Cond::Equal, R3, protocol, known);
    }
    a.jump_if(Cond::NotEqual, R3, 50, held);
    a.bind(known);
    a.load(Size::U16, R3, R7, 4);
    a.to_be(R3, 16);
    a.add(R3, 40);
    fits(a, held);
    in_force(a, lane, held);
    a.load(Size::U8, R3, R7, 7);
    a.alu(Alu::Sub, R3, 1);
    a.store(Size::U8, R7, 7, R3);
    send(a, lane);
    hold(a, lane, held, slow);
}

fn plain_ipv4(a: &mut Asm, held: Label) {
    a.load(Size::U8, R3, R7, 0);
    a.jump_if(Cond::NotEqual, R3, 0x45, held);
    a.load(Size::U8, R3, R7, 8);
    a.jump_if(Cond::LessOrEqual, R3, 1, held);
    a.note("more fragments, or an offset");
    a.load(Size::U16, R3, R7, 6);
    a.alu(Alu::And, R3, i32::from(0x3fffu16.to_be()));
    a.jump_if(Cond::NotEqual, R3, 0, held);
    a.note("header checksum");
    a.mov(R5, 0);
    for at in [0, 4, 8, 12, 16] {
        a.load(Size::U32, R3, R7, at);
        a.add(R5, R3);
    }
    for _ in 0..3 {
        a.mov(R3, R5);
        a.alu(Alu::Rsh, R3, 16);
        a.alu(Alu::And, R5, 0xffff);
        a.add(R5, R3);
    }
    a.jump_if(Cond::NotEqual, R5, 0xffff, held);
    a.load(Size::U16, R3, R7, 2);
    a.to_be(R3, 16);
    a.jump_if(Cond::Less, R3, 20, held);
    fits(a, held);
}

/// `R3` is the packet's length: inside the frame? Remembered for the MTU.
fn fits(a: &mut Asm, held: Label) {
    a.store(Size::U64, R10, LENGTH, R3);
    a.mov(R4, R8);
    a.alu(Alu::Sub, R4, R7);
    a.jump_if(Cond::Greater, R3, R4, held);
}

/// `R9` = the pair's entry.
fn find(a: &mut Asm, pairs: &Map, slow: Label) {
    a.load(Size::U32, R3, R6, MD_RX_QUEUE);
    a.jump_if(Cond::NotEqual, R3, 0, slow);
    a.map(R1, pairs);
    a.mov(R2, R10);
    a.add(R2, i32::from(KEY));
    a.call(Helper::MapLookup);
    a.jump_if(Cond::Equal, R0, 0, slow);
    a.mov(R9, R0);
}

/// The entry holds for this frame, and every earlier one of the pair is out.
fn in_force(a: &mut Asm, lane: &Lane<'_>, held: Label) {
    a.note("of the snapshot in force, from this interface, for this MAC address, within the MTU");
    a.map_value(R1, &lane.express.generation, 0);
    a.load(Size::U64, R1, R1, 0);
    a.load(Size::U64, R2, R9, entry::GENERATION);
    a.jump_if(Cond::NotEqual, R1, R2, held);
    a.load(Size::U32, R1, R6, MD_INGRESS_IFINDEX);
    a.load(Size::U32, R2, R9, entry::IN_IFINDEX);
    a.jump_if(Cond::NotEqual, R1, R2, held);
    for (size, at) in [(Size::U32, 0), (Size::U16, 4)] {
        a.load(size, R1, R7, at - ETHERNET);
        a.load(size, R2, R9, entry::IN_MAC + at);
        a.jump_if(Cond::NotEqual, R1, R2, held);
    }
    a.load(Size::U64, R1, R10, LENGTH);
    a.load(Size::U32, R2, R9, entry::MTU);
    a.jump_if(Cond::Greater, R1, R2, held);
    a.note("the pair's last frame that went to the router has left it");
    a.load(Size::U64, R2, R9, entry::LAST_SLOW);
    a.jump_if(Cond::Equal, R2, 0, held);
    a.map_value(R1, lane.progress, 0);
    a.load(Size::U64, R1, R1, progress::DONE);
    a.jump_if(Cond::Greater, R2, R1, held);
}

/// This frame goes to the router, as the number it will get there.
fn hold(a: &mut Asm, lane: &Lane<'_>, held: Label, slow: Label) {
    a.bind(held);
    a.map_value(R1, lane.progress, 0);
    a.load(Size::U64, R2, R1, progress::STEERED);
    a.add(R2, 1);
    a.store(Size::U64, R9, entry::LAST_SLOW, R2);
    a.mov(R9, XDP_PASS);
    a.jump(slow);
}

/// New MAC addresses, counters, redirect. Does not return.
fn send(a: &mut Asm, lane: &Lane<'_>) {
    for (size, at) in [(Size::U64, 0), (Size::U32, 8)] {
        a.load(size, R3, R9, entry::OUT_MACS + at);
        a.store(size, R7, at - ETHERNET, R3);
    }
    a.alu(Alu::Sub, R8, R7);
    a.add(R8, i32::from(ETHERNET));
    a.store(Size::U32, R10, COUNTER_KEY, i32::from(lane.device.0));
    count(a, lane.express, counter::RX_PACKETS, counter::RX_BYTES);
    a.load(Size::U32, R3, R9, entry::OUT_DEVICE);
    a.store(Size::U32, R10, COUNTER_KEY, R3);
    count(a, lane.express, counter::TX_PACKETS, counter::TX_BYTES);
    a.load(Size::U32, R1, R9, entry::OUT_IFINDEX);
    a.mov(R2, 0);
    a.call(Helper::Redirect);
    a.exit();
}

/// Adds a frame of `R8` bytes to this CPU's counters of the device under `COUNTER_KEY`.
fn count(a: &mut Asm, express: &Express, packets: i16, bytes: i16) {
    let uncounted = a.label("uncounted");
    a.map(R1, &express.counters);
    a.mov(R2, R10);
    a.add(R2, i32::from(COUNTER_KEY));
    a.call(Helper::MapLookup);
    a.jump_if(Cond::Equal, R0, 0, uncounted);
    a.load(Size::U64, R1, R0, packets);
    a.add(R1, 1);
    a.store(Size::U64, R0, packets, R1);
    a.load(Size::U64, R1, R0, bytes);
    a.add(R1, R8);
    a.store(Size::U64, R0, bytes, R1);
    a.bind(uncounted);
}

/// Numbers a frame on its way to the router's socket: 8 bytes of metadata before it. `R7` and `R8` are
/// lost. Where the driver has no room for metadata nothing is ever learned, so nothing is lost.
pub(super) fn number(a: &mut Asm, lane: &Lane<'_>) {
    let unnumbered = a.label("unnumbered");
    a.load(Size::U32, R3, R6, MD_RX_QUEUE);
    a.jump_if(Cond::NotEqual, R3, 0, unnumbered);
    a.map_value(R1, lane.progress, 0);
    a.load(Size::U64, R7, R1, progress::STEERED);
    a.add(R7, 1);
    a.store(Size::U64, R1, progress::STEERED, R7);
    a.mov(R1, R6);
    a.mov(R2, -(progress::NUMBER_SIZE as i32));
    a.call(Helper::XdpAdjustMeta);
    a.jump_if(Cond::NotEqual, R0, 0, unnumbered);
    a.load(Size::U32, R2, R6, MD_DATA_META);
    a.load(Size::U32, R3, R6, MD_DATA);
    a.mov(R4, R2);
    a.add(R4, progress::NUMBER_SIZE as i32);
    a.jump_if(Cond::Greater, R4, R3, unnumbered);
    a.store(Size::U64, R2, 0, R7);
    a.bind(unnumbered);
    a.load(Size::U32, R8, R6, MD_DATA_END);
}
