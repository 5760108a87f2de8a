#![no_main]
libfuzzer_sys::fuzz_target!(|data: &[u8]| weir_core::ipsec::esp::fuzz::fuzz_esp_open(data));
