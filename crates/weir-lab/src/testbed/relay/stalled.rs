//! What pairs with stalled receivers do to the ledger of a run.
//!
//! ```text
//! under way when the window opened + sent in it  =  received, in it and after it + dropped by reason + unaccounted
//! ```
//!
//! Promises: a relay that counts what it drops leaves nothing unaccounted, whoever the drops are of. Refuses: to change
//! throughput, latency and loss, which are those of the pairs that read.

use crate::generator::derp::pairs::Outcome;
use crate::generator::derp::stalled::Count;
use crate::model::Sample;
use crate::netns::counters::Counters;

const NOTE: &str = "stalled receivers: the ledger has their pairs too, with what was under way to them when the window \
                    opened; every other value is of the pairs that read";

/// Packets of a run that neither came nor were dropped before it was over.
pub fn held(came: &Outcome, drops: &Counters) -> i64 {
    let sent = came.sent + came.stalled.sent;
    let gone = came.tally.delivered + came.stalled.received + drops.values().sum::<u64>();
    sent as i64 - gone as i64
}

/// Enters pairs with stalled receivers, to whom `held` packets were under way before.
pub fn enter(sample: &mut Sample, count: Count, held: i64) {
    let ledger = &mut sample.ledger;
    let with = |now: u64, more: u64| (now + more).saturating_add_signed(held);
    ledger.intended = with(ledger.intended, count.intended);
    ledger.offered = with(ledger.offered, count.offered);
    ledger.sent = with(ledger.sent, count.sent);
    ledger.delivered += count.received;
    let metrics = [
        ("stalled_sent_packets", count.sent as f64),
        ("stalled_received_packets", count.received as f64),
        ("stalled_under_way_before_packets", held as f64),
    ];
    sample.metrics.extend(metrics.map(|(name, value)| (name.to_string(), value)));
    sample.notes.push(NOTE.into());
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_stats::search::LossLedger;

    #[test]
    fn drops_of_stalled_pairs_stand_against_what_these_sent() {
        let drops = Counters::from([("derper.queue_head".to_string(), 700)]);
        let ledger = LossLedger { intended: 1000, offered: 1000, sent: 1000, drops, delivered: 990 };
        let mut sample = Sample { ledger, pps: 5.0, ..Sample::default() };
        assert!(sample.ledger.unaccounted() < 0, "without them more is dropped than was lost");
        enter(&mut sample, Count { intended: 900, offered: 900, sent: 800, received: 150 }, 40);
        let ledger = &sample.ledger;
        assert_eq!(
            (ledger.intended, ledger.offered, ledger.sent, ledger.delivered),
            (1940, 1940, 1840, 1140)
        );
        assert_eq!((ledger.unaccounted(), sample.pps), (0, 5.0));
    }
}
