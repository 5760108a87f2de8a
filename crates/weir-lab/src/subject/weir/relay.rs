//! weir as a DERP relay: a configuration file with `[relay]` and `weir run`.
//!
//! Its losses are what its control socket says of them, by reason; a weir that does not answer there has none in
//! the ledger, and a note says so.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use super::program;
use crate::bed::netns::counters::Counters;
use crate::bed::netns::namespace::Namespace;
use crate::bed::relay::missing_kernel_tls;
use crate::experiment::kebab;
use crate::model::LabError;
use crate::model::relay::Tls;
use crate::subject::MISSING_WEIR;
use crate::subject::control::Control;
use crate::subject::relay::{ADDRESS, Relaying, Stand, Started};

pub fn missing(tls: Tls) -> Option<String> {
    match program() {
        None => Some(MISSING_WEIR.into()),
        Some(program) if !relays(&program) => {
            Some(format!("weir: {} is no relay yet: build it again", program.display()))
        }
        Some(_) => missing_kernel_tls(tls),
    }
}

/// Whether this program knows the command; weir of before its relay does not.
fn relays(program: &Path) -> bool {
    let help = Command::new(program).args(["relay", "--help"]).output();
    help.is_ok_and(|output| output.status.success())
}

pub struct Weir {
    started: Started,
    control: Control,
    notes: Vec<String>,
}

impl Weir {
    pub fn start(stand: &Stand<'_>) -> Result<Weir, LabError> {
        let program = program().ok_or_else(|| LabError(MISSING_WEIR.into()))?;
        let mut socket = PathBuf::new();
        let started = Started::launch("weir", stand, |folder| {
            socket = folder.join("weir.sock");
            let file = folder.join("relay.toml");
            fs::write(&file, configuration(stand, folder, &socket))?;
            let mut command = Command::new(program);
            command.arg("run").arg(file);
            Ok(command)
        })?;
        let (control, tls) = (Control::new(socket), kebab(&stand.relay.tls));
        let mut notes = vec![format!("weir: {} workers, tls {tls}", stand.cpus.len())];
        match control.get::<Value>("/v1/relay") {
            Ok(said) => notes.extend(doubts(&said)),
            Err(e) => notes.push(format!("weir: its losses are in no ledger: {e}")),
        }
        Ok(Weir { started, control, notes })
    }
}

fn configuration(stand: &Stand<'_>, folder: &Path, socket: &Path) -> String {
    let tls = stand.relay.tls;
    let certificates = if tls.is_on() { "certificates = \"self-signed\"\n" } else { "" };
    format!(
        "[control]\nsocket = {socket:?}\n\n[workers]\ncpus = {:?}\n\n[relay]\nlisten = [\"{ADDRESS}\"]\ntls = \"{}\"\n{certificates}key = {:?}\n",
        stand.cpus,
        kebab(&tls),
        folder.join("relay.key"),
    )
}

impl Relaying for Weir {
    fn process(&self) -> u32 {
        self.started.child.id()
    }

    fn drops(&mut self, _: &Namespace) -> Result<Counters, LabError> {
        // a relay that says nothing was noted when it started
        Ok(self.control.get::<Value>("/v1/relay").map(|said| dropped(&said)).unwrap_or_default())
    }

    fn notes(&self) -> Vec<String> {
        self.notes.clone()
    }
}

/// What an answer calls packets dropped, by reason.
const DROPS: [&str; 3] = ["drops", "dropped", "packets_dropped"];

/// Sums of all of an answer's drops by reason, whoever dropped.
fn dropped(said: &Value) -> Counters {
    let mut found = Counters::new();
    let mut open = vec![said];
    while let Some(value) = open.pop() {
        match value {
            Value::Array(all) => open.extend(all),
            Value::Object(fields) => {
                let own = DROPS.iter().filter_map(|name| fields.get(*name)?.as_object());
                for (reason, n) in own.flatten() {
                    *found.entry(format!("weir.{reason}")).or_default() += n.as_u64().unwrap_or(0);
                }
                open.extend(
                    fields.iter().filter(|(name, _)| !DROPS.contains(&name.as_str())).map(|(_, value)| value),
                );
            }
            _ => {}
        }
    }
    found
}

/// What a reader of its figures must know: how it reads and writes sockets.
fn doubts(said: &Value) -> Vec<String> {
    let notices = said.get("notices").and_then(Value::as_array).into_iter().flatten();
    let mut all: Vec<String> = notices.filter_map(|n| Some(format!("weir: {}", n.as_str()?))).collect();
    all.extend(said.get("io").and_then(Value::as_str).map(|io| format!("weir: sockets by {io}")));
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drops_of_all_workers_are_summed_by_reason() {
        let said = serde_json::json!({
            "workers": [
                {"drops": {"queue_head": 3, "unknown_dest": 1}, "peers": 4},
                {"drops": {"queue_head": 2}},
            ],
        });
        let expected = [("weir.queue_head", 5), ("weir.unknown_dest", 1)];
        assert_eq!(dropped(&said), expected.into_iter().map(|(k, n)| (k.to_string(), n)).collect());
    }
}
