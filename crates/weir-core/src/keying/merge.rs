//! What is wanted of the kernel's, put into what a file wishes for.
//!
//! Promises: policies of the file stay, and come first; what was the kernel's before is replaced. Policies of a device of route
//! mode are those of the SPD that is its port. Refuses, by leaving it out: a policy that others hide.

use std::collections::HashSet;

use super::{Left, PREFIX, Wanted, Why};
use crate::ipsec::SaSpec;
use crate::state::{IpsecSpec, Policies, PolicySpec, SpdSpec, hidden};

/// Puts what is wanted into an SPD, behind the file's policies and in the place of what was the kernel's before, and into those
/// of devices of route mode; nothing of the kernel's where there is no such SPD. What others hide is returned.
pub fn merge(spec: &IpsecSpec, spd: &str, wanted: &Wanted) -> (IpsecSpec, Vec<Left>) {
    let mut spec = spec.clone();
    let mut left = Vec::new();
    spec.sas.retain(|sa| !sa.name.starts_with(PREFIX));
    for of in &mut spec.spds {
        match &of.route_mode {
            Some(device) => {
                let policies = wanted.routed.get(&device.if_id).map_or(&[][..], Vec::as_slice);
                fill(of, policies, &mut left);
            }
            None if of.name == spd => fill(of, &wanted.policies, &mut left),
            None => {}
        }
    }
    let policies = spec.spds.iter().flat_map(|spd| spd.policies.iter());
    let used: HashSet<&String> = policies.flat_map(|p| p.out.iter().chain(&p.inbound)).collect();
    let sas: Vec<SaSpec> = wanted.sas.iter().filter(|sa| used.contains(&sa.name)).cloned().collect();
    spec.sas.extend(sas);
    (spec, left)
}

/// Puts policies behind those an SPD has of the file.
fn fill(spd: &mut SpdSpec, policies: &[PolicySpec], left: &mut Vec<Left>) {
    let mut all = Policies::default();
    let own = spd.policies.iter().filter(|p| !p.name.starts_with(PREFIX));
    own.for_each(|policy| all.push(policy.clone()));
    let first = all.len();
    policies.iter().for_each(|policy| all.push(policy.clone()));
    let mut kept = Policies::default();
    for (i, (policy, by)) in all.iter().zip(hidden(&all)).enumerate() {
        match by {
            Some(_) if i >= first => {
                left.push(Left { subject: format!("policy {}", policy.name), why: Why::Hidden });
            }
            _ => kept.push(policy.clone()),
        }
    }
    spd.policies = kept;
}
