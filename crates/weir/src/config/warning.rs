//! What a configuration allows that may not be meant: it runs, and protects less than it may seem to.
//!
//! Promises: a warning stops nothing; each is a type, and one sentence with its remedy. `weir check` prints them,
//! daemons log them at the start and when a configuration is applied.

use std::fmt;
use std::net::SocketAddr;

use weir_core::ipsec::spd::Action;
use weir_core::state::SaWarning;
use weir_relay::warning::{self, is_loopback};

use super::Config;

/// One thing to think about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Warning {
    /// An SA.
    Sa(SaWarning),
    /// Packets no policy names pass in cleartext.
    SpdBypassesByDefault { spd: String },
    /// Every lookup is done twice.
    SpdOracle,
    /// Anyone may read the counters.
    MetricsExposed { address: SocketAddr },
    /// A relay.
    Relay(warning::Warning),
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Warning::Sa(warning) => warning.fmt(f),
            Warning::SpdBypassesByDefault { spd } => write!(
                f,
                "spd {spd}: what no policy names passes in cleartext, in and out; write `default = \"drop\"`, and a policy of action `bypass` for what is to pass"
            ),
            Warning::SpdOracle => f.write_str(
                "spd-oracle is on: every packet is asked about twice, the second time rule by rule; it finds defects, switch it off to forward at speed",
            ),
            Warning::MetricsExposed { address } => write!(
                f,
                "control: metrics: whoever reaches {address} may read names and counters; write an address that only your collector reaches, such as `\"127.0.0.1:{}\"`",
                address.port()
            ),
            Warning::Relay(warning) => warning.fmt(f),
        }
    }
}

impl Config {
    /// Every warning about this file, in its order.
    pub fn warnings(&self) -> Vec<Warning> {
        let spec = self.ipsec.spec(&|sa| self.keys(sa));
        let mut found: Vec<Warning> =
            weir_core::state::warnings(&spec).into_iter().map(Warning::Sa).collect();
        let open = spec.spds.iter().filter(|spd| spd.default == Action::Bypass);
        found.extend(open.map(|spd| Warning::SpdBypassesByDefault { spd: spd.name.clone() }));
        if spec.lookup.oracle {
            found.push(Warning::SpdOracle);
        }
        let exposed = |address: &SocketAddr| !is_loopback(address.ip());
        found.extend(self.control.metrics.filter(exposed).map(|address| Warning::MetricsExposed { address }));
        if let Some(relay) = &self.relay {
            found
                .extend(warning::warnings(&relay.acceptor, &relay.mesh_with).into_iter().map(Warning::Relay));
        }
        found
    }
}
