//! The fuzz function of changes of policies: what is done to the list and what is printed as a file are the same.

use toml::{Table, Value};
use weir_core::state::Policies;

use super::{change_of, policy};
use crate::config::merged::merged;
use crate::view;

/// What the file has before.
const FILE: &str = r#"
[[policy]]
spd = "wan"
name = "a"
local = "10.1.0.0/16"
remote = ["10.2.0.0/16", "10.3.0.0/16"]
protocol = "tcp"
remote_ports = "8000-8999"
action = "bypass"

[[policy]]
spd = "lan"
name = "a"
action = "bypass"

[[policy]]
spd = "wan"
name = "b"
protocol = "icmp"
icmp = { type = 8 }
action = "discard"
"#;

/// The policies of the SPD that such a file has.
fn policies(text: &str) -> Policies {
    let table: Table = text.parse().expect("what is printed is TOML");
    let all = table.get("policy").and_then(Value::as_array).into_iter().flatten();
    let mut list = Policies::default();
    for written in all.filter(|written| written.get("spd").and_then(Value::as_str) == Some("wan")) {
        let fields = serde_json::to_value(written).expect("JSON");
        let mut fields: view::PolicyFields = serde_json::from_value(fields).expect("fields");
        fields.remove("spd");
        list.insert(list.len(), policy("wan", &fields).expect("what is printed is a policy"));
    }
    list
}

/// Changes policies by what may be a request. A list that was changed is what the file that is printed afterwards says.
pub fn fuzz_policy_changes(body: &[u8]) {
    let Ok(request) = serde_json::from_slice::<view::PolicyRequest>(body) else { return };
    let request = view::PolicyRequest { spd: "wan".to_owned(), ..request };
    let mut list = policies(FILE);
    for change in &request.changes {
        if let Err(refused) = change_of("wan", change, &mut list) {
            assert!(!refused.to_string().is_empty());
            return;
        }
    }
    let printed = merged(FILE, &[request]).expect("what was carried out can be printed");
    assert_eq!(policies(&printed), list, "the file says something else:\n{printed}");
}
