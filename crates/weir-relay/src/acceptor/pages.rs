//! What a relay answers to browsers, probes and captive portal checks.
//!
//! ```text
//! /derp/probe, /derp/latency-check   200, for scripts of any origin
//! /generate_204                      204; a client's challenge comes back
//! /bootstrap-dns?q=NAME              addresses of names clients need before they have a DNS
//! /robots.txt  /  /debug/            the last for the prefixes in `debug` only
//! ```

use std::net::IpAddr;

use super::http::{Head, HttpResponse};
use super::listen::ListenerKind;
use super::{Live, Shared};
use crate::settings::{Home, is_name};

/// A challenge as clients make it.
const CHALLENGE_MAX: usize = 64;
/// Where an ACME server looks (RFC 8555 8.3).
const ACME: &str = "/.well-known/acme-challenge/";
/// Two years, as the field does.
const HSTS: &str = "max-age=63072000; includeSubDomains";

/// The page for a request that is not an upgrade.
pub fn page(
    shared: &Shared,
    live: &Live,
    kind: ListenerKind,
    tls: bool,
    from: IpAddr,
    head: &Head,
) -> HttpResponse {
    let answer = match head.path.as_str() {
        "/generate_204" => no_content(head),
        path if path.starts_with(ACME) => challenge(live, &path[ACME.len()..]),
        _ if kind == ListenerKind::Pages && live.tls.is_some() => to_https(live, head),
        _ if !matches!(head.method.as_str(), "GET" | "HEAD") => {
            HttpResponse::text(405, format!("{}: got {}, expected GET or HEAD\n", head.path, head.method))
        }
        "/derp/probe" | "/derp/latency-check" => {
            HttpResponse::text(200, "").with("Access-Control-Allow-Origin", "*")
        }
        "/derp" => HttpResponse::text(426, "DERP requires connection upgrade\n").with("Upgrade", "DERP"),
        "/bootstrap-dns" => bootstrap_dns(shared, live, head),
        "/robots.txt" => HttpResponse::text(200, "User-agent: *\nDisallow: /\n"),
        "/" => home(live),
        path if path.starts_with("/debug/") && live.acceptor.debug.iter().any(|s| s.contains(from)) => {
            debug(shared, path, head.field("accept"))
        }
        path => HttpResponse::text(404, format!("{path}: no such page\n")),
    };
    if tls { answer.with("Strict-Transport-Security", HSTS) } else { answer }
}

fn no_content(head: &Head) -> HttpResponse {
    let answer = HttpResponse { status: 204, fields: Vec::new(), body: String::new() };
    let fits = |c: &&str| {
        !c.is_empty()
            && c.len() <= CHALLENGE_MAX
            && c.bytes().all(|b| b.is_ascii_alphanumeric() || b"._:-".contains(&b))
    };
    match head.field("x-tailscale-challenge").filter(fits) {
        Some(challenge) => answer.with("X-Tailscale-Response", format!("response {challenge}")),
        None => answer,
    }
}

fn challenge(live: &Live, token: &str) -> HttpResponse {
    match live.tls.as_ref().and_then(|tls| tls.identity.challenge(token)) {
        Some(answer) => HttpResponse::new(200, "application/octet-stream", answer),
        None => HttpResponse::text(404, "no such challenge\n"),
    }
}

fn to_https(live: &Live, head: &Head) -> HttpResponse {
    let asked = head.field("host").map(|host| host.rsplit_once(':').map_or(host, |(name, _)| name));
    let fits = |name: &&str| is_name(name);
    match live.acceptor.hostname.as_deref().or(asked.filter(fits)) {
        Some(name) => {
            HttpResponse::text(302, "").with("Location", format!("https://{name}{}", head.target()))
        }
        None => HttpResponse::text(400, "use https\n"),
    }
}

fn home(live: &Live) -> HttpResponse {
    match &live.acceptor.home {
        Home::Blank => HttpResponse::text(200, ""),
        Home::Redirect(url) => HttpResponse::text(302, "").with("Location", url.clone()),
        Home::Usual => HttpResponse::new(
            200,
            "text/html; charset=utf-8",
            "<!doctype html>\n<title>DERP relay</title>\n<h1>DERP relay</h1>\n\
             <p>This is a relay of a <a href=\"https://tailscale.com\">Tailscale</a> or Headscale network. It passes \
             on packets that its clients have encrypted for each other, and cannot read them. It is run by \
             <code>weir</code>.</p>\n",
        )
        .with("X-Content-Type-Options", "nosniff")
        .with("X-Frame-Options", "DENY")
        .with("Content-Security-Policy", "default-src 'none'"),
    }
}

/// Addresses of one name of the list, or of all of them.
fn bootstrap_dns(shared: &Shared, live: &Live, head: &Head) -> HttpResponse {
    let asked = head.asked("q").map(|name| name.trim_end_matches('.').to_ascii_lowercase());
    let found = shared.names.of(&live.acceptor.bootstrap_dns, asked.as_deref());
    let body = serde_json::to_string(&found).unwrap_or_else(|_| "{}".to_owned());
    HttpResponse::new(200, "application/json", body)
}

fn debug(shared: &Shared, path: &str, accept: Option<&str>) -> HttpResponse {
    match path {
        "/debug/varz" => {
            let (content_type, text) = weir_metrics::negotiated(accept, shared.metrics());
            HttpResponse::new(200, content_type, text)
        }
        _ => HttpResponse::text(200, "/debug/varz   counters, as /metrics has them\n"),
    }
}
