//! Two gateways in route mode and in policy mode, over both families and kinds of port: traffic between
//! hosts behind them, rekeying under load, what is refused and what stays secret.

use std::net::UdpSocket;
use std::thread;
use std::time::Duration;

use weir_core::wire::build::Frame;

use super::gateways::{Ends, GCM, Gateways, Side, Suite, families, hex, pair, policies, ports, sa, tunnel};
use super::testbed::{Router, Wire, ip, until};
use super::traffic::{Echo, icmp, ping, send_udp, stream, toward, under_traffic};

/// Bytes of TCP in each direction: some thousand packets.
const BULK: usize = 2 << 20;
const DATAGRAMS: u64 = 40;

/// Ping, datagrams of many sizes and a stream, both families inside.
pub fn carries_traffic(testbed: &Gateways, routers: &[Router; 2]) {
    for Ends { client, far, .. } in families() {
        ping(&testbed.west, client, far);
        Echo::start(&testbed.west, far).bounce(&testbed.west, DATAGRAMS);
        stream(&testbed.west, far, BULK);
    }
    for router in routers {
        assert_eq!(router.metric("weir_drops_total", "reason=\"integrity_failed\""), 0);
        assert_eq!(router.metric("weir_drops_total", "reason=\"replayed\""), 0);
        router.wait_for_metric("weir_sa_packets_total", "direction=\"out\"", 100);
        router.wait_for_metric("weir_sa_packets_total", "direction=\"in\"", 100);
        assert_eq!(offloaded(router), 0, "everything is seen by a worker");
        router.assert_conserved();
    }
}

/// Frames the XDP programs forwarded by themselves.
fn offloaded(router: &Router) -> u64 {
    let ports = router.json("ports");
    let of = |port: &serde_json::Value| port["steered"]["flow_offload"].as_u64().unwrap_or(0);
    ports.as_array().expect("ports").iter().map(of).sum()
}

fn runs(test: &str, kind: &str, outer: usize, suite: Suite, mode: fn(Side, &str) -> String) {
    let Some(testbed) = Gateways::new(test) else { return };
    testbed.keys(&["a-east", "a-west"], suite);
    let outer = families()[outer];
    let text = |side| ports(side, kind) + &pair(side, "a", 0x1000, outer, suite) + &mode(side, "a");
    let routers = testbed.start(text);
    carries_traffic(&testbed, &routers);
}

#[test]
fn route_mode_carries_both_families_over_ipv4() {
    runs("route_mode_carries_both_families_over_ipv4", "af_xdp", 0, GCM, tunnel);
}

#[test]
fn the_library_alone_seals_where_the_file_says_so() {
    let test = "the_library_alone_seals_where_the_file_says_so";
    let Some(testbed) = Gateways::new(test) else { return };
    testbed.keys(&["a-east", "a-west"], GCM);
    let outer = families()[0];
    let text = |side| {
        let text = ports(side, "af_packet") + &pair(side, "a", 0x1000, outer, GCM) + &tunnel(side, "a");
        if side == Side::West { text.replace("[ipsec]\n", "[ipsec]\nciphers = \"library\"\n") } else { text }
    };
    let routers = testbed.start(text);
    ping(&testbed.west, outer.client, outer.far);
    // What is measured in an unoptimised build may favour the library too; what the file asks for is not measured.
    let west = routers[0].told(&["show", "sa"]);
    assert!(west.contains("aws-lc") && !west.contains("vaes"), "{west}");
    let changed = text(Side::West).replace("ciphers = \"library\"\n", "");
    let file = testbed.next(Side::West, &changed);
    let refused = routers[0].ask(&["apply", &file.to_string_lossy()]);
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success() && said.contains("ciphers of [ipsec] differs"), "{said}");
}

#[test]
fn route_mode_carries_both_families_over_ipv6() {
    runs("route_mode_carries_both_families_over_ipv6", "af_xdp", 1, GCM, tunnel);
}

#[test]
fn policy_mode_carries_both_families_over_ipv4() {
    runs("policy_mode_carries_both_families_over_ipv4", "af_xdp", 0, GCM, policies);
}

#[test]
fn policy_mode_carries_both_families_over_ipv6() {
    runs("policy_mode_carries_both_families_over_ipv6", "af_xdp", 1, GCM, policies);
}

#[test]
fn packet_sockets_carry_it_too_in_route_mode() {
    runs("packet_sockets_carry_it_too_in_route_mode", "af_packet", 0, GCM, tunnel);
}

