//! The table of an SPD by the index of its match, for rates that are known.

use weir_lab::build::Build;
use weir_lab::experiment::{Changes, Experiment};
use weir_lab::machine::Machine;
use weir_lab::manifest::{self, Manifest};
use weir_lab::model::Sample;
use weir_lab::report;
use weir_lab::store::{self, Run};
use weir_stats::search::LossLedger;
use weir_testing::folder::Folder;

const LAB: &str = "title = \"t\"\nquestion = \"q\"\nruns = 2\nwarm_up = \"1ms\"\nwindow = \"1ms\"\naxis = \"match\"\n\
    pairs = [[\"cache-2\", \"cache-1000\"], [\"linear-1\", \"cache-1\"]]\n[defaults]\nframe = 94\n\
    [[configuration]]\nname = \"{lookup}-{match}\"\nipsec = { mode = \"policy\", direction = \"in\", action = \"bypass\", \
    cipher = \"null\", lookup = [\"linear\", \"cache\"], match = [1, 2, 1000] }\n";

/// Millions of packets a second in two blocks.
const RATES: [(&str, [f64; 2]); 6] = [
    ("linear-1", [10.0, 10.2]),
    ("linear-2", [8.0, 8.2]),
    ("linear-1000", [0.5, 0.52]),
    ("cache-1", [9.9, 10.098]),
    ("cache-2", [8.0, 8.2]),
    ("cache-1000", [7.92, 8.118]),
];

fn campaign(folder: &Folder) {
    let names = RATES.map(|(name, _)| name.to_string());
    let manifest = Manifest {
        format: manifest::FORMAT,
        experiment: Experiment::parse("t", "t.toml", LAB, &Changes::default()).expect("valid"),
        seed: 1,
        started_unix_ms: 0,
        argv: Vec::new(),
        order: vec![names.to_vec(); 2],
        skipped: Default::default(),
        machine: Machine::default(),
        build: Build::own(),
        machines: Default::default(),
        resumed: Vec::new(),
        repeats: None,
    };
    folder.write("manifest.json", manifest.text().expect("plain"));
    for (place, (name, rates)) in RATES.iter().enumerate() {
        let line = |(block, mpps): (usize, &f64)| {
            let ledger = LossLedger { sent: 1, delivered: 1, ..LossLedger::default() };
            let metrics = [
                ("mbps", mpps * 90.0 * 8.0),
                ("spd_hit_percent", 99.0),
                ("spd_classified_percent", 1.0),
                ("cache_occupied_buckets", 1000.0),
            ];
            let metrics = metrics.map(|(name, value)| (name.to_string(), value)).into();
            let sample = Sample { seconds: 1.0, pps: mpps * 1e6, ledger, metrics, ..Sample::default() };
            let run = Run {
                format: store::FORMAT,
                block,
                order: block * RATES.len() + place,
                seed: 1,
                session: 0,
                started_unix_ms: 0,
                sample: Some(sample),
                error: None,
                misbehaviour: None,
            };
            serde_json::to_string(&run).expect("plain") + "\n"
        };
        let lines: String = rates.iter().enumerate().map(line).collect();
        folder.write(&format!("raw/{name}.jsonl"), lines);
    }
}

const TABLE: &str = "\
**null, in then bypass, inet, 94 B**

| index | linear Mb/s | cache Mb/s | linear Mpps | cache Mpps | cache by linear |
|--:|--:|--:|--:|--:|--:|
| 1 | 7272 | 7199 | 10.10 | 9.999 | 0.990 × |
| 2 | 5832 | 5832 | 8.100 | 8.100 | 1.000 × |
| 1000 | 367.2 | 5774 | 0.510 | 8.019 | 15.72 × |

With the cache, index 1000 is within 1.000 % (95 % interval −";

#[test]
fn depth_is_told_as_the_field_tells_it_and_sums_up_what_the_cache_is_worth() {
    let folder = Folder::new("spd-depth");
    campaign(&folder);
    let results = report::write(&folder.0).unwrap_or_else(|e| panic!("{e}"));
    let (report, page) = (folder.read("report.md"), folder.read("report.html"));
    assert!(report.contains(TABLE), "{report}");
    assert!(report.contains("At index 1 the cache costs 1.000 %"), "{report}");
    assert!(report.contains("| cache-1000 | – | – | 99.00 | – | – | 1.000 | – | 1000 |"), "{report}");
    for said in
        ["cache by linear", "in then bypass", "At index 1 the cache costs 1.000 %", "SPD lookup sources"]
    {
        assert!(page.contains(said), "{said}");
    }
    assert!(page.contains("index of the policy that matches"), "a plot along the index");
    let shown = report::spd::text(&results);
    assert!(shown.contains("null, in then bypass, inet, 94 B\nindex   linear Mb/s   cache Mb/s"), "{shown}");
    assert!(shown.contains(" 1000         367.2         5774"), "{shown}");
}
