//! An axis: the position of a value, and the values that are written on it.

/// The largest ratio of the greatest to the least value for which an axis is linear.
const LINEAR_MAX: f64 = 10.0;
/// Pixels between zero and the least value of a logarithmic axis.
const ZERO: f64 = 34.0;
/// The most decades that are divided further.
const DIVIDED_MAX: f64 = 2.0;

/// Maps values to pixels.
#[derive(Clone, Debug)]
pub struct Axis {
    /// The least value on it, apart from the zero of [`AxisScale::WithZero`], and the greatest.
    ends: (f64, f64),
    /// The positions of these two, in pixels.
    pixels: (f64, f64),
    scale: AxisScale,
}

/// How values are spread along an axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AxisScale {
    Linear,
    Logarithmic,
    /// Logarithmic, with an extra position for zero, which has no logarithm.
    WithZero,
}

impl Axis {
    /// A linear axis from 0 to `most`, which is not rounded.
    pub const fn until(most: f64, pixels: (f64, f64)) -> Self {
        Self {
            ends: (0.0, most),
            pixels,
            scale: AxisScale::Linear,
        }
    }

    /// An axis for all `values`: logarithmic if they span more than a decade.
    pub fn around(values: &[f64], pixels: (f64, f64)) -> Self {
        let most = values.iter().copied().fold(0.0, f64::max);
        let positive = values.iter().copied().filter(|value| *value > 0.0);
        let least = positive.fold(f64::INFINITY, f64::min);
        if most <= least * LINEAR_MAX {
            let most = if most > 0.0 { most } else { 1.0 };
            return Self::until(above(most * 1.02), pixels);
        }
        let zero = values.iter().any(|value| *value <= 0.0);
        Self {
            ends: (below(least * 0.9), above(most * 1.1)),
            pixels,
            scale: if zero {
                AxisScale::WithZero
            } else {
                AxisScale::Logarithmic
            },
        }
    }

    /// The position of `value`, in pixels.
    pub fn at(&self, value: f64) -> f64 {
        let ((least, most), (from, to)) = (self.ends, self.pixels);
        let along = |part: f64, from: f64| from + part * (to - from);
        let part = || (value / least).log10() / (most / least).log10();
        match self.scale {
            AxisScale::Linear => along((value - least) / (most - least), from),
            AxisScale::Logarithmic => along(part(), from),
            AxisScale::WithZero if value <= 0.0 => from,
            AxisScale::WithZero => along(part(), self.least()),
        }
    }

    /// The position of the least value that is not zero.
    fn least(&self) -> f64 {
        let (from, to) = self.pixels;
        match self.scale {
            AxisScale::Linear | AxisScale::Logarithmic => from,
            AxisScale::WithZero => from + ZERO.copysign(to - from),
        }
    }

    /// Where the axis is broken, between zero and the other values.
    pub fn gap(&self) -> Option<f64> {
        match self.scale {
            AxisScale::Linear | AxisScale::Logarithmic => None,
            AxisScale::WithZero => Some(f64::midpoint(self.pixels.0, self.least())),
        }
    }

    pub fn is_logarithmic(&self) -> bool {
        self.scale != AxisScale::Linear
    }

    /// Round values along the axis, about `count` of them if it is linear.
    pub fn ticks(&self, count: usize) -> Vec<f64> {
        let (least, most) = self.ends;
        match self.scale {
            AxisScale::Linear => linear(most, count),
            AxisScale::Logarithmic => logarithmic(least, most),
            AxisScale::WithZero => std::iter::once(0.0)
                .chain(logarithmic(least, most))
                .collect(),
        }
    }
}

fn linear(most: f64, count: usize) -> Vec<f64> {
    let step = above(most / count.max(1) as f64);
    let steps = (most / step * (1.0 + 1e-9)).floor() as usize;
    (0..=steps).map(|index| index as f64 * step).collect()
}

fn logarithmic(least: f64, most: f64) -> Vec<f64> {
    let divided = (most / least).log10() <= DIVIDED_MAX;
    let factors: &[f64] = if divided { &[1.0, 2.0, 5.0] } else { &[1.0] };
    let decades = least.log10().floor() as i32..=most.log10().ceil() as i32;
    let all = decades.flat_map(|decade| factors.iter().map(move |factor| factor * ten(decade)));
    all.filter(|value| (least * 0.999..=most * 1.001).contains(value))
        .collect()
}

/// The smallest round value (1, 2 or 5 times a power of ten) that is not below `value`.
pub fn above(value: f64) -> f64 {
    round(value, |candidate| candidate >= value * (1.0 - 1e-9)).0
}

/// The largest round value that is not above `value`.
fn below(value: f64) -> f64 {
    round(value, |candidate| candidate > value * (1.0 + 1e-9)).1
}

