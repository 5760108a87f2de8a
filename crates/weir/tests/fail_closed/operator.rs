//! What an operator is told, and the verb that gives devices back.

use weir_io::af_packet::kernel_forwards;
use weir_io::bpf::attach::{self, XdpMode};
use weir_io::xdp_pass::Pass;

use super::event::start;
use super::scene::{DEVICES, Kind, Mode, Scene, said};
use super::testbed::{Router, run, until};
use super::traffic::Stream;

#[test]
fn ten_restarts_leave_no_packet_in_clear() {
    let Some(scene) = Scene::new("ten_restarts_leave_no_packet_in_clear", Mode::Protect, Kind::AfXdp) else {
        return;
    };
    let streams = scene.streams();
    let mut router = start(&scene);
    streams.iter().for_each(Stream::forbid);
    for round in 0..10 {
        if round % 2 == 0 {
            router.kill();
        } else {
            router.signal("TERM");
            assert!(router.wait(), "{}", router.log());
        }
        router = start(&scene);
    }
    scene.assert_counted(&streams, Some(&router));
    let clear: Vec<u64> = streams.iter().map(Stream::forbidden_clear).collect();
    assert_eq!(clear, [0; 4], "of {:?} sent", streams.iter().map(Stream::sent).collect::<Vec<_>>());
    assert!(router.log().contains("packets of transit were dropped in front of the kernel so far"));
}

#[test]
fn release_is_refused_while_it_runs_and_says_what_the_kernel_does_then() {
    let test = "release_is_refused_while_it_runs_and_says_what_the_kernel_does_then";
    let Some(scene) = Scene::new(test, Mode::Discard, Kind::AfXdp) else { return };
    let mut router = start(&scene);
    let refused = scene.release(&[]);
    assert!(!refused.status.success());
    assert!(said(&refused).contains("a weir with policies runs on r0; stop it first"), "{}", said(&refused));
    router.kill();
    let streams: Vec<Stream> = scene.ways().into_iter().map(|w| Stream::start(&scene.testbed, w)).collect();
    scene.assert_counted(&streams, None);
    assert!(streams.iter().all(|stream| stream.clear() == 0));
    let unknown = said(&scene.release(&["r7"]));
    assert!(unknown.contains("release: there is no device `r7` here; devices are "), "{unknown}");
    let one = said(&scene.release(&["r1"]));
    assert!(one.starts_with("r1: given back to the kernel ("), "{one}");
    assert!(one.contains("the kernel forwards IPv4 (net.ipv4.conf.r1.forwarding is on, "), "{one}");
    assert!(one.contains("IPv6 (net.ipv6.conf.all.forwarding is on, "), "{one}");
    assert!(scene.counters("r0").is_some() && scene.counters("r1").is_none());
    assert!(scene.release(&[]).status.success());
    until("the kernel forwards again", || streams.iter().all(|s| s.clear() > 0).then_some(()));
    assert!(said(&scene.release(&[])).starts_with("nothing to release"));
}

#[test]
fn a_start_that_fails_says_what_is_left_and_leaves_it_closed() {
    let test = "a_start_that_fails_says_what_is_left_and_leaves_it_closed";
    let Some(scene) = Scene::new(test, Mode::Protect, Kind::AfXdp) else { return };
    let config = format!("{}[control]\nsocket = \"/proc/none/weir.sock\"\n", scene.config());
    let path = scene.testbed.file("router.toml", &config);
    let mut command = std::process::Command::new("ip");
    command.args(["netns", "exec", &scene.testbed.router, env!("CARGO_BIN_EXE_weir"), "run"]);
    let output = command.arg(path).output().expect("weir starts");
    assert!(!output.status.success());
    let log = said(&output);
    assert!(log.contains("transit on r0, r1 stays dropped in front of the kernel"), "{log}");
    assert!(scene.kept().is_some(), "the points are there");
}

#[test]
fn policies_that_come_and_go_take_their_points_along() {
    let test = "policies_that_come_and_go_take_their_points_along";
    let Some(scene) = Scene::new(test, Mode::Discard, Kind::AfXdp) else { return };
    let plain = scene.testbed.config("af_xdp", "");
    let router = scene.testbed.start(&plain);
    assert_eq!(scene.kept(), None, "no policies, no points");
    let apply = |router: &Router, text: &str| {
        let file = scene.testbed.file("next.toml", text).display().to_string();
        let dry = router.told(&["apply", "--dry-run", &file]);
        (dry, router.told(&["apply", &file]))
    };
    apply(&router, &scene.config());
    assert!(scene.kept().is_some());
    let (dry, told) = apply(&router, &plain);
    for text in [dry, told] {
        assert!(text.contains("no policies apply then: what the router does not take of r0"), "{text}");
    }
    assert_eq!(scene.kept(), None);
    apply(&router, &scene.config());
    drop(router);
    assert!(scene.kept().is_some(), "they outlive it");
    let router = scene.testbed.start(&plain);
    router.wait_for("r1: a weir with policies left its transit dropped; this configuration has none");
    assert_eq!(scene.kept(), None);
}

