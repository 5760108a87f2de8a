//! X25519 by aws-lc, for keys that meet many others: the relay's.
//!
//! Promises: the same shared secrets as any X25519 (RFC 7748), by code written for the CPU. Refuses: public keys with
//! which every private key makes zeros.

use std::sync::Arc;

use aws_lc_rs::agreement::{PrivateKey, UnparsedPublicKey, X25519, agree};
use weir_core::relay::Key;
use weir_core::relay::handshake::{Agree, Secret};
use zeroize::Zeroizing;

/// A private key, prepared once: making it ready costs as much as meeting somebody.
struct Prepared(PrivateKey);

impl Agree for Prepared {
    fn agree(&self, other: &Key) -> Option<Zeroizing<[u8; 32]>> {
        let other = UnparsedPublicKey::new(&X25519, &other.0);
        agree(&self.0, other, (), |shared| {
            let mut own = Zeroizing::new([0; 32]);
            (shared.len() == own.len()).then(|| own.copy_from_slice(shared)).ok_or(())?;
            Ok(own)
        })
        .ok()
    }
}

/// The same key, which meets others by aws-lc where aws-lc takes it.
pub fn prepared(secret: Secret) -> Secret {
    match PrivateKey::from_private_key(&X25519, secret.bytes().as_slice()) {
        Ok(key) => secret.with(Arc::new(Prepared(key))),
        Err(_) => secret,
    }
}

#[cfg(test)]
mod tests {
    use weir_core::relay::Frame;
    use weir_core::relay::frame::{HEADER, head};
    use weir_core::relay::handshake::{ClientInfo, Refused};

    use super::*;

    #[test]
    fn a_prepared_key_opens_what_is_sealed_for_it() {
        for n in 0..32u8 {
            let plain = Secret::new(std::array::from_fn(|at| n.wrapping_mul(37).wrapping_add(at as u8)));
            let (server, client) = (prepared(plain.clone()), Secret::new([n + 1; 32]));
            assert!(server.public() == plain.public() && server.bytes() == plain.bytes());
            let mut bytes = Vec::new();
            ClientInfo::default().seal(&client, &server.public(), [n; 24], &mut bytes);
            let (code, _) = head(&bytes).expect("a frame has a header");
            let frame = Frame::parse(code, &bytes[HEADER..]).expect("it is well formed");
            let (key, ..) = ClientInfo::open(&server, &frame).expect("it is for this key");
            assert_eq!(key, client.public());
        }
    }

    #[test]
    fn a_prepared_key_shares_nothing_with_keys_of_low_order() {
        let server = prepared(Secret::new([7; 32]));
        for low in [Key([0; 32]), Key(std::array::from_fn(|n| u8::from(n == 0)))] {
            assert_eq!(server.shared_key(&low).err(), Some(Refused::Box));
        }
    }
}
