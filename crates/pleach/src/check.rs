//! Checks of a configuration against this host: its devices exist and its port is free.
//!
//! An absent device does not prevent a start, because links may be plugged in later. `check` reports it as a mistake,
//! and `up` as a warning. A port in use stops both commands, unless the socket belongs to the same tunnel; this is the
//! case if a daemon answers on its control socket.

use std::{
    io,
    net::{SocketAddr, TcpListener, UdpSocket},
    os::unix::net::UnixStream,
    path::Path,
};

use rustix::net::{AddressFamily, SocketFlags, SocketType, netdevice, socket_with};

use crate::config::{
    self, AnyLoaded, ConfigError, Loaded, LoadedEqualizer, LoadedProxy, Note, Place, Role, plain,
};

/// Checks the file `path` against its grammar and this host. Returns the notes for the user.
///
/// # Errors
/// The first mistake.
pub(crate) fn check(path: &Path) -> Result<Vec<Note>, ConfigError> {
    match config::load_any(path)? {
        AnyLoaded::Tunnel(loaded) => {
            if let Some(error) = absent_devices(&loaded).into_iter().next() {
                return Err(error);
            }
            if UnixStream::connect(&loaded.config.control).is_err() {
                port_in_use(&loaded)?;
            }
            Ok(loaded.notes)
        }
        AnyLoaded::Equalizer(loaded) => {
            match absent_equalizer_devices(&loaded).into_iter().next() {
                Some(error) => Err(error),
                None => Ok(loaded.notes),
            }
        }
        AnyLoaded::Proxy(loaded) => {
            if let Some(error) = absent_proxy_devices(&loaded).into_iter().next() {
                return Err(error);
            }
            if UnixStream::connect(&loaded.config.control).is_err() {
                proxy_port_in_use(&loaded)?;
            }
            Ok(loaded.notes)
        }
    }
}

/// Checks a proxy before its start: the port must be free. Returns an error for each absent device, which does not
/// prevent the start.
///
/// # Errors
/// If the proxy cannot listen on its address.
pub(crate) fn before_proxy(loaded: &LoadedProxy) -> Result<Vec<ConfigError>, ConfigError> {
    proxy_port_in_use(loaded)?;
    Ok(absent_proxy_devices(loaded))
}

/// Checks a tunnel before its start: the port must be free. Returns an error for each absent device, which does not
/// prevent the start.
///
/// # Errors
/// If the gateway cannot listen on its address.
pub(crate) fn before_start(loaded: &Loaded) -> Result<Vec<ConfigError>, ConfigError> {
    port_in_use(loaded)?;
    Ok(absent_devices(loaded))
}

/// Returns an error for each link whose device does not exist.
pub(crate) fn absent_links(loaded: &AnyLoaded) -> Vec<ConfigError> {
    match loaded {
        AnyLoaded::Equalizer(loaded) => absent_equalizer_devices(loaded),
        AnyLoaded::Proxy(loaded) => absent_proxy_devices(loaded),
        AnyLoaded::Tunnel(loaded) => absent_devices(loaded),
    }
}

fn absent_devices(loaded: &Loaded) -> Vec<ConfigError> {
    let Role::Client(client) = &loaded.config.role else {
        return Vec::new();
    };
    let devices = client.links.iter().map(|link| link.device.as_str());
    absent(devices, &loaded.device_places)
}

fn absent_proxy_devices(loaded: &LoadedProxy) -> Vec<ConfigError> {
    let devices = loaded.config.links.iter().map(|link| link.device.as_str());
    absent(devices, &loaded.device_places)
}

/// Returns an error for each device of an equalizer's links that does not exist.
pub(crate) fn absent_equalizer_devices(loaded: &LoadedEqualizer) -> Vec<ConfigError> {
    let devices = loaded.config.links.iter().map(|link| link.device.as_str());
    absent(devices, &loaded.device_places)
}

/// Returns an error for each of `devices` that does not exist. `places` are their positions in the file.
fn absent<'a>(devices: impl Iterator<Item = &'a str>, places: &[Place]) -> Vec<ConfigError> {
    devices
        .zip(places)
        .filter(|(device, _)| !device_exists(device))
        .map(|(device, place)| {
            ConfigError::new(
                place.clone(),
                "[[link]] device",
                format!("no device {device:?} on this host"),
                "connect the device, or remove the link; `ip link` lists the devices",
            )
        })
        .collect()
}

/// Whether the device exists in this network namespace; `true` if that cannot be found out.
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
    let bound = UdpSocket::bind(gateway.listen);
    listen_error(
        bound.err(),
        gateway.listen,
        place,
        "[tunnel] listen",
        "ss -lunp",
    )
}

fn proxy_port_in_use(loaded: &LoadedProxy) -> Result<(), ConfigError> {
    // Rust's listeners reuse the addresses of connections that have just ended, as the daemon does.
    let address = loaded.config.listen;
    let bound = TcpListener::bind(address);
    listen_error(
        bound.err(),
        address,
        &loaded.listen_place,
        "[proxy] listen",
        "ss -ltnp",
    )
}

/// Returns the error that prevents listening on `address`, if any.
fn listen_error(
    error: Option<io::Error>,
    address: SocketAddr,
    place: &Place,
    label: &str,
    lister: &str,
) -> Result<(), ConfigError> {
    let Some(error) = error else {
        return Ok(());
    };
    let in_use = format!(
        "stop the program that uses the port (`{lister}` shows it), or choose another port"
    );
    let is = |kind| error.kind() == kind;
    let remedy = if is(io::ErrorKind::AddrInUse) {
        in_use.as_str()
    } else if is(io::ErrorKind::AddrNotAvailable) {
        "write an address of this host, or \"[::]:PORT\" for all addresses"
    } else if is(io::ErrorKind::PermissionDenied) {
        "choose a port above 1023, or start with the capability CAP_NET_BIND_SERVICE"
    } else {
        "choose another address or port; \"0.0.0.0:PORT\" works without IPv6"
    };
    Err(ConfigError::new(
        place.clone(),
        label,
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
