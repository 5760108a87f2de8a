//! A whole gateway, control side included, with a LAN, a WAN and a tunnel to another of its kind that is rekeyed.

use std::sync::Arc;

use weir_core::control::Control;
use weir_core::ipsec::sa::Direction::{In, Out};
use weir_core::packet::{Batch, DeviceId, Frame, Pool};
use weir_core::router::{Output, Router};
use weir_core::state::{Desired, IpsecSpec};
use weir_core::tables::Tables;
use weir_core::time::Nanos;
use weir_core::wire::build;

use super::control::{desired, neighbor, port, route, up};
use super::ipsec::{sa, tunnel};

/// How many buffers each gateway has.
pub const BUFFERS: usize = 256;

/// One gateway; its LAN is 10.`site`.0.0/24.
pub struct Gateway {
    pub site: u8,
    pub desired: Desired,
    pub control: Control,
    pub tables: Arc<Tables>,
    pub router: Router<Box<[u8]>>,
    pub pool: Pool<Box<[u8]>>,
    out: Output<Box<[u8]>>,
}

/// Its address on the WAN.
pub fn outer(site: u8) -> String {
    format!("198.51.100.{site}")
}

impl Gateway {
    pub fn new(site: u8) -> Gateway {
        let other = 3 - site;
        let wan = format!("{}/24", outer(site));
        let lan = format!("10.{site}.0.1/24");
        let mut d = desired(&[port("lan", "eth0", &[&lan]), port("wan", "eth1", &[&wan])]);
        d.ipsec = IpsecSpec { tunnels: vec![tunnel("east", &[], &[])], ..IpsecSpec::default() };
        d.routes = vec![route(&format!("10.{other}.0.0/16"), &["@east"])];
        d.neighbors =
            vec![neighbor("wan", &outer(other), 0xe1), neighbor("lan", &format!("10.{site}.0.2"), 9)];
        make(&mut d, site, 0);
        switch(&mut d, site, 0);
        let ciphers = weir_io::cipher::portable();
        let links = [up("eth0"), up("eth1")];
        let mut control =
            Control::with_ciphers(d.clone(), links, 0, ciphers).unwrap_or_else(|errors| panic!("{errors:?}"));
        let tables = control.take_snapshot().expect("the first");
        let out = Output::new(tables.devices.len());
        Gateway { site, desired: d, control, tables, router: Router::new(), pool: Pool::boxed(BUFFERS), out }
    }

    /// Does as `desired` says.
    pub fn apply(&mut self, now: Nanos) {
        if let Err(errors) = self.control.apply(now, self.desired.clone()) {
            panic!("{errors:?}");
        }
    }

    /// Receives frames on a device; what leaves by each of the two.
    pub fn breathe(&mut self, now: Nanos, device: u16, frames: &[Vec<u8>]) -> [Vec<Vec<u8>>; 2] {
        self.control.tick(now);
        // nobody listens at the LANs; neighbours are written down
        self.control.take_transmits();
        self.control.take_sa_events();
        if let Some(tables) = self.control.take_snapshot() {
            self.tables = tables;
        }
        let mut batch = Batch::new();
        for bytes in frames {
            let buffer = self.pool.take().expect("a buffer");
            batch.push(Frame::from_bytes(buffer, bytes, DeviceId(device)).expect("fits")).expect("room");
        }
        self.router.forward(now, &self.tables, &mut batch, &mut self.pool, &mut self.out);
        self.router.tick(now, &self.tables, &mut self.pool, &mut self.out);
        self.router.taken(&self.tables, &self.out);
        assert_eq!(self.router.ledger().balance(), 0);
        for event in self.out.events.drain(..) {
            self.control.handle_event(now, event);
        }
        assert!(self.out.punt.is_empty(), "the load has no ARP");
        let mut sent = [Vec::new(), Vec::new()];
        for (device, ring) in self.out.tx.iter_mut().enumerate() {
            for frame in ring.drain(..) {
                sent[device].push(frame.data().to_vec());
                self.pool.put(frame.into_buffer());
            }
        }
        sent
    }

    /// A datagram from its LAN to the other's, which names itself.
    pub fn load(&self, n: u64) -> Vec<u8> {
        let other = 3 - self.site;
        let (src, dst) = ([10, self.site, 0, 2], [10, other, 0, 2]);
        let mac = self.tables.ports[0].mac;
        build::Frame::ipv4(src.into(), dst.into()).macs(mac, [2; 6]).udp(n as u16, 9, &n.to_be_bytes())
    }
}

/// SPI and key of the n-th generation from a site: new each time, and the same at both ends.
fn spi(n: u32, from: u8) -> u32 {
    0x1_0000 + n * 4 + u32::from(from)
}

fn keys(n: u32, from: u8) -> weir_core::ipsec::Keys {
    sa("", Out, spi(n, from), ("::", "::")).keys
}

/// The n-th inbound SA is accepted, beside the one before.
pub fn make(d: &mut Desired, site: u8, n: u32) {
    let other = 3 - site;
    let mut back = sa(&format!("in-{n}"), In, spi(n, other), (&outer(other), &outer(site)));
    back.keys = keys(n, other);
    d.ipsec.sas.push(back);
    d.ipsec.tunnels[0].inbound.push(format!("in-{n}"));
}

/// Traffic moves to the n-th outbound SA.
pub fn switch(d: &mut Desired, site: u8, n: u32) {
    let mut out = sa(&format!("out-{n}"), Out, spi(n, site), (&outer(site), &outer(3 - site)));
    out.keys = keys(n, site);
    d.ipsec.sas.retain(|sa| !sa.name.starts_with("out-"));
    d.ipsec.sas.push(out);
    d.ipsec.tunnels[0].out = vec![format!("out-{n}")];
}

/// The n-th inbound SA goes; it drains.
pub fn remove(d: &mut Desired, n: u32) {
    let old = format!("in-{n}");
    d.ipsec.tunnels[0].inbound.retain(|name| *name != old);
    d.ipsec.sas.retain(|sa| sa.name != old);
}
