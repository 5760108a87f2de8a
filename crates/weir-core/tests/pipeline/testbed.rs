//! What an operator writes, in short: ports, routes, SAs, policies; and networks of routers made of it.

pub mod control;
pub mod gateway;
pub mod ipsec;
pub mod lookup;
pub mod node;
pub mod spd;
