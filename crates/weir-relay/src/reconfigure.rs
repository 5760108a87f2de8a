//! From the settings a relay runs with to those that are wanted: a pure difference, a list of actions, what they make.
//!
//! ```text
//! running, wanted ─► plan ─► actions (printed by a dry run) ─► settings of from now on ─► who applies them
//!                       └──► what is read at the start only
//! ```
//!
//! Promises: no socket, file or thread is touched; taking the actions of a plan makes what was wanted of everything
//! that can change, and a second plan finds nothing. Refuses: nothing; what cannot change while the relay runs is named.

use std::fmt;

use super::settings::{
    Acceptor, Access, Certificates, Engine, Home, Limits, MeshKey, Rates, Settings, Source,
};

/// One change that takes effect while the relay runs: for the next connections, queues for all.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    Access(Access),
    Limits(Limits),
    Queues { bytes: usize, frames: usize },
    Colocate(bool),
    Rates(Rates),
    Home(Home),
    Debug(Vec<Source>),
    BootstrapDns(Vec<String>),
    Hostname(Option<String>),
    MeshKey(Option<MeshKey>),
    Certificates(Certificates),
}

/// What differs and waits for the next start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AtStart {
    Addresses,
    Tls,
    MeshWith,
    Key,
    Cpus,
    Io,
    Buffers,
    /// More clients than there was room made for.
    Clients,
}

/// What is to be done, and what cannot be.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Reconfiguration {
    pub actions: Vec<Action>,
    pub at_start: Vec<AtStart>,
}

/// The difference of two settings.
pub fn plan(running: &Settings, wanted: &Settings) -> Reconfiguration {
    let (now, then) = (&running.acceptor, &wanted.acceptor);
    let queues = |of: &Engine| (of.queue_bytes, of.queue_frames);
    let (bytes, frames) = queues(&wanted.engine);
    let changes = [
        (now.access != then.access).then(|| Action::Access(then.access.clone())),
        (now.limits != then.limits).then_some(Action::Limits(then.limits)),
        (queues(&running.engine) != (bytes, frames)).then_some(Action::Queues { bytes, frames }),
        (running.engine.colocate != wanted.engine.colocate)
            .then_some(Action::Colocate(wanted.engine.colocate)),
        (now.rates != then.rates).then_some(Action::Rates(then.rates)),
        (now.home != then.home).then(|| Action::Home(then.home.clone())),
        (now.debug != then.debug).then(|| Action::Debug(then.debug.clone())),
        (now.bootstrap_dns != then.bootstrap_dns).then(|| Action::BootstrapDns(then.bootstrap_dns.clone())),
        (now.hostname != then.hostname).then(|| Action::Hostname(then.hostname.clone())),
        (running.mesh_key != wanted.mesh_key).then(|| Action::MeshKey(wanted.mesh_key.clone())),
        (now.certificates != then.certificates).then(|| Action::Certificates(then.certificates.clone())),
    ];
    let addresses = |of: &Acceptor| (of.listen.clone(), of.http.clone(), of.stun.clone());
    let fixed = [
        (AtStart::Addresses, addresses(now) != addresses(then)),
        (AtStart::Tls, now.tls != then.tls),
        (AtStart::MeshWith, running.mesh_with != wanted.mesh_with),
        (AtStart::Key, running.secret.public() != wanted.secret.public()),
        (AtStart::Cpus, running.cpus != wanted.cpus),
        (AtStart::Io, running.io != wanted.io),
        (AtStart::Buffers, running.engine.buffers != wanted.engine.buffers),
        (AtStart::Clients, then.limits.clients > running.engine.clients),
    ];
    Reconfiguration {
        actions: changes.into_iter().flatten().collect(),
        at_start: fixed.into_iter().filter(|f| f.1).map(|f| f.0).collect(),
    }
}

impl Reconfiguration {
    /// The settings of from now on.
    pub fn applied_to(&self, running: &Settings) -> Settings {
        let mut next = running.clone();
        self.actions.iter().for_each(|action| action.apply_to(&mut next));
        next
    }

