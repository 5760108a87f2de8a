//! Which backend seals and opens packets of which size, decided by measuring them on this machine.
//!
//! Once a process for each suite, when its first SA is made, a few milliseconds: every backend that
//! has it takes turns at a batch of packets of each size class, and the shortest of its times counts. A
//! moment in which the CPU was elsewhere lengthens one turn and decides nothing. Where one backend is
//! available nothing is measured, and neither is NULL without integrity, which does nothing.

use std::fmt;
use std::sync::{Arc, OnceLock};

use weir_core::ipsec::{Cipher, Ciphers, Job, KeyLength, Keys, Suite};

use super::rate::{BATCH, Direction, Testbed, keys};

/// Classes of packet length, SPI to ICV: up to these, and larger.
pub const BOUNDS: [usize; 3] = [128, 512, 1024];
const CLASSES: usize = BOUNDS.len() + 1;
/// A payload of each class.
const SAMPLES: [usize; CLASSES] = [64, 400, 900, 1400];
const TURNS: usize = 4;

/// The backends there are, by preference where they are equally fast, and what was measured of them.
#[derive(Debug)]
pub struct Choice {
    backends: Vec<Arc<dyn Ciphers>>,
    /// A row a suite; nothing where there is nothing to choose.
    rows: Vec<(Suite, OnceLock<Option<Row>>)>,
}

/// One suite's measurements.
#[derive(Clone, Debug)]
struct Row {
    suite: Suite,
    names: Vec<String>,
    seal: Classes,
    open: Classes,
}

/// Nanoseconds a packet by class and backend.
#[derive(Clone, Debug)]
struct Classes([Vec<f64>; CLASSES]);

/// The backend of each class, an index into the backends.
type Picks = [usize; CLASSES];

impl Classes {
    fn picks(&self) -> Picks {
        self.0.each_ref().map(|times| {
            let fastest = times.iter().enumerate().min_by(|a, b| a.1.total_cmp(b.1));
            fastest.map_or(0, |(index, _)| index)
        })
    }
}

/// This process's choice among `backends`.
pub fn choice(backends: impl FnOnce() -> Vec<Arc<dyn Ciphers>>) -> &'static Choice {
    static CHOICE: OnceLock<Choice> = OnceLock::new();
    CHOICE.get_or_init(|| Choice::new(backends()))
}

impl Choice {
    /// A choice among `backends`, of which there is at least one.
    pub fn new(backends: Vec<Arc<dyn Ciphers>>) -> Choice {
        let rows = Suite::all().into_iter().map(|suite| (suite, OnceLock::new())).collect();
        Choice { backends, rows }
    }

    /// Measures every suite, for a report of all of them.
    pub fn measure_all(&self) -> &Choice {
        for (suite, row) in &self.rows {
            row.get_or_init(|| measure(&self.backends, *suite));
        }
        self
    }

    fn row(&self, suite: Suite) -> Option<&Row> {
        let (_, row) = self.rows.iter().find(|(known, _)| *known == suite)?;
        row.get_or_init(|| measure(&self.backends, suite)).as_ref()
    }
}

/// `None` when there is nothing to choose.
fn measure(backends: &[Arc<dyn Ciphers>], suite: Suite) -> Option<Row> {
    let ciphers: Vec<_> =
        backends.iter().filter_map(|backend| backend.cipher(suite, false, &keys(suite)).ok()).collect();
    let names: Vec<_> = ciphers.iter().map(|cipher| cipher.backend()).collect();
    if names.iter().all(|name| *name == names[0]) {
        return None;
    }
    let classes = |direction| {
        Classes(SAMPLES.map(|payload_len| {
            let mut testbed = Testbed::new(suite, payload_len, BATCH);
            let mut times = vec![f64::INFINITY; ciphers.len()];
            for _ in 0..TURNS {
                for (cipher, time) in ciphers.iter().zip(&mut times) {
                    let round = testbed.round(&**cipher, direction).map_or(f64::INFINITY, |r| r.ns as f64);
                    *time = time.min(round / BATCH as f64);
                }
            }
            times
        }))
    };
    Some(Row { suite, names, seal: classes(Direction::Seal), open: classes(Direction::Open) })
}

impl Ciphers for &'static Choice {
    fn cipher(&self, suite: Suite, esn: bool, keys: &Keys) -> Result<Arc<dyn Cipher>, KeyLength> {
        let (seal, open) =
            self.row(suite).map_or(([0; CLASSES], [0; CLASSES]), |row| (row.seal.picks(), row.open.picks()));
        let same = |picks: Picks| picks.iter().all(|&pick| pick == seal[0]);
        if same(seal) && same(open) {
            return self.backends[seal[0]].cipher(suite, esn, keys);
        }
        let ciphers: Result<Vec<_>, _> =
            self.backends.iter().map(|backend| backend.cipher(suite, esn, keys)).collect();
        Ok(Arc::new(BySize { ciphers: ciphers?, seal, open }))
    }

    fn random(&self) -> u64 {
        self.backends[0].random()
    }

    fn digest(&self, parts: &[&[u8]]) -> [u8; 32] {
        self.backends[0].digest(parts)
    }
}

/// Hands each packet to the backend of its class, neighbours of one backend in one call.
#[derive(Debug)]
struct BySize {
    ciphers: Vec<Arc<dyn Cipher>>,
    seal: Picks,
    open: Picks,
}

fn class(len: usize) -> usize {
    BOUNDS.iter().take_while(|&&bound| len > bound).count()
}

