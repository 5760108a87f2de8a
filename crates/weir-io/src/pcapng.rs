//! pcapng, written: packets of several ports in one file, each with a comment.
//!
//! ```text
//! section header │ interface (a port's name, link type) │ packet, comment │ packet, comment │ interface │ packet …
//! ```
//!
//! Promises: every block is handed on in one piece, so that a file whose writer was killed holds whole blocks as far as
//! the kernel took them; times are nanoseconds. Source: draft-ietf-opsawg-pcapng.

use std::io::{self, Write};

const SECTION_HEADER: u32 = 0x0a0d_0d0a;
const BYTE_ORDER: u32 = 0x1a2b_3c4d;
const INTERFACE: u32 = 1;
const ENHANCED_PACKET: u32 = 6;
/// Options: the end, a comment, a section's program, an interface's name and the unit of its times.
const END: u16 = 0;
const COMMENT: u16 = 1;
const PROGRAM: u16 = 4;
const NAME: u16 = 2;
const RESOLUTION: u16 = 9;
/// Units of 10⁻⁹ s.
const NANOSECONDS: u8 = 9;

/// What a packet begins with, as the registry of link types numbers it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub enum LinkType {
    Ethernet = 1,
    /// The IP header.
    Raw = 101,
}

/// A packet to be written.
#[derive(Clone, Copy, Debug)]
pub struct Packet<'a> {
    /// What the port is called.
    pub port: &'a str,
    pub link: LinkType,
    /// Nanoseconds since 1970.
    pub time_ns: u64,
    /// How long it was; `bytes` may hold less.
    pub length: usize,
    pub bytes: &'a [u8],
    pub comment: &'a str,
}

/// A capture that is being written.
#[derive(Debug)]
pub struct Pcapng<W> {
    out: W,
    /// A port has one for each link type.
    interfaces: Vec<(String, LinkType)>,
    /// Bytes of whole blocks.
    whole: u64,
}

impl<W: Write> Pcapng<W> {
    /// Begins a capture that `program` makes.
    pub fn new(out: W, program: &str) -> io::Result<Pcapng<W>> {
        let mut pcapng = Pcapng { out, interfaces: Vec::new(), whole: 0 };
        let mut body = Vec::new();
        body.extend(BYTE_ORDER.to_ne_bytes());
        // Version 1.0, of a length that is not known yet.
        body.extend([1u16, 0].map(u16::to_ne_bytes).concat());
        body.extend((-1i64).to_ne_bytes());
        option(&mut body, PROGRAM, program.as_bytes());
        option(&mut body, END, &[]);
        pcapng.block(SECTION_HEADER, &body)?;
        Ok(pcapng)
    }

    /// Adds a packet, and its port where that is new.
    pub fn write(&mut self, packet: &Packet<'_>) -> io::Result<()> {
        let known =
            self.interfaces.iter().position(|(name, link)| name == packet.port && *link == packet.link);
        let interface = match known {
            Some(interface) => interface,
            None => self.interface(packet.port, packet.link)?,
        };
        let mut body = Vec::with_capacity(64 + packet.bytes.len() + packet.comment.len());
        let time = packet.time_ns;
        let fixed = [
            interface,
            (time >> 32) as usize,
            (time & 0xffff_ffff) as usize,
            packet.bytes.len(),
            packet.length,
        ];
        fixed.iter().for_each(|&field| body.extend((field as u32).to_ne_bytes()));
        body.extend(packet.bytes);
        pad(&mut body);
        option(&mut body, COMMENT, packet.comment.as_bytes());
        option(&mut body, END, &[]);
        self.block(ENHANCED_PACKET, &body)
    }

    /// How many bytes of the output are whole blocks, should the last write have failed.
    pub fn whole(&self) -> u64 {
        self.whole
    }

    pub fn get_ref(&self) -> &W {
        &self.out
    }

    fn interface(&mut self, port: &str, link: LinkType) -> io::Result<usize> {
        let mut body = Vec::new();
        body.extend([link as u16, 0].map(u16::to_ne_bytes).concat());
        // No limit of our own: a packet says its length.
        body.extend(0u32.to_ne_bytes());
        option(&mut body, NAME, port.as_bytes());
        option(&mut body, RESOLUTION, &[NANOSECONDS]);
        option(&mut body, END, &[]);
        self.block(INTERFACE, &body)?;
        self.interfaces.push((port.to_owned(), link));
        Ok(self.interfaces.len() - 1)
    }

