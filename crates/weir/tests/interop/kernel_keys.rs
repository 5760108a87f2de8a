//! An unmodified strongSwan keys weir by way of the kernel (`keys = "kernel"`), its peer is strongSwan with the kernel's
//! own ESP: both in the second kernel, which has it.
//!
//! The child of weir's side has an interface id without a device, so its SAs are nobody's but weir's.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write as _;
use std::net::IpAddr;
use std::thread;
use std::time::{Duration, Instant};

use crate::kernel::End;
use crate::kernel_keys_peers::answers;
use crate::outside::Watch;
use crate::second_kernel::{figure, port_kind, rekeys, there};
use crate::strongswan::{Daemon, Setup, missing_daemon};
use crate::testbed::{Family, PATIENCE, Testbed, run, until};
use crate::traffic::{Host, Seen, all, beside, flood, numbered, ping};
use crate::weir_gateway::Weir;
use weir::testing::testbed::Wire;

/// Runs `body` in the second kernel; says so when strongSwan is not here.
pub(crate) fn with_daemons(name: &str, body: impl FnOnce()) {
    match missing_daemon() {
        Some(missing) => {
            writeln!(std::io::stderr(), "SKIP {name}: needs {missing}").expect("stderr is open");
        }
        None => there(name, body),
    }
}

/// Makes a child weir's.
pub(crate) const IF_ID: &str = "if_id_in = 7\n        if_id_out = 7";

/// The hosts of the IPv4 row.
pub(crate) fn hosts(testbed: &Testbed) -> (Host<'_>, Host<'_>) {
    let row = Family::V4.row();
    (Host { ns: &testbed.a, ip: row.a }, Host { ns: &testbed.b, ip: row.b })
}

/// weir on the kernel's addresses, with the kernel's keys.
pub(crate) fn config() -> String {
    let kind = port_kind();
    let port = |name: &str, device: &str| {
        format!(
            "[[port]]\nname = \"{name}\"\ndevice = \"{device}\"\nkind = \"{kind}\"\naddresses = \"kernel\"\n"
        )
    };
    let route = |prefix: &str, via: IpAddr| format!("[[route]]\nprefix = \"{prefix}\"\nvia = \"{via}\"\n");
    let [v4, v6] = [Family::V4, Family::V6].map(Family::row);
    "keys = { from = \"kernel\", ports = [\"wan\"], default = \"drop\" }\n".to_string()
        + &port("lan", "l0")
        + &port("wan", "l1")
        // As wide as what the tests with many children have behind the other gateway.
        + &route("10.2.0.0/16", v4.right)
        + &route(v6.nets[1], v6.right)
}

/// Where weir keeps what its SAs used: two of them on one testbed go on with it.
pub(crate) const STATE: &str = "state-of-keys";

/// weir and both daemons; the right one is the kernel's with its own ESP.
pub(crate) struct Pair {
    pub left: Daemon,
    pub right: Daemon,
    pub weir: Weir,
}

fn pair(testbed: &Testbed, proposal: &str, connection: &str, child: &str) -> Pair {
    pair_as(testbed, &Setup { connection, child, ..Setup::of_kernel(proposal) })
}

/// Both daemons are set up alike, but for the interface id of weir's child.
pub(crate) fn pair_as(testbed: &Testbed, setup: &Setup<'_>) -> Pair {
    pair_of(testbed, setup, setup)
}

pub(crate) fn pair_of(testbed: &Testbed, left: &Setup<'_>, right: &Setup<'_>) -> Pair {
    testbed.kernel_is_left();
    // The second kernel takes no program to enforce policies; one with AF_XDP forwards what it can lay hands on.
    if port_kind() == "af_packet" {
        testbed.kernel_does_not_forward_left();
    }
    let of_left = format!("{IF_ID}\n        {}", left.child);
    let left = Daemon::start_as(testbed, End::Left, &Setup { child: &of_left, ..*left });
    let right = Daemon::start_as(testbed, End::Right, right);
    let weir = Weir::start_with(testbed, &config(), STATE);
    Pair { left, right, weir }
}

