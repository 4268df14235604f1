//! Merges packets to runs, each of which is written to the TUN device as one super-packet (generic receive offload).
//!
//! A run is a first packet, its head, and packets that continue it. All packets of a run have the same addresses,
//! ports, TTL, traffic class and flags; for TCP also the same acknowledgement, window, urgent pointer and options,
//! and consecutive sequence numbers. Their payloads are as long as the head's, except that the last may be shorter. PSH ends a run.
//! Packets of other flows may lie in between: up to [`OPEN_FLOWS`] runs are open at a time, so that the interleaving
//! of a fair queue does not prevent merging. Runs are written in the order of their heads, so a flow is never
//! reordered.
//!
//! A packet joins a run only if its checksums and those of the head are correct. The kernel trusts the content of a
//! super-packet, and a packet that was damaged before it entered the tunnel must not get a valid checksum.
//!
//! Bounds: [`MAX_SEGMENTS`] packets and 65 535 bytes per run. Source: `tcp_gro_receive`, `inet_gro_receive` and
//! `udp_gro_receive` of Linux. Differences: window and urgent pointer must be equal too. Packets with IPv4 options, IPv6 extension
//! headers, fragments, SYN, FIN, RST, URG or CWR are not merged. Without DF the identification must increase by one, so
//! that segmenting the run again restores it.

use std::io::IoSlice;

use pleach_core::packet::PacketBuf;

use super::{
    checksum::{Sum, pseudo_header},
    vnet::{Gso, VNET_HEADER_LEN, VnetHeader},
};

/// Highest number of packets in a run: `UDP_MAX_SEGMENTS` of the kernel.
pub(crate) const MAX_SEGMENTS: usize = 64;

/// Highest number of runs that can still grow.
const OPEN_FLOWS: usize = 16;

/// Length in bytes of the longest headers of a mergeable packet: IPv6, and TCP with full options.
const MAX_HEADER_LEN: usize = 40 + 60;

/// Finds the runs in a batch. Reuses its tables from batch to batch.
#[derive(Debug, Default)]
pub(crate) struct Merger {
    runs: Vec<Run>,
    /// For each packet of the batch, the index of the next packet in its run.
    next: Vec<Option<usize>>,
    slots: [Slot; OPEN_FLOWS],
    /// Index of the slot that is reused next.
    victim: usize,
}

/// A head and the packets that continue it.
#[derive(Clone, Debug)]
pub(crate) struct Run {
    head: usize,
    tail: usize,
    /// Number of packets.
    pub(crate) count: usize,
    /// Length of the super-packet in bytes.
    len: usize,
    /// Parsed headers of the head. `None` if the packet cannot be merged.
    segment: Option<Segment>,
    next_seq: u32,
    next_id: u16,
    verified: bool,
    pushed: bool,
}

/// The run that a flow appends to.
#[derive(Clone, Copy, Debug, Default)]
struct Slot {
    flow: u64,
    run: Option<usize>,
}

/// A packet that may be part of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Segment {
    is_v6: bool,
    is_tcp: bool,
    /// Start of the transport header: 20 or 40.
    transport: usize,
    header_len: usize,
    payload_len: usize,
    seq: u32,
    push: bool,
}

impl Merger {
    /// Groups `packets` into runs. `merge_udp`: whether the device accepts super-packets of UDP.
    pub(crate) fn plan(&mut self, packets: &[PacketBuf], merge_udp: bool) {
        self.runs.clear();
        self.next.clear();
        self.next.resize(packets.len(), None);
        self.slots = [Slot::default(); OPEN_FLOWS];
        self.victim = 0;
        for (index, packet) in packets.iter().enumerate() {
            let bytes = packet.as_slice();
            let Some(flow) = flow_of(bytes) else {
                self.runs.push(Run::alone(index, bytes.len()));
                continue;
            };
            let segment = segment_of(bytes).filter(|segment| segment.is_tcp || merge_udp);
            let slot = self.slot_of(flow);
            if let (Some(segment), Some(run)) = (&segment, self.slots[slot].run)
                && self.try_append(run, segment, index, packets)
            {
                continue;
            }
            let run = segment.map_or_else(
                || Run::alone(index, bytes.len()),
                |segment| Run::starting(index, segment, bytes),
            );
            self.slots[slot].run = Some(self.runs.len());
            self.runs.push(run);
        }
    }

