//! `report.md`: what the field's own READMEs look like, the answer first.

use super::answers;
use super::caches;
use super::cliffs;
use super::comparisons::{Table, blocks as in_blocks, control, legend, tests, tests_legend, verdicts};
use super::differentials;
use super::profiles;
use super::protection;
use super::record;
use super::relays;
use super::search;
use super::settings;
use super::spd;
use super::{beside, beside_heading, ministat_blocks, recompute};
use crate::format::{digits, grouped, range, signed, with_unit};
use crate::machine::utc;
use crate::manifest::Manifest;
use crate::result::{Outcome, Results};

pub fn render(manifest: &Manifest, results: &Results) -> String {
    let mut out = format!("# {}\n\n**{}**\n\n{}\n\n", results.title, results.answer, results.question);
    out += &format!(
        "{} of {} runs measured ({} configurations × {} randomised blocks, {} ms warm-up, {} ms window{}, seed {}), {}.\n",
        results.runs_measured,
        results.runs_planned,
        results.configurations.len(),
        manifest.experiment.runs,
        manifest.experiment.warm_up_ms,
        manifest.experiment.window_ms,
        manifest.experiment.slices.map_or(String::new(), |n| format!(" in {n} slices")),
        manifest.seed,
        utc(manifest.started_unix_ms)
    );
    out += &told(results);
    out += &values(results);
    out += &asked(results);
    out += &protected(results);
    out += &relayed(results);
    let best = best_settings(results);
    out += &if best.is_empty() { best } else { format!("\n## {}\n\n{best}", settings::TITLE) };
    out += &comparisons(results);
    if let Some(said) = control(&results.controls) {
        out += &format!(
            "\n## Control\n\n{said}\n\n{}",
            table(&verdicts(&results.controls, &|c| results.ratio(c)))
        );
    }
    out += &blocks(results);
    out += &ledger(results);
    out += &latency(results);
    for section in search::sections(results) {
        out += &format!("\n## {}\n\n{}\n\n{}", section.title, section.note, table(&section.table));
    }
    out += &time(results);
    let caches = cached(results);
    out += &if caches.is_empty() { caches } else { format!("\n## Caches\n\n{caches}") };
    out += &broken(results);
    out += &warnings(results);
    out += &sessions(manifest, results);
    out += &every_run(results);
    out += &notes(results);
    out += &again(results);
    out += &machine(manifest);
    out
}

fn told(results: &Results) -> String {
    match answers::own(results) {
        none if none.is_empty() => none,
        said => format!("\n## Answer\n\n{said}\n"),
    }
}

fn values(results: &Results) -> String {
    let (_, unit) = results.metric.unit();
    let mut out = format!("\n## Values\n\nUnit: {} ({unit}), a run each\n\n", results.metric.sentence());
    out += &format!(
        "| configuration | median | min – max | mean | deviation | {} | loss | of the baseline |\n",
        beside_heading(results)
    );
    out += "|---|--:|--:|--:|--:|--:|--:|--:|\n";
    for outcome in &results.configurations {
        out += &row(results, outcome);
    }
    out
}

fn row(results: &Results, outcome: &Outcome) -> String {
    let name = &outcome.configuration.name;
    let Some(s) = outcome.summary else {
        return format!("| {name} | – | – | – | – | – | – | – |\n");
    };
    let or_dash = |text: Option<String>| text.unwrap_or("–".into());
    format!(
        "| {name} | **{}** | {} | {} | {} | {} | {} | {} |\n",
        with_unit(&results.metric, s.median),
        range(&results.metric, &s),
        digits(s.mean / results.metric.unit().0),
        or_dash(s.variation().map(|v| format!("{:.2} %", v * 100.0))),
        or_dash(beside(results, outcome)),
        or_dash(outcome.loss_percent.map(|l| format!("{} %", digits(l.median)))),
        or_dash(outcome.baseline_share.map(|c| format!("{:.0} %", c * 100.0))),
    )
}

/// SPDs by the index of the policy that matches; empty without.
pub(super) fn asked_tables(results: &Results) -> String {
    let mut out = String::new();
    let depths = spd::depths(results);
    for depth in &depths {
        out += &format!("\n**{}**\n\n{}\n", depth.title, table(&depth.table));
        out += &depth.sentences.iter().map(|s| format!("{s}\n")).collect::<String>();
    }
    if !depths.is_empty() {
        out += &format!("\n{}\n", spd::METHOD);
    }
    out
}

