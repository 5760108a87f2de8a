#![no_main]
libfuzzer_sys::fuzz_target!(|data: &[u8]| weir_core::wire::icmpv6::fuzz_icmpv6(data));
