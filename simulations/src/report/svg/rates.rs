//! The plot of admitted rates over time, against the limit.
//!
//! It has a small panel for each policy, all with the same axes. Rates are cut off at [`CLIP`] times the limit, and the
//! peak is written instead: so a policy that admits fifteen times the limit does not flatten the others.

use crate::judge::{BINS, Bin};
use crate::report::table::PolicyRow;
use crate::scenario::Scenario;

use super::axis::short;
use super::canvas::{Anchor, Canvas, WIDTH, styles, wide};
use super::panels::{PanelGrid, PanelScale, RIGHT, RateCurve, columns, span};

/// Rates are drawn up to this multiple of the limit.
const CLIP: f64 = 6.0;
/// The fewest cells of the limit in one point of a curve. With fewer, whole cells look like noise.
const CELLS_MIN: f64 = 25.0;
/// The numbers of bins that may be drawn as one point.
const GROUPS: [usize; 5] = [2, 4, 5, 10, GROUP_MAX];
const GROUP_MAX: usize = 20;

/// Pixels from a line of text to the next.
const LINE: f64 = 17.0;

/// The admitted rate of the first seed of each row over time. `limit_per_second` is the limit of the whole fleet.
pub fn admitted_over_time(
    scenario: &Scenario,
    rows: &[PolicyRow],
    limit_per_second: f64,
) -> String {
    let group = group(scenario, rows.len(), limit_per_second);
    let curves = rows
        .iter()
        .filter_map(|row| RateCurve::of(scenario, row, group));
    let curves: Vec<RateCurve<'_>> = curves.collect();
    let asked = peak(curves.iter().map(|curve| &curve.asked));
    let admitted = peak(curves.iter().map(|curve| &curve.admitted));
    let highest = admitted.max(asked).max(limit_per_second) * 1.05;
    let top = match limit_per_second > 0.0 {
        true => highest.min(limit_per_second * CLIP),
        false if highest > 0.0 => highest,
        false => 1.0,
    };

    let mut canvas = Canvas::new();
    let seed = rows.iter().find_map(|row| Some(row.outcomes.first()?.seed));
    let point = seconds(scenario) / BINS as f64 * group as f64;
    let (pods, seed) = (scenario.pods, seed.unwrap_or(0));
    let facts = format!(
        "cells per second, averaged over {}; {pods} pods, seed {seed}",
        span(point)
    );
    let mut y = heading(&mut canvas, scenario, &facts);
    legend(&mut canvas, y, asked, limit_per_second);
    y += 8.0;
    let scale = PanelScale {
        top,
        limit: limit_per_second,
        seconds: seconds(scenario),
    };
    let grid = PanelGrid::new(curves.len(), y, scale);
    let styles = styles(curves.iter().map(|curve| curve.name));
    for (number, (curve, style)) in curves.iter().zip(styles).enumerate() {
        grid.panel(&mut canvas, number, curve, style);
    }
    let label = format!(
        "{}: cells admitted per second over time, by policy",
        scenario.name
    );
    canvas.end(y + grid.height() + 10.0, &label)
}

fn seconds(scenario: &Scenario) -> f64 {
    scenario.lasts as f64 / 1e9
}

/// How many bins are drawn as one point: as many as fit a panel, and not too few cells.
fn group(scenario: &Scenario, panels: usize, limit: f64) -> usize {
    let least = match columns(panels) {
        1 => 2,
        2 => 4,
        _ => 5,
    };
    let bin = seconds(scenario) / BINS as f64;
    let enough = |group: &usize| *group >= least && limit * bin * *group as f64 >= CELLS_MIN;
    GROUPS.into_iter().find(enough).unwrap_or(GROUP_MAX)
}

impl<'a> RateCurve<'a> {
    fn of(scenario: &Scenario, row: &'a PolicyRow, group: usize) -> Option<Self> {
        let outcome = row.outcomes.first()?;
        let tally = outcome.phases.first()?.tally;
        let bin = seconds(scenario) / outcome.bins.len().max(1) as f64;
        let rates = |of: fn(&Bin) -> u64| {
            let points = outcome.bins.chunks(group);
            points
                .map(|bins| bins.iter().map(of).sum::<u64>() as f64 / (bin * bins.len() as f64))
                .collect()
        };
        Some(Self {
            name: &row.name,
            ratio: tally.admitted as f64 / tally.exact.max(1) as f64,
            asked: rates(|bin| bin.asked),
            admitted: rates(|bin| bin.admitted),
        })
    }
}

fn peak<'a>(curves: impl Iterator<Item = &'a Vec<f64>>) -> f64 {
    curves.flatten().copied().fold(0.0, f64::max)
}

