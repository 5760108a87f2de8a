//! XDP flow offload behind policy enforcement points: what policies let pass is forwarded by XDP and counted by them; what they stop is
//! stopped with the next frame, whoever forwarded the one before.

use std::net::{SocketAddr, UdpSocket};
use std::time::Duration;

use weir_io::offload::{self, Offload};

use super::spd_lookup::{RULES, enforced};
use super::testbed::{Router, Testbed, until};
use super::traffic::{Echo, Way, ping, ways};

/// Datagrams of one family that XDP has to forward before a test goes on.
const OFFLOADED: i64 = 50;

/// A router whose ports both take what XDP redirects.
fn start(testbed: &Testbed, policies: &str) -> Router {
    testbed.in_server(|| offload::set("s0", Offload::Gro, true)).expect("veth knows this offload");
    testbed.in_client(|| offload::set("c0", Offload::Gro, true)).expect("veth knows this offload");
    testbed.start(&enforced(testbed, "", policies))
}

fn offloaded(router: &Router) -> i64 {
    router.metric("weir_steered_total", "cause=\"flow_offload\"")
}

/// Packets that a policy counted outward and inward.
fn counted(router: &Router, name: &str) -> [u64; 2] {
    let spds = router.json("spd");
    let policies = spds[0]["policies"].as_array().expect("policies");
    let policy = policies.iter().find(|policy| policy["name"] == name).expect("the policy");
    ["out_packets", "in_packets"].map(|count| policy[count].as_u64().expect("a count"))
}

fn sender(testbed: &Testbed, to: SocketAddr) -> UdpSocket {
    let bind = if to.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
    let socket = testbed.in_client(|| UdpSocket::bind(bind)).expect("a socket in the client");
    socket.connect(to).expect("connected");
    socket.set_read_timeout(Some(Duration::from_secs(2))).expect("a timeout");
    socket
}

/// Sends a datagram and waits for its echo.
fn bounce(socket: &UdpSocket) {
    socket.send(b"over and back").expect("sent");
    let len = socket.recv(&mut [0; 64]).expect("it comes back");
    assert_eq!(len, 13);
}

/// Sends datagrams until XDP forwards them; how many went over and back in all.
fn until_offloaded(router: &Router, socket: &UdpSocket) -> u64 {
    let (mut bounced, before) = (0, offloaded(router));
    until("XDP flow offload forwards them", || {
        for _ in 0..10 {
            bounce(socket);
            bounced += 1;
        }
        (offloaded(router) >= before + OFFLOADED).then_some(())
    });
    bounced
}

/// What arrives where the echo was, once it is gone.
fn arrives(testbed: &Testbed, at: SocketAddr, sender: &UdpSocket) -> usize {
    let receiver = testbed.in_server(|| UdpSocket::bind(at)).expect("the echo's address");
    receiver.set_read_timeout(Some(Duration::from_millis(300))).expect("a timeout");
    for _ in 0..100 {
        // An ICMP error for an earlier one may be told here.
        let _ = sender.send(b"anybody?");
    }
    std::iter::from_fn(|| receiver.recv(&mut [0; 64]).ok()).count()
}

#[test]
fn what_policies_let_pass_is_offloaded_and_counted_by_them() {
    let Some(testbed) = Testbed::new("what_policies_let_pass_is_offloaded_and_counted_by_them") else {
        return;
    };
    let router = start(&testbed, RULES);
    for (Way { client, server, .. }, policy) in ways().into_iter().zip(["four", "six"]) {
        ping(&testbed, client, server);
        let echo = Echo::start(&testbed, server);
        let socket = sender(&testbed, echo.at);
        let before = counted(&router, policy);
        let bounced = until_offloaded(&router, &socket);
        let after = counted(&router, policy);
        assert_eq!([after[0] - before[0], after[1] - before[1]], [bounced; 2], "{policy}");
        // Of another flow of the pair the policy in front says no.
        let discarded = counted(&router, "quiet")[0];
        let at = SocketAddr::new(server, 9);
        assert_eq!(arrives(&testbed, at, &sender(&testbed, at)), 0, "{policy}");
        assert_eq!(counted(&router, "quiet")[0] - discarded, 100);
    }
    assert_eq!(counted(&router, "quiet")[1], 0);
    router.assert_conserved();
}

#[test]
fn a_policy_that_comes_stops_what_xdp_forwards() {
    let Some(testbed) = Testbed::new("a_policy_that_comes_stops_what_xdp_forwards") else { return };
    let router = start(&testbed, RULES);
    for Way { client, server, .. } in ways() {
        ping(&testbed, client, server);
        let echo = Echo::start(&testbed, server);
        let (at, socket) = (echo.at, sender(&testbed, echo.at));
        until_offloaded(&router, &socket);
        let port = at.port().to_string();
        let add = ["policy", "add", "outside", "stop", "--protocol", "udp", "--remote-ports", &port];
        router.told(&[&add[..], &["--action", "discard", "--at", "1"]].concat());
        drop(echo);
        assert_eq!(arrives(&testbed, at, &socket), 0);
        assert_eq!(counted(&router, "stop")[0], 100);
        router.told(&["policy", "remove", "outside", "stop"]);
        assert_eq!(arrives(&testbed, at, &socket), 100, "what is removed stops nothing");
    }
    router.assert_conserved();
}

/// No policy concerns these addresses: that is true of all their packets, whatever they carry.
#[test]
fn where_no_policy_concerns_a_pair_all_of_it_is_offloaded() {
    let Some(testbed) = Testbed::new("where_no_policy_concerns_a_pair_all_of_it_is_offloaded") else {
        return;
    };
    let other = "default = \"bypass\"\n[[policy]]\nspd = \"outside\"\nname = \"other\"\nremote = \"10.200.0.0/16\"\naction = \"discard\"\n";
    let router = start(&testbed, other);
    for Way { client, server, .. } in ways() {
        ping(&testbed, client, server);
        let echo = Echo::start(&testbed, server);
        until_offloaded(&router, &sender(&testbed, echo.at));
        let before = offloaded(&router);
        // Others of the pair need no worker any more.
        (0..20).for_each(|_| bounce(&sender(&testbed, echo.at)));
        assert!(offloaded(&router) >= before + 40, "{}", router.told(&["show", "ports"]));
    }
    assert_eq!(counted(&router, "other"), [0, 0]);
    router.assert_conserved();
}

/// A process that hangs hears of no other policies: it lets XDP go on for a second.
#[test]
fn what_policies_let_pass_ends_with_who_follows_them() {
    let Some(testbed) = Testbed::new("what_policies_let_pass_ends_with_who_follows_them") else { return };
    let router = start(&testbed, RULES);
    let [Way { client, server, .. }, _] = ways();
    ping(&testbed, client, server);
    let echo = Echo::start(&testbed, server);
    let (at, socket) = (echo.at, sender(&testbed, echo.at));
    until_offloaded(&router, &socket);
    drop(echo);
    router.signal("STOP");
    until("nothing passes", || (arrives(&testbed, at, &socket) == 0).then_some(()));
    router.signal("CONT");
    until("its workers forward again", || (arrives(&testbed, at, &socket) == 100).then_some(()));
    router.assert_conserved();
}
