//! `weir derper`: the flags unit files of `derper` have, taken for what they mean there.
//!
//! Promises: Go's ways of writing flags (`-a X`, `-a=X`, `--a X`, `-stun=false`); defaults are derper's; one flag more,
//! `-take-over`, which derper has not. Refuses: flags that would be silently without effect, each with what to write instead.

mod other;

use std::fmt;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::path::PathBuf;

use weir_relay::error::KeyError;
use weir_relay::settings::{
    Acceptor, Acme, Certificates, Challenge, Home, Io, Limits, Settings, Source, TAILSCALED, Tls,
};
use weir_relay::{Engine, keyfile};

use crate::config::relay::{ACME_DIRECTORY, is_url, listening, remote};
use crate::control::client;
use crate::failure::Failure;
use crate::relay::run::{self, Started};
use crate::text::print;

/// Replaces the relay that answers on the control socket.
const TAKE_OVER: &str = "take-over";
/// Flags with a value, and whether they are switches.
const FLAGS: &[(&str, bool)] = &[
    ("a", false),
    ("accept-connection-burst", false),
    ("accept-connection-limit", false),
    ("ace", true),
    ("acme-email", false),
    ("bootstrap-dns-names", false),
    ("c", false),
    ("certdir", false),
    ("certmode", false),
    ("derp", true),
    ("dev", true),
    ("home", false),
    ("hostname", false),
    ("http-port", false),
    ("mesh-psk-file", false),
    ("mesh-with", false),
    ("socket", false),
    ("stun", true),
    ("stun-port", false),
    (TAKE_OVER, true),
    ("tcp-keepalive-time", false),
    ("tcp-user-timeout", false),
    ("tcp-write-timeout", false),
    ("verify-client-url", false),
    ("verify-client-url-fail-open", true),
    ("verify-clients", true),
    ("version", true),
];
/// Where derper run by root keeps its key.
const KEY: &str = "/var/lib/derper/derper.key";

/// Flags as given, the last of each name counting.
#[derive(Debug, Default, PartialEq, Eq)]
struct Given(Vec<(&'static str, String)>);

impl Given {
    fn read(args: &[String]) -> Result<Given, FlagError> {
        let (mut given, mut rest) = (Given::default(), args.iter());
        while let Some(arg) = rest.next() {
            let Some(flag) = arg.strip_prefix("--").or_else(|| arg.strip_prefix('-')) else {
                return Err(FlagError::NoFlag { got: arg.clone() });
            };
            let (name, value) = match flag.split_once('=') {
                Some((name, value)) => (name, Some(value.to_owned())),
                None => (flag, None),
            };
            let Some((name, switch)) = FLAGS.iter().find(|f| f.0 == name) else {
                return Err(match other::refused(name) {
                    Some(why) => FlagError::Refused { flag: name.to_owned(), why },
                    None => FlagError::Unknown { flag: name.to_owned() },
                });
            };
            let value = match (value, switch) {
                (Some(value), _) => value,
                (None, true) => "true".to_owned(),
                (None, false) => rest.next().cloned().ok_or(FlagError::NoValue { flag: name })?,
            };
            given.0.push((name, value));
        }
        Ok(given)
    }

    fn text(&self, name: &str) -> Option<&str> {
        self.0.iter().rev().find(|f| f.0 == name).map(|f| f.1.as_str()).filter(|v| !v.is_empty())
    }

    fn switch(&self, name: &str, usual: bool) -> Result<bool, FlagError> {
        match self.text(name) {
            None => Ok(usual),
            Some("true" | "t" | "1" | "TRUE" | "True") => Ok(true),
            Some("false" | "f" | "0" | "FALSE" | "False") => Ok(false),
            Some(other) => Err(FlagError::value(name, other, "true or false")),
        }
    }

    fn number(&self, name: &str, usual: i64) -> Result<i64, FlagError> {
        let wrong = |text: &str| FlagError::value(name, text, "a number");
        self.text(name).map_or(Ok(usual), |text| text.parse().map_err(|_| wrong(text)))
    }
}

/// Flags that derper may have and that mean nothing here, or mean something else.
#[derive(Debug)]
enum FlagError {
    NoFlag {
        got: String,
    },
    Unknown {
        flag: String,
    },
    /// One of derper's that weir does not have.
    Refused {
        flag: String,
        why: &'static str,
    },
    NoValue {
        flag: &'static str,
    },
    Value {
        flag: String,
        got: String,
        /// What to write, where that is not what was got.
        expected: &'static str,
    },
    WithoutDerp,
    NoHost {
        name: String,
    },
    MeshWithoutKey,
    Key(KeyError),
}

impl FlagError {
    fn value(flag: &str, got: &str, expected: &'static str) -> FlagError {
        FlagError::Value { flag: flag.to_owned(), got: got.to_owned(), expected }
    }
}

impl fmt::Display for FlagError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FlagError::NoFlag { got } => write!(f, "derper: `{got}` is no flag; flags are {}", names()),
            FlagError::Unknown { flag } => {
                write!(f, "derper: -{flag} is not taken here; flags are {}", names())
            }
            FlagError::Refused { flag, why } => write!(f, "derper: -{flag}: {why}"),
            FlagError::NoValue { flag } => write!(f, "derper: -{flag} has no value; write `-{flag}=VALUE`"),
            FlagError::Value { flag, got, expected } => {
                write!(f, "derper: -{flag}: got `{got}`, expected {expected}")
            }
            FlagError::WithoutDerp => f.write_str(
                "derper: -derp=false leaves STUN and pages only; not offered here, run derper for that",
            ),
            FlagError::NoHost { name } => write!(f, "derper: -mesh-with: `{name}` is no host"),
            FlagError::MeshWithoutKey => f.write_str("derper: -mesh-with needs -mesh-psk-file"),
            FlagError::Key(error) => error.fmt(f),
        }
    }
}

