//! Make before break: 1,000 rekeys of a tunnel under load, and not one packet lost.
//!
//! Both gateways are whole ones, control side included, joined by a wire on which packets stay a step:
//! what was sealed before a rekey arrives after it.

use crate::testbed::control::{desired, neighbor, port, route, up};
use crate::testbed::ipsec::{sa, tunnel};
use weir_core::control::Control;
use weir_core::ipsec::sa::Direction::{In, Out};
use weir_core::packet::{Batch, DeviceId, Frame, Pool};
use weir_core::router::{Output, Router};
use weir_core::state::{Desired, IpsecSpec};
use weir_core::tables::Tables;
use weir_core::time::{MILLISECOND, Nanos, SECOND};
use weir_core::wire::build;

const REKEYS: u32 = 1000;
const BUFFERS: usize = 256;
/// Frames each way a step.
const LOAD: u16 = 8;

/// One gateway; its LAN is 10.`site`.0.0/24.
struct Gateway {
    site: u8,
    desired: Desired,
    control: Control,
    tables: std::sync::Arc<Tables>,
    router: Router<Box<[u8]>>,
    pool: Pool<Box<[u8]>>,
    out: Output<Box<[u8]>>,
}

fn outer(site: u8) -> String {
    format!("198.51.100.{site}")
}

impl Gateway {
    fn new(site: u8) -> Gateway {
        let other = 3 - site;
        let wan = format!("{}/24", outer(site));
        let lan = format!("10.{site}.0.1/24");
        let mut d = desired(&[port("lan", "eth0", &[&lan]), port("wan", "eth1", &[&wan])]);
        d.ipsec = IpsecSpec { tunnels: vec![tunnel("east", &[], &[])], ..IpsecSpec::default() };
        d.routes = vec![route(&format!("10.{other}.0.0/16"), &["@east"])];
        d.neighbors =
            vec![neighbor("wan", &outer(other), 0xe1), neighbor("lan", &format!("10.{site}.0.2"), 9)];
        let mut gateway_desired = d;
        make(&mut gateway_desired, site, 0);
        switch(&mut gateway_desired, site, 0);
        let ciphers = weir_io::cipher::portable();
        let links = [up("eth0"), up("eth1")];
        let mut control = Control::with_ciphers(gateway_desired.clone(), links, 0, ciphers)
            .unwrap_or_else(|errors| panic!("{errors:?}"));
        let tables = control.take_snapshot().expect("the first");
        let out = Output::new(tables.devices.len());
        let desired = gateway_desired;
        Gateway { site, desired, control, tables, router: Router::new(), pool: Pool::boxed(BUFFERS), out }
    }

    fn apply(&mut self, now: Nanos) {
        if let Err(errors) = self.control.apply(now, self.desired.clone()) {
            panic!("{errors:?}");
        }
    }

    /// Receives frames on a device; what leaves by each of the two.
    fn breathe(&mut self, now: Nanos, device: u16, frames: &[Vec<u8>]) -> [Vec<Vec<u8>>; 2] {
        self.control.tick(now);
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
        let mut sent = [Vec::new(), Vec::new()];
        for (device, ring) in self.out.tx.iter_mut().enumerate() {
            for frame in ring.drain(..) {
                sent[device].push(frame.data().to_vec());
                self.pool.put(frame.into_buffer());
            }
        }
        sent
    }

    fn load(&self, n: u16) -> Vec<u8> {
        let other = 3 - self.site;
        let (src, dst) = ([10, self.site, 0, 2], [10, other, 0, 2]);
        let mac = self.tables.ports[0].mac;
        build::Frame::ipv4(src.into(), dst.into()).macs(mac, [2; 6]).udp(n, 9, &n.to_be_bytes())
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
fn make(d: &mut Desired, site: u8, n: u32) {
    let other = 3 - site;
    let mut back = sa(&format!("in-{n}"), In, spi(n, other), (&outer(other), &outer(site)));
    back.keys = keys(n, other);
    d.ipsec.sas.push(back);
    d.ipsec.tunnels[0].inbound.push(format!("in-{n}"));
}

/// Traffic moves to the n-th outbound SA.
fn switch(d: &mut Desired, site: u8, n: u32) {
    let mut out = sa(&format!("out-{n}"), Out, spi(n, site), (&outer(site), &outer(3 - site)));
    out.keys = keys(n, site);
    d.ipsec.sas.retain(|sa| !sa.name.starts_with("out-"));
    d.ipsec.sas.push(out);
    d.ipsec.tunnels[0].out = vec![format!("out-{n}")];
}

/// The n-th inbound SA goes; it drains.
fn remove(d: &mut Desired, n: u32) {
    let old = format!("in-{n}");
    d.ipsec.tunnels[0].inbound.retain(|name| *name != old);
    d.ipsec.sas.retain(|sa| sa.name != old);
}

/// What is on the wire, a step later than it was sent.
#[derive(Default)]
struct Wire {
    to: [Vec<Vec<u8>>; 2],
}

#[test]
fn thousand_rekeys_under_load_lose_no_packet() {
    let mut gateways = [Gateway::new(1), Gateway::new(2)];
    let mut wire = Wire::default();
    let mut now = SECOND;
    let (mut sent, mut arrived) = (0u64, 0u64);
    for n in 1..=REKEYS {
        // Make: inbound first, at both ends; then traffic moves; then the old one goes.
        for step in 0..3 {
            for gateway in &mut gateways {
                let d = &mut gateway.desired;
                match step {
                    0 => make(d, gateway.site, n),
                    1 => switch(d, gateway.site, n),
                    _ => remove(d, n - 1),
                }
                gateway.apply(now);
                arrived += exchange(gateway, &mut wire, now, LOAD);
                sent += u64::from(LOAD);
            }
            now += 200 * MILLISECOND;
        }
    }
    // What is still on the wire.
    for gateway in &mut gateways {
        arrived += exchange(gateway, &mut wire, now, 0);
    }
    for gateway in &gateways {
        let drops: Vec<_> = gateway.router.ledger().drops.nonzero().collect();
        assert_eq!(drops, [], "site {}", gateway.site);
    }
    assert_eq!(sent, arrived);
}

/// A gateway receives what is on the wire to it and a load from its LAN; how many arrived at its LAN.
fn exchange(gateway: &mut Gateway, wire: &mut Wire, now: Nanos, load: u16) -> u64 {
    let site = usize::from(gateway.site);
    let inbox = std::mem::take(&mut wire.to[site - 1]);
    let lan = gateway.breathe(now, 1, &inbox);
    assert_eq!(lan[0].len(), inbox.len(), "what was sealed is opened");
    let load: Vec<_> = (0..load).map(|n| gateway.load(n)).collect();
    let sealed = gateway.breathe(now, 0, &load);
    assert_eq!(sealed[1].len(), load.len());
    // The other gateway's MAC: the neighbour entry's.
    wire.to[2 - site].extend(sealed[1].iter().cloned());
    lan[0].len() as u64
}
