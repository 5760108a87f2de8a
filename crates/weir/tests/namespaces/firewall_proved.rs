//! `weir accelerate` over a firewall of nftables with masquerade: established flows pass it by while its rules accept them, and
//! edits of the rules are obeyed.

use std::net::{IpAddr, UdpSocket};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use weir::testing::daemon::Running;
use weir_core::wire::ctnetlink::{self, Event};
use weir_core::wire::netlink;

use super::content::bytes;
use super::firewall::{Conversation, behind, flows, flush, in_router, wait_for_flows};
use super::mirror::{accelerate, nft, signal};
use super::testbed::{Testbed, ip, run, until};

/// A rule change is obeyed within a second.
const OBEYED: Duration = Duration::from_secs(1);

/// A router's firewall as most people write it.
const RULES: &str = "flush ruleset
table inet filter {
  chain forward {
    type filter hook forward priority filter; policy drop;
    ct state established,related accept
    iifname \"r0\" accept
  }
}
table ip nat {
  chain postrouting { type nat hook postrouting priority srcnat; oifname \"r1\" masquerade; }
}
";

/// Known datagrams from the client to the server and back, one every millisecond.
struct Datagrams {
    /// When a whole one last came back, and how many have.
    seen: Mutex<(Instant, u64)>,
    /// Ones that came back with other bytes.
    others: Mutex<u64>,
}

impl Datagrams {
    /// Lets them run while `work` does; returns how many came back.
    fn while_they_run(testbed: &Testbed, to: IpAddr, work: impl FnOnce(&Datagrams)) -> u64 {
        let datagrams = Datagrams { seen: Mutex::new((Instant::now(), 0)), others: Mutex::new(0) };
        let echo = super::traffic::Echo::start(testbed, to);
        let from: IpAddr = if to.is_ipv4() { ip("10.1.0.2") } else { ip("fd01::2") };
        let socket = testbed.in_client(|| UdpSocket::bind((from, 0))).expect("a socket");
        socket.set_read_timeout(Some(Duration::from_millis(1))).expect("a timeout");
        socket.connect(echo.at).expect("connected");
        let stop = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                let mut number = 0u64;
                while !stop.load(Ordering::Relaxed) {
                    let mut content = number.to_be_bytes().to_vec();
                    content.extend(bytes(number, 8 + (number as usize * 37) % 1200));
                    number += 1;
                    // A refusal of an earlier one may be told here.
                    let _ = socket.send(&content);
                    let mut back = [0; 2048];
                    while let Ok(len) = socket.recv(&mut back) {
                        datagrams.came_back(&back[..len]);
                        if len == content.len() && back[..len] == content[..] {
                            break;
                        }
                    }
                }
            });
            struct Stops<'a>(&'a AtomicBool);
            impl Drop for Stops<'_> {
                fn drop(&mut self) {
                    self.0.store(true, Ordering::Relaxed);
                }
            }
            let _stops = Stops(&stop);
            work(&datagrams);
        });
        assert_eq!(*datagrams.others.lock().expect("no panic"), 0, "datagrams came back with other bytes");
        datagrams.count()
    }

    fn came_back(&self, datagram: &[u8]) {
        let number = datagram.first_chunk().map_or(u64::MAX, |bytes| u64::from_be_bytes(*bytes));
        let whole = datagram
            .get(8..)
            .is_some_and(|rest| number < 1 << 32 && rest == bytes(number, 8 + (number as usize * 37) % 1200));
        if whole {
            let mut seen = self.seen.lock().expect("no panic");
            *seen = (Instant::now(), seen.1 + 1);
        } else {
            *self.others.lock().expect("no panic") += 1;
        }
    }

    fn count(&self) -> u64 {
        self.seen.lock().expect("no panic").1
    }

    /// Waits until more come back.
    fn flow(&self) {
        let before = self.count();
        until("datagrams come back", || (self.count() > before + 20).then_some(()));
    }

    /// How long after `edit` the last one came back, when they have been silent for a while.
    fn end_after(&self, edit: Instant) -> Duration {
        until("datagrams end", || {
            let last = self.seen.lock().expect("no panic").0;
            (last.elapsed() > Duration::from_millis(500)).then_some(())
        });
        self.seen.lock().expect("no panic").0.saturating_duration_since(edit)
    }
}

fn status(router: &Running) -> String {
    router.told(&["show", "status"])
}

