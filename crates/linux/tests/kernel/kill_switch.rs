//! Packets that leave by a link under a kill switch, and hosts that reach the inner address.

use std::{net::UdpSocket as StdSocket, path::Path};

use pleach_core::packet::Ecn;
use pleach_linux::{
    nft::{BY_LINK, PAST_TUNNEL},
    routes::{Plan, Setup},
    split_tcp::{Families, Interception},
    tun::Tun,
    udp::{Transmit, UdpOptions, UdpSocket},
};

use crate::namespace::Namespace;

fn client(host: &Namespace, base: &Path, kill_switch: bool) -> (Setup, Tun) {
    host.run(|| {
        let mut setup = Setup::begin(base, "plLtun").expect("begins");
        let tun = Tun::create("plLtun", 1400).expect("root makes TUNs");
        let networks = |texts: &[&str]| {
            let texts = texts.iter();
            texts.map(|text| text.parse().expect("literal")).collect()
        };
        let plan = Plan {
            addresses: networks(&["10.77.0.2/24", "fd77::2/64"]),
            routes: networks(&["0.0.0.0/0", "::/0"]),
            mtu: 1400,
            kill_switch,
            ..Plan::default()
        };
        setup.apply(&plan).expect("applies");
        setup.hold();
        (setup, tun)
    })
}

/// Creates a host on a LAN with a server that also represents the Internet.
fn host() -> Option<(Namespace, Namespace)> {
    let (host, server) = (Namespace::new()?, Namespace::new()?);
    host.connect("lan", &server, "wan");
    host.ip("address add 192.0.2.1/24 dev lan");
    host.ip("-6 address add fd00:2::1/64 dev lan nodad");
    host.ip("route add default via 192.0.2.2");
    server.ip("address add 192.0.2.2/24 dev wan");
    server.ip("-6 address add fd00:2::2/64 dev wan nodad");
    for address in ["198.51.100.1/32", "2001:db8:5::1/128"] {
        server.ip(&format!("address add {address} dev lo"));
    }
    Some((host, server))
}

fn dropped(host: &Namespace, setup: &Setup, counter: &str) -> u64 {
    let counters = host.run(|| setup.dropped().expect("nft tells"));
    counters[counter]
}

#[test]
fn a_route_that_dhcp_announces_leads_past_the_tunnel_but_not_past_the_kill_switch() {
    let Some((host, server)) = host() else { return };
    let bases = [(); 2].map(|()| tempfile::tempdir().expect("tempdir"));
    // DHCP option 121: routes more specific than the tunnel's, through the LAN's server or directly on the link.
    for route in [
        "198.51.100.0/24 via 192.0.2.2",
        "2001:db8:5::/48 via fd00:2::2",
    ] {
        host.ip(&format!("route add {route} dev lan"));
    }
    let outside = ["198.51.100.1", "2001:db8:5::1"];
    let (setup, tun) = client(&host, bases[0].path(), false);
    for address in outside {
        assert!(host.pings(address, true), "{address} without a kill switch");
    }
    host.run(|| setup.undo().expect("undoes"));
    drop(tun);
    host.until_gone("plLtun");

    let (mut setup, tun) = client(&host, bases[1].path(), true);
    for address in outside {
        let before = dropped(&host, &setup, PAST_TUNNEL);
        assert!(!host.pings(address, false), "{address}");
        assert!(
            dropped(&host, &setup, PAST_TUNNEL) > before,
            "{address} is counted"
        );
    }
    // The LAN is reachable, also a LAN to which the host is connected later.
    for neighbour in ["192.0.2.2", "fd00:2::2"] {
        assert!(host.pings(neighbour, true), "{neighbour}");
    }
    host.ip("address add 198.51.100.200/24 dev lan");
    assert!(!host.pings("198.51.100.1", false), "not known yet");
    host.run(|| setup.look_around().expect("looks"));
    assert!(
        host.pings("198.51.100.1", true),
        "a network of the host's own"
    );
    host.ip("address del 198.51.100.200/24 dev lan");
    host.run(|| setup.look_around().expect("looks"));
    // The tunnel's own datagrams leave by the link.
    let gateway = server.run(|| StdSocket::bind("198.51.100.1:7700").expect("binds"));
    let patience = std::time::Duration::from_secs(5);
    gateway.set_read_timeout(Some(patience)).expect("sets");
    let own = host.run(|| {
        let mut options = UdpOptions::new("0.0.0.0:0".parse().expect("literal"));
        options.device = Some("lan".into());
        options.fwmark = Some(setup.fwmark());
        UdpSocket::bind(&options).expect("root may bind to devices")
    });
    let transmit = Transmit {
        destination: "198.51.100.1:7700".parse().expect("literal"),
        src_ip: None,
        ecn: Ecn::Capable,
        segment_size: None,
        contents: b"sealed",
    };
    own.send(&transmit).expect("sends");
    let mut buffer = [0; 100];
    let (len, _) = gateway.recv_from(&mut buffer).expect("arrives");
    assert_eq!(&buffer[..len], b"sealed");

    // When the process has died, the LAN is reachable, and no other network is.
    drop(tun);
    host.until_gone("plLtun");
    host.run(|| drop(setup));
    for address in outside {
        assert!(!host.pings(address, false), "{address} without the daemon");
    }
    for neighbour in ["192.0.2.2", "fd00:2::2"] {
        assert!(
            host.pings(neighbour, true),
            "{neighbour} without the daemon"
        );
    }
    assert!(
        host.run(|| pleach_linux::routes::recover(bases[1].path(), "plLtun"))
            .expect("opens")
    );
    assert!(host.pings("198.51.100.1", true));
}