#[test]
fn packet_sockets_carry_it_too_in_policy_mode() {
    runs("packet_sockets_carry_it_too_in_policy_mode", "af_packet", 1, GCM, policies);
}

#[test]
fn esp_in_udp_reaches_gateways_whose_address_is_the_kernels() {
    let suite = Suite {
        cipher: "aes-cbc-256",
        integrity: Some("hmac-sha2-256-128"),
        lengths: [32, 32],
        more: "nat_t = true\nesn = false",
    };
    runs("esp_in_udp_reaches_gateways_whose_address_is_the_kernels", "af_xdp", 0, suite, tunnel);
}

#[test]
fn what_no_policy_matches_is_dropped_and_clear_text_for_a_policy_too() {
    let test = "what_no_policy_matches_is_dropped_and_clear_text_for_a_policy_too";
    let Some(testbed) = Gateways::new(test) else { return };
    testbed.keys(&["a-east", "a-west"], GCM);
    let [outer, _] = families();
    // East routes without protecting: what it sends to west's clients is clear.
    let clear = "[[route]]\nprefix = \"10.1.0.0/16\"\nvia = \"10.2.0.1\"\n";
    let more = "[[route]]\nprefix = \"10.9.0.0/16\"\nvia = \"10.2.0.2\"\n";
    let [west, east] = testbed.start(|side| match side {
        Side::West => {
            ports(side, "af_xdp") + &pair(side, "a", 0x1000, outer, GCM) + &policies(side, "a") + more
        }
        Side::East => ports(side, "af_xdp").replace("[ipsec]\nkeys = \"keys\"\n", "") + clear,
    });
    until("a packet no policy matches is counted", || {
        send_udp(&testbed.west, "10.9.0.1".parse().expect("an address"));
        thread::sleep(Duration::from_millis(50));
        (west.metric("weir_drops_total", "reason=\"policy_none\"") > 0).then_some(())
    });
    let far = testbed.west.in_server(|| UdpSocket::bind("0.0.0.0:0")).expect("a socket");
    until("clear text where a policy protects is counted", || {
        far.send_to(b"clear", (outer.client, 9)).expect("sent");
        thread::sleep(Duration::from_millis(50));
        (west.metric("weir_drops_total", "reason=\"policy_unprotected\"") > 0).then_some(())
    });
    west.wait_for("policy_unprotected");
    let spd = west.told(&["show", "spd"]);
    assert!(spd.contains("spd outside on wan, discard what no policy matches"), "{spd}");
    west.assert_conserved();
    east.assert_conserved();
}

#[test]
fn rekeying_under_traffic_loses_nothing() {
    let Some(testbed) = Gateways::new("rekeying_under_traffic_loses_nothing") else { return };
    const ROUNDS: u32 = 8;
    let names: Vec<String> =
        (0..=ROUNDS).flat_map(|n| [format!("k{n}-east"), format!("k{n}-west")]).collect();
    testbed.keys(&names.iter().map(String::as_str).collect::<Vec<_>>(), GCM);
    let [outer, _] = families();
    let (near, far) = (outer.between[0], outer.between[1]);
    // Inbound SAs of generations `inbound`, outbound ones of generation `out`.
    let text = |side: Side, inbound: &[u32], out: u32| {
        let mut text = ports(side, "af_xdp");
        let (there, back) = if side == Side::West { ("east", "west") } else { ("west", "east") };
        let spi = |n: u32, way: &str| 0x1000 + 2 * n + u32::from(way == "west");
        let ends = |way: &str| if way == "east" { (near, far) } else { (far, near) };
        let sender = |way: &str| if way == "east" { Side::West } else { Side::East };
        for n in inbound {
            text += &sa(side, sender(back), &format!("k{n}-{back}"), spi(*n, back), ends(back), GCM);
        }
        text += &sa(side, sender(there), &format!("k{out}-{there}"), spi(out, there), ends(there), GCM);
        let inbound: Vec<String> = inbound.iter().map(|n| format!("\"k{n}-{back}\"")).collect();
        text +=
            &tunnel(side, "k").replace(&format!("out = \"k-{there}\""), &format!("out = \"k{out}-{there}\""));
        text.replace(&format!("in = \"k-{back}\""), &format!("in = [{}]", inbound.join(", ")))
    };
    let routers = testbed.start(|side| text(side, &[0], 0));
    ping(&testbed.west, outer.client, outer.far);
    let apply = |at: usize, side: Side, text: String| {
        let file = testbed.next(side, &text);
        routers[at].told(&["apply", &file.to_string_lossy()]);
    };
    let seen = under_traffic(&testbed.west, outer.client, outer.far, || {
        for n in 1..=ROUNDS {
            // Make before break: both accept the new ones, both send by them, both forget the old ones.
            for (at, side) in [Side::West, Side::East].into_iter().enumerate() {
                apply(at, side, text(side, &[n - 1, n], n - 1));
            }
            for (at, side) in [Side::West, Side::East].into_iter().enumerate() {
                apply(at, side, text(side, &[n - 1, n], n));
            }
            for (at, side) in [Side::West, Side::East].into_iter().enumerate() {
                apply(at, side, text(side, &[n], n));
            }
        }
    });
    assert!(seen.sent > 100, "{} datagrams are no traffic", seen.sent);
    assert!(seen.in_order);
    let drops = routers[0].told(&["show", "drops"]) + &routers[1].told(&["show", "drops"]);
    assert_eq!(seen.sent, seen.received, "{drops}");
    let sas = routers[1].told(&["show", "sa"]);
    assert!(sas.contains(&format!("k{ROUNDS}-east")), "{sas}");
    routers.iter().for_each(Router::assert_conserved);
}

