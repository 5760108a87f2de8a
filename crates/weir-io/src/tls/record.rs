//! The record layer: opens and seals TLS records in buffers of the caller.
//!
//! ```text
//!  TLS 1.3        | type 23, 0303, length | body, type, zeros        | tag |   nonce = IV xor sequence
//!  TLS 1.2 GCM    | type, 0303, length | explicit nonce (8) | body   | tag |   nonce = IV[..4], explicit
//!  TLS 1.2 ChaCha | type, 0303, length | body                        | tag |   nonce = IV xor sequence
//! ```
//!
//! Promises: no allocation; plaintext of neighbouring data records ends up contiguous, the first record's
//! where it lies, the others moved up to it; a nonce is used once; nothing is sealed beyond the limit of
//! its key. Refuses: records longer than RFC 8446 5.2 and RFC 5246 6.2.3 allow, and types that are none.

use std::ops::Range;

use aws_lc_rs::aead::{
    AES_128_GCM, AES_256_GCM, Aad, Algorithm, CHACHA20_POLY1305, LessSafeKey, Nonce, UnboundKey,
};
use rustls::ConnectionTrafficSecrets;
use zeroize::Zeroize;

use super::{TlsError, kind};

/// Plaintext of one record (2^14, RFC 8446 5.1).
pub const PLAIN_LIMIT: usize = 16_384;
/// Header of every record.
pub const HEADER: usize = 5;
/// Most bytes a record has before its body: the header and the explicit nonce of TLS 1.2 GCM.
pub const HEAD_MOST: usize = HEADER + EXPLICIT;
/// Most bytes a record has after its body: the inner type of TLS 1.3 and the tag.
pub const TAIL_MOST: usize = 1 + TAG;
/// A record at its longest as we send it.
pub const RECORD_MOST: usize = HEAD_MOST + PLAIN_LIMIT + TAIL_MOST;

const TAG: usize = 16;
const EXPLICIT: usize = 8;
/// What may be added to the plaintext (RFC 8446 5.2).
const EXPANSION_13: usize = 256;
/// What may be added to the plaintext (RFC 5246 6.2.3).
const EXPANSION_12: usize = 2_048;
const VERSION_12: [u8; 2] = [3, 3];

/// Blocks of 16 bytes that one AES-GCM key may encrypt. RFC 8446 5.5 allows 2^24.5 full records, rustls
/// counts 2^24; of 2^10 blocks each, that is 2^34 blocks = 256 GiB. The bound is one of blocks
/// (draft-irtf-cfrg-aead-limits), so short records do not wear a key out sooner than long ones.
pub(super) const BLOCKS_LIMIT: u64 = 1 << 34;
/// How many blocks a key encrypts before it should be changed: half of the limit leaves as much time to do it.
pub(super) const BLOCKS_KEY_LIMIT: u64 = BLOCKS_LIMIT / 2;

/// How the records of a stream look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shape {
    Tls13,
    Tls12Gcm,
    Tls12ChaCha,
}

impl Shape {
    fn head(self) -> usize {
        if self == Shape::Tls12Gcm { HEAD_MOST } else { HEADER }
    }

    fn tail(self) -> usize {
        if self == Shape::Tls13 { TAIL_MOST } else { TAG }
    }

    fn limit(self) -> usize {
        PLAIN_LIMIT + if self == Shape::Tls13 { EXPANSION_13 } else { EXPANSION_12 }
    }
}

/// How many bytes are missing until the first record of `bytes` is whole; while its header is not, the
/// rest of the header. Nothing is missing of no bytes at all but a header.
pub fn missing(bytes: &[u8]) -> usize {
    match bytes {
        [_, _, _, high, low, body @ ..] => {
            usize::from(u16::from_be_bytes([*high, *low])).saturating_sub(body.len())
        }
        short => HEADER - short.len(),
    }
}

/// Key, IV and sequence number of one direction.
struct Direction {
    key: LessSafeKey,
    iv: [u8; 12],
    /// Number of the next record: below 2^64 by far, since keys wear out first.
    sequence: u64,
    shape: Shape,
}

impl Drop for Direction {
    fn drop(&mut self) {
        // The key itself is overwritten by aws-lc when it frees it.
        self.iv.zeroize();
    }
}