    /// Returns the number of runs of the last plan.
    pub(crate) fn len(&self) -> usize {
        self.runs.len()
    }

    /// Returns run `index` of the last plan, in the order of writing.
    pub(crate) fn run(&self, index: usize) -> &Run {
        &self.runs[index]
    }

    /// Returns the packets of `run`, as indices into the batch.
    pub(crate) fn members(&self, run: &Run) -> impl Iterator<Item = usize> {
        std::iter::successors(Some(run.head), |&index| self.next[index])
    }

    /// Writes the vnet header and the headers of the super-packet of `run` into `headers`, and lists the slices to
    /// write.
    ///
    /// `run` has at least two packets. The slices of `io` are `headers` first, then each packet's payload.
    pub(crate) fn gather<'a>(
        &self,
        run: &Run,
        packets: &'a [PacketBuf],
        headers: &'a mut Headers,
        io: &mut [IoSlice<'a>; MAX_SEGMENTS + 1],
    ) -> Option<usize> {
        let segment = run.segment?;
        headers.fill(run, &segment, packets[run.head].as_slice());
        let headers: &'a Headers = headers;
        io[0] = IoSlice::new(&headers.bytes[..VNET_HEADER_LEN + segment.header_len]);
        let mut used = 1;
        for index in self.members(run) {
            io[used] = IoSlice::new(&packets[index].as_slice()[segment.header_len..]);
            used += 1;
        }
        Some(used)
    }

    /// Returns the slot of `flow`, a new one if it has none.
    fn slot_of(&mut self, flow: u64) -> usize {
        let is_ours = |slot: &Slot| slot.run.is_some() && slot.flow == flow;
        if let Some(slot) = self.slots.iter().position(is_ours) {
            return slot;
        }
        let slot = self.victim;
        self.victim = (self.victim + 1) % OPEN_FLOWS;
        self.slots[slot] = Slot { flow, run: None };
        slot
    }

    /// Appends packet `index` to `run` if the rules permit.
    fn try_append(
        &mut self,
        run: usize,
        segment: &Segment,
        index: usize,
        packets: &[PacketBuf],
    ) -> bool {
        let run = &mut self.runs[run];
        let Some(head) = &run.segment else {
            return false;
        };
        let (head_bytes, bytes) = (packets[run.head].as_slice(), packets[index].as_slice());
        let id = if segment.is_v6 { 0 } else { u16_at(bytes, 4) };
        let has_room = run.count < MAX_SEGMENTS
            && run.len + segment.payload_len <= usize::from(u16::MAX)
            && segment.payload_len <= head.payload_len
            // A shorter packet has ended the run.
            && run.len == head.header_len + run.count * head.payload_len;
        let continues = !run.pushed
            && (!segment.is_tcp || segment.seq == run.next_seq)
            && (segment.is_v6 || bytes[6] & DONT_FRAGMENT != 0 || id == run.next_id)
            && same_headers(head, head_bytes, segment, bytes);
        if !has_room || !continues || !is_intact(segment, bytes) {
            return false;
        }
        if !run.verified {
            if !is_intact(head, head_bytes) {
                run.segment = None;
                return false;
            }
            run.verified = true;
        }
        run.count += 1;
        run.len += segment.payload_len;
        run.next_seq = run.next_seq.wrapping_add(len_u32(segment.payload_len));
        run.next_id = id.wrapping_add(1);
        run.pushed = segment.push;
        self.next[run.tail] = Some(index);
        run.tail = index;
        true
    }
}

impl Run {
    fn alone(index: usize, len: usize) -> Self {
        Self {
            head: index,
            tail: index,
            count: 1,
            len,
            segment: None,
            next_seq: 0,
            next_id: 0,
            verified: false,
            pushed: false,
        }
    }