#[test]
fn a_table_that_another_program_removes_comes_back() {
    let Some((host, _server)) = host() else {
        return;
    };
    let base = tempfile::tempdir().expect("tempdir");
    // This route is more specific than the tunnel's routes.
    host.ip("route add 198.51.100.0/24 via 192.0.2.2 dev lan");
    let (mut setup, _tun) = client(&host, base.path(), true);
    let split = host.run(|| Interception::begin(base.path(), "plLtun").expect("begins"));
    let tables = host.command("nft list ruleset");
    let own = ["10.77.0.2/24".parse().expect("literal")];
    let families = Families {
        v4: true,
        v6: false,
    };
    host.run(|| {
        split
            .redirect(1234, families, &own, &[], &[])
            .expect("redirects")
    });
    assert!(!host.run(|| setup.look_around().expect("looks")));
    assert!(!host.run(|| split.restore().expect("looks")));
    host.command("nft flush ruleset");
    assert!(host.pings("198.51.100.1", true), "nothing holds it back");
    assert!(host.run(|| setup.look_around().expect("looks")));
    assert!(host.run(|| split.restore().expect("looks")));
    assert_eq!(host.command("nft list ruleset"), tables);
    assert!(!host.pings("198.51.100.1", false));
    host.run(|| {
        split
            .redirect(1234, families, &own, &[], &[])
            .expect("redirects again")
    });
    assert!(!host.run(|| setup.look_around().expect("looks")));
    host.run(|| split.undo().expect("undoes"));
    host.run(|| setup.undo().expect("undoes"));
    assert_eq!(host.command("nft list ruleset"), "");
}

#[test]
fn containers_reach_the_inner_address_and_neighbours_do_not() {
    let Some((host, neighbour)) = host() else {
        return;
    };
    let Some(container) = Namespace::new() else {
        return;
    };
    let base = tempfile::tempdir().expect("tempdir");
    host.ip("link add br0 type bridge");
    host.ip("address add 172.30.0.1/24 dev br0");
    host.ip("link set br0 up");
    let (mut setup, _tun) = client(&host, base.path(), false);
    // The container starts later.
    host.connect("port", &container, "eth0");
    host.ip("link set port master br0");
    container.ip("address add 172.30.0.2/24 dev eth0");
    container.ip("route add default via 172.30.0.1");
    neighbour.ip("route add 10.77.0.2/32 via 192.0.2.1");
    host.run(|| setup.look_around().expect("looks"));
    assert!(container.pings("10.77.0.2", true));
    assert_eq!(dropped(&host, &setup, BY_LINK), 0);
    assert!(!neighbour.pings("10.77.0.2", false));
    assert!(dropped(&host, &setup, BY_LINK) > 0);
    host.run(|| setup.undo().expect("undoes"));
}

