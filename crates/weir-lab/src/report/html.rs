//! `report.html`: one self-contained page, for light and dark.

use super::caches;
use super::cliffs;
use super::comparisons::{Table, blocks, control, legend, tests, tests_legend, verdicts};
use super::differentials;
use super::markdown::{facts, percentiles_of};
use super::plots::{self, Plot};
use super::profiles;
use super::protection;
use super::record;
use super::relays;
use super::search;
use super::settings;
use super::spd;
use super::{beside, beside_heading, ministat_blocks, recompute};
use crate::format::escape;
use crate::format::{digits, grouped, range, signed, verdict, with_unit};
use crate::machine::utc;
use crate::manifest::Manifest;
use crate::result::{Outcome, Results};
use weir_stats::Comparison;

const STYLE: &str = include_str!("html/style.css");

/// Sorts tables and opens what is folded before printing; without it the page only lacks that.
const SCRIPT: &str = include_str!("html/page.js");

pub fn render(manifest: &Manifest, results: &Results) -> String {
    let mut body = String::new();
    body += &told(results);
    body += &best_settings(results);
    body += &comparisons(results);
    if let Some(said) = control(&results.controls) {
        let said = format!("<p class=\"note\">{}</p>", escape(&said));
        body += &section("Control", &(judged(results, &results.controls) + &said));
    }
    for plot in pictures(manifest, results) {
        body += &picture(&plot);
    }
    body += &values(results);
    body += &asked(results);
    body += &protected(results);
    body += &relayed(results);
    body += &latency(results);
    body += &searches(results);
    body += &time(results);
    body += &ledger(results);
    body += &ministat(results);
    body += &cached(results);
    body += &broken(results);
    body += &warnings(results);
    body += &sessions(manifest, results);
    body += &notes(results);
    body += &section(
        "Compute it again",
        &format!(
            "<p>Every value follows from <code>manifest.json</code> and <code>raw/</code>; in this folder:</p><pre>{}</pre>",
            escape(&recompute(results).join("\n"))
        ),
    );
    body += &machine(manifest);
    page(&results.title, &(head(manifest, results) + &contents(&body)), &body)
}

/// A whole page: what stands at its head, and sections below.
pub fn page(title: &str, head: &str, body: &str) -> String {
    format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" \
         content=\"width=device-width, initial-scale=1\"><title>{}</title><style>{STYLE}</style></head>\
         <body><main>{head}{body}</main><script>{SCRIPT}</script></body></html>\n",
        escape(title)
    )
}

fn pictures(manifest: &Manifest, results: &Results) -> Vec<Plot> {
    let mut all: Vec<Plot> = plots::against_axis(&manifest.experiment, results);
    all.extend(plots::by_word(&manifest.experiment, results));
    all.extend(plots::throughput_against_loss(&plots::curves_of_rates(&manifest.experiment, results)));
    all.extend(plots::runs(results));
    all.extend(plots::over_time(results));
    all
}

fn picture(plot: &Plot) -> String {
    section(&plot.title, &plot_value(plot))
}

fn plot_value(plot: &Plot) -> String {
    format!("<figure>{}<figcaption>{}</figcaption></figure>", plot.svg, escape(&plot.caption))
}

/// Links to the sections of `body`, by their headings.
fn contents(body: &str) -> String {
    let headings = body.split("<section id=\"").skip(1).filter_map(|s| {
        let (id, rest) = s.split_once('"')?;
        let title = rest.split_once("<h2>")?.1.split_once("</h2>")?.0;
        Some(format!("<a href=\"#{id}\">{title}</a>"))
    });
    format!("<nav aria-label=\"contents\">{}</nav>\n", headings.collect::<Vec<_>>().join(" "))
}

fn ministat(results: &Results) -> String {
    let blocks = ministat_blocks(results);
    if blocks.is_empty() {
        return String::new();
    }
    let blocks: String = blocks.iter().map(|b| format!("<pre>{}</pre>", escape(b))).collect();
    section("ministat", &blocks)
}

fn sessions(manifest: &Manifest, results: &Results) -> String {
    let sessions = record::sessions(manifest, results)
        .map_or(String::new(), |t| section("Sessions", &format!("<div class=\"wrap\">{}</div>", plain(&t))));
    let note = format!("<p class=\"note\">{}</p>", escape(&record::every_run_note(results)));
    let runs = format!("<div class=\"wrap\">{}</div>{note}", plain(&record::every_run(results)));
    sessions + &section("Every run as a number", &format!("<details><summary>Show</summary>{runs}</details>"))
}

