//! Ports, programs and the machine around them against a real kernel.

mod af_packet;
mod af_xdp;
mod enforcement;
mod generator;
mod links;
mod live_transmit;
mod namespace;
mod pcap;
mod placement;
mod tun;
