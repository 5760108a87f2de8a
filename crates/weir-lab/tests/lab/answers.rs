//! Answers from file to document: what an experiment says, filled in from its runs, between a document's markers.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use crate::common::program::{SMALL, run, text, told};
use weir_lab::answers::{Campaigns, source};
use weir_lab::code::{Code, NotTold};
use weir_lab::format::{digits, three_digits};
use weir_lab::manifest::Manifest;
use weir_lab::result::Results;
use weir_testing::folder::Folder;

const ANSWERS: &str = "
[[answer]]
headline = true
text = \"IPv6 carries {median inet6}, {change inet inet6}.\"

[[answer]]
pair = [\"inet\", \"inet6\"]
higher = \"Verdict: {verdict inet inet6}.\"
lower = \"Verdict: {verdict inet inet6}.\"
equivalent = \"Verdict: {verdict inet inet6}.\"
underpowered = \"Verdict: {verdict inet inet6}.\"

[[answer]]
text = \"Left out: {median inet no_such_metric}.\"

[[answer]]
text = \"More by {difference inet inet6}.\"

[[answer]]
table = [[\"family\", \"Mpps\", \"nothing\"], [\"{f}\", \"{number {f}}\", \"{median {f} no_such_metric}\"]]
each = { f = [\"inet\", \"inet6\"] }

[[answer]]
show = \"comparisons\"
";

const DOCUMENT: &str = "by hand\n<!-- answers small -->\n<!-- end of answers -->\n\
                        <!-- answers as table small later -->\n<!-- end of answers -->\nby hand too\n";

/// What is written from committed campaigns.
const DOCUMENTS: [&str; 3] = ["README.md", "docs/answers.md", "docs/benchmarks.md"];

/// Two campaigns below `runs`, and the folder of the first.
fn measured(folder: &Folder) -> PathBuf {
    let small = folder.write("labs/small.toml", format!("{SMALL}{ANSWERS}"));
    let other = folder.write("labs/other.toml", SMALL);
    let (ok, out, err) = told(&run(&["run", &small, &other, "--into", &folder.at("runs"), "--seed", "1"]));
    assert!(ok && out.contains("small: ") && out.contains("other: "), "{out}{err}");
    assert!(err.contains("2 experiments, about ") && err.contains(" of all; 1 of 2"), "{err}");
    let dirs = std::fs::read_dir(folder.at("runs")).expect("made").flatten().map(|e| e.path());
    let small = dirs.into_iter().find(|d| d.to_string_lossy().ends_with("cpu-small"));
    small.expect("date, machine, experiment")
}

fn answers(folder: &Folder, arguments: &[&str]) -> Output {
    let (document, runs) = (folder.at("docs/answers.md"), folder.at("runs"));
    run(&[&["report", "--documents", &document, "--runs", &runs], arguments].concat())
}

#[test]
fn values_of_raw_runs_reach_documents_and_a_value_changed_by_hand_is_noticed() {
    let folder = Folder::new("answers");
    let campaign = measured(&folder);
    folder.write("docs/answers.md", DOCUMENT);
    assert!(!answers(&folder, &["--check"]).status.success(), "nothing is filled in yet");
    let done = answers(&folder, &[]);
    assert!(done.status.success(), "{}", text(&done.stderr));
    let written = folder.read("docs/answers.md");
    let results = Results::read(&campaign).expect("a result");
    let mpps = |name: &str| results.outcome(name).and_then(|o| o.summary).expect("measured").median / 1e6;
    let median = digits(mpps("inet6"));
    let name = campaign.file_name().expect("a name").to_string_lossy();
    for said in [
        "by hand\n".to_string(),
        format!("More by {}.", digits(mpps("inet6") - mpps("inet"))),
        "\nby hand too\n".into(),
        format!("**IPv6 carries {median} Mpps, "),
        "Verdict: ".into(),
        format!("| inet6 | {median} | – |"),
        "| inet6 | inet | ".into(),
        format!("| Do the parts fit together? | IPv6 carries {median} Mpps, "),
        format!("[raw runs and report](../runs/{name}/report.md)"),
        "| later | not measured yet | `labs/later.toml` |".into(),
    ] {
        assert!(written.contains(&said), "{said}\n{written}");
    }
    assert!(!written.contains("Left out"), "{written}");
    assert!(answers(&folder, &["--check"]).status.success());
    folder.write("docs/answers.md", written.replace(&median, "999.9"));
    let noticed = answers(&folder, &["--check"]);
    assert!(!noticed.status.success() && text(&noticed.stdout).contains("says something else"));
    let report = std::fs::read_to_string(campaign.join("report.md")).expect("a report");
    assert!(report.contains(&format!("## Answer\n\n**IPv6 carries {median} Mpps, ")), "{report}");
}

#[test]
fn a_document_is_written_from_the_file_beside_it_value_by_value() {
    let folder = Folder::new("template");
    let campaign = measured(&folder);
    let template = "of {{small: blocks}} blocks: {{small: median inet6}}, [{{small: ratio inet inet6}}]({{small: report}})\n\
                    {{small: ratio inet inet6}} is {{small: word inet inet6}}\n";
    folder.write("docs/answers.md.in", template);
    let done = answers(&folder, &[]);
    assert!(done.status.success(), "{}", text(&done.stderr));
    let written = folder.read("docs/answers.md");
    let results = Results::read(&campaign).expect("a result");
    let median = results.outcome("inet6").and_then(|o| o.summary).expect("measured").median / 1e6;
    let name = campaign.file_name().expect("a name").to_string_lossy();
    assert!(written.starts_with(&format!("of 3 blocks: {} Mpps, [", three_digits(median))), "{written}");
    assert!(written.contains(&format!("](../runs/{name}/report.md)\n")), "{written}");
    let last = written.lines().last().expect("two lines");
    assert!(last.contains("] is ") && !last.contains('('), "the verdict stands there once: {last}");
    assert!(answers(&folder, &["--check"]).status.success());
    folder.write("docs/answers.md", "by hand");
    assert!(!answers(&folder, &["--check"]).status.success());
    for (wrong, said) in [
        ("{{small median inet6}}", "write NAME: and a value"),
        ("{{later: median a}}", "later was not measured; `weir-lab run labs/later.toml` does"),
        ("{{small: mean inet6}}", "is none of median"),
        ("{{small: median inet5}}", "no run of the campaign has it"),
        ("{{small: report", "write it behind"),
    ] {
        folder.write("docs/answers.md.in", wrong);
        let refused = answers(&folder, &[]);
        assert!(
            !refused.status.success() && text(&refused.stderr).contains(said),
            "{}",
            text(&refused.stderr)
        );
    }
    assert_eq!(folder.read("docs/answers.md"), "by hand", "nothing is written from a template with an error");
}

#[test]
fn sentences_are_derived_again_by_verify_and_can_be_worded_anew() {
    let folder = Folder::new("wording");
    let campaign = measured(&folder);
    let (runs, dir) = (folder.at("runs"), campaign.to_string_lossy().into_owned());
    assert!(run(&["verify", &runs]).status.success());
    let result = campaign.join("result.json");
    let honest = std::fs::read_to_string(&result).expect("a result");
    std::fs::write(&result, honest.replace("IPv6 carries ", "IPv6 carries 1")).expect("space");
    let (ok, out, _) = told(&run(&["verify", &runs]));
    assert!(!ok && out.contains("answers"), "{out}");
    let file = folder.write("labs/worded.toml", format!("{SMALL}{ANSWERS}").replace("carries", "moves"));
    let worded = run(&["report", &dir, "--wording", &file]);
    assert!(worded.status.success(), "{}", text(&worded.stderr));
    assert!(std::fs::read_to_string(&result).expect("a result").contains("IPv6 moves "));
    assert!(run(&["verify", &runs]).status.success());
    let other = folder.write("labs/more.toml", SMALL.replace("flows = 20", "frame = [64, 128]"));
    let (ok, _, err) = told(&run(&["report", &dir, "--wording", &other]));
    assert!(!ok && err.contains("which this campaign has not: measure it anew"), "{err}");
}

#[test]
fn smoke_campaigns_answer_nothing_unless_asked() {
    let folder = Folder::new("smoke");
    let file = folder.write("labs/small.toml", format!("{SMALL}{ANSWERS}[quick]\nruns = 2\n"));
    let (ok, _, err) = told(&run(&["run", &file, "--quick", "--into", &folder.at("runs")]));
    assert!(ok, "{err}");
    folder.write("docs/answers.md", DOCUMENT);
    assert!(answers(&folder, &[]).status.success());
    assert!(folder.read("docs/answers.md").contains("| small | not measured yet |"));
    assert!(answers(&folder, &["--quick"]).status.success());
    assert!(folder.read("docs/answers.md").contains("IPv6 carries "));
}

/// Commits what is in the folder, and gives the commit.
fn commit(folder: &Folder) -> String {
    let git = |arguments: &[&str]| {
        let identity = ["-c", "user.name=test", "-c", "user.email=test@example.com"];
        let done = Command::new("git").current_dir(&folder.0).args(identity).args(arguments).output();
        let done = done.expect("git starts");
        assert!(done.status.success(), "{}", text(&done.stderr));
        text(&done.stdout).trim().to_string()
    };
    git(&["init", "--quiet"]);
    git(&["add", "--all"]);
    git(&["commit", "--quiet", "--message", "next"]);
    git(&["rev-parse", "--short=12", "HEAD"])
}

#[test]
fn a_campaign_that_did_not_measure_todays_code_is_refused() {
    let folder = Folder::new("code");
    let campaign = measured(&folder);
    let measured_at = |commit: &str| {
        let mut manifest = Manifest::read(&campaign).expect("a manifest");
        manifest.build.commit = commit.into();
        std::fs::write(campaign.join("manifest.json"), manifest.text().expect("JSON")).expect("space");
    };
    let rules = |more: &str| {
        let files = "except = [\"**/tests/**\"]\n[files]\nmemory = [\"core\"]\n";
        folder.write("runs/code.toml", format!("{files}{more}"))
    };
    let check = || told(&answers(&folder, &["--check"]));
    let passes = |said: &str| {
        let (ok, out, err) = check();
        assert!(ok && out.contains(said), "{said}\n{out}{err}");
    };
    let refuses = |said: &str| {
        let (ok, out, err) = check();
        assert!(!ok && format!("{out}{err}").contains(said), "{said}\n{out}{err}");
    };
    folder.write("docs/answers.md.in", "{{small: median inet6}}\n");
    assert!(answers(&folder, &[]).status.success());
    passes("no code.toml says what campaigns measure: their age was not looked at");
    rules("");
    refuses("needs a clone with its history");

    folder.write("core/pipeline.rs", "1");
    let first = commit(&folder);
    measured_at(&first);
    passes("every campaign that is quoted measured today's code");
    folder.write("core/tests/pipeline.rs", "what tests it is not measured");
    folder.write("relay.rs", "nor what another topology uses");
    commit(&folder);
    passes("every campaign that is quoted measured today's code");

    folder.write("core/pipeline.rs", "2");
    let second = commit(&folder);
    let changed = &second[..8];
    let older = format!("small was measured at {first}; what it measures changed since in {changed}");
    refuses(&format!("{older}; `weir-lab run labs/small.toml --into runs` measures it again"));
    rules(&format!("[without_effect]\n{changed} = \"a comment\"\n"));
    passes("every campaign that is quoted measured today's code");
    rules("[without_effect]\n01234567 = \"a comment\"\n");
    refuses("[without_effect]: 01234567 is not in the history of HEAD");
    rules("[datted]\n");
    refuses("code.toml:4:2: unknown field `datted`");

    rules("[dated]\nsmall = \"takes a day\"\n");
    refuses(&format!("answers.md: {older}: takes a day; write {{{{small: date}}}} beside its values"));
    folder.write("docs/answers.md.in", "{{small: median inet6}} on {{small: date}}\n");
    assert!(answers(&folder, &[]).status.success());
    passes(&format!("dated: {older}: takes a day"));
    for (commit, said) in [
        (second.as_str(), "[dated]: small measured today's code: take it out"),
        ("", "small was measured by a build outside a repository"),
        (&format!("{second}+changes"), &format!("small was measured by a build of {second} with changes")),
        ("0123456789ab", "small was measured at 0123456789ab, which is not in the history of HEAD"),
    ] {
        measured_at(commit);
        refuses(said);
    }
}

#[test]
fn committed_documents_quote_campaigns_of_todays_code_or_their_dates() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let code = match Code::beside(&root.join("runs")) {
        Err(e @ NotTold::NoHistory(_)) => {
            let test = "committed_documents_quote_campaigns_of_todays_code_or_their_dates";
            let _ = writeln!(std::io::stderr(), "SKIP {test}: {e}");
            return;
        }
        code => code.unwrap_or_else(|e| panic!("{e}")).expect("rules are committed"),
    };
    let campaigns = Campaigns::find(&root.join("runs"), false).expect("campaigns");
    let from = |name: &&str| (name.to_string(), source(&root.join(name)).expect("committed"));
    let found = code.judge(&campaigns, &DOCUMENTS.iter().map(from).collect::<Vec<_>>());
    let refused = found.unwrap_or_else(|e| panic!("{e}")).refused;
    assert!(refused.is_empty(), "{}", refused.join("\n"));
}

#[test]
fn committed_documents_say_what_the_newest_committed_campaigns_say() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut campaigns = Campaigns::find(&root.join("runs"), false).expect("campaigns");
    let questions = ["unused-ipsec", "ciphers", "placement", "spd", "relay"];
    if !questions.iter().any(|name| campaigns.has(&format!("question-{name}"))) {
        let test = "committed_documents_say_what_the_newest_committed_campaigns_say";
        let _ = writeln!(std::io::stderr(), "SKIP {test}: no question was measured yet (`make questions`)");
        return;
    }
    for name in DOCUMENTS {
        let document = root.join(name);
        let committed = std::fs::read_to_string(&document).expect("committed");
        let from = source(&document).expect("committed");
        let derived = campaigns.fill(&document, &from).unwrap_or_else(|e| panic!("{e}"));
        assert!(committed == derived, "`weir-lab report --documents {name}` writes it anew:\n{derived}");
    }
}
