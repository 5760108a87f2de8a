//! The lab's own forwarder of bytes in the place of a relay: what the kernel's TCP takes of a relay's CPU.
//!
//! Clients speak as they do without a relay: no handshake, no keys looked up, and TLS, if any, is between the two. It has no
//! counters, for it loses nothing.

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use super::peer::{self, ProcessPlacement, Started};
use super::relay::{Environment, Relaying};
use crate::forwarder::READY;
use crate::model::LabError;
use crate::model::relay::RelayScenario;
use crate::netns::counters::Counters;
use crate::netns::namespace::Namespace;

const READY_WITHIN: Duration = Duration::from_secs(60);
const MISSING: &str = "tcp-forwarder: weir-lab is not beside this program: build it";

/// This program, or the one tests are beside.
fn program() -> Option<PathBuf> {
    peer::beside("weir-lab")
}

pub fn missing(relay: &RelayScenario) -> Option<String> {
    let reason = if !relay.load.has_baseline() {
        "it forwards between pairs: use load = \"closed-loop\" or \"open\""
    } else if relay.stalled > 0 {
        "it has no queue that a stalled receiver could fill: remove `stalled`"
    } else if relay.workers > 1 {
        "it has one thread: use workers = 1"
    } else {
        return program().is_none().then(|| MISSING.into());
    };
    Some(format!("tcp-forwarder: {reason}"))
}

pub struct TcpForwarder {
    started: Started,
}

impl TcpForwarder {
    pub fn start(environment: &Environment<'_>) -> Result<TcpForwarder, LabError> {
        let program = program().ok_or_else(|| LabError::new(MISSING.into()))?;
        let place = ProcessPlacement { namespace: Some(environment.namespace), cpus: environment.cpus };
        let address = environment.address.to_string();
        let mut started = Started::launch("tcp-forwarder", place, |_| {
            let mut command = Command::new(program);
            command.arg("forwarder").arg(address);
            Ok(command)
        })?;
        // a connection to try would be half a pair
        started.wait(READY_WITHIN, |started| Ok(started.log().lines().any(|line| line == READY)))?;
        Ok(TcpForwarder { started })
    }
}

impl Relaying for TcpForwarder {
    fn process(&self) -> u32 {
        self.started.child.id()
    }

    fn drops(&mut self, _: &Namespace) -> Result<Counters, LabError> {
        Ok(Counters::new())
    }

    fn notes(&self) -> Vec<String> {
        vec!["tcp-forwarder: bytes from one connection to the other, 64 KiB at a time, no protocol: clients speak as \
              they do without a relay"
            .into()]
    }

    fn ended(&mut self) -> Option<LabError> {
        self.started.ended()
    }
}
