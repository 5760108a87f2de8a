//! The table `ipsec` expands as described, and what cannot be is refused with its place.

use crate::experiment::{Axis, Changes, Experiment};
use crate::model::Family;
use crate::model::ipsec::{Backend, Direction, Mode};
use crate::model::spd::LookupBy;
use crate::model::{Configuration, LabError};

const HEAD: &str = "title = \"t\"\nquestion = \"q?\"\nruns = 5\nwarm_up = \"100ms\"\nwindow = \"1s\"\n";

fn parse(body: &str) -> Result<Experiment, LabError> {
    Experiment::parse("x", "labs/x.toml", &format!("{HEAD}{body}"), &Changes::default())
}

fn all(e: &Experiment) -> Vec<&Configuration> {
    e.configurations.iter().map(|p| &p.configuration).collect()
}

#[test]
fn lists_inside_the_table_expand_and_name_axes() {
    let e = parse(
        "compare = \"mode\"\naxis = \"cipher\"\n[[configuration]]\nname = \"{cipher}-{mode}\"\n\
         ipsec = { mode = [\"policy\", \"route\"], direction = \"in\", cipher = [\"aes-gcm-128\", \"null+hmac-sha1-96\"] }\n",
    )
    .expect("valid");
    let names: Vec<&str> = all(&e).iter().map(|c| c.name.as_str()).collect();
    assert_eq!(
        names,
        ["aes-gcm-128-policy", "null+hmac-sha1-96-policy", "aes-gcm-128-route", "null+hmac-sha1-96-route"]
    );
    assert_eq!(e.pairs[0], ("aes-gcm-128-policy".to_string(), "aes-gcm-128-route".to_string()));
    assert_eq!((e.pairs.len(), e.axis), (2, Some(Axis::Cipher)));
    let p = all(&e)[3].ipsec().expect("protected");
    assert_eq!((p.mode, p.direction, p.backend), (Mode::Route, Direction::In, Backend::Auto));
    assert_eq!((p.esn, p.replay_window, p.policies, p.outer), (false, 64, 1, Family::Inet));
}

#[test]
fn defaults_fill_in_what_a_table_leaves_out_and_the_outer_family_follows_the_inner() {
    let e = parse(
        "[defaults.ipsec]\nmode = \"policy\"\ncipher = \"aes-gcm-256\"\npolicies = [2, 10]\n[[configuration]]\n\
         family = \"inet6\"\nipsec = { direction = \"out\", esn = true, replay_window = 1024 }\n",
    )
    .expect("valid");
    let found: Vec<_> = all(&e).iter().filter_map(|c| c.ipsec()).map(|p| (p.policies, p.outer)).collect();
    assert_eq!(found, [(2, Family::Inet6), (10, Family::Inet6)]);
    assert_eq!(e.axis, Some(Axis::Policies));
    let p = all(&e)[0].ipsec().expect("protected");
    assert!(p.esn && p.replay_window == 1024 && p.cipher.to_string() == "aes-gcm-256");
}

#[test]
fn a_plain_configuration_beside_protected_ones_is_plain() {
    let e = parse(
        "[[configuration]]\nname = \"plain\"\nbuild = \"default\"\n[[configuration]]\nname = \"out\"\n\
         ipsec = { mode = \"route\", direction = \"out\", cipher = \"null\" }\n",
    )
    .expect("valid");
    assert!(all(&e)[0].ipsec().is_none() && all(&e)[0].build() == Some("default"));
    assert!(all(&e)[1].ipsec().is_some() && all(&e)[1].build().is_none());
}

const HOSTS: &str = "[hosts.generator]\nssh = \"a\"\ninterface = \"x\"\n[hosts.device_under_test]\nssh = \"b\"\n\
    input = \"x\"\noutput = \"y\"\n[hosts.receiver]\nssh = \"c\"\ninterface = \"x\"\n";

#[test]
fn what_hosts_can_do_is_taken() {
    for (sut, inner) in [
        (
            "weir",
            "mode = [\"route\", \"policy\"], direction = [\"in\", \"out\"], cipher = \"aes-gcm-128\", esn = true",
        ),
        ("weir", "mode = \"route\", direction = \"beside\", cipher = \"null\""),
        ("kernel-xfrm", "mode = \"policy\", direction = \"beside\", cipher = \"null\", action = \"bypass\""),
    ] {
        let body = format!(
            "{HOSTS}[[configuration]]\ntopology = \"ssh\"\nsut = \"{sut}\"\nframe = 1400\nipsec = {{ {inner} }}\n"
        );
        parse(&body).expect(&body);
    }
}

