#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| pleach_fuzz::tun_packets::run(data));
