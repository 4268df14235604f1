//! An assembler for the BPF instructions in use, with forward jumps to labels (`linux/bpf.h`, RFC 9669).

use std::os::fd::{AsFd, AsRawFd};

/// An instruction in the kernel's format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct Insn {
    code: u8,
    /// Destination register in the low half, source register in the high half (little-endian hosts).
    registers: u8,
    offset: i16,
    immediate: i32,
}

/// Registers: `R0` result; `R1`–`R5` arguments, which calls overwrite; `R6`–`R9` preserved by calls; `Fp` end of the
/// stack.
#[derive(Clone, Copy, Debug)]
#[repr(u8)]
pub(crate) enum Reg {
    R0,
    R1,
    R2,
    R3,
    R4,
    R5,
    R6,
    R7,
    R8,
    R9,
    Fp,
}

/// A jump target, identified by number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Label(pub(crate) u8);

/// A program under construction.
#[derive(Debug, Default)]
pub(crate) struct Asm {
    insns: Vec<Insn>,
    /// Instructions whose jump offset depends on a label, with this label.
    jumps: Vec<(usize, Label)>,
    labels: Vec<(Label, usize)>,
}

impl Asm {
    /// `to = from`
    pub(crate) fn copy(&mut self, to: Reg, from: Reg) {
        self.push(0xbf, to, from, 0, 0);
    }

    /// `to = value`
    pub(crate) fn set(&mut self, to: Reg, value: i32) {
        self.push(0xb7, to, Reg::R0, 0, value);
    }

    /// `to = value`, all 64 bits
    pub(crate) fn set_u64(&mut self, to: Reg, value: u64) {
        self.wide(to, 0, value);
    }

    /// `to` = the map, for a call
    pub(crate) fn set_map(&mut self, to: Reg, map: impl AsFd) {
        let fd = map.as_fd().as_raw_fd().cast_unsigned();
        self.wide(to, 1, fd.into());
    }

    /// `to += value`
    pub(crate) fn add(&mut self, to: Reg, value: i32) {
        self.push(0x07, to, Reg::R0, 0, value);
    }

    /// `to += from`
    pub(crate) fn add_reg(&mut self, to: Reg, from: Reg) {
        self.push(0x0f, to, from, 0, 0);
    }

    /// `to &= value`
    pub(crate) fn and(&mut self, to: Reg, value: i32) {
        self.push(0x57, to, Reg::R0, 0, value);
    }

    /// `to *= from`
    pub(crate) fn mul_reg(&mut self, to: Reg, from: Reg) {
        self.push(0x2f, to, from, 0, 0);
    }

    /// `to -= from`
    pub(crate) fn sub_reg(&mut self, to: Reg, from: Reg) {
        self.push(0x1f, to, from, 0, 0);
    }

    /// `to <<= bits`
    pub(crate) fn shift_left(&mut self, to: Reg, bits: i32) {
        self.push(0x67, to, Reg::R0, 0, bits);
    }

    /// `to = *(u16 *)(from + offset)`
    pub(crate) fn load_u16(&mut self, to: Reg, from: Reg, offset: i16) {
        self.push(0x69, to, from, offset, 0);
    }

    /// `to = *(u32 *)(from + offset)`
    pub(crate) fn load_u32(&mut self, to: Reg, from: Reg, offset: i16) {
        self.push(0x61, to, from, offset, 0);
    }

    /// `to = *(u64 *)(from + offset)`
    pub(crate) fn load_u64(&mut self, to: Reg, from: Reg, offset: i16) {
        self.push(0x79, to, from, offset, 0);
    }

    /// `*(u16 *)(to + offset) = from`
    pub(crate) fn store_u16(&mut self, to: Reg, offset: i16, from: Reg) {
        self.push(0x6b, to, from, offset, 0);
    }

    /// `*(u32 *)(to + offset) = from`
    pub(crate) fn store_u32(&mut self, to: Reg, offset: i16, from: Reg) {
        self.push(0x63, to, from, offset, 0);
    }

    /// `*(u64 *)(to + offset) = from`
    pub(crate) fn store_u64(&mut self, to: Reg, offset: i16, from: Reg) {
        self.push(0x7b, to, from, offset, 0);
    }

    /// `*(u32 *)(to + offset) = value`
    pub(crate) fn store_u32_value(&mut self, to: Reg, offset: i16, value: u32) {
        self.push(0x62, to, Reg::R0, offset, value.cast_signed());
    }

    /// `swap(*(u64 *)to, *(u64 *)to + with)`, atomic: `with` gets the previous value
    pub(crate) fn fetch_add_u64(&mut self, to: Reg, with: Reg) {
        self.push(0xdb, to, with, 0, 1);
    }