/// SAs weir has, without those that drain.
pub(crate) fn sas(weir: &Weir) -> usize {
    let json: serde_json::Value = serde_json::from_str(&weir.told(&["show", "sa", "--json"])).expect("JSON");
    let all = json.as_array().expect("a list");
    all.iter().filter(|sa| sa["state"] != "draining").count()
}

/// Names of the SAs weir sends by.
pub(crate) fn outbound(weir: &Weir) -> BTreeSet<String> {
    let json: serde_json::Value = serde_json::from_str(&weir.told(&["show", "sa", "--json"])).expect("JSON");
    let names = json.as_array().expect("a list").iter().filter_map(|sa| sa["name"].as_str());
    names.filter(|name| name.starts_with("kernel:out:")).map(str::to_owned).collect()
}

/// Rekeys somebody asks for, one after the other: five seconds each in the second kernel.
const BY_HAND: usize = 50;

/// Has the daemons rekey in turns, so many times, each seen here before the next; until a packet is lost.
pub(crate) fn rekey_by_turns(daemons: [&Daemon; 2], weir: &Weir, times: usize, lost: impl Fn() -> bool) {
    let mut known = outbound(weir);
    for (n, daemon) in daemons.into_iter().cycle().take(times).enumerate() {
        daemon.told("--rekey", &["--child", "row"]);
        until(&format!("rekey {n} has come to weir"), || {
            let now = outbound(weir);
            let new = now.difference(&known).next().is_some();
            known.extend(now);
            new.then_some(())
        });
        if lost() {
            break;
        }
    }
}

#[test]
fn a_child_sa_is_carried_rekeyed_under_traffic_and_deleted() {
    with_daemons("kernel_keys::a_child_sa_is_carried_rekeyed_under_traffic_and_deleted", || {
        let testbed = Testbed::new();
        let Pair { left, right, weir } = pair(&testbed, "aes128gcm16", "", "");
        left.agree();
        until("weir has both SAs", || (sas(&weir) == 2).then_some(()));
        let (a, b) = hosts(&testbed);
        all(a, b, 200, 300_000);

        let carried = under_load(&testbed, |lost| {
            rekey_by_turns([&left, &right], &weir, rekeys().min(BY_HAND), lost);
        });
        assert!(carried.iter().all(|&packets| packets > 0), "{carried:?}");
        // What the kernel opened because it came before weir had the SA: weir opened it, too.
        let early = weir.metric("weir_drops_total", "reason=\"policy_unprotected\"");
        let [out, back] = carried;
        let rekeys = rekeys().min(BY_HAND);
        figure(&format!(
            "{rekeys} rekeys, {out} packets out and {back} in, none lost; {early} came before their SA was known"
        ));
        until("the old SAs are gone", || (sas(&weir) == 2).then_some(()));

        for daemon in [&left, &right] {
            until("the daemons know what was carried", || {
                let list = daemon.told("--list-sas", &[]);
                let zero = list.contains(" 0 bytes") || list.contains(" 0 packets");
                (list.contains("packets") && !zero).then_some(()).or_else(|| {
                    numbered(a, b, 5);
                    numbered(b, a, 5);
                    None
                })
            });
        }
        left.told("--terminate", &["--child", "row"]);
        until("weir has none", || (sas(&weir) == 0).then_some(()));
        weir.assert_conserved();
    });
}

/// What a rekey by time takes at most, with all there is of machines to do other things.
const REKEY: Duration = Duration::from_secs(6);

