//! The daemon that seals or opens between its two ports: SAs with the lab's keys, and the tunnel or the policies that lead to them.
//!
//! ```text
//! out      plain ─► in │ routes ─► tunnel, or the policies of port out ─► seal │ out ─► ESP
//! in       ESP ─► in │ open ─► tunnel, or the policies of port in ─► routes │ out ─► plain
//! bypass   ESP ─► in │ open ─► tunnel │ routes │ policies of port out ─► plain
//! beside   plain ─► in │ routes │ out ─► plain         a tunnel no route leads to
//! ```
//!
//! Promises: outbound an SA a worker (RFC 9611), unless one is asked for; inbound one, for a card brings one pair of addresses
//! and SPI to one queue.

use std::fmt::Write as _;
use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use weir_core::ipsec::{Encryption, Secret};

use super::spd;
use crate::model::ipsec::{Backend, Direction, Mode, Protection};
use crate::model::{Configuration, Family};
use crate::workload::address;
use crate::workload::sa::{SAS_MAX, SaPlan, peer};

const KEYS: &str = "lab.keys";
/// The port of the tunnel.
pub const TUNNEL: &str = "tunnel";

/// What seals or opens, if anything does: policies alone need no SA.
pub fn of(c: &Configuration) -> Option<Protection> {
    c.ipsec().filter(|p| !p.bypasses() || p.direction == Direction::In)
}

/// Whether the routes of packets lead into the tunnel.
pub fn routes_lead_in(c: &Configuration) -> bool {
    of(c).is_some_and(|p| p.mode == Mode::Route && p.direction == Direction::Out)
}

/// Both SAs of a tunnel, of each worker that has one of its own.
fn plans(p: &Protection, workers: usize) -> Vec<[SaPlan; 2]> {
    let own = !p.shared_sa && p.direction != Direction::In;
    let count = if own { workers.clamp(1, SAS_MAX as usize) } else { 1 };
    (0..count).map(|n| SaPlan::new(p, n)).map(|plan| [plan.clone(), plan.back()]).collect()
}

/// Writes the keys beside the configuration, for nobody but their owner.
pub fn write_keys(c: &Configuration, workers: usize, folder: &Path) -> io::Result<()> {
    let Some(p) = of(c) else { return Ok(()) };
    let mut text = String::new();
    for plan in plans(&p, workers).iter().flatten() {
        for (name, secret) in secrets(plan) {
            let hex: String = secret.bytes().iter().map(|byte| format!("{byte:02x}")).collect();
            let _ = writeln!(text, "{name} = \"{hex}\"");
        }
    }
    let file = folder.join(KEYS);
    fs::write(&file, text)?;
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600))
}

/// The keys an SA has, by their names in the file of keys.
fn secrets(plan: &SaPlan) -> Vec<(String, &Secret)> {
    let (keys, spi) = (&plan.keys, plan.spi);
    let all = [(format!("key-{spi}"), &keys.encryption), (format!("integrity-{spi}"), &keys.integrity)];
    all.into_iter().filter(|(_, secret)| !secret.bytes().is_empty()).collect()
}

/// What its configuration says of SAs, and of what leads to them.
pub fn tables(c: &Configuration, workers: usize) -> String {
    let Some(p) = of(c) else { return String::new() };
    let ciphers = if p.backend == Backend::AwsLc { "library" } else { "auto" };
    let family = c.workload.family;
    let mut text = format!(
        "\n[ipsec]\nkeys = \"{KEYS}\"\nciphers = \"{ciphers}\"\n{}",
        spd::asked(&p, family, towards(&p))
    );
    let plans = plans(&p, workers);
    for plan in &plans {
        let ways = if p.direction == Direction::In { ["in", "out"] } else { ["out", "in"] };
        for (plan, way) in plan.iter().zip(ways) {
            text += &sa(&p, plan, way);
        }
    }
    let names = |at: usize| {
        let all: Vec<String> = plans.iter().map(|pair| format!("\"sa-{}\"", pair[at].spi)).collect();
        format!("[{}]", all.join(", "))
    };
    let (out, inbound) =
        if p.direction == Direction::In { (names(1), names(0)) } else { (names(0), names(1)) };
    let len = if p.outer == Family::Inet { 32 } else { 128 };
    let gateway = address::gateway(p.outer, 0);
    let _ = write!(text, "\n[[route]]\nprefix = \"{}/{len}\"\nvia = \"{gateway}\"\n", peer(p.outer));
    if p.mode == Mode::Route || p.bypasses() {
        let _ =
            write!(text, "\n[[tunnel]]\nname = \"{TUNNEL}\"\nout = {out}\nin = {inbound}\nrpf = \"off\"\n");
    }
    if p.mode == Mode::Policy {
        let action = if p.bypasses() { spd::Action::Bypass } else { spd::Action::Protect { out, inbound } };
        text += &spd::policies(&p, family, towards(&p), &action);
    }
    text
}

/// Which policies packets ask.
fn towards(p: &Protection) -> spd::Towards {
    if p.direction == Direction::In && !p.bypasses() { spd::Towards::In } else { spd::Towards::Out }
}

