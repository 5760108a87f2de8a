//! Whether wished-for SAs can be built, and who uses them.
//!
//! Promises: what passes has keys of the right length, an SPI nobody else has at its destination, ends of
//! one family that packets can have, limits that can be kept, and exactly one user: a tunnel, or the
//! policies of one SPD. Refuses an AEAD key two SAs share: sequence numbers are nonces, and both would
//! begin with the same (RFC 4106 3.1); only the two ends of one SA, where both are here, may.

use std::collections::{HashMap, HashSet};
use std::net::IpAddr;
use std::ops::RangeInclusive;

use super::super::nearest;
use super::super::problem::ipsec::{IpsecElement, SaProblem, UseProblem};
use super::{Check, not_a_host, policy};
use crate::ipsec::sa::{Dscp, Lifetime};
use crate::ipsec::{Direction, Params, SaSpec};

/// SAs there can be: 1,024 peers with one for each of 32 workers, both ways. With a window of 4,096
/// numbers (512 B), a name and its keys they are below 128 MiB.
pub const SAS_MAX: usize = 1 << 16;
/// SAs remembered on disk: as many as there can be, in use and once more gone, in a file of 16 MiB.
pub const RECORDS_MAX: usize = 2 * SAS_MAX;

/// RFC 4303 2.1: SPIs below 256 are reserved.
pub(in crate::state) const SPI_MIN: u32 = 256;

/// RFC 4303 3.4.3: the least a receiver must support; 64 blocks of 64 at most.
pub(in crate::state) const WINDOW: RangeInclusive<u16> = 32..=4096;

/// Who names an SA.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum By<'a> {
    Tunnel(&'a str),
    Spd(&'a str),
}

impl By<'_> {
    fn text(self) -> String {
        match self {
            By::Tunnel(name) => format!("tunnel {name}"),
            By::Spd(name) => format!("spd {name}"),
        }
    }
}

/// The user of each SA, and SAs by name.
#[derive(Default)]
pub(super) struct Uses<'a> {
    by: HashMap<&'a str, By<'a>>,
    specs: Option<HashMap<&'a str, &'a SaSpec>>,
}

impl<'a> Check<'a> {
    /// Notes that `by` names these SAs for a direction; returns those that exist.
    pub(super) fn uses_of(
        &mut self,
        at: IpsecElement,
        names: &'a [String],
        direction: Direction,
        by: By<'a>,
        uses: &mut Uses<'a>,
    ) -> Vec<(&'a str, &'a Params)> {
        let sas = &self.desired.ipsec.sas;
        let specs = uses.specs.get_or_insert_with(|| sas.iter().map(|s| (s.name.as_str(), s)).collect());
        let mut found = Vec::new();
        let mut here = HashSet::new();
        for name in names {
            let Some(&spec) = specs.get(name.as_str()) else {
                let nearest = nearest(name, sas.iter().map(|s| s.name.as_str())).map(str::to_string);
                self.at(at, UseProblem::Unknown { sa: name.clone(), nearest });
                continue;
            };
            let problems = policy::named(name, !here.insert(name), &spec.params, direction);
            problems.into_iter().for_each(|problem| self.at(at, problem));
            match uses.by.insert(&spec.name, by) {
                Some(other) if other != by => {
                    self.at(at, UseProblem::Elsewhere { sa: name.clone(), other: other.text() });
                }
                _ => {}
            }
            found.push((name.as_str(), &spec.params));
        }
        found
    }

    pub(super) fn sas(&mut self, uses: &Uses<'a>) {
        let sas = &self.desired.ipsec.sas;
        if sas.len() > SAS_MAX {
            self.at(IpsecElement::All, SaProblem::TooMany(sas.len()));
        }
        let mut names = HashSet::new();
        let mut spis: HashMap<(Direction, u32, IpAddr), &str> = HashMap::new();
        let mut keys: HashMap<&[u8], &SaSpec> = HashMap::new();
        for (i, sa) in sas.iter().enumerate() {
            let (at, params) = (IpsecElement::Sa(i), &sa.params);
            self.name(at, &sa.name, names.insert(&sa.name));
            let key = sa.keys.check(params.suite);
            if let Err(length) = key {
                self.at(at, SaProblem::KeyLength { length, suite: params.suite });
            }
            self.ends(at, params);
            self.numbers(at, params);
            let place = (params.direction, params.spi, params.destination);
            if let Some(other) = spis.insert(place, &sa.name) {
                let (spi, destination, other) = (params.spi, params.destination, other.to_string());
                self.at(at, SaProblem::DuplicateSpi { spi, destination, other });
            }
            if key.is_ok()
                && params.suite.encryption().is_aead()
                && let Some(other) = keys.insert(sa.keys.encryption.bytes(), sa)
                && !is_other_end(params, &other.params)
            {
                self.at(at, SaProblem::SharedKey { other: other.name.clone() });
            }
            if !uses.by.contains_key(sa.name.as_str()) {
                self.at(at, SaProblem::Unused);
            }
        }
    }

    fn ends(&mut self, at: IpsecElement, params: &Params) {
        for (end, address) in [("source", params.source), ("destination", params.destination)] {
            if let Some(wrong) = not_a_host(address) {
                self.at(at, SaProblem::NotAHost { end, address, wrong });
            }
        }
        let (source, destination) = (params.source, params.destination);
        if source.is_ipv4() != destination.is_ipv4() {
            self.at(at, SaProblem::MixedFamilies { source, destination });
        } else if source == destination {
            self.at(at, SaProblem::SameEnds(source));
        }
    }

    fn numbers(&mut self, at: IpsecElement, params: &Params) {
        if params.spi < SPI_MIN {
            self.at(at, SaProblem::ReservedSpi(params.spi));
        }
        let window = params.replay_window;
        if window != 0 && !WINDOW.contains(&window) {
            self.at(at, SaProblem::Window(window));
        }
        if params.esn && window == 0 && params.direction == Direction::In {
            self.at(at, SaProblem::EsnWithoutWindow);
        }
        if params.hop_limit == 0 {
            self.at(at, SaProblem::HopLimit);
        }
        if let Dscp::Set(dscp) = params.dscp
            && dscp > 63
        {
            self.at(at, SaProblem::Dscp(dscp));
        }
        if params.udp.is_some_and(|udp| udp.source == 0 || udp.destination == 0) {
            self.at(at, SaProblem::UdpPort);
        }
        let of = |l: Lifetime| [("bytes", l.bytes), ("packets", l.packets), ("seconds", l.seconds)];
        for ((unit, soft), (_, hard)) in of(params.soft).into_iter().zip(of(params.hard)) {
            if soft == Some(0) || hard == Some(0) {
                self.at(at, SaProblem::NoLife(unit));
            } else if let (Some(soft), Some(hard)) = (soft, hard)
                && soft > hard
            {
                self.at(at, SaProblem::SoftAboveHard { unit, soft, hard });
            }
        }
    }

    pub(super) fn is_tunnel(&self, port: &str) -> bool {
        self.desired.ipsec.tunnels.iter().any(|t| t.name == port)
    }
}

/// Whether two SAs are the sending and the receiving end of one.
fn is_other_end(a: &Params, b: &Params) -> bool {
    a.direction != b.direction && (a.spi, a.destination) == (b.spi, b.destination)
}