fn names() -> String {
    FLAGS.iter().map(|f| format!("-{}", f.0)).collect::<Vec<_>>().join(", ")
}

pub fn run(args: &[String], socket: Option<PathBuf>) -> Result<(), Failure> {
    let given = Given::read(args).map_err(Failure::of)?;
    if given.switch("version", false).map_err(Failure::of)? {
        return print(&format!("weir {}\n", env!("CARGO_PKG_VERSION")));
    }
    let take_over = given.switch(TAKE_OVER, false).map_err(Failure::of)?;
    let settings = settings(&given).map_err(Failure::of)?;
    let socket = socket.unwrap_or_else(|| client::default_socket(&settings.name));
    run::start(settings, Started { socket, take_over, ..Started::default() })?.run()
}

fn settings(given: &Given) -> Result<Settings, FlagError> {
    let dev = given.switch("dev", false)?;
    if !given.switch("derp", true)? {
        return Err(FlagError::WithoutDerp);
    }
    if given.switch("ace", false)? {
        let why = "an experiment of derper's that is not offered here; leave it out";
        return Err(FlagError::Refused { flag: "ace".into(), why });
    }
    let acceptor = acceptor(given, dev)?;
    let secret = match (dev, given.text("c")) {
        (true, _) => keyfile::fresh().map_err(FlagError::Key)?,
        (false, path) => {
            keyfile::read_or_make(&PathBuf::from(path.unwrap_or(KEY))).map_err(FlagError::Key)?
        }
    };
    let mesh_key = given.text("mesh-psk-file").map(|p| keyfile::read_mesh_key(p.as_ref()));
    let mesh_key = mesh_key.transpose().map_err(FlagError::Key)?;
    let mut mesh_with = Vec::new();
    for name in list(given.text("mesh-with")) {
        // `host/address` names an address to dial for the host: here the host's own is dialled.
        let host = name.split('/').next().unwrap_or(name);
        mesh_with.push(remote(host).ok_or_else(|| FlagError::NoHost { name: name.to_owned() })?);
    }
    if !mesh_with.is_empty() && mesh_key.is_none() {
        return Err(FlagError::MeshWithoutKey);
    }
    Ok(Settings {
        name: "derper".into(),
        secret,
        mesh_key,
        mesh_with,
        cpus: Vec::new(),
        io: Io::Auto,
        engine: engine(given)?,
        acceptor,
    })
}

/// Times: what a write may take is taken, the kernel's are as derper has them by default.
fn engine(given: &Given) -> Result<Engine, FlagError> {
    let mut engine = Engine::default();
    if let Some(text) = given.text("tcp-write-timeout") {
        // Without an end, a client that takes nothing would hold its queue for good.
        engine.write_timeout = other::duration(text).filter(|d| !d.is_zero()).ok_or_else(|| {
            FlagError::value("tcp-write-timeout", text, "a duration above 0; write for example `2s`")
        })?;
    }
    for (flag, expected) in [
        ("tcp-keepalive-time", "derper's default, which is all there is here; write `10m`, or leave it out"),
        ("tcp-user-timeout", "derper's default, which is all there is here; write `15s`, or leave it out"),
    ] {
        if let Some(text) = given.text(flag).filter(|text| other::duration(text) != other::fixed(flag)) {
            return Err(FlagError::value(flag, text, expected));
        }
    }
    Ok(engine)
}

/// Who sees `/debug/`, as with derper: this host.
fn loopback() -> Vec<Source> {
    vec![
        Source { address: Ipv4Addr::LOCALHOST.into(), length: 8 },
        Source { address: Ipv6Addr::LOCALHOST.into(), length: 128 },
    ]
}

