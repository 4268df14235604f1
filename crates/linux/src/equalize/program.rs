//! The BPF program that chooses the link of a packet.
//!
//! It is called for each packet, or super-packet of segmentation offload, that is about to leave by a device of a link:
//!
//! 1. A packet that this program redirected here from another link's device passes. It carries a tag in `tc_index`.
//! 2. A packet that is neither IPv4 nor IPv6, neighbour discovery, and a packet to none of the destinations pass. Their
//!    bytes are counted as other traffic of the device.
//! 3. In the modes that keep flows on their link: a flow seen less than `gap` ago stays on its link if the link has a
//!    share. If packets are delayed, this applies only while hold times are unknown, and only the first packet of a
//!    flow is charged.
//! 4. Otherwise every link earns its share of the packet's price. The link with the most credit gets the packet and
//!    pays.
//! 5. The packet is counted. If packets of that link must wait, the packet goes into the device for delayed packets
//!    ([`super::holding`]).
//! 6. Otherwise, if the link's device is not this device, the packet is tagged and redirected to that link's next hop.
//!
//! The credit is stored separately for each processor: there is no lock and no shared cache line. The links, their
//! shares and next hops are in one of two halves of a map, for each family. For a change, the other half is written,
//! and then the number of the active half is changed, so that no packet sees a mixture.
//!
//! A second program ([`release`]) is called for packets that return from the device for delayed packets.

use std::time::Duration;

use super::holding::MAGIC;
use crate::bpf::{
    Map,
    asm::{Asm, Insn, Label, Reg},
};

/// The maps of a program.
pub(super) struct Maps {
    /// Prefix (20 bytes, IPv4 mapped) → 1: spread, 0: do not change.
    pub(super) places: Map,
    /// One element: the active half, plus [`KEEP_FLOWS`] or nothing.
    pub(super) active: Map,
    /// `half * 2 + is_v6` → [`MAX_LINKS`] records of [`LINK_LEN`] bytes.
    pub(super) links: Map,
    /// For each processor, `is_v6` → credit of the links, their packets, their bytes: [`MAX_LINKS`] `u64` each.
    pub(super) states: Map,
    /// Ifindex → bytes of other traffic by the device: `u64`.
    pub(super) others: Map,
    /// Hash of a flow → time when it was last seen, its link: `u64`, `u32`, 4 bytes of padding.
    pub(super) flows: Map,
    /// One element: time of the last sign of life from the process that delays packets, in nanoseconds since boot.
    pub(super) alive: Map,
}

/// Parameters that are fixed when the program is loaded.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shape {
    /// Number of links, 1 to [`MAX_LINKS`].
    pub(super) links: usize,
    /// Whether segments are charged instead of bytes.
    pub(super) by_packets: bool,
    /// Longest pause of a flow after which the flow still stays on its link. With `hold` this applies only while
    /// [`KEEP_FLOWS`] is set.
    pub(super) gap: Option<Duration>,
    /// Whether packets of some links are delayed.
    pub(super) hold: bool,
    /// Tag of redirected packets, not zero.
    pub(super) tag: u16,
}

/// Length in bytes of a link's record: share, ifindex, family of the next hop, 16 bytes of its address, and ifindex of
/// the device in which its packets are delayed, or 0.
pub(super) const LINK_LEN: usize = 32;
/// Flag beside the active half: flows stay on their link, although packets may be delayed.
pub(super) const KEEP_FLOWS: u32 = 2;
/// Highest number of links, see [`super::MAX_LINKS`].
const MAX_LINKS: usize = super::MAX_LINKS;

pub(super) fn program(maps: &Maps, shape: Shape) -> Vec<Insn> {
    let mut program = Program {
        asm: Asm::default(),
        next_label: FIRST_FREE_LABEL,
        maps,
        shape,
    };
    program.find_destination();
    program.find_state();
    if let Some(gap) = shape.gap {
        program.keep_flow(gap);
    }
    program.choose();
    program.send();
    program.asm.finish()
}

