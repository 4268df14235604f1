//! The `bpf(2)` system call, as far as two hooks need it: maps, programs of [`asm`], links to cgroups and devices.
//!
//! There is no loader library and there are no compiled objects: the programs are a few dozen instructions, and the
//! maps have no type information. So a loader is not needed, and building needs nothing but Rust. The kernel sets
//! close-on-exec on the descriptors. A program attached by a link is detached when the last descriptor of the link is
//! closed.

pub(crate) mod asm;

use std::{
    io,
    net::IpAddr,
    os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd},
};

use asm::Insn;
use ipnet::IpNet;

/// Kinds of maps (`enum bpf_map_type`).
#[derive(Clone, Copy, Debug)]
#[repr(u32)]
pub(crate) enum MapKind {
    /// Maps keys to values.
    Hash = 1,
    /// Is indexed by `u32`. All elements exist from the beginning and are zero.
    Array = 2,
    /// Is indexed by `u32`, with a separate value for each processor.
    ArrayPerCpu = 6,
    /// Maps keys to values, and removes the least recently used entries.
    LruHash = 9,
    /// Maps prefixes to values, and finds the longest matching prefix.
    Trie = 11,
}

/// Returns the key of an address prefix in a [`MapKind::Trie`]: length of the prefix, then the address. IPv4 addresses
/// are IPv4-mapped.
pub(crate) fn prefix_key(net: IpNet) -> [u8; 20] {
    let (len, address) = match net.network() {
        IpAddr::V4(ip) => (96 + u32::from(net.prefix_len()), ip.to_ipv6_mapped()),
        IpAddr::V6(ip) => (u32::from(net.prefix_len()), ip),
    };
    let mut key = [0; 20];
    key[..4].copy_from_slice(&len.to_ne_bytes());
    key[4..].copy_from_slice(&address.octets());
    key
}

/// A map of the kernel. It is removed with its last descriptor.
#[derive(Debug)]
pub(crate) struct Map {
    fd: OwnedFd,
    key_len: usize,
    value_len: usize,
}

impl Map {
    /// Creates a map of at most `entries`.
    pub(crate) fn new(
        kind: MapKind,
        key_len: u32,
        value_len: u32,
        entries: u32,
    ) -> io::Result<Self> {
        #[repr(C)]
        struct Attr {
            kind: u32,
            key_len: u32,
            value_len: u32,
            entries: u32,
            flags: u32,
        }
        // The kernel requires this flag for tries, which grow.
        const NO_PREALLOC: u32 = 1;
        let flags = if matches!(kind, MapKind::Trie) {
            NO_PREALLOC
        } else {
            0
        };
        let mut attr = Attr {
            kind: kind as u32,
            key_len,
            value_len,
            entries,
            flags,
        };
        // SAFETY: `Attr` is the beginning of the kernel's attributes for this command; it has no pointers.
        let fd = unsafe { call_for_fd(Command::MapCreate, &mut attr)? };
        Ok(Self {
            fd,
            key_len: key_len as usize,
            value_len: value_len as usize,
        })
    }

    /// Returns another descriptor of this map.
    pub(crate) fn try_clone(&self) -> io::Result<Self> {
        Ok(Self {
            fd: self.fd.try_clone()?,
            ..*self
        })
    }

    /// Sets the value of `key`.
    pub(crate) fn set(&self, key: &[u8], value: &[u8]) -> io::Result<()> {
        assert!(key.len() == self.key_len && value.len() == self.value_len);
        let mut attr = self.element(key, value.as_ptr());
        // SAFETY: key and value have the lengths the map was made with, and live through the call, which only reads.
        unsafe { call(Command::MapUpdate, &mut attr) }.map(drop)
    }

    /// Returns the value of `key`, a number. `None` if the map has no such key.
    pub(crate) fn get_u64(&self, key: &[u8]) -> Option<u64> {
        assert!(key.len() == self.key_len && self.value_len == 8);
        let mut value = 0_u64;
        let mut attr = self.element(key, (&raw mut value).cast_const().cast());
        // SAFETY: the key has the map's length; the kernel writes the 8 bytes of a value into `value`.
        unsafe { call(Command::MapLookup, &mut attr) }.ok()?;
        Some(value)
    }

