//! The header of transport datagrams. It is not encrypted, and is authenticated as associated data.
//!
//! ```text
//! byte  0      kind: 4 data, 5 control
//!       1      flags: bit 0 out of turn (sent before packets with lower numbers), bit 1 copy (sent on several paths),
//!              bit 2 kept (the sender retransmits this packet, or the packet of this copy, if it is NACKed),
//!              bit 3 repair symbol (no packet; below), with bits 4-7: number of packets covered ([`COVERED`])
//!       2      bits 0-3 path id; bit 7 answer path, data only: the sender wants the packets of this packet's flow in
//!              the other direction on this path (only to an end with capability `ANSWER_PATHS`); bits 4-6 zero
//!       3-5    receiver index: names the receiver's session
//!       6-9    path sequence number S: low 32 bits of the AEAD counter; data and control count apart
//!      10-13   transmit time in microseconds, low 32 bits, sender's clock
//!   data only:
//!      14-17   global sequence number G: the order of all packets of the association
//!      18-19   path step, signed: G minus the G of the previous data datagram on this path; 0 if unknown
//!      20-21   flow step: G minus the G of the previous packet of the same flow; 0 if none within 65535
//! ```
//!
//! The body follows, then a 16-byte tag. The path step shows the receiver *which* packet was lost as soon as the next
//! datagram arrives on the same path. The flow step allows it to release a packet as soon as the packet's predecessor
//! in the same flow has been released, independently of other flows. RFC 8157 carries only one sequence number for the
//! whole bond, and so must rely on a timer.
//!
//! A *repair symbol* ([`crate::fec`]) is a data datagram without a packet. G is the number of the oldest packet that it
//! covers. The first four bytes of the symbol replace the two steps, and its other bytes replace the packet. So it is
//! as long as the longest datagram that it covers, and fits on every path that carried that datagram. The seed of its
//! coefficients is derived from path and S ([`Header::key`]). In a repair symbol the bit *answer path* has no meaning.

use super::Kind;
use crate::{
    fec::MAX_WINDOW_PKTS,
    ids::{PathId, Seq},
};

/// Length of a control header in bytes.
pub const CONTROL_HEADER_LEN: usize = 14;
/// Length of a data header in bytes.
pub const DATA_HEADER_LEN: usize = 22;
/// Length of the authentication tag in bytes.
pub const TAG_LEN: usize = 16;
/// Overhead of a data datagram over the inner packet, without IP and UDP headers.
pub const DATA_OVERHEAD: usize = DATA_HEADER_LEN + TAG_LEN;

/// Maximum receiver index, which is sent in 24 bits.
pub const MAX_INDEX: u32 = 0x00ff_ffff;

const KIND_DATA: u8 = 4;
const KIND_CONTROL: u8 = 5;
/// Kinds of the datagrams of a session: the first byte.
pub const TRANSPORT_KINDS: [u8; 2] = [KIND_DATA, KIND_CONTROL];
/// Position of the receiver index, which has three bytes.
pub const RECEIVER_INDEX_AT: usize = 3;
const FLAG_OUT_OF_TURN: u8 = 1;
const FLAG_COPY: u8 = 2;
const FLAG_KEPT: u8 = 4;
const PATH_BITS: u8 = 15;
const FLAG_ANSWER_PATH: u8 = 128;
const _: () = assert!(PathId::MAX == 1 + PATH_BITS as usize);
const FLAG_SYMBOL: u8 = 8;
/// Possible numbers of packets that a repair symbol covers; the index is in the upper half of the flags.
pub const COVERED: [u8; 16] = [
    4, 8, 12, 16, 20, 24, 28, 32, 40, 48, 56, 64, 80, 96, 112, 128,
];
const _: () = assert!(COVERED[15] as usize == MAX_WINDOW_PKTS);

/// Returns the smallest number of [`COVERED`] that is at least `wanted` and at most `held`, or else the largest that is
/// at most `held`; `None` if all are larger than `held`.
#[must_use]
pub fn covered(wanted: u32, held: usize) -> Option<u8> {
    let mut fitting = COVERED
        .into_iter()
        .filter(|pkts| usize::from(*pkts) <= held);
    let enough = fitting.clone().find(|pkts| u32::from(*pkts) >= wanted);
    enough.or_else(|| fitting.next_back())
}

