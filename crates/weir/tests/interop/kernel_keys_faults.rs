//! What goes wrong while the kernel's SAs are followed, in the second kernel, which has ESP: messages that nobody reads in time
//! (a gateway that is stopped by SIGSTOP meanwhile), dumps that fail, a disk that does, and changes at the wrong moment. The
//! key daemon is `ip xfrm`.

use std::collections::BTreeSet;
use std::process::Command;
use std::thread;
use std::time::Duration;

use rustix::net::sockopt;
use rustix::process::{
    Pid, PidfdFlags, PidfdGetfdFlags, Resource, Rlimit, Signal, kill_process, pidfd_getfd, pidfd_open,
    prlimit,
};
use weir_core::wire::xfrm::{self, ESP, News, SaKey};
use weir_io::netlink::xfrm::{KeyRequests, dump};
use weir_io::netns;

use crate::daemon::Running;
use crate::kernel_keys::{config, hosts, sas};
use crate::second_kernel::there;
use crate::testbed::{Testbed, batch, run, until};
use crate::traffic::{Seen, all, numbered};
use crate::weir_gateway::Weir;

/// More messages than the socket holds once [`shrink`] made it smaller: 4,352 B / 768 B = 5.
const STORM: usize = 100;
const LEFT: &str = "192.0.2.1";
const RIGHT: &str = "192.0.2.2";

/// An SA from one gateway to the other, as both have it; the left one has an interface id without a device.
fn add(testbed: &Testbed, spi: u32, [from, to]: [&str; 2]) {
    let line = |id: &str| {
        format!(
            "xfrm state add src {from} dst {to} proto esp spi {spi:#x} reqid 1 mode tunnel replay-window 32 flag af-unspec \
             {id} aead rfc4106(gcm(aes)) 0x{spi:08x}{spi:08x}{spi:08x}{spi:08x}{spi:08x} 128"
        )
    };
    batch(Some(&testbed.left), &[line("if_id 7")]);
    batch(Some(&testbed.right), &[line("")]);
}

/// Deletes the left gateway's SA to the right one.
fn remove(testbed: &Testbed, spi: u32) {
    let line = format!("xfrm state delete src {LEFT} dst {RIGHT} proto esp spi {spi:#x}");
    batch(Some(&testbed.left), &[line]);
}

fn policies(ns: &str, id: &str, [near, far]: [&str; 2], [from, to]: [&str; 2]) {
    let line = |direction: &str, nets: [&str; 2], ends: [&str; 2]| {
        let ([a, b], [c, d]) = (nets, ends);
        format!(
            "xfrm policy add src {a} dst {b} dir {direction} {id} tmpl src {c} dst {d} proto esp reqid 1 mode tunnel"
        )
    };
    let inward = |direction| line(direction, [far, near], [to, from]);
    batch(Some(ns), &[line("out", [near, far], [from, to]), inward("in"), inward("fwd")]);
}

fn pid(weir: &Running) -> Pid {
    let id = i32::try_from(weir.child.id()).expect("a process");
    Pid::from_raw(id).expect("a process")
}

/// Gives weir's socket for messages about SAs the least buffer there is, for 32 MiB of them take the second kernel minutes.
fn shrink(weir: &Weir) {
    let id = weir.child.id();
    // Of all of weir's sockets of NETLINK_XFRM (6), the one that listens to groups.
    let all = std::fs::read_to_string(format!("/proc/{id}/net/netlink")).expect("weir runs");
    let listens = |line: &&str| {
        let columns: Vec<&str> = line.split_whitespace().collect();
        columns[1] == "6" && columns[3] != "00000000"
    };
    let inodes: Vec<&str> =
        all.lines().skip(1).filter(listens).filter_map(|l| l.split_whitespace().last()).collect();
    let mut shrunk = 0;
    for entry in std::fs::read_dir(format!("/proc/{id}/fd")).expect("weir runs").flatten() {
        let Ok(target) = std::fs::read_link(entry.path()) else { continue };
        if !inodes.iter().any(|inode| target.as_os_str() == format!("socket:[{inode}]").as_str()) {
            continue;
        }
        let number = entry.file_name().into_string().expect("a number").parse().expect("a number");
        let process = pidfd_open(pid(weir), PidfdFlags::empty()).expect("weir runs");
        let socket = pidfd_getfd(process, number, PidfdGetfdFlags::empty()).expect("we are root");
        sockopt::set_socket_recv_buffer_size(&socket, 0).expect("a socket");
        shrunk += 1;
    }
    assert_eq!(shrunk, 1, "{all}");
}

