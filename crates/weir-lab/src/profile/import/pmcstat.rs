//! Call graphs of FreeBSD's `pmcstat -G` (pmcstat(8)): a block for each CPU, leaf first, callers below.
//!
//! ```text
//! @ cpu_clk_unhalted.thread_p [17 samples]
//!
//! 58.82%  [10]       rx @ /boot/kernel/if_x.ko      10 samples were taken in rx itself
//!  90.00%  [9]        input @ /boot/kernel/kernel   9 of them with input as its caller
//!   100.0%  [9]        intr                         all 9 with intr as input's; the module goes on
//!                                                   10 − 9 = 1 with nobody above rx
//! ```
//!
//! The indent before the percentage is the depth. pmcstat follows 16 frames unless told otherwise (-z): a
//! deeper stack ends at its sixteenth, so that its root is missing, never its leaf.
//!
//! Promises: the samples of a block are conserved: those of the leaves are its total (a rest no leaf shows is
//! kept as the frame [`NOT_LISTED`]), and what callers do not account for ends at the callee. Refuses: leaves
//! above the block's total, callers above their callee, a depth that jumps.

use super::Fault;
use crate::profile::folded;
use crate::profile::{KERNEL, Profile};

/// Where FreeBSD keeps its kernel and the modules.
const BOOT: &str = "/boot/";

/// Samples of a block that none of its leaves shows.
pub const NOT_LISTED: &str = "[not listed]";

/// One line of a graph.
struct Node<'a> {
    depth: usize,
    samples: u64,
    function: &'a str,
    module: Option<&'a str>,
}

/// A node on the path to the current line.
struct Open<'a> {
    function: &'a str,
    module: &'a str,
    /// Samples that no caller accounts for yet.
    rest: u64,
    line: usize,
}

impl Open<'_> {
    fn frame(&self) -> String {
        let mark = if self.module.starts_with(BOOT) { KERNEL } else { "" };
        folded::frame(self.function) + mark
    }
}

struct Block<'a> {
    profile: Profile,
    total: u64,
    line: usize,
    /// Leaf first.
    path: Vec<Open<'a>>,
}

pub fn parse(text: &str) -> Result<Vec<Profile>, Fault> {
    let mut parts = Vec::new();
    let mut block: Option<Block<'_>> = None;
    for (line, number) in text.lines().zip(1..) {
        if line.trim().is_empty() || line.starts_with('#') {
            continue;
        }
        let unknown = |expected: &str| Fault {
            line: number,
            message: format!(
                "expected {expected}, got `{}`",
                line.trim_end().chars().take(60).collect::<String>()
            ),
        };
        if line.starts_with('@') {
            parts.extend(block.take().map(Block::close).transpose()?);
            let (event, total) = head(line).ok_or_else(|| unknown("`@ event [n samples]`"))?;
            let profile = Profile { event: event.into(), ..Profile::default() };
            block = Some(Block { profile, total, line: number, path: Vec::new() });
        } else {
            let node = node(line).ok_or_else(|| unknown("`percent%  [samples]  function @ file`"))?;
            let block = block.as_mut().ok_or_else(|| unknown("`@ event [n samples]` before it"))?;
            block.enter(node, number)?;
        }
    }
    parts.extend(block.map(Block::close).transpose()?);
    parts.retain(|p| !p.stacks.is_empty());
    Ok(parts)
}

impl<'a> Block<'a> {
    fn enter(&mut self, node: Node<'a>, line: usize) -> Result<(), Fault> {
        if node.depth > self.path.len() {
            let message = format!(
                "depth {} below depth {}; a caller stands one space deeper than its callee",
                node.depth,
                self.path.len() as i64 - 1
            );
            return Err(Fault { line, message });
        }
        self.leave(node.depth);
        if let Some(callee) = self.path.last_mut() {
            callee.rest = callee.rest.checked_sub(node.samples).ok_or_else(|| Fault {
                line,
                message: format!(
                    "callers of {} (line {}) have more samples than it; the file is damaged",
                    callee.function, callee.line
                ),
            })?;
        }
        let module = node.module.or(self.path.last().map(|o| o.module)).unwrap_or_default();
        self.path.push(Open { function: node.function, module, rest: node.samples, line });
        Ok(())
    }

