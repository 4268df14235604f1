//! Control frames: the messages that the two ends exchange in addition to inner packets.
//!
//! A control datagram's body is a list of frames, each `type: u8, length: u16, value`. Frames of unknown type are
//! skipped, and bytes after the known fields of a value are ignored, so that later versions can add frames and fields.
//!
//! | type | frame | sent |
//! | --- | --- | --- |
//! | 0 | padding | to fill a path MTU probe |
//! | 1, 2 | [`Frame::Ping`], [`Frame::Pong`] | on the path they measure |
//! | 3 | [`Frame::Report`] | on the best path back |
//! | 4, 5 | [`Frame::Link`], [`Frame::LinkAck`] | until acknowledged |
//! | 6 | [`Frame::Close`] | at shutdown, on every path |
//! | 7, 8 | [`Frame::Reception`], [`Frame::ReceptionAck`] | until acknowledged |
//! | 9 | [`Frame::Losses`] | on the two best paths back, if requested |
//! | 10 | [`Frame::Missing`] | with reports, if the missing datagrams will be retransmitted (NACK) |
//! | 11 | [`Frame::Tail`] | after the last data datagram of a burst on a path that loses |
//! | 12, 13 | [`Frame::TrainPacket`], [`Frame::Train`] | on a path that comes up |
//! | 14, 15 | [`Frame::Template`], [`Frame::TemplateAck`] | until acknowledged |
//! | 17 | [`Frame::TemplateUnknown`] | when a packet used an unknown template |
//! | 16 | [`Frame::Recovered`] | with reports, if repair symbols recovered packets |
//! | 18 | [`Frame::Parity`] | on another path than its datagram |
//! | 19 | [`Frame::LinkDown`] | on every other path, when an interface of the sender goes down |

use core::time::Duration;

use super::Reader;
use crate::{
    ids::{PathId, Seq},
    path::train::{Dispersion, TrainPacket},
    sec::Code,
    units::Bitrate,
};

/// Maximum length of a link name on the wire in bytes.
pub const MAX_NAME_LEN: usize = 32;

/// Report of one end about its arrivals on one path: the feedback of `docs/algorithms.md` section 3.1.
///
/// All counters are cumulative, so a lost report only causes a delay.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PathReport {
    /// Number of data datagrams received on the path.
    pub received_pkts: u64,
    /// Highest path sequence number of the data datagrams received.
    pub highest_seq: Seq,
    /// Number of bytes of data datagrams received, UDP payload.
    pub received_bytes: u64,
    /// Time at which the datagram with the highest number arrived: microseconds of the reporter's clock, wrapping.
    pub received_us: u32,
    /// Time at which the datagram with the highest number was sent: the timestamp in its header.
    pub sent_us: u32,
    /// Time between the arrival of the datagram with the highest number and the report, in microseconds.
    pub ack_delay_us: u32,
    /// Minimum one-way delay since the last report: receiver's minus sender's clock in microseconds, wrapping.
    pub min_owd_us: u32,
    /// Number of datagrams received with an ECN congestion mark.
    pub congested_pkts: u32,
    /// Path sequence number before which all data datagrams have arrived or have been NACKed; `None` if it is unknown.
    pub settled_seq: Option<Seq>,
}

/// Report of one end about losses on one path, by the path's sequence numbers.
///
/// All counters are totals since counting began on the path, so a lost report only causes a delay.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LossReport {
    /// Number of the report interval that ends here. It increases by one for every interval, with or without a report.
    pub interval: u32,
    /// Number of data datagrams missing for longer than the loss timeout.
    pub lost_pkts: u64,
    /// Estimated number of bytes of the missing datagrams, UDP payload.
    pub lost_bytes: u64,
    /// Number of data datagrams received.
    pub received_pkts: u64,
    /// Number of bytes of the received data datagrams, UDP payload.
    pub received_bytes: u64,
    /// Highest path sequence number of the data datagrams received.
    pub highest_seq: Seq,
}

