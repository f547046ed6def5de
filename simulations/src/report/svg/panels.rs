//! Small plots of rates over time, side by side and with the same axes.

use super::axis::{Axis, short};
use super::canvas::{Anchor, Canvas, CanvasPoint, WIDTH};
use super::labels::Area;

/// Margins, in pixels.
const LEFT: f64 = 52.0;
pub const RIGHT: f64 = 22.0;
const BETWEEN: f64 = 32.0;
/// Above a plot, for its name; and below it, for the time.
const HEAD: f64 = 54.0;
const FOOT: f64 = 30.0;

/// The rates of one policy over time, in cells per second.
pub struct RateCurve<'a> {
    pub name: &'a str,
    /// The cells that were admitted, as a part of those that the exact limiter admits.
    pub ratio: f64,
    pub asked: Vec<f64>,
    pub admitted: Vec<f64>,
}

/// How many plots are side by side.
pub const fn columns(panels: usize) -> usize {
    match panels {
        0 | 1 => 1,
        2 | 4 => 2,
        _ => 3,
    }
}

/// What all panels show: the same rates, the same time.
#[derive(Clone, Copy, Debug)]
pub struct PanelScale {
    /// The highest rate that is drawn, in cells per second.
    pub top: f64,
    /// The limit, in cells per second.
    pub limit: f64,
    /// The length of the run.
    pub seconds: f64,
}

/// Where the panels are, and their axes.
pub struct PanelGrid {
    panels: usize,
    columns: usize,
    /// Where the first panel begins.
    y: f64,
    width: f64,
    height: f64,
    scale: PanelScale,
}

impl PanelGrid {
    pub fn new(panels: usize, y: f64, scale: PanelScale) -> Self {
        let columns = columns(panels);
        let height = match columns {
            1 => 240.0,
            2 => 170.0,
            _ => 130.0,
        };
        let between = BETWEEN * (columns as f64 - 1.0);
        let width = (WIDTH - LEFT - RIGHT - between) / columns as f64;
        Self {
            panels,
            columns,
            y,
            width,
            height,
            scale,
        }
    }

    /// The height of all panels together.
    pub fn height(&self) -> f64 {
        self.panels.div_ceil(self.columns) as f64 * (HEAD + self.height + FOOT)
    }

    /// Draws the panel with this number.
    pub fn panel(&self, canvas: &mut Canvas, number: usize, curve: &RateCurve<'_>, style: usize) {
        let PanelScale {
            top,
            limit,
            seconds,
        } = self.scale;
        let (row, column) = (number / self.columns, number % self.columns);
        let left = LEFT + column as f64 * (self.width + BETWEEN);
        let upper = self.y + row as f64 * (HEAD + self.height + FOOT) + HEAD;
        let panel = Panel {
            x: Axis::until(seconds, (left, left + self.width)),
            y: Axis::until(top, (upper + self.height, upper)),
            area: Area {
                left,
                upper,
                right: left + self.width,
                lower: upper + self.height,
            },
        };
        // The product that works this way is named on the next line: together they are wider than a panel.
        let (policy, product) = match curve.name.split_once(" (") {
            Some((policy, product)) => (policy, format!("{}: ", product.trim_end_matches(')'))),
            None => (curve.name, String::new()),
        };
        canvas.text((left, upper - 34.0), Anchor::Start, "name", policy);
        let ratio = format!("{product}admitted/exact {:.3}", curve.ratio);
        canvas.text((left, upper - 18.0), Anchor::Start, "small", &ratio);
        panel.area(canvas, &curve.asked, top);
        panel.grid(canvas, column == 0, seconds);
        if limit > 0.0 {
            let y = panel.y.at(limit);
            canvas.line((left, y), (left + self.width, y), "limit");
        }
        panel.line(canvas, &curve.admitted, top, style);
    }
}

/// One small plot.
struct Panel {
    x: Axis,
    y: Axis,
    area: Area,
}

impl Panel {
    fn points(&self, values: &[f64], top: f64) -> Vec<CanvasPoint> {
        let Area { left, right, .. } = self.area;
        let step = (right - left) / values.len().max(1) as f64;
        let points = values.iter().enumerate();
        points
            .map(|(index, value)| {
                (
                    left + (index as f64 + 0.5) * step,
                    self.y.at(value.min(top)),
                )
            })
            .collect()
    }

    fn area(&self, canvas: &mut Canvas, values: &[f64], top: f64) {
        let Area {
            left, right, lower, ..
        } = self.area;
        let points = self.points(values, top);
        let (Some(first), Some(last)) = (points.first(), points.last()) else {
            return;
        };
        let mut area = vec![(left, lower), (left, first.1)];
        area.extend(&points);
        area.extend([(right, last.1), (right, lower)]);
        canvas.polygon(&area, "asked");
    }

