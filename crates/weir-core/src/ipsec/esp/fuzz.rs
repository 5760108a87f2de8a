//! Random packets through both ends of an SA: sealed, forged with a right check value, mangled, replayed.
//!
//! Promises checked: no panic; what was sealed and not touched comes back, once; what was touched does not
//! come back, unless only its outer header was; what comes out is a whole IP packet; a sequence number is
//! accepted once; every packet is counted once.

use std::collections::HashSet;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use super::{HEADER_LEN, Outcome, inner_mtu, open, seal, spi_of};
use crate::fuzz_input::Input;
use crate::ipsec::sa::UdpPorts;
use crate::ipsec::{Cipher, Direction, Encryption, Integrity, Job, Mode, Params, Sa, SaId, SaState, Suite};
use crate::packet::{BUFFER_SIZE, DeviceId, Frame};
use crate::verdict::Reason;
use crate::wire::{Ipv4, Ipv6, build, protocol, put32};

type Heap = Box<[u8]>;

/// Encrypts by XOR and authenticates by a sum: enough to tell what was sealed from what was not, and fast.
#[derive(Debug)]
pub(crate) struct Toy(pub(crate) Suite);

impl Toy {
    fn sum(&self, packet: &[u8], sequence: u64) -> u64 {
        let covered = &packet[..packet.len() - self.0.icv_len()];
        // FNV-1a.
        let start = 0xcbf2_9ce4_8422_2325 ^ sequence;
        covered.iter().fold(start, |h, &b| (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3))
    }

    fn turn(&self, packet: &mut [u8]) {
        let end = packet.len() - self.0.icv_len();
        packet[HEADER_LEN + self.0.iv_len()..end].iter_mut().for_each(|byte| *byte ^= 0x5a);
    }
}

impl Cipher for Toy {
    fn suite(&self) -> Suite {
        self.0
    }

    fn backend(&self) -> String {
        "toy".to_string()
    }

