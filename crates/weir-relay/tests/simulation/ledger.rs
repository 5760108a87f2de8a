//! What was sent, what came, and what must be true of both.
//!
//! Every packet carries who sent it, for whom, and its number among those of its class for that receiver. So whoever gets one
//! can say whether it is whole, was meant for it, and in order.

use std::collections::BTreeMap;
use std::sync::OnceLock;

use weir_core::relay::frame::is_disco;
use weir_core::relay::{Class, Key};

const DISCO: [u8; 6] = [0x54, 0x53, 0xf0, 0x9f, 0x92, 0xac];
/// Class, sender, number, receiver.
pub const LEAST: usize = 6 + 8 + 8 + 32;

#[derive(Default)]
pub struct Ledger {
    /// Numbers given, by sender's connection, receiver's key and class.
    sent: BTreeMap<(u64, Key, Class), u64>,
    /// Numbers come, by sender's connection, receiver's connection and class: the next one at least, and how many came.
    came: BTreeMap<(u64, u64, Class), (u64, u64)>,
    pub packets_sent: u64,
    pub packets_came: u64,
}

/// What a packet's data is filled up with: it begins elsewhere for each.
fn filling(seed: u64, length: usize) -> &'static [u8] {
    static BYTES: OnceLock<Vec<u8>> = OnceLock::new();
    let bytes = BYTES.get_or_init(|| (0..70_000_u32).map(|n| (n * 7 + (n >> 8)) as u8).collect());
    let from = seed.wrapping_mul(31) as usize % 1024;
    &bytes[from..from + length]
}

impl Ledger {
    /// The data of the next packet, of at least `length` bytes as far as it needs them.
    pub fn packet(&mut self, sender: u64, to: Key, class: Class, length: usize) -> Vec<u8> {
        let number = self.sent.entry((sender, to, class)).or_default();
        let mut data = Vec::with_capacity(length.max(62));
        data.extend_from_slice(if class == Class::Disco { &DISCO } else { &[0; 6] });
        data.extend_from_slice(&sender.to_be_bytes());
        data.extend_from_slice(&number.to_be_bytes());
        data.extend_from_slice(&to.0);
        let least = if class == Class::Disco { 62 } else { LEAST };
        data.extend_from_slice(filling(*number ^ sender, length.max(least) - LEAST));
        *number += 1;
        self.packets_sent += 1;
        data
    }

    /// `receiver`, a connection of `key`, got this.
    pub fn came(&mut self, receiver: u64, key: Key, data: &[u8]) {
        assert!(data.len() >= LEAST, "a packet of {} bytes was never sent", data.len());
        let word = |at: usize| u64::from_be_bytes(data[at..at + 8].try_into().expect("eight bytes"));
        let (sender, number) = (word(6), word(14));
        let class = if is_disco(data) { Class::Disco } else { Class::Data };
        let to = Key::from_slice(&data[22..LEAST]).expect("a key");
        assert_eq!(to, key, "a packet came to whom it was not sent");
        let sent = self.sent.get(&(sender, to, class)).copied().unwrap_or(0);
        assert!(number < sent, "packet {number} of {sender} came, {sent} were sent");
        let sound = data[LEAST..] == *filling(number ^ sender, data.len() - LEAST);
        assert!(sound, "packet {number} of {sender}, {} bytes, was changed", data.len());
        let (next, count) = self.came.entry((sender, receiver, class)).or_default();
        assert!(number >= *next, "packet {number} of {sender} came again, or after {next}");
        (*next, *count) = (number + 1, *count + 1);
        self.packets_came += 1;
    }

    /// Asserts that of each pair what came is what was sent, from the first to the last.
    pub fn assert_all_came(&self, receivers: &BTreeMap<Key, u64>) {
        for (&(sender, to, class), &sent) in &self.sent {
            let Some(&receiver) = receivers.get(&to) else { continue };
            let came = self.came.get(&(sender, receiver, class)).map_or(0, |came| came.1);
            assert_eq!(came, sent, "{class:?} from {sender} to {to}");
        }
    }
}