/// Returns the program that sends a delayed packet to the next hop of the link that its frame names.
pub(super) fn release(maps: &Maps, shape: Shape) -> Vec<Insn> {
    let mut asm = Asm::default();
    asm.copy(R6, R1);
    asm.store_u32_value(Fp, FRAME, 0);
    asm.store_u32_value(Fp, FRAME + 4, 0);
    asm.set(R2, 0);
    asm.copy(R3, Fp);
    asm.add(R3, FRAME.into());
    asm.set(R4, FRAME_LEN);
    asm.call(LOAD_BYTES);
    asm.jump_unless_is(R0, 0, DROP);
    asm.load_u32(R0, Fp, FRAME);
    asm.jump_unless_is(R0, i32::from_ne_bytes(MAGIC), DROP);
    asm.load_u16(R9, Fp, FRAME + 4);
    asm.and(R9, low(MAX_LINKS) - 1);
    asm.set(R8, 0);
    asm.load_u32(R0, R6, PROTOCOL);
    asm.jump_if_is(R0, ethertype(0x0800), KEY_DONE);
    asm.jump_unless_is(R0, ethertype(0x86dd), DROP);
    asm.set(R8, 1);
    asm.label(KEY_DONE);
    find_links(&mut asm, maps, DROP);
    asm.shift_left(R9, LINK_BITS);
    asm.add_reg(R7, R9);
    asm.load_u32(R1, R7, LINK_IFINDEX);
    asm.jump_if_is(R1, 0, DROP);
    redirect(&mut asm, shape.tag);
    asm.label(DROP);
    asm.set(R0, SHOT);
    asm.exit();
    asm.finish()
}

use Reg::{Fp, R0, R1, R2, R3, R4, R5, R6, R7, R8, R9};

struct Program<'a> {
    asm: Asm,
    next_label: u8,
    maps: &'a Maps,
    shape: Shape,
}

