//! The plot of overshoot against the load of the store.

use super::axis::{Axis, short};
use super::canvas::{Anchor, Canvas, CanvasPoint, WIDTH, styles, wide};
use super::labels::{Area, place};

/// The result of a policy, or of one value of a parameter.
#[derive(Clone, Debug, PartialEq)]
pub struct CostPoint {
    pub label: String,
    /// Points of the same series are joined by a line, in their order.
    pub series: String,
    /// Key updates in the store, per second.
    pub cost: f64,
    /// In percent of the burst.
    pub overshoot: f64,
}

/// Margins and the height, in pixels.
const LEFT: f64 = 66.0;
const RIGHT: f64 = 24.0;
const UPPER: f64 = 84.0;
const LOWER: f64 = 420.0;
const HEIGHT: f64 = 474.0;

/// Overshoot against cost, with a mark for each point. An axis is logarithmic if its values span more than a decade.
pub fn overshoot_against_cost(title: &str, points: &[CostPoint]) -> String {
    let finite = |point: &&CostPoint| point.cost.is_finite() && point.overshoot.is_finite();
    let points: Vec<&CostPoint> = points.iter().filter(finite).collect();
    let costs: Vec<f64> = points.iter().map(|point| point.cost).collect();
    let overshoots: Vec<f64> = points.iter().map(|point| point.overshoot).collect();
    let x = Axis::around(&costs, (LEFT + 14.0, WIDTH - RIGHT));
    let y = Axis::around(&overshoots, (LOWER - 14.0, UPPER));

    let mut canvas = Canvas::new();
    canvas.text((18.0, 28.0), Anchor::Start, "title", title);
    axes(&mut canvas, &x, &y);

    let mut names: Vec<&str> = Vec::new();
    for point in &points {
        if !names.contains(&point.series.as_str()) {
            names.push(&point.series);
        }
    }
    let mut series: Vec<PointSeries<'_>> = names
        .iter()
        .zip(styles(names.iter().copied()))
        .map(|(name, style)| {
            let own: Vec<&CostPoint> = points
                .iter()
                .copied()
                .filter(|point| point.series == *name)
                .collect();
            let at = own
                .iter()
                .map(|point| (x.at(point.cost), y.at(point.overshoot)))
                .collect();
            PointSeries {
                name,
                style,
                own,
                at,
            }
        })
        .collect();
    legend(&mut canvas, &series);
    // The series of tidegate is drawn last, on top of the others, but its labels are placed first.
    series.sort_by_key(|one| one.style);
    for one in series.iter().rev() {
        one.draw(&mut canvas);
    }
    labels(&mut canvas, &series);
    canvas.end(
        HEIGHT,
        &format!("{title}: overshoot against store key updates per second"),
    )
}

/// The points of one series, and where they are drawn.
struct PointSeries<'a> {
    name: &'a str,
    style: usize,
    own: Vec<&'a CostPoint>,
    at: Vec<CanvasPoint>,
}

impl PointSeries<'_> {
    fn draw(&self, canvas: &mut Canvas) {
        let style = self.style;
        let ours = if style == 0 { " ours" } else { "" };
        if self.at.len() > 1 {
            canvas.polyline(&self.at, &format!("line{ours} line{style}"));
        }
        for at in &self.at {
            canvas.mark(*at, style);
        }
    }

    /// Whether its labels already are its name.
    fn is_named(&self) -> bool {
        self.own.iter().all(|point| point.label == self.name)
    }
}

fn axes(canvas: &mut Canvas, x: &Axis, y: &Axis) {
    for tick in x.ticks(6) {
        let at = x.at(tick);
        canvas.line((at, UPPER), (at, LOWER), "grid");
        canvas.text((at, LOWER + 18.0), Anchor::Middle, "small", &short(tick));
    }
    for tick in y.ticks(5) {
        let at = y.at(tick);
        canvas.line((LEFT, at), (WIDTH - RIGHT, at), "grid");
        canvas.text(
            (LEFT - 8.0, at + 4.0),
            Anchor::End,
            "small",
            &format!("{tick}%"),
        );
    }
    canvas.line((LEFT, LOWER), (WIDTH - RIGHT, LOWER), "axis");
    canvas.line((LEFT, UPPER), (LEFT, LOWER), "axis");
    if let Some(gap) = x.gap() {
        canvas.line((gap - 5.0, LOWER + 5.0), (gap - 1.0, LOWER - 5.0), "axis");
        canvas.line((gap + 1.0, LOWER + 5.0), (gap + 5.0, LOWER - 5.0), "axis");
    }
    if let Some(gap) = y.gap() {
        canvas.line((LEFT - 5.0, gap + 5.0), (LEFT + 5.0, gap + 1.0), "axis");
        canvas.line((LEFT - 5.0, gap - 1.0), (LEFT + 5.0, gap - 5.0), "axis");
    }
    let form = |axis: &Axis| {
        if axis.is_logarithmic() {
            ", logarithmic"
        } else {
            ""
        }
    };
    let middle = f64::midpoint(LEFT, WIDTH - RIGHT);
    let text = format!("store key updates per second{}", form(x));
    canvas.text((middle, LOWER + 40.0), Anchor::Middle, "", &text);
    let hint = (WIDTH - RIGHT, LOWER + 40.0);
    canvas.text(hint, Anchor::End, "small", "lower left is better");
    canvas.upright(
        (20.0, f64::midpoint(UPPER, LOWER)),
        &format!("overshoot, % of burst{}", form(y)),
    );
}