fn list(text: Option<&str>) -> impl Iterator<Item = &str> {
    text.unwrap_or_default().split(',').map(str::trim).filter(|name| !name.is_empty())
}

fn acceptor(given: &Given, dev: bool) -> Result<Acceptor, FlagError> {
    let address = if dev { ":3340" } else { given.text("a").unwrap_or(":443") };
    let listen =
        listening(address).ok_or_else(|| FlagError::value("a", address, "`:PORT` or `ADDRESS:PORT`"))?;
    let mode = given.text("certmode").unwrap_or("letsencrypt");
    // As derper has it: TLS on port 443, elsewhere with certificates of files only.
    let tls = !dev && (listen.port() == 443 || mode == "manual");
    let port = |n: i64| u16::try_from(n).ok().filter(|p| *p > 0);
    let beside = |port: u16| std::net::SocketAddr::new(listen.ip(), port);
    let hostname = given.text("hostname").unwrap_or("derp.tailscale.com").to_owned();
    let http = if tls { port(given.number("http-port", 80)?) } else { None };
    let stun = if given.switch("stun", true)? { port(given.number("stun-port", 3478)?) } else { None };
    let mut acceptor = Acceptor {
        listen: vec![listen],
        http: http.map(beside).into_iter().collect(),
        stun: stun.map(beside).into_iter().collect(),
        tls: if tls { Tls::Auto } else { Tls::Off },
        certificates: if tls {
            certificates(given, mode, &hostname, http.is_some())?
        } else {
            Certificates::SelfSigned
        },
        hostname: Some(hostname),
        debug: loopback(),
        bootstrap_dns: list(given.text("bootstrap-dns-names")).map(str::to_owned).collect(),
        home: match given.text("home") {
            None => Home::Usual,
            Some("blank") => Home::Blank,
            Some(url) if is_url(url) => Home::Redirect(url.to_owned()),
            Some(other) => return Err(FlagError::value("home", other, "`blank` or a URL")),
        },
        ..Acceptor::default()
    };
    if given.switch("verify-clients", false)? {
        acceptor.access.tailscaled = Some(PathBuf::from(given.text("socket").unwrap_or(TAILSCALED)));
    }
    acceptor.access.verify = given.text("verify-client-url").map(str::to_owned);
    acceptor.access.fail_open = given.switch("verify-client-url-fail-open", true)?;
    if let Some(text) = given.text("accept-connection-limit") {
        // derper's own default is `+Inf`, which leaves the limit to us.
        let limit: f64 = text.parse().ok().filter(|limit: &f64| *limit > 0.0).ok_or_else(|| {
            FlagError::value(
                "accept-connection-limit",
                text,
                "a number above 0 or `+Inf`; write for example `5000`",
            )
        })?;
        if limit.is_finite() {
            acceptor.limits.accepts_per_second = limit.clamp(1.0, 1e6) as u32;
            acceptor.limits.accepts_per_second_per_source =
                Limits::source_rate(acceptor.limits.accepts_per_second);
        }
    }
    if given.text("accept-connection-burst").is_some() {
        let burst = given.number("accept-connection-burst", 0)?;
        if burst < 1 {
            let expected = "a number above 0; write for example `20000`";
            return Err(FlagError::value("accept-connection-burst", &burst.to_string(), expected));
        }
        acceptor.limits.accept_burst = burst.min(1_000_000) as u32;
        acceptor.limits.accept_burst_per_source = Limits::source_burst(acceptor.limits.accept_burst);
    }
    Ok(acceptor)
}

