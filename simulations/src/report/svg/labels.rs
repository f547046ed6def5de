//! Labels beside points, placed so that they do not overlap.

use super::canvas::{Anchor, CanvasPoint, wide};

/// The font size and the height of a label, in pixels.
const SIZE: f64 = 12.0;
const HEIGHT: f64 = 14.0;
/// Half of the width of a mark, and some space.
const MARK: f64 = 8.0;
/// The distances between a point and its label, nearest first. From the second on, a line leads to the label.
const DISTANCES: [f64; 5] = [10.0, 24.0, 40.0, 58.0, 80.0];

/// A rectangle, in pixels.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Area {
    pub left: f64,
    pub upper: f64,
    pub right: f64,
    pub lower: f64,
}

impl Area {
    /// The square around a position, with its sides `reach` away.
    pub const fn around((x, y): CanvasPoint, reach: f64) -> Self {
        Self {
            left: x - reach,
            upper: y - reach,
            right: x + reach,
            lower: y + reach,
        }
    }

    /// The square pixels that both have.
    pub fn overlap(&self, other: &Self) -> f64 {
        let wide = self.right.min(other.right) - self.left.max(other.left);
        let high = self.lower.min(other.lower) - self.upper.max(other.upper);
        wide.max(0.0) * high.max(0.0)
    }

    /// The square pixels that are outside of `other`.
    fn outside(&self, other: &Self) -> f64 {
        (self.right - self.left) * (self.lower - self.upper) - self.overlap(other)
    }
}

/// Where a label is drawn.
#[derive(Clone, Copy, Debug)]
pub struct LabelPosition {
    pub at: CanvasPoint,
    pub anchor: Anchor,
    pub area: Area,
    /// Where the line from the point to the label ends, if the label is far away.
    pub lead: Option<CanvasPoint>,
}

/// Finds positions for `labels`, in their order, within `bounds`, that cover no point, none of `lines` and no other
/// label.
pub fn place(
    labels: &[(CanvasPoint, &str)],
    lines: &[Vec<CanvasPoint>],
    bounds: Area,
) -> Vec<LabelPosition> {
    let mut taken: Vec<Area> = labels
        .iter()
        .map(|(at, _)| Area::around(*at, MARK))
        .collect();
    taken.extend(lines.iter().flat_map(|line| along(line)));
    let mut written: Vec<Area> = Vec::new();
    let mut all = Vec::new();
    for (at, text) in labels {
        let mut best: Option<(f64, LabelPosition)> = None;
        for (rank, placed) in candidates(*at, wide(text, SIZE)).enumerate() {
            let lead = placed.lead.map_or(Vec::new(), |near| along(&[*at, near]));
            let crossed: f64 = lead.iter().map(|area| covered(area, &written)).sum();
            let fault = (covered(&placed.area, &taken) + covered(&placed.area, &written) + crossed)
                * 10.0
                + placed.area.outside(&bounds) * 100.0
                + rank as f64;
            if best.as_ref().is_none_or(|(least, _)| fault < *least) {
                best = Some((fault, placed));
            }
        }
        if let Some((_, placed)) = best {
            written.push(placed.area);
            taken.extend(placed.lead.iter().flat_map(|near| along(&[*at, *near])));
            all.push(placed);
        }
    }
    all
}

fn covered(area: &Area, others: &[Area]) -> f64 {
    others.iter().map(|other| other.overlap(area)).sum()
}

/// Small squares along a line.
fn along(line: &[CanvasPoint]) -> Vec<Area> {
    let mut areas = Vec::new();
    for pair in line.windows(2) {
        let [(x1, y1), (x2, y2)] = pair else {
            continue;
        };
        let steps = ((x2 - x1).hypot(y2 - y1) / 6.0).ceil();
        for step in 0..=steps as usize {
            let part = step as f64 / steps.max(1.0);
            let (x, y) = (x1 + (x2 - x1) * part, y1 + (y2 - y1) * part);
            areas.push(Area::around((x, y), 2.0));
        }
    }
    areas
}

/// The positions to try around a point, the nearest first.
fn candidates((x, y): CanvasPoint, width: f64) -> impl Iterator<Item = LabelPosition> {
    const AROUND: [(f64, f64); 8] = [
        (1.0, 0.0),
        (0.0, -1.0),
        (-1.0, 0.0),
        (0.0, 1.0),
        (0.7, -0.9),
        (-0.7, -0.9),
        (0.7, 0.9),
        (-0.7, 0.9),
    ];
    DISTANCES.into_iter().flat_map(move |distance| {
        AROUND.into_iter().map(move |(right, down)| {
            let near = (x + right * distance, y + down * (distance + 2.0));
            let (anchor, left) = match right {
                0.0 => (Anchor::Middle, near.0 - width / 2.0),
                right if right > 0.0 => (Anchor::Start, near.0),
                _ => (Anchor::End, near.0 - width),
            };
            // A label below its point begins there, one above ends there, one beside it is centred.
            let middle = near.1 + down * 5.0;
            let area = Area {
                left,
                upper: middle - HEIGHT / 2.0,
                right: left + width,
                lower: middle + HEIGHT / 2.0,
            };
            LabelPosition {
                at: (near.0, middle + 4.0),
                anchor,
                area,
                lead: (distance > DISTANCES[0]).then_some(near),
            }
        })
    })
}

#[cfg(test)]
mod tests {
    use super::{Area, CanvasPoint, place};

    const BOUNDS: Area = Area {
        left: 0.0,
        upper: 0.0,
        right: 800.0,
        lower: 400.0,
    };

    /// No label lies on another one or leaves the plot.
    fn check(labels: &[(CanvasPoint, &str)]) {
        let placed = place(labels, &[], BOUNDS);
        assert_eq!(placed.len(), labels.len());
        for (index, one) in placed.iter().enumerate() {
            assert_eq!(one.area.outside(&BOUNDS), 0.0, "{one:?}");
            for other in placed.iter().skip(index + 1) {
                assert_eq!(one.area.overlap(&other.area), 0.0, "{one:?} {other:?}");
            }
        }
    }

    #[test]
    fn labels_of_one_point_do_not_overlap() {
        check(&[((400.0, 200.0), "a label of some length"); 8]);
    }

    #[test]
    fn labels_stay_within_the_plot() {
        check(&[
            ((0.0, 0.0), "upper left"),
            ((800.0, 0.0), "upper right"),
            ((800.0, 400.0), "lower right"),
        ]);
    }

    #[test]
    fn a_lone_label_is_right_of_its_point() {
        let placed = place(&[((400.0, 200.0), "alone")], &[], BOUNDS);
        assert!(
            placed
                .iter()
                .all(|one| one.at.0 > 400.0 && one.lead.is_none())
        );
    }

    #[test]
    fn a_label_keeps_off_lines() {
        let line = vec![(400.0, 200.0), (700.0, 200.0)];
        let placed = place(&[((400.0, 200.0), "a label")], &[line], BOUNDS);
        assert!(
            placed.iter().all(|one| one.area.lower < 200.0),
            "{placed:?}"
        );
    }
}