/// How the receiver must treat the sender's datagrams.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reception {
    /// Order in which packets are delivered.
    pub order: Order,
    /// How long to wait for a missing datagram.
    pub loss_timeout: Duration,
    /// Interval of loss reports; `None` if losses are not reported.
    pub report_interval: Option<Duration>,
}

/// Order in which packets are delivered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Order {
    /// One order for the whole association. The receiver waits for a missing packet until the loss timeout, and drops
    /// it if it arrives later.
    Global,
    /// One order for each flow; the receiver decides how long to wait.
    #[default]
    PerFlow,
}

/// The client's description of one of its links.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinkInfo<'a> {
    /// Name that the user has given the link, at most [`MAX_NAME_LEN`] bytes.
    pub name: &'a str,
    /// Rank of the link; links of lower rank are filled first.
    pub cost: u8,
    /// How the link may be used.
    pub role: LinkRole,
    /// Share of the link under the `weighted` policy; at least 1.
    pub weight: u32,
    /// Rate limit of the gateway's sending direction; `None` for no limit.
    pub download: Option<Bitrate>,
    /// Length of the longest inner packet that the link carries, in bytes.
    pub mtu: u16,
}

/// How a link may be used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LinkRole {
    /// The link is used whenever it helps.
    #[default]
    Active,
    /// The link is used only when no active link is usable.
    Standby,
    /// The link carries only its own probes.
    Never,
}

/// One control frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Frame<'a> {
    /// Requests a [`Frame::Pong`] with the same token on the path on which the ping arrived.
    Ping {
        /// Token chosen by the sender.
        token: u32,
        /// Length of the datagram, UDP payload in bytes, if the ping probes the path MTU; else 0.
        size: u16,
    },
    /// Answers a ping.
    Pong {
        /// Token of the ping.
        token: u32,
        /// Size in the ping.
        size: u16,
    },
    /// Report about the arrivals on `path`.
    Report {
        /// Path that the report describes, which may differ from the path on which the report is sent.
        path: PathId,
        /// Counters.
        report: PathReport,
    },
    /// Describes the client's link that `path` uses.
    Link {
        /// Path of the link.
        path: PathId,
        /// Version of the description, which increases with every change; older versions are ignored.
        version: u32,
        /// Description.
        info: LinkInfo<'a>,
    },
    /// Acknowledges `version` of the description of `path`.
    LinkAck {
        /// Path of the link.
        path: PathId,
        /// Acknowledged version.
        version: u32,
    },
    /// Ends the association.
    Close,
    /// Sets how the receiver must treat the sender's datagrams.
    Reception {
        /// Version of the settings, which increases with every change; older versions are ignored.
        version: u32,
        /// The settings.
        reception: Reception,
    },
    /// Acknowledges `version` of the reception settings.
    ReceptionAck {
        /// Acknowledged version.
        version: u32,
    },
    /// Report about losses on `path`.
    Losses {
        /// Path that the report describes, which may differ from the path on which the report is sent.
        path: PathId,
        /// Counters.
        report: LossReport,
    },
    /// NACK: data datagrams that have not arrived on `path` and are worth retransmitting.
    Missing {
        /// Path on which the datagrams were lost, which may differ from the path on which the NACK is sent.
        path: PathId,
        /// Path sequence numbers of the datagrams.
        ranges: MissingRanges<'a>,
    },
    /// Packets that were lost on some path and recovered from other packets, so they need not be retransmitted.
    Recovered {
        /// Global sequence numbers of the packets.
        ranges: MissingRanges<'a>,
    },
    /// Parity to correct a data datagram that arrives with bit errors.
    Parity {
        /// Code with which the parity was computed.
        code: Code,
        /// Path on which the datagram is sent.
        path: PathId,
        /// Sequence number of the datagram on its path.
        path_seq: Seq,
        /// Length of the datagram in bytes.
        len: u16,
        /// The parity, [`Code::parity_len`] bytes.
        parity: &'a [u8],
    },
    /// The sender's interface under `path` has gone down, so datagrams sent to it on that path do not arrive.
    LinkDown {
        /// Path of the interface.
        path: PathId,
        /// Counter of the sender's next control datagram on that path. A datagram with this counter or a higher one
        /// shows that the interface works again.
        counter: u64,
    },
    /// A padded datagram of a packet train, which measures the path on which it is sent.
    TrainPacket(TrainPacket),
    /// Measurement of a train that arrived on the path of this datagram.
    Train(Dispersion),
    /// Template of headers that later packets will omit ([`crate::compression`]).
    Template {
        /// Number of the template, below [`crate::compression::NUMBERS`].
        number: u16,
        /// Header bytes that are sent with each packet: bit *i* stands for byte *i*.
        travelling: u128,
        /// The header bytes, at most [`crate::compression::MAX_HEADERS_BYTES`].
        headers: &'a [u8],
    },
    /// Reports a packet with an unknown template.
    TemplateUnknown {
        /// Number of the template.
        number: u16,
    },
    /// Acknowledges a template.
    TemplateAck {
        /// Number of the template.
        number: u16,
    },
    /// Reports that no data datagram follows for now on the path on which this frame is sent. Earlier data datagrams on
    /// the path that have not arrived when the frame arrives are lost.
    Tail {
        /// Path sequence number of the last data datagram.
        path_seq: Seq,
        /// Global sequence number of the last data datagram.
        global_seq: Seq,
    },
}

