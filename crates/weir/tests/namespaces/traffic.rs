//! Traffic whose integrity can be told: echoes, numbered datagrams, streams with a known content.

use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use weir_core::id::Mac;
use weir_core::wire::build::Frame;
use weir_core::wire::{Ethernet, Icmpv4, Icmpv6, Ipv4, Ipv6, icmpv4, icmpv6};

use super::testbed::{PATIENCE, Testbed, Wire, ip};
pub use crate::content::bytes;
use crate::content::converse;

/// Addresses of one family along the way.
#[derive(Clone, Copy)]
pub struct Way {
    pub client: IpAddr,
    /// The router's, on the client's side.
    pub near: IpAddr,
    /// The router's, on the server's side.
    pub far: IpAddr,
    pub server: IpAddr,
}

pub fn ways() -> [Way; 2] {
    let way = |[client, near, far, server]: [&str; 4]| Way {
        client: ip(client),
        near: ip(near),
        far: ip(far),
        server: ip(server),
    };
    [way(["10.1.0.2", "10.1.0.1", "10.2.0.1", "10.2.0.2"]), way(["fd01::2", "fd01::1", "fd02::1", "fd02::2"])]
}

/// What an ICMP message of either family says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Icmp {
    pub from: IpAddr,
    pub to: IpAddr,
    pub kind: u8,
    pub code: u8,
    pub ident: u16,
    /// The MTU a "too big" message names.
    pub mtu: u32,
}

pub fn icmp(frame: &[u8]) -> Option<Icmp> {
    let ethernet = Ethernet::parse(frame).ok()?;
    match ethernet.ethertype() {
        0x0800 => {
            let packet = Ipv4::parse(ethernet.payload()).ok().filter(|p| p.protocol() == 1)?;
            let message = Icmpv4::parse(packet.payload()).ok()?;
            Some(Icmp {
                from: packet.src().into(),
                to: packet.dst().into(),
                kind: message.kind(),
                code: message.code(),
                ident: message.ident(),
                mtu: message.next_hop_mtu().into(),
            })
        }
        0x86dd => {
            let packet = Ipv6::parse(ethernet.payload()).ok().filter(|p| p.next_header() == 58)?;
            let message = Icmpv6::parse(packet.payload(), packet.src(), packet.dst()).ok()?;
            Some(Icmp {
                from: packet.src().into(),
                to: packet.dst().into(),
                kind: message.kind(),
                code: message.code(),
                ident: message.ident(),
                mtu: message.mtu(),
            })
        }
        _ => None,
    }
}

/// The frame the client sends towards `dst` by way of the router.
pub fn toward(testbed: &Testbed, src: IpAddr, dst: IpAddr) -> Frame {
    let router: Mac = testbed.mac(&testbed.router, "r0");
    let client: Mac = testbed.mac(&testbed.client, "c0");
    Frame::ip(src, dst).expect("one family").macs(router, client)
}

/// Pings from the client until an answer comes.
pub fn ping(testbed: &Testbed, src: IpAddr, dst: IpAddr) {
    let mut wire = Wire::open(&testbed.client, "c0");
    let frame = toward(testbed, src, dst).echo_request(77, 1, b"is anybody there?");
    let reply = if dst.is_ipv4() { icmpv4::ECHO_REPLY } else { icmpv6::ECHO_REPLY };
    wire.exchange(&format!("an echo from {dst}"), &frame, |f| {
        icmp(f).is_some_and(|i| (i.from, i.to, i.kind, i.ident) == (dst, src, reply, 77))
    });
}