fn asked(results: &Results) -> String {
    let mut out = asked_tables(results);
    if !out.is_empty() {
        out.insert_str(0, "\n## By the index of the policy that matches\n");
    }
    if let Some(rows) = spd::answered(results) {
        out += &format!("\n## SPD lookup sources\n\n{}\n{}\n", table(&rows), spd::ANSWERED);
    }
    out
}

fn protected(results: &Results) -> String {
    let rows = protection::section(results);
    rows.map_or(String::new(), |rows| {
        format!("\n## Beside the cipher alone\n\n{}\n{}\n", table(&rows), protection::METHOD)
    })
}

/// What relays carried; empty without.
pub(super) fn relay_tables(results: &Results) -> String {
    let each = |(rows, said): (_, &str)| format!("\n{}\n{said}\n", table(&rows));
    relays::sections(results).into_iter().map(each).collect()
}

fn relayed(results: &Results) -> String {
    match relay_tables(results) {
        none if none.is_empty() => none,
        tables => format!("\n## Relays\n{tables}"),
    }
}

fn comparisons(results: &Results) -> String {
    let compared = &results.comparisons;
    if compared.is_empty() {
        return String::new();
    }
    format!(
        "\n## Comparisons\n\n{}\n{}\n\n<details><summary>Every test</summary>\n\n{}\n{}\n{}\n\n</details>\n",
        table(&verdicts(compared, &|c| results.ratio(c))),
        sentences(&legend(compared)),
        table(&tests(compared)),
        table(&in_blocks(compared)),
        sentences(&tests_legend(compared))
    )
}

pub(super) fn table(table: &Table) -> String {
    let headings: Vec<String> = table.headings.iter().map(|h| h.to_string()).collect();
    grid(&headings, table.text, &table.rows)
}

pub(super) fn grid(headings: &[String], text: usize, rows: &[Vec<String>]) -> String {
    let line = |cells: &[String]| format!("| {} |\n", cells.join(" | "));
    let sides = (0..headings.len()).map(|i| if i < text { "---|" } else { "--:|" });
    let rows = rows.iter().map(|r| line(r));
    format!("{}|{}\n{}", line(headings), sides.collect::<String>(), rows.collect::<String>())
}

pub(super) fn sentences(legend: &[(&str, String)]) -> String {
    let said: Vec<String> = legend.iter().map(|(term, meaning)| format!("*{term}*: {meaning}.")).collect();
    said.join(" ")
}

/// The field's own blocks; empty without comparisons.
pub(super) fn blocks_of(results: &Results) -> String {
    ministat_blocks(results).iter().map(|block| format!("\n```\n{block}```\n")).collect()
}

fn blocks(results: &Results) -> String {
    match blocks_of(results) {
        none if none.is_empty() => none,
        blocks => format!("\n## ministat\n{blocks}"),
    }
}

fn ledger(results: &Results) -> String {
    let mut out = String::from(
        "\n## Packet accounting\n\nSums over all runs: intended → offered → sent → drops → delivered\n\n",
    );
    out += "| configuration | intended | offered | sent | drops | delivered | unaccounted | reordered | duplicated |\n";
    out += "|---|--:|--:|--:|---|--:|--:|--:|--:|\n";
    for outcome in &results.configurations {
        let l = &outcome.ledger;
        let drops: Vec<String> =
            l.drops.iter().filter(|(_, n)| **n > 0).map(|(c, n)| format!("{c} {}", grouped(*n))).collect();
        out += &format!(
            "| {} | {} | {} | {} | {} | {} | {} | {} | {} |\n",
            outcome.configuration.name,
            grouped(l.intended),
            grouped(l.offered),
            grouped(l.sent),
            if drops.is_empty() { "none".into() } else { drops.join("<br>") },
            grouped(l.delivered),
            signed(outcome.unaccounted),
            grouped(outcome.reordered),
            grouped(outcome.duplicated),
        );
    }
    out
}

