//! STUN on a socket of its own: a client asks from which address its packets come.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use tokio::net::UdpSocket;
use weir_core::relay::stun;

use super::Shared;

/// A request has some 40 bytes; what is longer is none.
const DATAGRAM_MAX: usize = 1500;

pub async fn answer(socket: UdpSocket, shared: Arc<Shared>) {
    let (mut datagram, mut out) = ([0; DATAGRAM_MAX], Vec::with_capacity(stun::RESPONSE_MAX));
    loop {
        // An error is about an earlier answer that could not be delivered.
        let Ok((length, from)) = socket.recv_from(&mut datagram).await else { continue };
        let Ok(transaction) = stun::request(&datagram[..length]) else {
            shared.counters.stun_ignored.fetch_add(1, Relaxed);
            continue;
        };
        out.clear();
        stun::respond(&transaction, from, &mut out);
        // Lost as any datagram may be.
        let _ = socket.try_send_to(&out, from);
        shared.counters.stun_answered.fetch_add(1, Relaxed);
    }
}
