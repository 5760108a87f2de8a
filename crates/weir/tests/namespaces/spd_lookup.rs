//! Flow caches, classifier and oracle in a running gateway: what is asked, who answers, and that policies that
//! change under traffic lose nothing they allow.

use serde_json::Value;

use super::gateways::{GCM, Gateways, Side, families, pair, policies, ports};
use super::ipsec::carries_traffic;
use super::testbed::{Router, Testbed, run, until};
use super::traffic::{Echo, ping, send_udp, stream, under_traffic, ways};

/// Everything on, small.
const ALL_ON: &str = "ipv4-inbound-spd-flow-cache = \"on\"\nipv4-inbound-spd-hash-buckets = 4096\n\
    ipv4-outbound-spd-flow-cache = \"on\"\nipv4-outbound-spd-hash-buckets = 4096\n\
    ipv6-inbound-spd-flow-cache = \"on\"\nipv6-inbound-spd-hash-buckets = 4096\n\
    ipv6-outbound-spd-flow-cache = \"on\"\nipv6-outbound-spd-hash-buckets = 4096\nspd-oracle = \"on\"\n";

const SPD: &str = "[[spd]]\nname = \"outside\"\nports = [\"right\"]\n";

/// The discard port is discarded, the rest between client and server passes; a first rule that names ports
/// leaves every packet to the layers behind it.
pub(super) const RULES: &str = "[[policy]]\nspd = \"outside\"\nname = \"quiet\"\nprotocol = \"udp\"\nremote_ports = 9\naction = \"discard\"\n\
    [[policy]]\nspd = \"outside\"\nname = \"four\"\nlocal = \"10.1.0.0/16\"\nremote = \"10.2.0.0/16\"\naction = \"bypass\"\n\
    [[policy]]\nspd = \"outside\"\nname = \"six\"\nlocal = \"fd01::/64\"\nremote = \"fd02::/64\"\naction = \"bypass\"\n";

/// A router with a policy enforcement point with these lines of `[ipsec]` and these policies.
pub(super) fn enforced(testbed: &Testbed, ipsec: &str, policies: &str) -> String {
    testbed.config("af_xdp", &format!("[ipsec]\n{ipsec}{SPD}{policies}"))
}

/// Policies about networks nobody here has.
fn others(count: usize) -> String {
    let policy = |n: usize| {
        format!(
            "[[policy]]\nspd = \"outside\"\nname = \"other-{n}\"\nremote = \"10.200.{}.{}\"\nprotocol = \"tcp\"\n\
             remote_ports = \"{}-{}\"\naction = \"discard\"\n",
            n / 256,
            n % 256,
            n + 1,
            n + 7
        )
    };
    (0..count).map(policy).collect()
}

fn value(of: &Value, name: &str) -> u64 {
    of[name].as_u64().unwrap_or_else(|| panic!("no {name} in {of}"))
}

fn sum<'a>(of: impl IntoIterator<Item = &'a Value>, names: &[&str]) -> u64 {
    of.into_iter().flat_map(|v| names.iter().map(move |name| value(v, name))).sum()
}

fn cache_ways(router: &Router) -> Vec<Value> {
    router.json("cache")["ways"].as_array().expect("ways").clone()
}

/// Asserts that at rest what was asked is what policies decided about, whoever answered; the oracle found nothing.
fn assert_answers_add_up(router: &Router) {
    until(&format!("asked and decided agree\n{}", router.told(&["show", "cache"])), || {
        let ways = cache_ways(router);
        let spds = router.json("spd");
        let decided = |direction: &str| -> u64 {
            let name = format!("{direction}_packets");
            let policies = spds
                .as_array()
                .expect("spds")
                .iter()
                .flat_map(|s| s["policies"].as_array().expect("policies"));
            sum(policies, &[&name])
        };
        let asked = |direction: &str| {
            sum(ways.iter().filter(|w| w["direction"] == direction), &["first", "hit", "miss"])
        };
        ["out", "in"].iter().all(|d| asked(d) == decided(d)).then_some(())
    });
    for way in cache_ways(router) {
        assert_eq!(sum([&way], &["classified", "scanned"]), value(&way, "miss"), "{way}");
        assert!(sum([&way], &["collision", "stale"]) <= value(&way, "miss"), "{way}");
        assert_eq!(value(&way, "disagreed"), 0, "{way}");
    }
    assert_eq!(router.metric("weir_spd_oracle_disagreements_total", ""), 0);
}