    fn grid(&self, canvas: &mut Canvas, labelled: bool, seconds: f64) {
        let Area {
            left, right, lower, ..
        } = self.area;
        let ticks = self.y.ticks(4);
        for (index, tick) in ticks.iter().enumerate() {
            let y = self.y.at(*tick);
            canvas.line(
                (left, y),
                (right, y),
                if index == 0 { "axis" } else { "grid" },
            );
            if labelled {
                let unit = if index + 1 == ticks.len() { "/s" } else { "" };
                let text = format!("{}{unit}", short(*tick));
                canvas.text((left - 7.0, y + 4.0), Anchor::End, "small", &text);
            }
        }
        let (unit, length) = time_unit(seconds);
        let ticks = Axis::until(seconds / length, (left, right)).ticks(4);
        for (index, tick) in ticks.iter().enumerate() {
            let x = self.x.at(tick * length);
            canvas.line((x, lower), (x, lower + 4.0), "axis");
            let unit = if index + 1 == ticks.len() { unit } else { "" };
            canvas.text(
                (x, lower + 17.0),
                Anchor::Middle,
                "small",
                &format!("{}{unit}", short(*tick)),
            );
        }
    }

    fn line(&self, canvas: &mut Canvas, values: &[f64], top: f64, style: usize) {
        let points = self.points(values, top);
        let ours = if style == 0 { " ours" } else { "" };
        canvas.polyline(&points, &format!("line{ours} line{style}"));
        let Some((index, peak)) = clipped(values, top) else {
            return;
        };
        let (x, y) = points.get(index).copied().unwrap_or_default();
        let triangle = [(x - 4.0, y - 4.0), (x + 4.0, y - 4.0), (x, y - 10.0)];
        canvas.polygon(&triangle, &format!("fill{style}"));
        let Area { left, right, .. } = self.area;
        let (side, anchor) = match x <= f64::midpoint(left, right) {
            true => (8.0, Anchor::Start),
            false => (-8.0, Anchor::End),
        };
        let text = format!("up to {}/s", short(peak));
        canvas.text((x + side, y - 4.0), anchor, "small name", &text);
    }
}

/// The peak, if it is above `top`, and the middle of the points around it that are above `top` too.
fn clipped(values: &[f64], top: f64) -> Option<(usize, f64)> {
    let (at, peak) = values
        .iter()
        .copied()
        .enumerate()
        .max_by(|(_, a), (_, b)| a.total_cmp(b))?;
    let above = |value: &&f64| **value > top;
    let (before, after) = values.split_at_checked(at)?;
    let before = before.iter().rev().take_while(above).count();
    let after = after.iter().take_while(above).count();
    (peak > top).then_some((usize::midpoint(at - before, at + after.max(1) - 1), peak))
}

/// The unit for a time of so many seconds, and its length in seconds.
fn time_unit(seconds: f64) -> (&'static str, f64) {
    match seconds {
        seconds if seconds < 1.0 => (" ms", 1e-3),
        seconds if seconds <= 180.0 => (" s", 1.0),
        seconds if seconds <= 3.0 * 3_600.0 => (" min", 60.0),
        _ => (" h", 3_600.0),
    }
}

/// A length of time as a short text.
pub fn span(seconds: f64) -> String {
    let (unit, length) = time_unit(seconds);
    format!("{}{unit}", short(seconds / length))
}

#[cfg(test)]
mod tests {
    use super::{clipped, span};

    #[test]
    fn a_peak_is_marked_in_the_middle_of_its_run() {
        assert_eq!(clipped(&[1.0, 2.0, 3.0], 3.0), None);
        assert_eq!(clipped(&[9.0, 1.0, 1.0], 3.0), Some((0, 9.0)));
        assert_eq!(
            clipped(&[1.0, 4.0, 5.0, 4.0, 4.0, 1.0], 3.0),
            Some((2, 5.0))
        );
        assert_eq!(clipped(&[4.0, 4.0, 4.0, 4.0, 9.0], 3.0), Some((2, 9.0)));
        assert_eq!(clipped(&[], 3.0), None);
    }

    #[test]
    fn a_time_has_a_unit_that_fits() {
        assert_eq!(span(0.25), "250 ms");
        assert_eq!(span(1.5), "1.5 s");
        assert_eq!(span(600.0), "10 min");
        assert_eq!(span(86_400.0), "24 h");
    }
}
