//! Labels beside points, placed so that they do not overlap.

use super::canvas::{Anchor, At, wide};

/// Pixels.
const SIZE: f64 = 12.0;
const HEIGHT: f64 = 14.0;
/// Half of a mark, and some air.
const MARK: f64 = 8.0;
/// How far from its point a label may stand, nearest first. From the second on, a line leads to it.
const DISTANCES: [f64; 5] = [10.0, 24.0, 40.0, 58.0, 80.0];

/// A rectangle: left, upper, right, lower.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Area(pub f64, pub f64, pub f64, pub f64);

impl Area {
    pub const fn around((x, y): At) -> Self {
        Self(x - MARK, y - MARK, x + MARK, y + MARK)
    }

    /// Square pixels of both.
    pub fn overlap(&self, other: &Self) -> f64 {
        let wide = self.2.min(other.2) - self.0.max(other.0);
        let high = self.3.min(other.3) - self.1.max(other.1);
        wide.max(0.0) * high.max(0.0)
    }

    /// Square pixels of it that are outside of `other`.
    fn outside(&self, other: &Self) -> f64 {
        (self.2 - self.0) * (self.3 - self.1) - self.overlap(other)
    }
}

/// Where a label stands.
#[derive(Clone, Copy, Debug)]
pub struct Placed {
    pub at: At,
    pub anchor: Anchor,
    pub area: Area,
    /// The near end of a line from the point to it, if it stands far away.
    pub lead: Option<At>,
}

/// Places for `labels`, in their order, within `bounds`: clear of all points, of `lines`, and of each other.
pub fn place(labels: &[(At, &str)], lines: &[Vec<At>], bounds: Area) -> Vec<Placed> {
    let mut taken: Vec<Area> = labels.iter().map(|(at, _)| Area::around(*at)).collect();
    taken.extend(lines.iter().flat_map(|line| along(line)));
    let mut written: Vec<Area> = Vec::new();
    let mut all = Vec::new();
    for (at, text) in labels {
        let mut best: Option<(f64, Placed)> = None;
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

/// Small areas along a line.
fn along(line: &[At]) -> Vec<Area> {
    let mut areas = Vec::new();
    for pair in line.windows(2) {
        let [(x1, y1), (x2, y2)] = pair else {
            continue;
        };
        let steps = ((x2 - x1).hypot(y2 - y1) / 6.0).ceil();
        for step in 0..=steps as usize {
            let part = step as f64 / steps.max(1.0);
            let (x, y) = (x1 + (x2 - x1) * part, y1 + (y2 - y1) * part);
            areas.push(Area(x - 2.0, y - 2.0, x + 2.0, y + 2.0));
        }
    }
    areas
}

/// Places around a point, the nearest first.
fn candidates((x, y): At, width: f64) -> impl Iterator<Item = Placed> {
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
            // Below its point a label hangs, above it it stands, beside it it is in the middle.
            let middle = near.1 + down * 5.0;
            let area = Area(
                left,
                middle - HEIGHT / 2.0,
                left + width,
                middle + HEIGHT / 2.0,
            );
            Placed {
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
    use super::{Area, At, place};

    const BOUNDS: Area = Area(0.0, 0.0, 800.0, 400.0);

    /// No label lies on another one or leaves the plot.
    fn check(labels: &[(At, &str)]) {
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
    fn a_lone_label_stands_right_of_its_point() {
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
        assert!(placed.iter().all(|one| one.area.3 < 200.0), "{placed:?}");
    }
}
