//! TUN against the kernel's own stack: packets come with a filler header and go without it.

mod support;

use std::net::UdpSocket;
use std::time::{Duration, Instant};

use support::Namespace;
use weir_core::device::{Device, DeviceStatus};
use weir_core::packet::{Batch, DeviceId, Pool};
use weir_io::netns;
use weir_io::tun::Tun;

#[test]
fn packet_goes_out_and_its_answer_comes_in_for_both_families() {
    let test = "packet_goes_out_and_its_answer_comes_in_for_both_families";
    let Some(ns) = Namespace::new(test) else { return };
    netns::inside(&ns.0, || {
        let mut tun = match Tun::open("t0", DeviceId(5)) {
            Ok(tun) => tun,
            Err(e) => {
                use std::io::Write;
                let _ = writeln!(std::io::stderr(), "SKIP {test}: {e}");
                return;
            }
        };
        let mut pool = Pool::boxed(64);
        assert_eq!(Device::<Box<[u8]>>::status(&mut tun), DeviceStatus::Down);
        ns.ip(&["link", "set", "dev", "t0", "up"]);
        ns.ip(&["addr", "add", "192.0.2.1/24", "dev", "t0"]);
        ns.ip(&["addr", "add", "2001:db8::1/64", "dev", "t0", "nodad"]);
        for (ours, far, ethertype) in
            [("192.0.2.1", "192.0.2.9:7", [8, 0]), ("[2001:db8::1]", "[2001:db8::9]:7", [0x86, 0xdd])]
        {
            let socket = UdpSocket::bind(format!("{ours}:0")).expect("bound");
            socket.set_read_timeout(Some(Duration::from_secs(5))).expect("set");
            socket.send_to(b"there", far).expect("sent");
            let end = Instant::now() + Duration::from_secs(5);
            let mut answers = Vec::new();
            while answers.is_empty() && Instant::now() < end {
                let mut batch = Batch::new();
                tun.rx(&mut pool, &mut batch);
                for mut frame in batch.drain() {
                    let data = frame.data_mut();
                    assert_eq!(data[..12], [0; 12], "filler addresses");
                    // Answer: addresses and ports change places, which leaves every checksum right.
                    let (a, n, udp) = if ethertype[0] == 8 { (26, 4, 34) } else { (22, 16, 54) };
                    let is_udp = if ethertype[0] == 8 { data[23] == 17 } else { data[20] == 17 };
                    if !is_udp || data[12..14] != ethertype {
                        pool.put(frame.into_buffer());
                        continue;
                    }
                    let (x, y) = data[a..a + 2 * n].split_at_mut(n);
                    x.swap_with_slice(y);
                    data.swap(udp, udp + 2);
                    data.swap(udp + 1, udp + 3);
                    answers.push(frame);
                }
            }
            assert_eq!(tun.tx(&mut pool, &mut answers), 1);
            let mut back = [0; 16];
            let (length, from) = socket.recv_from(&mut back).expect("the answer");
            assert_eq!((&back[..length], from.to_string().as_str()), (&b"there"[..], far));
        }
        assert_eq!(pool.free(), 64, "no buffer is lost");
    })
    .expect("entered");
}

#[test]
fn impossible_name_is_refused_with_what_was_expected() {
    let error = Tun::open("a-name-far-too-long-for-linux", DeviceId(0)).err().expect("refused");
    assert!(error.to_string().ends_with("the name has 29 bytes, expected 1 to 15"), "{error}");
}
