//! Which destinations the kernel keeps, as prefixes for the program in front of it: the longest that covers an address
//! says whether it is the kernel's.
//!
//! ```text
//! 0.0.0.0/0      kernel   by an interface that is no port
//! 10.0.0.0/8     weir     named only because the default route is the kernel's
//! 10.1.0.0/16    kernel
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::net::{Ipv4Addr, Ipv6Addr};

use super::Bucket;
use crate::route::Prefix;

/// Prefixes of one family: 65,536 × about 100 B of the kernel's trie ≈ 6.5 MB.
pub const PASSES_MAX: usize = 1 << 16;

/// What the kernel keeps, sorted by prefix, and of which family it keeps everything, with the reason.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Passes {
    /// True: the kernel's.
    pub prefixes: Vec<(Prefix, bool)>,
    pub aside: [Option<String>; 2],
}

/// Prefixes that are the kernel's.
#[derive(Debug)]
pub(super) struct Kept {
    prefixes: BTreeSet<Prefix>,
    /// How many of each length, IPv4 and IPv6: only lengths there are have to be looked for.
    lengths: [[u32; 129]; 2],
}

impl Default for Kept {
    fn default() -> Kept {
        Kept { prefixes: BTreeSet::new(), lengths: [[0; 129]; 2] }
    }
}

impl Kept {
    fn of_length(&mut self, prefix: Prefix) -> &mut u32 {
        &mut self.lengths[usize::from(prefix.addr().is_ipv6())][usize::from(prefix.len())]
    }

    /// True when that is new.
    pub(super) fn insert(&mut self, prefix: Prefix) -> bool {
        let new = self.prefixes.insert(prefix);
        *self.of_length(prefix) += u32::from(new);
        new
    }

    /// True when it was there.
    pub(super) fn remove(&mut self, prefix: Prefix) -> bool {
        let was = self.prefixes.remove(&prefix);
        *self.of_length(prefix) -= u32::from(was);
        was
    }

    pub(super) fn len(&self) -> usize {
        self.prefixes.len()
    }

    /// Whether a prefix lies in one of these, itself apart.
    pub(super) fn covers(&self, prefix: Prefix) -> bool {
        let there = &self.lengths[usize::from(prefix.addr().is_ipv6())];
        let shorter = (0..prefix.len()).filter(|&len| there[usize::from(len)] > 0);
        let mut covers = shorter.map(|len| Prefix::new(prefix.addr(), len));
        covers.any(|cover| self.prefixes.contains(&cover))
    }
}

/// All destinations of IPv4, and of IPv6.
pub(super) fn everything() -> [Prefix; 2] {
    [Prefix::new(Ipv4Addr::UNSPECIFIED.into(), 0), Prefix::new(Ipv6Addr::UNSPECIFIED.into(), 0)]
}

/// The first prefix that does not lie in this one.
fn contains(cover: Prefix, prefix: Prefix) -> bool {
    cover.addr().is_ipv4() == prefix.addr().is_ipv4()
        && cover.len() <= prefix.len()
        && Prefix::new(prefix.addr(), cover.len()) == cover
}

pub(super) fn passes(routes: &BTreeMap<Prefix, Bucket>, kept: &Kept, aside: &[Option<String>; 2]) -> Passes {
    let mut passes = Passes { prefixes: Vec::new(), aside: aside.clone() };
    for (family, whole) in everything().into_iter().enumerate() {
        let of_family = |p: &&Prefix| p.addr().is_ipv4() == (family == 0);
        let mut found = Vec::new();
        let mut cover: Option<Prefix> = None;
        for &prefix in kept.prefixes.iter().filter(of_family) {
            if passes.aside[family].is_some() || cover.is_some_and(|cover| contains(cover, prefix)) {
                continue;
            }
            cover = Some(prefix);
            // A default route that a VRF lacks is none of the routes.
            found.extend((!routes.contains_key(&prefix)).then_some((prefix, true)));
            let inside = routes.range(prefix..).map(|(p, _)| *p).take_while(|p| contains(prefix, *p));
            found.extend(inside.take(PASSES_MAX + 1).map(|p| (p, kept.prefixes.contains(&p))));
            if found.len() > PASSES_MAX {
                passes.aside[family] = Some(format!(
                    "{prefix} is the kernel's and more than {PASSES_MAX} routes into ports lie in it; make the interface it leads by a port"
                ));
            }
        }
        match passes.aside[family] {
            Some(_) => passes.prefixes.push((whole, true)),
            None => passes.prefixes.append(&mut found),
        }
    }
    passes
}
