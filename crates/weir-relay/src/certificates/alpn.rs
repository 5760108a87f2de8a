//! TLS-ALPN-01 (RFC 8737): who holds a name is shown by a certificate that only ACME's own protocol is met with.
//!
//! ```text
//! authority ─► ClientHello, ALPN `acme-tls/1` ─► self-signed certificate of the name, with the digest in it ─► end
//! ```
//!
//! Promises: everybody else meets the relay's usual certificate meanwhile. Refuses: to speak any protocol but this one in
//! such a connection.

use std::sync::Arc;

use rcgen::{CertificateParams, CustomExtension, DistinguishedName, KeyPair};
use rustls::ServerConfig;
use rustls::crypto::aws_lc_rs::sign::any_supported_type;
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::sign::{CertifiedKey, SingleCertAndKey};

/// RFC 8737 4.
pub const PROTOCOL: &[u8] = b"acme-tls/1";

/// What the authority is met with: `digest` is that of the key authorization.
pub fn config(name: &str, digest: &[u8]) -> Result<Arc<ServerConfig>, String> {
    if digest.len() != 32 {
        return Err(format!("digest of the challenge has {} bytes, expected 32", digest.len()));
    }
    let wrong = |error: rcgen::Error| format!("certificate of the challenge cannot be made: {error}");
    let mut params = CertificateParams::new([name.to_owned()]).map_err(wrong)?;
    params.distinguished_name = DistinguishedName::new();
    params.custom_extensions = vec![CustomExtension::new_acme_identifier(digest)];
    let key = KeyPair::generate().map_err(wrong)?;
    let certificate = params.self_signed(&key).map_err(wrong)?;
    let private = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
    let signer = any_supported_type(&private).map_err(|error| error.to_string())?;
    let served = CertifiedKey::new(vec![certificate.der().clone()], signer);
    let mut config = weir_io::tls::server_config(Arc::new(SingleCertAndKey::from(served)))
        .map_err(|error| error.to_string())?;
    config.alpn_protocols = vec![PROTOCOL.to_vec()];
    Ok(Arc::new(config))
}
