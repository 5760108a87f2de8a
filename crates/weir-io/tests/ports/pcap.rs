//! Captures as ports: what is written is read back, and damage is counted, not guessed at.

use std::fs;
use std::path::PathBuf;

use weir_core::device::Device;
use weir_core::packet::{Batch, DeviceId, Frame, Pool};
use weir_io::pcap::Pcap;

struct File(PathBuf);

impl File {
    fn new(test: &str) -> File {
        File(std::env::temp_dir().join(format!("weir-{test}-{}.pcap", std::process::id())))
    }

    /// A capture of frames of these lengths, filled with their number.
    fn with_frames(test: &str, lengths: &[usize]) -> File {
        let file = File::new(test);
        let mut port = Pcap::open(None, Some(&file.0), DeviceId(0)).expect("created");
        let mut pool = Pool::boxed(lengths.len());
        let mut frames = Vec::new();
        for (n, &length) in lengths.iter().enumerate() {
            let buffer = pool.take().expect("a buffer");
            frames.push(Frame::from_bytes(buffer, &vec![n as u8; length], DeviceId(0)).expect("fits"));
        }
        assert_eq!(port.tx(&mut pool, &mut frames), lengths.len());
        assert_eq!(pool.free(), lengths.len());
        port.flush().expect("written");
        file
    }
}

impl Drop for File {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

#[test]
fn frames_come_back_in_order_and_whole() {
    let lengths: Vec<usize> = (0..200).map(|n| 60 + n * 7).collect();
    let file = File::with_frames("frames_come_back", &lengths);
    let mut port = Pcap::open(Some(&file.0), None, DeviceId(4)).expect("opened");
    let mut pool = Pool::boxed(16);
    let mut seen = Vec::new();
    while !port.finished() {
        let mut batch = Batch::new();
        port.rx(&mut pool, &mut batch);
        for frame in batch.drain() {
            assert_eq!(frame.device, DeviceId(4));
            assert!(frame.data().iter().all(|&b| b == seen.len() as u8));
            seen.push(frame.len());
            pool.put(frame.into_buffer());
        }
    }
    assert_eq!(seen, lengths);
    assert_eq!(pool.free(), 16);
}

#[test]
fn capture_cut_in_the_middle_of_a_frame_is_counted_and_ends() {
    let file = File::with_frames("capture_cut", &[100, 100]);
    let whole = fs::read(&file.0).expect("readable");
    fs::write(&file.0, &whole[..whole.len() - 30]).expect("written");
    let mut port = Pcap::open(Some(&file.0), None, DeviceId(0)).expect("opened");
    let mut pool = Pool::boxed(4);
    let mut batch = Batch::new();
    assert_eq!(port.rx(&mut pool, &mut batch), 1);
    assert!(port.finished());
    assert_eq!(Device::<Box<[u8]>>::stats(&mut port).rx_invalid, 1);
}

#[test]
fn what_is_not_a_capture_is_refused() {
    let file = File::new("not_a_capture");
    fs::write(&file.0, b"this is a text").expect("written");
    let error = Pcap::open(Some(&file.0), None, DeviceId(0)).err().expect("refused").to_string();
    assert!(error.contains("is not a capture") && error.contains("expected the pcap format"), "{error}");
    let error = Pcap::open(Some("/nonexistent.pcap".as_ref()), None, DeviceId(0)).err().expect("refused");
    assert!(error.to_string().contains("cannot be read"), "{error}");
}
