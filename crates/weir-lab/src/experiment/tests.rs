//! Files expand as described, and mistakes are refused with their place.

use super::*;
use crate::method::Bounds;
use crate::model::FrameSize;
use weir_stats::search::sweep::Step;

const HEAD: &str = "title = \"t\"\nquestion = \"q?\"\nruns = 5\nwarm_up = \"100ms\"\nwindow = \"1s\"\n";

fn parse(body: &str) -> Result<Experiment, LabError> {
    Experiment::parse("x", "labs/x.toml", &format!("{HEAD}{body}"), &Changes::default())
}

fn refusal(body: &str) -> String {
    parse(body).expect_err("refused").said
}

fn names(e: &Experiment) -> Vec<&str> {
    e.configurations.iter().map(|p| p.configuration.name.as_str()).collect()
}

#[test]
fn lists_expand_to_named_configurations_and_pairs_along_the_compared_axis() {
    let e = parse(
        "compare = \"family\"\n[[configuration]]\nfamily = [\"inet\", \"inet6\"]\nframe = [64, \"imix\"]\nroutes = 7\n",
    )
    .expect("valid");
    assert_eq!(names(&e), ["inet-64", "inet-imix", "inet6-64", "inet6-imix"]);
    let pair = |a: &str, b: &str| (a.to_string(), b.to_string());
    assert_eq!(e.pairs, [pair("inet-64", "inet6-64"), pair("inet-imix", "inet6-imix")]);
    assert_eq!(e.axis, Some(Axis::Frame));
    assert_eq!(e.configurations[1].configuration.workload.frame, FrameSize::Imix);
    assert_eq!(e.configurations[0].configuration.routes, 7);
}

#[test]
fn the_first_configuration_is_the_reference_when_nothing_else_is_said() {
    let e = parse("[[configuration]]\nname = \"a\"\n[[configuration]]\nname = \"b\"\nflows = 5000\n")
        .expect("valid");
    assert_eq!(e.pairs, [("a".to_string(), "b".to_string())]);
}

#[test]
fn every_distinct_load_gets_one_baseline() {
    let e =
        parse("baseline = true\n[[configuration]]\nroutes = [2, 1000]\nframe = [64, 1518]\n").expect("valid");
    assert_eq!(names(&e)[4..], ["baseline-64", "baseline-1518"]);
    let c = &e.configurations[0].configuration;
    assert_eq!(e.baseline_of(c).expect("has one").name, "baseline-64");
    assert_eq!(e.suts().count(), 4);
}

#[test]
fn programs_that_make_their_own_packets_have_no_baseline_of_the_labs() {
    let text = "baseline = true\n[[configuration]]\nname = \"{sut}\"\nsut = [\"dpdk-l3fwd\", \"weir\"]\n";
    let e = parse(text).expect("valid");
    let of = |name: &str| {
        let found = e.configurations.iter().find(|c| c.configuration.name == name).expect("it is there");
        e.baseline_of(&found.configuration).map(|c| c.name.as_str())
    };
    assert_eq!((of("weir"), of("dpdk-l3fwd")), (Some("baseline"), None));
}

#[test]
fn quick_values_replace_lists_and_lengths() {
    let text = format!(
        "{HEAD}[[configuration]]\nframe = [64, 512, 1518]\nflows = 2000\n[quick]\nruns = 2\nwindow = \"30ms\"\nframe = [64]\nflows = 10\n"
    );
    let changes = Changes { quick: true, ..Changes::default() };
    let e = Experiment::parse("x", "x.toml", &text, &changes).expect("valid");
    assert_eq!((e.runs, e.window_ms, names(&e)), (2, 30, vec!["64"]));
    assert_eq!(e.configurations[0].configuration.workload.flows, 10);
}

