//! Every event × what protects × kind of port × way × family: 200 cases, none with a packet as cleartext.

use std::io::Write as _;

use super::event::{EVENTS, Event, play};
use super::scene::{Kind, Mode, Scene};

fn closed(test: &str, event: Event, mode: Mode, kind: Kind) -> usize {
    let Some(scene) = Scene::new(test, mode, kind) else { return 0 };
    let cases = play(test, event, &scene);
    let open: Vec<_> = cases.iter().filter(|case| case.1 > 0).collect();
    assert!(open.is_empty(), "packets as cleartext: {open:?}");
    cases.len()
}

macro_rules! smoke {
    ($($name:ident $event:ident $mode:ident $kind:ident;)*) => {
        $(#[test]
        fn $name() {
            closed(stringify!($name), Event::$event, Mode::$mode, Kind::$kind);
        })*
    };
}

smoke! {
    nothing_is_clear_while_it_starts Start Protect AfXdp;
    nothing_is_clear_after_a_kill Kill Protect AfXdp;
    nothing_is_clear_after_a_stop Terminate Discard AfXdp;
    nothing_is_clear_after_a_panic Panic Protect AfXdp;
    nothing_is_clear_when_a_port_is_removed PortRemoved Protect AfXdp;
    nothing_is_clear_on_queues_that_come QueuesUp Discard AfXdp;
    nothing_is_clear_when_queues_are_to_go QueuesDown Protect AfXdp;
    nothing_is_clear_when_links_flap LinkFlap Protect AfXdp;
    nothing_is_clear_without_the_xdp_program XdpDetached Protect AfXdp;
    nothing_is_clear_without_the_filter FilterDetached Protect AfXdp;
    nothing_is_clear_after_a_kill_of_packet_sockets Kill Protect AfPacket;
    nothing_is_clear_after_a_stop_with_tunnels Terminate Tunnel AfPacket;
}

#[test]
fn every_case_of_the_matrix_is_closed() {
    let test = "every_case_of_the_matrix_is_closed";
    if std::env::var_os("WEIR_FAIL_CLOSED").is_none() {
        let missing = "needs some minutes and WEIR_FAIL_CLOSED=all: make fail-closed";
        writeln!(std::io::stderr(), "SKIP {test}: {missing}").expect("stderr is open");
        return;
    }
    let (mut cases, mut open) = (Vec::new(), Vec::new());
    for kind in [Kind::AfXdp, Kind::AfPacket] {
        for mode in [Mode::Protect, Mode::Discard, Mode::Tunnel] {
            for event in EVENTS.into_iter().filter(|event| event.concerns(kind)) {
                let Some(scene) = Scene::new(test, mode, kind) else { return };
                let played = play(test, event, &scene);
                for (case, clear) in &played {
                    writeln!(std::io::stderr(), "{clear} as cleartext: {case}").expect("stderr is open");
                }
                open.extend(played.iter().filter(|case| case.1 > 0).cloned());
                cases.extend(played);
            }
        }
    }
    let summary = format!("fail-closed matrix: {} cases, {} open", cases.len(), open.len());
    writeln!(std::io::stderr(), "{summary}").expect("stderr is open");
    assert!(open.is_empty(), "packets as cleartext: {open:?}");
    assert_eq!(cases.len(), 200);
}
