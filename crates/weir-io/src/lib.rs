//! System calls and unsafe code of weir, fenced.

pub mod af_packet;
pub mod af_xdp;
pub mod alloc;
pub mod bpf;
pub mod cipher;
pub mod clock;
pub mod cpu;
pub mod lock;
pub mod netlink;
pub mod netns;
pub mod offload;
pub mod packet_socket;
pub mod pcap;
pub mod perf_event;
pub mod port_error;
pub mod port_statistics;
pub mod process;
pub mod ring;
pub mod signal;
pub mod steer;
pub mod tls;
pub mod tun;
pub mod umem;
pub mod wake;
pub mod xdp_gen;
pub mod xdp_tally;