#[test]
fn what_hosts_cannot_do_is_refused_with_the_remedy() {
    let whole = "mode = \"route\", direction = \"out\", cipher = \"aes-gcm-128\"";
    let on_hosts = |sut: &str, inner: &str, more: &str| {
        format!(
            "{HOSTS}[[configuration]]\ntopology = \"ssh\"\nsut = \"{sut}\"\n{more}\nipsec = {{ {inner} }}\n"
        )
    };
    let cases = [
        (
            on_hosts("weir", "mode = \"route\", direction = \"out\", cipher = \"null\"", "frame = 1518"),
            "frames of 1518 bytes are IP packets of 1532 once sealed, expected 1500 at most (frames of 1488): lower `frame`",
        ),
        (
            on_hosts(
                "weir",
                "mode = \"policy\", direction = \"out\", cipher = \"null\", rules = \"acl-100\"",
                "",
            ),
            "ipsec has `rules`, which hosts have not: remove it, or use topology = \"memory\"",
        ),
        (
            on_hosts("weir", &format!("{whole}, backend = \"vaes\""), ""),
            "ipsec has `backend = \"vaes\"`, which hosts have not",
        ),
        (
            on_hosts("weir", "mode = \"policy\", direction = \"beside\", cipher = \"null\"", ""),
            "needs a third port, which hosts have not: use action = \"bypass\" or mode = \"route\"",
        ),
        (
            on_hosts(
                "weir",
                &format!("{}, esn = true, replay_window = 0", whole.replace("\"out\"", "\"in\"")),
                "",
            ),
            "`esn` and `replay_window = 0` exclude each other where packets are opened on hosts: remove one",
        ),
        (
            on_hosts("kernel-xfrm", whole, ""),
            "SUT \"kernel-xfrm\" on hosts has policies that let pass, and neither seals nor opens: use mode = \"policy\"",
        ),
        (on_hosts("kernel", whole, ""), "in namespaces and on hosts of weir and kernel-xfrm"),
    ];
    for (body, expected) in cases {
        let got = parse(&body).expect_err(&body).said;
        assert!(got.contains(expected), "{body}\n{got}");
    }
}

#[test]
fn what_cannot_be_is_refused_with_its_place_and_the_remedy() {
    let table = |inner: &str| format!("[[configuration]]\nipsec = {{ {inner} }}\n");
    let whole = "mode = \"route\", direction = \"out\", cipher = \"aes-gcm-128\"";
    let cases = [
        (
            table("mode = \"route\", direction = \"out\", cipher = \"des\""),
            "labs/x.toml:7:55: got \"des\", expected null, aes-gcm-128",
        ),
        (table("mode = \"vti\", direction = \"out\", cipher = \"null\""), "unknown variant `vti`"),
        (
            table("mode = \"route\", direction = \"out\""),
            "labs/x.toml:6:1: configuration: ipsec has no `cipher`",
        ),
        (
            table("mode = \"route\", cipher = \"null\""),
            "ipsec has no `direction`: name \"out\", \"in\" or \"beside\"",
        ),
        (table(&format!("{whole}, replay_window = 16")), "got 16, expected 0 for no replay protection"),
        (
            table("mode = \"route\", direction = \"in\", cipher = \"null\", shared_sa = true"),
            "they use the same sequence numbers: write `replay_window = 0`",
        ),
        (table(&format!("{whole}, policies = 5")), "which tunnels of mode \"route\" have none of: remove it"),
        (table(&format!("{whole}, speed = 1")), "unknown field `speed`"),
        (
            format!("[defaults]\ntopology = \"netns\"\nsut = \"kernel\"\n{}", table(whole)),
            "`ipsec` is of weir in memory",
        ),
        ("[[configuration]]\nbuild = \"../x\"\n".into(), "got \"../x\", expected \"default\" or the name"),
        (
            "[[configuration]]\ntopology = \"netns\"\nbuild = \"x\"\n".into(),
            "`build` is of weir in memory: use topology = \"memory\"",
        ),
    ];
    for (body, expected) in cases {
        let got = parse(&body).expect_err(&body).said;
        assert!(got.contains(expected), "{body}\n{got}");
    }
}

