//! SAs, tunnels and policies as an operator would write them, with ciphers that only count.

use std::net::IpAddr;
use std::sync::Arc;

use weir_core::ipsec::sa::{Direction, Mode};
use weir_core::ipsec::spd::{Action, AddressRange, PortRange};
use weir_core::ipsec::{Cipher, Ciphers, Job, KeyLength, Keys, Params, SaSpec, Secret, Suite};
use weir_core::state::{IpsecSpec, PolicySpec, SpdSpec, TunnelSpec};
use weir_core::tables::ReversePath;

/// Ciphers that leave packets as they are.
#[derive(Debug)]
pub struct Clear;

#[derive(Debug)]
struct ClearCipher(Suite);

impl Ciphers for Clear {
    fn cipher(&self, suite: Suite, _esn: bool, _keys: &Keys) -> Result<Arc<dyn Cipher>, KeyLength> {
        Ok(Arc::new(ClearCipher(suite)))
    }

    fn random(&self) -> u64 {
        0
    }

    /// Good enough to tell keys of tests apart.
    fn digest(&self, parts: &[&[u8]]) -> [u8; 32] {
        let mut digest = [0; 32];
        for (lane, into) in digest.chunks_exact_mut(8).enumerate() {
            let bytes = parts.iter().flat_map(|part| part.iter());
            let seed = 0xcbf2_9ce4_8422_2325 ^ lane as u64;
            let sum = bytes.fold(seed, |sum, &b| (sum ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3));
            into.copy_from_slice(&sum.to_le_bytes());
        }
        digest
    }
}

impl Cipher for ClearCipher {
    fn suite(&self) -> Suite {
        self.0
    }

    fn backend(&self) -> String {
        "clear".into()
    }

    fn seal(&self, _jobs: &mut [Job<'_>]) {}

    fn open(&self, jobs: &mut [Job<'_>]) {
        jobs.iter_mut().for_each(|job| job.authentic = true);
    }
}

fn ip(text: &str) -> IpAddr {
    text.parse().expect("address")
}

/// A tunnel-mode AES-GCM-128 SA with a key of its own.
pub fn sa(name: &str, direction: Direction, spi: u32, ends: (&str, &str)) -> SaSpec {
    let params = Params::new(direction, spi, Mode::Tunnel, (ip(ends.0), ip(ends.1)), Suite::AES_GCM_128);
    let mut key = vec![direction as u8 + 1; 20];
    key[..4].copy_from_slice(&spi.to_be_bytes());
    let keys = Keys { encryption: Secret::new(key), integrity: Secret::new(Vec::new()) };
    SaSpec { name: name.into(), params, keys }
}

/// The gateways' addresses on the WAN.
pub const HERE: &str = "198.51.100.1";
pub const THERE: &str = "198.51.100.2";

/// A tunnel, and an enforced WAN with one policy; an SA each way for both.
pub fn east_and_border() -> IpsecSpec {
    IpsecSpec {
        sas: vec![
            sa("east-out", Direction::Out, 0x1001, (HERE, THERE)),
            sa("east-in", Direction::In, 0x1002, (THERE, HERE)),
            sa("site-out", Direction::Out, 0x2001, (HERE, THERE)),
            sa("site-in", Direction::In, 0x2002, (THERE, HERE)),
        ],
        tunnels: vec![tunnel("east", &["east-out"], &["east-in"])],
        spds: vec![spd(
            "border",
            &["wan"],
            &[protect("site", "192.0.2.0/24", "10.2.0.0/16", &["site-out"], &["site-in"])],
        )],
        ..IpsecSpec::default()
    }
}

fn names(of: &[&str]) -> Vec<String> {
    of.iter().map(|n| n.to_string()).collect()
}

pub fn tunnel(name: &str, out: &[&str], inbound: &[&str]) -> TunnelSpec {
    TunnelSpec {
        name: name.into(),
        out: names(out),
        inbound: names(inbound),
        addresses: Vec::new(),
        mtu: None,
        reverse_path: ReversePath::Off,
    }
}

pub fn spd(name: &str, ports: &[&str], policies: &[PolicySpec]) -> SpdSpec {
    SpdSpec {
        name: name.into(),
        ports: names(ports),
        default: Action::Discard,
        policies: policies.to_vec().into(),
        route_mode: None,
    }
}

/// `10.0.0.0-10.0.0.255`, `10.0.0.0/24` or one address; empty is any.
pub fn ranges(text: &str) -> Vec<AddressRange> {
    let range = |text: &str| {
        if let Some((first, last)) = text.split_once('-') {
            return AddressRange { first: ip(first), last: ip(last) };
        }
        let (address, len) = text.split_once('/').map_or((text, None), |(a, l)| (a, Some(l)));
        let first = ip(address);
        let len: Option<u32> = len.map(|l| l.parse().expect("length"));
        let last = match (first, len) {
            (IpAddr::V4(a), Some(len)) => {
                IpAddr::V4((u32::from(a) | u32::MAX.checked_shr(len).unwrap_or(0)).into())
            }
            (IpAddr::V6(a), Some(len)) => {
                IpAddr::V6((u128::from(a) | u128::MAX.checked_shr(len).unwrap_or(0)).into())
            }
            (one, None) => one,
        };
        AddressRange { first, last }
    };
    text.split(',').filter(|t| !t.is_empty()).map(range).collect()
}

/// Any protocol, both directions.
pub fn policy(name: &str, action: Action, local: &str, remote: &str) -> PolicySpec {
    PolicySpec {
        name: name.into(),
        direction: None,
        local: ranges(local),
        remote: ranges(remote),
        protocol: None,
        local_ports: PortRange::ANY,
        remote_ports: PortRange::ANY,
        icmp: PortRange::ANY,
        action,
        out: Vec::new(),
        inbound: Vec::new(),
    }
}

pub fn protect(name: &str, local: &str, remote: &str, out: &[&str], inbound: &[&str]) -> PolicySpec {
    PolicySpec { out: names(out), inbound: names(inbound), ..policy(name, Action::Protect, local, remote) }
}
