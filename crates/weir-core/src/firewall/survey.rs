//! All paths between some devices at once, and what stands in their way, each thing once.
//!
//! Promises: a refusal is listed with every family and protocol that meets it. Refuses: more than [`PAIRS_MAX`] pairs of
//! devices, for which the answer is that of any device.

use super::{Interface, Judgement, Path, Protocol, Refusal, RuleSet, judge};

/// Pairs of devices looked at one by one.
const PAIRS_MAX: usize = 256;

/// A refusal and whom it concerns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Obstacle {
    pub refusal: Refusal,
    /// IPv4 and IPv6.
    pub families: [bool; 2],
    /// The first path that meets it.
    pub path: Path,
}

impl Obstacle {
    /// `IPv4`, `IPv6`, or both.
    pub fn families(&self) -> &'static str {
        match self.families {
            [true, true] => "IPv4 and IPv6",
            [false, true] => "IPv6",
            _ => "IPv4",
        }
    }
}

/// What established flows between these devices meet; nothing where all are accepted.
pub fn survey(rules: &RuleSet, interfaces: &[Interface]) -> Vec<Obstacle> {
    let mut found: Vec<Obstacle> = Vec::new();
    for v6 in [false, true] {
        for protocol in [Protocol::Tcp, Protocol::Udp] {
            let any = Path { v6, protocol, input: None, output: None };
            // What is accepted from whatever device to whatever device is so from each to each.
            let Judgement::Refused(refusal) = judge(rules, &any) else { continue };
            if interfaces.is_empty() || interfaces.len() * interfaces.len() > PAIRS_MAX {
                add(&mut found, *refusal, any);
                continue;
            }
            for input in interfaces {
                for output in interfaces {
                    let (input, output) = (Some(input.clone()), Some(output.clone()));
                    let path = Path { input, output, ..any.clone() };
                    if let Judgement::Refused(refusal) = judge(rules, &path) {
                        add(&mut found, *refusal, path);
                    }
                }
            }
        }
    }
    found
}

fn add(found: &mut Vec<Obstacle>, refusal: Refusal, path: Path) {
    let family = usize::from(path.v6);
    match found.iter_mut().find(|o| o.refusal == refusal) {
        Some(obstacle) => obstacle.families[family] = true,
        None => {
            let mut families = [false; 2];
            families[family] = true;
            found.push(Obstacle { refusal, families, path });
        }
    }
}
