//! Chains end, whatever registers and stacks hold.

use proptest::prelude::*;

use super::*;

fn user(registers: Registers, stack: &[u8]) -> UserState<'_> {
    UserState { registers, stack }
}

fn at(address: u64, stack: u64) -> Registers {
    let mut registers = [0; RETURN + 1];
    registers[STACK_POINTER] = stack;
    registers[RETURN] = address;
    registers
}

/// Frames of sixteen bytes: a word of locals, then the return address.
fn sixteen(state: &State<'_>) -> Result<Registers, End> {
    let sp = state.registers[STACK_POINTER];
    let mut caller = state.registers;
    caller[RETURN] = state.word(sp + 8).ok_or(End::Cut)?;
    caller[STACK_POINTER] = sp + 16;
    Ok(caller)
}

#[test]
fn a_chain_goes_to_the_stacks_beginning_and_looks_at_the_call_before_each_return() {
    let words: [u64; 6] = [1, 0x200, 1, 0x300, 1, 0];
    let stack: Vec<u8> = words.iter().flat_map(|w| w.to_ne_bytes()).collect();
    let mut probes = Vec::new();
    let (found, end) = chain(&user(at(0x100, 0x7000), &stack), |probe, state| {
        probes.push(probe);
        sixteen(state)
    });
    assert_eq!((found, end), (vec![0x100, 0x200, 0x300], End::Root));
    assert_eq!(probes, [0x100, 0x1ff, 0x2ff]);
}

#[test]
fn a_stack_longer_than_its_copy_is_said_to_be_cut() {
    let words: [u64; 3] = [1, 0x200, 1];
    let stack: Vec<u8> = words.iter().flat_map(|w| w.to_ne_bytes()).collect();
    let (found, end) = chain(&user(at(0x100, 0x7000), &stack), |_, state| sixteen(state));
    assert_eq!((found, end), (vec![0x100, 0x200], End::Cut));
}

#[test]
fn own_code_has_rules_and_a_place_outside_it_has_none() {
    let own = std::fs::read(std::env::current_exe().expect("a test runs from a file")).expect("readable");
    let file = object::File::parse(own.as_slice()).expect("an ELF file");
    let Some(mut rules) = Rules::of(&file) else { panic!("compilers write rules for this target") };
    let text = file.section_by_name(".text").expect("code").address();
    let with = (text..text + 100_000).step_by(97).filter(|&a| rules.rule(a).is_some()).count();
    assert!(with > 500, "{with} of 1031 places");
    let nothing = user(at(1, 8), &[]);
    let state = State { registers: nothing.registers, bottom: 8, stack: nothing.stack };
    assert_eq!(rules.step(u64::MAX, &state), Err(End::Root));
}

proptest! {
    #[test]
    fn any_stack_ends_the_chain(
        stack in proptest::collection::vec(any::<u8>(), 0..300), sp: u64, pc: u64,
        cfa in (0usize..=RETURN, any::<i64>()), offset: i64,
    ) {
        let rule = Rule { cfa, kept: vec![(RETURN, offset), (6, offset.wrapping_sub(8))] };
        let (found, _) = chain(&user(at(pc, sp), &stack), |_, state| rule.apply(state));
        prop_assert!(found.len() <= DEEPEST);
    }
}
