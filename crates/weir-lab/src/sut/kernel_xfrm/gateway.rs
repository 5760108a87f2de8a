//! Two kernels with a tunnel between them: AES-GCM-128 by their own ESP, keys by hand, policies of the two networks.
//!
//! Promises: what only one of the two networks sends to the other passes sealed, with the keys and the replay window that weir's
//! gateways have. Refuses: kernels that take no SA of ESP.

use crate::model::LabError;
use crate::netns::namespace::Namespace;
use crate::sut::gateway::{Gateway, Pair, Side, kernel_addresses};
use crate::sut::weir::gateway::{FIRST_SPI, KEYS, WINDOW};

const AEAD: &str = "aead rfc4106(gcm(aes))";

pub fn missing() -> Option<String> {
    let reason = refuses_esp()?;
    Some(format!(
        "kernel-xfrm: this kernel takes no SA of ESP ({reason}): use one with CONFIG_XFRM_USER, CONFIG_INET_ESP and AES-GCM \
         (scripts/second-kernel starts one, whose values mean nothing)"
    ))
}

/// Why the kernel takes no SA of AES-GCM-128, if it does not.
pub fn refuses_esp() -> Option<String> {
    let key = KEYS[0];
    let sa = "xfrm state add src 192.0.2.1 dst 192.0.2.2 proto esp spi 0x1001 mode tunnel";
    let tried = Namespace::new("probe").and_then(|probe| probe.ip(&format!("{sa} {AEAD} 0x{key} 128")));
    let said = tried.err()?.said;
    let reason = said.rsplit("probe: ").next().and_then(|reason| reason.lines().next()).unwrap_or_default();
    Some(reason.trim_end_matches('.').to_string())
}

pub fn start(pair: Pair<'_>) -> Result<Vec<Box<dyn Gateway>>, LabError> {
    let both = pair.0.iter().map(|side| {
        kernel_addresses(side.namespace, side.inner, side.outer, side.number())?;
        side.namespace.ip_batch(lines(side))?;
        Ok(Box::new(Kernel { cipher: cipher_driver() }) as Box<dyn Gateway>)
    });
    both.collect()
}

/// A route, an SA each way, and policies that ask for them.
fn lines(side: &Side<'_>) -> String {
    let (own, far, outer) = (side.number(), side.other(), &side.outer.name);
    let mut text = format!("route add 10.{far}.0.0/24 via 192.0.2.{far} dev {outer}\n");
    for (from, to, directions) in [(own, far, &["out"][..]), (far, own, &["in", "fwd"])] {
        let ends = format!("src 192.0.2.{from} dst 192.0.2.{to}");
        let (spi, key) = (FIRST_SPI + from as u32, KEYS[from - 1]);
        text += &format!(
            "xfrm state add {ends} proto esp spi {spi:#x} reqid {from} mode tunnel replay-window {WINDOW} {AEAD} 0x{key} 128\n"
        );
        for direction in directions {
            text += &format!(
                "xfrm policy add src 10.{from}.0.0/24 dst 10.{to}.0.0/24 dir {direction} tmpl {ends} proto esp reqid {from} mode tunnel\n"
            );
        }
    }
    text
}

/// The implementation that the kernel prefers, by its own name.
fn cipher_driver() -> Option<String> {
    let known = std::fs::read_to_string("/proc/crypto").ok()?;
    let field = |entry: &str, name: &str| {
        let line = entry.lines().find(|line| line.split(':').next().is_some_and(|key| key.trim() == name))?;
        line.split(':').nth(1).map(|value| value.trim().to_string())
    };
    let of_esp =
        known.split("\n\n").filter(|entry| field(entry, "name").as_deref() == Some("rfc4106(gcm(aes))"));
    let priority = |entry: &&str| field(entry, "priority").and_then(|p| p.parse::<u64>().ok());
    field(of_esp.max_by_key(priority)?, "driver")
}

/// It is the kernel, and ends with its namespace.
struct Kernel {
    cipher: Option<String>,
}

impl Gateway for Kernel {
    fn notes(&self) -> Vec<String> {
        let cipher = self.cipher.as_deref().unwrap_or("an implementation that /proc/crypto does not name");
        vec![format!("kernel-xfrm: AES-GCM-128 by {cipher}")]
    }

    fn log(&self) -> String {
        "kernel-xfrm logs nothing: see `ip -s xfrm state`".into()
    }
}