    fn starting(index: usize, segment: Segment, bytes: &[u8]) -> Self {
        Self {
            segment: Some(segment),
            next_seq: segment.seq.wrapping_add(len_u32(segment.payload_len)),
            next_id: u16_at(bytes, 4).wrapping_add(1),
            pushed: segment.push,
            ..Self::alone(index, bytes.len())
        }
    }
}

/// Scratch buffer for the headers of a super-packet.
#[derive(Debug)]
pub(crate) struct Headers {
    bytes: [u8; VNET_HEADER_LEN + MAX_HEADER_LEN],
}

impl Headers {
    /// Creates an empty scratch buffer.
    pub(crate) fn new() -> Self {
        Self {
            bytes: [0; VNET_HEADER_LEN + MAX_HEADER_LEN],
        }
    }

    fn fill(&mut self, run: &Run, segment: &Segment, head: &[u8]) {
        let (checksum_offset, gso) = match (segment.is_tcp, segment.is_v6) {
            (true, false) => (16, Gso::TcpV4),
            (true, true) => (16, Gso::TcpV6),
            (false, _) => (6, Gso::Udp),
        };
        let vnet = VnetHeader {
            gso,
            checksum_start: Some(len_u16(segment.transport)),
            checksum_offset,
            header_len: len_u16(segment.header_len),
            segment_size: len_u16(segment.payload_len),
        };
        let (vnet_bytes, bytes) = self.bytes.split_at_mut(VNET_HEADER_LEN);
        vnet_bytes.copy_from_slice(&vnet.encode());
        let bytes = &mut bytes[..segment.header_len];
        bytes.copy_from_slice(&head[..segment.header_len]);

        let transport_len = len_u16(run.len - segment.transport);
        let addresses = if segment.is_v6 {
            bytes[4..6].copy_from_slice(&transport_len.to_be_bytes());
            8..40
        } else {
            bytes[2..4].copy_from_slice(&len_u16(run.len).to_be_bytes());
            bytes[10..12].fill(0);
            let checksum = Sum::default().add(&bytes[..20]).checksum();
            bytes[10..12].copy_from_slice(&checksum);
            12..20
        };
        let protocol = if segment.is_tcp { TCP } else { UDP };
        let pseudo = pseudo_header(&bytes[addresses], protocol, transport_len).fold();
        let transport = &mut bytes[segment.transport..];
        if segment.is_tcp {
            transport[13] |= u8::from(run.pushed) * TCP_PSH;
        } else {
            transport[4..6].copy_from_slice(&transport_len.to_be_bytes());
        }
        let at = usize::from(checksum_offset);
        transport[at..at + 2].copy_from_slice(&pseudo);
    }
}

/// Returns a number for the flow of a TCP or UDP packet without options, extension headers or fragmentation.
///
/// If two flows have the same number, packets may not be merged, but their order is not affected.
fn flow_of(bytes: &[u8]) -> Option<u64> {
    let (addresses, ports, protocol) = match bytes.first()? {
        0x45 if bytes.len() >= 28
            && matches!(bytes[9], TCP | UDP)
            && u16_at(bytes, 6) & 0x3fff == 0 =>
        {
            (&bytes[12..20], &bytes[20..24], bytes[9])
        }
        0x60..=0x6f if bytes.len() >= 48 && matches!(bytes[6], TCP | UDP) => {
            (&bytes[8..40], &bytes[40..44], bytes[6])
        }
        _ => return None,
    };
    let (words, _) = addresses.as_chunks::<8>();
    let (ports, _) = ports.as_chunks::<4>();
    let ports = ports.first().map_or(0, |ports| u32::from_ne_bytes(*ports));
    let start = u64::from(ports) << 8 | u64::from(protocol);
    Some(words.iter().fold(start, |flow, word| {
        (flow ^ u64::from_ne_bytes(*word))
            .wrapping_mul(0x9e37_79b9_7f4a_7c15)
            .rotate_left(29)
    }))
}

