//! The router's two paths and its trace, on random frames: see `weir_core::testing::router`.
//! `PROPTEST_CASES=100000` looks longer; `fuzz/` has the same function as a target.

use proptest::prelude::*;
use weir_core::testing::router::fuzz_router;

proptest! {
    #[test]
    fn fast_path_and_slow_path_and_trace_agree(data in proptest::collection::vec(any::<u8>(), 0..1500)) {
        fuzz_router(&data);
    }
}
