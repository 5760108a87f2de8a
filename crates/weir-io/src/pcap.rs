//! `pcap`: a port that receives from one capture file and sends into another.
//!
//! For replaying a fault and for looking at what a router would have sent. Reception is as fast as it is
//! asked for, and then the port is [`Pcap::finished`]; frames cut at capture (snap length) are refused and
//! counted, for they are not what was on the wire.

use std::fs::File;
use std::io::{BufReader, BufWriter, Write};
use std::path::Path;
use std::time::Duration;

use pcap_file::pcap::{PcapHeader, PcapPacket, PcapReader, PcapWriter};
use pcap_file::{DataLink, PcapError};
use weir_core::device::{Device, DeviceStats};
use weir_core::packet::{Batch, Buffer, DeviceId, Frame, Pool};
use weir_core::time::{Nanos, SECOND};

use crate::clock;
use crate::port_error::PortError;

/// Largest frame kept in a written capture: every frame, whole.
const SNAP_LENGTH: u32 = 65_535;

/// See the module.
pub struct Pcap {
    device: DeviceId,
    reader: Option<PcapReader<BufReader<File>>>,
    writer: Option<PcapWriter<BufWriter<File>>>,
    started: Nanos,
    stats: DeviceStats,
}

impl Pcap {
    /// Receives from `from` and sends to `to`; either may be absent.
    pub fn open(from: Option<&Path>, to: Option<&Path>, device: DeviceId) -> Result<Pcap, PortError> {
        let refused =
            |path: &Path, what: String| PortError::new(format!("port pcap:{}: {what}", path.display()));
        let reader = match from {
            None => None,
            Some(path) => {
                let file = File::open(path)
                    .map_err(|e| refused(path, format!("cannot be read: {e}; check the path")))?;
                let reader = PcapReader::new(BufReader::new(file)).map_err(|e| {
                    refused(path, format!("is not a capture ({e}); expected the pcap format, not pcapng"))
                })?;
                if reader.header().datalink != DataLink::ETHERNET {
                    let found = reader.header().datalink;
                    return Err(refused(
                        path,
                        format!("link type is {found:?}, expected Ethernet; capture on a device"),
                    ));
                }
                Some(reader)
            }
        };
        let writer = match to {
            None => None,
            Some(path) => {
                let file = File::create(path)
                    .map_err(|e| refused(path, format!("cannot be written: {e}; check the path")))?;
                let header = PcapHeader {
                    snaplen: SNAP_LENGTH,
                    datalink: DataLink::ETHERNET,
                    ts_resolution: pcap_file::TsResolution::NanoSecond,
                    ..PcapHeader::default()
                };
                let writer = PcapWriter::with_header(BufWriter::new(file), header)
                    .map_err(|e| refused(path, format!("cannot be written: {e}; check the disk")))?;
                Some(writer)
            }
        };
        Ok(Pcap { device, reader, writer, started: clock::now(), stats: DeviceStats::default() })
    }

    /// Everything in the file has been received.
    pub fn finished(&self) -> bool {
        self.reader.is_none()
    }

    /// Writes out what is buffered. Dropping the port does so too, but cannot tell of a full disk.
    pub fn flush(&mut self) -> Result<(), PortError> {
        let Some(writer) = self.writer.take() else { return Ok(()) };
        let mut inner = writer.into_writer();
        inner
            .flush()
            .map_err(|e| PortError::new(format!("port pcap: the capture is cut short: {e}; check the disk")))
    }

    fn record(&mut self, data: &[u8]) -> Result<(), PcapError> {
        let since = clock::now() - self.started;
        let time = Duration::new(since / SECOND, (since % SECOND) as u32);
        match &mut self.writer {
            Some(writer) => writer.write_packet(&PcapPacket::new(time, data.len() as u32, data)).map(drop),
            None => Ok(()),
        }
    }
}

impl<B: Buffer> Device<B> for Pcap {
    fn rx(&mut self, pool: &mut Pool<B>, batch: &mut Batch<B>) -> usize {
        let mut taken = 0;
        while batch.room() > 0 {
            let Some(reader) = &mut self.reader else { break };
            let Some(buffer) = pool.take() else { break };
            let packet = match reader.next_packet() {
                Some(Ok(packet)) => packet,
                end => {
                    // A damaged record is counted; nothing behind it can be found again.
                    self.stats.rx_invalid += u64::from(end.is_some());
                    self.reader = None;
                    pool.put(buffer);
                    break;
                }
            };
            if packet.data.len() != packet.orig_len as usize {
                self.stats.rx_invalid += 1;
                pool.put(buffer);
                continue;
            }
            match Frame::from_bytes(buffer, &packet.data, self.device) {
                Ok(frame) => match batch.push(frame) {
                    Ok(()) => taken += 1,
                    Err(frame) => pool.put(frame.into_buffer()),
                },
                Err(buffer) => {
                    self.stats.rx_invalid += 1;
                    pool.put(buffer);
                }
            }
        }
        taken
    }

    fn tx(&mut self, pool: &mut Pool<B>, frames: &mut Vec<Frame<B>>) -> usize {
        let count = frames.len();
        for frame in frames.drain(..) {
            if self.record(frame.data()).is_err() {
                self.stats.tx_invalid += 1;
            }
            pool.put(frame.into_buffer());
        }
        count
    }

    fn buffers_held(&self) -> usize {
        0
    }

    fn stats(&mut self) -> DeviceStats {
        self.stats
    }
}
