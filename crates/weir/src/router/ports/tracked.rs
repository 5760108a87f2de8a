//! A port where the kernel's firewall decides: XDP forwards the flows it has accepted, and there is no socket.
//!
//! Promises: whatever is not such a flow is the kernel's, as if weir were not there. Refuses: AF_PACKET and other
//! devices, which would forward everything; worse than XDP in the driver is said.

use std::sync::{Arc, Mutex, PoisonError};

use weir_core::packet::DeviceId;
use weir_io::bpf::attach::XdpMode;
use weir_io::interface::no_redirects;
use weir_io::port_error::PortError;
use weir_io::steer::Steering;
use weir_io::steer::flow_offload::MAX_DEVICES;
use weir_io::steer::tracked::Tracked;

use super::card::switch_off_hiding;
use super::{Moderation, OpenPort, With, ready_link, xdp_modes};
use crate::config;
use crate::router::flow_offload::FlowOffloadHandle;
use crate::router::worker::{Absent, OpenDevice};

pub(super) fn open(
    port: &config::Port,
    device: DeviceId,
    with: &With<'_>,
    (handle, tracked): (&FlowOffloadHandle, &Arc<Mutex<Tracked>>),
) -> Result<(OpenPort, Vec<OpenDevice>), PortError> {
    let name = port.device.value.as_str();
    let mut said = Vec::new();
    let local =
        with.local.ok_or_else(|| PortError::new(format!("port xdp:{name}: BPF maps cannot be made")))?;
    if u32::from(device.0) >= MAX_DEVICES {
        return Err(PortError::new(format!("port xdp:{name}: more than {MAX_DEVICES} devices")));
    }
    let link = ready_link("xdp", name, &mut said)?;
    let modes = xdp_modes(&link, with.workers.xdp, &mut said)?;
    let offloads = vec![switch_off_hiding(name, &mut said)];
    let tracked = tracked.lock().unwrap_or_else(PoisonError::into_inner);
    let tables = (&handle.shared.flows, &*tracked);
    let steering = Steering::attach_tracked(name, link.index, modes, local, tables)
        .map_err(|e| PortError::new(e.to_string()))?;
    let barred = no_redirects(name);
    // Nothing of these devices goes through sockets, so no far end matters.
    handle.shared.join(device, link.index, barred.is_none().then_some(0));
    said.extend(barred.map(|why| format!("port {name}: flows that leave by it are the kernel's: {why}")));
    said.push(format!(
        "port {name}: {}: flows that the kernel's firewall has accepted are forwarded by the XDP program, all else is the kernel's",
        steering.mode()
    ));
    let mut fallbacks = Vec::new();
    if steering.mode() == XdpMode::Generic && modes.contains(&XdpMode::Native) {
        let slower =
            format!("port {name}: its driver has no XDP; the program runs behind it, which is slower");
        said.push(slower.clone());
        fallbacks.push(slower);
    }
    let queues = super::queues(port).unwrap_or(1);
    let opened = OpenPort {
        kind: "xdp",
        fallbacks,
        steering: Some(steering),
        queues,
        moderation: Moderation::of(name, with.workers),
        _offloads: offloads,
        said,
        ..OpenPort::default()
    };
    let absent = || OpenDevice { device: Box::new(Absent), poll: Vec::new() };
    Ok((opened, with.umems.iter().map(|_| absent()).collect()))
}
