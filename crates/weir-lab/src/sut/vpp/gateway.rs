//! Two VPPs with an ESP tunnel between them, keys by hand: every suite it has, by policies or by a route.
//!
//! ```text
//! policy   route to the far network by the other gateway; the SPD of the outer port protects what is for it
//! route    route to the far network by an IPIP interface that an SA each way protects
//! ```
//!
//! Without a table `ipsec` they stand as weir's gateways do: AES-GCM-128 and a route. Refuses, by name: what is of one
//! direction, of an SPD's depth, or of another's crypto.

use std::fmt::Write as _;

use weir_core::ipsec::{Encryption, Integrity, Suite};
use weir_io::xdp_pass::Pass;

use super::{Daemon, PORTS, UNSEALED, absent, interface, unmerged, unsealed};
use crate::model::ipsec::{Backend, CipherName, Direction, Mode, Protection};
use crate::model::{Configuration, Family, LabError};
use crate::netns::veth::Port;
use crate::sut::gateway::{Gateway, Pair, Side};
use crate::sut::peer::ProcessPlacement;

const FIRST_SPI: usize = 0x1000;
/// Ids of the two SAs of a gateway.
const OUT: u32 = 1;
const IN: u32 = 2;
/// What is measured is no secret; each direction has its own.
const FILLS: [u8; 2] = [0x5a, 0xa5];
/// What a window is in VPP where no size is said.
const OWN_WINDOW: u16 = 64;

pub fn missing(configuration: &Configuration) -> Option<String> {
    absent().or_else(|| refused(configuration))
}

/// Why two of them cannot do as a configuration asks, with the remedy.
pub fn refused(c: &Configuration) -> Option<String> {
    let p = c.ipsec()?;
    let reason = if p.direction != Direction::Out {
        "between gateways packets go both ways: use direction = \"out\""
    } else if p.policies != 1 || !p.spd.is_default() {
        "between gateways its SPD has the policies of one tunnel: use topology = \"netns\" for its depth"
    } else if p.backend != Backend::Auto {
        "it chooses its crypto engine: remove `backend`"
    } else if unsealed(&p) {
        UNSEALED
    } else if p.outer != Family::Inet {
        "between gateways the outer header is IPv4: use outer = \"inet\""
    } else {
        return None;
    };
    Some(format!("vpp: {reason}"))
}

struct Vpp {
    daemon: Daemon,
    _unmerged: [Pass; 2],
}

/// One of the two, as its commands see it.
pub(super) struct End<'a> {
    pub own: usize,
    pub far: usize,
    pub inner: &'a Port,
    pub outer: &'a Port,
    pub protection: Protection,
}

impl<'a> End<'a> {
    fn of(side: &'a Side<'a>) -> End<'a> {
        let protection = protection(side.configuration);
        End { own: side.number(), far: side.other(), inner: side.inner, outer: side.outer, protection }
    }
}

pub fn start(pair: Pair<'_>) -> Result<Vec<Box<dyn Gateway>>, LabError> {
    let both = pair.0.iter().map(|side| {
        let place = ProcessPlacement { namespace: Some(side.namespace), cpus: &[side.cpu] };
        let unmerged = [unmerged(side.namespace, side.inner)?, unmerged(side.namespace, side.outer)?];
        let daemon = Daemon::start(place, "", &commands(&End::of(side)))?;
        Ok(Box::new(Vpp { daemon, _unmerged: unmerged }) as Box<dyn Gateway>)
    });
    both.collect()
}

impl Gateway for Vpp {
    fn notes(&self) -> Vec<String> {
        vec![self.daemon.note.clone(), PORTS.into()]
    }

    fn log(&self) -> String {
        self.daemon.started.said()
    }
}

pub(super) fn protection(c: &Configuration) -> Protection {
    let own = || Protection::new(Mode::Route, Direction::Out, CipherName(Suite::AES_GCM_128));
    c.ipsec().unwrap_or_else(own)
}