/// Has the left gateway's kernel tell everybody of soft expiries of an SA.
fn storm(testbed: &Testbed, spi: u32) {
    let key = SaKey { destination: crate::testbed::ip(RIGHT), spi, protocol: ESP, mark: (0, 0) };
    let many = xfrm::expire(&key, false).repeat(STORM);
    let sent = netns::inside(&testbed.left, || KeyRequests::open()?.send(&many));
    sent.expect("the namespace is there").expect("the kernel takes them");
}

fn spi_of(text: &str) -> u32 {
    u32::from_str_radix(text.trim_start_matches("0x"), 16).expect("an SPI")
}

/// The SPIs the left gateway's kernel has.
fn kernels(testbed: &Testbed) -> BTreeSet<u32> {
    let text = run(&format!("ip -n {} xfrm state", testbed.left));
    let words: Vec<&str> = text.split_whitespace().collect();
    words.windows(2).filter(|pair| pair[0] == "spi").map(|pair| spi_of(pair[1])).collect()
}

/// The SPIs weir has, without those that drain.
pub(crate) fn spis(weir: &Weir) -> BTreeSet<u32> {
    let json: serde_json::Value = serde_json::from_str(&weir.told(&["show", "sa", "--json"])).expect("JSON");
    let there = json.as_array().expect("a list").iter().filter(|sa| sa["state"] != "draining");
    there.map(|sa| spi_of(sa["spi"].as_str().expect("an SPI"))).collect()
}

#[test]
fn an_overrun_of_messages_about_sas_ends_in_the_kernels_sas_and_stops_nothing() {
    there(
        "kernel_keys_faults::an_overrun_of_messages_about_sas_ends_in_the_kernels_sas_and_stops_nothing",
        || {
            let testbed = gateways();
            let weir = Weir::start(&testbed, &config());
            until("weir has both SAs", || (sas(&weir) == 2).then_some(()));
            let (a, b) = hosts(&testbed);
            all(a, b, 200, 300_000);
            let event =
                |event: &str| weir.metric("weir_key_mirror_events_total", &format!("event=\"{event}\""));
            assert_eq!((event("overrun"), event("vanished")), (0, 0));

            shrink(&weir);
            run(&format!("kill -STOP {}", weir.child.id()));
            storm(&testbed, 0x1001);
            // Messages of these are lost: a rekey of which the new SAs and the end of an old one are not told.
            add(&testbed, 0x2002, [RIGHT, LEFT]);
            add(&testbed, 0x1002, [LEFT, RIGHT]);
            remove(&testbed, 0x1001);
            run(&format!("kill -CONT {}", weir.child.id()));

            // What passed before passes on, by the SA weir knows and then by that it learns of.
            let whole = Seen { whole: 200, ..Seen::default() };
            assert_eq!(numbered(a, b, 200), whole, "while everything is dumped again");
            assert_eq!(numbered(b, a, 200), whole, "while everything is dumped again, back");
            until("it is told that messages were lost", || (event("overrun") > 0).then_some(()));
            until("the SAs are the kernel's", || (spis(&weir) == kernels(&testbed)).then_some(()));
            assert_eq!(kernels(&testbed).len(), 3);
            assert!(event("vanished") >= 1 && event("resync") > 0, "{}", weir.metrics());
            let said = weir.told(&["show", "status"]);
            assert!(said.contains("the kernel's messages about SAs overran"), "{said}");
            all(a, b, 200, 300_000);
            weir.assert_conserved();
        },
    );
}

/// Two gateways whose policies protect all between two networks, with an SA each way.
fn gateways() -> Testbed {
    let testbed = Testbed::new();
    testbed.kernel_is_left();
    testbed.kernel_does_not_forward_left();
    let nets = ["10.1.0.0/24", "10.2.0.0/24"];
    policies(&testbed.left, "if_id 7", nets, [LEFT, RIGHT]);
    policies(&testbed.right, "", [nets[1], nets[0]], [RIGHT, LEFT]);
    add(&testbed, 0x1001, [LEFT, RIGHT]);
    add(&testbed, 0x2001, [RIGHT, LEFT]);
    testbed
}

/// How often weir has said something.
fn said(weir: &Running, what: &str) -> usize {
    weir.log().matches(what).count()
}

