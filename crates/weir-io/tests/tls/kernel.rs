//! Kernel TLS where it is missing: refused with its reason, and the keys still serve.

use std::net::{TcpListener, TcpStream};
use std::os::fd::AsFd;

use weir_io::tls::kernel::{self, KernelTlsError};

use crate::ends::{SUITES, handshakes, sealed};

#[test]
fn keys_that_the_kernel_refuses_still_serve_in_user_space() {
    // On a socket that is no TCP, every kernel refuses.
    let (near, _far) = std::os::unix::net::UnixStream::pair().expect("a pair");
    for (version, suite) in SUITES {
        let (client, server) = handshakes(version, suite, usize::MAX);
        let (established, _) = server.establish().expect("the keys");
        let refusal = established.offload(near.as_fd()).expect_err("no TLS on this socket");
        assert!(refusal.why.to_string().contains("kernel"), "{}", refusal.why);
        let mut session = refusal.keys.expect("no key was given").session().expect("a session");
        let (mut client, _) = client.finish().expect("the keys");
        let mut record = sealed(&mut client, b"still here");
        let opened = session.open(&mut record).expect("opens");
        assert_eq!(&record[opened.plain], b"still here");
    }
}

#[test]
fn support_of_this_kernel_is_known_with_its_reason() {
    match kernel::support() {
        Ok(_) => {}
        Err(why @ KernelTlsError::NotTried(_)) => assert!(why.to_string().contains("loopback"), "{why}"),
        Err(why @ KernelTlsError::NotAttached(_)) => {
            assert!(why.to_string().contains("attaches no TLS"), "{why}")
        }
        Err(why) => assert!(why.to_string().contains("use TLS in user space"), "{why}"),
    }
}

#[test]
fn stream_goes_on_after_a_refusal() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let near = TcpStream::connect(listener.local_addr().expect("bound")).expect("connects");
    let (far, _) = listener.accept().expect("connects");
    let (version, suite) = SUITES[0];
    let (client, server) = handshakes(version, suite, usize::MAX);
    let Err(refusal) = server.establish().expect("the keys").0.offload(near.as_fd()) else {
        return; // this kernel has it: the second kernel's tests say what it does then
    };
    let mut session = refusal.keys.expect("no key was given").session().expect("a session");
    let (mut client, _) = client.finish().expect("the keys");
    let record = sealed(&mut session, b"over the same socket");
    std::io::Write::write_all(&mut &near, &record).expect("written");
    let mut received = vec![0; record.len()];
    std::io::Read::read_exact(&mut &far, &mut received).expect("read");
    let opened = client.open(&mut received).expect("opens");
    assert_eq!(&received[opened.plain], b"over the same socket");
}
