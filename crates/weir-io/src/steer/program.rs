//! The steering program itself, instruction by instruction.
//!
//! Registers that live across the program: `R6` context, `R7` where the IP header would start,
//! `R8` end of the frame, `R9` the action to return. Fields are compared in network order; the
//! constants are turned around instead, once, here.

use weir_core::tables::Owner;

use super::Cause;
use super::express_program::{self, Lane};
use crate::bpf::asm::{Alu, Asm, AsmError, Cond, Helper, Label, Program, Reg, Reg::*, Size};
use crate::bpf::object::Map;

const XDP_PASS: i32 = 2;
const XDP_REDIRECT: i32 = 4;

/// Offsets in `struct xdp_md`.
const MD_DATA: i16 = 0;
const MD_DATA_END: i16 = 4;
const MD_RX_QUEUE: i16 = 16;

const ETHERNET: i32 = 14;
const VLAN_TAG: i32 = 4;
const IPV4_HEADER: i32 = 20;
const IPV6_HEADER: i32 = 40;
const ARP_PACKET: i32 = 28;
/// ICMPv6 header and target address of a neighbour solicitation.
const SOLICITATION: i32 = 24;

/// UDP header, and SPI and sequence number behind it; less is a keepalive or broken.
const UDP_ESP: i32 = 8 + 8;

const UDP: i32 = 17;
const FRAGMENT: i32 = 44;
const ESP: i32 = 50;

/// What the address maps hold for an address; `esp`: where an SA of ours ends.
pub(super) fn owner_value(owner: Owner, esp: bool) -> u32 {
    match (owner, esp) {
        (Owner::Kernel, false) => KERNEL as u32,
        (Owner::Kernel, true) => KERNEL_BUT_ESP as u32,
        (Owner::Weir, _) => WEIR as u32,
    }
}

/// A port as the program's lookup has it: its bytes in network order.
pub(super) fn esp_port_key(port: u16) -> u32 {
    u32::from(port.to_be())
}

pub(super) const KERNEL: i32 = 1;
const WEIR: i32 = 2;
pub(super) const KERNEL_BUT_ESP: i32 = 3;

/// A 16-bit field constant as a load from the frame sees it.
pub(super) const fn wire16(value: u16) -> i32 {
    value.to_be() as i32
}

/// What the program refers to.
pub(super) struct Maps<'a> {
    pub xsks: &'a Map,
    pub counters: &'a Map,
    pub local4: &'a Map,
    pub local6: &'a Map,
    pub esp_ports: &'a Map,
}

struct Ends {
    steer: Label,
    esp: Label,
    resolve: Label,
    local: Label,
    arp: Label,
    group: Label,
    not_ip: Label,
    short: Label,
    count: Label,
    out: Label,
}

/// The program over these maps.
pub(super) fn assemble(maps: &Maps<'_>, lane: Option<&Lane<'_>>) -> Result<Program, AsmError> {
    let mut a = Asm::new();
    let ends = Ends {
        steer: a.label("steer"),
        esp: a.label("esp"),
        resolve: a.label("resolve"),
        local: a.label("local"),
        arp: a.label("arp"),
        group: a.label("group"),
        not_ip: a.label("not_ip"),
        short: a.label("short"),
        count: a.label("count"),
        out: a.label("out"),
    };
    let (is_arp, is_group, is_v6) = (a.label("is_arp"), a.label("is_group"), a.label("is_v6"));
    ethernet(&mut a, &ends, is_arp, is_group, is_v6);
    ipv4(&mut a, &ends, maps, lane);
    a.bind(is_v6);
    ipv6(&mut a, &ends, maps, lane);
    a.bind(is_arp);
    arp(&mut a, &ends, maps.local4);
    a.bind(is_group);
    group(&mut a, &ends, maps.local6);
    finish(&mut a, &ends, maps, lane);
    a.finish()
}

/// Sets `R7` behind the Ethernet header and tag, and branches on the EtherType; falls into IPv4.
fn ethernet(a: &mut Asm, ends: &Ends, is_arp: Label, is_group: Label, is_v6: Label) {
    let untagged = a.label("untagged");
    a.mov(R6, R1);
    a.mov(R9, XDP_PASS);
    a.load(Size::U32, R7, R6, MD_DATA);
    a.load(Size::U32, R8, R6, MD_DATA_END);
    within(a, ETHERNET, ends.short);
    a.load(Size::U8, R4, R7, 0);
    a.load(Size::U16, R3, R7, 12);
    a.add(R7, ETHERNET);
    a.jump_if(Cond::NotEqual, R3, wire16(0x8100), untagged);
    a.note("one 802.1Q tag");
    within(a, VLAN_TAG, ends.short);
    a.load(Size::U16, R3, R7, 2);
    a.add(R7, VLAN_TAG);
    a.bind(untagged);
    a.jump_if(Cond::Equal, R3, wire16(0x0806), is_arp);
    a.note("the group bit of the destination MAC");
    a.jump_if(Cond::AnyBit, R4, 1, is_group);
    a.jump_if(Cond::Equal, R3, wire16(0x86dd), is_v6);
    a.jump_if(Cond::NotEqual, R3, wire16(0x0800), ends.not_ip);
}