#[test]
fn a_dump_of_sas_that_fails_is_taken_again_within_seconds_and_said_once() {
    there("kernel_keys_faults::a_dump_of_sas_that_fails_is_taken_again_within_seconds_and_said_once", || {
        let testbed = gateways();
        let weir = Weir::start(&testbed, &config());
        until("weir has both SAs", || (sas(&weir) == 2).then_some(()));
        let (a, b) = hosts(&testbed);
        all(a, b, 200, 300_000);

        shrink(&weir);
        run(&format!("kill -STOP {}", weir.child.id()));
        storm(&testbed, 0x1001);
        // Messages of these are lost.
        add(&testbed, 0x2002, [RIGHT, LEFT]);
        add(&testbed, 0x1002, [LEFT, RIGHT]);
        // Who opens nothing dumps nothing.
        let limit = |current| {
            let new = Rlimit { current, ..rustix::process::getrlimit(Resource::Nofile) };
            prlimit(Some(pid(&weir)), Resource::Nofile, new).expect("we are root").current
        };
        remove(&testbed, 0x1001);
        let before = limit(Some(0));
        run(&format!("kill -CONT {}", weir.child.id()));
        let stays = "SAs and policies stay as they were heard last";
        until("the dump fails", || (said(&weir, stays) > 0).then_some(()));
        assert_eq!(numbered(a, b, 200), Seen { whole: 200, ..Seen::default() }, "by the SA that is known");
        // It fails again a second and three seconds later.
        thread::sleep(Duration::from_secs(4));
        limit(before);
        until("the SAs are the kernel's", || (spis(&weir) == kernels(&testbed)).then_some(()));
        let failed = weir.metric("weir_key_mirror_events_total", "event=\"failed\"");
        assert!((2..=4).contains(&failed), "{failed} dumps failed");
        assert_eq!(said(&weir, stays), 1, "{}", weir.log());
        assert_eq!(said(&weir, "SAs and policies can be dumped again"), 1, "{}", weir.log());
        assert!(!weir.told(&["show", "status"]).contains("are as heard last"));
        all(a, b, 200, 300_000);
        weir.assert_conserved();
    });
}

#[test]
fn sas_that_cannot_be_written_are_used_as_soon_as_they_can() {
    there("kernel_keys_faults::sas_that_cannot_be_written_are_used_as_soon_as_they_can", || {
        let testbed = gateways();
        let weir = Weir::start_with(&testbed, &config(), "state-of-faults");
        until("weir has both SAs", || (sas(&weir) == 2).then_some(()));
        let (a, b) = hosts(&testbed);
        all(a, b, 200, 300_000);

        let [state, away] = ["state-of-faults", "state-away"].map(|name| testbed.folder.join(name));
        std::fs::rename(&state, &away).expect("our folder");
        add(&testbed, 0x2002, [RIGHT, LEFT]);
        add(&testbed, 0x1002, [LEFT, RIGHT]);
        let unused = "the kernel's new SAs are not used until the state directory can be written";
        until("it is said", || (said(&weir, unused) > 0).then_some(()));
        assert!(weir.told(&["show", "status"]).contains(unused));
        assert_eq!(numbered(a, b, 200), Seen { whole: 200, ..Seen::default() }, "by the SA that is known");
        thread::sleep(Duration::from_secs(4));
        assert_eq!(spis(&weir), BTreeSet::from([0x1001, 0x2001]), "{}", weir.log());
        remove(&testbed, 0x1001);
        std::fs::rename(&away, &state).expect("our folder");
        until("the SAs are the kernel's", || (spis(&weir) == kernels(&testbed)).then_some(()));
        assert_eq!(said(&weir, unused), 1, "{}", weir.log());
        assert!(!weir.told(&["show", "status"]).contains(unused));
        all(a, b, 200, 300_000);
        weir.assert_conserved();
    });
}

/// Has the left gateway's policy name an SA, as who answers a rekey does it.
fn name_in_policy(testbed: &Testbed, spi: u32) {
    let line = format!(
        "xfrm policy update src 10.1.0.0/24 dst 10.2.0.0/24 dir out if_id 7 tmpl src {LEFT} dst {RIGHT} proto esp spi {spi:#x} \
         reqid 1 mode tunnel"
    );
    batch(Some(&testbed.left), &[line]);
}

#[test]
fn a_policy_of_a_dump_has_the_sa_it_names_whatever_is_rekeyed_meanwhile() {
    let name = "kernel_keys_faults::a_policy_of_a_dump_has_the_sa_it_names_whatever_is_rekeyed_meanwhile";
    there(name, || {
        let testbed = gateways();
        name_in_policy(&testbed, 0x1001);
        let (mut there, mut named, mut rekeyed) = (BTreeSet::new(), BTreeSet::new(), false);
        let dumped = netns::inside(&testbed.left, || {
            dump(|news| {
                match news {
                    News::Sa(sa) => _ = there.insert(sa.key.spi),
                    News::Policy(policy) => {
                        named.extend(policy.templates.iter().map(|t| t.spi).filter(|&spi| spi != 0));
                    }
                    _ => {}
                }
                // What was dumped first has been read, and the rest has not.
                if !std::mem::replace(&mut rekeyed, true) {
                    add(&testbed, 0x1002, [LEFT, RIGHT]);
                    name_in_policy(&testbed, 0x1002);
                }
            })
        });
        dumped.expect("the namespace is there").expect("the kernel has SAs");
        assert!(rekeyed && !named.is_empty());
        assert!(named.is_subset(&there), "policies name {named:x?}, there are {there:x?}");
    });
}