#[test]
fn a_second_weir_with_policies_is_refused_on_a_device_of_the_first() {
    let test = "a_second_weir_with_policies_is_refused_on_a_device_of_the_first";
    for kind in [Kind::AfXdp, Kind::AfPacket] {
        let Some(scene) = Scene::new(test, Mode::Discard, kind) else { return };
        let _first = start(&scene);
        let path = scene.testbed.file("second.toml", &scene.config());
        let mut command = std::process::Command::new("ip");
        command.args(["netns", "exec", &scene.testbed.router, env!("CARGO_BIN_EXE_weir"), "--socket"]);
        let output = command.arg(scene.testbed.folder.join("second.sock")).arg("run").arg(path).output();
        let output = output.expect("weir starts");
        assert!(!output.status.success());
        let log = said(&output);
        assert!(log.contains("port left: r0: another weir with policies runs on it; stop that one"), "{log}");
    }
}

#[test]
fn queues_that_come_are_served_and_what_found_none_is_in_the_balance() {
    let test = "queues_that_come_are_served_and_what_found_none_is_in_the_balance";
    let Some(scene) = Scene::new(test, Mode::Protect, Kind::AfXdp) else { return };
    let streams = scene.streams();
    let router = start(&scene);
    streams.iter().for_each(Stream::forbid);
    assert!(scene.queues("r0", 4));
    router.wait_for("port left: r0 has 4 receive queues now instead of 1; each has a socket");
    streams.iter().for_each(|stream| stream.await_sent(200));
    // From here on every queue has a socket: nothing more is left to the kernel.
    let kept = scene.kept();
    streams.iter().for_each(|stream| stream.await_sent(400));
    assert_eq!(scene.kept(), kept, "{}", router.log());
    assert!(streams.iter().all(|stream| stream.forbidden_clear() == 0));
    drop(streams);
    let drops = router.json("drops");
    let unserved = drops.as_array().and_then(|d| d.iter().find(|d| d["reason"] == "no_socket"));
    let counted = unserved.and_then(|d| d["packets"].as_u64()).unwrap_or(0);
    let told = router.log().contains("frames found no socket and were dropped in front of the kernel");
    assert_eq!(counted > 0, told, "{counted} counted\n{}", router.log());
    let status = router.json("status");
    assert_eq!(status["balance"], 0);
    let noticed = status["notices"].to_string().contains("frames found no socket and were dropped");
    assert_eq!(counted > 0, noticed, "{status}");
    router.assert_conserved();
}

#[test]
fn packet_sockets_lose_their_program_for_less_than_a_second() {
    let test = "packet_sockets_lose_their_program_for_less_than_a_second";
    let Some(scene) = Scene::new(test, Mode::Protect, Kind::AfPacket) else { return };
    let router = start(&scene);
    for device in DEVICES {
        scene.take_filter_off(device);
    }
    until("both are back", || scene.kept());
    router.wait_for("r1: the program that keeps transit from the kernel was taken off by somebody");
    assert_eq!(router.metric("weir_device_programs_reattached_total", ""), 2);
    let status = router.told(&["show", "status"]);
    assert!(
        status.contains("r0: programs were taken off by somebody once; they are attached again"),
        "{status}"
    );
}

#[test]
fn check_says_what_the_kernel_does_where_weir_is_not() {
    let test = "check_says_what_the_kernel_does_where_weir_is_not";
    let Some(scene) = Scene::new(test, Mode::Protect, Kind::AfXdp) else { return };
    let path = scene.testbed.file("router.toml", &scene.config());
    let mut command = std::process::Command::new("ip");
    command.args(["netns", "exec", &scene.testbed.router, env!("CARGO_BIN_EXE_weir"), "check"]);
    let text = said(&command.arg(&path).output().expect("weir starts"));
    let expected =
        "# port right (r1): before weir's first start and after `weir release`, the kernel forwards IPv4 (";
    assert!(text.contains(expected), "{text}");
    scene.in_router(|| {
        std::fs::write("/proc/sys/net/ipv4/ip_forward", "0").expect("the knob");
        std::fs::write("/proc/sys/net/ipv6/conf/all/forwarding", "0").expect("the knob");
    });
    let mut command = std::process::Command::new("ip");
    command.args(["netns", "exec", &scene.testbed.router, env!("CARGO_BIN_EXE_weir"), "check"]);
    let text = said(&command.arg(&path).output().expect("weir starts"));
    assert!(text.contains("the kernel forwards nothing from it (forwarding is off)"), "{text}");
}

