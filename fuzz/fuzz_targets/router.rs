#![no_main]
libfuzzer_sys::fuzz_target!(|data: &[u8]| weir_core::testing::router::fuzz_router(data));
