//! What values of `[relay]` are: addresses to listen on, names, URLs, keys, prefixes.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;

use toml::de::DeValue;
use weir_core::relay::frame::Key;
use weir_relay::settings::{Home, Remote, Source, is_name};

use super::super::Placed;
use super::super::read::Value;
use super::super::source::Complaints;

/// Addresses listened on, each with its sockets in every accepting thread.
const SOCKETS_MAX: usize = 32;
/// Relays of a mesh know each other all: more than this is another design.
const REMOTES_MAX: usize = 64;

/// `":443"` (every address, IPv4 and IPv6), `"192.0.2.1:443"`, `"[2001:db8::1]:443"`, or a list of them.
pub fn sockets(value: &Value<'_>, port: u16, complaints: &mut Complaints) -> Vec<SocketAddr> {
    let mut found: Vec<SocketAddr> = Vec::new();
    let items = value.one_or_many();
    if items.is_empty() || items.len() > SOCKETS_MAX {
        value.refuse(
            format!("1 to {SOCKETS_MAX} addresses with ports"),
            format!("write `[\":{port}\"]`"),
            complaints,
        );
        return found;
    }
    for item in items {
        let Some(address) = socket(&item, port, complaints) else { continue };
        if found.contains(&address) {
            item.refuse("each address once", "remove the second mention", complaints);
        } else {
            found.push(address);
        }
    }
    found
}

fn socket(value: &Value<'_>, port: u16, complaints: &mut Complaints) -> Option<SocketAddr> {
    let text = value.text("an address and port", &format!("\":{port}\""), complaints)?;
    let parsed = listening(text);
    if parsed.is_none() {
        let remedy = format!("write `\":{port}\"` for every address, or `\"192.0.2.1:{port}\"`");
        value.refuse("an address and port to listen on", remedy, complaints);
    }
    parsed
}

/// An address to listen on as operators write it.
pub fn listening(text: &str) -> Option<SocketAddr> {
    match text.strip_prefix(':') {
        Some(port) => Some(SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), port.parse().ok()?)),
        None => text.parse().ok(),
    }
}

pub fn path(value: &Value<'_>, example: &str, complaints: &mut Complaints) -> Option<Placed<PathBuf>> {
    let text = value.text("a path", &format!("\"{example}\""), complaints)?;
    if text.is_empty() || text.contains('\0') {
        value.refuse("a path", format!("write `\"{example}\"`"), complaints);
        return None;
    }
    Some(Placed::new(PathBuf::from(text), value.span.clone()))
}

pub fn hostname(value: &Value<'_>, complaints: &mut Complaints) -> Option<String> {
    let text = value.text("a name", "hostname = \"derp.example.com\"", complaints)?;
    if !is_name(text) && text.parse::<IpAddr>().is_err() {
        value.refuse("a name of the DNS or an address", "write `\"derp.example.com\"`", complaints);
        return None;
    }
    Some(text.to_ascii_lowercase())
}

pub fn hostnames(value: &Value<'_>, complaints: &mut Complaints) -> Vec<String> {
    value.one_or_many().iter().filter_map(|v| hostname(v, complaints)).collect()
}

pub fn url(value: &Value<'_>, complaints: &mut Complaints) -> Option<String> {
    let text = value.text("a URL", "\"http://127.0.0.1:8080/verify\"", complaints)?;
    if !is_url(text) {
        value.refuse(
            "a URL of http or https",
            "write for example `\"http://127.0.0.1:8080/verify\"`",
            complaints,
        );
        return None;
    }
    Some(text.to_owned())
}

/// `http` or `https`, and a host.
pub fn is_url(text: &str) -> bool {
    text.parse::<hyper::Uri>().is_ok_and(|uri| {
        matches!(uri.scheme_str(), Some("http" | "https")) && uri.host().is_some_and(|h| !h.is_empty())
    })
}

pub fn yes_or_no(value: &Value<'_>, complaints: &mut Complaints) -> Option<bool> {
    match value.value {
        DeValue::Boolean(b) => Some(*b),
        _ => {
            value.refuse("true or false", "write `true`", complaints);
            None
        }
    }
}

/// `allow`: keys of clients, or the word for all there are.
pub enum Allow {
    Keys(Vec<Key>),
    Everybody,
}

/// What [`Allow::Everybody`] is called.
const EVERYBODY: &str = "everybody";

pub fn allow(value: &Value<'_>, complaints: &mut Complaints) -> Allow {
    if matches!(value.value, DeValue::String(s) if s == EVERYBODY) {
        return Allow::Everybody;
    }
    let (mut keys, items) = (Vec::new(), value.one_or_many());
    if items.is_empty() {
        value.refuse(
            "at least one key, because a list of nobody would let in everybody",
            format!("write `[\"nodekey:…\"]`, or `allow = \"{EVERYBODY}\"` if everybody is meant"),
            complaints,
        );
    }
    for item in items {
        let Some(text) = item.text("a node key", "\"nodekey:…\"", complaints) else { continue };
        match text.parse() {
            Ok(key) => keys.push(key),
            Err(_) => item.refuse(
                "`nodekey:` and 64 hex digits",
                "write what `tailscale status --json` calls PublicKey",
                complaints,
            ),
        }
    }
    Allow::Keys(keys)
}

