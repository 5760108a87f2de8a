//! The flow cache's buckets: what is read of one was written by one worker, whoever else writes meanwhile.

use loom::sync::Arc;
use loom::sync::atomic::Ordering::Acquire;
use loom::sync::atomic::fence;
use loom::thread;
use weir_loom::hash::Secret;
use weir_loom::ipsec::spd::PolicyIndex;
use weir_loom::key::Key;
use weir_loom::table::{Probe, Table4};

/// Epoch, key and answer all tell which flow it is.
fn key(n: u64) -> Key<2> {
    [n, n * 3]
}

fn answer_of(n: u64) -> Option<PolicyIndex> {
    Some(PolicyIndex(n as u32))
}

fn table() -> Arc<Table4> {
    Arc::new(Table4::new(1, Secret::new(1)))
}

fn learn(table: &Table4, n: u64) -> bool {
    table.insert(0, &key(n), n, answer_of(n))
}

/// The fast way, as a batch asks.
fn asks(table: &Table4, n: u64) -> bool {
    let head = table.head(0);
    fence(Acquire);
    let answer = table.answer(0, head, &key(n), n);
    assert!(answer.is_none_or(|answer| answer == answer_of(n)), "flow {n} is answered {answer:?}");
    answer.is_some()
}

/// The way that tells why there is no answer.
fn probes(table: &Table4, n: u64) {
    match table.probe(0, &key(n), n) {
        Probe::Hit(answer) => assert_eq!(answer, answer_of(n), "flow {n}"),
        Probe::Stale(answer, epoch) => panic!("flow {n} was never of epoch {epoch}, {answer:?}"),
        Probe::Other | Probe::Empty | Probe::Busy => {}
    }
}

#[test]
fn a_reader_sees_whole_entries_while_a_worker_takes_the_bucket_over() {
    weir_loom::model(|| {
        let table = table();
        assert!(learn(&table, 1));
        let writer = {
            let table = table.clone();
            thread::spawn(move || learn(&table, 2))
        };
        asks(&table, 1);
        asks(&table, 2);
        writer.join().expect("it learns");
        assert!(asks(&table, 2), "the last word stands");
    });
}

#[test]
fn a_reader_that_asks_why_sees_whole_entries() {
    weir_loom::model(|| {
        let table = table();
        assert!(learn(&table, 1));
        let writer = {
            let table = table.clone();
            thread::spawn(move || learn(&table, 2))
        };
        probes(&table, 1);
        probes(&table, 2);
        writer.join().expect("it learns");
    });
}

#[test]
fn a_new_answer_of_the_same_flow_is_never_mixed_with_its_epoch_of_before() {
    weir_loom::model(|| {
        let table = table();
        // The rules have changed: the flow is the same, epoch and answer are others.
        table.insert(0, &key(1), 5, answer_of(5));
        let writer = {
            let table = table.clone();
            thread::spawn(move || table.insert(0, &key(1), 6, answer_of(6)))
        };
        let head = table.head(0);
        fence(Acquire);
        let (old, new) = (table.answer(0, head, &key(1), 5), table.answer(0, head, &key(1), 6));
        assert!(old.is_none_or(|answer| answer == answer_of(5)), "{old:?}");
        assert!(new.is_none_or(|answer| answer == answer_of(6)), "{new:?}");
        match table.probe(0, &key(1), 6) {
            Probe::Hit(answer) => assert_eq!(answer, answer_of(6)),
            Probe::Stale(answer, epoch) => assert_eq!((answer, epoch), (answer_of(5), 5)),
            Probe::Busy => {}
            other => panic!("the bucket is the flow's: {other:?}"),
        }
        writer.join().expect("it learns");
    });
}

#[test]
fn of_two_workers_that_want_a_bucket_each_writes_all_or_nothing() {
    weir_loom::model(|| {
        let table = table();
        let writers = [1, 2].map(|n| {
            let table = table.clone();
            thread::spawn(move || learn(&table, n))
        });
        asks(&table, 1);
        let filled = writers.map(|writer| writer.join().expect("it learns"));
        assert_eq!(filled.into_iter().filter(|&filled| filled).count(), 1, "one found it empty");
        assert!(asks(&table, 1) ^ asks(&table, 2), "the bucket is one flow's");
    });
}
