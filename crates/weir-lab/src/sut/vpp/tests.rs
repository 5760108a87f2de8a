//! What VPP is told, word for word, and what it is not asked to do. Keys from its documentation.

use super::*;
use crate::model::Keys;
use crate::model::configuration::PlacementKeys;
use crate::model::ipsec::{CipherName, Direction, Mode, Protection};
use crate::model::spd::{Action, LookupBy, Spd};
use crate::model::{FrameSize, Invalid, Sut, Topology, Workload};
use crate::netns::veth::Port;
use weir_stats::search::Rate;

fn configuration(topology: Topology, family: Family, ipsec: Option<Protection>) -> Configuration {
    Configuration::try_from(Keys {
        firewall: None,
        connection_packets: None,
        name: "c".into(),
        sut: Sut::Vpp,
        topology,
        workload: Workload { family, frame: FrameSize::Fixed(94), flows: 4, rate: Rate::FlatOut },
        routes: 1,
        placement: PlacementKeys::default(),
        ipsec,
        build: None,
        relay: None,
    })
    .expect("valid")
}

fn deep(direction: Direction, lookup: LookupBy, index: u32) -> Protection {
    let whole = gateway::protection(&configuration(Topology::Netns, Family::Inet, None));
    let spd = Spd { lookup, buckets: 4096, matching: Some(index), action: Action::Bypass, ..Spd::default() };
    Protection { mode: Mode::Policy, direction, policies: index, spd, ..whole }
}

fn spd_of(direction: Direction, lookup: LookupBy, family: Family) -> Configuration {
    configuration(Topology::Netns, family, Some(deep(direction, lookup, 3)))
}

#[test]
fn the_policy_at_the_index_lets_packets_pass_and_those_before_are_of_nobody() {
    let c = spd_of(Direction::Out, LookupBy::Cache, Family::Inet);
    let expected = "ipsec spd add 1\nset interface ipsec spd host-dout 1\n\
        ipsec policy add spd 1 priority 3 outbound action bypass remote-ip-range 0.0.0.1 - 0.0.0.1\n\
        ipsec policy add spd 1 priority 2 outbound action bypass remote-ip-range 0.0.0.2 - 0.0.0.2\n\
        ipsec policy add spd 1 priority 1 outbound action bypass\n";
    assert_eq!(spd::commands(&c, "dout"), expected);
    let inet6 = spd::commands(&spd_of(Direction::Out, LookupBy::Linear, Family::Inet6), "dout");
    let nobody = "add spd 1 ip6 priority 2 outbound action bypass remote-ip-range 0:0:0:2:: - 0:0:0:2::\n";
    assert!(inet6.contains(nobody) && inet6.ends_with("ip6 priority 1 outbound action bypass\n"), "{inet6}");
    let plain = configuration(Topology::Netns, Family::Inet, None);
    assert_eq!((spd::commands(&plain, "dout"), spd::settings(&plain)), (String::new(), String::new()));
}

#[test]
fn who_answers_is_a_section_of_its_settings() {
    let settings = |direction, lookup, family| spd::settings(&spd_of(direction, lookup, family));
    let (out, inet) = (Direction::Out, Family::Inet);
    assert_eq!(
        settings(out, LookupBy::Cache, inet),
        "ipsec {\n  ipv4-outbound-spd-flow-cache on\n  ipv4-outbound-spd-hash-buckets 4096\n}\n"
    );
    assert_eq!(
        settings(Direction::In, LookupBy::Cache, inet),
        "ipsec {\n  ipv4-inbound-spd-flow-cache on\n  ipv4-inbound-spd-hash-buckets 4096\n}\n"
    );
    assert_eq!(settings(out, LookupBy::Linear, inet), "ipsec {\n  ipv4-outbound-spd-flow-cache off\n}\n");
    assert_eq!(
        settings(out, LookupBy::Classifier, Family::Inet6),
        "ipsec {\n  ipv6-outbound-spd-fast-path on\n}\n"
    );
    assert_eq!(settings(out, LookupBy::Gateway, inet), "");
}

