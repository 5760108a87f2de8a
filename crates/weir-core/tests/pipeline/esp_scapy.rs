//! ESP beside scapy's: what one seals the other opens, for every suite, family, mode and many sizes.
//!
//! One scapy process is a filter of lines (`peer.py` says which); both directions are asked at once. Skipped
//! by name where scapy is not installed.

use std::io::Write as _;
use std::net::IpAddr;
use std::process::{Command, Stdio};
use std::thread;

use crate::common::sas::{address, in_udp, keys, open, outside6, pair, params, seal, transport};
use weir_core::ipsec::{Mode, Params, Sa, Suite};
use weir_core::verdict::Reason;
use weir_core::wire::build;

/// Which addresses and headers.
#[derive(Clone, Copy, Debug)]
enum Shape {
    Tunnel { outer: u8, inner: u8 },
    Transport(u8),
}

const SHAPES: [Shape; 6] = [
    Shape::Tunnel { outer: 4, inner: 4 },
    Shape::Tunnel { outer: 4, inner: 6 },
    Shape::Tunnel { outer: 6, inner: 4 },
    Shape::Tunnel { outer: 6, inner: 6 },
    Shape::Transport(4),
    Shape::Transport(6),
];

/// Sequence numbers with ESN begin here: their high half is not sent.
const HIGH: u64 = 7 << 32;

/// Both ends of an SA, with the ciphers of every machine and with the best of this one, and what they carry.
struct Case {
    out: Sa,
    inbound: Sa,
    best_out: Sa,
    best_inbound: Sa,
    inner: u8,
}

impl Case {
    fn new(suite: Suite, shape: Shape, udp: bool, esn: bool) -> Case {
        let plain = Params { esn, ..params(suite) };
        let (plain, inner) = match shape {
            Shape::Tunnel { outer: 4, inner } => (plain, inner),
            Shape::Tunnel { inner, .. } => (outside6(plain), inner),
            Shape::Transport(4) => (transport(plain), 4),
            Shape::Transport(_) => (transport(outside6(plain)), 6),
        };
        let params = if udp { in_udp(plain) } else { plain };
        let ((out, inbound), (mut best_out, mut best_inbound)) = (pair(params.clone()), pair(params));
        let best = weir_io::cipher::best().cipher(suite, esn, &keys(suite)).expect("a cipher");
        best_out.cipher = best.clone();
        best_inbound.cipher = best;
        for inbound in [&inbound, &best_inbound].into_iter().filter(|_| esn) {
            inbound.state.replay.lock().expect("no panic").accept(HIGH).expect("new");
        }
        Case { out, inbound, best_out, best_inbound, inner }
    }

    /// Seals as the n-th packet, by one cipher or the other.
    fn seal(&self, n: usize, best: bool, packet: &[u8]) -> Vec<u8> {
        let sa = if best { &self.best_out } else { &self.out };
        sa.state.sequence.store(self.sequence(n) - 1, std::sync::atomic::Ordering::Relaxed);
        seal(sa, packet).expect("sealed")
    }

    /// A packet with `len` bytes behind its IP header.
    fn packet(&self, len: usize) -> Vec<u8> {
        let p = &self.out.params;
        let ends: [IpAddr; 2] = match (p.mode, self.inner) {
            (Mode::Transport, _) => [p.source, p.destination],
            (_, 4) => [address("10.1.0.2"), address("10.2.0.2")],
            _ => [address("fd01::2"), address("fd02::2")],
        };
        let payload: Vec<u8> = (0..len).map(|i| (i * 7 + len) as u8).collect();
        build::Frame::ip(ends[0], ends[1]).expect("one family").packet().raw(253, &payload)
    }

    /// What is sealed or asked for n-th has this sequence number.
    fn sequence(&self, n: usize) -> u64 {
        (if self.out.params.esn { HIGH } else { 0 }) + n as u64
    }

    /// A line for scapy.
    fn line(&self, action: &str, n: usize, packet: &[u8]) -> String {
        let p = &self.out.params;
        let keys = keys(p.suite);
        let mode = if p.mode == Mode::Tunnel { "tunnel" } else { "transport" };
        let encryption = p.suite.encryption().name();
        let integrity = p.suite.integrity().map_or("-", |i| i.name());
        let [key, auth] = [&keys.encryption, &keys.integrity].map(|k| hex(k.bytes()));
        let (sequence, esn) = (self.sequence(n), u8::from(p.esn));
        let port = p.udp.map_or(0, |udp| udp.source);
        let (source, destination, spi, packet) = (p.source, p.destination, p.spi, hex(packet));
        format!(
            "{action} {mode} {source} {destination} {encryption} {integrity} {key} {auth} {spi} {sequence} {esn} {port} {packet}"
        )
    }
}

fn hex(bytes: &[u8]) -> String {
    if bytes.is_empty() { "-".into() } else { bytes.iter().map(|b| format!("{b:02x}")).collect() }
}

fn bytes(hex: &str) -> Option<Vec<u8>> {
    (0..hex.len()).step_by(2).map(|i| u8::from_str_radix(hex.get(i..i + 2)?, 16).ok()).collect()
}

/// Bytes behind the IP header: an odd stride through what a wire takes, packets of 49 B (of either family,
/// and 49 B of payload: one less than a multiple of 4 with the trailer), and a jumbo frame.
fn sizes() -> impl Iterator<Item = usize> {
    (1..1481).step_by(83).chain([9, 29, 49, 1480, 8960])
}

