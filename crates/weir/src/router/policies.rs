//! `POST /v1/policies`: policies of an SPD change one by one, without the file of all of them.
//!
//! Promises: a policy is read as a `[[policy]]` of the file is, with the same complaints; all changes of a request
//! or none; what the file says is not touched, so that the next `weir apply` makes it the truth again and prints
//! the difference. A policy that hides others is taken, unlike in a file; a dry run says which. Refuses: names that are not there, with the nearest one; two places for one policy.

#[cfg(feature = "testing")]
pub(super) mod fuzz;

use weir_core::control::PolicyChange;
use weir_core::state::{Error, Policies, PolicyProblem, PolicySpec, Problem, nearest};

use super::Daemon;
use super::error::{CHANGES_MAX, PolicyChangeError};
use crate::config::{self, merged::merged};
use crate::control::Response;
use crate::view::{self, Applied};

/// Policies that can never match, told one by one.
const HIDDEN_SHOWN: usize = 20;
/// Changes that are kept to be shown: at some 500 bytes, 5 MB.
const UNSAVED_MAX: usize = 10_000;

/// Changes since a file was applied, as they were asked for and as lines.
#[derive(Default)]
pub struct Unsaved {
    requests: Vec<view::PolicyRequest>,
    lines: Vec<String>,
    /// There were more than are kept.
    forgotten: bool,
}

impl Unsaved {
    fn add(&mut self, request: view::PolicyRequest, lines: &[String]) {
        self.forgotten |= self.lines.len() + lines.len() > UNSAVED_MAX;
        if !self.forgotten {
            self.requests.push(request);
            self.lines.extend_from_slice(lines);
        }
    }
}

impl Daemon {
    /// What runs, as a file.
    pub(super) fn running(&self) -> Response {
        if self.unsaved.forgotten {
            let why = format!(
                "config: more than {UNSAVED_MAX} changes of policies since a file was applied, which are not kept; \
                 `weir show spd --json --all` has the policies"
            );
            return Response::refusal(409, why);
        }
        match merged(&self.config.source.text, &self.unsaved.requests) {
            Ok(toml) => {
                let (file, unsaved) = (self.config.source.name.clone(), self.unsaved.lines.clone());
                Response::json(200, &view::Running { file, toml, unsaved })
            }
            Err(error) => Response::refusal(500, error.to_string()),
        }
    }

    pub(super) fn change_policies(
        &mut self,
        body: &[u8],
        dry_run: bool,
    ) -> Result<Applied, PolicyChangeError> {
        let request: view::PolicyRequest =
            serde_json::from_slice(body).map_err(PolicyChangeError::NotARequest)?;
        let (got, spd) = (request.changes.len(), request.spd.as_str());
        if !(1..=CHANGES_MAX).contains(&got) {
            return Err(PolicyChangeError::Changes { got });
        }
        let spds = &self.control.desired().ipsec.spds;
        let at = spds.iter().position(|s| s.name == spd).ok_or_else(|| PolicyChangeError::NoSpd {
            name: spd.to_owned(),
            nearest: nearest(spd, spds.iter().map(|s| s.name.as_str())).map(str::to_owned),
        })?;
        let mut list = spds[at].policies.clone();
        let (mut changes, mut actions) = (Vec::new(), Vec::new());
        for change in &request.changes {
            let (change, action) = change_of(spd, change, &mut list)?;
            changes.push(change);
            actions.push(action);
        }
        let mut notes = Vec::new();
        if dry_run {
            let mut wanted = self.control.desired().clone();
            wanted.ipsec.spds[at].policies = list;
            notes = hidden(self.control.plan(&wanted).err().unwrap_or_default())?;
        } else {
            self.control.change_policies(spd, changes).map_err(PolicyChangeError::Rejected)?;
            self.publish();
            actions.iter().for_each(|action| tracing::info!("applied {action}"));
            self.unsaved.add(request, &actions);
        }
        let generation = self.control.tables().generation;
        Ok(Applied { actions, notes, applied: !dry_run, generation })
    }
}

