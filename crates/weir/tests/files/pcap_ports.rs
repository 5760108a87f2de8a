//! The whole daemon on capture files: no privilege, no interface, the same answers every time.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use weir_core::device::Device;
use weir_core::id::Mac;
use weir_core::packet::{Batch, DeviceId, Frame, Pool};
use weir_core::wire::build;
use weir_core::wire::{Ethernet, Ipv4};
use weir_io::pcap::Pcap;

/// The MAC address of every port that is a file.
const PORT_MAC: Mac = [0x02, 0x77, 0x65, 0x69, 0x72, 0x00];
const SENDER: Mac = [0x02, 0, 0, 0, 0, 1];
const RECEIVER: Mac = [0x02, 0, 0, 0, 0, 2];

/// A folder that goes away with its test.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let path = std::env::temp_dir().join(format!("weir-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).expect("a folder");
        Folder(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn write(path: &Path, frames: &[Vec<u8>]) {
    let mut pool = Pool::boxed(frames.len());
    let mut file = Pcap::open(None, Some(path), DeviceId(0)).expect("a capture file");
    let mut out: Vec<_> = frames
        .iter()
        .map(|f| Frame::from_bytes(pool.take().expect("enough"), f, DeviceId(0)).expect("it fits"))
        .collect();
    file.tx(&mut pool, &mut out);
    assert!(out.is_empty());
}

fn read(path: &Path) -> Vec<Vec<u8>> {
    let mut pool = Pool::boxed(64);
    let mut file = Pcap::open(Some(path), None, DeviceId(0)).expect("a capture file");
    let mut batch = Batch::new();
    let mut frames = Vec::new();
    while Device::<Box<[u8]>>::rx(&mut file, &mut pool, &mut batch) > 0 {
        for frame in batch.drain() {
            frames.push(frame.data().to_vec());
            pool.put(frame.into_buffer());
        }
    }
    frames
}

fn frame(dst: &str, ttl: u8) -> Vec<u8> {
    let dst = dst.parse().expect("an address");
    build::Frame::ipv4([192, 0, 2, 7].into(), dst).macs(PORT_MAC, SENDER).ttl(ttl).udp(
        1000,
        2000,
        b"from a file",
    )
}

#[test]
fn a_capture_is_routed_into_another_without_any_privilege() {
    let folder = Folder::new("pcap");
    let path = |name: &str| folder.0.join(name);
    let mut frames: Vec<Vec<u8>> = (0..100).map(|n| frame(&format!("10.0.{n}.1"), 64)).collect();
    frames.push(frame("172.16.0.1", 64));
    frames.push(frame("10.0.0.1", 1));
    write(&path("in.pcap"), &frames);
    let config = format!(
        "[[port]]\nname = \"in\"\ndevice = \"a\"\nkind = \"pcap\"\nread = \"{}\"\naddresses = [\"192.0.2.1/24\"]\n\
         [[port]]\nname = \"out\"\ndevice = \"b\"\nkind = \"pcap\"\nwrite = \"{}\"\naddresses = [\"198.51.100.1/24\"]\n\
         [[route]]\nprefix = \"10.0.0.0/8\"\nvia = \"198.51.100.2\"\n\
         [[neighbor]]\nport = \"out\"\naddress = \"198.51.100.2\"\nmac = \"02:00:00:00:00:02\"\n",
        path("in.pcap").display(),
        path("out.pcap").display()
    );
    std::fs::write(path("router.toml"), config).expect("a file");
    let socket = path("control.sock");
    let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
    command.arg("--socket").arg(&socket).arg("run").arg(path("router.toml"));
    command.env("STATE_DIRECTORY", path("state"));
    let mut weir = Running(command.stderr(Stdio::piped()).spawn().expect("weir starts"));
    let mut log = BufReader::new(weir.0.stderr.take().expect("piped"));
    let mut said = String::new();
    while !said.contains("is ready") {
        assert!(log.read_line(&mut said).expect("its log") > 0, "it ended: {said}");
    }
    let workers = loop {
        let workers: Vec<weir::view::WorkerCounters> =
            weir::control::client::read(&socket, "/v1/workers").expect("answered");
        if workers.iter().map(|w| w.received).sum::<u64>() == frames.len() as u64 {
            break workers;
        }
        std::thread::yield_now();
    };
    assert_eq!(workers.iter().map(|w| w.balance).sum::<i64>(), 0);
    let drops: Vec<weir::view::Drop> = weir::control::client::read(&socket, "/v1/drops").expect("answered");
    let mut reasons: Vec<(&str, u64)> = drops.iter().map(|d| (d.reason.as_str(), d.packets)).collect();
    reasons.sort_unstable();
    assert_eq!(reasons, [("no_route", 1), ("ttl_expired", 1)]);
    weir_io::process::terminate(weir.0.id()).expect("it runs");
    assert!(weir.0.wait().expect("a child of ours").success());
    let out = read(&path("out.pcap"));
    let forwarded: Vec<&Vec<u8>> =
        out.iter().filter(|f| Ethernet::parse(f.as_slice()).is_ok_and(|e| e.dst() == RECEIVER)).collect();
    assert_eq!(forwarded.len(), 100);
    for (n, frame) in forwarded.iter().enumerate() {
        let ethernet = Ethernet::parse(frame.as_slice()).expect("a frame");
        let packet = Ipv4::parse(ethernet.payload()).expect("a packet");
        assert_eq!((packet.dst().octets(), packet.ttl()), ([10, 0, n as u8, 1], 63), "in order");
    }
}