/// Every percentile some configuration has, in ascending order, `max` last.
pub fn percentiles_of(results: &Results) -> Vec<String> {
    let mut keys: Vec<String> =
        results.configurations.iter().flat_map(|o| o.latency_ns.keys().cloned()).collect();
    let number =
        |k: &String| k.strip_prefix('p').and_then(|n| n.parse::<f64>().ok()).unwrap_or(f64::INFINITY);
    keys.sort_by(|a, b| number(a).total_cmp(&number(b)).then(a.cmp(b)));
    keys.dedup();
    keys
}

fn latency(results: &Results) -> String {
    let with: Vec<&Outcome> = results.configurations.iter().filter(|o| !o.latency_ns.is_empty()).collect();
    if with.is_empty() {
        return String::new();
    }
    let keys = percentiles_of(results);
    let mut out = String::from("\n## Latency\n\nOne way, µs, median over the runs\n\n");
    out += &format!("| configuration | {} |\n|---|{}\n", keys.join(" | "), "--:|".repeat(keys.len()));
    for outcome in with {
        let cells = keys.iter().map(|k| {
            outcome.latency_ns.get(k).map_or(" – |".into(), |s| format!(" {} |", digits(s.median / 1e3)))
        });
        out += &format!("| {} |{}\n", outcome.configuration.name, cells.collect::<String>());
    }
    out
}

fn time(results: &Results) -> String {
    if !profiles::any(results) {
        return String::new();
    }
    let notes: String = profiles::legend(results).iter().map(|l| format!("\n{l}.\n")).collect();
    let table = table(&profiles::table(results));
    let kinds = match differentials::kinds(results) {
        Ok(Some(kinds)) => format!("\n{}", grid(&kinds.headings, 1, &kinds.rows)),
        Ok(None) => String::new(),
        Err(e) => format!("\n{e}\n"),
    };
    let mut out =
        format!("\n## Where time goes\n\n{table}{notes}{kinds}\nFlame graphs are in `report.html`.\n");
    for pair in differentials::pairs(results) {
        out += &match pair {
            Ok(pair) => changed(&pair),
            Err(e) => format!("\n{e}\n"),
        };
    }
    out
}

pub(super) fn changed(pair: &differentials::Pair) -> String {
    // `<u8 as Trait>::f` is a function here, no tag
    let plain = |text: &str| text.replace('<', "&lt;").replace('|', "\\|");
    let list = |said: &[String]| said.iter().map(|s| format!("- {}\n", plain(s))).collect::<String>();
    let rows = pair.table.rows.iter().map(|r| r.iter().map(|c| plain(c)).collect()).collect();
    let cells = Table { headings: pair.table.headings.clone(), text: pair.table.text, rows };
    format!(
        "\n### What changed: {}\n\n{}\n{}\n{}",
        pair.title,
        list(&pair.above),
        table(&cells),
        list(&pair.below)
    )
}

/// The best modes of devices; empty where the experiment does not ask for them.
pub(super) fn best_settings(results: &Results) -> String {
    settings::section(results).map_or(String::new(), |best| {
        format!("{}\n\n{}\n```toml\n{}```\n", best.said, table(&best.table), best.toml)
    })
}

/// Last-level cache a packet; empty without the memory topology.
pub(super) fn cached(results: &Results) -> String {
    let Some((counted, said)) = caches::section(results) else { return String::new() };
    let rows = counted.map_or(String::new(), |t| format!("{}\n", table(&t)));
    format!("{rows}{said}\n")
}

fn broken(results: &Results) -> String {
    let said: String = cliffs::sentences(results).iter().map(|s| format!("- {s}\n")).collect();
    if said.is_empty() { said } else { format!("\n## Cliffs\n\n{}\n\n{said}", cliffs::METHOD) }
}

fn warnings(results: &Results) -> String {
    let mut out = String::from("\n## Warnings\n\n");
    if results.warnings.is_empty() {
        out += "None.\n";
    }
    for warning in &results.warnings {
        out += &format!(
            "- {}. *{}.*\n",
            warning.sentence().trim_end_matches('.'),
            warning.remedy.as_deref().unwrap_or_default()
        );
    }
    out
}

fn sessions(manifest: &Manifest, results: &Results) -> String {
    record::sessions(manifest, results).map_or(String::new(), |t| format!("\n## Sessions\n\n{}", table(&t)))
}

