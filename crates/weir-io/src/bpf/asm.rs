//! An assembler for eBPF: labels instead of offsets, names instead of opcodes.
//!
//! ```text
//! | opcode 8 | src 4 · dst 4 | offset 16 | immediate 32 |      one instruction, 64 bits
//! ```
//!
//! Promises: a program whose jumps all land, or an [`AsmError`] that names the label; a listing
//! ([`Program`]'s `Display`) close to what the kernel's own disassembler prints. Refuses: anything the
//! verifier would have to be asked about; it is asked at load time.
//! Source: RFC 9669 (BPF instruction set architecture).

use std::fmt;
use std::os::fd::{AsRawFd, RawFd};

use super::object::Map;

/// One of the eleven registers. `R10` is the frame pointer and read-only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Reg {
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
    R10,
}

/// Width of a load or a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Size {
    U32 = 0x00,
    U16 = 0x08,
    U8 = 0x10,
    U64 = 0x18,
}

/// Condition of a jump; comparisons are unsigned and 64 bits wide.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Cond {
    Equal = 0x10,
    Greater = 0x20,
    GreaterOrEqual = 0x30,
    /// Any bit in common.
    AnyBit = 0x40,
    NotEqual = 0x50,
    Less = 0xa0,
    LessOrEqual = 0xb0,
}

/// 64-bit arithmetic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Alu {
    Add = 0x00,
    Sub = 0x10,
    Mul = 0x20,
    Div = 0x30,
    Or = 0x40,
    And = 0x50,
    Lsh = 0x60,
    Rsh = 0x70,
    Mod = 0x90,
    Xor = 0xa0,
    Mov = 0xb0,
}

/// Kernel functions, by their fixed numbers (`include/uapi/linux/bpf.h`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Helper {
    MapLookup = 1,
    KtimeGetNs = 5,
    Redirect = 23,
    XdpAdjustHead = 44,
    RedirectMap = 51,
    XdpAdjustMeta = 54,
    XdpAdjustTail = 65,
    SkbLoadBytesRelative = 68,
    XdpLoadBytes = 189,
    XdpStoreBytes = 190,
}

/// A register or a sign-extended 32-bit constant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operand {
    Reg(Reg),
    Imm(i32),
}

impl From<Reg> for Operand {
    fn from(reg: Reg) -> Self {
        Operand::Reg(reg)
    }
}

impl From<i32> for Operand {
    fn from(imm: i32) -> Self {
        Operand::Imm(imm)
    }
}

/// A place to jump to; made by [`Asm::label`], set by [`Asm::bind`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Label(usize);

/// One encoded instruction, as the kernel reads it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Insn {
    code: u8,
    regs: u8,
    off: i16,
    imm: i32,
}

const _: () = assert!(size_of::<Insn>() == 8);

// Instruction classes and modes, RFC 9669 section 3.
const LD_IMM64: u8 = 0x18;
const LDX_MEM: u8 = 0x61;
const ST_MEM: u8 = 0x62;
const STX_MEM: u8 = 0x63;
const STX_ATOMIC: u8 = 0xc3;
const ALU64: u8 = 0x07;
const ALU32: u8 = 0x04;
const ENDIAN_BE: u8 = 0xdc;
const JMP: u8 = 0x05;
const CALL: u8 = 0x85;
const EXIT: u8 = 0x95;
const SRC_REG: u8 = 0x08;
/// `src` of a 64-bit load whose immediate is a map's file descriptor.
const PSEUDO_MAP_FD: u8 = 1;
/// `src` of a 64-bit load of the address of an array map's first value.
const PSEUDO_MAP_VALUE: u8 = 2;

/// A program that does not hang together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AsmError {
    Unbound { label: &'static str },
    BoundTwice { label: &'static str },
    TooFar { label: &'static str, distance: isize },
}

impl fmt::Display for AsmError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            AsmError::Unbound { label } => write!(f, "label {label}: jumped to but never bound"),
            AsmError::BoundTwice { label } => write!(f, "label {label}: bound twice"),
            AsmError::TooFar { label, distance } => {
                write!(f, "label {label}: {distance} instructions away, a jump reaches ±32767")
            }
        }
    }
}

impl std::error::Error for AsmError {}

#[derive(Debug)]
struct LabelState {
    name: &'static str,
    at: Option<usize>,
}

/// A program being written, top to bottom.
#[derive(Debug, Default)]
pub struct Asm {
    insns: Vec<Insn>,
    labels: Vec<LabelState>,
    jumps: Vec<(usize, Label)>,
    notes: Vec<(usize, &'static str)>,
    bound_twice: Option<&'static str>,
}

impl Asm {
    pub fn new() -> Self {
        Asm::default()
    }

