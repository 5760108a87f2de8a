//! Flame graphs: one box a frame, as wide as its samples, callees on their callers.
//!
//! ```text
//!           ┌ lookup ┐┌ rewrite ┐
//!      ┌────── breathe ─────────┐┌ send ┐
//! ┌─────────────────── all ─────────────────┐
//! ```
//!
//! Promises: a click widens a frame, a search marks frames and says their share; any number of graphs live
//! in one page (no ids) under one [`STYLE`] and one [`SCRIPT`], for light and dark; a document of its own
//! ([`document`]) does the same. Boxes too narrow to see are left out and their number said.
//!
//! Source: Gregg, "The Flame Graph", CACM 59 (6), 2016.

use super::{IDLE, INLINED, KERNEL, OTHERS, Profile, function};
use crate::format::digits;
use crate::format::escape;

/// The style of all graphs, which a page has once.
pub const STYLE: &str = include_str!("flame/flame.css");
/// The script of all graphs, which a page has once, after them.
pub const SCRIPT: &str = include_str!("flame/flame.js");

/// Pixels of the drawing; flame.js knows width, side and letter too.
const WIDTH: f64 = 1000.0;
const ROW: f64 = 17.0;
const LETTER: f64 = 6.7;
/// Space above the boxes for the title, and below them for what is said of the frame pointed at.
const HEAD: f64 = 30.0;
const FOOT: f64 = 22.0;
/// Narrower boxes show nothing and only make the page heavy.
const NARROWEST: f64 = 0.4;
/// Shades of one colour, so that neighbours differ.
const SHADES: u32 = 4;

/// A box: what it stands for and how much.
#[derive(Clone, Copy, Debug)]
pub struct Frame<'a> {
    /// Names from the root down to this frame; empty for the box under all.
    pub path: &'a [String],
    /// Samples in it and in what it called.
    pub samples: u64,
    pub total: u64,
}

impl Frame<'_> {
    pub fn name(&self) -> &str {
        self.path.last().map_or("all", String::as_str)
    }

    pub fn percent(&self) -> f64 {
        if self.total == 0 { 0.0 } else { self.samples as f64 * 100.0 / self.total as f64 }
    }
}

/// How a box looks: what [`plain`] says, or a differential's colour and values instead.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Paint {
    /// Classes of [`STYLE`].
    pub class: String,
    /// Declarations of its own, such as `fill: …`; empty leaves it to the class.
    pub style: String,
    /// Lines shown under the name when it is pointed at.
    pub note: String,
}

/// Colour by what runs: user code, kernel, inlined, idle, unnamed.
pub fn plain(frame: &Frame<'_>) -> Paint {
    let name = frame.name();
    let kind = match name {
        _ if frame.path.is_empty() => "all",
        IDLE | OTHERS => "idle",
        name if name.ends_with(KERNEL) => "kernel",
        name if name.ends_with(INLINED) => "inlined",
        name if name.starts_with('[') => "unnamed",
        _ => "user",
    };
    let told = match kind {
        "kernel" | "inlined" => format!("{kind}, "),
        _ => String::new(),
    };
    Paint {
        class: format!("{kind} s{}", shade(function(name))),
        style: String::new(),
        note: format!("{told}{} % of samples ({})", digits(frame.percent()), frame.samples),
    }
}

/// The same name has the same shade everywhere (FNV-1a).
fn shade(name: &str) -> u32 {
    let hash = name.bytes().fold(0x811c_9dc5u32, |h, b| (h ^ u32::from(b)).wrapping_mul(0x0100_0193));
    (hash >> 16) % SHADES
}

