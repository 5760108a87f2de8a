//! Listening sockets that somebody else made: a service manager (`LISTEN_FDS`), or the relay that is taken over from.
//!
//! Promises: a socket is found by what it is and where it listens, and given once. Refuses: descriptors that are no
//! listening sockets of the internet: they are closed.

use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::os::fd::OwnedFd;

use rustix::net::{SocketType, sockopt};

/// Sockets that listen already, of whoever had them before.
#[derive(Debug, Default)]
pub struct Inherited(Vec<(SocketType, SocketAddr, OwnedFd)>);

impl Inherited {
    /// Those of the internet that listen, or are datagram sockets.
    pub fn of(descriptors: Vec<OwnedFd>) -> Inherited {
        let known = |fd: OwnedFd| {
            let kind = sockopt::socket_type(&fd).ok()?;
            if kind == SocketType::STREAM && !sockopt::socket_acceptconn(&fd).ok()? {
                return None;
            }
            rustix::io::ioctl_fionbio(&fd, true).ok()?;
            // Only to ask for its address.
            let listener = TcpListener::from(fd);
            let address = listener.local_addr().ok()?;
            Some((kind, address, OwnedFd::from(listener)))
        };
        Inherited(descriptors.into_iter().filter_map(known).collect())
    }

    pub fn extend(&mut self, others: Inherited) {
        self.0.extend(others.0);
    }

    /// One that listens there.
    pub fn tcp(&mut self, address: SocketAddr) -> Option<TcpListener> {
        self.take(SocketType::STREAM, address).map(TcpListener::from)
    }

    pub fn udp(&mut self, address: SocketAddr) -> Option<UdpSocket> {
        self.take(SocketType::DGRAM, address).map(UdpSocket::from)
    }

    /// Those that nobody has taken: `TCP 192.0.2.1:80`.
    pub fn untaken(&self) -> impl Iterator<Item = String> {
        self.0.iter().map(|(kind, address, _)| {
            let transport = if *kind == SocketType::STREAM { "TCP" } else { "UDP" };
            format!("{transport} {address}")
        })
    }

    fn take(&mut self, kind: SocketType, address: SocketAddr) -> Option<OwnedFd> {
        let at = self.0.iter().position(|one| one.0 == kind && serves(one.1, address))?;
        Some(self.0.swap_remove(at).2)
    }
}

/// Where there is no IPv6, every address was every IPv4 address.
fn serves(bound: SocketAddr, wanted: SocketAddr) -> bool {
    let both = bound.ip().is_unspecified() && wanted.ip().is_unspecified() && wanted.is_ipv6();
    bound == wanted || both && bound.port() == wanted.port()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sockets_are_found_by_what_they_are_and_where_they_listen_and_once() {
        let tcp = TcpListener::bind("127.0.0.1:0").expect("a port");
        let udp = UdpSocket::bind("127.0.0.1:0").expect("a port");
        let (at, datagrams) = (tcp.local_addr().expect("bound"), udp.local_addr().expect("bound"));
        let file = std::fs::File::open("/dev/null").expect("there is one");
        let mut all = Inherited::of(vec![tcp.into(), udp.into(), file.into()]);
        assert_eq!(all.0.len(), 2, "a file is no socket");
        assert!(all.tcp(datagrams).is_none() && all.udp(at).is_none());
        assert!(all.tcp(at).is_some() && all.tcp(at).is_none());
        assert_eq!(all.untaken().collect::<Vec<_>>(), [format!("UDP {datagrams}")]);
        assert!(all.udp(datagrams).is_some());
        assert_eq!(all.untaken().count(), 0);
    }

    #[test]
    fn every_address_is_every_ipv4_address_where_there_is_no_ipv6() {
        let at = |text: &str| text.parse::<SocketAddr>().expect("an address");
        assert!(serves(at("0.0.0.0:443"), at("[::]:443")) && serves(at("[::]:443"), at("[::]:443")));
        assert!(!serves(at("0.0.0.0:443"), at("[::]:80")) && !serves(at("[::]:443"), at("0.0.0.0:443")));
        assert!(!serves(at("127.0.0.1:443"), at("[::]:443")));
    }
}
