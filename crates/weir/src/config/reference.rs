//! Everything a configuration file may hold: `man weir.toml` and the JSON Schema are written from it.
//!
//! Promises: the tables are those that parsers take the names of keys from; a test holds each form against its parser.

use super::ipsec::{lookup, policy, sa};
use super::table::{Form, Key, Table, names};
use super::{kernel, port, relay, route, settings};

const ROOT: [Key; 17] = [
    Key::new("name", Form::Text, "The router's name, which its control socket has. Without it, the file's."),
    Key::new(
        "port",
        Form::List(&Form::Table(&port::TABLE)),
        "Devices that packets are received from and sent to.",
    ),
    Key::new("route", Form::List(&Form::Table(&route::ROUTE_TABLE)), "Routes."),
    Key::new("neighbor", Form::List(&Form::Table(&route::NEIGHBOR_TABLE)), "Hosts that answer nobody."),
    Key::new("ipsec", Form::Table(&lookup::TABLE), "What all SAs and SPDs share."),
    Key::new("sa", Form::List(&Form::Table(&sa::TABLE)), "Security associations."),
    Key::new("tunnel", Form::List(&Form::Table(&policy::TUNNEL_TABLE)), "Tunnels in route mode."),
    Key::new("spd", Form::List(&Form::Table(&policy::SPD_TABLE)), "Security policy databases."),
    Key::new("policy", Form::List(&Form::Table(&policy::POLICY_TABLE)), "Policies of SPDs."),
    Key::new("workers", Form::Table(&settings::WORKERS_TABLE), "The threads that forward."),
    Key::new("control", Form::Table(&settings::CONTROL_TABLE), "The control socket and metrics."),
    Key::new("limits", Form::Table(&settings::LIMITS_TABLE), "Limits of a router's worker."),
    Key::new("relay", Form::Table(&relay::TABLE), "A DERP relay instead of a router."),
    Key::with_default(
        "routes",
        kernel::ROUTES_FORM,
        "\"file\"",
        "`kernel`: its routes and neighbors are taken over and followed; `[[route]]` goes before them.",
    ),
    Key::with_default(
        "keys",
        kernel::KEYS_FORM,
        "\"file\"",
        "`kernel`: SAs and policies of its XFRM, as an IKE daemon sets them, are taken over and followed.",
    ),
    Key::new(
        "firewall",
        kernel::FIREWALL_FORM,
        "The packet filter and address translation stay the kernel's; flows they have accepted are forwarded past them.",
    ),
    Key::with_default(
        "bypass_firewall",
        Form::Boolean,
        "false",
        "Whether weir starts although the kernel's packet filter or NAT would decide about transit.",
    ),
];

/// The names of the keys at the top of a file.
pub const KEYS: &[&str] = &names(&ROOT);

/// The file as a whole.
pub const FILE: Table = Table {
    heading: "Top of the file",
    about: "A file with at least one `[[port]]` is a router's or gateway's, one with `[relay]` a relay's.",
    keys: &ROOT,
};

/// Every table there is, each once, in the order in which keys lead to them.
pub fn tables() -> Vec<&'static Table> {
    let mut found: Vec<&'static Table> = Vec::new();
    add(&FILE, &mut found);
    found
}

fn add(table: &'static Table, found: &mut Vec<&'static Table>) {
    if found.iter().any(|t| t.heading == table.heading) {
        return;
    }
    found.push(table);
    for key in table.keys {
        add_of(&key.form, found);
    }
}

