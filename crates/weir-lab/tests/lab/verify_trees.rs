//! `verify` on trees of the published form: what it promises of each class, of claims, and of hostile input.

use std::fs;
use std::io::Write as _;
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::common::program::lab;
use proptest::prelude::*;
use weir_lab::result::verify::Campaigns;
use weir_stats::ministat::{Confidence, Dialect, Parts, Set, Style, block};
use weir_stats::verify::claims::WarningKind;
use weir_stats::verify::show::Counts;
use weir_stats::verify::{Block, Class, Verified, verify};
use weir_testing::folder::Folder;

const OLD: [f64; 5] = [3_771_105.0, 3_820_007.5, 3_799_450.0, 3_806_112.0, 3_788_901.0];
const NEW: [f64; 5] = [4_010_233.0, 3_990_871.5, 4_052_118.0, 4_031_744.0, 4_007_302.0];
/// Difference of interest, percent.
const EFFECT: f64 = 5.0;

/// A folder of documents and raw data.
struct Tree {
    folder: Folder,
}

impl Deref for Tree {
    type Target = Folder;

    fn deref(&self) -> &Folder {
        &self.folder
    }
}

impl Tree {
    fn new(name: &str) -> Tree {
        Tree { folder: Folder::new(name) }
    }

    fn with(self, name: &str, text: impl AsRef<[u8]>) -> Tree {
        self.write(name, text);
        self
    }

    /// A README with this block in a fence, and prose around it.
    fn readme(self, block: &str) -> Tree {
        self.with("README.md", format!("# Old against new\n\n```\n{block}```\n\nThat is all.\n"))
    }

    fn data(self) -> Tree {
        self.with("old.pps", lines(&OLD)).with("new.pps", lines(&NEW))
    }

    fn verify(&self) -> Verified {
        verify(&self.0, EFFECT, &Campaigns).expect("a folder")
    }

    fn class(&self) -> Class {
        only(&self.verify()).classified.class
    }

    /// Texts of warnings of one kind.
    fn warnings(&self, kind: WarningKind) -> Vec<String> {
        self.verify().warnings.into_iter().filter(|f| f.kind == kind).map(|f| f.text).collect()
    }
}

fn lines(values: &[f64]) -> String {
    values.iter().map(|v| format!("{v}\n")).collect()
}

fn printed(sets: &[(&str, &[f64])], style: Style) -> String {
    let sets: Vec<Set> = sets.iter().map(|(name, values)| Set::new(*name, values)).collect();
    block(&sets, style).expect("sets that have a block")
}

fn plain() -> String {
    printed(&[("old.pps", &OLD), ("new.pps", &NEW)], Style::default())
}

fn only(verified: &Verified) -> &Block {
    assert_eq!(verified.blocks.len(), 1, "{}", verified.text(true));
    &verified.blocks[0]
}

/// A generator's log whose median rate is `rate`.
fn receiver(rate: f64) -> String {
    let line =
        |pps: f64| format!("587.1 main_thread [2786] {pps} pps (5 pkts 9 bps in 1000 usec) 8.2 avg_batch\n");
    let body: String = [rate - 7.0, rate, rate + 9.0].map(line).concat();
    line(5.0).repeat(15) + &body + &"Speed: 1 pps\n".repeat(10)
}

fn with_logs(tree: Tree, set: &str, rates: &[f64]) -> Tree {
    rates.iter().enumerate().fold(tree, |tree, (i, rate)| {
        tree.with(&format!("RAW/bench.{set}.{}.receiver", i + 1), receiver(*rate))
    })
}

#[test]
fn a_block_that_follows_from_the_files_its_legend_names_is_reproduced() {
    let tree = Tree::new("plain").data().readme(&plain());
    let verified = tree.verify();
    assert_eq!(only(&verified).classified.class, Class::Reproduced, "{}", verified.text(true));
    assert_eq!(only(&verified).printed.line, 4);
    let counts = Counts { blocks: 1, reproduced: 1, whitespace: 0, differs: 0, no_data: 0 };
    assert_eq!(verified.counts(), counts);
}

