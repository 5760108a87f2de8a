//! Rule sets of this machine's kernel: written with `nft` and `iptables`, read by netlink, judged, and followed.

use std::io::Write as _;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use weir::router::firewall::established::EstablishedRules;
use weir_core::firewall::{Path, Protocol, survey};
use weir_io::netlink::firewall::rules;
use weir_io::{clock, netns};

use super::testbed::{Testbed, run};

/// Runs on a thread in a network namespace of its own, which goes with it.
fn in_a_namespace(test: &str, programs: &[&str], work: impl FnOnce() + Send) {
    for program in programs {
        if Command::new(program).arg("--version").output().is_err() {
            return skip(test, program);
        }
    }
    let entered = std::thread::scope(|scope| {
        let thread = scope.spawn(|| netns::enter_new().map(|()| work()));
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    });
    if let Err(error) = entered {
        skip(test, &format!("namespaces ({error})"));
    }
}

fn skip(test: &str, lacking: &str) {
    writeln!(std::io::stderr(), "SKIP {test}: needs {lacking}").expect("stderr is open");
}

fn nft(text: &str) {
    let mut child = Command::new("nft").args(["-f", "-"]).stdin(Stdio::piped()).spawn().expect("nft starts");
    child.stdin.take().expect("piped").write_all(text.as_bytes()).expect("nft reads");
    assert!(child.wait().expect("nft ends").success(), "{text}");
}

fn sh(line: &str) {
    let status = Command::new("sh").args(["-c", line]).status().expect("sh starts");
    assert!(status.success(), "{line}");
}

/// What stands in the way of any device's flows, in the order in which it is found.
fn obstacles() -> Vec<String> {
    let rules = rules().expect("root reads the rules");
    survey(&rules, &[]).iter().map(|o| format!("{}: {}", o.families(), o.refusal)).collect()
}

/// A chain at forward of these rules.
fn forward(policy: &str, rules: &str) -> String {
    format!(
        "flush ruleset\ntable inet filter {{\n set blocked {{ type ipv4_addr; flags timeout; }}\n \
         chain other {{ ct state new drop\n }}\n chain forward {{\n type filter hook forward priority 0; policy {policy};\n \
         {rules}\n }}\n}}\n"
    )
}

#[test]
fn rules_that_accept_established_flows_first_are_proved_and_others_named() {
    let test = "rules_that_accept_established_flows_first_are_proved_and_others_named";
    in_a_namespace(test, &["nft"], || {
        assert_eq!(obstacles(), [""; 0]);
        for accepted in [
            "ct state established,related accept\n tcp dport 22 limit rate 1/second accept",
            "ct state established,related counter accept",
            "ct state { established, related } accept",
            "ct state vmap { established : accept, related : accept, invalid : drop }",
            "ct state invalid drop\n ct state established,related accept",
            "ct state new jump other\n ct state established accept",
            "tcp flags syn tcp option maxseg size set rt mtu\n ct state established accept",
            "tcp flags & (syn | rst) == syn counter\n ct state established accept",
            "ip frag-off & 0x1fff != 0 drop\n ct state established accept",
            "meta l4proto { icmp, icmpv6 } accept\n ct state established accept",
            "tcp dport 22 accept\n ip saddr @blocked accept\n ct state established accept",
            "ct status confirmed accept",
        ] {
            nft(&forward("drop", accepted));
            assert_eq!(obstacles(), [""; 0], "{accepted}");
        }
        for (refused, because) in [
            ("", "no rule accepts every packet"),
            ("tcp dport 22 accept", "no rule accepts every packet"),
            ("limit rate 10/second accept\n ct state established accept", "`limit`"),
            ("ip dscp cs1 drop\n ct state established accept", "`drop`"),
            ("ip saddr @blocked drop\n ct state established accept", "`drop`"),
            ("meta length > 1000 drop\n ct state established accept", "`drop`"),
            ("log\n ct state established accept", "`log`"),
            ("counter\n ct state established accept", "only counts"),
            ("meta mark set ct mark\n ct state established accept", "`meta mark set`"),
            ("ct mark set 1 ct state established accept", "`ct mark set`"),
            ("quota over 10 mbytes drop\n ct state established accept", "`quota`"),
            ("add @blocked { ip saddr } ct state established accept", "`an update of a set`"),
            ("ip ttl set 3 ct state established accept", "`a change of the packet`"),
            ("tcp option maxseg size set 1200 ct state established accept", "`a change of an option`"),
            ("reject", "`reject`"),
            ("ct state vmap { established : drop, related : accept }", "`drop`"),
            ("ct state established,related accept comment \"x\"\n", ""),
        ] {
            nft(&forward("drop", refused));
            let found = obstacles();
            assert_eq!(
                found.iter().any(|o| o.contains(because)),
                !because.is_empty(),
                "{refused}: {found:?}"
            );
        }
    });
}

