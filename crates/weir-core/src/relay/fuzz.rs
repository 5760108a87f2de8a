//! Random bytes as frames, handshakes, streams, questions to STUN, and as the life of a registry.
//!
//! Promises checked: nothing panics; what is read is written the same; a stream gives the same frames however it is
//! cut, and keeps no more than one frame; a registry's effects, carried out, are what it answers when asked.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::LazyLock;

use super::decoder::{FrameDecoder, Piece, Side};
use super::frame::{self, Frame, HEADER, KEY, Key, Kind, Malformed};
use super::handshake::{ClientInfo, Secret};
use super::registry::{Destination, Effect, Entry, Registry};
use super::stun;
use crate::fuzz_input::{FuzzTarget, Input};

/// Parsers of one input each.
pub const FUZZ_TARGETS: &[(&str, FuzzTarget)] = &[
    ("relay_frame", fuzz_relay_frame),
    ("relay_handshake", fuzz_relay_handshake),
    ("relay_stun", fuzz_relay_stun),
];
/// Those that keep state: an input is a sequence.
pub const FUZZ_SEQUENCES: &[(&str, FuzzTarget)] =
    &[("relay_stream", fuzz_relay_stream), ("relay_registry", fuzz_relay_registry)];

/// A frame with its header.
pub fn fuzz_relay_frame(data: &[u8]) {
    let Some((code, length)) = frame::head(data) else { return };
    let payload = &data[HEADER..];
    let _ = frame::admit(code, length);
    let frame = match Frame::parse(code, payload) {
        Ok(frame) => frame,
        Err(wrong) => return drop(wrong.to_string()),
    };
    assert_eq!(frame.code(), code);
    if let Frame::RecvPacket(_, data) | Frame::SendPacket(_, data) = frame {
        frame::is_disco(data);
    }
    let mut bytes = Vec::new();
    frame.write(&mut bytes);
    let again = Frame::parse(code, &bytes[HEADER..]).expect("what is written is well formed");
    // What nobody knows is written without its payload; addresses are written in one form.
    assert!(again == frame || matches!(frame, Frame::PeerPresent(..)), "{frame:?} became {again:?}");
    if frame.code() == Kind::SendPacket as u8 {
        frame::forward_in_place(&mut bytes, &Key([9; KEY]));
        assert!(matches!(Frame::parse(bytes[0], &bytes[HEADER..]), Ok(Frame::RecvPacket(Key([9, ..]), _))));
    }
}

/// A client's frame, and the JSON in its box.
pub fn fuzz_relay_handshake(data: &[u8]) {
    static SERVER: LazyLock<Secret> = LazyLock::new(|| Secret::new([7; 32]));
    if let Ok(info) = serde_json::from_slice::<ClientInfo>(data) {
        let text = serde_json::to_vec(&info).expect("plain fields");
        assert_eq!(serde_json::from_slice::<ClientInfo>(&text).ok(), Some(info));
    }
    let _ = data.split_first().map(|(&code, payload)| match Frame::parse(code, payload) {
        // One that opens took more than luck; trying takes a millisecond, so only some are tried.
        Ok(frame @ Frame::ClientInfo(key, ..)) if key.0[0] & 0x1f == 0 => {
            assert!(ClientInfo::open(&SERVER, &frame).is_err());
        }
        Ok(frame) if !matches!(frame, Frame::ClientInfo(..)) => {
            assert!(ClientInfo::open(&SERVER, &frame).is_err());
        }
        _ => {}
    });
}

/// A stream, whole and cut.
pub fn fuzz_relay_stream(data: &[u8]) {
    let mut input = Input(data);
    let side = if input.byte() & 1 == 0 { Side::Server } else { Side::Client };
    let step = usize::from(input.byte()) + 1;
    let bytes = input.0;
    let whole = frames_of(side, &[bytes]);
    let cut: Vec<&[u8]> = bytes.chunks(step).collect();
    assert_eq!(whole, frames_of(side, &cut));
}

