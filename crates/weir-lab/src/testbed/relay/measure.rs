//! One trial of a relay's clients, wherever clients and relay are: pairs that send packets to each other, clients that
//! are silent, clients that connect and leave.

use std::collections::BTreeMap;
use std::time::Duration;

use weir_core::time::Nanos;

use super::reading::Cost;
use super::stalled;
use crate::generator::derp::pairs::{Outcome, PairTraffic};
use crate::generator::derp::visits::{Connected, Stay};
use crate::model::relay::{Load, RelayScenario};
use crate::model::{LabError, Sample, Trial};
use crate::netns::counters::{self, Counters};
use crate::result::bounds::GENERATOR_LIMIT;
use weir_stats::search::{LossLedger, Rate};

/// The share of the generator's turns that are idle: with less than this, it and not the relay is measured.
const SPARE_PERCENT: f64 = 3.0;
const NEVER_IDLE: &str = "it was never idle";
/// Offered less than this share of a rate: it fell behind.
const KEPT_PERCENT: f64 = 99.0;

/// Pairs of clients and what they send through: on this machine or on hosts.
pub trait Paired {
    /// The relay's drop counters, cumulative.
    fn drops(&mut self) -> Result<Counters, LabError>;

    /// One window, drained, and what it cost the relay, where there is one.
    fn load(&mut self, plan: PairTraffic) -> Result<(Outcome, Option<Cost>), LabError>;
}

/// Warms up, and measures the window. `shares`: relay and generator work on one CPU.
pub fn measure(
    paired: &mut impl Paired,
    relay: &RelayScenario,
    shares: bool,
    trial: &Trial,
) -> Result<Sample, LabError> {
    let rate = match trial.rate {
        Rate::FlatOut => None,
        Rate::Pps(rate) => Some(rate),
        Rate::Burst(_) => {
            return Err(LabError::new(
                "relay: TCP has no bursts to lose: use another method than \"back-to-back\"".into(),
            ));
        }
    };
    let plan = PairTraffic {
        rate,
        under_way: (relay.load == Load::ClosedLoop).then_some(u64::from(relay.under_way)),
        window: trial.window,
        run: 0,
        shares,
        empties: true,
    };
    let (held, before) = warm_up(paired, relay, trial.warm_up, plan)?;
    let (came, cost) = paired.load(plan)?;
    let after = paired.drops()?;
    let mut sample = sample(&came, cost, counters::difference(&before, &after));
    if came.disconnected > 0 {
        sample
            .notes
            .push(format!("the relay let {} of {} stalled receivers go", came.disconnected, relay.stalled));
    }
    if relay.stalled > 0 {
        stalled::enter(&mut sample, came.stalled, held);
    }
    Ok(sample)
}

/// What of it is still under way to stalled receivers, and the drops up to then.
fn warm_up(
    paired: &mut impl Paired,
    relay: &RelayScenario,
    window: Duration,
    plan: PairTraffic,
) -> Result<(i64, Counters), LabError> {
    if window.is_zero() {
        return Ok((0, paired.drops()?));
    }
    let plan = PairTraffic { window, empties: false, ..plan };
    if relay.stalled == 0 {
        paired.load(plan)?;
        return Ok((0, paired.drops()?));
    }
    let before = paired.drops()?;
    let (came, _) = paired.load(plan)?;
    let after = paired.drops()?;
    Ok((stalled::held(&came, &counters::difference(&before, &after)), after))
}

