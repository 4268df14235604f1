//! The rights that a daemon keeps after its set-up: see [`pleach_linux::confine`].
//!
//! | mode | capabilities |
//! | --- | --- |
//! | tunnel | `NET_ADMIN` (routes, nftables, marks, sysctls), `NET_RAW` (sockets are bound to devices again); `NET_BIND_SERVICE` if it listens on a port below 1024 |
//! | proxy | `NET_ADMIN` with `transparent = true`, `NET_BIND_SERVICE` with `transparent_udp = true` (answers from ports below 1024), otherwise none |
//! | equalizer | `NET_ADMIN`, and with BPF programs `BPF` and `PERFMON`; `NET_RAW` with `spread = "delay"` (pings) |
//!
//! A daemon also keeps `DAC_OVERRIDE` if a directory in which it writes belongs to another user than the daemon runs as, for
//! example to the user who started it with `sudo`; or `DAC_READ_SEARCH` if a directory that leads to its files does.
//!
//! Files: those of [`basic_files`], the directory of the configuration (a reload reads it) and of files that it names, and the
//! directories in which the daemon keeps state and sockets. A daemon that resolves names reads all of `/etc`, because
//! `/etc/resolv.conf` may be replaced at any time.

use std::{
    fs::DirBuilder,
    net::IpAddr,
    os::unix::fs::{DirBuilderExt as _, MetadataExt as _},
    path::{Path, PathBuf},
};

use pleach_linux::{
    confine::{Access, CapabilitySet, Confinement, basic_files},
    equalize::Backend,
};
use pleach_proxy::daemon::Transparency;

use crate::{
    config::{
        self, ClientConfig, EqualizerConfig, GatewayConfig, ProxyConfig, RUN_DIRECTORY, Role,
        StorePlace, TunnelConfig, ViewConfig,
    },
    run_tunnel::{budgets, dns},
};

/// Returns the rights of the tunnel that `config`, read from `file`, describes. `trace`: its trace file.
pub(crate) fn tunnel(config: &TunnelConfig, file: &Path, trace: Option<&Path>) -> Confinement {
    let mut kept = Kept::new(file, &config.control, &config.view);
    kept.capabilities |= CapabilitySet::NET_ADMIN | CapabilitySet::NET_RAW;
    if let Some(trace) = trace {
        kept.may_change_beside(trace);
    }
    match &config.role {
        Role::Client(client) => kept.of_client(client, &config.name),
        Role::Gateway(gateway) => kept.of_gateway(gateway),
    }
    kept.finish(false)
}

/// Returns the rights of the proxy that `config`, read from `file`, describes.
pub(crate) fn proxy(config: &ProxyConfig, file: &Path) -> Confinement {
    let mut kept = Kept::new(file, &config.control, &config.view);
    if let Some(state) = &config.state {
        make_beside(state, 0o700);
        kept.may_change_beside(state);
    }
    let stripe = config.stripe.as_ref();
    if let Some(store) = stripe.and_then(|stripe| stripe.store.as_ref()) {
        make(store, 0o700);
        kept.may_change(store);
    }
    kept.may_resolve();
    let uses_bpf = match &config.transparent {
        Transparency::Off => false,
        Transparency::Redirect { udp } => {
            kept.capabilities |= CapabilitySet::NET_ADMIN;
            if *udp {
                kept.capabilities |= CapabilitySet::NET_BIND_SERVICE;
            }
            false
        }
        // The programs are in place; the kernel lets everybody change maps that he has open (5.19).
        Transparency::Cgroup(_) => true,
    };
    kept.finish(uses_bpf)
}

/// Returns the rights of the equalizer that `config`, read from `file`, describes, including those for its set-up.
pub(crate) fn equalizer(config: &EqualizerConfig, file: &Path) -> Confinement {
    let mut kept = Kept::new(file, &config.control, &config.view);
    kept.capabilities |= CapabilitySet::NET_ADMIN;
    let uses_bpf = config.backend != Some(Backend::Nft);
    if uses_bpf {
        kept.capabilities |= CapabilitySet::BPF | CapabilitySet::PERFMON;
    }
    if config.mode.hold {
        kept.capabilities |= CapabilitySet::NET_RAW;
        kept.files.push(("/dev/net/tun".into(), Access::Device));
    }
    kept.finish(uses_bpf)
}

/// Rights while they are collected.
struct Kept {
    capabilities: CapabilitySet,
    files: Vec<(PathBuf, Access)>,
    /// Files that a reload reads.
    read: Vec<PathBuf>,
}

impl Kept {
    /// Starts with what every mode needs.
    fn new(file: &Path, control: &Path, view: &ViewConfig) -> Self {
        let mut this = Self {
            capabilities: CapabilitySet::empty(),
            files: basic_files(),
            read: Vec::new(),
        };
        this.may_read_beside(file);
        for named in config::named_files(file).unwrap_or_default() {
            this.may_read_beside(&named);
        }
        this.may_change(Path::new(RUN_DIRECTORY));
        make_beside(control, 0o755);
        this.may_change_beside(control);
        this.of_view(view);
        this
    }