/// Sequence numbers as ranges of a first number (4 bytes) and a count (2 bytes).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MissingRanges<'a>(&'a [u8]);

/// Collects at most [`MAX_RANGES`] ranges for [`MissingRanges`], so that the frame and a report fit into one datagram.
#[derive(Clone, Debug)]
pub struct MissingWriter {
    bytes: [u8; MAX_RANGES * RANGE_LEN],
    len: usize,
}

/// Maximum number of ranges of a [`Frame::Missing`] or [`Frame::Recovered`].
pub const MAX_RANGES: usize = 40;
const RANGE_LEN: usize = 6;

impl Default for MissingWriter {
    fn default() -> Self {
        Self {
            bytes: [0; MAX_RANGES * RANGE_LEN],
            len: 0,
        }
    }
}

impl MissingWriter {
    /// Adds `count` numbers from `first`, but at most 65 535. Returns whether there was space for the range.
    pub fn push(&mut self, first: Seq, count: u32) -> bool {
        let Some(range) = self.bytes.get_mut(self.len..self.len + RANGE_LEN) else {
            return false;
        };
        range[..4].copy_from_slice(&first.0.to_be_bytes());
        range[4..].copy_from_slice(&u16::try_from(count).unwrap_or(u16::MAX).to_be_bytes());
        self.len += RANGE_LEN;
        true
    }

    /// Returns the ranges added; `None` if there are none.
    #[must_use]
    pub fn ranges(&self) -> Option<MissingRanges<'_>> {
        (self.len > 0).then_some(MissingRanges(&self.bytes[..self.len]))
    }
}

impl Iterator for MissingRanges<'_> {
    type Item = (Seq, u16);

    fn next(&mut self) -> Option<(Seq, u16)> {
        let (range, rest) = self.0.split_at_checked(RANGE_LEN)?;
        self.0 = rest;
        let mut range = Reader(range);
        Some((Seq(range.u32()?), range.u16()?))
    }
}

/// Appends frames to a control datagram's body.
#[derive(Debug)]
pub struct FrameWriter<'a> {
    out: &'a mut [u8],
    len: usize,
}

impl<'a> FrameWriter<'a> {
    /// Returns a writer that writes to `out` from its start.
    pub fn new(out: &'a mut [u8]) -> Self {
        Self { out, len: 0 }
    }

    /// Returns the number of bytes written so far.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns the number of bytes that may still be written.
    #[must_use]
    pub fn room(&self) -> usize {
        self.out.len() - self.len
    }

