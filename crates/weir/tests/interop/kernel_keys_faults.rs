//! The kernel drops messages about SAs because nobody reads them: a gateway that is stopped (SIGSTOP) meanwhile, in the
//! second kernel, which has ESP. The key daemon is `ip xfrm`.

use std::collections::BTreeSet;
use std::process::Command;

use rustix::net::sockopt;
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};
use weir_core::wire::xfrm::{self, ESP, SaKey};
use weir_io::netlink::xfrm::KeyRequests;
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
        let pid = Pid::from_raw(i32::try_from(id).expect("a process")).expect("a process");
        let process = pidfd_open(pid, PidfdFlags::empty()).expect("weir runs");
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
    let there = json.as_array().expect("a list").iter().filter(|sa| sa["draining_seconds"].is_null());
    there.map(|sa| spi_of(sa["spi"].as_str().expect("an SPI"))).collect()
}

#[test]
fn an_overrun_of_messages_about_sas_ends_in_the_kernels_sas_and_stops_nothing() {
    there(
        "kernel_keys_faults::an_overrun_of_messages_about_sas_ends_in_the_kernels_sas_and_stops_nothing",
        || {
            let testbed = Testbed::new();
            testbed.kernel_is_left();
            testbed.kernel_does_not_forward_left();
            let nets = ["10.1.0.0/24", "10.2.0.0/24"];
            policies(&testbed.left, "if_id 7", nets, [LEFT, RIGHT]);
            policies(&testbed.right, "", [nets[1], nets[0]], [RIGHT, LEFT]);
            add(&testbed, 0x1001, [LEFT, RIGHT]);
            add(&testbed, 0x2001, [RIGHT, LEFT]);
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
            batch(
                Some(&testbed.left),
                &[format!("xfrm state delete src {LEFT} dst {RIGHT} proto esp spi 0x1001")],
            );
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