impl Direction {
    fn new(tls13: bool, sequence: u64, secrets: &ConnectionTrafficSecrets) -> Result<Direction, TlsError> {
        let (algorithm, key, iv, gcm): (&'static Algorithm, _, _, _) = match secrets {
            ConnectionTrafficSecrets::Aes128Gcm { key, iv } => (&AES_128_GCM, key, iv, true),
            ConnectionTrafficSecrets::Aes256Gcm { key, iv } => (&AES_256_GCM, key, iv, true),
            ConnectionTrafficSecrets::Chacha20Poly1305 { key, iv } => (&CHACHA20_POLY1305, key, iv, false),
            _ => return Err(TlsError::Keys { why: "cipher suite is not known here".into() }),
        };
        let refused = || TlsError::Keys { why: "key or IV has another length than its suite's".into() };
        Ok(Direction {
            key: LessSafeKey::new(UnboundKey::new(algorithm, key.as_ref()).map_err(|_| refused())?),
            iv: iv.as_ref().try_into().map_err(|_| refused())?,
            sequence,
            shape: match (tls13, gcm) {
                (true, _) => Shape::Tls13,
                (false, true) => Shape::Tls12Gcm,
                (false, false) => Shape::Tls12ChaCha,
            },
        })
    }

    /// IV xor sequence number, padded on the left (RFC 8446 5.3).
    fn nonce(&self) -> [u8; 12] {
        let mut nonce = self.iv;
        for (byte, by) in nonce[4..].iter_mut().zip(self.sequence.to_be_bytes()) {
            *byte ^= by;
        }
        nonce
    }

    /// What TLS 1.2 authenticates beside the body (RFC 5246 6.2.3.3).
    fn additional_12(&self, kind: u8, plain: usize) -> [u8; 13] {
        let mut data = [0; 13];
        data[..8].copy_from_slice(&self.sequence.to_be_bytes());
        data[8] = kind;
        data[9..11].copy_from_slice(&VERSION_12);
        // At most PLAIN_LIMIT + EXPANSION_12, which fits.
        data[11..].copy_from_slice(&(plain as u16).to_be_bytes());
        data
    }
}

/// Where opening a buffer has got to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Cursor {
    /// Bytes of whole records used up.
    pub read: usize,
    /// Plaintext so far.
    pub plain: Range<usize>,
    /// Whether data records came since the last record that is none.
    pub fresh: bool,
    /// Bytes in those records.
    pub fresh_bytes: usize,
}

/// A record that is no data: its type and where its plaintext lies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Control {
    pub kind: u8,
    pub at: Range<usize>,
}

/// Opens the records of one direction.
pub(super) struct Opener {
    direction: Direction,
    /// Empty data records in a row.
    empty: u8,
}

/// Empty data records in a row that are taken: some stacks send one before data.
const EMPTY_LIMIT: u8 = 32;

impl Opener {
    pub fn new(tls13: bool, sequence: u64, secrets: &ConnectionTrafficSecrets) -> Result<Opener, TlsError> {
        Ok(Opener { direction: Direction::new(tls13, sequence, secrets)?, empty: 0 })
    }

    /// Goes on under the next key. Empty records count on: a new key is no data.
    pub fn change_key(&mut self, sequence: u64, secrets: &ConnectionTrafficSecrets) -> Result<(), TlsError> {
        self.direction = Direction::new(true, sequence, secrets)?;
        Ok(())
    }

    pub fn tls13(&self) -> bool {
        self.direction.shape == Shape::Tls13
    }

    /// Opens whole records from `cursor` on, until they end or one of them is no data.
    pub fn open(&mut self, bytes: &mut [u8], cursor: &mut Cursor) -> Result<Option<Control>, TlsError> {
        while let Some(length) = self.whole(&bytes[cursor.read..])? {
            let (kind, body) = self.open_record(&mut bytes[cursor.read..cursor.read + length])?;
            let body = cursor.read + body.start..cursor.read + body.end;
            cursor.read += length;
            if body.len() > PLAIN_LIMIT {
                return Err(TlsError::TooLong { length: body.len(), limit: PLAIN_LIMIT });
            }
            if kind != kind::DATA {
                return Ok(Some(Control { kind, at: body }));
            }
            self.count_empty(body.len())?;
            cursor.fresh = true;
            cursor.fresh_bytes += body.len();
            if cursor.plain.is_empty() {
                cursor.plain = body;
            } else {
                let end = cursor.plain.end;
                cursor.plain.end += body.len();
                bytes.copy_within(body, end);
            }
        }
        Ok(None)
    }

    fn count_empty(&mut self, length: usize) -> Result<(), TlsError> {
        self.empty = if length == 0 { self.empty + 1 } else { 0 };
        if self.empty > EMPTY_LIMIT {
            return Err(TlsError::Flood { what: "empty records" });
        }
        Ok(())
    }

