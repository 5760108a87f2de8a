//! The relay's protocol, seen from outside: what any DERP server does, as clients and other relays find it.
//!
//! ```text
//! one behaviour ─┬─► derper   the expectation is right
//!                └─► ours     does the same
//! ```
//!
//! Promises: each behaviour is one test, run against a server of its own at an address of its own, plain TCP; nothing
//! waits for a time to pass but where the protocol has one. Skipped by name where derper is not installed. Certificates
//! from an ACME server are tested beside them, against pebble.

mod client;
mod server;

use weir::testing::{daemon, machine};

/// Each behaviour as a test of derper, and as a test of ours.
macro_rules! behaviours {
    ($($(#[$attribute:meta])* $name:ident;)*) => {
        mod derper {
            $($(#[$attribute])* #[test] fn $name() { super::$name(crate::server::Sut::Derper) })*
        }
        mod ours {
            $($(#[$attribute])* #[test] fn $name() { super::$name(crate::server::Sut::Ours) })*
        }
    };
}

/// What ours does better.
macro_rules! ours_alone {
    ($($(#[$attribute:meta])* $name:ident;)*) => {
        mod ours_alone {
            $($(#[$attribute])* #[test] fn $name() { super::$name(crate::server::Sut::Ours) })*
        }
    };
}

/// A server, or the end of the test where the subject is not there.
macro_rules! server {
    ($subject:expr $(, $field:ident: $value:expr)* $(,)?) => {
        match crate::server::Server::start($subject, crate::server::ServerOptions { $($field: $value,)* ..Default::default() }) {
            Ok(server) => server,
            Err(missing) => {
                use std::io::Write as _;
                let test = std::thread::current().name().unwrap_or_default().to_owned();
                writeln!(std::io::stderr(), "SKIP {test}: {missing}").expect("stderr is open");
                return;
            }
        }
    };
}

mod access;
mod certificates;
mod duplicates;
mod handshake;
mod hostile;
mod mesh;
mod packets;
mod presence;
mod stun;
mod upgrade;
mod websocket;
