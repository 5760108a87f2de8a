//! Linux's ESP, in policy mode and by VTI: with weir, and with itself, which shows what the testbed and its
//! traffic can do, so that a failure beside it is weir's.
//!
//! Each test pings both ways, sends numbered datagrams both ways (none lost, twice, damaged or out of order)
//! and a stream each way, then asks the kernel how many packets each SA carried and what it complained of.

use weir_core::ipsec::{Encryption as E, Integrity as I};

use crate::case::{Case, Mode, suite};
use crate::kernel::{End, protect};
use crate::second_kernel::there;
use crate::testbed::Family::{self, V4, V6};
use crate::testbed::Testbed;
use crate::traffic::{Host, all};
use crate::weir_gateway::{Weir, gateway_config, plain_routes, router_config};

fn kernel_to_kernel(case: Case) {
    let testbed = Testbed::new();
    testbed.kernel_is_left();
    let left = protect(&testbed, End::Left, &case);
    let right = protect(&testbed, End::Right, &case);
    for family in case.inner {
        let row = family.row();
        all(Host { ns: &testbed.a, ip: row.a }, Host { ns: &testbed.b, ip: row.b }, 200, 300_000);
    }
    left.assert_carried(200);
    right.assert_carried(200);
}

fn weir_to_kernel(case: Case) {
    let testbed = Testbed::new();
    let right = protect(&testbed, End::Right, &case);
    let weir = Weir::start(&testbed, &gateway_config(&testbed, &case, &case.sas()));
    for family in case.inner {
        let row = family.row();
        all(Host { ns: &testbed.a, ip: row.a }, Host { ns: &testbed.b, ip: row.b }, 200, 300_000);
    }
    right.assert_carried(200);
    weir.assert_conserved();
}

const BOTH: &[Family] = &[V4, V6];

macro_rules! tests {
    ($run:ident: $($name:ident => $case:expr;)*) => {$(
        #[test]
        fn $name() {
            there(concat!("kernel_peer::", stringify!($name)), || $run($case));
        }
    )*};
}

fn gcm_128() -> Case {
    Case::new(suite(E::AesGcm128, None))
}

fn cbc_sha256() -> Case {
    Case::new(suite(E::AesCbc128, Some(I::HmacSha256_128)))
}

fn chacha() -> Case {
    Case::new(suite(E::ChaCha20Poly1305, None))
}

tests! { kernel_to_kernel:
    kernel_to_kernel_policy_gcm_4_in_4 => gcm_128();
    kernel_to_kernel_policy_cbc_6_in_4 => cbc_sha256().families(&[V6], V4);
    kernel_to_kernel_policy_chacha_4_in_6 => chacha().families(&[V4], V6);
    kernel_to_kernel_vti_4 => gcm_128().mode(Mode::Route).families(BOTH, V4);
    kernel_to_kernel_vti_6 => gcm_128().mode(Mode::Route).families(BOTH, V6);
    kernel_to_kernel_transport_6 => cbc_sha256().mode(Mode::Transport).families(&[V6], V6);
    kernel_to_kernel_esn => gcm_128().esn();
    kernel_to_kernel_nat_t_4 => gcm_128().nat_t();
    kernel_to_kernel_nat_t_6 => gcm_128().nat_t().families(&[V4], V6);
}

tests! { weir_to_kernel:
    policy_gcm_128_4_in_4 => gcm_128();
    policy_gcm_128_6_in_4 => gcm_128().families(&[V6], V4);
    policy_gcm_192_4_in_6 => Case::new(suite(E::AesGcm192, None)).families(&[V4], V6);
    policy_gcm_256_6_in_6 => Case::new(suite(E::AesGcm256, None)).families(&[V6], V6);
    policy_chacha_both_in_4 => chacha().families(BOTH, V4);
    policy_chacha_both_in_6 => chacha().families(BOTH, V6);
    policy_cbc_sha256_both_in_6 => cbc_sha256().families(BOTH, V6);
    policy_cbc_192_sha1 => Case::new(suite(E::AesCbc192, Some(I::HmacSha1_96)));
    policy_cbc_256_sha512 => Case::new(suite(E::AesCbc256, Some(I::HmacSha512_256)));
    policy_null_sha384 => Case::new(suite(E::Null, Some(I::HmacSha384_192)));
    route_to_vti_gcm_both_in_4 => gcm_128().mode(Mode::Route).families(BOTH, V4);
    route_to_vti_gcm_both_in_6 => gcm_128().mode(Mode::Route).families(BOTH, V6);
    route_to_vti_cbc_both_in_4 => cbc_sha256().mode(Mode::Route).families(BOTH, V4);
    route_to_vti_chacha_esn => chacha().mode(Mode::Route).esn();
    transport_gcm_4 => gcm_128().mode(Mode::Transport);
    transport_cbc_6 => cbc_sha256().mode(Mode::Transport).families(&[V6], V6);
    transport_chacha_esn_6 => chacha().mode(Mode::Transport).families(&[V6], V6).esn();
    esn_gcm => gcm_128().esn();
    esn_cbc_6_in_6 => cbc_sha256().families(&[V6], V6).esn();
    nat_t_gcm_4 => gcm_128().nat_t();
    nat_t_cbc_6 => cbc_sha256().nat_t().families(BOTH, V6);
    route_nat_t_chacha => chacha().mode(Mode::Route).families(BOTH, V4).nat_t();
}

#[test]
fn weir_routes_in_the_second_kernel() {
    there("kernel_peer::weir_routes_in_the_second_kernel", || {
        let testbed = Testbed::new();
        let weir = Weir::start(&testbed, &(router_config() + &plain_routes()));
        for family in BOTH {
            let row = family.row();
            all(Host { ns: &testbed.a, ip: row.a }, Host { ns: &testbed.b, ip: row.b }, 200, 300_000);
        }
        weir.assert_conserved();
    });
}
