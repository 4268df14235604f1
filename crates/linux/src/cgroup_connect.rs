//! Binds other programs' sockets to links: BPF programs called by `connect(2)` in a cgroup.
//!
//! Data does not pass through a proxy and is not copied. The BPF programs cannot send requests to this process, so this
//! process maintains three maps for them:
//!
//! | map | key | value |
//! | --- | --- | --- |
//! | `places` | network, IPv4 as `::ffff:0:0/96` | its [`Verdict`] |
//! | `slots` | number modulo [`SLOTS`], one half for each family | device for this slot |
//! | `counts` | device | number of sockets bound to it |
//!
//! A new TCP connection uses the next slot, unless a place requires otherwise. Both programs share an atomic counter of
//! slots. The programs do not change sockets that already have a device, a source address or a mark (the daemon's own
//! sockets have a device), nor sockets of other network namespaces. If data is missing, the hook does nothing, and the
//! routing table decides. The maps are changed element by element; every intermediate state is valid.
//!
//! Descriptors of this process keep the programs attached: they are detached however the process ends. Needs kernel
//! 6.1 or newer (`SO_BINDTOIFINDEX` for BPF).

use std::{
    collections::BTreeMap,
    fs::{self, File},
    io,
    net::UdpSocket,
    os::fd::{AsFd, AsRawFd, OwnedFd},
    path::{Path, PathBuf},
};

use ipnet::IpNet;

use crate::bpf::{
    self, Attach, Map, MapKind,
    asm::{Asm, Insn, Label, Reg},
    prefix_key,
};

/// Treatment of connections to a network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The connections are not changed: the routing table decides.
    Leave,
    /// The connections are bound to the device of this index.
    Bind(u32),
    /// `connect(2)` fails with EPERM.
    Refuse,
    /// The connections are distributed over the slots, like connections to networks without a verdict.
    Spread,
}

impl Verdict {
    fn code(self) -> u32 {
        match self {
            Self::Leave => LEAVE,
            Self::Bind(ifindex) => ifindex,
            Self::Refuse => REFUSE,
            Self::Spread => SPREAD,
        }
    }
}

/// The hook, attached until dropped.
#[derive(Debug)]
pub struct CgroupConnect {
    places: Map,
    slots: Map,
    counts: Map,
    /// Content of the maps.
    placed: BTreeMap<IpNet, Verdict>,
    turns: [Vec<u32>; 2],
    _links: [OwnedFd; 2],
}

impl CgroupConnect {
    /// Attaches to the cgroup (version 2) at `path`: from now on, the hook applies to every process in it and below, in
    /// the network namespace of the caller. No socket is bound before [`Self::set_turns`].
    ///
    /// # Errors
    /// Fails if `path` is not a cgroup of version 2, if the permission is missing, or if the kernel is too old. The
    /// error says which.
    pub fn attach(path: &Path) -> io::Result<Self> {
        let told = |what: &str, error: &io::Error| {
            let why = match error.raw_os_error() {
                Some(libc::EPERM) => "root, or CAP_BPF and CAP_NET_ADMIN, is needed".to_owned(),
                Some(libc::EINVAL | libc::EACCES) => {
                    format!("{error}; Linux 6.1 or newer is needed")
                }
                _ => error.to_string(),
            };
            io::Error::new(error.kind(), format!("{what}: {why}"))
        };
        let name = path.display();
        let directory =
            File::open(path).map_err(|error| told(&format!("cgroup {name}"), &error))?;
        if !is_cgroup2(&directory)? {
            let text = format!("{name} is no cgroup of version 2");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
        }
        let no_map = |error: io::Error| told("BPF maps", &error);
        let places = Map::new(MapKind::Trie, 20, 4, MAX_PLACES).map_err(no_map)?;
        let slots = Map::new(MapKind::Array, 4, 4, 2 * SLOTS).map_err(no_map)?;
        let counts = Map::new(MapKind::Hash, 4, 8, MAX_COUNTED).map_err(no_map)?;
        let turn = Map::new(MapKind::Array, 4, 8, 1).map_err(no_map)?;
        let cookie = netns_cookie()?;
        let attach = |attach| {
            let maps = [&places, &turn, &slots, &counts];
            let program = bpf::load(&program(attach, cookie, maps), attach)
                .map_err(|error| told("BPF program", &error))?;
            bpf::link(&program, &directory, attach)
                .map_err(|error| told(&format!("attaching to cgroup {name}"), &error))
        };
        let links = [attach(Attach::Connect4)?, attach(Attach::Connect6)?];
        let slots_in_turn = vec![0; SLOTS as usize];
        Ok(Self {
            placed: BTreeMap::new(),
            turns: [slots_in_turn.clone(), slots_in_turn],
            places,
            slots,
            counts,
            _links: links,
        })
    }

