//! The table `relay` means what it says, and what means nothing together is refused.

use crate::experiment::{Changes, Experiment};
use crate::model::relay::{Load, Tls, UNDER_WAY};
use crate::model::{LabError, Topology};

const HEAD: &str = "title = \"t\"\nquestion = \"q?\"\nruns = 5\nwarm_up = \"100ms\"\nwindow = \"1s\"\n";

fn parse(body: &str) -> Result<Experiment, LabError> {
    Experiment::parse("x", "labs/x.toml", &format!("{HEAD}{body}"), &Changes::default())
}

fn refusal(body: &str) -> String {
    parse(body).expect_err("refused").said
}

#[test]
fn a_relay_is_plain_a_closed_loop_and_one_worker_unless_it_is_told() {
    let e = parse("[defaults]\ntopology = \"relay\"\n[[configuration]]\nsut = \"derper\"\n").expect("valid");
    let relay = e.configurations[0].configuration.relay().expect("it is one");
    assert_eq!((relay.tls, relay.load, relay.workers), (Tls::Off, Load::ClosedLoop, 1));
    assert_eq!(relay.under_way, UNDER_WAY);
}

#[test]
fn a_baseline_stands_for_every_relay_of_its_load_and_none_for_silent_clients() {
    let e = parse(
        "baseline = true\n[defaults]\ntopology = \"relay\"\n[[configuration]]\nname = \"{sut}-{tls}-{workers}\"\n\
         sut = [\"derper\", \"weir\"]\nrelay = { tls = [\"off\", \"user\", \"kernel\"], workers = [1, 2] }\n\
         [[configuration]]\nname = \"idle\"\nrelay = { load = \"idle\" }\n",
    )
    .expect("valid");
    let baselines: Vec<&str> = e
        .configurations
        .iter()
        .filter(|p| p.configuration.is_baseline())
        .map(|p| p.configuration.name.as_str())
        .collect();
    assert_eq!(baselines, ["baseline-plain", "baseline-tls"]);
    let named = |name: &str| {
        &e.configurations.iter().find(|p| p.configuration.name == name).expect(name).configuration
    };
    for (name, baseline) in
        [("weir-kernel-2", Some("baseline-tls")), ("derper-off-1", Some("baseline-plain")), ("idle", None)]
    {
        assert_eq!(e.baseline_of(named(name)).map(|c| c.name.as_str()), baseline, "{name}");
    }
}

#[test]
fn stalled_receivers_are_an_axis() {
    let e = parse(
        "compare = \"stalled\"\n[defaults]\ntopology = \"relay\"\n[[configuration]]\nname = \"{stalled}\"\n\
         relay = { stalled = [0, 2] }\n",
    )
    .expect("valid");
    let of = |n: usize| e.configurations[n].configuration.relay().expect("it is one").stalled;
    assert_eq!((of(0), of(1)), (0, 2));
    assert_eq!(e.pairs, [("0".to_string(), "2".to_string())]);
}

#[test]
fn packets_under_way_are_an_axis_and_another_load() {
    let e = parse(
        "baseline = true\ncompare = \"under_way\"\n[defaults]\ntopology = \"relay\"\n[[configuration]]\n\
         name = \"{under_way}\"\nrelay = { under_way = [1, 32] }\n",
    )
    .expect("valid");
    let of = |n: usize| e.configurations[n].configuration.relay().expect("it is one").under_way;
    assert_eq!((of(0), of(1)), (1, 32));
    let baseline =
        |n: usize| e.baseline_of(&e.configurations[n].configuration).expect("it has one").name.clone();
    assert_eq!((baseline(0), baseline(1)), ("baseline-1-under-way".into(), "baseline-32-under-way".into()));
}

/// The hosts of a relay.
const TWO: &str = "[hosts.generator]\nssh = \"root@a\"\ninterface = \"eth1\"\n[hosts.device_under_test]\nssh = \"root@b\"\n\
    input = \"eth1\"\n";

#[test]
fn relays_on_hosts_need_no_receiver_and_what_forwards_does() {
    let e = parse(&format!(
        "{TWO}[[configuration]]\nname = \"{{topology}}\"\ntopology = [\"relay\", \"ssh\"]\nrelay = {{ tls = \"user\" }}\n"
    ))
    .expect("valid");
    let [here, there] = [0, 1].map(|n| &e.configurations[n].configuration);
    assert_eq!((here.topology(), there.topology()), (Topology::Relay, Topology::Ssh));
    assert!(here.relay() == there.relay() && there.relay().is_some_and(|r| r.tls == Tls::User), "{e:?}");
    let written = serde_json::to_string(&e).expect("plain data");
    assert_eq!(serde_json::from_str::<Experiment>(&written).expect("our own"), e);
    let refused = refusal(&format!("{TWO}[[configuration]]\ntopology = \"ssh\"\nsut = \"kernel\"\n"));
    assert!(refused.contains("forwarding needs [hosts.receiver]"), "{refused}");
    assert!(refused.contains("name it, or give the configuration relay = {}"), "{refused}");
}

#[test]
fn what_a_relay_on_hosts_cannot_be_asked_is_refused() {
    for (keys, said) in [
        (
            "relay = { load = \"simulated-caches\" }\n",
            "no simulator is brought to a host: use topology = \"relay\"",
        ),
        ("relay = {}\nqueues = 2\n", "a relay's packets are TCP of its host's kernel: remove them"),
        (
            "sut = \"derper\"\n",
            "SUT \"derper\" is a relay: use topology = \"relay\", or \"ssh\" with relay = {}",
        ),
        ("relay = { load = \"idle\" }\nrate = 5\n", "sends no packets"),
        ("relay = {}\nflows = 13000\n", "expected 12500 at most"),
    ] {
        let refused = refusal(&format!("{TWO}[[configuration]]\ntopology = \"ssh\"\n{keys}"));
        assert!(refused.contains(said), "{keys}\n  got      {refused}\n  expected {said}");
    }
}

#[test]
fn what_means_nothing_together_is_refused() {
    for (body, said) in [
        ("[[configuration]]\nrelay = { tls = \"off\" }\n", "use topology = \"relay\""),
        ("[[configuration]]\nsut = \"derper\"\n", "SUT \"derper\" is a relay"),
        ("[[configuration]]\ntopology = \"relay\"\nflows = 13000\n", "expected 12500 at most"),
        (
            "[[configuration]]\ntopology = \"relay\"\nrate = 10\nrelay = { load = \"idle\" }\n",
            "remove `rate`",
        ),
        (
            "[[configuration]]\ntopology = \"relay\"\nrelay = { load = \"connects\", stalled = 2 }\n",
            "stalled receivers need senders",
        ),
        (
            "[[configuration]]\ntopology = \"relay\"\nflows = 12499\nrelay = { stalled = 2 }\n",
            "12499 flows and 2 stalled ones, expected 12500 at most",
        ),
        (
            "method = \"sweep\"\n[[configuration]]\ntopology = \"relay\"\nrelay = { stalled = 2 }\n",
            "has stalled receivers",
        ),
        ("[[configuration]]\ntopology = \"relay\"\nrelay = { workers = 0 }\n", "workers from 1 to 64"),
        ("[[configuration]]\ntopology = \"relay\"\nrelay = { under_way = 33 }\n", "packets from 1 to 32"),
        ("[[configuration]]\ntopology = \"relay\"\nrelay = { speed = 1 }\n", "unknown field `speed`"),
    ] {
        let refused = refusal(body);
        assert!(refused.contains(said), "{refused}");
    }
}
