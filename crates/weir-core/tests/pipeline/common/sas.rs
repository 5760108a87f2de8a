//! SAs for tests: both ends of one, with repeatable keys and weir-io's portable ciphers.

use std::net::IpAddr;
use std::sync::Arc;

use weir_core::ipsec::esp::{self, Outcome};
use weir_core::ipsec::sa::UdpPorts;
use weir_core::ipsec::{Direction, Keys, Mode, Params, Sa, SaId, SaState, Secret, Suite};
use weir_core::packet::{BUFFER_SIZE, DeviceId, Frame};
use weir_core::time::Nanos;
use weir_core::verdict::Reason;
use weir_core::wire::{Ipv4, Ipv6};

pub type Heap = Box<[u8]>;

pub const SPI: u32 = 0x1001;
pub const LEFT4: &str = "192.0.2.1";
pub const RIGHT4: &str = "192.0.2.2";
pub const LEFT6: &str = "2001:db8::1";
pub const RIGHT6: &str = "2001:db8::2";

pub fn address(text: &str) -> IpAddr {
    text.parse().expect("an address")
}

/// An outbound tunnel from left to right, of IPv4 packets on the outside.
pub fn params(suite: Suite) -> Params {
    Params::new(Direction::Out, SPI, Mode::Tunnel, (address(LEFT4), address(RIGHT4)), suite)
}

pub fn gcm() -> Params {
    params(Suite::AES_GCM_128)
}

pub fn outside6(params: Params) -> Params {
    Params { source: address(LEFT6), destination: address(RIGHT6), ..params }
}

pub fn in_udp(params: Params) -> Params {
    Params { udp: Some(UdpPorts { source: 4500, destination: 4500 }), ..params }
}

pub fn transport(params: Params) -> Params {
    Params { mode: Mode::Transport, ..params }
}

pub fn keys(suite: Suite) -> Keys {
    let bytes = |len: usize| Secret::new((0..len).map(|i| (i * 37 + 11) as u8).collect());
    Keys {
        encryption: bytes(suite.encryption().key_len() + suite.encryption().salt_len()),
        integrity: bytes(suite.integrity().map_or(0, |i| i.key_len())),
    }
}

pub fn sa(params: Params) -> Sa {
    let keys = keys(params.suite);
    let cipher = weir_io::cipher::portable().cipher(params.suite, params.esn, &keys).expect("a cipher");
    let state = Arc::new(SaState::new(&params, 0));
    Sa::new(SaId(0), "test".to_string(), params, cipher, state)
}

/// The sender's SA and the receiver's.
pub fn pair(params: Params) -> (Sa, Sa) {
    (sa(params.clone()), sa(Params { direction: Direction::In, ..params }))
}

pub fn frame(packet: &[u8]) -> Frame<Heap> {
    let size = BUFFER_SIZE.max(packet.len() + 1024);
    Frame::from_bytes(vec![0xee; size].into(), packet, DeviceId(0)).expect("fits")
}

/// What becomes of each packet, alone in its batch.
pub fn seal(sa: &Sa, packet: &[u8]) -> Result<Vec<u8>, Reason> {
    seal_all(sa, 0, &[packet]).remove(0)
}

/// SPI and destination of a packet that carries ESP right behind its IP header, plain or in UDP.
pub fn spi_of(packet: &[u8], udp_ports: &[u16]) -> Option<(u32, IpAddr)> {
    let (destination, carried, payload) = match packet.first()? >> 4 {
        4 => {
            let ip = Ipv4::parse_header(packet).ok()?;
            (ip.dst().into(), ip.protocol(), packet.get(ip.header_len()..)?)
        }
        _ => {
            let ip = Ipv6::parse_header(packet).ok()?;
            let chain = ip.chain().ok()?;
            (ip.dst().into(), chain.protocol, packet.get(chain.offset..)?)
        }
    };
    Some((esp::spi_of(carried, payload, udp_ports)?, destination))
}