fn ipv4(a: &mut Asm, ends: &Ends, maps: &Maps<'_>, lane: Option<&Lane<'_>>) {
    a.note("IPv4; a header cut short is ours to count");
    within(a, IPV4_HEADER, ends.steer);
    if let Some(lane) = lane {
        let slow = a.label("slow4");
        untagged_only(a, slow);
        express_program::ipv4(a, lane, slow);
        a.bind(slow);
    }
    let unicast = a.label("unicast");
    a.load(Size::U8, R3, R7, 16);
    a.jump_if(Cond::Less, R3, 0xe0, unicast);
    a.note("224.0.0.0/4 and 255.255.255.255; the rest of 240.0.0.0/4 the kernel would forward");
    a.jump_if(Cond::Less, R3, 0xf0, ends.group);
    a.load(Size::U32, R3, R7, 16);
    a.mov64(R4, u64::from(u32::MAX));
    a.jump_if(Cond::Equal, R3, R4, ends.group);
    a.bind(unicast);
    owner_of4(a, maps.local4, 16);
    a.jump_if(Cond::Equal, R0, KERNEL, ends.local);
    a.jump_if(Cond::NotEqual, R0, KERNEL_BUT_ESP, ends.steer);
    a.load(Size::U8, R3, R7, 9);
    a.jump_if(Cond::Equal, R3, ESP, ends.esp);
    a.jump_if(Cond::NotEqual, R3, UDP, ends.local);
    a.note("a fragment: only the first has a port");
    a.load(Size::U16, R3, R7, 6);
    a.jump_if(Cond::AnyBit, R3, wire16(0x3fff), ends.local);
    a.load(Size::U8, R3, R7, 0);
    a.alu(Alu::And, R3, 0x0f);
    a.alu(Alu::Lsh, R3, 2);
    a.add(R7, R3);
    esp_in_udp(a, ends, maps.esp_ports);
}

fn ipv6(a: &mut Asm, ends: &Ends, maps: &Maps<'_>, lane: Option<&Lane<'_>>) {
    within(a, IPV6_HEADER, ends.steer);
    if let Some(lane) = lane {
        let slow = a.label("slow6");
        untagged_only(a, slow);
        express_program::ipv6(a, lane, slow);
        a.bind(slow);
    }
    a.load(Size::U8, R3, R7, 24);
    a.note("ff00::/8");
    a.jump_if(Cond::Equal, R3, 0xff, ends.group);
    owner_of6(a, maps.local6, 24);
    a.jump_if(Cond::Equal, R0, KERNEL, ends.local);
    a.jump_if(Cond::NotEqual, R0, KERNEL_BUT_ESP, ends.steer);
    let in_udp = a.label("in_udp6");
    a.load(Size::U8, R3, R7, 6);
    a.jump_if(Cond::Equal, R3, ESP, ends.esp);
    a.jump_if(Cond::Equal, R3, UDP, in_udp);
    a.jump_if(Cond::NotEqual, R3, FRAGMENT, ends.local);
    a.add(R7, IPV6_HEADER);
    within(a, 8, ends.local);
    a.load(Size::U8, R3, R7, 0);
    a.jump_if(Cond::Equal, R3, ESP, ends.esp);
    a.jump(ends.local);
    a.bind(in_udp);
    a.add(R7, IPV6_HEADER);
    esp_in_udp(a, ends, maps.esp_ports);
}

/// `R7` is at a UDP header: ESP has an SPI where IKE has a marker of zeros (RFC 3948 2.2).
fn esp_in_udp(a: &mut Asm, ends: &Ends, ports: &Map) {
    within(a, UDP_ESP, ends.local);
    a.load(Size::U16, R3, R7, 4);
    a.to_be(R3, 16);
    a.jump_if(Cond::Less, R3, UDP_ESP, ends.local);
    a.load(Size::U32, R3, R7, 8);
    a.jump_if(Cond::Equal, R3, 0, ends.local);
    a.load(Size::U16, R3, R7, 2);
    a.store(Size::U32, R10, -4, R3);
    lookup(a, ports, -4);
    a.jump_if(Cond::Equal, R0, 0, ends.local);
    a.jump(ends.esp);
}

/// Jumps to `slow` behind a VLAN tag: `R7` is then 18 and not 14 bytes into the frame.
fn untagged_only(a: &mut Asm, slow: Label) {
    a.load(Size::U32, R2, R6, MD_DATA);
    a.add(R2, ETHERNET);
    a.jump_if(Cond::NotEqual, R2, R7, slow);
}

