//! Certificates made here: the self-signed one of a lab, and the meta certificate of every relay.
//!
//! The meta certificate is how DERP tells the relay's key inside the TLS handshake: common name `derpkey` and 64 hex
//! digits, the protocol's version as serial number, valid for 30 days either way. Its own key signs it and is then
//! forgotten: nobody proves anything with it, TLS has protected it.

use std::time::{Duration, SystemTime};

use rcgen::{CertificateParams, DnType, IsCa, KeyPair, PKCS_ED25519, SerialNumber};
use rustls::crypto::aws_lc_rs::sign::any_supported_type;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::sign::CertifiedKey;
use weir_core::relay::Key;
use weir_core::relay::frame::VERSION;

use crate::error::CertificateError;

const META_VALID: Duration = Duration::from_secs(30 * 24 * 3600);
const META_NAME: &str = "derpkey";

/// A certificate of `hostname` and of this machine's own names, trusted by nobody.
pub fn self_signed(hostname: Option<&str>) -> Result<CertifiedKey, CertificateError> {
    let wrong = |error: rcgen::Error| CertificateError::CannotMake {
        name: hostname.unwrap_or("localhost").to_owned(),
        cause: error.to_string(),
    };
    let mut names = vec!["localhost".to_string(), "127.0.0.1".into(), "::1".into()];
    names.splice(..0, hostname.map(str::to_string));
    let mut params = CertificateParams::new(names).map_err(wrong)?;
    params.distinguished_name.push(DnType::CommonName, hostname.unwrap_or("localhost"));
    let key = KeyPair::generate().map_err(wrong)?;
    let certificate = params.self_signed(&key).map_err(wrong)?;
    let private = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
    let signer = any_supported_type(&private).map_err(|error| CertificateError::CannotMakeOwn {
        what: "signature of the self-signed certificate",
        cause: error.to_string(),
    })?;
    Ok(CertifiedKey::new(vec![certificate.der().clone()], signer))
}

/// The meta certificate of the relay with this key.
pub fn meta(key: &Key, now: SystemTime) -> Result<CertificateDer<'static>, CertificateError> {
    let wrong = |error: rcgen::Error| CertificateError::CannotMakeOwn {
        what: "meta certificate",
        cause: error.to_string(),
    };
    let mut params = CertificateParams::default();
    let hex: String = key.0.iter().map(|byte| format!("{byte:02x}")).collect();
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, format!("{META_NAME}{hex}"));
    params.serial_number = Some(SerialNumber::from(u64::from(VERSION)));
    params.not_before = (now - META_VALID).into();
    params.not_after = (now + META_VALID).into();
    // Some verifiers want to be told when issuer and subject are the same.
    params.is_ca = IsCa::ExplicitNoCa;
    let signer = KeyPair::generate_for(&PKCS_ED25519).map_err(wrong)?;
    Ok(params.self_signed(&signer).map_err(wrong)?.der().clone())
}
