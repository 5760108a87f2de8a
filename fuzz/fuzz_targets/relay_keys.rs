#![no_main]
libfuzzer_sys::fuzz_target!(|data: &[u8]| weir_relay::fuzz::fuzz_relay_keys(data));
