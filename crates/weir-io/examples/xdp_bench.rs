//! Two halves of a measurement over veth: a forwarder that rewrites MAC addresses (the port layer's own
//! baseline, without a router), and a generator. The lab measures the real router; this measures what
//! carries it.
//!
//! ```text
//! xdp_bench gen IF DST-MAC inet|inet6 FLOWS SECONDS [PPS]
//! xdp_bench forward IN OUT NEXT-HOP-MAC CPU SECONDS [busy]
//! xdp_bench sink IF SECONDS      an AF_XDP socket that counts
//! xdp_bench drop IF SECONDS      an XDP program that counts
//! ```

use std::error::Error;
use std::net::{IpAddr, Ipv6Addr};
use std::time::{Duration, Instant};

use weir_core::device::Device;
use weir_core::packet::{BATCH, Batch, DeviceId, Frame};
use weir_io::af_xdp::{AfXdp, Options};
use weir_io::bpf::attach::XdpMode;
use weir_io::interface::Interface;
use weir_io::steer::flow_offload::{Arrives, Decided, FlowOffload, Leaves};
use weir_io::steer::{LocalAddresses, Steering};
use weir_io::umem::{ChunkSize, Umem};
use weir_io::xdp_gen::{FrameTemplate, Generator, Layout};
use weir_io::xdp_tally::{self, Tally};

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    match args.as_slice() {
        ["gen", interface, mac, family, flows, seconds, rest @ ..] => generate(
            interface,
            mac_of(mac)?,
            *family == "inet6",
            flows.parse()?,
            seconds.parse()?,
            rest.first().map(|r| r.parse()).transpose()?,
        ),
        ["forward", input, output, mac, cpu, seconds, rest @ ..] => {
            weir_io::cpu::pin(cpu.parse()?)?;
            forward(input, output, mac_of(mac)?, seconds.parse()?, rest)
        }
        ["drop", interface, seconds] => count_and_drop(interface, seconds.parse()?),
        ["sink", interface, seconds] => sink(interface, seconds.parse()?),
        _ => Err("usage: xdp_bench gen|forward|sink …; see the top of its source".into()),
    }
}

fn mac_of(text: &str) -> Result<[u8; 6], Box<dyn Error>> {
    let bytes: Result<Vec<u8>, _> = text.split(':').map(|b| u8::from_str_radix(b, 16)).collect();
    Ok(bytes?.try_into().map_err(|_| "a MAC address has six bytes")?)
}

fn generate(
    interface: &str,
    mac: [u8; 6],
    v6: bool,
    flows: u32,
    seconds: f64,
    rate: Option<f64>,
) -> Result<(), Box<dyn Error>> {
    let ifindex = Interface::open(interface)?.index();
    let slots: Vec<FrameTemplate> = (0..flows).map(|flow| slot(mac, v6, flow)).collect();
    let udp = if v6 { 54 } else { 34 };
    let layout = Layout { sequence: Some(udp + 14), time: Some(udp + 18), checksum: Some(udp + 6) };
    let mut generator = Generator::new(ifindex, layout, &slots, 1)?;
    generator.pace(rate)?;
    let start = Instant::now();
    generator.run_until(weir_io::clock::now() + (seconds * 1e9) as u64)?;
    let sent = generator.sent()?;
    println!("gen {interface}: {sent} frames, {:.0} pps", sent as f64 / start.elapsed().as_secs_f64());
    Ok(())
}

