//! The devices from which a gateway is reached, with names that the user understands.
//!
//! sysfs describes a device: the product string of its USB device ("iPhone", "SAMSUNG Galaxy S21", the name of a
//! modem), else its kind. Devices of the same name, such as two modems of one model, are distinguished by their USB
//! port, which does not change while they are plugged in.

use std::{
    fs,
    path::{Path, PathBuf},
};

use pleach_linux::watch::LinkSnapshot;

/// A device with a route to the gateway.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Uplink {
    /// State of the device.
    pub(crate) link: LinkSnapshot,
    /// Name of the device for the user, different for each uplink.
    pub(crate) label: String,
}

/// Returns the links that a client uses if its configuration names none. The tunnel's own device `tunnel` is excluded.
pub(crate) fn find(links: Vec<LinkSnapshot>, tunnel: &str) -> Vec<Uplink> {
    let is_uplink = |link: &LinkSnapshot| crate::run_tunnel::is_uplink(link, tunnel);
    let links: Vec<LinkSnapshot> = links.into_iter().filter(is_uplink).collect();
    let names: Vec<Name> = links
        .iter()
        .map(|link| Name::read(Path::new("/sys/class/net"), &link.name))
        .collect();
    let labels = distinct(&names);
    let pairs = links.into_iter().zip(labels);
    pairs
        .map(|(link, label)| Uplink {
            label: format!("{label} ({})", link.name),
            link,
        })
        .collect()
}

/// Name of a device according to sysfs.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Name {
    what: String,
    /// USB port, such as `1-1.2`: the bus, then the port of each hub.
    port: Option<String>,
}

impl Name {
    fn read(class: &Path, device: &str) -> Self {
        let entry = class.join(device);
        if let Some(usb) = usb_device(&entry) {
            let text = |file: &str| {
                let text = fs::read_to_string(usb.join(file)).unwrap_or_default();
                let clean = text.replace('_', " ");
                let words = clean.split_whitespace();
                words
                    .collect::<Vec<_>>()
                    .join(" ")
                    .replace(char::is_control, "")
            };
            let (make, product) = (text("manufacturer"), text("product"));
            let is_named = product.to_lowercase().starts_with(&make.to_lowercase());
            let what = match (make.is_empty() || is_named, product.is_empty()) {
                (_, true) => "USB device".to_owned(),
                (true, false) => product,
                (false, false) => format!("{make} {product}"),
            };
            let port = usb
                .file_name()
                .map(|port| port.to_string_lossy().into_owned());
            return Self { what, port };
        }
        let uevent = fs::read_to_string(entry.join("uevent")).unwrap_or_default();
        let what = if entry.join("phy80211").exists() || entry.join("wireless").exists() {
            "Wi-Fi"
        } else if uevent.contains("DEVTYPE=wwan") {
            "mobile modem"
        } else if device.starts_with("ppp") {
            "dial-up line"
        } else {
            "Ethernet"
        };
        Self {
            what: what.to_owned(),
            port: None,
        }
    }
}

/// Returns the USB device to which a network device belongs.
fn usb_device(entry: &Path) -> Option<PathBuf> {
    let device = fs::canonicalize(entry.join("device")).ok()?;
    let mut above = device.ancestors().take(MAX_DEPTH);
    above
        .find(|above| above.join("idVendor").exists())
        .map(Path::to_owned)
}

/// Returns labels that differ, as far as the USB ports differ.
fn distinct(names: &[Name]) -> Vec<String> {
    let is_shared = |name: &Name| names.iter().filter(|other| other.what == name.what).count() > 1;
    let label = |name: &Name| match &name.port {
        Some(port) if is_shared(name) => format!("{} at USB port {port}", name.what),
        Some(_) | None => name.what.clone(),
    };
    names.iter().map(label).collect()
}

/// Number of parent directories to search: interface, device, and a few more.
const MAX_DEPTH: usize = 6;

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    /// Makes a directory tree as in sysfs, with network devices that belong to USB devices.
    fn tree(devices: &[(&str, &str, &str, &str)]) -> tempfile::TempDir {
        let root = tempfile::TempDir::new().expect("directory");
        for (device, port, make, product) in devices {
            let usb = root.path().join("devices/usb1").join(port);
            let function = usb.join(format!("{port}:1.0"));
            fs::create_dir_all(&function).expect("made");
            for (file, text) in [
                ("idVendor", "1234"),
                ("manufacturer", make),
                ("product", product),
            ] {
                fs::write(usb.join(file), format!("{text}\n")).expect("written");
            }
            let entry = root.path().join("class").join(device);
            fs::create_dir_all(&entry).expect("made");
            symlink(&function, entry.join("device")).expect("linked");
        }
        root
    }

    #[test]
    fn phones_have_their_names_and_identical_modems_their_ports() {
        let root = tree(&[
            ("eth1", "1-1.2", "HUAWEI_MOBILE", "HUAWEI_MOBILE"),
            ("eth2", "1-1.3", "HUAWEI_MOBILE", "HUAWEI_MOBILE"),
            ("usb0", "1-2", "Apple Inc.", "iPhone"),
            ("usb1", "1-3", "SAMSUNG", "SAMSUNG_Android"),
            ("usb2", "1-4", "", ""),
        ]);
        let class = root.path().join("class");
        fs::create_dir_all(class.join("wlan0/phy80211")).expect("made");
        fs::create_dir_all(class.join("wwan0")).expect("made");
        fs::write(
            class.join("wwan0/uevent"),
            "DEVTYPE=wwan\nINTERFACE=wwan0\n",
        )
        .expect("written");
        let devices = [
            "eth1", "eth2", "usb0", "usb1", "usb2", "wlan0", "wwan0", "eth0",
        ];
        let names: Vec<Name> = devices
            .iter()
            .map(|device| Name::read(&class, device))
            .collect();
        assert_eq!(
            distinct(&names),
            [
                "HUAWEI MOBILE at USB port 1-1.2",
                "HUAWEI MOBILE at USB port 1-1.3",
                "Apple Inc. iPhone",
                "SAMSUNG Android",
                "USB device",
                "Wi-Fi",
                "mobile modem",
                "Ethernet"
            ]
        );
    }
}
