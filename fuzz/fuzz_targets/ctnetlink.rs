#![no_main]
libfuzzer_sys::fuzz_target!(|data: &[u8]| weir_core::wire::ctnetlink::fuzz_ctnetlink(data));
