//! What is on the wire between the gateways, all the time: whether anything of the left network is in cleartext, and
//! whether a nonce or a sequence number comes twice.
//!
//! ```text
//! Ethernet │ IPv4 or IPv6 │ [UDP 4500] │ SPI (4) │ sequence number (4) │ IV (8) │ …      RFC 4303, RFC 4106, RFC 3948
//! ```

use std::collections::{BTreeSet, HashSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use weir::testing::testbed::Wire;

use crate::testbed::{Testbed, ip};

const UDP: u8 = 17;
const ESP: u8 = 50;
/// IKE's port.
const IKE: [u8; 2] = 500_u16.to_be_bytes();
/// The port of ESP in UDP.
const IN_UDP: [u8; 2] = 4500_u16.to_be_bytes();

/// Seen so far.
#[derive(Debug, Default)]
pub struct Seen {
    /// Packets of ESP.
    pub esp: u64,
    /// Sources and destinations of packets that went as they are, from a network behind a gateway.
    pub clear: BTreeSet<(IpAddr, IpAddr)>,
    /// Outer addresses of ESP.
    pub ends: BTreeSet<(IpAddr, IpAddr)>,
    /// SPI and IV that came with an SA's key for a second time.
    pub repeated: Vec<(u32, [u8; 8])>,
    /// SPI and sequence number that came for a second time.
    pub repeated_numbers: Vec<(u32, u32)>,
    nonces: HashSet<(u32, [u8; 8])>,
    numbers: HashSet<(u32, u32)>,
}

impl Seen {
    fn take(&mut self, frame: &[u8]) {
        let Some(((source, destination), protocol, payload)) = packet(frame) else { return };
        let within = |address: IpAddr| match address {
            IpAddr::V4(v4) => v4.octets().starts_with(&[10, 1]),
            IpAddr::V6(v6) => v6.octets().starts_with(&[0xfd, 1]),
        };
        // MOBIKE tries every address of a gateway (RFC 4555), that towards its network among them.
        if within(source) && !is_ike(protocol, payload) {
            self.clear.insert((source, destination));
        }
        let esp = match protocol {
            ESP => payload,
            UDP if payload.get(2..4) == Some(&IN_UDP) => payload.get(8..).unwrap_or_default(),
            _ => return,
        };
        let (Some((spi, rest)), Some(iv)) =
            (esp.split_first_chunk::<4>(), esp.get(8..16).and_then(|iv| <[u8; 8]>::try_from(iv).ok()))
        else {
            return;
        };
        let spi = u32::from_be_bytes(*spi);
        // IKE has zeros there, and what is shorter keeps a NAT's mapping.
        if spi == 0 || rest.is_empty() {
            return;
        }
        self.esp += 1;
        self.ends.insert((source, destination));
        let number = rest.first_chunk::<4>().map_or(0, |number| u32::from_be_bytes(*number));
        if !self.numbers.insert((spi, number)) {
            self.repeated_numbers.push((spi, number));
        }
        if !self.nonces.insert((spi, iv)) {
            self.repeated.push((spi, iv));
        }
    }
}

/// Whether it is IKE's own: to its port, or to that of ESP with zeros where an SPI would be (RFC 3948).
fn is_ike(protocol: u8, payload: &[u8]) -> bool {
    let to = payload.get(2..4);
    let marked = to == Some(&IN_UDP) && payload.get(8..12) == Some(&[0; 4]);
    protocol == UDP && (to == Some(&IKE) || marked)
}

/// Addresses, protocol and payload of an IP packet without options or extension headers.
fn packet(frame: &[u8]) -> Option<((IpAddr, IpAddr), u8, &[u8])> {
    let (kind, ip) = (frame.get(12..14)?, frame.get(14..)?);
    match kind {
        [8, 0] => {
            let address = |at: usize| Some(IpAddr::from(<[u8; 4]>::try_from(ip.get(at..at + 4)?).ok()?));
            Some(((address(12)?, address(16)?), *ip.get(9)?, ip.get(20..)?))
        }
        [0x86, 0xdd] => {
            let address = |at: usize| Some(IpAddr::from(<[u8; 16]>::try_from(ip.get(at..at + 16)?).ok()?));
            Some(((address(8)?, address(24)?), *ip.get(6)?, ip.get(40..)?))
        }
        _ => None,
    }
}

/// Listens until it is asked.
pub struct Watch {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<Seen>>,
}

impl Watch {
    /// In the middle of the wire, of a [`Testbed::watched`].
    pub fn begin(testbed: &Testbed) -> Watch {
        let middle = testbed.middle.as_ref().expect("a testbed with a middle");
        let mut wires = ["ml", "mr"].map(|end| Wire::open(middle, end));
        let stop = Arc::new(AtomicBool::new(false));
        let stops = Arc::clone(&stop);
        let thread = thread::spawn(move || {
            let mut seen = Seen::default();
            loop {
                let last = stops.load(Ordering::Acquire);
                let heard: Vec<Vec<u8>> = wires.iter_mut().flat_map(Wire::heard).collect();
                heard.iter().for_each(|frame| seen.take(frame));
                match heard.is_empty() {
                    true if last => return seen,
                    true => thread::sleep(Duration::from_millis(2)),
                    false => {}
                }
            }
        });
        Watch { stop, thread: Some(thread) }
    }

    /// Ends: nothing was in cleartext, and no nonce and no number came twice.
    pub fn end_well(mut self) -> Seen {
        self.stop.store(true, Ordering::Release);
        let seen = self.thread.take().expect("not ended yet").join().expect("it does not panic");
        assert!(seen.clear.is_empty(), "in cleartext: {:?}", seen.clear);
        assert!(seen.repeated.is_empty(), "nonces that came twice: {:?}", seen.repeated);
        assert!(seen.repeated_numbers.is_empty(), "numbers that came twice: {:?}", seen.repeated_numbers);
        assert!(seen.esp > 0, "no ESP was seen");
        seen
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        // Its panic would have been told where it was asked.
        self.thread.take().map(JoinHandle::join);
    }
}

/// The bytes of the layers, so that a watch that sees nothing is not taken for a wire without cleartext.
#[test]
fn what_is_in_cleartext_and_what_repeats_a_nonce_is_told_apart() {
    let frame = |source: [u8; 4], protocol: u8, payload: &[u8]| {
        let mut frame = vec![0; 12];
        frame.extend([8, 0, 0x45, 0, 0, 0, 0, 0, 0, 0, 64, protocol, 0, 0]);
        frame.extend(source);
        frame.extend([192, 0, 2, 2]);
        frame.extend(payload);
        frame
    };
    let esp = |number: u8| [0, 0, 16, 1, 0, 0, 0, number, 0, 0, 0, 0, 0, 0, 0, number, 1, 2, 3, 4];
    let mut in_udp = vec![0x11, 0x94, 0x11, 0x94, 0, 0, 0, 0];
    in_udp.extend(esp(2));
    let mut seen = Seen::default();
    seen.take(&frame([192, 0, 2, 1], ESP, &esp(1)));
    seen.take(&frame([192, 0, 2, 1], UDP, &in_udp));
    assert_eq!((seen.esp, seen.clear.len(), seen.repeated.len()), (2, 0, 0));
    let (mut ike, mut marked) = ([0; 40], [0; 40]);
    ike[2..4].copy_from_slice(&IKE);
    marked[2..4].copy_from_slice(&IN_UDP);
    seen.take(&frame([10, 1, 0, 1], UDP, &ike));
    seen.take(&frame([10, 1, 0, 1], UDP, &marked));
    assert_eq!((seen.esp, seen.clear.len()), (2, 0), "IKE is in cleartext, and may come from any address");
    seen.take(&frame([10, 1, 0, 2], UDP, &[0; 20]));
    seen.take(&frame([192, 0, 2, 1], ESP, &esp(2)));
    assert_eq!((seen.esp, seen.repeated.len(), seen.repeated_numbers.len()), (3, 1, 1));
    assert_eq!(seen.clear, BTreeSet::from([(ip("10.1.0.2"), ip("192.0.2.2"))]));
}