/// One change as the core takes it, and as a line; `list` becomes what it will be.
fn change_of(
    spd: &str,
    change: &view::PolicyChange,
    list: &mut Policies,
) -> Result<(PolicyChange, String), PolicyChangeError> {
    Ok(match change {
        view::PolicyChange::Add(add) => {
            let policy = policy(spd, &add.policy)?;
            let at = position(spd, add, list)?;
            list.insert(at, policy.clone());
            let action = format!("+ spd {spd}: policy {} as number {}", policy.name, at + 1);
            (PolicyChange::Insert { at, policy }, action)
        }
        view::PolicyChange::Remove { name } => {
            list.remove(find(spd, name, list)?);
            (PolicyChange::Remove { name: name.clone() }, format!("- spd {spd}: policy {name}"))
        }
        view::PolicyChange::Replace { policy: fields } => {
            let policy = policy(spd, fields)?;
            let at = find(spd, &policy.name, list)?;
            list.replace(at, policy.clone());
            let action = format!("~ spd {spd}: policy {}", policy.name);
            (PolicyChange::Replace { policy }, action)
        }
    })
}

/// The policy that a new one comes before, counted from 0.
fn position(spd: &str, add: &view::AddPolicy, list: &Policies) -> Result<usize, PolicyChangeError> {
    match (&add.before, &add.after, add.at) {
        (None, None, None) => Ok(list.len()),
        (Some(name), None, None) => find(spd, name, list),
        (None, Some(name), None) => Ok(find(spd, name, list)? + 1),
        (None, None, Some(number)) if (1..=list.len() + 1).contains(&number) => Ok(number - 1),
        (None, None, Some(at)) => {
            Err(PolicyChangeError::NoNumber { spd: spd.to_owned(), at, most: list.len() + 1 })
        }
        _ => Err(PolicyChangeError::SeveralPositions { spd: spd.to_owned() }),
    }
}

fn find(spd: &str, name: &str, list: &Policies) -> Result<usize, PolicyChangeError> {
    list.iter().position(|p| p.name == name).ok_or_else(|| PolicyChangeError::NoPolicy {
        spd: spd.to_owned(),
        name: name.to_owned(),
        nearest: nearest(name, list.iter().map(|p| p.name.as_str())).map(str::to_owned),
    })
}

fn policy(spd: &str, fields: &view::PolicyFields) -> Result<PolicySpec, PolicyChangeError> {
    let mut text = format!("[[policy]]\nspd = {}\n", serde_json::Value::from(spd));
    for (key, value) in fields {
        text += &format!("{} = {}\n", toml_key(key), toml(key, value)?);
    }
    config::parse_policy(text).map_err(PolicyChangeError::Refused)
}

/// JSON as TOML: strings, numbers and lists are written alike.
fn toml(key: &str, value: &serde_json::Value) -> Result<String, PolicyChangeError> {
    use serde_json::Value;
    match value {
        Value::Null => Err(PolicyChangeError::Null { key: key.to_owned() }),
        Value::Array(items) => {
            let items: Vec<String> = items.iter().map(|item| toml(key, item)).collect::<Result<_, _>>()?;
            Ok(format!("[{}]", items.join(", ")))
        }
        Value::Object(fields) => {
            let field = |(k, v): (&String, &Value)| Ok(format!("{} = {}", toml_key(k), toml(k, v)?));
            let fields: Vec<String> = fields.iter().map(field).collect::<Result<_, _>>()?;
            Ok(format!("{{ {} }}", fields.join(", ")))
        }
        Value::Bool(_) | Value::Number(_) | Value::String(_) => Ok(value.to_string()),
    }
}

fn toml_key(key: &str) -> String {
    let bare = |c: char| c.is_ascii_alphanumeric() || "_-".contains(c);
    match !key.is_empty() && key.chars().all(bare) {
        true => key.to_owned(),
        false => serde_json::Value::from(key).to_string(),
    }
}

