//! Bytes that are known at both ends.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::thread;

use super::machine::PATIENCE;

/// `len` bytes that look random and differ by `seed`.
pub fn bytes(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as u8
    };
    (0..len).map(|_| next()).collect()
}

/// Sends `len` known bytes by TCP to where `listener` is and as many others back.
pub fn converse(listener: TcpListener, connect: impl FnOnce(SocketAddr) -> TcpStream, len: usize) {
    let at = listener.local_addr().expect("bound");
    let server = thread::spawn(move || {
        let (mut stream, _) = listener.accept().expect("a connection");
        stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        let mut got = Vec::new();
        stream.read_to_end(&mut got).expect("the whole stream");
        stream.write_all(&bytes(2, len)).expect("the answer");
        got == bytes(1, len)
    });
    let mut client = connect(at);
    client.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    client.write_all(&bytes(1, len)).expect("sent");
    client.shutdown(Shutdown::Write).expect("no more");
    let mut got = Vec::new();
    client.read_to_end(&mut got).expect("the whole answer");
    assert!(got == bytes(2, len), "{} of {len} bytes came back, or others", got.len());
    assert!(server.join().expect("the server"), "other bytes arrived");
}
