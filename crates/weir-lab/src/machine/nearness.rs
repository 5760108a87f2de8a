//! How near CPUs are to each other: what a cache line takes from one to another and back.
//!
//! ```text
//! a machine of its own      always the same
//! a virtual machine's CPUs  threads of the host, which moves them: of 90 ns over and back, when two share a cache, come 430 when
//!                           they do not, for seconds or minutes, and whatever they hand to each other costs more
//! ```
//!
//! Promises: runs whose CPUs were apart are waited for, or measured again, by what a cache line took alone, never by what they
//! came to; that takes no more than [`Nearness::new`] allows, and each run says how near its CPUs were. Refuses (`None`) machines with
//! one CPU, and such as run nothing on two of them for [`PATIENCE`].

use std::hint::spin_loop;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use weir_io::cpu::{self, Topology};

/// CPUs looked at: the first ones, where generators, SUTs and receivers are.
const CPUS_MAX: usize = 8;
/// Rounds of a batch: some 20 to 90 µs.
const ROUNDS: u32 = 200;
/// Batches of a pair: the fastest of them counts, which nothing interrupted.
const BATCHES: u32 = 40;
/// How long two threads are waited for.
const PATIENCE: Duration = Duration::from_millis(100);

/// CPUs are apart from this many times of the shortest time seen on: hosts have CPUs that share a cache and such that do not, with
/// nothing in between.
const APART: f64 = 2.0;
/// How long a host is waited for to move its CPUs back, before a run and all at once.
const WAIT_LONGEST: Duration = Duration::from_secs(15);
const WAIT_STEP: Duration = Duration::from_millis(200);
/// How often a run is measured again.
const AGAIN_MAX: u32 = 3;

/// A word in a cache line of its own.
#[repr(align(128))]
struct Line(AtomicU64);

/// Nanoseconds a cache line takes from one CPU to the next and back, of the two that are the farthest apart.
pub fn round_trip_ns() -> Option<f64> {
    let topology = Topology::read(Path::new(cpu::SYSFS)).or_else(|_| Topology::of_process()).ok()?;
    let cpus: Vec<u32> = topology.cpus.iter().map(|cpu| cpu.id).take(CPUS_MAX).collect();
    let trips = cpus.windows(2).map(|pair| between(pair[0], pair[1]));
    trips.collect::<Option<Vec<f64>>>()?.into_iter().reduce(f64::max)
}

/// The same between two CPUs.
fn between(one: u32, other: u32) -> Option<f64> {
    let (line, over) = (&Line(AtomicU64::new(0)), &AtomicBool::new(false));
    thread::scope(|scope| {
        scope.spawn(move || {
            let pinned = cpu::pin(other).is_ok();
            let mut expected = 1;
            while pinned && !over.load(Ordering::Relaxed) {
                if line.0.load(Ordering::Acquire) == expected {
                    line.0.store(expected + 1, Ordering::Release);
                    expected += 2;
                } else {
                    spin_loop();
                }
            }
        });
        let asking = scope.spawn(move || {
            let fastest = cpu::pin(one).ok().and_then(|()| fastest(line));
            over.store(true, Ordering::Relaxed);
            fastest
        });
        asking.join().ok().flatten()
    })
}

/// The fastest batch of round trips, a trip of it.
fn fastest(line: &Line) -> Option<f64> {
    let (until, mut number, mut least) = (Instant::now() + PATIENCE, 0, f64::INFINITY);
    for _ in 0..BATCHES {
        let started = Instant::now();
        for _ in 0..ROUNDS {
            line.0.store(number + 1, Ordering::Release);
            number += 2;
            let mut spins = 0u32;
            while line.0.load(Ordering::Acquire) != number {
                spins += 1;
                if spins.is_multiple_of(4096) && Instant::now() > until {
                    return None;
                }
                spin_loop();
            }
        }
        least = least.min(started.elapsed().as_nanos() as f64 / f64::from(ROUNDS));
    }
    Some(least)
}

