//! This host's own packets by xfrm devices weir acts for: what the kernel sends by one is sealed by a worker, and what a worker opened
//! for an address of the kernel comes in by it.
//!
//! ```text
//! kernel ─► route, packet filter ─► ipsec0 ─┬─ packet socket ─► worker 0 ─► SPD, seal
//!                                           └─ xfrm, fenced: dropped
//! worker ─► opened ─► TUN weir-x7 ─► program ─► ipsec0 ─► packet filter, sockets, routes of the kernel
//! ```
//!
//! Promises: everything of it goes with the process, however it ends. Where it cannot be had the kernel drops its own packets, for
//! their SAs are fenced; that is said.

use std::os::fd::AsRawFd;
use std::{fmt, fs};

use weir_core::packet::DeviceId;
use weir_io::deliver;
use weir_io::netlink::{self, LinkInfo};
use weir_io::port_error::PortError;
use weir_io::steer::SteerError;
use weir_io::tun::Tun;

use super::worker::{Absent, OpenDevice, WorkerCommand};
use super::{Daemon, device_id, routed};

/// The host's own packets by one device.
pub(super) struct Host {
    device: DeviceId,
    /// The xfrm device, and its interface id.
    link: (u32, Option<u32>),
    /// Why there is nothing.
    failed: Option<String>,
}

/// What the host's own packets need, and could not be had.
#[derive(Debug)]
enum HostError {
    Port(PortError),
    Program(SteerError),
}

impl fmt::Display for HostError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            HostError::Port(error) => error.fmt(f),
            HostError::Program(error) => error.fmt(f),
        }
    }
}

impl Daemon {
    /// Connects the host's own stack with each of the devices there are now.
    pub(super) fn follow_hosts(&mut self) {
        let links: Vec<LinkInfo> =
            routed::devices(&self.config, &self.kernel.links).into_iter().cloned().collect();
        let stays = |name: &str, host: &Host| {
            links.iter().any(|link| link.name == name && (link.index, link.if_id) == host.link)
        };
        let gone: Vec<String> = self
            .hosts
            .iter()
            .filter(|(name, host)| !stays(name, host))
            .map(|(name, _)| name.clone())
            .collect();
        for host in gone.iter().filter_map(|name| self.hosts.remove(name)) {
            for worker in &self.workers {
                let absent = OpenDevice { device: Box::new(Absent), poll: Vec::new() };
                worker.post(WorkerCommand::Replace(host.device, absent));
            }
        }
        for link in links {
            if self.hosts.contains_key(&link.name) {
                continue;
            }
            let Some(device) = device_id(self.control.tables(), &format!("host/{}", link.name)) else {
                continue;
            };
            let opened = self.open_host(&link, device);
            let failed = opened.err().map(|error| error.to_string());
            match &failed {
                None => tracing::info!(
                    "xfrm device {} (interface id {}): weir acts for it, for the host's own packets too",
                    link.name,
                    link.if_id.unwrap_or(0)
                ),
                Some(why) => tracing::warn!("{}", lost(&link.name, why)),
            }
            let host = Host { device, link: (link.index, link.if_id), failed };
            self.hosts.insert(link.name, host);
        }
    }

    fn open_host(&self, link: &LinkInfo, device: DeviceId) -> Result<(), HostError> {
        let tun = format!("weir-x{:x}", link.if_id.unwrap_or(0));
        let mut queues = Vec::new();
        for number in 0..self.workers.len() {
            let outgoing = (number == 0).then_some((link.name.as_str(), link.index));
            queues.push(Tun::to_host(&tun, device, outgoing).map_err(HostError::Port)?);
        }
        // It has no addresses, and nothing of its own to send.
        let _ = fs::write(format!("/proc/sys/net/ipv6/conf/{tun}/disable_ipv6"), "1");
        let failed = |e| HostError::Port(PortError::from_io("tun", &tun, "setting the device up", e));
        let made = netlink::link(&tun).map_err(failed)?;
        let made = made.ok_or_else(|| HostError::Port(PortError::no_such_device("tun", &tun)))?;
        deliver::attach((&tun, made.index), link.index).map_err(HostError::Program)?;
        netlink::set_up(made.index).map_err(failed)?;
        for (number, (worker, queue)) in self.workers.iter().zip(queues).enumerate() {
            let poll = if number == 0 { vec![queue.as_raw_fd()] } else { Vec::new() };
            worker.post(WorkerCommand::Replace(device, OpenDevice { device: Box::new(queue), poll }));
        }
        Ok(())
    }

    /// What an operator should know of it.
    pub(super) fn host_notices(&self) -> Vec<String> {
        let failed = |(name, host): (&String, &Host)| Some(lost(name, host.failed.as_ref()?));
        self.hosts.iter().filter_map(failed).collect()
    }
}

fn lost(name: &str, why: &str) -> String {
    format!(
        "xfrm device {name}: weir acts for it, but not for the host's own packets, which are dropped: {why}"
    )
}
