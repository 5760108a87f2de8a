//! Sequence numbers of an SA that several workers seal for: none twice, none beyond what is on disk.

use loom::sync::Arc;
use loom::sync::atomic::AtomicU64;
use loom::sync::atomic::Ordering::{Acquire, Release};
use loom::thread;
use weir_loom::durable::{Amounts, Counters, Lease};

fn up_to(sequence: u64) -> Amounts {
    Amounts { sequence, ..Amounts::UNLIMITED }
}

#[test]
fn numbers_are_given_once_and_none_before_it_is_on_disk() {
    weir_loom::model(|| {
        let (used, lease) = (Arc::new(Counters::default()), Arc::new(Lease::new(up_to(3))));
        let disk = Arc::new(AtomicU64::new(3));
        let workers = [2, 2].map(|n| {
            let (used, lease, disk) = (used.clone(), lease.clone(), disk.clone());
            thread::spawn(move || {
                let (first, count) = used.take_sequence(lease.sequence(), n);
                (first..first + count)
                    .inspect(|&number| assert!(number <= disk.load(Acquire)))
                    .collect::<Vec<_>>()
            })
        });
        // Control reserves more: on disk first.
        disk.store(10, Release);
        lease.grant(up_to(10), up_to(7));
        let mut given: Vec<u64> =
            workers.into_iter().flat_map(|worker| worker.join().expect("it seals")).collect();
        let count = given.len();
        given.sort_unstable();
        given.dedup();
        assert_eq!(given.len(), count, "{given:?}: a number was given twice");
        assert!(given.iter().all(|number| (1..=10).contains(number)), "{given:?}");
    });
}

#[test]
fn more_is_asked_for_by_one_worker_a_grant() {
    weir_loom::model(|| {
        let (used, lease) = (Arc::new(Counters::default()), Arc::new(Lease::new(up_to(3))));
        lease.grant(up_to(100), up_to(1));
        let workers = [1, 1].map(|n| {
            let (used, lease) = (used.clone(), lease.clone());
            thread::spawn(move || {
                used.take_sequence(lease.sequence(), n);
                lease.is_due(&used)
            })
        });
        let asked =
            workers.into_iter().filter_map(|worker| worker.join().expect("it seals").then_some(())).count();
        assert_eq!(asked, 1);
    });
}