/// What is known of how near CPUs come in a campaign, and what may still be spent to have them near.
pub struct Nearness<'a> {
    measure: &'a dyn Fn() -> Option<f64>,
    sleep: &'a dyn Fn(Duration),
    least: f64,
    spare: Duration,
}

/// How a run came to its sample.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Near {
    /// The longer of the times before and after it.
    pub round_trip_ns: Option<f64>,
    /// How often it was measured before, with CPUs apart.
    pub again: u32,
}

impl Near {
    /// Names of metrics of a sample.
    pub const ROUND_TRIP: &'static str = "cpus_round_trip_ns";
    pub const AGAIN: &'static str = "measured_again";
}

impl Nearness<'_> {
    /// The nearness of this machine's CPUs, for a campaign that may take so much longer for it.
    pub fn new(spare: Duration) -> Nearness<'static> {
        Nearness { measure: &round_trip_ns, sleep: &thread::sleep, least: f64::INFINITY, spare }
    }

    /// Runs once whatever the CPUs do: for what runs on one, or elsewhere.
    pub fn unmeasured() -> Nearness<'static> {
        Nearness { measure: &|| None, sleep: &|_| {}, least: f64::INFINITY, spare: Duration::ZERO }
    }

    fn look(&mut self) -> Option<f64> {
        let trip = (self.measure)()?;
        self.least = self.least.min(trip);
        Some(trip)
    }

    /// Whether CPUs were apart, by what is known by now.
    fn is_apart(&self, round_trip_ns: f64) -> bool {
        is_apart(round_trip_ns, self.least)
    }

    /// Takes it off what may be spent; false where there is not so much left.
    fn spend(&mut self, time: Duration) -> bool {
        let left = self.spare.checked_sub(time);
        self.spare = left.unwrap_or_default();
        left.is_some()
    }

    /// Waits a while where the CPUs are apart.
    fn wait(&mut self) -> Option<f64> {
        let mut waited = Duration::ZERO;
        loop {
            let trip = self.look()?;
            if !self.is_apart(trip) || waited >= WAIT_LONGEST || !self.spend(WAIT_STEP) {
                return Some(trip);
            }
            (self.sleep)(WAIT_STEP);
            waited += WAIT_STEP;
        }
    }

    /// Runs what was prepared, and prepares and runs it again where the CPUs were apart right before or after; not what failed, and
    /// not where `stays` says so. Each repetition is told to `say`, with what a cache line took.
    pub fn run<P, T, E>(
        &mut self,
        mut prepare: impl FnMut() -> Result<P, E>,
        mut run: impl FnMut(&mut P) -> Result<T, E>,
        stays: impl Fn() -> bool,
        say: impl Fn(String),
    ) -> Result<(T, Near), E> {
        let mut near = Near::default();
        loop {
            let started = Instant::now();
            let mut prepared = prepare()?;
            let before = self.wait();
            let outcome = run(&mut prepared)?;
            near.round_trip_ns = before.zip(self.look()).map(|(before, after)| before.max(after));
            drop(prepared);
            match near.round_trip_ns.filter(|&trip| self.is_apart(trip)) {
                Some(trip) if !stays() && near.again < AGAIN_MAX && self.spend(started.elapsed()) => {
                    near.again += 1;
                    say(format!(
                        "measured again: its CPUs were apart, a cache line took {trip:.0} ns over and back instead of {:.0}",
                        self.least
                    ));
                }
                _ => return Ok((outcome, near)),
            }
        }
    }
}

/// Whether CPUs were apart, where the shortest time seen is `least`.
pub fn is_apart(round_trip_ns: f64, least: f64) -> bool {
    round_trip_ns > APART * least
}

#[cfg(test)]
mod tests {
    use std::cell::{Cell, RefCell};
    use std::io::Write as _;

    use super::*;

    #[test]
    fn two_cpus_of_this_machine_are_so_far_apart() {
        let cpus = thread::available_parallelism().map_or(1, usize::from);
        if cpus < 2 {
            let _ = writeln!(
                std::io::stderr(),
                "SKIP two_cpus_of_this_machine_are_so_far_apart: this machine has one CPU"
            );
            return;
        }
        // Beside other tests both threads may not run at once for a while.
        let trip = (0..100).find_map(|_| round_trip_ns()).expect("two threads run at once");
        assert!((5.0..100_000.0).contains(&trip), "{trip} ns");
    }

