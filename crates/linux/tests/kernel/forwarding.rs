//! A gateway's host forwards for the tunnel, and for others as it did before; each device's switch comes back.

use pleach_linux::{
    routes::{Plan, Setup},
    tun::Tun,
};

use crate::namespace::Namespace;

/// A host with the neighbours `a`, `b` and `c`, each on a network of its own with the host as router.
struct Router {
    host: Namespace,
    neighbours: Vec<Namespace>,
}

impl Router {
    fn new() -> Option<Self> {
        let host = Namespace::new()?;
        let mut neighbours = Vec::new();
        for (number, name) in ["toa", "tob", "toc"].into_iter().enumerate() {
            let neighbour = Namespace::new()?;
            host.connect(name, &neighbour, "wan");
            host.ip(&format!("address add 10.50.{number}.1/24 dev {name}"));
            host.ip(&format!(
                "-6 address add fd50:{number}::1/64 dev {name} nodad"
            ));
            neighbour.ip(&format!("address add 10.50.{number}.2/24 dev wan"));
            neighbour.ip(&format!("-6 address add fd50:{number}::2/64 dev wan nodad"));
            neighbour.ip(&format!("route add default via 10.50.{number}.1"));
            neighbour.ip(&format!("-6 route add default via fd50:{number}::1"));
            neighbours.push(neighbour);
        }
        Some(Self { host, neighbours })
    }

    fn set(&self, key: &str, value: u8) {
        self.host.command(&format!("sysctl -qw net.{key}={value}"));
    }

    /// All switches of forwarding.
    fn switches(&self) -> String {
        let all = self
            .host
            .command("sysctl -a -r conf.[^.]*.forwarding$|ip_forward$");
        // Not the switches of multicast and directed broadcast.
        let is_of_others = |line: &&str| !line.contains("plLtun") && !line.contains("c_forw");
        let lines: Vec<&str> = all.lines().filter(is_of_others).collect();
        lines.join("\n")
    }

    fn pings(&self, from: usize, to: usize, is_expected: bool) -> bool {
        self.neighbours[from].pings(&format!("10.50.{to}.2"), is_expected)
    }
}

fn gateway(host: &Namespace, base: &std::path::Path) -> (Setup, Tun) {
    host.run(|| {
        let mut setup = Setup::begin(base, "plLtun").expect("begins");
        let tun = Tun::create("plLtun", 1400).expect("root makes TUNs");
        let plan = Plan {
            addresses: vec!["10.77.0.1/24".parse().expect("literal")],
            routes: vec!["10.77.0.0/24".parse().expect("literal")],
            mtu: 1400,
            forward: true,
            ..Plan::default()
        };
        setup.apply(&plan).expect("applies");
        (setup, tun)
    })
}

#[test]
fn devices_that_forwarded_do_so_during_and_after_and_others_do_not() {
    let Some(router) = Router::new() else { return };
    let base = tempfile::tempdir().expect("tempdir");
    // All switches are off but two, which the switch for all would set and clear with the others.
    router.set("ipv4.ip_forward", 0);
    router.set("ipv4.conf.toa.forwarding", 1);
    router.set("ipv4.conf.tob.forwarding", 1);
    router.set("ipv6.conf.tob.forwarding", 1);
    let before = router.switches();
    assert!(router.pings(0, 1, true) && !router.pings(2, 1, false));
    let (setup, _tun) = gateway(&router.host, base.path());
    assert!(
        !router.switches().contains("forwarding = 0"),
        "{}",
        router.switches()
    );
    assert!(router.pings(0, 1, true), "from a device that forwarded");
    assert!(!router.pings(2, 1, false), "from one that did not");
    router
        .host
        .command("nft flush chain inet pleach_plLtun may_forward");
    assert!(router.pings(2, 1, true), "without the rule");
    router.host.run(|| setup.undo().expect("undoes"));
    assert_eq!(router.switches(), before);
    assert!(router.pings(0, 1, true) && !router.pings(2, 1, false));
}

#[test]
fn a_device_that_did_not_forward_forwards_for_the_tunnel_only() {
    let Some(router) = Router::new() else { return };
    let base = tempfile::tempdir().expect("tempdir");
    router.set("ipv4.ip_forward", 1);
    router.set("ipv6.conf.all.forwarding", 1);
    router.set("ipv4.conf.toc.forwarding", 0);
    router.set("ipv4.conf.default.forwarding", 0);
    let before = router.switches();
    let (first, _first_tun) = gateway(&router.host, base.path());
    assert!(
        !router.switches().contains("forwarding = 0"),
        "{}",
        router.switches()
    );
    assert!(router.pings(0, 1, true) && !router.pings(2, 1, false));
    // Its switch is on, for what goes into the tunnel.
    let switch = router
        .host
        .command("sysctl -n net.ipv4.conf.plLtun.forwarding");
    assert_eq!(switch, "1\n");
    router.host.run(|| drop(first));
    assert_eq!(router.switches(), before);
}
