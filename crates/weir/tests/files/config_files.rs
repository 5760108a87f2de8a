//! What a configuration file may say: a table of malformed ones with every complaint word for word,
//! and the shipped examples, which must be right.
//!
//! `tests/config/malformed.txt` holds cases of the form `=== name`, text, `---`, complaints. With
//! `WEIR_BLESS=1` in the environment the complaints are written anew, to be read in the diff.

use std::fmt::Write as _;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use weir::config::{self, Addresses, Kind, Via, Warning};
use weir::router::memory;
use weir_core::ipsec::flow_cache::{FlowCache, FlowCaches};
use weir_core::ipsec::sa::Direction;
use weir_core::ipsec::spd::{Action, Layer, LookupSpec, Way};
use weir_core::ipsec::suite::{Encryption, Integrity};
use weir_core::state::amount;
use weir_core::tables::ReversePath;
use weir_relay::warning as relay;

fn here(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

#[test]
fn every_malformed_file_is_refused_with_place_expectation_and_remedy() {
    let path = here("tests/config/malformed.txt");
    let golden = std::fs::read_to_string(&path).expect("the golden file is there");
    let mut written = String::new();
    let mut accepted = Vec::new();
    for case in golden.split("=== ").skip(1) {
        let (name, rest) = case.split_once('\n').expect("a case has a name line");
        let (text, _) = rest.split_once("---\n").expect("a case has a `---` line");
        let complaints = match config::parse("router.toml", "router", text.to_owned()) {
            Ok(_) => {
                accepted.push(name.to_owned());
                String::new()
            }
            Err(refused) => refused.text,
        };
        let _ = write!(written, "=== {name}\n{text}---\n{}\n\n", complaints.trim_end());
    }
    assert!(accepted.is_empty(), "accepted: {accepted:?}");
    if std::env::var_os("WEIR_BLESS").is_some() {
        std::fs::write(&path, &written).expect("the golden file can be written");
    } else {
        for (want, got) in golden.split("=== ").zip(written.split("=== ")) {
            assert_eq!(want, got);
        }
        assert_eq!(golden, written);
    }
}

#[test]
fn every_complaint_has_a_place_and_a_remedy() {
    let golden =
        std::fs::read_to_string(here("tests/config/malformed.txt")).expect("the golden file is there");
    let complaints: Vec<&str> = golden
        .lines()
        .filter(|l| l.starts_with("router.toml:") && !l.ends_with("nothing was changed"))
        .collect();
    assert!(complaints.len() > 80, "{} complaints", complaints.len());
    for line in complaints {
        let mut parts = line.splitn(4, ':');
        parts.next();
        for part in [parts.next(), parts.next()] {
            assert!(part.is_some_and(|p| p.parse::<usize>().is_ok()), "no place: {line}");
        }
        assert!(line.contains("; ") || line.contains(": not TOML: "), "no remedy: {line}");
    }
}

#[test]
fn shipped_examples_are_right() {
    let mut seen = 0;
    for entry in std::fs::read_dir(here("../../examples")).expect("examples exist") {
        let path = entry.expect("an entry").path();
        if path.extension().is_some_and(|e| e == "toml") {
            // Keys are not shipped: what they must be is judged by the files of tests/files/keys_files.rs.
            let text = std::fs::read_to_string(&path).expect("text");
            config::parse("example", "example", text).map_err(|e| e.text).expect("a valid configuration");
            seen += 1;
        }
    }
    assert!(seen >= 3);
}

#[test]
fn the_router_example_means_what_its_comments_say() {
    let config = config::load(&here("../../examples/router.toml")).map_err(|e| e.text).expect("valid");
    assert_eq!(config.name, "router");
    assert_eq!(config.ports[0].kind.value, Kind::Auto);
    assert_eq!(config.ports[2].vlan.as_ref().map(|v| v.value), Some(20));
    assert_eq!(config.devices().len(), 2);
    let Via::NextHops(hops) = &config.routes[2].via else { panic!("a multipath route") };
    assert_eq!(hops.iter().map(|h| h.weight).collect::<Vec<_>>(), [2, 1]);
    assert_eq!(config.routes[3].via, Via::Unreachable);
}

#[test]
fn an_address_the_kernel_has_too_is_the_kernels() {
    let text = "[[port]]\nname = \"a\"\ndevice = \"e\"\naddresses = [\"192.0.2.1/24\", \"192.0.2.2/24\"]\n";
    let config = config::parse("f", "f", text.to_owned()).expect("valid");
    let desired = config.desired(&|_| vec![("192.0.2.2".parse().expect("an address"), 24)]);
    use weir_core::tables::Owner;
    let owners: Vec<_> = desired.ports[0].addresses.iter().map(|a| a.owner).collect();
    assert_eq!(owners, [Owner::Weir, Owner::Kernel]);
}

#[test]
fn ports_can_take_the_kernels_addresses() {
    let text = "[[port]]\nname = \"a\"\ndevice = \"e\"\naddresses = \"kernel\"\n\
                [[route]]\nprefix = \"10.0.0.0/8\"\nvia = \"203.0.113.1\"\n";
    let config = config::parse("f", "f", text.to_owned()).expect("a gateway the machine can judge");
    assert_eq!(config.ports[0].addresses, Addresses::Kernel);
    let desired = config.desired(&|_| vec![("203.0.113.2".parse().expect("an address"), 24)]);
    assert_eq!(desired.ports[0].addresses[0].prefix_len, 24);
}

#[test]
fn a_file_that_is_missing_binary_or_a_folder_is_one_sentence() {
    let dir = std::env::temp_dir().join(format!("weir-config-{}", std::process::id()));
    std::fs::create_dir_all(&dir).expect("a folder");
    let binary = dir.join("b.toml");
    std::fs::write(&binary, [b'a', b'\n', 0xff, 0xfe]).expect("a file");
    let said = |path: &Path| config::load(path).expect_err("refused").text;
    let (missing, binary, folder) = (said(&dir.join("none.toml")), said(&binary), said(&dir));
    std::fs::remove_dir_all(&dir).expect("removed");
    assert!(missing.contains("cannot read it") && missing.contains("check the path"), "{missing}");
    assert!(binary.contains("b.toml:2: byte 2 of the file is not UTF-8"), "{binary}");
    assert!(folder.contains("cannot read it"), "{folder}");
}

/// `weir check --json -` on this text: its status and what it prints.
fn checked_by_program(text: &str) -> (bool, serde_json::Value) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
    command.args(["check", "--json", "-"]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut check = command.spawn().expect("weir starts");
    check.stdin.take().expect("piped").write_all(text.as_bytes()).expect("it reads");
    let output = check.wait_with_output().expect("it ends");
    (output.status.success(), serde_json::from_slice(&output.stdout).expect("one JSON document"))
}

#[test]
fn a_program_reads_what_is_wrong_with_standard_input_and_where() {
    let (taken, bad) = checked_by_program("[[port]]\nname = \"lan\"\nspeed = 1\n");
    assert!(!taken);
    assert_eq!((&bad["ok"], &bad["file"]), (&false.into(), &"standard input".into()), "{bad}");
    let errors = bad["errors"].as_array().expect("a list");
    let key = errors.iter().find(|e| e["message"].as_str().is_some_and(|m| m.contains("speed")));
    let key = key.expect("the key nobody knows is among them");
    assert_eq!((&key["line"], &key["column"]), (&3.into(), &1.into()), "{bad}");

    let text = std::fs::read_to_string(here("../../examples/minimal.toml")).expect("an example");
    let (taken, good) = checked_by_program(&text);
    assert!(taken, "{good}");
    assert_eq!((&good["ok"], &good["errors"]), (&true.into(), &serde_json::json!([])), "{good}");
    assert!(good["has"].as_str().is_some_and(|has| has.contains("2 ports")), "{good}");
}

#[test]
fn show_alone_lists_every_topic_with_what_it_shows() {
    let output = Command::new(env!("CARGO_BIN_EXE_weir")).arg("show").output().expect("weir starts");
    let said = String::from_utf8(output.stdout).expect("text");
    assert!(output.status.success(), "{said}");
    for topic in ["status", "ports", "drops", "sa", "peers"] {
        let line = said.lines().find(|line| line.split_whitespace().next() == Some(topic));
        assert!(line.is_some_and(|line| line.split_whitespace().count() > 2), "{topic}: {said}");
    }
}

/// An enforced port with these lines of `[ipsec]`.
fn asked(ipsec: &str) -> config::Config {
    let text = format!(
        "[ipsec]\n{ipsec}[[port]]\nname = \"wan\"\ndevice = \"eth0\"\n[[spd]]\nname = \"outside\"\nports = [\"wan\"]\n"
    );
    config::parse("gateway.toml", "gateway", text).map_err(|e| e.text).expect("valid")
}

#[test]
fn a_gateway_without_sas_needs_no_keys_and_asks_without_caches() {
    let config = asked("");
    assert_eq!(config.lookup(), LookupSpec::default());
    assert_eq!((config.notes_on_lookups(), config.warnings()), (Vec::new(), Vec::new()));
}

#[test]
fn lookup_options_reach_the_desired_state_by_direction_and_family() {
    let config = asked(
        "ipv4-inbound-spd-flow-cache = \"on\"\nipv6-outbound-spd-flow-cache = true\n\
         ipv6-outbound-spd-hash-buckets = 65536\nipv4-outbound-spd-flow-cache = \"off\"\n\
         spd-classifier = \"off\"\nspd-oracle = \"on\"\n",
    );
    let lookup = config.desired(&|_| Vec::new()).ipsec.lookup;
    let caches = Way::ALL.map(|way| (way.name(), lookup.buckets(way)));
    let expected = [
        ("ipv4-outbound", None),
        ("ipv4-inbound", Some(4_194_304)),
        ("ipv6-outbound", Some(65_536)),
        ("ipv6-inbound", None),
    ];
    assert_eq!(caches, expected);
    assert_eq!((lookup.layer, lookup.oracle), (Layer::Scan, true));
    assert_eq!(config.warnings(), [Warning::SpdOracle]);
    assert_eq!(asked("spd-classifier = \"on\"\n").lookup().layer, Layer::Classifier);
}

#[test]
fn buckets_are_rounded_up_and_it_is_said_with_the_memory_they_take() {
    let config = asked(
        "ipv4-inbound-spd-flow-cache = \"on\"\nipv4-inbound-spd-hash-buckets = 1000000\n\
         ipv6-inbound-spd-hash-buckets = 16\n",
    );
    assert_eq!(config.lookup().buckets(Way::Ipv4Inbound), Some(1 << 20));
    let [off_or_rounded @ .., memory] = &config.notes_on_lookups()[..] else { panic!("no notes_on_lookups") };
    let rounded = "ipv4-inbound-spd-hash-buckets: 1000000 buckets rounded up to 1048576";
    assert!(off_or_rounded.iter().any(|r| r == rounded), "{off_or_rounded:?}");
    let off = "ipv6-inbound-spd-hash-buckets: 16 buckets are given and the cache is off";
    assert!(off_or_rounded.iter().any(|r| r.starts_with(off)), "{off_or_rounded:?}");
    let takes = amount(FlowCache::bytes(Way::Ipv4Inbound, 1 << 20));
    assert_eq!(*memory, format!("spd flow caches take {takes}: ipv4-inbound 1048576 buckets in {takes}"));
}

#[test]
fn caches_without_an_spd_are_not_made() {
    let text = "[ipsec]\nipv4-inbound-spd-flow-cache = \"on\"\n[[port]]\nname = \"wan\"\ndevice = \"eth0\"\n";
    let config = config::parse("f", "f", text.to_owned()).expect("valid");
    assert_eq!(config.lookup(), LookupSpec::default());
    assert!(config.notes_on_lookups()[0].contains("there is no spd"), "{:?}", config.notes_on_lookups());
}

#[test]
fn caches_larger_than_the_memory_at_hand_are_refused_at_the_largest_of_them() {
    let config = asked(
        "ipv4-inbound-spd-flow-cache = \"on\"\nipv6-inbound-spd-flow-cache = \"on\"\n\
         ipv6-inbound-spd-hash-buckets = 67108864\n",
    );
    let (spec, none) = (config.lookup(), LookupSpec::default());
    let takes = FlowCaches::memory(&spec);
    assert!(memory::too_much(&config, &none, takes).is_none());
    let said = memory::too_much(&config, &none, takes - 1).expect("refused").to_string();
    assert!(said.starts_with("gateway.toml:4:33: ipsec: new spd flow caches would take "), "{said}");
    assert!(said.contains("; write fewer buckets, or switch a cache off"), "{said}");
    // What is there already is kept, not made again.
    assert!(memory::too_much(&config, &spec, 0).is_none());
}

/// An SA one way, with a policy that uses it and another one the other way.
fn spelled(direction: &str, cipher: &str, integrity: &str, policy: &str) -> config::Config {
    let way = &direction[..direction.len().min(3)];
    let way = if way == "inb" { "in" } else { way };
    let text = format!(
        "[[port]]\nname = \"wan\"\ndevice = \"eth0\"\n[ipsec]\nkeys = \"keys\"\n[[sa]]\nname = \"a\"\n\
         direction = \"{direction}\"\nspi = 4097\nsource = \"192.0.2.1\"\ndestination = \"192.0.2.2\"\n\
         cipher = \"{cipher}\"\nkey = \"a\"\n{integrity}[[spd]]\nname = \"outside\"\nports = \"wan\"\ndefault = \"discard\"\n\
         [[policy]]\nspd = \"outside\"\nname = \"p\"\n{policy}\
         [[policy]]\nspd = \"outside\"\nname = \"q\"\ndirection = \"{direction}\"\naction = \"protect\"\n{way} = \"a\"\n"
    );
    config::parse("gateway.toml", "gateway", text).map_err(|e| e.text).expect("valid")
}

#[test]
fn spellings_of_other_programs_mean_what_they_mean_there() {
    let block = "direction = \"inbound\"\nlocal = \"10.0.0.0/8\"\naction = \"drop\"\n";
    for (cipher, integrity) in [
        ("AES-CBC-256", "integrity = \"sha-256-128\"\nintegrity_key = \"b\"\n"),
        ("aes256", "integrity = \"HMAC_SHA2_256_128\"\nintegrity_key = \"b\"\n"),
        ("aes256-sha256", "integrity_key = \"b\"\n"),
    ] {
        let config = spelled("outbound", cipher, integrity, block);
        let suite = config.ipsec.sas[0].params.suite;
        let expected = (Encryption::AesCbc256, Some(Integrity::HmacSha256_128));
        assert_eq!((suite.encryption(), suite.integrity()), expected, "{cipher}");
        assert_eq!(config.ipsec.sas[0].params.direction, Direction::Out);
        assert_eq!(config.ipsec.policies[0].spec.action, Action::Discard);
        assert_eq!(config.ipsec.policies[0].spec.direction, Some(Direction::In));
        assert_eq!(config.ipsec.spds[0].default, Action::Discard);
    }
    for cipher in ["AES-GCM-256", "aes256gcm16", "AES_GCM_16-256"] {
        let config = spelled("inbound", cipher, "", block);
        assert_eq!(config.ipsec.sas[0].params.suite.encryption(), Encryption::AesGcm256, "{cipher}");
    }
}

#[test]
fn an_spd_that_lets_the_rest_by_in_cleartext_is_a_warning() {
    let text = "[[port]]\nname = \"wan\"\ndevice = \"eth0\"\n[[spd]]\nname = \"outside\"\nports = [\"wan\"]\n\
                default = \"bypass\"\n[control]\nmetrics = \"0.0.0.0:9650\"\n";
    let config = config::parse("f", "f", text.to_owned()).map_err(|e| e.text).expect("valid");
    let address = "0.0.0.0:9650".parse().expect("an address");
    let expected =
        [Warning::SpdBypassesByDefault { spd: "outside".into() }, Warning::MetricsExposed { address }];
    assert_eq!(config.warnings(), expected);
    for warning in config.warnings() {
        assert!(warning.to_string().contains("; write "), "{warning}");
    }
}

/// What is to be thought about in a relay with these lines.
fn relay_warnings(lines: &str) -> Vec<relay::Warning> {
    let text = format!("[relay]\nlisten = \":3340\"\ntls = \"off\"\nmesh_key = \"mesh.key\"\n{lines}");
    let config = config::parse("relay.toml", "relay", text).map_err(|e| e.text).expect("valid");
    let of = |warning| match warning {
        Warning::Relay(warning) if warning != relay::Warning::TlsOff => Some(warning),
        _ => None,
    };
    config.warnings().into_iter().filter_map(of).collect()
}

#[test]
fn what_lets_in_more_than_it_seems_is_a_warning() {
    use relay::Warning as Relay;
    let here = "http://127.0.0.1:8080/verify";
    assert_eq!(relay_warnings(""), [Relay::Everybody]);
    assert_eq!(relay_warnings("allow = \"everybody\"\n"), []);
    assert_eq!(relay_warnings("verify_tailscaled = \"t.sock\"\n"), []);
    let open = Relay::VerifyFailsOpen { verifier: here.into() };
    for lines in ["", "verify_fail_open = true\n"] {
        assert_eq!(relay_warnings(&format!("verify = \"{here}\"\n{lines}")), std::slice::from_ref(&open));
    }
    assert_eq!(relay_warnings(&format!("verify = \"{here}\"\nverify_fail_open = false\n")), []);
    let away = "http://192.0.2.7/verify";
    assert_eq!(
        relay_warnings(&format!("verify = \"{away}\"\nverify_fail_open = false\n")),
        [Relay::VerifyUnencrypted { verifier: away.into() }]
    );
    let mesh = "allow = \"everybody\"\nmesh_with = [\"derp2.example.com\", \"http://10.0.0.2:3340\"]\n";
    assert_eq!(relay_warnings(mesh), [Relay::MeshUnencrypted { relay: "http://10.0.0.2:3340".into() }]);
    let debug = "allow = \"everybody\"\ndebug = [\"10.0.0.0/8\", \"0.0.0.0/0\"]\n";
    assert_eq!(relay_warnings(debug), [Relay::DebugForEverybody]);
}

#[test]
fn a_relay_on_this_host_alone_may_be_plain_and_open() {
    let text = "[relay]\nlisten = [\"127.0.0.1:3340\", \"[::1]:3340\"]\ntls = \"off\"\n";
    let config = config::parse("relay.toml", "relay", text.to_owned()).map_err(|e| e.text).expect("valid");
    assert_eq!(config.warnings(), []);
}

#[test]
fn a_tunnel_takes_only_sources_that_lead_into_it_unless_the_file_says_otherwise() {
    let text = std::fs::read_to_string(here("../../examples/gateway.toml")).expect("an example");
    let of = |text: String| {
        let config = config::parse("gateway.toml", "gateway", text).expect("the example is right");
        config.ipsec.tunnels.iter().map(|tunnel| tunnel.reverse_path).collect::<Vec<_>>()
    };
    assert_eq!(of(text.clone()), [ReversePath::Strict]);
    assert_eq!(of(text.replace("# rpf = \"strict\"", "rpf = \"off\"")), [ReversePath::Off]);
}
