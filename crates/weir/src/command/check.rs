//! `weir check`: a file judged by itself, without a daemon and without a device.

use std::path::Path;

use weir_core::ipsec::spd::LookupSpec;

use super::doctor;
use crate::config;
use crate::enforcement;
use crate::failure::Failure;
use crate::router::memory;
use crate::text::{count, print};

pub fn run(file: &Path) -> Result<(), Failure> {
    let config = config::judge(file).map_err(Failure::of)?;
    if let Some(relay) = &config.relay {
        return print(&checked_relay(file, &config, relay));
    }
    let mut has =
        format!("{} and {}", count(config.ports.len(), "port"), count(config.routes.len(), "route"));
    if !config.ipsec.is_empty() {
        let ipsec = &config.ipsec;
        has = format!(
            "{}, {}, {} and {} in {}",
            has.replace(" and ", ", "),
            count(ipsec.sas.len(), "sa"),
            count(ipsec.tunnels.len(), "tunnel"),
            if ipsec.policies.len() == 1 {
                "1 policy".to_owned()
            } else {
                format!("{} policies", ipsec.policies.len())
            },
            count(ipsec.spds.len(), "spd"),
        );
    }
    let mut out = checked(file, &has, &config);
    let without = enforcement::without_weir(&config);
    out += &config
        .notes_on_lookups()
        .iter()
        .chain(&without)
        .map(|note| format!("# {note}\n"))
        .collect::<String>();
    let links = weir_io::netlink::links().unwrap_or_default();
    let here = doctor::findings(&config, &links);
    out += &here.lines.iter().map(|finding| format!("# on this machine: {finding}\n")).collect::<String>();
    // Another machine may be the one that runs it.
    if let Some(why) = memory::available().and_then(|n| memory::too_much(&config, &LookupSpec::default(), n))
    {
        out += &format!("# not to be run on this machine: {why}");
    }
    print(&out)
}

fn checked_relay(file: &Path, config: &config::Config, relay: &config::relay::Relay) -> String {
    let acceptor = &relay.acceptor;
    let addresses = acceptor.listen.len() + acceptor.http.len() + acceptor.stun.len();
    let has = match addresses {
        1 => "a relay on 1 address".to_owned(),
        n => format!("a relay on {n} addresses"),
    };
    checked(file, &has, config)
}

/// What a good file has, what could not be checked, and what to think about.
fn checked(file: &Path, has: &str, config: &config::Config) -> String {
    let warnings = config.warnings();
    let verdict = match warnings.len() {
        0 => "OK".to_owned(),
        n => count(n, "warning"),
    };
    let mut out = format!("{}: {has}: {verdict}\n", file.display());
    out += &warnings.iter().map(|warning| format!("warning: {warning}\n")).collect::<String>();
    out += &config.notes.iter().map(|note| format!("# {note}\n")).collect::<String>();
    out
}
