//! Frames on a lane (a TCP connection to a peer), before encryption. Numbers are big-endian; the first byte is the
//! kind of the frame.
//!
//! *Items* are frames that must arrive. The sender buffers each item until the receiver has acknowledged it on its
//! lane, and retransmits the items of a dead lane on another lane. The other frames report the state of an end, and
//! are repeated.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::{CHUNK, Violation};

/// Identifies an association, that is, the lanes of one asking end to one peer: 128 random bits chosen by the asking
/// end.
pub type Token = [u8; 16];

/// Number of a lane in its association; never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct LaneId(pub u16);

/// Number of a connection in its association; never reused. The asking end counts from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ConnId(pub u32);

/// Number of a UDP flow in its association; never reused. The asking end counts from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct FlowId(pub u32);

/// Destination to which the answering end is to connect, or to send datagrams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// Address. `None`: the address at which the asking end reached the answering end.
    pub ip: Option<IpAddr>,
    /// The port.
    pub port: u16,
}

/// Why a connection is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The maximum number of connections is reached.
    Busy,
    /// The rules of the answering end forbid the connection.
    NotAllowed,
    /// The target does not accept the connection.
    Unreachable,
}

/// Why a connection is reset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Broken {
    /// The connection broke at the end that sends the frame, or is not needed there any more.
    Ended,
    /// The other end violated the protocol.
    Violated(Violation),
}

/// Why a lane is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bye {
    /// The maximum number of associations, or of lanes of this association, is reached.
    Busy,
    /// The frame `Join` continues an association of which this end has no state.
    Unknown,
}

/// A message on a lane.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Frame<'a> {
    /// Acknowledgement: the number of items that have arrived on each lane. Not an item.
    Ack {
        /// Lane and number of items, for at most [`MAX_ACK_LANES`] lanes.
        lanes: Vec<(LaneId, u64)>,
    },
    /// Last frame of a lane that is refused. Not an item.
    Bye(Bye),
    /// A piece of a connection's stream.
    Chunk {
        /// Number of the connection.
        conn: ConnId,
        /// Position of the first byte in the stream.
        offset: u64,
        /// Data of 1 to [`CHUNK`] bytes.
        data: &'a [u8],
    },
    /// A datagram of a UDP flow. Not an item: it may be lost.
    Datagram {
        /// Number of the flow.
        flow: FlowId,
        /// Destination, in a datagram of the asking end. `None` in a datagram of the answering end, which comes from
        /// the destination of the flow.
        wanted: Option<Wanted>,
        /// Data of the datagram, at most [`MAX_DATAGRAM`] bytes; may be empty.
        data: &'a [u8],
    },
    /// The end of a connection's stream.
    End {
        /// Number of the connection.
        conn: ConnId,
        /// Position of the end in the stream.
        offset: u64,
    },
    /// A UDP flow has ended at the end that sends the frame. Not an item: a flow without datagrams ends by itself.
    FlowEnd {
        /// Number of the flow.
        flow: FlowId,
        /// Why the answering end does not serve the flow. `None`: the flow is not needed any more.
        refusal: Option<Refusal>,
    },
    /// Reports that a lane is dead at the end that sends the frame. Not an item.
    Gone {
        /// Number of the dead lane.
        lane: LaneId,
    },
    /// First frame of a lane, sent by the asking end. Not an item.
    Join {
        /// Association to which the lane belongs.
        token: Token,
        /// Whether the answering end may create the association. True if no frame has arrived from the answering end
        /// on any lane of the association, so that nothing is lost if the answering end creates it now. Otherwise
        /// both ends have had state, and the answering end accepts the lane only if it still has this state.
        is_new: bool,
        /// Number of the lane.
        lane: LaneId,
        /// Name of the lane's link, for the status.
        link: String,
    },
    /// Request for a connection.
    Open {
        /// Number of the connection.
        conn: ConnId,
        /// Requested destination.
        wanted: Wanted,
        /// First bytes of the stream, at most [`CHUNK`]; may be empty.
        data: &'a [u8],
    },
    /// Answer to `Open`: the target is connected.
    Opened {
        /// Number of the connection.
        conn: ConnId,
    },
    /// Answer to `Open`: the connection is refused.
    Refused {
        /// Number of the connection.
        conn: ConnId,
        /// Reason.
        refusal: Refusal,
    },
    /// The connection has ended at the end that sends the frame, before both streams were delivered.
    Reset {
        /// Number of the connection.
        conn: ConnId,
        /// Reason.
        why: Broken,
    },
    /// Window update: all bytes before `delivered` were delivered, and the other end may send up to `limit`.
    Window {
        /// Number of the connection.
        conn: ConnId,
        /// Position before which all bytes of the stream were delivered.
        delivered: u64,
        /// Position in the stream before which the other end may send.
        limit: u64,
    },
}

