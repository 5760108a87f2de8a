//! What happens to the peers of a weir that strongSwan keys: other families outside, peers that vanish and come back,
//! gateways whose addresses change (MOBIKE, RFC 4555), and many child SAs.
//!
//! In the second kernel by packet sockets; on a whole Debian (`make keys-test`) by AF_XDP, where the kernel forwards what
//! weir does not take.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use weir::testing::machine::until_within;

use crate::kernel::End;
use crate::kernel_keys::{
    IF_ID, Pair, hosts, kernels_numbers, outbound, pair_as, pair_of, sas, with_daemons,
};
use crate::kernel_keys_faults::spis;
use crate::outside::Watch;
use crate::second_kernel::{children, figure};
use crate::strongswan::{Daemon, Setup};
use crate::testbed::{Family, Testbed, batch, ip, run, until};
use crate::traffic::{Host, Seen, all, numbered};
use crate::weir_gateway::Weir;

/// How long a tunnel may take to come back on a machine that has other things to do: a daemon that gives up on an IKE SA
/// tries again for ten seconds or so, and does so once more.
const COMES_BACK: Duration = Duration::from_secs(60);

fn hosts6(testbed: &Testbed) -> (Host<'_>, Host<'_>) {
    let row = Family::V6.row();
    (Host { ns: &testbed.a, ip: row.a }, Host { ns: &testbed.b, ip: row.b })
}

#[test]
fn ipv6_outside_carries_both_families() {
    with_daemons("kernel_keys_peers::ipv6_outside_carries_both_families", || {
        for (proposal, connection) in [("aes128gcm16", ""), ("chacha20poly1305-esn", "encap = yes")] {
            let testbed = Testbed::watched();
            let setup = Setup {
                outer: Family::V6,
                inner: &[Family::V4, Family::V6],
                connection,
                child: "replay_window = 128",
                ..Setup::of_kernel(proposal)
            };
            let Pair { left, weir, right: _right } = pair_as(&testbed, &setup);
            let watch = Watch::begin(&testbed);
            left.agree();
            until("weir has both SAs", || (sas(&weir) == 2).then_some(()));
            let carried = || {
                for (a, b) in [hosts(&testbed), hosts6(&testbed)] {
                    all(a, b, 200, 300_000);
                }
            };
            carried();
            left.told("--rekey", &["--child", "row"]);
            carried();
            weir.assert_conserved();
            let row = Family::V6.row();
            let seen = watch.end_well();
            assert_eq!(seen.ends, BTreeSet::from([(row.left, row.right), (row.right, row.left)]));
        }
    });
}

/// Gives up on a peer in some eight seconds: one of silence, then 1.0, 1.4, 2.0 and 2.7 s for answers.
const SOON: &str = "retransmit_timeout = 1.0\n  retransmit_base = 1.4\n  retransmit_tries = 3";
/// The same without IPv6, which is the other way between these gateways.
const SOON_BY_IPV4: &str = "retransmit_timeout = 1.0\n  retransmit_base = 1.4\n  retransmit_tries = 3\n  plugins {\n    socket-default {\n      use_ipv6 = no\n    }\n  }";
const LOOKS: &str = "dpd_delay = 1s\n    mobike = no\n    keyingtries = 0";

/// A tunnel whose daemons look after each other.
fn watched<'a>(child: &'a str) -> Setup<'a> {
    Setup { daemon: SOON, connection: LOOKS, child, ..Setup::of_kernel("aes128gcm16") }
}

/// The gateway's host is gone: its daemon, and what its kernel had of it.
fn crash(testbed: &Testbed, right: Daemon) {
    right.vanish();
    let lines = ["xfrm state flush", "xfrm policy flush"].map(str::to_owned);
    batch(Some(&testbed.right), &lines);
}

/// The right gateway's line on the way between both.
fn link_of_right(testbed: &Testbed, state: &str) {
    let middle = testbed.middle.as_ref().expect("a testbed with a middle");
    run(&format!("ip -n {middle} link set mr {state}"));
}

