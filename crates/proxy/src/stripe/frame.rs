//! What travels on a lane, before it is sealed. Numbers are big-endian; the first byte is the kind.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::CHUNK;

/// Names a bundle: 128 random bits of the end that asked.
pub type Token = [u8; 16];

/// A lane of a bundle; never used twice in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct LaneId(pub u16);

/// Where the asked end is to connect to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// `None`: the address the asking end reached it at.
    pub ip: Option<IpAddr>,
    /// The port.
    pub port: u16,
}

/// Why a connection is not made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// No more striped connections.
    Busy,
    /// The rules of the asked end forbid it.
    NotAllowed,
    /// The target does not take the connection.
    Unreachable,
}

/// One frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Frame<'a> {
    /// Everything before `delivered` was delivered; `limit` is how far the other end may send; on each lane so many
    /// chunks came.
    Ack {
        /// Offset.
        delivered: u64,
        /// Offset.
        limit: u64,
        /// At most 255.
        lanes: Vec<(LaneId, u64)>,
    },
    /// A piece of the stream.
    Chunk {
        /// Offset.
        offset: u64,
        /// 1 to [`CHUNK`] bytes.
        data: &'a [u8],
    },
    /// The end of the stream.
    End {
        /// Offset.
        offset: u64,
    },
    /// The lane is dead at the end that says so.
    Gone {
        /// Which.
        lane: LaneId,
    },
    /// First frame of a further lane.
    Join {
        /// Whose.
        token: Token,
        /// Its number.
        lane: LaneId,
        /// Name of its link, for people.
        link: String,
    },
    /// First frame of the first lane.
    Open {
        /// Whose.
        token: Token,
        /// Its number.
        lane: LaneId,
        /// Name of its link, for people.
        link: String,
        /// Where to.
        wanted: Wanted,
    },
    /// The answer to `Open`: the target is connected.
    Opened,
    /// The other answer.
    Refused(Refusal),
    /// The connection broke at the end that says so.
    Reset,
}

/// Not a frame.
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

/// Longest frame in bytes.
pub const MAX_FRAME: usize = 9 + CHUNK;

/// Longest name of a link that travels.
const MAX_NAME: usize = 32;

impl Frame<'_> {
    /// Appends the frame to `out`.
    pub fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Self::Ack {
                delivered,
                limit,
                lanes,
            } => {
                out.push(ACK);
                out.extend_from_slice(&delivered.to_be_bytes());
                out.extend_from_slice(&limit.to_be_bytes());
                for (lane, count) in lanes.iter().take(MAX_ACK_LANES) {
                    out.extend_from_slice(&lane.0.to_be_bytes());
                    out.extend_from_slice(&count.to_be_bytes());
                }
            }
            Self::Chunk { offset, data } => {
                out.push(CHUNK_KIND);
                out.extend_from_slice(&offset.to_be_bytes());
                out.extend_from_slice(data);
            }
            Self::End { offset } => {
                out.push(END);
                out.extend_from_slice(&offset.to_be_bytes());
            }
            Self::Gone { lane } => {
                out.push(GONE);
                out.extend_from_slice(&lane.0.to_be_bytes());
            }
            Self::Join { token, lane, link } => {
                out.push(JOIN);
                push_lane(out, token, *lane, link);
            }
            Self::Open {
                token,
                lane,
                link,
                wanted,
            } => {
                out.push(OPEN);
                push_lane(out, token, *lane, link);
                out.extend_from_slice(&wanted.port.to_be_bytes());
                match wanted.ip {
                    None => {}
                    Some(IpAddr::V4(ip)) => out.extend_from_slice(&ip.octets()),
                    Some(IpAddr::V6(ip)) => out.extend_from_slice(&ip.octets()),
                }
            }
            Self::Opened => out.push(OPENED),
            Self::Refused(refusal) => {
                let code = match refusal {
                    Refusal::Busy => 1,
                    Refusal::NotAllowed => 2,
                    Refusal::Unreachable => 3,
                };
                out.extend_from_slice(&[REFUSED, code]);
            }
            Self::Reset => out.push(RESET),
        }
    }
}

