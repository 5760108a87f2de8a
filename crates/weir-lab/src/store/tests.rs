//! What a folder survives: crashes at every byte, damage by hand, two processes at once.

use super::*;
use crate::build::Build;
use crate::experiment::{Changes, Experiment};
use crate::machine::Machine;
use crate::manifest::{self, Manifest, Session};
use proptest::prelude::*;
use weir_testing::folder::Folder;

/// Makes a folder that holds these bytes as the raw file of `a`.
fn holding(name: &str, bytes: &[u8]) -> Folder {
    let folder = Folder::absent(name);
    folder.write("raw/a.jsonl", bytes);
    folder
}

/// What is read back of a folder.
trait Stored {
    fn evidence(&self) -> Result<Evidence, LabError>;

    fn refused(&self) -> String {
        self.evidence().expect_err("damaged").said
    }
}

impl Stored for Folder {
    fn evidence(&self) -> Result<Evidence, LabError> {
        read_runs(&self.0, &manifest())
    }
}

const BLOCKS: usize = 20;

/// `a` then `b` in every block, resumed once.
fn manifest() -> Manifest {
    let text = format!(
        "title = \"t\"\nquestion = \"q\"\nruns = {BLOCKS}\nwarm_up = \"1ms\"\nwindow = \"1ms\"\n\
         [[configuration]]\nname = \"a\"\n[[configuration]]\nname = \"b\"\nfamily = \"inet6\"\n"
    );
    Manifest {
        format: manifest::FORMAT,
        experiment: Experiment::parse("t", "t.toml", &text, &Changes::default()).expect("valid"),
        seed: 1,
        started_unix_ms: 1,
        argv: Vec::new(),
        order: vec![vec!["a".into(), "b".into()]; BLOCKS],
        skipped: Default::default(),
        machine: Machine::default(),
        build: Build::own(),
        machines: Default::default(),
        resumed: vec![Session::default()],
        repeats: None,
    }
}

/// The run of `a` in this block.
fn run(block: usize, pps: f64) -> Run {
    let sample = Sample { pps, seconds: 1.0, notes: vec!["µs – counted".into()], ..Sample::default() };
    Run {
        format: FORMAT,
        block,
        order: block * 2,
        seed: 1,
        session: 0,
        started_unix_ms: 2,
        sample: Some(sample),
        error: None,
        misbehaviour: None,
    }
}

fn lines(runs: &[Run]) -> Vec<u8> {
    let text: String = runs.iter().map(|r| serde_json::to_string(r).expect("plain") + "\n").collect();
    text.into_bytes()
}

fn pps() -> Metric {
    Metric("pps".into())
}

#[test]
fn runs_come_back_as_they_were_measured() {
    let folder = Folder::absent("store-back");
    let (store, moved) = Store::create(&folder.0).expect("a new folder");
    assert_eq!(moved, None);
    store.append("a", &pps(), &run(0, 1.25)).expect("space");
    store.append("a", &pps(), &run(3, 2e7)).expect("space");
    let evidence = folder.evidence().expect("valid");
    assert_eq!(evidence.runs["a"], [run(0, 1.25), run(3, 2e7)]);
    assert!(evidence.tails.is_empty() && !evidence.runs.contains_key("b"));
    assert_eq!(folder.read("raw/a.pps"), "1.25\n20000000\n");
}

#[test]
fn a_file_cut_at_any_byte_yields_every_whole_run_and_says_what_is_left_out() {
    let runs = [run(0, 1.0), run(1, 2.5), run(2, 3e6)];
    let bytes = lines(&runs);
    let folder = holding("store-every-byte", &bytes);
    for cut in 0..=bytes.len() {
        folder.write("raw/a.jsonl", &bytes[..cut]);
        let evidence = folder.evidence().unwrap_or_else(|e| panic!("cut at {cut}: {e}"));
        // a run is whole from its last brace on; the line end may be missing
        let whole = (1..=3).filter(|&n| lines(&runs[..n]).len() - 1 <= cut).count();
        assert_eq!(evidence.runs["a"], runs[..whole], "cut at {cut}");
        let start = lines(&runs[..whole]).len();
        assert_eq!(evidence.left_out().count(), usize::from(cut > start), "cut at {cut}");
        let store = Store::open(&folder.0).expect("there");
        store.mend(&evidence).expect("space");
        let mended = fs::read(folder.0.join("raw/a.jsonl")).expect("there");
        assert_eq!(mended, lines(&runs[..whole]), "cut at {cut}");
    }
}