#[test]
fn what_plain_packets_cannot_show_is_refused_with_the_remedy() {
    let good = deep(Direction::Out, LookupBy::Linear, 2);
    let refusal = |family, p: Protection| spd::refused(&configuration(Topology::Netns, family, Some(p)));
    assert_eq!(refusal(Family::Inet, good), None);
    assert_eq!(refusal(Family::Inet6, good), None);
    let protect = Spd { action: Action::Protect, ..good.spd };
    let churning = Spd { churn: 10, ..good.spd };
    let asked = |direction, lookup| deep(direction, lookup, 2);
    for (family, p, remedy) in [
        (Family::Inet, Protection { mode: Mode::Route, ..good }, "mode = \"policy\""),
        (Family::Inet, Protection { direction: Direction::Beside, ..good }, "direction = \"out\""),
        (Family::Inet, Protection { spd: protect, ..good }, "action = \"bypass\""),
        (Family::Inet, Protection { spd: churning, ..good }, "remove `rules` and `churn`"),
        (Family::Inet, asked(Direction::In, LookupBy::Linear), "direction = \"out\""),
        (Family::Inet6, asked(Direction::Out, LookupBy::Cache), "flow cache is of IPv4"),
    ] {
        let said = refusal(family, p).expect("refused");
        assert!(said.starts_with("vpp: ") && said.contains(remedy), "{remedy}: {said}");
    }
}

fn tunnel(mode: Mode, cipher: &str) -> String {
    let whole = gateway::protection(&configuration(Topology::Gateways, Family::Inet, None));
    let cipher = CipherName::named(cipher).expect("a suite");
    let (inner, outer) = (&Port::named("lin", 2), &Port::named("lout", 3));
    let protection = Protection { mode, cipher, ..whole };
    let text = gateway::commands(&gateway::End { own: 1, far: 2, inner, outer, protection });
    text.replace(&inner.name, "lin").replace(&outer.name, "lout")
}

const PORTS_TOLD: &str = "create host-interface name lin hw-addr 02:77:65:69:72:02 cksum-gso-disable\n\
    set interface state host-lin up\nset interface ip address host-lin 10.1.0.1/24\n\
    create host-interface name lout hw-addr 02:77:65:69:72:03 cksum-gso-disable\n\
    set interface state host-lout up\nset interface ip address host-lout 192.0.2.1/24\n";

#[test]
fn a_route_leads_into_an_interface_that_two_sas_protect() {
    let sas = "ipsec sa add 1 spi 4097 esp crypto-alg aes-gcm-128 crypto-key 5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a salt 0x5a5a5a5a\n\
        ipsec sa add 2 spi 4098 esp crypto-alg aes-gcm-128 crypto-key a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5 salt 0xa5a5a5a5 \
        inbound use-anti-replay\n";
    let tunnelled = "create ipip tunnel src 192.0.2.1 dst 192.0.2.2\nipsec tunnel protect ipip0 sa-in 2 sa-out 1\n\
        set interface state ipip0 up\nset interface unnumbered ipip0 use host-lout\nip route add 10.2.0.0/24 via ipip0\n";
    assert_eq!(tunnel(Mode::Route, "aes-gcm-128"), format!("{PORTS_TOLD}{sas}{tunnelled}"));
}

