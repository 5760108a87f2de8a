//! Which modes of network devices become weir's settings: by verdicts, of campaigns written by hand.

use weir_lab::build::Build;
use weir_lab::experiment::{Changes, Experiment};
use weir_lab::machine::Machine;
use weir_lab::manifest::{self, Manifest};
use weir_lab::model::Sample;
use weir_lab::report;
use weir_lab::result::settings::Settings;
use weir_lab::store::{self, Run};
use weir_testing::folder::Folder;

const EXPERIMENT: &str = r#"
title = "Modes"
question = "Which?"
runs = 5
warm_up = "1ms"
window = "1ms"
margin_percent = 2
reference = "auto"
[hosts.generator]
ssh = "a@a.example"
interface = "eth0"
[hosts.device_under_test]
ssh = "b@b.example"
input = "eth1"
output = "eth2"
[hosts.receiver]
ssh = "c@c.example"
interface = "eth0"
[defaults]
topology = "ssh"
[[configuration]]
name = "auto"
[[configuration]]
name = "zero-copy"
zero_copy = "require"
wake_up = "interrupt"
queues = 4
cpus = "0-3"
[[configuration]]
name = "copy"
zero_copy = "off"
wake_up = "busy-poll"
[[configuration]]
name = "kernel"
sut = "kernel"
[[answer]]
show = "settings"
"#;

/// What follows where each mode had these rates, in thousands, a run each; `None` failed in each run.
fn settings(name: &str, rates: &[(&str, Option<[f64; 5]>)]) -> (Settings, String) {
    let folder = Folder::new(name);
    let order = vec![rates.iter().map(|(name, _)| name.to_string()).collect::<Vec<_>>(); 5];
    let manifest = Manifest {
        format: manifest::FORMAT,
        experiment: Experiment::parse("modes", "modes.toml", EXPERIMENT, &Changes::default()).expect("valid"),
        seed: 1,
        started_unix_ms: 0,
        argv: Vec::new(),
        order,
        skipped: Default::default(),
        machine: Machine::default(),
        build: Build::own(),
        machines: Default::default(),
        resumed: Vec::new(),
        repeats: None,
    };
    folder.write("manifest.json", manifest.text().expect("plain"));
    for (place, (name, rates_or_none)) in rates.iter().enumerate() {
        let line = |block: usize| {
            let notes = vec![
                "weir port out: af_xdp dout queue 0: copy mode, native XDP".to_string(),
                format!("weir port in: af_xdp din queue 0: what {name} became"),
            ];
            let pps = rates_or_none.map(|rates| rates[block] * 1000.0);
            let run = Run {
                format: store::FORMAT,
                block,
                order: block * rates.len() + place,
                seed: 1,
                session: 0,
                started_unix_ms: 0,
                sample: pps.map(|pps| Sample { seconds: 1.0, pps, notes, ..Sample::default() }),
                error: pps.is_none().then(|| "refused by the driver".into()),
                misbehaviour: None,
            };
            serde_json::to_string(&run).expect("plain") + "\n"
        };
        folder.write(&format!("raw/{name}.jsonl"), (0..5).map(line).collect::<String>());
    }
    let results = report::write(&folder.0).unwrap_or_else(|e| panic!("{e}"));
    let settings = results.settings.expect("the experiment asks for them");
    assert_eq!(folder.read("weir.toml"), settings.toml);
    for report in ["report.md", "report.html"] {
        assert!(folder.read(report).contains("# modes (Modes), 5 runs each: "), "{report}");
    }
    (settings, folder.read("report.md"))
}

const AUTO: [f64; 5] = [1000.0, 1004.0, 996.0, 1002.0, 998.0];
const KERNEL: (&str, Option<[f64; 5]>) = ("kernel", Some([3000.0, 3004.0, 2996.0, 3002.0, 2998.0]));

#[test]
fn a_mode_shown_to_be_better_becomes_the_settings_and_what_is_not_told_apart_is_named() {
    let better = AUTO.map(|rate| rate * 1.3);
    let noisy = [1300.0, 1200.0, 1350.0, 1250.0, 1290.0];
    let rates = [("auto", Some(AUTO)), ("zero-copy", Some(better)), ("copy", Some(noisy)), KERNEL];
    let (settings, page) = settings("nic-modes-better", &rates);
    assert_eq!((settings.default.as_str(), settings.chosen.as_str()), ("auto", "zero-copy"));
    assert_eq!(settings.not_told_apart, ["copy"]);
    let lines: Vec<&str> = settings.toml.lines().collect();
    assert!(
        lines[0].starts_with("# modes (Modes), 5 runs each: zero-copy has 1.300 [1.29"),
        "{}",
        settings.toml
    );
    assert_eq!(
        lines[1..],
        [
            "# Not told apart from zero-copy: copy.",
            "# Before weir starts: `ethtool -L eth1 combined 4`, `ethtool -L eth2 combined 4`.",
            "# Measured with zero_copy = \"require\"; \"auto\", the default, takes it where the driver has it, as here.",
            "[workers]",
            "cpus = [0, 1, 2, 3]",
            "wake_up = \"interrupt\"",
        ]
    );
    let modes: Vec<&str> = settings.modes.iter().map(|mode| mode.configuration.as_str()).collect();
    assert_eq!(modes, ["auto", "zero-copy", "copy"], "the kernel is no mode of weir");
    assert!(page.contains("| zero-copy | what zero-copy became | different |"), "{page}");
}

#[test]
fn without_a_mode_shown_to_be_better_the_default_stays() {
    // more by its median, by chance; less than the margin; worse
    let noisy = [1300.0, 700.0, 1350.0, 720.0, 1290.0];
    let little = AUTO.map(|rate| rate * 1.01);
    let worse = AUTO.map(|rate| rate * 0.5);
    for (n, (first, second)) in [(noisy, little), (worse, little), (little, noisy)].into_iter().enumerate() {
        let rates = [("auto", Some(AUTO)), ("zero-copy", Some(first)), ("copy", Some(second)), KERNEL];
        let (settings, _) = settings(&format!("nic-modes-default-{n}"), &rates);
        assert_eq!(settings.chosen, "auto", "{}", settings.toml);
        assert!(
            settings.because.starts_with("no mode is shown to be better than auto by more than 2 %"),
            "{settings:#?}"
        );
        assert!(settings.toml.ends_with("\n[workers]\n"), "nothing is set: {}", settings.toml);
    }
}

#[test]
fn a_mode_that_never_ran_is_in_the_table_with_its_reason() {
    let better = AUTO.map(|rate| rate * 1.3);
    let rates = [("auto", Some(AUTO)), ("zero-copy", None), ("copy", Some(better)), KERNEL];
    let (settings, page) = settings("nic-modes-refused", &rates);
    assert_eq!(settings.chosen, "copy");
    assert!(
        settings.toml.ends_with("\n[workers]\nwake_up = \"busy-poll\"\nzero_copy = \"off\"\n"),
        "{}",
        settings.toml
    );
    assert!(page.contains("| zero-copy | refused by the driver | not compared |"), "{page}");
}
