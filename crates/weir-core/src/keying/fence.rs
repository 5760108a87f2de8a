//! A fence: the kernel is given the last number of an SA, behind which it sends nothing by it and takes nothing.
//!
//! ```text
//! look ─► give the last number ─► look      in one request to the kernel
//! sent: number before + bytes counted between      received: number before, if no packet was counted between
//! ```
//!
//! Promises: whatever the kernel does by the SA before the fence is at or below what is returned; behind it nothing is. Pure functions of
//! what the kernel said. Refuses a fence that is found: what a weir that was killed had learned of the numbers before it may not have
//! come to its disk.

use std::fmt;

use crate::ipsec::Direction;
use crate::ipsec::durable::Amounts;
use crate::wire::xfrm::{Lifetime, Sa, last_number};

/// An SA of 32 bits with half of its numbers used changes hands no more.
const GO_ON_BELOW: u64 = 1 << 31;
/// So far ahead of its packets the kernel's number of an inbound SA is one it was given (by an earlier weir, without a device).
const GIVEN: u64 = 1 << 19;

/// The last number there is. Of received ones with ESN it is that before the upper half begins anew: the kernel takes what is below
/// its window to be 2^32 later (`xfrm_replay_seqhi`), where no peer comes and no check value is right.
pub fn last(sa: &Sa, direction: Direction) -> u64 {
    match (direction, last_number(sa)) {
        (Direction::In, u64::MAX) => u64::MAX >> 1,
        (_, last) => last,
    }
}

/// The last number the kernel gave out, or the highest it took; none where it does not tell.
pub fn number(sa: &Sa, direction: Direction) -> Option<u64> {
    let replay = sa.replay?;
    Some(if direction == Direction::Out { replay.sent } else { replay.received })
}

/// Whether the kernel may go on with an SA of which this number was used last.
pub fn may_go_on(sa: &Sa, number: u64) -> bool {
    number < GO_ON_BELOW || last_number(sa) == u64::MAX
}

/// Why an SA could not be fenced: it is not taken, and the key daemon is to make another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unfenced {
    /// The kernel does not tell of it, for this reason.
    Untold(String),
    /// The kernel goes on behind this number instead of the one it was given.
    NotTaken(u64),
    /// The kernel counts less than before: it was made again meanwhile.
    MadeAgain,
    /// The kernel has used its numbers up to this one.
    UsedUp(u64),
    /// The kernel took packets by it between two looks.
    InUse,
    /// The kernel takes nothing up to this number, and has not counted as many.
    Ahead(u64),
    /// What is used of it cannot be kept, or was used here and there.
    Unkept,
}

impl fmt::Display for Unfenced {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Unfenced::Untold(why) => write!(f, "the kernel does not tell its numbers ({why})"),
            Unfenced::NotTaken(number) => write!(f, "the kernel goes on behind {number}"),
            Unfenced::MadeAgain => f.write_str("it was made again meanwhile"),
            Unfenced::UsedUp(number) => {
                write!(f, "the kernel is at number {number}: used up, or the fence of a weir that was killed")
            }
            Unfenced::InUse => f.write_str("the kernel has just taken packets by it"),
            Unfenced::Ahead(number) => {
                write!(f, "the kernel takes nothing up to {number}, of which it has not counted as many")
            }
            Unfenced::Unkept => f.write_str(
                "its numbers cannot be kept (it needs a state directory), or were used here and by the kernel",
            ),
        }
    }
}

/// What the kernel may have used at most, by a look at an SA before the last number was given and one after it.
pub fn used(before: &Sa, after: &Sa, direction: Direction) -> Result<Amounts, Unfenced> {
    let sequence = highest(before, after, direction)?;
    let Lifetime { packets, bytes, .. } = after.lifetime;
    Ok(Amounts { sequence, packets, bytes })
}

/// The highest number of that.
fn highest(before: &Sa, after: &Sa, direction: Direction) -> Result<u64, Unfenced> {
    let looks = self::number(before, direction).zip(self::number(after, direction));
    let (number, now) = looks.ok_or_else(|| Unfenced::Untold("none".into()))?;
    if now != last(after, direction) {
        return Err(Unfenced::NotTaken(now));
    }
    match direction {
        Direction::Out => {
            // Each has a byte of a packet at least, also where a large packet is sent in pieces.
            let bytes = after.lifetime.bytes.checked_sub(before.lifetime.bytes);
            let used = number.saturating_add(bytes.ok_or(Unfenced::MadeAgain)?);
            if may_go_on(before, used) { Ok(used) } else { Err(Unfenced::UsedUp(used)) }
        }
        Direction::In if after.lifetime.packets != before.lifetime.packets => Err(Unfenced::InUse),
        Direction::In if number > before.lifetime.packets.saturating_add(GIVEN) => {
            Err(Unfenced::Ahead(number))
        }
        Direction::In => Ok(number),
    }
}
