//! Generators and receivers at the ends of a veth pair: XDP where the kernel has it, packet sockets elsewhere.
//!
//! Promises: a fallback is said in the notes.

use super::namespace::Namespace;
use super::veth::Port;
use crate::generator::Transmitter;
use crate::generator::packet::PacketTransmitter;
use crate::generator::xdp::{NoLiveFrames, XdpTransmitter};
use crate::model::LabError;
use crate::receiver::packet::PacketCollector;
use crate::receiver::xdp::XdpCollector;
use crate::receiver::{Collector, Form};
use crate::workload::Traffic;

pub fn open_transmitter(
    near: &(Namespace, Port),
    traffic: &Traffic,
    notes: &mut Vec<String>,
) -> Result<Box<dyn Transmitter>, LabError> {
    let (name, stream) = (near.1.name.clone(), traffic.clone());
    let program = near.0.run(move || {
        let link = weir_io::netlink::link(&name)?;
        XdpTransmitter::new(link.ok_or(NoLiveFrames::NoInterface)?.index, stream)
    })?;
    match program {
        Ok(transmitter) => return Ok(Box::new(transmitter)),
        Err(error) => notes.push(format!("generator: no live frames ({error}): falls back to af_packet")),
    }
    let name = near.1.name.clone();
    let socket = near
        .0
        .run(move || weir_io::packet_socket::PacketSocket::sender(&name))?
        .map_err(|e| LabError::new(format!("generator: no packet socket on {}: {e}", near.1.name)))?;
    Ok(Box::new(PacketTransmitter::new(socket, traffic.clone())))
}

/// A generator whose flows the kernel spreads over queues. Live frames of an XDP program would all take the queue of
/// the CPU that sends them.
pub fn open_spreading(near: &(Namespace, Port), traffic: &Traffic) -> Result<Box<dyn Transmitter>, LabError> {
    let name = near.1.name.clone();
    let socket = near
        .0
        .run(move || weir_io::packet_socket::PacketSocket::spreading_sender(&name))?
        .map_err(|e| LabError::new(format!("generator: no packet socket on {}: {e}", near.1.name)))?;
    Ok(Box::new(PacketTransmitter::new(socket, traffic.clone())))
}

pub fn open_collector(
    far: &(Namespace, Port),
    form: Form,
    notes: &mut Vec<String>,
) -> Result<Box<dyn Collector>, LabError> {
    let name = far.1.name.clone();
    match far.0.run(move || XdpCollector::attach(&name, form))? {
        Ok(collector) => return Ok(Box::new(collector)),
        Err(error) => notes.push(format!("receiver: no XDP program ({error}): falls back to af_packet")),
    }
    let name = far.1.name.clone();
    let socket = far
        .0
        .run(move || weir_io::packet_socket::PacketSocket::receiver(&name))?
        .map_err(|e| LabError::new(format!("receiver: no packet socket on {}: {e}", far.1.name)))?;
    Ok(Box::new(PacketCollector::new(socket, form)))
}