/// Ethernet, IP, UDP and 18 bytes; the UDP checksum is left 0 plus whatever the stamp adds.
fn slot(mac: [u8; 6], v6: bool, flow: u32) -> FrameTemplate {
    let mut head = mac.to_vec();
    head.extend([2, 0, 0, 0, 0, 1]);
    let host = flow as u16;
    if v6 {
        head.extend([0x86, 0xdd, 0x60, 0, 0, 0, 0, 26, 17, 64]);
        head.extend(Ipv6Addr::new(0xfd00, 0x10, 0, 0, 0, 0, 1, host).octets());
        head.extend(Ipv6Addr::new(0xfd00, 0x30, 0, 0, 0, 0, 1, host).octets());
    } else {
        head.extend([8, 0]);
        let [high, low] = host.to_be_bytes();
        let mut ip = vec![0x45, 0, 0, 46, 0, 0, 0, 0, 64, 17, 0, 0, 10, 128, high, low, 10, 30, high, low];
        let sum: u32 = ip.chunks(2).map(|w| u32::from(w[0]) << 8 | u32::from(w[1])).sum();
        let sum = !(((sum & 0xffff) + (sum >> 16)) as u16);
        ip[10..12].copy_from_slice(&sum.to_be_bytes());
        head.extend(ip);
    }
    head.extend([0x10, 0, 0x20, 0, 0, 26, 0, 0]);
    head.resize(head.len() + 18, 0);
    let len = head.len() as u16;
    FrameTemplate { head, len, sequence: 0 }
}

fn forward(
    input: &str,
    output: &str,
    mac: [u8; 6],
    seconds: f64,
    rest: &[&str],
) -> Result<(), Box<dyn Error>> {
    let flag =
        |name: &str| rest.iter().find_map(|r| r.strip_prefix(name).and_then(|v| v.parse::<u32>().ok()));
    let local = LocalAddresses::new()?;
    let offload = rest.contains(&"offload").then(FlowOffload::new).transpose()?;
    if let Some(offload) = &offload {
        offload.set_generation(1);
    }
    let (in_index, out_index) = (Interface::open(input)?.index(), Interface::open(output)?.index());
    let steer = |name: &str| -> Result<Steering, Box<dyn Error>> {
        let index = Interface::open(name)?.index();
        Ok(Steering::attach_with(
            name,
            index,
            &[XdpMode::Native, XdpMode::Generic],
            &local,
            offload.as_ref(),
        )?)
    };
    let (steer_in, steer_out) = (steer(input)?, steer(output)?);
    let umem = Umem::new(8192, ChunkSize::default())?;
    let mut pool = umem.pool();
    let mut options = Options::new(DeviceId(0), 0);
    options.busy_poll = flag("busy=").map(|b| b as u16);
    options.posted = flag("posted=").unwrap_or(options.posted);
    options.ring = flag("ring=").unwrap_or(options.ring);
    let mut rx = AfXdp::open(&options, &steer_in, &umem)?;
    options.busy_poll = None;
    let mut tx = AfXdp::open(&options, &steer_out, &umem)?;
    println!("{}\n{}\n{}", rx.report(), tx.report(), umem.pages());
    let block = rest.contains(&"block");
    let batches = flag("gather=").unwrap_or(1);
    let (mut batch, mut out) = (Batch::new(), Vec::with_capacity(4 * BATCH));
    let (mut forwarded, mut dropped, mut breaths, mut idle) = (0u64, 0u64, 0u64, 0u64);
    let mut number = 0;
    let until = Instant::now() + Duration::from_secs_f64(seconds);
    'all: loop {
        for _ in 0..4096 {
            let mut got = 0;
            for _ in 0..batches {
                if let Some(progress) = steer_in.progress(0).filter(|_| !tx.unsent()) {
                    progress.done(number);
                }
                let n = rx.rx(&mut pool, &mut batch);
                if let (Some(progress), Some(frame)) = (steer_in.progress(0), batch.frames_mut().last_mut()) {
                    number = progress.number(frame, number).unwrap_or(number);
                }
                if n == 0 {
                    break;
                }
                got += n;
                for mut frame in batch.drain() {
                    if let Some(offload) = &offload
                        && let Some((source, destination)) = pair(frame.data())
                    {
                        let mut macs = [0; 12];
                        macs.copy_from_slice(&frame.data()[..12]);
                        let own = macs[..6].try_into()?;
                        macs[..6].copy_from_slice(&mac);
                        let (come, go) = (DeviceId(0), DeviceId(1));
                        offload.insert(&Decided {
                            generation: 1,
                            source,
                            destination,
                            flow: None,
                            arrives: Arrives {
                                ifindex: in_index,
                                queue: 0,
                                device: come,
                                vlan: None,
                                mac: own,
                            },
                            leaves: Leaves {
                                ifindex: out_index,
                                device: go,
                                vlan: None,
                                queue: 0,
                                far_queues: 0,
                                mtu: 1500,
                                macs,
                            },
                            policies: None,
                        })?;
                    }
                    frame.data_mut()[..6].copy_from_slice(&mac);
                    out.push(frame);
                }
            }
            if got == 0 {
                idle += 1;
                if block {
                    weir_io::af_xdp::wait_readable(&[rx.poll_fd()], Duration::from_millis(10))?;
                } else if idle.is_multiple_of(16) {
                    std::thread::yield_now();
                }
                if idle.is_multiple_of(4096) && Instant::now() > until {
                    break 'all;
                }
                continue;
            }
            breaths += 1;
            forwarded += tx.tx(&mut pool, &mut out) as u64;
            dropped += out.len() as u64;
            out.drain(..).map(Frame::into_buffer).for_each(|b| pool.put(b));
        }
        if Instant::now() > until {
            break 'all;
        }
    }
    println!(
        "forward: {forwarded} frames, {dropped} dropped, {breaths} breaths, {idle} idle; {:?} {:?}",
        rx.stats(),
        tx.stats()
    );
    if let Some(offload) = &offload {
        println!("offloaded: {:?} {:?}", offload.counters(DeviceId(0))?, offload.counters(DeviceId(1))?);
    }
    println!("held {} + {}, pool {} of {}", rx.buffers_held(), tx.buffers_held(), pool.free(), umem.total());
    Ok(())
}