#[test]
fn policies_of_the_outer_port_protect_what_is_between_the_networks() {
    let key = |fill: &str, n: usize| fill.repeat(n);
    let sa = |fill: &str| {
        let (cipher, integrity) = (key(fill, 32), key(fill, 32));
        format!("esp crypto-alg aes-cbc-256 crypto-key {cipher} integ-alg sha-256-128 integ-key {integrity}")
    };
    let sas = format!(
        "ipsec sa add 1 spi 4097 {} tunnel src 192.0.2.1 dst 192.0.2.2\n\
         ipsec sa add 2 spi 4098 {} tunnel src 192.0.2.2 dst 192.0.2.1 inbound use-anti-replay\n",
        sa("5a"),
        sa("a5")
    );
    let ranges = "local-ip-range 10.1.0.0 - 10.1.0.255 remote-ip-range 10.2.0.0 - 10.2.0.255";
    let policies = format!(
        "ip route add 10.2.0.0/24 via 192.0.2.2 host-lout\nipsec spd add 1\nset interface ipsec spd host-lout 1\n\
         ipsec policy add spd 1 priority 100 inbound action bypass protocol 50\n\
         ipsec policy add spd 1 priority 100 outbound action bypass protocol 50\n\
         ipsec policy add spd 1 priority 10 outbound action protect sa 1 {ranges}\n\
         ipsec policy add spd 1 priority 10 inbound action protect sa 2 {ranges}\n"
    );
    let told = tunnel(Mode::Policy, "aes-cbc-256+hmac-sha2-256-128");
    assert_eq!(told, format!("{PORTS_TOLD}{sas}{policies}"));
}

#[test]
fn every_suite_of_ours_has_its_words_in_vpp() {
    let known = [
        "none",
        "aes-gcm-128",
        "aes-gcm-192",
        "aes-gcm-256",
        "chacha20-poly1305",
        "aes-cbc-128",
        "aes-cbc-192",
        "aes-cbc-256",
        "sha1-96",
        "sha-256-128",
        "sha-384-192",
        "sha-512-256",
    ];
    for cipher in CipherName::all() {
        let told = tunnel(Mode::Route, &cipher.to_string());
        let words: Vec<&str> = told.split_whitespace().collect();
        let named = |what: &str| words.windows(2).find(|w| w[0] == what).map(|w| w[1]);
        assert!(named("crypto-alg").is_some_and(|name| known.contains(&name)), "{cipher}: {told}");
        assert_eq!(named("crypto-alg") == Some("none"), named("crypto-key").is_none(), "{cipher}: {told}");
        assert_eq!(named("integ-alg").is_some(), cipher.0.integrity().is_some(), "{cipher}");
        assert!(named("integ-alg").is_none_or(|name| known.contains(&name)), "{cipher}: {told}");
    }
}

#[test]
fn what_two_gateways_cannot_show_is_refused_with_the_remedy() {
    let good = gateway::protection(&configuration(Topology::Gateways, Family::Inet, None));
    let refusal = |p| gateway::refused(&configuration(Topology::Gateways, Family::Inet, Some(p)));
    assert_eq!(refusal(good), None);
    for (p, remedy) in [
        (Protection { direction: Direction::In, ..good }, "direction = \"out\""),
        (Protection { policies: 10, ..good }, "topology = \"netns\""),
        (Protection { cipher: CipherName::named("null").expect("a suite"), ..good }, "null+hmac-sha1-96"),
        (Protection { outer: Family::Inet6, ..good }, "outer = \"inet\""),
    ] {
        let said = refusal(p).expect("refused");
        assert!(said.starts_with("vpp: ") && said.contains(remedy), "{remedy}: {said}");
    }
}

#[test]
fn its_command_line_complains_in_words() {
    for said in
        ["ipsec sa: failed: -1", "exec: unknown input `x'", "ipsec policy: parse error: 'x'", "error:-3"]
    {
        assert!(complains(said), "{said}");
    }
    assert!(!complains("host-lin-1\npolicy-index:7\nipip0\n"));
}

#[test]
fn errors_are_drops_and_information_is_not() {
    let said = "   Count                  Node                              Reason               Severity \n         \
        6                ip4-input              ip4 ttl <= 1            error   \n        \
        41                 arp-reply             ARP replies sent          info    \n         \
        3              host-dout-tx             tx ring full\n";
    let expected = [("vpp.host-dout-tx.tx_ring_full", 3), ("vpp.ip4-input.ip4_ttl_<=_1", 6)];
    assert_eq!(counted::errors(said), expected.into_iter().map(|(k, n)| (k.to_string(), n)).collect());
}

