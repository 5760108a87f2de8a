//! The words of the code are the field's: docs/glossary.md has the few of our own.
//!
//! Comments and texts are not read for names: there these are English words.

use std::collections::BTreeMap;

use super::tokens::tokens;
use super::{assert_clean, files, is_test, is_tidy};

/// Names that are not taken again, and the field's word.
const NOT_OURS: &[(&str, &str)] = &[
    ("Lessons", "FlowOffload"),
    ("Learning", "FlowOffload"),
    ("Told", "Event"),
    ("Mail", "Command"),
    ("Tell", "EventSender"),
    ("Ask", "Request"),
    ("Desk", "RequestQueue"),
    ("Newcomer", "AuthenticatedConn"),
    ("Door", "ListenerKind"),
    ("Acquainted", "SharedKey"),
    ("Parcel", "CrossWorkerBatch"),
    ("Spares", "BufferPool"),
    ("Cargo", "BatchMeta"),
    ("Flight", "InFlightWrite"),
    ("Gate", "SendState"),
    ("Wrap", "Transport"),
    ("Crypt", "TlsMode"),
    ("Cutter", "FrameDecoder"),
    ("Fate", "Disposition"),
    ("Bed", "Testbed"),
    ("bed", "testbed"),
    ("Laid", "Deployed"),
    ("Stand", "Environment"),
    ("Subject", "Sut"),
    ("worn", "key_limit_reached"),
    ("let_go", "disconnect"),
    ("last_words", "graceful_close"),
    ("lie_down", "prepare_sleep"),
    ("get_up", "wake"),
    ("judge4", "classify4"),
    ("judge6", "classify6"),
    ("take_in", "classify_inbound"),
    ("take_up", "commit"),
    ("give_up", "shutdown"),
    ("hear", "observe"),
    ("Hear", "Observe"),
    ("Heard", "Observation"),
    ("adopt", "register"),
    ("Adopt", "AddClient"),
    ("settle", "process_queues or what is done"),
    ("SETTLE", "DUMP_DELAY or what is waited for"),
    ("Meek", "NoOverride"),
    ("ceiling", "baseline"),
    ("figure", "metric or value"),
    ("figures", "metrics or values"),
    ("doubt", "warning"),
    ("doubts", "warnings"),
    ("remark", "note"),
    ("remarks", "notes"),
];

/// (name, path): where the word means what it says in English or in an RFC.
const MEANT: &[(&str, &str)] = &[
    ("ceiling", "crates/weir-core/src/mirror/best.rs"),
    // a quality gate, as CI systems call it
    ("Gate", "crates/weir-lab/src/cli.rs"),
    ("Gate", "crates/weir-lab/src/cli/gate.rs"),
];

/// Words that name one type each in all crates; who needs a second says more.
const ONE_THING: [&str; 7] = ["Place", "Slot", "Plan", "Worker", "Report", "Relay", "Engine"];

/// What no sentence begins with: a doc comment is read by itself, in an editor and in rustdoc.
const FRAGMENTS: [&str; 24] = [
    "Of", "And", "Or", "Whose", "Also", "Likewise", "Than", "Not", "Nor", "About", "Behind", "Between", "By",
    "For", "From", "Instead", "Into", "Over", "Since", "Through", "To", "Under", "Until", "While",
];

#[test]
fn names_are_the_fields() {
    let mut complaints = Vec::new();
    for (path, text) in files("crates", ".rs").iter().filter(|(path, _)| !is_tidy(path) && !is_test(path)) {
        for token in tokens(text) {
            let Some((word, instead)) = NOT_OURS.iter().find(|(word, _)| *word == token.text) else {
                continue;
            };
            if !MEANT.contains(&(*word, path)) {
                complaints.push(format!("{path}:{}: `{word}`: the field says {instead}", token.line));
            }
        }
    }
    assert_clean(complaints);
}

#[test]
fn a_name_of_many_uses_names_one_type() {
    let mut defined: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (path, text) in files("crates", ".rs").iter().filter(|(path, _)| !is_test(path)) {
        let tokens = tokens(text);
        for pair in
            tokens.windows(2).filter(|pair| ["struct", "enum", "trait", "type"].contains(&&*pair[0].text))
        {
            if ONE_THING.contains(&&*pair[1].text) {
                defined.entry(pair[1].text.clone()).or_default().push(format!("{path}:{}", pair[1].line));
            }
        }
    }
    let several = defined.into_iter().filter(|(_, at)| at.len() > 1);
    assert_clean(
        several.map(|(name, at)| format!("`{name}` names {} types: {}", at.len(), at.join(", "))).collect(),
    );
}

#[test]
fn doc_comments_are_sentences_that_stand_alone() {
    let mut complaints = Vec::new();
    for (path, text) in files("crates", ".rs") {
        let mut before = "";
        for (number, line) in (1..).zip(text.lines()) {
            let line = line.trim_start();
            if let Some(comment) = line.strip_prefix("/// ").filter(|_| !before.starts_with("///")) {
                let first = comment.split(' ').next().unwrap_or_default();
                if FRAGMENTS.contains(&first) {
                    complaints.push(format!("{path}:{number}: `{comment}`: say what it is, as a sentence"));
                }
            }
            before = line;
        }
    }
    assert_clean(complaints);
}
