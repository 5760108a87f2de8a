//! Modules of a crate import in one direction. An arrow that closes an import cycle is refused with its place; those of
//! before stand in a list that only gets shorter.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fs;

use crate::imports::{Arrows, arrows};
use crate::{assert_clean, files, root};

/// (crate, importing module, imported module) that close a cycle and are to go.
/// Without them every crate's modules stand in one order. A line whose arrow is gone is removed.
const EXCEPTIONS: &[(&str, &str, &str)] = &[];

/// An import cycle: its arrows in order, the one to cut last.
fn cycle(arrows: &Arrows) -> Option<Vec<(String, String)>> {
    let mut shortest: Option<Vec<String>> = None;
    for (from, to) in arrows.keys() {
        if let Some(way) = way(arrows, to, from)
            && shortest.as_ref().is_none_or(|known| way.len() < known.len())
        {
            shortest = Some(way);
        }
    }
    let way = shortest?;
    let next = |at: usize| way[(at + 1) % way.len()].clone();
    let mut cycle: Vec<_> = way.iter().enumerate().map(|(at, from)| (from.clone(), next(at))).collect();
    // the arrow with the fewest places costs the least to cut
    let weakest = (0..cycle.len()).min_by_key(|&at| arrows[&cycle[at]].len()).unwrap_or(0);
    cycle.rotate_left(weakest + 1);
    Some(cycle)
}

/// The shortest way along arrows, both ends included.
fn way(arrows: &Arrows, from: &str, to: &str) -> Option<Vec<String>> {
    let mut before: BTreeMap<&str, &str> = BTreeMap::new();
    let mut open = VecDeque::from([from]);
    while let Some(here) = open.pop_front() {
        if here == to {
            let mut way = vec![to.to_string()];
            while way.last().is_some_and(|last| last != from) {
                way.push(before[way[way.len() - 1].as_str()].to_string());
            }
            way.reverse();
            return Some(way);
        }
        for (_, next) in arrows.keys().filter(|arrow| arrow.0 == here) {
            if next != from && !before.contains_key(next.as_str()) {
                before.insert(next, here);
                open.push_back(next);
            }
        }
    }
    None
}

/// Says which arrows close cycles, and which exceptions have outlived theirs.
fn complaints(name: &str, arrows: &Arrows, exceptions: &[(&str, &str)]) -> Vec<String> {
    let mut complaints = Vec::new();
    let mut rest = arrows.clone();
    for (from, to) in exceptions {
        let why = match rest.remove(&(from.to_string(), to.to_string())) {
            None => "is gone",
            Some(_) if way(arrows, to, from).is_none() => "closes no cycle any more",
            Some(_) => continue,
        };
        complaints.push(format!("{name}: the arrow {from} → {to} {why}: remove its exception"));
    }
    while let Some(cycle) = cycle(&rest) {
        let (from, to) = cycle.last().expect("a cycle has arrows");
        let (file, line) = &rest[&(from.clone(), to.clone())][0];
        let walk: Vec<String> = cycle.iter().map(|arrow| step(&rest, arrow)).collect();
        complaints.push(format!(
            "{file}:{line}: `{from}` imports `{to}` and so closes an import cycle: {}; move what both need below both",
            walk.join(", ")
        ));
        rest.remove(cycle.last().expect("a cycle has arrows"));
    }
    complaints
}

fn step(arrows: &Arrows, arrow: &(String, String)) -> String {
    let places = &arrows[arrow];
    let (file, line) = &places[0];
    let more = if places.len() > 1 { format!(" and {} more", places.len() - 1) } else { String::new() };
    format!("{} → {} ({file}:{line}{more})", arrow.0, arrow.1)
}

/// The arrows of a crate of this workspace.
fn of_crate(name: &str) -> Arrows {
    let prefix = format!("crates/{name}/src/");
    let below = |(path, text): (String, String)| Some((path.strip_prefix(&prefix)?.to_string(), text));
    let sources = files(&prefix, ".rs").into_iter().filter_map(below).collect();
    arrows(&sources, &prefix).expect("the crate's modules have files")
}

#[test]
fn modules_of_a_crate_import_in_one_direction() {
    let crates = fs::read_dir(root().join("crates")).expect("the crates");
    let crates: BTreeSet<String> =
        crates.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    let unknown = EXCEPTIONS.iter().filter(|exception| !crates.contains(exception.0));
    let mut found: Vec<String> = unknown
        .map(|exception| format!("no crate is named {}: remove its exceptions", exception.0))
        .collect();
    for name in &crates {
        let exceptions: Vec<_> = EXCEPTIONS.iter().filter(|e| e.0 == name).map(|e| (e.1, e.2)).collect();
        let arrows = of_crate(name);
        assert!(!arrows.is_empty() || exceptions.is_empty(), "{name} was not understood");
        found.extend(complaints(name, &arrows, &exceptions));
    }
    assert_clean(found);
}

/// A small crate: `wire` below `route` below `router`; its test modules look up, which is theirs to do.
fn sample() -> BTreeMap<String, String> {
    [
        ("lib.rs", "mod router;\npub mod route;\nmod wire;\npub use crate::wire::ip::Packet;\n"),
        ("router.rs", "use crate::{Packet, route::{self, Fib}};\nfn a() { /* crate::b */ }\n"),
        ("route.rs", "pub(in crate::router) struct Fib;\n#[cfg(test)]\nmod tests;\nmod table;\n"),
        ("route/table.rs", "use super::Fib;\nfn a() -> super::super::wire::ip::Packet { todo() }\n"),
        ("route/tests.rs", "use crate::router::Router;\n"),
        ("wire.rs", "pub mod ip;\nconst DOC: &str = \"crate::router\";\n"),
        (
            "wire/ip.rs",
            "use std::net;\n#[cfg(test)]\nmod tests {\n    use crate::router;\n}\npub struct Packet;\n",
        ),
    ]
    .map(|(path, text)| (path.to_string(), text.to_string()))
    .into()
}

#[test]
fn imports_are_read_wherever_they_stand() {
    let found = arrows(&sample(), "src/").expect("the sample is whole");
    let found: Vec<String> = found.keys().map(|arrow| step(&found, arrow)).collect();
    let expected = [
        "route → wire (src/route/table.rs:2)",
        "router → route (src/router.rs:1)",
        "router → wire (src/router.rs:1)",
    ];
    assert_eq!(found, expected);
}

#[test]
fn an_arrow_that_closes_a_cycle_is_named_with_its_place() {
    let mut sources = sample();
    sources.insert("wire/ip.rs".into(), "pub struct Packet;\n\nfn a(_: &crate::router::Router) {}\n".into());
    let arrows = arrows(&sources, "src/").expect("the sample is whole");
    let found = complaints("sample", &arrows, &[]).join("\n");
    assert!(found.starts_with("src/wire/ip.rs:3: `wire` imports `router`"), "{found}");
    assert!(found.contains("router → wire (src/router.rs:1), wire → router (src/wire/ip.rs:3)"), "{found}");
    assert_eq!(complaints("sample", &arrows, &[("wire", "router")]), [""; 0]);
}

#[test]
fn an_exception_lasts_no_longer_than_its_arrow() {
    let arrows = arrows(&sample(), "src/").expect("the sample is whole");
    let found = complaints("sample", &arrows, &[("wire", "router"), ("router", "route")]);
    assert_eq!(
        found,
        [
            "sample: the arrow wire → router is gone: remove its exception",
            "sample: the arrow router → route closes no cycle any more: remove its exception",
        ]
    );
}
