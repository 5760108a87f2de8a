//! Whether one policy is sound, whatever is above and below it.
//!
//! Promises: what passes has a name worth reading, can match something, and names the SAs its action asks for, of
//! the right direction and mode. Refuses to look at other policies: whether a name is unique, who else uses an
//! SA, and whether the policy is hidden is asked by those who have the list.

use std::collections::HashSet;
use std::net::IpAddr;

use super::super::problem::ipsec::{PolicyProblem, UseProblem};
use super::super::{PolicySpec, PortProblem, Problem};
use super::is_name;
use crate::ipsec::flow::{has_icmp_type, has_ports};
use crate::ipsec::spd::{Action, AddressRange, PortRange};
use crate::ipsec::{Direction, Mode, Params};

/// Every mistake in a policy; `sa` is the SA of a name, or the name nearest to it.
pub(crate) fn check_policy<'a>(
    policy: &PolicySpec,
    sa: &dyn Fn(&str) -> Result<&'a Params, Option<String>>,
) -> Vec<Problem> {
    let mut problems: Vec<Problem> = Vec::new();
    if !is_name(&policy.name) {
        problems.push(PortProblem::BadName(policy.name.clone()).into());
    }
    selectors(policy, &mut |problem| problems.push(problem.into()));
    for (names, direction) in [(&policy.out, Direction::Out), (&policy.inbound, Direction::In)] {
        let mut here = HashSet::new();
        let mut found = Vec::new();
        for name in names {
            match sa(name) {
                Ok(params) => {
                    let twice = !here.insert(name);
                    problems.extend(named(name, twice, params, direction).into_iter().map(Problem::Use));
                    found.push((name.as_str(), params));
                }
                Err(nearest) => problems.push(UseProblem::Unknown { sa: name.clone(), nearest }.into()),
            }
        }
        protection(policy, direction, &found, &mut |problem| problems.push(problem.into()));
    }
    problems
}

/// What is wrong with naming an SA for a direction.
pub(super) fn named(name: &str, twice: bool, params: &Params, expected: Direction) -> Vec<UseProblem> {
    let sa = || name.to_string();
    let twice = twice.then(|| UseProblem::Twice { sa: sa() });
    let turned = (params.direction != expected).then(|| UseProblem::Direction { sa: sa(), expected });
    twice.into_iter().chain(turned).collect()
}

/// What it selects; `false` when its ranges are none.
pub(super) fn selectors(policy: &PolicySpec, wrong: &mut dyn FnMut(PolicyProblem)) -> bool {
    let mut sound = true;
    for range in [&policy.local, &policy.remote].into_iter().flatten() {
        match (range.first.is_ipv4(), range.last.is_ipv4()) {
            (first, last) if first != last => wrong(PolicyProblem::MixedRange(*range)),
            _ if range.first > range.last => wrong(PolicyProblem::BackwardRange(*range)),
            _ => continue,
        }
        sound = false;
    }
    let family =
        |ranges: &[AddressRange], v4| ranges.is_empty() || ranges.iter().any(|r| r.first.is_ipv4() == v4);
    let both = |v4| family(&policy.local, v4) && family(&policy.remote, v4);
    if sound && !both(true) && !both(false) {
        wrong(PolicyProblem::NoCommonFamily);
    } else if sound && ![Direction::Out, Direction::In].iter().any(|&d| policy.selects(d)) {
        wrong(PolicyProblem::IcmpFamily);
    }
    let protocol = policy.protocol;
    let ports = protocol.is_some_and(has_ports);
    for named in [policy.local_ports, policy.remote_ports] {
        sound &= range(named, ports, PolicyProblem::PortsWithout(protocol), wrong);
    }
    let icmp = protocol.is_some_and(has_icmp_type);
    sound & range(policy.icmp, icmp, PolicyProblem::IcmpWithout(protocol), wrong)
}

fn range(range: PortRange, has: bool, without: PolicyProblem, wrong: &mut dyn FnMut(PolicyProblem)) -> bool {
    if range.first > range.last {
        wrong(PolicyProblem::BackwardPorts(range));
        return false;
    }
    if range != PortRange::ANY && !has {
        wrong(without);
    }
    true
}

/// Whether a direction has the SAs the action asks for: `found` are those named that exist.
pub(super) fn protection(
    policy: &PolicySpec,
    direction: Direction,
    found: &[(&str, &Params)],
    wrong: &mut dyn FnMut(PolicyProblem),
) {
    let names = if direction == Direction::Out { &policy.out } else { &policy.inbound };
    match policy.action {
        Action::Protect if policy.applies(direction) && names.is_empty() => {
            wrong(PolicyProblem::NoSa(direction));
        }
        Action::Protect if !policy.applies(direction) && !names.is_empty() => {
            wrong(PolicyProblem::WrongWay(direction));
        }
        Action::Bypass | Action::Discard if !names.is_empty() => {
            wrong(PolicyProblem::UselessSa(policy.action));
        }
        _ => {}
    }
    // A transport-mode SA is between two addresses: its policy must be about them alone.
    let alone = |ranges: &[AddressRange], address: IpAddr| matches!(ranges, [only] if only.first == address && only.last == address);
    for (sa, params) in found.iter().filter(|(_, params)| params.mode == Mode::Transport) {
        let (local, remote) = match direction {
            Direction::Out => (params.source, params.destination),
            Direction::In => (params.destination, params.source),
        };
        if !alone(&policy.local, local) || !alone(&policy.remote, remote) {
            wrong(PolicyProblem::Ends { sa: sa.to_string(), local, remote });
        }
    }
}
