//! Certificates by ACME (RFC 8555): one name, a challenge over HTTP or TLS, renewed when a third of the time is left.
//!
//! ```text
//!  <store>/account.json     the account at this directory, mode 600
//!  <store>/<name>.pem       leaf, intermediates and private key in one file, mode 600, replaced as a whole
//! ```
//!
//! Promises: a fetch that fails changes nothing, and is tried again after a minute, two, four … six hours, so that
//! an authority's limits are respected. Refuses: challenges but HTTP-01 and TLS-ALPN-01; names that would leave the store.

use std::collections::BTreeMap;
use std::fs::{self, OpenOptions};
use std::io::{self, Write as _};
use std::net::IpAddr;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread;
use std::time::{Duration, SystemTime};

use arc_swap::ArcSwapOption;
use instant_acme::{
    Account, AccountCredentials, AuthorizationStatus, ChallengeType, Identifier, NewAccount, NewOrder, Order,
    OrderStatus, RetryPolicy,
};
use rcgen::{CertificateParams, DistinguishedName, KeyPair};
use rustls::ServerConfig;
use zeroize::Zeroizing;

use super::files::Files;
use super::https::Https;
use super::{Identity, alpn, validity};
use crate::error::{AcmeError, CertificateError};
use crate::settings::{Acme, Challenge};

/// Pause between looks at whether it is time to renew.
const LOOK: Duration = Duration::from_secs(3600);
/// Pause before the first look.
const BEGIN: Duration = Duration::from_secs(2);
const RETRY_FIRST: Duration = Duration::from_secs(60);
const RETRY_LAST: Duration = Duration::from_secs(6 * 3600);
/// An authority looks at the challenge from several places: that takes seconds, rarely more.
const ORDER_TIME: Duration = Duration::from_secs(120);

/// Answers to challenges that are being asked now.
#[derive(Debug, Default)]
pub struct Challenges {
    /// HTTP-01: by token.
    http: Mutex<BTreeMap<String, String>>,
    /// TLS-ALPN-01: for the one name there is.
    tls: ArcSwapOption<ServerConfig>,
}

impl Challenges {
    fn answers(&self) -> MutexGuard<'_, BTreeMap<String, String>> {
        self.http.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The answer for this token.
    pub fn answer(&self, token: &str) -> Option<String> {
        self.answers().get(token).cloned()
    }

    /// What a TLS connection for the challenge is met with, while there is one.
    pub fn tls(&self) -> Option<Arc<ServerConfig>> {
        self.tls.load_full()
    }

    fn clear(&self) {
        self.answers().clear();
        self.tls.store(None);
    }
}

/// Who fetches the certificate of one name.
pub struct Keeper {
    settings: Acme,
    name: String,
}

impl Keeper {
    pub fn new(settings: &Acme, name: &str) -> Result<Keeper, CertificateError> {
        if name.is_empty() || name.starts_with('.') || name.contains(['/', '\\', '*', '\0']) {
            return Err(CertificateError::NoHostName { name: name.to_owned() });
        }
        Ok(Keeper { settings: settings.clone(), name: name.to_string() })
    }

    /// Where the certificate is kept.
    pub fn files(&self) -> Files {
        let path = self.settings.store.join(format!("{}.pem", self.name));
        Files { chain: path.clone(), key: path }
    }

    /// One order from beginning to end.
    pub async fn fetch(&self, challenges: &Challenges) -> Result<(), CertificateError> {
        let result = self.order(challenges).await;
        challenges.clear();
        let pem = result.map_err(|cause| CertificateError::Acme {
            name: self.name.clone(),
            directory: self.settings.directory.clone(),
            port: match self.settings.challenge {
                Challenge::Http => "port 80 included",
                Challenge::TlsAlpn => "to port 443",
            },
            cause,
        })?;
        let path = self.files().chain;
        write_private(&path, pem.as_bytes())
            .map_err(|error| CertificateError::CannotKeep { cause: error.to_string(), path })
    }

    async fn order(&self, challenges: &Challenges) -> Result<Zeroizing<String>, AcmeError> {
        let account = self.account().await?;
        let identifier = match self.name.parse::<IpAddr>() {
            Ok(address) => Identifier::Ip(address),
            Err(_) => Identifier::Dns(self.name.clone()),
        };
        let mut order = account.new_order(&NewOrder::new(&[identifier])).await.map_err(said)?;
        self.prove(&mut order, challenges).await?;
        let patience = RetryPolicy::new().timeout(ORDER_TIME);
        let status = order.poll_ready(&patience).await.map_err(said)?;
        if status != OrderStatus::Ready {
            let state = || AcmeError::State { of: "order", is: format!("{status:?}, not ready") };
            return Err(refusal(&mut order).await.map_or_else(state, AcmeError::Server));
        }
        let key = KeyPair::generate().map_err(said)?;
        let mut params = CertificateParams::new([self.name.clone()]).map_err(said)?;
        params.distinguished_name = DistinguishedName::new();
        let request = params.serialize_request(&key).map_err(said)?;
        order.finalize_csr(request.der()).await.map_err(said)?;
        let chain = order.poll_certificate(&patience).await.map_err(said)?;
        let key = Zeroizing::new(key.serialize_pem());
        Ok(Zeroizing::new(format!("{}\n{}", chain.trim_end(), *key)))
    }