#[test]
fn only_keeps_what_it_names_and_its_baseline() {
    let text = format!("{HEAD}baseline = true\n[[configuration]]\nframe = [64, 512, 1518]\n");
    let only = |pattern: &str| {
        let changes = Changes { only: vec![pattern.into()], ..Changes::default() };
        Experiment::parse("x", "x.toml", &text, &changes)
    };
    assert_eq!(names(&only("51*").expect("there")), ["512", "baseline-512"]);
    let lost = only("9000").expect_err("not there").said;
    assert!(lost.contains("9000") && lost.contains("64, 512, 1518"), "{lost}");
}

#[test]
fn offloads_have_a_baseline_of_their_own_and_are_of_wires_the_kernel_keeps() {
    let body = "baseline = true\n[defaults]\ntopology = \"gateways\"\n[[configuration]]\nport = \"tun\"\noffload = [\"off\", \"inner\"]\n";
    let e = parse(body).expect("valid");
    assert_eq!(names(&e), ["off", "inner", "baseline", "baseline-offload"]);
    let frames = refusal(&body.replace("\"tun\"", "\"af_xdp\""));
    assert!(frames.contains("port = \"tun\""), "{frames}");
    let elsewhere = refusal(&body.replace("\"gateways\"", "\"netns\""));
    assert!(elsewhere.contains("`offload` is of gateways"), "{elsewhere}");
}

#[test]
fn a_control_repeats_every_reference_once_and_keeps_out_of_the_pairs() {
    let body = "control = true\nbaseline = true\ncompare = \"family\"\n[[configuration]]\nfamily = [\"inet\", \"inet6\"]\nroutes = [2, 9]\n";
    let e = parse(body).expect("valid");
    assert_eq!(names(&e)[4..], ["inet-2~again", "inet-9~again", "baseline-inet", "baseline-inet6"]);
    assert_eq!((e.pairs.len(), e.controls.len()), (2, 2));
    assert_eq!(e.controls[0], ("inet-2".to_string(), "inet-2~again".to_string()));
    let alone = parse("control = true\n[[configuration]]\nname = \"a\"\n").expect("valid");
    assert_eq!((names(&alone), alone.pairs.len()), (vec!["a", "a~again"], 0));
    let taken =
        refusal("control = true\n[[configuration]]\nname = \"a\"\n[[configuration]]\nname = \"a~again\"\n");
    assert!(taken.contains("a configuration is named \"a~again\""), "{taken}");
}

#[test]
fn the_analysis_is_welchs_unless_declared() {
    assert_eq!(parse("[[configuration]]\n").expect("valid").analysis, Analysis::Welch);
    let declared = parse("analysis = \"paired\"\n[[configuration]]\n").expect("valid");
    assert_eq!(declared.analysis, Analysis::Paired);
    let got = refusal("analysis = \"best\"\n[[configuration]]\n");
    assert!(
        got.contains("labs/x.toml:6:12: unknown variant `best`, expected one of `welch`, `paired`, `rounds`"),
        "{got}"
    );
}

