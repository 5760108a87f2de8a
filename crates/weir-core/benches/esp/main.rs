//! What ESP costs a packet: encapsulation alone (a cipher that does nothing), and beside it the whole with
//! AES-GCM-128 and the cipher alone. Nanoseconds an item; `--timer tsc` counts the CPU's own clock.
//!
//! `restore` is what the bench itself spends on putting frames back as they were: it is part of every
//! value of `seal…` and `open…`.

use std::net::IpAddr;
use std::sync::Arc;

use divan::counter::ItemsCount;
use divan::{Bencher, black_box};
use weir_core::ipsec::esp::{self, Outcome};
use weir_core::ipsec::{
    Cipher, Direction, Ipsec, Job, Keys, Mode, Params, Sa, SaId, SaState, Secret, Suite, pmtu,
};
use weir_core::packet::{BATCH, BUFFER_SIZE, DeviceId, Frame};
use weir_core::verdict::Reason;
use weir_core::wire::{build, icmpv4};

fn main() {
    divan::main();
}

/// Packet lengths, IP header included: 46 B is the packet of a 64-byte frame.
const SIZES: [usize; 3] = [46, 500, 1400];

/// Leaves packets as they are and finds them authentic.
#[derive(Debug)]
struct Nothing;

impl Cipher for Nothing {
    fn suite(&self) -> Suite {
        Suite::AES_GCM_128
    }

    fn backend(&self) -> String {
        "nothing".to_string()
    }

