//! Files the daemon reads and writes: configurations, keys, captures. Needs no privilege and no interface.

mod config_files;
mod fuzz;
mod keys_files;
mod old_cpu;
mod pcap_ports;
