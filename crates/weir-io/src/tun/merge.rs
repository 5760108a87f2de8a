//! TCP segments that follow each other are handed to the kernel as one packet, which costs it little more than
//! each of them would.
//!
//! Promises: what is merged differs in nothing but lengths, identification, sequence number, PSH and
//! checksum, has right checksums, and follows without a gap; a piece shorter than the first, or with PSH, ends a
//! packet; packets of a flow keep their order. So cutting the packet again gives the segments. Everything else
//! goes as it is.

use weir_core::wire::{checksum, get_array, get16, get32, protocol, put16};

use super::vnet::{self, Header};

const ACK: u8 = 0x10;
const PSH: u8 = 0x08;
/// IPv6 header and TCP's with options.
pub const HEADERS_MAX: usize = 40 + 60;
const TCP_CHECKSUM: usize = 16;
const DONT_FRAGMENT: u8 = 0x40;

/// What may be merged, as merging sees it.
#[derive(Clone, Copy)]
struct Segment {
    transport: usize,
    headers: usize,
    payload: usize,
    sequence: u32,
    ends: bool,
}

/// Packets that go as one.
#[derive(Clone, Copy)]
pub struct Run {
    pub first: usize,
    last: usize,
    /// How many.
    pub count: usize,
    segment: Option<Segment>,
    next: u32,
    payload: usize,
    /// Whether one more may follow.
    open: bool,
}

/// Scratch of one device.
#[derive(Default)]
pub struct Merge {
    runs: Vec<Run>,
    /// The packet after each of the same run.
    after: Vec<Option<usize>>,
}

impl Merge {
    /// Sorts packets into runs, to be sent in this order.
    pub fn plan<'a>(&mut self, packets: impl Iterator<Item = &'a [u8]>, of: impl Fn(usize) -> &'a [u8]) {
        self.runs.clear();
        self.after.clear();
        for (at, packet) in packets.enumerate() {
            self.after.push(None);
            let segment = segment(packet);
            let mut runs = self.runs.iter_mut().rev().filter(|run| run.open);
            let same = runs.find(|run| same_flow(of(run.first), packet));
            match (same, segment) {
                (Some(run), Some(s)) if run.takes(of(run.first), packet, s) => {
                    self.after[run.last] = Some(at);
                    run.last = at;
                    run.count += 1;
                    run.next = s.sequence.wrapping_add(s.payload as u32);
                    run.payload += s.payload;
                    let whole = run.segment.is_some_and(|first| first.payload == s.payload);
                    run.open = whole && !s.ends;
                    continue;
                }
                // What comes later must not overtake this one.
                (Some(run), _) => run.open = false,
                (None, _) => {}
            }
            let s = segment.as_ref();
            self.runs.push(Run {
                first: at,
                last: at,
                count: 1,
                segment,
                next: s.map_or(0, |s| s.sequence.wrapping_add(s.payload as u32)),
                payload: s.map_or(0, |s| s.payload),
                open: s.is_some_and(|s| !s.ends),
            });
        }
    }

    pub fn runs(&self) -> &[Run] {
        &self.runs
    }

    /// The packets of a run in their order.
    pub fn packets(&self, run: Run) -> impl Iterator<Item = usize> {
        std::iter::successors(Some(run.first), |&at| self.after[at])
    }
}

impl Run {
    fn takes(&self, first: &[u8], packet: &[u8], s: Segment) -> bool {
        let Some(is) = self.segment else { return false };
        s.sequence == self.next
            && s.payload <= is.payload
            && is.headers + self.payload + s.payload <= usize::from(u16::MAX)
            && same_headers(first, packet, &is, &s)
            && (first[0] >> 4 == 6
                || first[6] & DONT_FRAGMENT != 0
                || get16(packet, 4) == get16(first, 4).wrapping_add(self.count as u16))
    }