proptest! {
    #[test]
    fn no_damage_makes_the_reader_panic_and_none_passes_for_other_values(
        values in proptest::collection::vec(0.0f64..1e9, 1..BLOCKS),
        at in any::<prop::sample::Index>(),
        with in proptest::collection::vec(any::<u8>(), 0..9),
    ) {
        let runs: Vec<Run> = values.iter().enumerate().map(|(i, f)| run(i, *f)).collect();
        let bytes = lines(&runs);
        // a power cut can leave zeros or an older block's bytes where the last line should be
        let cut = at.index(bytes.len());
        let mut damaged = bytes[..cut].to_vec();
        damaged.extend(&with);
        let folder = holding("store-damage", &damaged);
        let before = bytes[..cut].iter().filter(|&&b| b == b'\n').count();
        if let Ok(evidence) = folder.evidence() {
            prop_assert!(evidence.runs["a"].len() >= before);
            prop_assert_eq!(&evidence.runs["a"][..before], &runs[..before]);
        } else {
            prop_assert!(!with.is_empty(), "a mere cut is never refused");
        }
    }
}

#[test]
fn lines_that_are_no_run_of_the_campaign_are_refused_with_file_and_line() {
    let good = run(0, 1.0);
    let sample = |change: &dyn Fn(&mut Sample)| {
        let mut bad = run(1, 1.0);
        bad.sample.iter_mut().for_each(change);
        bad
    };
    let cases = [
        (sample(&|s| s.pps = -1.0), "pps -1, expected 0 or more"),
        (sample(&|s| s.pps = f64::NAN), "invalid type: null"),
        (sample(&|s| s.seconds = 0.0), "seconds 0, expected more than 0"),
        (Run { block: 2, ..run(1, 1.0) }, "block 2, expected 1 for order 2"),
        (Run { order: 3, ..run(1, 1.0) }, "order 3 is b's in manifest.json, not a's"),
        (Run { order: 40, ..run(1, 1.0) }, "order 40, expected below 40"),
        (Run { session: 2, ..run(1, 1.0) }, "session 2, expected below 2"),
        (Run { error: Some("both".into()), ..run(1, 1.0) }, "both sample and error"),
        (run(0, 1.0), "order 0 is already in line 1"),
        (
            Run { format: 2, ..run(1, 1.0) },
            "format 2, expected 1 to 1: read it with the version that wrote it",
        ),
        (Run { format: 0, ..run(1, 1.0) }, "format 0, expected 1 to 1"),
        (Run { seed: 9, order: 0, ..run(0, 1.0) }, "seed 9, but other runs of block 0 have 1"),
    ];
    for (bad, why) in cases {
        let said = holding("store-bad-line", &lines(&[good.clone(), bad])).refused();
        assert!(said.contains("a.jsonl:2: not a run of this campaign") && said.contains(why), "{said}");
    }
    let said = holding("store-bad-text", b"nonsense\n").refused();
    assert!(said.contains("a.jsonl:1: not a run") && said.ends_with("or remove the line"), "{said}");
    let said = holding("store-bad-bytes", b"\xff\xfe\n").refused();
    assert!(said.contains("a.jsonl:1: not a run of this campaign (bytes that are no text)"), "{said}");
}

#[test]
fn a_newer_format_is_refused_even_without_its_line_end() {
    let mut bytes = lines(&[Run { format: 2, ..run(0, 1.0) }]);
    bytes.pop();
    assert!(holding("store-newer", &bytes).refused().contains("format 2, expected 1 to 1"));
}

#[test]
fn lines_from_before_formats_and_sessions_are_read() {
    let old = r#"{"block":0,"order":0,"seed":1,"started_unix_ms":2,"sample":null,"error":"no route"}"#;
    let evidence = holding("store-old", format!("{old}\n").as_bytes()).evidence().expect("format 1");
    assert_eq!((evidence.runs["a"][0].format, evidence.runs["a"][0].session), (1, 0));
}

#[test]
fn files_of_unknown_configurations_are_refused_and_side_files_are_not() {
    let folder = holding("store-unknown", &lines(&[run(0, 1.0)]));
    folder.write("raw/a.trials.jsonl", "{}\n");
    folder.write("raw/notes.txt", "mine");
    assert!(folder.evidence().is_ok());
    folder.write("raw/ab.jsonl", "");
    let said = folder.refused();
    assert!(said.contains("ab.jsonl: manifest.json has no configuration ab; move the file away"), "{said}");
}