    /// Sets up every challenge and says so.
    async fn prove(&self, order: &mut Order, challenges: &Challenges) -> Result<(), AcmeError> {
        let mut authorizations = order.authorizations();
        while let Some(authorization) = authorizations.next().await {
            let mut authorization = authorization.map_err(said)?;
            match authorization.status {
                AuthorizationStatus::Valid => continue,
                AuthorizationStatus::Pending => {}
                status => return Err(AcmeError::State { of: "authorization", is: format!("{status:?}") }),
            }
            let (kind, name) = match self.settings.challenge {
                Challenge::Http => (ChallengeType::Http01, "HTTP-01"),
                Challenge::TlsAlpn => (ChallengeType::TlsAlpn01, "TLS-ALPN-01"),
            };
            let mut challenge = authorization.challenge(kind).ok_or(AcmeError::NoChallenge { name })?;
            let answer = challenge.key_authorization();
            match self.settings.challenge {
                Challenge::Http => {
                    challenges.answers().insert(challenge.token.clone(), answer.as_str().to_owned());
                }
                Challenge::TlsAlpn => {
                    let config = alpn::config(&self.name, answer.digest().as_ref())
                        .map_err(|error| AcmeError::Challenge(Box::new(error)))?;
                    challenges.tls.store(Some(config));
                }
            }
            challenge.set_ready().await.map_err(said)?;
        }
        Ok(())
    }

    async fn account(&self) -> Result<Account, AcmeError> {
        let path = self.settings.store.join("account.json");
        let client = Https::new(self.settings.root.as_deref()).map_err(said)?;
        let builder = Account::builder_with_http(Box::new(client));
        match fs::read(&path).map(Zeroizing::new) {
            Ok(text) => {
                let credentials: AccountCredentials = serde_json::from_slice(&text)
                    .map_err(|error| AcmeError::NoAccount { path, cause: error.to_string() })?;
                return builder.from_credentials(credentials).await.map_err(said);
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => {
                return Err(AcmeError::AccountUnreadable { path, cause: error.to_string() });
            }
        }
        let contact: Vec<String> = self.settings.contact.iter().map(|mail| contact_url(mail)).collect();
        let contact: Vec<&str> = contact.iter().map(String::as_str).collect();
        let new =
            NewAccount { contact: &contact, terms_of_service_agreed: true, only_return_existing: false };
        let (account, credentials) =
            builder.create(&new, self.settings.directory.clone(), None).await.map_err(said)?;
        let text = Zeroizing::new(serde_json::to_vec(&credentials).map_err(said)?);
        write_private(&path, &text)
            .map_err(|error| AcmeError::AccountNotKept { cause: error.to_string(), path })?;
        Ok(account)
    }
}

/// Fetches whenever it is time, until nobody holds `identity` any more.
pub fn keep(identity: &Weak<Identity>) {
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return tracing::error!("relay: acme: cannot run: {error}; start the relay again"),
    };
    // The challenge is asked for over ports that open about now.
    let mut pause = BEGIN;
    let mut retry = RETRY_FIRST;
    loop {
        thread::sleep(pause);
        let Some(identity) = identity.upgrade() else { return };
        let leaf = identity.chain().into_iter().next();
        let valid = leaf.and_then(|leaf| validity(&leaf));
        pause = LOOK;
        if valid.is_some_and(|(begin, end)| !due(begin, end, SystemTime::now())) {
            continue;
        }
        match runtime.block_on(identity.fetch()) {
            Ok(()) => {
                tracing::info!("certificate fetched by ACME");
                retry = RETRY_FIRST;
            }
            Err(error) => {
                tracing::warn!("{error}; tried again in {} s", retry.as_secs());
                pause = retry;
                retry = (retry * 2).min(RETRY_LAST);
            }
        }
    }
}

/// Why the authority did not believe us, in its own words.
async fn refusal(order: &mut Order) -> Option<String> {
    let mut authorizations = order.authorizations();
    while let Some(Ok(authorization)) = authorizations.next().await {
        if let Some(error) = authorization.challenges.iter().find_map(|challenge| challenge.error.as_ref()) {
            return Some(error.to_string());
        }
    }
    None
}

fn contact_url(mail: &str) -> String {
    if mail.contains(':') { mail.to_string() } else { format!("mailto:{mail}") }
}

fn said(error: impl std::fmt::Display) -> AcmeError {
    AcmeError::Server(error.to_string())
}

/// Whether less than a third of the time between `begin` and `end` is left.
fn due(begin: SystemTime, end: SystemTime, now: SystemTime) -> bool {
    let whole = end.duration_since(begin).unwrap_or_default();
    end.duration_since(now).unwrap_or_default() < whole / 3
}

/// Replaces a file as a whole by one that nobody else may read.
fn write_private(path: &Path, content: &[u8]) -> io::Result<()> {
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder)?;
    }
    let mut beside = path.as_os_str().to_owned();
    beside.push(format!(".{}", std::process::id()));
    let beside = PathBuf::from(beside);
    let write = || {
        // Left behind by a process that was killed, and had our number.
        let _ = fs::remove_file(&beside);
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&beside)?;
        file.write_all(content)?;
        file.sync_all()?;
        fs::rename(&beside, path)
    };
    write().inspect_err(|_| drop(fs::remove_file(&beside)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn certificate_is_due_when_a_third_of_its_time_is_left() {
        let day = |day: u64| SystemTime::UNIX_EPOCH + Duration::from_secs(day * 86_400);
        assert!(!due(day(0), day(90), day(59)));
        assert!(due(day(0), day(90), day(61)));
        assert!(due(day(0), day(90), day(100)));
    }

    #[test]
    fn names_that_leave_the_store_are_refused() {
        let settings = Acme {
            directory: "https://localhost/".into(),
            contact: None,
            store: "/nowhere".into(),
            root: None,
            challenge: Challenge::Http,
        };
        for name in ["", "../a", "a/b", "*.example.com", ".."] {
            assert!(Keeper::new(&settings, name).is_err(), "{name}");
        }
        assert!(Keeper::new(&settings, "derp.example.com").is_ok());
    }
}
