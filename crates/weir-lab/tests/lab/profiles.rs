//! A program whose work is known is sampled, and its profile shows that work by name.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use weir_io::clock;
use weir_io::perf_event::{Sampler, Target, Wish, own_thread};
use weir_lab::campaign::{self, CampaignSpec, Resume};
use weir_lab::experiment::{Changes, Experiment};
use weir_lab::profile::session::{FREQUENCY_HZ, Focus, Session, threads};
use weir_lab::profile::{Profile, folded};
use weir_lab::result::Results;
use weir_testing::folder::Folder;

/// Nine tenths of the work in one function, with another inlined into it; a tenth in a second one.
const PLANTED: &str = r#"
use std::hint::black_box;

#[inline(always)]
fn planted_inlined(n: u64) -> u64 {
    let mut x = n;
    for _ in 0..40 {
        x = black_box(x.wrapping_mul(6364136223846793005).rotate_left(7));
    }
    x
}

#[inline(never)]
fn planted_heavy(n: u64) -> u64 {
    let mut sum = 0;
    for i in 0..9000 {
        sum ^= planted_inlined(n + i);
    }
    sum
}

#[inline(never)]
fn planted_light(n: u64) -> u64 {
    let mut x = n;
    for _ in 0..40000 {
        x = black_box(x.wrapping_mul(6364136223846793005).rotate_left(7));
    }
    x
}

fn main() {
    println!("ready");
    loop {
        black_box(planted_heavy(black_box(1)));
        black_box(planted_light(black_box(2)));
    }
}
"#;

fn skip(name: &str, missing: &str) {
    let _ = writeln!(std::io::stderr(), "SKIP {name}: {missing}");
}

/// Why nothing can be sampled here.
fn refused() -> Option<String> {
    Sampler::start(&Target::Threads(vec![own_thread()]), Wish { frequency_hz: 97, stack_bytes: 0 })
        .err()
        .map(|e| e.to_string())
}

/// The planted program at work; ended and removed when dropped.
struct Planted {
    child: Child,
    folder: Folder,
}

impl Planted {
    /// `None` without a compiler.
    fn start(name: &str, pointers: &str) -> Option<Planted> {
        let folder = Folder::new(&format!("planted-{name}"));
        let (source, program) = (folder.write("planted.rs", PLANTED), folder.at("planted"));
        let rustc = std::env::var_os("RUSTC").unwrap_or("rustc".into());
        let flags = ["--edition=2024", "-Copt-level=2", "-Cdebuginfo=line-tables-only", pointers];
        let built = Command::new(rustc).args(flags).arg("-o").arg(&program).arg(&source).output().ok();
        if !built.is_some_and(|b| b.status.success()) {
            return None;
        }
        let mut child = Command::new(&program).stdout(Stdio::piped()).spawn().expect("it was just built");
        let mut line = String::new();
        BufReader::new(child.stdout.take().expect("piped")).read_line(&mut line).expect("it says ready");
        Some(Planted { child, folder })
    }
}

impl Drop for Planted {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Share of the samples that pass through a frame which ends in `name`.
fn share(profile: &Profile, name: &str) -> f64 {
    let through = |stack: &Vec<String>| stack.iter().any(|f| f.ends_with(name));
    let n: u64 = profile.stacks.iter().filter(|(stack, _)| through(stack)).map(|(_, n)| n).sum();
    n as f64 / profile.samples() as f64
}

/// Builds the planted program with or without frame pointers, and looks for its work.
fn find_planted(test: &str, pointers: &str) {
    if let Some(reason) = refused() {
        return skip(test, &reason);
    }
    let Some(planted) = Planted::start(test, pointers) else { return skip(test, "rustc is not on the PATH") };
    let pid = planted.child.id();
    let tids = threads(pid).expect("it runs");
    let session = Session::start(&Target::Threads(tids), Focus::Process(pid), FREQUENCY_HZ, 1.0)
        .expect("not refused above");
    let began = clock::now();
    std::thread::sleep(Duration::from_millis(800));
    let (header, profile) = session.finish(began..clock::now());

    assert!(header.samples > 20, "{header:?}");
    assert_eq!(header.samples, profile.samples());
    let (heavy, light) = (share(&profile, "planted_heavy"), share(&profile, "planted_light"));
    assert!(heavy > 0.7, "nine tenths expected, {heavy}\n{}", profile.folded());
    assert!((0.01..0.3).contains(&light), "a tenth expected, {light}\n{}", profile.folded());
    let inlined = share(&profile, "planted_inlined_[i]");
    assert!(inlined > 0.5 * heavy, "the inlined callee is seen, {inlined}\n{}", profile.folded());
    let ordered = profile.stacks.keys().any(|stack| {
        let at = |name: &str| stack.iter().position(|f| f.ends_with(name));
        at("planted_heavy").zip(at("planted_inlined_[i]")).is_some_and(|(a, b)| a < b)
            && stack[0] == "planted"
            && at("planted::main") == Some(1)
    });
    assert!(
        ordered,
        "thread, main without the runtime below it, caller, inlined callee\n{}",
        profile.folded()
    );
    let text = folded::write(&header, &profile).expect("serialisable");
    assert_eq!(folded::read("x", &text).expect("ours"), (header, profile));
}

#[test]
fn a_planted_function_is_found_by_name_with_what_was_inlined_into_it() {
    find_planted("a_planted_function_is_found", "-Cforce-frame-pointers=yes");
}

#[test]
fn callers_are_found_without_frame_pointers() {
    if cfg!(not(target_arch = "x86_64")) {
        return skip("callers_are_found_without_frame_pointers", "registers of x86-64");
    }
    find_planted("callers_are_found_without_frame_pointers", "-Cforce-frame-pointers=no");
}

#[test]
fn the_command_line_samples_a_process_into_stacks_and_a_graph() {
    let test = "the_command_line_samples_a_process";
    if let Some(reason) = refused() {
        return skip(test, &reason);
    }
    let flag = "-Cforce-frame-pointers=yes";
    let Some(planted) = Planted::start(test, flag) else { return skip(test, "rustc is not on the PATH") };
    let lab = |arguments: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_weir-lab"));
        command
            .args(["profile", "record"])
            .args(arguments)
            .current_dir(&planted.folder.0)
            .output()
            .expect("the program starts")
    };
    let pid = planted.child.id().to_string();
    let done = lab(&["--pid", &pid, "--seconds", "0.3", "-o", "a.folded", "--svg", "a.svg"]);
    let said = String::from_utf8_lossy(&done.stdout);
    assert!(
        done.status.success() && said.contains("planted_"),
        "{said}{}",
        String::from_utf8_lossy(&done.stderr)
    );
    let text = planted.folder.read("a.folded");
    let (header, profile) = folded::read("a.folded", &text).expect("folded");
    assert!(share(&profile, "planted_heavy") > 0.5 && header.seconds >= 0.3, "{text}");
    let svg = planted.folder.read("a.svg");
    assert!(svg.starts_with("<svg xmlns=") && svg.contains("planted_heavy"));
    assert_eq!(lab(&[]).status.code(), Some(2), "neither CPU nor process");
    assert_eq!(lab(&["--pid", &pid, "--cpu", "0"]).status.code(), Some(2), "both");
}