#[test]
fn established_flows_pass_by_the_rules_that_accept_them_and_edits_are_obeyed() {
    let test = "established_flows_pass_by_the_rules_that_accept_them_and_edits_are_obeyed";
    let Some(testbed) = behind(test, RULES) else { return };
    let mut router = accelerate(&testbed);
    assert!(router.log().contains("that its rules accept without more"), "{}", router.log());
    let mut v4 = Conversation::begin(&testbed, ip("10.2.0.2"));
    let mut v6 = Conversation::begin(&testbed, ip("fd02::2"));
    assert_eq!((v4.seen.ip(), v6.seen.ip()), (ip("10.2.0.1"), ip("fd01::2")), "masquerade, and none");
    Datagrams::while_they_run(&testbed, ip("10.2.0.2"), |datagrams| {
        let mut all = |len: usize| {
            v4.exchange(len);
            v6.exchange(len);
        };
        all(100_000);
        wait_for_flows(&router, "way=\"xdp\"", 3);
        all(4_000_000);
        let passed: i64 = router.values("weir_flow_bytes_total", "").iter().sum();
        assert!(
            passed > 12_000_000,
            "{passed} of 16,000,000 bytes and acknowledgements passed the kernel by"
        );
        // Rules behind the one that accepts established flows change nothing of them.
        nft(&testbed, "add rule inet filter forward tcp dport 22 drop\n");
        wait_for_flows(&router, "way=\"xdp\"", 3);
        // A rule about single packets: every packet meets it, and nothing is lost by that.
        nft(&testbed, "insert rule inet filter forward limit rate over 1000000/second drop\n");
        wait_for_flows(&router, "reason=\"rules\"", 3);
        all(100_000);
        let said = status(&router);
        for wanted in [
            "chain inet filter forward, rule with handle",
            "the rule is `limit rate over 1000000/second",
            "`nft insert rule inet filter forward ct state established,related accept`",
        ] {
            assert!(said.contains(wanted), "{wanted}: {said}");
        }
        // What is forbidden ends, and begins again when it is allowed; the other family's flows stay.
        nft(&testbed, RULES);
        wait_for_flows(&router, "way=\"xdp\"", 3);
        assert!(!status(&router).contains("the kernel forwards what its rules decide about"));
        datagrams.flow();
        nft(&testbed, "insert rule inet filter forward ip daddr 10.2.0.2 drop\n");
        let ended = datagrams.end_after(Instant::now());
        assert!(ended < OBEYED, "datagrams went on for {ended:?} after the rule");
        wait_for_flows(&router, "way=\"xdp\"", 1);
        v6.exchange(1_000_000);
        nft(&testbed, RULES);
        wait_for_flows(&router, "way=\"xdp\"", 3);
        datagrams.flow();
        v4.exchange(1_000_000);
        // The kernel translates no more, so nobody does. An acknowledgement from another address would end the connection.
        v4.rest();
        nft(&testbed, "delete table ip nat\n");
        wait_for_flows(&router, "way=\"xdp\"", 1);
        v6.exchange(100_000);
        nft(&testbed, RULES);
        wait_for_flows(&router, "way=\"xdp\"", 3);
        signal(&mut router, "TERM");
        v4.exchange(1_000_000);
        v6.exchange(1_000_000);
        datagrams.flow();
    });
}

/// Most connections are over before it would pay to take them.
#[test]
fn connections_that_are_over_at_once_are_followed_and_not_taken() {
    let test = "connections_that_are_over_at_once_are_followed_and_not_taken";
    const SHORT: i64 = 60;
    let Some(testbed) = behind(test, RULES) else { return };
    let router = accelerate(&testbed);
    for _ in 0..SHORT {
        Conversation::begin(&testbed, ip("10.2.0.2")).exchange(100);
    }
    let mut lasting = Conversation::begin(&testbed, ip("10.2.0.2"));
    lasting.exchange(100);
    wait_for_flows(&router, "way=\"xdp\"", 1);
    lasting.exchange(100_000);
    let events = |event: &str| -> i64 {
        router.values("weir_flow_events_total", &format!("event=\"{event}\"")).iter().sum()
    };
    assert!(events("heard") >= 2 * SHORT, "each is heard to begin and to end");
    // A machine that is busy with other things makes some of them last.
    let taken = events("taken");
    assert!((1..SHORT / 2).contains(&taken), "{taken} of {SHORT} and one were taken");
}