    /// Length of the first record with its header, if it is all there. What is wrong with a header is said
    /// as soon as the header is there.
    fn whole(&self, bytes: &[u8]) -> Result<Option<usize>, TlsError> {
        let [kind, major, minor, high, low, ..] = *bytes else { return Ok(None) };
        let version = u16::from_be_bytes([major, minor]);
        if !(kind::CHANGE_CIPHER_SPEC..=kind::DATA).contains(&kind) || major != 3 {
            return Err(TlsError::NotTls { kind, version });
        }
        let shape = self.direction.shape;
        // Outside, TLS 1.3 shows data only; TLS 1.2 shows what it is, and may change ciphers once only.
        if shape == Shape::Tls13 && kind != kind::DATA || kind == kind::CHANGE_CIPHER_SPEC {
            return Err(TlsError::Unexpected { kind });
        }
        let length = usize::from(u16::from_be_bytes([high, low]));
        if length > shape.limit() {
            return Err(TlsError::TooLong { length, limit: shape.limit() });
        }
        Ok((bytes.len() >= HEADER + length).then_some(HEADER + length))
    }

    /// Opens one whole record where it lies: its type and where its plaintext is.
    fn open_record(&mut self, record: &mut [u8]) -> Result<(u8, Range<usize>), TlsError> {
        let direction = &mut self.direction;
        let shape = direction.shape;
        let head = shape.head();
        let plain = record.len().checked_sub(head + TAG).ok_or(TlsError::Forged)?;
        let (front, rest) = record.split_at_mut(head);
        let (body, tag) = rest.split_at_mut(plain);
        let mut nonce = direction.nonce();
        let opened = if shape == Shape::Tls13 {
            let nonce = Nonce::assume_unique_for_key(nonce);
            direction.key.open_in_place_separate_tag(nonce, Aad::from(&*front), tag, body)
        } else {
            let additional = direction.additional_12(front[0], plain);
            if shape == Shape::Tls12Gcm {
                nonce = direction.iv;
                nonce[4..].copy_from_slice(&front[HEADER..]);
            }
            let nonce = Nonce::assume_unique_for_key(nonce);
            direction.key.open_in_place_separate_tag(nonce, Aad::from(additional), tag, body)
        };
        let body = opened.map_err(|_| TlsError::Forged)?;
        direction.sequence += 1;
        if shape != Shape::Tls13 {
            return Ok((front[0], head..head + plain));
        }
        // The type is the last byte that is not zero (RFC 8446 5.4).
        match body.iter().rposition(|&byte| byte != 0) {
            Some(at) => Ok((body[at], head..head + at)),
            None => Err(TlsError::Unexpected { kind: 0 }),
        }
    }
}

/// Seals the records of one direction.
pub(super) struct Sealer {
    direction: Direction,
    /// Blocks that the key encrypted so far.
    blocks: u64,
    /// What it may encrypt: without a bound for ChaCha20-Poly1305, whose is beyond 2^64.
    limit: u64,
}

impl Sealer {
    pub fn new(tls13: bool, sequence: u64, secrets: &ConnectionTrafficSecrets) -> Result<Sealer, TlsError> {
        let chacha = matches!(secrets, ConnectionTrafficSecrets::Chacha20Poly1305 { .. });
        Ok(Sealer {
            direction: Direction::new(tls13, sequence, secrets)?,
            // What the handshake sealed: counted as full records, which they were not.
            blocks: sequence * (PLAIN_LIMIT as u64 / 16),
            limit: if chacha { u64::MAX } else { BLOCKS_LIMIT },
        })
    }

    pub fn tls13(&self) -> bool {
        self.direction.shape == Shape::Tls13
    }

    pub fn head(&self) -> usize {
        self.direction.shape.head()
    }

    pub fn tail(&self) -> usize {
        self.direction.shape.tail()
    }

    /// Whether the key should be changed soon.
    pub fn key_limit_reached(&self) -> bool {
        self.limit == BLOCKS_LIMIT && self.blocks >= BLOCKS_KEY_LIMIT
    }

    /// Seals `record` = head, body as cleartext, tail: head and tail are written, the body encrypted.
    pub fn seal(&mut self, kind: u8, record: &mut [u8]) -> Result<(), TlsError> {
        let shape = self.direction.shape;
        let plain = record.len().checked_sub(shape.head() + shape.tail());
        let plain = plain.ok_or(TlsError::Malformed { what: "record to be sealed" })?;
        let nonce = self.begin(kind, plain, record)?;
        let direction = &mut self.direction;
        let (front, rest) = record.split_at_mut(shape.head());
        let (body, tag) = rest.split_at_mut(rest.len() - TAG);
        let sealed = if shape == Shape::Tls13 {
            body[plain] = kind;
            direction.key.seal_in_place_separate_tag(nonce, Aad::from(&*front), body)
        } else {
            let additional = direction.additional_12(kind, plain);
            direction.key.seal_in_place_separate_tag(nonce, Aad::from(additional), body)
        };
        match sealed {
            Ok(sealed) => tag.copy_from_slice(sealed.as_ref()),
            Err(_) => {
                // Nothing of it may leave as cleartext.
                record.fill(0);
                return Err(TlsError::Keys { why: "record could not be sealed".into() });
            }
        }
        direction.sequence += 1;
        Ok(())
    }