#[test]
fn samples_outside_the_window_do_not_count() {
    let test = "samples_outside_the_window_do_not_count";
    if let Some(reason) = refused() {
        return skip(test, &reason);
    }
    let session = Session::start(
        &Target::Threads(vec![own_thread()]),
        Focus::Process(std::process::id()),
        FREQUENCY_HZ,
        1.0,
    )
    .expect("not refused above");
    let began = clock::now();
    while clock::now() < began + 50_000_000 {
        std::hint::spin_loop();
    }
    let (header, profile) = session.finish(began + 3_600_000_000_000..began + 3_600_000_000_001);
    assert_eq!((header.samples, profile.samples()), (0, 0));
}

/// Three runs and two profiled ones of a configuration and its baseline, in memory.
const SMALL: &str = "\
title = \"Small\"
question = \"Where does the time go?\"
runs = 3
profile = 2
warm_up = \"5ms\"
window = \"60ms\"
baseline = true
[[configuration]]
name = \"memory\"
flows = 20
routes = 10
";

fn campaign(name: &str) -> (Folder, Results) {
    let folder = Folder::absent(name);
    let experiment = Experiment::parse("small", "small.toml", SMALL, &Changes::default()).expect("valid");
    let argv = vec!["weir-lab".to_string()];
    let plan = CampaignSpec {
        experiment,
        seed: 7,
        dir: &folder.0,
        argv: argv.clone(),
        repeats: None,
        stop: &false.into(),
        whole: None,
    };
    let results = campaign::run(plan).expect("memory needs nothing").results;
    (folder, results)
}

#[test]
fn profiled_runs_follow_the_measured_ones_and_are_not_among_them() {
    let test = "profiled_runs_follow_the_measured_ones";
    if let Some(reason) = refused() {
        return skip(test, &reason);
    }
    let (folder, results) = campaign("follow");
    let memory = results.outcome("memory").expect("measured");
    assert_eq!((memory.values.len(), memory.profiles.len(), results.runs_planned), (3, 2, 6));
    for run in &memory.profiles {
        let h = &run.header;
        assert!(h.samples > 0 && h.packets > 0 && h.seconds > 0.05, "{run:?}");
        assert_eq!(h.samples, run.profile.samples());
        // one thread: it cannot have been seen more often than it was sampled
        assert!(h.samples as f64 <= h.seconds * h.frequency_hz as f64 + 5.0, "warm-up is not in it: {h:?}");
        let pipeline = |f: &String| f.contains("weir_core::router") || f.contains("testbed::memory::worker");
        assert!(run.profile.stacks.keys().any(|s| s.iter().any(pipeline)), "{}", run.profile.folded());
    }
    assert!(results.outcome("baseline").is_some_and(|o| o.profiles.is_empty()), "a baseline has no SUT");
    let html = folder.read("report.html");
    assert_eq!(html.matches("<svg class=\"flame\"").count(), 1);
    assert!(html.contains("Where time goes") && !html.contains("http://"));
    let json = folder.read("result.json");
    assert!(json.contains("\"file\": \"raw/memory.2.folded\"") && !json.contains("\"stacks\""));
}

#[test]
fn a_profile_that_is_missing_is_taken_when_the_campaign_is_resumed() {
    let test = "a_profile_that_is_missing_is_taken";
    if let Some(reason) = refused() {
        return skip(test, &reason);
    }
    let (folder, _) = campaign("resumed");
    let kept = fs::read(folder.0.join("raw/memory.1.folded")).expect("written");
    fs::remove_file(folder.0.join("raw/memory.2.folded")).expect("written");
    let stop = false.into();
    let wish = Resume {
        dir: &folder.0,
        experiment: None,
        force: true,
        retry_failed: false,
        argv: vec!["weir-lab".into()],
        stop: &stop,
    };
    let results = campaign::resume(wish).expect("complete otherwise").results;
    assert_eq!(results.outcome("memory").map(|o| (o.values.len(), o.profiles.len())), Some((3, 2)));
    assert_eq!(fs::read(folder.0.join("raw/memory.1.folded")).expect("there"), kept, "what is there is kept");
}
