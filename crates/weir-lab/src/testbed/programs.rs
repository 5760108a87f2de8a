//! Which programs take part in an experiment: this one, the daemon, other builds, peers.

use std::collections::BTreeSet;
use std::fs;

use super::memory::process;
use crate::build::{Build, mark};
use crate::experiment::Experiment;
use crate::model::{Sut, Topology};
use crate::sut::{peer, weir};

/// The builds of this program, and of the daemon where `experiment` starts it.
pub fn took_part(experiment: &Experiment) -> Build {
    let daemon = experiment
        .suts()
        .any(|c| {
            let with_daemon = [Topology::Netns, Topology::Gateways, Topology::Relay];
            c.sut() == Sut::Weir && with_daemon.contains(&c.topology())
        })
        .then(weir::program)
        .flatten();
    let own = std::env::current_exe().ok();
    let both = [("weir-lab".to_string(), own), ("weir".to_string(), daemon)];
    let builds = experiment.suts().filter_map(|c| c.build());
    let others = builds.map(|b| (format!("weir-lab of build {b}"), process::program(b)));
    let peers: BTreeSet<&str> = experiment.suts().filter_map(|c| peer::program_of(c.sut())).collect();
    let theirs = peers.iter().map(|name| (name.to_string(), peer::find(name)));
    let marked = both
        .into_iter()
        .chain(others)
        .chain(theirs)
        .filter_map(|(name, path)| Some((name, mark(&fs::read(path?).ok()?))));
    let versions = peers.iter().filter_map(|name| Some((name.to_string(), peer::version(name)?)));
    Build { programs: marked.collect(), peers: versions.collect(), ..Build::own() }
}
