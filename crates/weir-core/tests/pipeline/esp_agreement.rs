//! ESP and reassembly on random input: see `weir_core::ipsec::esp::fuzz` and `weir_core::ipsec::reassembly::fuzz`.
//! `PROPTEST_CASES=100000` looks longer; `fuzz/` has the same functions as targets.

use proptest::prelude::*;
use weir_core::ipsec::esp::fuzz::fuzz_esp_open;
use weir_core::ipsec::reassembly::fuzz::fuzz_reassembly;

proptest! {
    #[test]
    fn what_an_sa_opens_was_sealed_for_it_and_opened_once(
        data in proptest::collection::vec(any::<u8>(), 0..1500),
    ) {
        fuzz_esp_open(&data);
    }

    #[test]
    fn a_packet_made_whole_is_of_its_fragments_and_no_frame_is_lost(
        data in proptest::collection::vec(any::<u8>(), 0..1500),
    ) {
        fuzz_reassembly(&data);
    }
}
