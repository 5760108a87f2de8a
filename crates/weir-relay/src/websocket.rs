//! WebSocket, in the handshake and on the data path (RFC 6455 5): frames in binary messages, cut anyhow.
//!
//! ```text
//! 0 FIN·opcode · 1 MASK·length (7 bits; 126: 2 bytes follow, 127: 8 bytes) · mask (4, from a client) · payload
//! ```
//!
//! Promises: bytes of messages come out as they come in, however messages and receives are cut, and nothing but a header
//! and the payload of a ping is kept, however long a message says it is; pings are answered. Refuses: text, extensions, frames without a mask, control frames that are cut or long.

use aws_lc_rs::digest::{SHA1_FOR_LEGACY_USE_ONLY, digest};
use base64::prelude::{BASE64_STANDARD, Engine as _};

/// The constant that a server appends to the client's key (RFC 6455 1.3).
const KEY_SUFFIX: &str = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11";
const FIN: u8 = 0x80;
const MASKED: u8 = 0x80;
const CONTINUATION: u8 = 0;
const BINARY: u8 = 2;
const CLOSE: u8 = 8;
const PING: u8 = 9;
const PONG: u8 = 10;
/// Longest payload of a control frame.
const CONTROL_MOST: usize = 125;
/// Two bytes, eight of length, four of mask.
const HEAD_MOST: usize = 14;

/// The value of `Sec-WebSocket-Accept` for the client's `Sec-WebSocket-Key` (RFC 6455 4.2.2).
pub fn accept_key(key: &str) -> String {
    BASE64_STANDARD.encode(digest(&SHA1_FOR_LEGACY_USE_ONLY, format!("{key}{KEY_SUFFIX}").as_bytes()))
}

/// What the peer must not do, or that it closes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    Closed,
    Wrong,
}

/// Takes the bytes of one client out of their messages.
#[derive(Debug, Default)]
pub struct Unframer {
    /// The bytes of a header that has not arrived whole.
    head: [u8; HEAD_MOST],
    head_length: u8,
    opcode: u8,
    /// Whether a message of several frames is under way.
    open: bool,
    mask: [u8; 4],
    /// Payload that has not come yet, while a header is known.
    left: Option<u64>,
    /// Payload of a ping.
    control: Vec<u8>,
}

impl Unframer {
    /// Appends what is inside `bytes` to `inside`, and answers to `out`.
    pub fn take(&mut self, mut bytes: &[u8], inside: &mut Vec<u8>, out: &mut Vec<u8>) -> Result<(), Ended> {
        loop {
            let Some(left) = self.left else {
                let Some((&byte, rest)) = bytes.split_first() else { return Ok(()) };
                bytes = rest;
                self.head[usize::from(self.head_length)] = byte;
                self.head_length += 1;
                self.header()?;
                continue;
            };
            let now = usize::try_from(left).unwrap_or(usize::MAX).min(bytes.len());
            let (payload, rest) = bytes.split_at(now);
            bytes = rest;
            self.payload(payload, inside);
            if now as u64 == left {
                self.end(out)?;
            } else {
                self.left = Some(left - now as u64);
                return Ok(());
            }
        }
    }

    /// Reads the header, once it is whole.
    fn header(&mut self) -> Result<(), Ended> {
        let head = &self.head[..usize::from(self.head_length)];
        let [first, second, rest @ ..] = head else { return Ok(()) };
        let (first, second) = (*first, *second);
        if first & 0x70 != 0 || second & MASKED == 0 {
            return Err(Ended::Wrong);
        }
        let short = second & !MASKED;
        let (length, mask) = match (short, rest) {
            (126, [a, b, mask @ ..]) => (u64::from(u16::from_be_bytes([*a, *b])), mask),
            (127, [a, b, c, d, e, f, g, h, mask @ ..]) => {
                (u64::from_be_bytes([*a, *b, *c, *d, *e, *f, *g, *h]), mask)
            }
            (126 | 127, _) => return Ok(()),
            (_, mask) => (u64::from(short), mask),
        };
        let &[a, b, c, d] = mask else { return Ok(()) };
        let opcode = first & 0x0f;
        let known = match opcode {
            CONTINUATION => self.open,
            BINARY => !self.open,
            CLOSE | PING | PONG => first & FIN != 0 && length <= CONTROL_MOST as u64,
            _ => false,
        };
        if !known || length > i64::MAX as u64 {
            return Err(Ended::Wrong);
        }
        if matches!(opcode, CONTINUATION | BINARY) {
            self.open = first & FIN == 0;
        }
        self.mask = [a, b, c, d];
        (self.opcode, self.head_length, self.left) = (opcode, 0, Some(length));
        Ok(())
    }

