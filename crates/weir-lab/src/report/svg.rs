//! Drawing primitives of the report's plots: scales, ticks and elements with classes, so that one style
//! sheet colours all of them for light and dark.

use crate::format::escape;

/// Values to pixels.
#[derive(Clone, Copy, Debug)]
pub struct Scale {
    low: f64,
    high: f64,
    from: f64,
    to: f64,
    log: bool,
}

impl Scale {
    /// `low … high` onto `from … to`; equal ends are spread by a hair so that nothing divides by zero.
    pub fn linear(low: f64, high: f64, from: f64, to: f64) -> Scale {
        let high = if high > low { high } else { low + low.abs().max(1.0) * 1e-9 };
        Scale { low, high, from, to, log: false }
    }

    /// Logarithmic; values at or below zero lie on the low end.
    pub fn log(low: f64, high: f64, from: f64, to: f64) -> Scale {
        let low = low.max(f64::MIN_POSITIVE);
        Scale { low, high: high.max(low * 1.01), from, to, log: true }
    }

    pub fn at(&self, value: f64) -> f64 {
        let share = if self.log {
            (value.max(self.low) / self.low).ln() / (self.high / self.low).ln()
        } else {
            (value - self.low) / (self.high - self.low)
        };
        self.from + share * (self.to - self.from)
    }

    /// Round values inside the scale, about `count` of them.
    pub fn ticks(&self, count: usize) -> Vec<f64> {
        if self.log {
            let steps: &[f64] = if self.high / self.low > 1e3 { &[1.0] } else { &[1.0, 2.0, 5.0] };
            let decades = self.low.log10().floor() as i32..=self.high.log10().ceil() as i32;
            let all = decades.flat_map(|d| steps.iter().map(move |s| s * 10f64.powi(d)));
            return all.filter(|t| (self.low..=self.high * 1.000_001).contains(t)).collect();
        }
        let step = step((self.high - self.low) / count.max(1) as f64);
        let first = (self.low / step).ceil() as i64;
        let last = (self.high / step + 1e-9).floor() as i64;
        (first..=last).map(|i| i as f64 * step).collect()
    }
}

/// The least of 1, 2, 2.5, 5 × 10ⁿ that is not below `rough`.
fn step(rough: f64) -> f64 {
    let decade = 10f64.powf(rough.log10().floor());
    [1.0, 2.0, 2.5, 5.0, 10.0].map(|s| s * decade).into_iter().find(|s| *s >= rough * 0.999).unwrap_or(rough)
}

/// Ends of an axis over values: from zero unless they all lie in the upper two thirds.
pub fn ends(low: f64, high: f64) -> (f64, f64) {
    let pad = (high - low) * 0.06;
    if low > 0.0 && low * 3.0 > high {
        ((low - pad).max(0.0), high + pad)
    } else {
        (low.min(0.0), high + pad)
    }
}

/// A tick's text: no more places than its neighbours need.
pub fn tick_label(value: f64, step: f64) -> String {
    let decimals = if step >= 1.0 && step.fract() == 0.0 {
        0
    } else {
        (-step.log10().floor() as i32 + i32::from(step * 10f64.powf(-step.log10().floor()) == 2.5))
            .clamp(0, 6)
    };
    let text = format!("{value:.*}", decimals as usize);
    if text.trim_start_matches('-').chars().all(|c| c == '0' || c == '.') { "0".into() } else { text }
}

/// Tells series apart where colours cannot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    Circle,
    Square,
    Triangle,
    Diamond,
}

impl Shape {
    /// The shape of the `place`th series.
    pub fn of(place: usize) -> Shape {
        [Shape::Circle, Shape::Square, Shape::Triangle, Shape::Diamond][place % 4]
    }
}

/// A picture under construction.
pub struct Svg {
    body: String,
    width: f64,
    height: f64,
}

impl Svg {
    pub fn new(width: f64, height: f64) -> Svg {
        Svg { body: String::new(), width, height }
    }

    pub fn line(&mut self, class: &str, x1: f64, y1: f64, x2: f64, y2: f64) {
        self.body +=
            &format!("<line class=\"{class}\" x1=\"{x1:.1}\" y1=\"{y1:.1}\" x2=\"{x2:.1}\" y2=\"{y2:.1}\"/>");
    }

    pub fn rect(&mut self, class: &str, x: f64, y: f64, w: f64, h: f64) {
        self.body += &format!(
            "<rect class=\"{class}\" x=\"{x:.1}\" y=\"{y:.1}\" width=\"{:.1}\" height=\"{h:.1}\" rx=\"2\"/>",
            w.max(0.5)
        );
    }