    #[cfg(feature = "dashboard")]
    fn of_view(&mut self, view: &ViewConfig) {
        if let Some(history) = &view.history {
            make_beside(history, 0o700);
            self.may_change_beside(history);
        }
        for listen in view.dashboard.iter().chain(&view.metrics) {
            self.may_listen(listen.address.port());
        }
    }

    #[cfg(not(feature = "dashboard"))]
    fn of_view(&mut self, _: &ViewConfig) {}

    fn of_client(&mut self, client: &ClientConfig, tunnel: &str) {
        // A reload may add a budget.
        let state = budgets::file(client, tunnel);
        make_beside(&state, 0o700);
        self.may_change_beside(&state);
        let mut proxies = client
            .links
            .iter()
            .filter_map(|link| link.http_proxy.as_ref());
        if client.has_names() || proxies.any(|proxy| proxy.host.parse::<IpAddr>().is_err()) {
            self.may_resolve();
        }
        self.files.extend(dns::files(!client.dns.is_empty()));
    }

    fn of_gateway(&mut self, gateway: &GatewayConfig) {
        self.may_listen(gateway.listen.port());
        if let Some(carrier) = &gateway.carrier {
            self.may_listen(carrier.listen.port());
        }
        let invitations = gateway.invitations.as_ref();
        if let Some(directory) = invitations.and_then(|invitations| invitations.store.as_ref()) {
            self.may_change(directory);
        }
        if let Some(store) = &gateway.store {
            match &store.place {
                StorePlace::Http(service) => {
                    if service.has_name() {
                        self.may_resolve();
                    }
                    make_beside(&service.cache, 0o700);
                    self.may_change_beside(&service.cache);
                }
                StorePlace::Postgres(database) if database.has_names => self.may_resolve(),
                StorePlace::Postgres(_) => {}
                StorePlace::Sqlite(path) => {
                    make_beside(path, 0o700);
                    self.may_change_beside(path);
                }
            }
        }
    }

    fn may_resolve(&mut self) {
        self.files.push(("/etc".into(), Access::Read));
        self.files.extend(dns::files(false));
    }

    fn may_listen(&mut self, port: u16) {
        if port < FIRST_FREE_PORT {
            self.capabilities |= CapabilitySet::NET_BIND_SERVICE;
        }
    }

    /// Grants the directory of `file`, and that of the file to which `file` is a link.
    fn may_read_beside(&mut self, file: &Path) {
        let named = std::path::absolute(file).ok();
        let real = file.canonicalize().ok();
        for file in [named, real].into_iter().flatten() {
            if let Some(directory) = file.parent() {
                self.files.push((directory.to_owned(), Access::Read));
            }
            self.read.push(file);
        }
    }

    /// Grants changes in the directory of `file`, and in that of the file to which `file` is a link.
    fn may_change_beside(&mut self, file: &Path) {
        let real = file.canonicalize().ok();
        for directory in [Some(file), real.as_deref()]
            .into_iter()
            .flatten()
            .filter_map(Path::parent)
        {
            self.may_change(directory);
        }
    }

    fn may_change(&mut self, directory: &Path) {
        // A path without a directory is in the working directory.
        let directory = if directory.as_os_str().is_empty() {
            Path::new(".")
        } else {
            directory
        };
        self.files.push((directory.to_owned(), Access::Change));
    }

    fn finish(mut self, bpf: bool) -> Confinement {
        let user = rustix::process::geteuid().as_raw();
        let is_foreign = |path: &Path| path.metadata().is_ok_and(|found| found.uid() != user);
        let basic = basic_files();
        let own = || self.files.iter().filter(|file| !basic.contains(file));
        if own().any(|(path, access)| *access == Access::Change && is_foreign(path)) {
            self.capabilities |= CapabilitySet::DAC_OVERRIDE;
        } else {
            // Its user may have closed a directory on the way to others; root does not.
            let is_users = |path: &Path| {
                let found = path.metadata();
                found.is_ok_and(|found| ![user, 0].contains(&found.uid()))
            };
            let directories = own().map(|(path, _)| path);
            if directories
                .chain(&self.read)
                .any(|path| path.ancestors().any(is_users))
            {
                self.capabilities |= CapabilitySet::DAC_READ_SEARCH;
            }
        }
        Confinement {
            capabilities: self.capabilities,
            bpf,
            files: Some(self.files),
        }
    }
}

/// Makes the directory of `file`, if it has one: see [`make`].
fn make_beside(file: &Path, mode: u32) {
    if let Some(directory) = file.parent() {
        make(directory, mode);
    }
}

/// Makes `directory`, because only an existing directory can be granted. A failure shows when the daemon writes there.
fn make(directory: &Path, mode: u32) {
    let _ = DirBuilder::new()
        .recursive(true)
        .mode(mode)
        .create(directory);
}

/// First port on which every user may listen, unless `net.ipv4.ip_unprivileged_port_start` says otherwise.
const FIRST_FREE_PORT: u16 = 1024;
