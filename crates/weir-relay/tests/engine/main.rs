//! The relay's engine over real sockets: what it does with frames, queues and connections.
//!
//! Clients here are test code on blocking sockets; the handshake that a client goes through before it is admitted is
//! the acceptor's, and is tested with it.

mod forwarding;
mod fuzz;
mod member;
mod mesh;
mod moving;
mod peers;
mod queues;
mod storm;
mod wire;