    /// `*(u64 *)to += from`, atomic
    pub(crate) fn add_u64_atomic(&mut self, to: Reg, from: Reg) {
        self.push(0xdb, to, from, 0, 0);
    }

    /// Calls a function of the kernel.
    pub(crate) fn call(&mut self, helper: i32) {
        self.push(0x85, Reg::R0, Reg::R0, 0, helper);
    }

    /// Returns `R0`.
    pub(crate) fn exit(&mut self) {
        self.push(0x95, Reg::R0, Reg::R0, 0, 0);
    }

    /// Jumps to `label`.
    pub(crate) fn jump(&mut self, label: Label) {
        self.jump_if(0x05, Reg::R0, Reg::R0, 0, label);
    }

    /// Jumps if `reg == value`.
    pub(crate) fn jump_if_is(&mut self, reg: Reg, value: i32, label: Label) {
        self.jump_if(0x15, reg, Reg::R0, value, label);
    }

    /// Jumps if `reg != value`.
    pub(crate) fn jump_unless_is(&mut self, reg: Reg, value: i32, label: Label) {
        self.jump_if(0x55, reg, Reg::R0, value, label);
    }

    /// Jumps if `a != b`.
    pub(crate) fn jump_unless_equal(&mut self, a: Reg, b: Reg, label: Label) {
        self.jump_if(0x5d, a, b, 0, label);
    }

    /// Jumps if `a == b`.
    pub(crate) fn jump_if_equal(&mut self, a: Reg, b: Reg, label: Label) {
        self.jump_if(0x1d, a, b, 0, label);
    }

    /// Jumps if `a > b`, unsigned.
    pub(crate) fn jump_if_above(&mut self, a: Reg, b: Reg, label: Label) {
        self.jump_if(0x2d, a, b, 0, label);
    }

    /// Jumps if `a <= b`, signed.
    pub(crate) fn jump_if_at_most(&mut self, a: Reg, b: Reg, label: Label) {
        self.jump_if(0xdd, a, b, 0, label);
    }

    /// Jumps if `a >= b`, signed.
    pub(crate) fn jump_if_at_least(&mut self, a: Reg, b: Reg, label: Label) {
        self.jump_if(0x7d, a, b, 0, label);
    }

    /// Places `label` here.
    pub(crate) fn label(&mut self, label: Label) {
        self.labels.push((label, self.insns.len()));
    }

    /// Returns the program.
    ///
    /// # Panics
    /// Panics if the label of a jump is not placed, which is an error in the program text.
    pub(crate) fn finish(mut self) -> Vec<Insn> {
        for (from, label) in self.jumps {
            let at = self.labels.iter().find(|(known, _)| *known == label);
            let (_, at) = at.expect("every label is placed");
            // The distance counts from the next instruction.
            let distance = at.checked_sub(from + 1).expect("jumps go forward");
            self.insns[from].offset = i16::try_from(distance).expect("a short program");
        }
        self.insns
    }

    fn jump_if(&mut self, code: u8, to: Reg, from: Reg, immediate: i32, label: Label) {
        self.jumps.push((self.insns.len(), label));
        self.push(code, to, from, 0, immediate);
    }

    #[expect(
        clippy::cast_possible_truncation,
        reason = "halves of the value, on purpose"
    )]
    fn wide(&mut self, to: Reg, kind: u8, value: u64) {
        let registers = to as u8 | kind << 4;
        let half = |code, value: u32| Insn {
            code,
            registers: if code == 0 { 0 } else { registers },
            offset: 0,
            immediate: value.cast_signed(),
        };
        self.insns.push(half(0x18, value as u32));
        self.insns.push(half(0, (value >> 32) as u32));
    }

    fn push(&mut self, code: u8, to: Reg, from: Reg, offset: i16, immediate: i32) {
        self.insns.push(Insn {
            code,
            registers: to as u8 | (from as u8) << 4,
            offset,
            immediate,
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jumps_find_their_labels_over_wide_instructions() {
        let mut asm = Asm::default();
        asm.jump_if_is(Reg::R6, 7, Label(0));
        asm.set_u64(Reg::R1, 0x1_0000_0002);
        asm.label(Label(0));
        asm.exit();
        let insns = asm.finish();
        assert_eq!(insns.len(), 4);
        assert_eq!((insns[0].code, insns[0].registers), (0x15, 6));
        assert_eq!((insns[0].offset, insns[0].immediate), (2, 7));
        assert_eq!((insns[1].immediate, insns[2].immediate), (2, 1));
    }
}
