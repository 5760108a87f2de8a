//! Sending without socket buffers: one program for all ports that can, made when the first of them is opened.

use std::sync::{Arc, OnceLock};

use weir_core::time::Nanos;
use weir_io::af_xdp::live::LiveTransmit;
use weir_io::interface::Interface;

/// What ports of this daemon send by besides their sockets.
#[derive(Debug)]
pub struct LiveHandle {
    wanted: bool,
    made: OnceLock<Option<Arc<LiveTransmit>>>,
}

impl LiveHandle {
    pub fn new(wanted: bool) -> LiveHandle {
        LiveHandle { wanted, made: OnceLock::new() }
    }

    /// Gives it to this device, if it is one that may use it; why not is said once.
    pub fn of(&self, device: &str, said: &mut Vec<String>) -> Option<Arc<LiveTransmit>> {
        if !self.wanted {
            return None;
        }
        let driver = Interface::open(device).and_then(|interface| interface.driver());
        if driver.is_ok_and(|driver| driver != "veth") {
            return None;
        }
        let made = self.made.get_or_init(|| {
            let made = LiveTransmit::new();
            made.map(Arc::new).map_err(|why| said.push(format!("socket buffers for all frames: {why}"))).ok()
        });
        made.clone()
    }

    /// Has far ends asked whether they take such frames, now and then.
    pub fn ask(&self, now: Nanos) {
        if let Some(Some(live)) = self.made.get() {
            live.ask(now);
        }
    }
}