/// Weir has no SA any more; what protected packets are then, is not sent.
fn gone(testbed: &Testbed, weir: &Weir, what: &str, since: Instant) {
    until("weir has no SA", || (sas(weir) == 0).then_some(()));
    figure(&format!("dead peer, {what}: weir had no SA {:.1} s later", since.elapsed().as_secs_f64()));
    let (a, b) = hosts(testbed);
    assert!(!answers(a, b), "an answer without a tunnel");
}

/// One ping that is answered within a second, or is not.
pub(crate) fn answers(from: Host<'_>, to: Host<'_>) -> bool {
    let (from, near, far) = (from.ns, from.ip.to_string(), to.ip.to_string());
    let mut ping = std::process::Command::new("ip");
    ping.args(["netns", "exec", from, "ping", "-n", "-q", "-c", "1", "-W", "1", "-I", &near, &far]);
    ping.output().expect("ping starts").status.success()
}

/// The tunnel is there again, and carries everything.
fn back(testbed: &Testbed, weir: &Weir, what: &str, since: Instant) {
    let (a, b) = hosts(testbed);
    until_within(COMES_BACK, "packets pass again", || answers(a, b).then_some(()));
    figure(&format!("{what}: packets passed again {:.1} s later", since.elapsed().as_secs_f64()));
    carries(testbed, weir);
}

/// Everything passes both ways, and weir's books balance.
fn carries(testbed: &Testbed, weir: &Weir) {
    let (a, b) = hosts(testbed);
    all(a, b, 200, 300_000);
    weir.assert_conserved();
}

#[test]
fn a_peer_that_crashed_is_let_go_of_and_its_tunnel_restarts_by_itself() {
    with_daemons(
        "kernel_keys_peers::a_peer_that_crashed_is_let_go_of_and_its_tunnel_restarts_by_itself",
        || {
            let testbed = Testbed::watched();
            let setup = watched("dpd_action = restart");
            let Pair { left, weir, right } = pair_as(&testbed, &setup);
            let watch = Watch::begin(&testbed);
            left.agree();
            until("weir has both SAs", || (sas(&weir) == 2).then_some(()));
            let (a, b) = hosts(&testbed);
            all(a, b, 50, 30_000);
            let crashed = Instant::now();
            crash(&testbed, right);
            gone(&testbed, &weir, "restart", crashed);
            let returned = Instant::now();
            // A daemon refuses what comes before it has read its connections, and who is refused does not ask again.
            link_of_right(&testbed, "down");
            let _right = Daemon::start_as(&testbed, End::Right, &setup);
            link_of_right(&testbed, "up");
            back(&testbed, &weir, "dead peer, restart", returned);
            watch.end_well();
        },
    );
}

#[test]
fn a_peer_that_crashed_is_let_go_of_and_comes_back_by_its_own_will() {
    with_daemons(
        "kernel_keys_peers::a_peer_that_crashed_is_let_go_of_and_comes_back_by_its_own_will",
        || {
            let testbed = Testbed::watched();
            let setup = watched("dpd_action = clear");
            let Pair { left, weir, right } = pair_as(&testbed, &setup);
            let watch = Watch::begin(&testbed);
            left.agree();
            until("weir has both SAs", || (sas(&weir) == 2).then_some(()));
            let (a, b) = hosts(&testbed);
            all(a, b, 50, 30_000);
            let crashed = Instant::now();
            crash(&testbed, right);
            gone(&testbed, &weir, "clear", crashed);
            until("weir has no policy", || {
                (!weir.told(&["show", "spd"]).contains("kernel:out:")).then_some(())
            });
            assert!(!answers(a, b), "an answer without a policy");
            let returned = Instant::now();
            let right = Daemon::start_as(&testbed, End::Right, &setup);
            right.agree();
            back(&testbed, &weir, "dead peer, clear", returned);
            watch.end_well();
        },
    );
}