#[test]
fn a_malformed_value_is_refused_with_line_column_expectation() {
    let cases = [
        (
            "[[configuration]]\nframe = 63\n",
            "labs/x.toml:7:9: got 63, expected a frame size with FCS from 64 to 1518",
        ),
        ("[[configuration]]\nframe = [64, \"big\"]\n", "labs/x.toml:7:9: got \"big\", expected a frame size"),
        (
            "[[configuration]]\nflows = 0\n",
            "labs/x.toml:7:9: got 0, expected a number of flows from 1 to 4194304",
        ),
        ("[[configuration]]\nfamily = []\n", "the list is empty"),
        (
            "[[configuration]]\nfamily = \"ipx\"\n",
            "labs/x.toml:7:10: unknown variant `ipx`, expected `inet` or `inet6`",
        ),
        ("[[configuration]]\ncpus = \"all\"\n", "labs/x.toml:7:8: got \"all\", expected default, first-core"),
        (
            "[[configuration]]\nspeed = 1\n",
            "labs/x.toml:7:1: unknown field `speed`, expected one of `name`, `sut`",
        ),
        ("metric = \"gbps\"\n[[configuration]]\n", "labs/x.toml:6:10: got \"gbps\", expected one of pps"),
        ("margin_percent = 0\n[[configuration]]\n", "labs/x.toml:6:18: got 0, expected a percentage above 0"),
        (
            "reference = \"z\"\n[[configuration]]\n",
            "labs/x.toml:6:13: no configuration is named \"z\"; there are weir",
        ),
        (
            "compare = \"port\"\n[[configuration]]\n",
            "labs/x.toml:6:11: compare = \"port\": no two configurations differ",
        ),
        ("[[configuration]]\n[[configuration]]\n", "labs/x.toml:7:1: configuration: two are named \"weir\""),
        ("[[configuration]]\nname = \"a\"\nframe = [64, 65]\n", "put {frame} into `name`"),
        ("[[configuration]]\nname = \"a/b\"\n", "cannot be a file name"),
        ("reference = \"weir\"\ncompare = \"family\"\n[[configuration]]\n", "exclude each other"),
        (
            "pairs = [[\"weir\"]]\n[[configuration]]\n",
            "labs/x.toml:6:10: expected a reference and one or more others",
        ),
        ("[[configuration\n", "labs/x.toml:6:"),
        ("", "missing field `configuration`"),
    ];
    for (body, expected) in cases {
        let got = refusal(body);
        assert!(got.contains(expected), "{body}\n  got      {got}\n  expected {expected}");
    }
    let got = Experiment::parse("x", "x.toml", "title = \"t\"\nruns = \"many\"\n", &Changes::default());
    assert!(
        got.expect_err("refused").said.contains("x.toml:2:8: got \"many\", expected a number of runs from 1")
    );
}

#[test]
fn a_list_of_pairs_compares_all_others_with_its_first() {
    let file =
        "pairs = [[\"64\", \"65\", \"66\"], [\"66\", \"65\"]]\n[[configuration]]\nframe = [64, 65, 66]\n";
    let experiment = parse(file).expect("valid");
    let pairs: Vec<String> = experiment.pairs.iter().map(|(a, b)| format!("{a} {b}")).collect();
    assert_eq!(pairs, ["64 65", "64 66", "66 65"]);
}

const HOSTS: &str = "[hosts.generator]\nssh = \"root@a\"\ninterface = \"eth1\"\n[hosts.receiver]\nssh = \"root@a\"\n\
    interface = \"eth2\"\n[hosts.device_under_test]\nssh = \"root@b\"\ninput = \"eth1\"\noutput = \"eth2\"\n";

#[test]
fn hosts_and_commands_go_with_the_configurations_that_need_them() {
    let e = parse(&format!(
        "{HOSTS}[[configuration]]\ntopology = \"ssh\"\nsut = [\"kernel\", \"command\"]\ncpus = \"17\"\n\
         [configuration.command]\napply = \"true\"\n[[configuration]]\nname = \"here\"\n"
    ))
    .expect("valid");
    assert_eq!(names(&e), ["kernel", "command", "here"]);
    assert_eq!(e.commands.keys().collect::<Vec<_>>(), ["command"]);
    assert!(e.hosts.is_some() && e.configurations.iter().all(|p| p.missing.is_none()), "{e:?}");
    // cpus of another host are not this machine's to judge
    assert_eq!(e.configurations[0].configuration.placement.cpus, [17]);
    let written = serde_json::to_string(&e).expect("plain data");
    assert_eq!(serde_json::from_str::<Experiment>(&written).expect("our own"), e);

    let named = parse(&format!("{HOSTS}[[configuration]]\ntopology = \"ssh\"\ncpus = \"first-core\"\n"));
    let missing = named.expect("valid").configurations[0].missing.clone();
    assert!(missing.expect("not known").contains("write a list such as 0-1,3"));
    let elsewhere =
        parse(&format!("{}[[configuration]]\ntopology = \"ssh\"\n", HOSTS.replace("@b", "@b.example")));
    let missing = elsewhere.expect("valid").configurations[0].missing.clone();
    assert!(missing.expect("a placeholder").contains("stands for a host of yours"));
}