/// A daemon rekeys by itself every second, and nobody waits for anybody. `WEIR_REKEYS=1000` is twenty minutes (`make rekeys`).
/// One daemon only: two that begin at once agree on which child stays, and then strongSwan 5.9 may wait for long.
#[test]
fn rekeys_by_time_under_load_lose_nothing() {
    with_daemons("kernel_keys::rekeys_by_time_under_load_lose_nothing", || {
        let testbed = Testbed::watched();
        let child = |time| format!("rekey_time = {time}\n        rand_time = 0s\n        life_time = 600s");
        let [every_second, never] = ["1s", "0s"].map(child);
        let setup = Setup::of_kernel("aes128gcm16");
        let Pair { left, right, weir } =
            pair_of(&testbed, &Setup { child: &every_second, ..setup }, &Setup { child: &never, ..setup });
        let watch = Watch::begin(&testbed);
        left.agree();
        until("weir has an SA to send by", || (!outbound(&weir).is_empty()).then_some(()));
        let (a, b) = hosts(&testbed);
        // Their first packets find the hosts' addresses; more than a few do not wait for that.
        ping(a, b);
        ping(b, a);
        let made = || left.log().matches("inbound CHILD_SA row{").count();
        let (wanted, begun, start) = (rekeys(), made(), Instant::now());
        let [out, back] = under_load(&testbed, |lost| {
            let patience = REKEY * u32::try_from(wanted).expect("a number of rekeys") + PATIENCE;
            while made() < begun + wanted && !lost() {
                assert!(start.elapsed() < patience, "{} rekeys of {wanted} in {patience:?}", made() - begun);
                thread::sleep(Duration::from_millis(500));
            }
        });
        let (made, seconds) = (made() - begun, start.elapsed().as_secs());
        let early = weir.metric("weir_drops_total", "reason=\"policy_unprotected\"");
        figure(&format!(
            "{made} rekeys by time in {seconds} s, {out} packets out and {back} in, none lost; {early} came before their SA was known"
        ));
        assert!(made >= wanted && out > 0 && back > 0, "{made} rekeys, {out} packets out, {back} in");
        weir.assert_conserved();
        let seen = watch.end_well();
        assert!(seen.esp >= out + back, "{}", seen.esp);
        all(a, b, 50, 30_000);
        drop(right);
    });
}

/// Within so long what is reserved for an inbound SA falls to 256 numbers where its keys are in a file.
const RESTED: Duration = Duration::from_secs(12);

#[test]
fn a_burst_by_a_new_sa_and_by_one_that_rested_waits_for_no_disk() {
    with_daemons("kernel_keys::a_burst_by_a_new_sa_and_by_one_that_rested_waits_for_no_disk", || {
        let testbed = Testbed::new();
        let Pair { left, weir, right: _right } = pair(&testbed, "aes128gcm16", "", "");
        left.agree();
        until("weir has both SAs", || (sas(&weir) == 2).then_some(()));
        let (a, b) = hosts(&testbed);
        ping(a, b);
        for rest in [Duration::ZERO, RESTED] {
            thread::sleep(rest);
            let reserved: Vec<u64> =
                kernels_numbers(&testbed).iter().map(|(_, sent, got)| sent + got).collect();
            assert!(reserved.iter().all(|&number| number >= 1 << 20), "{reserved:?} after {rest:?}");
            // As many as come, as fast as they can: nobody waits for an earlier one.
            let seen = flood(b, a, 2000);
            let lost = weir.metric("weir_drops_total", "reason=\"sa_unreserved\"");
            figure(&format!(
                "2000 packets at once after {rest:?}: {seen} came, {lost} were beyond what was reserved"
            ));
            assert_eq!(lost, 0, "{}", weir.told(&["show", "drops"]));
            assert!(seen > 0, "nothing came");
        }
        weir.assert_conserved();
    });
}

/// Runs `body` while numbered packets go both ways between the hosts.
pub(crate) fn under_load(testbed: &Testbed, body: impl FnOnce(&dyn Fn() -> bool)) -> [u64; 2] {
    let (a, b) = hosts(testbed);
    beside([(a, b), (b, a)], (200, Duration::from_millis(1)), body)
}