#[test]
fn legends_are_the_authors_words_and_sets_are_known_by_their_values() {
    let sets: [(&str, &[f64]); 2] = [("before (default)", &OLD), ("with the patch: packets a second", &NEW)];
    let tree = Tree::new("words").data().readme(&printed(&sets, Style::default()));
    assert_eq!(tree.class(), Class::Reproduced);
}

#[test]
fn an_edited_digit_differs_and_is_named_with_both_values() {
    let tree = Tree::new("digit").data().readme(&plain().replace("3797115.1", "3797116.1"));
    let verified = tree.verify();
    let classified = &only(&verified).classified;
    assert_eq!(classified.class, Class::Differs);
    let d = classified.difference.as_ref().expect("a value");
    assert_eq!((d.value.as_str(), d.printed.as_str()), ("Avg of x (old.pps)", "3797116.1"));
    assert_eq!(d.derived, "3797115.1");
    assert!(classified.reason.contains("edited by hand"), "{}", classified.reason);
}

#[test]
fn an_edited_sentence_differs_though_the_table_is_right() {
    let tree = Tree::new("sentence").data().readme(&plain().replace("+/- 0.8", "+/- 0.7"));
    let verified = tree.verify();
    let classified = &only(&verified).classified;
    assert_eq!(classified.class, Class::Differs);
    let d = classified.difference.as_ref().expect("a value");
    assert!(d.value.starts_with("its relative error of +") && d.printed.starts_with("0.7"), "{d:?}");
}

#[test]
fn layout_alone_is_white_space_whatever_its_kind() {
    type Edit = fn(&str) -> String;
    let kinds: [(&str, Edit, &str); 5] = [
        ("tabs", |b| b.replace('\t', "        "), "blanks for tabs"),
        ("returns", |b| b.replace('\n', "\r\n"), "carriage returns"),
        ("quoted", |b| b.lines().map(|l| format!("> {l}\n")).collect(), "quote marks"),
        ("indented", |b| b.lines().map(|l| format!("    {l}\n")).collect(), "blanks"),
        ("run on", |b| format!("{}x old.pps\n", b.trim_end()), "blanks"),
    ];
    for (kind, edit, said) in kinds {
        let tree = Tree::new(&format!("layout-{kind}")).data().readme(&edit(&plain()));
        let verified = tree.verify();
        let classified = &only(&verified).classified;
        assert_eq!(classified.class, Class::Whitespace, "{kind}: {classified:?}");
        assert!(classified.reason.contains(said), "{kind}: {}", classified.reason);
    }
}

#[test]
fn a_point_moved_in_the_plot_is_no_layout() {
    let block = plain();
    let row = block.lines().find(|l| l.contains(" x ")).expect("a point with room");
    let tree = Tree::new("point").data().readme(&block.replace(row, &row.replacen(" x ", "  x", 1)));
    let verified = tree.verify();
    let classified = &only(&verified).classified;
    assert_eq!(classified.class, Class::Differs);
    assert_eq!(classified.difference.as_ref().expect("a row").value, "plot");
}

#[test]
fn lines_cut_by_hand_differ_and_a_cut_plot_is_ministats_own_option() {
    let without_plot: String = plain()
        .lines()
        .filter(|l| !l.starts_with(['|', '+']) || l.starts_with("+ "))
        .map(|l| format!("{l}\n"))
        .collect();
    assert_eq!(Tree::new("no-plot").data().readme(&without_plot).class(), Class::Reproduced);
    let cut: String = plain().lines().filter(|l| !l.contains("Student")).map(|l| format!("{l}\n")).collect();
    let verified = Tree::new("cut").data().readme(&cut).verify();
    let classified = &only(&verified).classified;
    assert_eq!(classified.class, Class::Differs);
    assert!(classified.reason.contains("cut by hand"), "{}", classified.reason);
}

#[test]
fn a_block_without_raw_data_says_so_and_a_near_file_of_other_runs_is_not_taken_for_it() {
    let tree = Tree::new("none").with("other.pps", "1\n2\n3\n").readme(&plain());
    let verified = tree.verify();
    assert_eq!(only(&verified).classified.class, Class::NoData);
    assert!(
        only(&verified).classified.reason.contains("x (old.pps), + (new.pps)"),
        "{}",
        verified.text(true)
    );
}

