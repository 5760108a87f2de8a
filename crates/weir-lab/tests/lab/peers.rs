//! Peers as SUTs: DPDK's programs forward on wires and in memory, leave nothing, and one that misbehaves, or is not
//! there, is a finding of the campaign, which goes on.

use crate::common::testbeds::one_at_a_time;
use std::fs;
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::Output;
use std::time::Duration;

use crate::common::configuration::configuration;
use crate::common::program::{lab, text};
use weir_lab::experiment::{Changes, Experiment};
use weir_lab::model::{Configuration, Family, Sample, Sut, Topology, Trial};
use weir_lab::result::Results;
use weir_lab::sut::peer;
use weir_lab::testbed::Testbeds;
use weir_stats::search::Rate;
use weir_testing::folder::Folder;

const FAMILIES: [Family; 2] = [Family::Inet, Family::Inet6];
const DPDK: [Sut; 2] = [Sut::DpdkTestpmd, Sut::DpdkL3fwd];

fn skip(test: &str, why: &str) {
    writeln!(std::io::stderr(), "SKIP {test}: {why}").expect("stderr is open");
}

/// Runs a configuration once, or says why it cannot be and returns nothing.
fn run(test: &str, configuration: &Configuration) -> Option<Sample> {
    let _alone = one_at_a_time();
    let mut testbeds = Testbeds::default();
    if let Some(missing) = testbeds.missing(configuration) {
        skip(test, &missing);
        return None;
    }
    let mut prepared = testbeds.prepare(configuration).expect("the SUT starts");
    let (warm_up, window) = (Duration::from_millis(100), Duration::from_millis(300));
    let rate = configuration.workload.rate;
    // A peer that had no CPU for a moment is refused its rate, and measured again.
    let mut measured = || prepared.run(&Trial { rate, warm_up, window, seed: 7 });
    let sample = measured().or_else(|_| measured()).or_else(|_| measured());
    Some(sample.unwrap_or_else(|wrong| panic!("{configuration:?}: {wrong}")))
}

fn says_what_it_is(sample: &Sample) {
    let shown = sample.notes.iter().any(|n| n.contains("DPDK 2") && n.contains("--vdev="));
    assert!(shown, "no version or no command line: {:?}", sample.notes);
}

#[test]
fn dpdk_programs_forward_on_the_wires_and_their_ledgers_add_up() {
    let test = "dpdk_programs_forward_on_the_wires_and_their_ledgers_add_up";
    for (sut, family) in DPDK.into_iter().flat_map(|s| FAMILIES.map(|f| (s, f))) {
        let paced = configuration(sut, Topology::Netns, family, Rate::Pps(10_000));
        let Some(sample) = run(test, &paced) else { continue };
        assert!(sample.ledger.delivered > 0, "{sample:#?}");
        assert_eq!(sample.ledger.unaccounted(), 0, "{sample:#?}");
        assert_eq!((sample.duplicated, sample.reordered), (0, 0), "{sample:#?}");
        says_what_it_is(&sample);
    }
}

#[test]
fn dpdk_seals_by_a_policy_in_memory() {
    let text = "title = \"t\"\nquestion = \"q\"\nruns = 1\nwarm_up = \"20ms\"\nwindow = \"100ms\"\n[defaults]\nflows = 100\nroutes = 10\n\
        [[configuration]]\nname = \"{sut}-{backend}\"\nsut = [\"dpdk-ipsec-secgw\", \"weir\"]\n\
        ipsec = { mode = \"policy\", direction = \"out\", cipher = \"aes-gcm-128\", backend = [\"auto\", \"aes-ni\"] }\n";
    let experiment = Experiment::parse("x", "x.toml", text, &Changes::default()).expect("valid");
    for configuration in experiment.suts() {
        let Some(sample) = run("dpdk_seals_by_a_policy_in_memory", configuration) else { continue };
        assert!(sample.ledger.delivered > 0, "{}: {sample:#?}", configuration.name);
        assert_eq!(sample.ledger.unaccounted(), 0, "{}: {sample:#?}", configuration.name);
        let narrow = sample.notes.iter().any(|note| note.contains("held to AVX2"));
        assert_eq!(narrow, configuration.name == "dpdk-ipsec-secgw-aes-ni", "{:?}", sample.notes);
    }
}