/// Frames of what is received in parts, and how the stream is refused, if it is.
fn frames_of(side: Side, parts: &[&[u8]]) -> (Vec<Vec<u8>>, Option<Malformed>) {
    let mut decoder = FrameDecoder::new(side);
    let mut frames = Vec::new();
    for part in parts {
        let mut at = 0;
        loop {
            let frame = match decoder.next(part, &mut at) {
                Ok(None) => break,
                Ok(Some(Piece::InPlace(range))) => part[range].to_vec(),
                Ok(Some(Piece::Owned(bytes))) => bytes,
                Ok(Some(Piece::Skipped(code, _))) => vec![code],
                Err(wrong) => return (frames, Some(wrong)),
            };
            if frame.len() > 1 {
                let (code, length) = frame::head(&frame).expect("a whole frame");
                assert!(side.takes(code) && length == frame.len() - HEADER);
            }
            frames.push(frame);
        }
        assert_eq!(at, part.len());
    }
    (frames, None)
}

/// Questions, and answers to questions.
pub fn fuzz_relay_stun(data: &[u8]) {
    let source = "[2001:db8::1]:9".parse().expect("an address");
    if let Ok(transaction) = stun::request(data) {
        let mut out = Vec::new();
        stun::respond(&transaction, source, &mut out);
        assert!(out.len() <= stun::RESPONSE_MAX);
        assert_eq!(stun::answer(&transaction, &out), Some(source));
    }
    let _ = stun::answer(&[0; 12], data);
}

/// A few clients and relays that come, go, watch and speak.
pub fn fuzz_relay_registry(data: &[u8]) {
    let mut input = Input(data);
    let mut registry = Registry::new(Key([0; KEY]), 12);
    let mut world = World::default();
    let mut effects = Vec::new();
    let mut next = 1;
    while !input.0.is_empty() {
        let what = input.byte();
        let key = Key([input.byte() % 5; KEY]);
        let conn = match next {
            1 => 1,
            next => 1 + u64::from(input.byte()) % (next - 1),
        };
        match what % 9 {
            0 | 1 => {
                registry.connect(next, entry(key, what, next), &mut effects);
                next += 1;
            }
            2 => registry.disconnect(conn, &[key], &mut effects),
            3 => registry.active(conn, &mut effects),
            4 => registry.watch(conn, &mut effects),
            5 => registry.mesh_present(conn, key, &mut effects),
            6 => registry.mesh_gone(conn, key, &[key], &mut effects),
            7 => registry.close_peer(conn, key, &mut effects),
            _ if what > 250 => registry.shutdown(1, 2, &mut effects),
            _ => registry.note_sent_to(key, Key([what % 5; KEY])),
        }
        effects.drain(..).for_each(|effect| world.apply(effect));
        world.check(&registry);
    }
}

fn entry(key: Key, what: u8, conn: u64) -> Entry {
    Entry {
        key,
        mesh: what & 0x30 == 0,
        dialled: what & 0x40 != 0,
        prober: what & 0x80 != 0,
        can_ack_pings: false,
        ideal: true,
        address: ([192, 0, 2, 1], conn as u16).into(),
        worker: conn as u16 % 2,
        slot: conn as u32,
    }
}

/// What the workers would know.
#[derive(Default)]
struct World {
    routes: BTreeMap<Key, Destination>,
    flagged: BTreeSet<u64>,
}

impl World {
    fn apply(&mut self, effect: Effect) {
        match effect {
            Effect::Route { key, to } => {
                let before = match to {
                    Some(to) => self.routes.insert(key, to),
                    None => self.routes.remove(&key),
                };
                assert_ne!(before, to, "a route is said again only when it changes");
            }
            Effect::Duplicate { at, flagged: true } => assert!(self.flagged.insert(at.conn)),
            Effect::Duplicate { at, flagged: false } => drop(self.flagged.remove(&at.conn)),
            Effect::Send { bytes, .. } => {
                assert!(frames_of(Side::Client, &[&bytes]).1.is_none());
            }
            Effect::Close { .. } => {}
        }
    }

    fn check(&self, registry: &Registry) {
        assert!(registry.routes().eq(self.routes.iter().map(|(&key, &to)| (key, to))));
        for (conn, entry) in registry.iter().filter(|(_, entry)| !entry.dialled) {
            let receives =
                matches!(registry.route(&entry.key), Some(Destination::Local(at)) if at.conn == conn);
            assert_ne!(receives, self.flagged.contains(&conn), "connection {conn}");
        }
    }
}