#[test]
fn a_link_that_is_down_costs_the_sas_and_packets_ask_for_others_when_it_is_up() {
    with_daemons(
        "kernel_keys_peers::a_link_that_is_down_costs_the_sas_and_packets_ask_for_others_when_it_is_up",
        || {
            let testbed = Testbed::watched();
            let setup = watched("start_action = trap\n        dpd_action = trap");
            let Pair { weir, left: _left, right: _right } = pair_as(&testbed, &setup);
            let watch = Watch::begin(&testbed);
            let (a, b) = hosts(&testbed);
            until("packets make the SAs", || answers(a, b).then_some(()));
            all(a, b, 50, 30_000);
            let down = Instant::now();
            link_of_right(&testbed, "down");
            gone(&testbed, &weir, "trap, link down", down);
            let up = Instant::now();
            link_of_right(&testbed, "up");
            back(&testbed, &weir, "dead peer, link up", up);
            watch.end_well();
        },
    );
}

/// The daemons take whatever address their host has.
const ROAMS: &str = "local_addrs = %any\n    remote_addrs = FAR,%any";

/// A gateway's address becomes another, under traffic.
fn moves(
    who: &str,
    initiator: fn(&Pair) -> &Daemon,
    [ns, device]: [&str; 2],
    [old, new]: [&str; 2],
    testbed: &Testbed,
) {
    let setup = Setup { daemon: SOON_BY_IPV4, connection: ROAMS, ..Setup::of_kernel("aes128gcm16") };
    let pair = pair_as(testbed, &setup);
    let watch = Watch::begin(testbed);
    initiator(&pair).agree();
    until("weir has both SAs", || (sas(&pair.weir) == 2).then_some(()));
    let (a, b) = hosts(testbed);
    all(a, b, 200, 300_000);
    let spis = || kernels_numbers(testbed).into_iter().map(|(spi, ..)| spi).collect::<BTreeSet<u32>>();
    let before = spis();
    run(&format!("ip netns exec {ns} sysctl -qw net.ipv4.conf.all.promote_secondaries=1"));
    let mut under_way = std::process::Command::new("ip")
        .args(["netns", "exec", &testbed.a, "ping", "-n", "-q", "-i", "0.02", "-w", "6", &b.ip.to_string()])
        .stdout(std::process::Stdio::piped())
        .spawn()
        .expect("ping starts");
    batch(Some(ns), &[format!("addr add {new}/24 dev {device}"), format!("addr del {old}/24 dev {device}")]);
    let state = || run(&format!("ip -n {} xfrm state", testbed.left));
    until("the SAs have the new address", || (state().contains(new) && !state().contains(old)).then_some(()));
    under_way.wait().expect("a child of ours");
    let mut said = String::new();
    std::io::Read::read_to_string(&mut under_way.stdout.take().expect("piped"), &mut said).expect("text");
    carries(testbed, &pair.weir);
    let same = if spis() == before { "the same SAs" } else { "other SAs" };
    let log = pair.weir.log();
    let same = log
        .lines()
        .filter(|line| line.contains("left to the kernel"))
        .fold(same.to_owned(), |all, line| all + "; " + line);
    let lost = said.lines().find(|line| line.contains("transmitted")).unwrap_or("no pings").to_owned();
    figure(&format!("{who}: {same}; {lost}"));
    let seen = watch.end_well();
    let ends: BTreeSet<IpAddr> = seen.ends.iter().flat_map(|&(from, to)| [from, to]).collect();
    assert!(ends.contains(&ip(old)) && ends.contains(&ip(new)), "{ends:?}");
    assert_eq!(outbound(&pair.weir).len(), 1);
}

#[test]
fn a_gateway_whose_address_changes_goes_on_with_its_sas() {
    with_daemons("kernel_keys_peers::a_gateway_whose_address_changes_goes_on_with_its_sas", || {
        let testbed = Testbed::watched();
        let device = [testbed.left.as_str(), "l1"];
        moves("own address", |pair| &pair.left, device, ["192.0.2.1", "192.0.2.51"], &testbed);
    });
}

#[test]
fn a_peer_whose_address_changes_is_followed() {
    with_daemons("kernel_keys_peers::a_peer_whose_address_changes_is_followed", || {
        let testbed = Testbed::watched();
        let device = [testbed.right.as_str(), "r1"];
        moves("peer's address", |pair| &pair.right, device, ["192.0.2.2", "192.0.2.52"], &testbed);
    });
}