#[test]
fn hosts_and_commands_without_each_other_are_refused_with_their_place() {
    let command = "[configuration.command]\napply = \"true\"\n";
    let cases = [
        (
            "[[configuration]]\ntopology = \"ssh\"\n".into(),
            "labs/x.toml:6:1: configuration weir: topology \"ssh\" needs [hosts]",
        ),
        (
            format!("[[configuration]]\nsut = \"command\"\n{command}"),
            "SUT \"command\" needs topology = \"netns\" or \"ssh\"",
        ),
        (
            format!("{HOSTS}[[configuration]]\ntopology = \"ssh\"\nsut = \"command\"\n"),
            "needs [configuration.command] with at least `apply`",
        ),
        (HOSTS.replace("eth1", "eth 1") + "[[configuration]]\n", "hosts.generator.interface: got \"eth 1\""),
        (HOSTS.replace("ssh =", "shh =") + "[[configuration]]\n", "unknown field `shh`"),
    ];
    for (body, expected) in cases {
        let got = refusal(&body);
        assert!(got.contains(expected), "{body}\n  got      {got}\n  expected {expected}");
    }
}

#[test]
fn a_missing_file_is_one_sentence_with_the_remedy() {
    let error = Experiment::load(Path::new("labs/none.toml"), &Changes::default()).expect_err("missing");
    assert!(error.said.contains("weir-lab run --list"), "{error}");
}

proptest::proptest! {
    #[test]
    fn no_text_panics_the_parser(text in "\\PC{0,200}") {
        let _ = Experiment::parse("x", "x.toml", &text, &Changes::default());
        let _ = parse(&text);
    }
}

const NETNS: &str = "[[configuration]]\ntopology = \"netns\"\n";

fn method(text: &str, quick: bool) -> Result<Method, LabError> {
    let changes = Changes { quick, ..Changes::default() };
    Experiment::parse("x", "labs/x.toml", &format!("{HEAD}{text}"), &changes).map(|e| e.method)
}