#[test]
fn dpdk_programs_have_values_of_their_own_in_memory() {
    let test = "dpdk_programs_have_values_of_their_own_in_memory";
    for (sut, family) in DPDK.into_iter().flat_map(|s| FAMILIES.map(|f| (s, f))) {
        let alone = configuration(sut, Topology::Memory, family, Rate::FlatOut);
        let Some(sample) = run(test, &alone) else { continue };
        assert!(sample.ledger.delivered > 0 && sample.metrics["ns_per_packet"] > 0.0, "{sample:#?}");
        assert_eq!(sample.ledger.unaccounted(), 0, "{sample:#?}");
        says_what_it_is(&sample);
    }
}

#[test]
fn vpp_forwards_on_the_wires_and_its_ledger_adds_up() {
    let test = "vpp_forwards_on_the_wires_and_its_ledger_adds_up";
    for family in FAMILIES {
        let paced = configuration(Sut::Vpp, Topology::Netns, family, Rate::Pps(5_000));
        let Some(sample) = run(test, &paced) else { return };
        assert!(sample.ledger.delivered > 0, "{sample:#?}");
        assert_eq!(sample.ledger.unaccounted(), 0, "{sample:#?}");
        assert_eq!((sample.duplicated, sample.reordered), (0, 0), "{sample:#?}");
    }
}

#[test]
fn tcp_passes_two_gateways_of_vpp_by_policies_and_by_routes() {
    let test = "tcp_passes_two_gateways_of_vpp_by_policies_and_by_routes";
    for (mode, cipher) in
        [("policy", "aes-gcm-128"), ("route", "aes-gcm-128"), ("route", "aes-cbc-256+hmac-sha2-256-128")]
    {
        let ipsec = format!("ipsec = {{ mode = \"{mode}\", direction = \"out\", cipher = \"{cipher}\" }}");
        let text = format!(
            "title = \"T\"\nquestion = \"Does it pass?\"\nmetric = \"mbps\"\nruns = 1\nwarm_up = \"20ms\"\n\
             window = \"100ms\"\n[[configuration]]\nname = \"c\"\nsut = \"vpp\"\ntopology = \"gateways\"\n\
             flows = 2\n{ipsec}\n"
        );
        let experiment = Experiment::parse("x", "x.toml", &text, &Changes::default()).expect("valid");
        let configuration = experiment.suts().next().expect("there is one");
        let Some(sample) = run(test, configuration) else { return };
        // A connection opens where only short packets pass, and then stands.
        assert!(sample.metrics["mbps"] > 1.0, "{ipsec}: {sample:#?}");
    }
}

/// A configuration of VPP in memory, with a table `ipsec` of these words.
fn vpp_in_memory(sut: &str, family: &str, ipsec: &str) -> Configuration {
    let text = format!(
        "title = \"T\"\nquestion = \"Does it pass?\"\nruns = 1\nwarm_up = \"20ms\"\nwindow = \"100ms\"\n\
         [[configuration]]\nname = \"c\"\nsut = \"{sut}\"\nfamily = \"{family}\"\nframe = 200\nflows = 300\n\
         routes = 50\n{ipsec}\n"
    );
    let experiment = Experiment::parse("x", "x.toml", &text, &Changes::default()).expect("valid");
    experiment.suts().next().expect("there is one").clone()
}

