//! Programs at the egress of devices by way of classful traffic control, for kernels without TCX (before 6.6).
//!
//! A `clsact` queueing discipline is a place for filters beside the device's own queue; a filter of kind `bpf` is a program,
//! which in direct-action mode says itself what becomes of a packet. Both stay until they are removed or the device is
//! gone, whoever set them.

use std::{
    io,
    os::fd::{AsRawFd, BorrowedFd},
};

use futures_util::StreamExt;
use netlink_packet_route::{
    RouteNetlinkMessage,
    tc::{TcAttribute, TcBpfFlags, TcFilterBpfOption, TcHandle, TcMessage, TcOption},
};
use rtnetlink::packet_core::{
    NLM_F_ACK, NLM_F_CREATE, NLM_F_EXCL, NLM_F_REQUEST, NetlinkMessage, NetlinkPayload,
};

use super::Netlink;

impl Netlink {
    /// Has `program` called for what leaves by link `ifindex`, in place of what was set so before. `true` if the place for
    /// filters had to be made.
    ///
    /// # Errors
    /// The error of the kernel.
    pub(crate) fn set_egress_program(
        &self,
        ifindex: u32,
        program: BorrowedFd<'_>,
    ) -> io::Result<bool> {
        let place = RouteNetlinkMessage::NewQueueDiscipline(place(ifindex)?);
        let is_new = match self.change(place, NLM_F_CREATE | NLM_F_EXCL) {
            Ok(()) => true,
            Err(error) if error.raw_os_error() == Some(libc::EEXIST) => false,
            Err(error) => return Err(error),
        };
        let mut filter = filter(ifindex)?;
        let options = vec![
            TcOption::Bpf(TcFilterBpfOption::ProgFd(
                program.as_raw_fd().cast_unsigned(),
            )),
            TcOption::Bpf(TcFilterBpfOption::ProgName(NAME.to_owned())),
            TcOption::Bpf(TcFilterBpfOption::Flags(TcBpfFlags::DirectAction)),
        ];
        filter.attributes.push(TcAttribute::Options(options));
        if let Err(error) = self.change(RouteNetlinkMessage::NewTrafficFilter(filter), NLM_F_CREATE)
        {
            if is_new {
                let _ = self.remove_egress_program(ifindex, true);
            }
            return Err(error);
        }
        Ok(is_new)
    }

    /// Removes what [`Self::set_egress_program`] set on link `ifindex`, and with `place` the place for filters, as far as they
    /// are there.
    ///
    /// # Errors
    /// The error of the kernel.
    pub(crate) fn remove_egress_program(&self, ifindex: u32, has_place: bool) -> io::Result<()> {
        let filter = RouteNetlinkMessage::DelTrafficFilter(filter(ifindex)?);
        absent_is_fine(self.change(filter, 0))?;
        if has_place {
            let place = RouteNetlinkMessage::DelQueueDiscipline(place(ifindex)?);
            absent_is_fine(self.change(place, 0))?;
        }
        Ok(())
    }

    /// Sends a request and waits for the kernel's verdict.
    fn change(&self, message: RouteNetlinkMessage, flags: u16) -> io::Result<()> {
        let mut request = NetlinkMessage::from(message);
        request.header.flags = NLM_F_REQUEST | NLM_F_ACK | flags;
        let mut handle = self.handle.clone();
        self.runtime.block_on(async {
            let mut answers = handle.request(request).map_err(super::to_io)?;
            while let Some(answer) = answers.next().await {
                if let NetlinkPayload::Error(message) = answer.payload
                    && message.code.is_some()
                {
                    return Err(message.to_io());
                }
            }
            Ok(())
        })
    }
}

fn place(ifindex: u32) -> io::Result<TcMessage> {
    let mut message = message(ifindex)?;
    message.header.parent = TcHandle::CLSACT;
    message.header.handle = TcHandle {
        major: u16::MAX,
        minor: 0,
    };
    message
        .attributes
        .push(TcAttribute::Kind("clsact".to_owned()));
    Ok(message)
}

fn filter(ifindex: u32) -> io::Result<TcMessage> {
    let mut message = message(ifindex)?;
    message.header.parent = TcHandle {
        major: u16::MAX,
        minor: TcHandle::MIN_EGRESS,
    };
    message.header.handle = TcHandle { major: 0, minor: 1 };
    message.header.info = u32::from(TcHandle {
        major: PRIORITY,
        minor: ALL_PROTOCOLS.to_be(),
    });
    message.attributes.push(TcAttribute::Kind("bpf".to_owned()));
    Ok(message)
}

fn message(ifindex: u32) -> io::Result<TcMessage> {
    let index = i32::try_from(ifindex).map_err(io::Error::other)?;
    Ok(TcMessage::with_index(index))
}

/// What is gone, with or without its device, need not be removed.
fn absent_is_fine(removed: io::Result<()>) -> io::Result<()> {
    match removed {
        // EINVAL: no place for filters.
        Err(error)
            if matches!(
                error.raw_os_error(),
                Some(libc::ENOENT | libc::ENODEV | libc::EINVAL)
            ) =>
        {
            Ok(())
        }
        result => result,
    }
}

const NAME: &str = "pleach_equalize";
/// The letters "pe": our filter among those of others.
const PRIORITY: u16 = 0x7065;
/// `ETH_P_ALL`
const ALL_PROTOCOLS: u16 = 3;
