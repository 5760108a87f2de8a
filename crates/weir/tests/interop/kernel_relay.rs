//! A whole relay with TLS in the kernel, in the second kernel: its clients are rustls, which knows nothing of it.
//!
//! Promises: who sealed what is asked of the relay's own counters, so that no test passes by TLS in user space.

mod client;

use std::fs;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use rustls::version::{TLS12, TLS13};
use weir_core::relay::frame::{Frame, Gone};
use weir_io::process;
use weir_io::tls::kernel::support;

use crate::daemon::Running;
use crate::machine::{PATIENCE, until};
use crate::second_kernel;
use client::{Client, bytes, key};

/// Nobody else is in that kernel.
const ADDRESS: &str = "127.0.0.1:3340";
const MODPROBE: &str = "/proc/sys/kernel/modprobe";

fn relay(tls: &str, io: &str) -> Running {
    let folder = std::env::temp_dir().join("weir-kernel-relay");
    fs::create_dir_all(&folder).expect("a folder");
    let file = folder.join("relay.toml");
    let text = format!(
        "[relay]\nlisten = [{ADDRESS:?}]\ntls = {tls:?}\nio = {io:?}\ncertificates = \"self-signed\"\n\
         hostname = \"localhost\"\nkey = {:?}\n",
        folder.join("key")
    );
    fs::write(&file, text).expect("its configuration");
    let socket = folder.join("socket");
    let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
    command.arg("--socket").arg(&socket).arg("run").arg(file);
    let running = Running::start(&mut command, socket);
    until("a relay that takes connections", || std::net::TcpStream::connect(ADDRESS).ok());
    running
}

/// Counts clients so far whose records the kernel seals, and the process.
fn sealed(relay: &Running) -> (i64, i64) {
    let of = |by: &str| relay.values("weir_relay_records_total", &format!("by=\"{by}\"")).iter().sum();
    (of("kernel"), of("user"))
}

fn pattern(seed: usize, length: usize) -> Vec<u8> {
    (0..length).map(|at| (at * 7 + (at >> 8) + seed) as u8).collect()
}

/// One sends, the other receives: as many as all their queues, in sizes of one byte to the protocol's most.
fn exchange(from: &mut Client, to: &mut Client) {
    for (round, length) in [1, 100, 1400, 1400, 16_000, 40_000, 65_536].into_iter().enumerate() {
        let data = pattern(round, length);
        from.send(Frame::SendPacket(key(to.number), &data));
        assert_eq!(to.next(), Some(bytes(Frame::RecvPacket(key(from.number), &data))), "{length} bytes");
    }
    let many: Vec<_> = (0..20).map(|n| pattern(n, 1000)).collect();
    many.iter().for_each(|data| from.send(Frame::SendPacket(key(to.number), data)));
    for data in &many {
        assert_eq!(to.next(), Some(bytes(Frame::RecvPacket(key(from.number), data))));
    }
}

#[test]
fn clients_of_a_relay_with_kernel_tls_exchange_packets_both_ways() {
    second_kernel::there(
        "kernel_relay::clients_of_a_relay_with_kernel_tls_exchange_packets_both_ways",
        || {
            for (version, io) in
                [(&TLS13, "io_uring"), (&TLS12, "io_uring"), (&TLS13, "epoll"), (&TLS12, "epoll")]
            {
                let relay = relay("kernel", io);
                let (mut one, mut other) = (Client::join(1, version), Client::join(2, version));
                exchange(&mut one, &mut other);
                exchange(&mut other, &mut one);
                assert_eq!(sealed(&relay), (2, 0), "{version:?} by {io}: {}", relay.log());
                assert_eq!(relay.values("weir_relay_balance_packets", ""), [0]);
            }
        },
    );
}

#[test]
fn what_comes_along_with_a_handshake_does_not_keep_the_kernel_out() {
    second_kernel::there(
        "kernel_relay::what_comes_along_with_a_handshake_does_not_keep_the_kernel_out",
        || {
            let relay = relay("kernel", "auto");
            // Others each time, so that nobody hears of the end of those before.
            for (version, [hears, says]) in [(&TLS13, [9, 7]), (&TLS12, [8, 6])] {
                let mut listener = Client::join(hears, version);
                let mut hasty = Client::upgraded(says, version);
                // Records of its first words, of a packet, and of another that breaks off.
                let mut burst = hasty.info();
                let (first, second) = (pattern(1, 700), pattern(2, 900));
                burst.extend(hasty.seal(&bytes(Frame::SendPacket(key(hears), &first))));
                let whole = hasty.seal(&bytes(Frame::SendPacket(key(hears), &second)));
                let (now, later) = whole.split_at(500);
                burst.extend_from_slice(now);
                hasty.write(&burst);
                hasty.take_server_info();
                assert_eq!(listener.next(), Some(bytes(Frame::RecvPacket(key(says), &first))));
                hasty.write(later);
                assert_eq!(listener.next(), Some(bytes(Frame::RecvPacket(key(says), &second))));
            }
            assert_eq!(sealed(&relay), (4, 0), "{}", relay.log());
        },
    );
}