/// The fields that data and control datagrams share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "independent flags of the format"
)]
pub struct Header {
    /// Kind of the datagram: data or control.
    pub kind: Kind,
    /// Whether packets with lower numbers were still to be sent when this packet was sent: it is a retransmission, or
    /// other packets still wait.
    pub is_out_of_turn: bool,
    /// Whether this packet is sent on several paths.
    pub is_copy: bool,
    /// Whether this packet is retransmitted if it is NACKed. For a repair symbol or a copy: whether the packets that it
    /// covers or copies are retransmitted.
    pub is_kept: bool,
    /// Whether the sender wants the packets of this packet's flow in the other direction on this path. Only in data
    /// datagrams.
    pub is_answer_path: bool,
    /// Number of packets that a repair symbol covers: one of [`COVERED`]; 0 if the datagram is not a repair symbol.
    pub covered: u8,
    /// Path on which the datagram is sent.
    pub path: PathId,
    /// Session index of the receiver.
    pub receiver_index: u32,
    /// Sequence number among the datagrams of this kind on this path.
    pub path_seq: Seq,
    /// Time of sending: microseconds of the sender's clock, wrapping.
    pub sent_us: u32,
}

/// The fields that only data datagrams have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DataHeader {
    /// Global sequence number.
    pub global_seq: Seq,
    /// Distance from the global number of the previous data datagram on this path to `global_seq`; 0 if it is unknown.
    pub path_step: i16,
    /// Distance from the global number of the previous packet of this flow to `global_seq`; 0 if there is no previous
    /// packet.
    pub flow_step: u16,
}

impl Header {
    /// Reads the header of `datagram`. Returns `None` if it is not a transport datagram or too short for header and
    /// tag.
    #[must_use]
    pub fn parse(datagram: &[u8]) -> Option<(Self, Option<DataHeader>)> {
        let kind = match *datagram.first()? {
            KIND_DATA => Kind::Data,
            KIND_CONTROL => Kind::Control,
            _ => return None,
        };
        if datagram.len() < kind.header_len() + TAG_LEN {
            return None;
        }
        let at = |i: usize| datagram[i];
        let u32_at = |i: usize| u32::from_be_bytes([at(i), at(i + 1), at(i + 2), at(i + 3)]);
        let header = Self {
            kind,
            is_out_of_turn: at(1) & FLAG_OUT_OF_TURN != 0,
            is_copy: at(1) & FLAG_COPY != 0,
            is_kept: at(1) & FLAG_KEPT != 0,
            is_answer_path: at(2) & FLAG_ANSWER_PATH != 0,
            covered: match at(1) & FLAG_SYMBOL {
                0 => 0,
                _ => COVERED[usize::from(at(1) >> 4)],
            },
            path: PathId(at(2) & PATH_BITS),
            receiver_index: u32::from_be_bytes([0, at(3), at(4), at(5)]),
            path_seq: Seq(u32_at(6)),
            sent_us: u32_at(10),
        };
        let known = match kind {
            Kind::Control => PATH_BITS,
            Kind::Data => PATH_BITS | FLAG_ANSWER_PATH,
        };
        if at(2) & !known != 0 {
            return None;
        }
        let data = match kind {
            Kind::Control => None,
            Kind::Data => Some(DataHeader {
                global_seq: Seq(u32_at(14)),
                path_step: i16::from_be_bytes([at(18), at(19)]),
                flow_step: u16::from_be_bytes([at(20), at(21)]),
            }),
        };
        Some((header, data))
    }

    /// Writes this header, followed by the fields of `data`, to the start of `out`. Returns the header's length. In a
    /// control header `is_answer_path` is not written.
    ///
    /// # Panics
    /// If `out` is shorter than the header, `data` is missing for a data header, or `covered` is neither 0 nor one of
    /// [`COVERED`].
    pub fn emit(&self, data: Option<&DataHeader>, out: &mut [u8]) -> usize {
        out[0] = match self.kind {
            Kind::Control => KIND_CONTROL,
            Kind::Data => KIND_DATA,
        };
        out[1] = (u8::from(self.is_out_of_turn) * FLAG_OUT_OF_TURN)
            | (u8::from(self.is_copy) * FLAG_COPY)
            | (u8::from(self.is_kept) * FLAG_KEPT);
        if self.covered > 0 {
            let place = (0..).zip(COVERED).find(|(_, pkts)| *pkts == self.covered);
            let (place, _) = place.expect("one of the table");
            out[1] |= FLAG_SYMBOL | (place << 4);
        }
        let is_answer_path = self.kind == Kind::Data && self.is_answer_path;
        out[2] = self.path.0 | (u8::from(is_answer_path) * FLAG_ANSWER_PATH);
        out[3..6].copy_from_slice(&self.receiver_index.to_be_bytes()[1..]);
        out[6..10].copy_from_slice(&self.path_seq.0.to_be_bytes());
        out[10..14].copy_from_slice(&self.sent_us.to_be_bytes());
        if self.kind == Kind::Data {
            let data = data.expect("a data header has data fields");
            out[14..18].copy_from_slice(&data.global_seq.0.to_be_bytes());
            out[18..20].copy_from_slice(&data.path_step.to_be_bytes());
            out[20..22].copy_from_slice(&data.flow_step.to_be_bytes());
        }
        self.kind.header_len()
    }