impl BySize {
    fn split<'a, 'b>(
        &self,
        picks: &Picks,
        jobs: &'a mut [Job<'b>],
        run: impl Fn(&dyn Cipher, &mut [Job<'b>]),
    ) {
        let pick = |job: &Job<'_>| picks[class(job.packet.len())];
        for run_of_one in jobs.chunk_by_mut(|a, b| pick(a) == pick(b)) {
            let Some(first) = run_of_one.first() else { continue };
            run(&*self.ciphers[pick(first)], run_of_one);
        }
    }
}

impl Cipher for BySize {
    fn suite(&self) -> Suite {
        self.ciphers[0].suite()
    }

    fn backend(&self) -> String {
        let names: Vec<_> = self.ciphers.iter().map(|cipher| cipher.backend()).collect();
        describe(&names, &self.seal, &self.open)
    }

    fn seal(&self, jobs: &mut [Job<'_>]) {
        self.split(&self.seal, jobs, |cipher, jobs| cipher.seal(jobs));
    }

    fn open(&self, jobs: &mut [Job<'_>]) {
        self.split(&self.open, jobs, |cipher, jobs| cipher.open(jobs));
    }
}

/// `vaes`, `aws-lc ≤128 B, vaes above`, or that for either direction.
fn describe(names: &[String], seal: &Picks, open: &Picks) -> String {
    if seal == open {
        return by_class(names, seal);
    }
    format!("seal {}; open {}", by_class(names, seal), by_class(names, open))
}

fn by_class(names: &[String], picks: &Picks) -> String {
    let mut parts: Vec<String> = Vec::new();
    for (class, pick) in picks.iter().enumerate() {
        let next = picks.get(class + 1);
        match (BOUNDS.get(class), next) {
            (_, Some(next)) if next == pick => {}
            (Some(bound), Some(_)) => parts.push(format!("{} ≤{bound} B", names[*pick])),
            _ if parts.is_empty() => parts.push(names[*pick].clone()),
            _ => parts.push(format!("{} above", names[*pick])),
        }
    }
    parts.join(", ")
}

/// A line a suite that was measured, and direction: what is used, and the nanoseconds a packet of
/// each class took.
impl fmt::Display for Choice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut measured = self.rows.iter().filter_map(|(_, row)| row.get()?.as_ref()).peekable();
        if measured.peek().is_none() {
            writeln!(f, "nothing measured: one backend, or no SA yet")?;
        }
        for row in measured {
            for (name, classes) in [("seal", &row.seal), ("open", &row.open)] {
                write!(f, "{} {name}: {}", row.suite, by_class(&row.names, &classes.picks()))?;
                for (backend, name) in row.names.iter().enumerate() {
                    let times = classes.0.iter().map(|times| format!("{:.0}", times[backend]));
                    write!(f, "; {name} {} ns", times.collect::<Vec<_>>().join("/"))?;
                }
                writeln!(f)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names() -> Vec<String> {
        vec!["aws-lc".to_string(), "vaes".to_string()]
    }

    #[test]
    fn a_choice_is_said_in_as_few_words_as_it_needs() {
        assert_eq!(describe(&names(), &[1; 4], &[1; 4]), "vaes");
        assert_eq!(describe(&names(), &[0, 1, 1, 1], &[0, 1, 1, 1]), "aws-lc ≤128 B, vaes above");
        assert_eq!(
            describe(&names(), &[0, 0, 1, 0], &[1; 4]),
            "seal aws-lc ≤512 B, vaes ≤1024 B, aws-lc above; open vaes"
        );
    }

    #[test]
    fn the_shortest_time_of_a_class_wins_and_the_first_of_equals() {
        let classes = Classes([vec![2.0, 1.0], vec![1.0, 2.0], vec![1.0, 1.0], vec![f64::INFINITY, 9.0]]);
        assert_eq!(classes.picks(), [1, 0, 0, 1]);
    }

    /// Does nothing but say which cipher got how many packets.
    #[derive(Debug)]
    struct Recorder(&'static str, std::sync::Mutex<Vec<usize>>);

    impl Cipher for Recorder {
        fn suite(&self) -> Suite {
            Suite::AES_GCM_128
        }

        fn backend(&self) -> String {
            self.0.to_string()
        }

        fn seal(&self, jobs: &mut [Job<'_>]) {
            self.1.lock().expect("no test panics holding it").push(jobs.len());
        }

        fn open(&self, _: &mut [Job<'_>]) {}
    }

    #[test]
    fn neighbours_of_one_backend_go_in_one_call() {
        let recorders = ["small", "large"].map(|name| Arc::new(Recorder(name, Default::default())));
        let ciphers = recorders.iter().map(|r| Arc::clone(r) as Arc<dyn Cipher>).collect();
        let by_size = BySize { ciphers, seal: [0, 1, 1, 1], open: [0; 4] };
        let mut packets: Vec<_> = [88, 128, 129, 512, 1500, 60].map(|len| vec![0; len]).into();
        let jobs = packets.iter_mut().map(|packet| Job { packet, sequence: 0, authentic: false });
        by_size.seal(&mut jobs.collect::<Vec<_>>());
        let calls = recorders.map(|r| r.1.lock().expect("no test panics holding it").clone());
        assert_eq!(calls, [vec![2, 1], vec![3]]);
    }

    #[test]
    fn what_is_chosen_by_measuring_has_every_suite() {
        let names = ["aws-lc", "vaes"].into_iter();
        let backends: Vec<_> = names.filter_map(crate::cipher::by_name).collect();
        let choice: &'static Choice = Box::leak(Box::new(Choice::new(backends)));
        assert!(choice.to_string().starts_with("nothing measured"));
        for suite in Suite::all() {
            let cipher = choice.cipher(suite, false, &keys(suite)).expect("keys of the right length");
            assert_eq!(cipher.suite(), suite);
            assert!(!cipher.backend().is_empty());
        }
        assert!(!choice.measure_all().to_string().is_empty());
    }
}