fn sa(p: &Protection, plan: &SaPlan, way: &str) -> String {
    let SaPlan { spi, source, destination, .. } = plan;
    let (encryption, integrity) = (plan.suite.encryption(), plan.suite.integrity());
    let mut text = format!(
        "\n[[sa]]\nname = \"sa-{spi}\"\ndirection = \"{way}\"\nspi = {spi}\nsource = \"{source}\"\n\
         destination = \"{destination}\"\ncipher = \"{}\"\nesn = {}\n",
        encryption.name(),
        plan.esn
    );
    if let Some(integrity) = integrity {
        let _ = writeln!(text, "integrity = \"{}\"", integrity.name());
    } else if encryption == Encryption::Null {
        text += "allow_unauthenticated = true\n";
    }
    for (name, _) in secrets(plan) {
        let key = if name.starts_with("key-") { "key" } else { "integrity_key" };
        let _ = writeln!(text, "{key} = \"{name}\"");
    }
    // one that nothing comes in by remembers as many as it is asked to, where weir takes so many
    if way == "in" && (p.direction == Direction::In || !plan.esn) {
        let _ = writeln!(text, "replay_window = {}", p.replay_window);
    }
    text
}

/// What a reader of its values must know.
pub fn note(c: &Configuration, workers: usize) -> Option<String> {
    let p = of(c)?;
    let plans = plans(&p, workers);
    let of =
        if plans.len() == 1 { "one SA".to_string() } else { format!("{} SAs, one a worker", plans.len()) };
    Some(match p.direction {
        Direction::Out => format!("weir: seals by {of}"),
        Direction::In => format!("weir: opens by {of}"),
        Direction::Beside => format!("weir: a tunnel of {of} is there, and no packet takes it"),
    })
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::process::Command;

    use super::*;
    use crate::model::configuration::PlacementKeys;
    use crate::model::ipsec::CipherName;
    use crate::model::spd::{Action, LookupBy, Spd};
    use crate::model::{FrameSize, Keys, Sut, Topology, Workload};
    use crate::netns::residue::Folder;
    use weir_stats::search::Rate;

    fn configuration(ipsec: Protection) -> Configuration {
        let workload =
            Workload { family: Family::Inet6, frame: FrameSize::Fixed(64), flows: 10, rate: Rate::FlatOut };
        Configuration::try_from(Keys {
            name: "a".into(),
            sut: Sut::Weir,
            topology: Topology::Ssh,
            workload,
            routes: 10,
            placement: PlacementKeys::default(),
            ipsec: Some(ipsec),
            build: None,
            relay: None,
            firewall: None,
            connection_packets: None,
        })
        .expect("valid")
    }

    /// Every cipher, mode, direction and way to ask, in turns.
    fn protections() -> Vec<Protection> {
        let lookups = [LookupBy::Gateway, LookupBy::Linear, LookupBy::Classifier, LookupBy::Cache];
        let shapes = [
            (Mode::Route, Direction::Out, Action::Protect),
            (Mode::Policy, Direction::Out, Action::Protect),
            (Mode::Route, Direction::In, Action::Protect),
            (Mode::Policy, Direction::In, Action::Protect),
            (Mode::Policy, Direction::In, Action::Bypass),
            (Mode::Route, Direction::Beside, Action::Protect),
        ];
        let all = CipherName::all().into_iter().enumerate().flat_map(|(n, cipher)| {
            shapes.map(|(mode, direction, action)| Protection {
                backend: if n % 2 == 0 { Backend::Auto } else { Backend::AwsLc },
                esn: n % 3 == 0,
                replay_window: if n % 3 == 0 { 64 } else { 0 },
                policies: 5,
                outer: if n % 2 == 0 { Family::Inet } else { Family::Inet6 },
                spd: Spd {
                    lookup: lookups[n % 4],
                    matching: Some(3),
                    action,
                    buckets: 4096,
                    churn: 0,
                    rules: None,
                },
                ..Protection::new(mode, direction, cipher)
            })
        });
        all.collect()
    }

    #[test]
    fn weir_takes_what_is_written_for_it() {
        let Some(weir) = crate::sut::weir::program() else {
            let _ =
                writeln!(std::io::stderr(), "SKIP weir_takes_what_is_written_for_it: no weir beside the lab");
            return;
        };
        let folder = Folder::new().expect("a folder");
        for p in protections() {
            let c = configuration(p);
            write_keys(&c, 2, folder.path()).expect("written");
            let port = |name: &str, n: u8| {
                format!(
                    "[[port]]\nname = \"{name}\"\ndevice = \"{name}\"\naddresses = [\"10.{n}.0.1/24\", \"fd00:{n}::1/64\"]\n"
                )
            };
            let text = port("in", 10) + &port("out", 20) + &tables(&c, 2);
            let file = folder.path().join("weir.toml");
            fs::write(&file, &text).expect("written");
            let checked = Command::new(&weir).arg("check").arg(&file).output().expect("weir starts");
            let said = String::from_utf8_lossy(&checked.stdout) + String::from_utf8_lossy(&checked.stderr);
            assert!(checked.status.success(), "{said}\n{text}");
            let sas = if p.direction == Direction::In { 2 } else { 4 };
            assert_eq!(text.matches("[[sa]]").count(), sas, "{text}");
        }
    }
}