#[test]
fn changed_keys_under_the_same_names_are_new_sas() {
    let Some(testbed) = Gateways::new("changed_keys_under_the_same_names_are_new_sas") else { return };
    testbed.keys(&["a-east", "a-west"], GCM);
    let [outer, _] = families();
    let text = |side| ports(side, "af_xdp") + &pair(side, "a", 0x1000, outer, GCM) + &tunnel(side, "a");
    let routers = testbed.start(text);
    ping(&testbed.west, outer.client, outer.far);
    stream(&testbed.west, outer.far, BULK);
    let sequence = |router: &Router| {
        let sas = router.json("sa");
        let out =
            sas.as_array().and_then(|s| s.iter().find(|s| s["direction"] == "out" && s["state"] == "active"));
        out.and_then(|s| s["sequence"].as_u64()).expect("an outbound SA")
    };
    until("the numbers are told", || (sequence(&routers[0]) > 100).then_some(()));
    // The same names, other bytes.
    for side in [Side::West, Side::East] {
        let keys =
            ["a-east", "a-west"].map(|name| format!("{name} = \"{}\"\n", hex(&format!("{name}-2"), 20)));
        std::fs::write(testbed.testbed(side).folder.join("keys"), keys.concat()).expect("the keys file");
    }
    for (router, side) in routers.iter().zip([Side::West, Side::East]) {
        let file = testbed.next(side, &text(side));
        let done = router.told(&["apply", &file.to_string_lossy()]);
        assert!(done.contains("a-east") && done.contains("a-west"), "{done}");
        assert!(
            !done.contains(&hex("a-east-2", 20)[..16]) && !done.contains(&hex("a-east", 20)[..16]),
            "{done}"
        );
        assert!(sequence(router) < 100, "{}", router.told(&["show", "sa"]));
    }
    ping(&testbed.west, outer.client, outer.far);
    routers.iter().for_each(Router::assert_conserved);
}

#[test]
fn a_packet_too_big_for_the_tunnel_is_answered_with_what_fits() {
    let Some(testbed) = Gateways::new("a_packet_too_big_for_the_tunnel_is_answered_with_what_fits") else {
        return;
    };
    testbed.keys(&["a-east", "a-west"], GCM);
    let [outer, _] = families();
    let routers = testbed
        .start(|side| ports(side, "af_xdp") + &pair(side, "a", 0x1000, outer, GCM) + &tunnel(side, "a"));
    ping(&testbed.west, outer.client, outer.far);
    let tunnels = routers[0].json("tunnels");
    let mtu = tunnels[0]["mtu"].as_u64().expect("an MTU");
    assert!((1400..1500).contains(&mtu), "{tunnels}");
    let mut wire = Wire::open(&testbed.west.client, "c0");
    let frame = toward(&testbed.west, outer.client, outer.far).dont_fragment().udp(4000, 9, &[0; 1472]);
    let answer =
        wire.exchange("an ICMP error", &frame, |f| icmp(f).is_some_and(|i| (i.kind, i.code) == (3, 4)));
    assert_eq!(icmp(&answer).map(|i| u64::from(i.mtu)), Some(mtu));
}

