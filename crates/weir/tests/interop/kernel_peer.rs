//! Linux's ESP with itself: what the bed and its traffic can show, so that a failure beside it is weir's.

use weir_core::ipsec::{Encryption as E, Integrity as I};

use crate::bed::Bed;
use crate::bed::Family::{self, V4, V6};
use crate::case::{Case, Mode, suite};
use crate::kernel::{End, protect};
use crate::second_kernel::there;
use crate::traffic::{Host, all};
use crate::weir_gateway::{Weir, plain_routes, router_config};

fn kernel_to_kernel(case: Case) {
    let bed = Bed::new();
    bed.kernel_is_left();
    let left = protect(&bed, End::Left, &case);
    let right = protect(&bed, End::Right, &case);
    for family in case.inner {
        let row = family.row();
        all(Host { ns: &bed.a, ip: row.a }, Host { ns: &bed.b, ip: row.b }, 200, 300_000);
    }
    left.assert_carried(200);
    right.assert_carried(200);
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

tests! { kernel_to_kernel:
    kernel_policy_gcm_128_4_in_4 => Case::new(suite(E::AesGcm128, None));
    kernel_policy_gcm_256_6_in_6 => Case::new(suite(E::AesGcm256, None)).families(&[V6], V6);
    kernel_policy_chacha_4_in_6 => Case::new(suite(E::ChaCha20Poly1305, None)).families(&[V4], V6);
    kernel_policy_cbc_sha256_6_in_4 => Case::new(suite(E::AesCbc128, Some(I::HmacSha256_128))).families(&[V6], V4);
    kernel_policy_cbc_sha1 => Case::new(suite(E::AesCbc256, Some(I::HmacSha1_96)));
    kernel_policy_cbc_sha512 => Case::new(suite(E::AesCbc256, Some(I::HmacSha512_256)));
    kernel_policy_null_sha384 => Case::new(suite(E::Null, Some(I::HmacSha384_192)));
    kernel_vti4 => Case::new(suite(E::AesGcm128, None)).mode(Mode::Route).families(BOTH, V4);
    kernel_vti6 => Case::new(suite(E::AesGcm128, None)).mode(Mode::Route).families(BOTH, V6);
    kernel_transport_4 => Case::new(suite(E::AesGcm128, None)).mode(Mode::Transport);
    kernel_transport_6 => Case::new(suite(E::AesCbc128, Some(I::HmacSha256_128))).mode(Mode::Transport).families(&[V6], V6);
    kernel_esn => Case::new(suite(E::AesGcm128, None)).esn();
    kernel_esn_cbc => Case::new(suite(E::AesCbc128, Some(I::HmacSha256_128))).esn();
    kernel_nat_t_4 => Case::new(suite(E::AesGcm128, None)).nat_t();
    kernel_nat_t_6 => Case::new(suite(E::AesGcm128, None)).nat_t().families(&[V4], V6);
}

#[test]
fn weir_routes_in_the_second_kernel() {
    there("kernel_peer::weir_routes_in_the_second_kernel", || {
        let bed = Bed::new();
        let weir = Weir::start(&bed, &(router_config() + plain_routes()));
        for family in BOTH {
            let row = family.row();
            all(Host { ns: &bed.a, ip: row.a }, Host { ns: &bed.b, ip: row.b }, 200, 300_000);
        }
        weir.assert_conserved();
    });
}
