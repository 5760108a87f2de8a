//! weir as a DERP relay: a configuration file with `[relay]` and `weir run`.
//!
//! Its losses are what its control socket says of them, by reason.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use super::program;
use crate::cachesim::live::{self, Live};
use crate::experiment::kebab;
use crate::model::LabError;
use crate::model::relay::{Load, Tls};
use crate::netns::counters::Counters;
use crate::netns::namespace::Namespace;
use crate::sut::MISSING_WEIR;
use crate::sut::control::Control;
use crate::sut::peer::Started;
use crate::sut::relay::missing_kernel_tls;
use crate::sut::relay::{self, Environment, Relaying};

/// Where its control socket tells what became of packets.
const COUNTERS: &str = "/v1/relay";

const ANSWERS_WITHIN: Duration = Duration::from_secs(60);
const LOOK: Duration = Duration::from_millis(20);

#[derive(serde::Deserialize)]
struct RelayCounters {
    #[serde(default)]
    balance: i64,
    workers: Vec<RelayWorkerCounters>,
}

#[derive(serde::Deserialize)]
struct RelayWorkerCounters {
    #[serde(default)]
    backend: String,
    #[serde(default)]
    packets_dropped: BTreeMap<String, u64>,
}

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
    simulated: bool,
    control: Control,
    notes: Vec<String>,
}

impl Weir {
    pub fn start(environment: &Environment<'_>) -> Result<Weir, LabError> {
        let program = program().ok_or_else(|| LabError::new(MISSING_WEIR.into()))?;
        let simulated = environment.relay.load == Load::SimulatedCaches;
        let mut socket = PathBuf::new();
        let started = relay::launch("weir", environment, |folder| {
            socket = folder.join("weir.sock");
            let file = folder.join("relay.toml");
            fs::write(&file, configuration(environment, folder, &socket))?;
            let mut command = match simulated {
                true => live::command(&program, folder),
                false => Command::new(program),
            };
            command.arg("run").arg(file);
            Ok(command)
        })?;
        let control = Control::new(socket);
        let said = first_word(&control)?;
        let mut backends: Vec<&str> = said.workers.iter().map(|w| w.backend.as_str()).collect();
        backends.dedup();
        let (count, tls) = (said.workers.len(), kebab(&environment.relay.tls));
        let notes = vec![format!("weir: {count} workers, sockets by {}, tls {tls}", backends.join(", "))];
        Ok(Weir { started, simulated, control, notes })
    }
}

/// It accepts a moment before its control socket answers.
fn first_word(control: &Control) -> Result<RelayCounters, LabError> {
    let until = Instant::now() + ANSWERS_WITHIN;
    loop {
        match control.get::<RelayCounters>(COUNTERS) {
            Err(_) if Instant::now() < until => std::thread::sleep(LOOK),
            answer => return answer,
        }
    }
}

fn configuration(environment: &Environment<'_>, folder: &Path, socket: &Path) -> String {
    let tls = environment.relay.tls;
    // valgrind knows it better than io_uring.
    let io = if environment.relay.load == Load::SimulatedCaches { "io = \"epoll\"\n" } else { "" };
    let certificates = if tls.is_on() { "certificates = \"self-signed\"\n" } else { "" };
    // derper takes as many a second as come, unless it is told.
    let limits = "[relay.limits]\naccepts_per_second = 1000000\n";
    format!(
        "[control]\nsocket = {socket:?}\n\n[workers]\ncpus = {:?}\n\n[relay]\nlisten = [\"{}\"]\ntls = \"{}\"\n{certificates}{io}key = {:?}\n\n{limits}",
        environment.cpus,
        environment.address,
        kebab(&tls),
        folder.join("relay.key"),
    )
}

impl Relaying for Weir {
    fn simulation(&self) -> Option<Live> {
        self.simulated.then(|| Live::new(self.started.child.id(), self.started.folder.path()))
    }

    fn process(&self) -> u32 {
        self.started.child.id()
    }

    fn drops(&mut self, _: &Namespace) -> Result<Counters, LabError> {
        Ok(self.control.get::<RelayCounters>(COUNTERS)?.dropped())
    }

    fn notes(&self) -> Vec<String> {
        self.notes.clone()
    }

    fn ended(&mut self) -> Option<LabError> {
        self.started.ended()
    }

    fn warnings(&mut self) -> Vec<String> {
        match self.control.get::<RelayCounters>(COUNTERS) {
            Ok(said) if said.balance != 0 => vec![format!(
                "weir: {} packets unaccounted for inside the relay; this is a defect",
                said.balance
            )],
            Ok(_) => Vec::new(),
            Err(error) => vec![error.said],
        }
    }
}

impl RelayCounters {
    /// Dropped packets of all workers, by reason; path discovery apart from the rest.
    fn dropped(&self) -> Counters {
        let mut found = Counters::new();
        for (reason, n) in self.workers.iter().flat_map(|w| &w.packets_dropped) {
            let name = format!("weir.{}", reason.trim_end_matches("/other").replace('/', "."));
            *found.entry(name).or_default() += n;
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drops_of_all_workers_are_summed_by_reason() {
        let said: RelayCounters = serde_json::from_str(
            r#"{"public_key": "x", "balance": 0, "workers": [
                {"backend": "io_uring", "packets_dropped": {"queue_head/other": 3, "queue_head/disco": 1}},
                {"backend": "io_uring", "packets_dropped": {"queue_head/other": 2}}]}"#,
        )
        .expect("what weir says");
        let expected = [("weir.queue_head", 5), ("weir.queue_head.disco", 1)];
        assert_eq!(said.dropped(), expected.into_iter().map(|(k, n)| (k.to_string(), n)).collect());
    }
}
