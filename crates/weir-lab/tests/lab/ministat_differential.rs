//! Our ministat against the distribution's own program, on generated inputs: not one byte may differ.
//!
//! Promises coverage of what the two could differ in: one to seven sets, ties, constant sets, even and odd
//! counts, more runs than the t table has rows, huge, tiny and negative values, columns, delimiters,
//! comments, words that are no numbers, every option. Where the original crashes (a plot one column wide, or of
//! infinity), ours must refuse.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use crate::common::program::text;
use weir_stats::ministat::read::{Columns, values};
use weir_stats::ministat::{Confidence, Dialect, Parts, Set, Style, WIDTH, block};
use weir_stats::random::Random;
use weir_testing::folder::Folder;

/// Compared in this process, some 2 ms each; [`COMMANDS`] of them through our program as well.
const CASES: u64 = 2000;
const COMMANDS: u64 = 60;

/// The original, or a word about its absence.
fn original(test: &str) -> Option<&'static str> {
    let there = Command::new("ministat").arg("-n").stdin(Stdio::null()).output().is_ok();
    if !there {
        writeln!(std::io::stderr(), "SKIP {test}: no ministat (Debian package ministat)")
            .expect("stderr is open");
    }
    there.then_some("ministat")
}

fn of<T: Copy>(random: &mut Random, choices: &[T]) -> T {
    choices[random.below(choices.len() as u64) as usize]
}

fn chance(random: &mut Random, percent: u64) -> bool {
    random.below(100) < percent
}

/// One invocation: the text of each file, and the options as both programs take them.
struct Case {
    files: Vec<String>,
    style: Style,
    column: usize,
    delimiters: &'static str,
    options: Vec<String>,
}

fn case(seed: u64) -> Case {
    let random = &mut Random::new(seed);
    let mut style = Style { dialect: Dialect::Old, separate_bars: false, width: WIDTH, ..Style::default() };
    let mut options = Vec::new();
    if chance(random, 50) {
        style.separate_bars = true;
        options.push("-s".to_string());
    }
    if chance(random, 30) {
        style.width = 2 + random.below(150) as usize;
        options.extend(["-w".to_string(), style.width.to_string()]);
    }
    if chance(random, 60) {
        style.confidence = of(random, &Confidence::ALL);
        options.push(format!("-c{}", style.confidence.percent()));
    }
    if chance(random, 15) {
        style.parts = of(random, &[Parts::NoPlot, Parts::Vitals]);
        options.push(if style.parts == Parts::NoPlot { "-A" } else { "-n" }.to_string());
    }
    let mut column = 1;
    if chance(random, 25) {
        column = 1 + random.below(4) as usize;
        options.push(format!("-C{column}"));
    }
    let mut delimiters = " \t";
    if chance(random, 25) {
        delimiters = of(random, &[",", ";,", ",\t", "|"]);
        options.extend(["-d".to_string(), delimiters.to_string()]);
    }
    let sets = of(random, &[1, 2, 2, 2, 3, 4, 5, 6, 7]);
    let centre =
        of(random, &[0.0, 1.0, 50.0, 1e3, 1.2e6, 1.48e7, 1e12, -3e5, 1e-7, -1e-12, 1e9, 1e30, 1e-30]);
    let spread = of(random, &[0.0, 1e-9, 1e-4, 0.01, 0.1, 1.0, 30.0]);
    let files = (0..sets)
        .map(|_| {
            let shift = 1.0 + random.below(5) as f64 * spread * of(random, &[0.0, 0.5, 2.0]);
            file(random, centre * shift, spread, column, delimiters)
        })
        .collect();
    Case { files, style, column, delimiters, options }
}

/// Lines as people have them: values in a column among others, empty lines, comments.
fn file(random: &mut Random, centre: f64, spread: f64, column: usize, delimiters: &str) -> String {
    let n = match random.below(20) {
        0 => 40 + random.below(90),
        1..=3 => 3,
        _ => 3 + random.below(18),
    };
    let step = of(random, &[1.0, 4.0, 1000.0]);
    let form = random.below(5);
    let delimiter = |random: &mut Random| {
        let bytes = delimiters.as_bytes();
        let one = char::from(bytes[random.below(bytes.len() as u64) as usize]);
        one.to_string().repeat(1 + random.below(2) as usize)
    };
    let mut text = String::new();
    for _ in 0..n {
        let noise = ((random.below(2001) as f64 - 1000.0) / 1000.0 * step).round() / step;
        let scale = if centre == 0.0 { 1.0 } else { centre };
        let value = centre + noise * spread * scale;
        match random.below(30) {
            0 => text += "# a comment, 7\n",
            1 => text += "\n",
            2 if delimiters == " \t" => text += "  # 3 4 5 6\n",
            _ => {}
        }
        for _ in 1..column {
            text += of(random, &["a", "12", "x#y", "-"]);
            text += &delimiter(random);
        }
        text += &match form {
            _ if random.below(800) == 0 => of(random, &["n/a", "1e", "0x1g", "7\r", "0x1p4", "inf"]).into(),
            0 => format!("{value}"),
            1 => format!("{value:e}"),
            2 => format!("{value:.3}"),
            3 => format!("{value:.0}"),
            _ => format!("{value:+}"),
        };
        if chance(random, 20) {
            text += &delimiter(random);
            text += of(random, &["Mpps", "# warm", "3"]);
        }
        text.push('\n');
    }
    text
}