/// Runs the test `name` of this program again in `host`, with `path` as the search path of programs and with the state
/// directory `base` in the variable [`BASE`].
fn again(host: &Namespace, name: &str, path: &str, base: &Path) {
    let program = std::env::current_exe().expect("this program");
    let (base, program) = (base.display(), program.display());
    let said = host.command(&format!(
        "env PATH={path} {BASE}={base} {program} --exact kill_switch::{name}"
    ));
    assert!(said.contains("1 passed"), "{said}");
}

/// Variable with the state directory, in the second process of a test.
const BASE: &str = "PLEACH_TEST_BASE";

#[test]
fn a_kill_switch_is_not_forgotten_while_nft_is_missing() {
    if let Some(base) = std::env::var_os(BASE) {
        let error = pleach_linux::routes::recover(Path::new(&base), "plLtun").expect_err("no nft");
        assert_eq!(error.kind(), std::io::ErrorKind::NotFound);
        assert!(error.to_string().contains("pleach_plLtun"), "{error}");
        pleach_linux::split_tcp::recover("plLtun").expect_err("no nft");
        pleach_linux::split_tcp::recover("none").expect("the kernel has no such table");
        return;
    }
    let Some((host, _server)) = host() else {
        return;
    };
    let base = tempfile::tempdir().expect("tempdir");
    host.ip("route add 198.51.100.0/24 via 192.0.2.2 dev lan");
    let (setup, tun) = client(&host, base.path(), true);
    let split = host.run(|| Interception::begin(base.path(), "plLtun").expect("begins"));
    // A killed process runs no destructors.
    std::mem::forget(split);
    drop(tun);
    host.until_gone("plLtun");
    host.run(|| drop(setup));
    again(
        &host,
        "a_kill_switch_is_not_forgotten_while_nft_is_missing",
        "/nonexistent",
        base.path(),
    );
    assert!(!host.pings("198.51.100.1", false), "still closed");
    let rest = || {
        let started = Setup::begin(base.path(), "plLtun");
        let error = started.expect_err("no tunnel starts meanwhile");
        assert_eq!(error.kind(), std::io::ErrorKind::AddrInUse);
        pleach_linux::split_tcp::recover("plLtun").expect("recovers");
    };
    let recovered = host.run(|| pleach_linux::routes::recover_with(base.path(), "plLtun", rest));
    assert_eq!(recovered.expect("recovers"), Some(()));
    assert_eq!(host.command("nft list ruleset"), "");
    assert!(host.pings("198.51.100.1", true));
}

#[test]
fn the_table_of_a_killed_nft_is_made_and_removed() {
    if let Some(base) = std::env::var_os(BASE) {
        let base = Path::new(&base);
        for state in ["complete", "missing"] {
            std::fs::write(base.join("hangs"), state).expect("writes");
            let mut setup = Setup::begin(base, "plLtun").expect("begins");
            let tun = Tun::create("plLtun", 1400).expect("root makes TUNs");
            let plan = Plan {
                addresses: vec!["10.77.0.2/24".parse().expect("literal")],
                mtu: 1400,
                ..Plan::default()
            };
            setup.apply(&plan).expect("the table is not necessary");
            assert!(!base.join("hangs").exists(), "nft was killed");
            if state == "missing" {
                assert!(setup.look_around().expect("makes it"));
                assert!(!setup.look_around().expect("looks"));
                setup.dropped().expect("the table exists");
            }
            setup.undo().expect("undoes");
            drop(tun);
        }
        return;
    }
    let Some((host, _server)) = host() else {
        return;
    };
    let base = tempfile::tempdir().expect("tempdir");
    let nft = host.command("which nft");
    // After the transaction or instead of it, this `nft` hangs.
    let script = format!(
        "#!/bin/sh
if [ \"$1\" = -f ] && [ -e {base}/hangs ]; then
    if grep -q complete {base}/hangs; then {nft} \"$@\"; fi
    rm {base}/hangs
    exec sleep 600
fi
exec {nft} \"$@\"
",
        base = base.path().display(),
        nft = nft.trim(),
    );
    let program = base.path().join("nft");
    std::fs::write(&program, script).expect("writes");
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(&program, mode).expect("sets");
    let path = std::env::var("PATH").expect("a search path");
    again(
        &host,
        "the_table_of_a_killed_nft_is_made_and_removed",
        &format!("{}:{path}", base.path().display()),
        base.path(),
    );
    assert_eq!(host.command("nft list ruleset"), "");
}