/// What the experiment says of its values.
fn told(results: &Results) -> String {
    let mut out = String::new();
    for answer in &results.answers {
        if let Some(text) = &answer.text {
            let text = prose(text);
            out += &if answer.headline { format!("<p><b>{text}</b></p>") } else { format!("<p>{text}</p>") };
        }
        if let Some((headings, rows)) = answer.table.split_first() {
            let headings: Vec<String> = headings.iter().map(|h| prose(h)).collect();
            let headings: Vec<&str> = headings.iter().map(String::as_str).collect();
            out += &table(&headings, 1, rows.iter().map(|r| r.iter().map(|c| prose(c)).collect()));
        }
    }
    if out.is_empty() { out } else { section("Answer", &out) }
}

/// A section with its heading, named by it for links.
pub fn section(title: &str, inner: &str) -> String {
    let id: String =
        title.to_lowercase().chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect();
    format!("<section id=\"{id}\"><h2>{}</h2>{inner}</section>\n", escape(title))
}

fn head(manifest: &Manifest, results: &Results) -> String {
    let e = &manifest.experiment;
    let mut out = format!(
        "<header><h1>{}</h1><p class=\"question\">{}</p><p class=\"answer\">{}</p>",
        escape(&results.title),
        escape(&results.question),
        escape(&results.answer)
    );
    let seconds = |ms: u64| format!("{} s", ms as f64 / 1000.0);
    let facts = [
        ("runs", format!("{} of {}", results.runs_measured, results.runs_planned)),
        ("blocks, randomised", e.runs.to_string()),
        ("window", seconds(e.window_ms)),
        ("warm-up", seconds(e.warm_up_ms)),
        ("slices a run", e.slices.map_or("one".into(), |n| n.to_string())),
        ("seed", manifest.seed.to_string()),
        ("begun", utc(manifest.started_unix_ms)),
        ("sessions", (manifest.resumed.len() + 1).to_string()),
    ];
    let told = facts.len() - usize::from(manifest.resumed.is_empty());
    let facts = facts[..told].iter().map(|(k, v)| format!("<div><dt>{k}</dt><dd>{}</dd></div>", escape(v)));
    out += &format!("<dl class=\"facts\">{}</dl>", facts.collect::<String>());
    if !results.warnings.is_empty() {
        let n = results.warnings.len();
        let word = if n == 1 { "warning" } else { "warnings" };
        out += &format!(
            "<p class=\"warning-count\"><a href=\"#warnings\">{n} {word}</a>, each with a remedy</p>"
        );
    }
    out + "</header>\n"
}

/// A table; cells are HTML already. `left` counts the text columns.
fn table(headings: &[&str], left: usize, rows: impl Iterator<Item = Vec<String>>) -> String {
    let class = |i: usize| if i < left { "" } else { " class=\"n\"" };
    let mut out = String::from("<div class=\"wide\"><table class=\"sortable\"><thead><tr>");
    for (i, heading) in headings.iter().enumerate() {
        out += &format!("<th scope=\"col\"{}>{heading}</th>", class(i));
    }
    out += "</tr></thead><tbody>";
    for row in rows {
        out += "<tr>";
        for (i, cell) in row.iter().enumerate() {
            out += &format!("<td{}>{cell}</td>", class(i));
        }
        out += "</tr>";
    }
    out + "</tbody></table></div>"
}

fn values(results: &Results) -> String {
    let headings = [
        "configuration",
        "median",
        "min – max",
        "deviation",
        beside_heading(results),
        "loss",
        "of the baseline",
    ];
    let dash = |text: Option<String>| text.unwrap_or("–".into());
    let row = |o: &Outcome| {
        let m = &results.metric;
        vec![
            escape(&o.configuration.name),
            dash(o.summary.map(|s| format!("<b>{}</b>", with_unit(m, s.median)))),
            dash(o.summary.map(|s| range(m, &s))),
            dash(o.summary.and_then(|s| s.variation()).map(|v| format!("{:.2} %", v * 100.0))),
            dash(beside(results, o)),
            dash(o.loss_percent.map(|l| format!("{} %", digits(l.median)))),
            dash(o.baseline_share.map(|c| format!("{:.0} %", c * 100.0))),
        ]
    };
    let table = table(&headings, 1, results.configurations.iter().map(row));
    let skipped: String = results
        .skipped
        .iter()
        .map(|s| format!("<li><b>{}</b> was skipped: {}</li>", escape(&s.configuration), escape(&s.reason)))
        .collect();
    let skipped = if skipped.is_empty() { skipped } else { format!("<ul>{skipped}</ul>") };
    section("Values", &(table + &skipped))
}

fn comparisons(results: &Results) -> String {
    let compared = &results.comparisons;
    if compared.is_empty() {
        return String::new();
    }
    let details = plain(&tests(compared)) + &plain(&blocks(compared)) + &terms(&tests_legend(compared));
    let plot = plots::ratios(results).map_or(String::new(), |p| plot_value(&p));
    let inner = plot + &judged(results, compared) + &terms(&legend(compared));
    section("Comparisons", &format!("{inner}<details><summary>Every test</summary>{details}</details>"))
}

