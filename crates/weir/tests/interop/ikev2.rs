//! strongSwan's ESP, keyed by IKEv2: with itself, which shows that the testbed works, and with weir in the place
//! of one side.

use std::io::Write as _;

use weir_core::ipsec::{Encryption, Integrity};

use crate::case::{Case, Sa, suite};
use crate::kernel::End;
use crate::strongswan::{Daemon, Negotiated, missing};
use crate::testbed::{Family, Testbed};
use crate::traffic::{Host, all};
use crate::weir_gateway::{Weir, gateway_config};
use crate::{second_kernel, testbed};

/// Whether this can run here; says so when not.
fn possible(test: &str) -> bool {
    if second_kernel::inside() {
        return false;
    }
    let missing = testbed::missing().or_else(missing);
    if let Some(missing) = &missing {
        writeln!(std::io::stderr(), "SKIP ikev2::{test}: needs {missing}").expect("stderr is open");
    }
    missing.is_none()
}

/// Everything between the hosts of the IPv4 row.
fn traffic(testbed: &Testbed) {
    let row = Family::V4.row();
    all(Host { ns: &testbed.a, ip: row.a }, Host { ns: &testbed.b, ip: row.b }, 500, 3_000_000);
}

#[test]
fn strongswan_to_strongswan() {
    if !possible("strongswan_to_strongswan") {
        return;
    }
    for proposal in ["aes128gcm16", "aes256-sha256", "chacha20poly1305"] {
        let testbed = Testbed::new();
        testbed.kernel_is_left();
        let left = Daemon::start(&testbed, End::Left, proposal);
        let _right = Daemon::start(&testbed, End::Right, proposal);
        let agreed = left.initiate();
        let expected = match proposal {
            "aes128gcm16" => [20, 0],
            "aes256-sha256" => [32, 32],
            _ => [36, 0],
        };
        let got = [agreed.out.each_ref().map(Vec::len), agreed.inward.each_ref().map(Vec::len)];
        assert_eq!(got, [expected, expected], "{}", left.log());
        assert_ne!(agreed.spi_in, agreed.spi_out);
        traffic(&testbed);
        let sas = left.told("--list-sas", &[]);
        assert!(sas.contains("TUNNEL-in-UDP") && !sas.contains(" 0 packets"), "{sas}");
    }
}

/// The initiator's SAs, there and back.
fn sas(agreed: &Negotiated) -> [Sa; 2] {
    let row = Family::V4.row();
    let sa = |source, destination, spi, keys: &[Vec<u8>; 2]| Sa {
        source,
        destination,
        spi,
        key: keys[0].clone(),
        integrity_key: keys[1].clone(),
    };
    [
        sa(row.left, row.right, agreed.spi_out, &agreed.out),
        sa(row.right, row.left, agreed.spi_in, &agreed.inward),
    ]
}

/// Two daemons agree on an SA; then one of them is gone, and weir seals and opens in its place.
fn weir_takes_over(proposal: &str, case: Case) {
    let testbed = Testbed::new();
    testbed.kernel_is_left();
    let left = Daemon::start(&testbed, End::Left, proposal);
    let right = Daemon::start(&testbed, End::Right, proposal);
    let agreed = left.initiate();
    left.vanish();
    testbed.kernel_is_not_left();
    let weir = Weir::start(&testbed, &gateway_config(&testbed, &case, &sas(&agreed)));
    traffic(&testbed);
    let carried = right.told("--list-sas", &[]);
    assert!(carried.contains("TUNNEL-in-UDP") && !carried.contains(" 0 packets"), "{carried}");
    weir.assert_conserved();
}

#[test]
fn strongswan_to_weir() {
    if !possible("strongswan_to_weir") {
        return;
    }
    let gcm = suite(Encryption::AesGcm128, None);
    let cbc = suite(Encryption::AesCbc256, Some(Integrity::HmacSha256_128));
    let chacha = suite(Encryption::ChaCha20Poly1305, None);
    for (proposal, suite) in [("aes128gcm16", gcm), ("aes256-sha256", cbc), ("chacha20poly1305", chacha)] {
        weir_takes_over(proposal, Case::new(suite).nat_t());
    }
}
