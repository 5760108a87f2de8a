//! Relays of one mesh: what they forward, what they are told.

use weir_core::relay::{Frame, Key, Kind, Reason};
use weir_relay::{Relay, Role};

use crate::member::{As, Member, engine, wait_for};

fn as_role(relay: &Relay, number: u8, role: Role) -> Member {
    let member = Member::admit(relay, number, As { role, ..As::default() });
    if role == Role::Dialled { member } else { member.greeted() }
}

#[test]
fn a_relay_that_we_dialled_is_asked_for_its_peers_and_gets_packets_for_them() {
    for workers in [1, 2] {
        let relay = engine(workers, |_| {});
        let mut other = as_role(&relay, 50, Role::Dialled);
        assert_eq!(other.frame(), (Kind::WatchConns as u8, Vec::new()));
        let far = Key([88; 32]);
        other.say(&Frame::PeerPresent(far, None));
        let mut a = Member::join(&relay, 1);
        // When the registrar has heard of it is not told to anybody.
        let dropped = |report: &weir_relay::RelayReport| {
            report.workers.iter().flat_map(|w| w.drops.iter()).map(|d| d.2.packets).sum::<u64>()
        };
        let mut sent = 0;
        loop {
            a.send(far, b"over the mesh");
            sent += 1;
            let report = wait_for(&relay, "the packet", |report| {
                let forwarded: u64 = report.workers.iter().map(|w| w.packets_forwarded).sum();
                forwarded + dropped(report) == sent
            });
            if dropped(&report) < sent {
                break;
            }
        }
        let (code, payload) = other.frame();
        assert_eq!(Frame::parse(code, &payload), Ok(Frame::ForwardPacket(a.key, far, b"over the mesh")));
        assert_eq!(relay.report().balance(), 0);
    }
}

#[test]
fn what_another_relay_forwards_is_delivered_here_and_nowhere_else() {
    for workers in [1, 2] {
        let relay = engine(workers, |_| {});
        let mut other = as_role(&relay, 50, Role::Mesh);
        let mut a = Member::join(&relay, 1);
        let (source, nobody) = (Key([88; 32]), Key([99; 32]));
        other.say(&Frame::ForwardPacket(source, nobody, b"for nobody"));
        for n in 0..20 {
            other.say(&Frame::ForwardPacket(source, a.key, &[n; 500]));
        }
        for n in 0..20 {
            assert_eq!(a.packet(), (source, vec![n; 500]));
        }
        other.nothing_comes();
        let report = wait_for(&relay, "the ledger", |report| report.balance() == 0);
        let dropped: u64 = report
            .workers
            .iter()
            .flat_map(|w| w.drops.iter())
            .filter(|d| d.0 == Reason::UnknownDestOnFwd)
            .map(|d| d.2.packets)
            .sum();
        assert_eq!(dropped, 1);
    }
}

#[test]
fn a_watcher_hears_who_is_here_who_comes_and_who_goes() {
    let relay = engine(2, |_| {});
    let a = Member::join(&relay, 1);
    let mut watcher = as_role(&relay, 50, Role::Mesh);
    watcher.say(&Frame::WatchConns);
    let present = |watcher: &mut Member| {
        let (code, payload) = watcher.frame();
        assert_eq!(code, Kind::PeerPresent as u8);
        Key::from_slice(&payload[..32]).expect("a key")
    };
    let mut here = [present(&mut watcher), present(&mut watcher)];
    here.sort();
    let mut expected = [a.key, watcher.key];
    expected.sort();
    assert_eq!(here, expected);
    let b = Member::join(&relay, 2);
    assert_eq!(present(&mut watcher), b.key);
    let key = b.key;
    drop(b);
    watcher.nothing_comes_but_gone(key);
    watcher.say(&Frame::ClosePeer(a.key));
    watcher.nothing_comes_but_gone(a.key);
    let mut a = a;
    assert_eq!(a.frame_or_end(), None);
}