    /// Returns the values of `key` on all processors in sequence, each with the map's value length rounded up to 8
    /// bytes.
    pub(crate) fn get_per_cpu(&self, key: &[u8]) -> io::Result<Vec<u8>> {
        assert!(key.len() == self.key_len);
        let mut values = vec![0_u8; self.value_len.next_multiple_of(8) * possible_cpus()?];
        let mut attr = self.element(key, values.as_mut_ptr().cast_const());
        // SAFETY: the key has the map's length; the kernel writes a rounded value for each possible processor, and
        // `values` has space for them.
        unsafe { call(Command::MapLookup, &mut attr) }?;
        Ok(values)
    }

    /// Removes `key`, if it exists.
    pub(crate) fn remove(&self, key: &[u8]) -> io::Result<()> {
        assert!(key.len() == self.key_len);
        let mut attr = self.element(key, std::ptr::null());
        // SAFETY: the key has the map's length and lives through the call, which only reads it.
        match unsafe { call(Command::MapDelete, &mut attr) } {
            Err(error) if error.raw_os_error() != Some(libc::ENOENT) => Err(error),
            _ => Ok(()),
        }
    }

    fn element(&self, key: &[u8], value: *const u8) -> Element {
        Element {
            map: raw(&self.fd),
            _gap: 0,
            key: key.as_ptr() as u64,
            value: value as u64,
            flags: 0,
        }
    }
}

