//! `runs.csv`, `trials.csv` and `comparisons.csv`: the campaign for spreadsheets, R and pandas.
//!
//! Promises: RFC 4180 (CRLF ends a record; a field with a comma, a quote or a line end is quoted, its quotes
//! doubled), one header, every record as long as it; values in base units with the digits of the raw files;
//! an empty field is "there is none". docs/campaigns.md names the columns.

use std::collections::BTreeSet;

use crate::experiment::metric::loss_percent;
use crate::machine::utc;
use crate::model::Sample;
use crate::result::Results;
use crate::store::{Run, Runs};
use weir_stats::Comparison;
use weir_stats::search::Rate;
use weir_stats::search::TrialRecord;

/// One record a run, in the order measured; failed runs have their error and no values.
pub fn runs(runs: &Runs) -> String {
    let samples = || runs.values().flatten().filter_map(|r| r.sample.as_ref());
    let latencies: BTreeSet<&String> = samples().flat_map(|s| s.latency_ns.keys()).collect();
    let metrics: BTreeSet<&String> = samples().flat_map(|s| s.metrics.keys()).collect();
    let drops: BTreeSet<&String> = samples().flat_map(|s| s.ledger.drops.keys()).collect();
    let mut header: Vec<String> = [&RUN[..], &MEASURED[..]].concat().into_iter().map(String::from).collect();
    header.extend(latencies.iter().map(|p| format!("latency_ns_{p}")));
    header.extend(metrics.iter().map(|name| name.to_string()));
    header.extend(drops.iter().map(|counter| format!("drops.{counter}")));
    header.extend(["error".into(), "notes".into()]);
    let mut out = record(&header);
    let mut rows: Vec<(&String, &Run)> =
        runs.iter().flat_map(|(name, runs)| runs.iter().map(move |r| (name, r))).collect();
    rows.sort_by_key(|(_, run)| run.order);
    for (name, run) in rows {
        let sample = run.sample.as_ref();
        let of = |metric: &dyn Fn(&Sample) -> Option<String>| sample.and_then(metric).unwrap_or_default();
        let mut fields = identity(name, run);
        fields.extend(measured(sample));
        fields.extend(latencies.iter().map(|&p| of(&|s| s.latency_ns.get(p).map(u64::to_string))));
        fields.extend(metrics.iter().map(|&f| of(&|s| s.metrics.get(f).map(f64::to_string))));
        fields.extend(drops.iter().map(|&c| of(&|s| s.ledger.drops.get(c).map(u64::to_string))));
        fields.push(run.error.clone().unwrap_or_default());
        fields.push(of(&|s| Some(s.notes.join("; "))));
        out += &record(&fields);
    }
    out
}

const RUN: [&str; 7] =
    ["configuration", "block", "order", "session", "seed", "started_unix_ms", "started_utc"];
const MEASURED: [&str; 10] = [
    "seconds",
    "pps",
    "loss_percent",
    "intended",
    "offered",
    "sent",
    "delivered",
    "unaccounted",
    "reordered",
    "duplicated",
];

fn identity(name: &str, run: &Run) -> Vec<String> {
    let numbers = [run.block as u64, run.order as u64, run.session as u64, run.seed, run.started_unix_ms];
    let mut fields = vec![name.to_string()];
    fields.extend(numbers.iter().map(u64::to_string));
    fields.push(utc(run.started_unix_ms));
    fields
}

fn measured(sample: Option<&Sample>) -> Vec<String> {
    let Some(s) = sample else { return vec![String::new(); MEASURED.len()] };
    let ledger = &s.ledger;
    vec![
        s.seconds.to_string(),
        s.pps.to_string(),
        text(loss_percent(s)),
        ledger.intended.to_string(),
        ledger.offered.to_string(),
        ledger.sent.to_string(),
        ledger.delivered.to_string(),
        ledger.unaccounted().to_string(),
        s.reordered.to_string(),
        s.duplicated.to_string(),
    ]
}

