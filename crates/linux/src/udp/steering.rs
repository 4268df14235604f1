//! Which socket of a group receives a datagram: a classic BPF program for `SO_ATTACH_REUSEPORT_CBPF` (socket(7)).
//!
//! The program sees the datagram from its first byte, and returns the position of the socket in the order in which the
//! sockets of the group were bound. A datagram that is too short ends the program with the result 0.

use std::{io, os::fd::AsRawFd as _};

use pleach_core::{
    endpoint::workers::WORKER_MASK,
    wire::header::{RECEIVER_INDEX_AT, TRANSPORT_KINDS},
};
use socket2::Socket;

/// Attaches the program for `workers` sockets to the group of `socket`.
///
/// # Errors
/// Returns the error of `setsockopt(2)`.
pub(super) fn attach(socket: &Socket, workers: u32) -> io::Result<()> {
    let mut program = program(workers.max(1));
    let filter = libc::sock_fprog {
        len: libc::c_ushort::try_from(program.len()).unwrap_or(0),
        filter: program.as_mut_ptr(),
    };
    let len = libc::socklen_t::try_from(size_of_val(&filter)).unwrap_or(0);
    // SAFETY: the descriptor is open, the pointer and length describe the live struct, and its pointer and length
    // describe the live program, which the kernel copies.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_ATTACH_REUSEPORT_CBPF,
            (&raw const filter).cast(),
            len,
        )
    };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

fn program(workers: u32) -> [libc::sock_filter; 8] {
    let [data, control] = TRANSPORT_KINDS.map(u32::from);
    // The index has three bytes, and a load has four. The mask removes the byte before the index.
    let index_at = u32::try_from(RECEIVER_INDEX_AT - 1).unwrap_or(0);
    [
        step(libc::BPF_LD | libc::BPF_B | libc::BPF_ABS, 0, [0, 0]),
        step(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, data, [2, 0]),
        step(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, control, [1, 0]),
        step(libc::BPF_RET | libc::BPF_K, 0, [0, 0]),
        step(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, index_at, [0, 0]),
        step(
            libc::BPF_ALU | libc::BPF_AND | libc::BPF_K,
            WORKER_MASK,
            [0, 0],
        ),
        step(libc::BPF_ALU | libc::BPF_MOD | libc::BPF_K, workers, [0, 0]),
        step(libc::BPF_RET | libc::BPF_A, 0, [0, 0]),
    ]
}

/// Returns an instruction. `jumps`: numbers of instructions to skip if its condition is true, and if it is false.
fn step(code: u32, value: u32, jumps: [u8; 2]) -> libc::sock_filter {
    libc::sock_filter {
        // All codes have eight bits.
        code: u16::try_from(code).unwrap_or(0),
        jt: jumps[0],
        jf: jumps[1],
        k: value,
    }
}