#[test]
fn entries_that_are_deleted_are_obeyed_where_rules_prove_flows() {
    let test = "entries_that_are_deleted_are_obeyed_where_rules_prove_flows";
    let Some(testbed) = behind(test, RULES) else { return };
    let router = accelerate(&testbed);
    let mut talk = Conversation::begin(&testbed, ip("10.2.0.2"));
    talk.exchange(10_000);
    wait_for_flows(&router, "way=\"xdp\"", 1);
    // No new flow is accepted any more, and an established one needs its entry.
    nft(&testbed, &RULES.replace("    iifname \"r0\" accept\n", "    iifname \"r0\" ct state new drop\n"));
    wait_for_flows(&router, "way=\"xdp\"", 1);
    talk.exchange(100_000);
    let original = talk.original();
    // `conntrack -D`: the tuple that a question has.
    let mut delete = ctnetlink::query(&original);
    delete[4..6].copy_from_slice(&ctnetlink::DELETE.to_ne_bytes());
    let flags = (netlink::FLAG_ACK | 1).to_ne_bytes();
    delete[6..8].copy_from_slice(&flags);
    in_router(&testbed, |requests| requests.send(&delete)).expect("deleted");
    wait_for_flows(&router, "way=\"xdp\"", 0);
    let passed = || router.values("weir_flow_packets_total", "").iter().sum::<i64>();
    let before = passed();
    use std::io::Write as _;
    talk.stream.write_all(b"nobody hears this").expect("into the socket");
    thread::sleep(Duration::from_millis(500));
    assert_eq!(passed(), before, "nothing passes without an entry");
    assert!(in_router(&testbed, |requests| requests.query(&original)).is_err(), "the rules forbid another");
    // Everything at once, and what the rules allow begins again.
    nft(&testbed, RULES);
    let mut others: Vec<Conversation> =
        (0..4).map(|_| Conversation::begin(&testbed, ip("10.2.0.2"))).collect();
    others.iter_mut().for_each(|other| other.exchange(10_000));
    until("new ones are taken", || (flows(&router, "way=\"xdp\"") >= 4).then_some(()));
    flush(&testbed);
    wait_for_flows(&router, "way=\"xdp\"", 0);
    others.iter_mut().for_each(|other| other.exchange(10_000));
    drop((talk, others));
    assert!(router.balances());
}

#[test]
fn flows_that_an_ipsec_policy_may_concern_stay_the_kernels() {
    let test = "flows_that_an_ipsec_policy_may_concern_stay_the_kernels";
    let Some(testbed) = behind(test, RULES) else { return };
    let policy = |verb: &str, what: &str| {
        let line = format!("ip -n {} xfrm policy {verb} {what}", testbed.router);
        std::process::Command::new("sh").args(["-c", &line]).output().expect("sh starts").status.success()
    };
    let other = "src 10.7.0.0/16 dst 10.2.0.0/16 dir out";
    if !policy("add", &format!("{other} action block")) {
        use std::io::Write as _;
        writeln!(std::io::stderr(), "SKIP {test}: needs a kernel with IPsec policies")
            .expect("stderr is open");
        return;
    }
    let router = accelerate(&testbed);
    let mut talk = Conversation::begin(&testbed, ip("10.2.0.2"));
    talk.exchange(10_000);
    wait_for_flows(&router, "way=\"xdp\"", 1);
    // It would drop what is already on its way: no packet may pass from then on.
    let concerned = "src 10.0.0.0/8 dst 10.2.0.0/24 dir out";
    assert!(policy("add", &format!("{concerned} action block")));
    wait_for_flows(&router, "reason=\"policy\"", 1);
    run(&format!("ip -n {} xfrm policy delete {concerned}", testbed.router));
    wait_for_flows(&router, "way=\"xdp\"", 1);
    talk.exchange(10_000);
    let left = in_router(&testbed, |requests| requests.query(&talk.original()));
    assert!(matches!(left, Ok(Event::Present(_))), "{left:?}");
}