    fn payload(&mut self, payload: &[u8], inside: &mut Vec<u8>) {
        let to = match self.opcode {
            CONTINUATION | BINARY => inside,
            PING => &mut self.control,
            _ => return,
        };
        to.extend(payload.iter().zip(self.mask.iter().cycle()).map(|(byte, mask)| byte ^ mask));
        // The next piece goes on where this one ended.
        self.mask.rotate_left(payload.len() % 4);
    }

    /// A frame is whole.
    fn end(&mut self, out: &mut Vec<u8>) -> Result<(), Ended> {
        self.left = None;
        match self.opcode {
            CLOSE => return Err(Ended::Closed),
            PING => {
                out.extend_from_slice(&[PONG | FIN, self.control.len() as u8]);
                out.append(&mut self.control);
            }
            _ => {}
        }
        Ok(())
    }
}

/// The header of a message of so many bytes, as a server sends it.
pub fn head(bytes: usize) -> Vec<u8> {
    match (u8::try_from(bytes), u16::try_from(bytes)) {
        (Ok(short), _) if short < 126 => vec![BINARY | FIN, short],
        (_, Ok(two)) => [&[BINARY | FIN, 126][..], &two.to_be_bytes()].concat(),
        _ => [&[BINARY | FIN, 127][..], &(bytes as u64).to_be_bytes()].concat(),
    }
}

/// The close frame of this side.
pub const GOODBYE: [u8; 2] = [CLOSE | FIN, 0];

#[cfg(test)]
mod tests {
    use super::*;

    fn client(first: u8, payload: &[u8]) -> Vec<u8> {
        let mut bytes = head(payload.len());
        bytes[0] = first;
        bytes[1] |= MASKED;
        bytes.extend_from_slice(&[1, 2, 3, 4]);
        bytes.extend(payload.iter().zip([1, 2, 3, 4].iter().cycle()).map(|(b, m)| b ^ m));
        bytes
    }

    #[test]
    fn the_accept_key_of_the_rfcs_example_is_the_rfcs() {
        assert_eq!(accept_key("dGhlIHNhbXBsZSBub25jZQ=="), "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=");
    }

    #[test]
    fn the_same_bytes_come_out_however_they_are_cut() {
        let long: Vec<u8> = (0..70_000_u32).map(|n| n as u8).collect();
        let mut sent = client(BINARY, &long[..65_000]);
        sent.extend(client(PING | FIN, b"hi"));
        sent.extend(client(CONTINUATION | FIN, &long[65_000..]));
        sent.extend(client(BINARY | FIN, b""));
        sent.extend(client(BINARY | FIN, b"end"));
        for piece in [1, 2, 3, 7, 1000, 65_003, sent.len()] {
            let (mut unframer, mut inside, mut out) = (Unframer::default(), Vec::new(), Vec::new());
            for bytes in sent.chunks(piece) {
                unframer.take(bytes, &mut inside, &mut out).expect("well formed");
            }
            assert!(inside == [&long[..], b"end"].concat(), "in pieces of {piece}");
            assert_eq!(out, [PONG | FIN, 2, b'h', b'i']);
        }
    }

    #[test]
    fn text_unmasked_and_stray_frames_end_it() {
        let wrong = [
            client(1 | FIN, b"text"),
            head(3),
            client(CONTINUATION | FIN, b"of nothing"),
            client(PING, b"cut"),
            client(PING | FIN, &[0; 126]),
            client(BINARY | FIN | 0x40, b"compressed"),
        ];
        for bytes in wrong {
            let taken = Unframer::default().take(&bytes, &mut Vec::new(), &mut Vec::new());
            assert_eq!(taken, Err(Ended::Wrong));
        }
        let goodbye = client(CLOSE | FIN, b"");
        let taken = Unframer::default().take(&goodbye, &mut Vec::new(), &mut Vec::new());
        assert_eq!(taken, Err(Ended::Closed));
    }
}