#[test]
fn a_named_file_with_other_runs_differs_and_is_blamed() {
    let tree = Tree::new("overwritten").data().readme(&plain()).with("old.pps", lines(&NEW.map(|v| v * 0.3)));
    let verified = tree.verify();
    let classified = &only(&verified).classified;
    assert_eq!(classified.class, Class::Differs);
    assert!(classified.reason.contains("old.pps holds other runs"), "{}", classified.reason);
}

#[test]
fn every_dialect_width_and_option_is_found() {
    let even = [10.0, 14.0, 11.0, 13.0];
    let more = [20.0, 27.0, 21.0, 24.0];
    let sets: [(&str, &[f64]); 2] = [("old.pps", &even), ("new.pps", &more)];
    let plain = Style::default();
    let styles = [
        (Style { dialect: Dialect::Old, ..plain }, "dialect old"),
        (Style { dialect: Dialect::Midpoint, ..plain }, "dialect midpoint"),
        (Style { dialect: Dialect::Modern, ..plain }, "dialect modern"),
        (Style { width: 60, ..plain }, "width 60"),
        (Style { separate_bars: false, ..plain }, "without -s"),
        (Style { confidence: Confidence::P99, ..plain }, "-c 99"),
        (Style { parts: Parts::NoPlot, ..plain }, "-A"),
    ];
    for (i, (style, said)) in styles.into_iter().enumerate() {
        let tree =
            Tree::new(&format!("style-{i}")).with("old.pps", lines(&even)).with("new.pps", lines(&more));
        let verified = tree.readme(&printed(&sets, style)).verify();
        let classified = &only(&verified).classified;
        assert_eq!(classified.class, Class::Reproduced, "{said}: {classified:?}");
        assert!(classified.style.contains(said), "{said} in {}", classified.style);
    }
}

#[test]
fn sets_come_from_further_columns_sibling_folders_and_the_documents_own_tables() {
    let table: String = OLD.iter().zip(NEW).map(|(a, b)| format!("run {a} {b}\n")).collect();
    let columns = Tree::new("columns").with("both.data", table).readme(&plain());
    let verified = columns.verify();
    assert_eq!(only(&verified).classified.class, Class::Reproduced, "{}", verified.text(true));
    assert!(only(&verified).classified.style.contains("-C 2, -C 3"), "{}", only(&verified).classified.style);

    let sets: [(&str, &[f64]); 2] = [("../first/old.pps", &OLD), ("the second", &NEW)];
    let readme = printed(&sets, Style::default());
    let siblings = Tree::new("siblings").with("first/old.pps", lines(&OLD)).with("third/n.txt", lines(&NEW));
    let siblings = siblings.with("second/README.md", readme);
    assert_eq!(siblings.class(), Class::Reproduced);

    let rows: String =
        [OLD, NEW].map(|set| set.iter().map(|v| format!("| {v} ")).collect::<String>() + "|\n").concat();
    let own = Tree::new("table").with("readme.MD", format!("{rows}\n\n{}", plain()));
    assert_eq!(own.class(), Class::Reproduced);
}

#[test]
fn generator_logs_stand_in_for_the_files_made_of_them() {
    let rates = OLD.map(f64::floor);
    let sets: [(&str, &[f64]); 2] = [("old.pps", &rates), ("tunnel", &[901.0, 899.0, 906.0])];
    let mut tree = with_logs(Tree::new("logs"), "old", &rates).readme(&printed(&sets, Style::default()));
    for (run, mbps) in ["901", "899", "906"].iter().enumerate() {
        let said =
            format!("Estimated Equilibrium Ethernet throughput= {mbps} Mb/s (maximum value seen: 907 Mb/s)");
        tree = tree.with(&format!("RAW/bench.tunnel.{}.sender", run + 1), format!("noise\n{said}\n"));
    }
    let verified = tree.verify();
    assert_eq!(only(&verified).classified.class, Class::Reproduced, "{}", verified.text(true));
    assert!(verified.text(true).contains("RAW/old.pps of 5 logs"), "{}", verified.text(true));
}

