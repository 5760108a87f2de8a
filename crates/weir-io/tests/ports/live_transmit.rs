//! Sending without socket buffers against a real kernel: every frame arrives or is counted, in order, and a far end that
//! cannot take such frames gets the others.

use std::io::Write;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::namespace::Namespace;
use weir_core::device::{Device, DeviceStats};
use weir_core::packet::{Batch, DeviceId, Frame, Pool};
use weir_core::random::SplitMix64;
use weir_io::af_packet::AfPacket;
use weir_io::af_xdp::live::{FRAMES_MIN, LiveTransmit};
use weir_io::af_xdp::{AfXdp, Options};
use weir_io::bpf::attach::XdpMode;
use weir_io::clock;
use weir_io::interface::Interface;
use weir_io::netns;
use weir_io::steer::{LocalAddresses, Steering};
use weir_io::umem::{Chunk, ChunkSize, Umem};
use weir_io::xdp_pass::Pass;

const NUMBER_AT: usize = 14;
const ADDRESSES: [u8; 14] = [2, 0, 0, 0, 0, 0x0b, 2, 0, 0, 0, 0, 0x0a, 0x88, 0xb5];

fn index(name: &str) -> u32 {
    Interface::open(name).expect("the interface is there").index()
}

/// The far end's program.
fn program() -> Pass {
    Pass::attach("b", index("b"), &[XdpMode::Native]).expect("attached")
}

fn quiet(ns: &Namespace, names: &[&str]) {
    for name in names {
        ns.sysctl(&format!("net.ipv6.conf.{name}.disable_ipv6=1"));
        ns.ip(&["link", "set", "dev", name, "up"]);
    }
}

/// A port that sends, and what hears it.
struct Line {
    _steering: Steering,
    port: AfXdp,
    pool: Pool<Chunk>,
    umem: Umem,
    live: Arc<LiveTransmit>,
    far: AfPacket<Box<[u8]>>,
    far_pool: Pool<Box<[u8]>>,
    next: u32,
}

impl Line {
    fn open(sender: &str, receiver: &str) -> Line {
        let local = LocalAddresses::new().expect("maps");
        let modes = [XdpMode::Native, XdpMode::Generic];
        let steering = Steering::attach_with(sender, index(sender), &modes, &local, None).expect("attached");
        let umem = Umem::new(1024, ChunkSize::default()).expect("memory");
        let live = Arc::new(LiveTransmit::new().expect("loaded"));
        let mut options = Options::new(DeviceId(0), 0);
        (options.ring, options.posted, options.live) = (128, 128, Some(live.clone()));
        let port = AfXdp::open(&options, &steering, &umem).expect("opened");
        let far = AfPacket::open(receiver, DeviceId(0), None).expect("opened");
        let (pool, far_pool) = (umem.pool(), Pool::boxed(256));
        Line { _steering: steering, port, pool, umem, live, far, far_pool, next: 0 }
    }

    /// A frame with the next number, of this many bytes.
    fn frame(&mut self, len: usize) -> Frame<Chunk> {
        let mut bytes = vec![self.next as u8; len];
        bytes[..NUMBER_AT].copy_from_slice(&ADDRESSES);
        bytes[NUMBER_AT..NUMBER_AT + 4].copy_from_slice(&self.next.to_be_bytes());
        self.next += 1;
        Frame::from_bytes(self.pool.take().expect("a chunk"), &bytes, DeviceId(0)).expect("fits")
    }

    /// Sends frames of these lengths as one batch.
    fn send(&mut self, lengths: impl IntoIterator<Item = usize>) {
        let lengths: Vec<usize> = lengths.into_iter().collect();
        let mut frames: Vec<_> = lengths.iter().map(|&len| self.frame(len)).collect();
        let sent = self.port.tx(&mut self.pool, &mut frames);
        assert_eq!((sent, frames.len()), (lengths.len(), 0), "accepted");
    }