fn certificates(given: &Given, mode: &str, hostname: &str, http: bool) -> Result<Certificates, FlagError> {
    let home = std::env::var_os("HOME").map_or_else(|| PathBuf::from("/var/lib/derper"), PathBuf::from);
    let folder =
        given.text("certdir").map_or_else(|| home.join(".cache/tailscale/derper-certs"), PathBuf::from);
    match mode {
        "manual" => Ok(Certificates::Files {
            chain: folder.join(format!("{hostname}.crt")),
            key: folder.join(format!("{hostname}.key")),
        }),
        "letsencrypt" => Ok(Certificates::Acme(Acme {
            directory: ACME_DIRECTORY.to_owned(),
            contact: given.text("acme-email").map(|address| format!("mailto:{address}")),
            store: folder,
            root: None,
            challenge: if http { Challenge::Http } else { Challenge::TlsAlpn },
        })),
        other => Err(FlagError::value("certmode", other, "`letsencrypt` or `manual`")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn given(line: &str) -> Result<Given, FlagError> {
        Given::read(&line.split_whitespace().map(str::to_owned).collect::<Vec<_>>())
    }

    #[test]
    fn flags_are_taken_as_go_writes_them() {
        let read = given("-a :8443 --certmode=manual -stun=false -hostname derp.example.com").expect("flags");
        let acceptor = acceptor(&read, false).expect("an acceptor");
        assert_eq!(acceptor.listen, ["[::]:8443".parse().expect("an address")]);
        assert!(acceptor.stun.is_empty() && acceptor.tls == Tls::Auto && acceptor.http.len() == 1);
        let Certificates::Files { chain, .. } = acceptor.certificates else { panic!("manual") };
        assert!(chain.ends_with("derp.example.com.crt"));
    }

    #[test]
    fn another_port_than_443_is_plain_as_with_derper() {
        let acceptor =
            acceptor(&given("-a=127.0.0.1:3340 -http-port -1").expect("flags"), false).expect("an acceptor");
        assert_eq!((acceptor.tls, acceptor.http.len(), acceptor.stun.len()), (Tls::Off, 0, 1));
    }

    #[test]
    fn clients_are_verified_by_the_tailscaled_of_this_host_or_of_another_socket() {
        let asked = |line: &str| {
            let acceptor = acceptor(&given(line).expect("flags"), true).expect("an acceptor");
            acceptor.access.tailscaled.map(|path| path.display().to_string())
        };
        assert_eq!(asked("-verify-clients").as_deref(), Some(TAILSCALED));
        assert_eq!(asked("-verify-clients -socket /run/other.sock").as_deref(), Some("/run/other.sock"));
        assert_eq!(asked("-socket /run/other.sock"), None);
    }

    #[test]
    fn limits_are_taken_as_derper_has_them_and_never_left_out_in_silence() {
        let read = |line: &str| acceptor(&given(line).expect("flags"), true);
        let limits =
            read("-accept-connection-limit 100.5 -accept-connection-burst 7").expect("an acceptor").limits;
        assert_eq!((limits.accepts_per_second, limits.accept_burst), (100, 7));
        let usual = read("-accept-connection-limit +Inf").expect("an acceptor").limits;
        assert_eq!(usual.accepts_per_second, Acceptor::default().limits.accepts_per_second);
        for line in ["limit many", "limit 0", "limit -1", "limit NaN", "burst x", "burst 0", "burst -5"] {
            let said = read(&format!("-accept-connection-{line}")).expect_err("refused").to_string();
            assert!(said.starts_with("derper: -accept-connection-"), "{line}: {said}");
        }
    }

    #[test]
    fn times_are_taken_or_refused_with_what_there_is() {
        let read = |line: &str| engine(&given(line).expect("flags"));
        let taken =
            read("-tcp-write-timeout 5s -tcp-keepalive-time 10m0s -tcp-user-timeout=15s").expect("taken");
        assert_eq!(taken.write_timeout.as_secs(), 5);
        for line in [
            "-tcp-write-timeout 0",
            "-tcp-write-timeout x",
            "-tcp-keepalive-time 1m",
            "-tcp-user-timeout 20s",
        ] {
            assert!(read(line).expect_err("refused").to_string().contains("; write"), "{line}");
        }
    }

    #[test]
    fn debug_pages_are_for_this_host_alone() {
        let acceptor = acceptor(&given("").expect("none"), true).expect("an acceptor");
        let sees = |from: &str| acceptor.debug.iter().any(|s| s.contains(from.parse().expect("an address")));
        assert!(sees("127.0.0.1") && sees("127.1.2.3") && sees("::1"));
        assert!(!sees("192.0.2.1") && !sees("2001:db8::1") && !sees("128.0.0.1"));
    }

    #[test]
    fn what_would_have_no_effect_is_refused_with_what_to_do() {
        let said = given("-mbps 5").expect_err("refused").to_string();
        assert!(said.contains("-mbps is not taken here; flags are -a,"), "{said}");
        for flag in [
            "rate-config",
            "secrets-url",
            "secrets-cache-dir",
            "unpublished-bootstrap-dns-names",
            "acme-eab-kid",
        ] {
            let said = given(&format!("-{flag} x")).expect_err("refused").to_string();
            assert!(said.starts_with(&format!("derper: -{flag}: ")) && said.contains("; "), "{said}");
        }
        let said = settings(&given("-dev -ace").expect("a flag")).expect_err("refused").to_string();
        assert!(said.contains("leave it out"), "{said}");
        let said = settings(&given("-derp=false").expect("a flag")).expect_err("refused").to_string();
        assert!(said.contains("run derper for that"), "{said}");
        assert!(given("-a").expect_err("no value").to_string().contains("write `-a=VALUE`"));
    }
}