/// A child SA of this proposal carries everything, and is rekeyed without a loss.
fn carries(proposal: &str, connection: &str, child: &str) {
    let testbed = Testbed::new();
    let Pair { left, weir, right: _right } = pair(&testbed, proposal, connection, child);
    left.agree();
    until("weir has both SAs", || (sas(&weir) == 2).then_some(()));
    let (a, b) = hosts(&testbed);
    all(a, b, 200, 300_000);
    left.told("--rekey", &["--child", "row"]);
    all(a, b, 200, 300_000);
    weir.assert_conserved();
}

#[test]
fn suites_esn_and_udp_are_carried() {
    with_daemons("kernel_keys::suites_esn_and_udp_are_carried", || {
        carries("aes256-sha256", "encap = yes", "");
        carries("chacha20poly1305-esn", "", "replay_window = 128");
        carries("aes256gcm16-esn-noesn", "encap = yes", "");
        carries("aes128-sha512", "", "");
    });
}

#[test]
fn packets_that_wait_for_an_sa_ask_for_it() {
    with_daemons("kernel_keys::packets_that_wait_for_an_sa_ask_for_it", || {
        let testbed = Testbed::new();
        let Pair { left, weir, right: _right } = pair(&testbed, "aes128gcm16", "", "start_action = trap");
        until("weir has the policy", || weir.told(&["show", "spd"]).contains("kernel:out:").then_some(()));
        assert_eq!(sas(&weir), 0);
        let (a, b) = hosts(&testbed);
        numbered_once(a, b);
        until("weir has both SAs", || (sas(&weir) == 2).then_some(()));
        all(a, b, 200, 300_000);
        assert!(left.log().contains("acquire"), "{}", left.log());
        weir.assert_conserved();
    });
}

/// One packet that need not arrive.
pub(crate) fn numbered_once(from: Host<'_>, to: Host<'_>) {
    let ping = format!("ip netns exec {} ping -n -c 1 -W 1 -I {} {}", from.ns, from.ip, to.ip);
    let words: Vec<&str> = ping.split_whitespace().collect();
    std::process::Command::new(words[0]).args(&words[1..]).output().expect("ping starts");
}

#[test]
fn a_limit_of_packets_has_the_child_rekeyed_without_a_loss() {
    with_daemons("kernel_keys::a_limit_of_packets_has_the_child_rekeyed_without_a_loss", || {
        let testbed = Testbed::new();
        let limits = "rekey_packets = 300\n        rand_packets = 0\n        life_packets = 1000000";
        let Pair { left, weir, right: _right } = pair(&testbed, "aes128gcm16", "", limits);
        left.agree();
        until("weir has both SAs", || (sas(&weir) == 2).then_some(()));
        let first = weir.told(&["show", "sa"]);
        let (a, b) = hosts(&testbed);
        let names = |said: &str| -> Vec<String> {
            said.split_whitespace().filter(|w| w.starts_with("kernel:out:")).map(str::to_owned).collect()
        };
        until("the child is rekeyed", || {
            assert_eq!(numbered(a, b, 200), Seen { whole: 200, ..Seen::default() });
            let now = names(&weir.told(&["show", "sa"]));
            (now.iter().any(|name| !names(&first).contains(name))).then_some(())
        });
        weir.assert_conserved();
    });
}

