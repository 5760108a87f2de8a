#![no_main]
libfuzzer_sys::fuzz_target!(|data: &[u8]| weir::router::fuzz_policy_changes(data));
