#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| pleach_fuzz::kernel_input::run(data));
