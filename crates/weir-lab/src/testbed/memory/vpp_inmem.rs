//! VPP in memory: its own packet generator and sink, weir's frames in weir's order, weir's tables and keys.
//!
//! Before the first run some hundred frames go through once and what its sink got is held against what went in: plain
//! ones are one hop older, sealed ones are opened by weir's cipher. A VPP that seals wrongly, or by another key, has
//! no value.
//!
//! Its generator and its sink are nodes of its graph, so each run knows what they cost: `pps_without_ends` is its rate
//! without their clocks, `…_clocks` those of each node, a packet delivered. `vpp-ends` is the two alone.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::sync::Arc;

use weir_core::packet::Frame;
use weir_io::clock;

use super::ipsec::{self, SaPlan};
use super::peer_sa::{PeerSa, known};
use super::tables::{self, Net};
use super::traffic::Templates;
use crate::model::ipsec::Direction;
use crate::model::{Configuration, LabError, Prepared, Protection, Sample, Scope, Sut, Trial};
use crate::sut::vpp::memory::{InMemory, MemorySetup, SaWords, Window};
use crate::workload::capture;
use weir_stats::search::{LossLedger, Rate};

const ETHERNET: usize = 14;
/// Frames that are held against what went in.
const CHECKED: usize = 256;
/// A lab's clock and VPP's may differ by this share: what asking takes.
const CLOCKS_DIFFER: f64 = 0.1;

pub fn missing(c: &Configuration) -> Option<String> {
    if c.workload.rate != Rate::FlatOut {
        return Some("vpp: its source in memory is asked for no rate: use rate = \"flat-out\"".into());
    }
    crate::sut::vpp::memory::missing(c)
}

pub struct VppInmem {
    vpp: InMemory,
    configuration: Configuration,
    cpu: u32,
    ipsec: Option<Protection>,
    templates: Arc<Templates>,
    /// Frames held against what went in; none until the first run.
    checked: u64,
    notes: Vec<String>,
}

impl VppInmem {
    pub fn start(
        configuration: &Configuration,
        cpu: u32,
        (net, templates): (&Net, Arc<Templates>),
    ) -> Result<VppInmem, LabError> {
        let ipsec = configuration.ipsec();
        let pair = ipsec.map(|p| SaPlan::new(&p, 0)).map(|plan| [plan.back(), plan]);
        let sas = pair.as_ref().map(|[back, measured]| [sa(measured), sa(back)]);
        let plan = MemorySetup {
            configuration,
            macs: [tables::IN_MAC, tables::OUT_MAC],
            routes: &net.routes(),
            gateway_mac: &tables::gateway_mac,
            sas,
        };
        let vpp = InMemory::start(&plan, cpu)?;
        let mut notes = templates.notes.clone();
        notes.push(vpp.note().into());
        notes.push(match configuration.sut() {
            Sut::VppEnds => "vpp: its packet generator and its sink, and nothing between them".into(),
            _ => "vpp: its own packet generator and sink: pps holds both, pps_without_ends neither".into(),
        });
        if let Some(p) = ipsec {
            notes.extend(protected_notes(&p));
        }
        let configuration = configuration.clone();
        Ok(VppInmem { vpp, configuration, cpu, ipsec, templates, checked: 0, notes })
    }

    /// The frames of a turn in the order of a seed, sealed where they come in sealed.
    fn frames(&self, seed: u64) -> Result<Vec<Vec<u8>>, LabError> {
        let order = self.templates.order(seed);
        let Some(mut far) = self.far(seed)? else {
            return Ok(order.into_iter().map(|flow| self.templates.whole(flow)).collect());
        };
        let mut sealed: Vec<Frame<Box<[u8]>>> = Vec::new();
        far.seal(order.iter().map(|_| vec![0; 2048].into()).collect(), &mut sealed);
        Ok(sealed.iter().map(|frame| frame.data().to_vec()).collect())
    }

    /// Who seals what comes in.
    fn far(&self, seed: u64) -> Result<Option<PeerSa>, LabError> {
        match self.ipsec {
            Some(p) if p.direction == Direction::In => Ok(Some(self.peer(&p, seed)?)),
            _ => Ok(None),
        }
    }

