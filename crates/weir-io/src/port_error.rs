//! Why a port cannot be opened, in one sentence with the remedy.

use std::fmt;
use std::io;

use crate::netlink;

/// Refusal of a port. Its text names the port first, then what is wrong, then what to do.
#[derive(Debug)]
pub struct PortError {
    text: String,
    source: Option<io::Error>,
}

impl PortError {
    pub fn new(text: impl Into<String>) -> PortError {
        PortError { text: text.into(), source: None }
    }

    /// Turns what the kernel said while opening `kind` on `device` into a sentence.
    pub fn from_io(kind: &str, device: &str, doing: &str, error: io::Error) -> PortError {
        let remedy = match error.raw_os_error() {
            Some(libc::EPERM | libc::EACCES) => {
                "run as root, or grant CAP_NET_RAW, CAP_NET_ADMIN and (for af_xdp) CAP_BPF, CAP_PERFMON and CAP_IPC_LOCK".to_string()
            }
            Some(libc::ENODEV | libc::ENXIO) => format!("devices here are {}", devices()),
            Some(libc::EAFNOSUPPORT | libc::EOPNOTSUPP | libc::ENOPROTOOPT) => {
                format!(
                    "this kernel or driver does not offer it; choose another kind than \"{kind}\" or \"auto\""
                )
            }
            Some(libc::EBUSY) => {
                "another program holds it; stop that program or choose another device".to_string()
            }
            Some(libc::ENOMEM | libc::ENOBUFS) => "lower the number of buffers or free memory".to_string(),
            _ => "see the kernel log".to_string(),
        };
        PortError { text: format!("port {kind}:{device}: {doing}: {error}; {remedy}"), source: Some(error) }
    }

    /// A device name nobody has.
    pub fn no_such_device(kind: &str, device: &str) -> PortError {
        PortError::new(format!("port {kind}:{device}: no such device; devices here are {}", devices()))
    }
}

fn devices() -> String {
    match netlink::links() {
        Ok(links) if !links.is_empty() => links.into_iter().map(|l| l.name).collect::<Vec<_>>().join(", "),
        _ => "unknown (netlink did not answer)".to_string(),
    }
}

impl fmt::Display for PortError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl std::error::Error for PortError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.source.as_ref().map(|e| e as _)
    }
}
