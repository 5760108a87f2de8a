//! Two `weir` daemons whose keys are strongSwan's: `keys = "kernel"` beside an unmodified charon in each gateway.
//!
//! ```text
//! charon ─ IKEv2 ─ charon          each tells its kernel its SAs and policies; weir beside it follows
//!   weir ═══ ESP ═══ weir          what it hears, and is the only one that forwards
//! ```

use std::path::Path;

use super::Weir;
use crate::model::{Configuration, LabError};
use crate::sut::gateway::{Gateway, Pair, Side};
use crate::sut::strongswan::{self, Esp};

/// What it needs and this machine lacks, with the remedy.
pub fn missing(configuration: &Configuration) -> Option<String> {
    if configuration.placement.port == "tun" {
        return Some(
            "weir-strongswan: both its ports are wires: use port = \"af_xdp\" or \"af_packet\"".into(),
        );
    }
    strongswan::missing(Esp::Weir)
        .or_else(|| super::program().is_none().then(|| crate::sut::MISSING_WEIR.into()))
}

pub fn start(pair: Pair<'_>) -> Result<Vec<Box<dyn Gateway>>, LabError> {
    let daemons = strongswan::daemons(Pair(pair.0), Esp::Weir)?;
    let mut both: Vec<Box<dyn Gateway>> = Vec::new();
    for side in pair.0 {
        let roles = [(&side.inner.name, "inner"), (&side.outer.name, "outer")];
        both.push(Box::new(Weir::launch(side.namespace, &roles, |_, socket| {
            Ok(configuration(side, socket))
        })?));
    }
    daemons[0].initiate()?;
    both.extend(daemons.map(|daemon| Box::new(daemon) as Box<dyn Gateway>));
    Ok(both)
}

fn configuration(side: &Side<'_>, socket: &Path) -> String {
    let far = side.other();
    let kind = match side.configuration.placement.port.as_str() {
        "" => "af_xdp",
        kind => kind,
    };
    let port = |name: &str, device: &str| {
        format!(
            "[[port]]\nname = \"{name}\"\ndevice = \"{device}\"\nkind = \"{kind}\"\naddresses = \"kernel\"\n\n"
        )
    };
    format!(
        "keys = {{ from = \"kernel\", ports = [\"outer\"], default = \"drop\" }}\n\n[control]\nsocket = {socket:?}\n\n\
         [workers]\ncpus = [{}]\n\n{}{}[[route]]\nprefix = \"10.{far}.0.0/24\"\nvia = \"192.0.2.{far}\"\n",
        side.cpu,
        port("inner", &side.inner.name),
        port("outer", &side.outer.name),
    )
}
