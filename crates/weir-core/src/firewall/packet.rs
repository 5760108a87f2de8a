//! Registers of a rule as far as they are known of every packet that would not be shown to the rules.
//!
//! ```text
//! known bits   1: the value's bit is that of every such packet    0: it may be either
//! ```
//!
//! Such a packet is of an established flow of TCP or UDP, no fragment, without IP options, and neither begins nor ends a
//! connection (no SYN, FIN or RST). Promises: a bit is called known only where each of them has it. Refuses: to know the state
//! of a flow in front of conntrack, whose hook stands at priority -200 of prerouting.

use super::sets::inverted;
use super::{Interface, Path, Protocol};
use crate::wire::nftables::{Expression, Hook, Key, REGISTER_BYTES, Register, Truth};
use crate::wire::protocol;

/// `NF_IP_PRI_CONNTRACK`.
const CONNTRACK_PRIORITY: i32 = -200;
/// `NF_CT_STATE_BIT(IP_CT_ESTABLISHED)`.
const ESTABLISHED: u32 = 2;
/// `IPS_SEEN_REPLY` and `IPS_CONFIRMED`; the bits beside them differ from flow to flow.
const STATUS: u32 = 2 | 8;
/// FIN, SYN and RST.
const BEGIN_OR_END: u8 = 7;
/// Bytes of an interface's name in a register (`IFNAMSIZ`).
const NAME_BYTES: usize = 16;

/// Values of bytes with the bits of them that are known.
#[derive(Clone, Debug)]
pub(super) struct Registers {
    value: [u8; REGISTER_BYTES],
    known: [u8; REGISTER_BYTES],
}

impl Default for Registers {
    fn default() -> Self {
        Registers { value: [0; REGISTER_BYTES], known: [0; REGISTER_BYTES] }
    }
}

impl Registers {
    pub fn set(&mut self, at: Register, value: &[u8]) {
        self.set_bits(at, value, &vec![u8::MAX; value.len()]);
    }

    fn set_bits(&mut self, at: Register, value: &[u8], known: &[u8]) {
        self.forget(at);
        for (n, (value, known)) in value.iter().zip(known).enumerate() {
            if let (Some(v), Some(k)) = (self.value.get_mut(at.0 + n), self.known.get_mut(at.0 + n)) {
                (*v, *k) = (*value, *known);
            }
        }
    }

    /// Nothing is known from there on: neither a value that is not known nor its length.
    pub fn forget(&mut self, at: Register) {
        for known in self.known.iter_mut().skip(at.0) {
            *known = 0;
        }
    }

    fn byte(&self, at: usize) -> (u8, u8) {
        match (self.value.get(at), self.known.get(at)) {
            (Some(value), Some(known)) => (*value, *known),
            _ => (0, 0),
        }
    }

    pub fn bitwise(&mut self, from: Register, to: Register, mask: &[u8], xor: &[u8]) {
        let bytes = mask.iter().zip(xor).enumerate().map(|(n, (mask, xor))| {
            let (value, known) = self.byte(from.0 + n);
            // A bit that the mask clears is known.
            ((value & mask) ^ xor, known | !mask)
        });
        let (value, known): (Vec<u8>, Vec<u8>) = bytes.unzip();
        self.set_bits(to, &value, &known);
    }

    /// Whether these bytes stand there.
    pub fn equal(&self, from: Register, wanted: &[u8]) -> Truth {
        let mut truth = Truth::Always;
        for (n, wanted) in wanted.iter().enumerate() {
            let (value, known) = self.byte(from.0 + n);
            if (value ^ wanted) & known != 0 {
                return Truth::Never;
            }
            if known != u8::MAX {
                truth = Truth::Unknown;
            }
        }
        truth
    }

    /// What only computes and compares: whether the rule goes on, for a flow in this state.
    pub fn compare(&mut self, expression: &Expression, ct_state: Option<u32>) -> Truth {
        match expression {
            Expression::Immediate { to, value } => {
                self.set(*to, value);
                Truth::Always
            }
            Expression::Bitwise { from, to, mask, xor } => {
                self.bitwise(*from, *to, mask, xor);
                Truth::Always
            }
            Expression::Computed { to } => {
                self.forget(*to);
                Truth::Unknown
            }
            Expression::Equal { from, value, not } => inverted(self.equal(*from, value), *not),
            Expression::Match { truth, .. } => *truth,
            Expression::CtState(wanted) => wanted.holds(ct_state),
            Expression::FirstPacketOnly(_) => Truth::Always,
            Expression::Load { .. }
            | Expression::Verdict(_)
            | Expression::Lookup { .. }
            | Expression::Counter
            | Expression::Statement(_) => Truth::Unknown,
        }
    }

