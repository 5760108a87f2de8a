#![no_main]
libfuzzer_sys::fuzz_target!(|data: &[u8]| weir_core::ipsec::spd::lookup::fuzz::fuzz_spd(data));
