#![no_main]
libfuzzer_sys::fuzz_target!(|data: &[u8]| weir_core::wire::icmpv4::fuzz_icmpv4(data));
