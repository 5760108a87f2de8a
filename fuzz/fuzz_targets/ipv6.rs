#![no_main]
libfuzzer_sys::fuzz_target!(|data: &[u8]| weir_core::wire::ipv6::fuzz_ipv6(data));
