//! `weir derper`: the flags unit files of `derper` have, taken for what they mean there.
//!
//! Promises: Go's ways of writing flags (`-a X`, `-a=X`, `--a X`, `-stun=false`); defaults are derper's; one flag more,
//! `-take-over`, which derper has not. Refuses: flags that would be silently without effect, each with what to write instead.

use std::path::PathBuf;

use weir_relay::settings::{
    Acme, Certificates, Challenge, Front, Home, Io, Limits, Settings, TAILSCALED, Tls,
};
use weir_relay::{Engine, keyfile};

use crate::config::relay::{ACME_DIRECTORY, is_url, listening, remote};
use crate::control::client;
use crate::failure::Failure;
use crate::relay::run::{self, Started};

/// In place of the relay that answers on the control socket.
const TAKE_OVER: &str = "take-over";
/// Flags with a value, and whether they are switches.
const FLAGS: &[(&str, bool)] = &[
    ("a", false),
    ("accept-connection-burst", false),
    ("accept-connection-limit", false),
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
    ("verify-client-url", false),
    ("verify-client-url-fail-open", true),
    ("verify-clients", true),
];
/// Where derper run by root keeps its key.
const KEY: &str = "/var/lib/derper/derper.key";

/// Flags as given, the last of each name counting.
#[derive(Debug, Default, PartialEq, Eq)]
struct Given(Vec<(&'static str, String)>);

impl Given {
    fn read(args: &[String]) -> Result<Given, String> {
        let (mut given, mut rest) = (Given::default(), args.iter());
        while let Some(arg) = rest.next() {
            let Some(flag) = arg.strip_prefix("--").or_else(|| arg.strip_prefix('-')) else {
                return Err(format!("derper: `{arg}` is no flag; flags are {}", names()));
            };
            let (name, value) = match flag.split_once('=') {
                Some((name, value)) => (name, Some(value.to_owned())),
                None => (flag, None),
            };
            let Some((name, switch)) = FLAGS.iter().find(|f| f.0 == name) else {
                return Err(format!("derper: -{name} is not taken here; flags are {}", names()));
            };
            let value = match (value, switch) {
                (Some(value), _) => value,
                (None, true) => "true".to_owned(),
                (None, false) => rest
                    .next()
                    .cloned()
                    .ok_or_else(|| format!("derper: -{name} has no value; write `-{name}=VALUE`"))?,
            };
            given.0.push((name, value));
        }
        Ok(given)
    }

    fn text(&self, name: &str) -> Option<&str> {
        self.0.iter().rev().find(|f| f.0 == name).map(|f| f.1.as_str()).filter(|v| !v.is_empty())
    }

    fn switch(&self, name: &str, usual: bool) -> Result<bool, String> {
        match self.text(name) {
            None => Ok(usual),
            Some("true" | "t" | "1" | "TRUE" | "True") => Ok(true),
            Some("false" | "f" | "0" | "FALSE" | "False") => Ok(false),
            Some(other) => Err(format!("derper: -{name}: got `{other}`, expected true or false")),
        }
    }

    fn number(&self, name: &str, usual: i64) -> Result<i64, String> {
        let wrong = |t: &str| format!("derper: -{name}: got `{t}`, expected a number");
        self.text(name).map_or(Ok(usual), |text| text.parse().map_err(|_| wrong(text)))
    }
}

fn names() -> String {
    FLAGS.iter().map(|f| format!("-{}", f.0)).collect::<Vec<_>>().join(", ")
}

pub fn run(args: &[String], socket: Option<PathBuf>) -> Result<(), Failure> {
    let given = Given::read(args).map_err(Failure)?;
    let take_over = given.switch(TAKE_OVER, false).map_err(Failure)?;
    let settings = settings(&given).map_err(Failure)?;
    let socket = socket.unwrap_or_else(|| client::default_socket(&settings.name));
    run::start(settings, Started { socket, take_over, ..Started::default() })?.run()
}

fn settings(given: &Given) -> Result<Settings, String> {
    let dev = given.switch("dev", false)?;
    if !given.switch("derp", true)? {
        return Err(
            "derper: -derp=false leaves STUN and pages only; not offered here, run derper for that".into()
        );
    }
    let front = front(given, dev)?;
    let secret = match (dev, given.text("c")) {
        (true, _) => keyfile::fresh()?,
        (false, path) => keyfile::read_or_make(&PathBuf::from(path.unwrap_or(KEY)))?,
    };
    let mesh_key = given.text("mesh-psk-file").map(|p| keyfile::read_mesh_key(p.as_ref())).transpose()?;
    let mut mesh_with = Vec::new();
    for name in list(given.text("mesh-with")) {
        // `host/address` names an address to dial for the host: here the host's own is dialled.
        let host = name.split('/').next().unwrap_or(name);
        mesh_with.push(remote(host).ok_or_else(|| format!("derper: -mesh-with: `{name}` is no host"))?);
    }
    if !mesh_with.is_empty() && mesh_key.is_none() {
        return Err("derper: -mesh-with needs -mesh-psk-file".into());
    }
    Ok(Settings {
        name: "derper".into(),
        secret,
        mesh_key,
        mesh_with,
        cpus: Vec::new(),
        io: Io::Auto,
        engine: Engine::default(),
        front,
    })
}

fn list(text: Option<&str>) -> impl Iterator<Item = &str> {
    text.unwrap_or_default().split(',').map(str::trim).filter(|name| !name.is_empty())
}

fn front(given: &Given, dev: bool) -> Result<Front, String> {
    let address = if dev { ":3340" } else { given.text("a").unwrap_or(":443") };
    let listen = listening(address)
        .ok_or_else(|| format!("derper: -a: got `{address}`, expected `:PORT` or `ADDRESS:PORT`"))?;
    let mode = given.text("certmode").unwrap_or("letsencrypt");
    // As derper has it: TLS on port 443, elsewhere with certificates of files only.
    let tls = !dev && (listen.port() == 443 || mode == "manual");
    let port = |n: i64| u16::try_from(n).ok().filter(|p| *p > 0);
    let beside = |port: u16| std::net::SocketAddr::new(listen.ip(), port);
    let hostname = given.text("hostname").unwrap_or("derp.tailscale.com").to_owned();
    let http = if tls { port(given.number("http-port", 80)?) } else { None };
    let stun = if given.switch("stun", true)? { port(given.number("stun-port", 3478)?) } else { None };
    let mut front = Front {
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
        bootstrap_dns: list(given.text("bootstrap-dns-names")).map(str::to_owned).collect(),
        home: match given.text("home") {
            None => Home::Usual,
            Some("blank") => Home::Blank,
            Some(url) if is_url(url) => Home::Redirect(url.to_owned()),
            Some(other) => return Err(format!("derper: -home: got `{other}`, expected `blank` or a URL")),
        },
        ..Front::default()
    };
    if given.switch("verify-clients", false)? {
        front.access.tailscaled = Some(PathBuf::from(given.text("socket").unwrap_or(TAILSCALED)));
    }
    front.access.verify = given.text("verify-client-url").map(str::to_owned);
    front.access.fail_open = given.switch("verify-client-url-fail-open", true)?;
    if let Some(text) = given.text("accept-connection-limit") {
        // derper's own default is `+Inf`, which leaves the limit to us.
        let limit: f64 = text.parse().ok().filter(|limit: &f64| *limit > 0.0).ok_or_else(|| {
            format!("derper: -accept-connection-limit: got `{text}`, expected a number above 0 or `+Inf`; write for example `5000`")
        })?;
        if limit.is_finite() {
            front.limits.accepts_per_second = limit.clamp(1.0, 1e6) as u32;
            front.limits.accepts_per_second_per_source = Limits::source_rate(front.limits.accepts_per_second);
        }
    }
    if given.text("accept-connection-burst").is_some() {
        let burst = given.number("accept-connection-burst", 0)?;
        if burst < 1 {
            return Err(format!(
                "derper: -accept-connection-burst: got {burst}, expected a number above 0; write for example `20000`"
            ));
        }
        front.limits.accept_burst = burst.min(1_000_000) as u32;
        front.limits.accept_burst_per_source = Limits::source_burst(front.limits.accept_burst);
    }
    Ok(front)
}

fn certificates(given: &Given, mode: &str, hostname: &str, http: bool) -> Result<Certificates, String> {
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
            contact: None,
            store: folder,
            root: None,
            challenge: if http { Challenge::Http } else { Challenge::TlsAlpn },
        })),
        other => Err(format!("derper: -certmode: got `{other}`, expected `letsencrypt` or `manual`")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn given(line: &str) -> Result<Given, String> {
        Given::read(&line.split_whitespace().map(str::to_owned).collect::<Vec<_>>())
    }

    #[test]
    fn flags_are_taken_as_go_writes_them() {
        let read = given("-a :8443 --certmode=manual -stun=false -hostname derp.example.com").expect("flags");
        let front = front(&read, false).expect("a front");
        assert_eq!(front.listen, ["[::]:8443".parse().expect("an address")]);
        assert!(front.stun.is_empty() && front.tls == Tls::Auto && front.http.len() == 1);
        let Certificates::Files { chain, .. } = front.certificates else { panic!("manual") };
        assert!(chain.ends_with("derp.example.com.crt"));
    }

    #[test]
    fn another_port_than_443_is_plain_as_with_derper() {
        let front = front(&given("-a=127.0.0.1:3340 -http-port -1").expect("flags"), false).expect("a front");
        assert_eq!((front.tls, front.http.len(), front.stun.len()), (Tls::Off, 0, 1));
    }

    #[test]
    fn clients_are_verified_by_the_tailscaled_of_this_host_or_of_another_socket() {
        let asked = |line: &str| {
            let front = front(&given(line).expect("flags"), true).expect("a front");
            front.access.tailscaled.map(|path| path.display().to_string())
        };
        assert_eq!(asked("-verify-clients").as_deref(), Some(TAILSCALED));
        assert_eq!(asked("-verify-clients -socket /run/other.sock").as_deref(), Some("/run/other.sock"));
        assert_eq!(asked("-socket /run/other.sock"), None);
    }

    #[test]
    fn limits_are_taken_as_derper_has_them_and_never_left_out_in_silence() {
        let read = |line: &str| front(&given(line).expect("flags"), true);
        let limits =
            read("-accept-connection-limit 100.5 -accept-connection-burst 7").expect("a front").limits;
        assert_eq!((limits.accepts_per_second, limits.accept_burst), (100, 7));
        let usual = read("-accept-connection-limit +Inf").expect("a front").limits;
        assert_eq!(usual.accepts_per_second, Front::default().limits.accepts_per_second);
        for line in ["limit many", "limit 0", "limit -1", "limit NaN", "burst x", "burst 0", "burst -5"] {
            let said = read(&format!("-accept-connection-{line}")).expect_err("refused");
            assert!(said.starts_with("derper: -accept-connection-"), "{line}: {said}");
        }
    }

    #[test]
    fn what_would_have_no_effect_is_refused_with_what_to_do() {
        let said = given("-rate-config x").expect_err("refused");
        assert!(said.contains("-rate-config is not taken here; flags are -a,"), "{said}");
        let said = settings(&given("-derp=false").expect("a flag")).expect_err("refused");
        assert!(said.contains("run derper for that"), "{said}");
        assert!(given("-a").expect_err("no value").contains("write `-a=VALUE`"));
    }
}
