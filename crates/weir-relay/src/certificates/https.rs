//! The HTTP client that talks to an ACME server: HTTP/1.1 over TLS, nothing else.
//!
//! Promises: the server is trusted by the system's authorities, or by the one authority of a file and no other.
//! Refuses: plain HTTP.

use std::future::Future;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;

use hyper::Request;
use hyper::body::Bytes;
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use instant_acme::{BodyWrapper, BytesResponse, Error, HttpClient};
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use rustls::{ClientConfig, RootCertStore};

/// One client for the orders of one name.
pub struct Https(Client<HttpsConnector<HttpConnector>, BodyWrapper<Bytes>>);

impl Https {
    /// Trusts the first certificate of the file `root` alone, or without it the system's authorities.
    pub fn new(root: Option<&Path>) -> Result<Https, Error> {
        let mut roots = RootCertStore::empty();
        match root {
            Some(path) => {
                let root = CertificateDer::from_pem_file(path).map_err(other)?;
                roots.add(root).map_err(other)?;
            }
            None => _ = roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs),
        }
        let config = ClientConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(other)?
            .with_root_certificates(roots)
            .with_no_client_auth();
        let connector =
            HttpsConnectorBuilder::new().with_tls_config(config).https_only().enable_http1().build();
        Ok(Https(Client::builder(TokioExecutor::new()).build(connector)))
    }
}

impl HttpClient for Https {
    fn request(
        &self,
        request: Request<BodyWrapper<Bytes>>,
    ) -> Pin<Box<dyn Future<Output = Result<BytesResponse, Error>> + Send>> {
        let response = self.0.request(request);
        Box::pin(async move { response.await.map(BytesResponse::from).map_err(other) })
    }
}

fn other(error: impl std::error::Error + Send + Sync + 'static) -> Error {
    Error::Other(Box::new(error))
}