#[test]
fn caches_answer_for_bypass_and_discard_in_both_directions_and_families() {
    let test = "caches_answer_for_bypass_and_discard_in_both_directions_and_families";
    let Some(testbed) = Testbed::new(test) else { return };
    let router = testbed.start(&enforced(&testbed, ALL_ON, RULES));
    router.wait_for("spd flow caches take ");
    router.wait_for("spd-oracle is on");
    for way in ways() {
        ping(&testbed, way.client, way.server);
        assert_eq!(Echo::start(&testbed, way.server).bounce(&testbed, 40), 0);
        stream(&testbed, way.server, 1 << 20);
        (0..10).for_each(|_| send_udp(&testbed, way.server));
    }
    router.wait_for_metric("weir_drops_total", "reason=\"policy_discard\"", 20);
    assert_answers_add_up(&router);
    for way in cache_ways(&router) {
        assert!(value(&way, "hit") > value(&way, "miss"), "streams are of one flow: {way}");
        assert!((1..=value(&way, "miss")).contains(&value(&way, "occupied")), "{way}");
        assert_eq!(value(&way, "buckets"), 4096);
    }
    let labels = "direction=\"in\",family=\"ipv6\"";
    assert!(router.metric("weir_spd_cache_hits_total", labels) > 0);
    assert_eq!(router.metric("weir_spd_cache_buckets", labels), 4096);
    let said = router.told(&["show", "cache"]);
    assert!(said.contains("oracle on") && said.contains("hit rate") && !said.contains('!'), "{said}");
    let spd = router.told(&["show", "spd", "--named", "four"]);
    assert!(spd.contains("four") && spd.contains("# 1 of 3 policies are shown"), "{spd}");
    router.assert_conserved();
}

#[test]
fn caches_answer_for_what_is_protected() {
    let Some(testbed) = Gateways::new("caches_answer_for_what_is_protected") else { return };
    testbed.keys(&["a-east", "a-west"], GCM);
    let [outer, _] = families();
    let routers = testbed.start(|side| {
        let text = ports(side, "af_xdp") + &pair(side, "a", 0x1000, outer, GCM) + &policies(side, "a");
        match side {
            Side::West => text.replace("[ipsec]\n", &format!("[ipsec]\n{ALL_ON}")),
            Side::East => {
                text.replace("[ipsec]\n", "[ipsec]\nspd-classifier = \"on\"\nspd-oracle = \"on\"\n")
            }
        }
    });
    carries_traffic(&testbed, &routers);
    routers.iter().for_each(|router| {
        assert_eq!(router.metric("weir_spd_oracle_disagreements_total", ""), 0);
        let asked = router.metric("weir_spd_lookups_total", "");
        let decided = router.metric("weir_policy_packets_total", "");
        assert_eq!(asked, decided, "{}", router.told(&["show", "cache"]));
    });
}