#[test]
fn vpp_in_memory_forwards_seals_and_opens_what_ours_knows_again() {
    let test = "vpp_in_memory_forwards_seals_and_opens_what_ours_knows_again";
    let protect = |mode: &str, direction: &str, cipher: &str, family: &str, more: &str| {
        format!(
            "ipsec = {{ mode = \"{mode}\", direction = \"{direction}\", cipher = \"{cipher}\", outer = \"{family}\", \
             replay_window = 0{more} }}"
        )
    };
    for family in ["inet", "inet6"] {
        let mut all = vec![("vpp", String::new()), ("vpp-ends", String::new())];
        for direction in ["out", "in"] {
            // Without cipher and check VPP opens, and seals nothing.
            let unchecked = if direction == "in" { "null" } else { "null+hmac-sha1-96" };
            for cipher in [unchecked, "aes-gcm-128", "chacha20-poly1305", "aes-cbc-256+hmac-sha2-256-128"] {
                all.push(("vpp", protect("route", direction, cipher, family, "")));
            }
            all.push(("vpp", protect("route", direction, "aes-gcm-256", family, ", esn = true")));
            all.push((
                "vpp",
                protect("policy", direction, "aes-gcm-128", family, ", lookup = \"linear\", match = 10"),
            ));
            if family == "inet" {
                for cached in [
                    ", lookup = \"cache\", buckets = 4096, match = 10",
                    ", lookup = \"cache\", buckets = 16, match = 10, churn = 50",
                ] {
                    all.push(("vpp", protect("policy", direction, unchecked, family, cached)));
                }
            }
        }
        all.push((
            "vpp",
            protect("policy", "out", "aes-gcm-128", family, ", lookup = \"classifier\", match = 10"),
        ));
        for (sut, ipsec) in all {
            let Some(sample) = run(test, &vpp_in_memory(sut, family, &ipsec)) else { return };
            assert!(sample.ledger.delivered > 0 && sample.ledger.unaccounted() == 0, "{ipsec}: {sample:#?}");
            assert!(sample.metrics["pps_without_ends"] > sample.pps, "{ipsec}: {sample:#?}");
            assert!(
                sample.metrics["pg_input_clocks"] > 0.0 && sample.metrics["pg1_tx_clocks"] > 0.0,
                "{sample:#?}"
            );
            if !ipsec.is_empty() {
                assert_eq!(sample.metrics["verified_packets"], 256.0, "{ipsec}");
            }
            // out and back, at the least
            let changes = sample.metrics.get("updates").copied();
            assert!(
                changes.is_none_or(|n| n >= 2.0) && changes.is_some() == ipsec.contains("churn"),
                "{ipsec}"
            );
        }
    }
}

/// A program of the PATH before all others, and nothing where peers are kept.
struct StandIn {
    folder: Folder,
    path: String,
}

impl StandIn {
    fn new(test: &str, name: &str, script: &str) -> StandIn {
        let folder = Folder::new(test);
        let file = folder.write(&format!("bin/{name}"), script);
        fs::set_permissions(file, fs::Permissions::from_mode(0o755)).expect("ours");
        let path = format!("{}:{}", folder.at("bin"), std::env::var("PATH").unwrap_or_default());
        StandIn { folder, path }
    }

    /// Runs an experiment; what was said and what came of it.
    fn run(&self, experiment: &str) -> (Output, Option<Results>) {
        let file = self.folder.write("x.toml", experiment);
        let out = self.folder.at("out");
        let mut command = lab();
        command.args(["run", &file, "--seed", "1", "--out", &out]);
        command.env("PATH", &self.path).env("XDG_CACHE_HOME", self.folder.at("cache"));
        let output = command.output().expect("the program starts");
        let result = fs::read_to_string(self.folder.0.join("out/result.json")).ok();
        (output, result.map(|text| serde_json::from_str(&text).expect("a result")))
    }
}

/// The results of a campaign in which `broken` misbehaved and the others did not.
fn misbehaved(test: &str, stand_in: &StandIn, experiment: &str, broken: &str, how: &str) {
    let (output, results) = stand_in.run(experiment);
    let said = text(&output.stderr);
    let Some(results) = results else {
        assert!(said.contains("run as root"), "{said}");
        return skip(test, "needs root");
    };
    assert!(results.runs_failed > 0, "{said}");
    let outcome = results.outcome(broken).expect("it was tried");
    assert!(outcome.failures.iter().all(|e| e.contains(how)), "{:?}", outcome.failures);
    let others = results.configurations.iter().filter(|o| o.configuration.name != broken);
    assert!(others.clone().count() > 0, "{said}");
    for other in others {
        assert!(other.failures.is_empty() && other.summary.is_some(), "{other:?}");
    }
    let report = stand_in.folder.read("out/report.md");
    assert!(report.contains("the SUT misbehaved") && report.contains(how), "{report}");
}