    /// Runs `runs` with these times, one a look; which run each sample is of, how near it was, and how long was slept.
    fn play(times: &[f64], runs: usize, spare: Duration) -> (Vec<(u32, Near)>, Duration) {
        let (times, slept) = (RefCell::new(times.iter().copied()), Cell::new(Duration::ZERO));
        let measure = || Some(times.borrow_mut().next().expect("enough times"));
        let sleep = |time| slept.set(slept.get() + time);
        let mut nearness = Nearness { measure: &measure, sleep: &sleep, least: f64::INFINITY, spare };
        let mut number = 0;
        let mut one = |()| {
            number += 1;
            Ok::<u32, ()>(number)
        };
        let mut run = || nearness.run(|| Ok(()), |_| one(()), || false, |_| {}).expect("none fails");
        let done = (0..runs).map(|_| run()).collect();
        (done, slept.get())
    }

    const PLENTY: Duration = Duration::from_secs(3600);

    fn near(round_trip_ns: f64, again: u32) -> Near {
        Near { round_trip_ns: Some(round_trip_ns), again }
    }

    #[test]
    fn near_runs_are_measured_once_and_nobody_waits() {
        let (done, slept) = play(&[90.0, 95.0, 91.0, 170.0], 2, PLENTY);
        assert_eq!(done, [(1, near(95.0, 0)), (2, near(170.0, 0))]);
        assert_eq!(slept, Duration::ZERO);
    }

    #[test]
    fn a_run_waits_until_cpus_are_near_again() {
        let (done, slept) = play(&[90.0, 95.0, 430.0, 420.0, 88.0, 90.0], 2, PLENTY);
        assert_eq!(done[1], (2, near(90.0, 0)));
        assert_eq!(slept, WAIT_STEP * 2);
    }

    #[test]
    fn a_run_in_which_they_were_moved_apart_is_measured_again() {
        let (done, _) = play(&[90.0, 430.0, 91.0, 92.0], 1, PLENTY);
        assert_eq!(done, [(2, near(92.0, 1))]);
    }

    #[test]
    fn what_may_be_spent_bounds_it_and_the_sample_says_how_it_was() {
        let steps = (WAIT_LONGEST.as_millis() / WAIT_STEP.as_millis()) as usize;
        let apart = vec![430.0; 1000];
        let times = [&[90.0, 90.0][..], &apart].concat();
        let (done, slept) = play(&times, 2, PLENTY);
        assert_eq!(done[1], (2 + AGAIN_MAX, near(430.0, AGAIN_MAX)));
        assert_eq!(slept, WAIT_STEP * steps as u32 * (AGAIN_MAX + 1));
        let (done, slept) = play(&times, 4, Duration::from_millis(500));
        assert_eq!(
            done.iter().map(|(_, near)| near.round_trip_ns).collect::<Vec<_>>()[1..],
            [Some(430.0); 3]
        );
        assert_eq!(slept, WAIT_STEP * 2);
    }

    #[test]
    fn runs_that_fail_and_machines_with_one_cpu_are_left_alone() {
        let again = |_| panic!("again");
        let alone =
            &mut Nearness { measure: &|| None, sleep: &|_| panic!("waited"), least: 90.0, spare: PLENTY };
        let ready = || Ok::<(), &str>(());
        assert_eq!(alone.run(ready, |_| Ok(1), || false, again), Ok((1, Near::default())));
        let apart = || Some(430.0);
        let mut apart = Nearness { measure: &apart, sleep: &|_| {}, least: 90.0, spare: PLENTY };
        assert_eq!(apart.run(ready, |_| Ok(1), || true, again), Ok((1, near(430.0, 0))), "one that stays");
        assert_eq!(apart.run(ready, |_| Err::<(), _>("it fails"), || false, again), Err("it fails"));
        assert_eq!(apart.run(|| Err::<(), _>("not there"), |_| Ok(1), || false, again), Err("not there"));
    }
}
