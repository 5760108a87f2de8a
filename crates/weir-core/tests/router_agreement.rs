//! The router's two paths and its trace, on random frames: see `weir_core::router::fuzz`.

use proptest::prelude::*;
use weir_core::router::fuzz::fuzz_router;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn fast_path_and_slow_path_and_trace_agree(data in proptest::collection::vec(any::<u8>(), 0..1500)) {
        fuzz_router(&data);
    }
}
