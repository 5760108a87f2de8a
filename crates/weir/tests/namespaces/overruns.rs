//! The kernel drops messages about routes because nobody reads them: a router that is stopped (SIGSTOP) meanwhile.
//!
//! Promises: the overrun is a real one, by more changes than the receiving socket holds; what the messages lost told of is
//! known at the end (added, deleted, replaced); of what is sent while the router runs nothing is lost but what a receiving socket had no room for.

use std::collections::BTreeMap;
use std::time::Duration;

use weir::testing::machine::until_within;
use weir_io::af_xdp::RING;

use super::in_and_out::{flows, kernels, under_flows};
use super::testbed::{Router, Testbed, run};

/// Routes by one next-hop object, each of which is told of when the object is replaced.
const BY_OBJECT: u32 = 5_000;
/// More messages than the socket holds: 128 MiB (the kernel doubles the 64 MiB asked for) / 768 B = 174,762.
const REPLACED: u32 = 200_000 / BY_OBJECT;
/// Routes half of which go, half of which are replaced while nobody reads.
const OTHERS: u32 = 1_000;

/// What the messages that were kept may take to be read, by a program without optimisation on a busy machine.
const READ: Duration = Duration::from_secs(120);

/// `ip` with a line for each number, in one go.
fn batch(testbed: &Testbed, count: u32, line: impl Fn(u32) -> String) {
    let lines: String = (0..count).map(|n| line(n) + "\n").collect();
    let file = testbed.file("storm", &lines);
    run(&format!("ip -n {} -batch {}", testbed.router, file.display()));
}

fn prefix(first: u32, n: u32) -> String {
    format!("{}.{}.{}.0/24", first + (n >> 16), n >> 8 & 255, n & 255)
}

/// Where each prefix of protocol bgp leads in the kernel.
fn kernels_table(testbed: &Testbed) -> BTreeMap<String, String> {
    let text = run(&format!("ip -n {} -j route show table main proto bgp", testbed.router));
    let routes: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    let entry = |route: &serde_json::Value| {
        let leads = route["type"].as_str().or_else(|| route["gateway"].as_str());
        Some((route["dst"].as_str()?.to_owned(), leads?.to_owned()))
    };
    routes.as_array().expect("a list").iter().filter_map(entry).collect()
}

/// The same here.
fn table(router: &Router) -> BTreeMap<String, String> {
    let text = router.told(&["show", "routes", "--json", "--limit", "1000000"]);
    let routes: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    let entry = |route: &serde_json::Value| {
        let bgp = route["origin"] == "kernel bgp" && route["active"] == true;
        let leads = route["discard"].as_str().or_else(|| route["next_hops"][0]["gateway"].as_str());
        let prefix = route["prefix"].as_str().filter(|p| bgp && p.contains('.'))?;
        Some((prefix.to_owned(), leads?.to_owned()))
    };
    routes["routes"].as_array().expect("a list").iter().filter_map(entry).collect()
}

#[test]
fn an_overrun_ends_in_the_kernels_table_and_stops_nothing() {
    let Some((testbed, pairs)) = kernels("an_overrun_ends_in_the_kernels_table_and_stops_nothing") else {
        return;
    };
    run(&format!("ip -n {} nexthop add id 7 via 10.2.0.2 dev r1", testbed.router));
    batch(&testbed, BY_OBJECT, |n| format!("route add {} nhid 7 proto bgp", prefix(20, n)));
    batch(&testbed, OTHERS, |n| format!("route add {} via 10.2.0.2 proto bgp", prefix(21, n)));
    let router = testbed.start(&format!("routes = \"kernel\"\n{}", testbed.config("auto", "")));
    let event = |event: &str| router.metric("weir_mirror_events_total", &format!("event=\"{event}\""));
    let known = table(&router);
    assert_eq!(known, kernels_table(&testbed));
    assert_eq!(known.len(), (BY_OBJECT + OTHERS) as usize + 1, "those, and the one that is used");
    assert_eq!((event("overrun"), event("vanished")), (0, 0));

    let mut stopped = None;
    let fates = under_flows(&flows(&testbed.client, &testbed.server, pairs), |progress| {
        progress.arrives(300);
        let from = progress.sent();
        router.signal("STOP");
        batch(&testbed, REPLACED, |n| format!("nexthop replace id 7 via 10.2.0.{} dev r1", 3 + n % 2));
        batch(&testbed, OTHERS, |n| match n % 2 {
            0 => format!("route del {}", prefix(21, n)),
            _ => format!("route replace {} via 10.2.0.9 proto bgp", prefix(21, n)),
        });
        router.signal("CONT");
        stopped = Some((from, progress.arrives(0)));
        let there = kernels_table(&testbed);
        assert_eq!(there.len(), (BY_OBJECT + OTHERS / 2) as usize + 1);
        assert_ne!(there, known);
        until_within(READ, "it is told that messages were lost", || (event("overrun") > 0).then_some(()));
        until_within(READ, "everything is dumped again", || (event("vanished") > 0).then_some(()));
        until_within(READ, "the tables are equal", || (table(&router) == there).then_some(()));
        progress.arrives(300);
    });

    assert!(event("resync") > 0);
    assert!(event("vanished") <= i64::from(OTHERS), "{} vanished", event("vanished"));
    assert!(router.log().contains("the kernel dropped messages about routes"), "{}", router.log());
    let status = router.told(&["show", "status"]);
    assert!(status.contains("the kernel's messages about routes overran"), "{status}");
    // A stopped process forwards nothing beyond its rings; before and after, everything passes.
    let (from, to) = stopped.expect("it was stopped");
    for (n, fate) in fates.iter().enumerate() {
        let while_stopped = |lost: u64| (from[n].saturating_sub(RING.into())..to[n]).contains(&lost);
        let others = fate.lost.iter().filter(|&&lost| !while_stopped(lost)).count() as u64;
        assert!(
            others <= fate.no_room,
            "flow {n} lost {others} while it ran: {fate:?}, stopped {from:?} to {to:?}"
        );
        assert!(fate.sent > to[n] + 300, "flow {n} went on");
    }
    router.assert_conserved();
}
