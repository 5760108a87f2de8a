//! The firewall and the masquerade of a router stay the kernel's; flows that a rule marks are forwarded past them.

use std::io::{Read as _, Write as _};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::thread;
use std::time::{Duration, Instant};

use weir_core::wire::ctnetlink::{self, Event, Tuple};
use weir_core::wire::{netlink, protocol};
use weir_io::netlink::conntrack::ConntrackRequests;
use weir_io::netns;
use weir_io::offload::{self, Offload};

use super::content::bytes;
use super::mirror::{forwarding, has, nft};
use super::testbed::{PATIENCE, Router, Testbed, ip, run, until};
use weir::testing::daemon::Running;
use weir::testing::machine::set;

const RULES: &str = "flush ruleset
table inet filter {
  chain forward {
    type filter hook forward priority filter; policy drop;
    ct state established ct mark set ct mark or 0x100
    ct state established,related accept
    iifname \"r0\" accept
  }
}
table ip nat {
  chain postrouting { type nat hook postrouting priority srcnat; oifname \"r1\" masquerade; }
}
";
/// The same without the mark.
const UNMARKED: &str = "flush ruleset
table inet filter {
  chain forward {
    type filter hook forward priority filter; policy drop;
    ct state established ct mark set 0x0
    ct state established,related accept
    iifname \"r0\" accept
  }
}
table ip nat {
  chain postrouting { type nat hook postrouting priority srcnat; oifname \"r1\" masquerade; }
}
";
const CONFIG: &str = "routes = \"kernel\"\nfirewall = { ct_mark = \"0x100/0x100\" }\n";

/// A router with a firewall that forwards without weir, and a server that knows nothing of the client's network.
fn behind_a_firewall(test: &str) -> Option<Testbed> {
    behind(test, RULES)
}

/// The same with other rules.
pub(super) fn behind(test: &str, rules: &str) -> Option<Testbed> {
    let testbed = Testbed::new(test)?;
    if !has("nft", test) {
        return None;
    }
    forwarding(&testbed, true);
    // A veth that receives by NAPI takes frames the XDP program redirects.
    testbed.in_server(|| offload::set("s0", Offload::Gro, true)).expect("veth knows this offload");
    testbed.in_client(|| offload::set("c0", Offload::Gro, true)).expect("veth knows this offload");
    run(&format!("ip -n {} route del default via 10.2.0.1", testbed.server));
    nft(&testbed, rules);
    Some(testbed)
}

fn start(testbed: &Testbed) -> Router {
    testbed.start(&(CONFIG.to_owned() + &testbed.config("auto", "")))
}

pub(super) fn flows(router: &Running, label: &str) -> i64 {
    router.values("weir_flows", label).iter().sum()
}

pub(super) fn wait_for_flows(router: &Running, label: &str, count: i64) {
    until(&format!("{count} flows with {label}:\n{}", router.told(&["show", "flows"])), || {
        (flows(router, label) == count).then_some(())
    });
}

/// A connection to a server that returns what it gets.
pub(super) struct Conversation {
    pub stream: TcpStream,
    pub seen: SocketAddr,
    sent: u64,
}

impl Conversation {
    pub fn begin(testbed: &Testbed, server: IpAddr) -> Conversation {
        let listener = testbed.in_server(|| TcpListener::bind((server, 0))).expect("a socket");
        let at = listener.local_addr().expect("bound");
        let accepted = thread::spawn(move || listener.accept().expect("a connection"));
        let stream = testbed.in_client(|| TcpStream::connect(at)).expect("connected");
        let (mut far, seen) = accepted.join().expect("accepted");
        thread::spawn(move || {
            let mut buffer = vec![0; 1 << 16];
            // It ends with the connection, whose client says whether that was meant.
            while let Ok(len @ 1..) = far.read(&mut buffer) {
                if far.write_all(&buffer[..len]).is_err() {
                    return;
                }
            }
        });
        stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        Conversation { stream, seen, sent: 0 }
    }

    /// Its tuple as the client sends it.
    pub fn original(&self) -> Tuple {
        let (from, to) =
            (self.stream.local_addr().expect("bound"), self.stream.peer_addr().expect("connected"));
        Tuple {
            source: from.ip(),
            destination: to.ip(),
            protocol: protocol::TCP,
            source_port: from.port(),
            destination_port: to.port(),
        }
    }

    /// Sends known bytes there and has them back, whole and in order.
    pub fn exchange(&mut self, len: usize) {
        self.sent += 1;
        let content = bytes(self.sent, len);
        let (mut there, expected) = (self.stream.try_clone().expect("a descriptor"), content.clone());
        let sender = thread::spawn(move || there.write_all(&content));
        let mut back = vec![0; len];
        self.stream.read_exact(&mut back).expect("the connection goes on");
        sender.join().expect("no panic").expect("sent");
        assert!(back == expected, "exchange {}: other bytes came back", self.sent);
    }

    /// Returns when its last acknowledgement is on its way, which the kernel may delay so long.
    pub fn rest(&self) {
        thread::sleep(Duration::from_millis(250));
    }

    /// Sends known bytes that nobody has returned yet.
    pub fn send(&mut self, len: usize) {
        self.sent += 1;
        self.stream.write_all(&bytes(self.sent, len)).expect("into the socket");
    }

    /// Has those bytes back.
    pub fn receive(&mut self, len: usize) {
        let mut back = vec![0; len];
        self.stream.read_exact(&mut back).expect("the connection goes on");
        assert!(back == bytes(self.sent, len), "exchange {}: other bytes came back", self.sent);
    }
}

pub(super) fn in_router<T: Send>(
    testbed: &Testbed,
    work: impl FnOnce(&mut ConntrackRequests) -> T + Send,
) -> T {
    let work = || work(&mut ConntrackRequests::open().expect("conntrack"));
    netns::inside(&testbed.router, work).expect("the namespace is there")
}

/// An attribute beside the tuple that a question has, for the entry to be changed to.
fn change(original: &Tuple, attribute: &[u8]) -> Vec<u8> {
    let mut request = ctnetlink::query(original);
    request[4..6].copy_from_slice(&ctnetlink::NEW.to_ne_bytes());
    request.extend(attribute);
    let length = (request.len() as u32).to_ne_bytes();
    request[..4].copy_from_slice(&length);
    request
}

/// `conntrack -F`.
pub(super) fn flush(testbed: &Testbed) {
    let all = netlink::request(ctnetlink::DELETE, netlink::FLAG_ACK, &[0; 4], &[]);
    in_router(testbed, |requests| requests.send(&all)).expect("flushed");
}

#[test]
fn marked_connections_pass_the_firewall_by_translated_and_the_kernel_carries_on() {
    let test = "marked_connections_pass_the_firewall_by_translated_and_the_kernel_carries_on";
    let Some(testbed) = behind_a_firewall(test) else { return };
    let mut router = start(&testbed);
    let mut v4 = Conversation::begin(&testbed, ip("10.2.0.2"));
    let mut v6 = Conversation::begin(&testbed, ip("fd02::2"));
    assert_eq!((v4.seen.ip(), v6.seen.ip()), (ip("10.2.0.1"), ip("fd01::2")), "masquerade, and none");
    let mut both = |len: usize| {
        v4.exchange(len);
        v6.exchange(len);
    };
    both(100_000);
    wait_for_flows(&router, "way=\"xdp\"", 2);
    both(4_000_000);
    let passed = router.metric("weir_flow_bytes_total", "");
    assert!(passed > 12_000_000, "{passed} of 16,000,000 bytes and acknowledgements passed the kernel by");
    assert!(router.told(&["show", "flows"]).contains("xdp"));
    // Its rules no longer mark: an edit is obeyed by what the kernel sees next, which is the next entry.
    nft(&testbed, UNMARKED);
    let mut unmarked = Conversation::begin(&testbed, ip("10.2.0.2"));
    unmarked.exchange(100_000);
    wait_for_flows(&router, "reason=\"mark\"", 1);
    let listed = |args: &[&str]| router.told(&[&["show", "flows"], args].concat());
    let (of_host, of_reason) = (listed(&["--match", "fd02::2"]), listed(&["--match", "mark"]));
    assert!(of_host.contains("[fd02::2]:") && !of_host.contains("10.2.0.2"), "{of_host}");
    // Below the heads of columns.
    assert!(of_reason.lines().count() == 2 && !of_reason.contains("xdp"), "{of_reason}");
    let first = listed(&["--match", "10.2.0.2", "--limit", "1"]);
    assert!(first.contains("xdp") && first.contains("# 1 flow more: --from 2"), "{first}");
    let second = listed(&["--match", "10.2.0.2", "--limit", "1", "--from", "2"]);
    assert!(second.lines().count() == 2 && !second.contains("xdp"), "{second}");
    // Its last acknowledgement would be marked.
    unmarked.rest();
    nft(&testbed, RULES);
    router.signal("TERM");
    both(1_000_000);
    assert!(router.wait(), "{}", router.log());
    both(1_000_000);
    // The one without a mark stays the kernel's.
    let mut router = start(&testbed);
    wait_for_flows(&router, "way=\"xdp\"", 2);
    both(1_000_000);
    let busy = thread::scope(|scope| {
        let transfer = scope.spawn(|| both(20_000_000));
        thread::sleep(Duration::from_millis(50));
        router.kill();
        transfer.join()
    });
    busy.expect("the kernel carries on after a kill");
    let router = start(&testbed);
    wait_for_flows(&router, "way=\"xdp\"", 2);
    both(1_000_000);
    // The rule marks it with the next packet.
    unmarked.exchange(100_000);
    wait_for_flows(&router, "way=\"xdp\"", 3);
    drop((v4, v6, unmarked));
    wait_for_flows(&router, "way=\"xdp\"", 0);
    assert_eq!(router.metric("weir_ledger_balance_frames", ""), 0);
}

#[test]
fn a_flow_whose_entry_is_deleted_or_loses_its_mark_is_the_kernels_at_once() {
    let test = "a_flow_whose_entry_is_deleted_or_loses_its_mark_is_the_kernels_at_once";
    let Some(testbed) = behind_a_firewall(test) else { return };
    let router = start(&testbed);
    let mut talk = Conversation::begin(&testbed, ip("10.2.0.2"));
    talk.exchange(10_000);
    wait_for_flows(&router, "way=\"xdp\"", 1);
    let original = talk.original();
    // `conntrack -U --mark 0`: CTA_MARK.
    let unmark = change(&original, &[8, 0, 8, 0, 0, 0, 0, 0]);
    in_router(&testbed, |requests| requests.send(&unmark)).expect("unmarked");
    wait_for_flows(&router, "reason=\"mark\"", 1);
    talk.exchange(10_000);
    wait_for_flows(&router, "way=\"xdp\"", 1);
    let before = Instant::now();
    flush(&testbed);
    wait_for_flows(&router, "way=\"xdp\"", 0);
    assert!(before.elapsed() < Duration::from_secs(5));
    // The client's next segment makes another entry with the same ports.
    talk.exchange(10_000);
    drop(talk);
    assert_eq!(flows(&router, "reason=\"zone\""), 0);
}

#[test]
fn a_labelled_flow_passes_the_firewall_by_until_its_label_goes() {
    let test = "a_labelled_flow_passes_the_firewall_by_until_its_label_goes";
    const LABELLED: &str = "ct state established ct label set 70";
    let rules = RULES.replace("ct state established ct mark set ct mark or 0x100", LABELLED);
    assert!(rules.contains(LABELLED));
    let Some(testbed) = behind(test, &rules) else { return };
    let config = "routes = \"kernel\"\nfirewall = { ct_label = 70 }\n";
    let router = testbed.start(&(config.to_owned() + &testbed.config("auto", "")));
    assert!(router.log().contains("with ct label 70"), "{}", router.log());
    let mut talk = Conversation::begin(&testbed, ip("10.2.0.2"));
    talk.exchange(10_000);
    wait_for_flows(&router, "way=\"xdp\"", 1);
    talk.exchange(1_000_000);
    // `conntrack -U --label-del`: CTA_LABELS without one, of which the kernel's message says nothing.
    let mut none = vec![20, 0, 22, 0];
    none.extend([0; 16]);
    in_router(&testbed, |requests| requests.send(&change(&talk.original(), &none))).expect("unlabelled");
    wait_for_flows(&router, "reason=\"mark\"", 1);
    // The rule labels it again with the next packet that the kernel sees.
    talk.exchange(10_000);
    wait_for_flows(&router, "way=\"xdp\"", 1);
    // Another label is none.
    nft(&testbed, &rules.replace("label set 70", "label set 71"));
    let mut other = Conversation::begin(&testbed, ip("10.2.0.2"));
    other.exchange(10_000);
    wait_for_flows(&router, "reason=\"mark\"", 1);
    talk.exchange(10_000);
    assert_eq!(router.metric("weir_ledger_balance_frames", ""), 0);
}

/// A process that is stopped hears of no rule: a second later the kernel has the packets, and its rules are obeyed.
#[test]
fn a_weir_that_hangs_forwards_nothing_past_rules_it_does_not_hear_of() {
    let test = "a_weir_that_hangs_forwards_nothing_past_rules_it_does_not_hear_of";
    let Some(testbed) = behind_a_firewall(test) else { return };
    let router = start(&testbed);
    let echo = super::traffic::Echo::start(&testbed, ip("10.2.0.2"));
    let socket = testbed.in_client(|| UdpSocket::bind("10.1.0.2:0")).expect("a socket");
    socket.set_read_timeout(Some(Duration::from_millis(500))).expect("a timeout");
    socket.connect(echo.at).expect("connected");
    let answered = || {
        let mut back = [0; 64];
        socket.send(b"there and back").expect("sent");
        socket.recv(&mut back).is_ok()
    };
    let taken = || {
        until("the flow is forwarded by XDP", || {
            answered();
            (flows(&router, "way=\"xdp\"") == 1).then_some(())
        });
    };
    taken();
    router.signal("STOP");
    nft(
        &testbed,
        "flush ruleset\ntable inet filter { chain forward { type filter hook forward priority 0; policy drop; }; }",
    );
    until("nothing passes that the rules forbid", || (!answered()).then_some(()));
    assert!(!answered() && !answered(), "and nothing does later");
    nft(&testbed, RULES);
    until("the kernel forwards what its rules allow", || answered().then_some(()));
    router.signal("CONT");
    taken();
    assert_eq!(router.metric("weir_ledger_balance_frames", ""), 0);
}

#[test]
fn an_entry_is_given_time_while_packets_pass_the_kernel_by_and_not_otherwise() {
    let test = "an_entry_is_given_time_while_packets_pass_the_kernel_by_and_not_otherwise";
    const LIFETIME: u64 = 6;
    let Some(testbed) = behind_a_firewall(test) else { return };
    netns::inside(&testbed.router, || {
        set("/proc/sys/net/netfilter/nf_conntrack_udp_timeout_stream", &LIFETIME.to_string());
    })
    .expect("the namespace is there");
    let router = start(&testbed);
    let echo = super::traffic::Echo::start(&testbed, ip("10.2.0.2"));
    let socket = testbed.in_client(|| UdpSocket::bind("10.1.0.2:0")).expect("a socket");
    socket.set_read_timeout(Some(Duration::from_secs(1))).expect("a timeout");
    socket.connect(echo.at).expect("connected");
    let original = Tuple {
        source: ip("10.1.0.2"),
        destination: ip("10.2.0.2"),
        protocol: protocol::UDP,
        source_port: socket.local_addr().expect("bound").port(),
        destination_port: echo.at.port(),
    };
    let mut lost = 0;
    let mut bounce = || {
        let mut back = [0; 64];
        socket.send(b"there and back").expect("sent");
        lost += u32::from(socket.recv(&mut back).is_err());
        thread::sleep(Duration::from_millis(200));
    };
    until("the kernel takes it for a stream, and XDP takes it over", || {
        bounce();
        (flows(&router, "way=\"xdp\"") == 1).then_some(())
    });
    let taken = router.metric("weir_flow_packets_total", "");
    let until_when = Instant::now() + Duration::from_secs(2 * LIFETIME + 2);
    let mut bounced = 0;
    while Instant::now() < until_when {
        bounce();
        bounced += 1;
    }
    let passed = router.metric("weir_flow_packets_total", "") - taken;
    assert!(passed >= 2 * bounced - 4, "{passed} packets of {bounced} there and back passed the kernel by");
    assert!(router.metric("weir_flow_events_total", "event=\"refreshed\"") >= 2, "{}", router.metrics());
    assert!(lost <= 1, "{lost} lost");
    let left = || match in_router(&testbed, |requests| requests.query(&original)) {
        Ok(Event::Present(entry)) => entry.timeout_s,
        _ => None,
    };
    assert!(left().is_some(), "the entry lives as long as packets pass");
    let silent = Instant::now();
    until("the entry ends without packets", || left().is_none().then_some(()));
    let lived = silent.elapsed();
    assert!(lived <= Duration::from_secs(LIFETIME + 2), "it lived {lived:?} without a packet");
    wait_for_flows(&router, "way=\"xdp\"", 0);
}

#[test]
fn a_firewall_that_is_asked_needs_no_bypass_and_forbids_as_before() {
    let test = "a_firewall_that_is_asked_needs_no_bypass_and_forbids_as_before";
    let Some(testbed) = behind_a_firewall(test) else { return };
    run(&format!("ip -n {} route add default via 10.2.0.1", testbed.server));
    let router = start(&testbed);
    let listener = testbed.in_client(|| TcpListener::bind("10.1.0.2:0")).expect("a socket");
    let at = listener.local_addr().expect("bound");
    let connect = || TcpStream::connect_timeout(&at, Duration::from_secs(1));
    assert!(testbed.in_server(connect).is_err(), "a connection from outside is dropped by policy");
    assert!(router.told(&["show", "offload"]).contains("0 packets, 0 bytes"));
    assert!(!router.told(&["show", "status"]).contains("do not meet"));
}
