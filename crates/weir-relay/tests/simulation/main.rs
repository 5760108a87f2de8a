//! The relay without sockets: sessions and registrar on virtual time, over streams that do what real ones may.
//!
//! Random histories from seeds: clients with and without TLS and WebSocket, relays of a mesh, hostile ones, restarts, clients that are moved
//! to other workers. In each:
//! every packet is in the ledger of its worker after every turn; what comes is what was sent, whole, in order, once, to whom it
//! was sent; where nobody leaves, all of it comes but what a full queue dropped; a client's memory stays below its bound; at
//! the end nothing is held and every buffer is back. A failure names its seed: `WEIR_SIMULATION_SEED=<seed>` plays it alone.
//! `make relay-simulation` plays for as long as it is told.

use std::fs::OpenOptions;
use std::io::Write;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use weir_relay::counters::End;

use history::{Outcome, play};

mod codec;
mod history;
mod ledger;
mod limits;
mod peer;
mod relay;
mod streams;

/// Steps of a history in tests; one in ten of long runs is ten times as long.
const STEPS: u32 = 1000;

/// A history whose seed is named when it fails.
fn named(seed: u64, calm: bool, steps: u32) -> Outcome {
    catch_unwind(AssertUnwindSafe(|| play(seed, calm, steps))).unwrap_or_else(|panic| {
        let _ =
            writeln!(std::io::stderr(), "WEIR_SIMULATION_SEED={seed} fails (calm: {calm}, {steps} steps)");
        resume_unwind(panic)
    })
}

fn all(seeds: impl Iterator<Item = u64>, calm: bool) -> Outcome {
    let mut sum = Outcome::default();
    seeds.for_each(|seed| sum.sum(&named(seed, calm, STEPS)));
    sum
}

/// Another one in every run of the tests.
fn fresh_seed() -> u64 {
    use std::hash::{BuildHasher, RandomState};
    RandomState::new().hash_one(0) >> 1
}

#[test]
fn what_was_sent_comes_whole_and_in_order_but_for_what_a_full_queue_drops() {
    let sum = all(1..16, true);
    assert!(sum.packets_came > 10_000 && sum.packets_dropped > 100 && sum.handed > 1000, "{sum:?}");
    assert!(sum.paused > 0 && sum.undropped > 0 && sum.moved > 50, "{sum:?}");
}

#[test]
fn whatever_peers_do_every_packet_is_accounted_for_and_nobody_else_is_let_go() {
    let sum = all(1..26, false);
    assert!(sum.packets_came > 5000 && sum.packets_dropped > 100 && sum.restarts > 5, "{sum:?}");
    assert!(sum.moved > 20, "{sum:?}");
    // Every way to end was met.
    let never: Vec<_> = End::ALL.iter().filter(|end| sum.ended[**end as usize] == 0).collect();
    assert!(never.is_empty(), "{never:?}: {sum:?}");
}

#[test]
fn a_seed_plays_the_same_history_again() {
    for calm in [true, false] {
        assert_eq!(play(77, calm, STEPS), play(77, calm, STEPS));
    }
}

#[test]
fn fresh_seeds_play_too() {
    let first = fresh_seed();
    for calm in [true, false] {
        all(first..first + 5, calm);
    }
}

/// What a campaign has played, for people each minute and for a log each ten.
struct Campaign {
    started: Instant,
    first: u64,
    sum: Outcome,
    histories: u64,
    log: Option<PathBuf>,
    /// What the log knows: histories, packets that came, CPU seconds.
    logged: (u64, u64, u64),
}

impl Campaign {
    fn say(&self) {
        let minutes = self.started.elapsed().as_secs_f64() / 60.0;
        let (histories, first, sum) = (self.histories, self.first, &self.sum);
        let last = first + histories / 2;
        let _ = writeln!(
            std::io::stderr(),
            "{minutes:.1} min: {histories} histories, seeds {first}…{last}: {sum:?}"
        );
    }

    /// Appends a line as those of `fuzz/log` are.
    fn log(&mut self) {
        let Some(log) = &self.log else { return };
        let (histories, packets, cpu) = self.logged;
        self.logged = (self.histories, self.sum.packets_came, cpu_seconds());
        let date = Command::new("date").args(["-u", "+%FT%TZ"]).output().expect("a date").stdout;
        let line = format!(
            "{} relay_simulation seed={} cpu={} inputs={} packets={} status=0\n",
            String::from_utf8_lossy(&date).trim(),
            self.first + histories / 2,
            self.logged.2 - cpu,
            self.logged.0 - histories,
            self.logged.1 - packets,
        );
        let mut file =
            OpenOptions::new().create(true).append(true).open(log).expect("a log that can be written");
        file.write_all(line.as_bytes()).expect("written");
    }
}

/// CPU time of this thread.
fn cpu_seconds() -> u64 {
    let spent = std::fs::read_to_string("/proc/thread-self/schedstat").ok();
    let spent = spent.and_then(|text| text.split(' ').next()?.parse::<u64>().ok());
    spent.map_or(0, |nanos| nanos / 1_000_000_000)
}

/// `make relay-simulation`: one history of a seed, or histories for so many seconds.
#[test]
fn campaign() {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let _ = number("WEIR_SIMULATION_SEED")
        .map(|seed| [true, false].map(|calm| [STEPS, 10 * STEPS].map(|steps| named(seed, calm, steps))));
    let Some(seconds) = number("WEIR_SIMULATION_SECONDS") else { return };
    let mut campaign = Campaign {
        started: Instant::now(),
        first: number("WEIR_SIMULATION_FIRST").unwrap_or_else(fresh_seed),
        sum: Outcome::default(),
        histories: 0,
        log: std::env::var_os("WEIR_SIMULATION_LOG").map(PathBuf::from),
        logged: (0, 0, cpu_seconds()),
    };
    let mut minutes = 0;
    while campaign.started.elapsed() < Duration::from_secs(seconds) {
        let n = campaign.histories;
        let steps = if n % 20 < 2 { 10 * STEPS } else { STEPS };
        campaign.sum.sum(&named(campaign.first + n / 2, n.is_multiple_of(2), steps));
        campaign.histories += 1;
        if campaign.started.elapsed().as_secs() / 60 > minutes {
            minutes = campaign.started.elapsed().as_secs() / 60;
            campaign.say();
            if minutes.is_multiple_of(10) {
                campaign.log();
            }
        }
    }
    campaign.say();
    campaign.log();
}
