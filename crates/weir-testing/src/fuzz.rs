//! Fuzz functions at smoke length: mutations of seeds, on stable and without libFuzzer. Long runs with coverage are in `fuzz/`.
//!
//! Promises: every run of the tests has other inputs, and says by which number they come again (`WEIR_FUZZ_SEED`); an input
//! that panics is printed in hexadecimal. `WEIR_FUZZ_INPUTS` says how many a target gets.

use std::fmt::Write as _;
use std::hash::{BuildHasher as _, RandomState};
use std::io::Write as _;
use std::panic;
use std::path::Path;
use std::sync::OnceLock;

/// What is done with one input; it panics where a promise is broken.
pub type Target = fn(&[u8]);

/// A run of fuzz functions at smoke length.
pub struct Smoke<'a> {
    pub targets: &'a [(&'a str, Target)],
    pub seeds: Vec<Vec<u8>>,
    /// Beyond this an input is cut.
    pub longest: usize,
    /// Inputs a target gets: see [`inputs`].
    pub inputs: usize,
}

/// xorshift64*: repeatable, and fast enough not to matter.
pub struct Random(u64);

impl Random {
    /// 0 is no state of it.
    pub fn new(seed: u64) -> Random {
        Random(seed | 1)
    }

    pub fn bits(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    pub fn below(&mut self, n: usize) -> usize {
        ((u128::from(self.bits()) * n as u128) >> 64) as usize
    }
}

/// The number of a variable of the environment.
fn told(name: &str) -> Option<u64> {
    std::env::var(name).ok().and_then(|text| text.parse().ok())
}

/// How many inputs were asked for; so many where nobody asked.
pub fn inputs(otherwise: usize) -> usize {
    told("WEIR_FUZZ_INPUTS").map_or(otherwise, |inputs| inputs as usize)
}

/// The seed of this process: another one each time, unless it is said. It is printed past the test's capture.
pub fn seed() -> u64 {
    static SEED: OnceLock<u64> = OnceLock::new();
    *SEED.get_or_init(|| {
        let seed = told("WEIR_FUZZ_SEED").unwrap_or_else(|| RandomState::new().hash_one(0));
        writeln!(std::io::stderr(), "fuzz: WEIR_FUZZ_SEED={seed}").expect("stderr is open");
        seed
    })
}

/// Bytes of a text of hexadecimal lines; those that begin with `#` are passed over.
pub fn hexadecimal(text: &str) -> Vec<Vec<u8>> {
    let digit = |b: u8| char::from(b).to_digit(16).expect("a hexadecimal digit") as u8;
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    lines.map(|line| line.as_bytes().chunks(2).map(|b| digit(b[0]) << 4 | digit(b[1])).collect()).collect()
}

/// The committed inputs of a target, in `testdata/corpus`.
pub fn corpus(target: &str) -> Vec<Vec<u8>> {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../../testdata/corpus/{target}.txt"));
    hexadecimal(&std::fs::read_to_string(file).unwrap_or_default())
}

/// One input: a seed with up to eight mutations, or now and then noise.
pub fn mutate(random: &mut Random, seeds: &[Vec<u8>], longest: usize, input: &mut Vec<u8>) {
    const EDGES: [u8; 10] = [0, 1, 2, 4, 5, 0x45, 0x60, 0x7f, 0x80, 0xff];
    input.clear();
    if random.below(32) == 0 {
        let len = random.below(128);
        input.extend((0..len).map(|_| random.bits() as u8));
        return;
    }
    input.extend_from_slice(&seeds[random.below(seeds.len())]);
    input.truncate(longest);
    for _ in 0..random.below(8) {
        if input.is_empty() {
            input.push(random.bits() as u8);
        }
        let at = random.below(input.len());
        match random.below(8) {
            0 => input[at] ^= 1 << random.below(8),
            1 => input[at] = random.bits() as u8,
            2 => input[at] = EDGES[random.below(EDGES.len())],
            3 => input[at] = input[at].wrapping_add(1),
            4 => input.truncate(at),
            5 => input.insert(at, random.bits() as u8),
            6 => drop(input.drain(at..(at + 1 + random.below(8)).min(input.len()))),
            _ => {
                let other = &seeds[random.below(seeds.len())];
                let from = random.below(other.len() + 1);
                let len = (other.len() - from).min(random.below(32));
                input.splice(at..at, other[from..from + len].iter().copied());
                input.truncate(longest);
            }
        }
    }
}

impl Smoke<'_> {
    /// Runs every target, each on a thread of its own.
    pub fn run(&self) {
        let seed = seed();
        let failures: Vec<String> = std::thread::scope(|scope| {
            let one = |&(name, target)| scope.spawn(move || self.one(name, target, seed));
            let runs: Vec<_> = self.targets.iter().map(one).collect();
            runs.into_iter().filter_map(|run| run.join().expect("panics are caught")).collect()
        });
        assert!(failures.is_empty(), "WEIR_FUZZ_SEED={seed}\n{}", failures.join("\n"));
    }

    /// Runs one target; of a panic, a sentence with the input that caused it.
    fn one(&self, name: &str, target: Target, seed: u64) -> Option<String> {
        let of_name = name.bytes().fold(0_u64, |sum, byte| sum.wrapping_mul(31) ^ u64::from(byte));
        let mut random = Random::new(seed ^ of_name);
        let seeds = [self.seeds.clone(), corpus(name)].concat();
        let mut input = Vec::new();
        for count in 0..self.inputs {
            match seeds.get(count) {
                Some(seed) => input.clone_from(seed),
                None => mutate(&mut random, &seeds, self.longest, &mut input),
            }
            if panic::catch_unwind(|| target(&input)).is_err() {
                let mut hex = String::new();
                input.iter().for_each(|byte| write!(hex, "{byte:02x}").expect("a string grows"));
                return Some(format!("{name}: input {count} of {} panics: {hex}", self.inputs));
            }
        }
        None
    }
}

/// Checks that each of these functions, and each of these names, has its line in `fuzz/`, which long runs with coverage
/// are started from.
pub fn assert_targets(tables: &[&[(&str, Target)]], others: &[&str]) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz");
    let manifest = std::fs::read_to_string(folder.join("Cargo.toml")).expect("fuzz/Cargo.toml");
    let names = tables.concat().into_iter().map(|(name, _)| name).chain(others.iter().copied());
    for name in names {
        let target = folder.join(format!("fuzz_targets/{name}.rs"));
        let text = std::fs::read_to_string(&target).unwrap_or_default();
        assert!(text.contains(&format!("fuzz_{name}(data)")), "fuzz_targets/{name}.rs calls fuzz_{name}");
        assert!(manifest.contains(&format!("name = \"{name}\"")), "fuzz/Cargo.toml has a [[bin]] {name}");
    }
}