#[test]
fn other_hooks_and_tables_count_as_packets_meet_them() {
    let test = "other_hooks_and_tables_count_as_packets_meet_them";
    in_a_namespace(test, &["nft"], || {
        let chain = |family: &str, head: &str, rule: &str| {
            nft(&format!(
                "flush ruleset\ntable {family} t {{\n chain c {{\n type {head}; policy accept;\n {rule}\n }}\n}}\n"
            ));
            obstacles()
        };
        let none = [""; 0];
        assert_eq!(chain("ip", "nat hook postrouting priority 100", "masquerade"), none);
        assert_eq!(chain("inet", "filter hook input priority 0", "limit rate 1/second drop"), none);
        let raw = chain("inet", "filter hook prerouting priority -300", "udp dport 53 notrack");
        assert_eq!(raw.len(), 1, "{raw:?}");
        assert!(raw[0].starts_with("IPv4 and IPv6: chain inet t c, rule with handle"), "{raw:?}");
        let mangle = chain("ip6", "filter hook postrouting priority -150", "meta priority set 1:2");
        assert!(mangle.len() == 1 && mangle[0].starts_with("IPv6: chain ip6 t c"), "{mangle:?}");
        let device = chain("netdev", "filter hook ingress device lo priority 0", "ip dscp cs1 drop");
        assert!(device.len() == 1 && device[0].contains("(at ingress): `drop`"), "{device:?}");
    });
}

#[test]
fn rules_of_both_iptables_are_read_or_named() {
    let test = "rules_of_both_iptables_are_read_or_named";
    in_a_namespace(test, &["iptables-nft", "iptables-legacy"], || {
        sh("iptables-nft -P FORWARD DROP");
        assert!(
            obstacles()[0].contains("chain ip filter FORWARD (at forward): no rule"),
            "{:?}",
            obstacles()
        );
        sh("iptables-nft -A FORWARD -m conntrack --ctstate INVALID -j DROP");
        sh("iptables-nft -A FORWARD -p tcp --tcp-flags SYN,RST SYN -j TCPMSS --clamp-mss-to-pmtu");
        sh(
            "iptables-nft -A FORWARD -m comment --comment established -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT",
        );
        sh("iptables-nft -A FORWARD -m limit --limit 1/s -j LOG");
        sh("iptables-nft -t nat -A POSTROUTING -j MASQUERADE");
        assert_eq!(obstacles(), [""; 0]);
        sh("iptables-nft -I FORWARD 1 -m limit --limit 1/s -j ACCEPT");
        let found = obstacles();
        assert!(found[0].contains("`limit`") || found[0].contains("`match limit`"), "{found:?}");
        sh("iptables-nft -D FORWARD 1; iptables-nft -I FORWARD 1 -m conntrack --ctstate DNAT -j DROP");
        assert!(obstacles()[0].contains("`drop`"), "{:?}", obstacles());
        // In front of conntrack every packet is invalid.
        sh(
            "iptables-nft -D FORWARD 1; iptables-nft -t raw -A PREROUTING -m conntrack --ctstate INVALID -j DROP",
        );
        assert!(obstacles()[0].contains("chain ip raw PREROUTING"), "{:?}", obstacles());
        sh("iptables-nft -t raw -F; iptables-nft -F; iptables-nft -P FORWARD ACCEPT");
        sh("iptables-legacy -t nat -A POSTROUTING -j MASQUERADE");
        assert_eq!(obstacles(), [""; 0]);
        sh("iptables-legacy -A FORWARD -m conntrack --ctstate ESTABLISHED -j ACCEPT");
        assert_eq!(
            obstacles(),
            ["IPv4: iptables (legacy), table filter, chain FORWARD: it has rules, which are not read"]
        );
    });
}

