//! Records are read whatever lies in a ring; a thread at work is seen, with its time and place.

use std::io::Write;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, Ordering};

use proptest::prelude::*;

use super::record::{Side, records};
use super::*;

fn framed(kind: u32, misc: u16, mut body: Vec<u8>) -> Vec<u8> {
    body.resize(body.len().next_multiple_of(8), 0);
    let mut bytes = kind.to_ne_bytes().to_vec();
    bytes.extend(misc.to_ne_bytes());
    bytes.extend((body.len() as u16 + 8).to_ne_bytes());
    bytes.extend(body);
    bytes
}

fn words(numbers: &[u64]) -> Vec<u8> {
    numbers.iter().flat_map(|n| n.to_ne_bytes()).collect()
}

fn pair(low: u32, high: u32) -> u64 {
    u64::from_ne_bytes([low.to_ne_bytes(), high.to_ne_bytes()].concat().try_into().expect("eight bytes"))
}

const KERNEL: u64 = -128i64 as u64;
const USER: u64 = -512i64 as u64;

fn sample(tid: u32, time: u64, chain: &[u64]) -> Vec<u8> {
    let mut body = words(&[0x1000, pair(7, tid), time, pair(1, 0), chain.len() as u64]);
    body.extend(words(chain));
    framed(9, 2, body)
}

fn lost(n: u64) -> Vec<u8> {
    framed(2, 0, words(&[99, n]))
}

#[test]
fn a_chain_says_which_addresses_are_the_kernels() {
    let bytes = sample(8, 5, &[KERNEL, 0xffff_ffff_8100_0000, USER, 0x4000, 0x5000]);
    let Some(Record::Sample(sample)) = records(&bytes).next() else { panic!("a sample") };
    assert_eq!((sample.pid, sample.tid, sample.time, sample.cpu), (7, 8, 5, 1));
    let chain: Vec<_> = sample.chain().collect();
    assert_eq!(chain, [(Side::Kernel, 0xffff_ffff_8100_0000), (Side::User, 0x4000), (Side::User, 0x5000)]);
}

#[test]
fn tasks_mappings_and_losses_are_told() {
    let mut name = words(&[pair(7, 8)]);
    name.extend(b"worker\0");
    let mut path = words(&[pair(7, 8), 0x4000, 0x1000, 0x200, 0, 0, 0, 0]);
    path.extend(b"/bin/true\0");
    let all = [
        framed(3, 1 << 13, name),
        framed(10, 2, path),
        framed(7, 0, words(&[pair(7, 6), pair(9, 6), 0])),
        lost(12),
        framed(13, 0, words(&[3])),
        framed(5, 0, words(&[0, 0, 0])),
    ];
    let bytes = all.concat();
    let read: Vec<Record<'_>> = records(&bytes).collect();
    assert_eq!(
        read,
        [
            Record::Named { pid: 7, tid: 8, executed: true, name: b"worker" },
            Record::Mapped { pid: 7, start: 0x4000, len: 0x1000, offset: 0x200, path: b"/bin/true" },
            Record::Forked { pid: 7, tid: 9, parent: 6, parent_tid: 6 },
            Record::Lost(12),
            Record::Lost(3),
            Record::Throttled,
        ]
    );
}

#[test]
fn records_of_unknown_kinds_are_passed_over_and_damaged_ones_end_the_reading() {
    let unknown = framed(77, 0, words(&[1, 2]));
    let mut damaged = sample(8, 5, &[USER, 1]);
    damaged[40] = 200; // more addresses than there are
    let bytes = [unknown, lost(1), damaged, lost(2)].concat();
    assert_eq!(records(&bytes).collect::<Vec<_>>(), [Record::Lost(1)]);
}

/// A ring of 256 bytes, filled from `begin` on.
fn wrapped(begin: u64, bytes: &[u8]) -> Vec<u8> {
    let mut ring = vec![0xeeu8; 256];
    for (i, byte) in bytes.iter().enumerate() {
        ring[(begin as usize + i) % 256] = *byte;
    }
    let mut out = Vec::new();
    let data = NonNull::new(ring.as_mut_ptr()).expect("a vector's memory");
    // SAFETY: `ring` holds 256 bytes and lives through the call; nobody else knows of it.
    unsafe { ring::copy_out(data, 256, begin, begin + bytes.len() as u64, &mut out) };
    out
}

