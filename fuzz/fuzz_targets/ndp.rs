#![no_main]
libfuzzer_sys::fuzz_target!(|data: &[u8]| weir_core::wire::ndp::fuzz_ndp(data));
