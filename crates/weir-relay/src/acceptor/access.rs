//! Who is let in: the list of keys, then those a tailscaled of this host knows, then a verifier asked over HTTP.
//!
//! ```text
//! POST URL  {"NodePublic": "nodekey:…", "Source": "192.0.2.7"}   ─►   {"Allow": true}
//! ```
//!
//! Promises: relays that showed the mesh key are not asked about; an answer is waited for at most [`PATIENCE`]; what
//! becomes of clients while nobody answers is the operator's choice, and each time is counted; an answer that does not say
//! yes is a no.

use std::fmt;
use std::net::IpAddr;
use std::path::Path;
use std::sync::OnceLock;
use std::time::Duration;

use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::{Bytes, Incoming};
use hyper_rustls::HttpsConnector;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use serde::{Deserialize, Serialize};
use weir_core::relay::frame::Key;

use super::counters::{Counters, count};
use super::tailscaled;
use crate::settings::Access;

/// The verifier has this long.
const PATIENCE: Duration = Duration::from_secs(5);
/// Its answer is a few words.
const ANSWER_MAX: usize = 4 << 10;

#[derive(Serialize)]
struct Question {
    #[serde(rename = "NodePublic")]
    node: String,
    #[serde(rename = "Source")]
    source: IpAddr,
}

#[derive(Deserialize)]
struct Verdict {
    #[serde(rename = "Allow")]
    allow: bool,
}

type Https = Client<HttpsConnector<HttpConnector>, Full<Bytes>>;

/// Asks verifiers; made once a thread, its connections are kept.
#[derive(Default)]
pub struct Verifier {
    client: OnceLock<Result<Https, Unanswered>>,
}

/// Why somebody is kept out, for the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Denied {
    NotInAllow,
    TailscaledSaysNo,
    TailscaledSilent,
    VerifierSaysNo,
    /// It answers, and not with a yes or a no.
    VerifierUnclear,
    VerifierSilent,
}

impl fmt::Display for Denied {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Denied::NotInAllow => "its key is not in `allow`",
            Denied::TailscaledSaysNo => "tailscaled does not know its key",
            Denied::TailscaledSilent => "tailscaled does not answer",
            Denied::VerifierSaysNo => "the verifier says no",
            Denied::VerifierUnclear => "the verifier does not say yes",
            Denied::VerifierSilent => "the verifier does not answer",
        })
    }
}

/// Why a verifier gave no answer: then `verify_fail_open` decides. Causes are what libraries said.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Unanswered {
    TooLate,
    NoRoots { cause: String },
    Transport { cause: String },
}

impl fmt::Display for Unanswered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Unanswered::TooLate => write!(f, "no answer within {PATIENCE:?}"),
            Unanswered::NoRoots { cause } => {
                write!(f, "the system's certificates cannot be read ({cause}); install ca-certificates")
            }
            Unanswered::Transport { cause } => f.write_str(cause),
        }
    }
}

fn transport(error: impl fmt::Display) -> Unanswered {
    Unanswered::Transport { cause: error.to_string() }
}

/// An answer that is neither a yes nor a no: nobody is let in by it.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Unclear {
    Status(hyper::StatusCode),
    BrokenOff { cause: String },
    NotUnderstood { cause: String },
}

impl fmt::Display for Unclear {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Unclear::Status(status) => write!(f, "it answers {status}"),
            Unclear::BrokenOff { cause } => write!(f, "its answer broke off ({cause})"),
            Unclear::NotUnderstood { cause } => {
                write!(f, "its answer is not understood ({cause}), expected `{{\"Allow\": true}}`")
            }
        }
    }
}

impl Verifier {
    pub fn new() -> Verifier {
        Verifier::default()
    }

