#![no_main]
libfuzzer_sys::fuzz_target!(|data: &[u8]| weir_core::ipsec::flow::fuzz_selectors(data));