/// Draws the heading, and returns the position of the next line.
fn heading(canvas: &mut Canvas, scenario: &Scenario, facts: &str) -> f64 {
    canvas.text((18.0, 28.0), Anchor::Start, "title", &scenario.name);
    canvas.text((WIDTH - RIGHT, 28.0), Anchor::End, "", facts);
    let mut y = 28.0;
    for line in wrapped(&scenario.why, WIDTH - 18.0 - RIGHT).iter().take(3) {
        y += LINE;
        canvas.text((18.0, y), Anchor::Start, "", line);
    }
    y + LINE + 8.0
}

/// `text` in lines of at most so many pixels.
fn wrapped(text: &str, pixels: f64) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        match lines.last_mut() {
            Some(line) if wide(line, 12.0) + wide(word, 12.0) + 6.0 < pixels => {
                line.push(' ');
                line.push_str(word);
            }
            Some(_) | None => lines.push(word.to_owned()),
        }
    }
    lines
}

fn legend(canvas: &mut Canvas, y: f64, asked: f64, limit: f64) {
    let mut x = 18.0;
    let middle = y - 4.0;
    canvas.polygon(
        &[
            (x, y - 10.0),
            (x + 18.0, y - 10.0),
            (x + 18.0, y + 2.0),
            (x, y + 2.0),
        ],
        "asked",
    );
    let text = format!("asked, up to {}/s", short(asked));
    canvas.text((x + 24.0, y), Anchor::Start, "", &text);
    x += 24.0 + wide(&text, 12.0) + 20.0;
    if limit > 0.0 {
        canvas.line((x, middle), (x + 22.0, middle), "limit");
        let text = format!("limit, {}/s", short(limit));
        canvas.text((x + 28.0, y), Anchor::Start, "", &text);
        x += 28.0 + wide(&text, 12.0) + 20.0;
    }
    canvas.line((x, middle), (x + 22.0, middle), "line ours line0");
    canvas.text((x + 28.0, y), Anchor::Start, "", "admitted");
}

#[cfg(test)]
mod tests {
    use super::{admitted_over_time, group, wrapped};
    use crate::report::samples::{check_well_formed, row, scenario};

    #[test]
    fn a_rate_far_above_the_limit_is_cut_off_and_its_peak_written() {
        let rows = [row("tidegate", 100), row("per-pod", 1_500)];
        let svg = admitted_over_time(&scenario(), &rows, 1_000.0);
        check_well_formed(&svg);
        assert_eq!(
            svg.matches("up to 15k/s").count(),
            2,
            "of what was asked, and of one line"
        );
        assert!(svg.contains("admitted/exact 1.000"));
        assert!(svg.contains("admitted/exact 15.000"));
        assert!(svg.contains("limit, 1k/s"));
        assert!(svg.contains("averaged over 400 ms; 20 pods, seed 1"));
    }

    #[test]
    fn the_time_axis_ends_where_the_load_does() {
        let svg = admitted_over_time(&scenario(), &[row("tidegate", 100)], 1_000.0);
        for tick in [">0<", ">5<", ">10<", ">15<", ">20 s<"] {
            assert!(svg.contains(tick), "{tick}");
        }
    }

    #[test]
    fn names_are_escaped() {
        let svg = admitted_over_time(&scenario(), &[row("a < b & \"c\"", 100)], 1_000.0);
        check_well_formed(&svg);
        assert!(svg.contains("a &lt; b &amp; &quot;c&quot;"));
    }

    #[test]
    fn the_same_outcomes_give_the_same_bytes() {
        let rows = [
            row("tidegate", 100),
            row("per-pod", 1_500),
            row("other", 90),
        ];
        let draw = || admitted_over_time(&scenario(), &rows, 1_000.0);
        assert_eq!(draw(), draw());
    }

    #[test]
    fn nothing_to_draw_is_drawn_all_the_same() {
        for rows in [vec![], vec![row("silent", 0)]] {
            for limit in [0.0, 0.1] {
                let svg = admitted_over_time(&scenario(), &rows, limit);
                check_well_formed(&svg);
                assert!(!svg.contains("NaN"));
            }
        }
    }

    #[test]
    fn few_cells_are_drawn_as_fewer_points() {
        assert_eq!(group(&scenario(), 1, 1_000.0), 2);
        assert_eq!(group(&scenario(), 3, 1_000.0), 5);
        assert_eq!(group(&scenario(), 3, 30.0), 10);
        assert_eq!(group(&scenario(), 3, 1.0), 20);
    }

    #[test]
    fn text_is_wrapped_between_words() {
        assert_eq!(wrapped("one two three", 60.0), ["one two", "three"]);
        assert_eq!(wrapped("", 60.0), [""; 0]);
    }
}
