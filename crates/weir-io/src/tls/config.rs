//! Configurations of both sides that a [`Handshake`](super::Handshake) can be made with.
//!
//! Promises: aws-lc does the cryptography; TLS 1.2 and 1.3 unless narrowed; keys can be taken over after
//! the handshake. A server gives no tickets: relay clients keep none, and each costs a record, a key
//! derivation and memory. It chooses AES-128 with SHA-256 where it can: CPUs have instructions for SHA-256, and a
//! handshake hashes a lot. Of the groups for the key exchange the client's first that the server has is taken; our
//! clients begin with X25519MLKEM768 and have X25519 ready beside it, as Go's and with them Tailscale's do: a server
//! written in Go asks those again who have not. Refuses: early data.

use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{
    CryptoProvider, WebPkiSupportedAlgorithms, aws_lc_rs, verify_tls12_signature, verify_tls13_signature,
};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::ResolvesServerCert;
use rustls::{
    CipherSuite, ClientConfig, DigitallySignedStruct, NamedGroup, RootCertStore, ServerConfig,
    SignatureScheme, SupportedProtocolVersion,
};

/// What a server prefers, unless the client has no AES: see [`super::for_client`].
const SHORT: [CipherSuite; 3] = [
    CipherSuite::TLS13_AES_128_GCM_SHA256,
    CipherSuite::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256,
    CipherSuite::TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256,
];

/// Configuration of a server whose certificates `certificates` gives, asked at each handshake.
pub fn server_config(certificates: Arc<dyn ResolvesServerCert>) -> Result<ServerConfig, rustls::Error> {
    let mut provider = aws_lc_rs::default_provider();
    // Stable: the rest keeps its order.
    provider.cipher_suites.sort_by_key(|suite| !SHORT.contains(&suite.suite()));
    let mut config = ServerConfig::builder_with_provider(Arc::new(provider))
        .with_protocol_versions(rustls::ALL_VERSIONS)?
        .with_no_client_auth()
        .with_cert_resolver(certificates);
    config.enable_secret_extraction = true;
    config.ignore_client_order = true;
    config.send_tls13_tickets = 0;
    config.session_storage = Arc::new(rustls::server::NoServerSessionStorage {});
    Ok(config)
}

/// Whom a client takes for its server.
pub enum Trust {
    /// A certificate for its name from one of these.
    Roots(RootCertStore),
    /// Anyone: for labs, and where the key of the relay is known by other means.
    Anyone,
    /// Anyone, and what its certificate signed is not verified: for loads on servers that the load has started itself.
    Unverified,
}

/// What a client offers: all of it by default.
#[derive(Clone, Debug, Default)]
pub struct ClientOptions {
    /// Only these suites, when there are any.
    pub suites: Vec<CipherSuite>,
    /// Only these versions, when there are any.
    pub versions: Vec<&'static SupportedProtocolVersion>,
}

/// Configuration of a client.
pub fn client_config(trust: Trust, options: &ClientOptions) -> Result<ClientConfig, rustls::Error> {
    let mut provider = aws_lc_rs::default_provider();
    // Stable: the rest keeps its order.
    provider.kx_groups.sort_by_key(|group| group.name() != NamedGroup::X25519MLKEM768);
    if !options.suites.is_empty() {
        provider.cipher_suites.retain(|suite| options.suites.contains(&suite.suite()));
    }
    let provider = Arc::new(provider);
    let versions = if options.versions.is_empty() { rustls::ALL_VERSIONS } else { &options.versions };
    let builder =
        ClientConfig::builder_with_provider(Arc::clone(&provider)).with_protocol_versions(versions)?;
    let mut config = match trust {
        Trust::Roots(roots) => builder.with_root_certificates(roots).with_no_client_auth(),
        Trust::Anyone | Trust::Unverified => {
            let signatures = matches!(trust, Trust::Anyone);
            builder
                .dangerous()
                .with_custom_certificate_verifier(Arc::new(Anyone { provider, signatures }))
                .with_no_client_auth()
        }
    };
    config.enable_secret_extraction = true;
    Ok(config)
}

/// Takes every certificate: with `signatures`, if its key signed the handshake.
#[derive(Debug)]
struct Anyone {
    provider: Arc<CryptoProvider>,
    signatures: bool,
}

impl Anyone {
    fn verified(
        &self,
        by: impl FnOnce(&WebPkiSupportedAlgorithms) -> Result<HandshakeSignatureValid, rustls::Error>,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        match self.signatures {
            true => by(&self.provider.signature_verification_algorithms),
            false => Ok(HandshakeSignatureValid::assertion()),
        }
    }
}

impl ServerCertVerifier for Anyone {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.verified(|known| verify_tls12_signature(message, certificate, signature, known))
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.verified(|known| verify_tls13_signature(message, certificate, signature, known))
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}
