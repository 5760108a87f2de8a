//! Whether the kernel's rules accept established flows without more, followed as the rules change.
//!
//! Promises: an answer is that of the newest rule set that was read; a rule set that cannot be read accepts nothing. A
//! change is heard at once for nf_tables, and within [`LOOK_EVERY`] for the older iptables, which tell nobody. Refuses: to
//! forward a flow; who asks decides.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::process::{Command, Stdio};

use weir_core::firewall::{Interface, Judgement, Obstacle, Path, RuleLocation, RuleSet, judge, survey};
use weir_core::time::{MILLISECOND, Nanos};
use weir_io::netlink::firewall::{FirewallMonitor, older_rules, rules};
use weir_io::netlink::{self, LinkInfo};

use super::kernel_devices;
use crate::config::Config;
use crate::router::links::kernel_device;

/// A flow that is forbidden stops within a second.
const LOOK_EVERY: Nanos = 500 * MILLISECOND;
/// Paths whose answers are kept: a hundred devices with each other, in both families and protocols.
const KEPT_MAX: usize = 4 * 100 * 100;

/// The rules as last read, and what was answered by them.
pub struct EstablishedRules {
    monitor: FirewallMonitor,
    read: io::Result<RuleSet>,
    /// Raised each time the rules are read again.
    generation: u64,
    answers: HashMap<Path, bool>,
    looked: Nanos,
}

impl EstablishedRules {
    /// Follows the rules of the calling thread's network namespace from here on.
    pub fn open(now: Nanos) -> io::Result<EstablishedRules> {
        // First the monitor, then the rules: what changes between is heard.
        let monitor = FirewallMonitor::open()?;
        Ok(EstablishedRules { monitor, read: rules(), generation: 1, answers: HashMap::new(), looked: now })
    }

    /// Reads the rules again where they changed. True: every answer given before is void.
    pub fn refresh(&mut self, now: Nanos) -> bool {
        let changed = self.changed(now);
        if changed {
            self.read();
        }
        changed
    }

    /// Whether the rules changed, or may have: every answer is void until they were read again.
    pub fn changed(&mut self, now: Nanos) -> bool {
        let mut changed = self.monitor.heard();
        if !changed && now.saturating_sub(self.looked) >= LOOK_EVERY {
            self.looked = now;
            // What could not be read is tried again.
            changed =
                self.read.as_ref().map_or(true, |rules| older_rules().ok().as_ref() != Some(&rules.older));
        }
        changed
    }

    /// Reads the rules again.
    pub fn read(&mut self) {
        self.read = rules();
        self.generation += 1;
        self.answers.clear();
    }

    /// Which reading of the rules answers are by.
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// Whether every packet of established flows of this path is accepted, and nothing else done to it.
    pub fn accepts(&mut self, path: &Path) -> bool {
        let Ok(rules) = &self.read else { return false };
        if let Some(answer) = self.answers.get(path) {
            return *answer;
        }
        let accepted = matches!(judge(rules, path), Judgement::EstablishedAccepted { .. });
        if self.answers.len() < KEPT_MAX {
            self.answers.insert(path.clone(), accepted);
        }
        accepted
    }

    /// The rules, where they could be read.
    pub fn rules(&self) -> Result<&RuleSet, &io::Error> {
        self.read.as_ref()
    }
}

impl AsRawFd for EstablishedRules {
    /// Readable when nf_tables changed.
    fn as_raw_fd(&self) -> RawFd {
        self.monitor.as_raw_fd()
    }
}

/// What the rules make of established flows between a configuration's ports, in sentences with the line to write; nothing
/// where there are no rules.
pub fn findings(config: &Config) -> io::Result<Vec<String>> {
    let rules = rules()?;
    let obstacles = found(config, &rules)?;
    if obstacles.is_empty() && !rules.chains.is_empty() {
        return Ok(vec![
            "established flows of IPv4 and IPv6 are accepted by every chain without more".to_owned(),
        ]);
    }
    Ok(obstacles)
}

/// What of the rules prevents that established flows between a configuration's ports are forwarded past them.
pub fn obstacles(config: &Config) -> io::Result<Vec<String>> {
    found(config, &rules()?)
}

fn found(config: &Config, rules: &RuleSet) -> io::Result<Vec<String>> {
    let of_kernel = kernel_devices(config);
    let ports = config.ports.iter().filter(|port| of_kernel.contains(&port.device.value.as_str()));
    let devices: Vec<String> = ports.map(kernel_device).collect();
    let devices: Vec<&str> = devices.iter().map(String::as_str).collect();
    let interfaces = interfaces(&devices, &netlink::links()?);
    Ok(survey(rules, &interfaces).iter().map(sentence).collect())
}

/// Devices as rules name them; none where one belongs to another device, whose name rules may meet instead.
pub fn interfaces(devices: &[&str], links: &[LinkInfo]) -> Vec<Interface> {
    let known = devices.iter().map(|device| {
        let link = links.iter().find(|link| link.name == **device && link.master.is_none())?;
        Some(Interface { name: link.name.clone(), index: link.index, lower: lower(&link.name) })
    });
    known.collect::<Option<Vec<_>>>().unwrap_or_default()
}

/// Devices below one, which its frames pass first: a VLAN's.
fn lower(device: &str) -> Vec<String> {
    /// Devices on top of each other (`MAX_NEST_DEV`).
    const NESTED: usize = 8;
    let mut found = vec![device.to_owned()];
    for n in 0..NESTED {
        let Some(name) = found.get(n) else { break };
        let entries = std::fs::read_dir(format!("/sys/class/net/{name}")).into_iter().flatten().flatten();
        let names: Vec<String> = entries.filter_map(|e| e.file_name().into_string().ok()).collect();
        found.extend(names.iter().filter_map(|n| n.strip_prefix("lower_")).map(str::to_owned));
    }
    found.remove(0);
    found
}

fn sentence(obstacle: &Obstacle) -> String {
    let Obstacle { refusal, path, .. } = obstacle;
    let mut text =
        format!("established flows of {} are not accepted without more: {refusal}", obstacle.families());
    if let (Some(input), Some(output)) = (&path.input, &path.output) {
        // Writing to a string cannot fail.
        let _ = write!(text, ", from {} to {}", input.name, output.name);
    }
    if let Some(words) = refusal.place.as_ref().and_then(words) {
        let _ = write!(text, "; the rule is `{words}`");
    }
    if let Some(line) = &refusal.remedy {
        let _ = write!(text, "; `{line}` accepts them first");
    }
    text
}

/// A rule as `nft` prints it; none without `nft`, or where it is no longer there.
pub(super) fn words(place: &RuleLocation) -> Option<String> {
    /// Sets written in a rule can be long.
    const WORDS_MAX: usize = 200;
    let handle = format!("# handle {}", place.handle?);
    let mut nft = Command::new("nft");
    nft.args(["--handle", "list", "chain", &place.family.to_string(), &place.table, &place.chain]);
    let output = nft.stdin(Stdio::null()).stderr(Stdio::null()).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    let line = text.lines().find_map(|line| line.trim().strip_suffix(&handle))?.trim();
    Some(match line.char_indices().nth(WORDS_MAX) {
        Some((end, _)) => format!("{} …", &line[..end]),
        None => line.to_owned(),
    })
}