    /// What goes before the payloads: the device's header, and the packet's in `headers`, of which the length
    /// is returned. `last` is the run's last packet.
    pub fn head(
        &self,
        first: &[u8],
        last: &[u8],
        headers: &mut [u8; HEADERS_MAX],
    ) -> Option<(Header, usize)> {
        let s = self.segment.filter(|_| self.count > 1)?;
        let out = headers.get_mut(..s.headers)?;
        out.copy_from_slice(first.get(..s.headers)?);
        let len = s.headers + self.payload;
        let is_v4 = out[0] >> 4 == 4;
        if is_v4 {
            put16(out, 2, len as u16);
            put16(out, 10, 0);
            let check = checksum::checksum(&out[..s.transport]);
            put16(out, 10, check);
        } else {
            put16(out, 4, (len - s.transport) as u16);
        }
        out[s.transport + 13] |= last.get(s.transport + 13)? & PSH;
        let pseudo = pseudo(out, len - s.transport);
        put16(out, s.transport + TCP_CHECKSUM, !checksum::finish(pseudo));
        let header = Header {
            flags: vnet::NEEDS_CHECKSUM,
            kind: if is_v4 { vnet::TCP4 } else { vnet::TCP6 },
            headers: s.headers as u16,
            segment: s.payload as u16,
            checksum_start: s.transport as u16,
            checksum_offset: TCP_CHECKSUM as u16,
        };
        Some((header, s.headers))
    }

    /// Where the payload of each of its packets begins.
    pub fn payload_at(&self) -> usize {
        self.segment.map_or(0, |s| s.headers)
    }
}

/// A whole TCP segment with payload, without IP options or extension headers, that only carries data.
fn segment(packet: &[u8]) -> Option<Segment> {
    let transport = match packet.first()? {
        0x45 if packet.len() > 40 => {
            let whole = packet[9] == protocol::TCP && get16(packet, 6) & 0x3fff == 0;
            let long = usize::from(get16(packet, 2)) == packet.len();
            (whole && long && checksum::is_valid(&packet[..20])).then_some(20)?
        }
        byte if byte >> 4 == 6 && packet.len() > 60 => {
            let long = usize::from(get16(packet, 4)) + 40 == packet.len();
            (packet[6] == protocol::TCP && long).then_some(40)?
        }
        _ => return None,
    };
    let headers = transport + usize::from(packet[transport + 12] >> 4) * 4;
    let flags = packet[transport + 13];
    if headers < transport + 20 || headers >= packet.len() || flags & !PSH != ACK {
        return None;
    }
    // The kernel will believe what it is told of a merged packet.
    let sum = pseudo(packet, packet.len() - transport);
    if !checksum::is_valid_sum(checksum::add(sum, &packet[transport..])) {
        return None;
    }
    Some(Segment {
        transport,
        headers,
        payload: packet.len() - headers,
        sequence: get32(packet, transport + 4),
        ends: flags & PSH != 0,
    })
}

fn pseudo(packet: &[u8], len: usize) -> u64 {
    if packet[0] >> 4 == 4 {
        let (from, to) = (get_array::<4>(packet, 12).into(), get_array::<4>(packet, 16).into());
        checksum::pseudo_ipv4(from, to, protocol::TCP, len as u16)
    } else {
        let (from, to) = (get_array::<16>(packet, 8).into(), get_array::<16>(packet, 24).into());
        checksum::pseudo_ipv6(from, to, protocol::TCP, len as u32)
    }
}

/// Whether `packet` may be of the flow of a segment: where its ports are not to be had, its addresses say so.
fn same_flow(of: &[u8], packet: &[u8]) -> bool {
    match packet.first().map(|byte| byte >> 4) {
        Some(4) if of[0] == 0x45 && packet.len() >= 24 => {
            let ports = packet[0] == 0x45 && get16(packet, 6) & 0x1fff == 0;
            of[12..20] == packet[12..20]
                && packet[9] == protocol::TCP
                && (!ports || of[20..24] == packet[20..24])
        }
        Some(6) if of[0] >> 4 == 6 && packet.len() >= 44 => {
            of[8..40] == packet[8..40] && (packet[6] != protocol::TCP || of[40..44] == packet[40..44])
        }
        _ => false,
    }
}

/// Whether headers differ only where those of one flow's segments do.
fn same_headers(a: &[u8], b: &[u8], s: &Segment, t: &Segment) -> bool {
    if (s.transport, s.headers) != (t.transport, t.headers) {
        return false;
    }
    let ip = if s.transport == 20 {
        a[..2] == b[..2] && a[6..10] == b[6..10]
    } else {
        a[..4] == b[..4] && a[6..8] == b[6..8]
    };
    let (a, b) = (&a[s.transport..s.headers], &b[s.transport..s.headers]);
    // acknowledgment and data offset; window; urgent pointer and options
    ip && a[8..13] == b[8..13] && a[14..16] == b[14..16] && a[18..] == b[18..]
}