/// Interfaces, SAs, and what leads packets to them, as its command line takes them.
pub(super) fn commands(end: &End<'_>) -> String {
    let End { own, far, inner, outer, protection } = end;
    let mut text = String::new();
    interface(&mut text, inner, &[format!("10.{own}.0.1/24")]);
    interface(&mut text, outer, &[format!("192.0.2.{own}/24")]);
    // in an SPD's tunnel the SA has the outer addresses, on an IPIP interface that has them
    let ends = |from: &usize, to: &usize| match protection.mode {
        Mode::Policy => format!(" tunnel src 192.0.2.{from} dst 192.0.2.{to}"),
        Mode::Route => String::new(),
    };
    let _ = writeln!(text, "{}{}", sa(OUT, *own, protection), ends(own, far));
    let _ = writeln!(text, "{}{} inbound{}", sa(IN, *far, protection), ends(far, own), window(protection));
    match protection.mode {
        Mode::Policy => policies(&mut text, end),
        Mode::Route => {
            let _ = writeln!(text, "create ipip tunnel src 192.0.2.{own} dst 192.0.2.{far}");
            let _ = writeln!(text, "ipsec tunnel protect ipip0 sa-in {IN} sa-out {OUT}");
            let _ = writeln!(text, "set interface state ipip0 up");
            let _ = writeln!(text, "set interface unnumbered ipip0 use host-{}", outer.name);
            let _ = writeln!(text, "ip route add 10.{far}.0.0/24 via ipip0");
        }
    }
    text
}

/// ESP itself passes both ways; what is between the two networks is protected.
fn policies(text: &mut String, end: &End<'_>) {
    let (own, far, outer) = (end.own, end.far, &end.outer.name);
    let _ = writeln!(text, "ip route add 10.{far}.0.0/24 via 192.0.2.{far} host-{outer}");
    let _ = writeln!(text, "ipsec spd add 1\nset interface ipsec spd host-{outer} 1");
    for way in ["inbound", "outbound"] {
        let _ = writeln!(text, "ipsec policy add spd 1 priority 100 {way} action bypass protocol 50");
    }
    let ranges =
        format!("local-ip-range 10.{own}.0.0 - 10.{own}.0.255 remote-ip-range 10.{far}.0.0 - 10.{far}.0.255");
    for (way, id) in [("outbound", OUT), ("inbound", IN)] {
        let _ = writeln!(text, "ipsec policy add spd 1 priority 10 {way} action protect sa {id} {ranges}");
    }
}

/// One from the gateway `from`, in the words of VPP.
fn sa(id: u32, from: usize, p: &Protection) -> String {
    let (suite, fill) = (p.cipher.0, FILLS[(from - 1) % 2]);
    let key = |bytes: usize| format!("{fill:02x}").repeat(bytes);
    let mut text = format!("ipsec sa add {id} spi {} esp crypto-alg {}", FIRST_SPI + from, encryption(suite));
    if suite.encryption().key_len() > 0 {
        let _ = write!(text, " crypto-key {}", key(suite.encryption().key_len()));
    }
    if suite.encryption().salt_len() > 0 {
        let _ = write!(text, " salt 0x{}", key(suite.encryption().salt_len()));
    }
    if let Some(integrity) = suite.integrity() {
        let _ =
            write!(text, " integ-alg {} integ-key {}", self::integrity(integrity), key(integrity.key_len()));
    }
    if p.esn {
        text += " use-esn";
    }
    text
}

pub(super) fn integrity(integrity: Integrity) -> String {
    integrity.name().trim_start_matches("hmac-").replace("sha2-", "sha-")
}

pub(super) fn encryption(suite: Suite) -> &'static str {
    match suite.encryption() {
        Encryption::Null => "none",
        other => other.name(),
    }
}

fn window(p: &Protection) -> String {
    match p.replay_window {
        0 => String::new(),
        OWN_WINDOW => " use-anti-replay".into(),
        other => format!(" use-anti-replay anti-replay-size {other}"),
    }
}
