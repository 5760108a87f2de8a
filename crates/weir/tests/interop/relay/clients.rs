//! Tailscale's client through a relay: pings, streams, restarts under traffic, admission, WebSocket, a mesh.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use weir_io::netns;

use super::admission::{Admission, Asked};
use super::both;
use super::net::{CLIENTS, Net};
use super::peers::{PATIENCE, patiently};
use super::server::{Kind, PeerRelay, RelayOptions};
use super::tailnet::{Node, Tailnet, Way};
use super::tools::probe;
use crate::content::bytes;

both! {
    pings_and_streams_go_by_the_relay: ["tailscale", "tailscaled", "headscale"];
    a_stream_survives_a_killed_relay: ["tailscale", "tailscaled", "headscale"];
    a_stream_survives_a_relay_that_is_asked_to_end: ["tailscale", "tailscaled", "headscale"];
    the_controller_admits_and_refuses: ["tailscale", "tailscaled", "headscale"];
    a_controller_that_is_away_refuses_nobody: ["tailscale", "tailscaled", "headscale"];
    a_tailscaled_lets_in_whom_it_knows_and_nobody_while_it_is_away: ["tailscale", "tailscaled", "headscale", "derpprobe"];
    a_client_by_websocket_meets_one_without: ["tailscale", "tailscaled", "headscale"];
    clients_of_two_relays_of_a_mesh_meet: ["tailscale", "tailscaled", "headscale", "derper"];
}

const ONE: Way = Way { relays: 1, websocket: false };

/// Pings both ways until they are answered: nodes take their time to choose a home.
fn meet(nodes: &[Node; 2]) {
    for [from, to] in [[0, 1], [1, 0]] {
        patiently("a ping is answered", || {
            let answered = nodes[from].reaches(&nodes[to]);
            if !answered {
                nodes[from].learn_home(&nodes[to]);
            }
            answered.then_some(())
        });
    }
}

/// Sends `len` known bytes from the first node to the second by TCP; what `meanwhile` does, it does when a third
/// has been read. All bytes arrive, as they were.
fn stream(nodes: &[Node; 2], len: usize, meanwhile: impl FnOnce()) {
    let [from, to] = nodes;
    let listener = netns::inside(&to.ns, || TcpListener::bind((to.ip, 0))).expect("the namespace is there");
    let listener = listener.expect("a listener");
    let at = listener.local_addr().expect("bound");
    let arrived = AtomicUsize::new(0);
    thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let (mut stream, _) = listener.accept().expect("a connection");
            stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
            let (mut got, mut piece) = (Vec::new(), [0; 16 << 10]);
            loop {
                match stream.read(&mut piece).expect("the stream goes on") {
                    0 => break got,
                    n => got.extend_from_slice(&piece[..n]),
                }
                arrived.store(got.len(), Ordering::Release);
            }
        });
        let writer = scope.spawn(move || {
            let stream = netns::inside(&from.ns, || TcpStream::connect_timeout(&at, PATIENCE));
            let mut stream = stream.expect("the namespace is there").expect("connected");
            stream.set_write_timeout(Some(PATIENCE)).expect("a timeout");
            stream.write_all(&bytes(1, len)).expect("all is sent");
        });
        patiently("a third has arrived", || (arrived.load(Ordering::Acquire) >= len / 3).then_some(()));
        meanwhile();
        writer.join().expect("the writer");
        let got = reader.join().expect("the reader");
        assert!(got == bytes(1, len), "{} of {len} bytes arrived, or others", got.len());
    });
}

const BULK: usize = 12 << 20;

fn pings_and_streams_go_by_the_relay(kind: Kind) {
    let net = Net::new();
    let _relay = RelayOptions::new(kind).start(&net);
    let tailnet = Tailnet::start(&net, ONE);
    meet(&tailnet.nodes);
    stream(&tailnet.nodes, BULK, || ());
    meet(&tailnet.nodes);
}

/// A relay that ends while a stream goes through it, and another in its place with the same key.
fn survives(kind: Kind, end: impl FnOnce(&mut PeerRelay)) {
    let net = Net::new();
    let mut relay = RelayOptions::new(kind).start(&net);
    let tailnet = Tailnet::start(&net, ONE);
    meet(&tailnet.nodes);
    let mut next = None;
    stream(&tailnet.nodes, BULK, || {
        end(&mut relay);
        next = Some(relay.plan.start(&net));
    });
    meet(&tailnet.nodes);
}