/// One record a trial of a search or sweep, in the order made; `None` where no run made any.
pub fn trials(runs: &Runs) -> Option<String> {
    let mut rows: Vec<(&String, &Run, usize, &TrialRecord)> = Vec::new();
    for (name, run) in runs.iter().flat_map(|(name, runs)| runs.iter().map(move |r| (name, r))) {
        let made = run.sample.iter().flat_map(|s| s.trials.iter().enumerate());
        rows.extend(made.map(|(i, trial)| (name, run, i, trial)));
    }
    rows.sort_by_key(|(_, run, i, _)| (run.order, *i));
    let latencies: BTreeSet<&String> = rows.iter().flat_map(|(.., t)| t.latency_ns.keys()).collect();
    let drops: BTreeSet<&String> = rows.iter().flat_map(|(.., t)| t.ledger.drops.keys()).collect();
    let mut header: Vec<String> = TRIAL.map(String::from).to_vec();
    header.extend(latencies.iter().map(|p| format!("latency_ns_{p}")));
    header.extend(drops.iter().map(|counter| format!("drops.{counter}")));
    let mut out = record(&header);
    for (name, run, i, trial) in &rows {
        let mut fields = vec![name.to_string(), run.block.to_string(), run.order.to_string(), i.to_string()];
        fields.extend(tried(trial));
        fields.extend(latencies.iter().map(|&p| text(trial.latency_ns.get(p))));
        fields.extend(drops.iter().map(|&c| text(trial.ledger.drops.get(c))));
        out += &record(&fields);
    }
    (!rows.is_empty()).then_some(out)
}

const TRIAL: [&str; 16] = [
    "configuration",
    "block",
    "order",
    "trial",
    "purpose",
    "flat_out",
    "load_pps",
    "seconds",
    "pps",
    "intended",
    "offered",
    "sent",
    "delivered",
    "unaccounted",
    "cpu_percent",
    "superseded",
];

fn tried(trial: &TrialRecord) -> Vec<String> {
    let ledger = &trial.ledger;
    vec![
        trial.purpose.clone(),
        (trial.rate == Rate::FlatOut).to_string(),
        trial.load_pps().to_string(),
        trial.seconds.to_string(),
        trial.pps.to_string(),
        ledger.intended.to_string(),
        ledger.offered.to_string(),
        ledger.sent.to_string(),
        ledger.delivered.to_string(),
        ledger.unaccounted().to_string(),
        text(trial.cpu_percent),
        trial.superseded.to_string(),
    ]
}

/// One record a pair, with the values of both and every test there is.
pub fn comparisons(results: &Results) -> String {
    let mut out = record(&COMPARED.map(String::from));
    for comparison in &results.comparisons {
        out += &record(&compared(results, comparison));
    }
    out
}

const COMPARED: [&str; 30] = [
    "reference",
    "other",
    "metric",
    "reference_n",
    "reference_median",
    "reference_mean",
    "reference_sd",
    "other_n",
    "other_median",
    "other_mean",
    "other_sd",
    "verdict",
    "analysis",
    "ratio",
    "ratio_low",
    "ratio_high",
    "p_holm",
    "p_equivalence_holm",
    "p_student",
    "p_welch",
    "p_mann_whitney",
    "p_permutation",
    "p_paired_t",
    "p_sign_flip",
    "p_signed_rank",
    "p_equivalence",
    "paired_gain",
    "margin_percent",
    "detectable_percent",
    "runs_for_margin",
];

fn compared(results: &Results, c: &Comparison) -> Vec<String> {
    let mut fields = vec![c.reference.clone(), c.other.clone(), results.metric.0.clone()];
    for name in [&c.reference, &c.other] {
        let summary = results.outcome(name).and_then(|o| o.summary);
        fields.push(text(summary.map(|s| s.n)));
        fields.push(text(summary.map(|s| s.median)));
        fields.push(text(summary.map(|s| s.mean)));
        fields.push(text(summary.and_then(|s| s.sd)));
    }
    let paired = c.paired.as_ref();
    fields.extend([word(c.verdict), word(c.analysis)]);
    fields.extend([text(c.ratio.map(|r| r.ratio)), text(c.ratio.and_then(|r| r.low))]);
    fields.push(text(c.ratio.and_then(|r| r.high)));
    fields.extend([
        text(c.p_holm),
        text(c.p_equivalence_holm),
        text(c.student.map(|t| t.p)),
        text(c.welch.map(|t| t.p)),
        text(c.mann_whitney.map(|u| u.p)),
        text(c.permutation.map(|t| t.p)),
        text(paired.map(|b| b.t_test.p)),
        text(paired.map(|b| b.sign_flip.p)),
        text(paired.map(|b| b.signed_rank.p)),
        text(c.p_equivalence),
        text(paired.and_then(|b| b.gain)),
        c.margin_percent.to_string(),
        text(c.detectable_percent),
        text(c.runs_for_margin),
    ]);
    fields
}

