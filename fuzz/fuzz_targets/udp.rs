#![no_main]
libfuzzer_sys::fuzz_target!(|data: &[u8]| weir_core::wire::udp::fuzz_udp(data));