pub fn home(value: &Value<'_>, complaints: &mut Complaints) -> Option<Home> {
    match value.text("`usual`, `blank` or a URL", "home = \"blank\"", complaints)? {
        "usual" => Some(Home::Usual),
        "blank" => Some(Home::Blank),
        text if is_url(text) => Some(Home::Redirect(text.to_owned())),
        _ => {
            value.refuse("`usual`, `blank` or a URL", "write `\"blank\"`", complaints);
            None
        }
    }
}

/// Prefixes; an address alone is its own.
pub fn sources(value: &Value<'_>, complaints: &mut Complaints) -> Vec<Source> {
    let mut sources = Vec::new();
    for item in value.one_or_many() {
        let Some(text) = item.text("an address or prefix", "\"127.0.0.1\"", complaints) else { continue };
        match source(text) {
            Some(source) => sources.push(source),
            None => item.refuse(
                "an address or prefix",
                "write for example `\"127.0.0.1\"` or `\"10.0.0.0/8\"`",
                complaints,
            ),
        }
    }
    sources
}

fn source(text: &str) -> Option<Source> {
    let (address, length) = match text.split_once('/') {
        Some((address, length)) => (address.parse::<IpAddr>().ok()?, Some(length.parse::<u8>().ok()?)),
        None => (text.parse::<IpAddr>().ok()?, None),
    };
    let most = if address.is_ipv4() { 32 } else { 128 };
    let length = length.unwrap_or(most);
    (length <= most).then_some(Source { address, length })
}

pub fn remotes(value: &Value<'_>, complaints: &mut Complaints) -> Vec<Remote> {
    let items = value.one_or_many();
    if items.len() > REMOTES_MAX {
        value.refuse(format!("at most {REMOTES_MAX} relays"), "leave out those of other regions", complaints);
        return Vec::new();
    }
    let mut found = Vec::new();
    for item in items {
        let Some(text) = item.text("a relay's name", "\"derp2.example.com\"", complaints) else { continue };
        match remote(text) {
            Some(remote) => found.push(remote),
            None => item.refuse(
                "a name with or without a port, or `http://` before it where there is no TLS",
                "write for example `\"derp2.example.com\"` or `\"http://127.0.0.1:3340\"`",
                complaints,
            ),
        }
    }
    found
}

/// `derp2.example.com`, `derp2.example.com:8443`, `https://…/derp`, `http://127.0.0.1:3340`.
pub fn remote(text: &str) -> Option<Remote> {
    let (rest, tls) = match text.split_once("://") {
        None => (text, true),
        Some(("https", rest)) => (rest, true),
        Some(("http", rest)) => (rest, false),
        Some(_) => return None,
    };
    let rest = rest.strip_suffix("/derp").or_else(|| rest.strip_suffix('/')).unwrap_or(rest);
    let usual = if tls { 443 } else { 80 };
    let (host, port) = match rest.strip_prefix('[') {
        Some(bracketed) => {
            let (host, after) = bracketed.split_once(']')?;
            host.parse::<Ipv6Addr>().ok()?;
            (host, after.strip_prefix(':'))
        }
        None => match rest.split_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (rest, None),
        },
    };
    let port = port.map_or(Some(usual), |p| p.parse().ok())?;
    let fits = is_name(host) || host.parse::<IpAddr>().is_ok();
    fits.then(|| Remote { name: text.to_owned(), host: host.to_owned(), port, tls })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_relay_of_the_mesh_is_named_as_operators_write_it() {
        let of = |text: &str| remote(text).map(|r| (r.host, r.port, r.tls));
        assert_eq!(of("derp2.example.com"), Some(("derp2.example.com".into(), 443, true)));
        assert_eq!(of("https://a.b:8443/derp"), Some(("a.b".into(), 8443, true)));
        assert_eq!(of("http://127.0.0.1:3340"), Some(("127.0.0.1".into(), 3340, false)));
        assert_eq!(of("[2001:db8::1]:99"), Some(("2001:db8::1".into(), 99, true)));
        for wrong in ["", "ftp://a", "a b", "a:x", "[1.2.3.4]", "-a.b"] {
            assert_eq!(of(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn a_port_alone_is_every_address() {
        assert_eq!(listening(":443"), Some("[::]:443".parse().expect("an address")));
        assert_eq!(listening("192.0.2.1:80"), Some("192.0.2.1:80".parse().expect("an address")));
        assert_eq!(listening("443"), None);
    }
}