#[test]
fn a_forwarder_that_dies_is_a_finding_and_the_campaign_goes_on() {
    let test = "a_forwarder_that_dies_is_a_finding_and_the_campaign_goes_on";
    let Some(real) = peer::find("dpdk-testpmd") else { return skip(test, "dpdk-testpmd: not installed") };
    // passes everything on to the real one, and ends both a moment after it began to forward
    let script = format!(
        "#!/bin/sh\nexec 3<&0\n{} \"$@\" <&3 &\npid=$!\ntrap 'kill -9 $pid' EXIT\ntrap 'exit 7' TERM\n\
         log=$(readlink /proc/$$/fd/1)\nuntil grep -q 'testpmd> ' \"$log\"; do sleep 0.05; done\n\
         sleep 0.3\necho 'out of faults to inject'\nexit 7\n",
        real.display()
    );
    let stand_in = StandIn::new(test, "dpdk-testpmd", &script);
    let experiment = "title = \"T\"\nquestion = \"Does the campaign go on?\"\nruns = 1\nwarm_up = \"10ms\"\n\
        window = \"3s\"\n[[configuration]]\nname = \"{sut}\"\ntopology = \"netns\"\n\
        sut = [\"dpdk-testpmd\", \"kernel\"]\nflows = 10\nroutes = 2\nrate = 1000\n";
    misbehaved(test, &stand_in, experiment, "dpdk-testpmd", "ended while it was measured");
}

/// A program between clients and the real derper that sends each client seven bytes too much once it has had 300 KB.
const BREAKS_STREAMS: &str = r#"#!/usr/bin/env python3
import os, signal, socket, subprocess, sys, threading
words = sys.argv[1:]
if "-a" not in words:
    os.execv(os.environ["REAL_DERPER"], ["derper"] + words)
words[words.index("-a") + 1] = "127.0.0.1:3399"
real = subprocess.Popen([os.environ["REAL_DERPER"]] + words)
def end(*_):
    real.kill()
    os._exit(0)
signal.signal(signal.SIGTERM, end)
def pump(source, sink, faulty):
    passed = 0
    while True:
        try:
            data = source.recv(65536)
            if not data:
                break
            passed += len(data)
            if faulty and passed > 300000:
                data, faulty = data + b"\xff" * 7, False
            sink.sendall(data)
        except OSError:
            break
    for s in (source, sink):
        try:
            s.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass
def serve(client):
    while True:
        try:
            relay = socket.create_connection(("127.0.0.1", 3399))
            break
        except OSError:
            if real.poll() is not None:
                os._exit(1)
    threading.Thread(target=pump, args=(client, relay, False), daemon=True).start()
    pump(relay, client, True)
listener = socket.socket()
listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
listener.bind(("127.0.0.1", 3340))
listener.listen(100)
while True:
    client, _ = listener.accept()
    threading.Thread(target=serve, args=(client,), daemon=True).start()
"#;

#[test]
fn a_relay_that_breaks_a_stream_is_a_finding_and_the_campaign_goes_on() {
    let test = "a_relay_that_breaks_a_stream_is_a_finding_and_the_campaign_goes_on";
    let Some(real) = peer::find("derper") else {
        return skip(test, "derper: not installed: `scripts/peers derper`");
    };
    let script = BREAKS_STREAMS.replace("os.environ[\"REAL_DERPER\"]", &format!("{real:?}"));
    let stand_in = StandIn::new(test, "derper", &script);
    let experiment = "title = \"T\"\nquestion = \"Does the campaign go on?\"\nmetric = \"mbps\"\nruns = 1\n\
        warm_up = \"10ms\"\nwindow = \"1s\"\nbaseline = true\n[[configuration]]\nname = \"derper\"\n\
        topology = \"relay\"\nsut = \"derper\"\nflows = 1\nframe = 1400\n";
    misbehaved(test, &stand_in, experiment, "derper", "broke a stream");
}