    /// Numbers and lengths of `count` frames, or of what comes within a second.
    fn observe(&mut self, count: usize) -> Vec<(u32, usize)> {
        let end = Instant::now() + Duration::from_secs(1);
        let (mut heard, mut batch) = (Vec::new(), Batch::new());
        while heard.len() < count && Instant::now() < end {
            self.far.rx(&mut self.far_pool, &mut batch);
            for frame in batch.drain() {
                let data = frame.data();
                let number = data[NUMBER_AT..].first_chunk().map(|n| u32::from_be_bytes(*n));
                let number = number.expect("a whole number");
                assert!(data[NUMBER_AT + 4..].iter().all(|&byte| byte == number as u8), "frame {number}");
                heard.push((number, data.len()));
                self.far_pool.put(frame.into_buffer());
            }
        }
        heard
    }

    fn stats(&mut self) -> DeviceStats {
        self.port.stats()
    }

    /// Has the far end asked anew.
    fn ask(&mut self) {
        self.live.ask(clock::now() + 1_000_000_000);
    }

    fn assert_no_chunk_is_lost(&mut self) {
        self.port.rx(&mut self.pool, &mut Batch::new());
        let found = self.pool.free() + self.port.buffers_held() + self.umem.home();
        assert_eq!(found, self.umem.total());
    }
}

#[test]
fn batches_of_all_sizes_arrive_whole_and_in_order_by_both_ways() {
    let Some(ns) = Namespace::new("batches_of_all_sizes_arrive_whole") else { return };
    quiet(&ns, &["a", "b"]);
    netns::inside(&ns.0, || {
        let _program = program();
        let mut line = Line::open("a", "b");
        let said = line.port.report().to_string();
        assert!(said.ends_with("batches of 32 frames and more leave without socket buffers"), "{said}");
        let mut random = SplitMix64::new(24);
        let (mut expected, mut large) = (0, 0);
        for _ in 0..400 {
            let count = 1 + random.below(64) as usize;
            // Every length, and that of a short frame often.
            let long = random.below(2) == 0;
            let lengths = (0..count).map(|_| if long { 60 + random.below(1455) as usize } else { 60 });
            let lengths: Vec<usize> = lengths.collect();
            let first = line.next;
            line.send(lengths.iter().copied());
            let heard = line.observe(count);
            let wanted: Vec<(u32, usize)> = (first..).zip(lengths).collect();
            assert_eq!(heard, wanted);
            expected += count as u64;
            large += if count >= FRAMES_MIN { count as u64 } else { 0 };
        }
        let stats = line.stats();
        assert_eq!((stats.tx_live, stats.tx_dropped), (large, 0), "of {expected}");
        assert!(large > 0 && large < expected, "both ways were used");
        line.assert_no_chunk_is_lost();
    })
    .expect("entered");
}

#[test]
fn what_a_full_far_end_does_not_take_is_counted_frame_by_frame() {
    let Some(ns) = Namespace::new("what_a_full_far_end_does_not_take") else { return };
    quiet(&ns, &["a", "b"]);
    netns::inside(&ns.0, || {
        let _program = program();
        let mut line = Line::open("a", "b");
        // `b: bytes packets …`, of this thread's namespace.
        let counted = || -> u64 {
            let all = std::fs::read_to_string("/proc/thread-self/net/dev").expect("told");
            let line = all.lines().find_map(|line| line.trim().strip_prefix("b:")).expect("listed");
            line.split_whitespace().nth(1).and_then(|n| n.parse().ok()).expect("a number")
        };
        let before = counted();
        // Receiving runs on this CPU or another one: a queue of 256 is full now and then, or never.
        for _ in 0..2000 {
            line.send([60; 64]);
        }
        let stats = line.stats();
        assert_eq!(stats.tx_live + stats.tx_dropped, 2000 * 64);
        let end = Instant::now() + Duration::from_secs(5);
        while counted() - before < stats.tx_live && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(counted() - before, stats.tx_live, "of {stats:?}");
        line.assert_no_chunk_is_lost();
    })
    .expect("entered");
}

