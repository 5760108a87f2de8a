//! An XDP program that leaves every frame to the kernel.
//!
//! Why: a veth receives by NAPI while it, or GRO on it, asks for that; and a program on an interface keeps
//! others off. Promises: it goes when this is dropped.

use weir_xdp::{Loaded, PASS, Settings};

use crate::bpf::attach::{Attachment, XdpMode};
use crate::steer::SteerError;

/// The program's name in the kernel.
pub const PROGRAM_NAME: &str = PASS.name;

/// The program on one interface.
#[derive(Debug)]
pub struct Pass {
    _attachment: Attachment,
    _program: Loaded,
}

impl Pass {
    /// Attaches it in the first of `modes` the interface takes.
    pub fn attach(interface: &str, ifindex: u32, modes: &[XdpMode]) -> Result<Pass, SteerError> {
        let mut program = PASS.load(Settings::default())?;
        let attachment = Attachment::new(interface, ifindex, &mut program, modes)?;
        Ok(Pass { _attachment: attachment, _program: program })
    }
}