    /// A line of the listing that says why the next instructions are there.
    pub fn note(&mut self, text: &'static str) {
        self.notes.push((self.insns.len(), text));
    }

    pub fn label(&mut self, name: &'static str) -> Label {
        self.labels.push(LabelState { name, at: None });
        Label(self.labels.len() - 1)
    }

    /// The next instruction is where `label` points.
    pub fn bind(&mut self, label: Label) {
        let state = &mut self.labels[label.0];
        if state.at.replace(self.insns.len()).is_some() {
            self.bound_twice = Some(state.name);
        }
    }

    fn emit(&mut self, code: u8, dst: Reg, src: u8, off: i16, imm: i32) {
        self.insns.push(Insn { code, regs: (src << 4) | dst as u8, off, imm });
    }

    /// `dst = dst op operand`, 64 bits.
    pub fn alu(&mut self, op: Alu, dst: Reg, operand: impl Into<Operand>) {
        match operand.into() {
            Operand::Reg(src) => self.emit(ALU64 | SRC_REG | op as u8, dst, src as u8, 0, 0),
            Operand::Imm(imm) => self.emit(ALU64 | op as u8, dst, 0, 0, imm),
        }
    }

    /// `dst = (u32)(dst op operand)`.
    pub fn alu32(&mut self, op: Alu, dst: Reg, operand: impl Into<Operand>) {
        match operand.into() {
            Operand::Reg(src) => self.emit(ALU32 | SRC_REG | op as u8, dst, src as u8, 0, 0),
            Operand::Imm(imm) => self.emit(ALU32 | op as u8, dst, 0, 0, imm),
        }
    }

    pub fn mov(&mut self, dst: Reg, operand: impl Into<Operand>) {
        self.alu(Alu::Mov, dst, operand);
    }

    pub fn add(&mut self, dst: Reg, operand: impl Into<Operand>) {
        self.alu(Alu::Add, dst, operand);
    }

    /// Byte-swaps the low `bits` (16, 32 or 64) between host and network order; clears the rest.
    pub fn to_be(&mut self, dst: Reg, bits: i32) {
        self.emit(ENDIAN_BE, dst, 0, 0, bits);
    }

    pub fn load(&mut self, size: Size, dst: Reg, src: Reg, off: i16) {
        self.emit(LDX_MEM | size as u8, dst, src as u8, off, 0);
    }

    pub fn store(&mut self, size: Size, dst: Reg, off: i16, operand: impl Into<Operand>) {
        match operand.into() {
            Operand::Reg(src) => self.emit(STX_MEM | size as u8, dst, src as u8, off, 0),
            Operand::Imm(imm) => self.emit(ST_MEM | size as u8, dst, 0, off, imm),
        }
    }

    /// `*(size *)(dst + off) += src`, atomically. `size` is `U32` or `U64`.
    pub fn atomic_add(&mut self, size: Size, dst: Reg, off: i16, src: Reg) {
        self.emit(STX_ATOMIC | size as u8, dst, src as u8, off, 0);
    }

    /// `src = (*(size *)(dst + off) += src) − src`: the value before the addition.
    pub fn fetch_add(&mut self, size: Size, dst: Reg, off: i16, src: Reg) {
        const FETCH: i32 = 0x01;
        self.emit(STX_ATOMIC | size as u8, dst, src as u8, off, FETCH);
    }

    fn load_imm64(&mut self, dst: Reg, src: u8, low: i32, high: i32) {
        self.emit(LD_IMM64, dst, src, 0, low);
        self.insns.push(Insn { imm: high, ..Insn::default() });
    }

    /// `dst = value`, all 64 bits.
    pub fn mov64(&mut self, dst: Reg, value: u64) {
        self.load_imm64(dst, 0, value as i32, (value >> 32) as i32);
    }

    /// `dst = ` the map, as helpers take it.
    pub fn map(&mut self, dst: Reg, map: &Map) {
        self.map_fd(dst, map.as_raw_fd());
    }

    fn map_fd(&mut self, dst: Reg, fd: RawFd) {
        self.load_imm64(dst, PSEUDO_MAP_FD, fd, 0);
    }

    /// `dst = ` the address of `offset` in the only value of an array map: no lookup at run time.
    pub fn map_value(&mut self, dst: Reg, map: &Map, offset: i32) {
        self.load_imm64(dst, PSEUDO_MAP_VALUE, map.as_raw_fd(), offset);
    }

    /// Arguments in R1…R5, result in R0; R1…R5 are lost.
    pub fn call(&mut self, helper: Helper) {
        self.emit(CALL, Reg::R0, 0, 0, helper as i32);
    }

