//! Chunks of closed ports that the kernel may still write or read.
//!
//! ```text
//! port closed ─► its chunks wait here ─► its queue can be bound: the pool is gone ─► umem
//! ```
//!
//! Closing the sockets of a queue does not end what is done with their memory. The last reference to the queue's pool leaves the
//! rest to a work item (`xp_put_pool`, `xp_release_deferred` in net/xdp/xsk_buff_pool.c): only there is the driver of a
//! zero-copy queue told to stop (`xp_disable_drv_zc`), and until it has, the card writes what it receives into chunks from the
//! fill ring. In copy mode a driver that takes pages (`IFF_TX_SKB_NO_LINEAR`: virtio-net) sends from chunks until it is done;
//! its socket buffers keep the socket, and with it the pool. After both, `xp_clear_dev` takes the pool off its queue, and
//! until then a bind to that queue says `EBUSY` before it looks at anything else (`xp_assign_dev`). So a bind that succeeds
//! proves that the pool before is gone; so does an interface that is gone, which was stopped before it was taken off the list.
//!
//! Promises: no chunk goes home while the kernel may use it, whoever asks for it; chunks that wait are counted
//! ([`Umem::lingering`]); they wait no longer than until the queue is bound anew, here or by a look that takes it for some
//! milliseconds. Refuses to guess: where no look succeeds (another program has the queue) they wait on, and only they.
//!
//! [`Umem::lingering`]: crate::umem::Umem::lingering

use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::{Bind, socket};
use crate::ring::{Addr, Consumer, Desc, Producer, Which};
use crate::umem::{ChunkSize, Region, Umem};

/// The first look; a successor that comes at once is there before.
const FIRST_LOOK: Duration = Duration::from_millis(20);
/// Looks become rarer up to this.
const LAST_PAUSE: Duration = Duration::from_secs(1);
/// Entries of the rings of a look, and its chunks.
const LOOK: u32 = 2;

/// A queue of an interface in a network namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct QueueId {
    /// Its inode.
    namespace: u64,
    ifindex: u32,
    queue: u32,
}

impl QueueId {
    /// The queue of a device in this thread's network namespace.
    pub fn here(ifindex: u32, queue: u32) -> QueueId {
        // Without procfs all namespaces are taken for one: a queue of the same number elsewhere then ends the wait too.
        let namespace = std::fs::metadata("/proc/thread-self/ns/net").map_or(0, |meta| meta.ino());
        QueueId { namespace, ifindex, queue }
    }
}

/// What a closed port held.
#[derive(Debug)]
struct Closed {
    place: QueueId,
    /// Empty once they went home.
    chunks: Mutex<Option<(Arc<Region>, Vec<u32>)>>,
    home: Condvar,
}

/// Every closed port whose chunks wait.
static WAITING: Mutex<Vec<Arc<Closed>>> = Mutex::new(Vec::new());

/// A poisoned lock means a panic elsewhere; what it guards is valid at every step.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Keeps chunks, claimed by a port whose sockets are closed, until their queue's pool is gone.
pub(super) fn keep(place: QueueId, region: Arc<Region>, chunks: Vec<u32>) {
    if chunks.is_empty() {
        return;
    }
    region.linger(chunks.len());
    let closed = Arc::new(Closed { place, chunks: Mutex::new(Some((region, chunks))), home: Condvar::new() });
    lock(&WAITING).push(closed.clone());
    // A thread of its own, because it has to be in this thread's namespace. Without one the next bind ends the wait.
    let _ = std::thread::Builder::new().name("af_xdp-closed".into()).spawn(move || closed.wait());
}

/// The queue was bound: the pools of ports closed before are gone.
pub(super) fn bound(place: QueueId) {
    let waiting = lock(&WAITING).clone();
    waiting.iter().filter(|closed| closed.place == place).for_each(|closed| closed.send_home());
}

impl Closed {
    fn wait(&self) {
        let mut pause = FIRST_LOOK;
        loop {
            let chunks = lock(&self.chunks);
            let (chunks, _) = self
                .home
                .wait_timeout_while(chunks, pause, |chunks| chunks.is_some())
                .unwrap_or_else(PoisonError::into_inner);
            if chunks.is_none() {
                return;
            }
            drop(chunks);
            if is_free(self.place) {
                return self.send_home();
            }
            pause = (pause * 2).min(LAST_PAUSE);
        }
    }

    fn send_home(&self) {
        if let Some((region, chunks)) = lock(&self.chunks).take() {
            region.end_lingering(&chunks);
        }
        lock(&WAITING).retain(|closed| !std::ptr::eq(&**closed, self));
        self.home.notify_all();
    }
}

/// Whether no pool is on the queue: it can be bound, or its interface is gone. Anything else proves nothing.
fn is_free(place: QueueId) -> bool {
    let Ok(umem) = Umem::new(LOOK, ChunkSize::default()) else { return false };
    let look = || {
        let socket = socket::open()?;
        let fd = socket.as_fd();
        socket::register(fd, umem.region())?;
        let _fill = Producer::<Addr>::of_socket(fd, Which::Fill, LOOK)?;
        let _completion = Consumer::<Addr>::of_socket(fd, Which::Completion, LOOK)?;
        let _rx = Consumer::<Desc>::of_socket(fd, Which::Rx, LOOK)?;
        socket::bind(fd, place.ifindex, place.queue, Bind::Copy)
    };
    match look() {
        Ok(()) => true,
        Err(error) => error.raw_os_error() == Some(libc::ENODEV),
    }
}
