//! Whoever is at the other end of a connection: a client that keeps to the protocol, at its own pace, or one that does not.

use weir_core::random::SplitMix64;
use weir_core::relay::frame::Gone;
use weir_core::relay::{Class, Frame, Key, Kind};
use weir_relay::Role;

use crate::codec::{Codec, message};
use crate::ledger::Ledger;
use crate::streams::Link;

/// Bytes on their way to the relay: a peer with more waits.
const UP_MOST: usize = 200_000;

/// How fast a peer reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pace {
    Eager,
    Slow,
    Never,
}

/// What is wrong with a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attack {
    Garbage,
    /// A frame that its type does not allow.
    Malformed,
    /// A frame of the mesh, without its key.
    NotMesh,
    /// A record that does not authenticate, or is none.
    Records,
    /// Wishes for new keys, or messages without data, without end.
    KeyUpdates,
    /// A WebSocket frame that a client may not send.
    Messages,
    /// Asks without end and reads no answer.
    Asks,
    /// The beginning of a frame, and no more.
    Half,
}

impl Attack {
    pub const ALL: [Attack; 8] = [
        Attack::Garbage,
        Attack::Malformed,
        Attack::NotMesh,
        Attack::Records,
        Attack::KeyUpdates,
        Attack::Messages,
        Attack::Asks,
        Attack::Half,
    ];
}

pub struct Peer {
    pub key: Key,
    pub role: Role,
    pub pace: Pace,
    pub attack: Option<Attack>,
    /// A relay of the mesh that loses and finds peers, and closes others'.
    pub unsteady: bool,
    pub connected: Option<Connected>,
}

/// A peer's connection.
pub struct Connected {
    pub link: u64,
    /// Never given twice.
    pub number: u64,
    pub codec: Codec,
    greeted: bool,
    pub sends: bool,
}

impl Connected {
    pub fn new(link: u64, number: u64, codec: Codec) -> Connected {
        Connected { link, number, codec, greeted: false, sends: true }
    }
}

fn bytes(frame: &Frame<'_>) -> Vec<u8> {
    let mut bytes = Vec::new();
    frame.write(&mut bytes);
    bytes
}

/// A packet's length: mostly that of a tunnel's, sometimes any.
fn length(random: &mut SplitMix64) -> usize {
    match random.below(24) {
        0 => random.below(60_000) as usize,
        1..6 => random.below(200) as usize,
        _ => 1400,
    }
}

impl Peer {
    /// Frames of a peer that keeps to the protocol.
    pub fn frames(&self, number: u64, keys: &[Key], ledger: &mut Ledger, random: &mut SplitMix64) -> Vec<u8> {
        let mut out = Vec::new();
        for _ in 0..1 + random.below(12) {
            let to = keys[random.below(keys.len() as u64) as usize];
            // A run for one receiver, as tunnels send.
            for _ in 0..1 + random.below(4) {
                let class = if random.below(8) == 0 { Class::Disco } else { Class::Data };
                let length =
                    if class == Class::Disco { 62 + random.below(60) as usize } else { length(random) };
                match self.role {
                    Role::Dialled => break,
                    Role::Mesh => {
                        let data = ledger.packet(number, to, class, length);
                        Frame::ForwardPacket(self.key, to, &data).write(&mut out);
                    }
                    Role::Client => {
                        Frame::SendPacket(to, &ledger.packet(number, to, class, length)).write(&mut out);
                    }
                }
            }
            match random.below(12) {
                0 => Frame::Ping(b"any text").write(&mut out),
                1 => Frame::NotePreferred(random.below(2) == 0).write(&mut out),
                2 if self.unsteady && self.role == Role::Dialled => {
                    let frame = match random.below(2) {
                        0 => Frame::PeerGone(self.key, Gone::NotHere),
                        _ => Frame::PeerPresent(self.key, None),
                    };
                    frame.write(&mut out);
                }
                3 if self.unsteady && self.role == Role::Mesh && random.below(4) == 0 => {
                    Frame::ClosePeer(to).write(&mut out);
                }
                4 => {
                    let skipped = random.below(300) as usize;
                    out.push(0x7f);
                    out.extend_from_slice(&(skipped as u32).to_be_bytes());
                    out.resize(out.len() + skipped, 4);
                }
                _ => {}
            }
        }
        out
    }

    /// One thing a peer does with its connection.
    pub fn act(&mut self, keys: &[Key], link: &mut Link, ledger: &mut Ledger, random: &mut SplitMix64) {
        let Some(mut connected) = self.connected.take() else { return };
        if link.up.len() < UP_MOST && connected.sends && random.below(2) == 0 {
            let out = match self.attack {
                Some(attack) if random.below(3) == 0 => attack.bytes(&mut connected.codec, random),
                Some(Attack::Asks) => {
                    let frames = bytes(&Frame::Ping(b"any text")).repeat(200);
                    connected.codec.encode(&frames, random)
                }
                _ => {
                    let frames = self.frames(connected.number, keys, ledger, random);
                    connected.codec.encode(&frames, random)
                }
            };
            link.up.extend(out);
            if random.below(40) == 0
                && let Some(tls) = &mut connected.codec.tls
            {
                let mut update = Vec::new();
                // In TLS 1.2 there is none.
                if tls.update_with(random.below(2) == 0, &mut update).is_ok() {
                    link.up.extend(update);
                }
            }
        }
        self.connected = Some(connected);
        self.read(link, ledger, random);
    }

