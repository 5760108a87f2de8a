//! The relay beside others': Tailscale's own clients and tools, and its `derper` as one side of a mesh.
//!
//! Every body of a test runs against `derper` first, in `derper::…`: where that passes and `weir::…` does not,
//! weir is wrong. Peers are what `scripts/peers` installs; without them tests are skipped by name.

mod admission;
mod authority;
mod clients;
mod net;
mod peers;
mod server;
mod tailnet;
mod tools;

use std::io::Write as _;

use crate::{second_kernel, testbed};
use server::Kind;

/// Runs the body of a test unless something is missing; says so when something is.
fn attempt(test: &str, kind: Kind, programs: &[&str], body: fn(Kind)) {
    if second_kernel::inside() {
        return;
    }
    let needed: Vec<&str> =
        programs.iter().copied().chain((kind == Kind::Derper).then_some("derper")).collect();
    match testbed::missing().or_else(|| peers::missing(&needed)) {
        Some(missing) => writeln!(std::io::stderr(), "SKIP {test}: needs {missing}").expect("stderr is open"),
        None => body(kind),
    }
}

/// Each body as a test of `derper` and as one of weir, with the programs it needs.
macro_rules! both {
    ($($name:ident: [$($program:literal),*];)*) => {
        both!(@ derper, Derper, $($name: [$($program),*];)*);
        both!(@ weir, Weir, $($name: [$($program),*];)*);
    };
    (@ $module:ident, $kind:ident, $($name:ident: [$($program:literal),*];)*) => {
        mod $module {
            $(#[test]
            fn $name() {
                let test = concat!(module_path!(), "::", stringify!($name));
                let test = test.trim_start_matches("interop::");
                $crate::relay::attempt(test, $crate::relay::server::Kind::$kind, &[$($program),*], super::$name);
            })*
        }
    };
}
pub(crate) use both;