    fn seal(&self, jobs: &mut [Job<'_>]) {
        black_box(jobs);
    }

    fn open(&self, jobs: &mut [Job<'_>]) {
        jobs.iter_mut().for_each(|job| job.authentic = true);
        black_box(jobs);
    }
}

fn gcm() -> Arc<dyn Cipher> {
    let bytes = |len: usize| Secret::new((0..len as u8).collect());
    let keys = Keys { encryption: bytes(20), integrity: bytes(0) };
    weir_io::cipher::best().cipher(Suite::AES_GCM_128, false, &keys).expect("keys of the right length")
}

fn sa(cipher: Arc<dyn Cipher>, v4: bool, replay_window: u16) -> Sa {
    let ends: (IpAddr, IpAddr) = match v4 {
        true => ([192, 0, 2, 1].into(), [192, 0, 2, 2].into()),
        false => ([0x20; 16].into(), [0x30; 16].into()),
    };
    let params = Params {
        replay_window,
        ..Params::new(Direction::Out, 0x1001, Mode::Tunnel, ends, Suite::AES_GCM_128)
    };
    let state = Arc::new(SaState::new(&params, 0));
    Sa::new(SaId(0), String::new(), params, cipher, state)
}

fn packet(len: usize) -> Vec<u8> {
    build::Frame::ipv4([10, 1, 0, 1].into(), [10, 2, 0, 1].into()).packet().udp(1, 2, &vec![0; len - 28])
}

/// An ICMP error, as anybody may send it, about an SA of none of so many: finding that out is all it costs.
#[divan::bench(args = [1, 1024, 65_536])]
fn icmp_error_among_sas(bencher: Bencher<'_, '_>, count: u32) {
    let shared: Arc<dyn Cipher> = Arc::new(Nothing);
    let with_spi = |spi: u32| {
        let mut sa = sa(shared.clone(), true, 64);
        sa.params.spi = spi;
        Arc::new(sa)
    };
    let outbound = (0..count).map(|n| with_spi(0x1000 + 2 * n)).collect();
    let ipsec = Ipsec { outbound: Arc::new(outbound), ..Ipsec::default() };
    let esp = build::Frame::ipv4([192, 0, 2, 1].into(), [192, 0, 2, 2].into()).packet();
    let outer = esp.raw(50, &[&(0x1001 + count).to_be_bytes()[..], &[0; 60]].concat());
    let mut error = vec![0; 1500];
    let too_big = icmpv4::Error::FragmentationNeeded { mtu: 1300 };
    let len = icmpv4::write_error(&mut error, too_big, [192, 0, 2, 9].into(), &outer, 64, 1).expect("fits");
    error.truncate(len);
    bencher.bench(|| assert!(pmtu::concerned(black_box(&ipsec), black_box(&error)).is_none()));
}

/// A batch of the same packet, and what it takes to have it again.
struct Testbed {
    frames: Vec<Frame<Box<[u8]>>>,
    outcomes: [Outcome; BATCH],
    original: Vec<u8>,
    start: usize,
}

impl Testbed {
    fn new(original: Vec<u8>, count: usize) -> Testbed {
        let frame = |_| Frame::from_bytes(vec![0; BUFFER_SIZE].into(), &original, DeviceId(0)).expect("fits");
        let frames: Vec<_> = (0..count).map(frame).collect();
        let start = frames[0].start();
        Testbed { frames, outcomes: [Outcome::Lost(Reason::NoBuffer); BATCH], original, start }
    }

    /// Windows and the first `bytes` of each packet, as they were.
    fn restore(&mut self, bytes: usize) {
        for frame in &mut self.frames {
            let moved = if frame.start() > self.start {
                frame.grow_front(frame.start() - self.start)
            } else {
                frame.shrink_front(self.start - frame.start())
            };
            assert!(moved && frame.set_len(self.original.len()));
            frame.data_mut()[..bytes].copy_from_slice(&self.original[..bytes]);
        }
    }

    fn seal(&mut self, sa: &Sa) {
        self.restore(20);
        let outcomes = &mut self.outcomes[..self.frames.len()];
        esp::seal(sa, 0, &mut self.frames, outcomes);
        assert!(outcomes[0] == Outcome::Done);
    }

    fn open(&mut self, sa: &Sa, bytes: usize) {
        self.restore(bytes);
        let outcomes = &mut self.outcomes[..self.frames.len()];
        esp::open(sa, 0, &mut self.frames, outcomes);
        assert!(outcomes[0] == Outcome::Done);
    }
}

fn run(bencher: Bencher, count: usize, work: impl FnMut()) {
    bencher.counter(ItemsCount::new(count)).bench_local(work);
}

#[divan::bench]
fn restore(bencher: Bencher) {
    let mut testbed = Testbed::new(packet(46), BATCH);
    run(bencher, BATCH, || black_box(&mut testbed).restore(20));
}

#[divan::bench(args = [1, 8, 64])]
fn seal_without_cipher_in_batches_of(bencher: Bencher, count: usize) {
    let (mut testbed, sa) = (Testbed::new(packet(46), count), sa(Arc::new(Nothing), true, 0));
    // SPI and IV are not written over by the packet's start.
    run(bencher, count, || testbed.seal(&sa));
}

#[divan::bench]
fn seal_without_cipher_in_ipv6(bencher: Bencher) {
    let (mut testbed, sa) = (Testbed::new(packet(46), BATCH), sa(Arc::new(Nothing), false, 0));
    run(bencher, BATCH, || testbed.seal(&sa));
}

#[divan::bench(args = [1, 8, 64])]
fn open_without_cipher_in_batches_of(bencher: Bencher, count: usize) {
    let sa = sa(Arc::new(Nothing), true, 0);
    let mut testbed = Testbed::new(sealed(&sa, 46), count);
    run(bencher, count, || testbed.open(&sa, 20));
}

/// Every packet is new to the window.
#[divan::bench(args = [64, 4096])]
fn open_without_cipher_with_a_window_of(bencher: Bencher, window: u16) {
    let sa = sa(Arc::new(Nothing), true, window);
    let mut testbed = Testbed::new(sealed(&sa, 46), BATCH);
    let mut sequence = 0u32;
    run(bencher, BATCH, || {
        testbed.restore(20);
        for frame in &mut testbed.frames {
            sequence = sequence.wrapping_add(1);
            frame.data_mut()[24..28].copy_from_slice(&sequence.to_be_bytes());
        }
        esp::open(&sa, 0, &mut testbed.frames, &mut testbed.outcomes);
    });
}

fn sealed(sa: &Sa, len: usize) -> Vec<u8> {
    let mut testbed = Testbed::new(packet(len), 1);
    testbed.seal(sa);
    testbed.frames[0].data().to_vec()
}

#[divan::bench(args = SIZES)]
fn seal_with_gcm(bencher: Bencher, len: usize) {
    let (mut testbed, sa) = (Testbed::new(packet(len), BATCH), sa(gcm(), true, 0));
    run(bencher, BATCH, || testbed.seal(&sa));
}

#[divan::bench(args = SIZES)]
fn open_with_gcm(bencher: Bencher, len: usize) {
    let sa = sa(gcm(), true, 0);
    let sealed = sealed(&sa, len);
    let bytes = sealed.len();
    let mut testbed = Testbed::new(sealed, BATCH);
    run(bencher, BATCH, || testbed.open(&sa, bytes));
}

#[divan::bench(args = SIZES)]
fn gcm_alone(bencher: Bencher, len: usize) {
    let cipher = gcm();
    let len = len + Suite::AES_GCM_128.overhead(len);
    let mut packets = vec![vec![0u8; len]; BATCH];
    let mut sequence = 0;
    run(bencher, BATCH, || {
        sequence += 1;
        let mut jobs: Vec<_> =
            packets.iter_mut().map(|packet| Job { packet, sequence, authentic: false }).collect();
        cipher.seal(&mut jobs);
    });
}
