//! Attaches programs to devices by classful traffic control, for kernels without TCX (before 6.6).
//!
//! A `clsact` queueing discipline is a container for filters beside the device's own queue. A filter of kind `bpf` is
//! a program, which in direct-action mode itself decides about a packet. Discipline and filter stay until they are
//! removed or the device is removed, regardless of the process that created them.

use std::{
    io,
    os::fd::{AsRawFd, BorrowedFd},
};

use futures_util::{StreamExt, TryStreamExt};
use netlink_packet_route::{
    RouteNetlinkMessage,
    tc::{TcAttribute, TcBpfFlags, TcFilterBpfOption, TcHandle, TcMessage, TcOption},
};
use rtnetlink::{
    TrafficFilterGetRequest,
    packet_core::{
        NLM_F_ACK, NLM_F_CREATE, NLM_F_EXCL, NLM_F_REQUEST, NetlinkMessage, NetlinkPayload,
    },
};

use super::Netlink;

/// Direction of a device's packets.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Side {
    /// Packets that leave by the device.
    Egress,
    /// Packets that arrived by the device.
    Ingress,
}

impl Netlink {
    /// Attaches `program` to the packets of link `ifindex` on `side`, and replaces the previous program. Returns `true`
    /// if the queueing discipline for filters had to be created.
    ///
    /// # Errors
    /// Returns the error of the kernel. Fails if another queueing discipline is in place of `clsact`.
    pub(crate) fn set_program(
        &self,
        ifindex: u32,
        side: Side,
        program: BorrowedFd<'_>,
    ) -> io::Result<bool> {
        let make = || io::Result::Ok(RouteNetlinkMessage::NewQueueDiscipline(place(ifindex)?));
        let is_new = match self.change(make()?, NLM_F_CREATE | NLM_F_EXCL) {
            Ok(()) => true,
            // A queueing discipline exists already. This second request fails if its kind is not `clsact`: the kind
            // `ingress` has no filters for outgoing packets.
            Err(error) if error.raw_os_error() == Some(libc::EEXIST) => {
                self.change(make()?, 0)
                    .map_err(|error| other_kind(error, ifindex))?;
                false
            }
            Err(error) => return Err(error),
        };
        let mut filter = filter(ifindex, side)?;
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

    /// Removes the program that [`Self::set_program`] attached at the egress of link `ifindex`, if the program
    /// exists. With `has_place`, the queueing discipline for filters is removed too, unless it contains other
    /// filters.
    ///
    /// # Errors
    /// Returns the error of the kernel.
    pub(crate) fn remove_egress_program(&self, ifindex: u32, has_place: bool) -> io::Result<()> {
        let filter = RouteNetlinkMessage::DelTrafficFilter(filter(ifindex, Side::Egress)?);
        absent_is_fine(self.change(filter, 0))?;
        if has_place && !self.has_filters(ifindex)? {
            let place = RouteNetlinkMessage::DelQueueDiscipline(place(ifindex)?);
            absent_is_fine(self.change(place, 0))?;
        }
        Ok(())
    }

    /// Checks whether programs can be attached to devices on this kernel: attaches one to the loopback device and
    /// removes it again. `record` is called before the change with `false`. If the queueing discipline for filters
    /// had to be created, it is called again with `true`. Program and discipline can thus be removed after a crash.
    ///
    /// # Errors
    /// Returns the reason why programs cannot be attached, or the error of `record`.
    pub(crate) fn try_program(
        &self,
        program: BorrowedFd<'_>,
        mut record: impl FnMut(bool) -> io::Result<()>,
    ) -> io::Result<()> {
        record(false)?;
        let is_new = self.set_program(LOOPBACK, Side::Egress, program)?;
        let recorded = if is_new { record(true) } else { Ok(()) };
        self.remove_egress_program(LOOPBACK, is_new)?;
        recorded
    }

    /// Whether the queueing discipline at link `ifindex` contains filters.
    fn has_filters(&self, ifindex: u32) -> io::Result<bool> {
        let index = i32::try_from(ifindex).map_err(io::Error::other)?;
        let all = || self.handle.traffic_filter(index).get();
        let any = |request: TrafficFilterGetRequest| {
            let found = self.runtime.block_on(request.execute().try_collect());
            let found: Vec<TcMessage> = super::absent_is_none(found)?.unwrap_or_default();
            io::Result::Ok(found.iter().any(|filter| filter.header.index == index))
        };
        Ok(any(all().ingress())? || any(all().egress())?)
    }

    /// Sends a request and waits for the kernel's answer.
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

fn other_kind(error: io::Error, ifindex: u32) -> io::Error {
    if error.raw_os_error() != Some(libc::EINVAL) {
        return error;
    }
    let text = format!(
        "device number {ifindex} has a queueing discipline of kind `ingress` where `clsact` is needed: replace it (`tc qdisc replace dev … clsact`), or use backend = \"nft\""
    );
    io::Error::new(io::ErrorKind::ResourceBusy, text)
}

fn filter(ifindex: u32, side: Side) -> io::Result<TcMessage> {
    let mut message = message(ifindex)?;
    message.header.parent = TcHandle {
        major: u16::MAX,
        minor: match side {
            Side::Egress => TcHandle::MIN_EGRESS,
            Side::Ingress => TcHandle::MIN_INGRESS,
        },
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

/// Converts the errors for objects that no longer exist, with or without their device, to success.
fn absent_is_fine(removed: io::Result<()>) -> io::Result<()> {
    match removed {
        // EINVAL: there is no queueing discipline for filters.
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

/// Index of `lo` in every namespace.
pub(crate) const LOOPBACK: u32 = 1;
const NAME: &str = "pleach_equalize";
/// Priority of the filter: the letters "pe", to distinguish it from filters of other programs.
const PRIORITY: u16 = 0x7065;
/// `ETH_P_ALL`
const ALL_PROTOCOLS: u16 = 3;