#[test]
fn all_that_it_makes_is_in_the_labs_folder() {
    let settings = startup(Path::new("/tmp/weir-lab-7-8-9"), 3);
    for what in ["runtime-dir /tmp/weir-lab-7-8-9\n", "main-core 3", "prefix weir-lab-7-8-9\n", "nodaemon"] {
        assert!(settings.contains(what), "{what}: {settings}");
    }
    let (opened, closed) = (settings.matches('{').count(), settings.matches('}').count());
    assert_eq!(opened, closed, "{settings}");
    let paths: Vec<&str> = settings.split_whitespace().filter(|w| w.starts_with('/')).collect();
    assert!(paths.len() == 5 && paths.iter().all(|p| p.starts_with("/tmp/weir-lab-7-8-9")), "{paths:?}");
}

fn in_memory(sut: Sut, family: Family, ipsec: Option<Protection>) -> Result<Configuration, Invalid> {
    let keys = Keys {
        firewall: None,
        connection_packets: None,
        name: "c".into(),
        sut,
        topology: Topology::Memory,
        workload: Workload { family, frame: FrameSize::Fixed(94), flows: 4, rate: Rate::FlatOut },
        routes: 1,
        placement: PlacementKeys::default(),
        ipsec,
        build: None,
        relay: None,
    };
    Configuration::try_from(keys)
}

fn told_in_memory(family: Family, ipsec: Option<Protection>) -> String {
    let configuration = in_memory(Sut::Vpp, family, ipsec).expect("valid");
    let (encryption, integrity) = ([0x5a; 20], [0xa5; 32]);
    let [near, far] = match family {
        Family::Inet => ["10.20.0.1", "192.0.2.1"],
        Family::Inet6 => ["fd00:20::1", "fd00:99::1"],
    }
    .map(|address| address.parse().expect("an address"));
    let turned = ipsec.is_some_and(|p| p.direction == Direction::In);
    let (source, destination) = if turned { (far, near) } else { (near, far) };
    let sa =
        memory::SaWords { spi: 4096, source, destination, encryption: &encryption, integrity: &integrity };
    let back = memory::SaWords { spi: 8192, source: destination, destination: source, ..sa };
    memory::commands(&memory::MemorySetup {
        configuration: &configuration,
        macs: [[2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2]],
        routes: &[("32.0.0.0/24".into(), 3)],
        gateway_mac: &|_, n| [2, 0, 0, 1, 0, n as u8],
        sas: ipsec.map(|_| [sa, back]),
    })
}

fn lines_from<'a>(text: &'a str, first: &str) -> &'a str {
    &text[text.find(first).expect("it is there")..]
}

#[test]
fn in_memory_its_ports_are_its_own_and_routes_lead_to_the_same_gateways() {
    let plain = told_in_memory(Family::Inet, None);
    let ports = "create packet-generator interface pg0 hw-addr 02:00:00:00:00:01\nset interface state pg0 up\n\
        set interface ip address pg0 10.10.0.1/24\n";
    assert!(plain.starts_with(ports), "{plain}");
    assert!(plain.contains("set ip neighbor pg1 10.20.0.5 02:00:00:01:00:03 static\n"), "{plain}");
    assert!(plain.ends_with("ip route add 32.0.0.0/24 via 10.20.0.5 pg1\n"), "{plain}");
}

#[test]
fn in_memory_a_tunnel_has_the_keys_of_ours() {
    let whole = gateway::protection(&configuration(Topology::Gateways, Family::Inet, None));
    let expected = format!(
        "ip route add 192.0.2.1/32 via 10.20.0.2 pg1\n\
         ipsec sa add 1 spi 4096 esp crypto-alg aes-gcm-128 crypto-key {key} salt 0x5a5a5a5a\n\
         ipsec sa add 2 spi 8192 esp crypto-alg aes-gcm-128 crypto-key {key} salt 0x5a5a5a5a inbound\n\
         create ipip tunnel src 10.20.0.1 dst 192.0.2.1\nipsec tunnel protect ipip0 sa-in 2 sa-out 1\n\
         set interface state ipip0 up\nset interface unnumbered ipip0 use pg1\nip route add 32.0.0.0/24 via ipip0\n",
        key = "5a".repeat(16)
    );
    let told = told_in_memory(Family::Inet, Some(whole));
    assert_eq!(lines_from(&told, "ip route add 192.0.2.1"), expected);
}