#[test]
fn packed_data_is_unpacked() {
    let tree = Tree::new("packed").readme(&plain()).with("new.pps", lines(&NEW));
    let packed = fs::File::create(tree.0.join("old.pps.gz")).expect("space");
    let gzip = Command::new("gzip").arg("-c").stdin(Stdio::piped()).stdout(packed).spawn();
    let Ok(mut gzip) = gzip else {
        writeln!(std::io::stderr(), "SKIP packed_data_is_unpacked: no gzip").expect("stderr is open");
        return;
    };
    gzip.stdin.take().expect("piped").write_all(lines(&OLD).as_bytes()).expect("gzip reads");
    assert!(gzip.wait().expect("gzip ends").success());
    assert_eq!(tree.class(), Class::Reproduced);
}

#[test]
fn a_dropped_run_is_flagged_with_its_value() {
    let rates = [100_100.0, 100_200.0, 100_300.0, 100_400.0, 55_000.0];
    let sets: [(&str, &[f64]); 2] = [("kept.pps", &rates[..4]), ("new.pps", &NEW)];
    let tree = with_logs(Tree::new("dropped"), "kept", &rates).with("kept.pps", lines(&rates[..4]));
    let tree = tree.with("new.pps", lines(&NEW)).readme(&printed(&sets, Style::default()));
    assert_eq!(tree.class(), Class::Reproduced);
    let warnings = tree.warnings(WarningKind::Runs);
    assert_eq!(warnings, ["kept.pps holds 4 runs, its logs give 5; in the logs only: 55000"]);
}

#[test]
fn verdicts_that_vanish_under_welch_or_holm_are_flagged_and_solid_ones_are_not() {
    // Student's p 0.026, Welch's 0.26
    let steady = [100.0, 101.0, 99.0, 100.5, 99.5, 100.2, 99.8, 100.1];
    let wild = [103.0, 99.6, 106.0];
    let sets: [(&str, &[f64]); 2] = [("steady", &steady), ("wild", &wild)];
    let block = printed(&sets, Style::default());
    assert!(block.contains("\nDifference at"), "{block}");
    let tree = Tree::new("welch").with("a.pps", lines(&steady)).with("b.pps", lines(&wild)).readme(&block);
    let warnings = tree.warnings(WarningKind::Deviations);
    assert!(
        warnings.len() == 1 && warnings[0].starts_with("+ (wild) against x (steady): Student's p"),
        "{warnings:?}"
    );

    // p 0.03 alone, one of three
    let base = [10.0, 10.2, 9.8, 10.1, 9.9];
    let moved = base.map(|v| v + 0.27);
    let noise = [[10.05, 10.2, 9.85, 10.1, 9.9], [9.9, 10.25, 9.8, 10.0, 9.9]];
    let sets: [(&str, &[f64]); 4] = [("base", &base), ("moved", &moved), ("c", &noise[0]), ("d", &noise[1])];
    let mut tree = Tree::new("holm").readme(&printed(&sets, Style::default()));
    for (name, values) in sets {
        tree = tree.with(&format!("{name}.pps"), lines(values));
    }
    let warnings = tree.warnings(WarningKind::Family);
    assert!(warnings.len() == 1 && warnings[0].contains("as one of 3"), "{warnings:?}");

    let solid = Tree::new("solid").data().readme(&plain());
    assert_eq!(solid.verify().warnings, []);
}

#[test]
fn no_difference_is_flagged_when_the_effect_of_interest_would_have_been_missed() {
    let a = [100.0, 110.0, 90.0, 105.0, 95.0];
    let b = [102.0, 111.0, 91.0, 104.0, 99.0];
    let sets: [(&str, &[f64]); 2] = [("a.pps", &a), ("b.pps", &b)];
    let tree = Tree::new("weak").with("a.pps", lines(&a)).with("b.pps", lines(&b));
    let tree = tree.readme(&printed(&sets, Style::default()));
    let warnings = tree.warnings(WarningKind::Weak);
    assert!(
        warnings.len() == 1 && warnings[0].contains("5 % takes ") && warnings[0].contains("runs a set"),
        "{warnings:?}"
    );
    let patient = verify(&tree.0, 50.0, &Campaigns).expect("a folder");
    assert_eq!(patient.warnings, []);
}

