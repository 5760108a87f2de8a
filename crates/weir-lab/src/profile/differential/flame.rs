//! The differential flame graph: where stacks became dearer (red) and cheaper (blue).
//!
//! A box is as wide as the larger of its stacks' values before and after, so that what is new and what has
//! vanished both have their place. Its colour is the change of this box as a share of its width; functions
//! whose change chance explains (own and inclusive) are grey. Idle stacks are left out.
//!
//! Source: Gregg, "Differential Flame Graphs" (2014), which leaves out what has vanished.

use std::collections::{BTreeMap, HashMap};

use super::{Differential, Frame, Presence, Side, scales};
use crate::profile::flame::{self, Paint};
use crate::profile::rules::Rules;
use crate::profile::{Profile, function};
use weir_stats::compare::ALPHA;

/// Units of a box's width: a thousandth of a percent, a picosecond.
const FINE: f64 = 1000.0;

/// Values of a box, before and after.
type Values = [f64; 2];

/// The graph as an `svg` element, see [`flame::render`].
pub fn render(
    title: &str,
    differential: &Differential,
    before: &Side,
    after: &Side,
    rules: &Rules,
) -> String {
    let stacks = stacks(differential, [before, after], rules);
    let mut widths = Profile::default();
    let mut boxes: BTreeMap<&[String], Values> = BTreeMap::new();
    for (stack, values) in &stacks {
        widths.add(stack.clone(), (values[0].max(values[1]) * FINE).round() as u64);
        for depth in 0..=stack.len() {
            let value = boxes.entry(&stack[..depth]).or_default();
            (0..2).for_each(|side| value[side] += values[side]);
        }
    }
    let frames: HashMap<&str, &Frame> = differential.frames.iter().map(|f| (f.name.as_str(), f)).collect();
    let unit = differential.unit.label();
    let paint = |frame: &flame::Frame<'_>| {
        let values = boxes.get(frame.path).copied().unwrap_or_default();
        paint(values, frames.get(frame.name()).copied(), unit)
    };
    let said = format!("red dearer, blue cheaper, grey chance, framed new, dashed vanished; {unit}");
    flame::captioned(&widths, title, &said, &paint)
}

/// Values of every stack at work, marks taken off so that inlining moves no box.
fn stacks(differential: &Differential, sides: [&Side; 2], rules: &Rules) -> BTreeMap<Vec<String>, Values> {
    let mut stacks: BTreeMap<Vec<String>, Values> = BTreeMap::new();
    let with_idle = differential.unit == super::Unit::NsPerPacket;
    for (s, side) in sides.into_iter().enumerate() {
        for (recording, scale) in side.recordings.iter().zip(scales(side, differential.unit)) {
            let whole = recording.whole();
            let (work, idle): (Vec<_>, Vec<_>) =
                whole.stacks.iter().partition(|(stack, _)| rules.is_work(stack));
            let sum = |stacks: &[(&Vec<String>, &u64)]| stacks.iter().map(|(_, n)| **n).sum::<u64>();
            let base = sum(&work) + if with_idle { sum(&idle) } else { 0 };
            let worth = scale / base.max(1) as f64 / side.recordings.len() as f64;
            for (stack, &n) in work {
                let plain = stack.iter().map(|f| function(f).to_string()).collect();
                stacks.entry(plain).or_default()[s] += n as f64 * worth;
            }
        }
    }
    stacks
}

fn paint([before, after]: Values, function: Option<&Frame>, unit: &str) -> Paint {
    let change = after - before;
    let mut note = format!("{before:.2} → {after:.2} {unit} ({change:+.2})");
    let Some(function) = function else {
        return Paint { class: "all".into(), style: String::new(), note };
    };
    let sure = function.proven() || function.inclusive.p_holm <= ALPHA;
    let presence = match function.presence {
        Presence::New if sure => " new",
        Presence::Vanished if sure => " vanished",
        _ => "",
    };
    note += &format!(
        "\n{}everywhere: {:.2} → {:.2} own, {:.2} → {:.2} inclusive",
        presence.trim_start().to_string() + if presence.is_empty() { "" } else { ", " },
        function.own.before,
        function.own.after,
        function.inclusive.before,
        function.inclusive.after
    );
    if !sure {
        return Paint { class: "chance".into(), style: String::new(), note: note + ", by chance" };
    }
    let hue = if change > 0.0 { 4 } else { 215 };
    // the root of the share: a change of a tenth is to be seen
    let saturation = 85.0 * (change.abs() / before.max(after).max(f64::MIN_POSITIVE)).sqrt();
    Paint {
        class: format!("changed{presence}"),
        style: format!("fill: hsl({hue} {saturation:.0}% var(--l))"),
        note,
    }
}