#[test]
fn the_hosts_own_packets_do_not_leave_in_cleartext() {
    with_daemons("kernel_keys::the_hosts_own_packets_do_not_leave_in_cleartext", || {
        let testbed = Testbed::new();
        let Pair { left, weir, right: _right } = pair(&testbed, "aes128gcm16", "", "");
        let blocked = || {
            let stat = run(&format!("ip netns exec {} cat /proc/net/xfrm_stat", testbed.left));
            let line =
                stat.lines().find(|l| l.starts_with("XfrmOutPolBlock")).expect("the counter").to_owned();
            line.rsplit(char::is_whitespace).next().and_then(|n| n.parse::<u64>().ok()).expect("a number")
        };
        let own = Host { ns: &testbed.left, ip: crate::testbed::ip("10.1.0.1") };
        let (a, b) = hosts(&testbed);
        left.agree();
        let policies = || run(&format!("ip -n {} xfrm policy", testbed.left));
        until("the kernel has weir's policy", || policies().contains("action block").then_some(()));
        assert_eq!(blocked(), 0);
        numbered_once(own, b);
        assert!(blocked() > 0, "{}", policies());
        all(a, b, 50, 30_000);
        left.told("--terminate", &["--child", "row"]);
        until("weir's policy is gone", || (!policies().contains("action block")).then_some(()));
        drop(weir);
    });
}

/// Sequence numbers the kernel would give out next, or takes none up to, of the left gateway's SAs: SPI, sent, received.
pub(crate) fn kernels_numbers(testbed: &Testbed) -> Vec<(u32, u64, u64)> {
    let text = run(&format!("ip -n {} -s xfrm state", testbed.left));
    let hex = |word: &str| u64::from_str_radix(word.trim_start_matches("0x").trim_end_matches(','), 16).ok();
    let mut all = Vec::new();
    let mut spi = 0;
    let words: Vec<&str> = text.split_whitespace().collect();
    for pair in words.windows(4) {
        if pair[0] == "spi" {
            spi =
                pair[1].split('(').next().and_then(hex).and_then(|n| u32::try_from(n).ok()).expect("an SPI");
        }
        // `anti-replay context: seq 0x0, oseq 0x100000, bitmap 0xffffffff`
        if pair[0] == "seq" && pair[2] == "oseq" {
            all.push((spi, hex(pair[3]).expect("a number"), hex(pair[1]).expect("a number")));
        }
    }
    assert!(!all.is_empty(), "{text}");
    all
}

/// ESP that leaves the left gateway.
struct Outside(Wire);

impl Outside {
    fn listen(testbed: &Testbed) -> Outside {
        Outside(Wire::open(&testbed.right, "r1"))
    }

    /// The highest number of each SPI since the last call.
    fn numbers(&mut self) -> BTreeMap<u32, u64> {
        let mut highest = BTreeMap::new();
        let batches = std::iter::from_fn(|| Some(self.0.heard()).filter(|batch| !batch.is_empty()));
        for frame in batches.flatten() {
            // From 192.0.2.1, IPv4 without options, ESP.
            if frame.get(12..14) != Some(&[8, 0])
                || frame.get(23) != Some(&50)
                || frame.get(26..30) != Some(&[192, 0, 2, 1])
            {
                continue;
            }
            let word =
                |at: usize| frame.get(at..at + 4).map(|b| u32::from_be_bytes([b[0], b[1], b[2], b[3]]));
            let (Some(spi), Some(number)) = (word(34), word(38)) else { continue };
            let most = highest.entry(spi).or_insert(0);
            *most = u64::from(number).max(*most);
        }
        highest
    }
}

/// Packets the gateway's kernel found replayed.
pub(crate) fn replayed(ns: &str) -> String {
    let stat = run(&format!("ip netns exec {ns} cat /proc/net/xfrm_stat"));
    let line = stat.lines().find(|l| l.starts_with("XfrmInStateSeqError")).expect("the counter");
    line.rsplit(char::is_whitespace).next().expect("a number").to_owned()
}

