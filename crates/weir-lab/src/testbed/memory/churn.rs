//! Policies that change while packets pass: a control thread beside the workers.
//!
//! ```text
//! control ── change one policy ─► Arc<Tables> ─► Board ─► each worker takes it between two batches
//! ```
//!
//! A change takes a policy out, the next puts it back where it was; never the one every packet needs. The time
//! of one is from the wish to the tables being there for workers. Promises: it rests while nothing is measured.
//! Refuses nothing by itself: a change the control side refuses fails the run.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use weir_core::control::{Control, PolicyChange};
use weir_core::random::SplitMix64;
use weir_core::state::PolicySpec;
use weir_core::tables::Tables;
use weir_io::{clock, cpu};

use super::spd;
use crate::model::LabError;

/// The tables in force.
pub struct Board {
    version: AtomicU64,
    tables: Mutex<Arc<Tables>>,
}

impl Board {
    fn post(&self, tables: Arc<Tables>) {
        *locked(&self.tables) = tables;
        self.version.fetch_add(1, Ordering::Release);
    }

    /// Those posted since `seen`, if any.
    #[inline]
    pub fn newer(&self, seen: &mut u64) -> Option<Arc<Tables>> {
        let version = self.version.load(Ordering::Acquire);
        if version == *seen {
            return None;
        }
        *seen = version;
        Some(locked(&self.tables).clone())
    }
}

fn locked<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What the two sides tell each other.
#[derive(Default)]
struct State {
    measuring: bool,
    over: bool,
    /// Nanoseconds of each change, and when the first began and the last ended.
    times: Vec<u64>,
    failed: Option<String>,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    turned: Condvar,
}

pub struct Churn {
    pub board: Arc<Board>,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

/// What is changed, how often, and by whom.
pub struct ChurnSpec {
    pub control: Control,
    pub policies: Vec<PolicySpec>,
    /// Index of a policy that stays.
    pub needed: usize,
    pub per_second: u32,
    /// A CPU that is not a worker's, if there is one.
    pub cpu: Option<u32>,
}

impl Churn {
    pub fn start(plan: ChurnSpec, tables: Arc<Tables>) -> Result<Churn, LabError> {
        let board = Arc::new(Board { version: AtomicU64::new(0), tables: Mutex::new(tables) });
        let shared = Arc::new(Shared::default());
        let (there, told) = (board.clone(), shared.clone());
        let thread = std::thread::Builder::new()
            .name("control".into())
            .spawn(move || run(plan, &there, &told))
            .map_err(|e| LabError::new(format!("memory: the control thread cannot be started: {e}")))?;
        Ok(Churn { board, shared, thread: Some(thread) })
    }

    /// Changes are made until what is returned is dropped.
    pub fn begin(&self) -> Measuring<'_> {
        locked(&self.shared.state).measuring = true;
        self.shared.turned.notify_all();
        Measuring(self)
    }

    /// Values of the changes made since they were last asked for, over so many seconds.
    pub fn metrics(&self, metrics: &mut BTreeMap<String, f64>) -> Result<(), LabError> {
        let mut state = locked(&self.shared.state);
        if let Some(failed) = &state.failed {
            return Err(LabError::new(format!("memory: a policy cannot be changed: {failed}")));
        }
        let mut times = std::mem::take(&mut state.times);
        times.sort_unstable();
        metrics.insert("updates".into(), times.len() as f64);
        let Some(last) = times.len().checked_sub(1) else { return Ok(()) };
        let at = |percent: usize| times[last * percent / 100] as f64;
        metrics.insert("update_ns_total".into(), times.iter().sum::<u64>() as f64);
        metrics.insert("update_ns_p50".into(), at(50));
        metrics.insert("update_ns_p99".into(), at(99));
        metrics.insert("update_ns_max".into(), at(100));
        Ok(())
    }
}

pub struct Measuring<'a>(&'a Churn);

impl Drop for Measuring<'_> {
    fn drop(&mut self) {
        locked(&self.0.shared.state).measuring = false;
    }
}

impl Drop for Churn {
    fn drop(&mut self) {
        locked(&self.shared.state).over = true;
        self.shared.turned.notify_all();
        if let Some(thread) = self.thread.take() {
            // it panicked if this is an error, and said so
            let _ = thread.join();
        }
    }
}

fn run(mut plan: ChurnSpec, board: &Board, shared: &Shared) {
    // where it runs is the scheduler's choice if this fails
    let _ = plan.cpu.map(cpu::pin);
    let period = 1_000_000_000 / u64::from(plan.per_second.max(1));
    let (mut scatter, mut taken) = (SplitMix64::new(1), None);
    let mut due = 0;
    loop {
        {
            let mut state = locked(&shared.state);
            while !state.measuring && !state.over {
                state = shared.turned.wait(state).unwrap_or_else(PoisonError::into_inner);
                due = clock::now();
            }
            if state.over || state.failed.is_some() {
                return;
            }
        }
        let now = clock::now();
        if now < due {
            std::thread::sleep(Duration::from_nanos(due - now));
        }
        due = (due + period).max(clock::now().saturating_sub(period));
        let change = plan.next(&mut scatter, &mut taken);
        let began = clock::now();
        let done = plan.control.change_policies(spd::NAME, vec![change]);
        let tables = plan.control.take_snapshot();
        if let Some(tables) = tables {
            board.post(tables);
        }
        let took = clock::now() - began;
        let mut state = locked(&shared.state);
        state.times.push(took);
        state.failed = done.err().map(|errors| errors.first().map_or(String::new(), ToString::to_string));
    }
}

impl ChurnSpec {
    /// Puts back what is out, or takes one out.
    fn next(&self, scatter: &mut SplitMix64, taken: &mut Option<usize>) -> PolicyChange {
        if let Some(at) = taken.take() {
            return PolicyChange::Insert { at, policy: self.policies[at].clone() };
        }
        let drawn = scatter.below(self.policies.len() as u64 - 1) as usize;
        let at = drawn + usize::from(drawn >= self.needed);
        *taken = Some(at);
        PolicyChange::Remove { name: self.policies[at].name.clone() }
    }
}
