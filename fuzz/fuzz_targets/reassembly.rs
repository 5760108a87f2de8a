#![no_main]
libfuzzer_sys::fuzz_target!(|data: &[u8]| weir_core::ipsec::reassembly::fuzz::fuzz_reassembly(data));