#[test]
fn a_change_of_the_rules_changes_the_answer_within_100_ms() {
    let test = "a_change_of_the_rules_changes_the_answer_within_100_ms";
    in_a_namespace(test, &["nft"], || {
        let mut followed = EstablishedRules::open(clock::now()).expect("root follows the rules");
        let path = Path { v6: false, protocol: Protocol::Udp, input: None, output: None };
        assert!(followed.accepts(&path));
        let mut accepts = true;
        let edits = [
            forward("drop", ""),
            forward("drop", "ct state established accept"),
            "add rule inet filter forward ct state established accept\n".to_owned(),
            "insert rule inet filter forward limit rate 1/second accept\n".to_owned(),
            "delete table inet filter\n".to_owned(),
        ];
        for (edit, wanted) in edits.iter().zip([false, true, true, false, true]) {
            let generation = followed.generation();
            nft(edit);
            let edited = Instant::now();
            while !followed.refresh(clock::now()) {
                assert!(edited.elapsed() < Duration::from_millis(100), "not heard: {edit}");
                std::thread::sleep(Duration::from_millis(1));
            }
            accepts = followed.accepts(&path);
            assert_eq!(accepts, wanted, "{edit}");
            assert!(followed.generation() > generation);
        }
        assert!(accepts && !followed.refresh(clock::now()), "nothing changed since");
    });
}

#[test]
fn a_set_that_changes_and_a_legacy_rule_are_heard() {
    let test = "a_set_that_changes_and_a_legacy_rule_are_heard";
    in_a_namespace(test, &["nft", "iptables-legacy"], || {
        let mut followed = EstablishedRules::open(clock::now()).expect("root follows the rules");
        let path = Path { v6: false, protocol: Protocol::Tcp, input: None, output: None };
        nft("table inet filter {\n map states { type ct_state : verdict; }\n chain forward {\n \
             type filter hook forward priority 0; policy drop;\n ct state vmap @states\n }\n}\n");
        assert!(followed.refresh(clock::now()) && !followed.accepts(&path));
        nft("add element inet filter states { established : accept }\n");
        assert!(followed.refresh(clock::now()) && followed.accepts(&path), "{:?}", obstacles());
        sh("iptables-legacy -A FORWARD -j DROP");
        let begin = clock::now();
        // Time is given, so that nobody waits for it.
        assert!(followed.refresh(begin + 1_000_000_000) && !followed.accepts(&path));
        sh("iptables-legacy -F FORWARD");
        assert!(followed.refresh(begin + 2_000_000_000) && followed.accepts(&path));
    });
}

#[test]
fn a_trace_and_the_doctor_say_what_the_kernels_rules_decide() {
    let test = "a_trace_and_the_doctor_say_what_the_kernels_rules_decide";
    let Some(testbed) = Testbed::new(test) else { return };
    if Command::new("nft").arg("--version").output().is_err() {
        return skip(test, "nft");
    }
    let rules = testbed.file(
        "rules.nft",
        &forward("drop", "iifname r0 tcp dport 22 accept\n ct state established limit rate 1/second accept"),
    );
    run(&format!("ip netns exec {} nft -f {}", testbed.router, rules.display()));
    let config = testbed.config("auto", "");
    let file = testbed.file("doctor.toml", &config);
    let mut doctor = Command::new("ip");
    doctor.args(["netns", "exec", &testbed.router, env!("CARGO_BIN_EXE_weir"), "doctor"]).arg(file);
    let said = String::from_utf8(doctor.output().expect("weir starts").stdout).expect("text");
    let wanted = [
        "firewall: established flows of IPv4 and IPv6 are not accepted without more: chain inet filter forward, rule with handle",
        "`limit` meets packets of established flows",
        "the rule is `ct state established limit rate 1/second",
        "`nft insert rule inet filter forward ct state established,related accept` accepts them first",
    ];
    assert!(wanted.iter().all(|w| said.contains(w)), "{said}");
    let mut refused = testbed.spawn(&config, &[]);
    assert!(!refused.wait() && wanted.iter().all(|w| refused.log().contains(w)), "{}", refused.log());
    drop(refused);

    let router = testbed.start(&format!("bypass_firewall = true\n{config}"));
    let trace = |port: &str| {
        router.told(&[
            "trace", "--port", "left", "--src", "10.1.0.2", "--dst", "10.2.0.2", "--proto", "tcp", "--dport",
            port,
        ])
    };
    let said = trace("22");
    assert!(
        said.contains(
            "not asked; the kernel would decide: accept by chain inet filter forward, rule with handle"
        ),
        "{said}"
    );
    assert!(said.contains("tcp dport 22 accept`"), "{said}");
    let said = trace("23");
    assert!(said.contains("the kernel would decide: policy drop by chain inet filter forward"), "{said}");
    run(&format!("ip netns exec {} nft flush ruleset", testbed.router));
    assert!(!trace("22").contains("firewall"), "{}", trace("22"));
}
