//! strongSwan's ESP, keyed by IKEv2: with itself, which shows that the bed works, and with weir in the place
//! of one side.

use std::io::Write as _;

use crate::bed::{Bed, Family};
use crate::kernel::End;
use crate::strongswan::{Daemon, missing};
use crate::traffic::{Host, all};
use crate::{bed, second_kernel};

/// Whether this can run here; says so when not.
fn possible(test: &str) -> bool {
    if second_kernel::inside() {
        return false;
    }
    let missing = bed::missing().or_else(missing);
    if let Some(missing) = &missing {
        writeln!(std::io::stderr(), "SKIP ikev2::{test}: needs {missing}").expect("stderr is open");
    }
    missing.is_none()
}

/// Everything between the hosts of the IPv4 row.
fn traffic(bed: &Bed) {
    let row = Family::V4.row();
    all(Host { ns: &bed.a, ip: row.a }, Host { ns: &bed.b, ip: row.b }, 500, 3_000_000);
}

#[test]
fn strongswan_to_strongswan() {
    if !possible("strongswan_to_strongswan") {
        return;
    }
    for proposal in ["aes128gcm16", "aes256-sha256", "chacha20poly1305"] {
        let bed = Bed::new();
        bed.kernel_is_left();
        let left = Daemon::start(&bed, End::Left, proposal);
        let _right = Daemon::start(&bed, End::Right, proposal);
        let agreed = left.initiate();
        let expected = match proposal {
            "aes128gcm16" => [20, 0],
            "aes256-sha256" => [32, 32],
            _ => [36, 0],
        };
        let got = [agreed.out.each_ref().map(Vec::len), agreed.inward.each_ref().map(Vec::len)];
        assert_eq!(got, [expected, expected], "{}", left.log());
        assert_ne!(agreed.spi_in, agreed.spi_out);
        traffic(&bed);
        let sas = left.told("--list-sas", &[]);
        assert!(sas.contains("TUNNEL-in-UDP") && !sas.contains(" 0 packets"), "{sas}");
    }
}