#[test]
fn a_far_end_without_napi_gets_every_frame_by_the_socket() {
    let Some(ns) = Namespace::new("a_far_end_without_napi_gets_every_frame") else { return };
    quiet(&ns, &["a", "b"]);
    netns::inside(&ns.0, || {
        let mut line = Line::open("a", "b");
        let said = line.port.report().to_string();
        assert!(said.ends_with("socket buffers for all frames (the far end has no XDP program)"), "{said}");
        line.send([60; 64]);
        assert_eq!((line.observe(64).len(), line.stats().tx_live), (64, 0));
        // It gets a program: found out when asked.
        let theirs = program();
        line.ask();
        let said = line.port.watch(clock::now()).expect("said");
        assert!(said.contains("large batches leave without socket buffers"), "{said}");
        line.send([60; 64]);
        assert_eq!((line.observe(64).len(), line.stats().tx_live), (64, 64));
        // It loses it, and nobody has asked: one call, every frame of it counted.
        drop(theirs);
        let end = Instant::now() + Duration::from_secs(5);
        while weir_io::bpf::features::can_transmit(index("a")).expect("asked") && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(1));
        }
        line.send([60; 64]);
        let stats = line.stats();
        assert_eq!((stats.tx_live, stats.tx_dropped), (64, 64), "no answer is one");
        let said = line.port.watch(clock::now()).expect("said");
        assert!(said.contains("sending by the socket until the far end takes live frames again"), "{said}");
        line.send([60; 64]);
        assert_eq!((line.observe(64).len(), line.stats()), (64, stats));
        line.ask();
        line.send([60; 64]);
        assert_eq!((line.observe(64).len(), line.stats()), (64, stats), "asked, it is still unable");
        line.assert_no_chunk_is_lost();
    })
    .expect("entered");
}

#[test]
fn a_device_whose_queues_could_overtake_each_other_sends_by_the_socket() {
    let Some(ns) = Namespace::new("a_device_whose_queues_could_overtake") else { return };
    let queues = ["numtxqueues", "2", "numrxqueues", "2"];
    let mut words = vec!["link", "add", "name", "q"];
    words.extend(queues);
    words.extend(["type", "veth", "peer", "name", "r"]);
    words.extend(queues);
    ns.ip(&words);
    quiet(&ns, &["q", "r"]);
    netns::inside(&ns.0, || {
        let _theirs = Pass::attach("r", index("r"), &[XdpMode::Native]).expect("attached");
        let mut line = Line::open("q", "r");
        let said = line.port.report().to_string();
        assert!(said.ends_with("socket buffers for all frames (it has several queues)"), "{said}");
        line.send([60; 64]);
        assert_eq!((line.observe(64).len(), line.stats().tx_live), (64, 0));
    })
    .expect("entered");
}

/// Set where the test below runs itself with fewer capabilities.
const INSIDE: &str = "WEIR_TEST_WITHOUT_PERFMON";

#[test]
fn without_the_capability_it_says_which_one_is_missing() {
    let test = "without_the_capability_it_says_which_one_is_missing";
    if std::env::var_os(INSIDE).is_some() {
        let refused = LiveTransmit::new().expect_err("without CAP_PERFMON").to_string();
        assert!(refused.contains("CAP_BPF, CAP_PERFMON, CAP_NET_ADMIN"), "{refused}");
        return;
    }
    let Some(ns) = Namespace::new(test) else { return };
    let ourselves = std::env::current_exe().expect("known");
    let mut command = ns.command("setpriv");
    command.args(["--bounding-set", "-perfmon,-sys_admin", "--"]).arg(ourselves);
    let run = command.args(["--exact", &format!("live_transmit::{test}")]).env(INSIDE, "1").output();
    match run {
        Ok(output) if output.status.success() => {
            let said = String::from_utf8_lossy(&output.stdout);
            assert!(said.contains("1 passed"), "it ran: {said}");
        }
        Ok(output) if Command::new("setpriv").arg("--version").output().is_ok() => {
            panic!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
        }
        _ => drop(writeln!(std::io::stderr(), "SKIP {test}: setpriv (util-linux) is missing")),
    }
}