fn bounds(method: Method) -> Bounds {
    match method {
        Method::NdrPdr(bounds) | Method::Latency { bounds, .. } => bounds,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_method_is_a_word_with_the_defaults_of_the_rfcs_or_a_table() {
    assert_eq!(parse(NETNS).expect("valid").method, Method::Mrr);
    let b = bounds(method(&format!("method = \"ndr-pdr\"\n{NETNS}"), false).expect("valid"));
    let pdr = &b.goals[1];
    assert_eq!(
        (b.goals[0].loss_ratio, pdr.loss_ratio, pdr.exceed_ratio, pdr.width),
        (0.0, 0.005, 0.5, 0.005)
    );
    assert_eq!((pdr.initial_seconds, pdr.final_seconds, pdr.sum_seconds), (1.0, 1.0, 2.0));
    let table =
        "[method]\nkind = \"ndr-pdr\"\ninitial = \"100ms\"\nsum = \"21s\"\nloss_percent = 1\nmin_pps = 5\n";
    let b = bounds(method(&format!("{table}{NETNS}"), false).expect("valid"));
    assert_eq!((b.goals[1].initial_seconds, b.goals[1].sum_seconds, b.min_pps), (0.1, 21.0, Some(5)));
    let sweep = method(&format!("[method]\nkind = \"sweep\"\nrates = [\"50%\", 1000]\n{NETNS}"), false);
    assert_eq!(sweep, Ok(Method::Sweep { rates: vec![Step::Percent(50.0), Step::Pps(1000)] }));
}

#[test]
fn the_metric_of_a_search_is_its_own_unless_the_file_names_one() {
    let metric = |text: &str| parse(text).expect("valid").metric.0;
    assert_eq!(metric(&format!("method = \"ndr-pdr\"\n{NETNS}")), "pdr_pps");
    assert_eq!(metric(&format!("method = \"equilibrium\"\n{NETNS}")), "equilibrium_mbps");
    assert_eq!(
        metric(&format!("metric = \"latency_90_ns_p99.9\"\nmethod = \"latency\"\n{NETNS}")),
        "latency_90_ns_p99.9"
    );
    let said = refusal(&format!("metric = \"latency_0_ns_p50\"\n{NETNS}"));
    assert!(said.contains("latency_<share>_ns_<percentile>"), "{said}");
}

#[test]
fn smoke_values_shorten_every_search() {
    for kind in ["sweep", "ndr-pdr", "equilibrium", "back-to-back", "latency"] {
        let text = format!("method = \"{kind}\"\n{NETNS}[quick]\nwindow = \"20ms\"\n");
        let [full, quick] =
            [false, true].map(|q| method(&text, q).expect("valid").seconds(0.0, if q { 0.02 } else { 1.0 }));
        assert!(quick < full / 4.0, "{kind}: {quick} s against {full} s");
    }
    let text =
        format!("[method]\nkind = \"sweep\"\nrates = [1, 2, 3, 4]\n{NETNS}[quick.method]\nrates = [7]\n");
    assert_eq!(method(&text, true), Ok(Method::Sweep { rates: vec![Step::Pps(7)] }));
}

#[test]
fn mistaken_methods_are_refused_with_their_place() {
    let said = |text: &str| refusal(&format!("{text}\n{NETNS}"));
    let stray = said("[method]\nkind = \"sweep\"\nsum = \"2s\"");
    assert!(stray.starts_with("labs/x.toml:6:1: method: `sum` is no key of this kind"), "{stray}");
    assert!(
        said("method = \"binary\"").contains("unknown variant `binary`"),
        "{}",
        said("method = \"binary\"")
    );
    assert!(
        said("[method]\nkind = \"ndr-pdr\"\ninitial = \"2s\"")
            .contains("at most the window, 1 s: shorten it")
    );
    assert!(said("[method]\nkind = \"ndr-pdr\"\nsum = \"500ms\"").contains("lengthen it"));
    assert!(said("[method]\nkind = \"ndr-pdr\"\nwidth_percent = 0").contains("above 0"));
    assert!(said("[method]\nkind = \"ndr-pdr\"\nmin_pps = 9\nmax_pps = 9").contains("lower it"));
    assert!(said("[method]\nkind = \"sweep\"\nrates = [\"0%\"]").contains("such as \"50%\""));
    assert!(said("[method]\nrates = [5]").contains("is no key of this kind"));
    assert!(said("method = \"fixed\"").contains("give it `rate"));
    let rate = format!("method = \"ndr-pdr\"\n{NETNS}rate = 1000\n");
    assert!(refusal(&rate).contains("a search chooses the rates"));
}

#[test]
fn what_memory_cannot_show_is_skipped_by_name() {
    let missing = |kind: &str| {
        let e = parse(&format!("method = \"{kind}\"\n[[configuration]]\nsut = \"weir\"\n")).expect("valid");
        e.configurations[0].missing.clone()
    };
    assert!(missing("latency").is_some_and(|m| m.contains("carry no time")));
    assert!(missing("back-to-back").is_some_and(|m| m.contains("no queue")));
    assert_eq!(missing("ndr-pdr"), None);
}

#[test]
fn the_word_of_before_for_a_sut_is_read() {
    let body = |word: &str| {
        format!(
            "compare = \"{word}\"\n[defaults]\ntopology = \"netns\"\n\
             [[configuration]]\nname = \"{{{word}}}\"\n{word} = [\"kernel\", \"weir\"]\n"
        )
    };
    let (before, today) = (parse(&body("subject")).expect("valid"), parse(&body("sut")).expect("valid"));
    let names = |e: &Experiment| e.suts().map(|c| (c.name.clone(), c.sut())).collect::<Vec<_>>();
    assert_eq!((names(&before), &before.pairs), (names(&today), &today.pairs));
    assert_eq!(names(&before)[0].0, "kernel");
}