#[test]
fn an_error_to_the_kernels_address_about_esp_teaches_the_path_mtu() {
    let test = "an_error_to_the_kernels_address_about_esp_teaches_the_path_mtu";
    let Some(testbed) = Gateways::new(test) else { return };
    testbed.keys(&["a-east", "a-west"], GCM);
    let [outer, _] = families();
    let side = Side::West;
    let text = ports(side, "af_xdp") + &pair(side, "a", 0x1000, outer, GCM) + &tunnel(side, "a");
    let west = testbed.west.start(&text);
    let mut wire = Wire::open(&testbed.east.router, "s0");
    let mut sealed = None;
    until("sealed packets leave", || {
        send_udp(&testbed.west, outer.far);
        thread::sleep(Duration::from_millis(50));
        sealed = wire.heard().into_iter().find(|f| f.len() > 42 && f[12..14] == [8, 0] && f[23] == 50);
        sealed.as_ref().map(|_| ())
    });
    let quoted = &sealed.expect("a sealed packet")[14..];
    // An old packet as large as the MTU it did not fit: only its header is looked at.
    let mut quote = quoted[..28].to_vec();
    quote[2..4].copy_from_slice(&1500u16.to_be_bytes());
    quote[10..12].fill(0);
    let sum = weir_core::wire::checksum::checksum(&quote[..20]);
    quote[10..12].copy_from_slice(&sum.to_be_bytes());
    let mut message = [&[3, 4, 0, 0, 0, 0, 5, 0x14][..], &quote].concat();
    let sum = weir_core::wire::checksum::checksum(&message);
    message[2..4].copy_from_slice(&sum.to_be_bytes());
    let (to, from) =
        (testbed.west.mac(&testbed.west.router, "r1"), testbed.west.mac(&testbed.east.router, "s0"));
    let error = Frame::ip(ip("10.2.0.254"), ip(outer.between[0])).expect("one family").macs(to, from);
    wire.send(&error.raw(1, &message));
    until("the SA knows what the path takes", || {
        let sas = west.json("sa");
        let sa = sas.as_array()?.iter().find(|sa| sa["name"] == "a-east")?;
        (sa["path_mtu"].as_u64() == Some(0x514)).then_some(())
    });
    assert!(west.told(&["show", "sa"]).contains("a-east: the path takes 1300 bytes"));
}

#[test]
fn every_worker_sends_by_its_own_sa() {
    let Some(testbed) = Gateways::new("every_worker_sends_by_its_own_sa") else { return };
    testbed.keys(&["a-east", "a-west", "b-east", "b-west"], GCM);
    let [outer, _] = families();
    let routers = testbed.start(|side| {
        let text = ports(side, "af_packet")
            + &pair(side, "a", 0x1000, outer, GCM)
            + &pair(side, "b", 0x1002, outer, GCM)
            + &tunnel(side, "a")
            + "[workers]\ncpus = [0, 1]\n";
        ["east", "west"].iter().fold(text, |text, way| {
            let (one, two) = (format!(" = \"a-{way}\"\nin"), format!(" = [\"a-{way}\", \"b-{way}\"]\nin"));
            let text = text.replace(&one, &two);
            text.replace(&format!("\nin = \"a-{way}\""), &format!("\nin = [\"a-{way}\", \"b-{way}\"]"))
        })
    });
    ping(&testbed.west, outer.client, outer.far);
    let used = |router: &Router, name: &str| {
        let sas = router.json("sa");
        let sa = sas.as_array().and_then(|s| s.iter().find(|s| s["name"] == name)).cloned();
        sa.and_then(|s| s["packets"].as_u64()).expect("an SA")
    };
    until("flows reach both workers", || {
        // Each from another port: another flow.
        (0..16).for_each(|_| send_udp(&testbed.west, outer.far));
        (used(&routers[0], "a-east") > 0 && used(&routers[0], "b-east") > 0).then_some(())
    });
    until("the far end opens both", || {
        (used(&routers[1], "a-east") > 0 && used(&routers[1], "b-east") > 0).then_some(())
    });
    stream(&testbed.west, outer.far, BULK);
    routers.iter().for_each(Router::assert_conserved);
}