    /// Loads what is known of a key; whether every packet has it.
    pub fn load(&mut self, key: Key, to: Register, packet: &Packet<'_>) -> Truth {
        let Some((value, known)) = packet.bits(key) else {
            self.forget(to);
            return Truth::Unknown;
        };
        self.set_bits(to, &value, &known);
        Truth::Always
    }
}

/// What is known of a packet where a base chain stands.
#[derive(Clone, Copy, Debug)]
pub(super) struct Packet<'a> {
    pub path: &'a Path,
    pub hook: Hook,
    pub priority: i32,
}

impl Packet<'_> {
    /// Value and known bits; none where nothing is known, or the packet may lack it.
    fn bits(&self, key: Key) -> Option<(Vec<u8>, Vec<u8>)> {
        let whole = |value: &[u8]| Some((value.to_vec(), vec![u8::MAX; value.len()]));
        let v6 = self.path.v6;
        match key {
            Key::CtState => whole(&self.ct_state()?.to_ne_bytes()),
            Key::CtStatus if self.is_tracked() => {
                Some((STATUS.to_ne_bytes().to_vec(), STATUS.to_ne_bytes().to_vec()))
            }
            Key::InputName => whole(&name(self.input()?)?),
            Key::OutputName => whole(&name(self.output()?)?),
            Key::InputIndex => whole(&self.input()?.index.to_ne_bytes()),
            Key::OutputIndex => whole(&self.output()?.index.to_ne_bytes()),
            // Devices' own chains have a family of their own.
            Key::Family if self.is_routed() => whole(&[if v6 { 10 } else { 2 }]),
            Key::EtherType if self.is_routed() => whole(&if v6 { [0x86, 0xdd] } else { [0x08, 0x00] }),
            Key::Protocol if self.is_routed() => whole(&[self.protocol()]),
            Key::Network { offset: 9, length: 1 } if self.is_routed() && !v6 => whole(&[self.protocol()]),
            Key::Network { offset: 6, length: 1 } if self.is_routed() && v6 => whole(&[self.protocol()]),
            // More fragments, and the offset.
            Key::Network { offset: 6, length: 2 } if self.is_routed() && !v6 => {
                Some((vec![0, 0], vec![0x3f, 0xff]))
            }
            Key::Transport { offset: 13, length: 1 } if self.is_routed() && self.is_tcp() => {
                Some((vec![0], vec![BEGIN_OR_END]))
            }
            _ => None,
        }
    }

    /// The state of its flow, where there is one yet.
    pub fn ct_state(&self) -> Option<u32> {
        self.is_tracked().then_some(ESTABLISHED)
    }

    fn is_routed(&self) -> bool {
        matches!(self.hook, Hook::Prerouting | Hook::Forward | Hook::Postrouting)
    }

    /// Whether conntrack has seen the packet where the chain stands.
    pub fn is_tracked(&self) -> bool {
        match self.hook {
            Hook::Prerouting => self.priority > CONNTRACK_PRIORITY,
            Hook::Forward | Hook::Postrouting => true,
            _ => false,
        }
    }

    /// The device rules call input, at prerouting and forward; behind, kernels differ.
    fn input(&self) -> Option<&Interface> {
        let known = matches!(self.hook, Hook::Prerouting | Hook::Forward);
        self.path.input.as_ref().filter(|_| known)
    }

    fn output(&self) -> Option<&Interface> {
        let known = matches!(self.hook, Hook::Forward | Hook::Postrouting);
        self.path.output.as_ref().filter(|_| known)
    }

    fn is_tcp(&self) -> bool {
        self.path.protocol == Protocol::Tcp
    }

    fn protocol(&self) -> u8 {
        if self.is_tcp() { protocol::TCP } else { protocol::UDP }
    }
}

/// None: no name the kernel could have.
fn name(interface: &Interface) -> Option<[u8; NAME_BYTES]> {
    let mut bytes = [0; NAME_BYTES];
    let text = interface.name.as_bytes();
    bytes.get_mut(..text.len())?.copy_from_slice(text);
    (text.len() < NAME_BYTES).then_some(bytes)
}
