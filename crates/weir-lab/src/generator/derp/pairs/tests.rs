//! Pairs without a relay between them: nothing is lost, rates are kept, damage is seen.

use super::*;

fn plan(rate: Option<u64>, under_way: Option<u64>) -> PairTraffic {
    PairTraffic { rate, under_way, window: Duration::from_millis(100), run: 1, shares: false, empties: false }
}

#[test]
fn without_a_relay_every_packet_arrives() {
    every_packet_arrives(false);
}

#[test]
fn through_tls_every_packet_arrives() {
    every_packet_arrives(true);
}

fn every_packet_arrives(tls: bool) {
    let mut pairs = Pairs::direct(3, 1400, tls).expect("sockets");
    let mut moments = Vec::new();
    for under_way in [Some(32), Some(1), None] {
        let came = pairs.run(&plan(None, under_way), |at| moments.push(at)).expect("a run");
        let tally = &came.tally;
        assert!(came.sent > 0 && tally.delivered >= tally.arrived);
        assert_eq!((came.offered, came.sent), (came.intended, tally.delivered), "{under_way:?}");
        assert_eq!((tally.corrupted, tally.duplicated, tally.reordered), (0, 0, 0));
        assert!(tally.latency.max() > 0 && tally.bytes == tally.arrived * 1400);
    }
    assert_eq!(moments, [Moment::Opens, Moment::Closes].repeat(3));
}

#[test]
fn a_closed_loop_keeps_as_many_under_way_as_it_is_told() {
    let mut pairs = Pairs::direct(2, 200, false).expect("sockets");
    for under_way in [1, 5, 32] {
        let plan = plan(None, Some(under_way));
        pairs.courses.iter_mut().for_each(|course| *course = Course::default());
        let mut run = Run::new(&plan, 0);
        assert!(pairs.offer(&mut run, 0).expect("room"));
        assert!(!pairs.offer(&mut run, 0).expect("room"), "nothing came back yet");
        assert_eq!((run.offered, pairs.courses[1].next), (2 * under_way, under_way));
    }
}

#[test]
fn a_rate_is_kept_by_all_pairs_together() {
    let mut pairs = Pairs::direct(4, 200, false).expect("sockets");
    let came = pairs.run(&plan(Some(2000), None), |_| {}).expect("a run");
    let due = 2000 * (came.ended - came.began) / 1_000_000_000;
    assert!(came.intended > 0 && came.intended <= due + 2, "{} of {due}", came.intended);
    assert_eq!((came.sent, came.group), (came.offered, 1));
    assert_eq!(came.tally.delivered, came.sent);
}

#[test]
fn packets_that_are_not_what_was_sent_are_damage() {
    let batch = Batch::new(64, 1).expect("a length that fits");
    let key = Key([3; KEY]);
    let arrived = |change: fn(&mut Vec<u8>)| {
        let (mut batch, mut tally, mut course) =
            (Batch::new(64, 1).expect("as above"), Tally::new(), Course::default());
        course.next = 1;
        batch.stamp(0, &key, Mark { run: 1, pair: 0, sequence: 0, due: 0 });
        let mut payload = batch.first(1)[5..].to_vec();
        change(&mut payload);
        arrive(&mut tally, &mut course, &batch, (&payload, &key), (1, 1), 9);
        (tally.corrupted, tally.delivered)
    };
    assert_eq!(arrived(|_| {}), (0, 1));
    let changes: [fn(&mut Vec<u8>); 5] =
        [|p| p[0] ^= 1, |p| p[32] ^= 1, |p| p[95] ^= 1, |p| p.truncate(95), |p| p.truncate(20)];
    for change in changes {
        assert_eq!(arrived(change), (1, 0));
    }
    assert_eq!(batch.len(), 1);
}

#[test]
fn what_pairs_found_is_the_same_on_the_other_side() {
    let mut tally = Tally { open: true, corrupted: 2, ..Tally::new() };
    let mut course = Course::default();
    course.next = 9;
    for (sequence, now) in [(0, 50), (2, 70_000), (1, 80_000)] {
        tally.arrival(&mut course, Mark { run: 1, pair: 0, sequence, due: 10 }, 1400, now);
    }
    let came = Outcome {
        tally,
        intended: 10,
        offered: 9,
        sent: 8,
        began: 1,
        ended: 100_000,
        idle: 5,
        late_max: 6,
        group: 7,
        stalled: stalled::Count { intended: 4, offered: 3, sent: 2, received: 1 },
        disconnected: 1,
    };
    let said = serde_json::to_string(&came).expect("plain data");
    let ran: Outcome = serde_json::from_str(&said).expect("our own");
    assert_eq!(serde_json::to_string(&ran).expect("plain data"), said);
    let tally = &ran.tally;
    assert_eq!((tally.delivered, tally.arrived, tally.bytes, tally.reordered), (3, 3, 4200, 1));
    assert_eq!((ran.intended, ran.offered, ran.sent, tally.corrupted), (10, 9, 8, 2));
    assert_eq!(tally.latency.len(), 3);
}