#[test]
fn in_memory_the_last_policy_is_that_of_the_packets() {
    let p = |direction, policies| {
        let whole = deep(direction, LookupBy::Linear, policies);
        Protection { replay_window: 0, spd: Spd { action: Action::Protect, ..whole.spd }, ..whole }
    };
    let told = told_in_memory(Family::Inet, Some(p(Direction::Out, 3)));
    let expected = "ipsec spd add 1\nset interface ipsec spd pg1 1\n\
        ipsec policy add spd 1 priority 3 outbound action bypass protocol 50\n\
        ipsec policy add spd 1 priority 2 outbound action discard remote-ip-range 0.0.0.2 - 0.0.0.2\n\
        ipsec policy add spd 1 priority 1 outbound action protect sa 1\n\
        ip route add 32.0.0.0/24 via 10.20.0.5 pg1\n";
    assert_eq!(lines_from(&told, "ipsec spd add"), expected);
    let told =
        told_in_memory(Family::Inet6, Some(Protection { outer: Family::Inet6, ..p(Direction::In, 2) }));
    assert!(told.contains("tunnel src 0:0:0:1:: dst fd00:20::1 inbound\nipsec policy add spd 1 ip6 priority 2 inbound action protect sa 2\n"), "{told}");
    assert!(told.contains("ip6 priority 1 inbound action protect sa 1\n"), "{told}");
}

#[test]
fn in_memory_a_change_takes_a_policy_of_nobody_out_and_puts_it_back() {
    let change = |p: Protection, n| {
        let configuration = in_memory(Sut::Vpp, Family::Inet, Some(p)).expect("valid");
        memory::change(&configuration, &p, n)
    };
    let out = Protection { replay_window: 0, ..deep(Direction::Out, LookupBy::Linear, 4) };
    let policy = "spd 1 priority 3 outbound action discard remote-ip-range 0.0.0.2 - 0.0.0.2\n";
    assert_eq!(change(out, 0), format!("ipsec policy del {policy}"));
    assert_eq!(change(out, 1), format!("ipsec policy add {policy}"));
    let inward = Protection { replay_window: 0, ..deep(Direction::In, LookupBy::Linear, 4) };
    assert_eq!(change(inward, 2), "ipsec policy del spd 1 priority 3 inbound action protect sa 3\n");
    let often = Protection { spd: Spd { churn: 100, ..out.spd }, ..out };
    let configuration = in_memory(Sut::Vpp, Family::Inet, Some(often)).expect("valid");
    let (text, made) = memory::changes(&configuration, &often, Duration::from_millis(250));
    assert_eq!((made, text.matches("wait 0.010\n").count(), text.matches(" del ").count()), (26, 26, 13));
}

