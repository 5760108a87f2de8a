#![no_main]
libfuzzer_sys::fuzz_target!(|data: &[u8]| weir_core::wire::partial_checksum::fuzz_partial_checksum(data));
