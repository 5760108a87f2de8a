//! `weir check`: a file judged by itself, without a daemon and without a device.

use std::path::Path;

use serde::Serialize;
use weir_core::ipsec::spd::LookupSpec;

use super::doctor;
use crate::config::{self, Config, Located};
use crate::enforcement;
use crate::failure::Failure;
use crate::router::memory;
use crate::text::{count, print, print_json};

/// What a file has, what is wrong with it, and what to think about.
#[derive(Debug, Default, Serialize)]
struct Checked {
    file: String,
    /// Whether a daemon would take it.
    ok: bool,
    errors: Vec<Located>,
    /// What it configures, in words.
    has: String,
    warnings: Vec<String>,
    /// What could not be checked, and what the file means for the machine it is checked on.
    notes: Vec<String>,
}

pub fn run(file: &Path, json: bool) -> Result<(), Failure> {
    let shown = if file == Path::new("-") { "standard input".to_owned() } else { file.display().to_string() };
    let config = match config::check(file) {
        Ok(config) => config,
        Err(refused) if json && !refused.complaints.is_empty() => {
            let errors = refused.complaints;
            let failure = Failure(format!("{shown}: {}; nothing was changed", count(errors.len(), "error")));
            print_json(&Checked { file: shown, errors, ..Checked::default() })?;
            return Err(failure);
        }
        Err(refused) => return Err(Failure::of(refused)),
    };
    let checked = Checked {
        file: shown,
        ok: true,
        errors: Vec::new(),
        has: contents(&config),
        warnings: config.warnings().iter().map(ToString::to_string).collect(),
        notes: notes(&config),
    };
    if json { print_json(&checked) } else { print(&checked.text()) }
}

impl Checked {
    fn text(&self) -> String {
        let verdict = match self.warnings.len() {
            0 => "OK".to_owned(),
            n => count(n, "warning"),
        };
        let mut out = format!("{}: {}: {verdict}\n", self.file, self.has);
        out += &self.warnings.iter().map(|warning| format!("warning: {warning}\n")).collect::<String>();
        out += &self.notes.iter().map(|note| format!("# {note}\n")).collect::<String>();
        out
    }
}

fn contents(config: &Config) -> String {
    if let Some(relay) = &config.relay {
        let acceptor = &relay.acceptor;
        return match acceptor.listen.len() + acceptor.http.len() + acceptor.stun.len() {
            1 => "a relay on 1 address".to_owned(),
            n => format!("a relay on {n} addresses"),
        };
    }
    let (ports, routes) = (count(config.ports.len(), "port"), count(config.routes.len(), "route"));
    if config.ipsec.is_empty() {
        return format!("{ports} and {routes}");
    }
    let ipsec = &config.ipsec;
    let policies = match ipsec.policies.len() {
        1 => "1 policy".to_owned(),
        n => format!("{n} policies"),
    };
    let (sas, tunnels) = (count(ipsec.sas.len(), "sa"), count(ipsec.tunnels.len(), "tunnel"));
    format!("{ports}, {routes}, {sas}, {tunnels} and {policies} in {}", count(ipsec.spds.len(), "spd"))
}

fn notes(config: &Config) -> Vec<String> {
    let mut notes = config.notes.clone();
    if config.relay.is_some() {
        return notes;
    }
    notes.extend(config.notes_on_lookups());
    notes.extend(enforcement::without_weir(config));
    let links = weir_io::netlink::links().unwrap_or_default();
    let here = doctor::findings(config, &links);
    notes.extend(here.lines.iter().map(|finding| format!("on this machine: {finding}")));
    // Another machine may be the one that runs it.
    let lookups = LookupSpec::default();
    let memory = memory::available().and_then(|n| memory::too_much(config, &lookups, n));
    notes.extend(memory.map(|why| format!("not to be run on this machine: {}", why.to_string().trim_end())));
    notes
}