    fn peer(&self, p: &Protection, seed: u64) -> Result<PeerSa, LabError> {
        let plan = SaPlan::new(p, 0);
        let cipher = plan.cipher(ipsec::ciphers(p.backend)?.as_ref())?;
        Ok(PeerSa::new(plan, cipher, self.templates.clone(), seed))
    }

    fn capture(&self, name: &str, frames: &[Vec<u8>]) -> Result<PathBuf, LabError> {
        let file = self.vpp.folder().join(name);
        fs::write(&file, capture::write(frames))
            .map_err(|e| LabError::new(format!("{}: cannot be written: {e}", file.display())))?;
        Ok(file)
    }

    /// Sends some frames once, and holds what its sink got against them.
    fn check(&mut self, frames: &[Vec<u8>]) -> Result<(), LabError> {
        let frames = &frames[..frames.len().min(CHECKED)];
        let capture = self.capture("checked.pcap", frames)?;
        let delivered = self.vpp.sample(&capture, frames.len() as u64)?;
        if delivered.len() != frames.len() {
            let (got, sent) = (delivered.len(), frames.len());
            let counted = self.vpp.counted()?;
            return Err(LabError::new(format!(
                "vpp: {got} of {sent} packets came through, one by one; it counts {counted:?}"
            )));
        }
        let opens = match self.ipsec {
            Some(p) if p.direction == Direction::Out => Some(self.peer(&p, 0)?),
            _ => None,
        };
        for mut frame in delivered {
            let said = match (&opens, self.configuration.sut()) {
                (Some(peer), _) => peer.open(&mut frame).map_err(|wrong| wrong.to_string()),
                (None, Sut::VppEnds) => match frames.contains(&frame) {
                    true => Ok(()),
                    false => Err("is not one that was sent".into()),
                },
                (None, _) => known(&self.templates, frame.get(ETHERNET..).unwrap_or_default())
                    .map_err(|wrong| wrong.to_string()),
            };
            said.map_err(|wrong| {
                LabError::new(format!("vpp: a delivered packet {wrong}: its rate means nothing"))
            })?;
            self.checked += 1;
        }
        Ok(())
    }
}

fn sa(plan: &SaPlan) -> SaWords<'_> {
    SaWords {
        spi: plan.spi,
        source: plan.source,
        destination: plan.destination,
        encryption: plan.keys.encryption.bytes(),
        integrity: plan.keys.integrity.bytes(),
    }
}

fn protected_notes(p: &Protection) -> Vec<String> {
    use crate::model::ipsec::Mode;
    let mut notes = Vec::new();
    if p.direction == Direction::In {
        notes.push("vpp: sealed packets come again and again, so its SA has no replay window".to_string());
    }
    if p.mode == Mode::Policy {
        notes.push(match p.direction {
            Direction::In => format!(
                "vpp: policy {0} of {0} is that of the packets; each has an SA of another peer, and what is opened is \
                 asked about no more",
                p.policies
            ),
            _ => format!(
                "vpp: policy {0} of {0} is that of the packets; the first lets ESP pass, which is asked about too",
                p.policies
            ),
        });
    }
    notes
}

impl Prepared for VppInmem {
    fn run(&mut self, trial: &Trial) -> Result<Sample, LabError> {
        if trial.rate != Rate::FlatOut {
            return Err(LabError::new(
                "memory: VPP's source is asked for no rate: use method = \"mrr\"".into(),
            ));
        }
        let frames = self.frames(trial.seed)?;
        if self.checked == 0 {
            self.check(&frames)?;
        }
        let capture = self.capture("frames.pcap", &frames)?;
        self.vpp.send(&capture, None)?;
        std::thread::sleep(trial.warm_up);
        let (asked, ticks) = (clock::now(), clock::ticks());
        let window = self.vpp.count(&self.configuration, trial.window)?;
        let (answered, ticks_after) = (clock::now(), clock::ticks());
        if let Some(error) = self.vpp.ended() {
            return Err(error);
        }
        let (shortest, longest) = (trial.window.as_secs_f64(), (answered - asked) as f64 / 1e9);
        let (low, high) = (shortest * (1.0 - CLOCKS_DIFFER), longest * (1.0 + CLOCKS_DIFFER));
        if !(low..=high).contains(&window.seconds) {
            let seconds = window.seconds;
            return Err(LabError::new(format!(
                "vpp: {seconds:.3} s by its clock, {shortest:.3} to {longest:.3} s by ours: its rate means nothing"
            )));
        }
        let rate = ticks.zip(ticks_after).map(|(from, to)| to.wrapping_sub(from) as f64 / longest);
        let mut sample = sample(&window, rate, self.templates.mean_len())?;
        if self.ipsec.is_some() {
            sample.metrics.insert("verified_packets".into(), self.checked as f64);
        }
        if self.ipsec.is_some_and(|p| p.spd.churn > 0) {
            sample.metrics.insert("updates".into(), window.updates as f64);
        }
        sample.notes = self.notes.clone();
        sample.window_ns = Some(window.at);
        Ok(sample)
    }

