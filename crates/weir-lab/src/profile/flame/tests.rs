//! Flame graphs are well formed, whole and safe to embed, whatever the frames are called.

use proptest::prelude::*;

use super::*;

fn profile(stacks: &[(&str, u64)]) -> Profile {
    let mut profile = Profile { event: "cpu-clock".into(), ..Profile::default() };
    for (stack, n) in stacks {
        profile.add(stack.split(';').map(str::to_string).collect(), *n);
    }
    profile
}

/// (name, x, width, y) of every box.
fn boxes(svg: &str) -> Vec<(String, f64, f64, f64)> {
    let attribute = |piece: &str, name: &str| -> f64 {
        let text = piece.split(&format!(" {name}=\"")).nth(1).and_then(|s| s.split('"').next());
        text.expect("the attribute").parse().expect("a number")
    };
    svg.split("<g class=\"f ")
        .skip(1)
        .map(|piece| {
            let name = piece.split("<title>").nth(1).and_then(|t| t.split('\n').next()).expect("a title");
            let rect = piece.split("<rect").nth(1).expect("a box");
            (name.to_string(), attribute(rect, "x"), attribute(rect, "width"), attribute(rect, "y"))
        })
        .collect()
}

/// Tags open and close in order and nothing unescaped is between them.
fn assert_well_formed(svg: &str) {
    let mut open: Vec<String> = Vec::new();
    for piece in svg.split('<').skip(1) {
        let (tag, text) = piece.split_once('>').expect("every tag ends");
        let text = text.replace("&amp;", "").replace("&lt;", "").replace("&gt;", "").replace("&quot;", "");
        assert!(!text.contains(['&', '>']), "unescaped: {text:?}");
        assert!(tag.matches('"').count().is_multiple_of(2), "quotes of {tag:?}");
        if let Some(name) = tag.strip_prefix('/') {
            assert_eq!(open.pop().as_deref(), Some(name));
        } else if !tag.ends_with('/') {
            open.push(tag.split(' ').next().expect("a name").to_string());
        }
    }
    assert!(open.is_empty(), "left open: {open:?}");
}

#[test]
fn boxes_are_as_wide_as_their_samples_and_stand_on_their_callers() {
    let svg = render(&profile(&[("a;b", 30), ("a;c", 10), ("d", 40), ("a", 20)]), "t", &plain);
    let found = boxes(&svg);
    let of = |name: &str| found.iter().find(|b| b.0 == name).expect("drawn").clone();
    let (all, a, b, c, d) = (of("all"), of("a"), of("b"), of("c"), of("d"));
    assert_eq!([all.2, a.2, b.2, c.2, d.2], [1000.0, 600.0, 300.0, 100.0, 400.0]);
    assert!(all.3 > a.3 && a.3 > b.3 && b.3 == c.3, "callees are above their callers");
    assert_eq!((b.1, c.1, d.1), (200.0, 500.0, 600.0));
}

#[test]
fn one_function_under_two_callers_is_two_boxes() {
    let svg = render(&profile(&[("a;x", 1), ("b;x", 1)]), "t", &plain);
    assert_eq!(boxes(&svg).iter().filter(|b| b.0 == "x").count(), 2);
}

#[test]
fn kinds_of_code_are_told_apart_and_marks_are_not_shown() {
    let svg = render(
        &profile(&[("w;ip_rcv_[k]", 1), ("w;get_[i]", 1), ("[idle]", 1), ("w;[x.so]", 1)]),
        "t",
        &plain,
    );
    for class in ["f kernel s", "f inlined s", "f idle s", "f unnamed s", "f user s"] {
        assert!(svg.contains(class), "{class}");
    }
    assert!(!svg.contains("_[k]") && svg.contains("kernel, 25.00 % of samples (1)"), "{svg}");
}

#[test]
fn boxes_too_narrow_are_left_out_and_counted() {
    let svg = render(&profile(&[("a", 1_000_000), ("b;c", 1)]), "t", &plain);
    assert!(svg.contains("2 boxes too narrow to draw"), "{svg}");
}

#[test]
fn a_differential_paints_boxes_its_own_way() {
    let paint = |f: &Frame<'_>| Paint {
        class: "changed".into(),
        style: "fill: red".into(),
        note: format!("{} of {}", f.samples, f.total),
    };
    let svg = render(&profile(&[("a", 3)]), "t", &paint);
    assert!(svg.contains("f changed") && svg.contains("style=\"fill: red\"") && svg.contains("a\n3 of 3"));
}

#[test]
fn graphs_share_a_page_without_clashing_and_load_nothing() {
    let svg = render(&profile(&[("a", 1)]), "t", &plain);
    assert!(!svg.contains(" id=") && !SCRIPT.contains("getElementById"));
    assert!(!STYLE.contains("url(") && !STYLE.contains("@import"));
}

#[test]
fn an_empty_profile_is_a_graph_that_says_so() {
    let svg = render(&Profile::default(), "t", &plain);
    assert_well_formed(&svg);
    assert!(svg.contains("0 samples of an event without a name"));
}

#[test]
fn a_document_of_its_own_carries_style_and_script() {
    let text = document(&render(&profile(&[("a", 1)]), "t", &plain));
    assert!(text.starts_with("<svg xmlns=") && text.trim_end().ends_with("</script></svg>"));
    assert!(!SCRIPT.contains("]]>") && !STYLE.contains('<'));
}

proptest! {
    #[test]
    fn any_names_make_a_well_formed_graph(
        stacks in proptest::collection::vec((proptest::collection::vec("\\PC{0,20}|[<>&\"';\\n]*", 1..5), 1u64..99), 1..20),
        title in "\\PC*",
    ) {
        let mut profile = Profile::default();
        for (stack, n) in stacks {
            profile.add(stack, n);
        }
        let svg = render(&profile, &title, &plain);
        assert_well_formed(&svg);
        // what stands above the ground adds up to it
        let found = boxes(&svg);
        let ground = found.iter().map(|b| b.3).fold(0.0, f64::max);
        let first: f64 = found.iter().filter(|b| b.3 == ground - 17.0).map(|b| b.2).sum();
        prop_assert!((first - 1000.0).abs() < 0.1 * found.len() as f64, "{first}");
    }
}
