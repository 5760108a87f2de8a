//! Campaigns beside each other, as a user compares them: folders on disk, the program, what it says.

use std::fs;
use std::process::Output;

use crate::common::program::{run, text};
use serde_json::Value;
use weir_lab::build::Build;
use weir_lab::experiment::{Changes, Experiment};
use weir_lab::machine::Machine;
use weir_lab::manifest::{self, Manifest};
use weir_lab::model::Sample;
use weir_lab::store::{self, Run, Store};
use weir_stats::random::Random;
use weir_testing::folder::Folder;

fn document(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|e| panic!("{e}: {}{}", text(&output.stdout), text(&output.stderr)))
}

/// Blocks of every campaign.
const RUNS: usize = 5;

/// Two configurations, one of them without a change through all campaigns.
fn experiment() -> Experiment {
    let toml = format!(
        "title = \"T\"\nquestion = \"Q?\"\nruns = {RUNS}\nwarm_up = \"1ms\"\nwindow = \"5ms\"\n\
         [[configuration]]\nname = \"moving\"\nflows = 20\n[[configuration]]\nname = \"still\"\nflows = 30\n"
    );
    Experiment::parse("synthetic", "synthetic.toml", &toml, &Changes::default()).expect("valid")
}

/// A campaign as `run` leaves it: `level` packets a second of *moving*, a million of *still*, both with 1 %
/// of noise between campaigns and within.
fn campaign(folder: &Folder, name: &str, day: u64, level: f64, change: impl Fn(&mut Manifest)) {
    let (store, _) = Store::create(&folder.0.join(name)).expect("a new folder");
    let experiment = experiment();
    let order: Vec<String> = experiment.configurations.iter().map(|p| p.configuration.name.clone()).collect();
    let mut manifest = Manifest {
        format: manifest::FORMAT,
        experiment,
        seed: day,
        started_unix_ms: 1_790_000_000_000 + day * 86_400_000,
        argv: vec!["weir-lab".into()],
        order: vec![order.clone(); RUNS],
        skipped: Default::default(),
        machine: Machine { kernel: "6.1".into(), ..Machine::default() },
        build: Build::own(),
        machines: Default::default(),
        resumed: Vec::new(),
        repeats: None,
    };
    change(&mut manifest);
    store.write("manifest.json", &serde_json::to_string(&manifest).expect("plain data")).expect("space");
    let mut random = Random::new(day * 7919 + 1);
    let mut noise = || 1.0 + (random.below(2001) as f64 - 1000.0) / 1e5;
    for (i, (configuration, level)) in order.iter().zip([level, 1e6]).enumerate() {
        let day_noise = noise();
        for block in 0..RUNS {
            let pps = level * day_noise * noise();
            let run = Run {
                format: store::FORMAT,
                block,
                order: block * order.len() + i,
                seed: block as u64,
                session: 0,
                started_unix_ms: manifest.started_unix_ms + block as u64 * 1000,
                sample: Some(Sample { seconds: 1.0, pps, ..Sample::default() }),
                error: None,
                misbehaviour: None,
            };
            store.append(configuration, &manifest.experiment.metric, &run).expect("space");
        }
    }
}

fn kernel(word: &'static str) -> impl Fn(&mut Manifest) {
    move |m| m.machine.kernel = word.into()
}

#[test]
fn a_step_is_marked_at_the_campaign_that_made_it_with_what_else_changed() {
    let folder = Folder::new("step");
    for day in 0..14 {
        // named against their order: time decides, not names
        let name = format!("deep/{}", 20 - day);
        match day {
            0..8 => campaign(&folder, &name, day, 2e6, kernel("6.1")),
            _ => campaign(&folder, &name, day, 1.8e6, kernel("6.2")),
        }
    }
    let page = folder.at("history.html");
    let output = run(&["history", &folder.at(""), "--json", "--html", &page]);
    let history = &document(&output)["histories"][0];
    assert_eq!(history["campaigns"].as_array().expect("campaigns").len(), 14);
    let series = |name: &str| {
        let all = history["series"].as_array().expect("series");
        all.iter().find(|s| s["name"] == name).cloned().expect("measured")
    };
    let changes = series("moving")["changes"].as_array().expect("changes").clone();
    assert_eq!(changes.len(), 1, "{changes:#?}");
    assert_eq!((&changes[0]["campaign"], &changes[0]["hint"]), (&8.into(), &false.into()));
    let ratio = &changes[0]["ratio"];
    let end = |key: &str| ratio[key].as_f64().expect("a value");
    assert!(end("low") < 0.9 && 0.9 < end("high") && end("high") - end("low") < 0.03, "{ratio}");
    assert_eq!(changes[0]["differences"], serde_json::json!(["kernel: \"6.1\" → \"6.2\""]));
    assert_eq!(series("still")["changes"], serde_json::json!([]));

    let page = fs::read_to_string(page).expect("written");
    assert!(page.matches("<svg").count() == 2 && page.contains("change 0.9"), "{page}");
    assert!(!page.contains("http://") && !page.contains("https://"), "the page loads nothing");
    let said = text(&run(&["history", &folder.at("")]).stdout);
    assert!(said.contains("── change: 0.9") && said.contains(", worse, p 0.0"), "{said}");
    assert!(said.contains("no change found, p "), "{said}");
}

