#![no_main]
libfuzzer_sys::fuzz_target!(|data: &[u8]| weir_io::tun::fuzz::fuzz_tun_merge(data));