#[test]
fn a_relay_with_kernel_tls_hears_a_goodbye_and_says_one() {
    second_kernel::there("kernel_relay::a_relay_with_kernel_tls_hears_a_goodbye_and_says_one", || {
        for version in [&TLS13, &TLS12] {
            let mut relay = relay("kernel", "auto");
            let (mut stays, mut goes) = (Client::join(1, version), Client::join(2, version));
            goes.send(Frame::SendPacket(key(1), b"hello"));
            assert_eq!(stays.next(), Some(bytes(Frame::RecvPacket(key(2), b"hello"))));
            goes.close();
            assert!(goes.ends_cleanly(), "a goodbye is answered");
            let gone = bytes(Frame::PeerGone(key(2), Gone::Disconnected));
            assert_eq!(stays.next(), Some(gone), "{}", relay.log());
            process::terminate(relay.child.id()).expect("it runs");
            let cleanly = stays.ends_cleanly();
            let ended = relay.child.wait().expect("a child of ours");
            assert!(cleanly && ended.success(), "{version:?}: {ended}: {}", relay.log());
        }
    });
}

#[test]
fn new_keys_of_a_client_are_followed_or_refused_with_an_alert() {
    second_kernel::there("kernel_relay::new_keys_of_a_client_are_followed_or_refused_with_an_alert", || {
        let rekey = support().expect("this kernel has TLS").rekey;
        for io in ["io_uring", "epoll"] {
            let relay = relay("kernel", io);
            let (mut changes, mut other) = (Client::join(1, &TLS13), Client::join(2, &TLS13));
            let mut third = Client::join(3, &TLS13);
            exchange(&mut changes, &mut other);
            changes.change_keys();
            if rekey {
                exchange(&mut changes, &mut other);
                exchange(&mut other, &mut changes);
            } else {
                // Linux before 6.14 gives a socket one key; the client is told, and can come again.
                assert_eq!(changes.alert(), Some(rustls::AlertDescription::InternalError), "by {io}");
            }
            let mut again = Client::join(1, &TLS13);
            exchange(&mut again, &mut third);
            exchange(&mut third, &mut again);
            assert_eq!(sealed(&relay), (4, 0), "{}", relay.log());
        }
    });
}

#[test]
fn a_forged_record_or_an_alert_ends_that_client_alone() {
    second_kernel::there("kernel_relay::a_forged_record_or_an_alert_ends_that_client_alone", || {
        for (version, io) in
            [(&TLS13, "io_uring"), (&TLS12, "io_uring"), (&TLS13, "epoll"), (&TLS12, "epoll")]
        {
            let relay = relay("kernel", io);
            let (mut one, mut other) = (Client::join(1, version), Client::join(2, version));
            let (mut forger, mut alarmed) = (Client::join(3, version), Client::join(4, version));
            let mut record = forger.seal(&bytes(Frame::SendPacket(key(1), b"forged")));
            *record.last_mut().expect("a record") ^= 1;
            forger.write(&record);
            forger.is_ended();
            alarmed.takes_fright();
            alarmed.is_ended();
            exchange(&mut one, &mut other);
            exchange(&mut other, &mut one);
            assert_eq!(sealed(&relay), (4, 0), "{}", relay.log());
        }
    });
}

#[test]
fn without_the_module_a_relay_says_so_and_seals_itself_or_lets_go() {
    second_kernel::there(
        "kernel_relay::without_the_module_a_relay_says_so_and_seals_itself_or_lets_go",
        || {
            let modprobe = fs::read_to_string(MODPROBE).expect("it is there").trim().to_owned();
            // Connections that tests before closed keep the module until the kernel has forgotten them.
            let start = Instant::now();
            while fs::exists("/sys/module/tls").expect("sysfs") {
                let _ = Command::new(&modprobe).args(["-r", "tls"]).output();
                assert!(start.elapsed() < PATIENCE, "the module `tls` stays in use");
                thread::sleep(Duration::from_millis(100));
            }
            fs::write(MODPROBE, "/bin/false").expect("we are root there");
            let seals = relay("auto", "auto");
            let (mut one, mut other) = (Client::join(1, &TLS13), Client::join(2, &TLS12));
            exchange(&mut one, &mut other);
            exchange(&mut other, &mut one);
            let (told, by) = (seals.log(), sealed(&seals));
            drop(seals);
            let lets_go = relay("kernel", "auto");
            let mut refused = Client::upgraded(1, &TLS13);
            let info = refused.info();
            refused.write(&info);
            refused.is_ended();
            // Counted once the connection is closed.
            until("its end is counted", || {
                (lets_go.values("weir_relay_ended_total", "why=\"tls\"") == [1]).then_some(())
            });
            fs::write(MODPROBE, modprobe).expect("we are root there");
            assert_eq!(by, (0, 2), "{told}");
            assert!(told.contains("TLS by the kernel is not to be had: kernel has no TLS"), "{told}");
            assert!(lets_go.log().contains("is not to be had"), "{}", lets_go.log());
        },
    );
}
