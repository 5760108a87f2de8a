//! A configuration to measure: 100 flows of 64-byte frames over 20 routes, everything else as by default.

use weir_lab::model::{Configuration, Family, FrameSize, Placement, Subject, Topology, Workload};
use weir_stats::search::Rate;

pub fn configuration(subject: Subject, topology: Topology, family: Family, rate: Rate) -> Configuration {
    Configuration {
        name: format!("{subject:?}-{family:?}"),
        subject,
        topology,
        workload: Workload { family, frame: FrameSize::Fixed(64), flows: 100, rate },
        routes: 20,
        placement: Placement::default(),
        ipsec: None,
        build: None,
        relay: None,
    }
}