    pub fn exit(&mut self) {
        self.emit(EXIT, Reg::R0, 0, 0, 0);
    }

    pub fn jump(&mut self, label: Label) {
        self.jumps.push((self.insns.len(), label));
        self.emit(JMP, Reg::R0, 0, 0, 0);
    }

    pub fn jump_if(&mut self, cond: Cond, left: Reg, right: impl Into<Operand>, label: Label) {
        self.jumps.push((self.insns.len(), label));
        match right.into() {
            Operand::Reg(src) => self.emit(JMP | SRC_REG | cond as u8, left, src as u8, 0, 0),
            Operand::Imm(imm) => self.emit(JMP | cond as u8, left, 0, 0, imm),
        }
    }

    /// Resolves the labels.
    pub fn finish(mut self) -> Result<Program, AsmError> {
        if let Some(label) = self.bound_twice {
            return Err(AsmError::BoundTwice { label });
        }
        for &(at, label) in &self.jumps {
            let LabelState { name, at: target } = self.labels[label.0];
            let target = target.ok_or(AsmError::Unbound { label: name })?;
            let distance = target as isize - at as isize - 1;
            self.insns[at].off =
                i16::try_from(distance).map_err(|_| AsmError::TooFar { label: name, distance })?;
        }
        let labels = self.labels.iter().filter_map(|l| l.at.map(|at| (at, l.name))).collect();
        Ok(Program { insns: self.insns, labels, notes: self.notes })
    }
}

/// A finished program. Its `Display` is the listing.
#[derive(Clone, Debug)]
pub struct Program {
    insns: Vec<Insn>,
    labels: Vec<(usize, &'static str)>,
    notes: Vec<(usize, &'static str)>,
}

impl Program {
    pub fn insns(&self) -> &[Insn] {
        &self.insns
    }

    fn target(&self, at: usize, off: i16) -> &'static str {
        let to = at as isize + 1 + off as isize;
        self.labels.iter().find(|l| l.0 as isize == to).map_or("?", |l| l.1)
    }
}

impl fmt::Display for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut second_half = false;
        for (at, insn) in self.insns.iter().enumerate() {
            if std::mem::take(&mut second_half) {
                continue;
            }
            for (_, name) in self.labels.iter().filter(|l| l.0 == at) {
                writeln!(f, "{name}:")?;
            }
            for (_, note) in self.notes.iter().filter(|n| n.0 == at) {
                writeln!(f, "      ; {note}")?;
            }
            write!(f, "{at:4}  ")?;
            second_half = insn.code == LD_IMM64;
            let high = self.insns.get(at + 1).map_or(0, |i| i.imm);
            writeln!(f, "{}", Line { insn, high, target: self.target(at, insn.off) })?;
        }
        Ok(())
    }
}

/// One instruction as text.
struct Line<'a> {
    insn: &'a Insn,
    high: i32,
    target: &'static str,
}

impl fmt::Display for Line<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Insn { code, regs, off, imm } = *self.insn;
        let (dst, src) = (regs & 15, regs >> 4);
        let right = if code & SRC_REG != 0 { format!("r{src}") } else { imm.to_string() };
        let width = match code & 0x18 {
            0x00 => "u32",
            0x08 => "u16",
            0x10 => "u8",
            _ => "u64",
        };
        match (code & 7, code) {
            (_, LD_IMM64) => match src {
                PSEUDO_MAP_FD => write!(f, "r{dst} = map[fd {imm}]"),
                PSEUDO_MAP_VALUE => write!(f, "r{dst} = &map[fd {imm}] + {}", self.high),
                _ => write!(f, "r{dst} = {:#x}", (self.high as u64) << 32 | imm as u32 as u64),
            },
            (_, EXIT) => write!(f, "exit"),
            (_, CALL) => write!(f, "call {}", helper_name(imm)),
            (_, ENDIAN_BE) => write!(f, "r{dst} = be{imm}(r{dst})"),
            (1, _) => write!(f, "r{dst} = *({width} *)(r{src} {off:+})"),
            (2, _) => write!(f, "*({width} *)(r{dst} {off:+}) = {imm}"),
            (3, _) if code & 0xe0 == STX_ATOMIC & 0xe0 => {
                let fetch = if imm & 1 != 0 { format!("r{src} = fetch ") } else { String::new() };
                write!(f, "{fetch}lock *({width} *)(r{dst} {off:+}) += r{src}")
            }
            (3, _) => write!(f, "*({width} *)(r{dst} {off:+}) = r{src}"),
            (5, JMP) => write!(f, "goto {}", self.target),
            (5, _) => write!(f, "if r{dst} {} {right} goto {}", cond_sign(code), self.target),
            (class, _) => {
                let reg = if class == ALU64 & 7 { 'r' } else { 'w' };
                write!(f, "{reg}{dst} {} {}", alu_sign(code), right.replace('r', &reg.to_string()))
            }
        }
    }
}

