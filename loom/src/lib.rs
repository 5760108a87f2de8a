//! Code that several threads of weir run at once, with the atomics and locks of loom in place of the standard library's:
//! `tests/` runs it in every order, and with every value that a load may see.
//!
//! Promises: what is run are the files of the crates, not copies. What they name of their neighbours stands here, as
//! little of it as they need. Refuses: `SeqCst` as more than acquire and release, because loom knows no more; who passes
//! here needs no more.

// What the files know as other crates.
extern crate self as rtrb;
extern crate self as weir_io;

#[path = "../../crates/weir-relay/src/cross_worker.rs"]
pub mod cross_worker;
#[path = "../../crates/weir-core/src/ipsec/durable.rs"]
pub mod durable;
#[path = "../../crates/weir-core/src/ipsec/flow_cache/hash.rs"]
pub mod hash;
#[path = "../../crates/weir-relay/src/inbox.rs"]
pub mod inbox;
#[path = "../../crates/weir-core/src/ipsec/flow_cache/table.rs"]
pub mod table;

mod ring;
pub mod wake;

pub use ring::{Consumer, Producer, PushError, RingBuffer};

/// What both crates have under this name.
pub mod sync {
    pub use loom::sync::{Mutex, MutexGuard, atomic};
    pub use loom::thread;
}

/// Of `weir_core::ipsec::flow_cache::key`.
pub mod key {
    pub const EMPTY: u64 = 0;
    pub type Key<const K: usize> = [u64; K];
}

/// Of `weir_core::ipsec`.
pub mod ipsec {
    pub mod spd {
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub struct PolicyIndex(pub u32);
    }
}

/// Of `weir_relay::session`: a batch is its number.
pub mod session {
    #[derive(Debug, PartialEq, Eq)]
    pub struct CrossWorkerBatch(pub u64);
}

/// Of `weir_relay::messages`: an event is its number.
pub mod messages {
    pub type Event = u64;
}

/// Runs `work` in every order in which threads take the processor from each other at most three times between accesses, which
/// takes seconds; `LOOM_MAX_PREEMPTIONS` says how many instead.
pub fn model(work: impl Fn() + Send + Sync + 'static) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = model.preemption_bound.or(Some(PREEMPTIONS));
    model.check(work);
}

/// Most races need two.
const PREEMPTIONS: usize = 3;