#[test]
fn a_failed_run_may_be_followed_by_its_repetition_and_only_in_a_later_session() {
    let failed = Run { sample: None, error: Some("host down".into()), ..run(0, 0.0) };
    let again = Run { session: 1, ..run(0, 5.0) };
    let folder = holding("store-repeated", &lines(&[failed.clone(), run(1, 2.0), again.clone()]));
    let evidence = folder.evidence().expect("valid");
    assert_eq!(evidence.runs["a"], [run(1, 2.0), again]);
    assert_eq!(evidence.repeated, [("a".to_string(), 0)]);
    let said = holding("store-repeated-at-once", &lines(&[failed, run(0, 5.0)])).refused();
    assert!(said.contains("a.jsonl:2:") && said.contains("already in line 1"), "{said}");
}

#[test]
fn plain_files_that_disagree_with_the_runs_are_written_again() {
    let folder = holding("store-plain", &lines(&[run(0, 1.5), run(1, 2.5)]));
    let runs = folder.evidence().expect("valid").runs;
    for wrong in ["", "1.5\n", "1.5\n2.", "1.5\n2.6\n", "1.5\n2.5\n2.5\n"] {
        folder.write("raw/a.pps", wrong);
        assert_eq!(rebuild_plain_files(&folder.0, &pps(), &runs).expect("space").len(), 1, "{wrong:?}");
        assert_eq!(folder.read("raw/a.pps"), "1.5\n2.5\n");
    }
    assert!(rebuild_plain_files(&folder.0, &pps(), &runs).expect("space").is_empty());
}

#[test]
fn earlier_evidence_is_renamed_and_foreign_folders_are_refused() {
    let folder = Folder::absent("store-earlier");
    let (store, _) = Store::create(&folder.0).expect("a new folder");
    store.write("manifest.json", "{}").expect("space");
    drop(store);
    let (_, moved) = Store::create(&folder.0).expect("an earlier campaign");
    let kept = Folder(moved.expect("renamed"));
    assert!(kept.0.join("manifest.json").exists());
    fs::remove_dir_all(folder.0.join("raw")).expect("there");
    folder.write("letter.txt", "mine");
    let error = Store::create(&folder.0).expect_err("not ours");
    assert!(error.said.contains("choose another --out"), "{error}");
}

#[test]
fn a_folder_left_before_the_first_run_is_used_again() {
    let folder = Folder::absent("store-unbegun");
    drop(Store::create(&folder.0).expect("a new folder"));
    folder.write("manifest.json.half", "{");
    let (_, moved) = Store::create(&folder.0).expect("nothing to lose");
    assert_eq!(moved, None);
}

#[test]
fn two_processes_do_not_write_to_one_campaign() {
    let folder = Folder::absent("store-held");
    let (store, _) = Store::create(&folder.0).expect("a new folder");
    store.write("manifest.json", "{}").expect("space");
    for error in [Store::open(&folder.0).map(|_| ()), Store::create(&folder.0).map(|_| ())] {
        let said = error.expect_err("held").said;
        assert!(said.contains("a campaign is under way in it"), "{said}");
    }
}

#[test]
fn a_manifest_cut_at_any_byte_is_refused_with_what_to_do() {
    let folder = Folder::absent("store-manifest");
    let (store, _) = Store::create(&folder.0).expect("a new folder");
    let text = manifest().text().expect("plain");
    store.write("manifest.json", &text).expect("space");
    assert_eq!(Manifest::read(&folder.0).expect("whole"), manifest());
    let path = folder.0.join("manifest.json");
    for cut in 0..text.trim_end().len() {
        fs::write(&path, &text.as_bytes()[..cut]).expect("space");
        let said = Manifest::read(&folder.0).expect_err("cut").said;
        assert!(
            said.contains("manifest.json") && said.contains("restore the file from a copy"),
            "{cut}: {said}"
        );
    }
    let newer = text.replacen("\"format\": 1", "\"format\": 2, \"experiment\": 0, \"was\": 1", 1);
    fs::write(&path, newer).expect("space");
    let said = Manifest::read(&folder.0).expect_err("newer").said;
    assert!(said.contains("format 2, expected 1 to 1: read it with the version that wrote it"), "{said}");
}
