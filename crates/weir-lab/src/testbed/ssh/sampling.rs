//! Profiled runs on hosts: the agent of the device under test samples, the lab says when the window was.
//!
//! Promises: the window is told by that host's own clock; what it lacked is said with its name.

use std::time::Duration;

use weir_core::time::Nanos;

use super::clocks::Offset;
use super::fleet::Fleet;
use crate::agent::protocol::Request;
use crate::experiment::hosts::{Role, Timeouts};
use crate::model::LabError;
use crate::profile::folded;

/// Has the SUT's CPUs sampled from now on.
pub fn start(
    fleet: &mut Fleet,
    limits: &Timeouts,
    frequency_hz: u32,
    expected: Duration,
) -> Result<(), LabError> {
    let request = Request::Sample { frequency_hz, expected_ms: expected.as_millis() as u64 };
    fleet.ask(Role::DeviceUnderTest, "sample", &request, limits.answer.0)
}

/// Folded stacks of a window that is known by the generator's clock.
pub fn finish(fleet: &mut Fleet, limits: &Timeouts, (from, to): (Nanos, Nanos)) -> Result<String, LabError> {
    let [near, device] = [Role::Generator, Role::DeviceUnderTest];
    let (mut from, mut to) = (from, to);
    let clock = fleet.channel(near)?.hello.clock.clone();
    if fleet.channel(device)?.hello.clock != clock {
        let mut measure =
            |role| Offset::measure(|| fleet.ask(role, "clock", &Request::Clock, limits.answer.0));
        let (theirs, its) = (measure(near)?, measure(device)?);
        (from, to) = (theirs.translate(from, its), theirs.translate(to, its));
    }
    let request = Request::Profile { from, to };
    let within = limits.profile.0 + limits.answer.0;
    let stacks: String = fleet.ask(device, "profile", &request, within)?;
    let who = &fleet.channel(device)?.who;
    let (mut header, profile) = folded::read(who, &stacks)?;
    header.notes.iter_mut().for_each(|note| note.insert_str(0, &format!("{who}: ")));
    folded::write(&header, &profile)
}