    fn seal(&self, jobs: &mut [Job<'_>]) {
        for job in jobs {
            self.turn(job.packet);
            let at = job.packet.len() - self.0.icv_len();
            let sum = self.sum(job.packet, job.sequence);
            job.packet[at..].fill(0);
            job.packet[at..at + 8].copy_from_slice(&sum.to_be_bytes());
        }
    }

    fn open(&self, jobs: &mut [Job<'_>]) {
        for job in jobs {
            let at = job.packet.len() - self.0.icv_len();
            let mut expected = self.sum(job.packet, job.sequence).to_be_bytes().to_vec();
            expected.resize(self.0.icv_len(), 0);
            job.authentic = job.packet[at..] == expected[..];
            self.turn(job.packet);
        }
    }
}

/// A packet on its way, and what is known about it.
#[derive(Clone)]
struct Sent {
    outer: Vec<u8>,
    sequence: u64,
    /// What it must open to if nothing happens to it; `None` where a forger made it.
    inner: Option<Vec<u8>>,
    touched: bool,
}

struct Bench {
    out: Sa,
    inbound: Sa,
    sent: Vec<Sent>,
    accepted: HashSet<u64>,
}

/// Packets remembered for being sent again.
const REMEMBERED: usize = 32;
/// A batch of these at most, so that an input has several.
const AT_ONCE: usize = 8;

/// Reads `data` as an SA and what is sent by it.
pub fn fuzz_esp_open(data: &[u8]) {
    let mut input = Input(data);
    let params = params(&mut input);
    let (out, inbound) = (sa(&params, Direction::Out), sa(&params, Direction::In));
    if params.esn && input.byte() & 1 != 0 {
        // Close to the end of a subspace.
        let near = (1 << 32) - u64::from(input.byte());
        out.state.sequence.store(near, Relaxed);
        let accepted = inbound.state.replay.lock().map(|mut replay| replay.accept(near));
        assert_eq!(accepted.ok(), Some(Ok(())));
    }
    let mut bench = Bench { out, inbound, sent: Vec::new(), accepted: HashSet::new() };
    while !input.0.is_empty() {
        let count = usize::from(input.byte()) % AT_ONCE + 1;
        let batch: Vec<_> = (0..count).filter_map(|_| bench.next(&mut input)).collect();
        bench.deliver(&batch);
    }
}

fn params(input: &mut Input<'_>) -> Params {
    let flags = input.byte();
    let suites = [
        Suite::new(Encryption::AesGcm128, None, false),
        Suite::new(Encryption::AesCbc128, Some(Integrity::HmacSha1_96), false),
        Suite::new(Encryption::Null, Some(Integrity::HmacSha512_256), false),
    ];
    let suite = suites[usize::from(input.byte()) % suites.len()].unwrap_or(Suite::AES_GCM_128);
    let ends: (IpAddr, IpAddr) = match flags & 1 == 0 {
        true => ([192, 0, 2, 1].into(), [192, 0, 2, 2].into()),
        false => ([0x20; 16].into(), [0x30; 16].into()),
    };
    let mode = if flags & 2 == 0 { Mode::Tunnel } else { Mode::Transport };
    Params {
        esn: flags & 4 != 0,
        replay_window: [32, 64, 1024][usize::from(flags >> 4) % 3],
        udp: (flags & 8 != 0).then_some(UdpPorts { source: 4500, destination: 4500 }),
        ..Params::new(Direction::Out, 0x1001, mode, ends, suite)
    }
}

fn sa(params: &Params, direction: Direction) -> Sa {
    let params = Params { direction, ..params.clone() };
    let state = Arc::new(SaState::new(&params, 0));
    let cipher = Arc::new(Toy(params.suite));
    Sa::new(SaId(0), String::new(), params, cipher, state)
}

fn frame(packet: &[u8]) -> Option<Frame<Heap>> {
    Frame::from_bytes(vec![0; BUFFER_SIZE].into(), packet, DeviceId(0)).ok()
}

impl Bench {
    fn next(&mut self, input: &mut Input<'_>) -> Option<Sent> {
        let kind = input.byte();
        let mut sent = match kind % 8 {
            0..=2 => self.sealed(input)?,
            3..=4 => self.forged(input),
            5 => Sent { outer: noise(input), sequence: 0, inner: None, touched: true },
            _ => self.sent.get(usize::from(input.byte()) % self.sent.len().max(1))?.clone(),
        };
        let unharmed = sent.clone();
        if kind >= 128 {
            self.touch(input, &mut sent);
        }
        if !unharmed.outer.is_empty() && !unharmed.touched {
            self.sent.truncate(REMEMBERED - 1);
            self.sent.insert(0, unharmed);
        }
        Some(sent)
    }

    /// An ordinary packet, or what a router might give that is none.
    fn sealed(&mut self, input: &mut Input<'_>) -> Option<Sent> {
        let v4 = match self.out.params.mode {
            Mode::Tunnel => input.byte() & 1 == 0,
            Mode::Transport => self.out.params.source.is_ipv4(),
        };
        let (tos, kind) = (input.byte(), input.byte());
        let payload = vec![kind; input.word() % 1400];
        let frame = if v4 {
            let frame = build::Frame::ipv4([10, 0, 0, 1].into(), [10, 0, 0, 2].into());
            if kind & 1 == 0 { frame } else { frame.options(&[7, 7, 4, 0, 0, 0, 0]) }
        } else {
            let frame = build::Frame::ipv6([0x21; 16].into(), [0x31; 16].into());
            if kind & 1 == 0 { frame } else { frame.extension(kind & 0x3c, &[0, 1, 4, 0, 0, 0, 0]) }
        };
        let mut inner = frame.packet().tos(tos).udp(1, 2, &payload);
        if kind >= 250 {
            let at = input.word() % inner.len();
            inner[at] = input.byte();
        }
        let mut frames = [self::frame(&inner)?];
        let mut outcomes = [Outcome::Lost(Reason::NoBuffer)];
        seal(&self.out, 0, &mut frames, &mut outcomes);
        if outcomes[0] != Outcome::Done {
            return None;
        }
        let outer = frames[0].data().to_vec();
        // A changed header may have made it shorter.
        let whole = (kind < 250).then_some(inner);
        let fits = usize::from(inner_mtu(&self.out, outer.len() as u16)) + 12;
        assert!(whole.as_ref().is_none_or(|inner| inner.len() <= fits));
        Some(Sent { outer, sequence: self.out.state.sequence.load(Relaxed), inner: whole, touched: false })
    }

    /// Any plaintext under a right check value: what only a peer can send.
    fn forged(&mut self, input: &mut Input<'_>) -> Sent {
        let params = &self.out.params;
        let sequence = self.out.state.sequence.load(Relaxed) + u64::from(input.byte());
        let mut body = noise(input);
        body.extend(input.take(2));
        body.resize(body.len().max(1).next_multiple_of(params.suite.alignment()), 1);
        if input.byte() & 1 == 0 {
            let len = body.len();
            body[len - 2..].copy_from_slice(&[0, [4, 41, 59, 17][usize::from(input.byte()) % 4]]);
            body[0] = [0x45, 0x60, 0x4f][usize::from(input.byte()) % 3];
        }
        let mut packet = vec![0; HEADER_LEN + params.suite.iv_len()];
        put32(&mut packet, 0, params.spi);
        put32(&mut packet, 4, sequence as u32);
        packet.extend(body);
        packet.resize(packet.len() + params.suite.icv_len(), 0);
        self.out.cipher.seal(&mut [Job { packet: &mut packet, sequence, authentic: false }]);
        let frame = build::Frame::ip(params.source, params.destination);
        let outer = frame.map_or(Vec::new(), |frame| frame.packet().raw(50, &packet));
        Sent { outer, sequence, inner: None, touched: false }
    }

    /// Changes bytes, or cuts.
    fn touch(&self, input: &mut Input<'_>, sent: &mut Sent) {
        let before = sent.outer.clone();
        for _ in 0..input.byte() % 3 + 1 {
            let len = sent.outer.len().max(1);
            match sent.outer.get_mut(input.word() % len) {
                Some(byte) => *byte ^= input.byte(),
                None => return,
            }
        }
        if input.byte() & 3 == 0 {
            sent.outer.truncate(input.word() % (before.len() + 1));
        }
        sent.touched |= sent.outer != before;
    }

    fn deliver(&mut self, batch: &[Sent]) {
        let (batch, mut frames): (Vec<_>, Vec<_>) =
            batch.iter().filter_map(|sent| Some((sent, frame(&sent.outer)?))).unzip();
        for sent in &batch {
            for carried in [protocol::ESP, protocol::UDP] {
                let _ = spi_of(carried, &sent.outer, &[4500]);
            }
        }
        let before = self.counted();
        let mut outcomes = vec![Outcome::Lost(Reason::NoBuffer); frames.len()];
        open(&self.inbound, 0, &mut frames, &mut outcomes);
        let mut uncounted = 0;
        for ((sent, frame), outcome) in batch.iter().zip(&frames).zip(&outcomes) {
            match outcome {
                Outcome::Done => self.opened(sent, frame.data()),
                Outcome::Lost(reason) => {
                    uncounted += u64::from(!crate::ipsec::sa::COUNTED.contains(reason));
                    self.lost(sent, *reason);
                }
            }
        }
        assert_eq!(self.counted() + uncounted, before + frames.len() as u64, "counted once");
    }

    fn counted(&self) -> u64 {
        let state = &self.inbound.state;
        state.packets.load(Relaxed) + state.failures().map(|(_, count)| count).sum::<u64>()
    }

    fn opened(&mut self, sent: &Sent, packet: &[u8]) {
        let total = match packet[0] >> 4 {
            4 => Ipv4::parse_header(packet).map(|p| p.total_len()),
            _ => Ipv6::parse_header(packet).map(|p| p.total_len()),
        };
        let forged_header = sent.inner.is_none() || sent.touched;
        assert!(total == Ok(packet.len()) || forged_header && total.is_err(), "whole");
        if sent.touched {
            return; // only what ESP does not cover can have been
        }
        assert!(self.accepted.insert(sent.sequence), "number {} a second time", sent.sequence);
        if let Some(inner) = &sent.inner {
            assert_eq!(packet, inner);
        }
    }

    fn lost(&self, sent: &Sent, reason: Reason) {
        if sent.touched || sent.inner.is_none() {
            return;
        }
        let late = matches!(reason, Reason::Replayed | Reason::ReplayTooOld);
        // With ESN, a number left of the window is taken for one ahead of it.
        let taken_for_another = self.inbound.params.esn && reason == Reason::IntegrityFailed;
        assert!(late || taken_for_another, "an untouched packet is lost: {reason:?}");
    }
}

fn noise(input: &mut Input<'_>) -> Vec<u8> {
    let len = usize::from(input.byte());
    input.take(len).to_vec()
}
