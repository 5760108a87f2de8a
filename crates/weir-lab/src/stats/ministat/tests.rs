//! Blocks as ministat prints them: one drawn by the original, published ones where the corpus is at hand.

use super::*;
use std::io::Write as _;
use std::path::{Path, PathBuf};

#[test]
fn block_of_two_sets_is_printed_as_the_original_prints_it() {
    let a = Set::new("a", &[10.0, 11.0, 12.0, 11.0, 10.5]);
    let b = Set::new("b", &[14.0, 15.0, 14.5, 14.5, 15.5]);
    // drawn by ministat -s -w 74; the relative error (the one line where dialects differ here):
    // 2.306 · √((4·0.325 + 4·0.55·(14.7/10.9)²)·10/(5·5·8)) · 100/10.9
    let expected = "\
x a
+ b
+--------------------------------------------------------------------------+
|             x                                              +             |
|x      x     x             x                         +      +     +      +|
|  |_________AM________|                                                   |
|                                                       |____M_A_______|   |
+--------------------------------------------------------------------------+
    N           Min           Max        Median           Avg        Stddev
x   5            10            12            11          10.9    0.74161985
+   5            14          15.5          14.5          14.7    0.57008771
Difference at 95.0% confidence
\t3.8 +/- 0.964669
\t34.8624% +/- 10.8921%
\t(Student's t, pooled s = 0.661438)
";
    assert_eq!(block(&[a, b], Style::default()).expect("two sets of five"), expected);
}

#[test]
fn quantiles_have_three_decimals_as_in_printed_tables_and_end_at_a_hundred() {
    let printed = [
        (1, 12.706),
        (2, 4.303),
        (4, 2.776),
        (8, 2.306),
        (13, 2.16),
        (18, 2.101),
        (29, 2.045),
        (47, 2.012),
        (54, 2.005),
        (58, 2.002),
        (73, 1.993),
        (90, 1.987),
        (95, 1.985),
        (98, 1.984),
        (100, 1.984),
        (101, 1.96),
    ];
    for (df, t) in printed {
        assert_eq!(table_t(df), t, "{df} degrees of freedom");
    }
}

#[test]
fn indistinguishable_sets_prove_no_difference() {
    let a = Set::new("a", &[1.0, 2.0, 3.0]);
    let b = Set::new("b", &[1.0, 2.0, 4.0]);
    let block = block(&[a, b], Style::default()).expect("two sets of three");
    assert!(block.ends_with("No difference proven at 95.0% confidence\n"), "{block}");
}

#[test]
fn figures_that_are_all_one_have_no_plot() {
    let a = Set::new("a", &[5.0; 3]);
    let block = block(&[a], Style::default()).expect("one set");
    assert!(block.starts_with("x a\n[no plot, span is zero width]\n    N "), "{block}");
}

#[test]
fn too_few_points_and_too_many_sets_are_refused_with_the_remedy() {
    let few = block(&[Set::new("a", &[1.0, 2.0])], Style::default()).expect_err("two points");
    assert!(few.contains("takes 3 or more") && few.contains("add runs"), "{few}");
    let sets: Vec<Set> = (0..8).map(|i| Set::new(i.to_string(), &[1.0, 2.0, 3.0])).collect();
    assert!(block(&sets, Style::default()).expect_err("eight sets").contains("takes 1 to 7"));
}

/// A published block: its legend (symbol order) and the whole text, legend included.
struct Published {
    readme: PathBuf,
    names: Vec<String>,
    text: String,
}

/// Blocks in a README whose legend names files that lie beside it.
fn published(readme: &Path) -> Vec<Published> {
    let Ok(text) = std::fs::read_to_string(readme) else { return Vec::new() };
    let lines: Vec<&str> = text.lines().collect();
    let mut found = Vec::new();
    let mut at = 0;
    while at < lines.len() {
        let mut names = Vec::new();
        let start = at;
        while let Some(name) = lines.get(at).and_then(|l| legend_name(l, names.len())) {
            names.push(name);
            at += 1;
        }
        if names.is_empty() || !lines.get(at).is_some_and(|l| l.starts_with("+--")) {
            at = start + 1;
            continue;
        }
        let end = (at..lines.len())
            .find(|&i| lines[i].starts_with("```") || lines[i].trim().is_empty())
            .unwrap_or(lines.len());
        let text: String = lines[start..end].iter().map(|l| format!("{l}\n")).collect();
        found.push(Published { readme: readme.into(), names, text });
        at = end;
    }
    found
}

fn legend_name(line: &str, index: usize) -> Option<String> {
    let symbol = *SYMBOLS.get(index + 1)?;
    line.strip_prefix(symbol)?.strip_prefix(' ').map(str::to_string)
}

fn readmes(dir: &Path, out: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() {
            readmes(&path, out);
        } else if path.extension().is_some_and(|e| e == "md") {
            out.push(path);
        }
    }
}

fn corpus() -> Option<PathBuf> {
    let beside = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/corpus/netbenches");
    let path = std::env::var_os("WEIR_CORPUS").map_or(beside, PathBuf::from);
    path.is_dir().then_some(path)
}

fn numbers(path: &Path) -> Option<Vec<f64>> {
    let text = std::fs::read_to_string(path).ok()?;
    let figures = text.lines().map(|l| l.split('#').next().unwrap_or("").trim()).filter(|l| !l.is_empty());
    figures.map(|l| l.split_whitespace().next()?.parse().ok()).collect()
}

#[test]
fn published_blocks_come_out_of_their_raw_data_byte_for_byte() {
    let Some(corpus) = corpus() else {
        writeln!(std::io::stderr(), "SKIP published_blocks_come_out_of_their_raw_data_byte_for_byte: no netbenches corpus (set WEIR_CORPUS to its folder)"
        ).expect("stderr is open");
        return;
    };
    let mut found = Vec::new();
    readmes(&corpus, &mut found);
    let (mut same, mut modern, mut other) = (0, 0, Vec::new());
    for published in found.iter().flat_map(|r| published(r)) {
        let folder = published.readme.parent().expect("a file has a folder");
        let raw: Option<Vec<Set>> =
            published.names.iter().map(|name| Some(Set::new(name, &numbers(&folder.join(name))?))).collect();
        let Some(sets) = raw else { continue };
        let bars = |separate_bars| block(&sets, Style { separate_bars, ..Style::default() });
        if [true, false].into_iter().any(|s| bars(s).is_ok_and(|b| b == published.text)) {
            same += 1;
        } else {
            other.push((published, bars(true).unwrap_or_else(|e| e)));
        }
        modern += 1;
    }
    if std::env::var_os("WEIR_CORPUS_SHOW").is_some() {
        for (p, ours) in &other {
            eprintln!("--- {}\n{}=== ours\n{ours}", p.readme.display(), p.text);
        }
    }
    eprintln!("{same} of {modern} published blocks byte-identical");
    assert!(same >= 24, "{same} of {modern} published blocks are byte-identical");
}