    /// Seals `plain` from where it lies into `record`, which has place for head, body and tail.
    pub fn seal_from(&mut self, kind: u8, plain: &[u8], record: &mut [u8]) -> Result<(), TlsError> {
        let shape = self.direction.shape;
        if record.len() != shape.head() + plain.len() + shape.tail() {
            return Err(TlsError::Malformed { what: "record to be sealed" });
        }
        let nonce = self.begin(kind, plain.len(), record)?;
        let direction = &mut self.direction;
        let (front, rest) = record.split_at_mut(shape.head());
        let (body, tail) = rest.split_at_mut(plain.len());
        let sealed = if shape == Shape::Tls13 {
            let aad = Aad::from(&*front);
            direction.key.seal_out_of_place_scatter(nonce, aad, plain, body, &[kind], tail)
        } else {
            let aad = Aad::from(direction.additional_12(kind, plain.len()));
            direction.key.seal_out_of_place_scatter(nonce, aad, plain, body, &[], tail)
        };
        sealed.map_err(|_| TlsError::Keys { why: "record could not be sealed".into() })?;
        direction.sequence += 1;
        Ok(())
    }

    /// Writes the head of a record, counts its blocks, and gives its nonce.
    fn begin(&mut self, kind: u8, plain: usize, record: &mut [u8]) -> Result<Nonce, TlsError> {
        if plain > PLAIN_LIMIT {
            return Err(TlsError::TooLong { length: plain, limit: PLAIN_LIMIT });
        }
        // One block for the tag, one for a body that is no multiple of 16.
        let blocks = self.blocks.saturating_add(plain as u64 / 16 + 2);
        // What ends a connection, a close_notify or an alert, still pass: they are two blocks.
        if blocks > self.limit && kind == kind::DATA {
            return Err(TlsError::KeyExhausted);
        }
        self.blocks = blocks;
        let direction = &self.direction;
        let nonce = direction.nonce();
        record[0] = if direction.shape == Shape::Tls13 { kind::DATA } else { kind };
        record[1..3].copy_from_slice(&VERSION_12);
        let length = record.len() - HEADER;
        // At most EXPLICIT + PLAIN_LIMIT + TAIL_MOST, which fits.
        record[3..HEADER].copy_from_slice(&(length as u16).to_be_bytes());
        if direction.shape == Shape::Tls12Gcm {
            record[HEADER..HEAD_MOST].copy_from_slice(&nonce[4..]);
        }
        Ok(Nonce::assume_unique_for_key(nonce))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gcm() -> ConnectionTrafficSecrets {
        ConnectionTrafficSecrets::Aes256Gcm { key: [1; 32].into(), iv: [2; 12].into() }
    }

    #[test]
    fn key_is_worn_at_half_its_limit_and_seals_no_data_beyond_it() {
        let mut sealer = Sealer::new(true, 0, &gcm()).expect("a key");
        let mut record = vec![0; PLAIN_LIMIT + HEADER + TAIL_MOST];
        assert!(!sealer.key_limit_reached());
        sealer.blocks = BLOCKS_KEY_LIMIT - 1;
        sealer.seal(kind::DATA, &mut record).expect("below the limit");
        assert!(sealer.key_limit_reached());
        sealer.blocks = BLOCKS_LIMIT - 1;
        assert_eq!(sealer.seal(kind::DATA, &mut record), Err(TlsError::KeyExhausted));
        let mut alert = vec![0; 2 + HEADER + TAIL_MOST];
        sealer.seal(kind::ALERT, &mut alert).expect("the last word passes");
    }

    #[test]
    fn chacha_has_no_limit() {
        let secrets = ConnectionTrafficSecrets::Chacha20Poly1305 { key: [1; 32].into(), iv: [2; 12].into() };
        let mut sealer = Sealer::new(true, 0, &secrets).expect("a key");
        sealer.blocks = 2 * BLOCKS_LIMIT;
        assert!(!sealer.key_limit_reached());
        sealer.seal(kind::DATA, &mut [0; 100]).expect("no limit");
    }

    #[test]
    fn sealer_goes_on_where_the_handshake_stopped() {
        let mut one = Sealer::new(false, 0, &gcm()).expect("a key");
        let mut other = Sealer::new(false, 1, &gcm()).expect("a key");
        let (mut first, mut second, mut same) = (vec![0; 60], vec![0; 60], vec![0; 60]);
        one.seal(kind::DATA, &mut first).expect("sealed");
        one.seal(kind::DATA, &mut second).expect("sealed");
        other.seal(kind::DATA, &mut same).expect("sealed");
        assert_ne!(first[HEADER..HEAD_MOST], second[HEADER..HEAD_MOST], "a nonce is used once");
        assert_eq!(second, same);
    }
}
