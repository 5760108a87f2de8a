//! A configuration to measure: 100 flows of 64-byte frames over 20 routes, everything else as by default.

use weir_lab::model::configuration::PlacementKeys;
use weir_lab::model::{Configuration, Family, FrameSize, Keys, Sut, Topology, Workload};
use weir_stats::search::Rate;

pub fn configuration(sut: Sut, topology: Topology, family: Family, rate: Rate) -> Configuration {
    Configuration::try_from(Keys {
        firewall: None,
        connection_packets: None,
        name: format!("{sut:?}-{family:?}"),
        sut,
        topology,
        workload: Workload { family, frame: FrameSize::Fixed(64), flows: 100, rate },
        routes: 20,
        placement: PlacementKeys::default(),
        ipsec: None,
        build: None,
        relay: None,
    })
    .expect("valid")
}