#[test]
fn lookups_and_matches_expand_and_the_list_is_as_long_as_the_match_is_deep() {
    let e = parse(
        "compare = \"lookup\"\naxis = \"match\"\n[[configuration]]\nname = \"{lookup}-{match}\"\n\
         ipsec = { mode = \"policy\", direction = \"in\", cipher = \"null\", action = \"bypass\", buckets = 4096, \
         lookup = [\"linear\", \"classifier\", \"cache\"], match = [1, 1000] }\n",
    )
    .expect("valid");
    let names: Vec<&str> = all(&e).iter().map(|c| c.name.as_str()).collect();
    assert_eq!(names.len(), 6);
    assert!(names.contains(&"cache-1000") && e.pairs.contains(&("linear-1".into(), "cache-1".into())));
    assert_eq!((e.pairs.len(), e.axis), (4, Some(Axis::Match)));
    let of =
        |name: &str| all(&e).iter().find(|c| c.name == name).and_then(|c| c.ipsec()).expect("it is there");
    let (p, shallow) = (of("cache-1000"), of("linear-1"));
    assert_eq!((p.policies, p.spd.matching, p.spd.buckets), (1000, Some(1000), 4096));
    assert_eq!((shallow.policies, shallow.spd.lookup), (1, LookupBy::Linear));
    assert!(p.bypasses() && p.spd.lookup == LookupBy::Cache);
}

#[test]
fn sets_of_rules_and_churn_expand_and_a_longer_list_may_follow_the_match() {
    let e = parse(
        "[[configuration]]\nname = \"{rules}-{churn}\"\nflows = 4194304\nipsec = { mode = \"policy\", \
         direction = \"out\", cipher = \"null\", rules = [\"acl-100\", \"fw-200\"], churn = [0, 100] }\n\
         [[configuration]]\nname = \"long\"\nipsec = { mode = \"policy\", direction = \"out\", cipher = \"null\", \
         policies = 50, match = 3 }\n",
    )
    .expect("valid");
    let found: Vec<_> = all(&e).iter().filter_map(|c| c.ipsec()).map(|p| (p.policies, p.spd.churn)).collect();
    assert_eq!(found, [(100, 0), (100, 100), (200, 0), (200, 100), (50, 0)]);
    assert_eq!(all(&e)[0].name, "acl-100-0");
    assert_eq!(all(&e)[4].ipsec().and_then(|p| p.spd.matching), Some(3));
}

#[test]
fn smoke_values_of_the_table_take_the_place_of_its_own() {
    let changes = Changes { quick: true, ..Changes::default() };
    let body = "[[configuration]]\nname = \"{match}\"\nipsec = { mode = \"policy\", direction = \"out\", \
                cipher = \"null\", match = [1, 10000], buckets = 4194304 }\n[quick]\n\
                ipsec = { match = [1, 2], buckets = 64, rules = \"acl-9\" }\n";
    let e = Experiment::parse("x", "labs/x.toml", &format!("{HEAD}{body}"), &changes).expect("valid");
    let found: Vec<_> = all(&e).iter().filter_map(|c| c.ipsec()).map(|p| (p.policies, p.spd)).collect();
    assert_eq!(found.iter().map(|(n, _)| *n).collect::<Vec<_>>(), [1, 2]);
    assert!(found.iter().all(|(_, spd)| spd.buckets == 64 && spd.rules.is_none()), "{found:?}");
}

#[test]
fn spds_that_mean_nothing_are_refused_with_the_remedy() {
    let table = |inner: &str| {
        format!(
            "[[configuration]]\nipsec = {{ mode = \"policy\", direction = \"out\", cipher = \"null\", {inner} }}\n"
        )
    };
    let cases = [
        (table("lookup = \"fast\""), "unknown variant `fast`"),
        (table("buckets = 0"), "got 0, expected a number of buckets from 1"),
        (table("match = 0"), "got 0, expected a number of policies from 1"),
        (table("rules = \"acl\""), "expected a shape and a number of rules from 2 to 100000, such as \"acl-10000\""),
        (table("churn = 10001"), "expected policies changed a second from 0 to 10000"),
        (table("policies = 5, match = 6"), "match 6 of 5 policies: raise `policies`, or lower `match`"),
        (table("match = 6, rules = \"acl-10\""), "`match` and `rules` exclude each other"),
        (table("action = \"bypass\""), "leave as cleartext: use direction = \"in\" or \"beside\""),
        (table("churn = 10"), "the only policy is the one packets need: raise `policies`"),
        (
            "[[configuration]]\nipsec = { mode = \"policy\", direction = \"beside\", cipher = \"null\", rules = \
             \"acl-10\" }\n"
                .into(),
            "direction \"beside\" asks no policy that matches",
        ),
        (
            "[[configuration]]\nipsec = { mode = \"route\", direction = \"in\", cipher = \"null\", lookup = \
             \"cache\" }\n"
                .into(),
            "ipsec has `lookup`, which tunnels of mode \"route\" have none of: remove it",
        ),
        ("[[configuration]]\ntopology = \"netns\"\nflows = 131073\n".into(), "131072 at most where packets carry a mark"),
    ];
    for (body, expected) in cases {
        let got = parse(&body).expect_err(&body).said;
        assert!(got.contains(expected), "{body}\n{got}");
    }
}