fn add_of(form: &'static Form, found: &mut Vec<&'static Table>) {
    match form {
        Form::Table(table) => add(table, found),
        Form::OneOrMany(form) | Form::List(form) => add_of(form, found),
        Form::OneOf(forms) => forms.iter().for_each(|form| add_of(form, found)),
        Form::Text | Form::Boolean | Form::Integer(..) | Form::Words(_) | Form::Names(_) => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config;

    /// What a file says about `key` of `table` when it has the value `written`.
    fn said(table: &Table, key: &Key, written: &str) -> Option<String> {
        let heading = match table.heading {
            h if h.starts_with('[') => format!("{h}\n"),
            "Top of the file" => String::new(),
            _ => return None,
        };
        // What other keys must say for this one to be looked at.
        let beside = match key.name {
            "local_ports" | "remote_ports" => "protocol = \"tcp\"\n",
            "verify_fail_open" => "verify = \"http://127.0.0.1:1/\"\n",
            "receive_burst_bytes" => "receive_bytes_per_second = 10000\n",
            "send_burst_bytes" => "send_bytes_per_second = 10000\n",
            _ => "",
        };
        let text = format!("{heading}{beside}{} = {written}\n", key.name);
        Some(config::parse("t.toml", "t", text).err().map_or(String::new(), |refused| refused.text))
    }

    fn refused(table: &Table, key: &Key, written: &str) -> Option<bool> {
        let said = said(table, key, written)?;
        Some(said.contains(&format!("{}: got ", key.name)))
    }

    /// Holds a form against the parser; the number of values that were tried.
    fn hold(table: &Table, key: &Key, form: &Form) -> usize {
        let expect = |written: &str, wrong: bool| match refused(table, key, written) {
            Some(refused) => {
                assert_eq!(
                    refused,
                    wrong,
                    "{} {} = {written}: {:?}",
                    table.heading,
                    key.name,
                    said(table, key, written)
                );
                1
            }
            None => 0,
        };
        match form {
            Form::Boolean => expect("true", false) + expect("false", false),
            Form::Words(words) | Form::Names(words) => {
                words.iter().map(|word| expect(&format!("\"{word}\""), false)).sum()
            }
            Form::Integer(low, high) => {
                let most = (*high).min(i64::MAX as u64);
                expect(&low.to_string(), false) + expect(&most.to_string(), false)
            }
            Form::OneOf(forms) => forms.iter().map(|form| hold(table, key, form)).sum(),
            Form::OneOrMany(form) => hold(table, key, form),
            Form::List(Form::Integer(low, high)) => {
                expect(&format!("[{low}, {high}]"), false) + expect(&low.to_string(), true)
            }
            Form::Text | Form::Table(_) | Form::List(_) => 0,
        }
    }

    #[test]
    fn what_a_form_allows_its_parser_takes() {
        let tried: usize =
            tables().iter().flat_map(|t| t.keys.iter().map(|key| hold(t, key, &key.form))).sum();
        assert!(tried > 150, "{tried} values were held against parsers");
    }

    #[test]
    fn what_a_form_does_not_allow_its_parser_refuses() {
        let mut tried = 0;
        for table in tables() {
            for key in table.keys {
                let wrong = match &key.form {
                    Form::Boolean => vec!["1".to_owned(), "\"true\"".to_owned()],
                    Form::Words(_) | Form::Names(_) => vec!["\"no-such-word\"".to_owned(), "17".to_owned()],
                    Form::Integer(low, high) => {
                        [low.checked_sub(1), high.checked_add(1).filter(|n| *n <= i64::MAX as u64)]
                            .iter()
                            .flatten()
                            .map(u64::to_string)
                            .collect()
                    }
                    _ => continue,
                };
                for written in wrong {
                    if let Some(refused) = refused(table, key, &written) {
                        assert!(
                            refused,
                            "{} {} = {written}: {:?}",
                            table.heading,
                            key.name,
                            said(table, key, &written)
                        );
                        tried += 1;
                    }
                }
            }
        }
        assert!(tried > 80, "{tried} values were held against parsers");
    }

    #[test]
    fn descriptions_are_sentences() {
        for table in tables() {
            for text in table.keys.iter().map(|key| key.about).chain([table.about]) {
                assert!(text.ends_with('.'), "{}: {text}", table.heading);
            }
        }
    }
}