/// Parses `bytes` as a part of a run. `None` if the packet cannot be merged. `bytes` passed [`flow_of`].
fn segment_of(bytes: &[u8]) -> Option<Segment> {
    let is_v6 = bytes[0] >> 4 == 6;
    let (transport, protocol, stated_len) = if is_v6 {
        (40, bytes[6], 40 + usize::from(u16_at(bytes, 4)))
    } else {
        (20, bytes[9], usize::from(u16_at(bytes, 2)))
    };
    if stated_len != bytes.len() {
        return None;
    }
    let is_tcp = protocol == TCP;
    let (header_len, seq, push) = if is_tcp {
        if bytes.len() < transport + 20 {
            return None;
        }
        let flags = bytes[transport + 13];
        let header_len = usize::from(bytes[transport + 12] >> 4) * 4;
        if header_len < 20 || flags & !(TCP_PSH | TCP_ECE) != TCP_ACK {
            return None;
        }
        let seq = &bytes[transport + 4..transport + 8];
        let seq = u32::from_be_bytes([seq[0], seq[1], seq[2], seq[3]]);
        (transport + header_len, seq, flags & TCP_PSH != 0)
    } else {
        let has_checksum = u16_at(bytes, transport + 6) != 0;
        if usize::from(u16_at(bytes, transport + 4)) != bytes.len() - transport || !has_checksum {
            return None;
        }
        (transport + 8, 0, false)
    };
    let payload_len = bytes.len().checked_sub(header_len)?;
    (payload_len > 0).then_some(Segment {
        is_v6,
        is_tcp,
        transport,
        header_len,
        payload_len,
        seq,
        push,
    })
}

/// Whether all header fields are equal that a super-packet contains only once.
fn same_headers(head: &Segment, a: &[u8], segment: &Segment, b: &[u8]) -> bool {
    if (head.is_v6, head.is_tcp, head.header_len)
        != (segment.is_v6, segment.is_tcp, segment.header_len)
    {
        return false;
    }
    let same_ip = if head.is_v6 {
        a[..4] == b[..4] && a[6..40] == b[6..40]
    } else {
        a[..2] == b[..2] && a[6..10] == b[6..10] && a[12..20] == b[12..20]
    };
    let (a, b) = (&a[head.transport..], &b[head.transport..]);
    let same_transport = a[..4] == b[..4]
        && (!head.is_tcp || {
            let urgent_and_options = 18..head.header_len - head.transport;
            a[8..13] == b[8..13]
                && (a[13] ^ b[13]) & !TCP_PSH == 0
                && a[14..16] == b[14..16]
                && a[urgent_and_options.clone()] == b[urgent_and_options]
        });
    same_ip && same_transport
}

/// Whether the checksums of the packet are correct.
fn is_intact(segment: &Segment, bytes: &[u8]) -> bool {
    let protocol = if segment.is_tcp { TCP } else { UDP };
    let addresses = if segment.is_v6 {
        &bytes[8..40]
    } else {
        if !Sum::default().add(&bytes[..20]).is_intact() {
            return false;
        }
        &bytes[12..20]
    };
    let transport = &bytes[segment.transport..];
    pseudo_header(addresses, protocol, len_u16(transport.len()))
        .add(transport)
        .is_intact()
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

/// Converts the length of a part of an IP packet, which always fits.
fn len_u16(len: usize) -> u16 {
    u16::try_from(len).unwrap_or(u16::MAX)
}

fn len_u32(len: usize) -> u32 {
    u32::try_from(len).unwrap_or(u32::MAX)
}

const TCP: u8 = 6;
const UDP: u8 = 17;
const TCP_PSH: u8 = 0x08;
const TCP_ACK: u8 = 0x10;
const TCP_ECE: u8 = 0x40;
/// Don't-fragment flag in the seventh byte of an IPv4 header.
const DONT_FRAGMENT: u8 = 0x40;

#[cfg(test)]
mod tests;