#[test]
fn few_campaigns_copies_smoke_values_and_damage_are_named() {
    let folder = Folder::new("named");
    for day in 0..3 {
        campaign(&folder, &format!("c{day}"), day, 2e6, |_| ());
    }
    campaign(&folder, "copy", 0, 2e6, |_| ());
    campaign(&folder, "smoke", 9, 2e6, |m| m.experiment.quick = true);
    campaign(&folder, "damaged", 8, 2e6, |_| ());
    fs::write(folder.0.join("damaged/raw/still.jsonl"), "nonsense\n").expect("space");
    let said = text(&run(&["history", &folder.at("")]).stdout);
    assert!(said.contains("synthetic: 3 campaigns"), "{said}");
    assert!(said.contains("3 campaigns: a change needs 4 or more"), "{said}");
    assert!(said.contains("counted once") && said.contains("1 smoke campaigns"), "{said}");
    assert!(said.contains("still.jsonl:1: "), "{said}");
    let none = run(&["history", &folder.at(""), "--experiment", "other"]);
    assert_eq!(none.status.code(), Some(1));
    assert!(text(&none.stderr).contains("no campaign to show"), "{}", text(&none.stderr));
}

#[test]
fn a_configuration_defined_anew_begins_a_series_of_its_own() {
    let folder = Folder::new("anew");
    for day in 0..4 {
        campaign(&folder, &format!("c{day}"), day, 2e6, |m| {
            m.experiment.configurations[0].configuration.routes = if day < 2 { 5 } else { 50 };
        });
    }
    let history = document(&run(&["history", &folder.at(""), "--json"]));
    let series = history["histories"][0]["series"].as_array().expect("series");
    let found: Vec<(bool, usize)> = series
        .iter()
        .map(|s| (s["name"] == "still", s["points"].as_array().expect("points").len()))
        .collect();
    assert_eq!(found, [(false, 2), (true, 4), (false, 2)]);
    assert!(
        series[2]["name"].as_str().expect("a name").starts_with("moving (as in "),
        "{}",
        series[2]["name"]
    );
}

#[test]
fn two_campaigns_are_compared_configuration_by_configuration() {
    let folder = Folder::new("two");
    campaign(&folder, "old", 1, 2e6, |_| ());
    campaign(&folder, "new", 2, 1.7e6, |m| {
        m.machine.kernel = "6.2".into();
        m.experiment.window_ms = 50;
    });
    let (old, new) = (folder.at("old"), folder.at("new"));
    let output = run(&["compare", &old, &new, "--ministat"]);
    let said = text(&output.stdout);
    assert!(output.status.success(), "{}", text(&output.stderr));
    for expected in [
        "24 h 00 min later",
        "differs  kernel: \"6.1\" → \"6.2\"",
        "differs  experiment, window_ms: 5 → 50",
        "not interleaved",
        "worse",
        "raw/moving.pps\n+------",
    ] {
        assert!(said.contains(expected), "{expected:?} is missing:\n{said}");
    }
    let json = document(&run(&["compare", &old, &new, "--json"]));
    assert_eq!((&json["interleaved"], &json["format"]), (&false.into(), &1.into()));
    let rows = json["others"][0]["rows"].as_array().expect("rows");
    let word = |name: &str| {
        let row = rows.iter().find(|r| r["configuration"] == name).expect("shared");
        row["comparison"]["verdict"].as_str().expect("a word").to_string()
    };
    assert_eq!(word("moving"), "different");
    assert_eq!(run(&["compare", &old, &new, "--fail-if-worse"]).status.code(), Some(1));
    assert_eq!(run(&["compare", &new, &old, "--fail-if-worse"]).status.code(), Some(0));
    let turned = text(&run(&["compare", &new, &old]).stdout);
    assert!(turned.contains("the reference is the later of the two"), "{turned}");
}

#[test]
fn a_result_file_alone_is_compared_and_what_it_cannot_say_is_said() {
    let folder = Folder::new("alone");
    campaign(&folder, "old", 1, 2e6, |_| ());
    campaign(&folder, "new", 2, 2e6, |_| ());
    assert!(run(&["report", &folder.at("new")]).status.success());
    fs::create_dir(folder.0.join("kept")).expect("a folder");
    fs::copy(folder.0.join("new/result.json"), folder.0.join("kept/result.json")).expect("derived");
    let said = text(&run(&["compare", &folder.at("old"), &folder.at("kept")]).stdout);
    assert!(said.contains("time unknown (no manifest.json)") && said.contains("machine and build: unknown"));
    assert!(said.lines().any(|l| l.starts_with("moving ")), "{said}");
}

#[test]
fn what_cannot_be_compared_is_refused_or_listed_with_the_reason() {
    let folder = Folder::new("refused");
    campaign(&folder, "old", 1, 2e6, |_| ());
    campaign(&folder, "other-metric", 2, 2e6, |m| m.experiment.metric.0 = "loss_percent".into());
    campaign(&folder, "redefined", 3, 2e6, |m| m.experiment.configurations[0].configuration.routes = 7);
    let against = |name: &str| run(&["compare", &folder.at("old"), &folder.at(name)]);
    let odd = against("other-metric");
    assert_eq!(odd.status.code(), Some(1));
    assert!(text(&odd.stderr).contains("its metric is loss_percent"), "{}", text(&odd.stderr));
    let said = text(&against("redefined").stdout);
    assert!(said.contains("not compared  moving: not the same configuration, routes differ"), "{said}");
    let missing = against("nowhere");
    assert!(text(&missing.stderr).contains("name the folder a campaign was written to"));
}