    /// Returns the seed of the coefficients of a repair symbol with this header. It differs for each of the last 4096
    /// datagrams of a path.
    #[must_use]
    pub fn key(&self) -> u16 {
        #[expect(clippy::cast_possible_truncation, reason = "the low 12 bits")]
        let seq = self.path_seq.0 as u16;
        seq << 4 | u16::from(self.path.0)
    }
}

impl Kind {
    /// Length of the header of this kind in bytes.
    #[must_use]
    pub const fn header_len(self) -> usize {
        match self {
            Self::Control => CONTROL_HEADER_LEN,
            Self::Data => DATA_HEADER_LEN,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(kind: Kind) -> Header {
        Header {
            kind,
            is_out_of_turn: true,
            is_copy: false,
            is_kept: true,
            is_answer_path: false,
            covered: 0,
            path: PathId(3),
            receiver_index: 0x00ab_cdef,
            path_seq: Seq(0x0102_0304),
            sent_us: 0xfffe_fdfc,
        }
    }

    #[test]
    fn round_trips() {
        let data = DataHeader {
            global_seq: Seq(77),
            path_step: -5,
            flow_step: 65_535,
        };
        let mut bytes = [0; DATA_OVERHEAD];
        assert_eq!(
            header(Kind::Data).emit(Some(&data), &mut bytes),
            DATA_HEADER_LEN
        );
        assert_eq!(
            Header::parse(&bytes),
            Some((header(Kind::Data), Some(data)))
        );
        let mut bytes = [0; CONTROL_HEADER_LEN + TAG_LEN];
        header(Kind::Control).emit(None, &mut bytes);
        assert_eq!(Header::parse(&bytes), Some((header(Kind::Control), None)));
    }

    #[test]
    fn data_names_the_path_of_its_answers_beside_the_path_id() {
        let data = DataHeader {
            global_seq: Seq(77),
            path_step: 1,
            flow_step: 1,
        };
        for path in (0..16).map(PathId) {
            let sent = Header {
                is_answer_path: true,
                path,
                ..header(Kind::Data)
            };
            let mut bytes = [0; DATA_OVERHEAD];
            assert_eq!(sent.emit(Some(&data), &mut bytes), DATA_HEADER_LEN);
            assert_eq!(bytes[2], 0x80 | path.0);
            assert_eq!(Header::parse(&bytes), Some((sent, Some(data))));
            let control = Header {
                is_answer_path: true,
                path,
                ..header(Kind::Control)
            };
            control.emit(None, &mut bytes);
            assert_eq!(bytes[2], path.0, "data only");
        }
    }

    #[test]
    fn symbols_cover_as_many_as_wanted_or_as_are_there() {
        assert_eq!(covered(33, 128), Some(40));
        assert_eq!(covered(33, 39), Some(32));
        assert_eq!(covered(200, 128), Some(128));
        assert_eq!(covered(1, 4), Some(4));
        assert_eq!(covered(1, 3), None);
    }

    #[test]
    fn symbols_say_what_they_cover_and_differ_in_their_keys() {
        let data = DataHeader {
            global_seq: Seq(77),
            path_step: -1,
            flow_step: 65_535,
        };
        for covered in COVERED {
            let sent = Header {
                covered,
                ..header(Kind::Data)
            };
            let mut bytes = [0; DATA_OVERHEAD];
            sent.emit(Some(&data), &mut bytes);
            assert_eq!(Header::parse(&bytes), Some((sent, Some(data))));
        }
        let key = |seq, path| {
            let (path_seq, path) = (Seq(seq), PathId(path));
            let header = header(Kind::Data);
            Header {
                path_seq,
                path,
                ..header
            }
            .key()
        };
        assert_eq!(key(0x0102_0304, 3), 0x3043);
        let mut keys: Vec<u16> = (0..4096)
            .flat_map(|seq| (0..16).map(move |path| key(seq, path)))
            .collect();
        keys.sort_unstable();
        keys.dedup();
        assert_eq!(keys.len(), 1 << 16);
    }

    #[test]
    fn rejects_what_is_short_or_foreign() {
        let mut bytes = [0; DATA_OVERHEAD];
        let data = DataHeader {
            global_seq: Seq(0),
            path_step: 0,
            flow_step: 0,
        };
        header(Kind::Data).emit(Some(&data), &mut bytes);
        for len in 0..DATA_OVERHEAD {
            assert_eq!(Header::parse(&bytes[..len]), None);
        }
        for kind in [0, 1, 2, 3, 6, 255] {
            bytes[0] = kind;
            assert_eq!(Header::parse(&bytes), None);
        }
        for unknown in [16, 32, 64, 0x80 | 16] {
            bytes[2] = unknown;
            for kind in [KIND_CONTROL, KIND_DATA] {
                bytes[0] = kind;
                assert_eq!(Header::parse(&bytes), None);
            }
        }
        bytes[2] = FLAG_ANSWER_PATH;
        bytes[0] = KIND_CONTROL;
        assert_eq!(Header::parse(&bytes), None);
    }
}
