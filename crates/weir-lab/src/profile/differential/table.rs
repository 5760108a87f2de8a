//! A differential in words: rows for terminals and reports, sentences that reconcile it.

use super::{Change, Differential, Frame, Presence, Reconciliation, Total, Unit};
use crate::format::p;
use crate::profile::shortened;

/// `+1.50`; what rounds to nothing has no sign.
struct Signed(f64);

impl std::fmt::Display for Signed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.0.abs() < 0.005 { f.write_str("0.00") } else { write!(f, "{:+.2}", self.0) }
    }
}

/// Names a list of new or vanished frames shows; the table of a program (`--json`) has all.
const LISTED: usize = 12;

impl Unit {
    pub fn label(self) -> &'static str {
        match self {
            Unit::PercentOfNonIdle => "% of non-idle samples",
            Unit::NsPerPacket => "ns a packet",
        }
    }
}

impl Total {
    fn sentence(&self) -> String {
        let share = 100.0 * self.idle as f64 / self.samples.max(1) as f64;
        let s = if self.recordings == 1 { "" } else { "s" };
        format!(
            "{} samples in {} recording{s}, {share:.2} % idle or other processes'",
            self.samples, self.recordings
        )
    }
}

/// The `limit` frames with the strongest evidence, headings first.
pub fn rows(differential: &Differential, limit: usize) -> Vec<[String; 7]> {
    let headings = ["frame", "before", "after", "change [95 %]", "p (Holm)", "inclusive", "category"];
    let shown = differential.frames.iter().take(limit).map(|frame| {
        let inclusive = &frame.inclusive;
        [
            shortened(&frame.name),
            format!("{:.2}", frame.own.before),
            format!("{:.2}", frame.own.after),
            interval(&frame.own),
            p(Some(frame.own.p_holm)),
            format!("{:.2} → {:.2}", inclusive.before, inclusive.after),
            frame.category.clone(),
        ]
    });
    std::iter::once(headings.map(String::from)).chain(shown).collect()
}

/// A frame's own cost for a sentence.
pub fn sentence(frame: &Frame, unit: &str) -> String {
    let change = Signed(frame.own.change).to_string().replace('-', "−");
    format!("`{}` {change} {unit}", shortened(&frame.name))
}

fn interval(change: &Change) -> String {
    format!("{} [{}, {}]", Signed(change.change), Signed(change.low), Signed(change.high))
}

/// What stands above the table.
pub fn head(differential: &Differential) -> Vec<String> {
    vec![
        format!("before: {} ({})", differential.before.sentence(), differential.event),
        format!("after: {}", differential.after.sentence()),
        format!(
            "own cost of each frame in {}, strongest evidence first; {}",
            differential.unit.label(),
            differential.evidence.sentence()
        ),
    ]
}

/// What stands below it: new and vanished frames, and the reconciliation.
pub fn foot(differential: &Differential) -> Vec<String> {
    vec![
        listed(differential, Presence::New, "new"),
        listed(differential, Presence::Vanished, "vanished"),
        differential.reconciliation.sentence(differential.unit),
    ]
}

fn listed(differential: &Differential, presence: Presence, word: &str) -> String {
    let mut frames: Vec<&Frame> = differential.frames.iter().filter(|f| f.presence == presence).collect();
    frames.sort_by(|a, b| b.inclusive.change.abs().total_cmp(&a.inclusive.change.abs()));
    let (sure, rare): (Vec<&Frame>, Vec<&Frame>) =
        frames.into_iter().partition(|f| f.inclusive.p_holm <= weir_stats::compare::ALPHA);
    let mut named: Vec<String> = sure
        .iter()
        .take(LISTED)
        .map(|f| {
            format!(
                "{} ({} inclusive, {} own)",
                shortened(&f.name),
                Signed(f.inclusive.change),
                Signed(f.own.change)
            )
        })
        .collect();
    if sure.len() > LISTED {
        named.push(format!("{} more", sure.len() - LISTED));
    }
    if named.is_empty() {
        named.push("none beyond chance".into());
    }
    let rare = match rare.len() {
        0 => String::new(),
        n => format!("; and {n} so rare that chance explains it"),
    };
    format!("{word} frames: {}{rare}", named.join(", "))
}

impl Reconciliation {
    /// The identity with its values.
    pub fn sentence(&self, unit: Unit) -> String {
        let frames = format!(
            "{} from {} frame{} beyond chance, {} from all others",
            Signed(self.proven),
            self.proven_frames,
            if self.proven_frames == 1 { "" } else { "s" },
            Signed(self.others)
        );
        match (self.pps, self.idle) {
            (Some((before, after)), Some(idle)) => format!(
                "reconciliation: {:.4} → {:.4} Mpps ({:+.2} %) is {:.2} → {:.2} ns a packet on all CPUs, \
                 {} = {frames}, {} idle and other processes, {} unexplained{}",
                before / 1e6,
                after / 1e6,
                (after / before - 1.0) * 100.0,
                self.before,
                self.after,
                Signed(self.after - self.before),
                Signed(idle),
                Signed(self.unexplained),
                match self.sampled {
                    true => "",
                    false => " (the profiles do not say how often they sampled: taken to cover all time)",
                }
            ),
            _ => format!(
                "reconciliation: shares add up to 100 on both sides, so their changes to 0: {frames} ({}); \
                 with packet rates (--pps) they are set against the throughput",
                unit.label()
            ),
        }
    }
}