impl Program<'_> {
    /// Finds the destination. Afterwards `R6` is the packet and `R8` is 1 for IPv6.
    fn find_destination(&mut self) {
        let asm = &mut self.asm;
        asm.copy(R6, R1);
        asm.load_u32(R0, R6, TC_INDEX);
        asm.jump_if_is(R0, self.shape.tag.into(), PASS);
        asm.load_u32(R0, R6, MARK);
        asm.jump_if_is(R0, low(super::PROBE_MARK as usize), OTHER);
        asm.load_u32(R0, R6, PROTOCOL);
        asm.jump_if_is(R0, ethertype(0x86dd), IS_V6);
        asm.jump_unless_is(R0, ethertype(0x0800), OTHER);
        let mapped = u32::from_ne_bytes([0, 0, 0xff, 0xff]);
        for (word, value) in [(0, 0), (4, 0), (8, mapped)] {
            asm.store_u32_value(Fp, KEY_ADDRESS + word, value);
        }
        asm.set(R8, 0);
        // No call is necessary if the header is contiguous, as it usually is.
        header(asm, 20, SLOW_V4);
        asm.load_u32(R0, R2, 16);
        asm.store_u32(Fp, KEY_ADDRESS + 12, R0);
        asm.jump(KEY_DONE);
        asm.label(SLOW_V4);
        load_bytes(asm, 16, KEY_ADDRESS + 12, 4);
        asm.jump(KEY_DONE);
        asm.label(IS_V6);
        // Copies from the fifth byte to the end of the header.
        load_bytes(asm, 4, V6_HEADER, 36);
        // Neighbour discovery concerns this very device: ICMPv6 with hop limit 255 (RFC 4861).
        asm.load_u16(R0, Fp, V6_HEADER + 2);
        asm.jump_if_is(R0, u16::from_ne_bytes([58, 255]).into(), OTHER);
        asm.set(R8, 1);
        asm.label(KEY_DONE);
        asm.store_u32_value(Fp, KEY, 128);
        look_up(asm, &self.maps.places, KEY, OTHER);
        asm.load_u32(R0, R0, 0);
        asm.jump_if_is(R0, 0, OTHER);
    }

    /// Finds the state. Afterwards `R7` is the links of the active half, `R8` this processor's state, and `R9` the
    /// price.
    fn find_state(&mut self) {
        let asm = &mut self.asm;
        find_links(asm, self.maps, OTHER);
        asm.store_u32(Fp, WORD, R8);
        look_up(asm, &self.maps.states, WORD, OTHER);
        asm.copy(R8, R0);
        if self.shape.by_packets {
            segments(asm, R9, PRICED);
        } else {
            asm.load_u32(R9, R6, WIRE_LEN);
        }
    }

    /// Continues at [`CHARGE`] with the flow's link in `R1`, or falls through.
    fn keep_flow(&mut self, gap: Duration) {
        let asm = &mut self.asm;
        if self.shape.hold {
            // The verifier of older kernels does not detect that these values are read in the other case only.
            asm.set(R0, 0);
            asm.store_u64(Fp, NOW, R0);
            asm.store_u32(Fp, FLOW, R0);
            asm.load_u32(R1, Fp, KEEP);
            asm.jump_if_is(R1, 0, CHOOSE);
            // All new flows pay the same price, regardless of their first packet.
            let price = if self.shape.by_packets { 1 } else { 4096 };
            asm.set(R9, price);
        }
        asm.call(KTIME_NS);
        asm.store_u64(Fp, NOW, R0);
        asm.copy(R1, R6);
        asm.call(HASH_RECALC);
        asm.store_u32(Fp, FLOW, R0);
        look_up(asm, &self.maps.flows, FLOW, CHOOSE);
        asm.load_u64(R3, Fp, NOW);
        asm.load_u64(R2, R0, 0);
        asm.copy(R4, R3);
        asm.sub_reg(R4, R2);
        asm.set_u64(R5, u64::try_from(gap.as_nanos()).unwrap_or(u64::MAX >> 1));
        // The comparison is signed, because another processor may have seen the flow slightly later.
        asm.jump_if_at_most(R4, R5, RECENT);
        asm.jump(CHOOSE);
        asm.label(RECENT);
        asm.store_u64(R0, 0, R3);
        asm.load_u32(R1, R0, 8);
        asm.and(R1, low(MAX_LINKS) - 1);
        asm.copy(R2, R1);
        asm.shift_left(R2, LINK_BITS);
        asm.add_reg(R2, R7);
        asm.load_u32(R2, R2, 0);
        asm.jump_if_is(R2, 0, CHOOSE);
        if self.shape.hold {
            // Only a flow's first packet is charged. Otherwise one link would get all packets for a while once links
            // are chosen per packet again.
            asm.set(R9, 0);
            asm.jump(CHARGE);
            return;
        }
        self.asm.set_u64(R5, super::MAX_DEBT.cast_unsigned());
        for link in 0..self.shape.links {
            let fits = self.new_label();
            let asm = &mut self.asm;
            earn(asm, link);
            asm.jump_if_at_most(R4, R5, fits);
            asm.copy(R4, R5);
            asm.label(fits);
            asm.store_u64(R8, offset(link * 8), R4);
        }
        self.asm.jump(CHARGE);
    }

    /// Chooses the link. Afterwards `R1` is the link with the most credit.
    fn choose(&mut self) {
        self.asm.label(CHOOSE);
        self.asm.set_u64(R0, i64::MIN.cast_unsigned());
        self.asm.set(R1, low(MAX_LINKS));
        for link in 0..self.shape.links {
            let next = self.new_label();
            let asm = &mut self.asm;
            asm.load_u32(R3, R7, offset(link * LINK_LEN));
            asm.jump_if_is(R3, 0, next);
            earn(asm, link);
            asm.store_u64(R8, offset(link * 8), R4);
            asm.jump_if_at_most(R4, R0, next);
            asm.copy(R0, R4);
            asm.set(R1, low(link));
            asm.label(next);
        }
        let asm = &mut self.asm;
        asm.jump_if_is(R1, low(MAX_LINKS), OTHER);
        if self.shape.gap.is_some() {
            if self.shape.hold {
                asm.load_u32(R2, Fp, KEEP);
                asm.jump_if_is(R2, 0, CHARGE);
            }
            asm.store_u64(Fp, CHOSEN, R1);
            asm.load_u64(R2, Fp, NOW);
            asm.store_u64(Fp, FLOW_VALUE, R2);
            asm.store_u32(Fp, FLOW_VALUE + 8, R1);
            asm.store_u32_value(Fp, FLOW_VALUE + 12, 0);
            asm.set_map(R1, &self.maps.flows);
            asm.copy(R2, Fp);
            asm.add(R2, FLOW.into());
            asm.copy(R3, Fp);
            asm.add(R3, FLOW_VALUE.into());
            asm.set(R4, 0);
            asm.call(MAP_UPDATE);
            asm.load_u64(R1, Fp, CHOSEN);
        }
    }

    /// Charges and counts link `R1`, and sends the packet on it.
    fn send(&mut self) {
        let by_links = offset(MAX_LINKS * 8);
        let asm = &mut self.asm;
        asm.label(CHARGE);
        asm.copy(R2, R1);
        asm.shift_left(R2, 3);
        asm.add_reg(R2, R8);
        asm.load_u64(R4, R2, 0);
        asm.copy(R3, R9);
        asm.shift_left(R3, low(super::SHARE_BITS as usize));
        asm.sub_reg(R4, R3);
        if self.shape.gap.is_some() {
            asm.set_u64(R5, (-super::MAX_DEBT).cast_unsigned());
            asm.jump_if_at_least(R4, R5, PAID);
            asm.copy(R4, R5);
            asm.label(PAID);
        }
        asm.store_u64(R2, 0, R4);
        segments(asm, R3, COUNTED);
        asm.load_u64(R4, R2, by_links);
        asm.add_reg(R4, R3);
        asm.store_u64(R2, by_links, R4);
        asm.load_u32(R3, R6, WIRE_LEN);
        asm.load_u64(R4, R2, 2 * by_links);
        asm.add_reg(R4, R3);
        asm.store_u64(R2, 2 * by_links, R4);

        if self.shape.hold {
            asm.store_u16(Fp, FRAME + 4, R1);
        }
        asm.shift_left(R1, LINK_BITS);
        asm.add_reg(R7, R1);
        if self.shape.hold {
            hold(asm, self.maps);
        }
        asm.load_u32(R1, R7, LINK_IFINDEX);
        asm.load_u32(R0, R6, IFINDEX);
        asm.jump_if_equal(R0, R1, PASS);
        redirect(asm, self.shape.tag);
        asm.label(OTHER);
        asm.load_u32(R0, R6, IFINDEX);
        asm.store_u32(Fp, WORD, R0);
        look_up(asm, &self.maps.others, WORD, PASS);
        asm.load_u32(R1, R6, WIRE_LEN);
        asm.add_u64_atomic(R0, R1);
        asm.label(PASS);
        asm.set(R0, NEXT_PROGRAM);
        asm.exit();
    }

    fn new_label(&mut self) -> Label {
        self.next_label += 1;
        Label(self.next_label)
    }
}

