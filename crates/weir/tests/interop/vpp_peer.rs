//! VPP and weir as the two ends of one tunnel, keys by hand: every suite that both have, by policies and by routes, with
//! extended sequence numbers and without.
//!
//! Each case pings both ways and sends numbered datagrams both ways (none lost, twice, damaged or out of order), then
//! asks VPP how many packets each SA carried and holds weir's books against themselves. NULL without integrity is not
//! among the suites: VPP drops what such an SA would seal, weir refuses it.

use std::io::Write as _;

use weir_core::ipsec::{Encryption as E, Integrity as I, Suite};

use crate::case::{Case, Mode, suite};
use crate::second_kernel;
use crate::testbed::Family::{V4, V6};
use crate::testbed::{self, Testbed};
use crate::traffic::{Host, Seen, numbered, ping};
use crate::vpp::{Vpp, missing};
use crate::weir_gateway::{Weir, gateway_config};

const DATAGRAMS: u64 = 100;

/// Whether this can run here; says so when not.
fn possible(test: &str) -> bool {
    if second_kernel::inside() {
        return false;
    }
    let missing = testbed::missing().or_else(missing);
    if let Some(missing) = &missing {
        writeln!(std::io::stderr(), "SKIP vpp_peer::{test}: needs {missing}").expect("stderr is open");
    }
    missing.is_none()
}

fn carries(testbed: &Testbed, case: &Case) {
    println!("{} {:?}, ESN {}, {:?} in {:?}", case.suite, case.mode, case.esn, case.inner, case.outer);
    let vpp = Vpp::start(testbed, case);
    let weir = Weir::start(testbed, &gateway_config(testbed, case, &case.sas()));
    for family in case.inner {
        let row = family.row();
        let (a, b) = (Host { ns: &testbed.a, ip: row.a }, Host { ns: &testbed.b, ip: row.b });
        for (from, to) in [(a, b), (b, a)] {
            ping(from, to);
            let seen = numbered(from, to, DATAGRAMS);
            assert_eq!(seen, Seen { whole: DATAGRAMS, ..Seen::default() }, "{} to {}", from.ip, to.ip);
        }
    }
    vpp.assert_carried(DATAGRAMS);
    weir.assert_conserved();
}

/// Every suite in one testbed, one after the other.
fn every_suite(test: &str, of: impl Fn(Case) -> Case) {
    if !possible(test) {
        return;
    }
    let testbed = Testbed::new();
    for suite in Suite::all() {
        carries(&testbed, &of(Case::new(suite)));
    }
}

#[test]
fn every_suite_by_policies() {
    every_suite("every_suite_by_policies", |case| case);
}

#[test]
fn every_suite_by_policies_with_esn() {
    every_suite("every_suite_by_policies_with_esn", Case::esn);
}

#[test]
fn every_suite_by_routes() {
    every_suite("every_suite_by_routes", |case| case.mode(Mode::Route));
}

#[test]
fn every_suite_by_routes_with_esn() {
    every_suite("every_suite_by_routes_with_esn", |case| case.mode(Mode::Route).esn());
}

#[test]
fn both_families_by_routes_in_either() {
    if !possible("both_families_by_routes_in_either") {
        return;
    }
    let testbed = Testbed::new();
    let cbc = suite(E::AesCbc256, Some(I::HmacSha256_128));
    for (suite, outer) in [(suite(E::AesGcm128, None), V4), (suite(E::AesGcm128, None), V6), (cbc, V6)] {
        carries(&testbed, &Case::new(suite).mode(Mode::Route).families(&[V4, V6], outer));
    }
}
