//! DPDK's testpmd: frames go from one port to the other with new link-layer addresses, and no look at what is in them.
//!
//! It looks up no route and lowers no hop limit: what it does is the least a forwarder can do with these ports, so it
//! bounds the others from above.

use std::path::PathBuf;

use weir_core::wire::DisplayMac;

use super::dpdk::{Dpdk, DpdkProgram, Ends};
use super::peer::{self, ProcessPlacement};
use super::{Environment, Running};
use crate::model::LabError;

const NAME: &str = "dpdk-testpmd";
const MISSING: &str = "dpdk-testpmd: no such program on the PATH: install the package dpdk-dev";
/// Buffers of 2 KiB: rings of both ports and bursts under way.
const BUFFERS: u32 = 32_768;

pub fn missing() -> Option<String> {
    peer::find(NAME).is_none().then(|| MISSING.into())
}

pub fn start(environment: &Environment<'_>) -> Result<Box<dyn Running>, LabError> {
    let mac = DisplayMac(environment.gateway_mac).to_string();
    let place = ProcessPlacement { namespace: Some(environment.namespace), cpus: environment.cpus };
    Ok(Box::new(Dpdk::start(plan(Ends::of(environment), environment.cpus[0], &mac)?, place)?))
}

/// Starts testpmd in memory: from a capture file to nowhere.
pub fn start_alone(capture: PathBuf, cpu: u32) -> Result<Dpdk, LabError> {
    // its telemetry answers from another CPU than the busy one
    let place = ProcessPlacement { namespace: None, cpus: &[] };
    Dpdk::start(plan(Ends::Capture(capture), cpu, "02:00:00:01:00:00")?, place)
}

fn plan(ends: Ends, cpu: u32, mac: &str) -> Result<DpdkProgram, LabError> {
    let words = vec![
        "-i".into(),
        "--auto-start".into(),
        "--forward-mode=mac".into(),
        format!("--eth-peer=1,{mac}"),
        format!("--total-num-mbufs={BUFFERS}"),
        "--no-flush-rx".into(),
    ];
    Ok(DpdkProgram {
        name: NAME,
        program: peer::find(NAME).ok_or_else(|| LabError::new(MISSING.into()))?,
        // the first waits for commands, the second forwards: one CPU is enough
        cores: format!("0@{cpu},1@{cpu}"),
        ends,
        environment: Vec::new(),
        preload: None,
        words: Box::new(|_| Ok(words)),
        ready: "testpmd> ",
        note: "rewrites link-layer addresses only: no route is looked up, no hop limit lowered".into(),
    })
}