    /// A marker that says `title` when pointed at; without one it is silent.
    pub fn mark(&mut self, class: &str, shape: Shape, x: f64, y: f64, r: f64, title: &str) {
        let told = if title.is_empty() { String::new() } else { format!("<title>{}</title>", escape(title)) };
        // equal areas: a square or a triangle of a circle's radius looks larger
        let (s, d, t) = (r * 0.886, r * 1.253, r * 1.347);
        let outline = match shape {
            Shape::Circle => {
                self.body += &format!(
                    "<circle class=\"{class}\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"{r}\">{told}</circle>"
                );
                return;
            }
            Shape::Square => [(-s, -s), (s, -s), (s, s), (-s, s)].to_vec(),
            Shape::Diamond => [(0.0, -d), (d, 0.0), (0.0, d), (-d, 0.0)].to_vec(),
            Shape::Triangle => [(0.0, -t), (t, t * 0.732), (-t, t * 0.732)].to_vec(),
        };
        let points: Vec<String> =
            outline.iter().map(|(dx, dy)| format!("{:.1},{:.1}", x + dx, y + dy)).collect();
        self.body += &format!("<polygon class=\"{class}\" points=\"{}\">{told}</polygon>", points.join(" "));
    }

    pub fn path(&mut self, class: &str, points: &[(f64, f64)]) {
        let points: Vec<String> = points.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
        self.body += &format!("<polyline class=\"{class}\" points=\"{}\"/>", points.join(" "));
    }

    /// `anchor` is `start`, `middle` or `end`.
    pub fn text(&mut self, class: &str, anchor: &str, x: f64, y: f64, text: &str) {
        self.body += &format!(
            "<text class=\"{class}\" text-anchor=\"{anchor}\" x=\"{x:.1}\" y=\"{y:.1}\">{}</text>",
            escape(text)
        );
    }

    /// The element; `label` is what a screen reader says.
    pub fn finish(self, label: &str) -> String {
        format!(
            "<svg role=\"img\" aria-label=\"{}\" viewBox=\"0 0 {:.0} {:.0}\">{}</svg>",
            escape(label),
            self.width,
            self.height,
            self.body
        )
    }
}

/// A name that fits into so many pixels, its middle left out.
pub fn shortened(text: &str, pixels: f64) -> String {
    let room = (pixels / text_width("x")) as usize;
    let letters: Vec<char> = text.chars().collect();
    if letters.len() <= room.max(4) {
        return text.into();
    }
    let (head, tail) = (room.max(4) / 2, room.max(4) - room.max(4) / 2 - 1);
    let ends = |part: &[char]| part.iter().collect::<String>();
    format!("{}…{}", ends(&letters[..head]), ends(&letters[letters.len() - tail..]))
}

/// Pixels a label takes at the plots' 13 px, generously.
pub fn text_width(text: &str) -> f64 {
    text.chars().count() as f64 * 7.3
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round_and_inside() {
        assert_eq!(Scale::linear(0.0, 10.0, 0.0, 1.0).ticks(5), [0.0, 2.0, 4.0, 6.0, 8.0, 10.0]);
        assert_eq!(Scale::linear(23.9, 24.6, 0.0, 1.0).ticks(4).len(), 4);
        assert_eq!(Scale::log(1.0, 100.0, 0.0, 1.0).ticks(9), [1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0]);
    }

    #[test]
    fn scales_run_from_end_to_end_without_dividing_by_zero() {
        let s = Scale::linear(10.0, 20.0, 100.0, 200.0);
        assert_eq!((s.at(10.0), s.at(20.0)), (100.0, 200.0));
        assert!(Scale::linear(5.0, 5.0, 0.0, 10.0).at(5.0).is_finite());
        assert!(Scale::log(0.0, 0.0, 0.0, 10.0).at(0.0).is_finite());
    }

    #[test]
    fn labels_show_the_places_their_step_needs() {
        assert_eq!(tick_label(24.25, 0.25), "24.25");
        assert_eq!(tick_label(2.5, 2.5), "2.5");
        assert_eq!(
            (tick_label(20.0, 5.0), tick_label(0.0, 0.1), tick_label(0.3, 0.1)),
            ("20".into(), "0".into(), "0.3".into())
        );
    }

    #[test]
    fn long_names_keep_both_ends() {
        assert_eq!(shortened("short", 300.0), "short");
        let cut = shortened("kernel-inet-64-bytes-2000-flows", 100.0);
        assert!(cut.starts_with("kernel") && cut.ends_with("flows") && cut.contains('…'), "{cut}");
        assert!(text_width(&cut) <= 100.0, "{cut}");
    }

    #[test]
    fn names_cannot_break_out_of_the_picture() {
        let mut svg = Svg::new(1.0, 1.0);
        svg.text("t", "start", 0.0, 0.0, "</svg><script>");
        assert!(!svg.finish("\"x").contains("<script>"));
    }
}
