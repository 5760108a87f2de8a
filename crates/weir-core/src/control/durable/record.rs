//! The state file: what is reserved for each SA that was ever used here, and the counters a dead process left.
//!
//! ```text
//! state file      header 64 B │ record 128 B │ record │ …            written beside, synced, renamed over
//!   header        "weir sa\n" 8 │ version 4 │ record size 4 │ store 16 │ life 8 │ records 8 │ 0 … │ crc 4
//!   record        identity 32 │ way, family 2 │ 0 2 │ spi 4 │ destination 16 │ first iv 8
//!                 sequence 8 │ packets 8 │ bytes 8 │ age 8 │ installed 8 │ used 8 │ 0 … │ crc 4
//! counters file   header 64 B │ 64 B each, as `ipsec::durable::Counters` has them
//!   header        "weir ctr" 8 │ version 4 │ 0 4 │ store 16 │ life 8 │ boot id 16 │ 0 … │ crc 4
//! ```
//!
//! Numbers are little endian. Promises: no byte of a key; a file that is cut, changed in a bit or another
//! program's is refused and never read as an empty one. Refuses: counters of another store, life or boot.

use std::fmt;
use std::net::IpAddr;

use crate::ipsec::Direction;
use crate::ipsec::durable::{Amounts, COUNTERS_LEN, Counters, Identity};
use crate::time::Nanos;

pub const HEADER_LEN: usize = 64;
pub const RECORD_LEN: usize = 128;
const STATE_MAGIC: &[u8; 8] = b"weir sa\n";
const COUNTERS_MAGIC: &[u8; 8] = b"weir ctr";
const VERSION: u32 = 1;

/// What a state directory calls itself: random, drawn when it is made.
pub type StoreId = [u8; 16];
/// One start of the machine, as its kernel names it.
pub type BootId = [u8; 16];

/// One SA that was used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    pub identity: Identity,
    pub direction: Direction,
    pub spi: u32,
    pub destination: IpAddr,
    pub first_iv: u64,
    /// No process has used more.
    pub reserved: Amounts,
    /// How old the SA was when this was written, or will soon be.
    pub age: Nanos,
    /// Seconds since 1970: when it was first installed, and when it was last used.
    pub installed: u64,
    pub used: u64,
}

/// Why a file is no state of ours, as the end of a sentence about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Damaged(pub String);

impl fmt::Display for Damaged {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// What a state file says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct State {
    pub store: StoreId,
    /// How many processes used it.
    pub life: u64,
    pub records: Vec<Record>,
}

/// The header of a state file of `records` records.
pub fn state_header(store: &StoreId, life: u64, records: usize) -> [u8; HEADER_LEN] {
    let mut header = [0; HEADER_LEN];
    header[..8].copy_from_slice(STATE_MAGIC);
    header[8..12].copy_from_slice(&VERSION.to_le_bytes());
    header[12..16].copy_from_slice(&(RECORD_LEN as u32).to_le_bytes());
    header[16..32].copy_from_slice(store);
    header[32..40].copy_from_slice(&life.to_le_bytes());
    header[40..48].copy_from_slice(&(records as u64).to_le_bytes());
    seal(&mut header);
    header
}

impl Record {
    pub fn encode(&self) -> [u8; RECORD_LEN] {
        let mut bytes = [0; RECORD_LEN];
        bytes[..32].copy_from_slice(&self.identity);
        bytes[32] = match self.direction {
            Direction::In => 1,
            Direction::Out => 2,
        };
        bytes[36..40].copy_from_slice(&self.spi.to_le_bytes());
        match self.destination {
            IpAddr::V4(v4) => {
                bytes[33] = 4;
                bytes[40..44].copy_from_slice(&v4.octets());
            }
            IpAddr::V6(v6) => {
                bytes[33] = 6;
                bytes[40..56].copy_from_slice(&v6.octets());
            }
        }
        let Amounts { sequence, packets, bytes: inner } = self.reserved;
        let words = [self.first_iv, sequence, packets, inner, self.age, self.installed, self.used];
        for (into, word) in bytes[56..112].chunks_exact_mut(8).zip(words) {
            into.copy_from_slice(&word.to_le_bytes());
        }
        seal(&mut bytes);
        bytes
    }

    fn decode(bytes: &[u8; RECORD_LEN]) -> Option<Record> {
        let word = |n: usize| u64::from_le_bytes(array(bytes, 56 + 8 * n));
        let direction = match bytes[32] {
            1 => Direction::In,
            2 => Direction::Out,
            _ => return None,
        };
        let destination = match bytes[33] {
            4 => IpAddr::from(array::<4>(bytes, 40)),
            6 => IpAddr::from(array::<16>(bytes, 40)),
            _ => return None,
        };
        Some(Record {
            identity: array(bytes, 0),
            direction,
            spi: u32::from_le_bytes(array(bytes, 36)),
            destination,
            first_iv: word(0),
            reserved: Amounts { sequence: word(1), packets: word(2), bytes: word(3) },
            age: word(4),
            installed: word(5),
            used: word(6),
        })
    }
}