#[test]
fn a_peer_that_is_not_there_is_skipped_by_name() {
    let test = "a_peer_that_is_not_there_is_skipped_by_name";
    let stand_in = StandIn::new(test, "nothing", "#!/bin/sh\n");
    let alone = StandIn { path: format!("{}:/usr/sbin:/sbin:/bin", stand_in.folder.at("bin")), ..stand_in };
    if ["vpp", "hyper-derp"].iter().any(|name| on(&alone.path, name)) {
        return skip(test, "vpp or hyper-derp is installed with the system's own programs");
    }
    let experiment = "title = \"T\"\nquestion = \"Is it named?\"\nruns = 1\nwarm_up = \"1ms\"\nwindow = \"10ms\"\n\
        [[configuration]]\nname = \"vpp\"\ntopology = \"netns\"\nsut = \"vpp\"\n[[configuration]]\n\
        name = \"hyper-derp\"\ntopology = \"relay\"\nsut = \"hyper-derp\"\nframe = 1400\nflows = 1\n\
        [[configuration]]\nname = \"weir\"\nflows = 10\nroutes = 2\n";
    let (output, results) = alone.run(experiment);
    let said = text(&output.stderr);
    if said.contains("run as root") {
        return skip(test, "needs root");
    }
    for name in ["vpp", "hyper-derp"] {
        assert!(said.contains(&format!("skipped {name}: {name}: no such program")), "{said}");
    }
    assert_eq!(results.map(|r| (r.runs_failed, r.skipped.len())), Some((0, 2)), "{said}");
}

fn on(path: &str, name: &str) -> bool {
    path.split(':').any(|folder| PathBuf::from(folder).join(name).is_file())
}

#[test]
fn a_peer_ends_with_what_holds_it() {
    let test = "a_peer_ends_with_what_holds_it";
    let alone = configuration(Sut::DpdkTestpmd, Topology::Memory, Family::Inet, Rate::FlatOut);
    let _alone = one_at_a_time();
    let mut testbeds = Testbeds::default();
    if let Some(missing) = testbeds.missing(&alone) {
        return skip(test, &missing);
    }
    let mark = format!("weir-lab-{}-", std::process::id());
    let running = |line: &str| line.contains("dpdk-testpmd") && line.contains(&mark);
    let prepared = testbeds.prepare(&alone).expect("it starts");
    let process = commands().into_iter().find(|(_, line)| running(line));
    let (id, _) = process.expect("its capture file is in its command line");
    drop(prepared);
    assert!(!commands().iter().any(|(other, _)| *other == id), "it runs on");
}

/// Number and command line of every process.
fn commands() -> Vec<(u32, String)> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let ids = entries.filter_map(|e| e.file_name().to_str()?.parse::<u32>().ok());
    ids.filter_map(|id| {
        let line = fs::read(format!("/proc/{id}/cmdline")).ok()?;
        (!line.is_empty()).then(|| (id, String::from_utf8_lossy(&line).into_owned()))
    })
    .collect()
}

/// A VPP and its command line, before all others of the PATH.
fn vpp(test: &str, told: &str) -> StandIn {
    // as far as it goes: it says a version, listens, and ends when it is told to
    let daemon = "#!/bin/sh\n[ \"$1\" = --version ] && { echo 'vpp of nobody'; exit 0; }\n\
        folder=$(dirname \"$2\")\ntrap 'exit 0' TERM\ntouch \"$folder/cli.sock\"\n\
        until [ -e \"$folder/end\" ]; do sleep 0.05; done\necho 'out of faults to inject'\nexit 7\n";
    let stand_in = StandIn::new(test, "vpp", daemon);
    let script = format!("#!/bin/sh\nfolder=$(dirname \"$2\")\ncase \"$3\" in\nexec) {told} ;;\nesac\n");
    let file = stand_in.folder.write("bin/vppctl", script);
    fs::set_permissions(file, fs::Permissions::from_mode(0o755)).expect("ours");
    stand_in
}

const BESIDE_THE_KERNEL: &str = "title = \"T\"\nquestion = \"Does the campaign go on?\"\nruns = 1\nwarm_up = \"10ms\"\n\
    window = \"200ms\"\n[defaults]\ntopology = \"netns\"\nflows = 10\nroutes = 2\nrate = 1000\n[[configuration]]\n\
    name = \"kernel\"\nsut = \"kernel\"\n[[configuration]]\nname = \"vpp\"\nsut = \"vpp\"\n";

