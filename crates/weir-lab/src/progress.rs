//! Where a campaign stands: a bar on a terminal, one line a run elsewhere.

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

use weir_stats::schedule::PlannedRun;

/// Campaigns one after another, and where one of them stands. Lengths are what files promise, without setting up.
#[derive(Clone, Debug)]
pub struct Whole {
    /// Place of the run in the campaign, from 1.
    pub place: usize,
    pub of: usize,
    /// How long the campaigns before were promised to take, and how long they took.
    pub promised: Duration,
    pub spent: Duration,
    /// How long this campaign is promised to take; beside it those after it.
    pub own: Duration,
    pub later: Duration,
}

/// Setting up a run takes no more than twice the run, or the campaigns before were of another kind.
const SLOWEST: f64 = 3.0;

impl Whole {
    /// What the campaigns after this one will take, by how far promises held so far: `done` of this one took `passed`.
    pub fn after(&self, done: f64, passed: Duration) -> Duration {
        let promised = self.promised.as_secs_f64() + self.own.as_secs_f64() * done;
        let spent = self.spent.as_secs_f64() + passed.as_secs_f64();
        let pace = if promised > 0.0 { (spent / promised).clamp(1.0, SLOWEST) } else { 1.0 };
        self.later.mul_f64(pace)
    }
}

pub struct Progress {
    bar: Option<ProgressBar>,
    whole: Option<Whole>,
    total: usize,
    blocks: usize,
    done: usize,
    started: Instant,
}

impl Progress {
    pub fn new(total: usize, blocks: usize, whole: Option<Whole>) -> Progress {
        let bar = std::io::stderr().is_terminal().then(|| {
            let bar = ProgressBar::new(total as u64);
            let form = "{bar:32.cyan/dim} {pos}/{len} runs · {msg} · {elapsed} passed";
            if let Ok(style) = ProgressStyle::with_template(form) {
                bar.set_style(style.progress_chars("━╸─"));
            }
            bar.enable_steady_tick(Duration::from_millis(200));
            bar
        });
        Progress { bar, whole, total, blocks, done: 0, started: Instant::now() }
    }

    /// A run begins.
    pub fn begin(&self, slot: &PlannedRun, name: &str) {
        if let Some(bar) = &self.bar {
            bar.set_message(format!("block {}/{} · {name} · {}", slot.block + 1, self.blocks, self.left()));
        }
    }

    /// A round of slices of so many configurations begins.
    pub fn round(&self, slot: &PlannedRun, configurations: usize, (round, of): (usize, usize)) {
        if let Some(bar) = &self.bar {
            bar.set_message(format!(
                "block {}/{} · {configurations} in turn, round {}/{of} · {}",
                slot.block + 1,
                self.blocks,
                round + 1,
                self.left()
            ));
        }
    }

    /// A run ended with this value or error.
    pub fn end(&mut self, slot: &PlannedRun, name: &str, outcome: &str) {
        self.done += 1;
        match &self.bar {
            Some(bar) => bar.inc(1),
            None => eprintln!(
                "[{:>width$}/{}] block {}, {name}: {outcome} ({})",
                self.done,
                self.total,
                slot.block + 1,
                self.left(),
                width = self.total.to_string().len()
            ),
        }
    }

    /// Said between runs, without tearing the bar.
    pub fn say(&self, line: &str) {
        match &self.bar {
            Some(bar) => bar.println(line),
            None => eprintln!("{line}"),
        }
    }

    pub fn finish(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }

    fn left(&self) -> String {
        if self.done == 0 {
            return "measuring the first run".into();
        }
        let passed = self.started.elapsed();
        let own = passed / self.done as u32 * (self.total - self.done) as u32;
        match &self.whole {
            None => format!("{} left", human(own)),
            Some(whole) => {
                let all = own + whole.after(self.done as f64 / self.total as f64, passed);
                format!("{} left, {} of all; {} of {}", human(own), human(all), whole.place, whole.of)
            }
        }
    }
}

/// `48 s`, `3 min 05 s`, `2 h 10 min`.
pub fn human(time: Duration) -> String {
    let seconds = time.as_secs_f64().ceil() as u64;
    match seconds {
        0..60 => format!("{seconds} s"),
        60..3600 => format!("{} min {:02} s", seconds / 60, seconds % 60),
        _ => format!("{} h {:02} min", seconds / 3600, seconds / 60 % 60),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_to_come_takes_as_much_longer_than_promised_as_what_was() {
        let seconds = Duration::from_secs;
        let (promised, spent, own) = (seconds(100), seconds(150), seconds(40));
        let whole = Whole { place: 2, of: 3, promised, spent, own, later: seconds(200) };
        // 120 s promised, 180 s passed
        assert_eq!(whole.after(0.5, seconds(30)), seconds(300));
        assert_eq!(whole.after(0.5, seconds(3000)), seconds(600), "one that hangs says nothing of others");
        let first = Whole { promised: seconds(0), spent: seconds(0), ..whole };
        assert_eq!(first.after(0.0, seconds(0)), seconds(200));
    }

    #[test]
    fn durations_read_as_people_say_them() {
        let said: Vec<String> = [1, 59, 60, 185, 7800].map(|s| human(Duration::from_secs(s))).into();
        assert_eq!(said, ["1 s", "59 s", "1 min 00 s", "3 min 05 s", "2 h 10 min"]);
    }
}