/// The address behind the right gateway that child `n` is for.
fn of_child(n: usize) -> String {
    format!("10.2.{}.{}", 1 + n / 250, 1 + n % 250)
}

/// What `swanctl --list-sas` says a child has carried: packets in and out.
fn carried(list: &str, child: &str) -> Option<[u64; 2]> {
    let section = list.split(&format!("\n  {child}: #")).nth(1)?;
    let section = section.split(": #").next()?;
    let packets = |direction: &str| {
        let line = section.lines().find(|line| line.trim_start().starts_with(direction))?;
        line.split(" packets").next()?.rsplit([' ', ',']).next()?.parse().ok()
    };
    Some([packets("in ")?, packets("out ")?])
}

#[test]
fn many_children_of_one_ike_sa_are_all_carried_and_counted() {
    with_daemons("kernel_keys_peers::many_children_of_one_ike_sa_are_all_carried_and_counted", || {
        let count = children();
        let testbed = Testbed::watched();
        let far = (0..count).map(|n| format!("addr add {}/32 dev b0", of_child(n))).collect::<Vec<String>>();
        batch(Some(&testbed.b), &far);
        batch(Some(&testbed.right), &["route add 10.2.0.0/16 via 10.2.0.2".to_owned()]);
        let children = |ts: fn(String) -> String, more: &str| {
            let child =
                |n| format!("c{n} {{\n{}\n esp_proposals = aes128gcm16\n {more}\n}}\n", ts(of_child(n)));
            (0..count).map(child).collect::<String>()
        };
        let of_left = children(
            |far| format!("local_ts = 10.1.0.0/24\n remote_ts = {far}/32"),
            &format!("{IF_ID}\n start_action = start"),
        );
        let of_right = children(|far| format!("local_ts = {far}/32\n remote_ts = 10.1.0.0/24"), "");
        let setup = Setup::of_kernel("aes128gcm16");
        let begun = Instant::now();
        let Pair { left, weir, right } =
            pair_of(&testbed, &Setup { more: &of_left, ..setup }, &Setup { more: &of_right, ..setup });
        until_within(COMES_BACK * 4, "weir has all SAs", || (sas(&weir) == 2 * count).then_some(()));
        figure(&format!(
            "{count} children: all SAs were here {:.1} s after the daemons began",
            begun.elapsed().as_secs_f64()
        ));
        let there: BTreeSet<u32> = kernels_numbers(&testbed).into_iter().map(|(spi, ..)| spi).collect();
        assert_eq!(spis(&weir), there);
        assert_eq!(there.len(), 2 * count);
        assert_eq!(left.told("--list-sas", &[]).matches("ESTABLISHED").count(), 1, "one IKE SA");

        let a = hosts(&testbed).0;
        // The hosts' addresses are found by this one.
        let first = count / 4;
        until("the first is carried", || {
            answers(a, Host { ns: &testbed.b, ip: ip(&of_child(first)) }).then_some(())
        });
        let sample: BTreeSet<usize> = [0, 1, count / 2, count - 1].into();
        for &n in &sample {
            let b = Host { ns: &testbed.b, ip: ip(&of_child(n)) };
            let whole = |whole| Seen { whole, ..Seen::default() };
            assert_eq!(numbered(a, b, 20 + n as u64), whole(20 + n as u64), "child {n}");
            assert_eq!(numbered(b, a, 10), whole(10), "child {n}, back");
        }
        for (daemon, way) in [(&left, 1), (&right, 0)] {
            let wanted = |n: usize| match (sample.contains(&n), way) {
                (false, _) => [0, 0],
                (true, 1) => [10, 20 + n as u64],
                (true, _) => [20 + n as u64, 10],
            };
            until("the daemons count what was carried", || {
                let list = daemon.told("--list-sas", &[]);
                let others = (0..count).filter(|&n| n != first);
                others.into_iter().all(|n| carried(&list, &format!("c{n}")) == Some(wanted(n))).then_some(())
            });
        }
        weir.assert_conserved();
    });
}