    /// Whether TLS is to be met with another certificate. One that is made at the start is made again only then:
    /// clients know it by its sum.
    pub fn changes_certificate(&self) -> bool {
        self.actions.iter().any(|action| matches!(action, Action::Certificates(_) | Action::Hostname(_)))
    }
}

impl Action {
    fn apply_to(&self, settings: &mut Settings) {
        let acceptor = &mut settings.acceptor;
        match self.clone() {
            Action::Access(access) => acceptor.access = access,
            Action::Limits(limits) => acceptor.limits = limits,
            Action::Queues { bytes, frames } => {
                settings.engine.queue_bytes = bytes;
                settings.engine.queue_frames = frames;
            }
            Action::Colocate(on) => settings.engine.colocate = on,
            Action::Rates(rates) => acceptor.rates = rates,
            Action::Home(home) => acceptor.home = home,
            Action::Debug(debug) => acceptor.debug = debug,
            Action::BootstrapDns(names) => acceptor.bootstrap_dns = names,
            Action::Hostname(name) => acceptor.hostname = name,
            Action::MeshKey(key) => settings.mesh_key = key,
            Action::Certificates(certificates) => acceptor.certificates = certificates,
        }
    }
}

/// An action reads as `weir apply` prints it: `~` changes.
impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("~ ")?;
        match self {
            Action::Access(_) => f.write_str("access"),
            Action::Limits(_) => f.write_str("limits"),
            Action::Queues { bytes, frames } => write!(f, "queues: {bytes} bytes, {frames} frames"),
            Action::Colocate(on) => write!(f, "colocate: {on}"),
            Action::Rates(_) => f.write_str("rates"),
            Action::Home(_) => f.write_str("home"),
            Action::Debug(_) => f.write_str("debug"),
            Action::BootstrapDns(names) => write!(f, "bootstrap_dns: {}", names.join(", ")),
            Action::Hostname(Some(name)) => write!(f, "hostname: {name}"),
            Action::Hostname(None) => f.write_str("hostname: none"),
            Action::MeshKey(Some(_)) => f.write_str("mesh_key: another"),
            Action::MeshKey(None) => f.write_str("mesh_key: none"),
            Action::Certificates(Certificates::SelfSigned) => f.write_str("certificate: self-signed"),
            Action::Certificates(Certificates::Files { chain, .. }) => {
                write!(f, "certificate: {}", chain.display())
            }
            Action::Certificates(Certificates::Acme(acme)) => write!(f, "certificate: by {}", acme.directory),
        }
    }
}

impl fmt::Display for AtStart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = match self {
            AtStart::Addresses => "listen, http or stun",
            AtStart::Tls => "tls",
            AtStart::MeshWith => "mesh_with",
            AtStart::Key => "key",
            AtStart::Cpus => "cpus",
            AtStart::Io => "io",
            AtStart::Buffers => "buffers",
            AtStart::Clients => "clients above those of the start",
        };
        write!(f, "{what} is read at the start only")
    }
}

#[cfg(test)]
mod tests {
    use weir_core::relay::handshake::Secret;

    use super::super::settings::{Io, Rate, Remote, Tls};
    use super::*;

    fn settings() -> Settings {
        Settings {
            name: "relay".into(),
            secret: Secret::new([1; 32]),
            mesh_key: None,
            mesh_with: Vec::new(),
            cpus: Vec::new(),
            io: Io::Auto,
            engine: Engine::default(),
            acceptor: Acceptor::default(),
        }
    }

    type Change = fn(&mut Settings);

