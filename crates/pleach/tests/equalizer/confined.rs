//! What an equalizer gives up before its set-up.

use pleach_linux::confine::CapabilitySet;

use crate::{
    rights::assert_confined,
    world::{FIXED, World},
};

#[test]
fn a_running_equalizer_has_only_the_rights_that_it_needs() {
    let Some(world) = World::new() else { return };
    let bpf = CapabilitySet::BPF | CapabilitySet::NET_ADMIN | CapabilitySet::PERFMON;
    for (more, kept) in [
        ("backend = \"bpf\"\n", bpf),
        (
            "backend = \"bpf\"\nspread = \"delay\"\n",
            bpf | CapabilitySet::NET_RAW,
        ),
        ("backend = \"nft\"\n", CapabilitySet::NET_ADMIN),
    ] {
        let equalizer = world.equalizer(&format!("{FIXED}{more}"));
        assert_confined(equalizer.pid(), kept);
        let log = equalizer.log();
        assert!(!log.contains("more rights than it needs"), "{log}");
        equalizer.stop();
    }
}