    /// Closes all nodes from `depth` on: what no caller took is a stack that begins there.
    fn leave(&mut self, depth: usize) {
        while self.path.len() > depth {
            let stack = || self.path.iter().rev().map(Open::frame).collect();
            if let Some(rest) = self.path.last().map(|o| o.rest).filter(|&rest| rest > 0) {
                self.profile.add(stack(), rest);
            }
            if let Some(open) = self.path.pop() {
                let module = open.module.rsplit('/').next().unwrap_or_default();
                if !module.is_empty() && !self.profile.modules.contains_key(open.function) {
                    self.profile.modules.insert(open.function.into(), module.into());
                }
            }
        }
    }

    fn close(mut self) -> Result<Profile, Fault> {
        self.leave(0);
        let leaves = self.profile.samples();
        let missing = self.total.checked_sub(leaves).ok_or_else(|| Fault {
            line: self.line,
            message: format!(
                "the leaves of this block have {leaves} samples, its head says {}; the file is damaged",
                self.total
            ),
        })?;
        if missing > 0 {
            self.profile.add(vec![NOT_LISTED.into()], missing);
        }
        Ok(self.profile)
    }
}

/// `@ event [n samples]`.
fn head(line: &str) -> Option<(&str, u64)> {
    let (event, count) = line.strip_prefix("@ ")?.trim_end().rsplit_once(" [")?;
    Some((event, count.strip_suffix(" samples]")?.parse().ok()?))
}

/// ` 90.00%  [9]        input @ /boot/kernel/kernel`.
fn node(line: &str) -> Option<Node<'_>> {
    let depth = line.len() - line.trim_start_matches(' ').len();
    let (percent, rest) = line[depth..].split_once('%')?;
    percent.parse::<f64>().ok()?;
    let (samples, name) = rest.trim_start().strip_prefix('[')?.split_once(']')?;
    let (function, module) = match name.trim().split_once(" @ ") {
        Some((function, module)) => (function, Some(module)),
        None => (name.trim(), None),
    };
    (!function.is_empty()).then_some(Node { depth, samples: samples.parse().ok()?, function, module })
}

#[cfg(test)]
mod tests {
    use super::*;

    const GRAPH: &str = "\
@ cpu_clk_unhalted.thread_p [18 samples]

58.82%  [10]       rx @ /boot/kernel/if_x.ko
 80.00%  [8]        input @ /boot/kernel/kernel
  62.50%  [5]        intr
  25.00%  [2]        poll
 10.00%  [1]        poll @ /boot/kernel/kernel

41.18%  [7]        idle @ /boot/kernel/kernel

@ cpu_clk_unhalted.thread_p [1 samples]

100.0%  [1]        idle @ /boot/kernel/kernel
";

    #[test]
    fn callers_are_frames_nearer_the_root_and_what_they_leave_ends_at_the_callee() {
        let parts = parse(GRAPH).expect("a graph");
        assert_eq!(
            parts[0].folded(),
            "[not listed] 1\nidle_[k] 7\ninput_[k];rx_[k] 1\nintr_[k];input_[k];rx_[k] 5\n\
             poll_[k];input_[k];rx_[k] 2\npoll_[k];rx_[k] 1\nrx_[k] 1\n"
        );
        assert_eq!(parts.iter().map(Profile::samples).collect::<Vec<_>>(), [18, 1]);
        assert_eq!(parts[0].modules["rx"], "if_x.ko");
        assert_eq!(parts[0].modules["intr"], "kernel");
    }

    fn fault(from: &str, to: &str) -> Fault {
        parse(&GRAPH.replacen(from, to, 1)).expect_err("damaged")
    }

    #[test]
    fn callers_above_their_callee_are_refused_by_line() {
        let fault = fault("  25.00%  [2] ", "  25.00%  [4] ");
        assert_eq!(fault.line, 6);
        assert!(fault.message.contains("callers of input (line 4)"), "{}", fault.message);
    }

    #[test]
    fn leaves_above_the_total_are_refused_at_the_block() {
        assert_eq!(fault("[18 samples]", "[16 samples]").line, 1);
    }

    #[test]
    fn a_depth_that_jumps_and_a_line_of_another_form_are_refused_by_line() {
        assert_eq!(fault(" 80.00%", "   80.00%").line, 4);
        let fault = fault("41.18%  [7]", "41.18%  (7)");
        assert_eq!((fault.line, fault.message.contains("expected `percent%")), (9, true));
    }
}
