//! Checks by netlink whether a table exists. This happens every few seconds, which is too often to start `nft` for it.
//!
//! One message `NFT_MSG_GETTABLE` of `nfnetlink` (`include/uapi/linux/netfilter/nf_tables.h`) is sent to the kernel. It
//! refers to the network namespace of the calling thread. The kernel answers with the table or with `ENOENT`.

use std::{
    io::{self, Read as _, Write as _},
    time::Duration,
};

use socket2::{Domain, Protocol, Socket, Type};

/// Whether the table `inet TABLE` exists.
///
/// # Errors
/// Returns the error of the kernel, for example that `CAP_NET_ADMIN` is missing.
pub(crate) fn exists(table: &str) -> io::Result<bool> {
    let netlink = Domain::from(libc::AF_NETLINK);
    let netfilter = Protocol::from(libc::NETLINK_NETFILTER);
    let mut socket = Socket::new(netlink, Type::from(libc::SOCK_RAW), Some(netfilter))?;
    socket.set_read_timeout(Some(PATIENCE))?;
    // A netlink socket without a destination address sends to the kernel.
    socket.write_all(&request(table)?)?;
    let mut answer = [0; 4096];
    let len = socket.read(&mut answer)?;
    parse(answer.get(..len).unwrap_or_default())
}

/// Whether [`exists`] failed because the kernel has no nftables at all, and therefore no table. A kernel without
/// netfilter has no such sockets; a kernel without `nf_tables` does not know the message.
pub(super) fn is_without_tables(error: &io::Error) -> bool {
    let code = error.raw_os_error();
    code == Some(libc::EPROTONOSUPPORT) || code == Some(libc::EINVAL)
}

fn request(table: &str) -> io::Result<Vec<u8>> {
    let name_len = table.len() + 1;
    let attribute_len = ATTRIBUTE_HEADER + name_len;
    let len = HEADER + FAMILY_HEADER + attribute_len.next_multiple_of(4);
    let too_long = |_| io::Error::from(io::ErrorKind::InvalidInput);
    let mut request = Vec::with_capacity(len);
    request.extend(u32::try_from(len).map_err(too_long)?.to_ne_bytes());
    request.extend(GET_TABLE.to_ne_bytes());
    request.extend(REQUEST.to_ne_bytes());
    // Sequence number and port are 0.
    request.extend([0; 8]);
    // Address family, version and resource identifier.
    request.extend([INET, 0, 0, 0]);
    request.extend(
        u16::try_from(attribute_len)
            .map_err(too_long)?
            .to_ne_bytes(),
    );
    request.extend(TABLE_NAME.to_ne_bytes());
    request.extend(table.as_bytes());
    request.resize(len, 0);
    Ok(request)
}

pub(crate) fn parse(answer: &[u8]) -> io::Result<bool> {
    let kind = answer.get(4..6).and_then(|kind| kind.try_into().ok());
    match kind.map(u16::from_ne_bytes) {
        Some(NEW_TABLE) => Ok(true),
        Some(ERROR) => {
            let code = answer.get(HEADER..HEADER + 4);
            let code = code.and_then(|code| code.try_into().ok());
            match code.map_or(0, i32::from_ne_bytes) {
                0 => Err(io::ErrorKind::InvalidData.into()),
                code if code == -libc::ENOENT => Ok(false),
                code => Err(io::Error::from_raw_os_error(code.saturating_neg())),
            }
        }
        _ => Err(io::ErrorKind::InvalidData.into()),
    }
}

/// Time limit for the kernel's answer, which normally arrives at once.
const PATIENCE: Duration = Duration::from_secs(1);
/// Length in bytes of `nlmsghdr`.
const HEADER: usize = 16;
/// Length in bytes of `nfgenmsg`.
const FAMILY_HEADER: usize = 4;
/// Length in bytes of `nlattr`.
const ATTRIBUTE_HEADER: usize = 4;
/// `NLMSG_ERROR`.
const ERROR: u16 = 2;
/// `NFT_MSG_NEWTABLE` of `NFNL_SUBSYS_NFTABLES`.
const NEW_TABLE: u16 = 10 << 8;
/// `NFT_MSG_GETTABLE` of `NFNL_SUBSYS_NFTABLES`.
const GET_TABLE: u16 = NEW_TABLE | 1;
/// `NLM_F_REQUEST`.
const REQUEST: u16 = 1;
/// `NFPROTO_INET`.
const INET: u8 = 1;
/// `NFTA_TABLE_NAME`.
const TABLE_NAME: u16 = 1;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_that_make_no_sense_are_errors() {
        let of = |kind: u16, code: i32| {
            let mut answer = vec![0; 36];
            answer[4..6].copy_from_slice(&kind.to_ne_bytes());
            answer[16..20].copy_from_slice(&code.to_ne_bytes());
            answer
        };
        assert!(parse(&of(NEW_TABLE, 0)).expect("there"));
        assert!(!parse(&of(ERROR, -libc::ENOENT)).expect("not there"));
        let denied = parse(&of(ERROR, -libc::EPERM)).expect_err("not allowed");
        assert_eq!(denied.kind(), io::ErrorKind::PermissionDenied);
        for strange in [of(ERROR, 0), of(3, 0), of(ERROR, i32::MIN)] {
            assert!(parse(&strange).is_err());
        }
        for len in 0..20 {
            assert!(parse(&of(ERROR, -libc::ENOENT)[..len]).is_err());
        }
    }

    #[test]
    fn a_request_is_a_whole_number_of_words() {
        for len in 1..9 {
            let request = request(&"x".repeat(len)).expect("short");
            assert_eq!(request.len() % 4, 0);
            assert_eq!(
                request[..4],
                u32::try_from(request.len()).expect("short").to_ne_bytes()
            );
            assert!(request.ends_with(b"\0"));
        }
    }
}
