#![no_main]
libfuzzer_sys::fuzz_target!(|data: &[u8]| weir_io::tls::fuzz::fuzz_tls_early(data));
