#![no_main]
libfuzzer_sys::fuzz_target!(|data: &[u8]| weir_core::router::fuzz::fuzz_gate(data));
