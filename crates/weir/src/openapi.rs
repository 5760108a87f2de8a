//! `docs/openapi.json` and the paths there are: what one has the other has.

use std::collections::BTreeSet;

use hyper::Method;
use serde_json::Value;

use crate::control::{HttpRequest, Response};
use crate::{relay, router};

/// Paths that no daemon's table has, because they are the server's.
const OF_THE_SERVER: [&str; 3] = ["/v1/reload", "/v1/stop", "/v1/handover"];

fn document() -> Value {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/openapi.json");
    serde_json::from_str(&std::fs::read_to_string(file).expect("docs has it")).expect("JSON")
}

fn ask(daemon: &str, method: Method, path: &str) -> Option<Response> {
    let (path, query, body) = (path.to_owned(), String::new(), b"{}".to_vec());
    let request = HttpRequest { method, path, query, body };
    match daemon {
        "router" => router::resources::Resource::of(request).err(),
        _ => relay::resources::Resource::of(&request).err(),
    }
}

/// Method, path and the daemons that have it, as the document says.
fn documented() -> Vec<(Method, String, Vec<String>)> {
    let document = document();
    let paths = document["paths"].as_object().expect("paths");
    let operations = paths.iter().flat_map(|(path, methods)| {
        methods.as_object().expect("methods").iter().map(move |(method, operation)| {
            let method = method.to_uppercase().parse().expect("a method");
            let tags = operation["tags"].as_array().expect("tags").iter();
            (method, path.clone(), tags.map(|t| t.as_str().expect("text").to_owned()).collect())
        })
    });
    operations.collect()
}

#[test]
fn every_documented_path_is_there_with_its_method_and_with_no_other() {
    for (method, path, daemons) in documented() {
        for daemon in ["router", "relay"] {
            if OF_THE_SERVER.contains(&path.as_str()) {
                continue;
            }
            let other = if method == Method::GET { Method::POST } else { Method::GET };
            let status = |method: Method| ask(daemon, method, &path).map(|refusal| refusal.status);
            match daemons.iter().any(|d| d == daemon) {
                true => {
                    assert_eq!(status(method.clone()), None, "{daemon}: {method} {path}");
                    assert_eq!(status(other.clone()), Some(405), "{daemon}: {other} {path}");
                }
                false => assert_eq!(status(method.clone()), Some(404), "{daemon}: {method} {path}"),
            }
        }
    }
}

/// `GET /` lists what there is, a line each.
#[test]
fn every_path_a_daemon_lists_is_documented_and_no_other() {
    for daemon in ["router", "relay"] {
        let index = ask(daemon, Method::GET, "/").expect("a list").body;
        let listed: BTreeSet<(String, String)> = index
            .lines()
            .filter_map(|line| {
                let mut words = line.split_whitespace();
                let method = words.next().filter(|m| ["GET", "POST"].contains(m))?;
                Some((method.to_owned(), words.next()?.to_owned()))
            })
            .collect();
        let documented: BTreeSet<(String, String)> = documented()
            .into_iter()
            .filter(|(_, _, daemons)| daemons.iter().any(|d| d == daemon))
            .map(|(method, path, _)| (method.to_string(), path))
            .collect();
        assert_eq!(listed, documented, "{daemon}");
    }
}

#[test]
fn every_reference_leads_to_a_component() {
    fn references(value: &Value, found: &mut Vec<String>) {
        match value {
            Value::Object(fields) => {
                found.extend(fields.get("$ref").and_then(Value::as_str).map(str::to_owned));
                fields.values().for_each(|v| references(v, found));
            }
            Value::Array(items) => items.iter().for_each(|v| references(v, found)),
            _ => {}
        }
    }
    let document = document();
    let mut found = Vec::new();
    references(&document, &mut found);
    assert!(found.len() > 10, "{found:?}");
    for reference in found {
        let pointer = reference.strip_prefix('#').expect("of this document");
        assert!(document.pointer(pointer).is_some(), "{reference} leads nowhere");
    }
}