    /// Reads as much as its pace lets it.
    pub fn read(&mut self, link: &mut Link, ledger: &mut Ledger, random: &mut SplitMix64) {
        let waiting = link.down.len();
        let now = match self.pace {
            Pace::Eager => waiting,
            Pace::Slow => waiting.min(random.below(3000) as usize),
            Pace::Never => 0,
        };
        self.take(now, link, ledger);
    }

    pub fn take(&mut self, now: usize, link: &mut Link, ledger: &mut Ledger) {
        let Some(connected) = self.connected.as_mut().filter(|_| now > 0) else { return };
        let piece: Vec<u8> = link.down.drain(..now).collect();
        if matches!(
            self.attack,
            Some(Attack::KeyUpdates | Attack::Records | Attack::Garbage | Attack::Messages)
        ) {
            // It hears why it is let go; its own half of the stream need not be sound.
            return;
        }
        for (code, payload) in connected.codec.decode(&piece) {
            let frame = Frame::parse(code, &payload).expect("the relay's frames are well formed");
            let first = !std::mem::replace(&mut connected.greeted, true);
            match (frame, self.role) {
                (Frame::ServerInfo(..), Role::Client | Role::Mesh) => assert!(first),
                (Frame::WatchConns, Role::Dialled) => assert!(first),
                (Frame::RecvPacket(_, data), Role::Client | Role::Mesh) => {
                    assert!(!first);
                    ledger.came(connected.number, self.key, data);
                }
                (Frame::ForwardPacket(_, to, data), Role::Dialled) => ledger.came(connected.number, to, data),
                (Frame::PeerPresent(..), Role::Mesh) => {}
                (Frame::PeerGone(..) | Frame::KeepAlive | Frame::Health(_) | Frame::Restarting(..), _) => {}
                (Frame::Pong(text), _) => assert_eq!(text, b"any text"),
                (frame, role) => panic!("{role:?} got {:?}: {frame:?}", Kind::from_code(code)),
            }
        }
        if std::mem::take(&mut connected.codec.update_wanted)
            && let Some(tls) = &mut connected.codec.tls
        {
            let mut update = Vec::new();
            tls.update(&mut update).expect("TLS 1.3");
            link.up.extend(update);
        }
    }
}

impl Attack {
    /// What it puts on the wire.
    fn bytes(self, codec: &mut Codec, random: &mut SplitMix64) -> Vec<u8> {
        let mut other = SplitMix64::new(random.next_u64());
        let mut garbage = |most: u64| -> Vec<u8> {
            let length = 1 + other.below(most);
            (0..length).map(|_| other.next_u64() as u8).collect()
        };
        match self {
            Attack::Garbage => garbage(5000),
            Attack::Malformed => {
                let (code, length) = match garbage(1)[0] % 4 {
                    0 => (Kind::SendPacket, 200_000_u32),
                    1 => (Kind::SendPacket, 3),
                    2 => (Kind::Ping, 7),
                    _ => (Kind::ClosePeer, 31),
                };
                let frame = [&[code as u8][..], &length.to_be_bytes(), &garbage(100)].concat();
                codec.encode(&frame, random)
            }
            Attack::NotMesh => {
                let key = Key([9; 32]);
                let frame = match garbage(1)[0] % 3 {
                    0 => bytes(&Frame::WatchConns),
                    1 => bytes(&Frame::ClosePeer(key)),
                    _ => bytes(&Frame::ForwardPacket(key, key, &[0; 80])),
                };
                codec.encode(&frame, random)
            }
            Attack::Records => {
                let mut record = codec.seal(&garbage(200));
                let at = random.below(record.len() as u64) as usize;
                record[at] ^= 1 << random.below(8);
                record
            }
            Attack::KeyUpdates => {
                let Some(tls) = &mut codec.tls else { return garbage(50) };
                let mut out = Vec::new();
                for _ in 0..random.below(80) {
                    if tls.update_with(true, &mut out).is_err() {
                        return garbage(50);
                    }
                    if random.below(4) == 0 {
                        let _ = tls.seal_into(&bytes(&Frame::NotePreferred(true)), &mut out);
                    }
                }
                out
            }
            Attack::Messages => {
                let mut out = Vec::new();
                let first = [0x81, 0x09, 0x88, 0xf2, 0x83][random.below(5) as usize];
                message(first, b"text", random, &mut out);
                codec.seal(&out)
            }
            Attack::Asks => codec.encode(&bytes(&Frame::Ping(b"any text")).repeat(500), random),
            Attack::Half => {
                let frame = bytes(&Frame::SendPacket(Key([9; 32]), &[0; 60_000]));
                let cut = random.below(frame.len() as u64) as usize;
                codec.encode(&frame[..cut], random)
            }
        }
    }
}
