//! Where a campaign stands: a bar on a terminal, one line a run elsewhere.

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

use crate::schedule::Slot;

pub struct Progress {
    bar: Option<ProgressBar>,
    total: usize,
    blocks: usize,
    done: usize,
    started: Instant,
}

impl Progress {
    pub fn new(total: usize, blocks: usize) -> Progress {
        let bar = std::io::stderr().is_terminal().then(|| {
            let bar = ProgressBar::new(total as u64);
            let form = "{bar:32.cyan/dim} {pos}/{len} runs · {msg} · {elapsed} passed";
            if let Ok(style) = ProgressStyle::with_template(form) {
                bar.set_style(style.progress_chars("━╸─"));
            }
            bar.enable_steady_tick(Duration::from_millis(200));
            bar
        });
        Progress { bar, total, blocks, done: 0, started: Instant::now() }
    }

    /// A run begins.
    pub fn begin(&self, slot: &Slot, name: &str) {
        if let Some(bar) = &self.bar {
            bar.set_message(format!("block {}/{} · {name} · {}", slot.block + 1, self.blocks, self.left()));
        }
    }

    /// A round of slices of so many configurations begins.
    pub fn round(&self, slot: &Slot, configurations: usize, (round, of): (usize, usize)) {
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

    /// A run ended with this figure or error.
    pub fn end(&mut self, slot: &Slot, name: &str, outcome: &str) {
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
        let per_run = self.started.elapsed() / self.done as u32;
        format!("{} left", human(per_run * (self.total - self.done) as u32))
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
    fn durations_read_as_people_say_them() {
        let said: Vec<String> = [1, 59, 60, 185, 7800].map(|s| human(Duration::from_secs(s))).into();
        assert_eq!(said, ["1 s", "59 s", "1 min 00 s", "3 min 05 s", "2 h 10 min"]);
    }
}