/// Sends the packet to the device for delayed packets, if the packet must wait and the process that delays packets is
/// alive. `R7` is the link, and its number is in the frame's place on the stack.
fn hold(asm: &mut Asm, maps: &Maps) {
    asm.load_u32(R9, R7, LINK_WAITS);
    asm.jump_if_is(R9, 0, AT_ONCE);
    asm.call(KTIME_BOOT_NS);
    asm.store_u64(Fp, NOW, R0);
    asm.store_u32_value(Fp, WORD, 0);
    look_up(asm, &maps.alive, WORD, AT_ONCE);
    asm.load_u64(R2, R0, 0);
    asm.load_u64(R1, Fp, NOW);
    asm.sub_reg(R1, R2);
    asm.set_u64(R2, u64::try_from(super::ALIVE_FOR.as_nanos()).unwrap_or(0));
    // The comparison is signed, because the process may have recorded its time after the clock was read here.
    asm.jump_if_at_most(R1, R2, IS_ALIVE);
    asm.jump(AT_ONCE);
    asm.label(IS_ALIVE);
    asm.store_u32_value(Fp, FRAME, u32::from_ne_bytes(MAGIC));
    asm.copy(R1, R6);
    asm.set(R2, 0);
    asm.copy(R3, Fp);
    asm.add(R3, FRAME.into());
    asm.set(R4, FRAME_LEN);
    asm.set(R5, 0);
    asm.call(STORE_BYTES);
    asm.jump_unless_is(R0, 0, AT_ONCE);
    asm.copy(R1, R9);
    asm.set(R2, 0);
    asm.call(REDIRECT);
    asm.exit();
    asm.label(AT_ONCE);
}

