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

use crate::error::CertificateError;

/// RFC 8737 4.
pub const PROTOCOL: &[u8] = b"acme-tls/1";

/// What the authority is met with: `digest` is that of the key authorization.
pub fn config(name: &str, digest: &[u8]) -> Result<Arc<ServerConfig>, CertificateError> {
    if digest.len() != 32 {
        return Err(CertificateError::Digest { bytes: digest.len() });
    }
    let wrong = |error: &dyn std::fmt::Display| CertificateError::CannotMakeOwn {
        what: "certificate of the challenge",
        cause: error.to_string(),
    };
    let mut params = CertificateParams::new([name.to_owned()]).map_err(|e| wrong(&e))?;
    params.distinguished_name = DistinguishedName::new();
    params.custom_extensions = vec![CustomExtension::new_acme_identifier(digest)];
    let key = KeyPair::generate().map_err(|e| wrong(&e))?;
    let certificate = params.self_signed(&key).map_err(|e| wrong(&e))?;
    let private = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
    let signer = any_supported_type(&private).map_err(|e| wrong(&e))?;
    let served = CertifiedKey::new(vec![certificate.der().clone()], signer);
    let mut config =
        weir_io::tls::server_config(Arc::new(SingleCertAndKey::from(served))).map_err(|e| wrong(&e))?;
    config.alpn_protocols = vec![PROTOCOL.to_vec()];
    Ok(Arc::new(config))
}
