//! The certificates a relay shows: made here, read from files, or fetched by ACME; the meta certificate after them.
//!
//! ```text
//!  leaf, intermediates      self-signed | PEM files, read again when they change | files kept by ACME
//!  meta certificate         Ed25519, CN derpkey<hex>: TLS 1.3 clients learn the relay's key a round trip earlier
//! ```
//!
//! Promises: what is served is whole, a chain with its own key; files that changed into something unusable change
//! nothing but what `refresh` says. Refuses: a key that is not the certificate's, at the start and later.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use arc_swap::ArcSwapOption;
use rustls::ServerConfig;
use rustls::crypto::aws_lc_rs::cipher_suite::TLS13_AES_128_GCM_SHA256;
use rustls::pki_types::CertificateDer;
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use weir_core::relay::Key;

use super::error::CertificateError;
use super::settings::{Acme, Certificates};

mod acme;
pub mod alpn;
mod files;
mod https;
mod made;
mod validity;

pub use acme::Challenges;
pub use validity::validity;

/// The meta certificate is valid for 30 days: made again long before.
const META_AGE: Duration = Duration::from_secs(24 * 3600);

/// What the relay shows to TLS clients, now.
pub struct Identity {
    source: Source,
    key: Key,
    /// `None` only while ACME has fetched nothing yet.
    served: ArcSwapOption<CertifiedKey>,
    kept: Mutex<Kept>,
    challenges: Challenges,
}

enum Source {
    Made,
    Files(files::Files),
    /// Files, and who keeps them.
    Acme(files::Files, acme::Keeper),
}

struct Kept {
    /// Leaf and intermediates with their key.
    own: Option<Arc<CertifiedKey>>,
    /// How the files looked when they were read or refused.
    stamp: Option<files::Stamp>,
    meta: CertificateDer<'static>,
    meta_made: SystemTime,
}

impl Identity {
    /// Opens the certificates of a relay called `hostname` with this public key.
    pub fn open(
        from: &Certificates,
        hostname: Option<&str>,
        key: Key,
        now: SystemTime,
    ) -> Result<Arc<Identity>, CertificateError> {
        let mut own = None;
        let source = match from {
            Certificates::SelfSigned => {
                own = Some(Arc::new(made::self_signed(hostname)?));
                Source::Made
            }
            Certificates::Files { chain, key } => {
                Source::Files(files::Files { chain: chain.clone(), key: key.clone() })
            }
            Certificates::Acme(settings) => acme_source(settings, hostname)?,
        };
        let mut stamp = None;
        match &source {
            Source::Made => {}
            Source::Files(files) => {
                stamp = Some(files.stamp()?);
                own = Some(Arc::new(files.read()?));
            }
            Source::Acme(files, _) => {
                // Nothing yet is how ACME begins; what is there is served until something newer is.
                if let Ok(found) = files.stamp() {
                    own = Some(Arc::new(files.read()?));
                    stamp = Some(found);
                }
            }
        }
        let kept = Kept { own, stamp, meta: made::meta(&key, now)?, meta_made: now };
        let served = ArcSwapOption::new(kept.chain());
        Ok(Arc::new(Identity {
            source,
            key,
            served,
            kept: Mutex::new(kept),
            challenges: Challenges::default(),
        }))
    }

    /// A configuration of TLS that serves what is newest at each handshake.
    pub fn server_config(self: &Arc<Identity>) -> Result<Arc<ServerConfig>, CertificateError> {
        weir_io::tls::server_config(Arc::clone(self) as Arc<dyn ResolvesServerCert>)
            .map(Arc::new)
            .map_err(|error| CertificateError::Tls { cause: error.to_string() })
    }

