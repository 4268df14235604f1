//! What a configuration asks of this host: that its devices are there and its port is free.
//!
//! An absent device is no reason not to start, because links may be plugged in later; `check` reports it as a mistake,
//! `up` as a warning. A port in use stops both, unless the socket belongs to this very tunnel: then its daemon answers
//! on the control socket.

use std::{
    io,
    net::{SocketAddr, UdpSocket},
    os::unix::net::UnixStream,
    path::Path,
};

use rustix::net::{AddressFamily, SocketFlags, SocketType, netdevice, socket_with};

use crate::config::{self, ConfigError, Loaded, Note, Role, plain};

/// Checks the file `path` against its grammar and this host; returns what is worth telling.
///
/// # Errors
/// The first mistake.
pub(crate) fn check(path: &Path) -> Result<Vec<Note>, ConfigError> {
    let loaded = config::load(path)?;
    if let Some(error) = absent_devices(&loaded).into_iter().next() {
        return Err(error);
    }
    if UnixStream::connect(&loaded.config.control).is_err() {
        port_in_use(&loaded)?;
    }
    Ok(loaded.notes)
}

/// Checks before a start: the port must be free. Returns a line for each absent device.
///
/// # Errors
/// The gateway cannot listen where it should.
pub(crate) fn before_start(loaded: &Loaded) -> Result<Vec<ConfigError>, ConfigError> {
    port_in_use(loaded)?;
    Ok(absent_devices(loaded))
}

fn absent_devices(loaded: &Loaded) -> Vec<ConfigError> {
    let Role::Client(client) = &loaded.config.role else {
        return Vec::new();
    };
    client
        .links
        .iter()
        .zip(&loaded.device_places)
        .filter(|(link, _)| !device_exists(&link.device))
        .map(|(link, place)| {
            ConfigError::new(
                place.clone(),
                "[[link]] device",
                format!("no device {:?} on this host", link.device),
                "plug it in, or remove the link; `ip link` lists the devices",
            )
        })
        .collect()
}

/// Whether this network namespace has the device; `true` if that cannot be told.
fn device_exists(name: &str) -> bool {
    let socket = socket_with(
        AddressFamily::INET,
        SocketType::DGRAM,
        SocketFlags::CLOEXEC,
        None,
    );
    socket.map_or(true, |socket| {
        netdevice::name_to_index(socket, name) != Err(rustix::io::Errno::NODEV)
    })
}

fn port_in_use(loaded: &Loaded) -> Result<(), ConfigError> {
    let (Role::Gateway(gateway), Some(place)) = (&loaded.config.role, &loaded.listen_place) else {
        return Ok(());
    };
    let address: SocketAddr = gateway.listen;
    let Err(error) = UdpSocket::bind(address) else {
        return Ok(());
    };
    let is = |kind| error.kind() == kind;
    let remedy = if is(io::ErrorKind::AddrInUse) {
        "stop the program that has the port (`ss -lunp` names it), or choose another port"
    } else if is(io::ErrorKind::AddrNotAvailable) {
        "write an address of this host, or \"[::]:PORT\" for all"
    } else if is(io::ErrorKind::PermissionDenied) {
        "choose a port above 1023, or start with the right to use this one"
    } else {
        "choose another address or port; \"0.0.0.0:PORT\" works without IPv6"
    };
    Err(ConfigError::new(
        place.clone(),
        "[tunnel] listen",
        format!("cannot listen on {address}: {}", plain(&error)),
        remedy,
    ))
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::PermissionsExt};

    use super::*;
    use crate::keys::SecretKey;

    #[test]
    fn absent_devices_do_not_keep_a_client_from_starting() {
        let directory = tempfile::TempDir::new().expect("temporary directory");
        let key_file = directory.path().join("client.key");
        let key = SecretKey::random().expect("random");
        fs::write(&key_file, key.to_base64().as_bytes()).expect("write");
        fs::set_permissions(&key_file, fs::Permissions::from_mode(0o600)).expect("chmod");
        let text = include_str!("../../../packaging/client.toml");
        let file = directory.path().join("client.toml");
        let absent = text
            .replace("\"eth1\"", "\"lo\"")
            .replace("\"wwan0\"", "\"clt-none\"");
        fs::write(&file, absent).expect("write");

        let loaded = config::load(&file).expect("good file");
        let warnings = before_start(&loaded).expect("may start");

        assert_eq!(warnings.len(), 1);
        assert!(
            warnings[0]
                .to_string()
                .contains("no device \"clt-none\" on this host")
        );
    }
}