fn python() -> Option<Command> {
    // Debian's own: it sees Debian's packages whatever else is on the PATH.
    let program = ["/usr/bin/python3", "python3"].into_iter().find(|program| {
        let import = ["-B", "-c", "import scapy.layers.ipsec, cryptography.hazmat.primitives.ciphers.aead"];
        let quiet = Command::new(program).args(import).stdout(Stdio::null()).stderr(Stdio::null()).status();
        quiet.is_ok_and(|status| status.success())
    })?;
    let mut command = Command::new(program);
    command.args(["-B", concat!(env!("CARGO_MANIFEST_DIR"), "/tests/pipeline/esp_scapy/peer.py")]);
    Some(command)
}

/// scapy's answers in the order of the lines: a packet, or why not.
fn scapy(test: &str, lines: &[String]) -> Option<Vec<Result<Vec<u8>, String>>> {
    let Some(mut command) = python() else {
        writeln!(
            std::io::stderr(),
            "SKIP {test}: needs scapy with its ciphers; install python3-scapy python3-cryptography"
        )
        .expect("stderr is open");
        return None;
    };
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("python starts");
    let mut stdin = child.stdin.take().expect("piped");
    let text: String = lines.iter().enumerate().map(|(n, line)| format!("{n} {line}\n")).collect();
    let writer = thread::spawn(move || stdin.write_all(text.as_bytes()));
    let output = child.wait_with_output().expect("a child of ours");
    writer.join().expect("the writer").expect("scapy reads to the end");
    let answers: Vec<_> = String::from_utf8_lossy(&output.stdout)
        .lines()
        .enumerate()
        .map(|(n, line)| {
            let (number, rest) = line.split_once(' ').expect("a number first");
            assert_eq!(number, n.to_string(), "scapy answers in order");
            bytes(rest).ok_or_else(|| rest.to_string())
        })
        .collect();
    assert_eq!(answers.len(), lines.len(), "scapy answers every line");
    Some(answers)
}

#[test]
fn scapy_opens_what_is_sealed_and_seals_what_is_opened() {
    let mut asked = Vec::new();
    let mut lines = Vec::new();
    let cases: Vec<Case> = Suite::all()
        .into_iter()
        .flat_map(|suite| SHAPES.into_iter().map(move |shape| (suite, shape)))
        .flat_map(|(suite, shape)| {
            [(false, false), (false, true), (true, false), (true, true)]
                .map(|(udp, esn)| Case::new(suite, shape, udp, esn))
        })
        .collect();
    for (at, len) in sizes().enumerate() {
        // Each size with one of the four kinds of sequence number and encapsulation, by turns.
        for (index, case) in cases.iter().enumerate().filter(|(index, _)| index % 4 == (at + index / 4) % 4) {
            let n = at + 1;
            let packet = case.packet(len);
            let sealed = case.seal(n, at / 4 % 2 == 0, &packet);
            lines.push(case.line("open", n, &sealed));
            lines.push(case.line("seal", n, &packet));
            asked.push((index, packet));
        }
    }
    let Some(answers) = scapy("scapy_opens_what_is_sealed_and_seals_what_is_opened", &lines) else { return };
    for ((index, packet), answers) in asked.iter().zip(answers.chunks(2)) {
        let case = &cases[*index];
        let what = || format!("{:?}, {} bytes", case.out.params, packet.len());
        assert_eq!(answers[0].as_ref(), Ok(packet), "scapy opens: {}", what());
        let sealed = answers[1].as_ref().unwrap_or_else(|e| panic!("scapy seals: {e}: {}", what()));
        for sa in [&case.inbound, &case.best_inbound] {
            assert_eq!(
                open(sa, sealed).as_ref(),
                Ok(packet),
                "opened by {}: {}",
                sa.cipher.backend(),
                what()
            );
        }
    }
    assert!(asked.len() > 2500, "{} packets", asked.len());
}

#[test]
fn what_changes_on_the_way_is_refused_by_both() {
    let mut lines = Vec::new();
    for suite in Suite::all() {
        let case = Case::new(suite, Shape::Tunnel { outer: 4, inner: 4 }, false, true);
        let sealed = case.seal(1, true, &case.packet(100));
        // From the SPI on, everything is authenticated: here sequence number, IV or payload, and ICV.
        for (at, n) in [(27, 1 ^ 4), (40, 1), (sealed.len() - 1, 1)] {
            let mut damaged = sealed.clone();
            damaged[at] ^= 4;
            for sa in [&case.inbound, &case.best_inbound] {
                assert_eq!(open(sa, &damaged), Err(Reason::IntegrityFailed), "{suite}");
            }
            lines.push(case.line("open", n, &damaged));
        }
        assert!(open(&case.inbound, &sealed).is_ok(), "{suite}");
        lines.push(case.line("open", 1, &sealed));
    }
    let Some(answers) = scapy("what_changes_on_the_way_is_refused_by_both", &lines) else { return };
    for (suite, answers) in Suite::all().into_iter().zip(answers.chunks(4)) {
        assert!(answers[..3].iter().all(Result::is_err), "{suite}: {answers:?}");
        assert!(answers[3].is_ok(), "{suite}: {answers:?}");
    }
}
