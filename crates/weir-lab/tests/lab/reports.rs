//! What the page shows for values that are known: campaigns written by hand, their pictures read back.

use weir_lab::build::Build;
use weir_lab::experiment::{Changes, Experiment};
use weir_lab::machine::Machine;
use weir_lab::manifest::{self, Manifest};
use weir_lab::model::Sample;
use weir_lab::report;
use weir_lab::store::{self, Run};
use weir_stats::search::LossLedger;
use weir_testing::folder::Folder;

/// The page of a campaign in which each configuration had these rates, block by block.
fn page(name: &str, title: &str, rates: &[(&str, &[f64])]) -> String {
    let folder = Folder::new(name);
    let runs = rates[0].1.len();
    let text = format!(
        "title = \"{title}\"\nquestion = \"q\"\nruns = {runs}\nwarm_up = \"1ms\"\nwindow = \"1ms\"\nbaseline = true\n\
         margin_percent = 5\n[[configuration]]\nname = \"a\"\n[[configuration]]\nname = \"b\"\nroutes = 7\n"
    );
    let order = vec![rates.iter().map(|(name, _)| name.to_string()).collect::<Vec<_>>(); runs];
    let manifest = Manifest {
        format: manifest::FORMAT,
        experiment: Experiment::parse("t", "t.toml", &text, &Changes::default()).expect("valid"),
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
    for (place, (name, rates)) in rates.iter().enumerate() {
        let line = |(block, pps): (usize, &f64)| {
            let ledger = LossLedger { sent: 1, delivered: 1, ..LossLedger::default() };
            let run = Run {
                format: store::FORMAT,
                block,
                order: block * order_length(&manifest) + place,
                seed: 1,
                session: 0,
                started_unix_ms: 0,
                sample: Some(Sample { seconds: 1.0, pps: *pps, ledger, ..Sample::default() }),
                error: None,
                misbehaviour: None,
            };
            serde_json::to_string(&run).expect("plain") + "\n"
        };
        let lines: String = rates.iter().enumerate().map(line).collect();
        folder.write(&format!("raw/{name}.jsonl"), lines);
    }
    report::write(&folder.0).unwrap_or_else(|e| panic!("{e}"));
    folder.read("report.html")
}

fn order_length(manifest: &Manifest) -> usize {
    manifest.order[0].len()
}

/// The section under a heading.
fn section<'a>(page: &'a str, id: &str) -> &'a str {
    let from = page.split_once(&format!("<section id=\"{id}\">")).unwrap_or_else(|| panic!("no {id}")).1;
    from.split_once("</section>").expect("closed").0
}

/// (x, y) of the points that say they are runs of `name`, in order.
fn points(section: &str, name: &str) -> Vec<(f64, f64)> {
    let number = |mark: &str, key: &str| -> f64 {
        let from = mark.split_once(&format!("{key}=\"")).expect("an attribute").1;
        from.split_once('"').expect("quoted").0.parse().expect("a number")
    };
    let marks = section.split("<circle ").skip(1);
    marks
        .filter(|m| m.contains(&format!("<title>{name}, run ")))
        .map(|m| (number(m, "cx"), number(m, "cy")))
        .collect()
}

const CALM: [f64; 6] = [10.0e6, 10.1e6, 9.9e6, 10.05e6, 9.95e6, 10.0e6];

#[test]
fn points_lie_where_their_values_are() {
    let steps = [10e6, 11e6, 12e6, 13e6, 14e6, 15e6];
    let page = page("points", "t", &[("a", &steps), ("b", &CALM), ("baseline", &CALM)]);
    let strip = points(section(&page, "every-run-in-memory"), "a");
    let gaps: Vec<f64> = strip.windows(2).map(|w| w[1].0 - w[0].0).collect();
    assert!(gaps.iter().all(|g| *g > 0.0 && (g - gaps[0]).abs() < 0.2), "equal steps, equal gaps: {gaps:?}");
    assert!(strip.windows(2).all(|w| w[1].1 > w[0].1), "a later block lies lower: {strip:?}");
    // up the page is less
    let time = points(section(&page, "runs-over-time"), "a");
    assert!(time.windows(2).all(|w| w[1].0 > w[0].0 && w[1].1 < w[0].1), "a drift rises: {time:?}");
}

#[test]
fn a_baseline_far_above_is_told_in_words_and_a_near_one_drawn() {
    let far = CALM.map(|f| f * 20.0);
    let told = page("far", "t", &[("a", &CALM), ("b", &CALM), ("baseline", &far)]);
    let strips = section(&told, "every-run-in-memory");
    assert!(strips.contains("beyond this axis") && points(strips, "baseline").is_empty());
    assert!(strips.contains(">200.0 ± "), "its mean is told: {strips}");
    let near = CALM.map(|f| f * 1.2);
    let drawn = page("near", "t", &[("a", &CALM), ("b", &CALM), ("baseline", &near)]);
    assert_eq!(points(section(&drawn, "every-run-in-memory"), "baseline").len(), 6);
}

#[test]
fn verdicts_are_told_by_shape_and_word_beside_colour() {
    let apart = CALM.map(|f| f * 1.5);
    let close = [10.02e6, 9.98e6, 10.0e6, 10.03e6, 9.97e6, 10.01e6];
    let wild = [5e6, 20e6, 9e6, 14e6, 7e6, 12e6];
    for (name, other, mark, word) in [
        ("apart", apart, "<polygon class=\"verdict-mark different\"", ">different</text>"),
        ("close", close, "<circle class=\"verdict-mark equivalent\"", ">equivalent</text>"),
        ("wild", wild, "<circle class=\"verdict-mark undecided\"", ">underpowered</text>"),
    ] {
        let page = page(name, "t", &[("a", &CALM), ("b", &other), ("baseline", &CALM)]);
        let shown = section(&page, "comparisons");
        assert!(shown.contains(mark) && shown.contains(word), "{name}: {shown}");
        assert!(shown.contains("class=\"band\"") && shown.contains("±5 %"), "{name} has its margin");
    }
}

#[test]
fn a_title_is_text_and_never_markup() {
    let page =
        page("markup", "<script>alert(1)</script>", &[("a", &CALM), ("b", &CALM), ("baseline", &CALM)]);
    assert!(page.contains("&lt;script&gt;alert(1)"), "the title is there");
    assert!(!page.contains("<script>alert"), "and harmless");
}
