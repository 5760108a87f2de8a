//! WebSocket, as far as the handshake goes: the worker does the rest (RFC 6455).
//!
//! ```text
//! 0 FIN·opcode · 1 MASK·length (7 bits; 126: 2 bytes follow, 127: 8 bytes) · mask (4) · payload
//! ```
//!
//! Promises: what a client said beyond its handshake is given on as the messages it came in. Refuses: text, frames
//! without a mask, extensions, and frames longer than a client's first words may be.

use weir_core::relay::frame::{HEADER, INFO_MAX};

const CONTINUATION: u8 = 0;
const BINARY: u8 = 2;
const CLOSE: u8 = 8;
const PING: u8 = 9;
const PONG: u8 = 10;
const FIN: u8 = 0x80;
const MASKED: u8 = 0x80;
/// Of a control frame.
const CONTROL_MAX: usize = 125;

/// The DERP bytes inside WebSocket messages.
#[derive(Debug, Default)]
pub struct Unframer {
    pub inside: Vec<u8>,
    /// In the middle of a message of several frames.
    open: bool,
}

/// What the peer must not do, or that it closes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ended;

impl Unframer {
    /// Takes whole frames from the front of `bytes`; pongs to be sent are appended to `out`.
    pub fn take(&mut self, bytes: &mut Vec<u8>, out: &mut Vec<u8>) -> Result<(), Ended> {
        while let Some((code, mask, start, length)) = head(bytes)? {
            let Some(payload) = bytes.get_mut(start..start + length) else { return Ok(()) };
            payload.iter_mut().zip(mask.iter().cycle()).for_each(|(byte, mask)| *byte ^= mask);
            let opcode = code & 0x0f;
            match opcode {
                BINARY | CONTINUATION if self.open == (opcode == CONTINUATION) => {
                    self.inside.extend_from_slice(payload);
                    self.open = code & FIN == 0;
                }
                PING => {
                    let pong = frame(PONG, payload);
                    out.extend_from_slice(&pong);
                }
                PONG => {}
                _ => return Err(Ended),
            }
            bytes.drain(..start + length);
        }
        Ok(())
    }

    /// What was taken and not used, as a frame again, before what was not taken.
    pub fn give_back(self, rest: Vec<u8>) -> Vec<u8> {
        if self.inside.is_empty() && !self.open {
            return rest;
        }
        let mut out = masked(if self.open { BINARY } else { BINARY | FIN }, &self.inside);
        out.extend_from_slice(&rest);
        out
    }
}

/// First byte, mask, where the payload starts, how long it is.
type FrameHead = (u8, [u8; 4], usize, usize);

/// The head of the first frame, when it is whole.
fn head(bytes: &[u8]) -> Result<Option<FrameHead>, Ended> {
    let [code, second, ..] = *bytes else { return Ok(None) };
    if code & 0x70 != 0 || second & MASKED == 0 {
        return Err(Ended);
    }
    let short = usize::from(second & !MASKED);
    let (length, at) = match short {
        126 => match bytes.get(2..4) {
            Some(&[a, b]) => (usize::from(u16::from_be_bytes([a, b])), 4),
            _ => return Ok(None),
        },
        127 => match bytes.get(2..10).and_then(|b| <[u8; 8]>::try_from(b).ok()) {
            Some(length) => (usize::try_from(u64::from_be_bytes(length)).map_err(|_| Ended)?, 10),
            None => return Ok(None),
        },
        _ => (short, 2),
    };
    let control = code & 0x08 != 0;
    if length > HEADER + INFO_MAX + (64 << 10) || (control && (length > CONTROL_MAX || code & FIN == 0)) {
        return Err(Ended);
    }
    if code & 0x0f == CLOSE {
        return Err(Ended);
    }
    let Some(mask) = bytes.get(at..at + 4).and_then(|b| <[u8; 4]>::try_from(b).ok()) else { return Ok(None) };
    Ok(Some((code, mask, at + 4, length)))
}

/// A whole message as a server sends it.
pub fn message(payload: &[u8]) -> Vec<u8> {
    frame(BINARY, payload)
}

fn frame(opcode: u8, payload: &[u8]) -> Vec<u8> {
    let mut out = vec![opcode | FIN];
    length(payload.len(), 0, &mut out);
    out.extend_from_slice(payload);
    out
}

/// As a client sends it, with a mask that changes nothing.
fn masked(code: u8, payload: &[u8]) -> Vec<u8> {
    let mut out = vec![code];
    length(payload.len(), MASKED, &mut out);
    out.extend_from_slice(&[0; 4]);
    out.extend_from_slice(payload);
    out
}

fn length(length: usize, bit: u8, out: &mut Vec<u8>) {
    match (u8::try_from(length), u16::try_from(length)) {
        (Ok(short), _) if short < 126 => out.push(short | bit),
        (_, Ok(two)) => {
            out.push(126 | bit);
            out.extend_from_slice(&two.to_be_bytes());
        }
        _ => {
            out.push(127 | bit);
            out.extend_from_slice(&(length as u64).to_be_bytes());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn client(code: u8, payload: &[u8]) -> Vec<u8> {
        let mut bytes = masked(code, payload);
        let at = bytes.len() - payload.len();
        bytes[at - 4..at].copy_from_slice(&[1, 2, 3, 4]);
        bytes[at..].iter_mut().zip([1, 2, 3, 4].iter().cycle()).for_each(|(b, m)| *b ^= m);
        bytes
    }

    #[test]
    fn messages_in_pieces_become_bytes_and_pings_are_answered() {
        let mut sent = client(BINARY, &[7; 200]);
        sent.extend(client(PING | FIN, b"hi"));
        sent.extend(client(CONTINUATION | FIN, b"end"));
        let (mut unframer, mut held, mut out) = (Unframer::default(), Vec::new(), Vec::new());
        for byte in sent {
            held.push(byte);
            unframer.take(&mut held, &mut out).expect("well formed");
        }
        assert_eq!(unframer.inside, [&[7; 200][..], b"end"].concat());
        assert_eq!(out, [PONG | FIN, 2, b'h', b'i']);
        assert!(held.is_empty());
    }

    #[test]
    fn what_was_not_used_is_given_back_as_the_message_it_came_in() {
        let (mut unframer, mut out) = (Unframer::default(), Vec::new());
        let mut held = client(BINARY, b"used and not");
        unframer.take(&mut held, &mut out).expect("well formed");
        unframer.inside.drain(..5);
        let mut again = unframer.give_back(client(CONTINUATION | FIN, b"!"));
        let mut second = Unframer::default();
        second.take(&mut again, &mut out).expect("well formed");
        assert_eq!(second.inside, b"and not!");
    }

    #[test]
    fn text_unmasked_oversized_and_stray_frames_end_it() {
        let mut huge = vec![BINARY | FIN, 127 | MASKED];
        huge.extend_from_slice(&u64::MAX.to_be_bytes());
        let wrong = [
            client(1 | FIN, b"text"),
            message(b"without a mask"),
            client(CONTINUATION | FIN, b"of nothing"),
            client(CLOSE | FIN, b""),
            huge,
        ];
        for mut bytes in wrong {
            assert_eq!(Unframer::default().take(&mut bytes, &mut Vec::new()), Err(Ended));
        }
    }
}