/// Takes the place of weir's filter, so that the kernel refuses it.
fn occupy(scene: &Scene) {
    for device in DEVICES {
        let tc = format!("ip netns exec {} tc", scene.testbed.router);
        run(&format!("{tc} qdisc add dev {device} clsact"));
        run(&format!("{tc} filter add dev {device} ingress pref 1 protocol ip u32 match u32 0 0"));
    }
}

fn forward(scene: &Scene, value: &str) {
    scene.in_router(|| {
        for knob in ["ipv4/ip_forward", "ipv6/conf/all/forwarding"] {
            std::fs::write(format!("/proc/sys/net/{knob}"), value).expect("the knob");
        }
    });
}

#[test]
fn without_a_program_af_xdp_is_refused_and_packet_sockets_switch_forwarding_off() {
    let test = "without_a_program_af_xdp_is_refused_and_packet_sockets_switch_forwarding_off";
    let Some(scene) = Scene::new(test, Mode::Protect, Kind::AfPacket) else { return };
    occupy(&scene);
    forward(&scene, "0");
    for kind in ["af_xdp", "af_packet"] {
        forward(&scene, if kind == "af_xdp" { "0" } else { "1" });
        let config = scene.testbed.config(kind, &scene.ipsec());
        let mut refused = scene.testbed.spawn(&config, &[]);
        assert!(!refused.wait());
        let log = refused.log();
        assert!(
            log.contains("r0: the kernel takes no program at ingress that keeps transit from it"),
            "{log}"
        );
    }
    forward(&scene, "0");
    let router = start(&scene);
    assert!(
        router.log().contains("the kernel forwards nothing from r0: packet sockets will do"),
        "{}",
        router.log()
    );
    forward(&scene, "1");
    router.wait_for("port left: somebody made it so that the kernel forwards IPv4 (");
    router.wait_for("past the policies; weir switched it off");
    until("forwarding is off again", || {
        scene.in_router(|| DEVICES.iter().all(|d| kernel_forwards(d) == (false, false))).then_some(())
    });
    let streams: Vec<Stream> = scene.ways().into_iter().map(|w| Stream::start(&scene.testbed, w)).collect();
    streams.iter().for_each(|stream| stream.await_sent(100));
    assert!(streams.iter().all(|stream| stream.clear() == 0));
}

#[test]
fn another_program_in_the_place_of_weirs_opens_nothing_and_is_named() {
    let test = "another_program_in_the_place_of_weirs_opens_nothing_and_is_named";
    let Some(scene) = Scene::new(test, Mode::Protect, Kind::AfXdp) else { return };
    let streams = scene.streams();
    let router = start(&scene);
    streams.iter().for_each(Stream::forbid);
    let index = scene.index("r0");
    // weir may be back first.
    let theirs = until("their program is there", || {
        scene.in_router(|| {
            attach::force_detach(index).expect("asked");
            Pass::attach("r0", index, &[XdpMode::Native]).ok()
        })
    });
    router.wait_for("r0: frames reach no worker: r0: XDP program weir_pass (id ");
    streams.iter().for_each(|stream| stream.await_sent(100));
    drop(theirs);
    router.wait_for("r0: the XDP program was taken off by somebody; it is attached again");
    streams.iter().for_each(|stream| stream.await_sent(100));
    let clear: Vec<u64> = streams.iter().map(Stream::forbidden_clear).collect();
    assert_eq!(clear, [0; 4]);
}

#[test]
fn forwarding_that_is_switched_on_later_is_told_where_packet_sockets_forward_too() {
    let test = "forwarding_that_is_switched_on_later_is_told_where_packet_sockets_forward_too";
    let Some(scene) = Scene::new(test, Mode::Discard, Kind::AfPacket) else { return };
    forward(&scene, "0");
    let router = scene.testbed.start(&scene.testbed.config("af_packet", ""));
    scene.in_router(|| std::fs::write("/proc/sys/net/ipv6/conf/all/forwarding", "1").expect("the knob"));
    router.wait_for("port left: since now the kernel forwards IPv6 (net.ipv6.conf.all.forwarding is on, ");
    router.wait_for("too: every packet goes out twice");
}