/// The graph as an `svg` element for a page that holds [`STYLE`] and [`SCRIPT`].
pub fn render(profile: &Profile, title: &str, paint: &dyn Fn(&Frame<'_>) -> Paint) -> String {
    let said = format!("{} samples of {}", profile.samples(), named(&profile.event));
    captioned(profile, title, &said, paint)
}

/// The same with a line of one's own below, for widths that are not samples.
pub fn captioned(profile: &Profile, title: &str, said: &str, paint: &dyn Fn(&Frame<'_>) -> Paint) -> String {
    let mut boxes = Boxes { spans: Vec::new(), left_out: 0, total: profile.samples() };
    boxes.fill(profile);
    let depth = boxes.spans.iter().map(|s| s.path.len()).max().unwrap_or(0) + 1;
    let height = HEAD + depth as f64 * ROW + FOOT;
    let drawn: String = boxes.spans.iter().map(|span| boxes.draw(span, depth, paint)).collect();
    let left_out = match boxes.left_out {
        0 => String::new(),
        n => format!(", {n} boxes too narrow to draw"),
    };
    let said = format!("{said}{left_out}");
    format!(
        "<svg class=\"flame\" role=\"img\" aria-label=\"flame graph: {label}\" viewBox=\"0 0 {WIDTH} {height}\">\
         <rect class=\"paper\" width=\"{WIDTH}\" height=\"{height}\"/>\
         <text class=\"title\" x=\"4\" y=\"19\">{label}</text>\
         <text class=\"tool whole\" x=\"{whole}\" y=\"19\">whole</text>\
         <text class=\"tool search\" x=\"{search}\" y=\"19\">search</text>\
         {}<text class=\"said\" x=\"4\" y=\"{}\">{}</text></svg>\n",
        drawn,
        height - 7.0,
        escape(&said),
        label = escape(title),
        whole = WIDTH - 110.0,
        search = WIDTH - 54.0,
    )
}

fn named(event: &str) -> &str {
    if event.is_empty() { "an event without a name" } else { event }
}

/// The graph as a file of its own, for browsers.
pub fn document(svg: &str) -> String {
    let inside = svg.trim_end().strip_suffix("</svg>").unwrap_or(svg);
    let opened = inside.replacen("<svg ", "<svg xmlns=\"http://www.w3.org/2000/svg\" ", 1);
    let at = opened.find('>').map_or(0, |i| i + 1);
    format!(
        "{}<style>{STYLE}</style>{}<script><![CDATA[\n{SCRIPT}]]></script></svg>\n",
        &opened[..at],
        &opened[at..]
    )
}

/// The boxes of a profile.
struct Boxes<'a> {
    spans: Vec<Span<'a>>,
    left_out: usize,
    total: u64,
}

/// A box: its path and where its samples begin and end.
struct Span<'a> {
    path: &'a [String],
    from: u64,
    to: u64,
}

impl<'a> Boxes<'a> {
    /// Stacks come sorted, so those that share a caller are neighbours: a frame is open as long as they
    /// go on naming it, and ends when they stop.
    fn fill(&mut self, profile: &'a Profile) {
        let mut at = 0;
        let mut path: &[String] = &[];
        let mut began: Vec<u64> = vec![0];
        for (stack, &samples) in &profile.stacks {
            let shared = path.iter().zip(stack).take_while(|(a, b)| a == b).count();
            self.close(path, &mut began, shared, at);
            began.resize(stack.len() + 1, at);
            path = stack;
            at += samples;
        }
        self.close(path, &mut began, 0, at);
        self.push(Span { path: &[], from: 0, to: at });
    }

    /// Ends the frames of `path` beyond the first `keep`.
    fn close(&mut self, path: &'a [String], began: &mut Vec<u64>, keep: usize, at: u64) {
        for depth in (keep + 1..=path.len()).rev() {
            self.push(Span { path: &path[..depth], from: began[depth], to: at });
        }
        began.truncate(keep + 1);
    }

    fn push(&mut self, span: Span<'a>) {
        if self.width(&span) < NARROWEST {
            self.left_out += 1;
        } else {
            self.spans.push(span);
        }
    }

    fn width(&self, span: &Span<'_>) -> f64 {
        (span.to - span.from) as f64 * WIDTH / self.total.max(1) as f64
    }

    fn draw(&self, span: &Span<'_>, depth: usize, paint: &dyn Fn(&Frame<'_>) -> Paint) -> String {
        let (x, width) = (span.from as f64 * WIDTH / self.total.max(1) as f64, self.width(span));
        let y = HEAD + (depth - 1 - span.path.len()) as f64 * ROW;
        let frame = Frame { path: span.path, samples: span.to - span.from, total: self.total };
        let paint = paint(&frame);
        let style = if paint.style.is_empty() {
            String::new()
        } else {
            format!(" style=\"{}\"", escape(&paint.style))
        };
        let name = function(frame.name());
        let text = label(name, width).map_or(String::new(), |label| {
            format!("<text x=\"{:.2}\" y=\"{}\">{}</text>", x + 3.0, y + 12.0, escape(&label))
        });
        format!(
            "<g class=\"{}\"><title>{}\n{}</title>\
             <rect x=\"{x:.2}\" y=\"{y}\" width=\"{width:.2}\" height=\"{}\"{style}/>{text}</g>",
            escape(&format!("f {}", paint.class)),
            escape(&super::folded::frame(name)),
            escape(&paint.note),
            ROW - 1.0,
        )
    }
}

/// The part of a name that fits a box.
fn label(name: &str, width: f64) -> Option<String> {
    let room = ((width - 6.0) / LETTER) as usize;
    match name.chars().count() {
        _ if room < 3 => None,
        n if n <= room => Some(name.into()),
        _ => Some(name.chars().take(room - 1).chain(['…']).collect()),
    }
}

#[cfg(test)]
mod tests;