#[test]
fn an_spd_that_vpp_refuses_is_a_finding_and_the_campaign_goes_on() {
    let test = "an_spd_that_vpp_refuses_is_a_finding_and_the_campaign_goes_on";
    let stand_in = vpp(
        test,
        "grep -q 'ipsec policy add spd 1 priority 1 outbound' \"$4\" && echo 'ipsec policy: failed: -96'",
    );
    let experiment = format!(
        "{BESIDE_THE_KERNEL}ipsec = {{ mode = \"policy\", direction = \"out\", cipher = \"null\", \
         action = \"bypass\", lookup = \"cache\", match = 10 }}\n"
    );
    misbehaved(
        test,
        &stand_in,
        &experiment,
        "vpp",
        "vpp: refuses its configuration: ipsec policy: failed: -96",
    );
}

#[test]
fn a_forwarder_that_lets_nothing_through_is_a_finding_and_has_no_value() {
    let test = "a_forwarder_that_lets_nothing_through_is_a_finding_and_has_no_value";
    let stand_in = vpp(test, "true");
    misbehaved(test, &stand_in, BESIDE_THE_KERNEL, "vpp", "packets came through");
}

#[test]
fn a_vpp_that_dies_of_its_configuration_is_a_finding_and_the_campaign_goes_on() {
    let test = "a_vpp_that_dies_of_its_configuration_is_a_finding_and_the_campaign_goes_on";
    let stand_in = vpp(test, "touch \"$folder/end\"; sleep 1; exit 1");
    misbehaved(test, &stand_in, BESIDE_THE_KERNEL, "vpp", "vpp: ended while it was measured");
}

#[test]
fn tunnels_that_two_vpps_refuse_are_a_finding_and_the_campaign_goes_on() {
    let test = "tunnels_that_two_vpps_refuse_are_a_finding_and_the_campaign_goes_on";
    let stand_in = vpp(test, "grep -q 'ipsec tunnel protect ipip0' \"$4\" && echo \"unknown input 'ipip0'\"");
    let experiment = format!(
        "{}[[configuration]]\nname = \"vpp\"\ntopology = \"gateways\"\nsut = \"vpp\"\nrate = \"flat-out\"\n\
         flows = 1\nipsec = {{ mode = \"route\", direction = \"out\", cipher = \"chacha20-poly1305\" }}\n",
        BESIDE_THE_KERNEL.replace("[[configuration]]\nname = \"vpp\"\nsut = \"vpp\"\n", "")
    );
    misbehaved(test, &stand_in, &experiment, "vpp", "vpp: refuses its configuration: unknown input 'ipip0'");
}

#[test]
fn labs_of_vpp_leave_out_by_name_what_is_not_there() {
    let test = "labs_of_vpp_leave_out_by_name_what_is_not_there";
    let stand_in = StandIn::new(test, "nothing", "#!/bin/sh\n");
    let alone = StandIn { path: format!("{}:/usr/sbin:/sbin:/bin", stand_in.folder.at("bin")), ..stand_in };
    if on(&alone.path, "vpp") {
        return skip(test, "vpp is installed with the system's own programs");
    }
    let labs = [
        ("ipsec-vpp", "vpp-*", "vpp-aes-gcm-128-route"),
        ("spd-vpp", "*", "out-cache-1000"),
        ("vpp-spd", "vpp-*", "vpp-in-inet-cache-1000"),
    ];
    for (lab, pattern, named) in labs {
        let file = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(format!("../../labs/{lab}.toml"));
        let mut command = lab_command(&alone);
        command.args(["run", &file.to_string_lossy(), "--quick", "--only", pattern, "--out"]);
        let output = command.arg(alone.folder.at(lab)).output().expect("the program starts");
        let said = text(&output.stderr);
        if said.contains("run as root") {
            return skip(test, "needs root");
        }
        assert!(said.contains(&format!("skipped {named}: vpp: no such program")), "{lab}: {said}");
    }
}

fn lab_command(stand_in: &StandIn) -> std::process::Command {
    let mut command = lab();
    command.env("PATH", &stand_in.path).env("XDG_CACHE_HOME", stand_in.folder.at("cache"));
    command
}