#[test]
fn values_a_document_gives_twice_must_agree() {
    let again = printed(&[("old.pps", &OLD.map(|v| v + 10.0)), ("new.pps", &NEW)], Style::default());
    let text = format!(
        "| | median |\n|---|--:|\n| old | 3,799,405 |\n| new | 4,010,233 |\n\n{}\n\
         Forwarding improved by 6 % here.\n\nBut it is 9.5 % faster, some say.\n\n{again}",
        plain()
    );
    let tree = Tree::new("document").data().with("README.md", text);
    let warnings = tree.warnings(WarningKind::Document);
    assert_eq!(warnings.len(), 3, "{warnings:?}");
    assert!(
        warnings.iter().any(|f| f.starts_with("old.pps has other values in the block at line 6")),
        "{warnings:?}"
    );
    assert!(warnings.iter().any(|f| f.contains("3,799,405") && f.contains("Median of x")), "{warnings:?}");
    assert!(warnings.iter().any(|f| f.contains("9.5 %")), "{warnings:?}");
}

#[test]
fn hostile_trees_are_read_to_their_end() {
    let binary: Vec<u8> = (0..=255).cycle().take(4096).collect();
    let mut broken = b"\xff\xfe caf\xe9\n".to_vec();
    broken.extend(plain().bytes());
    let tree = Tree::new("hostile").data().with("README.md", "").with("raw.bin", &binary);
    let tree =
        tree.with("a/README.md", &binary).with("b/readme.txt", &broken).with("c/README.markdown", "+-\n|\n");
    let tree = tree.with(
        "d/README.md",
        "    N Min Max Median Avg Stddev\nx 5 1\n+ nan\n* 99999999999999999999 1e999 nan\n",
    );
    let tree = tree.with("e/README.md", plain().replace(&"-".repeat(74), "-"));
    let tree = tree.with("e/huge.pps", "7\n".repeat(700_000));
    #[cfg(unix)]
    {
        std::os::unix::fs::symlink("..", tree.0.join("a/up")).expect("links");
        std::os::unix::fs::symlink("nowhere", tree.0.join("a/README.lost.md")).expect("links");
    }
    let verified = tree.verify();
    assert_eq!(verified.documents, 6, "{}", verified.text(true));
    assert_eq!(verified.blocks.len(), 3, "{}", verified.text(true));
    let in_b: Vec<Class> = verified
        .blocks
        .iter()
        .filter(|b| b.file.ends_with("b/readme.txt"))
        .map(|b| b.classified.class)
        .collect();
    assert_eq!(in_b, [Class::Reproduced]);
}

#[test]
fn a_path_that_is_not_there_is_refused_with_the_remedy() {
    let error = verify(Path::new("no/such/folder"), EFFECT, &Campaigns).err().expect("nothing there");
    assert!(error.to_string().contains("name a README or a folder"), "{error}");
}

/// Standard output and exit status of `weir-lab verify`.
fn command(arguments: &[&str], path: &Path) -> (String, Option<i32>) {
    let run = lab().arg("verify").args(arguments).arg(path).output();
    let run = run.expect("the program starts");
    (String::from_utf8(run.stdout).expect("text"), run.status.code())
}

#[test]
fn programs_get_five_counts_and_the_exit_status_tells_a_difference() {
    let good = Tree::new("json-good").data().readme(&plain());
    let (out, status) = command(&["--json"], &good.0);
    assert_eq!(out, "{\"blocks\":1,\"reproduced\":1,\"whitespace\":0,\"differs\":0,\"no_data\":0}\n");
    assert_eq!(status, Some(0));
    let bad = Tree::new("json-bad").data().readme(&plain().replace("3797115.1", "3797116.1"));
    let (out, status) = command(&["--json", "--details"], &bad.0);
    assert_eq!(status, Some(1));
    let value: serde_json::Value = serde_json::from_str(&out).expect("JSON");
    assert_eq!(
        (&value["differs"], &value["details"][0]["difference"]["derived"]),
        (&1.into(), &"3797115.1".into())
    );
    let (text, status) = command(&[], &bad.0.join("README.md"));
    assert!(status == Some(1) && text.contains("README.md:4  differs"), "{text}");
    assert!(text.contains("Avg of x (old.pps): printed 3797116.1, derived 3797115.1"), "{text}");
}

/// The folder of a campaign committed with the source.
fn campaign() -> Option<PathBuf> {
    let runs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../runs");
    let mut campaigns: Vec<PathBuf> = fs::read_dir(runs).ok()?.flatten().map(|e| e.path()).collect();
    campaigns.sort();
    campaigns.into_iter().find(|c| c.join("result.json").is_file())
}