    /// Distributes new connections over the devices in `v4` and `v6`: pairs of device index and weight.
    ///
    /// # Errors
    /// Returns the error of the kernel.
    pub fn set_turns(&mut self, v4: &[(u32, u64)], v6: &[(u32, u64)]) -> io::Result<()> {
        for (ifindex, _) in v4.iter().chain(v6) {
            let key = ifindex.to_ne_bytes();
            if self.counts.get_u64(&key).is_none() {
                self.counts.set(&key, &[0; 8])?;
            }
        }
        for (half, devices) in [(0, v4), (SLOTS, v6)] {
            let known = &mut self.turns[usize::from(half > 0)];
            for ((slot, ifindex), known) in (half..).zip(turns(devices)).zip(known) {
                if ifindex != *known {
                    self.slots
                        .set(&slot.to_ne_bytes(), &ifindex.to_ne_bytes())?;
                    *known = ifindex;
                }
            }
        }
        Ok(())
    }

    /// Replaces all places, which are the networks with a verdict. The place with the longest matching prefix
    /// applies. Places beyond [`MAX_PLACES`] are omitted.
    ///
    /// # Errors
    /// Returns the error of the kernel.
    pub fn set_places(&mut self, places: &BTreeMap<IpNet, Verdict>) -> io::Result<()> {
        for (net, verdict) in places.iter().take(MAX_PLACES as usize) {
            if self.placed.get(net) != Some(verdict) {
                if let Verdict::Bind(ifindex) = verdict
                    && self.counts.get_u64(&ifindex.to_ne_bytes()).is_none()
                {
                    self.counts.set(&ifindex.to_ne_bytes(), &[0; 8])?;
                }
                if !self.placed.contains_key(net) && self.placed.len() >= MAX_PLACES as usize {
                    // Removes old places first, to free space.
                    self.forget_places(places)?;
                }
                self.places
                    .set(&prefix_key(*net), &verdict.code().to_ne_bytes())?;
                self.placed.insert(*net, *verdict);
            }
        }
        self.forget_places(places)
    }

    /// Returns the number of sockets bound to the device `ifindex` so far.
    #[must_use]
    pub fn bound(&self, ifindex: u32) -> u64 {
        self.counts.get_u64(&ifindex.to_ne_bytes()).unwrap_or(0)
    }

    fn forget_places(&mut self, places: &BTreeMap<IpNet, Verdict>) -> io::Result<()> {
        let gone: Vec<IpNet> = self
            .placed
            .keys()
            .filter(|net| !places.contains_key(net))
            .copied()
            .collect();
        for net in gone {
            self.places.remove(&prefix_key(net))?;
            self.placed.remove(&net);
        }
        Ok(())
    }
}

/// Returns the root of the mounted cgroups of version 2, which contains all processes.
///
/// # Errors
/// Fails if no such root is mounted.
pub fn root() -> io::Result<PathBuf> {
    let mounts = fs::read_to_string("/proc/self/mounts")?;
    let found = mounts.lines().find_map(|line| {
        let mut fields = line.split(' ').skip(1);
        let (place, kind) = (fields.next()?, fields.next()?);
        (kind == "cgroup2").then(|| PathBuf::from(place))
    });
    found.ok_or_else(|| {
        let text = "no cgroup of version 2 is mounted: mount -t cgroup2 none /sys/fs/cgroup";
        io::Error::new(io::ErrorKind::NotFound, text)
    })
}

/// Distributes [`SLOTS`] slots over `devices`, pairs of index and weight, in proportion to the weights and evenly
/// spaced. In each slot every device earns its weight, and the device with the most credit gets the slot and pays the
/// sum of all weights. Returns zeros, which bind nothing, if there is no device.
fn turns(devices: &[(u32, u64)]) -> Vec<u32> {
    let sum: i128 = devices.iter().map(|(_, weight)| i128::from(*weight)).sum();
    let mut credits = vec![0_i128; devices.len()];
    let turn = |_| {
        for (credit, (_, weight)) in credits.iter_mut().zip(devices) {
            *credit += i128::from(*weight);
        }
        // Among equal devices the first is chosen.
        let richest = (0..credits.len()).rev().max_by_key(|at| credits[*at]);
        richest.map_or(0, |at| {
            credits[at] -= sum;
            devices[at].0
        })
    };
    (0..SLOTS).map(turn).collect()
}

