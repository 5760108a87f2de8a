//! How a DERP client and server get to know each other: NaCl boxes of JSON, for both sides.
//!
//! ```text
//! server ─► ServerKey            client ─► ClientInfo            server ─► ServerInfo
//! ```
//!
//! A box is X25519, HSalsa20 and XSalsa20-Poly1305 (Bernstein, Lange, Schwabe: "The security impact of a new
//! cryptographic library", 2012). Promises: a client that opens has the key it says; secrets are wiped and never shown.
//! Random bytes are passed in. Refuses: boxes that do not open, keys of low order, JSON that is none, and a mesh key
//! that is not 64 hex digits.

use std::fmt;
use std::sync::Arc;

use crypto_secretbox::aead::Aead;
use crypto_secretbox::aead::generic_array::GenericArray;
use crypto_secretbox::{Kdf, KeyInit, XSalsa20Poly1305};
use curve25519_dalek::MontgomeryPoint;
use serde::{Deserialize, Serialize};
use zeroize::Zeroizing;

use super::frame::{Frame, Key, VERSION};

/// Hex digits of the 32 bytes that all relays of a region share.
const MESH_KEY_DIGITS: usize = 64;

/// X25519 with one private key in it, for machines that have faster code than this crate.
pub trait Agree: Send + Sync {
    /// What both keys make (RFC 7748, 6.1); nothing when that is all zeros.
    fn agree(&self, other: &Key) -> Option<Zeroizing<[u8; 32]>>;
}

/// A server's or client's private key.
#[derive(Clone)]
pub struct Secret {
    private: Zeroizing<[u8; 32]>,
    /// Worked out once: it costs as much as meeting a client.
    public: Key,
    agree: Option<Arc<dyn Agree>>,
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}

impl Secret {
    /// The key of 32 random bytes, or of a key file's.
    pub fn new(bytes: [u8; 32]) -> Secret {
        let public = Key(MontgomeryPoint::mul_base_clamped(bytes).0);
        Secret { private: Zeroizing::new(bytes), public, agree: None }
    }

    /// The same key with `agree` as its key agreement.
    pub fn with(self, agree: Arc<dyn Agree>) -> Secret {
        Secret { agree: Some(agree), ..self }
    }

    pub fn public(&self) -> Key {
        self.public
    }

    pub fn bytes(&self) -> Zeroizing<[u8; 32]> {
        self.private.clone()
    }

    /// What this key and another share: the dear part of a handshake, needed once for both directions. A key of low
    /// order shares nothing with anybody.
    pub fn shared_key(&self, other: &Key) -> Result<SharedKey, Refused> {
        let shared = match &self.agree {
            Some(agree) => agree.agree(other),
            None => {
                let shared = Zeroizing::new(MontgomeryPoint(other.0).mul_clamped(*self.private).0);
                (*shared != [0; 32]).then_some(shared)
            }
        };
        let shared = shared.ok_or(Refused::Box)?;
        let shared = GenericArray::from_slice(shared.as_slice());
        // HSalsa20 of it under a nonce of zeros.
        let key = Zeroizing::new(XSalsa20Poly1305::kdf(shared, &GenericArray::default()));
        Ok(SharedKey(XSalsa20Poly1305::new(&key)))
    }
}

/// What two keys share: boxes are sealed and opened with it.
#[derive(Clone)]
pub struct SharedKey(XSalsa20Poly1305);

impl fmt::Debug for SharedKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SharedKey(…)")
    }
}

/// What a client says of itself. Its mesh key is never shown.
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ClientInfo {
    #[serde(rename = "meshKey", skip_serializing_if = "String::is_empty")]
    pub mesh_key: String,
    pub version: u32,
    #[serde(rename = "CanAckPings")]
    pub can_ack_pings: bool,
    #[serde(rename = "IsProber", skip_serializing_if = "std::ops::Not::not")]
    pub is_prober: bool,
    #[serde(rename = "AppName", skip_serializing_if = "String::is_empty")]
    pub app_name: String,
}

impl fmt::Debug for ClientInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClientInfo")
            .field("mesh_key", &if self.mesh_key.is_empty() { "none" } else { "…" })
            .field("version", &self.version)
            .field("can_ack_pings", &self.can_ack_pings)
            .field("is_prober", &self.is_prober)
            .field("app_name", &self.app_name)
            .finish()
    }
}

/// What a server says of itself; a client keeps to the limits.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ServerInfo {
    pub version: u32,
    #[serde(rename = "TokenBucketBytesPerSecond", skip_serializing_if = "is_zero")]
    pub bytes_per_second: u64,
    #[serde(rename = "TokenBucketBytesBurst", skip_serializing_if = "is_zero")]
    pub burst: u64,
}

fn is_zero(n: &u64) -> bool {
    *n == 0
}