/// Sets `R7` to the links of the active half, for IPv6 if `R8` is 1, otherwise for IPv4, or jumps to `absent`. Stores
/// at [`KEEP`] whether flows stay on their link.
fn find_links(asm: &mut Asm, maps: &Maps, absent: Label) {
    asm.store_u32_value(Fp, WORD, 0);
    look_up(asm, &maps.active, WORD, absent);
    asm.load_u32(R1, R0, 0);
    asm.copy(R2, R1);
    asm.and(R2, KEEP_FLOWS.cast_signed());
    asm.store_u32(Fp, KEEP, R2);
    asm.and(R1, 1);
    asm.shift_left(R1, 1);
    asm.add_reg(R1, R8);
    asm.store_u32(Fp, WORD, R1);
    look_up(asm, &maps.links, WORD, absent);
    asm.copy(R7, R0);
}

/// Tags the packet, sends it by the device `R1` to the next hop of the link `R7`, and ends.
fn redirect(asm: &mut Asm, tag: u16) {
    asm.set(R0, tag.into());
    asm.store_u32(R6, TC_INDEX, R0);
    for word in (0..NEXT_HOP_LEN).step_by(4) {
        asm.load_u32(R0, R7, LINK_NEXT_HOP + word);
        asm.store_u32(Fp, NEXT_HOP + word, R0);
    }
    asm.copy(R2, Fp);
    asm.add(R2, NEXT_HOP.into());
    asm.set(R3, NEXT_HOP_LEN.into());
    asm.set(R4, 0);
    asm.call(REDIRECT_NEIGH);
    asm.exit();
}

/// Returns an ethertype in the form used by `__sk_buff`.
fn ethertype(number: u16) -> i32 {
    i32::from(number.to_be())
}

/// Sets `R4` to the credit of `link`, including its part of the price. Uses `R3`.
fn earn(asm: &mut Asm, link: usize) {
    asm.load_u32(R3, R7, offset(link * LINK_LEN));
    asm.mul_reg(R3, R9);
    asm.load_u64(R4, R8, offset(link * 8));
    asm.add_reg(R4, R3);
}

/// Sets `to` to the number of packets that the packet becomes on the wire. Places `done`.
fn segments(asm: &mut Asm, to: Reg, done: Label) {
    asm.load_u32(to, R6, GSO_SEGS);
    asm.jump_unless_is(to, 0, done);
    asm.set(to, 1);
    asm.label(done);
}

/// Sets `R2` to the network header, which follows an Ethernet header, or jumps to `slow` if its first `len` bytes are
/// not contiguous.
fn header(asm: &mut Asm, len: i32, slow: Label) {
    const ETHERNET_LEN: i32 = 14;
    asm.load_u32(R2, R6, DATA);
    asm.load_u32(R3, R6, DATA_END);
    asm.add(R2, ETHERNET_LEN);
    asm.copy(R4, R2);
    asm.add(R4, len);
    asm.jump_if_above(R4, R3, slow);
}