impl State {
    /// Reads a whole state file.
    pub fn decode(file: &[u8]) -> Result<State, Damaged> {
        let damaged = |what: String| Err(Damaged(what));
        let Some((header, rest)) = file.split_first_chunk::<HEADER_LEN>() else {
            return damaged(format!("has {} bytes, expected at least {HEADER_LEN}", file.len()));
        };
        if header[..8] != *STATE_MAGIC {
            return damaged("is not a state file of weir".into());
        }
        let version = u32::from_le_bytes(array(header, 8));
        if version != VERSION {
            return damaged(format!("is of version {version}, expected {VERSION}"));
        }
        if !is_whole(header) {
            return damaged("has a wrong checksum in its header".into());
        }
        let count = u64::from_le_bytes(array(header, 40));
        let (records, tail) = rest.as_chunks::<RECORD_LEN>();
        if records.len() as u64 != count || !tail.is_empty() {
            return damaged(format!(
                "has {} bytes behind its header, expected {count} records of {RECORD_LEN}",
                rest.len()
            ));
        }
        let read = |(n, bytes): (usize, &[u8; RECORD_LEN])| {
            let wrong = || Damaged(format!("has a wrong checksum in record {} of {count}", n + 1));
            if is_whole(bytes) { Record::decode(bytes).ok_or_else(wrong) } else { Err(wrong()) }
        };
        let records: Result<Vec<Record>, Damaged> = records.iter().enumerate().map(read).collect();
        Ok(State { store: array(header, 16), life: u64::from_le_bytes(array(header, 32)), records: records? })
    }
}

/// The header of a counters file.
pub fn counters_header(store: &StoreId, life: u64, boot: &BootId) -> [u8; HEADER_LEN] {
    let mut header = [0; HEADER_LEN];
    header[..8].copy_from_slice(COUNTERS_MAGIC);
    header[8..12].copy_from_slice(&VERSION.to_le_bytes());
    header[16..32].copy_from_slice(store);
    header[32..40].copy_from_slice(&life.to_le_bytes());
    header[40..56].copy_from_slice(boot);
    seal(&mut header);
    header
}

/// The counters a process left that died in this boot, having been the last to use this store.
pub fn counters_of(file: &[u8], state: &State, boot: &BootId) -> Option<Vec<(Identity, Amounts)>> {
    let (header, rest) = file.split_first_chunk::<HEADER_LEN>()?;
    let expected = counters_header(&state.store, state.life, boot);
    let (counters, _) = rest.as_chunks::<COUNTERS_LEN>();
    (*header == expected).then(|| counters.iter().filter_map(Counters::read).collect())
}

/// Writes the checksum of all before it into the last four bytes.
fn seal(bytes: &mut [u8]) {
    let at = bytes.len() - 4;
    let sum = crc32(&bytes[..at]);
    bytes[at..].copy_from_slice(&sum.to_le_bytes());
}

fn is_whole(bytes: &[u8]) -> bool {
    let at = bytes.len() - 4;
    bytes[at..] == crc32(&bytes[..at]).to_le_bytes()
}

fn array<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    std::array::from_fn(|i| bytes[at + i])
}

/// CRC-32 as Ethernet has it (IEEE 802.3, reflected).
fn crc32(bytes: &[u8]) -> u32 {
    const TABLE: [u32; 256] = {
        let mut table = [0; 256];
        let mut n = 0;
        while n < 256 {
            let mut c = n as u32;
            let mut bit = 0;
            while bit < 8 {
                c = if c & 1 != 0 { 0xedb8_8320 ^ (c >> 1) } else { c >> 1 };
                bit += 1;
            }
            table[n] = c;
            n += 1;
        }
        table
    };
    !bytes.iter().fold(!0, |crc, &b| TABLE[usize::from(crc as u8 ^ b)] ^ (crc >> 8))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(n: u8, destination: &str) -> Record {
        Record {
            identity: [n; 32],
            direction: if n.is_multiple_of(2) { Direction::Out } else { Direction::In },
            spi: 0x1000 + u32::from(n),
            destination: destination.parse().expect("an address"),
            first_iv: 1 << 63 | 5,
            reserved: Amounts { sequence: 7 << 32, packets: 9, bytes: 1 << 40 },
            age: 77,
            installed: 1_800_000_000,
            used: 1_800_000_001,
        }
    }

    fn file() -> Vec<u8> {
        let records = [record(1, "192.0.2.1"), record(2, "2001:db8::1")];
        let mut file = state_header(&[7; 16], 3, records.len()).to_vec();
        records.iter().for_each(|r| file.extend(r.encode()));
        file
    }

    #[test]
    fn the_checksum_is_the_one_everybody_has() {
        assert_eq!(crc32(b"123456789"), 0xcbf4_3926);
    }

    #[test]
    fn a_state_file_reads_back() {
        let state = State::decode(&file()).expect("whole");
        assert_eq!((state.store, state.life), ([7; 16], 3));
        assert_eq!(state.records, [record(1, "192.0.2.1"), record(2, "2001:db8::1")]);
    }

    #[test]
    fn every_cut_and_every_changed_bit_is_refused() {
        let whole = file();
        for len in 0..whole.len() {
            assert!(State::decode(&whole[..len]).is_err(), "{len} bytes");
        }
        for bit in 0..whole.len() * 8 {
            let mut changed = whole.clone();
            changed[bit / 8] ^= 1 << (bit % 8);
            assert!(State::decode(&changed).is_err(), "bit {bit}");
        }
        let longer = [whole.as_slice(), &[0]].concat();
        assert!(State::decode(&longer).is_err());
    }

    #[test]
    fn counters_count_only_in_the_boot_and_life_they_are_of() {
        let state = State { store: [7; 16], life: 3, records: Vec::new() };
        let of = |store, life, boot| {
            let mut file = counters_header(&store, life, &boot).to_vec();
            file.extend([0; COUNTERS_LEN]);
            counters_of(&file, &state, &[1; 16])
        };
        assert_eq!(of([7; 16], 3, [1; 16]), Some(Vec::new()), "no counters of any SA");
        assert_eq!(of([7; 16], 3, [2; 16]), None, "another boot");
        assert_eq!(of([7; 16], 2, [1; 16]), None, "another life");
        assert_eq!(of([8; 16], 3, [1; 16]), None, "another store");
        assert_eq!(counters_of(&[0; 30], &state, &[1; 16]), None, "cut");
    }
}
