//! What tests of running daemons share: a `weir` started and asked, commands, namespaces, known bytes, a client of relays. Feature `testing`.
//!
//! Promises: everything made has a name with this process's number in it and is removed on drop, after a panic too.
//! Refuses: to be part of a daemon: only tests enable the feature.

pub mod client;
pub mod content;
pub mod daemon;
pub mod machine;
pub mod testbed;
