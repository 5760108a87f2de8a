#![no_main]
libfuzzer_sys::fuzz_target!(|data: &[u8]| weir_core::wire::nftables::fuzz_nftables(data));