impl AsFd for Map {
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Hook at which a program is called (`enum bpf_attach_type`).
#[derive(Clone, Copy, Debug)]
#[repr(u32)]
pub(crate) enum Attach {
    /// `connect(2)` of an IPv4 socket.
    Connect4 = 10,
    /// `connect(2)` of an IPv6 socket.
    Connect6 = 11,
    /// Receipt of a packet by a device, before anything else sees the packet (TCX).
    TcxIngress = 46,
    /// Transmission of a packet by a device, before its queueing discipline (TCX).
    TcxEgress = 47,
}

impl Attach {
    /// Returns the kind of the program (`enum bpf_prog_type`), its name, and the expected attach type.
    fn program(self) -> (u32, [u8; 16], u32) {
        const SCHED_CLS: u32 = 3;
        const CGROUP_SOCK_ADDR: u32 = 18;
        match self {
            Self::Connect4 | Self::Connect6 => {
                (CGROUP_SOCK_ADDR, *b"pleach_connect\0\0", self as u32)
            }
            Self::TcxEgress | Self::TcxIngress => (SCHED_CLS, *b"pleach_equalize\0", 0),
        }
    }
}

/// Loads a program for `attach`. The kernel verifies it.
pub(crate) fn load(insns: &[Insn], attach: Attach) -> io::Result<OwnedFd> {
    let mut log = vec![0_u8; 64 << 10];
    match load_with(insns, attach, &mut []) {
        Err(error) if matches!(error.raw_os_error(), Some(libc::EACCES | libc::EINVAL)) => {
            // The program is loaded again to get the verifier's log, which helps developers who change the program.
            let _ = load_with(insns, attach, &mut log);
            let text = String::from_utf8_lossy(&log);
            let text = text.trim_end_matches(['\0', '\n']);
            tracing::debug!("the verifier's words:\n{text}");
            Err(error)
        }
        loaded => loaded,
    }
}

fn load_with(insns: &[Insn], attach: Attach, log: &mut [u8]) -> io::Result<OwnedFd> {
    #[repr(C)]
    struct Attr {
        kind: u32,
        insn_count: u32,
        insns: u64,
        license: u64,
        log_level: u32,
        log_len: u32,
        log: u64,
        kernel_version: u32,
        flags: u32,
        name: [u8; 16],
        ifindex: u32,
        attach: u32,
    }
    let (kind, name, expected) = attach.program();
    let log_len = u32::try_from(log.len()).unwrap_or(0);
    let mut attr = Attr {
        kind,
        insn_count: u32::try_from(insns.len()).unwrap_or(u32::MAX),
        insns: insns.as_ptr() as u64,
        license: c"Dual MIT/GPL".as_ptr() as u64,
        log_level: u32::from(log_len > 0),
        log_len,
        log: if log_len > 0 {
            log.as_mut_ptr() as u64
        } else {
            0
        },
        kernel_version: 0,
        flags: 0,
        name,
        ifindex: 0,
        attach: expected,
    };
    // SAFETY: instructions, licence and log live through the call; the kernel writes at most `log_len` bytes to the
    // log.
    unsafe { call_for_fd(Command::ProgLoad, &mut attr) }
}

/// Attaches `program` to the cgroup with the directory `cgroup`, until the returned descriptor is closed.
pub(crate) fn link(program: impl AsFd, cgroup: impl AsFd, attach: Attach) -> io::Result<OwnedFd> {
    link_to(&program, raw(&cgroup), attach)
}

/// Attaches `program` to the device `ifindex`, until the returned descriptor is closed or the device is removed.
pub(crate) fn link_device(program: impl AsFd, ifindex: u32, attach: Attach) -> io::Result<OwnedFd> {
    link_to(&program, ifindex, attach)
}

/// Whether the kernel supports [`Attach::TcxEgress`]. To find out, this tries to attach `program` to a device that
/// does not exist: a kernel with TCX reports the missing device, other kernels reject the attach type.
pub(crate) fn has_tcx(program: impl AsFd) -> bool {
    let nobody = i32::MAX.cast_unsigned();
    link_to(&program, nobody, Attach::TcxEgress)
        .is_err_and(|error| error.raw_os_error() == Some(libc::ENODEV))
}

fn link_to(program: &impl AsFd, target: u32, attach: Attach) -> io::Result<OwnedFd> {
    #[repr(C)]
    struct Attr {
        program: u32,
        target: u32,
        attach: u32,
        flags: u32,
    }
    let mut attr = Attr {
        program: raw(program),
        target,
        attach: attach as u32,
        flags: 0,
    };
    // SAFETY: no pointers.
    unsafe { call_for_fd(Command::LinkCreate, &mut attr) }
}

/// Returns the highest possible number of processors of this machine, for which maps have values.
fn possible_cpus() -> io::Result<usize> {
    let text = std::fs::read_to_string("/sys/devices/system/cpu/possible")?;
    let last = text.trim().rsplit([',', '-']).next();
    let last = last.and_then(|number| number.parse::<usize>().ok());
    last.map(|last| last + 1)
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "list of processors"))
}

/// Attributes of the commands for elements of maps.
#[repr(C)]
struct Element {
    map: u32,
    _gap: u32,
    key: u64,
    value: u64,
    flags: u64,
}

#[derive(Clone, Copy)]
enum Command {
    MapCreate = 0,
    MapLookup = 1,
    MapUpdate = 2,
    MapDelete = 3,
    ProgLoad = 5,
    LinkCreate = 28,
}

/// # Safety
/// `attr` is the beginning of the attributes that the kernel expects for `command`, and its pointers are valid during
/// the call.
unsafe fn call<T>(command: Command, attr: &mut T) -> io::Result<libc::c_long> {
    let attr: *mut T = attr;
    // SAFETY: guaranteed by the caller; the kernel gets the length of `attr`.
    let result =
        unsafe { libc::syscall(libc::SYS_bpf, command as libc::c_int, attr, size_of::<T>()) };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(result)
}

/// # Safety
/// The conditions of [`call`]; `command` returns a new descriptor.
unsafe fn call_for_fd<T>(command: Command, attr: &mut T) -> io::Result<OwnedFd> {
    // SAFETY: guaranteed by the caller.
    let fd = unsafe { call(command, attr)? };
    let fd = i32::try_from(fd).map_err(io::Error::other)?;
    // SAFETY: the kernel has just created it for this process.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Returns a descriptor in the form that the kernel's attributes require.
fn raw(fd: &impl AsFd) -> u32 {
    fd.as_fd().as_raw_fd().cast_unsigned()
}