/// Copies `len` bytes at `from` of the network header to the stack, or jumps to [`OTHER`].
fn load_bytes(asm: &mut Asm, from: i32, to: i16, len: i32) {
    const FROM_NETWORK_HEADER: i32 = 1;
    asm.copy(R1, R6);
    asm.set(R2, from);
    asm.copy(R3, Fp);
    asm.add(R3, to.into());
    asm.set(R4, len);
    asm.set(R5, FROM_NETWORK_HEADER);
    asm.call(LOAD_BYTES_RELATIVE);
    asm.jump_unless_is(R0, 0, OTHER);
}

/// Sets `R0` to the value of the key at `key` on the stack, or jumps to `absent`.
fn look_up(asm: &mut Asm, map: &Map, key: i16, absent: Label) {
    asm.set_map(R1, map);
    asm.copy(R2, Fp);
    asm.add(R2, key.into());
    asm.call(MAP_LOOKUP);
    asm.jump_if_is(R0, 0, absent);
}

fn offset(bytes: usize) -> i16 {
    i16::try_from(bytes).expect("records are small")
}

fn low(number: usize) -> i32 {
    i32::try_from(number).expect("a small number")
}

const PASS: Label = Label(0);
const IS_V6: Label = Label(1);
const KEY_DONE: Label = Label(2);
const PRICED: Label = Label(3);
const RECENT: Label = Label(4);
const CHOOSE: Label = Label(5);
const CHARGE: Label = Label(6);
const PAID: Label = Label(7);
const COUNTED: Label = Label(8);
const SLOW_V4: Label = Label(9);
const OTHER: Label = Label(10);
const DROP: Label = Label(11);
const IS_ALIVE: Label = Label(12);
const AT_ONCE: Label = Label(13);
const FIRST_FREE_LABEL: u8 = 13;

// Offsets on the stack.
const V6_HEADER: i16 = -40;
const KEY: i16 = -24;
const KEY_ADDRESS: i16 = -20;
const WORD: i16 = -44;
const NEXT_HOP: i16 = -64;
const FLOW: i16 = -68;
const FLOW_VALUE: i16 = -88;
const NOW: i16 = -96;
const CHOSEN: i16 = -104;
/// Offset on the stack of the destination address of a frame: [`MAGIC`], then the link in two bytes, in the byte order
/// of this host. Eight bytes.
const FRAME: i16 = -112;
const FRAME_LEN: i32 = 6;
const KEEP: i16 = -120;

/// `struct bpf_redir_neigh`
const NEXT_HOP_LEN: i16 = 20;
// Fields of a link's record.
const LINK_IFINDEX: i16 = 4;
const LINK_NEXT_HOP: i16 = 8;
const LINK_WAITS: i16 = 28;
const LINK_BITS: i32 = LINK_LEN.trailing_zeros().cast_signed();

// Fields of `struct __sk_buff`.
const MARK: i16 = 8;
const PROTOCOL: i16 = 16;
const IFINDEX: i16 = 40;
const TC_INDEX: i16 = 44;
const DATA: i16 = 76;
const DATA_END: i16 = 80;
const WIRE_LEN: i16 = 160;
const GSO_SEGS: i16 = 164;

// Functions of the kernel.
const MAP_LOOKUP: i32 = 1;
const MAP_UPDATE: i32 = 2;
const KTIME_NS: i32 = 5;
const STORE_BYTES: i32 = 9;
const REDIRECT: i32 = 23;
const LOAD_BYTES: i32 = 26;
const HASH_RECALC: i32 = 34;
const LOAD_BYTES_RELATIVE: i32 = 68;
const KTIME_BOOT_NS: i32 = 125;
const REDIRECT_NEIGH: i32 = 152;

/// `TCX_NEXT`, or `TC_ACT_UNSPEC` under clsact: other attached programs decide.
const NEXT_PROGRAM: i32 = -1;
/// `TC_ACT_SHOT`
const SHOT: i32 = 2;