fn helper_name(number: i32) -> &'static str {
    use Helper::*;
    [
        (MapLookup, "map_lookup_elem"),
        (KtimeGetNs, "ktime_get_ns"),
        (Redirect, "redirect"),
        (XdpAdjustHead, "xdp_adjust_head"),
        (RedirectMap, "redirect_map"),
        (XdpAdjustMeta, "xdp_adjust_meta"),
        (XdpAdjustTail, "xdp_adjust_tail"),
        (SkbLoadBytesRelative, "skb_load_bytes_relative"),
        (XdpLoadBytes, "xdp_load_bytes"),
        (XdpStoreBytes, "xdp_store_bytes"),
    ]
    .into_iter()
    .find(|(helper, _)| *helper as i32 == number)
    .map_or("?", |(_, name)| name)
}

fn cond_sign(code: u8) -> &'static str {
    match code & 0xf0 {
        0x10 => "==",
        0x20 => ">",
        0x30 => ">=",
        0x40 => "&",
        0x50 => "!=",
        0xa0 => "<",
        _ => "<=",
    }
}

fn alu_sign(code: u8) -> &'static str {
    match code & 0xf0 {
        0x00 => "+=",
        0x10 => "-=",
        0x20 => "*=",
        0x30 => "/=",
        0x40 => "|=",
        0x50 => "&=",
        0x60 => "<<=",
        0x70 => ">>=",
        0x90 => "%=",
        0xa0 => "^=",
        _ => "=",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instructions_encode_as_rfc_9669_says() {
        let mut asm = Asm::new();
        asm.mov(Reg::R0, 2);
        asm.mov(Reg::R6, Reg::R1);
        asm.load(Size::U16, Reg::R3, Reg::R2, 12);
        asm.store(Size::U64, Reg::R10, -8, Reg::R3);
        asm.exit();
        let program = asm.finish().expect("no labels");
        let words: Vec<_> = program.insns().iter().map(|i| (i.code, i.regs, i.off, i.imm)).collect();
        assert_eq!(
            words,
            [
                (0xb7, 0x00, 0, 2),
                (0xbf, 0x16, 0, 0),
                (0x69, 0x23, 12, 0),
                (0x7b, 0x3a, -8, 0),
                (0x95, 0x00, 0, 0)
            ]
        );
    }

    #[test]
    fn jumps_count_from_the_next_instruction() {
        let mut asm = Asm::new();
        let (start, out) = (asm.label("start"), asm.label("out"));
        asm.bind(start);
        asm.jump_if(Cond::NotEqual, Reg::R1, 7, out);
        asm.mov64(Reg::R2, 1 << 40);
        asm.jump(start);
        asm.bind(out);
        asm.exit();
        let program = asm.finish().expect("both bound");
        assert_eq!(program.insns()[0].off, 3);
        assert_eq!(program.insns()[3].off, -4);
    }

    #[test]
    fn a_label_never_bound_is_named() {
        let mut asm = Asm::new();
        let nowhere = asm.label("nowhere");
        asm.jump(nowhere);
        let error = asm.finish().expect_err("unbound").to_string();
        assert_eq!(error, "label nowhere: jumped to but never bound");
    }

    #[test]
    fn the_listing_reads_like_a_program() {
        let mut asm = Asm::new();
        let pass = asm.label("pass");
        asm.note("EtherType");
        asm.load(Size::U16, Reg::R3, Reg::R2, 12);
        asm.to_be(Reg::R3, 16);
        asm.jump_if(Cond::NotEqual, Reg::R3, 0x800, pass);
        asm.map_fd(Reg::R1, 5);
        asm.call(Helper::RedirectMap);
        asm.exit();
        asm.bind(pass);
        asm.mov(Reg::R0, 2);
        asm.alu32(Alu::Rsh, Reg::R0, Reg::R3);
        asm.atomic_add(Size::U64, Reg::R1, 8, Reg::R0);
        asm.exit();
        let listing = asm.finish().expect("bound").to_string();
        assert_eq!(
            listing,
            "      ; EtherType
   0  r3 = *(u16 *)(r2 +12)
   1  r3 = be16(r3)
   2  if r3 != 2048 goto pass
   3  r1 = map[fd 5]
   5  call redirect_map
   6  exit
pass:
   7  r0 = 2
   8  w0 >>= w3
   9  lock *(u64 *)(r1 +8) += r0
  10  exit
"
        );
    }
}