    /// Reads files that changed and renews the meta certificate; says whether something else is served now. To be
    /// called every few seconds; what it refuses it refuses once, until the files change again.
    pub fn refresh(&self, now: SystemTime) -> Result<bool, CertificateError> {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let mut changed = false;
        // A clock that was set back renews as well.
        if now.duration_since(kept.meta_made).map_or(true, |age| age > META_AGE) {
            kept.meta = made::meta(&self.key, now)?;
            kept.meta_made = now;
            changed = true;
        }
        let refused = match &self.source {
            Source::Made => None,
            Source::Files(files) => self.reread(files, &mut kept, &mut changed).err(),
            // Files that are not there are what ACME is about to change.
            Source::Acme(files, _) if files.stamp().is_err() => None,
            Source::Acme(files, _) => self.reread(files, &mut kept, &mut changed).err(),
        };
        if changed {
            self.served.store(kept.chain());
        }
        refused.map_or(Ok(changed), Err)
    }

    fn reread(
        &self,
        files: &files::Files,
        kept: &mut Kept,
        changed: &mut bool,
    ) -> Result<(), CertificateError> {
        // Gone for a moment, as when a file is replaced by hand: what was read is served on.
        let Ok(stamp) = files.stamp() else { return Ok(()) };
        if kept.stamp.as_ref() == Some(&stamp) {
            return Ok(());
        }
        kept.stamp = Some(stamp);
        kept.own = Some(Arc::new(files.read()?));
        *changed = true;
        Ok(())
    }

    /// The answer to an HTTP-01 challenge: for `/.well-known/acme-challenge/<token>` on port 80.
    pub fn challenge(&self, token: &str) -> Option<String> {
        self.challenges.answer(token)
    }

    /// What a connection for a TLS-ALPN-01 challenge is met with, while one is asked.
    pub fn challenge_tls(&self) -> Option<Arc<ServerConfig>> {
        self.challenges.tls()
    }

    /// Fetches and renews by ACME from now on, in a thread of its own, until this identity is gone. Does nothing where
    /// certificates come from elsewhere.
    pub fn keep(self: &Arc<Identity>) -> Result<(), CertificateError> {
        let Source::Acme(..) = &self.source else { return Ok(()) };
        let identity = Arc::downgrade(self);
        std::thread::Builder::new()
            .name("acme".into())
            .spawn(move || acme::keep(&identity))
            .map(drop)
            .map_err(|error| CertificateError::NoThread { cause: error.to_string() })
    }

    /// Fetches a certificate by ACME now and serves it.
    pub async fn fetch(&self) -> Result<(), CertificateError> {
        let Source::Acme(_, keeper) = &self.source else {
            return Err(CertificateError::NotByAcme);
        };
        keeper.fetch(&self.challenges).await?;
        self.refresh(SystemTime::now()).map(drop)
    }

    /// When the leaf that is served ceases to be valid.
    pub fn expires(&self) -> Option<SystemTime> {
        Some(validity(self.served.load().as_ref()?.cert.first()?)?.1)
    }

    /// How a map of relays names the leaf that is served, for clients that trust it and no authority: `sha256-raw:` and
    /// hex digits.
    pub fn pin(&self) -> Option<String> {
        let served = self.served.load();
        let leaf = served.as_ref()?.cert.first()?;
        let sum = TLS13_AES_128_GCM_SHA256.tls13()?.common.hash_provider.hash(leaf);
        Some(sum.as_ref().iter().fold("sha256-raw:".to_string(), |pin, byte| format!("{pin}{byte:02x}")))
    }

    /// What is served: leaf, intermediates, meta certificate.
    pub fn chain(&self) -> Vec<CertificateDer<'static>> {
        self.served.load().as_ref().map_or_else(Vec::new, |served| served.cert.clone())
    }
}

impl Kept {
    /// Our own chain with the meta certificate at its end.
    fn chain(&self) -> Option<Arc<CertifiedKey>> {
        let own = self.own.as_ref()?;
        let mut chain = own.cert.clone();
        chain.push(self.meta.clone());
        Some(Arc::new(CertifiedKey::new(chain, Arc::clone(&own.key))))
    }
}

fn acme_source(settings: &Acme, hostname: Option<&str>) -> Result<Source, CertificateError> {
    let Some(name) = hostname else {
        return Err(CertificateError::NoName);
    };
    let keeper = acme::Keeper::new(settings, name)?;
    Ok(Source::Acme(keeper.files(), keeper))
}

impl ResolvesServerCert for Identity {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        self.served.load_full()
    }
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Identity").field("key", &self.key).finish_non_exhaustive()
    }
}
