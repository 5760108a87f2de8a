//! The page for everyone: legible in both schemes, alone in the world, the same every time.

use std::collections::BTreeMap;

use super::*;

/// `--name: #rrggbb` of the first block after `from`.
fn colours(from: &str) -> BTreeMap<String, [f64; 3]> {
    let block = STYLE.split_once(from).expect("in the style sheet").1.split_once('}').expect("closed").0;
    let channel = |hex: &str, at: usize| f64::from(u8::from_str_radix(&hex[at..at + 2], 16).expect("hex"));
    block
        .split(';')
        .filter_map(|d| d.trim().split_once(": #"))
        .map(|(name, hex)| (name.to_string(), [0, 2, 4].map(|at| channel(hex, at))))
        .collect()
}

/// WCAG 2.2: relative luminance of sRGB.
fn luminance(rgb: [f64; 3]) -> f64 {
    let linear = |c: f64| {
        let c = c / 255.0;
        if c <= 0.04045 { c / 12.92 } else { ((c + 0.055) / 1.055).powf(2.4) }
    };
    let [r, g, b] = rgb.map(linear);
    0.2126 * r + 0.7152 * g + 0.0722 * b
}

fn contrast(a: [f64; 3], b: [f64; 3]) -> f64 {
    let (a, b) = (luminance(a), luminance(b));
    (a.max(b) + 0.05) / (a.min(b) + 0.05)
}

#[test]
fn text_and_series_stand_out_in_light_and_dark() {
    // WCAG 2.2: 4.5 for text (1.4.3), 3 for graphics (1.4.11)
    const TEXT: f64 = 4.5;
    const GRAPHICS: f64 = 3.0;
    for scheme in [":root {\n  color-scheme", "prefers-color-scheme: dark) {\n  :root {"] {
        let colours = colours(scheme);
        for ground in ["--card", "--paper"] {
            let on = |name: &str| contrast(colours[name], colours[ground]);
            for text in ["--ink", "--soft", "--accent", "--good", "--open"] {
                assert!(on(text) >= TEXT, "{scheme} {text} on {ground}: {:.2}", on(text));
            }
            for i in 0..plots::COLOURS {
                let series = format!("--c{i}");
                assert!(on(&series) >= GRAPHICS, "{scheme} {series} on {ground}: {:.2}", on(&series));
            }
            assert!(on("--plain") >= GRAPHICS, "{scheme} --plain on {ground}: {:.2}", on("--plain"));
        }
    }
}

/// What the eye needs on a phone: text of plots stays above eight pixels, and nothing but plots and tables is wider than
/// the screen.
#[test]
fn a_narrow_screen_scrolls_plots_and_tables_and_nothing_else() {
    let narrow = STYLE.split_once("@media screen and (max-width: 640px) {").expect("a style for phones").1;
    let narrow = narrow.split_once("\n}").expect("closed").0;
    let width: f64 = narrow
        .split_once("svg:not(.flame) { width: ")
        .and_then(|(_, rest)| rest.split_once("px"))
        .and_then(|(width, _)| width.parse().ok())
        .expect("a width of plots");
    let smallest = 12.0;
    assert!(smallest * width / plots::WIDTH >= 8.0, "text of {smallest} at {width} of {}", plots::WIDTH);
    assert!(narrow.contains("figure { overflow-x: auto; }") && STYLE.contains(".wide { overflow-x: auto; }"));
    assert!(narrow.contains(".answer, p, li, figcaption { overflow-wrap: anywhere; }"));
}

#[test]
fn headings_become_links_to_their_sections() {
    let body = section("Packet accounting", "<p>x</p>") + &section("Runs & more", "");
    let links = contents(&body);
    assert!(links.contains("<a href=\"#packet-accounting\">Packet accounting</a>"), "{links}");
    assert!(links.contains("<a href=\"#runs---more\">Runs &amp; more</a>"), "{links}");
    assert!(body.contains("<section id=\"runs---more\">"));
}

#[test]
fn tables_name_their_columns_for_readers_and_for_the_script() {
    let table = table(&["configuration", "median"], 1, std::iter::once(vec!["a".into(), "1".into()]));
    assert!(table.contains("<th scope=\"col\">configuration</th><th scope=\"col\" class=\"n\">median</th>"));
}

#[test]
fn backticks_become_code_and_names_stay_harmless() {
    assert_eq!(prose("raise `runs` of <b>"), "raise <code>runs</code> of &lt;b&gt;");
}