/// Reads one frame, which is all of `bytes`.
///
/// # Errors
/// It is none.
pub fn decode(bytes: &[u8]) -> Result<Frame<'_>, NotAFrame> {
    let (kind, rest) = bytes.split_first().ok_or(NotAFrame)?;
    let mut reader = Reader(rest);
    let frame = match *kind {
        ACK => {
            let (delivered, limit) = (reader.u64()?, reader.u64()?);
            let mut lanes = Vec::new();
            while !reader.0.is_empty() {
                if lanes.len() == MAX_ACK_LANES {
                    return Err(NotAFrame);
                }
                lanes.push((LaneId(reader.u16()?), reader.u64()?));
            }
            Frame::Ack {
                delivered,
                limit,
                lanes,
            }
        }
        CHUNK_KIND => {
            let offset = reader.u64()?;
            let data = core::mem::take(&mut reader.0);
            if data.is_empty() || data.len() > CHUNK {
                return Err(NotAFrame);
            }
            Frame::Chunk { offset, data }
        }
        END => Frame::End {
            offset: reader.u64()?,
        },
        GONE => Frame::Gone {
            lane: LaneId(reader.u16()?),
        },
        JOIN => {
            let (token, lane, link) = reader.lane()?;
            Frame::Join { token, lane, link }
        }
        OPEN => {
            let (token, lane, link) = reader.lane()?;
            let port = reader.u16()?;
            let ip = match reader.0.len() {
                0 => None,
                4 => Some(IpAddr::V4(Ipv4Addr::from(*reader.array::<4>()?))),
                16 => Some(IpAddr::V6(Ipv6Addr::from(*reader.array::<16>()?)).to_canonical()),
                _ => return Err(NotAFrame),
            };
            let wanted = Wanted { ip, port };
            if port == 0 {
                return Err(NotAFrame);
            }
            Frame::Open {
                token,
                lane,
                link,
                wanted,
            }
        }
        OPENED => Frame::Opened,
        REFUSED => Frame::Refused(match reader.array::<1>()? {
            [1] => Refusal::Busy,
            [2] => Refusal::NotAllowed,
            [3] => Refusal::Unreachable,
            _ => return Err(NotAFrame),
        }),
        RESET => Frame::Reset,
        _ => return Err(NotAFrame),
    };
    if reader.0.is_empty() {
        Ok(frame)
    } else {
        Err(NotAFrame)
    }
}

fn push_lane(out: &mut Vec<u8>, token: &Token, lane: LaneId, link: &str) {
    out.extend_from_slice(token);
    out.extend_from_slice(&lane.0.to_be_bytes());
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

    fn lane(&mut self) -> Result<(Token, LaneId, String), NotAFrame> {
        let token = *self.array()?;
        let lane = LaneId(self.u16()?);
        let len = usize::from(self.array::<1>()?[0]);
        if len > MAX_NAME {
            return Err(NotAFrame);
        }
        let (name, rest) = self.0.split_at_checked(len).ok_or(NotAFrame)?;
        self.0 = rest;
        let link = core::str::from_utf8(name).map_err(|_| NotAFrame)?;
        Ok((token, lane, link.to_owned()))
    }
}

/// More lanes than a bundle has, and those that just ended.
const MAX_ACK_LANES: usize = 32;

#[cfg(test)]
mod tests {
    use pleach_core::rng::Rng;

    use super::*;

    #[test]
    fn every_frame_comes_back() {
        let token = [7; 16];
        let (lane, link) = (LaneId(300), "wifi".to_owned());
        let open = |ip: Option<&str>| Frame::Open {
            token,
            lane,
            link: "lte".to_owned(),
            wanted: Wanted {
                ip: ip.map(|ip| ip.parse().expect("literal")),
                port: 443,
            },
        };
        for frame in [
            Frame::Ack {
                delivered: 1,
                limit: u64::MAX,
                lanes: vec![(lane, 5), (LaneId(0), 0)],
            },
            Frame::Chunk {
                offset: 9,
                data: b"data",
            },
            Frame::End { offset: 13 },
            Frame::Gone { lane },
            Frame::Join { token, lane, link },
            open(None),
            open(Some("192.0.2.1")),
            open(Some("2001:db8::1")),
            Frame::Opened,
            Frame::Refused(Refusal::Busy),
            Frame::Refused(Refusal::NotAllowed),
            Frame::Refused(Refusal::Unreachable),
            Frame::Reset,
        ] {
            let mut bytes = Vec::new();
            frame.encode(&mut bytes);
            assert!(bytes.len() <= MAX_FRAME);
            assert_eq!(decode(&bytes).as_ref(), Ok(&frame));
            for len in 0..bytes.len() {
                // Shorter is nothing, or something else, never a panic.
                assert_ne!(decode(&bytes[..len]).as_ref(), Ok(&frame));
            }
        }
    }

    #[test]
    fn garbage_is_no_frame_or_one_that_comes_back() {
        let mut rng = Rng::new(1);
        for _ in 0..200_000 {
            let len = usize::try_from(rng.below(60)).expect("small");
            let mut bytes: Vec<u8> = (0..len).map(|_| rng.next_u64().to_le_bytes()[0]).collect();
            if let Some(first) = bytes.first_mut() {
                *first %= 11;
            }
            if let Ok(frame) = decode(&bytes) {
                let mut again = Vec::new();
                frame.encode(&mut again);
                assert_eq!(decode(&again), Ok(frame));
            }
        }
        let mut long = vec![CHUNK_KIND];
        long.resize(MAX_FRAME + 1, 0);
        assert_eq!(decode(&long), Err(NotAFrame));
    }
}