    /// Whether nothing is written yet.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Appends `frame`. Returns `false`, and writes nothing, if it does not fit.
    #[must_use]
    pub fn push(&mut self, frame: &Frame<'_>) -> bool {
        let start = self.len;
        let mut body = Body {
            out: self.out,
            len: start + 3,
            fits: true,
        };
        let kind = match frame {
            Frame::Ping { token, size } => {
                body.u32(*token);
                body.u16(*size);
                TYPE_PING
            }
            Frame::Pong { token, size } => {
                body.u32(*token);
                body.u16(*size);
                TYPE_PONG
            }
            Frame::Report { path, report } => {
                body.u8(path.0);
                body.bytes(&report.received_pkts.to_be_bytes());
                body.u32(report.highest_seq.0);
                body.bytes(&report.received_bytes.to_be_bytes());
                body.u32(report.received_us);
                body.u32(report.sent_us);
                body.u32(report.ack_delay_us);
                body.u32(report.min_owd_us);
                body.u32(report.congested_pkts);
                if let Some(settled) = report.settled_seq {
                    body.u32(settled.0);
                }
                TYPE_REPORT
            }
            Frame::Link {
                path,
                version,
                info,
            } => {
                body.u8(path.0);
                body.u32(*version);
                body.u8(info.cost);
                body.u8(match info.role {
                    LinkRole::Active => 0,
                    LinkRole::Standby => 1,
                    LinkRole::Never => 2,
                });
                body.u32(info.weight);
                body.bytes(&info.download.map_or(0, Bitrate::as_bps).to_be_bytes());
                body.u16(info.mtu);
                let name = &info.name.as_bytes()[..info.name.floor_char_boundary(MAX_NAME_LEN)];
                body.u8(u8::try_from(name.len()).unwrap_or(0));
                body.bytes(name);
                TYPE_LINK
            }
            Frame::LinkAck { path, version } => {
                body.u8(path.0);
                body.u32(*version);
                TYPE_LINK_ACK
            }
            Frame::Close => TYPE_CLOSE,
            Frame::Reception { version, reception } => {
                body.u32(*version);
                body.u8(u8::from(reception.order == Order::Global));
                body.u32(micros(reception.loss_timeout));
                body.u32(reception.report_interval.map_or(0, micros));
                TYPE_RECEPTION
            }
            Frame::ReceptionAck { version } => {
                body.u32(*version);
                TYPE_RECEPTION_ACK
            }
            Frame::Losses { path, report } => {
                body.u8(path.0);
                body.u32(report.interval);
                body.bytes(&report.lost_pkts.to_be_bytes());
                body.bytes(&report.lost_bytes.to_be_bytes());
                body.bytes(&report.received_pkts.to_be_bytes());
                body.bytes(&report.received_bytes.to_be_bytes());
                body.u32(report.highest_seq.0);
                TYPE_LOSSES
            }
            Frame::Missing { path, ranges } => {
                body.u8(path.0);
                body.bytes(ranges.0);
                TYPE_MISSING
            }
            Frame::Recovered { ranges } => {
                body.bytes(ranges.0);
                TYPE_RECOVERED
            }
            Frame::Parity {
                code,
                path,
                path_seq,
                len,
                parity,
            } => {
                body.u8(match code {
                    Code::Hamming => 1,
                    Code::Bch => 2,
                });
                body.u8(path.0);
                body.u32(path_seq.0);
                body.u16(*len);
                body.bytes(parity);
                TYPE_PARITY
            }
            Frame::LinkDown { path, counter } => {
                body.u8(path.0);
                body.bytes(&counter.to_be_bytes());
                TYPE_LINK_DOWN
            }
            Frame::TrainPacket(packet) => {
                body.u8(packet.train);
                body.u16(packet.place);
                body.u16(packet.count);
                TYPE_TRAIN_PACKET
            }
            Frame::Train(result) => {
                body.u8(result.train);
                body.u32(result.bytes);
                body.u32(result.time_us);
                body.u32(result.longest_gap_us);
                TYPE_TRAIN
            }
            Frame::Template {
                number,
                travelling,
                headers,
            } => {
                body.u16(*number);
                body.bytes(&travelling.to_be_bytes());
                body.u8(u8::try_from(headers.len()).unwrap_or(0));
                body.bytes(headers);
                TYPE_TEMPLATE
            }
            Frame::TemplateAck { number } => {
                body.u16(*number);
                TYPE_TEMPLATE_ACK
            }
            Frame::TemplateUnknown { number } => {
                body.u16(*number);
                TYPE_TEMPLATE_UNKNOWN
            }
            Frame::Tail {
                path_seq,
                global_seq,
            } => {
                body.u32(path_seq.0);
                body.u32(global_seq.0);
                TYPE_TAIL
            }
        };
        let end = body.len;
        let fits = body.fits && end <= self.out.len();
        let Ok(value_len) = u16::try_from(end - start - 3) else {
            return false;
        };
        if fits {
            self.out[start] = kind;
            self.out[start + 1..start + 3].copy_from_slice(&value_len.to_be_bytes());
            self.len = end;
        }
        fits
    }

