//! Blocks as ministat prints them; published ones are `verify`'s to check (tests/verify_trees.rs).

use super::*;

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
fn quantiles_have_three_decimals_as_in_the_printed_table_and_end_at_a_hundred() {
    use Confidence::*;
    let printed = [
        (P95, 1, 12.706),
        (P95, 8, 2.306),
        (P95, 18, 2.101),
        (P95, 98, 1.984),
        (P95, 100, 1.984),
        (P95, 101, 1.96),
        (P80, 8, 1.397),
        (P90, 33, 1.692),
        (P98, 100, 2.364),
        (P98, 5000, 2.326),
        (P99, 4, 4.604),
        // the column 99.5 is that of 99.8, slips of its first rows included
        (P99_5, 1, 318.313),
        (P99_5, 7, 4.782),
        (P99_5, 13, 3.852),
        (P99_5, 101, 3.09),
    ];
    for (confidence, degrees, t) in printed {
        assert_eq!(confidence.t(degrees), t, "{confidence:?}, {degrees} degrees of freedom");
    }
}

#[test]
fn the_old_dialect_takes_the_upper_middle_and_the_error_of_the_difference() {
    let a = Set::new("a", &[10.0, 11.0, 12.0, 11.0, 10.5, 10.0]);
    let b = Set::new("b", &[14.0, 15.0, 14.5, 14.5, 15.5]);
    let style = Style {
        dialect: Dialect::Old,
        parts: Parts::NoPlot,
        confidence: Confidence::P99,
        ..Style::default()
    };
    // printed by the old ministat -A -c 99
    let expected = "\
x a
+ b
    N           Min           Max        Median           Avg        Stddev
x   6            10            12            11         10.75    0.75828754
+   5            14          15.5          14.5          14.7    0.57008771
Difference at 99.0% confidence
\t3.95 +/- 1.34037
\t36.7442% +/- 12.4686%
\t(Student's t, pooled s = 0.681094)
";
    assert_eq!(block(&[a, b], style).expect("two sets"), expected);
}

#[test]
fn dialects_between_the_two_ends_take_one_change_after_the_other() {
    let a = Set::new("a", &[10.0, 11.0, 12.0, 11.0, 10.5, 10.0]);
    let b = Set::new("b", &[14.0, 15.0, 14.5, 14.5, 15.5]);
    let lines = |dialect| {
        let style = Style { dialect, parts: Parts::NoPlot, ..Style::default() };
        let block = block(&[a.clone(), b.clone()], style).expect("two sets");
        let [_, _, _, vitals, _, _, _, relative, _] = block.lines().collect::<Vec<_>>()[..] else {
            panic!("{block}")
        };
        (vitals.contains(" 10.75         10.75 "), relative.to_string())
    };
    // 2.262 · s · √(1/5 + 1/6) and 2.262 · √((4·V1 + 5·V2·(A1/A2)²)·11/(5·6·9)), over A2 = 10.75
    let difference = "\t36.7442% +/- 8.67814%".to_string();
    let ratio = "\t36.7442% +/- 10.9738%".to_string();
    assert_eq!(lines(Dialect::Old), (false, difference.clone()));
    assert_eq!(lines(Dialect::Midpoint), (true, difference));
    assert_eq!(lines(Dialect::Ratio), (true, ratio.clone()));
    assert_eq!(lines(Dialect::Modern), (true, ratio));
}

#[test]
fn a_constant_set_has_no_deviation_but_in_the_old_dialect() {
    let deviation = |dialect| {
        let style = Style { dialect, parts: Parts::Vitals, quiet: true, ..Style::default() };
        let block = block(&[Set::new("a", &[0.1; 3])], style).expect("a set");
        block.split_whitespace().last().map(str::to_string)
    };
    // 3 · 0.1 is a little more than 0.3, and its square over 3 more than the sum of the squares
    assert_eq!(deviation(Dialect::Old).as_deref(), Some("-nan"));
    assert_eq!(deviation(Dialect::Midpoint).as_deref(), Some("0"));
}

#[test]
fn parts_that_are_asked_away_are_gone() {
    let sets = [Set::new("a", &[1.0, 2.0, 3.0]), Set::new("b", &[1.0, 2.0, 4.0])];
    let bare = Style { parts: Parts::Vitals, quiet: true, ..Style::default() };
    let printed = block(&sets, bare).expect("two sets");
    assert_eq!(
        printed,
        "x   3             1             3             2             2             1\n\
         +   3             1             4             2     2.3333333     1.5275252\n"
    );
    let population = Style { population: true, ..bare };
    assert!(block(&sets, population).expect("two sets").contains("    0.81649658\n"), "divided by n");
}

#[test]
fn plots_the_original_crashes_on_are_refused_with_the_remedy() {
    let sets = [Set::new("a", &[1.0, 2.0, 3.0])];
    let narrow = block(&sets, Style { width: 1, ..Style::default() }).expect_err("one column").to_string();
    assert!(narrow.contains("width of 2 or more"), "{narrow}");
    let endless = [Set::new("a", &[1.0, 2.0, f64::INFINITY])];
    assert!(
        block(&endless, Style::default())
            .expect_err("no end")
            .to_string()
            .contains("leave the plot out with -A")
    );
    assert!(block(&endless, Style { parts: Parts::NoPlot, ..Style::default() }).is_ok());
}

#[test]
fn indistinguishable_sets_prove_no_difference() {
    let a = Set::new("a", &[1.0, 2.0, 3.0]);
    let b = Set::new("b", &[1.0, 2.0, 4.0]);
    let block = block(&[a, b], Style::default()).expect("two sets of three");
    assert!(block.ends_with("No difference proven at 95.0% confidence\n"), "{block}");
}

#[test]
fn values_that_are_all_one_have_no_plot() {
    let a = Set::new("a", &[5.0; 3]);
    let block = block(&[a], Style::default()).expect("one set");
    assert!(block.starts_with("x a\n[no plot, span is zero width]\n    N "), "{block}");
}

#[test]
fn too_few_points_and_too_many_sets_are_refused_with_the_remedy() {
    let few = block(&[Set::new("a", &[1.0, 2.0])], Style::default()).expect_err("two points").to_string();
    assert!(few.contains("at least 3 data points") && few.contains("add runs"), "{few}");
    let sets: Vec<Set> = (0..8).map(|i| Set::new(i.to_string(), &[1.0, 2.0, 3.0])).collect();
    assert!(block(&sets, Style::default()).expect_err("eight sets").to_string().contains("takes 1 to 7"));
}
