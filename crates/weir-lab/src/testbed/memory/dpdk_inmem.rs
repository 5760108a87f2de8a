//! Peers in memory: a program of DPDK's on one CPU, between a capture file and a port that throws away.
//!
//! ```text
//!            one core of DPDK
//! net_pcap (mbuf from the pool, frame copied into it) ─► the program ─► net_null (mbuf back to the pool)
//! ```
//!
//! The frames are those of weir's source, the prefixes those of its table. Both sources copy every frame; DPDK's copies
//! all of it and takes and returns a template by a ring, weir's copies 64 bytes. What that costs, testpmd shows, which
//! does next to nothing beside it.
//!
//! Values are the program's own counters, read over telemetry before and after the window. Two ports are read one
//! after the other, so up to some thousand packets of `not_forwarded` are time that passed, not loss.

use std::collections::BTreeMap;
use std::fs;
use std::time::Duration;

use weir_io::clock;

use super::tables::Net;
use super::traffic::Templates;
use crate::model::{Configuration, LabError, Prepared, Sample, Scope, Sut, Trial};
use crate::netns::counters;
use crate::netns::residue::Folder;
use crate::sut::dpdk::Dpdk;
use crate::sut::{Running, ipsec_secgw, l3fwd, testpmd};
use crate::workload::capture;
use weir_stats::search::{LossLedger, Rate};

/// Templates lie in the program's buffers; of l3fwd's 8192 that leaves half to packets.
const FLOWS_MAX: u32 = 4096;

/// Why a peer cannot do in memory what a configuration asks for.
pub fn missing(configuration: &Configuration) -> Option<String> {
    let (flows, name) = (configuration.workload.flows, crate::experiment::kebab(&configuration.sut()));
    if flows > FLOWS_MAX {
        return Some(format!("{name}: {flows} flows, its buffers hold {FLOWS_MAX}: lower `flows`"));
    }
    if configuration.workload.rate != Rate::FlatOut {
        return Some(format!("{name}: its source in memory knows no rate: use rate = \"flat-out\""));
    }
    match configuration.sut() {
        Sut::DpdkIpsecSecgw => ipsec_secgw::missing(configuration),
        _ => crate::sut::missing(configuration),
    }
}

pub struct DpdkInmem {
    dpdk: Dpdk,
    cpu: u32,
    mean_len: f64,
    notes: Vec<String>,
}

impl DpdkInmem {
    pub fn start(
        configuration: &Configuration,
        cpu: u32,
        (net, templates): (&Net, &Templates),
    ) -> Result<DpdkInmem, LabError> {
        let folder = Folder::new()?;
        let frames: Vec<Vec<u8>> = (0..templates.frames.len()).map(|flow| templates.whole(flow)).collect();
        let capture = folder.path().join("frames.pcap");
        fs::write(&capture, capture::write(&frames))
            .map_err(|e| LabError::new(format!("{}: cannot be written: {e}", capture.display())))?;
        let family = configuration.workload.family;
        // the file is in its memory once it runs
        let dpdk = match (configuration.sut(), configuration.ipsec()) {
            (Sut::DpdkL3fwd, _) => l3fwd::start_alone(capture, cpu, family, &net.prefixes())?,
            (Sut::DpdkIpsecSecgw, Some(protection)) => ipsec_secgw::start_alone(capture, cpu, &protection)?,
            _ => testpmd::start_alone(capture, cpu)?,
        };
        let mut notes = templates.notes.clone();
        notes.extend(dpdk.notes());
        notes.push(format!(
            "{}: its own source (net_pcap) and sink (net_null), its own counters: its values hold both",
            crate::experiment::kebab(&configuration.sut())
        ));
        Ok(DpdkInmem { dpdk, cpu, mean_len: templates.mean_len(), notes })
    }
}

impl Prepared for DpdkInmem {
    fn run(&mut self, trial: &Trial) -> Result<Sample, LabError> {
        if trial.rate != Rate::FlatOut {
            return Err(LabError::new("memory: DPDK's source knows no rate: use method = \"mrr\"".into()));
        }
        std::thread::sleep(trial.warm_up);
        let (began, ticks, before) = (clock::now(), clock::ticks(), self.dpdk.ports()?);
        let answered = clock::now();
        std::thread::sleep(trial.window.saturating_sub(Duration::from_nanos(answered - began)));
        let (ended, ticks_after, after) = (clock::now(), clock::ticks(), self.dpdk.ports()?);
        let seconds = (ended - began) as f64 / 1e9;
        let delivered = after[1].opackets - before[1].opackets;
        if delivered == 0 {
            return Err(LabError::new("memory: nothing left by the second port; lengthen `window`".into()));
        }
        let drops = counters::difference(&self.dpdk.losses(&before), &self.dpdk.losses(&after));
        let sent = delivered + drops.values().sum::<u64>();
        let mut metrics = BTreeMap::from([
            ("ns_per_packet".to_string(), seconds * 1e9 / delivered as f64),
            ("mbps".to_string(), delivered as f64 / seconds * self.mean_len * 8.0 / 1e6),
        ]);
        if let (Some(from), Some(to)) = (ticks, ticks_after) {
            let clocks = to.wrapping_sub(from) as f64 / delivered as f64;
            metrics.insert("clocks_per_packet".into(), clocks);
        }
        Ok(Sample {
            seconds,
            pps: delivered as f64 / seconds,
            ledger: LossLedger { intended: sent, offered: sent, sent, drops, delivered },
            metrics,
            notes: self.notes.clone(),
            window_ns: Some((began, ended)),
            ..Sample::default()
        })
    }

    fn scope(&self) -> Option<Scope> {
        Some(Scope::Cpus(vec![self.cpu]))
    }
}
