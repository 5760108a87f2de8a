//! Two `weir` daemons with a tunnel between them, AES-GCM-128, keys from their files.

use std::fmt::Write as _;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use super::Weir;
use crate::model::LabError;
use crate::sut::gateway::MTU;
use crate::sut::gateway::{Gateway, Pair, Side};

/// Keys of strongSwan's form: 128 bits of key, 32 of salt. What is measured is no secret.
pub const KEYS: [&str; 2] =
    ["5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a", "a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5"];
pub const FIRST_SPI: u32 = 0x1000;
/// The replay window is strongSwan's.
pub const WINDOW: u16 = 32;

/// The inner port where it is a TUN device, in each gateway's own namespace.
const TUN: &str = "weir-inner";

pub fn start(pair: Pair<'_>) -> Result<Vec<Box<dyn Gateway>>, LabError> {
    let both = pair.0.iter().map(|side| {
        let roles = [(&side.inner.name, "inner"), (&side.outer.name, "outer")];
        let weir = Weir::launch(side.namespace, &roles, |folder, socket| {
            let keys = folder.join("gateway.keys");
            fs::write(&keys, format!("sa-1 = \"{}\"\nsa-2 = \"{}\"\n", KEYS[0], KEYS[1]))?;
            fs::set_permissions(&keys, fs::Permissions::from_mode(0o600))?;
            Ok(configuration(side, socket))
        })?;
        if is_tun(side) {
            beside_kernel(side)?;
        }
        Ok(Box::new(weir) as Box<dyn Gateway>)
    });
    both.collect()
}

fn is_tun(side: &Side<'_>) -> bool {
    side.configuration.placement.port == "tun"
}

/// The kernel keeps the inner network and hands what is for the far one to the daemon.
fn beside_kernel(side: &Side<'_>) -> Result<(), LabError> {
    let (own, far) = (side.number(), side.other());
    side.namespace.sysctl("net/ipv4/ip_forward", "1")?;
    side.namespace.ip_batch(format!(
        "address add 10.{own}.0.1/24 dev {inner}\nlink set {TUN} mtu {MTU} up\nroute add 10.{far}.0.0/24 dev {TUN}\n",
        inner = side.inner.name
    ))
}

fn configuration(side: &Side<'_>, socket: &Path) -> String {
    let (own, far) = (side.number(), side.other());
    let outer = match side.configuration.placement.port.as_str() {
        "" | "tun" => "af_xdp",
        kind => kind,
    };
    let mut text = format!(
        "[control]\nsocket = {socket:?}\n\n[workers]\ncpus = [{}]\n\n[ipsec]\nkeys = \"gateway.keys\"\n",
        side.cpu
    );
    let port = |name: &str, device: &str, kind: &str, address: &str| {
        format!("\n[[port]]\nname = \"{name}\"\ndevice = \"{device}\"\nkind = \"{kind}\"\n{address}")
    };
    let address = |text: String| format!("addresses = [\"{text}\"]\n");
    text += &if is_tun(side) {
        let inner = port("inner", TUN, "tun", "");
        inner + &format!("\n[[route]]\nprefix = \"10.{own}.0.0/24\"\nvia = {{ port = \"inner\" }}\n")
    } else {
        port("inner", &side.inner.name, outer, &address(format!("10.{own}.0.1/24")))
    };
    text += &port("outer", &side.outer.name, outer, &address(format!("192.0.2.{own}/24")));
    for (direction, from, to) in [("out", own, far), ("in", far, own)] {
        let spi = FIRST_SPI + from as u32;
        let _ = write!(
            text,
            "\n[[sa]]\nname = \"{direction}\"\ndirection = \"{direction}\"\nspi = {spi}\nsource = \"192.0.2.{from}\"\n\
             destination = \"192.0.2.{to}\"\ncipher = \"aes-gcm-128\"\nkey = \"sa-{from}\"\n"
        );
        if direction == "in" {
            let _ = writeln!(text, "replay_window = {WINDOW}");
        }
    }
    let _ = write!(
        text,
        "\n[[tunnel]]\nname = \"far\"\nout = \"out\"\nin = \"in\"\n\n[[route]]\nprefix = \"10.{far}.0.0/24\"\n\
         via = {{ port = \"far\" }}\n"
    );
    text
}

impl Gateway for Weir {
    fn notes(&self) -> Vec<String> {
        self.notes.clone()
    }

    fn fallbacks(&self) -> Vec<String> {
        self.fallbacks.clone()
    }

    fn log(&self) -> String {
        super::tail(&self.folder.path().join("weir.log"))
    }
}