/// Returns the program for `attach`. `maps` are places, turn, slots and counts.
fn program(attach: Attach, cookie: u64, [places, turn, slots, counts]: [&Map; 4]) -> Vec<Insn> {
    use Reg::{Fp, R0, R1, R2, R3, R4, R5, R6, R7, R8, R9};
    let [pass, refused, spread, bind, family_known] = [0, 1, 2, 3, 4].map(Label);
    // Fields of `struct bpf_sock_addr`. `SOCK` is a pointer to `struct bpf_sock`, whose fields follow.
    const USER_IP4: i16 = 4;
    const USER_IP6: i16 = 8;
    const PROTOCOL: i16 = 36;
    const SOCK: i16 = 64;
    const BOUND_IF: i16 = 0;
    const MARK: i16 = 16;
    const SRC_IP4: i16 = 24;
    const SRC_IP6: i16 = 28;
    // Functions of the kernel.
    const MAP_LOOKUP: i32 = 1;
    const SETSOCKOPT: i32 = 49;
    const NETNS_COOKIE: i32 = 122;
    // Stack: the key of the place, and one word for keys and the device.
    const KEY: i16 = -24;
    const KEY_ADDRESS: i16 = -20;
    const WORD: i16 = -4;
    let is_v6 = matches!(attach, Attach::Connect6);
    let mapped = u32::from_ne_bytes([0, 0, 0xff, 0xff]);
    let half = SLOTS.cast_signed();

    let mut asm = Asm::default();
    asm.copy(R6, R1);
    // Only TCP connections are bound: for example, name servers are often specific to a link.
    asm.load_u32(R0, R6, PROTOCOL);
    asm.jump_unless_is(R0, libc::IPPROTO_TCP, pass);
    // Indices of devices have another meaning in other namespaces.
    asm.call(NETNS_COOKIE);
    asm.set_u64(R1, cookie);
    asm.jump_unless_equal(R0, R1, pass);
    // Sockets with a device, a source or a mark were configured by their program.
    asm.load_u64(R7, R6, SOCK);
    let source = if is_v6 {
        SRC_IP6..SRC_IP6 + 16
    } else {
        SRC_IP4..SRC_IP4 + 4
    };
    for field in [BOUND_IF, MARK].into_iter().chain(source.step_by(4)) {
        asm.load_u32(R0, R7, field);
        asm.jump_unless_is(R0, 0, pass);
    }
    // Writes the key, and sets R8 to the family's half of the slots.
    asm.store_u32_value(Fp, KEY, 128);
    if is_v6 {
        for word in (0..16).step_by(4) {
            asm.load_u32(R0, R6, USER_IP6 + word);
            asm.store_u32(Fp, KEY_ADDRESS + word, R0);
        }
        asm.set(R8, half);
        for word in [0, 4] {
            asm.load_u32(R0, Fp, KEY_ADDRESS + word);
            asm.jump_unless_is(R0, 0, family_known);
        }
        // An IPv4-mapped address on an IPv6 socket.
        asm.load_u32(R0, Fp, KEY_ADDRESS + 8);
        asm.set_u64(R1, mapped.into());
        asm.jump_unless_equal(R0, R1, family_known);
    } else {
        for (word, value) in [(0, 0), (4, 0), (8, mapped)] {
            asm.store_u32_value(Fp, KEY_ADDRESS + word, value);
        }
        asm.load_u32(R0, R6, USER_IP4);
        asm.store_u32(Fp, KEY_ADDRESS + 12, R0);
    }
    asm.set(R8, 0);
    asm.label(family_known);
    // Looks up a place for this destination.
    asm.set_map(R1, places);
    asm.copy(R2, Fp);
    asm.add(R2, KEY.into());
    asm.call(MAP_LOOKUP);
    asm.jump_if_is(R0, 0, spread);
    asm.load_u32(R9, R0, 0);
    for (verdict, label) in [(LEAVE, pass), (REFUSE, refused), (SPREAD, spread)] {
        asm.jump_if_is(R9, verdict.cast_signed(), label);
    }
    asm.jump(bind);

    asm.label(spread);
    // Selects the slot.
    asm.store_u32_value(Fp, WORD, 0);
    let look_up = |asm: &mut Asm, map: &Map| {
        asm.set_map(R1, map);
        asm.copy(R2, Fp);
        asm.add(R2, WORD.into());
        asm.call(MAP_LOOKUP);
        asm.jump_if_is(R0, 0, pass);
    };
    look_up(&mut asm, turn);
    asm.set(R1, 1);
    asm.fetch_add_u64(R0, R1);
    asm.and(R1, half - 1);
    asm.add_reg(R1, R8);
    asm.store_u32(Fp, WORD, R1);
    look_up(&mut asm, slots);
    asm.load_u32(R9, R0, 0);
    asm.jump_if_is(R9, 0, pass);

    asm.label(bind);
    asm.store_u32(Fp, WORD, R9);
    asm.copy(R1, R6);
    asm.set(R2, libc::SOL_SOCKET);
    asm.set(R3, libc::SO_BINDTOIFINDEX);
    asm.copy(R4, Fp);
    asm.add(R4, WORD.into());
    asm.set(R5, 4);
    asm.call(SETSOCKOPT);
    asm.jump_unless_is(R0, 0, pass);
    look_up(&mut asm, counts);
    asm.set(R1, 1);
    asm.fetch_add_u64(R0, R1);

    asm.label(pass);
    asm.set(R0, 1);
    asm.exit();
    asm.label(refused);
    asm.set(R0, 0);
    asm.exit();
    asm.finish()
}