/// [`verdicts`] with its verdicts in colour.
fn judged(results: &Results, compared: &[Comparison]) -> String {
    let judged = verdicts(compared, &|c| results.ratio(c));
    let rows = judged.rows.iter().zip(compared).map(|(row, c)| {
        let mut cells: Vec<String> = row.iter().map(|cell| escape(cell)).collect();
        let class = verdict(c.verdict).replace(' ', "-");
        cells[2] = format!("<span class=\"verdict {class}\">{}</span>", cells[2]);
        cells
    });
    table(&judged.headings, judged.text, rows)
}

fn plain(cells: &Table) -> String {
    table(&cells.headings, cells.text, cells.rows.iter().map(|r| r.iter().map(|c| escape(c)).collect()))
}

fn terms(legend: &[(&str, String)]) -> String {
    let said: Vec<String> =
        legend.iter().map(|(term, meaning)| format!("<b>{term}</b>: {}.", escape(meaning))).collect();
    format!("<p class=\"note\">{}</p>", said.join(" "))
}

fn ledger(results: &Results) -> String {
    let headings = [
        "configuration",
        "intended",
        "offered",
        "sent",
        "drops",
        "delivered",
        "unaccounted",
        "reordered",
        "duplicated",
    ];
    let rows = results.configurations.iter().map(|o| {
        let l = &o.ledger;
        let drops: Vec<String> = l
            .drops
            .iter()
            .filter(|(_, n)| **n > 0)
            .map(|(c, n)| format!("{} {}", escape(c), grouped(*n)))
            .collect();
        vec![
            escape(&o.configuration.name),
            grouped(l.intended),
            grouped(l.offered),
            grouped(l.sent),
            format!(
                "<span class=\"drops\">{}</span>",
                if drops.is_empty() { "none".into() } else { drops.join("<br>") }
            ),
            grouped(l.delivered),
            signed(o.unaccounted),
            grouped(o.reordered),
            grouped(o.duplicated),
        ]
    });
    let note = "<p class=\"note\">Sums over all runs: intended → offered → sent → drops → delivered.</p>";
    section("Packet accounting", &format!("<div class=\"dense\">{}</div>{note}", table(&headings, 1, rows)))
}

fn latency(results: &Results) -> String {
    let mut with = results.configurations.iter().filter(|o| !o.latency_ns.is_empty()).peekable();
    if with.peek().is_none() {
        return String::new();
    }
    let keys = percentiles_of(results);
    let headings: Vec<&str> =
        std::iter::once("configuration").chain(keys.iter().map(String::as_str)).collect();
    let rows = with.map(|o| {
        let cell = |k: &String| o.latency_ns.get(k).map_or("–".into(), |s| digits(s.median / 1e3));
        std::iter::once(escape(&o.configuration.name)).chain(keys.iter().map(cell)).collect()
    });
    let plot = plots::percentiles(results).map_or(String::new(), |p| plot_value(&p));
    let note = "<p class=\"note\">One way, µs, median over the runs.</p>";
    section("Latency", &(plot + &table(&headings, 1, rows) + note))
}

/// A sentence in which `code` stands in backticks.
fn prose(text: &str) -> String {
    let parts = text.split('`').enumerate();
    parts
        .map(|(i, part)| match i % 2 {
            0 => escape(part),
            _ => format!("<code>{}</code>", escape(part)),
        })
        .collect()
}

fn searches(results: &Results) -> String {
    let plot = plots::throughput_against_loss(&search::curves(results));
    let one = |s: search::Section| {
        let plot = plot.as_ref().filter(|p| p.title == s.title).map_or(String::new(), plot_value);
        section(s.title, &format!("{plot}{}<p class=\"note\">{}</p>", plain(&s.table), escape(&s.note)))
    };
    search::sections(results).into_iter().map(one).collect()
}

fn time(results: &Results) -> String {
    if !profiles::any(results) {
        return String::new();
    }
    let notes: String =
        profiles::legend(results).iter().map(|l| format!("<p class=\"note\">{}.</p>", escape(l))).collect();
    let kinds = match differentials::kinds(results) {
        Ok(Some(kinds)) => {
            let headings: Vec<&str> = kinds.headings.iter().map(String::as_str).collect();
            table(&headings, 1, kinds.rows.iter().map(|r| r.iter().map(|c| escape(c)).collect()))
        }
        Ok(None) => String::new(),
        Err(e) => format!("<p class=\"note\">{}</p>", escape(&e.said)),
    };
    let pairs: String = differentials::pairs(results)
        .into_iter()
        .map(|pair| match pair {
            Ok(pair) => changed(&pair),
            Err(e) => format!("<p class=\"note\">{}</p>", escape(&e.said)),
        })
        .collect();
    let inner = plain(&profiles::table(results)) + &notes + &kinds + &pairs + &profiles::graphs(results);
    section("Where time goes", &inner)
}

