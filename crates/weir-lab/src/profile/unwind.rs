//! Callers without frame pointers: from registers and a copy of the stack, by the rules compilers write for
//! exceptions (`.eh_frame`).
//!
//! ```text
//! stack copied:  sp ─► │ locals │ saved rbx │ return address │ caller's locals │ … │ end of the copy
//!                                                            ▲ CFA = sp + what the rule for this place says
//! ```
//!
//! Promises: every step goes towards the stack's beginning, so that it ends; a place without a rule or a
//! stack beyond the copy ends it and says which. Refuses: rules that are expressions (trampolines).
//! Source: DWARF 5, section 6.4; System V ABI, AMD64 supplement, section 3.7.

use std::collections::HashMap;
use std::sync::Arc;

use gimli::{
    BaseAddresses, CfaRule, EhFrame, EhFrameHdr, EndianArcSlice, ParsedEhFrameHdr, RegisterRule,
    RunTimeEndian, UnwindContext, UnwindSection,
};
use object::{Object, ObjectSection};
use weir_io::perf_event::UserState;
use weir_io::perf_event::record::{RETURN, STACK_POINTER};

/// Registers by DWARF's numbers.
pub type Registers = [u64; RETURN + 1];
type Slice = EndianArcSlice<RunTimeEndian>;

/// Longer chains are loops or recursion nobody reads.
const DEEPEST: usize = 128;

/// The rules of one program file.
pub struct Rules {
    frames: EhFrame<Slice>,
    header: ParsedEhFrameHdr<Slice>,
    bases: BaseAddresses,
    /// Rows found, by address: many samples share one.
    known: HashMap<u64, Option<Rule>>,
}

/// How a caller's registers follow at one place.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Rule {
    /// The CFA is this register plus that.
    cfa: (usize, i64),
    /// Registers kept on the stack, at the CFA plus that.
    kept: Vec<(usize, i64)>,
}

/// Why a chain ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// Where threads begin, or code without rules.
    Root,
    /// The copy of the stack was too short.
    Cut,
}

impl Rules {
    /// `None` when the file has none.
    pub fn of(file: &object::File<'_>) -> Option<Rules> {
        let endian = if file.is_little_endian() { RunTimeEndian::Little } else { RunTimeEndian::Big };
        let section = |name: &str| {
            let found = file.section_by_name(name)?;
            Some((found.address(), EndianArcSlice::new(Arc::from(found.data().ok()?), endian)))
        };
        let ((header_at, header), (frames_at, frames)) = (section(".eh_frame_hdr")?, section(".eh_frame")?);
        let text = file.section_by_name(".text").map_or(0, |s| s.address());
        let bases =
            BaseAddresses::default().set_eh_frame_hdr(header_at).set_eh_frame(frames_at).set_text(text);
        let header = EhFrameHdr::from(header).parse(&bases, 8).ok()?;
        Some(Rules { frames: EhFrame::from(frames), header, bases, known: HashMap::new() })
    }

    /// The caller's registers, from those at `address`.
    pub fn step(&mut self, address: u64, state: &State<'_>) -> Result<Registers, End> {
        if !self.known.contains_key(&address) {
            let rule = self.rule(address);
            self.known.insert(address, rule);
        }
        self.known.get(&address).and_then(Option::as_ref).ok_or(End::Root)?.apply(state)
    }

    fn rule(&self, address: u64) -> Option<Rule> {
        let mut context = UnwindContext::new();
        let row = self
            .header
            .table()?
            .unwind_info_for_address(
                &self.frames,
                &self.bases,
                &mut context,
                address,
                EhFrame::cie_from_offset,
            )
            .ok()?;
        let CfaRule::RegisterAndOffset { register, offset } = row.cfa() else { return None };
        let cfa = (usize::from(register.0), *offset);
        let mut kept = Vec::new();
        for (register, rule) in row.registers() {
            match rule {
                RegisterRule::Offset(offset) => kept.push((usize::from(register.0), *offset)),
                RegisterRule::SameValue | RegisterRule::Undefined => {}
                _ => return None,
            }
        }
        // a place whose return address is kept nowhere is where a thread begins
        let returns = kept.iter().any(|k| k.0 == RETURN);
        (returns && cfa.0 <= RETURN && kept.iter().all(|k| k.0 <= RETURN)).then_some(Rule { cfa, kept })
    }
}

impl Rule {
    fn apply(&self, state: &State<'_>) -> Result<Registers, End> {
        let cfa = state.registers[self.cfa.0].wrapping_add_signed(self.cfa.1);
        if cfa <= state.registers[STACK_POINTER] {
            return Err(End::Root);
        }
        let mut caller = state.registers;
        for &(register, offset) in &self.kept {
            caller[register] = state.word(cfa.wrapping_add_signed(offset)).ok_or(End::Cut)?;
        }
        caller[STACK_POINTER] = cfa;
        Ok(caller)
    }
}

/// Registers of a frame and the stack they were sampled with.
pub struct State<'a> {
    registers: Registers,
    bottom: u64,
    stack: &'a [u8],
}

impl State<'_> {
    fn word(&self, address: u64) -> Option<u64> {
        let at = usize::try_from(address.checked_sub(self.bottom)?).ok()?;
        self.stack.get(at..at.checked_add(8)?)?.try_into().ok().map(u64::from_ne_bytes)
    }
}

/// Addresses of a chain, innermost first: where it was, then to where each call returns. `step` applies the
/// rules of whatever file is at an address of the process.
pub fn chain(
    user: &UserState<'_>,
    mut step: impl FnMut(u64, &State<'_>) -> Result<Registers, End>,
) -> (Vec<u64>, End) {
    let mut state =
        State { registers: user.registers, bottom: user.registers[STACK_POINTER], stack: user.stack };
    let mut chain = vec![user.registers[RETURN]];
    while chain.len() < DEEPEST {
        // the call, not what comes after it: that may be another function
        let probe = state.registers[RETURN].wrapping_sub(u64::from(chain.len() > 1));
        match step(probe, &state) {
            Ok(caller) if caller[RETURN] != 0 => state.registers = caller,
            Ok(_) => return (chain, End::Root),
            Err(end) => return (chain, end),
        }
        chain.push(state.registers[RETURN]);
    }
    (chain, End::Root)
}

#[cfg(test)]
mod tests;