/// Source and destination of an IP frame.
fn pair(frame: &[u8]) -> Option<(IpAddr, IpAddr)> {
    let bytes = |at: usize, len: usize| frame.get(at..at + len);
    if bytes(12, 2)? == [8, 0] {
        let address = |at| -> Option<[u8; 4]> { bytes(at, 4)?.try_into().ok() };
        return Some((address(26)?.into(), address(30)?.into()));
    }
    let address = |at| -> Option<[u8; 16]> { bytes(at, 16)?.try_into().ok() };
    (bytes(12, 2)? == [0x86, 0xdd]).then_some(())?;
    Some((address(22)?.into(), address(38)?.into()))
}

/// The cheapest receiver there is.
fn count_and_drop(interface: &str, seconds: f64) -> Result<(), Box<dyn Error>> {
    // Nothing it receives has such a mark: every frame is foreign.
    let layout = xdp_tally::Layout { ethertype: 0, protocol_at: 0, protocol: 0, mark_at: 0, magic: [0; 2] };
    let index = Interface::open(interface)?.index();
    let mut tally = Tally::attach(interface, index, layout, 1)?;
    tally.start(0)?;
    std::thread::sleep(Duration::from_secs_f64(seconds));
    println!("drop {interface}: {} frames", tally.counts()?.foreign);
    Ok(())
}

/// Receives, counts and forgets.
fn sink(interface: &str, seconds: f64) -> Result<(), Box<dyn Error>> {
    let local = LocalAddresses::new()?;
    let steering =
        Steering::attach(interface, Interface::open(interface)?.index(), &[XdpMode::Native], &local)?;
    let umem = Umem::new(8192, ChunkSize::default())?;
    let mut pool = umem.pool();
    let mut port = AfXdp::open(&Options::new(DeviceId(0), 0), &steering, &umem)?;
    let mut batch = Batch::new();
    let start = Instant::now();
    let mut received = 0u64;
    while start.elapsed().as_secs_f64() < seconds {
        for _ in 0..64 {
            let got = port.rx(&mut pool, &mut batch);
            received += got as u64;
            batch.drain().map(Frame::into_buffer).for_each(|b| pool.put(b));
            if got == 0 {
                std::thread::yield_now();
            }
        }
    }
    println!("sink {interface}: {received} frames, {:.0} pps; {:?}", received as f64 / seconds, port.stats());
    Ok(())
}