    /// Everything that can change while a relay runs.
    const CHANGES: [(&str, Change); 11] = [
        ("~ access", |s| s.acceptor.access.fail_open = false),
        ("~ limits", |s| s.acceptor.limits.handshakes = 7),
        ("~ queues: 200000 bytes, 4096 frames", |s| s.engine.queue_bytes = 200_000),
        ("~ colocate: false", |s| s.engine.colocate = false),
        ("~ rates", |s| s.acceptor.rates.send = Some(Rate { bytes_per_second: 1, burst: 2 })),
        ("~ home", |s| s.acceptor.home = Home::Blank),
        ("~ debug", |s| {
            s.acceptor.debug = vec![Source { address: "::1".parse().expect("an address"), length: 128 }];
        }),
        ("~ bootstrap_dns: a.example", |s| s.acceptor.bootstrap_dns = vec!["a.example".into()]),
        ("~ hostname: b.example", |s| s.acceptor.hostname = Some("b.example".into())),
        ("~ mesh_key: another", |s| s.mesh_key = MeshKey::new(&"ab".repeat(32)).ok()),
        ("~ certificate: c.pem", |s| {
            s.acceptor.certificates = Certificates::Files { chain: "c.pem".into(), key: "k.pem".into() };
        }),
    ];

    const FIXED: [(AtStart, Change); 8] = [
        (AtStart::Addresses, |s| s.acceptor.http = vec!["127.0.0.1:80".parse().expect("an address")]),
        (AtStart::Tls, |s| s.acceptor.tls = Tls::Off),
        (AtStart::MeshWith, |s| {
            s.mesh_with = vec![Remote { name: "d".into(), host: "d".into(), port: 443, tls: true }];
        }),
        (AtStart::Key, |s| s.secret = Secret::new([2; 32])),
        (AtStart::Cpus, |s| s.cpus = vec![1]),
        (AtStart::Io, |s| s.io = Io::Epoll),
        (AtStart::Buffers, |s| s.engine.buffers = 64),
        (AtStart::Clients, |s| s.acceptor.limits.clients = (1 << 20) + 1),
    ];

    #[test]
    fn each_change_is_one_action_of_its_own_and_equal_settings_have_none() {
        assert_eq!(plan(&settings(), &settings()), Reconfiguration::default());
        for (line, change) in CHANGES {
            let mut wanted = settings();
            change(&mut wanted);
            let plan = plan(&settings(), &wanted);
            let lines: Vec<String> = plan.actions.iter().map(ToString::to_string).collect();
            assert_eq!((lines.as_slice(), plan.at_start.as_slice()), (&[line.to_owned()][..], &[][..]));
        }
    }

    #[test]
    fn taking_the_actions_from_any_settings_to_any_others_leaves_nothing_to_change() {
        // Every subset of changes on either side: 2^11 pairs on a diagonal are enough to meet each with each.
        for number in 0..1_u32 << CHANGES.len() {
            let (mut running, mut wanted) = (settings(), settings());
            for (bit, (_, change)) in CHANGES.iter().enumerate() {
                if number >> bit & 1 == 1 {
                    change(&mut wanted);
                }
                if number.wrapping_mul(0x9e37_79b9) >> bit & 1 == 1 {
                    change(&mut running);
                }
            }
            let next = plan(&running, &wanted).applied_to(&running);
            assert_eq!(plan(&next, &wanted), Reconfiguration::default(), "{number}");
            assert_eq!(next.acceptor, wanted.acceptor, "{number}");
        }
    }

    #[test]
    fn what_is_read_at_the_start_is_named_and_kept() {
        for (what, change) in FIXED {
            let mut wanted = settings();
            change(&mut wanted);
            let first = plan(&settings(), &wanted);
            assert_eq!(first.at_start, [what]);
            let next = first.applied_to(&settings());
            let again = plan(&next, &wanted);
            assert_eq!((again.actions, again.at_start), (Vec::new(), vec![what]), "{what}");
        }
    }

    #[test]
    fn only_a_certificate_or_its_name_makes_another_certificate() {
        for (line, change) in CHANGES {
            let mut wanted = settings();
            change(&mut wanted);
            let expected = line.contains("certificate") || line.contains("hostname");
            assert_eq!(plan(&settings(), &wanted).changes_certificate(), expected, "{line}");
        }
    }
}
