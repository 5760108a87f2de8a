//! `weir policy`: one policy of a running gateway added, replaced or removed, without the file of all of them.
//!
//! Promises: what is typed is judged by the router as a `[[policy]]` of its file would be; nothing here knows
//! what a right selector is.

use std::path::Path;

use clap::{Args, Subcommand};
use serde_json::{Value, json};

use super::apply::report;
use super::show::{self, Topic};
use crate::control::client;
use crate::failure::Failure;
use crate::text::print;
use crate::view::{AddPolicy, Applied, PolicyChange, PolicyFields, PolicyRequest};

#[derive(Debug, Subcommand)]
pub enum PolicyVerb {
    /// Add a policy to an SPD: last, or where --before, --after or --at says
    Add {
        #[command(flatten)]
        policy: PolicyArgs,
        /// Put it in front of this policy
        #[arg(long, value_name = "NAME", conflicts_with_all = ["after", "at"])]
        before: Option<String>,
        /// Put it behind this policy
        #[arg(long, value_name = "NAME", conflicts_with = "at")]
        after: Option<String>,
        /// Give it this number, as `weir show spd` counts them
        #[arg(long, value_name = "NUMBER")]
        at: Option<usize>,
    },
    /// Replace the policy of this name; it keeps its place and its counters
    Replace {
        #[command(flatten)]
        policy: PolicyArgs,
    },
    /// Remove policies: all of those named, or none
    Remove {
        spd: String,
        #[arg(required = true)]
        names: Vec<String>,
        /// Only say what would change
        #[arg(long)]
        dry_run: bool,
    },
    /// What `weir show spd` shows
    List {
        /// Every policy, however many there are
        #[arg(long)]
        all: bool,
        /// Those with this in their name
        #[arg(long, value_name = "TEXT")]
        named: Option<String>,
        /// Those that decided about a packet
        #[arg(long)]
        hit: bool,
        /// The daemon's own JSON
        #[arg(long)]
        json: bool,
    },
}

/// A `[[policy]]`, key by key.
#[derive(Clone, Debug, Args)]
pub struct PolicyArgs {
    /// The SPD it belongs to
    spd: String,
    /// Its name
    name: String,
    /// protect, bypass or discard
    #[arg(long)]
    action: String,
    /// in, out or both [default: both]
    #[arg(long)]
    direction: Option<String>,
    /// Prefix, range or address of our side; again for more
    #[arg(long)]
    local: Vec<String>,
    /// Prefix, range or address of the far side; again for more
    #[arg(long)]
    remote: Vec<String>,
    /// A name or a number
    #[arg(long)]
    protocol: Option<String>,
    /// A port or a range
    #[arg(long)]
    local_ports: Option<String>,
    /// A port or a range
    #[arg(long)]
    remote_ports: Option<String>,
    /// A name, a type, or TYPE/CODE
    #[arg(long)]
    icmp: Option<String>,
    /// SAs packets leave by
    #[arg(long)]
    out: Vec<String>,
    /// SAs packets may come in by
    #[arg(long = "in")]
    inbound: Vec<String>,
    /// Only say what would change
    #[arg(long)]
    dry_run: bool,
}

impl PolicyArgs {
    fn fields(&self) -> PolicyFields {
        let mut fields = PolicyFields::new();
        let mut put = |key: &str, value: Option<Value>| {
            if let Some(value) = value {
                fields.insert(key.to_owned(), value);
            }
        };
        let number = |text: &String| text.parse::<u64>().map_or_else(|_| json!(text), |n| json!(n));
        let list = |of: &[String]| (!of.is_empty()).then(|| json!(of));
        put("name", Some(json!(self.name)));
        put("direction", self.direction.as_ref().map(|d| json!(d)));
        put("local", list(&self.local));
        put("remote", list(&self.remote));
        put("protocol", self.protocol.as_ref().map(number));
        put("local_ports", self.local_ports.as_ref().map(number));
        put("remote_ports", self.remote_ports.as_ref().map(number));
        put("icmp", self.icmp.as_deref().map(icmp));
        put("action", Some(json!(self.action)));
        put("out", list(&self.out));
        put("in", list(&self.inbound));
        fields
    }
}

/// `echo-request`, `8`, `3/4`.
fn icmp(text: &str) -> Value {
    let (kind, code) = text.split_once('/').unwrap_or((text, ""));
    match (kind.parse::<u64>(), code.parse::<u64>()) {
        (Ok(kind), Ok(code)) => json!({ "type": kind, "code": code }),
        (Ok(kind), Err(_)) if code.is_empty() => json!({ "type": kind }),
        _ => json!(text),
    }
}

pub fn run(socket: &Path, verb: &PolicyVerb) -> Result<(), Failure> {
    let (spd, changes, dry_run) = match verb {
        PolicyVerb::List { all, named, hit, json } => {
            let shown = show::Shown { all: *all, named: named.clone(), hit: *hit };
            return show::run(socket, Topic::Spd, *json, &shown, &show::Page::default());
        }
        PolicyVerb::Add { policy, before, after, at } => {
            let add =
                AddPolicy { policy: policy.fields(), before: before.clone(), after: after.clone(), at: *at };
            (&policy.spd, vec![PolicyChange::Add(add)], policy.dry_run)
        }
        PolicyVerb::Replace { policy } => {
            (&policy.spd, vec![PolicyChange::Replace { policy: policy.fields() }], policy.dry_run)
        }
        PolicyVerb::Remove { spd, names, dry_run } => {
            (spd, names.iter().map(|name| PolicyChange::Remove { name: name.clone() }).collect(), *dry_run)
        }
    };
    let request = PolicyRequest { spd: spd.clone(), changes };
    let body = serde_json::to_vec(&request).map_err(|e| Failure(e.to_string()))?;
    let path = if dry_run { "/v1/policies?dry-run" } else { "/v1/policies" };
    let applied: Applied = client::post(socket, path, "application/json", &body).map_err(Failure::of)?;
    print(&report(&applied))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_names_and_codes_are_told_apart() {
        assert_eq!(icmp("echo-request"), json!("echo-request"));
        assert_eq!(icmp("8"), json!({ "type": 8 }));
        assert_eq!(icmp("3/4"), json!({ "type": 3, "code": 4 }));
        assert_eq!(icmp("3/x"), json!("3/x"));
    }
}