#[test]
fn results_of_a_campaign_are_derived_again_and_an_edited_one_is_named() {
    let Some(campaign) = campaign() else {
        writeln!(
            std::io::stderr(),
            "SKIP results_of_a_campaign_are_derived_again_and_an_edited_one_is_named: no campaign in runs/"
        )
        .expect("stderr is open");
        return;
    };
    let verified = verify(&campaign, EFFECT, &Campaigns).expect("a folder");
    assert_eq!(verified.counts().differs, 0, "{}", verified.text(true));
    assert!(verified.counts().reproduced > 1, "{}", verified.text(true));
    let mut tree = Tree::new("campaign");
    for entry in fs::read_dir(campaign.join("raw")).expect("raw runs").flatten() {
        let bytes = fs::read(entry.path()).expect("readable");
        tree = tree.with(&format!("raw/{}", entry.file_name().to_string_lossy()), bytes);
    }
    let results = fs::read_to_string(campaign.join("result.json")).expect("readable");
    let mut value: serde_json::Value = serde_json::from_str(&results).expect("JSON");
    let mean = value["configurations"][0]["summary"]["mean"].as_f64().expect("a mean");
    value["configurations"][0]["summary"]["mean"] = (mean * 1.01).into();
    let manifest = fs::read(campaign.join("manifest.json")).expect("readable");
    let tree = tree.with("manifest.json", manifest).with("result.json", value.to_string());
    let verified = tree.verify();
    let classified = &only(&verified).classified;
    let difference = classified.difference.as_ref().expect("a value");
    assert!(difference.value.ends_with("summary.mean"), "{difference:?}");
}

#[test]
fn published_blocks_come_out_of_the_raw_data_beside_them() {
    let beside = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../shared/corpus/netbenches");
    let corpus = std::env::var_os("WEIR_CORPUS").map_or(PathBuf::from(beside), PathBuf::from);
    if !corpus.is_dir() {
        writeln!(std::io::stderr(), "SKIP published_blocks_come_out_of_the_raw_data_beside_them: no corpus of published blocks (set WEIR_CORPUS)")
            .expect("stderr is open");
        return;
    }
    let verified = verify(&corpus, EFFECT, &Campaigns).expect("a folder");
    let c = verified.counts();
    writeln!(std::io::stderr(), "{c:?}").expect("stderr is open");
    let (out, with_data) = (c.reproduced + c.whitespace, c.blocks - c.no_data);
    assert!(with_data > 0 && out * 100 >= with_data * 98, "{out} of {with_data}\n{}", verified.text(false));
    let unexplained: Vec<&Block> = verified
        .blocks
        .iter()
        .filter(|b| {
            matches!(b.classified.class, Class::Differs | Class::NoData) && b.classified.reason.is_empty()
        })
        .collect();
    assert!(unexplained.is_empty(), "{unexplained:?}");
}

fn line() -> impl Strategy<Value = String> {
    prop_oneof![
        Just("    N           Min           Max        Median           Avg        Stddev".to_string()),
        Just("+------+".to_string()),
        Just("|x  + *|".to_string()),
        Just("Difference at 95.0% confidence".to_string()),
        Just("No difference proven at 1e9% confidence".to_string()),
        Just("\t3.8 +/- 0.9".to_string()),
        Just("(Student's t, pooled s = 7)x y".to_string()),
        "[x+*%#@O] [ -~]{0,12}",
        "[x+*%#@O]( {1,3}[-0-9.e]{1,9}){1,7}",
        "\\|( [0-9,.]{1,9} \\|){1,4}",
        "improved by [0-9.]{1,5} ?%",
        "\\PC{0,20}",
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn any_text_is_settled_without_panic(text in proptest::collection::vec(line(), 0..40), seed in 0u64..u64::MAX) {
        let tree = Tree::new(&format!("random-{seed}")).data().with("README.md", text.join("\n"));
        let verified = tree.verify();
        let c = verified.counts();
        prop_assert_eq!(c.blocks, c.reproduced + c.whitespace + c.differs + c.no_data);
        prop_assert!(!verified.text(true).is_empty() && !verified.json(true).is_empty());
    }
}