fn text<T: ToString>(value: Option<T>) -> String {
    value.map_or(String::new(), |v| v.to_string())
}

/// A unit variant as it stands in `result.json`.
fn word<T: serde::Serialize>(value: T) -> String {
    serde_json::to_value(value).ok().and_then(|v| Some(v.as_str()?.to_string())).unwrap_or_default()
}

fn record(fields: &[String]) -> String {
    let fields: Vec<String> = fields.iter().map(|f| quoted(f)).collect();
    fields.join(",") + "\r\n"
}

fn quoted(field: &str) -> String {
    match field.contains([',', '"', '\r', '\n']) {
        true => format!("\"{}\"", field.replace('"', "\"\"")),
        false => field.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_stats::search::LossLedger;

    fn run(order: usize, sample: Option<Sample>) -> Run {
        Run {
            format: 1,
            block: 0,
            order,
            seed: 9,
            session: 0,
            started_unix_ms: 951_782_400_000,
            error: sample.is_none().then(|| "timeout, after \"5 s\"".into()),
            sample,
            misbehaviour: None,
        }
    }

    fn sample() -> Sample {
        let drops = [("weir.no_route".to_string(), 3)].into();
        Sample {
            seconds: 0.5,
            pps: 14.5,
            ledger: LossLedger { intended: 12, offered: 11, sent: 10, delivered: 7, drops },
            latency_ns: [("p99".to_string(), 1200)].into(),
            metrics: [("clocks_per_packet".to_string(), 101.25)].into(),
            notes: vec!["fell back".into(), "to AF_PACKET".into()],
            ..Sample::default()
        }
    }

    #[test]
    fn every_run_is_a_record_in_the_order_measured() {
        let all: Runs =
            [("b".to_string(), vec![run(1, Some(sample()))]), ("c".to_string(), vec![run(0, None)])].into();
        assert_eq!(
            runs(&all),
            "configuration,block,order,session,seed,started_unix_ms,started_utc,seconds,pps,loss_percent,\
             intended,offered,sent,delivered,unaccounted,reordered,duplicated,latency_ns_p99,\
             clocks_per_packet,drops.weir.no_route,error,notes\r\n\
             c,0,0,0,9,951782400000,2000-02-29 00:00:00 UTC,,,,,,,,,,,,,,\"timeout, after \"\"5 s\"\"\",\r\n\
             b,0,1,0,9,951782400000,2000-02-29 00:00:00 UTC,0.5,14.5,30,12,11,10,7,0,0,0,1200,101.25,3,,\
             fell back; to AF_PACKET\r\n"
        );
    }

    #[test]
    fn every_trial_of_a_search_is_a_record_of_its_own_file() {
        let trial = TrialRecord {
            purpose: "sweep".into(),
            rate: Rate::Pps(1000),
            seconds: 2.0,
            pps: 3.5,
            ledger: sample().ledger,
            latency_ns: [("p50".to_string(), 800)].into(),
            cpu_percent: None,
            superseded: false,
        };
        let flat = TrialRecord { rate: Rate::FlatOut, superseded: true, ..trial.clone() };
        let searched = Sample { trials: vec![flat, trial], ..sample() };
        let all: Runs = [("b".to_string(), vec![run(4, Some(searched))])].into();
        assert_eq!(
            trials(&all).expect("two trials"),
            "configuration,block,order,trial,purpose,flat_out,load_pps,seconds,pps,intended,offered,sent,\
             delivered,unaccounted,cpu_percent,superseded,latency_ns_p50,drops.weir.no_route\r\n\
             b,0,4,0,sweep,true,5.5,2,3.5,12,11,10,7,0,,true,800,3\r\n\
             b,0,4,1,sweep,false,1000,2,3.5,12,11,10,7,0,,false,800,3\r\n"
        );
        assert_eq!(trials(&[("b".to_string(), vec![run(0, Some(sample()))])].into()), None);
    }

    #[test]
    fn a_campaign_without_runs_is_a_header() {
        assert_eq!(runs(&Runs::new()).matches("\r\n").count(), 1);
    }

    #[test]
    fn fields_that_would_break_a_record_are_quoted() {
        let fields = ["plain", "a,b", "say \"x\"", "two\nlines", ""].map(String::from);
        assert_eq!(record(&fields), "plain,\"a,b\",\"say \"\"x\"\"\",\"two\nlines\",\r\n");
    }
}
