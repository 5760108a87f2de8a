//! Listening sockets: made with a long queue, ready to be shared by threads and handed to a successor.
//!
//! Promises: what [`options`] sets on a listener every connection accepted from it has (Linux copies the socket), so that
//! none of them costs system calls for it. Refuses: addresses that cannot be had, with what to do about it.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, UdpSocket};
use std::os::fd::AsFd;
use std::time::Duration;

use rustix::net::sockopt;
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, ipproto, listen, socket_with};

use crate::error::ListenError;

/// What a listening socket is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ListenerKind {
    /// DERP and pages, under TLS unless that is off.
    Relay,
    /// Pages without TLS.
    Pages,
}

/// Connections the kernel completes while we are busy; it cuts this to its own limit (`somaxconn`).
const BACKLOG: i32 = 16_384;
/// What was sent and is not acknowledged for so long ends a connection.
const USER_TIMEOUT_MS: u32 = 15_000;
/// A silent connection is asked whether it lives.
const KEEPALIVE: Duration = Duration::from_secs(600);

/// What every connection has, set on it or on its listener. One that went away meanwhile says so at its next read.
pub fn options(socket: impl AsFd) {
    let _ = sockopt::set_tcp_nodelay(&socket, true);
    let _ = sockopt::set_tcp_user_timeout(&socket, USER_TIMEOUT_MS);
    let _ = sockopt::set_socket_keepalive(&socket, true);
    let _ = sockopt::set_tcp_keepidle(&socket, KEEPALIVE);
}

pub fn tcp(address: SocketAddr) -> Result<TcpListener, ListenError> {
    either(address, |address| {
        let family = family(address);
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(family, SocketType::STREAM, flags, Some(ipproto::TCP))?;
        sockopt::set_socket_reuseaddr(&socket, true)?;
        dual(&socket, address)?;
        bind(&socket, &address)?;
        listen(&socket, BACKLOG)?;
        Ok(TcpListener::from(socket))
    })
    .map_err(|e| ListenError { service: "listen", address, error: e.into() })
}

pub fn udp(address: SocketAddr) -> Result<UdpSocket, ListenError> {
    either(address, |address| {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(family(address), SocketType::DGRAM, flags, Some(ipproto::UDP))?;
        dual(&socket, address)?;
        bind(&socket, &address)?;
        Ok(UdpSocket::from(socket))
    })
    .map_err(|e| ListenError { service: "stun", address, error: e.into() })
}

fn family(address: SocketAddr) -> AddressFamily {
    if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 }
}

/// Every IPv6 address is every IPv4 address too.
fn dual(socket: &rustix::fd::OwnedFd, address: SocketAddr) -> rustix::io::Result<()> {
    match address.ip() {
        IpAddr::V6(ip) if ip.is_unspecified() => sockopt::set_ipv6_v6only(socket, false),
        _ => Ok(()),
    }
}

/// Where there is no IPv6, every address is every IPv4 address.
fn either<T>(
    address: SocketAddr,
    open: impl Fn(SocketAddr) -> rustix::io::Result<T>,
) -> Result<T, rustix::io::Errno> {
    use rustix::io::Errno;
    match open(address) {
        Err(Errno::AFNOSUPPORT | Errno::ADDRNOTAVAIL)
            if address.is_ipv6() && address.ip().is_unspecified() =>
        {
            open(SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), address.port()))
        }
        opened => opened,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_accepted_connection_has_what_its_listener_was_set_to() {
        let listener = tcp("127.0.0.1:0".parse().expect("an address")).expect("free");
        options(&listener);
        let address = listener.local_addr().expect("bound");
        let _client = std::net::TcpStream::connect(address).expect("it listens");
        listener.set_nonblocking(false).expect("set");
        let (accepted, _) = listener.accept().expect("somebody came");
        assert_eq!(sockopt::tcp_nodelay(&accepted), Ok(true));
        assert_eq!(sockopt::tcp_user_timeout(&accepted), Ok(USER_TIMEOUT_MS));
        assert_eq!(sockopt::socket_keepalive(&accepted), Ok(true));
        assert_eq!(sockopt::tcp_keepidle(&accepted), Ok(KEEPALIVE));
    }

    #[test]
    fn every_address_takes_both_families_and_a_taken_one_says_so() {
        let listener = tcp("[::]:0".parse().expect("an address")).expect("free");
        let port = listener.local_addr().expect("bound").port();
        std::net::TcpStream::connect(("127.0.0.1", port)).expect("IPv4 reaches it");
        let taken = tcp(SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), port)).expect_err("taken").to_string();
        assert!(taken.contains("another program has it"), "{taken}");
    }
}