    /// Appends padding until the body is `len` bytes long. No effect if fewer than 3 bytes are missing.
    pub fn pad_to(&mut self, len: usize) {
        let len = len.min(self.out.len());
        if len < self.len + 3 {
            return;
        }
        let Ok(value_len) = u16::try_from(len - self.len - 3) else {
            return;
        };
        self.out[self.len] = TYPE_PADDING;
        self.out[self.len + 1..self.len + 3].copy_from_slice(&value_len.to_be_bytes());
        self.out[self.len + 3..len].fill(0);
        self.len = len;
    }
}

/// The frames of a control datagram's body, in order. The iterator ends at the first malformed frame.
#[derive(Clone, Debug)]
pub struct Frames<'a>(Reader<'a>);

impl<'a> Frames<'a> {
    /// Returns the frames in `body`.
    #[must_use]
    pub fn new(body: &'a [u8]) -> Self {
        Self(Reader(body))
    }
}

impl<'a> Iterator for Frames<'a> {
    type Item = Frame<'a>;

    fn next(&mut self) -> Option<Frame<'a>> {
        loop {
            let kind = self.0.u8()?;
            let len = self.0.u16()?;
            let mut value = Reader(self.0.take(usize::from(len))?);
            match kind {
                TYPE_PING => {
                    return Some(Frame::Ping {
                        token: value.u32()?,
                        size: value.u16()?,
                    });
                }
                TYPE_PONG => {
                    return Some(Frame::Pong {
                        token: value.u32()?,
                        size: value.u16()?,
                    });
                }
                TYPE_REPORT => return parse_report(value),
                TYPE_LINK => return parse_link(value),
                TYPE_LINK_ACK => {
                    return Some(Frame::LinkAck {
                        path: path_id(&mut value)?,
                        version: value.u32()?,
                    });
                }
                TYPE_CLOSE => return Some(Frame::Close),
                TYPE_RECEPTION => return parse_reception(value),
                TYPE_RECEPTION_ACK => {
                    return Some(Frame::ReceptionAck {
                        version: value.u32()?,
                    });
                }
                TYPE_LOSSES => return parse_losses(value),
                TYPE_MISSING => {
                    return Some(Frame::Missing {
                        path: path_id(&mut value)?,
                        ranges: MissingRanges(value.0),
                    });
                }
                TYPE_RECOVERED => {
                    return Some(Frame::Recovered {
                        ranges: MissingRanges(value.0),
                    });
                }
                TYPE_PARITY => return parse_parity(value),
                TYPE_LINK_DOWN => {
                    return Some(Frame::LinkDown {
                        path: path_id(&mut value)?,
                        counter: value.array().map(u64::from_be_bytes)?,
                    });
                }
                TYPE_TRAIN_PACKET => {
                    return Some(Frame::TrainPacket(TrainPacket {
                        train: value.u8()?,
                        place: value.u16()?,
                        count: value.u16()?,
                    }));
                }
                TYPE_TRAIN => {
                    return Some(Frame::Train(Dispersion {
                        train: value.u8()?,
                        bytes: value.u32()?,
                        time_us: value.u32()?,
                        // Older peers do not send this field.
                        longest_gap_us: value.u32().unwrap_or(0),
                    }));
                }
                TYPE_TEMPLATE => {
                    return Some(Frame::Template {
                        number: value.u16()?,
                        travelling: value.array().map(u128::from_be_bytes)?,
                        headers: {
                            let len = value.u8()?;
                            value.take(len.into())?
                        },
                    });
                }
                TYPE_TEMPLATE_UNKNOWN => {
                    return Some(Frame::TemplateUnknown {
                        number: value.u16()?,
                    });
                }
                TYPE_TEMPLATE_ACK => {
                    return Some(Frame::TemplateAck {
                        number: value.u16()?,
                    });
                }
                TYPE_TAIL => {
                    return Some(Frame::Tail {
                        path_seq: Seq(value.u32()?),
                        global_seq: Seq(value.u32()?),
                    });
                }
                _ => {}
            }
        }
    }
}

