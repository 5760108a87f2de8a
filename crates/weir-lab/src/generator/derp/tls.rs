//! TLS of the generator's clients, and of pairs that have no relay between them.
//!
//! Clients take any certificate and do not verify what it signed: what is measured is the relay, which the lab has
//! started itself, and a verification costs the generator more than the signature costs the relay. They keep no
//! tickets: every handshake is a whole one, whoever gives tickets.

use std::io;
use std::net::IpAddr;
use std::sync::Arc;

use rustls::ClientConfig;
use rustls::client::Resumption;
use rustls::pki_types::{PrivateKeyDer, ServerName};
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use weir_io::tls::{ClientOptions, Handshake, Progress, Session, Trust, client_config, server_config};

/// Messages a handshake takes each way, at most, before it is given up.
const FLIGHTS_MAX: usize = 16;

/// Clients of a lab.
#[derive(Clone)]
pub struct Trusting(Arc<ClientConfig>);

impl Trusting {
    pub fn new() -> io::Result<Trusting> {
        let mut config = client_config(Trust::Unverified, &ClientOptions::default()).map_err(odd)?;
        config.resumption = Resumption::disabled();
        Ok(Trusting(Arc::new(config)))
    }

    pub fn handshake(&self, server: IpAddr) -> io::Result<Handshake> {
        Handshake::client(self.0.clone(), ServerName::IpAddress(server.into())).map_err(odd)
    }

    /// The configuration for rustls, for a request now and then.
    pub fn config(&self) -> Arc<ClientConfig> {
        self.0.clone()
    }
}

/// The two sides of a connection between clients, as if their handshake had been sent.
pub struct SessionPairs {
    trusting: Trusting,
    server: Arc<rustls::ServerConfig>,
}

impl SessionPairs {
    pub fn new() -> io::Result<SessionPairs> {
        let made = rcgen::generate_simple_self_signed(vec!["127.0.0.1".into()]).map_err(odd)?;
        let key = PrivateKeyDer::try_from(made.signing_key.serialize_der()).map_err(odd)?;
        let provider = rustls::crypto::aws_lc_rs::default_provider();
        let certified = CertifiedKey::from_der(vec![made.cert.der().clone()], key, &provider).map_err(odd)?;
        let server = server_config(Arc::new(SingleCertAndKey::from(certified))).map_err(odd)?;
        Ok(SessionPairs { trusting: Trusting::new()?, server: Arc::new(server) })
    }

    pub fn pair(&self) -> io::Result<[Session; 2]> {
        let mut client = self.trusting.handshake(IpAddr::from([127, 0, 0, 1]))?;
        let mut server = Handshake::server(self.server.clone()).map_err(odd)?;
        let (mut to_client, mut to_server) = (Vec::new(), Vec::new());
        for _ in 0..FLIGHTS_MAX {
            let near = client.advance(&mut to_client, &mut to_server).map_err(odd)?;
            let far = server.advance(&mut to_server, &mut to_client).map_err(odd)?;
            if near == Progress::Ready && far == Progress::Ready && to_client.is_empty() {
                let (client, server) = (client.finish().map_err(odd)?, server.finish().map_err(odd)?);
                return Ok([client.0, server.0]);
            }
        }
        Err(odd("a handshake with ourselves does not end; this is a defect"))
    }
}

pub fn odd(what: impl ToString) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("TLS: {}", what.to_string()))
}
