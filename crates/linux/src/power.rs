//! Determines whether this host runs on its battery, from `/sys/class/power_supply`.

use std::{fs, io, path::Path};

/// Directory in which the kernel lists power supplies.
pub const SUPPLIES: &str = "/sys/class/power_supply";

/// Whether this host has a battery and no other power supply is connected. `supplies` is normally [`SUPPLIES`].
///
/// # Errors
/// Fails if the directory cannot be read.
pub fn is_on_battery(supplies: &Path) -> io::Result<bool> {
    let mut has_battery = false;
    for supply in fs::read_dir(supplies)? {
        let supply = supply?.path();
        let read = |name: &str| fs::read_to_string(supply.join(name)).unwrap_or_default();
        match read("type").trim() {
            // The battery of a device such as a mouse does not power the host.
            "Battery" => has_battery |= read("scope").trim() != "Device",
            _ if read("online").trim() == "1" => return Ok(false),
            _ => {}
        }
    }
    Ok(has_battery)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_battery_counts_while_nothing_feeds_it() {
        let directory = tempfile::TempDir::new().expect("temporary directory");
        let set = |supply: &str, name: &str, text: &str| {
            let path = directory.path().join(supply);
            fs::create_dir_all(&path).expect("directory");
            fs::write(path.join(name), format!("{text}\n")).expect("file");
        };
        let holds = || is_on_battery(directory.path()).expect("readable");
        assert!(!holds(), "a host without supplies");
        set("mouse", "type", "Battery");
        set("mouse", "scope", "Device");
        set("AC", "type", "Mains");
        set("AC", "online", "0");
        assert!(!holds(), "a mouse");
        set("BAT0", "type", "Battery");
        assert!(holds());
        set("AC", "online", "1");
        assert!(!holds());
        assert!(is_on_battery(&directory.path().join("missing")).is_err());
    }
}
