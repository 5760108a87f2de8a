//! Accepts connections and takes each to its end: a client of the workers, pages, or a counted refusal.
//!
//! Promises: accepting waits for no stranger, and one source's haste makes nobody else wait; a connection ends in exactly
//! one counter.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use rustls::ProtocolVersion;
use tokio::net::{TcpListener, TcpStream};
use tokio::time::sleep;
use weir_io::clock;

use super::access::Verifier;
use super::arrivals::Arrivals;
use super::counters::{End, count};
use super::http::{Head, HttpResponse, Wrong};
use super::limits::{Full, Share};
use super::listen::ListenerKind;
use super::upgrade::{Upgrade, derp, timed};
use super::wire::{Broken, Wire};
use super::{Live, Shared, pages};
use crate::certificates::alpn;

/// Out of descriptors or memory: tried again after this.
const PAUSE: Duration = Duration::from_millis(50);
/// Seconds after which a client that found no place may ask again.
const RETRY_AFTER: &str = "30";

/// What a listener's connections are served with.
pub struct ListenerContext {
    pub shared: Arc<Shared>,
    pub kind: ListenerKind,
    pub verifier: Arc<Verifier>,
    pub(super) arrivals: Arc<Arrivals>,
}

pub async fn accept(listener: TcpListener, site: Arc<ListenerContext>) {
    let (shared, mut said) = (site.shared.clone(), 0_u64);
    loop {
        match listener.accept().await {
            Ok((stream, peer)) => {
                count(&shared.counters.accepted);
                let now = clock::now();
                if !shared.limiter.may_come(peer.ip(), now) {
                    shared.counters.end(End::SourceRate);
                    continue;
                }
                let site = site.clone();
                let stranger = tokio::spawn(async move { site.serve(stream, peer).await });
                if shared.limiter.enter(stranger.abort_handle()) {
                    shared.counters.end(End::Evicted);
                }
                match shared.limiter.accepted(now) {
                    0 => {}
                    wait => sleep(Duration::from_nanos(wait)).await,
                }
            }
            Err(error) => {
                count(&shared.counters.accept_failed);
                // A line at the first time and at each doubling: a full table fails a thousand times.
                said += 1;
                if said.is_power_of_two() {
                    tracing::warn!("accept: {error}; raise the limit of open files (LimitNOFILE=)");
                }
                sleep(PAUSE).await;
            }
        }
    }
}

impl ListenerContext {
    async fn serve(&self, stream: TcpStream, peer: SocketAddr) {
        let counters = &self.shared.counters;
        let Some(share) = self.shared.limiter.share(peer.ip()) else {
            counters.end(End::Source);
            return;
        };
        let wire = Wire::charged(stream, self.shared.limiter.budget.charge(peer.ip()));
        if let Err(end) = self.talk(wire, peer, &share).await {
            tracing::debug!("{peer}: ended before it was a client: {}", end.name());
            counters.end(end);
        }
    }

    async fn talk(&self, mut wire: Wire, peer: SocketAddr, _share: &Share) -> Result<(), End> {
        let live = self.shared.live.load_full();
        let (step, page) = (live.acceptor.limits.step, live.acceptor.limits.page);
        match &live.tls {
            Some(tls) if self.kind == ListenerKind::Relay => {
                if live.acceptor.tls.by_kernel() {
                    wire.by_records();
                }
                if let Some(challenge) = tls.identity.challenge_tls()
                    && timed(step, wire.offers(alpn::PROTOCOL)).await?
                {
                    timed(step, wire.accept(challenge)).await?;
                    wire.close().await;
                    return Err(End::Pages);
                }
                let facts = timed(step, wire.accept(tls.config.clone())).await?;
                let counters = &self.shared.counters;
                match facts.version {
                    ProtocolVersion::TLSv1_3 => count(&counters.tls13),
                    _ => count(&counters.tls12),
                }
            }
            _ => count(&self.shared.counters.plain),
        }
        let mut patience = step;
        loop {
            let head = match self.head(&mut wire, patience).await {
                Ok(head) => head,
                // A browser that has its page keeps the connection for a while.
                Err(End::Gone | End::Deadline) if patience == page => return Err(End::Pages),
                Err(end) => return Err(end),
            };
            count(&self.shared.counters.requests);
            let answer = match (head.path.as_str(), self.kind) {
                ("/derp", ListenerKind::Relay) if head.method == "GET" => match Upgrade::of(&head) {
                    Ok(upgrade) => match self.shared.limiter.place(peer.ip()) {
                        Ok(place) => return derp(wire, &head, (upgrade, place), self, peer).await,
                        Err(full) => return Err(self.no_place(wire, full, page).await),
                    },
                    Err(answer) => answer.write(false, false),
                },
                _ => {
                    let answer = self.page(&live, &wire, peer, &head);
                    answer.write(head.method == "HEAD", head.keep_alive)
                }
            };
            let upgrade = head.path == "/derp";
            timed(page, wire.send(&answer)).await?;
            if upgrade || !head.keep_alive {
                wire.close().await;
                return Err(if upgrade { End::Upgrade } else { End::Pages });
            }
            patience = page;
        }
    }

    fn page(&self, live: &Live, wire: &Wire, peer: SocketAddr, head: &Head) -> HttpResponse {
        pages::page(&self.shared, live, self.kind, wire.is_tls(), peer.ip(), head)
    }

    /// Says so: a client shows it to its user.
    async fn no_place(&self, mut wire: Wire, full: Full, patience: Duration) -> End {
        let (status, why, end) = match full {
            Full::All => (503, "this relay serves as many clients as it may\n", End::Full),
            Full::Source => {
                (429, "this relay serves as many clients of one address as it may\n", End::SourceFull)
            }
        };
        let answer = HttpResponse::text(status, why).with("Retry-After", RETRY_AFTER);
        // Whoever does not listen is counted all the same.
        if timed(patience, wire.send(&answer.write(false, false))).await.is_ok() {
            wire.close().await;
        }
        end
    }

    /// The next request, within a deadline for all of it.
    async fn head(&self, wire: &mut Wire, patience: Duration) -> Result<Head, End> {
        let wrong = {
            let read = async {
                loop {
                    match Head::parse(&wire.plain) {
                        Ok(Some((head, length))) => {
                            wire.plain.drain(..length);
                            return Ok::<Result<Head, Wrong>, Broken>(Ok(head));
                        }
                        Ok(None) => wire.more().await?,
                        Err(wrong) => return Ok(Err(wrong)),
                    }
                }
            };
            match timed(patience, read).await? {
                Ok(head) => return Ok(head),
                Err(wrong) => wrong,
            }
        };
        timed(patience, wire.send(&wrong.answer().write(false, false))).await?;
        wire.close().await;
        Err(End::Http)
    }
}
