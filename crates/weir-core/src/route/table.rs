//! The control side: routes go in, snapshots come out.
//!
//! Two snapshots take turns, as in left-right concurrency (Ramalhete, Correia, 2015), but with an owner
//! count instead of a lock:
//!
//! ```text
//! publish n     A is current, B lags by the changes of n
//! publish n+1   nobody holds B ─► bring B up to date, B is current, A lags by the changes of n+1
//!               somebody holds B ─► leave it to them, copy A, bring the copy up to date
//! ```
//!
//! A snapshot is a pure function of the routes: bringing one up to date is repainting each changed
//! prefix from the sorted routes, whatever happened to it in between.

use std::fmt;
use std::sync::Arc;

use super::rib::{Key, Rib};

/// Changes that never call for a fresh build.
const FEW: usize = 64;

/// The immutable structure of one family. The trait is the border between [`RouteTable`] and the two
/// layouts, not something to implement elsewhere.
pub trait Fib: Clone + Default {
    type Prefix: Key;

    /// Length of the smallest area that is painted at once.
    const AREA_LEN: u8;

    /// Routes a fresh build handles in the time of painting one area.
    const ROUTES_PER_AREA: usize;

    /// A snapshot of all routes.
    fn build(rib: &Rib<Self::Prefix>) -> Self;

    /// Makes everything inside `area`, at most [`Fib::AREA_LEN`] long, what `rib` says; for the area of the
    /// default route, only the default.
    fn paint(&mut self, rib: &Rib<Self::Prefix>, area: Self::Prefix);

    /// Whether freed memory outweighs used memory, so that a fresh build is due.
    fn wasteful(&self) -> bool {
        false
    }
}

/// The routes of one family.
pub struct RouteTable<F: Fib> {
    rib: Rib<F::Prefix>,
    /// Places changed since `current`: prefixes cut to [`Fib::AREA_LEN`], where repainting begins.
    changed: Vec<F::Prefix>,
    current: Arc<F>,
    /// The snapshot before `current`, and what changed between the two.
    lagging: Option<(Arc<F>, Vec<F::Prefix>)>,
}

impl<F: Fib> RouteTable<F> {
    /// Adds or replaces a route; returns the value it had.
    pub fn insert(&mut self, prefix: F::Prefix, value: u32) -> Option<u32> {
        let old = self.rib.insert(prefix, value);
        if old != Some(value) {
            self.note(prefix);
        }
        old
    }

    /// Takes a route out; returns the value it had.
    pub fn remove(&mut self, prefix: F::Prefix) -> Option<u32> {
        let old = self.rib.remove(prefix);
        if old.is_some() {
            self.note(prefix);
        }
        old
    }

    /// Takes every route out.
    pub fn clear(&mut self) {
        let all: Vec<_> = self.rib.iter().map(|(prefix, _)| prefix).collect();
        self.rib.clear();
        for prefix in all {
            self.note(prefix);
        }
    }

    /// The value of exactly this prefix.
    pub fn get(&self, prefix: F::Prefix) -> Option<u32> {
        self.rib.get(prefix)
    }

    pub fn len(&self) -> usize {
        self.rib.len()
    }

    pub fn is_empty(&self) -> bool {
        self.rib.len() == 0
    }

    /// Every route, a covering one before what it covers.
    pub fn iter(&self) -> impl Iterator<Item = (F::Prefix, u32)> {
        self.rib.iter()
    }

    /// The route that decides where `addr` goes: the longest that covers it, and its value. It speaks of
    /// the routes as they are now; [`RouteTable::is_published`] says whether workers see the same.
    pub fn explain(&self, addr: <F::Prefix as Key>::Addr) -> Option<(F::Prefix, u32)> {
        self.rib.cover(F::Prefix::host(addr))
    }

    /// Whether the last snapshot holds every change.
    pub fn is_published(&self) -> bool {
        self.changed.is_empty()
    }

    /// A snapshot with every change so far.
    pub fn publish(&mut self) -> Arc<F> {
        if self.changed.is_empty() {
            return self.current.clone();
        }
        let changed = disjoint(std::mem::take(&mut self.changed));
        if changed.len() > FEW.max(self.rib.len() / F::ROUTES_PER_AREA) || self.current.wasteful() {
            self.lagging = None;
            self.current = Arc::new(F::build(&self.rib));
        } else {
            let next = self.caught_up(&changed);
            let old = std::mem::replace(&mut self.current, next);
            self.lagging = Some((old, changed));
        }
        self.current.clone()
    }

    /// The lagging snapshot, or a copy of the current one, with `changed` painted in.
    fn caught_up(&mut self, changed: &[F::Prefix]) -> Arc<F> {
        if let Some((mut snapshot, mut areas)) = self.lagging.take()
            && let Some(fib) = Arc::get_mut(&mut snapshot)
        {
            areas.extend(changed);
            for area in disjoint(areas) {
                fib.paint(&self.rib, area);
            }
            return snapshot;
        }
        let mut fib = F::clone(&self.current);
        for &area in changed {
            fib.paint(&self.rib, area);
        }
        Arc::new(fib)
    }

    /// Remembers a change. A route that flaps is remembered once in a while, not once a flap.
    fn note(&mut self, prefix: F::Prefix) {
        self.changed.push(prefix.cut(F::AREA_LEN));
        if self.changed.len() == self.changed.capacity() {
            self.changed = disjoint(std::mem::take(&mut self.changed));
            self.changed.reserve(self.changed.len());
        }
    }
}

/// Sorts prefixes and leaves out those another one covers; the default route covers only itself,
/// because [`Fib::paint`] treats it so.
fn disjoint<P: Key>(mut prefixes: Vec<P>) -> Vec<P> {
    prefixes.sort_unstable();
    let mut last: Option<P> = None;
    prefixes.retain(|&prefix| {
        let keep = last.is_none_or(|last| !last.covers(prefix) || (last == P::ALL && prefix != P::ALL));
        if keep {
            last = Some(prefix);
        }
        keep
    });
    prefixes
}

impl<F: Fib> Default for RouteTable<F> {
    fn default() -> Self {
        RouteTable { rib: Rib::default(), changed: Vec::new(), current: Arc::default(), lagging: None }
    }
}

impl<F: Fib> Clone for RouteTable<F> {
    /// The copy shares the current snapshot until either side publishes.
    fn clone(&self) -> Self {
        RouteTable {
            rib: self.rib.clone(),
            changed: self.changed.clone(),
            current: self.current.clone(),
            lagging: None,
        }
    }
}

impl<F: Fib + fmt::Debug> fmt::Debug for RouteTable<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RouteTable")
            .field("routes", &self.rib.len())
            .field("changed", &self.changed.len())
            .field("current", &self.current)
            .finish_non_exhaustive()
    }
}