const TYPE_PADDING: u8 = 0;
const TYPE_PING: u8 = 1;
const TYPE_PONG: u8 = 2;
const TYPE_REPORT: u8 = 3;
const TYPE_LINK: u8 = 4;
const TYPE_LINK_ACK: u8 = 5;
const TYPE_CLOSE: u8 = 6;
const TYPE_RECEPTION: u8 = 7;
const TYPE_RECEPTION_ACK: u8 = 8;
const TYPE_LOSSES: u8 = 9;
const TYPE_MISSING: u8 = 10;
const TYPE_TAIL: u8 = 11;
const TYPE_TRAIN_PACKET: u8 = 12;
const TYPE_TRAIN: u8 = 13;
const TYPE_TEMPLATE: u8 = 14;
const TYPE_TEMPLATE_ACK: u8 = 15;
const TYPE_TEMPLATE_UNKNOWN: u8 = 17;
const TYPE_RECOVERED: u8 = 16;
const TYPE_PARITY: u8 = 18;
const TYPE_LINK_DOWN: u8 = 19;

/// Range to which the timeouts and intervals of a [`Reception`] are clamped. So a peer can neither keep this end busy
/// nor make it hold packets for ever.
const RECEPTION_TIMES: core::ops::RangeInclusive<Duration> =
    Duration::from_millis(1)..=Duration::from_secs(10);