/// Bytes are not a valid frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a frame")]
pub struct NotAFrame;

const ACK: u8 = 1;
const CHUNK_KIND: u8 = 2;
const END: u8 = 3;
const GONE: u8 = 4;
const JOIN: u8 = 5;
const OPEN: u8 = 6;
const OPENED: u8 = 7;
const REFUSED: u8 = 8;
const RESET: u8 = 9;
const WINDOW: u8 = 10;
const BYE: u8 = 11;
const DATAGRAM: u8 = 12;
const ANSWER: u8 = 13;
const FLOW_END: u8 = 14;

/// Maximum length of a frame in bytes: an `Open` with an IPv6 address and a whole chunk.
pub const MAX_FRAME: usize = 24 + CHUNK;
/// Maximum number of data bytes of a datagram. A longer datagram is not sent over lanes.
pub const MAX_DATAGRAM: usize = CHUNK;

/// Maximum length in bytes of a link's name in a frame.
const MAX_NAME: usize = 32;

impl Frame<'_> {
    /// Whether the frame is an item: it must arrive and is acknowledged.
    #[must_use]
    pub fn is_item(&self) -> bool {
        !matches!(
            self,
            Self::Ack { .. }
                | Self::Bye(_)
                | Self::Datagram { .. }
                | Self::FlowEnd { .. }
                | Self::Gone { .. }
                | Self::Join { .. }
        )
    }

    /// Appends the frame to `out`.
    pub fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Self::Ack { lanes } => {
                out.push(ACK);
                for (lane, count) in lanes.iter().take(MAX_ACK_LANES) {
                    out.extend_from_slice(&lane.0.to_be_bytes());
                    out.extend_from_slice(&count.to_be_bytes());
                }
            }
            Self::Bye(bye) => {
                let code = match bye {
                    Bye::Busy => 0,
                    Bye::Unknown => 1,
                };
                out.extend_from_slice(&[BYE, code]);
            }
            Self::Chunk { conn, offset, data } => {
                push_conn(out, CHUNK_KIND, *conn);
                out.extend_from_slice(&offset.to_be_bytes());
                out.extend_from_slice(data);
            }
            Self::Datagram { flow, wanted, data } => {
                out.push(if wanted.is_some() { DATAGRAM } else { ANSWER });
                out.extend_from_slice(&flow.0.to_be_bytes());
                if let Some(wanted) = wanted {
                    push_wanted(out, *wanted);
                }
                out.extend_from_slice(data);
            }
            Self::End { conn, offset } => {
                push_conn(out, END, *conn);
                out.extend_from_slice(&offset.to_be_bytes());
            }
            Self::FlowEnd { flow, refusal } => {
                out.push(FLOW_END);
                out.extend_from_slice(&flow.0.to_be_bytes());
                out.push(refusal.map_or(0, refusal_code));
            }
            Self::Gone { lane } => {
                out.push(GONE);
                out.extend_from_slice(&lane.0.to_be_bytes());
            }
            Self::Join {
                token,
                is_new,
                lane,
                link,
            } => {
                out.push(JOIN);
                out.extend_from_slice(token);
                out.push(u8::from(*is_new));
                out.extend_from_slice(&lane.0.to_be_bytes());
                push_name(out, link);
            }
            Self::Open { conn, wanted, data } => {
                push_conn(out, OPEN, *conn);
                push_wanted(out, *wanted);
                out.extend_from_slice(data);
            }
            Self::Opened { conn } => push_conn(out, OPENED, *conn),
            Self::Refused { conn, refusal } => {
                push_conn(out, REFUSED, *conn);
                out.push(refusal_code(*refusal));
            }
            Self::Reset { conn, why } => {
                push_conn(out, RESET, *conn);
                out.push(match why {
                    Broken::Ended => 0,
                    Broken::Violated(violation) => violation_code(*violation),
                });
            }
            Self::Window {
                conn,
                delivered,
                limit,
            } => {
                push_conn(out, WINDOW, *conn);
                out.extend_from_slice(&delivered.to_be_bytes());
                out.extend_from_slice(&limit.to_be_bytes());
            }
        }
    }
}