    fn scope(&self) -> Option<Scope> {
        Some(Scope::Cpus(vec![self.cpu]))
    }
}

/// Values of a window; `ticks` is the clock's rate.
fn sample(window: &Window, ticks: Option<f64>, mean_len: f64) -> Result<Sample, LabError> {
    let Window { seconds, sent, delivered, drops, nodes, .. } = window;
    if *delivered == 0 {
        return Err(LabError::new(format!("vpp: nothing reached its sink; drops {drops:?}")));
    }
    let ledger = LossLedger {
        intended: *sent,
        offered: *sent,
        sent: *sent,
        drops: drops.clone(),
        delivered: *delivered,
    };
    if ledger.unaccounted() != 0 {
        let missing = ledger.unaccounted();
        let passed: Vec<String> =
            nodes.iter().map(|(name, packets, _)| format!("{name} {packets}")).collect();
        return Err(LabError::new(format!(
            "vpp: {missing} of {sent} packets are in no counter; drops {drops:?}; packets a node {passed:?}"
        )));
    }
    let (count, pps) = (*delivered as f64, *delivered as f64 / seconds);
    let mut metrics = BTreeMap::from([
        ("ns_per_packet".to_string(), 1e9 / pps),
        ("mbps".to_string(), pps * mean_len * 8.0 / 1e6),
    ]);
    let mut ends = 0.0;
    for (node, vectors, clocks) in nodes {
        let each = clocks * *vectors as f64 / count;
        if ["pg-input", "pg1-tx"].contains(&node.as_str()) {
            ends += each;
        }
        metrics.insert(format!("{}_clocks", node.replace('-', "_")), each);
    }
    if let Some(ticks) = ticks {
        let all = ticks / pps;
        metrics.insert("clocks_per_packet".into(), all);
        if all > ends {
            metrics.insert("pps_without_ends".into(), ticks / (all - ends));
        }
    }
    Ok(Sample { seconds: *seconds, pps, ledger, metrics, ..Sample::default() })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn window(sent: u64, delivered: u64) -> Window {
        let nodes = vec![
            ("pg-input".to_string(), sent, 100.0),
            ("ip4-lookup".into(), 2 * delivered, 40.0),
            ("pg1-tx".into(), delivered, 20.0),
        ];
        Window {
            seconds: 0.5,
            sent,
            delivered,
            drops: [("vpp.x.y".to_string(), 10)].into(),
            nodes,
            updates: 0,
            at: (0, 0),
        }
    }

    #[test]
    fn clocks_of_nodes_are_a_packet_delivered_and_ends_are_taken_out() {
        let sample = sample(&window(1010, 1000), Some(800_000.0), 60.0).expect("balanced");
        assert_eq!((sample.pps, sample.ledger.unaccounted()), (2000.0, 0));
        assert_eq!(sample.metrics["clocks_per_packet"], 400.0);
        assert_eq!(sample.metrics["ip4_lookup_clocks"], 80.0);
        let ends = 101.0 + 20.0;
        assert!((sample.metrics["pps_without_ends"] - 800_000.0 / (400.0 - ends)).abs() < 1e-6, "{sample:?}");
    }

    #[test]
    fn what_delivers_nothing_or_loses_unseen_has_no_value() {
        let said = |w| sample(&w, None, 60.0).expect_err("refused").to_string();
        assert!(said(window(10, 0)).contains("nothing reached its sink"));
        assert!(said(window(1011, 1000)).contains("1 of 1011 packets are in no counter"));
    }
}
