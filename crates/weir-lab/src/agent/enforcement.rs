//! Policy enforcement points that a weir with IPsec leaves on the test interfaces of a host.
//!
//! A weir that ends leaves its points, so that its kernel forwards nothing in cleartext; the lab takes those of its own weir
//! off. Promises: interfaces that had no point have none when this is dropped. Refuses: interfaces that have one, behind which no
//! other SUT would get a packet to forward.

use weir_io::netlink;
use weir_io::steer::enforce;

use crate::model::LabError;
use crate::netns::veth::Port;

/// The interfaces, by their indexes.
pub struct EnforcementPoints(Vec<u32>);

impl EnforcementPoints {
    pub fn of(ports: &[&Port]) -> Result<EnforcementPoints, LabError> {
        let mut all = EnforcementPoints(Vec::new());
        for name in ports.iter().map(|port| &port.name) {
            let failed =
                |e: std::io::Error| LabError::new(format!("{name}: its filters cannot be read: {e}"));
            let Some(link) = netlink::link(name).map_err(failed)? else { continue };
            // what kernels without such filters answer is no reason to leave a host alone
            if enforce::is_enforced(link.index).unwrap_or(false) {
                return Err(LabError::new(format!(
                    "{name}: has the policy enforcement point of a weir, expected none, since its kernel gets no transit: \
                     `weir release {name}` takes it off"
                )));
            }
            all.0.push(link.index);
        }
        Ok(all)
    }
}

impl Drop for EnforcementPoints {
    fn drop(&mut self) {
        for index in &self.0 {
            // An interface that is gone has none.
            let _ = enforce::release(*index);
        }
    }
}