/// Decodes one frame, which comprises all of `bytes`.
///
/// # Errors
/// Fails if `bytes` are not a valid frame.
pub fn decode(bytes: &[u8]) -> Result<Frame<'_>, NotAFrame> {
    let (kind, rest) = bytes.split_first().ok_or(NotAFrame)?;
    let mut reader = Reader(rest);
    let frame = match *kind {
        ACK => {
            let mut lanes = Vec::new();
            while !reader.0.is_empty() {
                if lanes.len() == MAX_ACK_LANES {
                    return Err(NotAFrame);
                }
                lanes.push((LaneId(reader.u16()?), reader.u64()?));
            }
            Frame::Ack { lanes }
        }
        BYE => Frame::Bye(match reader.array::<1>()? {
            [0] => Bye::Busy,
            [1] => Bye::Unknown,
            _ => return Err(NotAFrame),
        }),
        CHUNK_KIND => {
            let (conn, offset) = (reader.conn()?, reader.u64()?);
            let data = core::mem::take(&mut reader.0);
            if data.is_empty() || data.len() > CHUNK {
                return Err(NotAFrame);
            }
            Frame::Chunk { conn, offset, data }
        }
        DATAGRAM | ANSWER => {
            let flow = reader.flow()?;
            let wanted = (*kind == DATAGRAM).then(|| reader.wanted()).transpose()?;
            let data = core::mem::take(&mut reader.0);
            if data.len() > MAX_DATAGRAM {
                return Err(NotAFrame);
            }
            Frame::Datagram { flow, wanted, data }
        }
        END => Frame::End {
            conn: reader.conn()?,
            offset: reader.u64()?,
        },
        FLOW_END => Frame::FlowEnd {
            flow: reader.flow()?,
            refusal: match reader.array::<1>()? {
                [0] => None,
                [code] => Some(refusal(*code)?),
            },
        },
        GONE => Frame::Gone {
            lane: LaneId(reader.u16()?),
        },
        JOIN => Frame::Join {
            token: *reader.array()?,
            is_new: match reader.array::<1>()? {
                [0] => false,
                [1] => true,
                _ => return Err(NotAFrame),
            },
            lane: LaneId(reader.u16()?),
            link: reader.name()?,
        },
        OPEN => {
            let conn = reader.conn()?;
            let wanted = reader.wanted()?;
            let data = core::mem::take(&mut reader.0);
            if data.len() > CHUNK {
                return Err(NotAFrame);
            }
            Frame::Open { conn, wanted, data }
        }
        OPENED => Frame::Opened {
            conn: reader.conn()?,
        },
        REFUSED => Frame::Refused {
            conn: reader.conn()?,
            refusal: refusal(reader.array::<1>()?[0])?,
        },
        RESET => Frame::Reset {
            conn: reader.conn()?,
            why: match reader.array::<1>()? {
                [0] => Broken::Ended,
                [code] => Broken::Violated(violation(*code)?),
            },
        },
        WINDOW => Frame::Window {
            conn: reader.conn()?,
            delivered: reader.u64()?,
            limit: reader.u64()?,
        },
        _ => return Err(NotAFrame),
    };
    if reader.0.is_empty() {
        Ok(frame)
    } else {
        Err(NotAFrame)
    }
}

/// Whether `bytes`, an encoded frame, are a datagram.
#[must_use]
pub fn is_datagram(bytes: &[u8]) -> bool {
    matches!(bytes.first(), Some(&(DATAGRAM | ANSWER)))
}