fn legend(canvas: &mut Canvas, series: &[PointSeries<'_>]) {
    let (mut x, mut y) = (24.0, 52.0);
    for one in series.iter().filter(|one| !one.is_named()) {
        let width = 12.0 + wide(one.name, 12.0);
        if x + width > WIDTH - RIGHT {
            (x, y) = (24.0, y + 18.0);
        }
        canvas.mark((x, y), one.style);
        let class = if one.style == 0 { "name" } else { "" };
        canvas.text((x + 12.0, y + 4.0), Anchor::Start, class, one.name);
        x += width + 26.0;
    }
}

fn labels(canvas: &mut Canvas, series: &[PointSeries<'_>]) {
    let points = series.iter().flat_map(|one| {
        one.own
            .iter()
            .zip(&one.at)
            .map(move |(point, at)| (one, point, at))
    });
    let points: Vec<_> = points.collect();
    let texts: Vec<(CanvasPoint, &str)> = points
        .iter()
        .map(|(_, point, at)| (**at, point.label.as_str()))
        .collect();
    let lines: Vec<Vec<CanvasPoint>> = series.iter().map(|one| one.at.clone()).collect();
    let bounds = Area {
        left: LEFT + 4.0,
        upper: UPPER - 10.0,
        right: WIDTH - 6.0,
        lower: LOWER - 2.0,
    };
    for ((one, point, at), placed) in points.iter().zip(place(&texts, &lines, bounds)) {
        if let Some(near) = placed.lead {
            canvas.line(**at, near, "lead");
            canvas.mark(**at, one.style);
        }
        let class = if one.style == 0 && one.is_named() {
            "halo name"
        } else {
            "halo"
        };
        canvas.text(placed.at, placed.anchor, class, &point.label);
    }
}

#[cfg(test)]
mod tests {
    use super::{CostPoint, overshoot_against_cost};
    use crate::report::samples::check_well_formed;

    fn point(series: &str, label: &str, cost: f64, overshoot: f64) -> CostPoint {
        CostPoint {
            label: label.to_owned(),
            series: series.to_owned(),
            cost,
            overshoot,
        }
    }

    #[test]
    fn points_of_a_series_are_joined_and_the_series_named() {
        let points = [
            point("other", "other", 5_000.0, 0.0),
            point("tidegate", "0.1", 600.0, 9.0),
            point("tidegate", "0.01", 4_000.0, 1.0),
        ];
        let svg = overshoot_against_cost("cost", &points);
        check_well_formed(&svg);
        assert_eq!(svg.matches("<polyline").count(), 1);
        assert_eq!(svg.matches(">tidegate<").count(), 1, "in the legend");
        assert_eq!(svg.matches(">other<").count(), 1, "beside its point");
        assert!(svg.contains("line ours line0"));
    }

    #[test]
    fn an_axis_is_logarithmic_if_its_values_differ_much() {
        let points = [point("a", "a", 1.0, 1.0), point("b", "b", 11.0, 2.0)];
        let svg = overshoot_against_cost("cost", &points);
        assert!(svg.contains("updates per second, logarithmic<"));
        assert!(svg.contains("% of burst<"));
    }

    #[test]
    fn points_that_cannot_be_drawn_are_left_out() {
        for points in [
            vec![],
            vec![point("a", "a", f64::NAN, 1.0)],
            vec![point("a", "a", 0.0, 0.0)],
        ] {
            let svg = overshoot_against_cost("a & b", &points);
            check_well_formed(&svg);
            assert!(!svg.contains("NaN") && !svg.contains("inf"));
        }
    }
}