/// The first round value for which `far` is true, and the one before it.
fn round(value: f64, far: impl Fn(f64) -> bool) -> (f64, f64) {
    if !value.is_finite() || value <= 0.0 {
        return (1.0, 1.0);
    }
    let decade = value.log10().floor() as i32;
    let mut before = 0.5 * ten(decade);
    for candidate in [1.0, 2.0, 5.0, 10.0, 20.0].map(|factor| factor * ten(decade)) {
        if far(candidate) {
            return (candidate, before);
        }
        before = candidate;
    }
    (before, before)
}

/// A power of ten. One below 1 is only exact as a quotient.
fn ten(decade: i32) -> f64 {
    match decade {
        0.. => 10.0_f64.powi(decade),
        _ => 1.0 / 10.0_f64.powi(-decade),
    }
}

/// A value as a short text: `0.05`, `250`, `1.5k`, `20M`.
pub fn short(value: f64) -> String {
    let (scaled, unit) = match value.abs() {
        size if size >= 999_500.0 => (value / 1e6, "M"),
        size if size >= 999.5 => (value / 1e3, "k"),
        _ => (value, ""),
    };
    let decimals = match scaled.abs() {
        size if size >= 99.95 || size == 0.0 => 0,
        size if size >= 9.995 => 1,
        size if size >= 0.1 => 2,
        // Two significant digits.
        size => (1.0 - size.log10().floor()) as usize,
    };
    let text = format!("{scaled:.decimals$}");
    let text = match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.'),
        false => &text,
    };
    format!("{text}{unit}")
}

#[cfg(test)]
mod tests {
    use super::{Axis, above, below, short};

    const PIXELS: (f64, f64) = (0.0, 100.0);

    #[test]
    fn linear_ticks_are_round() {
        assert_eq!(
            Axis::until(5_600.0, PIXELS).ticks(4),
            [0.0, 2_000.0, 4_000.0]
        );
        assert_eq!(
            Axis::until(20.0, PIXELS).ticks(4),
            [0.0, 5.0, 10.0, 15.0, 20.0]
        );
        assert_eq!(Axis::until(3.0, PIXELS).ticks(4), [0.0, 1.0, 2.0, 3.0]);
        let texts: Vec<String> = Axis::until(0.4, PIXELS)
            .ticks(4)
            .into_iter()
            .map(short)
            .collect();
        assert_eq!(texts, ["0", "0.1", "0.2", "0.3", "0.4"]);
    }

    #[test]
    fn more_than_a_decade_is_logarithmic() {
        assert!(!Axis::around(&[1.0, 10.0], PIXELS).is_logarithmic());
        assert!(Axis::around(&[1.0, 10.1], PIXELS).is_logarithmic());
        assert!(!Axis::around(&[0.0, 3.0], PIXELS).is_logarithmic());
        assert!(!Axis::around(&[], PIXELS).is_logarithmic());
    }

    #[test]
    fn logarithmic_ticks_are_round() {
        let wide = Axis::around(&[0.02, 900.0], PIXELS);
        assert_eq!(wide.ticks(5), [0.01, 0.1, 1.0, 10.0, 100.0, 1_000.0]);
        let narrow = Axis::around(&[3.0, 90.0], PIXELS);
        assert_eq!(narrow.ticks(5), [2.0, 5.0, 10.0, 20.0, 50.0, 100.0]);
    }

    #[test]
    fn a_logarithmic_axis_has_a_place_for_zero() {
        let axis = Axis::around(&[0.0, 1.0, 1_000.0], (400.0, 0.0));
        assert_eq!(axis.ticks(5), [0.0, 1.0, 10.0, 100.0, 1_000.0]);
        assert_eq!(axis.at(0.0), 400.0);
        assert_eq!(axis.gap(), Some(383.0));
        assert!(axis.at(1.0) < 366.0);
        assert!(axis.at(1_000.0) > 0.0);
    }

    #[test]
    fn round_values_are_one_two_or_five() {
        assert_eq!(
            [0.3, 1.0, 1.1, 4.0, 9.0].map(above),
            [0.5, 1.0, 2.0, 5.0, 10.0]
        );
        assert_eq!(
            [0.3, 1.0, 1.1, 4.0, 9.0].map(below),
            [0.2, 1.0, 1.0, 2.0, 5.0]
        );
        assert_eq!([0.0, f64::NAN].map(above), [1.0, 1.0]);
    }

    #[test]
    fn a_value_is_short() {
        let values = [
            0.0, 0.05, 0.25, 12.34, 250.0, 999.9, 1_500.0, 123_456.0, 2e7,
        ];
        let texts = [
            "0", "0.05", "0.25", "12.3", "250", "1k", "1.5k", "123k", "20M",
        ];
        assert_eq!(values.map(short), texts);
    }
}