fn refusal_code(refusal: Refusal) -> u8 {
    match refusal {
        Refusal::Busy => 1,
        Refusal::NotAllowed => 2,
        Refusal::Unreachable => 3,
    }
}

fn refusal(code: u8) -> Result<Refusal, NotAFrame> {
    Ok(match code {
        1 => Refusal::Busy,
        2 => Refusal::NotAllowed,
        3 => Refusal::Unreachable,
        _ => return Err(NotAFrame),
    })
}

fn violation_code(violation: Violation) -> u8 {
    match violation {
        Violation::Acknowledged => 1,
        Violation::Credit => 2,
        Violation::Flood => 3,
        Violation::Misplaced => 4,
        Violation::Overlap => 5,
    }
}

fn violation(code: u8) -> Result<Violation, NotAFrame> {
    Ok(match code {
        1 => Violation::Acknowledged,
        2 => Violation::Credit,
        3 => Violation::Flood,
        4 => Violation::Misplaced,
        5 => Violation::Overlap,
        _ => return Err(NotAFrame),
    })
}

fn push_conn(out: &mut Vec<u8>, kind: u8, conn: ConnId) {
    out.push(kind);
    out.extend_from_slice(&conn.0.to_be_bytes());
}

fn push_wanted(out: &mut Vec<u8>, wanted: Wanted) {
    out.extend_from_slice(&wanted.port.to_be_bytes());
    match wanted.ip {
        None => out.push(0),
        Some(IpAddr::V4(ip)) => {
            out.push(4);
            out.extend_from_slice(&ip.octets());
        }
        Some(IpAddr::V6(ip)) => {
            out.push(16);
            out.extend_from_slice(&ip.octets());
        }
    }
}

fn push_name(out: &mut Vec<u8>, link: &str) {
    let mut len = link.len().min(MAX_NAME);
    while !link.is_char_boundary(len) {
        len -= 1;
    }
    out.push(u8::try_from(len).unwrap_or(0));
    out.extend_from_slice(&link.as_bytes()[..len]);
}

struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn array<const N: usize>(&mut self) -> Result<&'a [u8; N], NotAFrame> {
        let (first, rest) = self.0.split_first_chunk().ok_or(NotAFrame)?;
        self.0 = rest;
        Ok(first)
    }

    fn u16(&mut self) -> Result<u16, NotAFrame> {
        self.array().copied().map(u16::from_be_bytes)
    }

    fn u64(&mut self) -> Result<u64, NotAFrame> {
        self.array().copied().map(u64::from_be_bytes)
    }

    fn conn(&mut self) -> Result<ConnId, NotAFrame> {
        let bytes = self.array().copied();
        bytes.map(|bytes| ConnId(u32::from_be_bytes(bytes)))
    }

    fn flow(&mut self) -> Result<FlowId, NotAFrame> {
        let bytes = self.array().copied();
        bytes.map(|bytes| FlowId(u32::from_be_bytes(bytes)))
    }

    fn wanted(&mut self) -> Result<Wanted, NotAFrame> {
        let port = self.u16()?;
        let ip = match self.array::<1>()? {
            [0] => None,
            [4] => Some(IpAddr::V4(Ipv4Addr::from(*self.array::<4>()?))),
            [16] => Some(IpAddr::V6(Ipv6Addr::from(*self.array::<16>()?)).to_canonical()),
            _ => return Err(NotAFrame),
        };
        if port == 0 {
            return Err(NotAFrame);
        }
        Ok(Wanted { ip, port })
    }

    fn name(&mut self) -> Result<String, NotAFrame> {
        let len = usize::from(self.array::<1>()?[0]);
        if len > MAX_NAME {
            return Err(NotAFrame);
        }
        let (name, rest) = self.0.split_at_checked(len).ok_or(NotAFrame)?;
        self.0 = rest;
        let link = core::str::from_utf8(name).map_err(|_| NotAFrame)?;
        Ok(link.to_owned())
    }
}

/// Maximum number of lanes in an acknowledgement: more than an association has, together with those that ended
/// recently.
pub const MAX_ACK_LANES: usize = 32;

#[cfg(test)]
mod tests;
