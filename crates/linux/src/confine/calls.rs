//! Refusal of system calls, by seccomp.
//!
//! The list names what is refused, and not what is permitted: programs that a daemon starts (`nft`, a shell, a user's program)
//! may use any call that programs usually use. Refused are calls
//!
//! - that act on other processes: debugging, reading their memory, taking their descriptors;
//! - that change the system: mounts, namespaces, kernel modules, another kernel, clock, names, quotas, swap, ports;
//! - that have often contained faults of the kernel and are not needed: `io_uring`, `userfaultfd`, keyrings, performance
//!   counters, opening by file handle; `bpf`, unless it is needed; sockets of families other than IPv4, IPv6, Unix and netlink.
//!
//! `clone3` fails as on a kernel that does not have it, because a filter cannot see its flags: the C library then uses `clone`.

use std::{collections::BTreeMap, io};

use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule, TargetArch, apply_filter,
};

type Rules = BTreeMap<i64, Vec<SeccompRule>>;

/// Refuses calls of the calling thread.
///
/// # Errors
/// If the kernel does not support filters.
pub(super) fn restrict(may_bpf: bool) -> io::Result<()> {
    let other = |error: seccompiler::BackendError| io::Error::other(error.to_string());
    let absent = Rules::from([(libc::SYS_clone3, Vec::new())]);
    for (rules, error) in [
        (refused(may_bpf).map_err(other)?, libc::EPERM),
        (absent, libc::ENOSYS),
    ] {
        let program = compile(rules, error.unsigned_abs()).map_err(other)?;
        apply_filter(&program).map_err(|error| io::Error::other(error.to_string()))?;
    }
    Ok(())
}

fn compile(rules: Rules, errno: u32) -> Result<BpfProgram, seccompiler::BackendError> {
    let architecture = TargetArch::try_from(std::env::consts::ARCH)?;
    let (usually, refused) = (SeccompAction::Allow, SeccompAction::Errno(errno));
    let program: BpfProgram =
        SeccompFilter::new(rules, usually, refused, architecture)?.try_into()?;
    Ok(program)
}

fn refused(may_bpf: bool) -> Result<Rules, seccompiler::BackendError> {
    let always = CALLS.iter().chain(OF_ARCHITECTURE);
    let mut rules: Rules = always.map(|call| (*call, Vec::new())).collect();
    if !may_bpf {
        rules.insert(libc::SYS_bpf, Vec::new());
    }
    // Namespaces of a new process. A thread or process without one is permitted.
    let namespaces = NAMESPACES.iter().map(|flag| {
        let bits = flag.unsigned_abs().into();
        SeccompRule::new(vec![condition(0, SeccompCmpOp::MaskedEq(bits), bits)?])
    });
    rules.insert(libc::SYS_clone, namespaces.collect::<Result<_, _>>()?);
    // Input in the name of the user at a terminal.
    let requests = [TIOCSTI, TIOCLINUX]
        .into_iter()
        .map(|request| SeccompRule::new(vec![condition(1, SeccompCmpOp::Eq, request)?]));
    rules.insert(libc::SYS_ioctl, requests.collect::<Result<_, _>>()?);
    let families = FAMILIES
        .iter()
        .map(|family| condition(0, SeccompCmpOp::Ne, family.unsigned_abs().into()));
    let others = SeccompRule::new(families.collect::<Result<_, _>>()?)?;
    rules.insert(libc::SYS_socket, vec![others]);
    Ok(rules)
}

/// Makes a condition on the lower half of an argument, which is all that the kernel uses of these.
fn condition(
    argument: u8,
    operator: SeccompCmpOp,
    value: u64,
) -> Result<SeccompCondition, seccompiler::BackendError> {
    SeccompCondition::new(argument, SeccompCmpArgLen::Dword, operator, value)
}

/// Requests of `ioctl_tty(2)`.
const TIOCSTI: u64 = 0x5412;
const TIOCLINUX: u64 = 0x541c;

const FAMILIES: [i32; 4] = [
    libc::AF_UNIX,
    libc::AF_INET,
    libc::AF_INET6,
    libc::AF_NETLINK,
];

const NAMESPACES: [i32; 7] = [
    libc::CLONE_NEWCGROUP,
    libc::CLONE_NEWIPC,
    libc::CLONE_NEWNET,
    libc::CLONE_NEWNS,
    libc::CLONE_NEWPID,
    libc::CLONE_NEWUSER,
    libc::CLONE_NEWUTS,
];

const CALLS: &[i64] = &[
    // Other processes.
    libc::SYS_kcmp,
    libc::SYS_pidfd_getfd,
    libc::SYS_process_madvise,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_ptrace,
    // Mounts and namespaces.
    libc::SYS_chroot,
    libc::SYS_fsconfig,
    libc::SYS_fsmount,
    libc::SYS_fsopen,
    libc::SYS_fspick,
    libc::SYS_mount,
    libc::SYS_mount_setattr,
    libc::SYS_move_mount,
    libc::SYS_open_by_handle_at,
    libc::SYS_open_tree,
    libc::SYS_pivot_root,
    libc::SYS_setns,
    libc::SYS_umount2,
    libc::SYS_unshare,
    // The system.
    libc::SYS_acct,
    libc::SYS_adjtimex,
    libc::SYS_clock_adjtime,
    libc::SYS_clock_settime,
    libc::SYS_delete_module,
    libc::SYS_finit_module,
    libc::SYS_init_module,
    libc::SYS_kexec_file_load,
    libc::SYS_kexec_load,
    libc::SYS_personality,
    libc::SYS_quotactl,
    libc::SYS_reboot,
    libc::SYS_setdomainname,
    libc::SYS_sethostname,
    libc::SYS_settimeofday,
    libc::SYS_swapoff,
    libc::SYS_swapon,
    libc::SYS_syslog,
    libc::SYS_vhangup,
    // Large parts of the kernel that are not used.
    libc::SYS_add_key,
    libc::SYS_fanotify_init,
    libc::SYS_io_uring_enter,
    libc::SYS_io_uring_register,
    libc::SYS_io_uring_setup,
    libc::SYS_keyctl,
    libc::SYS_lookup_dcookie,
    libc::SYS_perf_event_open,
    libc::SYS_request_key,
    libc::SYS_userfaultfd,
];

#[cfg(target_arch = "x86_64")]
const OF_ARCHITECTURE: &[i64] = &[
    libc::SYS_ioperm,
    libc::SYS_iopl,
    libc::SYS_modify_ldt,
    libc::SYS_uselib,
];
#[cfg(not(target_arch = "x86_64"))]
const OF_ARCHITECTURE: &[i64] = &[];