impl Case {
    fn names(&self) -> impl Iterator<Item = String> {
        (0..self.files.len()).map(|i| format!("set{i}"))
    }

    fn write(&self, dir: &Path) {
        for (name, text) in self.names().zip(&self.files) {
            fs::write(dir.join(name), text).expect("space for a set");
        }
    }

    fn program(&self, program: &str, first: &[&str], dir: &Path) -> Output {
        let mut command = Command::new(program);
        command.current_dir(dir).args(first).args(&self.options).args(self.names());
        command.output().expect("the program starts")
    }

    fn ours(&self) -> Result<String, String> {
        let columns = Columns { column: self.column, delimiters: self.delimiters.as_bytes() };
        let sets: Result<Vec<Set>, String> = self
            .names()
            .zip(&self.files)
            .map(|(name, text)| {
                let values = values(text.as_bytes(), &columns);
                Ok(Set::new(name, &values.map_err(|bad| format!("line {}: {:?}", bad.line, bad.got))?))
            })
            .collect();
        block(&sets?, self.style).map_err(|e| e.to_string())
    }
}

#[test]
fn thousands_of_generated_blocks_are_those_of_the_distributions_ministat() {
    let Some(ministat) = original("thousands_of_generated_blocks_are_those_of_the_distributions_ministat")
    else {
        return;
    };
    let folder = Folder::new("blocks");
    let (mut different, mut same, mut flat, mut refused) = (0, 0, 0, 0);
    let mut crashed = 0;
    for seed in 0..CASES {
        let case = case(seed);
        case.write(&folder.0);
        let theirs = case.program(ministat, &[], &folder.0);
        let expected = theirs.status.success().then(|| text(&theirs.stdout));
        let ours = case.ours();
        if theirs.status.code().is_none() {
            crashed += 1;
            assert!(ours.is_err(), "case {seed} {:?}: the original crashed, got {ours:?}", case.options);
            continue;
        }
        assert_eq!(ours.as_ref().ok(), expected.as_ref(), "case {seed} {:?}: {ours:?}", case.options);
        refused += u32::from(ours.is_err());
        let block = ours.unwrap_or_default();
        different += u32::from(block.contains("\nDifference at"));
        same += u32::from(block.contains("\nNo difference proven"));
        flat += u32::from(block.contains("[no plot"));
    }
    // a generator that never leaves one branch proves nothing about the other
    let seen =
        format!("{different} different, {same} not, {flat} flat, {refused} refused, {crashed} crashes");
    assert!(different > 400 && same > 400 && flat > 100 && (50..1000).contains(&refused), "{seen}");
    eprintln!("{CASES} blocks: {seen}");
}

#[test]
fn our_program_prints_and_exits_as_the_distributions_does() {
    let Some(ministat) = original("our_program_prints_and_exits_as_the_distributions_does") else { return };
    let folder = Folder::new("commands");
    for seed in CASES..CASES + COMMANDS {
        let case = case(seed);
        case.write(&folder.0);
        let theirs = case.program(ministat, &[], &folder.0);
        let first = ["ministat", "--dialect", "old"];
        if theirs.status.code().is_none() {
            continue;
        }
        let ours = case.program(env!("CARGO_BIN_EXE_weir-lab"), &first, &folder.0);
        assert_eq!(text(&ours.stdout), text(&theirs.stdout), "case {seed} {:?}", case.options);
        assert_eq!(ours.status.code(), theirs.status.code(), "case {seed} {:?}", case.options);
    }
}

#[test]
fn refusals_exit_as_the_distributions_does_and_name_the_remedy() {
    let Some(ministat) = original("refusals_exit_as_the_distributions_does_and_name_the_remedy") else {
        return;
    };
    let folder = Folder::new("refusals");
    folder.write("set", "1\n2\n3\n");
    folder.write("two", "1\n2\n");
    folder.write("word", "1\n2\nx 3\n");
    let refusals: [(&[&str], &str); 10] = [
        (&["absent"], "name files with one value a line"),
        (&["two"], "dataset two must contain at least 3 data points, got 2: add runs"),
        (
            &["word"],
            "invalid data on line 3 in word: got \"x\", expected a number: choose its column with -C",
        ),
        (&["set", "set", "set", "set", "set", "set", "set", "set"], "too many datasets: got 8, takes 1 to 7"),
        (&["-C", "0", "set"], "column number should be positive: the first is 1"),
        (&["-C", "x", "set"], "invalid column number"),
        (&["-c", "70", "set"], "no support for confidence level: choose 80, 90, 95, 98, 99 or 99.5"),
        (&["-c", "x", "set"], "not a floating point number"),
        (&["-d", "", "set"], "can't use empty delimiter string"),
        (&["-w", "-3", "set"], "unable to move beyond left margin"),
    ];
    for (arguments, said) in refusals {
        let start = |program: &str, first: &[&str]| {
            let mut command = Command::new(program);
            command.current_dir(&folder.0).args(first).args(arguments).output().expect("the program starts")
        };
        let theirs = start(ministat, &[]);
        let ours = start(env!("CARGO_BIN_EXE_weir-lab"), &["ministat", "--dialect", "old"]);
        assert_eq!(ours.status.code(), theirs.status.code(), "{arguments:?}");
        assert!(ours.stdout.is_empty(), "{arguments:?}: {}", text(&ours.stdout));
        assert!(text(&ours.stderr).contains(said), "{arguments:?}: {}", text(&ours.stderr));
    }
}