#[test]
fn a_soft_lifetime_is_told_and_a_hard_one_ends_the_sa() {
    let Some(testbed) = Gateways::new("a_soft_lifetime_is_told_and_a_hard_one_ends_the_sa") else { return };
    let suite = Suite { more: "soft = { packets = 3 }\nhard = { packets = 200 }", ..GCM };
    testbed.keys(&["a-east", "a-west"], suite);
    let [outer, _] = families();
    let side = Side::West;
    let text = ports(side, "af_xdp") + &pair(side, "a", 0x1000, outer, suite) + &tunnel(side, "a");
    let west = testbed.west.start(&text);
    let send = |reason: &str, sentence: &str| {
        until(sentence, || {
            (0..10).for_each(|_| send_udp(&testbed.west, outer.far));
            thread::sleep(Duration::from_millis(50));
            west.log().contains(sentence).then_some(())
        });
        let sas = west.json("sa");
        let sa = sas.as_array().and_then(|s| s.iter().find(|s| s["name"] == "a-east")).expect("an SA");
        assert_eq!(sa["state"], reason, "{sas}");
    };
    send("rekey", "sa a-east: has reached its soft lifetime");
    send("expired", "sa a-east: has reached its hard lifetime");
    until("what comes after is counted", || {
        send_udp(&testbed.west, outer.far);
        thread::sleep(Duration::from_millis(50));
        (west.metric("weir_sa_failures_total", "reason=\"sa_expired\"") > 0).then_some(())
    });
    west.assert_conserved();
}

#[test]
fn a_trace_follows_a_packet_into_the_tunnel() {
    let Some(testbed) = Gateways::new("a_trace_follows_a_packet_into_the_tunnel") else { return };
    testbed.keys(&["a-east", "a-west"], GCM);
    let [outer, _] = families();
    let side = Side::West;
    let text = ports(side, "af_xdp") + &pair(side, "a", 0x1000, outer, GCM) + &tunnel(side, "a");
    let west = testbed.west.start(&text);
    let trace = until("the far gateway is known", || {
        send_udp(&testbed.west, outer.far);
        thread::sleep(Duration::from_millis(50));
        let trace = west.told(&["trace", "--port", "lan", "--src", "10.1.0.2", "--dst", "10.3.0.2"]);
        trace.contains("forward by wan").then_some(trace)
    });
    assert!(trace.contains("10.3.0.0/16 via") && trace.contains("tun"), "{trace}");
    assert!(trace.contains("a-east"), "{trace}");
    let before = west.json("sa");
    west.told(&["trace", "--port", "lan", "--src", "10.1.0.2", "--dst", "10.3.0.2"]);
    assert_eq!(before[0]["sequence"], west.json("sa")[0]["sequence"], "a trace seals nothing");
}

#[test]
fn a_wrong_gateway_changes_nothing_and_no_answer_has_a_key() {
    let Some(testbed) = Gateways::new("a_wrong_gateway_changes_nothing_and_no_answer_has_a_key") else {
        return;
    };
    testbed.keys(&["a-east", "a-west"], GCM);
    let [outer, _] = families();
    let text = |side| ports(side, "af_xdp") + &pair(side, "a", 0x1000, outer, GCM) + &tunnel(side, "a");
    let routers = testbed.start(text);
    let west = &routers[0];
    ping(&testbed.west, outer.client, outer.far);
    let refused = |text: &str, sentence: &str| {
        let file = testbed.next(Side::West, text);
        let output = west.ask(&["apply", &file.to_string_lossy()]);
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && stderr.contains(sentence), "{sentence}: {stderr}");
        stderr
    };
    let good = text(Side::West);
    let mut said = refused(&good.replace("aes-gcm-128", "aes-gcm-256"), "takes 36 (32 key + 4 salt)");
    said += &refused(&good.replace("spi = 4097", "spi = 12"), "expected a number from 256");
    said += &refused(&good.replace("key = \"a-east\"", "key = \"b-east\""), "there is no key `b-east`");
    said += &refused(&good.replace("out = \"a-east\"", "out = \"a-west\""), "goes the other way");
    said += &refused(&(good.clone() + &good[good.find("[[sa]]").expect("an sa")..]), "");
    let keys = testbed.west.folder.join("keys");
    let mode = |mode| {
        use std::os::unix::fs::PermissionsExt as _;
        std::fs::set_permissions(&keys, std::fs::Permissions::from_mode(mode)).expect("permissions");
    };
    mode(0o644);
    said += &refused(&good, "run `chmod 600");
    mode(0o600);
    ping(&testbed.west, outer.client, outer.far);
    for topic in ["sa", "spd", "tunnels", "ports", "status", "drops"] {
        said += &west.told(&["show", topic]);
        said += &west.told(&["show", topic, "--json"]);
    }
    let file = testbed.next(Side::West, &good);
    said += &west.told(&["apply", &file.to_string_lossy()]);
    said += &west.metrics();
    said += &west.log();
    for key in ["a-east", "a-west"] {
        let hex = hex(key, 20);
        assert!(!said.contains(&hex[..16]), "a key is told: {said}");
    }
    assert!(said.contains("a-east"), "{said}");
}
