//! TUN against the kernel's own stack: packets come with a filler header and go without it.

use std::io::{Read, Write as _};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::time::{Duration, Instant};

use crate::namespace::Namespace;
use weir_core::device::{Device, DeviceStatus};
use weir_core::packet::{Batch, DeviceId, Pool};
use weir_io::netns;
use weir_io::tun::Tun;

/// Waits until what comes for the IPv6 address is this host's: the kernel makes that route after the address (of 400
/// addresses, 183 did not have theirs when they were asked for at once), and drops what comes before.
fn await_local() {
    let routes = || std::fs::read_to_string("/proc/thread-self/net/ipv6_route").expect("routes");
    let end = Instant::now() + Duration::from_secs(60);
    while !routes().lines().any(is_local) {
        assert!(Instant::now() < end, "the address is not local:\n{}", routes());
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Whether a line of the kernel's is the route of 2001:db8::1 to this host (`RTF_LOCAL`).
fn is_local(route: &str) -> bool {
    let flags = route.split_whitespace().nth(8).and_then(|flags| u32::from_str_radix(flags, 16).ok());
    route.starts_with("20010db8000000000000000000000001 80 ") && flags.is_some_and(|flags| flags >> 31 == 1)
}

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
        await_local();
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

/// A TUN device in a namespace of its own, at one end of a path.
fn far_end(test: &str, name: &str, address: &str) -> Option<(Namespace, Tun)> {
    let ns = Namespace::new(&format!("{test}-{name}"))?;
    let opened = netns::inside(&ns.0, || Tun::open(name, DeviceId(0))).expect("entered");
    let tun = match opened {
        Ok(tun) => tun,
        Err(e) => {
            use std::io::Write;
            let _ = writeln!(std::io::stderr(), "SKIP {test}: {e}");
            return None;
        }
    };
    ns.ip(&["link", "set", "dev", name, "mtu", "1400", "up"]);
    ns.ip(&["addr", "add", address, "dev", name]);
    ns.ip(&["-6", "route", "add", "default", "dev", name]);
    ns.ip(&["route", "add", "default", "dev", name]);
    Some((ns, tun))
}

/// Passes on what one device has received, until there is a result.
fn pass(pool: &mut Pool<Box<[u8]>>, from: &mut Tun, to: &mut Tun, longest: &mut usize) {
    let mut batch = Batch::new();
    from.rx(pool, &mut batch);
    let mut frames: Vec<_> = batch.drain().collect();
    *longest = frames.iter().map(|frame| frame.len()).fold(*longest, usize::max);
    let until = Instant::now() + Duration::from_secs(5);
    while !frames.is_empty() && Instant::now() < until {
        to.tx(pool, &mut frames);
    }
    assert!(frames.is_empty(), "the far end takes all");
}

#[test]
fn bulk_of_tcp_crosses_two_devices_unharmed_in_packets_of_the_path_s_size() {
    let test = "bulk_of_tcp_crosses_two_devices";
    for (near, far, listen) in
        [("10.1.0.1/24", "10.2.0.1/24", "10.2.0.1:5001"), ("fd01::1/64", "fd02::1/64", "[fd02::1]:5001")]
    {
        let (Some((a, mut ta)), Some((b, mut tb))) = (far_end(test, "ta", near), far_end(test, "tb", far))
        else {
            return;
        };
        const BYTES: usize = 20_000_000;
        let byte = |at: usize| (at ^ at >> 8 ^ at >> 16) as u8;
        // IPv6 addresses are not usable before duplicates have been looked for.
        let bound = netns::inside(&b.0, || {
            let until = Instant::now() + Duration::from_secs(5);
            loop {
                match TcpListener::bind(listen) {
                    Ok(listener) => break listener,
                    Err(e) => assert!(Instant::now() < until, "{listen}: {e}"),
                }
                std::thread::sleep(Duration::from_millis(20));
            }
        });
        let listener = bound.expect("entered");
        let reader = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().expect("a connection");
            let mut all = Vec::new();
            stream.read_to_end(&mut all).expect("read");
            all
        });
        let inside = a.0.clone();
        let writer = std::thread::spawn(move || {
            let all: Vec<u8> = (0..BYTES).map(byte).collect();
            netns::inside(&inside, || {
                let mut stream = TcpStream::connect(listen).expect("connected");
                stream.write_all(&all).expect("written");
            })
            .expect("entered");
        });
        let mut pool = Pool::boxed(256);
        let mut longest = 0;
        let until = Instant::now() + Duration::from_secs(60);
        while !reader.is_finished() {
            assert!(Instant::now() < until, "the bulk has not crossed");
            pass(&mut pool, &mut ta, &mut tb, &mut longest);
            pass(&mut pool, &mut tb, &mut ta, &mut longest);
        }
        writer.join().expect("it ended");
        let all = reader.join().expect("it ended");
        assert!(all.len() == BYTES && all.iter().enumerate().all(|(at, &b)| b == byte(at)));
        assert_eq!(longest, 14 + 1400, "no frame is longer than the path's MTU, and some fill it");
        assert_eq!(pool.free(), 256, "no buffer is lost");
    }
}

#[test]
fn impossible_name_is_refused_with_what_was_expected() {
    let error = Tun::open("a-name-far-too-long-for-linux", DeviceId(0)).err().expect("refused");
    assert!(error.to_string().ends_with("the name has 29 bytes, expected 1 to 15"), "{error}");
}