/// Why the other side is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refused {
    /// Its box does not open: not the key it says, or not meant for this server.
    Box,
    Json(String),
    /// Another frame came than the one that comes next.
    Unexpected(u8),
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refused::Box => {
                f.write_str("the box does not open; expected one sealed to this key by the key beside it")
            }
            Refused::Json(why) => write!(f, "the box holds no info in JSON: {why}"),
            Refused::Unexpected(code) => write!(f, "a frame of type {code:#04x}; expected the handshake's"),
        }
    }
}

impl std::error::Error for Refused {}

impl ClientInfo {
    /// The frame that says it to `server`, appended to `out`.
    pub fn seal(&self, client: &Secret, server: &Key, nonce: [u8; 24], out: &mut Vec<u8>) {
        // For a key that shares nothing there is no box: whoever has it refuses an empty one.
        let sealed = client.shared_key(server).map_or_else(|_| Vec::new(), |with| seal(&with.0, nonce, self));
        Frame::ClientInfo(client.public(), nonce, &sealed).write(out);
    }

    /// What a client's frame says, whose it is, and what seals the answer.
    pub fn open(server: &Secret, frame: &Frame<'_>) -> Result<(Key, ClientInfo, SharedKey), Refused> {
        ClientInfo::open_with(|_| None, server, frame)
    }

    /// Does what [`ClientInfo::open`] does; `known` says what `server` and the key in the frame share, where that is known.
    pub fn open_with(
        known: impl FnOnce(&Key) -> Option<SharedKey>,
        server: &Secret,
        frame: &Frame<'_>,
    ) -> Result<(Key, ClientInfo, SharedKey), Refused> {
        let Frame::ClientInfo(key, nonce, sealed) = frame else {
            return Err(Refused::Unexpected(frame.code()));
        };
        let shared = known(key).map_or_else(|| server.shared_key(key), Ok)?;
        let info: ClientInfo = open(&shared.0, nonce, sealed)?;
        let hex = info.mesh_key.bytes().all(|c| c.is_ascii_hexdigit());
        if !matches!((info.mesh_key.len(), hex), (0 | MESH_KEY_DIGITS, true)) {
            return Err(Refused::Json(format!("meshKey is not {MESH_KEY_DIGITS} hex digits")));
        }
        Ok((*key, info, shared))
    }
}

impl ServerInfo {
    pub fn new() -> ServerInfo {
        ServerInfo { version: VERSION, ..ServerInfo::default() }
    }

    /// The frame that says it to a client, appended to `out`.
    pub fn seal(&self, shared: &SharedKey, nonce: [u8; 24], out: &mut Vec<u8>) {
        let sealed = seal(&shared.0, nonce, self);
        Frame::ServerInfo(nonce, &sealed).write(out);
    }

    /// What a server's frame says.
    pub fn open(client: &Secret, server: &Key, frame: &Frame<'_>) -> Result<ServerInfo, Refused> {
        let Frame::ServerInfo(nonce, sealed) = frame else { return Err(Refused::Unexpected(frame.code())) };
        open(&client.shared_key(server)?.0, nonce, sealed)
    }
}

fn seal<T: Serialize>(with: &XSalsa20Poly1305, nonce: [u8; 24], info: &T) -> Vec<u8> {
    let text = Zeroizing::new(serde_json::to_vec(info).unwrap_or_default());
    // It fails on texts of 2^38 bytes only.
    with.encrypt(&nonce.into(), text.as_slice()).unwrap_or_default()
}

