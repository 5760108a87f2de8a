//! Listening sockets: made with a long queue, ready to be shared by threads and handed to a successor.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, UdpSocket};

use rustix::net::sockopt;
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, ipproto, listen, socket_with};

/// What a listening socket is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Door {
    /// DERP and pages, under TLS unless that is off.
    Relay,
    /// Pages without TLS.
    Pages,
}

/// Connections the kernel completes while we are busy; it cuts this to its own limit (`somaxconn`).
const BACKLOG: i32 = 16_384;

pub fn tcp(address: SocketAddr) -> Result<TcpListener, String> {
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
    .map_err(|e| refused("listen", address, &e))
}

pub fn udp(address: SocketAddr) -> Result<UdpSocket, String> {
    either(address, |address| {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(family(address), SocketType::DGRAM, flags, Some(ipproto::UDP))?;
        dual(&socket, address)?;
        bind(&socket, &address)?;
        Ok(UdpSocket::from(socket))
    })
    .map_err(|e| refused("stun", address, &e))
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

fn refused(what: &str, address: SocketAddr, error: &rustix::io::Errno) -> String {
    let error = io::Error::from(*error);
    let remedy = match error.kind() {
        io::ErrorKind::AddrInUse => "another program has it: stop that one, or choose another port",
        io::ErrorKind::PermissionDenied => {
            "ports below 1024 need root or CAP_NET_BIND_SERVICE; run with it, or choose a higher port"
        }
        io::ErrorKind::AddrNotAvailable => "this host has no such address; name one it has, or `:PORT`",
        _ => "choose another address",
    };
    format!("{what} {address}: cannot listen ({error}); {remedy}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_address_takes_both_families_and_a_taken_one_says_so() {
        let listener = tcp("[::]:0".parse().expect("an address")).expect("free");
        let port = listener.local_addr().expect("bound").port();
        std::net::TcpStream::connect(("127.0.0.1", port)).expect("IPv4 reaches it");
        let taken = tcp(SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), port)).expect_err("taken");
        assert!(taken.contains("another program has it"), "{taken}");
    }
}
