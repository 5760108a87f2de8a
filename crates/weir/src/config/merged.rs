//! A configuration as text with the changes of its policies that were made since: what runs, as a file.
//!
//! Promises: without changes the text is the file's own, comments and all; with some it is the same configuration written
//! anew. Refuses: changes that do not fit the text, which is a defect: the router took them.

use std::fmt;

use toml::{Table, Value};

use crate::view::{AddPolicy, PolicyChange, PolicyFields, PolicyRequest};

/// Why a change does not fit.
#[derive(Debug, PartialEq, Eq)]
pub enum MergeError {
    NotToml(String),
    /// `policy` is no list of tables.
    NoList,
    NoPolicy {
        spd: String,
        name: String,
    },
    /// A value that TOML has not.
    Value(String),
}

impl fmt::Display for MergeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            MergeError::NotToml(why) => write!(f, "config: what runs is not TOML ({why}); report this"),
            MergeError::NoList => f.write_str("config: `policy` is no list of tables; report this"),
            MergeError::NoPolicy { spd, name } => {
                write!(f, "config: spd {spd} has no policy {name} to change; report this")
            }
            MergeError::Value(why) => {
                write!(f, "config: a policy cannot be written as TOML ({why}); report this")
            }
        }
    }
}

impl std::error::Error for MergeError {}

/// `text` after these changes, in their order.
pub fn merged(text: &str, requests: &[PolicyRequest]) -> Result<String, MergeError> {
    if requests.is_empty() {
        return Ok(text.to_owned());
    }
    let mut table: Table = text.parse().map_err(|e: toml::de::Error| MergeError::NotToml(e.to_string()))?;
    let list = table.entry("policy").or_insert_with(|| Value::Array(Vec::new()));
    let list = list.as_array_mut().ok_or(MergeError::NoList)?;
    for request in requests {
        request.changes.iter().try_for_each(|change| carry_out(list, &request.spd, change))?;
    }
    toml::to_string(&table).map_err(|e| MergeError::Value(e.to_string()))
}

fn carry_out(list: &mut Vec<Value>, spd: &str, change: &PolicyChange) -> Result<(), MergeError> {
    match change {
        PolicyChange::Remove { name } => {
            let at = find(list, spd, name)?;
            list.remove(at);
        }
        PolicyChange::Replace { policy } => {
            let name = policy.get("name").and_then(|n| n.as_str()).unwrap_or_default();
            let at = find(list, spd, name)?;
            list[at] = written(spd, policy)?;
        }
        PolicyChange::Add(add) => {
            let at = place(list, spd, add)?;
            list.insert(at, written(spd, &add.policy)?);
        }
    }
    Ok(())
}

/// Where of all policies a new one of this SPD goes.
fn place(list: &[Value], spd: &str, add: &AddPolicy) -> Result<usize, MergeError> {
    let own: Vec<usize> = (0..list.len()).filter(|&i| key(&list[i], "spd") == Some(spd)).collect();
    let end = own.last().map_or(list.len(), |last| last + 1);
    match (&add.before, &add.after, add.at) {
        (Some(name), _, _) => find(list, spd, name),
        (_, Some(name), _) => Ok(find(list, spd, name)? + 1),
        (_, _, Some(number)) => Ok(own.get(number.saturating_sub(1)).copied().unwrap_or(end)),
        (None, None, None) => Ok(end),
    }
}

fn find(list: &[Value], spd: &str, name: &str) -> Result<usize, MergeError> {
    let found = list.iter().position(|p| key(p, "spd") == Some(spd) && key(p, "name") == Some(name));
    found.ok_or_else(|| MergeError::NoPolicy { spd: spd.to_owned(), name: name.to_owned() })
}

fn key<'a>(policy: &'a Value, key: &str) -> Option<&'a str> {
    policy.get(key)?.as_str()
}

fn written(spd: &str, fields: &PolicyFields) -> Result<Value, MergeError> {
    let mut table = Table::try_from(fields).map_err(|e| MergeError::Value(e.to_string()))?;
    table.insert("spd".to_owned(), spd.into());
    Ok(Value::Table(table))
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = "# mine\n[[policy]]\nspd = \"a\"\nname = \"one\"\n[[policy]]\nspd = \"b\"\nname = \"other\"\n\
                        [[policy]]\nspd = \"a\"\nname = \"two\"\n";

    fn names(requests: serde_json::Value) -> Result<Vec<String>, MergeError> {
        let requests: Vec<PolicyRequest> = serde_json::from_value(requests).expect("requests");
        let table: Table = merged(FILE, &requests)?.parse().expect("TOML");
        let of = |p: &Value| format!("{}/{}", key(p, "spd").expect("text"), key(p, "name").expect("text"));
        Ok(table["policy"].as_array().expect("a list").iter().map(of).collect())
    }

    #[test]
    fn without_changes_the_text_is_the_files_own() {
        assert_eq!(merged(FILE, &[]).as_deref(), Ok(FILE));
    }

    #[test]
    fn a_new_policy_comes_where_its_spd_has_it() {
        let add = |more: serde_json::Value| {
            let mut add = serde_json::json!({"policy": {"name": "new"}});
            add.as_object_mut().expect("a table").extend(more.as_object().expect("a table").clone());
            names(serde_json::json!([{"spd": "a", "changes": [{"add": add}]}])).expect("it fits")
        };
        assert_eq!(add(serde_json::json!({})), ["a/one", "b/other", "a/two", "a/new"]);
        assert_eq!(add(serde_json::json!({"before": "two"})), ["a/one", "b/other", "a/new", "a/two"]);
        assert_eq!(add(serde_json::json!({"after": "one"})), ["a/one", "a/new", "b/other", "a/two"]);
        assert_eq!(add(serde_json::json!({"at": 1})), ["a/new", "a/one", "b/other", "a/two"]);
        assert_eq!(add(serde_json::json!({"at": 3})), ["a/one", "b/other", "a/two", "a/new"]);
    }

    #[test]
    fn policies_go_and_change_by_name_in_their_spd_alone() {
        let remove = serde_json::json!([{"spd": "b", "changes": [{"remove": {"name": "other"}}]}]);
        assert_eq!(names(remove), Ok(vec!["a/one".into(), "a/two".into()]));
        let wrong = serde_json::json!([{"spd": "b", "changes": [{"remove": {"name": "one"}}]}]);
        assert!(matches!(names(wrong), Err(MergeError::NoPolicy { .. })));
        let replace: Vec<PolicyRequest> = serde_json::from_value(serde_json::json!(
            [{"spd": "a", "changes": [{"replace": {"policy": {"name": "two", "remote_ports": [443, 80]}}}]}]
        ))
        .expect("requests");
        let text = merged(FILE, &replace).expect("it fits");
        assert!(text.contains("remote_ports = [443, 80]") && text.contains("name = \"two\""), "{text}");
    }
}