/// An object only: nothing else is taken for one without fields.
fn open<T: for<'a> Deserialize<'a>>(
    with: &XSalsa20Poly1305,
    nonce: &[u8; 24],
    sealed: &[u8],
) -> Result<T, Refused> {
    let text = with.decrypt(nonce.into(), sealed).map(Zeroizing::new).map_err(|_| Refused::Box)?;
    let object = serde_json::from_slice::<serde_json::Map<_, _>>(&text);
    object
        .and_then(|fields| T::deserialize(serde_json::Value::Object(fields)))
        .map_err(|e| Refused::Json(e.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::relay::frame::{HEADER, head};

    fn taken(bytes: &[u8]) -> Frame<'_> {
        let (code, length) = head(bytes).expect("a frame has a header");
        assert_eq!(bytes.len(), HEADER + length);
        Frame::parse(code, &bytes[HEADER..]).expect("it is well formed")
    }

    #[test]
    fn each_side_learns_what_the_other_says() {
        let (server, client) = (Secret::new([7; 32]), Secret::new([9; 32]));
        let said = ClientInfo { version: 2, can_ack_pings: true, ..ClientInfo::default() };
        let mut bytes = Vec::new();
        said.seal(&client, &server.public(), [1; 24], &mut bytes);
        let (key, heard, shared) = ClientInfo::open(&server, &taken(&bytes)).expect("it is for this server");
        assert_eq!((key, heard), (client.public(), said));

        let said = ServerInfo { bytes_per_second: 1000, burst: 2000, ..ServerInfo::new() };
        bytes.clear();
        said.seal(&shared, [2; 24], &mut bytes);
        assert_eq!(ServerInfo::open(&client, &server.public(), &taken(&bytes)), Ok(said));
    }

    #[test]
    fn no_printed_form_shows_a_mesh_key() {
        let key = "0123456789abcdef".repeat(4);
        let info = ClientInfo { mesh_key: key.clone(), version: 2, ..ClientInfo::default() };
        for printed in [format!("{info:?}"), format!("{info:#?}")] {
            assert!(!printed.contains(&key[..8]) && printed.contains("mesh_key"), "{printed}");
        }
    }

    #[test]
    fn what_is_no_info_is_refused() {
        let (server, client) = (Secret::new([7; 32]), Secret::new([9; 32]));
        let said = |text: &str| {
            let with = client.shared_key(&server.public()).expect("keys of full order").0;
            let sealed = with.encrypt(&[1; 24].into(), text.as_bytes()).expect("a short text");
            ClientInfo::open(&server, &Frame::ClientInfo(client.public(), [1; 24], &sealed))
        };
        for wrong in ["", "[]", "null", "{", r#"{"version":"two"}"#, r#"{"meshKey":"00"}"#] {
            assert!(matches!(said(wrong), Err(Refused::Json(_))), "{wrong}");
        }
        let odd = format!(r#"{{"meshKey":"{}"}}"#, "g".repeat(64));
        assert!(matches!(said(&odd), Err(Refused::Json(_))));
        let known = said(r#"{"version":2,"Tomorrow":[1]}"#).map(|(_, info, _)| info.version);
        assert_eq!(known, Ok(2));
    }

    #[test]
    fn boxes_are_those_of_nacl() {
        use crypto_box::{PublicKey, SalsaBox, SecretKey};
        let (server, client) = (Secret::new([7; 32]), SecretKey::from([9; 32]));
        let with = SalsaBox::new(&PublicKey::from(server.public().0), &client);
        let sealed = with.encrypt(&[1; 24].into(), br#"{"version":2}"#.as_slice()).expect("a short text");
        let key = Key(*client.public_key().as_bytes());
        let frame = Frame::ClientInfo(key, [1; 24], &sealed);
        let (_, info, shared) = ClientInfo::open(&server, &frame).expect("it is for this server");
        assert_eq!(info.version, 2);
        let answer = seal(&shared.0, [2; 24], &ServerInfo::new());
        assert!(with.decrypt(&[2; 24].into(), answer.as_slice()).is_ok());
    }

    #[test]
    fn keys_that_share_nothing_are_refused() {
        let server = Secret::new([7; 32]);
        // RFC 7748, 6.1: whatever the private key, these make zeros.
        for low in [Key([0; 32]), Key(std::array::from_fn(|n| u8::from(n == 0)))] {
            assert_eq!(server.shared_key(&low).err(), Some(Refused::Box));
            let nobody = Frame::ClientInfo(low, [1; 24], &[7; 40]);
            assert_eq!(ClientInfo::open(&server, &nobody).err(), Some(Refused::Box));
        }
    }

    #[test]
    fn who_is_known_opens_as_a_stranger_does_and_nobody_else_does_in_its_name() {
        let (server, client) = (Secret::new([7; 32]), Secret::new([9; 32]));
        let known = || server.shared_key(&client.public()).ok();
        let mut bytes = Vec::new();
        ClientInfo::default().seal(&client, &server.public(), [1; 24], &mut bytes);
        let (key, info, _) =
            ClientInfo::open_with(|_| known(), &server, &taken(&bytes)).expect("its own box");
        assert_eq!((key, info), (client.public(), ClientInfo::default()));
        let mut others = Vec::new();
        ClientInfo::default().seal(&Secret::new([8; 32]), &server.public(), [1; 24], &mut others);
        others[HEADER..HEADER + 32].copy_from_slice(&client.public().0);
        let refused = ClientInfo::open_with(|_| known(), &server, &taken(&others));
        assert_eq!(refused.err(), Some(Refused::Box));
    }

    #[test]
    fn a_client_that_lies_about_its_key_is_refused() {
        let (server, client) = (Secret::new([7; 32]), Secret::new([9; 32]));
        let mut bytes = Vec::new();
        ClientInfo::default().seal(&client, &server.public(), [1; 24], &mut bytes);
        bytes[HEADER] ^= 1;
        assert_eq!(ClientInfo::open(&server, &taken(&bytes)).err(), Some(Refused::Box));
    }
}
