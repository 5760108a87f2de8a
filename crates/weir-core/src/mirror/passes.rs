//! Which destinations the kernel keeps, as prefixes for the program in front of it: the longest that covers an address
//! says whether it is the kernel's.
//!
//! ```text
//! 0.0.0.0/0      kernel   by an interface that is no port
//! 10.0.0.0/8     weir     named only because the default route is the kernel's
//! 10.1.0.0/16    kernel   and everything in it, where a policy rule names it
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
    /// Destinations it keeps for a policy rule, with the rule.
    pub by_rule: Vec<(Prefix, String)>,
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

    pub(super) fn contains(&self, prefix: Prefix) -> bool {
        self.prefixes.contains(&prefix)
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

/// Whether the second lies in the first.
pub(super) fn contains(cover: Prefix, prefix: Prefix) -> bool {
    cover.addr().is_ipv4() == prefix.addr().is_ipv4()
        && cover.len() <= prefix.len()
        && Prefix::new(prefix.addr(), cover.len()) == cover
}

/// `ruled`: destinations that policy rules name, which are among `kept` too.
pub(super) fn passes(
    routes: &BTreeMap<Prefix, Bucket>,
    (kept, ruled): (&Kept, &Kept),
    aside: &[Option<String>; 2],
) -> Passes {
    let mut passes = Passes { aside: aside.clone(), ..Passes::default() };
    for (family, whole) in everything().into_iter().enumerate() {
        let of_family = |p: &&Prefix| p.addr().is_ipv4() == (family == 0);
        let mut found = Vec::new();
        let mut cover: Option<Prefix> = None;
        for &prefix in kept.prefixes.iter().filter(of_family) {
            if passes.aside[family].is_some() || cover.is_some_and(|cover| contains(cover, prefix)) {
                continue;
            }
            cover = Some(prefix);
            found.push((prefix, true));
            let inside = routes.range(prefix..).map(|(p, _)| *p).take_while(|p| contains(prefix, *p));
            // What lies in a destination of a rule is the kernel's as that is.
            let inside = inside.filter(|&p| p != prefix && !ruled.contains(p) && !ruled.covers(p));
            found.extend(inside.take(PASSES_MAX + 1).map(|p| (p, kept.contains(p))));
            let rules = ruled.prefixes.range(prefix..).take_while(|p| contains(prefix, **p));
            found.extend(rules.filter(|&&p| p != prefix).map(|&p| (p, true)));
            if found.len() > PASSES_MAX {
                passes.aside[family] = Some(format!(
                    "{prefix} is the kernel's and more than {PASSES_MAX} routes into ports lie in it; make the interface it leads by a port"
                ));
            }
        }
        match passes.aside[family] {
            Some(_) => passes.prefixes.push((whole, true)),
            None => {
                found.sort_unstable();
                passes.prefixes.append(&mut found);
            }
        }
    }
    passes
}
