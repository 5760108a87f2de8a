//! A relay whose caches are simulated: its own code, packet by packet, with more and more peers.
//!
//! Promises: each pair has had its turn before anything counts, and has two more while it does. Its rates and times
//! are those of a simulation, and no values.

use std::collections::BTreeMap;
use std::time::Duration;

use super::{Deployed, PairTraffic, Paired};
use crate::model::{LabError, Sample, Trial};
use weir_stats::search::Rate;

/// Packets a second without a rate of the experiment's: less than a simulated relay carries.
const RATE: u64 = 4000;
/// Packets of each pair before what counts, and while it does: two turns of what a paced pair sends at a time.
const TURNS: u64 = 16;
/// Nobody waits longer for all pairs, and none has less to pass a simulated relay.
const LONGEST: Duration = Duration::from_secs(30);
const LEAST: Duration = Duration::from_secs(1);

const NOTE: &str = "simulated (callgrind): the relay's own code, without kernel and prefetchers; the last level is a core's own second";

impl Deployed {
    pub(super) fn simulated(&mut self, trial: &Trial) -> Result<Sample, LabError> {
        let live = self.running.as_ref().and_then(|relay| relay.simulation());
        let live = live
            .ok_or_else(|| LabError::new("relay: its caches are not simulated: use sut = \"weir\"".into()))?;
        let rate = if let Rate::Pps(rate) = trial.rate { rate } else { RATE };
        let turns = Duration::from_secs_f64((TURNS * u64::from(self.clients)) as f64 / rate.max(1) as f64);
        let turns = turns.clamp(LEAST, LONGEST);
        let shares = self.cpus.sut.contains(&self.cpus.generator);
        let plan =
            PairTraffic { rate: Some(rate), under_way: None, window: turns, run: 0, shares, empties: false };
        live.begin()?;
        self.load(PairTraffic { window: turns.max(trial.warm_up), ..plan })?;
        live.zero()?;
        let (came, _) = self.load(PairTraffic { window: turns.max(trial.window), ..plan })?;
        let totals = live.totals()?;
        if came.sent == 0 || came.tally.delivered == 0 {
            return Err(LabError::new("relay: nothing passed it under simulation: lower the rate".into()));
        }
        let per = |count: u64| count as f64 / came.sent as f64;
        let metrics = BTreeMap::from([
            ("simulated_instructions_per_packet".to_string(), per(totals.instructions)),
            ("simulated_data_references_per_packet".to_string(), per(totals.data_references)),
            ("simulated_d1_misses_per_packet".to_string(), per(totals.d1_misses)),
            ("simulated_ll_misses_per_packet".to_string(), per(totals.ll_data_misses)),
            ("simulated_packets".to_string(), came.sent as f64),
        ]);
        let mut sample = self.silent(metrics, (came.began, came.ended));
        sample.notes.push(NOTE.into());
        sample.notes.extend(totals.caches.iter().map(|cache| format!("simulated: {cache}")));
        Ok(sample)
    }
}