/// What could not be, or which policies would never match: a wide one in front of all others is how traffic is
/// stopped in a hurry, so that is said and not refused.
fn hidden(errors: Vec<Error>) -> Result<Vec<String>, PolicyChangeError> {
    let (hidden, wrong): (Vec<Error>, Vec<Error>) =
        errors.into_iter().partition(|e| matches!(e.problem, Problem::Policy(PolicyProblem::Hidden { .. })));
    if !wrong.is_empty() {
        return Err(PolicyChangeError::Rejected(wrong));
    }
    let mut notes: Vec<String> = hidden.iter().take(HIDDEN_SHOWN).map(ToString::to_string).collect();
    if let Some(more) = hidden.len().checked_sub(HIDDEN_SHOWN).filter(|&more| more > 0) {
        notes.push(format!("{more} policies more can never match"));
    }
    Ok(notes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn changed(list: &mut Policies, json: &str) -> Result<String, String> {
        let change: view::PolicyChange = serde_json::from_str(json).expect("a change");
        change_of("wan", &change, list).map(|(_, action)| action).map_err(|error| error.to_string())
    }

    fn names(list: &Policies) -> Vec<&str> {
        list.iter().map(|p| p.name.as_str()).collect()
    }

    #[test]
    fn policies_come_where_they_are_wanted_change_and_go() {
        let mut list = Policies::default();
        let add = |name: &str, place: &str| {
            format!("{{\"add\": {{\"policy\": {{\"name\": \"{name}\", \"action\": \"bypass\"}}{place}}}}}")
        };
        changed(&mut list, &add("b", "")).expect("last");
        changed(&mut list, &add("d", "")).expect("last");
        changed(&mut list, &add("a", ", \"before\": \"b\"")).expect("before");
        changed(&mut list, &add("c", ", \"after\": \"b\"")).expect("after");
        let said = changed(&mut list, &add("first", ", \"at\": 1")).expect("by number");
        assert_eq!(said, "+ spd wan: policy first as number 1");
        assert_eq!(names(&list), ["first", "a", "b", "c", "d"]);
        changed(&mut list, "{\"remove\": {\"name\": \"b\"}}").expect("there");
        changed(&mut list, "{\"replace\": {\"policy\": {\"name\": \"c\", \"action\": \"discard\"}}}")
            .expect("there");
        assert_eq!(names(&list), ["first", "a", "c", "d"]);
        assert_eq!(list[2].action, weir_core::ipsec::Action::Discard);
        let said = changed(&mut list, &add("x", ", \"at\": 9")).expect_err("no such place");
        assert_eq!(said, "spd wan: at is 9, expected 1 to 5; `weir show spd` numbers its policies");
        let said = changed(&mut list, "{\"remove\": {\"name\": \"frist\"}}").expect_err("not there");
        assert_eq!(said, "spd wan: there is no policy `frist`; write `first`");
        let said = changed(&mut list, &add("x", ", \"at\": 1, \"before\": \"a\"")).expect_err("two places");
        assert!(said.contains("more than one of before, after and at"), "{said}");
    }

    #[test]
    fn a_policy_in_json_is_judged_as_one_of_a_file() {
        let mut list = Policies::default();
        let whole = r#"{"add": {"policy": {"name": "web", "local": ["10.1.0.0/16", "10.3.0.7"], "remote": "10.2.0.0/16",
            "protocol": "tcp", "remote_ports": "8000-8999", "action": "bypass"}}}"#;
        changed(&mut list, whole).expect("right");
        assert_eq!((list[0].local.len(), list[0].remote_ports.first, list[0].protocol), (2, 8000, Some(6)));
        let ping = r#"{"add": {"policy": {"name": "ping", "protocol": "icmp", "icmp": {"type": 8}, "action": "bypass"}}}"#;
        changed(&mut list, ping).expect("right");
        let wrong = r#"{"add": {"policy": {"name": "w", "lcoal": "10.1.0.0/33", "action": "allow"}}}"#;
        let said = changed(&mut list, wrong).expect_err("refused");
        assert!(said.contains("`lcoal` is not a key here") && said.contains("write `local`"), "{said}");
        assert!(said.contains("action: got `allow`, expected `protect`, `bypass` or `discard`"), "{said}");
        let null = r#"{"add": {"policy": {"name": "w", "local": null, "action": "bypass"}}}"#;
        assert!(changed(&mut list, null).expect_err("refused").contains("local: got null"));
        assert_eq!(names(&list), ["web", "ping"]);
    }
}