/// RFC 826: the target protocol address is at 24.
fn arp(a: &mut Asm, ends: &Ends, local4: &Map) {
    within(a, ARP_PACKET, ends.arp);
    owner_of4(a, local4, 24);
    a.jump_if(Cond::Equal, R0, WEIR, ends.resolve);
    a.jump(ends.arp);
}

/// RFC 4861 section 4.3: type 135, the target at 8 of the message.
fn group(a: &mut Asm, ends: &Ends, local6: &Map) {
    a.jump_if(Cond::NotEqual, R3, wire16(0x86dd), ends.group);
    within(a, IPV6_HEADER + SOLICITATION, ends.group);
    a.load(Size::U8, R3, R7, 6);
    a.jump_if(Cond::NotEqual, R3, 58, ends.group);
    a.load(Size::U8, R3, R7, 40);
    a.jump_if(Cond::NotEqual, R3, 135, ends.group);
    owner_of6(a, local6, 48);
    a.jump_if(Cond::Equal, R0, WEIR, ends.resolve);
    a.jump(ends.group);
}

/// Jumps unless `bytes` more are left at `R7`.
fn within(a: &mut Asm, bytes: i32, otherwise: Label) {
    a.mov(R2, R7);
    a.add(R2, bytes);
    a.jump_if(Cond::Greater, R2, R8, otherwise);
}

/// `R0` = who owns the IPv4 address at `R7 + at`; 0 for nobody here.
fn owner_of4(a: &mut Asm, map: &Map, at: i16) {
    a.load(Size::U32, R3, R7, at);
    a.store(Size::U32, R10, -4, R3);
    lookup(a, map, -4);
}

/// The same for IPv6; by halves, as an IP header is only 2-byte aligned.
fn owner_of6(a: &mut Asm, map: &Map, at: i16) {
    for half in [0, 8] {
        a.load(Size::U64, R3, R7, at + half);
        a.store(Size::U64, R10, -16 + half, R3);
    }
    lookup(a, map, -16);
}

/// `R0` = the `u32` under the key at `R10 + key`, or 0.
pub(super) fn lookup(a: &mut Asm, map: &Map, key: i32) {
    let unknown = a.label("unknown");
    a.map(R1, map);
    a.mov(R2, R10);
    a.add(R2, key);
    a.call(Helper::MapLookup);
    a.jump_if(Cond::Equal, R0, 0, unknown);
    a.load(Size::U32, R0, R0, 0);
    a.bind(unknown);
}

/// Counts the cause and returns the action.
fn finish(a: &mut Asm, ends: &Ends, maps: &Maps<'_>, lane: Option<&Lane<'_>>) {
    let redirect = a.label("redirect");
    for (label, cause) in
        [(ends.esp, Cause::Esp), (ends.resolve, Cause::Resolve), (ends.steer, Cause::Transit)]
    {
        a.bind(label);
        set_cause(a, cause);
        if cause != Cause::Transit {
            a.jump(redirect);
        }
    }
    a.bind(redirect);
    if let Some(lane) = lane {
        express_program::number(a, lane);
    }
    a.map(R1, maps.xsks);
    a.load(Size::U32, R2, R6, MD_RX_QUEUE);
    a.note("without a socket on this queue: pass");
    a.mov(R3, XDP_PASS);
    a.call(Helper::RedirectMap);
    a.mov(R9, R0);
    a.jump_if(Cond::Equal, R9, XDP_REDIRECT, ends.count);
    set_cause(a, Cause::NoSocket);
    a.jump(ends.count);
    for (label, cause) in [
        (ends.local, Cause::Local),
        (ends.arp, Cause::Arp),
        (ends.not_ip, Cause::NotIp),
        (ends.short, Cause::Short),
        (ends.group, Cause::Group),
    ] {
        a.bind(label);
        set_cause(a, cause);
        if cause != Cause::Group {
            a.jump(ends.count);
        }
    }
    a.bind(ends.count);
    a.map(R1, maps.counters);
    a.mov(R2, R10);
    a.add(R2, CAUSE_KEY as i32);
    a.call(Helper::MapLookup);
    a.jump_if(Cond::Equal, R0, 0, ends.out);
    a.load(Size::U64, R1, R0, 0);
    a.add(R1, 1);
    a.store(Size::U64, R0, 0, R1);
    a.bind(ends.out);
    a.alu(Alu::Mov, R0, R9);
    a.exit();
}

/// Where the cause waits on the stack, as the key of the counter map.
const CAUSE_KEY: i16 = -20;

fn set_cause(a: &mut Asm, cause: Cause) {
    a.store(Size::U32, Reg::R10, CAUSE_KEY, cause as i32);
}