proptest! {
    #[test]
    fn a_record_that_wraps_around_the_end_comes_out_whole(begin: u64, times in proptest::collection::vec(0u64..9, 0..4)) {
        let begin = (begin & (u64::MAX >> 1)) & !7;
        let bytes: Vec<u8> = times.iter().flat_map(|&t| sample(1, t, &[USER, t])).collect();
        prop_assume!(bytes.len() <= 256);
        let out = wrapped(begin, &bytes);
        let read: Vec<u64> = records(&out)
            .filter_map(|r| if let Record::Sample(s) = r { Some(s.time) } else { None })
            .collect();
        prop_assert_eq!(read, times);
    }

    #[test]
    fn any_bytes_are_read_without_panic(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
        for record in records(&bytes) {
            if let Record::Sample(sample) = record {
                prop_assert!(sample.chain().count() <= bytes.len() / 8);
            }
        }
    }

    #[test]
    fn a_damaged_record_never_hides_those_before_it(
        n in 0usize..5, at in 0usize..56, value: u8, rest in proptest::collection::vec(any::<u8>(), 0..60),
    ) {
        let mut bytes: Vec<u8> = (0..n).flat_map(|i| lost(i as u64)).collect();
        let mut last = sample(1, 2, &[USER, 3]);
        last[at] = value;
        bytes.extend(last);
        bytes.extend(rest);
        let read: Vec<Record<'_>> = records(&bytes).take(n).collect();
        prop_assert_eq!(read, (0..n).map(|i| Record::Lost(i as u64)).collect::<Vec<_>>());
    }
}

const WISH: Wish = Wish { frequency_hz: 997, stack_bytes: STACK_BYTES };

#[test]
fn registers_and_stack_are_read_and_a_kernel_thread_has_none() {
    let with = |state: &[u64]| {
        let mut body = words(&[0x1000, pair(7, 8), 5, pair(1, 0), 0]);
        body.extend(words(state));
        framed(9, 2, body)
    };
    // rbx, rbp, rsp, rip, r12 … r15; sixteen bytes of stack, eight of them valid
    let user = with(&[2, 11, 12, 13, 14, 15, 16, 17, 18, 16, 77, 88, 8]);
    let bytes = [user, with(&[0, 0])].concat();
    let states: Vec<_> =
        records(&bytes).filter_map(|r| if let Record::Sample(s) = r { Some(s.user) } else { None }).collect();
    let found = states[0].expect("a state");
    let sampled = [3, 6, 7, 16, 12, 13, 14, 15].map(|dwarf| found.registers[dwarf]);
    assert_eq!((sampled, found.stack), ([11, 12, 13, 14, 15, 16, 17, 18], &words(&[77])[..]));
    assert_eq!(states[1], None);
}

/// Spins until told to stop; returns the thread's id and result.
fn spin(stop: &AtomicBool) -> u32 {
    let mut n = 1u64;
    while !stop.load(Ordering::Relaxed) {
        n = std::hint::black_box(n.wrapping_mul(3));
    }
    own_thread()
}

#[test]
fn a_thread_at_work_is_sampled_while_it_works_and_its_sampler_is_not() {
    let sampler = match Sampler::start(&Target::Threads(vec![own_thread()]), WISH) {
        Ok(sampler) => sampler,
        Err(error) => {
            let _ = writeln!(std::io::stderr(), "SKIP a_thread_at_work_is_sampled: {error}");
            return;
        }
    };
    let stop = AtomicBool::new(false);
    let began = crate::clock::now();
    let tid = std::thread::scope(|scope| {
        let spinner = scope.spawn(|| spin(&stop));
        // as long as it takes to be scheduled on a busy machine
        std::thread::sleep(Duration::from_millis(300));
        stop.store(true, Ordering::Relaxed);
        spinner.join().expect("it only spins")
    });
    let ended = crate::clock::now();
    let recording = sampler.stop();
    let samples: Vec<(u32, u64, usize)> = recording
        .records()
        .filter_map(
            |r| if let Record::Sample(s) = r { Some((s.tid, s.time, s.chain().count())) } else { None },
        )
        .collect();
    assert!(samples.iter().filter(|s| s.0 == tid).count() > 5, "{} samples", samples.len());
    assert!(samples.iter().filter(|s| s.0 == tid).all(|s| (began..=ended).contains(&s.1) && s.2 > 0));
    assert!(samples.iter().all(|s| s.0 != recording.reader));
    assert!(recording.event == Event::Cycles || recording.notes.iter().any(|n| n.contains("cpu-clock")));
}

#[test]
fn what_cannot_be_sampled_is_refused_with_a_remedy() {
    let error = Sampler::start(&Target::Cpus(vec![100_000]), WISH).expect_err("no such cpu").to_string();
    assert!(error.starts_with("perf_event_open: cpus [100000]: "), "{error}");
    let gone = Sampler::start(&Target::Threads(vec![i32::MAX as u32]), WISH).expect_err("no such thread");
    assert!(gone.to_string().contains("perf_event"), "{gone}");
}
