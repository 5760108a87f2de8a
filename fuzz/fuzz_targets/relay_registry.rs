#![no_main]
libfuzzer_sys::fuzz_target!(|data: &[u8]| weir_core::relay::fuzz::fuzz_relay_registry(data));