/// A UDP service in the server's namespace that returns what it gets, until it is told to end.
pub struct Echo {
    pub at: SocketAddr,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Echo {
    pub fn start(testbed: &Testbed, at: IpAddr) -> Echo {
        let socket = testbed.in_server(|| UdpSocket::bind((at, 0))).expect("a socket in the server");
        let at = socket.local_addr().expect("bound");
        socket.set_read_timeout(Some(Duration::from_millis(100))).expect("a timeout");
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = thread::spawn(move || {
            let mut buffer = [0; 4096];
            while !stopped.load(Ordering::Relaxed) {
                if let Ok((len, from)) = socket.recv_from(&mut buffer) {
                    // The asker asks again for what did not come.
                    let _ = socket.send_to(&buffer[..len], from);
                }
            }
        });
        Echo { at, stop, thread: Some(thread) }
    }

    /// Sends `count` datagrams of every size up to 1,400 bytes and checks what comes back; how often one
    /// had to be sent again.
    pub fn bounce(&self, testbed: &Testbed, count: u64) -> usize {
        let bind = if self.at.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
        let socket = testbed.in_client(|| UdpSocket::bind(bind)).expect("a socket in the client");
        socket.set_read_timeout(Some(Duration::from_secs(1))).expect("a timeout");
        let mut again = 0;
        for n in 0..count {
            let sent = bytes(n, 8 + (n as usize * 37) % 1392);
            let mut back = [0; 4096];
            loop {
                socket.send_to(&sent, self.at).expect("sent");
                match socket.recv(&mut back) {
                    Ok(len) if back[..len] == sent[..] => break,
                    Ok(len) => {
                        // The late answer to an earlier try is whole too, and of another datagram.
                        assert!(again > 0, "datagram {n} came back as {len} other bytes");
                    }
                    Err(_) => {
                        again += 1;
                        assert!(again < 20, "datagram {n} of {} bytes does not come back", sent.len());
                    }
                }
            }
        }
        again
    }
}

impl Drop for Echo {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Sends `len` known bytes by TCP from client to server and as many others back.
pub fn stream(testbed: &Testbed, to: IpAddr, len: usize) {
    let listener = testbed.in_server(|| TcpListener::bind((to, 0))).expect("a listener in the server");
    let connect = |at| testbed.in_client(|| TcpStream::connect_timeout(&at, PATIENCE)).expect("connected");
    converse(listener, connect, len);
}

/// One datagram to the discard port.
pub fn send_udp(testbed: &Testbed, to: IpAddr) {
    let bind = if to.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
    let socket = testbed.in_client(|| UdpSocket::bind(bind)).expect("a socket");
    // An ICMP error for an earlier one may be told here; it is not this one's.
    let _ = socket.send_to(b"?", (to, 9));
}

/// What came of datagrams that were sent while something else happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seen {
    pub sent: u64,
    pub received: u64,
    pub in_order: bool,
}

/// Numbered datagrams from a client's address to a server's, while `work` runs.
pub fn under_traffic(testbed: &Testbed, from: IpAddr, to: IpAddr, work: impl FnOnce()) -> Seen {
    let receiver = testbed.in_server(|| UdpSocket::bind((to, 0))).expect("a socket");
    receiver.set_read_timeout(Some(Duration::from_millis(500))).expect("a timeout");
    let at = receiver.local_addr().expect("bound");
    let sender = testbed.in_client(|| UdpSocket::bind((from, 0))).expect("a socket");
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let stop = &stop;
        let sending = scope.spawn(move || {
            let mut sent = 0u64;
            while !stop.load(Ordering::Acquire) {
                sender.send_to(&sent.to_be_bytes(), at).expect("sent");
                sent += 1;
                thread::sleep(Duration::from_micros(200));
            }
            sent
        });
        let receiving = scope.spawn(move || {
            let (mut received, mut next, mut in_order) = (0u64, 0u64, true);
            let mut buffer = [0; 64];
            loop {
                match receiver.recv(&mut buffer) {
                    Ok(8) => {
                        let number = u64::from_be_bytes(*buffer.first_chunk().expect("eight"));
                        in_order &= number >= next;
                        (received, next) = (received + 1, number + 1);
                    }
                    Ok(len) => panic!("{len} bytes that nobody sent"),
                    Err(_) if stop.load(Ordering::Acquire) => return (received, in_order),
                    Err(_) => {}
                }
            }
        });
        // A work that panics ends the traffic too.
        let worked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
        stop.store(true, Ordering::Release);
        let sent = sending.join().expect("sent");
        let (received, in_order) = receiving.join().expect("received");
        worked.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        Seen { sent, received, in_order }
    })
}
