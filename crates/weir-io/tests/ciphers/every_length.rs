//! Every length an ESP packet can have, each in a batch of 1 to 64, our vector code of each width against aws-lc.
//!
//! ```text
//! guard │ short │ guard │ … │ the length in turn │ guard │ … │ short │ guard
//! ```
//!
//! `make vector-ciphers` runs all of it on all CPUs, and adds a line to `runs/vector-ciphers.txt`; tests have one length in
//! [`STEP`] of it, others in each run. Guards and neighbours are part of what has to be the same.

use std::fs::OpenOptions;
use std::io::Write;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use weir_core::ipsec::Job;
use weir_io::cipher;

use crate::differential::{GUARD, Pair, pairs};
use crate::suites::packet;

/// The longest packet of IP, and so of ESP.
const LONGEST: usize = 65_535;
/// Lengths from one to the next where not all are asked for.
const STEP: usize = 1999;
const BATCH: usize = 64;
/// A batch's other packets are shorter.
const SHORT: usize = 1600;

/// Packets of a batch in one memory, between guards.
struct Laid {
    memory: Vec<u8>,
    places: Vec<Range<usize>>,
    /// The sequence number of the first; the others follow.
    first: u64,
}

impl Laid {
    /// The batch that has a packet of `len` bytes of payload.
    fn new(pair: &Pair, len: usize) -> Laid {
        let count = len % BATCH + 1;
        let first = 0x0001_0203_0000_0000 + (len as u64) * BATCH as u64;
        let mut laid = Laid { memory: vec![0xee; GUARD], places: Vec::with_capacity(count), first };
        for i in 0..count {
            let payload = if i == len / BATCH % count { len } else { (i * 7919 + len * 131) % SHORT };
            let begin = laid.memory.len();
            laid.memory.extend(packet(pair.suite, payload, first + i as u64, (len + i) as u8));
            laid.places.push(begin..laid.memory.len());
            laid.memory.extend([0xee; GUARD]);
        }
        laid
    }

    /// Which packets are authentic afterwards.
    fn run(&mut self, work: impl Fn(&mut [Job<'_>])) -> Vec<bool> {
        let (mut rest, mut at) = (&mut self.memory[..], 0);
        let mut jobs = Vec::with_capacity(self.places.len());
        for (place, sequence) in self.places.iter().zip(self.first..) {
            let (before, after) = rest.split_at_mut(place.end - at);
            jobs.push(Job { packet: &mut before[place.start - at..], sequence, authentic: false });
            (rest, at) = (after, place.end);
        }
        work(&mut jobs);
        jobs.iter().map(|job| job.authentic).collect()
    }
}

/// Seals a batch by both, and opens by ours what theirs sealed: of every second batch one packet is changed before.
fn same(pair: &Pair, len: usize) -> u64 {
    let plain = Laid::new(pair, len);
    let laid = || Laid { memory: plain.memory.clone(), places: plain.places.clone(), first: plain.first };
    let (mut ours, mut theirs) = (laid(), laid());
    ours.run(|jobs| pair.ours.seal(jobs));
    theirs.run(|jobs| pair.theirs.seal(jobs));
    assert!(ours.memory == theirs.memory, "{}: a batch with {len} bytes is sealed otherwise", pair.name);
    let changed = (len % 2 == 1 && pair.suite.icv_len() > 0).then_some(len / 2 % theirs.places.len());
    if let Some(changed) = changed {
        let place = theirs.places[changed].clone();
        theirs.memory[place.start + len % place.len()] ^= 1 << (len % 8);
    }
    let sealed = theirs.memory.clone();
    let authentic = theirs.run(|jobs| pair.ours.open(jobs));
    for (i, place) in plain.places.iter().enumerate() {
        assert_eq!(authentic[i], changed != Some(i), "{}: packet {i} of a batch with {len} bytes", pair.name);
        let body = place.start + 8 + pair.suite.iv_len()..place.end - pair.suite.icv_len();
        if authentic[i] {
            let opened = theirs.memory[body.clone()] == plain.memory[body.clone()];
            assert!(opened, "{}: packet {i} of a batch with {len} bytes is opened otherwise", pair.name);
        }
        // what is no packet's is as it was
        let guard = place.end..place.end + GUARD;
        assert!(
            theirs.memory[guard.clone()] == sealed[guard],
            "{}: beside packet {i} of {len} bytes",
            pair.name
        );
    }
    plain.places.len() as u64
}

#[test]
fn every_length_is_the_same_in_batches() {
    let whole = std::env::var("WEIR_VECTOR_CIPHERS").is_ok_and(|value| value == "all");
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_nanos() as usize);
    let (from, step) = if whole { (0, 1) } else { (now % STEP, STEP) };
    let pairs = pairs("every_length_is_the_same_in_batches", |_| true);
    let (next, packets, began) = (AtomicUsize::new(0), AtomicU64::new(0), Instant::now());
    let work = || {
        while let Some(pair) = pairs.get(next.fetch_add(1, Ordering::Relaxed)) {
            let fits = |len: &usize| len + pair.suite.overhead(*len) <= LONGEST;
            let count: u64 = (from..=LONGEST).step_by(step).take_while(fits).map(|len| same(pair, len)).sum();
            packets.fetch_add(count, Ordering::Relaxed);
            if whole {
                let seconds = began.elapsed().as_secs();
                let _ = writeln!(std::io::stderr(), "{seconds} s: {}: {count} packets, the same", pair.name);
            }
        }
    };
    let threads = if whole { std::thread::available_parallelism().map_or(1, |n| n.get()) } else { 1 };
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(work);
        }
    });
    let packets = packets.into_inner();
    let said = format!(
        "{}, {}: {} suites and numberings, lengths {from} to {LONGEST} by {step}, {packets} packets in batches of 1 to {BATCH}: the same as aws-lc's",
        cpu(),
        widths(),
        pairs.len()
    );
    let _ = writeln!(std::io::stderr(), "{said}");
    if let Some(log) = std::env::var_os("WEIR_VECTOR_CIPHERS_LOG") {
        let mut log = OpenOptions::new().append(true).create(true).open(log).expect("the log can be written");
        let by = std::env::var("WEIR_VECTOR_CIPHERS_BY").unwrap_or_default();
        writeln!(log, "{by} {said} ({} s)", began.elapsed().as_secs()).expect("the log can be written");
    }
}

/// What this CPU can do of ours.
fn widths() -> String {
    let own = cipher::BACKENDS[1..].iter().filter(|name| cipher::by_name(name).is_some());
    own.copied().collect::<Vec<_>>().join(" ")
}

fn cpu() -> String {
    let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let field = |name: &str| {
        let line = info.lines().find(|line| line.starts_with(name));
        line.and_then(|line| line.split(": ").nth(1)).unwrap_or("unknown").to_string()
    };
    format!("{}, family {} model {}", field("model name"), field("cpu family"), field("model\t"))
}
