//! An equalizer leaves no changes on the host.

use crate::world::{FAR_V4, FIXED, PATIENCE, World, within};

#[test]
fn nothing_is_left_after_the_end_nor_after_a_crash_and_another_run() {
    let Some(world) = World::new() else { return };
    let strict = [
        ("ipv4/conf/l0/rp_filter", "1"),
        ("ipv4/conf/l1/rp_filter", "2"),
    ];
    world.host.sysctl(&strict).expect("settings");
    let before = world.traces();
    for more in [
        "backend = \"bpf\"\ninterleave = true\n",
        "backend = \"clsact\"\n",
        "backend = \"bpf\"\nspread = \"delay\"\n",
        "backend = \"nft\"\n",
    ] {
        let more = format!("{FIXED}{more}");
        let equalizer = world.equalizer(&more);
        let during = within(PATIENCE, || {
            let traces = world.traces();
            (traces != before).then_some(traces)
        });
        assert!(during.is_some(), "the traces show something");
        equalizer.stop();
        assert_eq!(world.traces(), before, "{more}");

        world.equalizer(&more).kill();
        // Traffic still passes: the BPF program has ended with its process or continues to work, and the routes exist.
        let ping = world
            .host
            .command("ping")
            .args(["-c1", "-W5", "-q", FAR_V4])
            .output();
        assert!(ping.expect("ping").status.success(), "{more}");
        assert_ne!(world.traces(), before, "{more}");
        world.equalizer(FIXED).stop();
        assert_eq!(world.traces(), before, "{more}");
    }
}

#[test]
fn filters_of_others_stay_and_a_place_without_egress_is_refused() {
    let Some(world) = World::new() else { return };
    let tc = |args: &str| {
        let mut command = world.host.command("tc");
        let status = command.args(args.split_whitespace()).status();
        assert!(status.expect("tc").success(), "tc {args}");
    };
    let clsact = format!("{FIXED}backend = \"clsact\"\n");
    let before = world.traces();
    let equalizer = world.equalizer(&clsact);
    tc("filter add dev l0 egress protocol ip prio 9 u32 match u32 0 0");
    equalizer.stop();
    let shown = world.traces();
    assert!(shown.contains("pref 9 u32"), "{shown}");
    tc("qdisc del dev l0 clsact");
    assert_eq!(world.traces(), before);

    // Filters of this queueing discipline see incoming packets only.
    tc("qdisc add dev l0 ingress");
    let equalizer = world.equalizer(&clsact);
    let told = within(PATIENCE, || {
        equalizer
            .log()
            .contains("queueing discipline of kind `ingress`")
            .then_some(())
    });
    assert!(told.is_some(), "{}", equalizer.log());
    equalizer.stop();
    let shown = world.traces();
    assert!(shown.contains("qdisc ingress"), "{shown}");
}

#[test]
fn a_second_one_in_the_same_namespace_is_refused() {
    let Some(world) = World::new() else { return };
    let first = world.equalizer(FIXED);
    let file = world.dir.path().join("second.toml");
    let text = "mode = \"equalize\"\n[equalizer]\ndestinations = [\"10.30.0.0/16\"]\ncontrol = \"/tmp/pleach-none.sock\"\n\
                [[link]]\nname = \"l0\"\ndevice = \"l0\"\nnext_hop = \"10.10.0.2\"\n";
    let control = world.dir.path().join("second.sock");
    let text = text.replace("/tmp/pleach-none.sock", &control.display().to_string());
    std::fs::write(&file, text).expect("configuration");
    let mut command = world.host.command(env!("CARGO_BIN_EXE_pleach"));
    let output = command.arg("equalize").arg(&file).output().expect("starts");
    assert_eq!(output.status.code(), Some(1));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(
        said.contains("runs in this network namespace already"),
        "{said}"
    );
    first.stop();
}
