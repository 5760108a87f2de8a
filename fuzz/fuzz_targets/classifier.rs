#![no_main]
libfuzzer_sys::fuzz_target!(|data: &[u8]| weir_core::ipsec::spd::fuzz_classifier(data));