fn sample(came: &Outcome, cost: Option<Cost>, drops: Counters) -> Sample {
    let tally = &came.tally;
    let seconds = (came.ended - came.began).max(1) as f64 / 1e9;
    let mut metrics = BTreeMap::new();
    let mut metric = |name: &str, value: f64| {
        metrics.insert(name.to_string(), value);
    };
    metric("mbps", tally.bytes as f64 * 8.0 / 1e6 / seconds);
    metric("offered_pps", came.offered as f64 / seconds);
    metric("sent_pps", came.sent as f64 / seconds);
    let busy = 100.0 - came.idle as f64 / 1e9 / seconds * 100.0;
    metric("generator_busy_percent", busy);
    metric("late_max_us", came.late_max as f64 / 1e3);
    if came.intended > 0 {
        let lost = came.intended.saturating_sub(tally.delivered) as f64;
        metric("undelivered_percent", lost * 100.0 / came.intended as f64);
    }
    metrics.extend(cost.iter().flat_map(|cost| cost.metrics(tally.arrived, tally.bytes, seconds)));
    let mut sample = Sample {
        seconds,
        pps: tally.arrived as f64 / seconds,
        ledger: LossLedger {
            intended: came.intended,
            offered: came.offered,
            sent: came.sent,
            drops,
            delivered: tally.delivered,
        },
        reordered: tally.reordered,
        duplicated: tally.duplicated,
        metrics,
        window_ns: Some((came.began, came.ended)),
        ..Sample::default()
    };
    if !tally.latency.is_empty() {
        for (name, quantile) in [("p50", 0.5), ("p90", 0.9), ("p99", 0.99), ("p99.9", 0.999)] {
            sample.latency_ns.insert(name.into(), tally.latency.value_at_quantile(quantile));
        }
        sample.latency_ns.insert("max".into(), tally.latency.max());
    }
    warnings(came, busy, cost.is_some(), &mut sample);
    sample
}

/// What is to be known of a run beside its values.
fn warnings(came: &Outcome, busy: f64, has_relay: bool, sample: &mut Sample) {
    let kept = came.offered as f64 * 100.0 / came.intended.max(1) as f64;
    if came.group > 0 {
        sample.notes.push(format!("paced: {} packets of a pair at a time, pairs in turn", came.group));
        if kept < KEPT_PERCENT {
            sample
                .notes
                .push(format!("{GENERATOR_LIMIT}: it was late for {:.0} % of what was due", 100.0 - kept));
        }
    } else if has_relay && 100.0 - busy < SPARE_PERCENT {
        sample.notes.push(format!("{GENERATOR_LIMIT}: {NEVER_IDLE}; compare with the baseline"));
    }
    if came.tally.corrupted > 0 {
        sample.notes.push("packets came back other than they were sent: see corrupted_packets".into());
    }
    sample.metrics.insert("corrupted_packets".into(), came.tally.corrupted as f64);
}

/// Metrics of `count` clients that said nothing: memory of the relay's process before and with them, bytes.
pub fn of_idle([before, after]: [u64; 2], count: u64, connecting_ns: Nanos) -> BTreeMap<String, f64> {
    BTreeMap::from([
        ("memory_bytes_per_client".to_string(), after.saturating_sub(before) as f64 / count as f64),
        ("memory_bytes_before".to_string(), before as f64),
        ("memory_bytes_after".to_string(), after as f64),
        ("connecting_seconds".to_string(), connecting_ns as f64 / 1e9),
    ])
}

/// How clients of a trial come and go.
pub fn stay(relay: &RelayScenario, clients: u32, trial: &Trial) -> Stay {
    Stay {
        at_once: clients as usize,
        warm_up: trial.warm_up,
        window: trial.window,
        come_back: relay.load == Load::Reconnects,
        seed: trial.seed,
    }
}

/// Metrics of clients that connected and left, and what to know of them.
pub fn of_visits(came: &Connected, cost: Option<Cost>) -> (BTreeMap<String, f64>, Option<String>) {
    let seconds = came.ended.saturating_sub(came.began).max(1) as f64 / 1e9;
    let mut metrics = cost.map(|cost| cost.metrics(came.connects, 0, seconds)).unwrap_or_default();
    metrics.remove("ns_per_packet").map(|ns| metrics.insert("cpu_ms_per_connect".into(), ns / 1e6));
    metrics.insert("connects_per_second".into(), came.connects as f64 / seconds);
    let busy = came.busy as f64 / 1e7 / seconds;
    metrics.insert("generator_busy_percent".into(), busy);
    let limit = (100.0 - busy < SPARE_PERCENT).then(|| format!("{GENERATOR_LIMIT}: {NEVER_IDLE}"));
    (metrics, limit)
}
