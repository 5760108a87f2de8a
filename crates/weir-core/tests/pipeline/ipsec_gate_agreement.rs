//! The gate's ledger, buffers and trace on random mixes: see `weir_core::testing::gateway::fuzz_gate`.
//! `PROPTEST_CASES=100000` looks longer; `fuzz/` has the same function as a target.

use proptest::prelude::*;
use weir_core::testing::gateway::fuzz_gate;

proptest! {
    #[test]
    fn random_mixes_keep_the_balance_and_lose_no_buffer(data in proptest::collection::vec(any::<u8>(), 0..1500)) {
        fuzz_gate(&data);
    }
}