/// Starts weir on the left gateway, and stops it (SIGSTOP) when it has read what SAs there are; none where it had used them
/// before it stopped.
fn stopped_at_the_start(testbed: &Testbed, state: &str) -> Option<Running> {
    let (path, socket) = (testbed.file("gateway.toml", &config()), testbed.folder.join("control.sock"));
    let mut command = Command::new("ip");
    command.args(["netns", "exec", &testbed.left, env!("CARGO_BIN_EXE_weir"), "--socket"]).arg(&socket);
    command.arg("run").arg(&path).env("STATE_DIRECTORY", testbed.folder.join(state));
    let weir = Running::start(&mut command, socket);
    while said(&weir, "control socket") == 0 {
        thread::sleep(Duration::from_millis(1));
    }
    // Without a shell, whose start may take longer than the rest of weir's.
    kill_process(pid(&weir), Signal::STOP).expect("a child of ours");
    // What it has written before is read by then.
    thread::sleep(Duration::from_millis(200));
    (said(&weir, "the kernel's keys: ") == 0).then_some(weir)
}

/// Every try may have stopped weir a moment too late, but not all of them.
#[test]
fn an_sa_that_goes_while_weir_starts_is_never_used() {
    there("kernel_keys_faults::an_sa_that_goes_while_weir_starts_is_never_used", || {
        let testbed = gateways();
        let mut told = String::new();
        for n in 0..30 {
            let Some(weir) = stopped_at_the_start(&testbed, &format!("state-{n}")) else { continue };
            add(&testbed, 0x1002, [LEFT, RIGHT]);
            remove(&testbed, 0x1001);
            run(&format!("kill -CONT {}", weir.child.id()));
            until("it is ready", || (said(&weir, "is ready") > 0).then_some(()));
            assert!(said(&weir, "kernel:out:00001002") > 0, "{}", weir.log());
            if said(&weir, "kernel:out:00001001") == 0 {
                return;
            }
            told += &weir.log();
            drop(weir);
            batch(Some(&testbed.left), &[format!("xfrm state deleteall src {LEFT}")]);
            batch(Some(&testbed.right), &[format!("xfrm state deleteall src {LEFT}")]);
            add(&testbed, 0x1001, [LEFT, RIGHT]);
        }
        panic!("it was used each time:\n{told}");
    });
}

/// The second kernel finds no modules until this is dropped.
struct NoModules(String);

impl NoModules {
    const LOADER: &str = "/proc/sys/kernel/modprobe";

    fn begin() -> NoModules {
        let loader = std::fs::read_to_string(Self::LOADER).expect("there is one");
        std::fs::write(Self::LOADER, "/bin/false").expect("we are root there");
        NoModules(loader.trim().to_owned())
    }
}

impl Drop for NoModules {
    fn drop(&mut self) {
        // Who cannot write it is not in the second kernel.
        let _ = std::fs::write(Self::LOADER, &self.0);
    }
}

/// The second kernel has XFRM's messages in a module: without it, it is a kernel without XFRM.
#[test]
fn a_kernel_without_xfrm_is_refused_with_the_module_it_lacks() {
    let name = "kernel_keys_faults::a_kernel_without_xfrm_is_refused_with_the_module_it_lacks";
    there(name, || {
        // Before modules cannot be had any more.
        let testbed = Testbed::new();
        testbed.kernel_is_left();
        testbed.kernel_does_not_forward_left();
        let _loader = NoModules::begin();
        // Not there yet, or of no use to anybody now.
        let _ = Command::new("rmmod").arg("xfrm_user").output();
        let (path, socket) = (testbed.file("gateway.toml", &config()), testbed.folder.join("control.sock"));
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &testbed.left, env!("CARGO_BIN_EXE_weir"), "--socket"]).arg(&socket);
        command.arg("run").arg(&path).env("STATE_DIRECTORY", testbed.folder.join("state"));
        let mut weir = Running::start(&mut command, socket);
        let ended = until("weir ends", || weir.child.try_wait().expect("a child of ours"));
        let says = "it needs XFRM (the module xfrm_user), and root";
        until(&format!("it says `{says}`:\n{}", weir.log()), || weir.log().contains(says).then_some(()));
        assert!(!ended.success());
    });
}
