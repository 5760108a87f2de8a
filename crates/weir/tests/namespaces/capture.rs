//! `weir capture`: what a router drops, in a file.

use std::fs::File;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use pcap_file::pcapng::blocks::enhanced_packet::EnhancedPacketOption;
use pcap_file::pcapng::blocks::interface_description::InterfaceDescriptionOption;
use pcap_file::pcapng::{Block, PcapNgReader};
use weir_core::wire::build;
use weir_io::process;

use super::testbed::{Router, Testbed, Wire, run, until};
use weir::testing::daemon::program;

/// Port, comment and bytes of each packet; a file that is cut short is a failure.
fn packets(file: &Path) -> Vec<(String, String, Vec<u8>)> {
    let mut reader = PcapNgReader::new(File::open(file).expect("there")).expect("a section header");
    let (mut ports, mut packets) = (Vec::new(), Vec::new());
    while let Some(block) = reader.next_block() {
        match block.expect("a whole block") {
            Block::InterfaceDescription(port) => {
                let name = port.options.iter().find_map(|option| match option {
                    InterfaceDescriptionOption::IfName(name) => Some(name.to_string()),
                    _ => None,
                });
                ports.push(name.expect("a port has a name"));
            }
            Block::EnhancedPacket(packet) => {
                let comment = packet.options.iter().find_map(|option| match option {
                    EnhancedPacketOption::Comment(comment) => Some(comment.to_string()),
                    _ => None,
                });
                let port = ports[packet.interface_id as usize].clone();
                packets.push((port, comment.expect("a comment"), packet.data.to_vec()));
            }
            other => panic!("{other:?}"),
        }
    }
    packets
}

fn capture(router: &Router, args: &[&str], file: &Path) -> Child {
    let mut command = Command::new(program());
    command.arg("--socket").arg(&router.socket).arg("capture").args(args).arg("-w").arg(file);
    command.stderr(Stdio::piped());
    process::dies_with_starter(&mut command).spawn().expect("weir starts")
}

/// Status and words of a capture that ends.
fn ended(child: Child) -> (bool, String) {
    let output = child.wait_with_output().expect("it ends");
    (output.status.success(), String::from_utf8_lossy(&output.stderr).into_owned())
}

#[test]
fn what_is_dropped_is_in_the_file_with_its_reason_however_the_capture_ends() {
    let test = "what_is_dropped_is_in_the_file_with_its_reason_however_the_capture_ends";
    let Some(testbed) = Testbed::new(test) else { return };
    let mut router = testbed.start(&testbed.config("af_packet", ""));
    until("both ports are up", || {
        let ports = router.json("ports");
        ports.as_array()?.iter().all(|p| p["up"] == true).then_some(())
    });
    let mut wire = Wire::open(&testbed.client, "c0");
    let (mac, ours) = (testbed.mac(&testbed.client, "c0"), testbed.mac(&testbed.router, "r0"));
    let to = |destination: &str| {
        let (src, dst) = ("10.1.0.2".parse().expect("an address"), destination.parse().expect("an address"));
        build::Frame::ip(src, dst).expect("one family").macs(ours, mac).udp(1, 2, b"lost")
    };
    let nowhere = to("203.0.113.9");
    let file = |name: &str| -> PathBuf { testbed.file(name, "").with_file_name(format!("{name}.pcap")) };

    // So many, of this reason only.
    let counted = file("counted");
    let mut child = capture(&router, &["--drop", "no_route", "--count", "3"], &counted);
    until("three packets are written", || {
        wire.send(&to("240.0.0.1"));
        wire.send(&nowhere);
        child.try_wait().expect("a child")
    });
    let (done, said) = ended(child);
    assert!(done && said.contains("3 packets of "), "{said}");
    let found = packets(&counted);
    assert_eq!(found.len(), 3);
    for (port, comment, bytes) in &found {
        assert_eq!((port.as_str(), &bytes[..nowhere.len()]), ("left", &nowhere[..]));
        assert_eq!(comment, "no_route at left: no route to the destination");
    }
    let mode = File::open(&counted).and_then(|f| f.metadata()).expect("there").permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let (done, said) = ended(capture(&router, &["--drop", "no_route"], &counted));
    assert!(!done && said.contains("name another, or remove it first"), "{said}");

    // Killed: what is there is whole, and the next one may begin some seconds later.
    let killed = file("killed");
    let mut child = capture(&router, &["--drop", "all"], &killed);
    until("a packet is written", || {
        wire.send(&nowhere);
        (killed.exists() && !packets(&killed).is_empty()).then_some(())
    });
    child.kill().expect("a child");
    child.wait().expect("a child");
    assert!(!packets(&killed).is_empty());
    let (done, said) = ended(capture(&router, &["--drop", "no_route"], &file("second")));
    assert!(!done && said.contains("another one runs"), "{said}");

    // Ctrl-C.
    let stopped = file("stopped");
    let child = until("the killed one is over", || {
        let mut child = capture(&router, &["--drop", "no_route", "--rate", "10"], &stopped);
        let going = until("it ends or writes", || match child.try_wait().expect("a child") {
            Some(_) => Some(false),
            None => {
                wire.send(&nowhere);
                (stopped.exists() && !packets(&stopped).is_empty()).then_some(true)
            }
        });
        going.then_some(child)
    });
    (0..50).for_each(|_| wire.send(&nowhere));
    run(&format!("kill -INT {}", child.id()));
    let (done, said) = ended(child);
    assert!(done && said.contains(" dropped in "), "{said}");
    assert!(packets(&stopped).len() < 50, "above the rate nothing is copied");

    // The router goes first.
    let left = file("left");
    let child = capture(&router, &["--drop", "no_route", "--snap", "64"], &left);
    until("a packet is written", || {
        wire.send(&nowhere);
        (left.exists() && !packets(&left).is_empty()).then_some(())
    });
    router.assert_conserved();
    router.signal("TERM");
    assert!(router.wait(), "{}", router.log());
    let (done, said) = ended(child);
    assert!(!done && said.contains("over before it was told to"), "{said}");
    assert!(!packets(&left).is_empty());
}

#[test]
fn a_capture_that_cannot_be_is_refused_with_what_to_do() {
    let Some(testbed) = Testbed::new("a_capture_that_cannot_be_is_refused_with_what_to_do") else { return };
    let router = testbed.start(&testbed.config("af_packet", ""));
    for (args, wanted) in [
        (&["--drop", "no_rout"][..], "no_route"),
        (&["--drop", "no_socket"], "invalid value"),
        (&["--drop", "no_route", "--rate", "0"], "expected 1 to 10000 a second"),
        (&["--drop", "no_route", "--snap", "1"], "expected 64 to 65535 bytes"),
    ] {
        let file = testbed.file("refused", "").with_file_name("refused.pcap");
        let (done, said) = ended(capture(&router, args, &file));
        assert!(!done && said.contains(wanted) && !file.exists(), "{args:?}: {said}");
    }
}
