//! Fuzz functions, each beside what it holds to its promises.

use crate::{tls, tun};

/// What is done with one input; it panics where a promise is broken.
pub use weir_core::fuzz_input::FuzzTarget;

/// Each with its name.
pub const FUZZ_TARGETS: &[(&str, FuzzTarget)] = &[
    ("tls_session", tls::fuzz::fuzz_tls_session),
    ("tls_early", tls::fuzz::fuzz_tls_early),
    ("tls_hello", tls::fuzz::fuzz_tls_hello),
    ("tun_cut", tun::fuzz::fuzz_tun_cut),
    ("tun_merge", tun::fuzz::fuzz_tun_merge),
];
