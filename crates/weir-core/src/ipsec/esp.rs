//! ESP: sealing and opening packets (RFC 4303), a batch of one SA at a time.
//!
//! ```text
//! tunnel     | outer IP | UDP? | SPI, sequence | IV | inner IP … | padding, length, next header | ICV |
//! transport  | IP, options or extensions | UDP? | SPI, sequence | IV | payload | padding … | ICV |
//! ```
//!
//! Frames begin at their IP header, before and after. Promises: what is [`Outcome::Done`] is a whole packet
//! with right lengths and checksums; a sequence number is used once, across workers too; no allocation, and
//! one virtual call for the cipher a batch. Refuses: fragments as outer packets (they are reassembled
//! before), and everything with a reason of its own. A frame that is lost holds nothing of use.

mod ecn;
#[cfg(feature = "testing")]
pub mod fuzz;
mod lifetime;
mod natt;
mod open;
mod outer;
mod seal;
mod transport;

pub use natt::spi_of;
pub use open::{Opened, admit, open, untouched};
pub use outer::Template;
pub(crate) use seal::last_sequence;
pub use seal::{inner_mtu, seal, take_sequence};

use crate::verdict::Reason;

/// What became of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    Done,
    Lost(Reason),
}

/// SPI and sequence number.
const HEADER_LEN: usize = 8;
/// Batches up to this length have small arrays of jobs: filling 64 places costs more than sealing a packet.
const FEW: usize = 8;
/// Pad length and next header.
const TRAILER_LEN: usize = 2;