    /// Type, length, body, length again.
    fn block(&mut self, kind: u32, body: &[u8]) -> io::Result<()> {
        let length = (body.len() + 12) as u32;
        let mut block = Vec::with_capacity(length as usize);
        block.extend(kind.to_ne_bytes());
        block.extend(length.to_ne_bytes());
        block.extend(body);
        block.extend(length.to_ne_bytes());
        self.out.write_all(&block)?;
        self.out.flush()?;
        self.whole += u64::from(length);
        Ok(())
    }
}

fn option(body: &mut Vec<u8>, code: u16, value: &[u8]) {
    let value = &value[..value.len().min(usize::from(u16::MAX))];
    body.extend(code.to_ne_bytes());
    body.extend((value.len() as u16).to_ne_bytes());
    body.extend(value);
    pad(body);
}

/// Fields and blocks end at multiples of four bytes.
fn pad(body: &mut Vec<u8>) {
    body.resize(body.len().next_multiple_of(4), 0);
}

#[cfg(test)]
mod tests {
    use pcap_file::pcapng::blocks::enhanced_packet::EnhancedPacketOption;
    use pcap_file::pcapng::blocks::interface_description::InterfaceDescriptionOption;
    use pcap_file::pcapng::{Block, PcapNgReader};

    use super::*;

    fn packet<'a>(port: &'a str, link: LinkType, bytes: &'a [u8]) -> Packet<'a> {
        Packet {
            port,
            link,
            time_ns: 1_700_000_000_123_456_789,
            length: 99,
            bytes,
            comment: "no_route: none",
        }
    }

    #[test]
    fn another_reader_finds_what_was_written() {
        let mut written = Vec::new();
        let mut pcapng = Pcapng::new(&mut written, "weir").expect("memory");
        for (port, link, bytes) in [
            ("lan", LinkType::Ethernet, &[1, 2, 3][..]),
            ("wan", LinkType::Raw, &[4, 5, 6, 7]),
            ("lan", LinkType::Ethernet, &[]),
        ] {
            pcapng.write(&packet(port, link, bytes)).expect("memory");
        }
        assert_eq!(pcapng.whole(), pcapng.get_ref().len() as u64);
        let mut reader = PcapNgReader::new(&written[..]).expect("a section header");
        let (mut ports, mut packets) = (Vec::new(), Vec::new());
        while let Some(block) = reader.next_block() {
            match block.expect("a whole block") {
                Block::InterfaceDescription(port) => {
                    let name = port.options.iter().find_map(|option| match option {
                        InterfaceDescriptionOption::IfName(name) => Some(name.to_string()),
                        _ => None,
                    });
                    ports.push((name.expect("a name"), u32::from(port.linktype)));
                }
                Block::EnhancedPacket(packet) => {
                    let comment = EnhancedPacketOption::Comment("no_route: none".into());
                    assert_eq!((packet.original_len, &packet.options[..]), (99, &[comment][..]));
                    packets.push((packet.interface_id, packet.data.to_vec()));
                }
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(ports, [("lan".to_owned(), 1), ("wan".to_owned(), 101)]);
        assert_eq!(packets, [(0, vec![1, 2, 3]), (1, vec![4, 5, 6, 7]), (0, vec![])]);
    }

    /// Takes so many bytes, then there is no room.
    struct Full(usize);

    impl Write for Full {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let taken = bytes.len().min(self.0);
            self.0 -= taken;
            if taken == 0 { Err(io::ErrorKind::StorageFull.into()) } else { Ok(taken) }
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_full_disk_leaves_a_number_of_whole_blocks() {
        let mut pcapng = Pcapng::new(Full(200), "weir").expect("room");
        let frame = [0; 60];
        let written =
            (0..).take_while(|_| pcapng.write(&packet("lan", LinkType::Ethernet, &frame)).is_ok()).count();
        assert_eq!(written, 1, "the second packet does not fit");
        assert!(pcapng.whole() > 0 && pcapng.whole() < 200, "{}", pcapng.whole());
    }
}