fn changed(pair: &differentials::Pair) -> String {
    let list = |said: &[String]| {
        said.iter().map(|s| format!("<p class=\"note\">{}</p>", escape(s))).collect::<String>()
    };
    let inside = list(&pair.above) + &plain(&pair.table) + &list(&pair.below);
    format!("<details><summary>What changed: {}</summary>{inside}</details>\n", escape(&pair.title))
}

fn asked(results: &Results) -> String {
    let wrapped = |table: &Table| format!("<div class=\"wrap\">{}</div>", plain(table));
    let note = |said: &str| format!("<p class=\"note\">{}</p>", escape(said));
    let mut out = String::new();
    let depths = spd::depths(results);
    if !depths.is_empty() {
        let each = |d: &spd::Depth| {
            let said: String = d.sentences.iter().map(|s| format!("<p>{}</p>", escape(s))).collect();
            format!("<h3>{}</h3>{}{said}", escape(&d.title), wrapped(&d.table))
        };
        let inner: String = depths.iter().map(each).collect();
        out += &section("By the index of the policy that matches", &(inner + &note(spd::METHOD)));
    }
    if let Some(table) = spd::answered(results) {
        out += &section("SPD lookup sources", &(wrapped(&table) + &note(spd::ANSWERED)));
    }
    out
}

fn protected(results: &Results) -> String {
    let Some(table) = protection::section(results) else { return String::new() };
    let note = format!("<p class=\"note\">{}</p>", escape(protection::METHOD));
    section("Beside the cipher alone", &format!("<div class=\"wrap\">{}</div>{note}", plain(&table)))
}

fn relayed(results: &Results) -> String {
    let sections = relays::sections(results);
    let each = |(table, said): &(_, &str)| {
        format!("<div class=\"wrap\">{}</div><p class=\"note\">{}</p>", plain(table), escape(said))
    };
    let inner: String = sections.iter().map(each).collect();
    if inner.is_empty() { inner } else { section("Relays", &inner) }
}

fn best_settings(results: &Results) -> String {
    let Some(best) = settings::section(results) else { return String::new() };
    let (said, toml) = (escape(&best.said), escape(best.toml));
    let rows = plain(&best.table);
    section(settings::TITLE, &format!("<p>{said}</p><div class=\"wrap\">{rows}</div><pre>{toml}</pre>"))
}

fn cached(results: &Results) -> String {
    let Some((counted, said)) = caches::section(results) else { return String::new() };
    let rows = counted.map_or(String::new(), |t| plain(&t));
    section("Caches", &format!("{rows}<p class=\"note\">{}</p>", escape(&said.replace('`', ""))))
}

fn broken(results: &Results) -> String {
    let items: String =
        cliffs::sentences(results).iter().map(|s| format!("<li>{}</li>", escape(s))).collect();
    if items.is_empty() {
        return items;
    }
    section("Cliffs", &format!("<ul>{items}</ul><p class=\"note\">{}</p>", cliffs::METHOD))
}

fn warnings(results: &Results) -> String {
    let items: String = results
        .warnings
        .iter()
        .map(|w| {
            let remedy = w.remedy.as_deref().unwrap_or_default();
            format!("<li>{}. <i>{}.</i></li>", prose(w.sentence().trim_end_matches('.')), prose(remedy))
        })
        .collect();
    let list = if items.is_empty() { "<p>None.</p>".into() } else { format!("<ul>{items}</ul>") };
    section("Warnings", &list)
}

fn notes(results: &Results) -> String {
    if results.notes.is_empty() {
        return String::new();
    }
    let item = |names: &[String], note: &str| {
        format!("<li>{} <span class=\"note\">{}</span></li>", escape(note), escape(&names.join(", ")))
    };
    let items: String = results.notes.iter().map(|n| item(&n.subject, &n.finding)).collect();
    section("How it was measured", &format!("<ul>{items}</ul>"))
}

fn machine(manifest: &Manifest) -> String {
    let rows: String = facts(manifest)
        .iter()
        .map(|(what, how)| format!("<tr><td>{what}</td><td>{}</td></tr>", escape(how)))
        .collect();
    let baselines = manifest.experiment.configurations.iter().any(|p| p.configuration.is_baseline());
    let note = if baselines {
        "<p class=\"note\">A <i>baseline</i> is generator and receiver without a SUT, in the same campaign.</p>"
    } else {
        ""
    };
    section("Machine", &format!("<table class=\"machine\"><tbody>{rows}</tbody></table>{note}"))
}

#[cfg(test)]
mod tests;