#[test]
fn in_memory_what_it_cannot_do_is_refused_with_the_remedy() {
    let good = deep(Direction::Out, LookupBy::Linear, 2);
    let good = Protection { replay_window: 0, spd: Spd { action: Action::Protect, ..good.spd }, ..good };
    let refusal = |family, p| memory::refused(&in_memory(Sut::Vpp, family, Some(p)).expect("valid"));
    assert_eq!(refusal(Family::Inet, good), None);
    assert_eq!(refusal(Family::Inet6, Protection { outer: Family::Inet6, ..good }), None);
    let one = Protection { policies: 1, spd: Spd { matching: None, ..good.spd }, ..good };
    let cache = Spd { lookup: LookupBy::Cache, ..good.spd };
    for (family, p, remedy) in [
        (Family::Inet, Protection { direction: Direction::Beside, ..good }, "direction = \"out\""),
        (
            Family::Inet,
            Protection { direction: Direction::In, replay_window: 64, ..good },
            "replay_window = 0",
        ),
        (Family::Inet, one, "2 or more `policies`"),
        (Family::Inet, Protection { spd: Spd { churn: 10, ..good.spd }, ..good }, "3 or more `policies`"),
        (Family::Inet, Protection { policies: 3, ..good }, "match the last"),
        (Family::Inet, Protection { outer: Family::Inet6, ..good }, "name `outer`"),
        (Family::Inet6, Protection { outer: Family::Inet6, spd: cache, ..good }, "flow cache is of IPv4"),
    ] {
        let said = refusal(family, p).expect("refused");
        assert!(said.starts_with("vpp: ") && said.contains(remedy), "{remedy}: {said}");
    }
    assert!(in_memory(Sut::VppEnds, Family::Inet, Some(good)).is_err());
    let ends = in_memory(Sut::VppEnds, Family::Inet, None).expect("valid");
    assert_eq!(memory::refused(&ends), None);
}

#[test]
fn what_it_counts_is_read_from_what_it_says() {
    let said = "64.123456789, reftime 64.123, Wed, 25 Nov 2026 19:00:00 GMT\n\
        Time 1.0, 10 sec internal node vector rate 256.00 loops/sec 30000.00\n  vector rates in 8.0e6, out 8.0e6\n             \
        Name                 State         Calls          Vectors        Suspends         Clocks       Vectors/Call\n\
        ip4-lookup                       active              31250         8000000               0        4.13e1          256.00\n\
        ip4-full-reassembly-expire-wal  event wait              0               0               1          2.90e3            0.00\n\
        pg1-tx                           active              31250         8000000               0        2.00e1          256.00\n\
        pg-input                         polling             31251         8000256               0        1.03e2          256.00\n";
    assert_eq!(memory::seconds(said), Some(64.123_456_789));
    let nodes = counted::nodes(said);
    let expected =
        [("ip4-lookup", 8_000_000, 41.3), ("pg1-tx", 8_000_000, 20.0), ("pg-input", 8_000_256, 103.0)];
    assert_eq!(nodes, expected.map(|(name, n, clocks)| (name.to_string(), n, clocks)).to_vec());
}

#[test]
fn what_a_node_lets_pass_is_no_drop_though_it_is_counted_as_an_error() {
    let node = |name: &str, packets| (name.to_string(), packets, 10.0);
    let passes: Counters = [("vpp.ipsec4-output-feature.IPSec_policy_bypass".to_string(), 100)].into();
    assert_eq!(
        counted::drops(&[node("pg-input", 100), node("pg1-tx", 100)], passes.clone()),
        Counters::new()
    );
    let nodes = [node("pg-input", 100), node("error-drop", 7), node("pg1-tx", 93)];
    assert_eq!(counted::drops(&nodes, passes), [("vpp.error-drop".to_string(), 7)].into());
    let reasons: Counters = [("vpp.ip4-input.ip4_ttl_<=_1".to_string(), 7)].into();
    assert_eq!(counted::drops(&nodes, reasons.clone()), reasons);
}

#[test]
fn a_port_loses_what_it_cannot_send_and_its_other_counters_are_no_packets() {
    let said = "        15268              host-dout-tx                tx frame not ready            error  \n          \
        152              host-dout-tx          tx sendto temporary failure        error  \n         \
        1042             af-packet-input               timed out block            error  \n            \
        9              host-dout-tx                tx ring overrun              error  \n";
    let nodes = [("af-packet-input".to_string(), 100_000, 10.0), ("error-drop".into(), 4, 10.0)];
    let lost = [
        ("vpp.error-drop", 4),
        ("vpp.host-dout-tx.tx_frame_not_ready", 15_268),
        ("vpp.host-dout-tx.tx_ring_overrun", 9),
    ];
    let expected = lost.map(|(name, packets)| (name.to_string(), packets)).into();
    assert_eq!(counted::drops(&nodes, counted::errors(said)), expected);
}