fn every_run(results: &Results) -> String {
    let inner = table(&record::every_run(results));
    format!(
        "\n<details><summary>Every run</summary>\n\n{}\n\n{inner}\n</details>\n",
        record::every_run_note(results)
    )
}

fn notes(results: &Results) -> String {
    if results.notes.is_empty() {
        return String::new();
    }
    let mut out = String::from("\n## How it was measured\n\n");
    for note in &results.notes {
        out += &format!("- {}: {}\n", note.subject.join(", "), note.finding);
    }
    out
}

fn again(results: &Results) -> String {
    let commands = recompute(results).join("\n");
    format!(
        "\n## Compute it again\n\nEvery value above follows from `manifest.json` and `raw/`; in this folder:\n\n```\n{commands}\n```\n\n\
         FreeBSD's ministat prints the blocks above; Debian's is an older one and differs in the relative error.\n"
    )
}

/// (what, how it is) of the machine and the build, for both reports.
pub fn facts(manifest: &Manifest) -> Vec<(&str, String)> {
    let (m, b) = (&manifest.machine, &manifest.build);
    let or_unknown = |v: &Option<String>| v.clone().unwrap_or("not said by this kernel".into());
    let smt = if m.smt { "SMT on" } else { "no SMT" };
    let affected: Vec<String> = m
        .mitigations
        .iter()
        .filter(|(_, state)| *state != "Not affected")
        .map(|(name, state)| format!("{name}: {state}"))
        .collect();
    let commit = if b.commit.is_empty() { "no repository" } else { &b.commit };
    let mut facts = vec![
        ("processor", format!("{}, {} cores, {} threads, {smt}", m.cpu, m.cores, m.threads)),
        ("microcode", or_unknown(&m.microcode)),
        ("TSC", m.tsc_hz.map_or("none".into(), |hz| format!("{:.3} GHz", hz as f64 / 1e9))),
        ("governor", or_unknown(&m.governor)),
        ("turbo", m.turbo.map_or("not said by this kernel".into(), |t| if t { "on" } else { "off" }.into())),
        (
            "memory",
            m.memory_bytes.map_or("unknown".into(), |b| format!("{:.1} GiB", b as f64 / (1u64 << 30) as f64)),
        ),
        ("virtual", m.virtualisation.clone().unwrap_or("no hypervisor seen".into())),
        ("kernel", m.kernel.clone()),
        ("parameters", m.cmdline.clone()),
        ("distribution", or_unknown(&m.distribution)),
        ("huge pages", or_unknown(&m.transparent_huge_pages)),
        ("clock source", or_unknown(&m.clocksource)),
        ("load before", m.load_1min.map_or("unknown".into(), |l| format!("{l:.2} CPUs in the last minute"))),
        ("mitigations", if affected.is_empty() { "none needed".into() } else { affected.join("; ") }),
        ("weir-lab", format!("{} ({commit}), {}, {}, {}", b.version, b.rustc, b.profile, b.flags)),
        ("command", manifest.argv.join(" ")),
    ];
    if let Some(priority) = m.priority {
        facts.insert(facts.len() - 3, ("priority", priority.to_string()));
    }
    if let Some(mask) = &m.instructions_withheld {
        let what = format!("OPENSSL_ia32cap={mask}: aws-lc does not use all instructions of this processor");
        facts.insert(1, ("instructions", what));
    }
    for (part, m) in &manifest.machines {
        let distribution = m.distribution.as_deref().unwrap_or("distribution not said");
        let what = format!("{}, {} cores, Linux {}, {distribution}", m.cpu, m.cores, m.kernel);
        facts.push((part, what));
    }
    facts
}

fn machine(manifest: &Manifest) -> String {
    let mut out = String::from("\n## Machine\n\n| | |\n|---|---|\n");
    for (what, how) in facts(manifest) {
        out += &format!("| {what} | {} |\n", how.replace('|', "\\|"));
    }
    let baselines = manifest.experiment.configurations.iter().any(|p| p.configuration.is_baseline());
    if baselines {
        out += "\nA *baseline* is generator and receiver without a SUT, in the same campaign.\n";
    }
    out
}