    /// Whether the owner of this key, proved, may come in.
    pub async fn authorize(
        &self,
        access: &Access,
        key: &Key,
        source: IpAddr,
        counters: &Counters,
    ) -> Result<(), Denied> {
        if !access.allow.is_empty() && !access.allow.contains(key) {
            count(&counters.denied);
            return Err(Denied::NotInAllow);
        }
        if let Some(socket) = &access.tailscaled {
            known(socket, key, counters).await?;
        }
        let Some(url) = &access.verify else { return Ok(()) };
        let asked = tokio::time::timeout(PATIENCE, self.ask(url, key, source)).await;
        match asked.unwrap_or(Err(Unanswered::TooLate)) {
            Ok(Ok(true)) => {
                count(&counters.verified);
                Ok(())
            }
            Ok(Ok(false)) => {
                count(&counters.denied);
                Err(Denied::VerifierSaysNo)
            }
            Ok(Err(unclear)) => {
                count(&counters.denied);
                tracing::warn!("verify {url}: {unclear}; {key} is kept out");
                Err(Denied::VerifierUnclear)
            }
            Err(why) => {
                count(&counters.unanswered);
                tracing::warn!(
                    "verify {url}: {why}; {key} is {}",
                    if access.fail_open { "let in (verify_fail_open)" } else { "kept out" }
                );
                match access.fail_open {
                    true => Ok(()),
                    false => Err(Denied::VerifierSilent),
                }
            }
        }
    }

    /// What it says, or why that is no answer; or why nobody answers.
    async fn ask(&self, url: &str, key: &Key, source: IpAddr) -> Result<Result<bool, Unclear>, Unanswered> {
        let client = self.client.get_or_init(client).as_ref().map_err(Clone::clone)?;
        let question = Question { node: key.to_string(), source: source.to_canonical() };
        let body = serde_json::to_vec(&question).map_err(transport)?;
        let request = hyper::Request::post(url)
            .header(hyper::header::CONTENT_TYPE, "application/json")
            .body(Full::new(Bytes::from(body)))
            .map_err(transport)?;
        let response = client.request(request).await.map_err(|e| {
            use std::error::Error as _;
            let cause = e.source().map_or_else(|| e.to_string(), |cause| format!("{e}: {cause}"));
            Unanswered::Transport { cause }
        })?;
        Ok(verdict(response).await)
    }
}

/// Whether the tailscaled of this host knows the key.
async fn known(socket: &Path, key: &Key, counters: &Counters) -> Result<(), Denied> {
    match tailscaled::knows(socket, key).await {
        Ok(true) => {
            count(&counters.verified);
            Ok(())
        }
        Ok(false) => {
            count(&counters.denied);
            Err(Denied::TailscaledSaysNo)
        }
        Err(why) => {
            count(&counters.unanswered);
            tracing::warn!("tailscaled {}: {why}; {key} is kept out", socket.display());
            Err(Denied::TailscaledSilent)
        }
    }
}

/// Only what says yes is a yes: a verifier that answers something else is there, and is not failed open for.
async fn verdict(response: hyper::Response<Incoming>) -> Result<bool, Unclear> {
    if response.status() != hyper::StatusCode::OK {
        return Err(Unclear::Status(response.status()));
    }
    let body = Limited::new(response.into_body(), ANSWER_MAX).collect().await;
    let body = body.map_err(|e| Unclear::BrokenOff { cause: e.to_string() })?.to_bytes();
    let verdict: Verdict =
        serde_json::from_slice(&body).map_err(|e| Unclear::NotUnderstood { cause: e.to_string() })?;
    Ok(verdict.allow)
}

fn client() -> Result<Https, Unanswered> {
    let https = hyper_rustls::HttpsConnectorBuilder::new()
        .with_provider_and_native_roots(rustls::crypto::aws_lc_rs::default_provider())
        .map_err(|e| Unanswered::NoRoots { cause: e.to_string() })?
        .https_or_http()
        .enable_http1()
        .build();
    Ok(Client::builder(TokioExecutor::new()).build(https))
}