pub fn open(sa: &Sa, packet: &[u8]) -> Result<Vec<u8>, Reason> {
    open_all(sa, 0, &[packet]).remove(0)
}

pub fn seal_all<P: AsRef<[u8]>>(sa: &Sa, now: Nanos, packets: &[P]) -> Vec<Result<Vec<u8>, Reason>> {
    run(packets, |frames, outcomes| {
        esp::seal(sa, now, frames, outcomes);
    })
}

pub fn open_all<P: AsRef<[u8]>>(sa: &Sa, now: Nanos, packets: &[P]) -> Vec<Result<Vec<u8>, Reason>> {
    run(packets, |frames, outcomes| {
        let opened = esp::open(sa, now, frames, outcomes);
        let done = frames.iter().zip(outcomes).filter(|(_, outcome)| **outcome == Outcome::Done);
        let done: Vec<_> = done.map(|(frame, _)| frame.data()).collect();
        let bytes: usize = done.iter().map(|packet| packet.len()).sum();
        assert_eq!((opened.packets, opened.bytes), (done.len(), bytes as u64));
        let is_common = |packet: &&&[u8]| sa.params.mode == Mode::Tunnel && packet[0] == 0x45;
        assert_eq!(opened.common, done.iter().filter(is_common).count());
    })
}

fn run<P: AsRef<[u8]>>(
    packets: &[P],
    work: impl Fn(&mut [Frame<Heap>], &mut [Outcome]),
) -> Vec<Result<Vec<u8>, Reason>> {
    let mut frames: Vec<_> = packets.iter().map(|packet| frame(packet.as_ref())).collect();
    let mut outcomes = vec![Outcome::Lost(Reason::NoBuffer); frames.len()];
    work(&mut frames, &mut outcomes);
    let results = frames.iter().zip(outcomes);
    results
        .map(|(frame, outcome)| match outcome {
            Outcome::Done => Ok(frame.data().to_vec()),
            Outcome::Lost(reason) => Err(reason),
        })
        .collect()
}

/// An ESP packet of `sa`'s kind around any plaintext: `body` is what is encrypted, trailer included.
pub fn forge(sa: &Sa, sequence: u64, body: &[u8]) -> Vec<u8> {
    use weir_core::ipsec::Job;
    use weir_core::wire::build;
    let suite = sa.params.suite;
    let mut packet = sa.params.spi.to_be_bytes().to_vec();
    packet.extend((sequence as u32).to_be_bytes());
    packet.resize(8 + suite.iv_len(), 0);
    packet.extend_from_slice(body);
    packet.resize(packet.len() + suite.icv_len(), 0);
    sa.cipher.seal(&mut [Job { packet: &mut packet, sequence, authentic: false }]);
    let frame = build::Frame::ip(sa.params.source, sa.params.destination).expect("of one family");
    frame.packet().raw(50, &packet)
}

/// Pads as RFC 4303 2.4 does, to the suite's alignment.
pub fn padded(suite: Suite, payload: &[u8], next: u8) -> Vec<u8> {
    let mut body = payload.to_vec();
    let pad = (body.len() + 2).next_multiple_of(suite.alignment()) - 2 - body.len();
    body.extend(1..=pad as u8);
    body.extend([pad as u8, next]);
    body
}

pub fn packet4(len: usize) -> Vec<u8> {
    let frame = weir_core::wire::build::Frame::ipv4([10, 1, 0, 1].into(), [10, 2, 0, 1].into());
    let payload: Vec<u8> = (0..len.saturating_sub(28)).map(|i| i as u8).collect();
    frame.packet().udp(1000, 2000, &payload)
}

pub fn packet6(len: usize) -> Vec<u8> {
    let frame = weir_core::wire::build::Frame::ipv6([0x20; 16].into(), [0x30; 16].into());
    let payload: Vec<u8> = (0..len.saturating_sub(48)).map(|i| i as u8).collect();
    frame.packet().udp(1000, 2000, &payload)
}
