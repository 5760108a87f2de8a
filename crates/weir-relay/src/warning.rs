//! What a relay's settings allow that an operator may not have meant.
//!
//! Promises: a warning stops nothing; each is a type, and one sentence with its remedy.

use std::fmt;
use std::net::IpAddr;

use hyper::Uri;

use super::settings::{Acceptor, Remote, Tls};

/// One thing to think about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Warning {
    /// Clients reach it over a network, and their frames show who talks to whom.
    TlsOff,
    /// Nobody is asked who they are, and it was not said that this is meant.
    Everybody,
    /// A verifier that fails lets everybody in.
    VerifyFailsOpen { verifier: String },
    /// Whoever is between here and the verifier decides who is let in.
    VerifyUnencrypted { verifier: String },
    /// The mesh key, which opens everything, passes unencrypted.
    MeshUnencrypted { relay: String },
    /// `/debug/` is for every address there is.
    DebugForEverybody,
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Warning::TlsOff => f.write_str("tls is off: only a proxy or a lab should see this relay"),
            Warning::Everybody => f.write_str(
                "everybody who reaches this relay may use it; write `allow`, `verify` or `verify_tailscaled`, or `allow = \"everybody\"` if that is meant",
            ),
            Warning::VerifyFailsOpen { verifier } => write!(
                f,
                "verify: while {verifier} does not answer, everybody is let in; write `verify_fail_open = false` to keep them out"
            ),
            Warning::VerifyUnencrypted { verifier } => write!(
                f,
                "verify: {verifier} is asked without TLS, so whoever is on the way can answer for it; write `https://…`"
            ),
            Warning::MeshUnencrypted { relay } => write!(
                f,
                "mesh_with: {relay} is dialled without TLS, so the mesh key and all traffic can be read on the way; write the relay's name without `http://`"
            ),
            Warning::DebugForEverybody => {
                f.write_str("debug: every address may see /debug/; write those of your operators")
            }
        }
    }
}

/// Every warning about these settings.
pub fn warnings(acceptor: &Acceptor, mesh_with: &[Remote]) -> Vec<Warning> {
    let mut found = Vec::new();
    let exposed = acceptor.listen.iter().any(|address| !is_loopback(address.ip()));
    if exposed && acceptor.tls == Tls::Off {
        found.push(Warning::TlsOff);
    }
    let access = &acceptor.access;
    let asked = access.tailscaled.is_some() || access.verify.is_some() || !access.allow.is_empty();
    if exposed && !asked && !access.everybody {
        found.push(Warning::Everybody);
    }
    if let Some(verifier) = &access.verify {
        if access.fail_open {
            found.push(Warning::VerifyFailsOpen { verifier: verifier.clone() });
        }
        if unencrypted(verifier) {
            found.push(Warning::VerifyUnencrypted { verifier: verifier.clone() });
        }
    }
    let in_clear = mesh_with.iter().filter(|remote| !remote.tls);
    found.extend(in_clear.map(|remote| Warning::MeshUnencrypted { relay: remote.name.clone() }));
    if acceptor.debug.iter().any(|source| source.length == 0) {
        found.push(Warning::DebugForEverybody);
    }
    found
}

/// Whether what is said to this URL leaves this host without TLS.
fn unencrypted(url: &str) -> bool {
    let Ok(uri) = url.parse::<Uri>() else { return false };
    let host = uri.host().unwrap_or_default().trim_matches(['[', ']']);
    let here = host == "localhost" || host.parse::<IpAddr>().is_ok_and(is_loopback);
    uri.scheme_str() == Some("http") && !here
}

/// Whether only this host reaches an address.
pub fn is_loopback(address: IpAddr) -> bool {
    address.to_canonical().is_loopback()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_leaves_this_host_without_tls_is_unencrypted() {
        for url in
            ["http://127.0.0.1:8080/verify", "http://[::1]/", "http://localhost/x", "https://192.0.2.1/"]
        {
            assert!(!unencrypted(url), "{url}");
        }
        for url in ["http://192.0.2.1:8080/verify", "http://verifier.example.com/", "http://[2001:db8::1]/"] {
            assert!(unencrypted(url), "{url}");
        }
    }
}
