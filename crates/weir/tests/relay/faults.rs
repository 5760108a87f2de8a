//! A running relay, and what goes wrong around it: kills, pauses, clocks, descriptors, links, readers, storms.
//!
//! Every relay is a `weir run FILE` in a network namespace of its own; clients are sockets of the test. What must
//! not happen is loss that is not told, a client that pays for another, or a relay that has to be started again.

mod attacks;
mod crowds;
mod ends;
mod scarcity;
mod testbed;
