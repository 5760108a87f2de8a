//! The dotted plot of a ministat block.

use super::{SYMBOLS, Set, Style};

/// Column `c` covers `x0 + c·dx … x0 + (c + 1)·dx`, so that the least figure lies in the middle of column 0.
struct Scale {
    x0: f64,
    dx: f64,
    width: usize,
}

impl Scale {
    /// Covers every point and every mean ± deviation; `None` when all of them are one figure.
    fn over(sets: &[Set], width: usize) -> Option<Scale> {
        let ends = sets.iter().flat_map(|s| [s.min(), s.max(), s.mean() - s.sd(), s.mean() + s.sd()]);
        let (low, high) = ends.fold((f64::INFINITY, f64::NEG_INFINITY), |(l, h), v| (l.min(v), h.max(v)));
        let dx = (high - low) / (width as f64 - 1.0);
        (dx > 0.0).then_some(Scale { x0: low - 0.5 * dx, dx, width })
    }

    fn column(&self, value: f64) -> usize {
        (((value - self.x0) / self.dx) as usize).min(self.width - 1)
    }
}

pub(super) fn draw(sets: &[Set], style: Style) -> String {
    let Some(scale) = Scale::over(sets, style.width) else {
        return "[no plot, span is zero width]\n".into();
    };
    let border = format!("+{}+\n", "-".repeat(style.width));
    let mut out = border.clone();
    for row in points(sets, &scale).iter().rev() {
        let cells: String = row.iter().map(|&bits| SYMBOLS[bits as usize]).collect();
        out += &format!("|{cells}|\n");
    }
    let lines = if style.separate_bars { sets.len() } else { 1 };
    let mut bars = vec![vec![' '; style.width]; lines];
    for (i, set) in sets.iter().enumerate() {
        bar(set, &scale, &mut bars[i % lines]);
    }
    for line in bars {
        out += &format!("|{}|\n", line.into_iter().collect::<String>());
    }
    out + &border
}

/// Rows of points from the bottom up; each cell ORs the numbers of the sets in it.
///
/// The height follows the last set: rows a taller set filled above it are lost, as in the original.
fn points(sets: &[Set], scale: &Scale) -> Vec<Vec<u8>> {
    let mut rows: Vec<Vec<u8>> = Vec::new();
    for (i, set) in sets.iter().enumerate() {
        let mut height = 0;
        let mut stacked = Vec::with_capacity(set.sorted.len());
        let mut last = None;
        let mut level = 0;
        for &value in &set.sorted {
            let column = scale.column(value);
            level = if last == Some(column) { level + 1 } else { 0 };
            last = Some(column);
            height = height.max(level + 1);
            stacked.push((level, column));
        }
        rows.resize(height, vec![0; scale.width]);
        for (level, column) in stacked {
            rows[level][column] |= i as u8 + 1;
        }
    }
    rows
}

fn bar(set: &Set, scale: &Scale, line: &mut [char]) {
    let from = scale.column(set.mean() - set.sd());
    let to = scale.column(set.mean() + set.sd());
    for cell in line.iter_mut().take(to).skip(from + 1).filter(|c| **c == ' ') {
        *cell = '_';
    }
    line[from] = '|';
    line[to] = '|';
    line[scale.column(set.median())] = 'M';
    line[scale.column(set.mean())] = 'A';
}