/// Files of policies are applied and single ones come, change and go, under a flow they all allow.
#[test]
fn policies_change_under_traffic_and_nothing_they_allow_is_lost() {
    let test = "policies_change_under_traffic_and_nothing_they_allow_is_lost";
    let Some(testbed) = Testbed::new(test) else { return };
    let file = |count: usize| enforced(&testbed, ALL_ON, &(others(count) + RULES));
    let router = testbed.start(&file(50));
    let [way, _] = ways();
    ping(&testbed, way.client, way.server);
    let apply = |count: usize| {
        let path = testbed.file("next.toml", &file(count));
        router.told(&["apply", &path.to_string_lossy()])
    };
    let seen = under_traffic(&testbed, way.client, way.server, || {
        for round in 0..8usize {
            let name = format!("single-{round}");
            let far = format!("10.77.0.{round}");
            let add =
                ["policy", "add", "outside", &name, "--remote", &far, "--action", "discard", "--at", "1"];
            let dry = router.told(&[&add[..], &["--dry-run"]].concat());
            assert!(dry.contains("nothing was done"), "{dry}");
            let done = router.told(&add);
            assert!(done.contains(&format!("+ spd outside: policy {name} as number 1")), "{done}");
            router.told(&["policy", "replace", "outside", &name, "--remote", &far, "--action", "bypass"]);
            if round % 2 == 0 {
                router.told(&["policy", "remove", "outside", &name]);
            }
            if round % 3 == 2 {
                apply(50 + 100 * round);
            }
        }
    });
    assert!(seen.sent > 100, "{} datagrams are no traffic", seen.sent);
    assert_eq!(seen.sent, seen.received, "{}", router.told(&["show", "drops"]));
    assert!(seen.in_order);
    // The file is the truth again, and what differs is told.
    let done = apply(0);
    assert!(done.contains("single-7") && done.contains("other-0"), "{done}");
    assert!(apply(0).contains("nothing to change"));
    assert_eq!(router.json("spd")[0]["policies"].as_array().map(Vec::len), Some(3));
    let ways = cache_ways(&router);
    let out = ways.iter().find(|w| w["direction"] == "out" && w["family"] == "ipv4").expect("a way");
    assert!(value(out, "stale") > 0, "a change makes what was learned worthless: {out}");
    assert!(ways.iter().all(|w| value(w, "disagreed") == 0), "{ways:?}");
    router.assert_conserved();
}

#[test]
fn a_policy_added_decides_about_a_flow_the_cache_knows() {
    let Some(testbed) = Testbed::new("a_policy_added_decides_about_a_flow_the_cache_knows") else { return };
    let router = testbed.start(&enforced(&testbed, ALL_ON, RULES));
    let [way, _] = ways();
    let echo = Echo::start(&testbed, way.server);
    assert_eq!(echo.bounce(&testbed, 20), 0);
    let port = echo.at.port().to_string();
    router.told(&[
        "policy",
        "add",
        "outside",
        "no-echo",
        "--protocol",
        "udp",
        "--remote-ports",
        &port,
        "--action",
        "discard",
        "--before",
        "four",
    ]);
    until("the new policy decides", || {
        let sender = testbed.in_client(|| std::net::UdpSocket::bind("0.0.0.0:0")).expect("a socket");
        sender.send_to(b"known?", echo.at).expect("sent");
        let spds = router.json("spd");
        let policies = spds[0]["policies"].as_array().expect("policies");
        policies.iter().any(|p| p["name"] == "no-echo" && value(p, "out_packets") > 0).then_some(())
    });
    router.told(&["policy", "remove", "outside", "no-echo"]);
    assert_eq!(echo.bounce(&testbed, 20), 0, "what is removed decides no more");
    assert_answers_add_up_without(&router, "no-echo");
}

#[test]
fn policies_added_while_it_runs_outlive_a_change_of_the_kernel_s_addresses() {
    let Some(testbed) = Testbed::new("policies_added_outlive_a_change_of_addresses") else { return };
    let router = testbed.start(&enforced(&testbed, "", RULES));
    // It hides all others, which a file is refused for.
    router.told(&["policy", "add", "outside", "stop", "--action", "discard", "--at", "1"]);
    run(&format!("ip -n {} addr add 10.1.0.50/24 dev r0", testbed.router));
    until("the address is the router's", || {
        router.told(&["show", "ports"]).contains("10.1.0.50").then_some(())
    });
    let spds = router.json("spd");
    let names = spds[0]["policies"].as_array().expect("policies").iter().map(|p| p["name"].clone());
    assert_eq!(names.collect::<Vec<_>>(), ["stop", "quiet", "four", "six"]);
}

/// Counters of a policy that went are gone: only the oracle is asked.
fn assert_answers_add_up_without(router: &Router, gone: &str) {
    assert!(!router.told(&["show", "spd"]).contains(gone));
    assert!(cache_ways(router).iter().all(|w| value(w, "disagreed") == 0));
}

