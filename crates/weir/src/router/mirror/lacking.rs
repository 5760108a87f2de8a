//! Which of the kernel's routes a router without them does not forward to.

use std::collections::BTreeMap;
use std::fmt;

use weir_core::mirror::{KernelRoute, Outcome, Why};
use weir_core::route::Prefix;
use weir_core::wire::rtnetlink::Protocol;

/// Prefixes named; the rest are counted.
const NAMED: usize = 5;

/// The kernel's routes, for who does not take them over.
#[derive(Debug, Default)]
pub struct Lacking {
    kernel: BTreeMap<Prefix, Protocol>,
    said: Option<String>,
}

impl Lacking {
    pub fn observe(&mut self, routes: Vec<(Prefix, Option<KernelRoute>)>) {
        for (prefix, route) in routes {
            match route {
                Some(route) if !matches!(route.outcome, Outcome::Kernel(Why::Local | Why::Rule)) => {
                    self.kernel.insert(prefix, route.protocol);
                }
                _ => _ = self.kernel.remove(&prefix),
            }
        }
    }

    /// The sentence, and whether it is another than before.
    pub fn look(&mut self, has: impl Fn(Prefix) -> bool) -> (Option<&str>, bool) {
        let lacking = self.kernel.iter().filter(|(prefix, _)| !has(**prefix));
        let now = summary(lacking.map(|(&prefix, &protocol)| (prefix, protocol)));
        let changed = now != self.said;
        self.said = now;
        (self.said.as_deref(), changed)
    }

    pub fn said(&self) -> Option<&str> {
        self.said.as_deref()
    }
}

/// `12 routes of the kernel are not in the configuration: 10 bgp (…), 2 static (…)`.
pub fn summary(routes: impl Iterator<Item = (Prefix, Protocol)>) -> Option<String> {
    let mut by: BTreeMap<Protocol, (usize, Vec<Prefix>)> = BTreeMap::new();
    for (prefix, protocol) in routes {
        let entry = by.entry(protocol).or_default();
        entry.0 += 1;
        if entry.1.len() < NAMED {
            entry.1.push(prefix);
        }
    }
    let total: usize = by.values().map(|e| e.0).sum();
    if total == 0 {
        return None;
    }
    let parts: Vec<String> = by.iter().map(|(protocol, entry)| Part(*protocol, entry).to_string()).collect();
    let (routes, are) = if total == 1 { ("route", "is") } else { ("routes", "are") };
    Some(format!("{total} {routes} of the kernel {are} not in the configuration: {}", parts.join(", ")))
}

struct Part<'a>(Protocol, &'a (usize, Vec<Prefix>));

impl fmt::Display for Part<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Part(protocol, (count, named)) = self;
        let names: Vec<String> = named.iter().map(ToString::to_string).collect();
        let more = if *count > named.len() { ", …" } else { "" };
        write!(f, "{count} {protocol} ({}{more})", names.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn routes_are_counted_by_protocol_and_the_first_are_named() {
        let of = |n: u8| (format!("10.{n}.0.0/16").parse().expect("a prefix"), Protocol(186));
        let other = ("192.0.2.0/24".parse().expect("a prefix"), Protocol(4));
        assert_eq!(summary(std::iter::empty()), None);
        assert_eq!(
            summary((0..7).map(of).chain([other])).expect("lacking"),
            "8 routes of the kernel are not in the configuration: 1 static (192.0.2.0/24), \
             7 bgp (10.0.0.0/16, 10.1.0.0/16, 10.2.0.0/16, 10.3.0.0/16, 10.4.0.0/16, …)"
        );
    }
}
