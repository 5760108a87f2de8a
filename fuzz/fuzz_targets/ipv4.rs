#![no_main]
libfuzzer_sys::fuzz_target!(|data: &[u8]| weir_core::wire::ipv4::fuzz_ipv4(data));