#[test]
fn where_the_kernel_blocks_what_no_policy_is_about_every_flow_is_its_own() {
    let test = "where_the_kernel_blocks_what_no_policy_is_about_every_flow_is_its_own";
    let Some(testbed) = behind(test, RULES) else { return };
    let default = |what: &str| {
        let line = format!("ip -n {} xfrm policy setdefault {what}", testbed.router);
        std::process::Command::new("sh").args(["-c", &line]).output().expect("sh starts").status.success()
    };
    if !default("fwd accept") {
        use std::io::Write as _;
        writeln!(std::io::stderr(), "SKIP {test}: needs a kernel with defaults of IPsec policies")
            .expect("stderr is open");
        return;
    }
    let router = accelerate(&testbed);
    Datagrams::while_they_run(&testbed, ip("10.2.0.2"), |datagrams| {
        for direction in ["fwd", "out"] {
            wait_for_flows(&router, "way=\"xdp\"", 1);
            datagrams.flow();
            assert!(default(&format!("{direction} block")));
            let ended = datagrams.end_after(Instant::now());
            assert!(ended < OBEYED, "datagrams went on for {ended:?} after {direction} block");
            wait_for_flows(&router, "reason=\"policy\"", 1);
            assert!(default(&format!("{direction} accept")));
            datagrams.flow();
        }
        // Of what is for this host, nothing of these is.
        wait_for_flows(&router, "way=\"xdp\"", 1);
        assert!(default("in block"));
        datagrams.flow();
        wait_for_flows(&router, "way=\"xdp\"", 1);
    });
    assert!(router.balances());
}

/// Linux looks up policies again behind the translation of the source: what the firewall masquerades leaves in ESP, and stays the
/// kernel's to the last packet.
#[test]
fn what_is_masqueraded_into_esp_stays_the_kernels_in_esp() {
    let test = "what_is_masqueraded_into_esp_stays_the_kernels_in_esp";
    let Some(testbed) = behind(test, RULES) else { return };
    let [router_ns, server] = [&testbed.router, &testbed.server];
    // What ESP adds fits too: a segment that does not is lost in the kernel, behind the place where it would say so.
    run(&format!("ip -n {} link set c0 mtu 1300", testbed.client));
    let xfrm = |ns: &str, what: &str| {
        let line = format!("ip -n {ns} xfrm {what}");
        std::process::Command::new("sh").args(["-c", &line]).output().expect("sh starts").status.success()
    };
    let ends = ["src 10.2.0.1 dst 10.2.0.2", "src 10.2.0.2 dst 10.2.0.1"];
    let key = "0x000102030405060708090a0b0c0d0e0f01020304";
    for (spi, ends) in (0x100..).zip(ends) {
        for ns in [router_ns, server] {
            let state = format!(
                "state add {ends} proto esp spi {spi} mode transport aead \"rfc4106(gcm(aes))\" {key} 128"
            );
            if !xfrm(ns, &state) {
                use std::io::Write as _;
                writeln!(std::io::stderr(), "SKIP {test}: needs a kernel with ESP").expect("stderr is open");
                return;
            }
        }
    }
    let template = "tmpl proto esp mode transport";
    let policies = [
        (router_ns, format!("{} dir out", ends[0])),
        (router_ns, format!("{} dir in", ends[1])),
        (router_ns, format!("{} dir fwd", ends[1])),
        (server, format!("{} dir out", ends[1])),
        (server, format!("{} dir in", ends[0])),
    ];
    for (ns, policy) in &policies {
        assert!(xfrm(ns, &format!("policy add {policy} {template}")), "{policy}");
    }
    let protected = || {
        let text = run(&format!("ip -n {server} -s xfrm state list {} proto esp", ends[0]));
        let current = text.split("lifetime current:").nth(1);
        let packets = current.and_then(|rest| rest.split("(bytes), ").nth(1)?.split('(').next());
        packets.and_then(|packets| packets.trim().parse::<u64>().ok()).unwrap_or_else(|| panic!("{text}"))
    };
    let router = accelerate(&testbed);
    let mut talk = Conversation::begin(&testbed, ip("10.2.0.2"));
    assert_eq!(talk.seen.ip(), ip("10.2.0.1"), "masquerade");
    talk.exchange(10_000);
    wait_for_flows(&router, "reason=\"policy\"", 1);
    let before = protected();
    talk.exchange(1_000_000);
    assert!(protected() - before > 500, "a million bytes are more than 500 segments in ESP");
    assert_eq!(router.values("weir_flow_packets_total", "").iter().sum::<i64>(), 0);
    // Both ends let packets be: the same connection passes the kernel by.
    for (ns, policy) in &policies {
        assert!(xfrm(ns, &format!("policy delete {policy}")), "{policy}");
    }
    wait_for_flows(&router, "way=\"xdp\"", 1);
    let before = protected();
    talk.exchange(1_000_000);
    assert_eq!(protected(), before);
    assert!(router.balances());
}