fn parse_parity(mut value: Reader<'_>) -> Option<Frame<'_>> {
    let code = match value.u8()? {
        1 => Code::Hamming,
        2 => Code::Bch,
        _ => return None,
    };
    let path = path_id(&mut value)?;
    let path_seq = Seq(value.u32()?);
    let len = value.u16()?;
    Some(Frame::Parity {
        code,
        path,
        path_seq,
        len,
        parity: value.take(code.parity_len(len.into()))?,
    })
}

fn parse_reception(mut value: Reader<'_>) -> Option<Frame<'static>> {
    let clamp = |micros: u32| {
        let time = Duration::from_micros(micros.into());
        time.clamp(*RECEPTION_TIMES.start(), *RECEPTION_TIMES.end())
    };
    Some(Frame::Reception {
        version: value.u32()?,
        reception: Reception {
            order: match value.u8()? {
                1 => Order::Global,
                _ => Order::PerFlow,
            },
            loss_timeout: clamp(value.u32()?),
            report_interval: Some(value.u32()?).filter(|micros| *micros > 0).map(clamp),
        },
    })
}

fn parse_losses(mut value: Reader<'_>) -> Option<Frame<'static>> {
    Some(Frame::Losses {
        path: path_id(&mut value)?,
        report: LossReport {
            interval: value.u32()?,
            lost_pkts: value.u64()?,
            lost_bytes: value.u64()?,
            received_pkts: value.u64()?,
            received_bytes: value.u64()?,
            highest_seq: Seq(value.u32()?),
        },
    })
}

fn micros(time: Duration) -> u32 {
    u32::try_from(time.as_micros()).unwrap_or(u32::MAX)
}

fn parse_report(mut value: Reader<'_>) -> Option<Frame<'static>> {
    Some(Frame::Report {
        path: path_id(&mut value)?,
        report: PathReport {
            received_pkts: value.u64()?,
            highest_seq: Seq(value.u32()?),
            received_bytes: value.u64()?,
            received_us: value.u32()?,
            sent_us: value.u32()?,
            ack_delay_us: value.u32()?,
            min_owd_us: value.u32()?,
            congested_pkts: value.u32()?,
            settled_seq: value.u32().map(Seq),
        },
    })
}

fn parse_link<'a>(mut value: Reader<'a>) -> Option<Frame<'a>> {
    let path = path_id(&mut value)?;
    let version = value.u32()?;
    let cost = value.u8()?;
    let role = match value.u8()? {
        0 => LinkRole::Active,
        1 => LinkRole::Standby,
        _ => LinkRole::Never,
    };
    let weight = value.u32()?.max(1);
    let download = Some(value.u64()?)
        .filter(|bps| *bps > 0)
        .map(Bitrate::from_bps);
    let mtu = value.u16()?;
    let name_len = usize::from(value.u8()?).min(MAX_NAME_LEN);
    let name: &'a str = core::str::from_utf8(value.take(name_len)?).ok()?;
    Some(Frame::Link {
        path,
        version,
        info: LinkInfo {
            name,
            cost,
            role,
            weight,
            download,
            mtu,
        },
    })
}

fn path_id(value: &mut Reader<'_>) -> Option<PathId> {
    value
        .u8()
        .map(PathId)
        .filter(|path| path.index() < PathId::MAX)
}

/// Writes the fields of one frame, and records whether they fitted.
struct Body<'a> {
    out: &'a mut [u8],
    len: usize,
    fits: bool,
}

impl Body<'_> {
    fn bytes(&mut self, bytes: &[u8]) {
        let end = self.len + bytes.len();
        match self.out.get_mut(self.len..end) {
            Some(slot) if self.fits => slot.copy_from_slice(bytes),
            _ => self.fits = false,
        }
        self.len = end;
    }

    fn u8(&mut self, value: u8) {
        self.bytes(&[value]);
    }

    fn u16(&mut self, value: u16) {
        self.bytes(&value.to_be_bytes());
    }

    fn u32(&mut self, value: u32) {
        self.bytes(&value.to_be_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::Rng;

    fn all() -> Vec<Frame<'static>> {
        vec![
            Frame::Template {
                number: 77,
                travelling: 0x1234 << 80,
                headers: &[0x45, 0, 1],
            },
            Frame::TemplateAck { number: 16_383 },
            Frame::TemplateUnknown { number: 12 },
            Frame::Ping { token: 1, size: 0 },
            Frame::Pong {
                token: 2,
                size: 1400,
            },
            Frame::Report {
                path: PathId(3),
                report: PathReport {
                    received_pkts: 1,
                    highest_seq: Seq(2),
                    received_bytes: 1 << 40,
                    received_us: 4,
                    sent_us: 5,
                    ack_delay_us: 6,
                    min_owd_us: 7,
                    congested_pkts: 8,
                    settled_seq: Some(Seq(9)),
                },
            },
            Frame::Link {
                path: PathId(15),
                version: 9,
                info: LinkInfo {
                    name: "dsl",
                    cost: 2,
                    role: LinkRole::Standby,
                    weight: 64,
                    download: Some(Bitrate::from_mbps(64)),
                    mtu: 1420,
                },
            },
            Frame::LinkAck {
                path: PathId(0),
                version: 3,
            },
            Frame::Close,
            Frame::Reception {
                version: 1,
                reception: Reception {
                    order: Order::Global,
                    loss_timeout: Duration::from_millis(60),
                    report_interval: Some(Duration::from_millis(50)),
                },
            },
            Frame::ReceptionAck { version: 1 },
            Frame::Losses {
                path: PathId(3),
                report: LossReport {
                    interval: 1,
                    lost_pkts: 2,
                    lost_bytes: 3,
                    received_pkts: 1 << 40,
                    received_bytes: 1 << 50,
                    highest_seq: Seq(6),
                },
            },
            Frame::Missing {
                path: PathId(2),
                ranges: MissingRanges(&[0, 0, 0, 7, 0, 2, 255, 255, 255, 255, 0, 1]),
            },
            Frame::Recovered {
                ranges: MissingRanges(&[0, 0, 0, 9, 0, 1]),
            },
            Frame::Parity {
                code: Code::Hamming,
                path: PathId(1),
                path_seq: Seq(8),
                len: 31,
                parity: &[1, 2, 3],
            },
            Frame::LinkDown {
                path: PathId(4),
                counter: 1 << 33,
            },
            Frame::Tail {
                path_seq: Seq(7),
                global_seq: Seq(u32::MAX),
            },
            Frame::TrainPacket(TrainPacket {
                train: 3,
                place: 300,
                count: 768,
            }),
            Frame::Train(Dispersion {
                train: 3,
                bytes: 12_000,
                time_us: 4_000,
                longest_gap_us: 400,
            }),
        ]
    }

    #[test]
    fn ranges_come_out_as_they_went_in_as_far_as_there_is_room() {
        let mut writer = MissingWriter::default();
        assert_eq!(writer.ranges(), None);
        let pushed = (0..100).filter(|i| writer.push(Seq(*i), i * 1_000));
        assert_eq!(pushed.count(), MAX_RANGES);
        let ranges: Vec<_> = writer.ranges().expect("some").collect();
        assert_eq!(ranges.len(), MAX_RANGES);
        assert_eq!(ranges[39], (Seq(39), 39_000));
        assert_eq!(MissingRanges(&[1, 2, 3]).next(), None, "cut short");
    }

    #[test]
    fn round_trips_and_skips_padding_and_unknown_types() {
        let mut bytes = [0; 700];
        let mut writer = FrameWriter::new(&mut bytes);
        for frame in all() {
            assert!(writer.push(&frame));
            writer.pad_to(writer.len() + 20);
        }
        let len = writer.len();
        let mut body = vec![200, 0, 2, 9, 9];
        body.extend_from_slice(&bytes[..len]);
        assert_eq!(Frames::new(&body).collect::<Vec<_>>(), all());
    }

    #[test]
    fn a_train_told_without_its_longest_gap_came_in_steadily() {
        let body = [TYPE_TRAIN, 0, 9, 3, 0, 0, 0, 100, 0, 0, 0, 50];
        let result = Dispersion {
            train: 3,
            bytes: 100,
            time_us: 50,
            longest_gap_us: 0,
        };
        assert_eq!(Frames::new(&body).next(), Some(Frame::Train(result)));
    }

    #[test]
    fn a_frame_that_does_not_fit_is_not_written() {
        for frame in all() {
            let mut room = [0; 600];
            let mut writer = FrameWriter::new(&mut room);
            assert!(writer.push(&frame));
            let len = writer.len();
            for short in 0..len {
                let mut room = [0; 600];
                let mut writer = FrameWriter::new(&mut room[..short]);
                assert!(!writer.push(&frame));
                assert_eq!(writer.len(), 0);
            }
        }
    }

    #[test]
    fn times_of_a_reception_are_kept_within_bounds() {
        for (micros, expected) in [(0, None), (1, Some(1_000)), (u32::MAX, Some(10_000_000))] {
            let interval = expected.map(Duration::from_micros);
            let mut body = vec![TYPE_RECEPTION, 0, 13, 0, 0, 0, 1, 7];
            body.extend(0_u32.to_be_bytes());
            body.extend(micros.to_be_bytes());
            let reception = Reception {
                order: Order::PerFlow,
                loss_timeout: Duration::from_millis(1),
                report_interval: interval,
            };
            let frame = Frame::Reception {
                version: 1,
                reception,
            };
            assert_eq!(Frames::new(&body).next(), Some(frame));
        }
    }

    #[test]
    fn random_bodies_end_without_panic() {
        let mut rng = Rng::new(5);
        for _ in 0..50_000 {
            let mut body = [0; 64];
            rng.fill(&mut body);
            body[0] %= 19;
            body[1] = 0;
            body[2] %= 64;
            let _ = Frames::new(&body).count();
        }
    }
}
