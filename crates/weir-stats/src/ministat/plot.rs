//! The dotted plot of a ministat block.

use super::{Described, Refusal, SYMBOLS, Style};

/// The original looks for the ends from here: where every value lies beyond, these are the ends.
const FAR: f64 = 999e99;

/// Column `c` covers `x0 + c·dx … x0 + (c + 1)·dx`, so that the least value lies in the middle of column 0.
struct Scale {
    x0: f64,
    dx: f64,
    width: usize,
}

impl Scale {
    /// Covers every point and every mean ± deviation; `None` when all of them are one value.
    fn over(sets: &[Described<'_>], width: usize) -> Result<Option<Scale>, Refusal> {
        let ends = sets.iter().flat_map(|s| [s.min(), s.max(), s.mean - s.sd, s.mean + s.sd]);
        // a comparison with NaN is false: a deviation that is none moves nothing
        let (low, high) = ends.fold((FAR, -FAR), |(low, high), v| {
            (if v < low { v } else { low }, if v > high { v } else { high })
        });
        let span = high - low;
        if span == 0.0 {
            return Ok(None);
        }
        let dx = span / (width as f64 - 1.0);
        let points = sets.iter().flat_map(|s| [s.mean, s.median, s.min(), s.max()]);
        if !dx.is_finite() || dx == 0.0 || points.into_iter().any(|v| !((v - low) / dx).is_finite()) {
            return Err(Refusal::Plot { columns: width, low, high });
        }
        Ok(Some(Scale { x0: low - 0.5 * dx, dx, width }))
    }

    /// Rounding at the upper end may give `width`: that cell is the next row's first.
    fn column(&self, value: f64) -> usize {
        ((value - self.x0) / self.dx) as usize
    }
}

pub(super) fn draw(sets: &[Described<'_>], style: &Style) -> Result<String, Refusal> {
    let Some(scale) = Scale::over(sets, style.width)? else {
        return Ok("[no plot, span is zero width]\n".into());
    };
    let width = style.width;
    let border = format!("+{}+\n", "-".repeat(width));
    let mut out = border.clone();
    let (cells, height) = points(sets, &scale);
    for row in (0..height).rev() {
        let line: String =
            cells[row * width..][..width].iter().map(|&bits| SYMBOLS[usize::from(bits)]).collect();
        out += &format!("|{line}|\n");
    }
    let lines = if style.separate_bars { sets.len() } else { 1 };
    let mut bars = vec![vec![' '; width]; lines];
    for (i, set) in sets.iter().enumerate() {
        bar(set, &scale, &mut bars[i % lines]);
    }
    for line in bars {
        out += &format!("|{}|\n", line.into_iter().collect::<String>());
    }
    Ok(out + &border)
}

/// Cells row by row from the bottom up, each ORs the numbers of the sets in it; and the count of rows.
///
/// The height follows the last set: rows a taller set filled above it are lost, as in the original.
fn points(sets: &[Described<'_>], scale: &Scale) -> (Vec<u8>, usize) {
    let mut cells: Vec<u8> = Vec::new();
    let mut height = 0;
    for (i, set) in sets.iter().enumerate() {
        height = 0;
        let mut stacked = Vec::with_capacity(set.set.sorted.len());
        let mut last = None;
        let mut level = 0;
        for &value in &set.set.sorted {
            let column = scale.column(value);
            level = if last == Some(column) { level + 1 } else { 0 };
            last = Some(column);
            height = height.max(level + 1);
            stacked.push(level * scale.width + column);
        }
        cells.resize(height * scale.width, 0);
        for at in stacked {
            if let Some(cell) = cells.get_mut(at) {
                *cell |= i as u8 + 1;
            }
        }
    }
    (cells, height)
}

fn bar(set: &Described<'_>, scale: &Scale, line: &mut [char]) {
    let mut put = |column: usize, sign: char| {
        if let Some(cell) = line.get_mut(column) {
            *cell = sign;
        }
    };
    if !set.sd.is_nan() {
        let (from, to) = (scale.column(set.mean - set.sd), scale.column(set.mean + set.sd));
        put(to, '|');
        put(from, '|');
        for cell in line.iter_mut().take(to).skip(from + 1).filter(|c| **c == ' ') {
            *cell = '_';
        }
    }
    for (value, sign) in [(set.median, 'M'), (set.mean, 'A')] {
        if let Some(cell) = line.get_mut(scale.column(value)) {
            *cell = sign;
        }
    }
}
