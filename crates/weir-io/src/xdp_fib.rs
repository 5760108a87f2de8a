//! A minimal forwarder in XDP: the kernel's routing tables through `bpf_fib_lookup`, then a redirect.
//!
//! Why: it is what XDP can do with tables that are Linux's, and so what weir's flow offload has to be held against.
//! Promises: what it does not forward is the kernel's, or a route's that leads nowhere, and counted; it goes when this
//! is dropped.

use weir_xdp::layout::FibDrops;
use weir_xdp::{Counters, FIB, LoadError, Loaded, Settings};

use crate::bpf::attach::{Attachment, XdpMode};
use crate::steer::SteerError;

/// The program on one interface.
#[derive(Debug)]
pub struct Fib {
    attachment: Option<Attachment>,
    _program: Loaded,
    drops: Counters<{ FibDrops::SIZE / 8 }>,
}

impl Fib {
    /// Attaches it in the first of `modes` the interface takes.
    pub fn attach(interface: &str, ifindex: u32, modes: &[XdpMode]) -> Result<Fib, SteerError> {
        let mut fib = Fib::load()?;
        fib.attachment = Some(Attachment::new(interface, ifindex, &mut fib._program, modes)?);
        Ok(fib)
    }

    fn load() -> Result<Fib, LoadError> {
        let mut program = FIB.load(Settings::default())?;
        let drops = program.maps.counters("weir_fib_drops")?;
        Ok(Fib { attachment: None, _program: program, drops })
    }

    pub fn mode(&self) -> XdpMode {
        self.attachment.as_ref().map_or(XdpMode::Native, |attachment| attachment.mode)
    }

    /// Packets that a route ended, by the kind of route.
    pub fn drops(&self) -> Result<[(&'static str, u64); 3], LoadError> {
        let [blackhole, unreachable, prohibit] = self.drops.sum(0)?;
        Ok([("blackhole", blackhole), ("unreachable", unreachable), ("prohibit", prohibit)])
    }
}