fn is_cgroup2(directory: &File) -> io::Result<bool> {
    Ok(rustix::fs::fstatfs(directory)?.f_type == CGROUP2_MAGIC)
}

/// Returns the kernel's number of the network namespace of the calling thread.
fn netns_cookie() -> io::Result<u64> {
    const SO_NETNS_COOKIE: libc::c_int = 71;
    let socket = UdpSocket::bind(("127.0.0.1", 0)).or_else(|_| UdpSocket::bind(("0.0.0.0", 0)))?;
    let mut cookie = 0_u64;
    let mut len: libc::socklen_t = 8;
    // SAFETY: the kernel writes at most the 8 bytes of `cookie`, and their number into `len`.
    let result = unsafe {
        libc::getsockopt(
            socket.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            SO_NETNS_COOKIE,
            (&raw mut cookie).cast(),
            &raw mut len,
        )
    };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(cookie)
}

/// Number of slots of each family, after which they repeat. A power of two. Shares are exact to a sixty-fourth.
pub const SLOTS: u32 = 64;

/// Highest number of networks with a verdict. Only hosts that speak BGP have more routes.
pub const MAX_PLACES: u32 = 4096;

/// Highest number of devices whose sockets are counted. Sockets of further devices are bound but not counted.
const MAX_COUNTED: u32 = 256;

// Values in `places` that are not indices of a device. In practice indices are below 2^30 and never zero.
const LEAVE: u32 = 0;
const REFUSE: u32 = 0x7fff_ffff;
const SPREAD: u32 = 0x7fff_fffe;

/// `CGROUP2_SUPER_MAGIC`
const CGROUP2_MAGIC: rustix::fs::FsWord = 0x6367_7270;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn turns_follow_weights_and_are_spread() {
        let taken = turns(&[(2, 20), (3, 10), (9, 0)]);
        let count = |ifindex| taken.iter().filter(|turn| **turn == ifindex).count();
        assert_eq!((count(2), count(3), count(9)), (43, 21, 0));
        assert_eq!(taken[..6], [2, 3, 2, 2, 3, 2]);
        assert_eq!(turns(&[]), vec![0; SLOTS as usize]);
        assert_eq!(turns(&[(7, 0)]), vec![7; SLOTS as usize]);
    }

    #[test]
    fn networks_of_both_families_share_a_trie() {
        let key = |text: &str| prefix_key(text.parse().expect("network"));
        let v4 = key("10.1.2.3/8");
        assert_eq!(v4[..4], 104_u32.to_ne_bytes());
        assert_eq!(v4[14..], [0xff, 0xff, 10, 0, 0, 0]);
        let v6 = key("fd00::1/16");
        assert_eq!((&v6[..4], v6[4]), (&16_u32.to_ne_bytes()[..], 0xfd));
    }

    #[test]
    fn what_is_no_cgroup_is_refused_by_name() {
        let error = CgroupConnect::attach(Path::new("/proc")).expect_err("no cgroup");
        assert_eq!(error.to_string(), "/proc is no cgroup of version 2");
        let error = CgroupConnect::attach(Path::new("/nowhere")).expect_err("nothing");
        assert!(
            error.to_string().starts_with("cgroup /nowhere: "),
            "{error}"
        );
    }
}