#[test]
fn changes_that_make_no_sense_are_refused_as_a_file_is() {
    let Some(testbed) = Testbed::new("changes_that_make_no_sense_are_refused_as_a_file_is") else { return };
    let router = testbed.start(&enforced(&testbed, "", RULES));
    let before = router.told(&["show", "spd"]);
    let refused = |args: &[&str], sentence: &str| {
        let output = router.ask(&[&["policy"], args].concat());
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && stderr.contains(sentence), "{args:?}: {stderr}");
    };
    let add = |name: &'static str, more: &[&'static str]| [&["add", "outside", name], more].concat();
    refused(
        &add("p", &["--action", "allow"]),
        "action: got `allow`, expected `protect`, `bypass` or `discard`",
    );
    refused(&add("p", &["--action", "bypass", "--local", "10.1.0.1/33"]), "10.1.0.1/33");
    refused(&add("p", &["--action", "protect"]), "protects and has no outbound SA");
    refused(&add("p", &["--action", "protect", "--out", "east"]), "east");
    refused(&add("four", &["--action", "bypass"]), "four");
    refused(
        &add("p", &["--action", "bypass", "--before", "fuor"]),
        "there is no policy `fuor`; write `four`",
    );
    refused(&["add", "outsid", "p", "--action", "bypass"], "there is no spd `outsid`; write `outside`");
    refused(&["remove", "outside", "four", "fife"], "there is no policy `fife`");
    // A wide policy in front of all others stops traffic in a hurry: what it hides is said beforehand.
    let stop = ["policy", "add", "outside", "stop", "--action", "discard", "--at", "1"];
    let said = router.told(&[&stop[..], &["--dry-run"]].concat());
    assert!(said.contains("policy six: can never match: policy stop above it"), "{said}");
    assert_eq!(router.told(&["show", "spd"]), before, "all of it or nothing");
    router.told(&stop);
    let (spd, stopped) = (router.json("spd"), ways()[0].server);
    assert_eq!(spd[0]["policies"][0]["name"], "stop");
    until("it stops traffic", || {
        send_udp(&testbed, stopped);
        value(&router.json("spd")[0]["policies"][0], "out_packets").checked_sub(1)
    });
}

#[test]
fn bad_lookup_options_are_refused_and_what_runs_stays() {
    let Some(testbed) = Testbed::new("bad_lookup_options_are_refused_and_what_runs_stays") else { return };
    let router = testbed.start(&enforced(&testbed, ALL_ON, RULES));
    let before = router.json("cache")["ways"].clone();
    let with = |from: &str, to: &str| {
        assert!(ALL_ON.contains(from));
        let path = testbed.file("next.toml", &enforced(&testbed, &ALL_ON.replacen(from, to, 1), RULES));
        router.ask(&["apply", &path.to_string_lossy()])
    };
    for (to, sentence) in [
        ("ipv4-inbound-spd-hash-buckets = 0", "got 0, expected a number from 1 to"),
        ("ipv4-inbound-spd-hash-buckets = 9_000_000_000", "these would take "),
        ("ipv4-inbound-spd-hash-buckets = 2147483648", "next.toml:"),
        ("ipv4-inbound-spd-hash-bucket = 4096", "write `ipv4-inbound-spd-hash-buckets`"),
    ] {
        let output = with("ipv4-inbound-spd-hash-buckets = 4096", to);
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && stderr.contains(sentence), "{to}: {stderr}");
    }
    assert_eq!(router.json("cache")["ways"], before);
    let output = with("ipv4-inbound-spd-hash-buckets = 4096", "ipv4-inbound-spd-hash-buckets = 5000");
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(said.contains("# ipv4-inbound-spd-hash-buckets: 5000 buckets rounded up to 8192"), "{said}");
    router.wait_for("5000 buckets rounded up to 8192");
    let ways = cache_ways(&router);
    let inbound = ways.iter().find(|w| w["direction"] == "in" && w["family"] == "ipv4").expect("a way");
    assert_eq!(value(inbound, "buckets"), 8192);
    for way in super::traffic::ways() {
        ping(&testbed, way.client, way.server);
    }
    router.assert_conserved();
}