fn a_stream_survives_a_killed_relay(kind: Kind) {
    survives(kind, PeerRelay::kill);
}

fn a_stream_survives_a_relay_that_is_asked_to_end(kind: Kind) {
    survives(kind, PeerRelay::terminate);
}

fn the_controller_admits_and_refuses(kind: Kind) {
    let net = Net::new();
    let admission = Admission::start(&net);
    let mut relay = RelayOptions::new(kind).verify(Admission::url()).start(&net);
    let tailnet = Tailnet::start(&net, ONE);
    let [one, two] = &tailnet.nodes;
    meet(&tailnet.nodes);
    let asked = admission.asked();
    for (node, source) in [one, two].into_iter().zip(CLIENTS) {
        let question = Asked { key: node.key.clone(), source: source.into(), allowed: true };
        assert!(asked.contains(&question), "{question:?} was not asked: {asked:?}");
    }

    admission.refuse(&two.key);
    relay.kill();
    let relay = relay.plan.start(&net);
    let mut asked = Vec::new();
    patiently("both were asked about again", || {
        asked.extend(admission.asked());
        let answered = |node: &Node, allowed| asked.iter().any(|a| a.key == node.key && a.allowed == allowed);
        (answered(one, true) && answered(two, false)).then_some(())
    });
    assert!(!one.reaches(two) && !two.reaches(one), "a refused client takes part\n{}", relay.log());

    admission.admit(&two.key);
    meet(&tailnet.nodes);
}

fn a_controller_that_is_away_refuses_nobody(kind: Kind) {
    let net = Net::new();
    let _relay = RelayOptions::new(kind).verify(Admission::url()).start(&net);
    let tailnet = Tailnet::start(&net, ONE);
    meet(&tailnet.nodes);
}

/// The relay asks the first node's tailscaled; a client of nobody's network comes with a key of its own.
fn a_tailscaled_lets_in_whom_it_knows_and_nobody_while_it_is_away(kind: Kind) {
    let net = Net::new();
    let mut open = RelayOptions::new(kind).start(&net);
    let tailnet = Tailnet::start(&net, ONE);
    meet(&tailnet.nodes);
    open.kill();

    let socket = tailnet.nodes[0].socket();
    let mut relay = RelayOptions::new(kind).tailscaled(socket).start(&net);
    meet(&tailnet.nodes);
    let good = probe(&net, 1).unwrap_or_default();
    let stranger = "derp/weir/900-0/900-0/mesh".to_string();
    assert!(!good.contains(&stranger), "a key of nobody's is let in\n{}", relay.log());
    relay.kill();

    let away = RelayOptions::new(kind).tailscaled(net.folder.join("nobody")).start(&net);
    let [one, two] = &tailnet.nodes;
    patiently("a client is kept out", || away.log().contains(&refusal(kind)).then_some(()));
    assert!(!one.reaches(two) && !two.reaches(one), "let in by nobody\n{}", away.log());
}

/// What is logged of a client that cannot be asked about.
fn refusal(kind: Kind) -> String {
    match kind {
        Kind::Derper => "failed to query local tailscaled status".into(),
        Kind::Weir => "kept out: tailscaled does not answer".into(),
    }
}

fn a_client_by_websocket_meets_one_without(kind: Kind) {
    let net = Net::new();
    let _relay = RelayOptions::new(kind).start(&net);
    let tailnet = Tailnet::start(&net, Way { websocket: true, ..ONE });
    meet(&tailnet.nodes);
    let [one, two] = &tailnet.nodes;
    assert!(one.log().contains("websocket: connected to https://relay-1.weir.test"), "not by WebSocket");
    assert!(!two.log().contains("websocket: connected"), "by WebSocket");
    stream(&tailnet.nodes, BULK, || ());
}

/// Each client reaches one of the relays only; `derper` is the other.
fn clients_of_two_relays_of_a_mesh_meet(kind: Kind) {
    let net = Net::new();
    net.part();
    let _relays = [
        RelayOptions::new(kind).mesh().start(&net),
        RelayOptions::new(Kind::Derper).second().mesh().start(&net),
    ];
    let tailnet = Tailnet::start(&net, Way { relays: 2, ..ONE });
    meet(&tailnet.nodes);
    stream(&tailnet.nodes, BULK, || ());
}
