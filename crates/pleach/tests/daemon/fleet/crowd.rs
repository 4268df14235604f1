//! Many clients of a fleet, each a daemon in a namespace of its own with one link.

use std::{fs, os::unix::fs::PermissionsExt as _};

use pleach_lab::netns::Netns;

use super::stage::{DATABASE, LARGE, Stage};
use crate::process::{Daemon, Keys, TUNNEL};

/// A client.
pub(super) struct Member {
    pub(super) name: String,
    /// Number of the gateway at which it is at home.
    pub(super) home: u8,
    pub(super) addresses: [String; 2],
    pub(super) host: Netns,
    pub(super) daemon: Daemon,
}

impl Member {
    /// Connects the host of client `number` to the Internet, and starts its daemon with `keys`.
    fn start(stage: &Stage, number: u16, keys: &Keys) -> Self {
        let [home, second, third] = order(number);
        let wire = FIRST_WIRE + number;
        let host = stage.world.another(wire);
        stage.world.introduce(&host, wire);
        let name = format!("c{number}");
        let addresses = addresses(number);
        let [v4, v6] = &addresses;
        let path = |extension: &str| stage.world.dir.path().join(format!("{name}.{extension}"));
        let (file, control) = (path("toml"), path("sock"));
        let text = format!(
            "mode = \"client\"\n\
             [tunnel]\nname = \"{TUNNEL}\"\naddress = [\"{v4}/16\", \"{v6}/48\"]\nprivate_key = \"{}\"\n\
             control = {control:?}\ngateway_return = 5\nsplit_tcp = \"off\"\n\
             [scheduler]\npolicy = \"adaptive\"\n{}\
             [[link]]\nname = \"uplink\"\ndevice = \"l{wire}\"\n",
            keys.private,
            LARGE.tables([home, second, third]),
        );
        fs::write(&file, text).expect("written");
        fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).expect("our file");
        let daemon = Daemon::with_file(&host, file, control);
        Self {
            name,
            home,
            addresses,
            host,
            daemon,
        }
    }
}

/// Adds `count` clients to the store, as another program would, and starts them.
pub(super) fn start(stage: &Stage, count: u16) -> Vec<Member> {
    let keys: Vec<Keys> = (0..count).map(|_| Keys::new()).collect();
    let rows = (0..count).zip(&keys).map(|(number, keys)| {
        let addresses = addresses(number).join(",");
        format!("('c{number}', '{}', '{addresses}')", keys.public)
    });
    let rows: Vec<String> = rows.collect();
    let mut store = stage.database.client(DATABASE).expect("connected");
    let added = store.batch_execute(&format!(
        "INSERT INTO pleach.clients (name, public_key, allowed_ips) VALUES {}",
        rows.join(",")
    ));
    added.expect("valid SQL");
    (0..count)
        .zip(&keys)
        .map(|(number, keys)| Member::start(stage, number, keys))
        .collect()
}

/// Returns the gateways of a client in the order in which it tries them. Half of the clients of a gateway have the one as
/// their second, and half the other.
fn order(number: u16) -> [u8; 3] {
    let at = usize::from(number % 3);
    let (second, third) = if number.is_multiple_of(2) {
        (1, 2)
    } else {
        (2, 1)
    };
    [0, second, third].map(|step| [1, 2, 3][(at + step) % 3])
}

/// Returns the inner addresses of a client, from the home networks of its first gateway.
fn addresses(number: u16) -> [String; 2] {
    let [home, ..] = order(number);
    let last = number / 3 + 1;
    [
        format!("10.77.{home}.{last}"),
        format!("fd77:0:0:{home}::{last:x}"),
    ]
}

/// Wire of the first client; those before have the world's hosts.
const FIRST_WIRE: u16 = 10;
/// Most clients: 254 addresses in each home network.
pub(super) const MOST: u16 = 3 * 254;
