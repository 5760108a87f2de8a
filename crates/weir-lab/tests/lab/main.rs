//! Tests of weir-lab as a user has it: one program, a file for each thing tested.

mod common;

mod across;
mod agents;
mod answers;
mod builds;
mod cachesim;
mod campaigns;
mod command_testbed;
mod control;
mod corpus_profiles;
mod differential_report;
mod features;
mod gate;
mod gateways_testbed;
mod imports;
mod ipsec_labs;
mod ministat_differential;
mod netns_residue;
mod netns_testbed;
mod new;
mod nic_modes;
mod old_cpu;
mod peers;
mod plan;
mod profiles;
mod relay_labs;
mod reports;
mod resume;
mod searches;
mod slices;
mod spd_report;
mod ssh_hosts;
mod ssh_ipsec;
mod verify_trees;
mod walkthroughs;