/// Killed before, within and after a rekey: whoever goes on with an SA, weir or the kernel, gives no number out twice.
#[test]
fn a_weir_that_is_killed_at_any_step_of_a_rekey_leaves_the_kernel_above_every_number_it_used() {
    with_daemons(
        "kernel_keys::a_weir_that_is_killed_at_any_step_of_a_rekey_leaves_the_kernel_above_every_number_it_used",
        || {
            let testbed = Testbed::new();
            let Pair { left, weir, right } = pair(&testbed, "aes128gcm16", "", "");
            left.agree();
            until("weir has both SAs", || (sas(&weir) == 2).then_some(()));
            let (a, b) = hosts(&testbed);
            let mut outside = Outside::listen(&testbed);
            let mut weir = Some(weir);
            let mut compared = 0;
            // The last kill comes after the rekey: time alone promises no step of it.
            for delay in [0, 5, 10, 20, 40, 80, 160].map(Some).into_iter().chain([None]) {
                until("packets pass", || answers(a, b).then_some(()));
                let killed = weir.take().expect("started again each time");
                let before = outbound(&killed);
                thread::scope(|scope| {
                    let rekey = scope.spawn(|| left.told("--rekey", &["--child", "row"]));
                    match delay {
                        Some(delay) => thread::sleep(Duration::from_millis(delay)),
                        None => until("weir sends by new SAs alone", || {
                            let now = outbound(&killed);
                            (!now.is_empty() && now.is_disjoint(&before)).then_some(())
                        }),
                    }
                    numbered_once(a, b);
                    // Killed: it has no time for anything.
                    drop(killed);
                    rekey.join().expect("rekeyed");
                });
                let used = outside.numbers();
                assert!(!used.is_empty(), "nothing was sent");
                for (spi, sent, _) in kernels_numbers(&testbed) {
                    if let Some(number) = used.get(&spi) {
                        assert!(
                            sent >= *number,
                            "SA {spi:08x}: {number} was used, the kernel goes on behind {sent}"
                        );
                        compared += 1;
                    }
                }
                weir = Some(Weir::start_with(&testbed, &config(), STATE));
            }
            assert!(compared > 0, "no SA was left to compare");
            until("packets pass again", || answers(a, b).then_some(()));
            assert_eq!(replayed(&testbed.right), "0", "a sequence number came twice");
            drop(right);
        },
    );
}

#[test]
fn a_weir_that_is_killed_or_stopped_goes_on_with_the_same_sas() {
    with_daemons("kernel_keys::a_weir_that_is_killed_or_stopped_goes_on_with_the_same_sas", || {
        let testbed = Testbed::new();
        let Pair { left, mut weir, right } = pair(&testbed, "aes128gcm16", "", "");
        left.agree();
        until("weir has both SAs", || (sas(&weir) == 2).then_some(()));
        let (a, b) = hosts(&testbed);
        let spis = || kernels_numbers(&testbed).into_iter().map(|(spi, ..)| spi).collect::<BTreeSet<u32>>();
        let first = spis();
        for in_order in [false, true, false] {
            all(a, b, 200, 300_000);
            if in_order {
                weir.stop();
            }
            drop(weir);
            weir = Weir::start_with(&testbed, &config(), STATE);
            until("packets pass again", || answers(a, b).then_some(()));
        }
        all(a, b, 200, 300_000);
        assert_eq!(spis(), first, "nothing was rekeyed");
        assert_eq!(replayed(&testbed.right), "0", "a sequence number came twice");
        weir.assert_conserved();
        drop(right);
    });
}

#[test]
fn a_child_without_interface_id_stays_with_the_kernel() {
    with_daemons("kernel_keys::a_child_without_interface_id_stays_with_the_kernel", || {
        let testbed = Testbed::new();
        testbed.kernel_is_left();
        testbed.kernel_does_not_forward_left();
        let setup = Setup::of_kernel("aes128gcm16");
        let left = Daemon::start_as(&testbed, End::Left, &setup);
        let _right = Daemon::start_as(&testbed, End::Right, &setup);
        let weir = Weir::start(&testbed, &config());
        left.agree();
        until("weir says so", || {
            weir.told(&["show", "status"])
                .contains("it has no interface id, so the kernel acts on it")
                .then_some(())
        });
        assert_eq!(sas(&weir), 0);
        assert!(!run(&format!("ip -n {} xfrm policy", testbed.left)).contains("action block"));
    });
}
